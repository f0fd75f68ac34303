"""Checkpoint of a command that follows its input: the end of its last finished window, and which rows are new.

`follow.json` in the folder of the output log holds the end of the last window for which all rows are in the log, the
number of rows at that time, and the memory that the command needs to resume.  It is replaced atomically, from time to
time.  Rows appended after the checkpoint are read from the log itself: a command that computes those windows again
appends only the rows that are missing.  A command that is killed at any point therefore resumes without duplicate or
missing windows.  The process that follows holds `follow.lock`.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from confluo_tools.core.base.log_file import open_log_file
from confluo_tools.errors import BusyError, StoreError
from confluo_tools.multilog.atomic_file import replace
from confluo_tools.multilog.locks import lock, open_lock

if TYPE_CHECKING:
    from confluo_tools.core.block.block import Block
    from confluo_tools.multilog.log import Log

LOCK, STATE = "follow.lock", "follow.json"
FORMAT = 1
Row = tuple[bytes, ...]


class FollowCheckpoint:
    """The checkpoint of ``log``: ``done`` is the end of the last finished window in ns (None: none yet).

    ``options``: {option: value} that the rows depend on; a log made with other values is refused.  ``memory``: the
    value given to the last `save`.  ``volatile``: columns that may differ when a window is computed again.  Raises
    BusyError when another process follows into this log, StoreError.
    """

    def __init__(self, log: Log, options: Mapping[str, Any], volatile: Sequence[str] = ()) -> None:
        self.log, self.options = log, dict(options)
        self.done: int | None = None
        self.memory: Any = None
        self._layout = log.schema.layout
        widths = [self._layout.describe(i)[2] * self._layout.describe(i)[3] for i in range(self._layout.n)]
        self._widths = [(i, w) for i, w in enumerate(widths) if self._layout.names[i] not in volatile]
        self._there: Counter[Row] = Counter()  # rows of windows after `done`
        self._before: list[int] = []  # tails before these rows
        self._new = self._known = 0  # rows of this window
        self._lock = open_lock(log.path, LOCK)
        try:
            lock(
                self._lock,
                0.0,
                BusyError("another process follows into this log", where=log.path, hint="name another log with -w LOG"),
            )
            self._tails = self._begin()
        except BaseException:
            self.close()
            raise

    def _begin(self) -> list[int]:
        tails = list(self.log.version().tails)
        saved = self._saved()
        if saved is None:
            return tails  # the rows belong to other commands
        for name, value in saved["asked"].items():
            if self.options.get(name) != value:
                was = f"it was started with {name} {value}" if value else f"it was started without {name}"
                raise StoreError(f"cannot continue: {was}", where=self.log.path, hint="name another log with -w LOG")
        self.done, self.memory = saved["done"], saved["memory"]
        before = saved["tails"]
        for block in self.log.blocks():
            first = max((before[block.lane] if block.lane < len(before) else 0) - block.base, 0)
            if first < block.rows and block.check():
                self._there.update(self._rows(block, first))
        self._before = before
        return tails

    def _saved(self) -> dict[str, Any] | None:
        try:
            with open(os.path.join(self.log.path, STATE), encoding="utf-8", opener=open_log_file) as f:
                data = json.load(f)
            if data["format"] == FORMAT and data["log"] == self.log.uuid.hex() and isinstance(data["asked"], dict):
                if data["done"] is not None:
                    int(data["done"])
                return {**data, "tails": [int(n) for n in data["tails"]]}
        except (OSError, ValueError, KeyError, TypeError):
            pass  # missing or damaged
        return None

    def _rows(self, block: Block, first: int = 0) -> list[Row]:
        columns = [(bytes(block.buffer(i)), w) for i, w in self._widths]
        return [tuple(data[row * w : (row + 1) * w] for data, w in columns) for row in range(first, block.rows)]

    def new_rows(self, block: Block) -> Block:
        """The rows of ``block`` that the log does not contain yet, in the layout of the log."""
        if block.layout is not self._layout:
            block = block.project(self._layout)
        if not self._there:
            self._new += block.rows
            return block
        from confluo_tools.core.block.block import Picks

        new = []
        for number, row in enumerate(self._rows(block)):
            if self._there[row] > 0:
                self._there[row] -= 1
            else:
                new.append(number)
        self._there = +self._there
        self._new += len(new)
        self._known += block.rows - len(new)
        return block if len(new) == block.rows else block.take(Picks.of(block.rows, new))

    def commit(self, end: int) -> None:
        """Mark all windows that end at or before ``end`` as finished: their rows are in the log."""
        self.done = end if self.done is None else max(self.done, end)
        if self._new and not self._known:
            self._there.clear()  # windows finish in order: the remaining rows are not from this command
        self._new = self._known = 0

    def save(self, memory: Any, rows: int) -> bool:
        """Write the checkpoint.  ``memory``: any JSON value.  ``rows``: number of rows this process has appended.

        Returns False, and writes nothing, while a freeze delays some of the rows: the checkpoint must not run ahead.
        """
        tails = list(self.log.version().tails)
        if sum(tails) - sum(self._tails) < rows:
            return False
        data = {
            "format": FORMAT,
            "log": self.log.uuid.hex(),
            "asked": self.options,
            "done": self.done,
            "tails": self._before if self._there else tails,
            "memory": memory,
        }
        try:
            replace(os.path.join(self.log.path, STATE), json.dumps(data).encode() + b"\n", point="follow-state")
        except OSError as e:
            raise self.log.write_error(e) from None
        return True

    def close(self) -> None:
        """Release the lock."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1
