"""Recordings and replays as packets of two taps: the headers that each end sent and received."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from confluo_tools.errors import FormatError
from confluo_tools.formats.block_builder import address_columns, blocks_of_rows
from confluo_tools.replay.explain.evidence import evidence_of
from confluo_tools.replay.recording import ConnectionEnd, pair_ends, read_ends

if TYPE_CHECKING:
    from confluo_tools.core.block.block import Block
    from confluo_tools.formats.reader import Reader
    from confluo_tools.schema import Schema

SYN, TCP = 2, 6
WSCALE, SACK_OK, SACK = 2, 4, 8  # bits of tcp_opts
RENAMED = {"ack": "tcp_ack", "seq": "tcp_seq", "len": "payload_len", "window": "tcp_window", "tsval": "tcp_tsval"}
RENAMED |= {"tsecr": "tcp_tsecr", "tcp_flags": "tcp_flags", "ip_id": "ip_id", "ts": "ts"}


class RecordedTap:
    """The packets of one end of each connection, in order of time.  ``sides``: of `Explainer.place`."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self.ends: list[ConnectionEnd] = []

    def add(self, end: ConnectionEnd) -> None:
        self.ends.append(end)
        self.rows += packets_of_end(end)

    @property
    def payload(self) -> int:
        """Bytes that its ends sent."""
        return sum(sum(end.headers_sent["len"]) for end in self.ends)

    def blocks(self, schema: Schema) -> Iterator[Block]:
        self.rows.sort(key=lambda row: row["ts"])
        yield from blocks_of_rows(schema, self.rows)


def recorded_taps(readers: Sequence[Reader]) -> list[RecordedTap]:
    """One tap, or two if the recordings have both ends of a connection.  Raises FormatError without headers."""
    ends = [end for reader in readers for end in read_ends(reader)]
    if ends and not any(len(end.headers_sent) for end in ends):
        hint = "record with --level headers, or replay it: confluo-replay FILE -w again.ml"
        raise FormatError("contains no packet headers", where=readers[0].name, hint=hint)
    both, alone = pair_ends(ends)
    taps = [RecordedTap(), RecordedTap()] if both else [RecordedTap()]
    for connection in both:
        taps[0].add(connection.client)
        taps[1].add(connection.server)
    for lone in alone:
        taps[0].add(lone.end)
    return taps


def packets_of_end(end: ConnectionEnd) -> Iterator[dict[str, Any]]:
    """The headers that this end sent and received, in their order, which times of two clocks may not show exactly."""
    here = _addresses(end, "src", "dst")
    there = _addresses(end, "dst", "src")
    sent = _packets(end.headers_sent, end.sack_sent, here, end.settings, "")
    got = list(_packets(end.headers_received, end.sack_received, there, end.settings, "peer_"))
    evidence = evidence_of(end, timers=not end.setting("replay"))
    after = end.headers_received["tx"]  # packets that it had sent before each one that it processed
    now, place = 0, 0
    for number, (row, known) in enumerate(zip(sent, evidence, strict=True)):
        while place < len(got) and after[place] <= number:
            yield got[place] | {"ts": (now := max(now, got[place]["ts"]))}
            place += 1
        yield row | known._asdict() | {"ts": (now := max(now, row["ts"]))}
    for row in got[place:]:
        yield row | {"ts": (now := max(now, row["ts"]))}


def _addresses(end: ConnectionEnd, source: str, target: str) -> dict[str, Any]:
    flow = end.flow
    found: dict[str, Any] = address_columns(source, flow.src) | address_columns(target, flow.dst)
    return found | {f"{source}_port": flow.src_port, f"{target}_port": flow.dst_port, "proto": TCP}


def _packets(
    headers: Any, sacks: Sequence[tuple[int, ...]], ends: Mapping[str, Any], settings: Mapping[str, Any], prefix: str
) -> Iterator[dict[str, Any]]:
    columns = {to: headers[name] for name, to in RENAMED.items()}
    for i in range(len(headers)):
        row = dict(ends) | {name: column[i] for name, column in columns.items()}
        edges = sacks[i] if i < len(sacks) else ()
        if any(edges):
            row |= {"tcp_sack": edges, "tcp_opts": SACK}
        if row["tcp_flags"] & SYN:
            scale = settings.get(f"{prefix}wscale", -1)
            row["tcp_mss"] = settings.get(f"{prefix}mss", 0)
            row["tcp_opts"] = SACK_OK * bool(settings.get(f"{prefix}sack")) | WSCALE * (scale >= 0)
            row["tcp_wscale"] = max(scale, 0)
        yield row


def key_of(end: ConnectionEnd) -> tuple[bytes, int]:
    """(key of the connection in the explainer, side of this end)."""
    from ipaddress import ip_address

    from confluo_tools.core.replay.explainer import Explainer

    flow = end.flow
    return Explainer.key(ip_address(flow.src).packed, flow.src_port, ip_address(flow.dst).packed, flow.dst_port)
