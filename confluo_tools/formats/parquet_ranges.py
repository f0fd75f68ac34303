"""Which bytes of a Parquet file in an object store are read, and when.

A reader says beforehand which row groups and columns will be read (`plan`).  They come in windows: as many row groups
as fit are read together, the next ones when the first of them is used.  Bytes of groups that were used are let go.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from confluo_tools.objects.remote_file import Range, RemoteFile

WINDOW = 16 << 20  # bytes that are read together
AHEAD_BYTES = 96 << 20  # of all files that are open but not used yet
CHEAP = 1 << 19  # bytes of a group that are read with the columns of the expression: cheaper than a second request


class _Budget:
    """Bytes that may be read before they are needed."""

    def __init__(self, most: int) -> None:
        self._free, self._lock = most, threading.Lock()

    def take(self, n: int) -> bool:
        with self._lock:
            if n > self._free:
                return False
            self._free -= n
            return True

    def give(self, n: int) -> None:
        with self._lock:
            self._free += n


_budget = _Budget(AHEAD_BYTES)


class ParquetRanges:
    """The bytes of ``file``, a Parquet file with this ``metadata`` of pyarrow."""

    def __init__(self, file: RemoteFile, metadata: Any) -> None:
        self._file, self._metadata = file, metadata
        self._columns: list[str] = []
        self._waiting: list[int] = []
        self._taken = 0

    def plan(self, groups: Sequence[int], first: Sequence[str], rest: Sequence[str]) -> None:
        """These row groups will be read in this order: columns ``first``, and ``rest`` where a row matches."""
        if not groups:
            return
        extra = sum(end - start for start, end in self._of(groups[0], rest))
        self._columns = [*first, *rest] if not first or extra <= CHEAP else list(first)
        self._waiting = list(groups)
        size = sum(end - start for one in self._window()[0] for start, end in self._of(one, self._columns))
        if _budget.take(size):
            self._taken = size
            self._fetch_window()

    def fetch(self, group: int, columns: Sequence[str]) -> None:
        """Columns of a row group are read now.  Raises OSError."""
        self._file.drop(min((start for start, _ in self._of(group, None)), default=0))
        if group in self._waiting:
            while group in self._waiting:
                self._fetch_window()
        self._file.fetch(self._of(group, columns))

    def close(self) -> None:
        _budget.give(self._taken)
        self._taken, self._waiting = 0, []

    __del__ = close  # of a file that was opened and never used

    def _window(self) -> tuple[list[int], list[int]]:
        # The row groups to read next, and those that stay.
        size, n = 0, 0
        for n, group in enumerate(self._waiting):
            size += sum(end - start for start, end in self._of(group, self._columns))
            if size > WINDOW and n:
                return self._waiting[:n], self._waiting[n:]
        return self._waiting, []

    def _fetch_window(self) -> None:
        groups, self._waiting = self._window()
        self._file.fetch([one for group in groups for one in self._of(group, self._columns)])

    def _of(self, group: int, columns: Sequence[str] | None) -> list[Range]:
        # The ranges of column chunks; None: of all columns.
        about = self._metadata.row_group(group)
        out = []
        for i in range(about.num_columns):
            chunk = about.column(i)
            if columns is None or chunk.path_in_schema.split(".")[0] in columns:
                starts = [at for at in (chunk.dictionary_page_offset, chunk.data_page_offset) if at is not None]
                out.append((min(starts), min(starts) + chunk.total_compressed_size))
        return out
