"""Places in a topic of Kafka of the rows of a log: its readers go on after them (`confluo_tools.kafka.log_offsets`).

They are in the rows themselves.  Before rows are removed (by retention or an archive), their places are written into
`topic.json`, because they cannot be searched for later.
"""

from __future__ import annotations

import fcntl
import json
import os
import struct
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from confluo_tools.core.base.log_file import open_log_file
from confluo_tools.multilog.atomic_file import replace
from confluo_tools.multilog.locks import open_lock

if TYPE_CHECKING:
    from confluo_tools.core.block.block import Block
    from confluo_tools.multilog.log import Log

STATE, LOCK = "topic.json", "topic.lock"
PARTITION, OFFSET, ROW = "kafka_partition", "kafka_offset", "kafka_row"
REMOVED = "removed"  # in topic.json: the places of rows that were removed
UPDATE = 1 << 32  # byte of the lock file that is locked to change topic.json; the bytes before: partitions
Place = tuple[int, int]  # of the next row: offset of its message, number in it from 1


def lock_byte(fd: int, kind: int, at: int) -> None:
    """Lock or unlock a byte of the lock file, for this open file; the kernel unlocks it when the process dies."""
    fcntl.fcntl(fd, fcntl.F_OFD_SETLK, struct.pack("hhqqi4x", kind, os.SEEK_SET, at, 1, 0))


@contextmanager
def changing(fd: int) -> Iterator[None]:
    """Hold the lock of those who change topic.json.  ``fd``: the open lock file."""
    while True:
        try:
            lock_byte(fd, fcntl.F_WRLCK, UPDATE)
            break
        except BlockingIOError:
            time.sleep(0.001)
    try:
        yield
    finally:
        lock_byte(fd, fcntl.F_UNLCK, UPDATE)


def last_places(block: Block, columns: list[int], start: int) -> Iterator[tuple[int, Place]]:
    """(partition, place after it) of the last row of each partition in the block, from row ``start`` on."""
    raw = [memoryview(block.buffer(i)).cast("B") for i in columns]
    partitions, offsets, rows = raw[0].cast("I"), raw[1].cast("Q"), raw[2].cast("I")
    partitions = partitions[start : block.rows]
    left = set(partitions)
    for i in range(len(partitions) - 1, -1, -1):
        partition = partitions[i]
        if partition in left and rows[start + i]:
            yield partition, (offsets[start + i], rows[start + i] + 1)
            left.discard(partition)
            if not left:
                return


def count_removed(log: Log, segments: Iterable[tuple[str, int, int, int]]) -> None:
    """Write the places of the rows of ``segments``, which are about to be removed, into topic.json.

    ``segments``: path, lane, first row and number of rows of each; sealed.  Raises OSError, StoreError.
    A log without a topic has no such file.  A damaged one stays as it is: readers of the topic refuse the log.
    """
    path = os.path.join(log.path, STATE)
    if not os.path.lexists(path) or any(name not in log.schema for name in (PARTITION, OFFSET, ROW)):
        return
    found: dict[int, Place] = {}
    for path_of_segment, lane, base, rows in segments:
        for partition, place in _places(log, path_of_segment, lane, base, rows):
            found[partition] = max(place, found.get(partition, place))
    fd = open_lock(log.path, LOCK)
    try:
        with changing(fd):
            with open(path, encoding="utf-8", opener=open_log_file) as f:
                data = json.load(f)
            for partition, place in removed_places(data).items():
                found[partition] = max(place, found.get(partition, place))
            data[REMOVED] = as_json(found)
            replace(path, json.dumps(data).encode(), sync=True)
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError):
        return
    finally:
        os.close(fd)


def removed_places(data: dict[str, Any]) -> dict[int, Place]:
    """{partition: place after the removed rows} of the content of topic.json."""
    return {int(p): (int(place[0]), int(place[1])) for p, place in data.get(REMOVED, {}).items()}


def as_json(places: dict[int, Place]) -> dict[str, Place]:
    """Places as topic.json has them."""
    return {str(p): place for p, place in sorted(places.items())}


def _places(log: Log, path: str, lane: int, base: int, rows: int) -> Iterator[tuple[int, Place]]:
    """The places of the rows of a segment, as far as it can be read."""
    columns = [log.schema.index(name) for name in (PARTITION, OFFSET, ROW)]
    damage: list[tuple[str, int | None, str]] = []
    try:
        opened = log.open_segment(path, lane, base, rows, damage)
    except (ValueError, OSError):
        return
    for number in range(-(-rows // opened.capacity)):
        block = opened.block(number, min(rows - number * opened.capacity, opened.capacity))
        if block is not None and block.check(columns):
            yield from last_places(block, columns, 0)
    opened.forget()  # it would stay mapped, and keep its disk space when it is removed
