"""Detection of an input's format: by its first bytes, also on a pipe, or by the files in a folder."""

from __future__ import annotations

import os
import stat

from confluo_tools.formats.registry import BOM, FORMATS
from confluo_tools.objects.address import is_folder_url, is_url

PEEK = 64  # bytes of an input that decide its format


def is_multilog(path: str) -> bool:
    """Whether the path is a folder that holds a MultiLog, or the remains of one."""
    return path != "-" and any(os.path.exists(os.path.join(path, name)) for name in ("control", "multilog.yaml"))


def is_archive(path: str) -> bool:
    """Whether the path is a folder that confluo-archive filled, a copy of some partitions of one, or a partition.

    Of a URL its form decides: see `is_folder_url`.
    """
    if is_url(path):
        return is_folder_url(path)
    if path == "-" or is_multilog(path):
        return False
    try:
        with os.scandir(path) as entries:
            if any(entry.name == ".confluo" or entry.name.startswith("host=") for entry in entries):
                return True
        return any(name.startswith("host=") for name in os.path.abspath(path).split("/")[-3:])
    except OSError:
        return False


def is_folder(path: str) -> bool:
    """Whether the path is a folder, or a link to one, or the URL of a folder."""
    if is_url(path):
        return is_folder_url(path)
    try:
        return path != "-" and stat.S_ISDIR(os.stat(path).st_mode)
    except OSError:
        return False


def detect(head: bytes) -> str:
    """The format of an input that begins with ``head`` (decompressed, `PEEK` bytes or all of it); '' if unknown."""
    head = head.removeprefix(BOM)
    for row in FORMATS:
        if head.startswith(row.magic):
            return row.name
    for row in FORMATS:
        if row.looks_like is not None and row.looks_like(head):
            return row.name
    return ""
