"""What the records of an archive say about its parts: names, sizes, times and checksums of the Parquet footers.

A record is JSON that another user may have written: a path in it is only taken if it is the path that a part of this
batch has.  The footer of a part has no checksum of its own, and its statistics decide which rows are read at all.
"""

from __future__ import annotations

import json
import os
import threading
from collections import defaultdict
from typing import TYPE_CHECKING, Any, NamedTuple

from confluo_tools.core.multilog.control import crc
from confluo_tools.multilog.archive.parquet_parts import PartName, batch_of, day_of, host_of, hour_of
from confluo_tools.multilog.archive.storage import DiskFile, join, storage

if TYPE_CHECKING:
    from confluo_tools.objects.remote_file import RemoteFile

HIDDEN = ".confluo"
MAX_RECORD = 16 << 20
MAX_FOOTER = 256 << 20
MAX_TIME = 1 << 63  # ns


def own_path(path: Any, uuid: str, lane: int, first: int, end: int) -> bool:
    """Whether ``path`` is that of a part of this batch, relative to the archive."""
    words = path.split("/") if isinstance(path, str) else []
    if len(words) != 4:
        return False
    host, day, hour = host_of(words[0]), day_of(words[1]), hour_of(words[2])
    if host is None or day is None or hour is None or batch_of(words[3]) != (uuid, lane, first, end):
        return False
    return str(path) == PartName(host, day * 24 + hour, uuid, lane, first, end).path


def read_record(path: str, uuid: str, lane: int) -> dict[str, Any]:
    """The record of a batch.  Raises OSError; ValueError with the problem if it is damaged or names other files."""
    text = storage(path).read(path, MAX_RECORD)
    try:
        data = json.loads(text)
        first, end, files = int(data["first"]), int(data["end"]), list(data["files"])
        rows = sum(int(one["rows"]) for one in files)
        names = [(one["path"], _part_record(one), str(one["crc"])) for one in files]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as e:
        raise ValueError(f"no {e}" if isinstance(e, KeyError) else str(e)) from None
    if os.path.basename(path) != f"{first:016d}-{end:016d}.json":
        raise ValueError("its rows are not those of its name")
    for name, _, _ in names:
        if not own_path(name, uuid, lane, first, end):
            raise ValueError(f"it names a file that is not a part of this batch: {ascii(name)[:100]}")
    if rows != end - first:
        raise ValueError(f"its files have {rows} of {end - first} rows")
    found: dict[str, Any] = data
    return found


def footer_crc(data: memoryview) -> str:
    """Checksum of the footer of a Parquet file: metadata, length, magic."""
    return f"{crc(data[-(int.from_bytes(data[-8:-4], 'little') + 8) :]):08x}"


class PartRecord(NamedTuple):
    """What a record says about a part.

    ``footer``: the checksum of its footer, '' if an earlier program wrote the record; so are the ``times`` None, the
    first and the last time of its rows in ns.
    """

    size: int
    rows: int
    footer: str
    times: tuple[int, int] | None


def _part_record(entry: dict[str, Any]) -> PartRecord:
    times = entry.get("times")
    if times is not None:
        first, last = times
        if type(first) is not int or type(last) is not int or not -MAX_TIME <= first <= last < MAX_TIME:
            raise ValueError(f"the times of a file are wrong: {ascii(times)[:100]}")
        times = first, last
    return PartRecord(int(entry["bytes"]), int(entry["rows"]), str(entry.get("footer", "")), times)


class FooterCheck:
    """Compares footers with the records of the archives; each record is read once.  Several threads may use one."""

    def __init__(self) -> None:
        self._records: dict[str, dict[str, PartRecord]] = {}
        self._locks: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)

    def problem(self, name: PartName, path: str, file: DiskFile | RemoteFile) -> str:
        """What is wrong with the footer of the part at ``path``; '' if it is right, or if there is no record of it.

        Raises OSError.
        """
        try:
            record = self.load(name, path)
        except ValueError as e:
            return f"cannot be checked: its record is damaged: {e}"
        known = self._records[record].get(name.path)
        if known is None or not known.footer:
            return ""
        length = file.size
        if length != known.size:
            return f"is not a complete Parquet file: it has {length} of {known.size} bytes"
        n = int.from_bytes(bytes(file.end(8)[:4]), "little") + 8
        if n > min(length, MAX_FOOTER):
            return "is damaged: the length of its footer is wrong"
        good = f"{crc(file.end(n)):08x}" == known.footer
        return "" if good else "is damaged: its footer differs from the one that was written"

    def known(self, name: PartName, path: str) -> PartRecord | None:
        """What the record says about a part; None if there is no record of it, or if it is damaged.  Raises OSError."""
        try:
            return self._records[self.load(name, path)].get(name.path)
        except ValueError:
            return None  # `problem` reports it

    def load(self, name: PartName, path: str) -> str:
        """Read the record of a part, if it is not known yet; returns its path.  Raises OSError, ValueError."""
        root = path[: -len(name.path)] if path.endswith(name.path) else ""
        record = join(root, HIDDEN, name.uuid, f"lane-{name.lane:03d}", f"{name.first:016d}-{name.end:016d}.json")
        with self._locks[record]:
            if record not in self._records:
                files = {}
                try:
                    for one in read_record(record, name.uuid, name.lane)["files"]:
                        files[str(one["path"])] = _part_record(one)
                except FileNotFoundError:
                    pass  # partitions that were copied without the records
                self._records[record] = files
        return record
