"""Flow records as dictionaries, and the flows of a capture as tshark's packets give them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from confluo_tools.core.block.block import Block
from confluo_tools.core.flows.conn_table import ConnTable
from confluo_tools.formats.pcap import open_captures
from confluo_tools.multilog.query.flow_records import conn_table
from confluo_tools.schema import builtin
from oracle_packets import address, expected, is_packet

CONN = builtin("conn")
Row = dict[str, Any]
End = tuple[str | None, int]


def rows_of(blocks: Iterable[Block]) -> list[Row]:
    """Rows with addresses and words as text, flags as numbers."""
    found = []
    for block in blocks:
        for i in range(block.rows):
            row: Row = {c.name: block.get(k, i) for k, c in enumerate(CONN.columns)}
            for name in ("src_ip", "dst_ip"):
                row[name] = address(row[name], row.pop(name + "6"), row["ip_version"])
            for name in ("conn_state", "reason"):
                row[name] = CONN[name].names[row[name]]
            row["history"] = row["history"].rstrip(b"\0").decode()
            found.append(row)
    return found


def flows_of(path: Path, **options: int) -> list[Row]:
    """The flow records of a capture."""
    with open_captures([str(path)]) as captures:
        table = conn_table(captures.schema, **options)
        return rows_of(_through(table, captures))


def _through(table: ConnTable, blocks: Iterable[Block]) -> Iterator[Block]:
    for block in blocks:
        yield from table.process(block)
    yield from table.finish()


class Way(NamedTuple):
    """What one end of a conversation sent."""

    packets: int
    bytes: int
    again: int  # TCP segments sent again or out of order


Conversation = frozenset[tuple[End, Way]]


def conversations(rows: Iterable[Row], proto: int) -> Counter[Conversation]:
    """Both ways of each flow of TCP or UDP, without the direction."""
    found: Counter[Conversation] = Counter()
    for row in rows:
        if row["proto"] != proto or not (row["src_port"] or row["dst_port"]):
            continue
        ways: dict[End, Way] = {}
        for end in ("src", "dst"):
            who = row[f"{end}_ip"], row[f"{end}_port"]
            way = row[f"{end}_packets"], row[f"{end}_bytes"], row[f"{end}_retx"] + row[f"{end}_ooo"]
            before = ways.get(who, (0, 0, 0))  # the two ends may be the same one
            ways[who] = Way(*(a + b for a, b in zip(before, way, strict=True)))
        found[frozenset(ways.items())] += 1
    return found


def tshark_conversations(lines: Iterable[dict[str, str]], proto: int) -> Counter[Conversation]:
    """The same of the packets of tshark: TCP by its streams, UDP by five-tuple."""
    name = {6: "tcp", 17: "udp"}[proto]
    found: dict[Any, dict[End, list[int]]] = {}
    for line in lines:
        if not is_packet(line):
            continue
        row = expected(line)
        if row["proto"] != proto or row["src_port"] is None or not (row["src_port"] or row["dst_port"]):
            continue
        ends = (row["src_ip"], row["src_port"]), (row["dst_ip"], row["dst_port"])
        key = line["tcp.stream"] if name == "tcp" else frozenset(ends)
        ways = found.setdefault((key, frozenset(ends)), {end: [0, 0, 0] for end in ends})
        way = ways[ends[0]]
        again = any(line.get(f"tcp.analysis.{what}") for what in ("retransmission", "out_of_order"))
        way[0], way[1], way[2] = way[0] + 1, way[1] + row["ip_len"], way[2] + (again and name == "tcp")
    return Counter(frozenset((end, Way(*w)) for end, w in ways.items()) for ways in found.values())
