"""Compaction of an archive: merge the small parts of neighbouring batches into larger ones.

Neighbouring batches of a lane become one batch with the same rows; of each hour, their parts become one part.  The
steps are those of the writer: the new parts are written, read back and compared; the record of the new batch commits
them; they are moved into place hour by hour; then the old parts and records are removed.  A part has all rows of its
batch and hour, so readers take the new part of an hour as soon as it is there, and see each row once (`ranges` in
reader.py).  A killed run is completed by the next one.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from confluo_tools.core.multilog.control import crc, fault
from confluo_tools.errors import StoreError
from confluo_tools.formats.arrow_foreign import pyarrow
from confluo_tools.multilog.archive.batches import BatchRecord, BatchStore, logs_of
from confluo_tools.multilog.archive.parquet_parts import PartBuilder, PartName, day_of, hour_of, schema_of
from confluo_tools.multilog.archive.storage import join, storage
from confluo_tools.objects.address import is_url

PART_SIZE = 64 << 20
MAX_ROWS = 1 << 22  # of a part: they are in memory while it is written
MAX_UNORDERED = 1 << 20  # rows of a batch that readers sort
WAIT = 5.0  # seconds for the lock
LISTED = 1.0  # seconds in which a reader lists the objects of a store
Warn = Callable[[str, str], None]


class MergedBatch(NamedTuple):
    """Batches that became one, or would: how many, their parts, the parts of the new batch, its rows and bytes."""

    batches: int
    parts: int
    into: int
    rows: int
    bytes: int


class RecordedPart(NamedTuple):
    """A part as the record of its batch has it."""

    path: str
    bytes: int
    crc: str
    rows: int
    hour: int


class DamagedPartError(StoreError):
    """A part differs from what was written, or is missing."""


class NotOrderedError(Exception):
    """The rows of neighbouring batches are not in the order of time."""


class Compactor:
    """Merges small parts of the archive at ``root`` into parts of about ``part_size`` bytes at most.

    ``warn(path, problem)``: a batch cannot be merged.
    """

    def __init__(self, root: str, part_size: int = PART_SIZE, *, warn: Warn, argv: str = "") -> None:
        self.root, self.part_size, self._warn, self._argv = root, part_size, warn, argv
        self._files = storage(root)

    def _stores(self) -> list[BatchStore]:
        return [BatchStore(self.root, uuid, self._files) for uuid in logs_of(self.root, self._files)]

    def planned(self) -> list[MergedBatch]:
        """What `run` would merge; ``bytes`` are those of the old parts."""
        groups = (group for store in self._stores() for lane in store.lanes() for group in self._groups(store, lane))
        return [_outline(group) for group in groups]

    def run(self) -> Iterator[MergedBatch]:
        """Merge, and yield each new batch.  Raises StoreError, BusyError."""
        try:
            for store in self._stores():
                busy = f"another process is writing rows of the log {store.uuid}"
                held = -1 if is_url(self.root) else store.lock("", busy, WAIT)
                try:
                    self._files.make_folder(store.tmp)
                    store.roll_forward()
                    for lane in store.lanes():
                        store.remove_merged(lane)
                        yield from self._lane(store, lane)
                finally:
                    if held >= 0:
                        os.close(held)
        except OSError as e:
            raise StoreError(f"cannot be written: {e.strerror or e}", where=e.filename or self.root) from None

    def _lane(self, store: BatchStore, lane: int) -> Iterator[MergedBatch]:
        done = []
        for group in list(self._groups(store, lane)):
            ordered = _in_time_order(group)
            try:
                try:
                    done.append(self._merge(store, lane, group, ordered))
                except NotOrderedError:
                    if sum(record.end - record.first for record in group) <= MAX_UNORDERED:
                        done.append(self._merge(store, lane, group, False))
            except DamagedPartError as e:
                self._warn(e.where, f"{e.what}; {e.hint}")
        if done and is_url(self.root):
            time.sleep(LISTED)
        store.remove_merged(lane)
        yield from done

    def _groups(self, store: BatchStore, lane: int) -> Iterator[list[BatchRecord]]:
        # The batches that become one each: neighbours that share hours.
        group: list[BatchRecord] = []
        for record in store.records(lane):
            if group and self._fits([*group, record]):
                group.append(record)
                continue
            yield from _worthwhile(group)
            group = [] if record.removed else [record]
        yield from _worthwhile(group)

    def _fits(self, group: Sequence[BatchRecord]) -> bool:
        *before, last = group
        if last.removed or last.first != before[-1].end or last.data.get("host") != before[-1].data.get("host"):
            return False
        hours = {part.hour for record in before for part in _parts(record)}
        if max(part.hour for part in _parts(last)) > max(hours):
            return False  # a new hour begins: merging the parts of this one would only copy it
        if not _in_time_order(group) and last.end - group[0].first > MAX_UNORDERED:
            return False
        sizes: dict[int, tuple[int, int]] = {}
        for record in group:
            for part in _parts(record):
                size, rows = sizes.get(part.hour, (0, 0))
                sizes[part.hour] = size + part.bytes, rows + part.rows
        return all(size <= self.part_size and rows <= MAX_ROWS for size, rows in sizes.values())

    def _merge(self, store: BatchStore, lane: int, group: Sequence[BatchRecord], ordered: bool) -> MergedBatch:
        first, end, known = group[0].first, group[-1].end, group[-1].data
        hours: dict[int, list[RecordedPart]] = {}
        for record in group:
            for part in _parts(record):
                hours.setdefault(part.hour, []).append(part)
        metadata = {
            "confluo:format": str(known["format"]),
            "confluo:uuid": store.uuid,
            "confluo:host": str(known["host"]),
            "confluo:lane": str(lane),
            "confluo:rows": f"{first}-{end}",
            "confluo:ordered": str(int(ordered)),
        }
        if self._argv:
            metadata["confluo:history"] = self._argv
        files = []
        try:
            for hour, parts in sorted(hours.items()):
                tables = [self._table(part) for part in parts]
                builder = PartBuilder(schema_of(tables[-1].schema.metadata, join(self.root, parts[-1].path)))
                was_ordered, table = builder.joined(tables)
                if ordered and not was_ordered:
                    raise NotOrderedError
                del tables
                name = PartName(str(known["host"]), hour, store.uuid, lane, first, end).path
                files.append(store.write_part(name, builder, table, metadata))
        except BaseException:
            store.remove_temporary(lane, first, end)
            raise
        data = {**known, "first": first, "end": end, "ordered": ordered, "merged": time.time_ns(), "files": files}
        self._files.sync([store.tmp])
        store.write_record(store.record_path(lane, first, end), data)
        fault("merge-recorded")
        for one in files:
            store.move_into_place(one["path"])
        self._files.sync([*{join(self.root, os.path.dirname(one["path"])) for one in files}])
        fault("merge-placed")
        return _outline(group)._replace(bytes=sum(one["bytes"] for one in files))

    def _table(self, part: RecordedPart) -> Any:
        where = join(self.root, part.path)
        pa = pyarrow(where)
        import pyarrow.parquet as pq

        hint = "its batch stays as it is; confluo-info --verify gives details"
        try:
            data = self._files.read(where, part.bytes + 1)
        except FileNotFoundError:
            raise DamagedPartError("is missing", where=where, hint=hint) from None
        if len(data) != part.bytes or f"{crc(data):08x}" != part.crc:
            raise DamagedPartError("differs from the data written", where=where, hint=hint)
        with pq.ParquetFile(pa.BufferReader(data)) as file:
            return file.read(use_threads=False)


def _parts(record: BatchRecord) -> list[RecordedPart]:
    out = []
    for one in record.data["files"]:
        _, date, hour, _ = one["path"].split("/")
        number = (day_of(date) or 0) * 24 + (hour_of(hour) or 0)
        out.append(RecordedPart(one["path"], int(one["bytes"]), str(one["crc"]), int(one["rows"]), number))
    return out


def _in_time_order(group: Sequence[BatchRecord]) -> bool:
    # Whether it may be so, by the hours.
    hours = [[part.hour for part in _parts(record)] for record in group]
    return all(record.data.get("ordered") for record in group) and all(max(a) <= min(b) for a, b in pairwise(hours))


def _worthwhile(group: list[BatchRecord]) -> Iterator[list[BatchRecord]]:
    # A batch that is larger than all after it waits until there are more of them, so no row is copied often.
    sizes = [sum(size for _, size in record.files) for record in group]
    while len(group) > 1 and sizes[0] > sum(sizes[1:]):
        group, sizes = group[1:], sizes[1:]
    done = _outline(group) if group else None
    if done is not None and 2 * done.into <= done.parts:
        yield group


def _outline(group: Sequence[BatchRecord]) -> MergedBatch:
    parts = [part for record in group for part in _parts(record)]
    hours = {part.hour for part in parts}
    rows = group[-1].end - group[0].first
    return MergedBatch(len(group), len(parts), len(hours), rows, sum(part.bytes for part in parts))
