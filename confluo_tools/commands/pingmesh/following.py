"""Probes as they come: what sla, blackholes and drops share to judge each window when it is over, and once."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from confluo_tools import cli
from confluo_tools.cli.following import Input, one_log
from confluo_tools.cli.log_output import LogOutput

if TYPE_CHECKING:
    from confluo_tools.core.block import Block, Picks
    from confluo_tools.remote.wish import Wish
    from confluo_tools.schema import Schema
    from confluo_tools.store.pairs import Pass
    from confluo_tools.store.progress import Progress

T = TypeVar("T")

SECOND = 1_000_000_000
FIRST, LAST = -(1 << 63), (1 << 63) - 1
SAVE = 1.0  # s between two states that are written while windows follow each other


class Windows(Protocol):
    """Windows that are open: a `store.mesh.Mesh`, or `store.pairs.Open`."""

    window: int

    @property
    def newest(self) -> int: ...
    def update(self, block: Block, picks: Picks | None = None) -> None: ...
    def windows(self) -> list[int]: ...
    def probes_of(self, window: int) -> int: ...
    def pop(self, window: int) -> None: ...


class Follower:
    """Probes of one log or pipe as they come: windows are handed to ``done`` when they are over.

    A window is over when the clock, or a probe, is ``lateness`` beyond its end; probes of windows that were handed
    over are counted in ``late``.  ``after``: windows that end up to then were told by an earlier run.
    """

    def __init__(
        self, mesh: Windows, lateness: int, done: Callable[[int], None], idle: Callable[[], None],
        after: int | None = None,
    ) -> None:  # fmt: skip
        self.mesh, self.lateness, self.done, self.idle = mesh, lateness, done, idle
        self.late = 0
        self.mark = LAST
        self.after = after
        self._closed = FIRST if after is None else after - mesh.window

    def add(self, block: Block, select: Callable[[Block], Any]) -> None:
        """Take in a block."""
        picks = select(block)
        if not len(picks):
            return
        self.mesh.update(block, picks)
        for window in self.mesh.windows():
            if window > self._closed:
                break
            self.late += self.mesh.probes_of(window)
            self.mesh.pop(window)
        self.until(min(self.mesh.newest, self.mark))

    def due(self) -> int | None:
        """When the first window is over by the clock."""
        windows = self.mesh.windows()
        return windows[0] + self.mesh.window + self.lateness if windows else None

    def until(self, now: int) -> None:
        """Hand over the windows whose end, and the lateness, are not after ``now``."""
        for window in self.mesh.windows():
            if window + self.mesh.window + self.lateness > now:
                break
            self.hand_over(window)
        length = self.mesh.window
        self._closed = max(self._closed, (now - self.lateness) // length * length - length)

    def hand_over(self, window: int) -> None:
        self.done(window)
        self.mesh.pop(window)
        self._closed = max(self._closed, window)

    def finish(self) -> None:
        """The input has ended: the windows that are still open."""
        for window in self.mesh.windows():
            self.hand_over(window)


def length_of(window: int) -> str:
    """As it is written on a command line, '' for none."""
    from confluo_tools.units import format_duration

    return format_duration(window) if window else ""


class Source(Input):
    """The probes: of any input, or of a log as it grows.  ``schema``: of text that names none."""

    def __init__(
        self, inputs: Sequence[str], ins: cli.InputOptions, follow: bool, *, wish: Wish | None = None,
        schema: Schema | None = None,
    ) -> None:  # fmt: skip
        from confluo_tools.commands.pingmesh.scopes import check_kind

        self.follow, self.stopped, self.late = follow, 0, 0
        self.metadata: dict[str, str] = {}
        self.filters: Mapping[str, str] | None
        if follow and one_log(inputs):
            from confluo_tools import store
            from confluo_tools.store.rules import named_filters

            self.log = store.open(inputs[0], readonly=True)
            self.schema, self.name, self.filters = self.log.schema, inputs[0], named_filters(self.log)
        else:
            reader = self.reader = ins.open(inputs, schema=schema, wish=wish)
            self.schema, self.name, self.filters = reader.schema, reader.name, reader.filters
            self.metadata = reader.metadata
        try:
            check_kind(self.schema, self.name)
        except BaseException:
            self.close()
            raise

    def run(
        self, follower: Follower, select: Callable[[Block], Any], counts: Callable[[], str], *, finish: bool
    ) -> None:
        """Follow to the end of a pipe, or until a signal.

        ``finish``: then judge windows that are still open, as far as they are; else somebody will go on with them.
        """
        from confluo_tools.cli import following

        with following.Ending() as ending:
            with cli.signals(ending, counts=counts):
                if self.reader is not None:
                    blocks = following.read(self.reader, follower, ending)
                else:
                    blocks = following.tail(self.log.path, follower, ending, follower.after, self._gone)
                for block in blocks:
                    follower.add(block, select)
                if finish or not ending.number:
                    follower.finish()
            self.stopped = ending.number
        self.late = follower.late
        if self.late and not cli.state.quiet:
            cli.note(f"{self.late} probes came after their window was over", hint="--lateness TIME waits longer")

    def _gone(self, rows: int) -> None:
        if not cli.state.quiet:
            cli.note(f"{rows:,} records were removed before they were seen", where=self.name,
                     hint="keep more of the log")  # fmt: skip


class Ledger:
    """Rows of windows into the output, each once: those of a MultiLog also over restarts.

    ``asked``: options that the judgements depend on; ``apart``: columns in which a row that is judged again may
    differ; ``memory``: what is to be known to go on, from `restored` on, as JSON has it.
    """

    def __init__(
        self, out: LogOutput | cli.RecordOutput, stack: ExitStack, *, follow: bool, asked: Mapping[str, Any],
        apart: Sequence[str] = (), memory: Callable[[], Any] = lambda: None,
    ) -> None:  # fmt: skip
        self.out, self._memory = out, memory
        self.progress: Progress | None = None
        self._rows, self._dirty, self._saved = 0, False, 0.0
        if follow and isinstance(out, LogOutput):
            from confluo_tools.store.progress import Progress

            self.progress = Progress(out.log, asked, apart)
            stack.callback(self.progress.close)
            if self.progress.done is not None and not cli.state.quiet:
                from confluo_tools.units import format_time

                cli.note(f"windows up to {format_time(self.progress.done, 0)} are there", where=out.path)

    @property
    def keeps(self) -> bool:
        """Whether somebody can go on where we end."""
        return self.progress is not None

    @property
    def after(self) -> int | None:
        """Windows that end up to then are told."""
        return None if self.progress is None else self.progress.done

    def since(self, since: int | None) -> int | None:
        """Probes from then on are to be looked at."""
        times = [time for time in (since, self.after) if time is not None]
        return max(times, default=None)

    def restored(self) -> Any:
        """What `memory` was when the run before ended, None of the first."""
        return None if self.progress is None else self.progress.memory

    def begin(self) -> None:
        """Before the first window: a run that dies before the next state was written knows which rows are its own."""
        self._save()

    def tell(self, blocks: Iterable[Block] | Iterator[Block], end: int) -> None:
        """The rows of a window that ends at ``end``."""
        from confluo_tools.core.control import fault

        for found in blocks:
            block = found if self.progress is None else self.progress.fresh(found)
            if block.rows:
                self.out.write(block, None)
                self._rows += block.rows
        if self.progress is not None:
            fault("follow-told")
            self.progress.told(end)
            self._dirty = True
            if time.monotonic() - self._saved >= SAVE:
                self._save()

    def idle(self) -> None:
        """Nothing to do at the moment, or the end."""
        self.out.flush()
        if self._dirty:
            self._save()

    def _save(self) -> None:
        if self.progress is not None:
            self._saved = time.monotonic()
            self._dirty = not self.progress.save(self._memory(), self._rows)


def follow_pairs(
    source: Source, ledger: Ledger, ask: Callable[[Pass], Callable[[], T]],
    judge: Callable[[T, Pass], Iterable[Block]], window: int, lateness: int, where: str,
    span: tuple[int | None, int | None],
) -> None:  # fmt: skip
    """Follow pairs of servers: ``ask`` of each window's pass, ``judge`` the answer into rows."""
    from confluo_tools.store.pairs import Of, Open

    since, until = span
    of = Of(source.schema, source.name, source.filters, {})
    windows = Open(of, where, ledger.since(since), until, window, ask)
    probes = 0

    def done(start: int) -> None:
        nonlocal probes
        found, run = windows.judge(start)
        probes += run.rows
        ledger.tell(judge(found, run), start + window)

    follower = Follower(windows, lateness, done, ledger.idle, ledger.after)
    ledger.begin()
    source.run(follower, windows.select, lambda: f"{probes} probes", finish=not ledger.keeps)
    ledger.idle()
