"""The light recorder: the kernel follows each connection and hands over its runs; here they become rows.

It is used like `ConnectionRecorder`.  The order of what an end did is exact: it is counted where it happens.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from confluo_tools.formats.block_builder import address_columns
from confluo_tools.kernel.tick import tick_phase
from confluo_tools.replay.record import bpf_program as bpf
from confluo_tools.replay.record.bpf_program import RecorderProgram
from confluo_tools.replay.record.recorder import recording_number, wall_offset
from confluo_tools.replay.record.setting_rows import SettingRows
from confluo_tools.replay.record.tcp_options import handshake_options
from confluo_tools.replay.recording.kinds import RECORDING_SHIFT, Kind, Note
from confluo_tools.replay.recording.row_batch import WAIT, RowBatch

if TYPE_CHECKING:
    from confluo_tools.core.block.block import Block
    from confluo_tools.schema import Schema

LINGER = 300_000_000  # ns that an end is kept after its socket has closed
PAUSE, FULL = 1_000_000_000, 8  # ns between two readings, or earlier when an eighth of the ring is full
IDLE = 10_000_000_000  # ns after which an end that was not established is given up
SLOT = 8192  # ns: times of sent packets are multiples of it, others of a part of it, as in record_tcp.h
STEP = 1_000_000  # ns by which the wall clock may move against the other one without being a step


@dataclass(slots=True)
class _End:
    number: int
    key: bytes
    place: dict[str, Any]
    base: int  # wall clock less monotonic clock, ns
    began: int
    notes: int


class BpfRecorder:
    """Records the TCP connections of the network namespace of this thread.  Raises ConfluoError."""

    without_options = ""  # the setting `options` says it
    tick = 0.2  # s between two looks: the ring holds some 20,000 records

    def __init__(self, schema: Schema, *, ports: frozenset[int]) -> None:
        from confluo_tools.core.replay.bpf_records import EndPlace

        self.schema = schema
        self.program = RecorderProgram(ports)
        self._ring = self.program.ring(schema)
        self._place = EndPlace
        self.base = _grained(wall_offset())
        self._enough = self.program.ring_bytes // FULL
        self._next_reading = 0
        self._next = 0  # when the runs of the ring are written
        self._cookies = recording_number() << RECORDING_SHIFT
        self._rows = RowBatch(schema)
        self._settings = SettingRows(self._cookies)
        self._ends: dict[int, _End] = {}
        self._closing: list[tuple[int, int]] = []  # since when, and the number of the end
        self._young: list[tuple[int, int]] = []  # ends that may not be established yet
        self._counters: dict[str, int] = self.program.counters()

    def begin(self) -> None:
        self.program.attach()
        self._settings.begin(options=False)

    # -- counts

    @property
    def live(self) -> int:
        """Ends that are recorded now."""
        return len(self._ends)

    @property
    def made(self) -> int:
        return self._counters["made"]

    @property
    def events(self) -> int:
        return self._ring.events

    @property
    def packets(self) -> int:
        return self._ring.packets

    def lost(self) -> int:
        """Records that the kernel dropped because the ring was full, and connections for which it had no room."""
        return self._counters["lost"] + self._counters["excess"] + self._ring.strange

    # -- reading

    def due(self) -> bool:
        return self._ring.waiting > self._enough or time.clock_gettime_ns(time.CLOCK_MONOTONIC) >= self._next_reading

    def poll(self, *, last: bool = False) -> Iterator[Block]:
        """Read what came, and return the rows that are complete.  ``last``: of all that is left."""
        now = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        self._next_reading = now + PAUSE
        offset = wall_offset()
        if abs(offset - self.base) > STEP:
            self.base = _grained(
                offset
            )  # of connections from now on: those of before keep theirs, so that their times are even
        for row in self._settings.rows(now, self.base):
            self._rows.append(row)
        while True:
            other = self._ring.read()
            if other is not None:
                self._take(other)
            elif not self._ring.full:
                break
            else:
                yield self._ring.rows()
        self._counters = self.program.counters()
        self._end_closed(now)
        if last:
            self._end_all()
        others = list(self._rows.blocks(now, last=last))
        if self._ring.held and (
            last or others or now >= self._next
        ):  # before the last rows of ends: their order counts
            self._next = now + WAIT
            yield self._ring.rows()
        yield from others

    def _take(self, record: bytes) -> None:
        kind, values = self.program.values(record)
        if kind == bpf.BEGIN:
            self._begin_end(values)
            return
        end = self._ends.get(values["id"])
        if end is None:
            return
        if kind == bpf.SYN:
            header = bytes([values[f"header[{n}]"] for n in range(60)])
            prefix = "" if values["sent"] else "peer_"
            for name, value in handshake_options(header).items():
                self._setting(end, values["ts"], prefix + name, value)
        elif kind == bpf.DIGEST:
            self._digests(end, values)
        elif kind == bpf.CLOSED:
            self._closing.append((values["ts"], end.number))
        else:
            self._finish(end, record, values, ended=True)

    def _emit(self, end: _End, ts: int, row: dict[str, Any]) -> None:
        self._rows.append({**end.place, "count": 1, **row, "ts": ts + end.base})

    def _setting(self, end: _End, ts: int, name: str, value: int) -> None:
        self._emit(end, ts, {"kind": Kind.SETTING, "name": name, "value": value})

    def _begin_end(self, values: dict[str, Any]) -> None:
        number, ts = values["id"], values["ts"]
        size = 16 if values["version"] == 6 else 4
        addresses = {
            side: bytes([values[f"{name}[{n}]"] for n in range(size)])
            for side, name in (("src", "source"), ("dst", "destination"))
        }
        place = {
            **address_columns("src", _text(addresses["src"])),
            **address_columns("dst", _text(addresses["dst"])),
            "src_port": values["src_port"],
            "dst_port": values["dst_port"],
            "proto": 6,
            "cookie": self._cookies | number,
            "role": values["role"],
        }
        key = struct.pack("<QQ", values["key.a"], values["key.b"])
        notes = Note.EARLIER if values["earlier"] else 0
        end = self._ends[number] = _End(number, key, place, self.base, ts, notes)
        self._ring.know(number, self._place(place, self.base))
        self._emit(end, ts, {"kind": Kind.BEGIN, "notes": notes})
        if not notes:
            self._young.append((ts, number))
            self._setting(end, ts, "began", ts)
            self._setting(end, ts, "phase", tick_phase(ts))

    def _digests(self, end: _End, values: dict[str, Any]) -> None:
        digests = tuple(values[f"digests[{n}]"] for n in range(values["count"]))
        row = {"kind": Kind.DIGEST, "tx": values["tx"], "count": len(digests), "digest": digests}
        self._emit(end, values["ts"], row)

    # -- ends

    def _end_closed(self, now: int) -> None:
        over = [number for ts, number in self._closing if ts < now - LINGER]
        self._closing = [item for item in self._closing if item[0] >= now - LINGER]
        for number in over:
            self._collect(number, ended=True)
        while self._young and self._young[0][0] < now - IDLE:
            end = self._ends.get(self._young.pop(0)[1])
            if end is not None and not self._established(end):
                self._collect(end.number, ended=True)

    def _established(self, end: _End) -> bool:
        value = self.program.ends.get(end.key)
        return value is not None and bool(self.program.values(value)[1]["probed"])

    def _end_all(self) -> None:
        closed = {number for _, number in self._closing}
        for number in list(self._ends):
            self._collect(number, ended=number in closed)

    def _collect(self, number: int, *, ended: bool) -> None:
        """Take an end out of the kernel, and write what is left of it."""
        end = self._ends.get(number)
        if end is None:
            return
        value = self.program.ends.get(end.key)
        values = self.program.values(value)[1] if value is not None else {}
        if values.get("id") == number:
            self.program.ends.pop(end.key)
            assert value is not None
            self._finish(end, value, values, ended=ended)
        # Else another connection has its addresses and ports, and the ring has what the kernel knew of this one.

    def _finish(self, end: _End, value: bytes, values: dict[str, Any], *, ended: bool) -> None:
        """Write the open runs of an end, and that it is over."""
        last = values["last"]
        if values["digest_count"]:
            values[f"digests[{values['digests_count']}]"] = values["digest"]
            values["digests_count"] += 1
        if values["digests_count"]:
            self._digests(end, {**values, "ts": last, "count": values["digests_count"], "tx": values["digest_from"]})
        for kind, run in self.program.runs_of(value):
            if kind:
                self._ring.hold_packets(end.number, kind, run)
            else:
                self._ring.hold_events(end.number, run)
        if values["lost"]:
            self._emit(end, last, {"kind": Kind.LOST, "count": values["lost"], "notes": Note.CUT})
        problem = _problem(end, values)
        if ended:
            notes = end.notes | (Note.UNREPLAYABLE if problem or values["lost"] else 0)
            counts = {"tx": values["tx"], "rx": values["rx"]}
            self._emit(end, last, {"kind": Kind.END, **counts, "notes": notes, "text": problem})
        self._ring.forget(end.number)
        del self._ends[end.number]

    def close(self) -> None:
        self.program.close()


def _problem(end: _End, values: dict[str, Any]) -> str:
    """Why it cannot be replayed; empty when it can."""
    if end.notes & Note.EARLIER:
        return "it began before the recorder"
    if values["overflows"]:
        return "more packets waited for TCP than the recorder holds"
    if values["missed"] > 0:
        return "the recorder did not see all of its packets"
    if values["jumps"]:
        return "its IP identifications are not in sequence"
    return ""


def _grained(base: int) -> int:
    """A multiple of a slot, so that times of the wall clock are also multiples of it."""
    return base // SLOT * SLOT


def _text(address: bytes) -> str:
    import socket

    return socket.inet_ntop(socket.AF_INET6 if len(address) == 16 else socket.AF_INET, address)
