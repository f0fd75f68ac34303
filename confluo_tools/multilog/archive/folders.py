"""Folders of an archive: which parts there are, and which of them a question needs.

A path is that of an archive, or of one host, day or hour of it: archive/host=NAME/date=2026-11-20/hour=13.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from confluo_tools.expr import leaves, zones
from confluo_tools.multilog.archive import parquet_parts
from confluo_tools.multilog.archive.open_ahead import PartFile
from confluo_tools.multilog.archive.parquet_parts import HOUR, PartName
from confluo_tools.multilog.archive.part_check import HIDDEN
from confluo_tools.multilog.archive.path_fields import PathColumns
from confluo_tools.multilog.archive.storage import Storage, join, storage
from confluo_tools.objects.address import is_url

DAY = 24 * HOUR
MANY_NAMES = 200  # in a folder: more than one system call lists them
TRIES = 20
_LEVELS = (parquet_parts.host_of, parquet_parts.day_of, parquet_parts.hour_of)


class ArchiveFolder(NamedTuple):
    """An archive, or a partition of it: the names of its folders below ``root``, for host, date and hour."""

    root: str
    names: tuple[str, ...] = ()

    @classmethod
    def of(cls, path: str) -> ArchiveFolder:
        """The archive and the partition that a path names."""
        if is_url(path):
            text = path.rstrip("/")
        else:
            text = os.path.normpath(path)
            if not parquet_parts.host_of(os.path.basename(text)):
                text = os.path.abspath(text)  # a relative path may begin within the archive
            elif "/" not in text:
                text = f"./{text}"
        for n in (3, 2, 1):
            head, *names = text.rsplit("/", n)
            if len(names) == n and all(of(name) is not None for of, name in zip(_LEVELS, names, strict=False)):
                return cls(head or "/", tuple(names))
        return cls(path)


class _Listing:
    """Names in the folders below an archive, limited to a partition."""

    def __init__(self, path: str, files: Storage) -> None:
        self.root, self._given = ArchiveFolder.of(path)
        self._files = files

    def names(self, level: int, folder: str) -> list[str]:
        """The folders of a level (0: hosts, 1: days, 2: hours) in ``folder``."""
        return [self._given[level]] if level < len(self._given) else self._files.names(folder)

    def parts(self, folder: str) -> list[str]:
        """The names in the folder of an hour, at one instant."""
        names = self._files.names(folder)
        for _ in range(TRIES):
            if len(names) < MANY_NAMES or is_url(folder):
                break
            before, names = names, self._files.names(folder)
            if set(before) == set(names):  # no part was merged meanwhile
                break
        return sorted(names)


def find_parts(
    path: str,
    tree: leaves.Tree,
    time: int,
    hosts: Iterable[str] | None = None,
    files: Storage | None = None,
    fields: PathColumns | None = None,
) -> Iterator[PartFile]:
    """The parts of the archive at ``path`` that may contain rows for which ``tree`` holds, by host and hour.

    ``time``: number of the time column; ``hosts``: only these hosts; ``files``: of this archive, if it is open;
    ``fields``: the columns that have the host and the date.
    """
    files = files or storage(path, listed=True)
    listing = _Listing(path, files)

    def possible(host: str, start: int, length: int) -> bool:
        return may_hold(tree, time, start, start + length - 1, fields, host)

    for above in sorted(listing.names(0, listing.root)):
        host = parquet_parts.host_of(above)
        if host is None or (hosts is not None and host not in hosts):
            continue
        inside = join(listing.root, above)
        days = [
            (day, join(inside, n)) for n in listing.names(1, inside) if (day := parquet_parts.day_of(n)) is not None
        ]
        days = sorted(one for one in days if possible(host, one[0] * DAY, DAY))
        files.read_all([folder for _, folder in days])
        for day, folder in days:
            names = listing.names(2, folder)
            for hour, inner in sorted((h, n) for n in names if (h := parquet_parts.hour_of(n)) is not None):
                if possible(host, day * DAY + hour * HOUR, HOUR):
                    for name in listing.parts(join(folder, inner)):
                        batch = parquet_parts.batch_of(name)
                        if batch is not None:
                            place = join(folder, inner, name)
                            yield PartFile(PartName(host, day * 24 + hour, *batch), place, files.stat(place))


def may_hold(
    tree: leaves.Tree, time: int, oldest: int, newest: int, fields: PathColumns | None = None, host: str = ""
) -> bool:
    """Whether a row with a time from ``oldest`` to ``newest`` (ns) can satisfy ``tree``.

    ``fields``: the columns that have the host and the date; of rows of ``host``, and of one day, they are known.
    """

    def zone(col: int) -> tuple[Any, Any] | None:
        if col == time:
            return oldest, newest
        if fields is None or col not in fields.numbers:
            return None
        return (fields.value(col, host, oldest // DAY),) * 2

    return zones.holds(tree, zone) != zones.NONE


def hosts(path: str, files: Storage | None = None) -> list[str]:
    """Names of the hosts in the archive at ``path``."""
    listing = _Listing(path, files or storage(path))
    names = listing.names(0, listing.root)
    return sorted(host for name in names if (host := parquet_parts.host_of(name)) is not None)


def merged_into(place: PartFile, first: int, after: int) -> PartFile | None:
    """The part that has rows ``first`` to ``after`` (not included) of ``place``, which is not there any more."""
    root = place.path[: -len(place.name.path)]
    folder = join(root, os.path.dirname(place.name.path))
    for name in storage(folder).names(folder):
        batch = parquet_parts.batch_of(name)
        if batch is not None and batch[:2] == place.name.batch[:2] and batch[2] <= first and after <= batch[3]:
            return PartFile(PartName(place.name.host, place.name.hour, *batch), join(folder, name))
    return None


def part_file(root: str, path: str) -> PartFile:
    """The part at ``path``, relative to the archive ``root``.  Raises ValueError for a path that no part has."""
    words = path.split("/")
    names = parquet_parts.host_of, parquet_parts.day_of, parquet_parts.hour_of, parquet_parts.batch_of
    found = [of(word) for of, word in zip(names, words, strict=False)]
    if len(words) != 4 or None in found:
        raise ValueError(f"'{path}' is not a part of an archive")
    host, day, hour, batch = found
    return PartFile(PartName(host, day * 24 + hour, *batch), join(root, path))  # type: ignore


def archived_batches(folder: str, uuid: str, lane: int) -> set[tuple[int, int]]:
    """(first row, row after the last) of each batch of a lane in the archive at ``folder``."""
    files, own = storage(folder), join(folder, HIDDEN, uuid)
    if files.is_folder(own):
        names = [n.removesuffix(".json").split("-") for n in files.names(join(own, f"lane-{lane:03d}"))]
        return {(int(n[0]), int(n[1])) for n in names if len(n) == 2 and n[0].isdigit() and n[1].isdigit()}
    parts = (place.name for place in find_parts(folder, leaves.TRUE, -1))
    return {(part.first, part.end) for part in parts if (part.uuid, part.lane) == (uuid, lane)}


def has_rows_of(folder: str, uuid: str) -> bool:
    """Whether the archive at ``folder`` contains rows of the log ``uuid`` (hexadecimal)."""
    files = storage(folder)
    if files.is_folder(join(folder, HIDDEN)):
        return files.is_folder(join(folder, HIDDEN, uuid))
    return any(place.name.uuid == uuid for place in find_parts(folder, leaves.TRUE, -1))
