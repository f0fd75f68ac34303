"""More groups than fit into memory: roll-ups in temporary files, in sixteen shares by a hash of their keys.

A roll-up that has become too large is written out, share by share, and a new one takes its place.  At the end the
pieces of each share are merged: all rows of a group are in one share.  A share that is still too large is divided
again, by other bits of the hash.  The files have no name, so that nothing stays when the process is killed.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterable, Iterator
from typing import IO, TYPE_CHECKING

from confluo_tools.errors import ConfluoError

if TYPE_CHECKING:
    from confluo_tools.core.query.rollup import Rollup

SHARES = 16
LEVELS = 16
CHECK_FROM = 1 << 16  # groups: memory of larger roll-ups is added up only
CHECK_EVERY = 8  # times
ROW_BYTES = 512  # of the memory of a worker and of its state, if each row is a group
_SIZE = struct.Struct("<Q")


class GroupSpill:
    """Makes roll-ups by ``make`` and keeps their groups in ``limit`` bytes of memory, the others in temporary files.

    Tables double when they grow, and the result needs memory, too: a quarter of the limit is for the groups.
    ``spilled``: whether there are such files.  ``source``: of several inputs, the number of the one that is read.
    ``most_rows``: with an engine, the workers do about this many rows at a time, so that their groups fit, too.
    """

    source: int | None = None

    def __init__(self, make: Callable[[], Rollup], limit: int | None) -> None:
        """``limit``: None for half of the free memory of this host."""
        self.most_rows = None if limit is None else max(limit // ROW_BYTES, 1)
        self.limit = free_memory() // 2 if limit is None else limit
        self._make, self.budget = make, self.limit // 4
        self._shares: _Shares | None = None
        self._calls = 0
        self._spans: list[tuple[int, int]] = []

    def __call__(self) -> Rollup:
        """An empty roll-up."""
        return self._make()

    @property
    def spilled(self) -> bool:
        return self._shares is not None

    def keep(self, rollup: Rollup) -> Rollup:
        """The roll-up to go on with: ``rollup``, or an empty one after it was written out.  Raises ConfluoError."""
        self._calls += 1
        if len(rollup) > CHECK_FROM and self._calls % CHECK_EVERY:
            return rollup
        if not self.divisible(rollup):
            return rollup
        if self._shares is None:
            self._shares = _Shares(self, int.from_bytes(os.urandom(8), "little"), 0)
        if self.source is not None:
            rollup.rank(self.source)
        self._add(rollup)
        return self._make()

    def divisible(self, rollup: Rollup) -> bool:
        """Whether a roll-up is too large and has several groups.  Raises ConfluoError for one that is one group."""
        memory = rollup.memory
        if memory <= self.budget:
            return False
        if rollup.keys and len(rollup) > 1:
            return True
        if memory > self.limit:
            self.too_large()
        return False

    def too_large(self) -> None:
        """Raises ConfluoError."""
        size = f"{self.limit >> 20} MiB" if self.limit >= 1 << 20 else f"{self.limit >> 10} KiB"
        what = f"the values of one group need more than {size} of memory"
        raise ConfluoError(what, hint="count with distinct~, group by more keys, or raise --memory-limit")

    def _add(self, rollup: Rollup) -> None:
        assert self._shares is not None
        if rollup.span is not None:
            self._spans.append(rollup.span)
        self._shares.add(rollup)

    def rollups(self, rest: Rollup) -> Iterator[Rollup]:
        """Roll-ups with all groups, each group in one; ``rest``: the one that is in memory."""
        assert self._shares is not None
        self._add(rest)
        yield from self._shares.rollups()

    @property
    def span(self) -> tuple[int, int] | None:
        """The first and last time of all rows, None if nothing needs it; known when `rollups` has begun."""
        return (min(a for a, _ in self._spans), max(b for _, b in self._spans)) if self._spans else None


class _Shares:
    """The shares of roll-ups by the bits of ``level``."""

    def __init__(self, spill: GroupSpill, seed: int, level: int) -> None:
        self._spill, self._seed, self._level = spill, seed, level
        self._files = [temporary_file() for _ in range(SHARES)]

    def add(self, rollup: Rollup) -> None:
        from confluo_tools.core.query.rollup_codec import dump

        shares = rollup.shares(self._seed, self._level)
        for number, file in enumerate(self._files):
            part = self._spill()
            part.merge_share(rollup, shares, number)
            if len(part):
                data = dump(part)
                write(file, _SIZE.pack(len(data)) + data)

    def rollups(self) -> Iterator[Rollup]:
        from confluo_tools.core.query.rollup_codec import load

        for file in self._files:
            deeper: _Shares | None = None
            whole = self._spill()
            with file:
                file.seek(0)
                while head := file.read(_SIZE.size):
                    part = self._spill()
                    load(part, file.read(_SIZE.unpack(head)[0]))
                    whole.merge(part)
                    if self._spill.divisible(whole):
                        if self._level + 1 == LEVELS:
                            self._spill.too_large()
                        deeper = deeper or _Shares(self._spill, self._seed, self._level + 1)
                        deeper.add(whole)
                        whole = self._spill()
            if deeper is not None:
                deeper.add(whole)
                yield from deeper.rollups()
            elif len(whole):
                yield whole


def free_memory() -> int:
    """Bytes of memory that are free, on this host and in this control group."""
    found = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for path, read in (("/proc/meminfo", _available), ("/proc/self/cgroup", _control_group)):
        try:
            with open(path) as file:
                found += read(file)
        except (OSError, ValueError, IndexError, StopIteration):
            continue
    return max(min(found), 64 << 20)


def _available(lines: Iterable[str]) -> list[int]:
    return [int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:")]


def _control_group(lines: Iterable[str]) -> list[int]:
    folder = next("/sys/fs/cgroup" + line[3:].strip() for line in lines if line.startswith("0::"))
    with open(f"{folder}/memory.max") as limit, open(f"{folder}/memory.current") as used:
        return [int(limit.read()) - int(used.read())]  # "max" raises ValueError


def temporary_file() -> IO[bytes]:
    """A file without a name, below $TMPDIR.  Raises ConfluoError."""
    from tempfile import TemporaryFile

    try:
        return TemporaryFile()
    except OSError as e:
        raise _no_room(e) from None


def write(file: IO[bytes], data: bytes) -> None:
    """Write to a temporary file.  Raises ConfluoError."""
    try:
        file.write(data)
        file.flush()
    except OSError as e:
        raise _no_room(e) from None


def _no_room(e: OSError) -> ConfluoError:
    from tempfile import gettempdir

    hint = "set TMPDIR to a folder with more room, or raise --memory-limit"
    return ConfluoError(f"groups cannot be written: {e.strerror or e}", where=gettempdir(), hint=hint)
