"""Rows as they come."""

from __future__ import annotations

from typing import TYPE_CHECKING

from confluo_tools.api.answer import Answer, Run, run_of

if TYPE_CHECKING:
    from confluo_tools.api.source import Source
    from confluo_tools.formats.reader import Reader


class Follower(Answer):
    """The rows of an input that grows, once: a batch for each piece that was written.  Made by `Source.follow`.

    Iterating waits for the next rows, until `stop` is called, also from another thread, or the time range ends.
    """

    _stopped = False

    @classmethod
    def of(
        cls, source: Source, expr: str, span: tuple[int | None, int | None], fields: str | None, readable: bool
    ) -> Follower:
        """The rows of ``source`` for which ``expr`` holds, from now on those that come.  Raises ConfluoError."""
        from confluo_tools.inputs.named_fields import located
        from confluo_tools.inputs.selection import Selection, compile_expr
        from confluo_tools.schema.choose import choose_fields

        reader: Reader = source._follow(span[1])
        shown = located(reader, source._databases, source._places(expr, fields))
        selection = Selection(shown, compile_expr(expr, shown, span, None))
        names = None if fields is None else choose_fields(fields, selection.schema)
        if span[0] is not None:
            reader.skip_before(span[0])

        run = run_of(reader, selection.schema, names, selection.selected(names, by_time=False))
        found = cls(run, _once, readable=readable, gather=False)
        reader.stop_when(lambda: found._stopped)
        return found

    def stop(self) -> None:
        """End the iteration, at the latest when the next rows come."""
        self._stopped = True


def _once() -> Run:
    from confluo_tools.errors import UsageError

    raise UsageError("the rows of a follower come once", hint="follow again")
