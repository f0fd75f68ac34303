"""Connections that are explained while they go on: a label is written when nothing can change it any more."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from test_explain_cmd import MSS, Talk
from test_explain_twin import write

from confluo_tools.cli import InputOptions
from confluo_tools.formats.block_builder import address_columns, block_of_rows
from confluo_tools.inputs.follow import StopSignal
from confluo_tools.replay.explain.flows import FlowEnds
from confluo_tools.replay.explain.labels import LABELS, PATTERNS
from confluo_tools.replay.explain.live_flows import SETTLE, LiveFlows
from confluo_tools.replay.explain.taps import Taps
from confluo_tools.schema import builtin

FLOW = {"src_port": 4711, "dst_port": 80, "proto": 6}


class NamedConnection:
    """A stream of one record that names the connection; ``steps`` run where it pauses, then it ends."""

    schema, name = builtin("retx"), "named"

    def __init__(self, *steps: Callable[[], None]) -> None:
        self._steps = steps
        self._idle: Callable[[], None] = lambda: None

    def on_idle(self, call: Callable[[], None]) -> None:
        self._idle = call

    def __iter__(self) -> Iterator[Any]:
        row = address_columns("src", "10.78.0.1") | address_columns("dst", "10.78.0.2") | FLOW
        yield block_of_rows(self.schema, [row])
        for step in self._steps:
            self._idle()
            step()


class WrittenLabels:
    """What was written: (label, why) of each row."""

    def __init__(self) -> None:
        self.rows: list[tuple[str, str]] = []

    def write(self, block: Any, picks: None) -> None:
        at = [block.layout.index(name) for name in ("label", "why")]
        self.rows += [(LABELS[block.get(at[0], i)], LABELS[block.get(at[1], i)]) for i in range(block.rows)]

    def flush(self) -> None: ...


def explained(path: Path, named: set[FlowEnds]) -> Any:
    return (
        Taps([str(path)], InputOptions(dict.fromkeys(("input_format", "at", "partial"))), 1_000_000, named)
        .explain()
        .rows(builtin("explanation").layout, PATTERNS)
    )


def live(path: Path, *steps: Callable[[], None]) -> WrittenLabels:
    into = WrittenLabels()
    with StopSignal() as ending:
        LiveFlows(lambda named: explained(path, named), into, ending).read(NamedConnection(*steps))  # type: ignore[arg-type]
    return into


def conversation(tmp_path: Path, age: int) -> tuple[Path, Path]:
    """A packet that is sent again, ``age`` ns ago; and the same with what came next: it was not needed."""
    talk = Talk()
    talk.send(1)
    talk.ack(10)
    talk.send(1)
    talk.send(300, seq=MSS + 1)  # a probe
    begin = len(talk.frames)
    twice = struct.pack(">BBBBII", 1, 1, 5, 10, MSS + 1, 2 * MSS + 1)
    talk.ack(5)
    talk.add(5, 1, 16, 1, talk.next, options=twice)
    shift = time.time_ns() - age - talk.frames[begin - 1][0]
    frames = [(ts + shift, data) for ts, data in talk.frames]
    return write(tmp_path / "short.pcap", frames[:begin]), write(tmp_path / "whole.pcap", frames)


def test_a_fresh_label_waits_for_what_may_change_it(tmp_path: Path) -> None:
    short, whole = conversation(tmp_path, age=0)
    before: list[int] = []
    into = WrittenLabels()

    def more() -> None:
        before.append(len(into.rows))
        whole.replace(short)

    with StopSignal() as ending:
        LiveFlows(lambda named: explained(short, named), into, ending).read(NamedConnection(more))  # type: ignore[arg-type]
    assert before == [0]
    assert ("tlp", "spurious") in into.rows
    assert len([row for row in into.rows if row[0] == "tlp"]) == 1


def test_an_old_label_is_written_at_once(tmp_path: Path) -> None:
    short, whole = conversation(tmp_path, age=2 * SETTLE)
    assert ("tlp", "spurious") not in live(short, lambda: None).rows
    assert ("tlp", "spurious") in live(whole, lambda: None).rows
