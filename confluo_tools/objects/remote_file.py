"""One object as a file for pyarrow.

Its last bytes are read first, in one request, because a Parquet file begins there.  Ranges that are wanted are read
before they are used: neighbours in one request if the gap costs less than another request, the requests at the same
time.  All requests name the tag of the object that the first one saw: if it is replaced, reading fails.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING

from confluo_tools.objects.store import ObjectStat, bucket

if TYPE_CHECKING:
    from concurrent.futures import Future

TAIL = 1 << 16  # bytes of the end that are read first
GAP = 1 << 19  # bytes that cost about as much as one more request: 10 ms at 50 MB/s
KEPT = 64  # ends of objects that a process keeps

Range = tuple[int, int]  # first byte, byte after the last

_tails: OrderedDict[str, tuple[ObjectStat, memoryview]] = OrderedDict()


class RemoteFile:
    """The object at ``url``; ``stat`` as far as a list has said it.  Raises OSError, ObjectStoreError."""

    closed = False

    def __init__(self, url: str, stat: ObjectStat | None = None) -> None:
        self.url = url
        self._bucket, self._key = bucket(url)
        self._held: list[tuple[int, memoryview]] = []  # by their first byte; without the tail
        self._at = 0
        known = _tails.get(url)
        if known is not None and (stat is None or stat == known[0]):
            self.stat, self._tail = known
            return
        if stat is not None and stat.tag:
            self.stat = stat
            self._tail = self._get((max(stat.size - TAIL, 0), stat.size)) if stat.size else memoryview(b"")
        else:
            self._tail, self.stat = self._bucket.tail(self._key, TAIL)
        if self.stat.tag:
            _tails[url] = self.stat, self._tail
            while len(_tails) > KEPT:
                _tails.popitem(last=False)

    @property
    def size(self) -> int:
        return self.stat.size

    def _get(self, one: Range) -> memoryview:
        try:
            return self._bucket.get(self._key, *one, self.stat.tag)
        except OSError:
            _tails.pop(self.url, None)  # it may have been replaced: who opens it again sees the new one
            raise

    def end(self, n: int) -> memoryview:
        """The last ``n`` bytes."""
        return self.bytes_at(max(self.size - n, 0), self.size)

    def fetch(self, ranges: Sequence[Range]) -> None:
        """Read ranges that are not held yet, and hold them."""
        start = self.size - len(self._tail)
        missing = [one for one in ranges if one[0] < start and self._find(*one) is None]
        wanted = coalesced(missing, GAP)
        found = map(self._get, wanted) if len(wanted) == 1 else self._bucket.threads.map(self._get, wanted)
        self._held += [(first, data) for (first, _), data in zip(wanted, found, strict=True)]
        self._held.sort(key=lambda one: one[0])

    def drop(self, before: int) -> None:
        """Hold no more what ends at ``before`` or earlier, apart from the end of the object."""
        self._held = [one for one in self._held if one[0] + len(one[1]) > before]

    def _find(self, start: int, end: int) -> memoryview | None:
        at = self.size - len(self._tail)
        if start >= at:
            return self._tail[start - at : end - at]
        i = bisect_right(self._held, start, key=lambda one: one[0]) - 1
        if i >= 0:
            first, data = self._held[i]
            if end <= first + len(data):
                return data[start - first : end - first]
        return None

    def bytes_at(self, start: int, end: int) -> memoryview:
        """Bytes ``start`` to ``end``: those that are held, or read now."""
        end = min(end, self.size)
        if start >= end:
            return memoryview(b"")
        found = self._find(start, end)
        return self._get((start, end)) if found is None else found

    def read_ahead(self, start: int, end: int) -> Future[memoryview]:
        """The same later."""
        return self._bucket.threads.submit(self.bytes_at, start, end)

    # -- the file that pyarrow sees

    def readable(self) -> bool:
        return True

    def writable(self) -> bool:
        return False

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = offset + (0, self._at, self.size)[whence]
        return self._at

    def read(self, n: int = -1) -> memoryview:
        data = self.bytes_at(self._at, self.size if n < 0 else self._at + n)
        self._at += len(data)
        return data

    def close(self) -> None:
        self.closed = True
        self._held = []


def coalesced(ranges: Sequence[Range], gap: int) -> list[Range]:
    """Ranges that cover ``ranges``; two with at most ``gap`` bytes between them are one."""
    out: list[Range] = []
    for start, end in sorted(ranges):
        if out and start - out[-1][1] <= gap:
            out[-1] = out[-1][0], max(out[-1][1], end)
        else:
            out.append((start, end))
    return out
