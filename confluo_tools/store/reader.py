"""A MultiLog as an input like any other: its rows at one version, lane by lane."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from confluo_tools.formats.reader import Reader, Warn
from confluo_tools.store.log import Log

if TYPE_CHECKING:
    from confluo_tools.core.block import Block


class LogReader(Reader):
    """All rows of a MultiLog at the version of its opening.  Damaged blocks are left out, with a warning."""

    format = "multilog"

    def __init__(self, path: str, *, warn: Warn | None = None) -> None:
        super().__init__(path, warn)
        self.log = Log(path, readonly=True)
        self.version = self.log.version()
        self.schema = self.log.schema

    def blocks(self) -> Iterator[Block]:
        for block in self.log.blocks(self.version):
            if block.check():
                yield block
        self.tell_damage()

    def tell_damage(self) -> None:
        """Warn of what had to be left out."""
        for path, number, reason in self.log.damage[:5]:
            if self._warn is not None:
                self._warn(f"{path}: {reason}" if number is None else f"{path}: block {number}: {reason}")
        if self._warn is not None and len(self.log.damage) > 5:
            what = f"{len(self.log.damage)} damaged parts are left out"
            self._warn(f"{self.name}: {what}; confluo-info --verify names them")

    def close(self) -> None:
        self.log.close()
