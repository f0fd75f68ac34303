"""Archiving: sealed segments become Parquet, are read back and compared, and only then leave the log.

An archive is a folder; several logs and hosts may share one, if their records are of one kind:

    archive/host=NAME/date=2026-11-20/hour=13/UUID-LANE-FIRST-END.parquet      see formats/dataset.py
    archive/.confluo/UUID/lane-000/FIRST-END.json       what a batch consists of: whatever it names is archived
    archive/.confluo/tmp/                               files that are not in their places yet

A batch is one or more whole segments of one lane.  In this order
1. its files are written to tmp, synced, read back and compared byte for byte;
2. its record is put in place by a renaming: from here on the rows are archived;
3. the files are moved to their places;
4. the log is told where its archive is, and `retain` removes the segments.
A run that is killed leaves files in tmp: the next run moves those that a record names and removes the others.
Rows are in the log and in the archive between 2 and 4; readers of both take those of the log (archive_reader.py).
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

from confluo_tools.core.control import crc, fault
from confluo_tools.errors import BusyError, ConfluoError, DiskFullError, FormatError, StoreError, UsageError
from confluo_tools.formats.dataset import HOUR, Batch, PartName, batch_of, day_of, extended, hour_of
from confluo_tools.store import retain
from confluo_tools.store.create import sync_folder
from confluo_tools.store.log import Log
from confluo_tools.store.retain import Catalog, Sealed, _disk, _names
from confluo_tools.store.whole import replace

HIDDEN = ".confluo"
TMP = "tmp"
ARCHIVES = "archives"  # in the folder of a log: where its older rows are
BATCH_ROWS = 1 << 20  # segments are put together until they have so many rows
FORMAT = 1
Tell = Callable[[int], None]


class Record(NamedTuple):
    """Rows ``first`` to ``end`` - 1 of a lane, and the files they are in: [(path in the archive, bytes)]."""

    first: int
    end: int
    files: list[tuple[str, int]]
    path: str


class Done(NamedTuple):
    """One batch that was archived (or, on a dry run, would be)."""

    lane: int
    first: int
    end: int
    newest: int | None
    log_bytes: int
    files: int
    bytes: int
    removed: bool


class Archive:
    """The archive at ``path``, for rows of ``log``; made when there is none.  Close it: it is locked.

    ``look``: change nothing, lock nothing; only `plan` and `outline` can be asked then.
    Raises BusyError when another process archives the same log there, UsageError, StoreError.
    """

    def __init__(self, log: Log, path: str | os.PathLike[str], host: str, *, look: bool = False) -> None:
        self.log, self.path, self.host, self.look = log, os.fspath(path), host, look
        self.uuid = log.uuid.hex()
        self.catalog = Catalog(log)
        if log.schema.time_field is None:
            what = f"records of kind '{log.schema.kind}' have no time to archive them by"
            raise UsageError(what, where=log.path, hint="confluo-convert -o parquet writes them to one file")
        self._own = os.path.join(self.path, HIDDEN, self.uuid)
        self._tmp = os.path.join(self.path, HIDDEN, TMP)
        self._lock = -1
        if os.path.exists(os.path.join(self.path, "control")):
            raise UsageError("is a MultiLog", where=self.path, hint="name a folder for the archive")
        extended(log.schema)  # whether its rows can be archived
        with self._trouble():
            if not look:
                self._begin()
            self._check_kind()
            if not look:
                self._roll_forward()

    def __enter__(self) -> Archive:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    # -- what there is

    def _begin(self) -> None:
        os.makedirs(self._own, exist_ok=True)
        os.makedirs(self._tmp, exist_ok=True)
        self._lock = os.open(os.path.join(self._own, "lock"), os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.close()
            what = f"somebody else is archiving {self.log.path} here"
            raise BusyError(what, where=self.path, hint="try again later") from None

    def _check_kind(self) -> None:
        # Plain Parquet tools see one table: records of one kind, forever.
        name, kind = os.path.join(self.path, HIDDEN, "kind"), self.log.schema.kind
        try:
            with open(name, encoding="utf-8") as f:
                there = f.read(100).strip()
        except FileNotFoundError:
            if not self.look:
                replace(name, f"{kind}\n".encode(), sync=True)
            return
        if there != kind:
            what = f"holds records of kind '{there}'; those of {self.log.path} are of kind '{kind}'"
            raise UsageError(what, where=self.path, hint="choose another folder")

    def records(self, lane: int) -> list[Record]:
        """The batches of ``lane`` that are archived, by their rows."""
        folder = os.path.join(self._own, f"lane-{lane:03d}")
        found = []
        for name in _names(folder):
            if name.endswith(".json"):
                path = os.path.join(folder, name)
                try:
                    with open(path, encoding="utf-8") as f:
                        data = json.load(f)
                    files = [(str(x["path"]), int(x["bytes"])) for x in data["files"]]
                    found.append(Record(int(data["first"]), int(data["end"]), files, path))
                except (ValueError, KeyError, TypeError) as e:
                    raise StoreError(f"is damaged: {e}", where=path, hint="remove it; its rows are archived again"
                                     ) from None  # fmt: skip
        return sorted(found)

    def _lanes(self) -> list[int]:
        return sorted(int(n[5:]) for n in _names(self._own) if n.startswith("lane-") and n[5:].isdigit())

    def _roll_forward(self) -> None:
        # Finish what a run that was killed had decided, forget what it had not.
        waiting = {n for n in _names(self._tmp) if n.startswith(self.uuid)}
        if not waiting:
            return
        for lane in self._lanes():
            for record in self.records(lane):
                for path, _ in record.files:
                    if _in_tmp(path) in waiting:
                        self._place(path)
                        waiting.discard(_in_tmp(path))
        for name in waiting:
            os.unlink(os.path.join(self._tmp, name))

    def _place(self, path: str) -> None:
        target = os.path.join(self.path, path)
        os.makedirs(os.path.dirname(target), exist_ok=True)
        os.rename(os.path.join(self._tmp, _in_tmp(path)), target)
        fault("archive-placed")

    def _whole(self, record: Record) -> bool:
        for path, size in record.files:
            try:
                if os.stat(os.path.join(self.path, path)).st_size != size:
                    return False
            except FileNotFoundError:
                return False
        return True

    # -- what there is to do

    def plan(self, before: int | None) -> list[tuple[list[Sealed], Record | None]]:
        """Batches of segments of which every row is older than ``before`` (ns; None: all that are sealed).

        With the record of those that are archived already and only have to leave the log.
        """
        out: list[tuple[list[Sealed], Record | None]] = []
        for lane in range(self.log.control.claimed):
            segments = self._old(lane, before)
            known = self.records(lane)
            group: list[Sealed] = []
            for segment in segments:
                record = next((r for r in known if r.first <= segment.base and segment.end <= r.end), None)
                if record is not None and not self._whole(record):
                    if not self.look:
                        self._forget(record)
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
        return out

    def _old(self, lane: int, before: int | None) -> list[Sealed]:
        segments = self.catalog.lane(lane)
        if before is None:
            return segments
        upto = 0
        for i, segment in enumerate(segments):
            newest = self.catalog.newest(segment)
            if newest is not None:
                if newest >= before:
                    break
                upto = i + 1
        return segments[:upto]

    def _forget(self, record: Record) -> None:
        # Somebody removed a file of the batch: as long as the log has the rows, they are archived anew.
        os.unlink(record.path)
        for path, _ in record.files:
            with suppress(FileNotFoundError):
                os.unlink(os.path.join(self.path, path))

    def run(self, batch: list[Sealed], record: Record | None, *, remove: bool = True, argv: str = "") -> Done:
        """Archive one batch of `plan`, and remove it from the log.

        Raises DiskFullError (nothing of the batch was removed), StoreError: a damaged segment among others.
        """
        lane, first, end = batch[0].lane, batch[0].base, batch[-1].end
        done = self.outline(batch, record, remove)
        with self._trouble():
            if record is None:
                try:
                    record = self._write(batch, argv)
                except BaseException:
                    self._tidy(lane, first, end)
                    raise
                for path, _ in record.files:
                    self._place(path)
            for folder in _folders(self.path, record):
                sync_folder(folder)
            fault("archive-committed")
        if remove:
            try:
                remember(self.log, self.path, *_hours([path for path, _ in record.files]))
                fault("archive-remembered")
                with retain.removing(self.log, 5.0):
                    retain.remove(self.log, {lane: end})
            except OSError as e:
                raise self.log._trouble(e) from None
        return done._replace(files=len(record.files), bytes=sum(n for _, n in record.files))

    def outline(self, batch: list[Sealed], record: Record | None, remove: bool) -> Done:
        """What `run` would do with a batch of `plan`."""
        newest = max((n for s in batch if (n := self.catalog.newest(s)) is not None), default=None)
        files = [] if record is None else [n for _, n in record.files]
        size = sum(_disk(s.path) for s in batch)
        return Done(batch[0].lane, batch[0].base, batch[-1].end, newest, size, len(files), sum(files), remove)

    def _tidy(self, lane: int, first: int, end: int) -> None:
        # Leave no half-made files on a full disk; what a record names is not half-made.
        with suppress(OSError):
            if not os.path.exists(self._record(lane, first, end)):
                for name in _names(self._tmp):
                    if batch_of(name.split("@")[0] + ".parquet") == (self.uuid, lane, first, end):
                        os.unlink(os.path.join(self._tmp, name))

    def _record(self, lane: int, first: int, end: int) -> str:
        return os.path.join(self._own, f"lane-{lane:03d}", f"{first:016d}-{end:016d}.json")

    def _write(self, batch: list[Sealed], argv: str) -> Record:
        lane, first, end = batch[0].lane, batch[0].base, batch[-1].end
        rows = Batch(self.log.schema)
        for i, segment in enumerate(batch):
            if segment.base != first + rows.rows:
                raise DamagedError(i, f"rows {first + rows.rows} to {segment.base - 1} are missing", where=segment.path)
            try:
                self._read(segment, rows)
            except FileNotFoundError:
                raise Vanished(segment.path) from None
            except ValueError as e:
                raise DamagedError(i, str(e), where=segment.path) from None
        try:
            ordered, parts = rows.split()
        except FormatError as e:
            raise StoreError(e.what, where=batch[0].path, hint=e.hint) from None
        metadata = {
            "confluo:format": str(FORMAT), "confluo:uuid": self.uuid, "confluo:host": self.host,
            "confluo:lane": str(lane), "confluo:rows": f"{first}-{end}", "confluo:ordered": str(int(ordered)),
        }  # fmt: skip
        if argv:
            metadata["confluo:history"] = argv
        files: list[dict[str, Any]] = []
        fault("archive-read")
        for hour, table in parts:
            name = PartName(self.host, hour, self.uuid, lane, first, end).path
            temporary = os.path.join(self._tmp, _in_tmp(name))
            written = rows.write(temporary, table, metadata)
            fault("archive-written")
            if not rows.same(temporary, table, written):
                what = "what was written is not what is read back: nothing was removed from the log"
                raise StoreError(what, where=temporary, hint="is the disk sound?")
            files.append({
                "path": name, "rows": table.num_rows, "bytes": len(written), "crc": f"{crc(written):08x}",
            })  # fmt: skip
            fault("archive-verified")
        data = {
            "format": FORMAT, "uuid": self.uuid, "host": self.host, "kind": self.log.schema.kind, "lane": lane,
            "first": first, "end": end, "ordered": ordered, "archived": time.time_ns(), "files": files,
        }  # fmt: skip
        record = Record(first, end, [(f["path"], f["bytes"]) for f in files], self._record(lane, first, end))
        os.makedirs(os.path.dirname(record.path), exist_ok=True)
        sync_folder(self._tmp)
        replace(record.path, (json.dumps(data, indent=1) + "\n").encode(), sync=True)
        for above in (self._own, os.path.dirname(self._own), self.path):
            sync_folder(above)
        fault("archive-recorded")
        return record

    def _read(self, segment: Sealed, rows: Batch) -> None:
        # Every page is summed: what is damaged is not archived.  Raises ValueError, OSError.
        damage: list[tuple[str, int | None, str]] = []
        total = segment.end - segment.base
        opened = self.log._open_segment(segment.path, segment.lane, segment.base, total, damage)
        if opened.sealed != total:
            raise ValueError(f"it has {opened.sealed:,} of {total:,} rows")
        for number in range(-(-total // opened.capacity)):
            block = opened.block(number, min(total - number * opened.capacity, opened.capacity))
            if block is None or not block.check():
                raise ValueError(f"block {number}: {damage[-1][2]}")
            rows.add(block, block.base)

    @contextmanager
    def _trouble(self) -> Iterator[None]:
        try:
            yield
        except (ConfluoError, Vanished):
            raise
        except OSError as e:
            where = e.filename or self.path
            if e.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG) or "No space left" in str(e):
                hint = "nothing of it was removed from the log; make room, then go on"
                raise DiskFullError("the disk is full", where=self.path, hint=hint) from None
            reason = e.strerror or str(e).splitlines()[0]
            raise StoreError(f"cannot be written: {reason}", where=where) from None


class Vanished(Exception):
    """Retention removed a segment while it was to be archived."""


class DamagedError(StoreError):
    """Segment number ``at`` of a batch is damaged: those before it can be archived, it stays."""

    def __init__(self, at: int, what: str, *, where: object) -> None:
        hint = "it is not archived and stays, and so do those after it; confluo-info --verify tells more"
        super().__init__(what, where=where, hint=hint)
        self.at = at


def _in_tmp(path: str) -> str:
    # host=a/date=d/hour=h/NAME.parquet -> NAME@d@h@host: in one folder, and other than any other's
    host, date, hour, name = path.split("/")
    return f"{name.removesuffix('.parquet')}@{date[5:]}@{hour[5:]}@{host[5:]}"


def _folders(path: str, record: Record) -> list[str]:
    found = set()
    for name, _ in record.files:
        folder = os.path.dirname(name)
        while folder:
            found.add(os.path.join(path, folder))
            folder = os.path.dirname(folder)
    return [*sorted(found, reverse=True), path]


# -- what a log remembers ------------------------------------------------------------------------------------------


class Noted(NamedTuple):
    """An archive that a log remembers: its path, relative to the log and absolute, and the times (ns) of its rows."""

    relative: str
    absolute: str
    oldest: int
    newest: int

    def path(self, log: Log) -> str | None:
        """Where the archive is now: a folder counts when it knows the log.  None: it is not there."""
        for path in (os.path.normpath(os.path.join(os.path.realpath(log.path), self.relative)), self.absolute):
            if os.path.isdir(os.path.join(path, HIDDEN, log.uuid.hex())):
                return path
        return None


def remember(log: Log, archive: str, oldest: int, newest: int) -> None:
    """Note in the folder of ``log`` that rows of these times are in ``archive`` from now on.  Raises OSError."""
    here, there = os.path.realpath(log.path), os.path.realpath(archive)
    entry = Noted(os.path.relpath(there, here), there, oldest, newest)
    entries = noted(log)
    for i, known in enumerate(entries):
        if known[:2] == entry[:2]:
            entries[i] = entry._replace(oldest=min(oldest, known.oldest), newest=max(newest, known.newest))
            if entries[i] == known:
                return
            break
    else:
        entries.append(entry)
    lines = [
        "# Where confluo-archive moved rows of this MultiLog: relative path, absolute path, their times in ns.",
        *map(json.dumps, entries),
    ]
    replace(os.path.join(log.path, ARCHIVES), ("\n".join(lines) + "\n").encode(), sync=True)


def noted(log: Log) -> list[Noted]:
    """The archives that ``log`` remembers.  What cannot be read is not there."""
    try:
        with open(os.path.join(log.path, ARCHIVES), encoding="utf-8") as f:
            lines = f.read(1 << 16).splitlines()
    except (OSError, UnicodeDecodeError):
        return []
    found = []
    for line in lines:
        if line.startswith("["):
            with suppress(ValueError, TypeError):
                relative, absolute, oldest, newest = json.loads(line)
                if isinstance(relative, str) and isinstance(absolute, str) and "\0" not in relative + absolute:
                    found.append(Noted(relative, absolute, int(oldest), int(newest)))
    return found


def _hours(paths: list[str]) -> tuple[int, int]:
    # First and last instant (ns) of the hours that these parts are of.
    hours = []
    for path in paths:
        _, date, hour, _ = path.split("/")
        hours.append((day_of(date) or 0) * 24 + (hour_of(hour) or 0))
    return min(hours) * HOUR, (max(hours) + 1) * HOUR - 1


# -- whether an archive is whole -----------------------------------------------------------------------------------


def check(path: str, tell: Tell | None = None) -> Iterator[tuple[str, str]]:
    """(file, what is wrong) of all that the records of the archive at ``path`` name.  ``tell`` hears of bytes."""
    read = 0
    hidden = os.path.join(path, HIDDEN)
    for uuid in sorted(_names(hidden)):
        for lane in sorted(n for n in _names(os.path.join(hidden, uuid)) if n.startswith("lane-")):
            folder = os.path.join(hidden, uuid, lane)
            for name in sorted(n for n in _names(folder) if n.endswith(".json")):
                try:
                    with open(os.path.join(folder, name), encoding="utf-8") as f:
                        files = [(str(x["path"]), int(x["bytes"]), str(x["crc"])) for x in json.load(f)["files"]]
                except (OSError, ValueError, KeyError, TypeError) as e:
                    yield os.path.join(folder, name), f"the record is damaged: {e}"
                    continue
                for part, size, expected in files:
                    where = os.path.join(path, part)
                    try:
                        with open(where, "rb") as f:
                            data = f.read(size + 1)
                    except FileNotFoundError:
                        waiting = os.path.exists(os.path.join(hidden, TMP, _in_tmp(part)))
                        yield where, "is not in its place yet: archive again" if waiting else "is missing"
                        continue
                    except OSError as e:
                        yield where, f"cannot be read: {e.strerror}"
                        continue
                    if len(data) != size or f"{crc(data):08x}" != expected:
                        yield where, "is not what was written"
                    read += size
                    if tell is not None:
                        tell(read)
