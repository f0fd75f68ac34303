"""A recording while it runs: reads the sources regularly and writes the rows."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Protocol

from confluo_tools import cli
from confluo_tools.cli.log_output import LogOutput
from confluo_tools.errors import UsageError

if TYPE_CHECKING:
    from confluo_tools.core.block.block import Block
    from confluo_tools.multilog.capture_statistics import CaptureRecord
    from confluo_tools.schema import Schema

COLLECT = 200_000  # new objects between two collections of garbage
RECORD = 5.0  # s between updates of the counters in the log
HEADERS = ("seq", "ack", "len", "tcp_flags", "window", "sack", "ecn", "tsval", "tsecr")


LISTS = ("gaps", "tx_gaps", "rx_gaps", "number_gaps", "sizes", "marks")


def recording_schema(*, headers: bool, lists: bool = False) -> Schema:
    """The fields that a recorder writes: those of packets with the level headers, ``lists`` with --source bpf."""
    from confluo_tools.schema import builtin

    schema = builtin("recording")
    optional = (HEADERS if headers else ()) + (LISTS if lists else ())
    return schema.project([f.name for f in schema.fields if not f.optional or f.name in optional])


class Recorder(Protocol):
    """What a session records with: `ConnectionRecorder` or `BpfRecorder`."""

    @property
    def live(self) -> int: ...
    @property
    def without_options(self) -> str: ...  # why socket options are not recorded
    @property
    def tick(self) -> float: ...  # s between two looks whether it is due
    @property
    def made(self) -> int: ...
    @property
    def events(self) -> int: ...
    @property
    def packets(self) -> int: ...
    def begin(self) -> None: ...
    def due(self) -> bool: ...  # whether to read now
    def poll(self, *, last: bool = False) -> Iterator[Block]: ...
    def lost(self) -> int: ...
    def close(self) -> None: ...


def open_recorder(
    schema: Schema, source: str | None, *, ports: frozenset[int], headers: bool, interface: str = "any"
) -> Recorder:
    """The recorder of a source, tracefs (also None) or bpf.  Raises ConfluoError."""
    if cli.one_of("--source", source or "tracefs", ("tracefs", "bpf")) == "tracefs":
        from confluo_tools.replay.record.recorder import ConnectionRecorder

        return ConnectionRecorder(schema, ports=ports, headers=headers, interface=interface)
    if headers:
        raise UsageError(
            "it records no headers", where="--source bpf", hint="leave out --level headers or --source bpf"
        )
    if interface != "any":
        raise UsageError("it records all interfaces", where="--source bpf", hint="leave out -i")
    from confluo_tools.replay.record.bpf_recorder import BpfRecorder

    return BpfRecorder(schema, ports=ports)


class RecordingSession:
    """Writes the rows of ``recorder`` to ``out``."""

    def __init__(self, recorder: Recorder, out: LogOutput | cli.RecordOutput) -> None:
        self.recorder, self.out = recorder, out
        self.rows = self.stopped = 0
        self._record: CaptureRecord | None = None
        self._next = 0.0
        self._start = time.monotonic()

    def stop(self, number: int) -> None:
        self.stopped = number

    def begin(self) -> None:
        if isinstance(self.out, LogOutput):
            from confluo_tools.multilog.capture_statistics import CaptureRecord

            self._record = CaptureRecord(self.out.path, {"interfaces": {"replay-record": 0}})
        gc.set_threshold(COLLECT)  # many events wait for a while: looking at them for garbage often costs much
        self.recorder.begin()
        if not cli.state.quiet:
            cli.note(f"recording; pid {os.getpid()}")
        if self.recorder.without_options:
            cli.note(self.recorder.without_options, hint="replays of programs that set options will differ")

    def pump(self, over: Callable[[], bool], *, stopping: bool = False) -> None:
        """Record until ``over()`` or a signal; with ``stopping`` also after a signal."""
        while (stopping or not self.stopped) and not over():
            time.sleep(self.recorder.tick)
            if self.recorder.due():
                self._write()

    def _write(self, *, last: bool = False) -> None:
        for block in self.recorder.poll(last=last):
            self.out.write(block, None)
            self.rows += block.rows
        self.out.flush()
        if self._record is not None and (last or time.monotonic() >= self._next):
            self._next = time.monotonic() + RECORD
            figures = {"packets received": self.recorder.packets, "dropped by the kernel": self.recorder.lost()}
            self._record.update(figures | {"kept": self.rows}, "done" if last else "")

    def finish(self) -> None:
        """Write the rest."""
        time.sleep(2 * self.recorder.tick)  # until the ring has handed over its last block
        self._write(last=True)
        lost = self.recorder.lost()
        if lost:
            cli.note(f"{lost} events were lost: the connections of that time cannot be replayed")

    def counts(self) -> str:
        """Counts so far, on one line."""
        parts = [
            f"{self.rows} records",
            f"{self.recorder.made} ends of connections",
            f"{self.recorder.packets} packets",
            f"{self.recorder.events} events",
            f"{self.recorder.lost()} lost",
        ]
        return ", ".join([*parts, f"{time.monotonic() - self._start:.2f} s"])
