"""The batches of one log in an archive: their records and files, and how they come and go.

    archive/.confluo/UUID/lane-000/FIRST-END.json       the record of a batch
    archive/.confluo/tmp/                               files that wait for the record of their batch or for their place

A batch is committed by its record: files that it lists and that are still in the temporary folder are moved to their
places by the next process that has the lock.  A record marks files that retention removed.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from confluo_tools.core.multilog.control import crc, fault
from confluo_tools.errors import BusyError, StoreError
from confluo_tools.multilog.archive.parquet_parts import PartBuilder, batch_of
from confluo_tools.multilog.archive.part_check import HIDDEN, footer_crc, read_record
from confluo_tools.multilog.archive.storage import Storage, join, storage
from confluo_tools.objects.address import is_url

TMP = "tmp"
PAUSE = 0.05  # seconds between two attempts to get the lock


class BatchRecord(NamedTuple):
    """Record of a batch: rows ``first`` to ``end`` - 1 of a lane, and its files: [(path in the archive, bytes)].

    ``removed``: the paths of those that retention removed; ``data``: all that the record says.
    """

    first: int
    end: int
    files: list[tuple[str, int]]
    path: str
    removed: frozenset[str] = frozenset()
    data: dict[str, Any] = {}  # noqa: RUF012 - never changed

    @property
    def kept(self) -> list[tuple[str, int]]:
        """The files that are in the archive."""
        return [one for one in self.files if one[0] not in self.removed]

    def covers(self, other: BatchRecord) -> bool:
        """Whether the rows of another batch of the lane were merged into this one."""
        return self.first <= other.first and other.end <= self.end and self.path != other.path


class BatchStore:
    """The batches of the log ``uuid`` (hexadecimal) in the archive at ``root``."""

    def __init__(self, root: str, uuid: str, files: Storage | None = None) -> None:
        self.root, self.uuid = root, uuid
        self.files: Storage = files or storage(root)
        self.own = join(root, HIDDEN, uuid)
        self.tmp = join(root, HIDDEN, TMP)

    def lock(self, log: str, busy: str, wait: float = 0.0) -> int:
        """A lock for changing the batches, held until the descriptor is closed.  ``log``: path of the log.

        Raises BusyError with the text ``busy`` if another process has it after ``wait`` seconds.
        """
        due = time.monotonic() + wait
        while True:
            try:
                return self.files.lock(self.own, log)
            except BlockingIOError:
                if time.monotonic() >= due:
                    raise BusyError(busy, where=self.root, hint="try again later") from None
                time.sleep(PAUSE)

    def lanes(self) -> list[int]:
        """The lanes with records."""
        names = [name.removeprefix("lane-") for name in self.files.names(self.own) if name.startswith("lane-")]
        return sorted(int(name) for name in names if name.isdigit())

    def lane(self, lane: int) -> str:
        """The folder with the records of a lane."""
        return join(self.own, f"lane-{lane:03d}")

    def record_path(self, lane: int, first: int, end: int) -> str:
        return join(self.lane(lane), f"{first:016d}-{end:016d}.json")

    def records(self, lane: int, after: int = 0) -> list[BatchRecord]:
        """The batches of ``lane`` in row order, without those that end at row ``after`` or earlier.

        Batches that were merged into another one are left out.  Raises StoreError.
        """
        found = self.every_record(lane, after)
        return [one for one in found if not any(other.covers(one) for other in found)]

    def every_record(self, lane: int, after: int = 0) -> list[BatchRecord]:
        """All batches of ``lane``, also those that were merged.  Raises StoreError."""
        found = []
        for name in self.files.names(self.lane(lane)):
            rows = name.removesuffix(".json").split("-")
            if name.endswith(".json") and not (len(rows) == 2 and rows[1].isdigit() and int(rows[1]) <= after):
                found.append(self.read(lane, name))
        return sorted(found, key=lambda one: (one.first, -one.end))

    def read(self, lane: int, name: str) -> BatchRecord:
        """The record with this file name.  Raises OSError, StoreError."""
        path = join(self.lane(lane), name)
        try:
            data = read_record(path, self.uuid, lane)
        except ValueError as e:
            hint = "remove it; its rows are archived again"
            raise StoreError(f"is damaged: {e}", where=path, hint=hint) from None
        files = [(str(x["path"]), int(x["bytes"])) for x in data["files"]]
        removed = frozenset(str(x["path"]) for x in data["files"] if x.get("removed"))
        return BatchRecord(int(data["first"]), int(data["end"]), files, path, removed, data)

    def write_record(self, path: str, data: dict[str, Any]) -> None:
        """Write a record, whole or not at all; it survives a power failure.  Raises OSError."""
        self.files.replace(path, (json.dumps(data, indent=1) + "\n").encode())
        self.files.sync([self.own, os.path.dirname(self.own), self.root])

    def write_part(self, name: str, builder: PartBuilder, table: Any, metadata: Mapping[str, str]) -> dict[str, Any]:
        """Write a part into the temporary folder, read it back and compare; returns its entry in the record.

        ``name``: its path in the archive.  Raises OSError, StoreError.
        """
        temporary = join(self.tmp, temporary_name(name))
        written = builder.encode(table, metadata)
        self.files.write(temporary, written)
        fault("archive-written")
        if not builder.same(self.files.read(temporary, len(written) + 1), table, written):
            what = "the file differs from the data written: nothing was removed"
            raise StoreError(what, where=temporary, hint="check the disk")
        fault("archive-verified")
        checks = {"crc": f"{crc(written):08x}", "footer": footer_crc(written)}
        times = {"times": builder.span(table)} if table.num_rows else {}
        return {"path": name, "rows": table.num_rows, "bytes": len(written), **checks, **times}

    def roll_forward(self) -> None:
        """Move the files of recorded batches of a killed run into place, and remove its other temporary files."""
        waiting = {n for n in self.files.names(self.tmp) if n.startswith(self.uuid)}
        batches = {batch_of(name.split("@")[0] + ".parquet") for name in waiting}
        for _, lane, first, end in sorted(batch for batch in batches if batch is not None):
            try:
                record = self.read(lane, os.path.basename(self.record_path(lane, first, end)))
            except FileNotFoundError:
                continue
            for path, _ in record.files:
                if temporary_name(path) in waiting:
                    self.move_into_place(path)
                    waiting.discard(temporary_name(path))
        for name in waiting:
            self.files.remove(join(self.tmp, name))

    def move_into_place(self, path: str) -> None:
        self.files.move(join(self.tmp, temporary_name(path)), join(self.root, path))
        fault("archive-placed")

    def is_whole(self, record: BatchRecord) -> bool:
        """Whether all files that were not removed by retention are there."""
        for path, size in record.kept:
            try:
                if self.files.size(join(self.root, path)) != size:
                    return False
            except FileNotFoundError:
                return False
        return True

    def discard(self, record: BatchRecord) -> None:
        """Remove the record of a batch and its files."""
        self.files.remove(record.path)
        for path, _ in record.files:
            self.files.remove(join(self.root, path))

    def remove_merged(self, lane: int) -> int:
        """Remove the files and records of batches that were merged into another one; returns the number of batches."""
        found = self.every_record(lane)
        merged = 0
        for whole in found:
            small = [one for one in found if whole.covers(one)]
            if not small or not self.is_whole(whole):
                continue
            for one in small:
                for path, _ in one.kept:
                    self.files.remove(join(self.root, path))
                    fault("archive-merged")
            for one in small:
                self.files.remove(one.path)
                fault("archive-forgotten")
            merged += len(small)
        return merged

    def remove_temporary(self, lane: int, first: int, end: int) -> None:
        """Remove the temporary files of a batch that was not finished, unless a record lists them.  Raises OSError."""
        if os.path.basename(self.record_path(lane, first, end)) not in self.files.names(self.lane(lane)):
            for name in self.files.names(self.tmp):
                if batch_of(name.split("@")[0] + ".parquet") == (self.uuid, lane, first, end):
                    self.files.remove(join(self.tmp, name))


def logs_of(root: str, files: Storage) -> list[str]:
    """The uuids of the logs with records in the archive at ``root``."""
    names = files.names(join(root, HIDDEN))
    return sorted(name for name in names if len(name) == 32 and all(c in "0123456789abcdef" for c in name))


def lock_all(stores: Iterable[BatchStore], wait: float) -> list[int]:
    """Locks of all logs of an archive on this host.  A store has no locks.  Raises BusyError."""
    held: list[int] = []
    try:
        for one in stores:
            if not is_url(one.root):
                held.append(one.lock("", f"another process is writing rows of the log {one.uuid}", wait))
    except BaseException:
        for fd in held:
            os.close(fd)
        raise
    return held


def temporary_name(path: str) -> str:
    """host=a/date=d/hour=h/NAME.parquet -> NAME@d@h@host: unique in one folder."""
    host, date, hour, name = path.split("/")
    return f"{name.removesuffix('.parquet')}@{date[5:]}@{hour[5:]}@{host[5:]}"
