"""How far a command that follows its input has judged, kept beside the MultiLog that it writes.

`follow.json` says up to which time all windows are told, how many rows there were then, and what else the command has
to know to go on; it is written as a whole, now and then.  Rows that came after it are read from the log itself: who
judges those windows again is told which rows are there already.  So a command that was killed at any instant goes on
where it was, and tells no window twice and leaves none out.  `follow.lock` is held by the one process that follows.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from confluo_tools.errors import BusyError, StoreError
from confluo_tools.store.locks import lock
from confluo_tools.store.whole import replace

if TYPE_CHECKING:
    from confluo_tools.core.block import Block
    from confluo_tools.store.log import Log

LOCK, STATE = "follow.lock", "follow.json"
FORMAT = 1
Row = tuple[bytes, ...]


class Progress:
    """Of the judgements in ``log``: ``done`` is the end of the last window that is told (ns; None: none is).

    ``asked``: what they depend on, {option: value}; a log that was made with others is refused.  ``memory``: what
    `save` was given.  ``apart``: columns that may differ when a window is judged again.  Raises BusyError when another
    process follows into this log, StoreError.
    """

    def __init__(self, log: Log, asked: Mapping[str, Any], apart: Sequence[str] = ()) -> None:
        self.log, self.asked = log, dict(asked)
        self.done: int | None = None
        self.memory: Any = None
        self._layout = log.schema.layout
        widths = [self._layout.describe(i)[2] * self._layout.describe(i)[3] for i in range(self._layout.n)]
        self._widths = [(i, w) for i, w in enumerate(widths) if self._layout.names[i] not in apart]
        self._there: Counter[Row] = Counter()  # rows of windows that `done` does not know
        self._before: list[int] = []  # and what was there before these
        self._new = self._known = 0  # rows of this window
        self._lock = os.open(os.path.join(log.path, LOCK), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            lock(self._lock, 0.0, BusyError("somebody else follows into this log", where=log.path,
                                            hint="name another one with -w LOG"))  # fmt: skip
            self._tails = self._begin()
        except BaseException:
            self.close()
            raise

    def _begin(self) -> list[int]:
        tails = list(self.log.version().tails)
        saved = self._saved()
        if saved is None:
            return tails  # rows that others made are not ours
        for name, value in saved["asked"].items():
            if self.asked.get(name) != value:
                was = f"it was begun with {name} {value}" if value else f"it was begun without {name}"
                raise StoreError(f"cannot go on: {was}", where=self.log.path, hint="name another one with -w LOG")
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
            with open(os.path.join(self.log.path, STATE), encoding="utf-8") as f:
                data = json.load(f)
            if data["format"] == FORMAT and data["log"] == self.log.uuid.hex() and isinstance(data["asked"], dict):
                if data["done"] is not None:
                    int(data["done"])
                return {**data, "tails": [int(n) for n in data["tails"]]}
        except (OSError, ValueError, KeyError, TypeError):
            pass  # none, or half of one
        return None

    def _rows(self, block: Block, first: int = 0) -> list[Row]:
        columns = [(bytes(block.buffer(i)), w) for i, w in self._widths]
        return [tuple(data[row * w : (row + 1) * w] for data, w in columns) for row in range(first, block.rows)]

    def fresh(self, block: Block) -> Block:
        """The rows of ``block`` that are not there yet, in the layout of the log."""
        if block.layout is not self._layout:
            block = block.project(self._layout)
        if not self._there:
            self._new += block.rows
            return block
        from confluo_tools.core.block import Picks

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

    def told(self, end: int) -> None:
        """All windows that end up to ``end`` are in the log."""
        self.done = end if self.done is None else max(self.done, end)
        if self._new and not self._known:
            self._there.clear()  # windows are told in order: what is left is not ours
        self._new = self._known = 0

    def save(self, memory: Any, rows: int) -> bool:
        """Write it down; ``memory`` is whatever JSON can hold.  ``rows``: so many were appended by us.

        False: a freeze holds some of them back, and what is written here must not run ahead of them.
        """
        tails = list(self.log.version().tails)
        if sum(tails) - sum(self._tails) < rows:
            return False
        data = {"format": FORMAT, "log": self.log.uuid.hex(), "asked": self.asked, "done": self.done,
                "tails": self._before if self._there else tails, "memory": memory}  # fmt: skip
        try:
            replace(os.path.join(self.log.path, STATE), json.dumps(data).encode() + b"\n", point="follow-state")
        except OSError as e:
            raise self.log._trouble(e) from None
        return True

    def close(self) -> None:
        """Let go of the lock."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1
