"""--engine: who computes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from confluo_tools.cli.progress import Progress

if TYPE_CHECKING:
    from confluo_tools.formats.reader import Reader


def on_engine(reader: Reader, name: str | None, limit: int | None = None) -> Reader:
    """The input with the engine ``name``; as it is for None.  ``limit``: no more rows are wanted.

    Raises ConfluoError: no such engine, not reachable, or the input has no units.
    """
    if name is None:
        return reader
    from confluo_tools.engine.address import runner
    from confluo_tools.engine.reader import with_engine
    from confluo_tools.engine.runner import ClusterRunner

    found = runner(name)
    if isinstance(found, ClusterRunner):
        found.progress = EngineProgress(found.name)
    try:
        return with_engine(reader, found, limit)
    except BaseException:
        found.close()
        raise


def unnested(reader: Reader, names: str | None, engine: str | None) -> Reader:
    """The input with one row for each element of the lists ``names`` (--unnest); as it is for None.

    Raises UsageError.
    """
    if names is None or getattr(reader, "unnested", False):  # on the host of the log
        return reader
    from confluo_tools.multilog.query.unnested import UnnestedReader, names_of

    kind = UnnestedReader
    if engine is not None:
        from confluo_tools.engine.unnest_partial import EngineUnnestedReader as kind
    return kind(reader, names_of(names), warn=reader._warn)


class EngineProgress:
    """A progress line for the tasks of a cluster, from what the cluster reports."""

    def __init__(self, label: str) -> None:
        self._label = label
        self._line: Progress | None = None

    def __call__(self, done: int, total: int) -> None:
        """``done`` tasks of ``total`` are done."""
        if self._line is None or self._line.total != total:
            self._line = Progress(self._label, total, "tasks")
            self._line.__enter__()
        self._line.update(done)
        if done >= total:
            self._line.__exit__(None, None, None)
            self._line = None


def engine_without_follow(name: str | None, follow: bool) -> None:
    """Raises UsageError for an engine that would have to wait for records."""
    if name is not None and follow:
        from confluo_tools.errors import UsageError

        raise UsageError("reads what is there, not what arrives", where="--engine", hint="leave --follow out")
