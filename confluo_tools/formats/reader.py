"""What every input looks like to a command: a schema, and blocks of rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from confluo_tools.core.block import Block
    from confluo_tools.schema import Schema

Warn = Callable[[str], None]


class Reader:
    """Rows of one input, block by block.  Iterating once reads it; a block stays valid after the next one.

    ``schema`` of the rows; ``metadata`` that came with them (``confluo:host`` and the like); ``format`` is
    the name of what was read; ``rows`` counts those handed out.  ``warn`` is told, in words, of what is wrong
    but not fatal.
    """

    format = ""
    schema: Schema

    def __init__(self, name: str, warn: Warn | None = None) -> None:
        self.name = name
        self.metadata: dict[str, str] = {}
        self.rows = 0
        self._warn = warn

    def warn(self, what: str) -> None:
        if self._warn is not None:
            self._warn(f"{self.name}: {what}")

    def blocks(self) -> Iterator[Block]:
        raise NotImplementedError

    def __iter__(self) -> Iterator[Block]:
        for block in self.blocks():
            self.rows += block.rows
            yield block

    def on_idle(self, call: Callable[[], None]) -> None:
        """Have ``call`` called before every wait for more input."""

    def close(self) -> None:
        pass

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *args: object) -> None:
        self.close()
