"""Retention of an archive: remove the oldest parts by age or by total size.

A part is removed in two steps: the record of its batch marks it as removed, then the file goes.  The record stays, so
rows that a log still has are not archived again.  A run that was killed in between left a file that is readable, and
the next run removes it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from confluo_tools.core.multilog.control import fault
from confluo_tools.errors import StoreError
from confluo_tools.expr import leaves
from confluo_tools.multilog.archive.batches import BatchStore, lock_all, logs_of
from confluo_tools.multilog.archive.folders import ArchiveFolder, find_parts
from confluo_tools.multilog.archive.open_ahead import PartFile
from confluo_tools.multilog.archive.parquet_parts import HOUR
from confluo_tools.multilog.archive.storage import join, storage

WAIT = 5.0  # seconds for the lock


class RemovedPart(NamedTuple):
    """A part that was removed, or would be: its path and bytes."""

    path: str
    bytes: int


class ArchiveKeeper:
    """Removes the oldest parts of the archive at ``path``, or of a partition of it.

    First those of hours that ended at least ``time_ns`` ago, then as many as needed to reduce the parts to ``size``
    bytes.  Raises StoreError, BusyError.
    """

    def __init__(
        self, path: str, time_ns: int | None = None, size: int | None = None, *, now: Callable[[], int] = time.time_ns
    ) -> None:
        self.path, self.time_ns, self.size, self._now = path, time_ns, size, now
        self.root = ArchiveFolder.of(path).root

    def planned_removals(self) -> list[RemovedPart]:
        """The parts that `run` would remove now, oldest first."""
        return [RemovedPart(place.path, size) for place, size in self._expired()]

    def _expired(self) -> list[tuple[PartFile, int]]:
        files = storage(self.path, listed=True)
        parts = []
        for place in find_parts(self.path, leaves.TRUE, -1, files=files):
            try:
                parts.append((place, files.size(place.path) if place.stat is None else place.stat.size))
            except FileNotFoundError:
                continue  # merged or removed meanwhile
        parts.sort(key=lambda one: (one[0].name.hour, one[0].name.host, one[0].path))
        total = sum(size for _, size in parts)
        before = None if self.time_ns is None else self._now() - self.time_ns
        gone = []
        for place, size in parts:
            old = before is not None and (place.name.hour + 1) * HOUR <= before
            if not old and (self.size is None or total <= self.size):
                break
            gone.append((place, size))
            total -= size
        return gone

    def run(self) -> list[RemovedPart]:
        """Remove the parts that exceed the limits."""
        files = storage(self.root)
        stores = {uuid: BatchStore(self.root, uuid, files) for uuid in logs_of(self.root, files)}
        try:
            held = lock_all(stores.values(), WAIT)
            try:
                gone = self._expired()
                self._mark([place for place, _ in gone], stores)
                for place, _ in gone:
                    files.remove(place.path)
                    fault("archive-removed")
                files.remove_empty(self.root, {os.path.dirname(place.name.path) for place, _ in gone})
            finally:
                for fd in held:
                    os.close(fd)
        except OSError as e:
            raise StoreError(f"cannot be written: {e.strerror or e}", where=e.filename or self.root) from None
        return [RemovedPart(place.path, size) for place, size in gone]

    def _mark(self, places: Sequence[PartFile], stores: dict[str, BatchStore]) -> None:
        # In the records of their batches.  Parts that were copied into the archive have none.
        batches: dict[tuple[str, int, int, int], set[str]] = {}
        for place in places:
            batches.setdefault(place.name.batch, set()).add(place.name.path)
        now = self._now()
        for (uuid, lane, first, end), paths in sorted(batches.items()):
            store = stores.get(uuid)
            if store is None:
                continue
            path = store.record_path(lane, first, end)
            try:
                record = store.read(lane, os.path.basename(path))
            except FileNotFoundError:
                continue
            listed = [dict(one) | ({"removed": now} if one["path"] in paths else {}) for one in record.data["files"]]
            store.write_record(join(path), {**record.data, "files": listed})
            fault("archive-marked")
