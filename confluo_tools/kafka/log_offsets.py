"""Which rows of a topic a MultiLog has, so that none is lost or repeated, however its writer ends.

Each row has its place: partition, offset of its message, number in it.  The rows of a partition are appended in this
order, by one process at a time, so the latest place of a partition in the log says where to go on (DESIGN.md, 11).

`topic.json` in the folder of the log has the topic, and how far each partition was read when it was saved: what was
read before need not be searched, nor need it be in the log (it did not match, or is too old to be kept).  It may be
older than the log, never newer: the rows after it are searched.  It has the places of removed rows before they are.
"""

from __future__ import annotations

import fcntl
import json
import os
import struct
from array import array
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from confluo_tools.core.base.log_file import open_log_file
from confluo_tools.errors import StoreError
from confluo_tools.multilog.atomic_file import replace
from confluo_tools.multilog.locks import open_lock
from confluo_tools.multilog.topic_places import (
    LOCK,
    OFFSET,
    PARTITION,
    REMOVED,
    ROW,
    STATE,
    Place,
    as_json,
    changing,
    last_places,
    lock_byte,
    removed_places,
)

if TYPE_CHECKING:
    from confluo_tools.core.block.block import Block
    from confluo_tools.multilog.log import Log, LogWriter
    from confluo_tools.schema import Field, Schema

FORMAT = 1
MAX_SENDERS = 4096  # sequences that are saved


def place_fields() -> list[Field]:
    """The fields that say where a row was in its topic."""
    from confluo_tools.schema import Field

    return [
        Field(PARTITION, "u32", "", "partition of its topic"),
        Field(OFFSET, "u64", "", "offset of its message in the partition"),
        Field(ROW, "u32", "", "its number in the message, from 1; 0: it does not come from a topic"),
    ]


class LogOffsets:
    """The place in ``topic`` that each partition has reached in the log at ``path``, which need not exist yet.

    ``number``: of the topic, which another one of this name does not have; "" if brokers do not say it.
    ``options``: {option: value} that the rows depend on; a log made with others, or from another topic, is refused.
    ``since``: first time of its rows (ns) when the log is new; then that of the log.  Raises StoreError.
    """

    def __init__(self, path: str, topic: str, number: str, options: dict[str, str], since: int | None = None) -> None:
        self.path, self.topic, self.number, self.options, self.since = path, topic, number, options, since
        self.exists = os.path.exists(os.path.join(path, STATE))
        self._log: Log | None = None
        self._writer: Callable[[], LogWriter | None] = lambda: None
        self._lock = -1
        self._next: dict[int, Place] = {}  # of all partitions, as far as the log was searched
        self._saved: dict[int, Place] = {}
        self._heard: dict[int, int] = {}  # the saved sequences have the messages before these offsets
        self._searched: dict[int, int] = {}  # lane -> rows
        self._sequences: list[list[Any]] = []
        self._columns: list[int] = []
        self._whole = False  # the lane of the writer is searched up to its first row
        self._row_numbers = array("I", range(1, (1 << 16) + 1))
        if self.exists:
            self._check(self._read())

    # -- rows

    def with_place(self, schema: Schema) -> Schema:
        """The schema with the fields of the place."""
        self._packed = len(schema.columns)
        made = schema.plus(place_fields())
        self._layout = made.layout
        return made

    def placed(self, block: Block, partition: int, offset: int) -> Block | None:
        """The rows of a message with their places, without those that the log has."""
        from confluo_tools.core.block.block import Block as Make

        first, rows = 1, block.rows
        known = self._next.get(partition)
        if known is not None:
            if offset < known[0]:
                return None
            first = known[1] if offset == known[0] else 1
        if first > rows:
            return None
        if rows > len(self._row_numbers):
            self._row_numbers = array("I", range(1, rows + 1))
        buffers = [block.buffer(i) for i in range(self._packed)]
        numbers: list[Any] = [struct.pack("=I", partition) * rows, struct.pack("=Q", offset) * rows]
        whole = Make.wrap(self._layout, rows, [*buffers, *numbers, memoryview(self._row_numbers)[:rows].cast("B")])
        return whole if first == 1 else whole.slice(first - 1, rows - first + 1)

    # -- the log

    def attach(self, log: Log, writer: Callable[[], LogWriter | None]) -> None:
        """Use the log, which exists now.  ``writer``: the one that writes rows; None before the first."""
        self._log, self._writer = log, writer
        self._columns = [log.schema.index(name) for name in (PARTITION, OFFSET, ROW)]
        self._lock = open_lock(log.path, LOCK)
        with self._locked():
            data = self._read()
            self._check(data)
            if data is None and not self._is_new(log):
                hint = "write into another log"
                raise StoreError(f"cannot continue: it has rows of a topic, but no {STATE}", where=self.path, hint=hint)
            if data is None or not self._take(data):
                self._write({}, {}, {} if data is None else removed_places(data))

    def _is_new(self, log: Log) -> bool:
        """Whether no row has a place yet."""
        return not any(True for block in log.blocks() for _ in last_places(block, self._columns, 0))

    def published(self) -> bool:
        """Whether readers of the log see all rows that were written."""
        writer = self._writer()
        return writer is None or writer.closed or writer.poll()

    # -- partitions

    def claim(self, partition: int) -> bool:
        """Take the partition, unless another process writes its rows into the log; then search for its place."""
        try:
            self._byte(fcntl.F_WRLCK, partition)
        except BlockingIOError:
            return False
        with self._locked():
            data = self._read()
            if data is not None:
                self._take(data)
        self._search()
        return True

    def begin(self, partition: int) -> int | None:
        """The offset to read a partition from: messages before are known, and their numbers in the sequences, too."""
        known = self._next.get(partition)
        return self._heard.get(partition, None if known is None else known[0])

    def release(self, partitions: Iterable[int]) -> None:
        for partition in partitions:
            self._byte(fcntl.F_UNLCK, partition)

    def sequences(self) -> list[list[Any]]:
        """The sequences as they were saved."""
        return self._sequences

    def save(self, taken: dict[int, int], sequences: list[list[Any]]) -> None:
        """All rows of the messages before the offsets ``taken`` are in the log, and published."""
        for partition, offset in taken.items():
            self._next[partition] = max(self._next.get(partition, (0, 1)), (offset, 1))
            self._heard[partition] = max(self._heard.get(partition, 0), offset)
        writer, mine = self._writer(), {}
        if writer is not None and self._log is not None and not writer.closed:
            if not self._whole:  # rows of an earlier owner of the lane, which no other process would search for
                self._search()
                self._whole = True
            mine = {writer.number: self._log.control.rows(writer.number)}
            self._searched |= mine
        with self._locked():
            data = self._read()
            saved, lanes, heard, removed = {}, {}, {}, {}
            if data is not None:  # other processes save their partitions
                saved, lanes, heard = self._places(data), self._lanes(data), self._read_to(data)
                removed = removed_places(data)
                self._sequences = _merged(self._sequences, data["sequences"])
            self._heard = {p: max(heard.get(p, 0), self._heard.get(p, 0)) for p in {*heard, *self._heard}}
            self._saved = {p: max(saved.get(p, (0, 1)), self._next.get(p, (0, 1))) for p in {*saved, *self._next}}
            self._sequences = _merged(self._sequences, sequences)
            self._write(self._saved, lanes | mine, removed)

    # -- topic.json

    def _take(self, data: dict[str, Any]) -> bool:
        """Take over what was saved; returns whether it can be believed."""
        assert self._log is not None
        for partition, place in removed_places(data).items():
            self._next[partition] = max(place, self._next.get(partition, place))
        tails = self._log.version().tails
        searched = self._lanes(data)
        if any(rows > (tails[lane] if lane < len(tails) else 0) for lane, rows in searched.items()):
            return False  # a power failure took rows that were counted: only the rows say what is there
        for partition, offset in self._read_to(data).items():
            self._heard[partition] = max(offset, self._heard.get(partition, 0))
        for partition, place in self._places(data).items():
            self._saved[partition] = max(place, self._saved.get(partition, place))
            self._next[partition] = max(place, self._next.get(partition, place))
        for lane, rows in searched.items():
            self._searched[lane] = max(rows, self._searched.get(lane, 0))
        self._sequences = _merged(self._sequences, data["sequences"])
        return True

    @staticmethod
    def _lanes(data: dict[str, Any]) -> dict[int, int]:
        return {int(lane): int(rows) for lane, rows in data["searched"].items()}

    @staticmethod
    def _places(data: dict[str, Any]) -> dict[int, Place]:
        return {int(p): (int(place[0]), int(place[1])) for p, place in data["places"].items()}

    @staticmethod
    def _read_to(data: dict[str, Any]) -> dict[int, int]:
        return {int(p): int(offset) for p, offset in data.get("read", {}).items()}

    def _read(self) -> dict[str, Any] | None:
        path = os.path.join(self.path, STATE)
        try:
            with open(path, encoding="utf-8", opener=open_log_file) as f:
                data = json.load(f)
            if data["format"] != FORMAT or not all(
                isinstance(data[k], dict) for k in ("options", "places", "searched")
            ):
                raise ValueError
            self._places(data), self._lanes(data), self._read_to(data), removed_places(data)
            _merged(data["sequences"], [])
            if data["since"] is not None:
                int(data["since"])
            return dict(data)
        except FileNotFoundError:
            return None
        except OSError as e:
            raise StoreError(f"cannot be read: {e.strerror}", where=path) from None
        except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError):
            raise StoreError("is damaged", where=path, hint="write into another log") from None

    def _write(self, places: dict[int, Place], searched: dict[int, int], removed: dict[int, Place]) -> None:
        data = {
            "format": FORMAT,
            "topic": self.topic,
            "number": self.number,
            "options": self.options,
            "since": self.since,
            "places": as_json(places),
            REMOVED: as_json(removed),
            "read": {str(p): offset for p, offset in sorted(self._heard.items())},
            "searched": {str(lane): rows for lane, rows in sorted(searched.items())},
            "sequences": self._sequences,
        }
        try:
            replace(os.path.join(self.path, STATE), json.dumps(data).encode(), point="topic-saved")
        except OSError as e:
            raise StoreError(f"cannot be written: {e.strerror}", where=os.path.join(self.path, STATE)) from None

    def _check(self, data: dict[str, Any] | None) -> None:
        """Raises StoreError when the log has rows of another topic, or other rows of it."""
        if data is None:
            return
        hint = "write into another log"
        if data["topic"] != self.topic:
            what = f"cannot continue: it has rows of the topic {data['topic']}, not of {self.topic}"
            raise StoreError(what, where=self.path, hint=hint)
        if data["number"] != self.number and data["number"] and self.number:
            what = f"cannot continue: the topic {self.topic} was deleted and made again: its offsets begin again"
            raise StoreError(what, where=self.path, hint=hint)
        self.since = data["since"]
        for name in {**self.options, **data["options"]}:
            before, now = data["options"].get(name, ""), self.options.get(name, "")
            if before != now:
                was = f"with {name} {before}" if before else f"without {name}"
                raise StoreError(f"cannot continue: it was written {was}", where=self.path, hint=hint)

    # -- places in rows

    def _search(self) -> None:
        """Bring `_next` up to date with the rows that were added since the last search."""
        log, before = self._log, dict(self._searched)
        assert log is not None
        version = log.version()
        for block in log.blocks(version):
            start = max(self._searched.get(block.lane, 0) - block.base, 0)
            if start < block.rows and block.check(self._columns):
                for partition, place in last_places(block, self._columns, start):
                    self._next[partition] = max(place, self._next.get(partition, place))
        for lane, rows in enumerate(version.tails):
            self._searched[lane] = max(rows, self._searched.get(lane, 0))
        if any(log.first(lane) > before.get(lane, 0) for lane in range(len(version.tails))):
            with self._locked():
                data = self._read()
            if data is not None:  # it has the places of the rows that were removed
                self._take(data)

    # -- locks

    def _byte(self, kind: int, at: int) -> None:
        lock_byte(self._lock, kind, at)

    def _locked(self) -> AbstractContextManager[None]:
        return changing(self._lock)

    def close(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def _merged(before: list[list[Any]], now: list[list[Any]]) -> list[list[Any]]:
    """The later state of each sequence."""
    found = {tuple(one[:4]): one for one in before}
    for one in now:
        key = tuple(one[:4])
        if key not in found or found[key][4] <= one[4]:
            found.pop(key, None)
            found[key] = one
    return list(found.values())[-MAX_SENDERS:]
