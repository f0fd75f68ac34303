"""The captures that were read into a log: LOG/captures/files.ndjson, one line for each, in the order of their numbers.

The field ``file_number`` of a packet is the number of its capture, from 0.  Several processes may append at once:
each appends its lines in one write, and the lines before them are its first number.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

from confluo_tools.core.base.log_file import open_log_file
from confluo_tools.errors import StoreError
from confluo_tools.multilog.capture_statistics import FOLDER
from confluo_tools.multilog.ownership import as_owner

FILE = "files.ndjson"
PIECE = 1 << 20  # bytes read at once
MAX_LINE = 32768  # bytes; a path has at most 4096, and none takes more than 6 here


MAX_FILES = 65536  # source captures that are shown, or looked for


def register(log: str | os.PathLike[str], names: Sequence[str], *, sync: bool = False, anonymous: bool = False) -> int:
    """Add captures to the list of ``log`` and return the number of the first one.

    ``anonymous``: without their names and that of this host.
    ``sync``: the lines survive a power failure, as the rows with their numbers do.  Raises OSError.
    """
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    paths = ["" if anonymous else name if name == "-" else os.path.abspath(name) for name in names]
    words = [os.fsencode(path).decode("utf-8", "backslashreplace") for path in paths]
    about = {"time": now, "host": "" if anonymous else os.uname().nodename}
    data = "".join(f"{json.dumps({**about, 'file': word}, ensure_ascii=False)}\n" for word in words).encode()
    folder = os.path.join(log, FOLDER)
    with as_owner(log):
        os.makedirs(folder, exist_ok=True)
        fd = open_log_file(os.path.join(folder, FILE), os.O_RDWR | os.O_APPEND | os.O_CREAT)
    try:
        left = memoryview(data)
        while left:  # more than one write only when the disk is full, and then the next one raises OSError
            left = left[os.write(fd, left) :]
        end = os.lseek(fd, 0, os.SEEK_CUR)
        if sync:
            os.fsync(fd)
        return _lines(fd, end - len(data))
    finally:
        os.close(fd)


def _lines(fd: int, end: int) -> int:
    """The line ends in the first ``end`` bytes of a file."""
    found = at = 0
    while at < end and (piece := os.pread(fd, min(PIECE, end - at), at)):
        found += piece.count(b"\n")
        at += len(piece)
    return found


def source_captures(log: str | os.PathLike[str]) -> Iterator[dict[str, Any]]:
    """Number, time, host and file of each capture, by number.  Raises StoreError when the list cannot be read."""
    path = os.path.join(log, FOLDER, FILE)
    number = 0
    try:
        with open(path, "rb", opener=open_log_file) as file:
            while line := file.readline(MAX_LINE):
                told = json.loads(line)
                yield {"number": number, **{name: str(told[name]) for name in ("time", "host", "file")}}
                number += line.endswith(b"\n")
    except FileNotFoundError:
        return
    except OSError as e:
        raise StoreError(f"cannot be read: {e.strerror}", where=path) from None
    except (ValueError, LookupError, TypeError, RecursionError):
        raise StoreError(f"line {number + 1} is damaged", where=path) from None


def files_there(log: str | os.PathLike[str]) -> list[str]:
    """The source captures of a log that this host still has, by number; '' for the others."""
    here = os.uname().nodename
    entries = islice(source_captures(log), MAX_FILES)
    return [e["file"] if e["host"] == here and os.path.isfile(e["file"]) else "" for e in entries]
