"""--engine: who computes."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from confluo_tools.formats.reader import Reader


def on_engine(reader: Reader, name: str | None) -> Reader:
    """The input with the engine ``name``; as it is for None.  Raises UsageError."""
    if name is None:
        return reader
    from confluo_tools.engine.address import runner
    from confluo_tools.engine.reader import with_engine

    return with_engine(reader, runner(name))
