"""What tshark says of each segment (tcp.analysis.*), in our fields, and the differences of docs/oracles-tcp.md."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from confluo_tools.expr.words import TCP_ANALYSIS_FLAGS
from confluo_tools.formats.pcap import open_captures
from confluo_tools.multilog.query.derived_fields import Analysis
from oracle_packets import QUOTING, is_packet, nanoseconds

Row = dict[str, Any]
NUMBERS = {
    "tcp_dup_ack_num": "tcp.analysis.duplicate_ack_num",
    "tcp_bytes_in_flight": "tcp.analysis.bytes_in_flight",
    "tcp_rel_seq": "tcp.seq",
    "tcp_rel_ack": "tcp.ack",
    "tcp_window_size": "tcp.window_size",
}
TIMES = {"tcp_rto": "tcp.analysis.rto", "tcp_ack_rtt": "tcp.analysis.ack_rtt", "tcp_irtt": "tcp.analysis.initial_rtt"}
FIELDS = ("tcp_analysis", *NUMBERS, *TIMES)
WANTED = (
    "frame.protocols",
    "frame.time_epoch",
    "tcp.flags",
    "tcp.stream",
    "tcp.srcport",
    "tcp.options.sack_le",
    "tcp.options.sack_re",
    "ip.src",
    "ipv6.src",
    *(f"tcp.analysis.{n}" for n in TCP_ANALYSIS_FLAGS),
    *NUMBERS.values(),
    *TIMES.values(),
)
BROKEN = 2 | 4  # notes: malformed, fragment
TIME_FIXED = 64


def tshark(path: Path) -> Iterator[dict[str, str]]:
    """Every packet by the fields of WANTED, their outermost occurrences (of SACK blocks all)."""
    options = ("ip.defragment:FALSE", "ipv6.defragment:FALSE", "tcp.desegment_tcp_streams:FALSE")
    command = ["tshark", "-n", "-r", str(path), *(w for o in options for w in ("-o", o))]
    command += ["-T", "fields", "-E", "separator=/t", "-E", "occurrence=a", "-E", "aggregator=|"]
    command += [w for name in WANTED for w in ("-e", name)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0 or done.stdout, done.stderr
    for line in done.stdout.splitlines():
        t = dict(zip(WANTED, line.split("\t"), strict=True))
        if is_packet(t):
            yield {n: v if n.startswith("tcp.options") else v.split("|")[0] for n, v in t.items()}


def delta(text: str) -> int:
    return -nanoseconds(text[1:]) if text.startswith("-") else nanoseconds(text)


def expected(path: Path) -> Iterator[Row]:
    """Our fields of every packet as tshark has them, and what the reasons of the page ask for."""
    sacked: dict[tuple[str, str], int] = {}
    for t in tshark(path):
        row: Row = {n: int(t[theirs] or 0) for n, theirs in NUMBERS.items()}
        row |= {n: delta(t[theirs]) for n, theirs in TIMES.items()}
        row["tcp_analysis"] = {n for n in TCP_ANALYSIS_FLAGS if t[f"tcp.analysis.{n}"]}
        row["chain"] = t["frame.protocols"].split(":")
        row["ack"] = bool(int(t["tcp.flags"] or "0", 0) & 16)
        sender = f"{t['ip.src']}{t['ipv6.src']}:{t['tcp.srcport']}"
        blocks = zip(t["tcp.options.sack_le"].split("|"), t["tcp.options.sack_re"].split("|"), strict=True)
        sacked[t["tcp.stream"], sender] = sum(int(r) - int(le) for le, r in blocks if r)
        row["sacked"] = sum(n for (stream, who), n in sacked.items() if stream == t["tcp.stream"] and who != sender)
        yield row


def ours(path: Path, decap: str = "outer") -> Iterator[Row]:
    """Our fields of every packet."""
    with open_captures([str(path)], decap=decap) as captures:
        analysis = Analysis(captures.schema, "tcp")
        columns = {n: analysis.schema.index(n) for n in (*FIELDS, "proto", "notes", "frag_offset", "tcp_flags")}
        for block in captures:
            block = analysis.apply(block)
            values = {n: [block.get(c, i) for i in range(block.rows)] for n, c in columns.items()}
            for i in range(block.rows):
                row = {n: v[i] for n, v in values.items()}
                row["tcp_analysis"] = {n for k, n in enumerate(TCP_ANALYSIS_FLAGS) if row["tcp_analysis"] >> k & 1}
                yield row


def reason(field: str, theirs: Row, mine: Row) -> str | None:
    """The row of docs/oracles-tcp.md that covers this difference."""
    chain = theirs["chain"]
    if "tcp" not in chain:
        return None
    if sum(name in ("ip", "ipv6") for name in chain) > 1 and mine["proto"] != 6:
        return "quoted" if any(name in chain for name in QUOTING) else "tunnel"
    if mine["notes"] & BROKEN:
        return "garbled"
    if mine["notes"] & 1 and not theirs[field]:
        return "cut"
    if mine["notes"] & TIME_FIXED and field in TIMES:
        return "time"
    if field == "tcp_rel_ack" and not theirs["ack"] and mine[field] == 0:
        return "no-ack"
    if field == "tcp_irtt" and theirs[field] == 0:
        return "irtt"
    if field == "tcp_bytes_in_flight" and theirs[field] == max(0, mine[field] - theirs["sacked"]):
        return "sacked"
    return None
