"""Where an archive is: in a folder of this host, or in an object store.  Both have the same methods.

A path is that of a file or folder here, or a URL.  Problems of one file are OSErrors, as everywhere.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from confluo_tools.core.base.log_file import open_log_file
from confluo_tools.core.multilog.control import fault
from confluo_tools.multilog.atomic_file import replace
from confluo_tools.multilog.create import sync_folder
from confluo_tools.multilog.retain import list_folder
from confluo_tools.objects.address import is_url

if TYPE_CHECKING:
    from confluo_tools.objects.remote_file import RemoteFile
    from confluo_tools.objects.store import ObjectStat

TRIES = 20


def join(folder: str, *names: str) -> str:
    """The path of something in a folder."""
    return "/".join([folder.rstrip("/"), *names]) if is_url(folder) else os.path.join(folder, *names)


def real_path(path: str) -> str:
    """The path without links; a URL as it is, without slashes at the end."""
    return path.rstrip("/") if is_url(path) else os.path.realpath(path)


class DiskFile:
    """A file of this host, open for reading.  Raises OSError."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._fd = open_log_file(path)
        self.size = os.fstat(self._fd).st_size

    def end(self, n: int) -> bytes:
        """The last ``n`` bytes."""
        return os.pread(self._fd, n, max(self.size - n, 0))

    def close(self) -> None:
        os.close(self._fd)


class DiskStorage:
    """Files of this host."""

    def names(self, folder: str) -> list[str]:
        """Names in a folder, [] if it does not exist."""
        return list_folder(folder)

    def read_all(self, folders: Iterable[str]) -> None:
        """Names in these folders and below them will be read."""

    def stat(self, path: str) -> ObjectStat | None:
        """Size and tag of a file, if they are known without a look at it."""
        return None

    def is_folder(self, folder: str) -> bool:
        return os.path.isdir(folder)

    def read(self, path: str, most: int) -> bytes:
        """The first ``most`` bytes of a file.  Raises OSError."""
        with open(open_log_file(path), "rb") as f:
            return f.read(most)

    def size(self, path: str) -> int:
        return os.stat(path).st_size

    def write(self, path: str, data: memoryview) -> None:
        """Write a file; its bytes are on the disk, and will be read from there."""
        with open(path, "wb", buffering=0, opener=open_log_file) as file:
            at = 0
            while at < len(data):
                at += file.write(data[at:])
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

    def replace(self, path: str, data: bytes) -> None:
        """Write a small file, whole or not at all."""
        os.makedirs(os.path.dirname(path), exist_ok=True)
        replace(path, data, sync=True)

    def move(self, path: str, to: str) -> None:
        for _ in range(TRIES):
            os.makedirs(os.path.dirname(to), exist_ok=True)
            with suppress(FileNotFoundError):  # retention removed the folder, which was empty
                os.rename(path, to)
                return
        os.rename(path, to)

    def remove(self, path: str) -> None:
        """Remove a file that may be missing."""
        with suppress(FileNotFoundError):
            os.unlink(path)

    def remove_empty(self, root: str, folders: Iterable[str]) -> None:
        """Remove folders, relative to ``root``, and those above them, if they are empty."""
        for folder in folders:
            with suppress(OSError):  # it has other files
                while folder:
                    os.rmdir(os.path.join(root, folder))
                    folder = os.path.dirname(folder)

    def sync(self, folders: Sequence[str]) -> None:
        """The names in these folders reach the disk."""
        for folder in folders:
            sync_folder(folder)

    def lock(self, folder: str, log: str) -> int:
        """A lock for the archive's ``folder`` of one log, held until the descriptor is closed.

        Raises BlockingIOError if another process has it.
        """
        os.makedirs(folder, exist_ok=True)
        return _locked(open_log_file(os.path.join(folder, "lock"), os.O_CREAT | os.O_RDWR))

    def make_folder(self, folder: str) -> None:
        os.makedirs(folder, exist_ok=True)


class ObjectStorage:
    """Objects.  Folders are made by the names in them, and a name is moved by a copy within the store.

    ``listed``: folders are listed once (a reader); otherwise again each time (a writer).
    """

    def __init__(self, url: str, *, listed: bool = False) -> None:
        from confluo_tools.objects.listing import FolderListing

        partition = url.rstrip("/").rpartition("/")[2].startswith(("host=", "date=", "hour="))
        self._listing = FolderListing(url, "" if partition else "host") if listed else None

    def names(self, folder: str) -> list[str]:
        from confluo_tools.objects.listing import FolderListing

        return (self._listing or FolderListing(folder)).names(folder)

    def read_all(self, folders: Iterable[str]) -> None:
        if self._listing is not None:
            self._listing.read_all(list(folders))

    def stat(self, path: str) -> ObjectStat | None:
        return None if self._listing is None else self._listing.stat(path)

    def is_folder(self, folder: str) -> bool:
        from confluo_tools.objects.store import bucket

        store, key = bucket(folder)
        return next(store.pages(key), None) is not None

    def read(self, path: str, most: int) -> bytes:
        from confluo_tools.objects.store import bucket

        store, key = bucket(path)
        return store.first(key, most)

    def size(self, path: str) -> int:
        from confluo_tools.objects.store import bucket

        store, key = bucket(path)
        return store.stat(key).size

    def write(self, path: str, data: memoryview | bytes) -> None:
        from confluo_tools.objects.store import bucket

        store, key = bucket(path)
        store.put(key, bytes(data))

    def replace(self, path: str, data: bytes) -> None:
        self.write(path, data)

    def move(self, path: str, to: str) -> None:
        from confluo_tools.objects.store import bucket

        store, key = bucket(path)
        _, target = bucket(to)
        store.copy(key, target)
        fault("archive-copied")
        store.delete(key)

    def remove(self, path: str) -> None:
        from confluo_tools.objects.store import bucket

        store, key = bucket(path)
        store.delete(key)

    def remove_empty(self, root: str, folders: Iterable[str]) -> None:
        """A store has no folders."""

    def sync(self, folders: Sequence[str]) -> None:
        """An answer of the store says that the object is safe."""

    def lock(self, folder: str, log: str) -> int:
        """Stores have no locks; the log is on this host, and so is every other process that archives it."""
        return _locked(os.open(log, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))

    def make_folder(self, folder: str) -> None:
        pass


Storage = DiskStorage | ObjectStorage


def storage(path: str, *, listed: bool = False) -> Storage:
    """Of the archive at ``path``.  ``listed``: its names are read once."""
    return ObjectStorage(path, listed=listed) if is_url(path) else DiskStorage()


def open_file(path: str, stat: ObjectStat | None = None) -> DiskFile | RemoteFile:
    """A file or object; ``stat``: what a list said of it."""
    if not is_url(path):
        return DiskFile(path)
    from confluo_tools.objects.remote_file import RemoteFile as Make

    return Make(path, stat)


def request_early(path: str, load: Callable[..., object], *of: object) -> None:
    """Begin to ``load`` something of a store, while other requests are made; its errors come when it is used."""
    if is_url(path):
        from confluo_tools.objects.store import bucket

        bucket(path)[0].threads.submit(load, *of)


def _locked(fd: int) -> int:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BaseException:
        os.close(fd)
        raise
    return fd
