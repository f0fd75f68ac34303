"""Tables of text as other programs write them: delimiters, files without a line of names, summaries at the end."""

from __future__ import annotations

import re

# Flow logs of AWS VPC: the default format has these fields in this order; custom ones choose from more.
_VPC_DEFAULT = (
    "version account-id interface-id srcaddr dstaddr srcport dstport protocol packets bytes start end action log-status"
)
_VPC_MORE = (
    "vpc-id subnet-id instance-id tcp-flags type pkt-srcaddr pkt-dstaddr region az-id sublocation-type sublocation-id "
    "pkt-src-aws-service pkt-dst-aws-service flow-direction traffic-path reject-reason ecs-cluster-arn ecs-cluster-name"
)
_VPC = frozenset(f"{_VPC_DEFAULT} {_VPC_MORE}".encode().split())
_VPC_ROW = re.compile(rb"2 (\d{12}|unknown) (eni-|-)")
NFDUMP = b"ts,te,td,"  # the header of nfdump -o csv begins so
SUMMARY, SUMMARY_MORE = "Summary", 2  # the line after its rows, and the number of those after that
NO_ROWS = "No matching flows"


def delimiter_of(line: bytes) -> bytes:
    """What separates the names in the first line of a table: the most frequent of comma, semicolon and tab."""
    if is_vpc(line + b"\n"):
        return b" "
    plain = re.sub(rb'"[^"]*"', b"", line)
    return max((b",", b";", b"\t"), key=plain.count)


def names_without_header(line: bytes) -> str:
    """The names of fields of a table that begins with the row ``line``; '' if ``line`` has the names."""
    return _VPC_DEFAULT if _VPC_ROW.match(line) else ""


def is_vpc(head: bytes) -> bool:
    """Whether the beginning of a file is that of a flow log of AWS VPC, with names of fields or without."""
    line, end, _ = head.partition(b"\n")
    words = line.rstrip(b"\r").split(b" ")
    words = words if end else words[:-1]
    return _VPC_ROW.match(head) is not None or (len(words) > 1 and _VPC.issuperset(words))
