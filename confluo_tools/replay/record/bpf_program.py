"""The recorder's BPF program (pyx/replay/record_tcp.bpf.c): loading it, and its records as Python values."""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from confluo_tools.errors import ConfluoError
from confluo_tools.kernel.bpf_object import BpfObject
from confluo_tools.kernel.bpf_programs import BpfMap, BpfPrograms, map_ring
from confluo_tools.kernel.btf import STRUCT, Btf, StructReader, kernel_btf
from confluo_tools.replay.recording.kinds import Kind

if TYPE_CHECKING:
    from confluo_tools.core.replay.bpf_records import RecordRing
    from confluo_tools.schema import Schema

OBJECT = Path(__file__).resolve().parents[2] / "core/replay/record_tcp.bpf.o"
BEGIN, SYN, DIGEST, CLOSED, END = range(2, 7)  # types of records; 1 are runs
MAX_PORTS = 64
HINT = "leave out --source bpf"
_RECORDS = {BEGIN: "begin_record", SYN: "syn_record", DIGEST: "digest_record", CLOSED: "close_record", END: "end"}
# Timers of TCP, by their numbers in the schema less one: their functions, and where they are in a socket.
_TIMERS = (
    ("tcp_write_timer", (("sock", "tcp_retransmit_timer"), ("inet_connection_sock", "icsk_retransmit_timer"))),
    ("tcp_delack_timer", (("inet_connection_sock", "icsk_delack_timer"),)),
    ("tcp_keepalive_timer", (("inet_connection_sock", "icsk_keepalive_timer"), ("sock", "sk_timer"))),
)


class RecorderProgram:
    """The program for the network namespace of this thread and ``ports`` (none: all).

    ``ends``: what the kernel knows of each end, by key.  Raises ConfluoError.
    """

    def __init__(self, ports: frozenset[int]) -> None:
        if len(ports) > MAX_PORTS:
            raise ConfluoError(f"{len(ports)} ports; BPF records {MAX_PORTS}", where="--port", hint=HINT)
        try:
            data = OBJECT.read_bytes()
        except OSError:
            raise ConfluoError("this installation was built without clang", where="--source bpf", hint=HINT) from None
        try:
            kernel = kernel_btf()
            content = BpfObject(data, kernel)
            settings = _settings(kernel, ports)
            self._programs = BpfPrograms(content, kernel, settings)
        except ConfluoError as e:
            raise ConfluoError(f"{e.where}: {e.what}" if e.where else e.what, where="--source bpf", hint=HINT) from None
        self.ends: BpfMap = self._programs.maps["ends"]
        self._counters = StructReader(content.types, "counters")
        self._readers = {
            number: StructReader(content.types, name, before="sent" if number == END else "")
            for number, name in _RECORDS.items()
        }
        self._runs = _EndRuns.of(content.types)

    @property
    def ring_bytes(self) -> int:
        return self._programs.maps["records"].shape.entries

    def ring(self, schema: Schema) -> RecordRing:
        from confluo_tools.core.replay.bpf_records import RecordRing

        records = self._programs.maps["records"]
        return RecordRing(*map_ring(records), self.ring_bytes, schema.layout)

    def attach(self) -> None:
        """Record from now on.  Raises ConfluoError."""
        try:
            self._programs.attach()
        except ConfluoError as e:
            raise ConfluoError(e.what, where="--source bpf", hint=HINT) from None

    def counters(self) -> dict[str, int]:
        """What the program counted: lost records, excess connections, ends made."""
        return self._counters.read(self._programs.maps[".bss"].get(bytes(4)) or bytes(64))

    def values(self, record: bytes) -> tuple[int, dict[str, Any]]:
        """The type of a record that is not a run, and its values."""
        (kind,) = struct.unpack_from("<H", record)
        return kind, self._readers[kind].read(record)

    def runs_of(self, end: bytes) -> Iterator[tuple[int, memoryview]]:
        """The open runs of an end: (kind, or 0 of events, the structure)."""
        whole, runs = memoryview(end), self._runs
        for number in range(runs.event_runs):
            at = runs.events + number * runs.event_size
            yield 0, whole[at : at + runs.event_size]
        yield Kind.RX, whole[runs.received : runs.received + runs.packet_size]
        yield Kind.TX, whole[runs.sent : runs.sent + runs.packet_size]

    def close(self) -> None:
        self._programs.close()


class _EndRuns(NamedTuple):
    """Where the runs are in an end, and how large."""

    sent: int
    received: int
    packet_size: int
    events: int
    event_size: int
    event_runs: int

    @classmethod
    def of(cls, types: Btf) -> _EndRuns:
        end = types.find("end", STRUCT)
        places = {m.name: m for m in types.members(end)}
        packets, events = types.size(types.find("packet_run", STRUCT)), types.size(types.find("event_run", STRUCT))
        first = places["runs"].offset  # the last ones
        count = (types.size(end) - first) // events
        return cls(places["sent"].offset, places["received"].offset, packets, first, events, count)


def _settings(kernel: Btf, ports: frozenset[int]) -> bytes:
    """As struct settings of record_tcp_end.h."""
    functions, offsets = [0] * len(_TIMERS), [0] * len(_TIMERS)
    addresses = _addresses([name for name, _ in _TIMERS])
    for place, (name, members) in enumerate(_TIMERS):
        for structure, member in members:
            found = kernel.member(kernel.find(structure, STRUCT), member)
            if found is not None and name in addresses:
                functions[place], offsets[place] = addresses[name], found.offset
                break
    netns = os.stat("/proc/thread-self/ns/net").st_ino
    types = [kernel.find(name, STRUCT) for name in ("tcp_sock", "iphdr", "tcphdr", "skb_shared_info")]
    listed = [*sorted(ports), *[0] * (MAX_PORTS - len(ports))]
    return struct.pack("<3Q3Q6I64H", *functions, *offsets, netns, *types, len(ports), *listed)


def _addresses(names: list[str]) -> dict[str, int]:
    """Addresses of functions of the kernel; none where it hides them."""
    found = {}
    with suppress(OSError), open("/proc/kallsyms", encoding="ascii", errors="replace") as f:
        for address, name in re.findall(rf"^([0-9a-f]+) \w ({'|'.join(names)})$", f.read(), re.M):
            if int(address, 16):
                found[name] = int(address, 16)
    return found
