"""Places of rows in a log: writers that die anywhere and take over from each other write each row once."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from confluo_tools import multilog
from confluo_tools.core.block.block import Block
from confluo_tools.errors import StoreError
from confluo_tools.kafka.log_offsets import LogOffsets
from confluo_tools.kafka.message import Envelope
from confluo_tools.kafka.sequences import SequenceCheck
from confluo_tools.multilog import Log, LogWriter, retain
from confluo_tools.multilog.topic_places import OFFSET, PARTITION, ROW, STATE
from confluo_tools.schema import Field, Schema

SCHEMA = Schema("number", [Field("value", "u64")])
PARTITIONS = 3


def topic(rng: random.Random) -> list[list[list[int]]]:
    """partition -> message -> numbers, all different; half of them are odd, and messages may have none."""
    numbers = iter(range(10**6))
    return [[[next(numbers) for _ in range(rng.randrange(6))] for _ in range(12)] for _ in range(PARTITIONS)]


class LogWriterProcess:
    """What a process does that writes the odd numbers of a topic to the log; it misses no message."""

    def __init__(self, path: Path, messages: list[list[list[int]]]) -> None:
        self.messages = messages
        self.offsets = LogOffsets(str(path), "t", "7", {"the expression": "odd"})
        schema = self.offsets.with_place(SCHEMA)
        if not multilog.is_log(str(path)):
            multilog.create(str(path), schema).close()
        self.log: Log = multilog.open(str(path))
        self.writer: LogWriter | None = None
        self.offsets.attach(self.log, lambda: self.writer)
        self.sequences = SequenceCheck()
        self.next: dict[int, int] = {}
        self.taken: dict[int, int] = {}

    def claim(self, partition: int) -> None:
        if partition not in self.next and self.offsets.claim(partition):
            self.next[partition] = self.offsets.begin(partition) or 0
            self.sequences.restore(self.offsets.sequences())

    def release(self, partition: int) -> None:
        if partition in self.next:
            self.save()
            self.offsets.release([partition])
            del self.next[partition]
            self.taken.clear()

    def save(self) -> None:
        assert self.offsets.published()
        self.offsets.save(self.taken, self.sequences.saved())

    def read(self, partition: int, most: int) -> bool:
        """The next message; only its first ``most`` rows are written before the process dies.  Whether it lives."""
        if partition not in self.next or self.next[partition] >= len(self.messages[partition]):
            return True
        offset = self.next[partition]
        self.sequences.is_new(Envelope("h", 0, 1, partition, offset, 0, 0, 6, 0))
        assert self.sequences.missing == 0
        values = self.messages[partition][offset]
        block = Block.wrap(SCHEMA.layout, len(values), [b"".join(v.to_bytes(8, "little") for v in values)])
        placed = self.offsets.placed(block, partition, offset) if values else None
        if placed is not None:
            odd = [i for i in range(placed.rows) if placed.get(0, i) % 2]
            for i in odd[:most]:
                self.writer = self.writer or self.log.writer()
                self.writer.append(placed.slice(i, 1))
            if len(odd) > most:
                return False
        self.next[partition] = self.taken[partition] = offset + 1
        return True

    def die(self) -> None:
        """As the kernel ends it: what is published stays, locks are gone.  (Closing only seals the lane.)"""
        if self.writer is not None:
            self.writer.close()
        self.offsets.close()
        self.log.close()


@pytest.mark.parametrize("seed", range(40))
def test_each_row_is_there_once_and_in_order(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    messages, path = topic(rng), tmp_path / "t.ml"
    alive: list[LogWriterProcess] = []
    for _ in range(150):
        if len(alive) < 2 and rng.random() < 0.5:
            alive.append(LogWriterProcess(path, messages))
        if not alive:
            continue
        one, partition = rng.choice(alive), rng.randrange(PARTITIONS)
        step = rng.random()
        lives = True
        if step < 0.3:
            one.claim(partition)
        elif step < 0.35:
            one.release(partition)
        elif step < 0.45:
            one.save()
        elif step < 0.5:
            lives = False
        else:
            lives = one.read(partition, rng.choice([0, 1, 2, 9, 9, 9]))
        if not lives:
            one.die()
            alive.remove(one)
    for one in alive:
        one.die()
    last = LogWriterProcess(path, messages)
    for partition in range(PARTITIONS):
        last.claim(partition)
        while last.next[partition] < len(messages[partition]):
            assert last.read(partition, 9)
    last.die()
    wanted = [
        (partition, offset, number, value)
        for partition, given in enumerate(messages)
        for offset, values in enumerate(given)
        for number, value in enumerate(values, 1)
        if value % 2
    ]
    with multilog.open(str(path), readonly=True) as log:
        at = [log.schema.index(name) for name in (PARTITION, OFFSET, ROW, "value")]
        found = [tuple(block.get(i, row) for i in at) for block in log.blocks() for row in range(block.rows)]
    assert sorted(found) == wanted


def made(path: Path) -> None:
    """A log with three rows of a topic."""
    process = LogWriterProcess(path, [[[1, 3, 5]]])
    process.claim(0)
    assert process.read(0, 9)
    process.save()
    process.die()


def test_rows_that_are_lost_are_read_again(tmp_path: Path) -> None:
    """A power failure can take rows that topic.json counts: what the log has is what counts."""
    path = tmp_path / "t.ml"
    made(path)
    state = json.loads((path / STATE).read_text())
    (path / STATE).write_text(json.dumps(state | {"places": {"0": [9, 1]}, "searched": {"0": 99}}))
    process = LogWriterProcess(path, [[[1, 3, 5], [7]]])
    process.claim(0)
    assert process.next == {0: 0}
    assert process.read(0, 9)
    assert process.read(0, 9)
    process.save()
    process.die()
    with multilog.open(str(path), readonly=True) as log:
        assert sum(block.rows for block in log.blocks()) == 4
    assert json.loads((path / STATE).read_text())["places"] == {"0": [2, 1]}


@pytest.mark.parametrize(
    ("given", "what"),
    [
        (("other", "7", {"the expression": "odd"}), "it has rows of the topic t, not of other"),
        (("t", "8", {"the expression": "odd"}), "the topic t was deleted and made again"),
        (("t", "7", {}), "it was written with the expression odd"),
        (("t", "7", {"the expression": "odd", "--sample": "1/2"}), "it was written without --sample"),
    ],
)
def test_another_topic_or_other_rows_of_it_are_refused(
    tmp_path: Path, given: tuple[str, str, dict[str, str]], what: str
) -> None:
    made(tmp_path / "t.ml")
    with pytest.raises(StoreError, match=what):
        LogOffsets(str(tmp_path / "t.ml"), *given)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 1}', '{"format": 2, "options": {}}', "[" * 10**5])
def test_a_damaged_record_is_refused(tmp_path: Path, text: str) -> None:
    made(tmp_path / "t.ml")
    (tmp_path / "t.ml" / STATE).write_text(text)
    with pytest.raises(StoreError, match="is damaged"):
        LogOffsets(str(tmp_path / "t.ml"), "t", "7", {"the expression": "odd"})


def test_rows_without_their_record_are_refused(tmp_path: Path) -> None:
    made(tmp_path / "t.ml")
    (tmp_path / "t.ml" / STATE).unlink()
    with pytest.raises(StoreError, match=f"no {STATE}"):
        LogWriterProcess(tmp_path / "t.ml", [[[1]]])


@pytest.mark.parametrize("lost", [False, True])
@pytest.mark.parametrize("counted", [False, True])
def test_rows_that_were_removed_are_not_read_again(tmp_path: Path, counted: bool, lost: bool) -> None:
    """An archive takes the rows of a reader that died before it saved, or while another one begins."""
    path = tmp_path / "t.ml"
    messages = [[[1, 3, 5], [7, 9]], [[11]], []]
    first = LogWriterProcess(path, messages)
    for partition, count in ((0, 2), (1, 1)):
        first.claim(partition)
        for _ in range(count):
            assert first.read(partition, 9)
    if counted:
        first.save()
    first.die()
    waiting = LogWriterProcess(path, messages)
    with multilog.open(str(path)) as log:
        with retain.removal_lock(log):
            assert retain.remove(log, {0: 6})[0] == 1
        assert list(log.blocks()) == []
    if lost:  # a power failure took rows that were counted
        state = json.loads((path / STATE).read_text())
        (path / STATE).write_text(json.dumps(state | {"searched": {"0": 100}}))
    for process in (waiting, LogWriterProcess(path, messages)):
        for partition in range(2):
            process.claim(partition)
            while process.next[partition] < len(messages[partition]):
                assert process.read(partition, 9)
        assert process.writer is None
        process.save()
        process.die()
    assert json.loads((path / STATE).read_text())["removed"] == {"0": [1, 3], "1": [0, 2]}
