"""The folders of a store, each read once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice

from confluo_tools.objects.faults import ObjectStoreError
from confluo_tools.objects.store import PAGE, ObjectStat, bucket


class FolderListing:
    """Names in the folders below ``url``.

    One request lists up to `PAGE` objects, whatever their folders: often all of them.  If there are more, folders are
    listed one by one as they are needed, so that those that a question rules out cost nothing.
    ``after``: only objects with a greater path below the URL.  Raises ObjectStoreError.
    """

    def __init__(self, url: str, after: str = "") -> None:
        self.url = url.rstrip("/")
        self._bucket, key = bucket(url)
        self._top = key.strip("/")
        self._names: dict[str, list[str]] = {}
        self._stats: dict[str, ObjectStat] = {}
        self._whole = self._below(self._top, f"{self._top}/{after}".lstrip("/") if after else "", PAGE)
        if not self._whole:
            self._names.clear()

    def names(self, url: str) -> list[str]:
        """Names in the folder at ``url``, [] if there is none."""
        folder = self._key(url)
        if not self._whole and folder not in self._names:
            self._children(folder)
        return self._names.get(folder, [])

    def stat(self, url: str) -> ObjectStat | None:
        """Size and tag of an object that was listed."""
        return self._stats.get(self._key(url))

    def read_all(self, urls: Sequence[str]) -> None:
        """List all that is below these folders, several at the same time."""
        if not self._whole:
            folders = [f for url in urls if (f := self._key(url)) not in self._names]
            list(self._bucket.threads.map(self._below, folders))

    def _key(self, url: str) -> str:
        return url.rstrip("/")[len(self._bucket.root) + 1 :]

    def _below(self, folder: str, after: str = "", most: int = 0) -> bool:
        # Whether these were all objects below the folder; with `most` only if they are fewer.
        names: dict[str, dict[str, None]] = {folder: {}}
        count = 0
        with self._permitted():
            for page in islice(self._bucket.pages(folder, after), 1 if most else None):
                count += len(page)
                for key, stat in page:
                    self._stats[key] = stat
                    while key != folder:
                        above, _, name = key.rpartition("/")
                        names.setdefault(above, {})[name] = None
                        key = above
        self._names |= {above: list(found) for above, found in names.items()}
        return not most or count < most

    def _children(self, folder: str) -> None:
        with self._permitted():
            folders, objects = self._bucket.children(folder)
        self._stats.update(objects)
        self._names[folder] = [key.rpartition("/")[2] for key in [*folders, *(key for key, _ in objects)]]

    @contextmanager
    def _permitted(self) -> Iterator[None]:
        try:
            yield
        except OSError as e:
            raise ObjectStoreError(f"its objects cannot be listed: {e.strerror}", where=self.url) from None
