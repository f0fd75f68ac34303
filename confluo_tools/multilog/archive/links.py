"""The archives of the older rows of a log, listed in a file in its folder."""

from __future__ import annotations

import json
import os
from typing import NamedTuple

from confluo_tools.core.base.log_file import open_log_file
from confluo_tools.core.multilog.control import crc
from confluo_tools.errors import StoreError
from confluo_tools.multilog.archive.part_check import HIDDEN
from confluo_tools.multilog.archive.storage import join, real_path, storage
from confluo_tools.multilog.atomic_file import replace
from confluo_tools.multilog.log import Log
from confluo_tools.objects.address import READ_ONLY, is_url, parse

ARCHIVES = "archives"  # file in the folder of a log that lists the archives of its older rows
LINKS_HEAD = "# Where confluo-archive moved rows of this MultiLog: relative path, absolute path, their times in ns."
LINKS_CHECK = "# crc32c of the lines above: "


class LinkedArchive(NamedTuple):
    """An archive linked in a log: its path, relative to the log and absolute, and the times (ns) of its rows."""

    relative: str
    absolute: str
    oldest: int
    newest: int

    def path(self, log: Log) -> str | None:
        """The path of the archive, if it exists and contains rows of the log, else None.

        Raises ConfluoError: its store cannot be used.
        """
        if is_url(self.absolute):
            if parse(self.absolute).scheme in READ_ONLY:
                return None  # this program never writes such a link
            found = storage(self.absolute).is_folder(join(self.absolute, HIDDEN, log.uuid.hex()))
            return self.absolute if found else None
        for path in (os.path.normpath(os.path.join(os.path.realpath(log.path), self.relative)), self.absolute):
            if os.path.isdir(os.path.join(path, HIDDEN, log.uuid.hex())):
                return path
        return None


def link_archive(log: Log, archive: str, oldest: int, newest: int) -> None:
    """Record in ``log`` that rows from ``oldest`` to ``newest`` (ns) are in ``archive``.  Raises OSError."""
    here, there = os.path.realpath(log.path), real_path(archive)
    entry = LinkedArchive(there if is_url(there) else os.path.relpath(there, here), there, oldest, newest)
    entries, problem = read_links(log.path)
    if problem:
        hint = "remove it, and name the archive as an input"
        raise StoreError(problem, where=os.path.join(log.path, ARCHIVES), hint=hint)
    for i, known in enumerate(entries):
        if known[:2] == entry[:2]:
            entries[i] = entry._replace(oldest=min(oldest, known.oldest), newest=max(newest, known.newest))
            if entries[i] == known:
                return
            break
    else:
        entries.append(entry)
    text = "\n".join([LINKS_HEAD, *map(json.dumps, entries)]) + "\n"
    text += f"{LINKS_CHECK}{crc(text.encode()):08x}\n"
    replace(os.path.join(log.path, ARCHIVES), text.encode(), sync=True)


def read_links(log_path: str) -> tuple[list[LinkedArchive], str]:
    """The archives linked in a log, and what is wrong with the file that lists them ('' if nothing is).

    A file without checksum is of an earlier program.
    """
    try:
        with open(os.path.join(log_path, ARCHIVES), "rb", opener=open_log_file) as f:
            data = f.read(1 << 20)
    except FileNotFoundError:
        return [], ""
    except OSError as e:
        return [], f"cannot be read: {e.strerror}"
    found, problem = [], ""
    head, mark, check = data.rpartition(LINKS_CHECK.encode())
    if mark and check != f"{crc(head):08x}\n".encode():
        problem = "is damaged: wrong checksum"
    for line in (head if mark else data).decode("utf-8", "replace").splitlines():
        try:
            if line == LINKS_HEAD:
                continue
            relative, absolute, oldest, newest = json.loads(line)
            if not isinstance(relative, str) or not isinstance(absolute, str) or "\0" in relative + absolute:
                raise ValueError(line)
            found.append(LinkedArchive(relative, absolute, int(oldest), int(newest)))
        except (ValueError, TypeError, RecursionError):
            problem = problem or "is damaged: a line is not an archive"
    if not problem and not data.startswith(f"{LINKS_HEAD}\n".encode()):
        problem = "is damaged: the first line is missing"
    return found, f"{problem}; rows that were moved to an archive may be missing" if problem else ""


def linked_archives(log: Log) -> list[LinkedArchive]:
    """The archives linked in ``log``.  What cannot be read is noted as damage of the log."""
    found, problem = read_links(log.path)
    if not problem:
        return found
    path = os.path.join(log.path, ARCHIVES)
    if (path, None, problem) not in log.damage:
        log.damage.append((path, None, problem))
    return [entry._replace(oldest=-(1 << 63), newest=(1 << 63) - 1) for entry in found]  # its times may be wrong
