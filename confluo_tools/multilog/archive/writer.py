"""Archive writer: write sealed segments as Parquet, read them back and compare, then remove them from the log.

An archive is a folder.  Several logs and hosts may share one if their records are of one kind:

    archive/host=NAME/date=2026-11-20/hour=13/UUID-LANE-FIRST-END.parquet      see multilog/archive/parquet_parts.py
    archive/.confluo/UUID/lane-000/FIRST-END.json       record of a batch: the rows it lists are archived
    archive/.confluo/tmp/                               temporary files

A batch is one or more whole segments of one lane.  The steps:
1. write its files to tmp, sync them, read them back and compare byte for byte;
2. rename its record into place: from now on the rows are archived;
3. move the files to their final paths;
4. link the archive in the log, and remove the segments with `retain` (of another host: remote/archive_client.py).
A killed run leaves files in tmp: the next run moves those that a record lists and removes the others.
Between steps 2 and 4 rows are in the log and in the archive; `log_with_archive` then reads those of the log.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

from confluo_tools.core.multilog.control import crc, fault
from confluo_tools.errors import ConfluoError, DiskFullError, FormatError, StoreError, UsageError
from confluo_tools.multilog.archive.batches import TMP, BatchRecord, BatchStore, temporary_name
from confluo_tools.multilog.archive.folders import ArchiveFolder
from confluo_tools.multilog.archive.parquet_parts import HOUR, PartBuilder, PartName, day_of, extended, hour_of
from confluo_tools.multilog.archive.part_check import HIDDEN, read_record
from confluo_tools.multilog.archive.segment_source import LogSegments, SegmentSource
from confluo_tools.multilog.archive.storage import join, storage
from confluo_tools.multilog.log import Log
from confluo_tools.multilog.retain import SealedSegment
from confluo_tools.objects.address import is_url
from confluo_tools.objects.faults import ObjectStoreError

MAX_KIND = 1000  # bytes of the file with the kind of the records
BATCH_ROWS = 1 << 20  # segments are combined into batches of at least this many rows
FORMAT = 1
Progress = Callable[[int], None]


class BatchResult(NamedTuple):
    """One archived batch, or in a dry run a batch to archive."""

    lane: int
    first: int
    end: int
    newest: int | None
    log_bytes: int
    files: int
    bytes: int
    removed: bool


class ArchiveWriter:
    """Archives rows of a log in the archive at ``path``, which is created if missing and locked until `close`.

    ``log``: a log of this host, or the segments of one.

    ``dry_run``: change and lock nothing; only `plan` and `outline` may be called.
    Raises BusyError when another process archives the same log there, UsageError, StoreError.
    """

    def __init__(
        self, log: Log | SegmentSource, path: str | os.PathLike[str], host: str, *, dry_run: bool = False
    ) -> None:
        self.source: SegmentSource = LogSegments(log) if isinstance(log, Log) else log
        self.log = log = self.source.log
        self.path, self.host, self.dry_run = os.fspath(path), host, dry_run
        self.uuid = log.uuid.hex()
        if log.schema.time_field is None:
            what = f"records of kind '{log.schema.kind}' have no time field, so they cannot be archived"
            hint = "write them to one file with confluo-convert -o parquet"
            raise UsageError(what, where=self.source.name, hint=hint)
        self.files = storage(self.path)
        self.batches = BatchStore(self.path, self.uuid, self.files)
        self._lock = -1
        _check_folder(self.path)
        extended(log.schema)  # raises SchemaError when the rows cannot be archived
        try:
            with self._storage_errors():
                if not dry_run:
                    self._begin()
                self._check_kind()
                if not dry_run:
                    self.batches.roll_forward()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> ArchiveWriter:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    # -- state of the archive

    def _begin(self) -> None:
        self._lock = self.batches.lock(self.log.path, f"another process is archiving {self.source.name} here")
        self.files.make_folder(self.batches.tmp)

    def _check_kind(self) -> None:
        # Other Parquet tools read the archive as one table: all records must be of one kind.
        name, kind = join(self.path, HIDDEN, "kind"), self.log.schema.kind
        try:
            there = self.files.read(name, MAX_KIND).decode("utf-8", "replace").strip()
        except FileNotFoundError:
            if not self.dry_run:
                self.files.replace(name, f"{kind}\n".encode())
            return
        if there != kind:
            what = f"holds records of kind '{there}'; those of {self.source.name} are of kind '{kind}'"
            raise UsageError(what, where=self.path, hint="choose another folder")

    def _check_names(self) -> None:
        # The names of values in schemas of users: rows that are named otherwise could not be read together.
        from confluo_tools.multilog.archive.reader import ArchiveReader
        from confluo_tools.schema import builtin_names
        from confluo_tools.schema.schema_fit import with_names

        if self.log.schema.kind in builtin_names() or not any(f.names for f in self.log.schema.fields):
            return
        try:
            with ArchiveReader(self.path) as there:
                with_names(there.schema, self.path, self.log.schema, self.source.name, "choose another folder")
        except FormatError:
            return  # no part is there, or none that can be read

    # -- archiving

    def plan(self, before: int | None) -> list[tuple[list[SealedSegment], BatchRecord | None]]:
        """Batches of segments in which every row is older than ``before`` (ns; None: all sealed segments).

        Each with its record if it is archived already and only has to be removed from the log.
        """
        out: list[tuple[list[SealedSegment], BatchRecord | None]] = []
        for lane in range(self.source.lanes):
            segments = self._old(lane, before)
            known = self.batches.records(lane, segments[0].base) if segments else []
            group: list[SealedSegment] = []
            for segment in segments:
                record = next((r for r in known if r.first <= segment.base and segment.end <= r.end), None)
                if record is not None and not self.batches.is_whole(record):
                    if not self.dry_run:
                        self.batches.discard(record)  # while the log has the rows, archive them again
                    known.remove(record)
                    record = None
                if record is not None:
                    if group:
                        out.append((group, None))
                        group = []
                    if out and out[-1][1] == record:
                        out[-1][0].append(segment)
                    else:
                        out.append(([segment], record))
                    continue
                group.append(segment)
                if segment.end - group[0].base >= BATCH_ROWS:
                    out.append((group, None))
                    group = []
            if group:
                out.append((group, None))
        if any(record is None for _, record in out):
            self._check_names()
        return out

    def _old(self, lane: int, before: int | None) -> list[SealedSegment]:
        segments = self.source.lane(lane)
        if before is None:
            return segments
        upto = 0
        for i, segment in enumerate(segments):
            newest = self.source.newest(segment)
            if newest is not None:
                if newest >= before:
                    break
                upto = i + 1
        return segments[:upto]

    def run(
        self, batch: list[SealedSegment], record: BatchRecord | None, *, remove: bool = True, argv: str = ""
    ) -> BatchResult:
        """Archive one batch of `plan` and remove it from the log.

        Raises DiskFullError (nothing of the batch is removed), StoreError, DamagedSegmentError.
        """
        lane, first, end = batch[0].lane, batch[0].base, batch[-1].end
        done = self.outline(batch, record, remove)
        with self._storage_errors():
            if record is None:
                try:
                    record = self._write(batch, argv)
                except BaseException:
                    with suppress(OSError, ObjectStoreError):
                        self.batches.remove_temporary(lane, first, end)
                    raise
                for path, _ in record.files:
                    self.batches.move_into_place(path)
            self.files.sync(_folders(self.path, record))
            fault("archive-committed")
        if remove:
            self.source.remove(lane, end, self.path, *_hours([path for path, _ in record.files]))
        return done._replace(files=len(record.kept), bytes=sum(n for _, n in record.kept))

    def outline(self, batch: list[SealedSegment], record: BatchRecord | None, remove: bool) -> BatchResult:
        """The result that `run` would return for a batch of `plan`."""
        newest = max((n for s in batch if (n := self.source.newest(s)) is not None), default=None)
        files = [] if record is None else [n for _, n in record.kept]
        size = sum(self.source.disk_bytes(s) for s in batch)
        return BatchResult(batch[0].lane, batch[0].base, batch[-1].end, newest, size, len(files), sum(files), remove)

    def _write(self, batch: list[SealedSegment], argv: str) -> BatchRecord:
        lane, first, end = batch[0].lane, batch[0].base, batch[-1].end
        rows = PartBuilder(self.log.schema)
        for i, segment in enumerate(batch):
            if segment.base != first + rows.rows:
                raise DamagedSegmentError(
                    i, f"rows {first + rows.rows} to {segment.base - 1} are missing", where=segment.path
                )
            try:
                self._read(segment, rows)
            except FileNotFoundError:
                raise SegmentRemovedError(segment.path) from None
            except ValueError as e:
                raise DamagedSegmentError(i, str(e), where=segment.path) from None
        try:
            ordered, parts = rows.split()
        except FormatError as e:
            raise StoreError(e.what, where=batch[0].path, hint=e.hint) from None
        metadata = {
            "confluo:format": str(FORMAT),
            "confluo:uuid": self.uuid,
            "confluo:host": self.host,
            "confluo:lane": str(lane),
            "confluo:rows": f"{first}-{end}",
            "confluo:ordered": str(int(ordered)),
        }
        if argv:
            metadata["confluo:history"] = argv
        files: list[dict[str, Any]] = []
        fault("archive-read")
        for hour, table in parts:
            name = PartName(self.host, hour, self.uuid, lane, first, end).path
            files.append(self.batches.write_part(name, rows, table, metadata))
        data = {
            "format": FORMAT,
            "uuid": self.uuid,
            "host": self.host,
            "kind": self.log.schema.kind,
            "lane": lane,
            "first": first,
            "end": end,
            "ordered": ordered,
            "archived": time.time_ns(),
            "files": files,
        }
        path = self.batches.record_path(lane, first, end)
        record = BatchRecord(first, end, [(f["path"], f["bytes"]) for f in files], path)
        self.files.sync([self.batches.tmp])
        self.batches.write_record(path, data)
        fault("archive-recorded")
        return record

    def _read(self, segment: SealedSegment, rows: PartBuilder) -> None:
        # Verifies the checksum of every page: damaged rows are not archived.  Raises ValueError, OSError.
        damage: list[tuple[str, int | None, str]] = []
        total = segment.end - segment.base
        opened = self.source.open(segment, damage)
        if opened.sealed != total:
            raise ValueError(f"it has {opened.sealed:,} of {total:,} rows")
        for number in range(-(-total // opened.capacity)):
            block = opened.block(number, min(total - number * opened.capacity, opened.capacity))
            if block is None or not block.check():
                _, _, reason = damage[-1]
                raise ValueError(f"block {number}: {reason}")
            rows.add(block, block.base)

    @contextmanager
    def _storage_errors(self) -> Iterator[None]:
        try:
            yield
        except (ConfluoError, SegmentRemovedError):
            raise
        except OSError as e:
            where = e.filename or self.path
            if e.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG) or "No space left" in str(e):
                hint = "nothing was removed from the log; make room, then run it again"
                raise DiskFullError("the disk is full", where=self.path, hint=hint) from None
            reason = e.strerror or str(e).splitlines()[0]
            raise StoreError(f"cannot be written: {reason}", where=where) from None


def _check_folder(path: str) -> None:
    """Raises UsageError for a place where readers would not find the archive, or would take it for something else."""
    if ArchiveFolder.of(path).names:
        raise UsageError("is a part of an archive", where=path, hint="name the folder above host=NAME")
    if is_url(path):
        return
    folder = os.path.realpath(path)
    if os.path.exists(os.path.join(folder, "control")):
        raise UsageError("is a MultiLog", where=path, hint="name another folder for the archive")
    while folder != "/":  # its space would be that of the log
        folder = os.path.dirname(folder)
        if os.path.exists(os.path.join(folder, "control")) and os.path.exists(os.path.join(folder, "multilog.yaml")):
            raise UsageError("is in a MultiLog", where=path, hint="name another folder for the archive")


class SegmentRemovedError(Exception):
    """Retention removed a segment before it could be archived."""


class DamagedSegmentError(StoreError):
    """Segment number ``at`` of a batch is damaged: only the segments before it can be archived."""

    def __init__(self, at: int, what: str, *, where: object) -> None:
        hint = "this segment and those after it stay in the log; confluo-info --verify gives details"
        super().__init__(what, where=where, hint=hint)
        self.at = at


def _folders(path: str, record: BatchRecord) -> list[str]:
    found = set()
    for name, _ in record.kept:
        folder = os.path.dirname(name)
        while folder:
            found.add(join(path, folder))
            folder = os.path.dirname(folder)
    return [*sorted(found, reverse=True), path]


def _hours(paths: list[str]) -> tuple[int, int]:
    # First and last time (ns) of the hours of these parts.
    hours = []
    for path in paths:
        _, date, hour, _ = path.split("/")
        hours.append((day_of(date) or 0) * 24 + (hour_of(hour) or 0))
    return min(hours) * HOUR, (max(hours) + 1) * HOUR - 1


# -- verifying an archive -----------------------------------------------------------------------------------


def check(path: str, progress: Progress | None = None) -> Iterator[tuple[str, str]]:
    """Yield (file, problem) for the files that the records of the archive, or its partition, at ``path`` list.

    ``progress`` is called with the number of bytes read so far.
    """
    read = 0
    path, names = ArchiveFolder.of(path)
    partition = "".join(f"{name}/" for name in names)
    files, hidden = storage(path), join(path, HIDDEN)
    for uuid in sorted(files.names(hidden)):
        for lane in sorted(n for n in files.names(join(hidden, uuid)) if n.startswith("lane-")):
            folder = join(hidden, uuid, lane)
            for name in sorted(n for n in files.names(folder) if n.endswith(".json")):
                try:
                    number = int(lane[5:]) if lane[5:].isdigit() else -1
                    listed = read_record(join(folder, name), uuid, number)["files"]
                    parts = [(str(x["path"]), int(x["bytes"]), str(x["crc"])) for x in listed if not x.get("removed")]
                except (OSError, ValueError) as e:
                    yield join(folder, name), f"the record is damaged: {e}"
                    continue
                for part, size, expected in (one for one in parts if one[0].startswith(partition)):
                    where = join(path, part)
                    try:
                        data = files.read(where, size + 1)
                    except FileNotFoundError:
                        waiting = temporary_name(part) in files.names(join(hidden, TMP))
                        yield where, "is still in the temporary folder: archive again" if waiting else "is missing"
                        continue
                    except OSError as e:
                        yield where, f"cannot be read: {e.strerror}"
                        continue
                    if len(data) != size or f"{crc(data):08x}" != expected:
                        yield where, "differs from the data written"
                    read += size
                    if progress is not None:
                        progress(read)
