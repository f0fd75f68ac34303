"""Ends and connections of a recording."""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from confluo_tools.replay.recording.kinds import Note, Role
from confluo_tools.replay.recording.runs import Runs

MAX_INPUTS = 1 << 23  # packets and events of an end that is replayed: some GB of memory
_PLACE = ("ts", "step", "count", "number", "number_step", "tx", "tx_step", "rx", "rx_step", "notes")
EVENT_FIELDS = ("kind", *_PLACE, "call", "bytes", "asked", "flags", "value", "timer")
PROBE_FIELDS = ("snd_una", "snd_nxt", "cwnd", "ssthresh", "srtt", "rcv_wnd", "snd_wnd", "ca_state")
PACKET_FIELDS = ("ts", "step", "count", "tx", "tx_step", "rx", "rx_step", "notes", "ip_id", "segments", "gap")
HEADER_FIELDS = (
    "ts",
    "count",
    "tx",
    "rx",
    "seq",
    "ack",
    "len",
    "tcp_flags",
    "window",
    "ecn",
    "tsval",
    "tsecr",
    "ip_id",
)


class FiveTuple(NamedTuple):
    """The five-tuple of one end: its own address and port first.  Addresses are text."""

    version: int
    src: str
    src_port: int
    dst: str
    dst_port: int

    @property
    def reversed(self) -> FiveTuple:
        return FiveTuple(self.version, self.dst, self.dst_port, self.src, self.src_port)

    def __str__(self) -> str:
        source, target = (f"[{self.src}]", f"[{self.dst}]") if self.version == 6 else (self.src, self.dst)
        return f"{source}:{self.src_port}-{target}:{self.dst_port}/tcp"


@dataclass
class ConnectionEnd:
    """What one end of a connection did.

    ``events``: runs of calls, polls, timers, retransmissions, probes and states (`EVENT_FIELDS`, `PROBE_FIELDS`).
    ``received``, ``sent``: runs of packets (`PACKET_FIELDS`).  ``digests``: hashes of the headers sent, one for
    each 64 packets, from packet 0 on.  ``headers_sent``, ``headers_received``: one row for each packet
    (`HEADER_FIELDS`), empty without the level headers; ``sack_sent`` and ``sack_received`` are their SACK edges.
    ``packets_sent``, ``packets_received``: all of the connection.  ``problems``: why it cannot be replayed.
    """

    flow: FiveTuple
    cookie: int
    role: int = 0
    notes: int = 0
    began: int = 0  # ns; 0: the recording has no begin
    ended: int = 0
    packets_sent: int = 0
    packets_received: int = 0
    lost: int = 0  # events that the recorder lost
    settings: dict[str, int | str] = field(default_factory=dict)
    events: Runs = field(default_factory=lambda: Runs((*EVENT_FIELDS, *PROBE_FIELDS)))
    received: Runs = field(default_factory=lambda: Runs(PACKET_FIELDS))
    sent: Runs = field(default_factory=lambda: Runs(PACKET_FIELDS))
    digests: array[int] = field(default_factory=lambda: array("I"))
    headers_sent: Runs = field(default_factory=lambda: Runs(HEADER_FIELDS))
    headers_received: Runs = field(default_factory=lambda: Runs(HEADER_FIELDS))
    sack_sent: list[tuple[int, ...]] = field(default_factory=list)
    sack_received: list[tuple[int, ...]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @property
    def client(self) -> bool:
        return self.role == Role.CLIENT

    def settled(self) -> None:
        """Collect why this end cannot be replayed, after its last row."""
        if not self.began or self.notes & Note.EARLIER:
            self.problems.append("it began before the recording")
        if not self.ended:
            self.problems.append("the recording ends before it does")
        if self.lost or self.notes & Note.CUT:
            self.problems.append(f"{self.lost} events were lost" if self.lost else "a part of the recording is missing")
        for what, packets, runs in (
            ("sent", self.packets_sent, self.sent),
            ("received", self.packets_received, self.received),
        ):
            if self.ended and runs.events != packets:
                self.problems.append(f"{packets} packets were {what}, the recording has {runs.events}")
        inputs = self.events.events + self.packets_sent + self.packets_received
        if self.ended and inputs > MAX_INPUTS:
            self.problems.append(f"its {inputs} packets and events are more than the {MAX_INPUTS} of a replay")

    def setting(self, name: str, default: int = 0) -> int:
        """A setting that is a number."""
        value = self.settings.get(name, default)
        return value if isinstance(value, int) else default


@dataclass
class RecordedConnection:
    """Both ends of one connection."""

    client: ConnectionEnd
    server: ConnectionEnd

    @property
    def problems(self) -> list[str]:
        """Why it cannot be replayed, with the end; empty when it can."""
        both = (("client", self.client), ("server", self.server))
        return [f"{name}: {why}" for name, end in both for why in end.problems]


class LoneEnd(NamedTuple):
    """An end without its other half, and why there is none."""

    end: ConnectionEnd
    why: str


def pair_ends(ends: Iterable[ConnectionEnd]) -> tuple[list[RecordedConnection], list[LoneEnd]]:
    """Join the two ends of each connection.

    They have reversed five-tuples and the same initial sequence numbers; where these are not known, they overlap in
    time.
    """
    by_flow: dict[FiveTuple, list[ConnectionEnd]] = defaultdict(list)
    clients: list[ConnectionEnd] = []
    others: list[ConnectionEnd] = []
    for end in ends:
        (clients if end.client else others).append(end)
    for end in others:
        by_flow[end.flow].append(end)
    connections: list[RecordedConnection] = []
    alone: list[LoneEnd] = []
    for client in clients:
        servers = by_flow[client.flow.reversed]
        best = next((s for s in servers if _same(client, s)), None)
        if best is None:
            halves = "its other end is another connection" if servers else "the recording of its other end is missing"
            alone.append(LoneEnd(client, halves))
            continue
        servers.remove(best)
        connections.append(RecordedConnection(client, best))
    alone += [LoneEnd(s, "the recording of its other end is missing") for rest in by_flow.values() for s in rest]
    return connections, alone


def _same(client: ConnectionEnd, server: ConnectionEnd) -> bool:
    if {"isn", "peer_isn"} <= client.settings.keys() & server.settings.keys():
        ours = client.settings["isn"], client.settings["peer_isn"]
        return ours == (server.settings["peer_isn"], server.settings["isn"])
    return client.began < (server.ended or 1 << 62) and server.began < (client.ended or 1 << 62)
