"""Probe input, window by window: what sla, blackholes and drops share to judge each window once."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Protocol

from confluo_tools import cli
from confluo_tools.cli.log_output import LogOutput
from confluo_tools.inputs.follow import Input, one_log

if TYPE_CHECKING:
    from confluo_tools.core.block.block import Block, Picks
    from confluo_tools.multilog.follow_checkpoint import FollowCheckpoint
    from confluo_tools.remote.request import QueryRequest
    from confluo_tools.schema import Schema

SECOND = 1_000_000_000
FIRST, LAST = -(1 << 63), (1 << 63) - 1
CHECKPOINT_INTERVAL = 1.0  # s between two checkpoints while one window follows the other

Select = Callable[["Block"], Any]  # block -> its rows that count


class OpenWindows(Protocol):
    """Windows that are not judged yet: `probe_tally.WindowTally` or `pair_tally.OpenPairWindows`."""

    window: int

    @property
    def newest(self) -> int: ...
    @property
    def probes(self) -> int: ...
    def update(self, block: Block, picks: Picks | None = None) -> None: ...
    def windows(self) -> list[int]: ...
    def probes_of(self, window: int) -> int: ...
    def pop(self, window: int) -> None: ...


class WindowFollower:
    """Feeds blocks to ``windows`` and passes each window that is complete to ``done``.

    A window is complete when the clock, or the time of a probe, is ``lateness`` ns past its end.  Probes of windows
    that are already judged are counted in ``late``.  ``after``: an earlier run judged the windows that end by then.
    """

    def __init__(
        self,
        windows: OpenWindows,
        lateness: int,
        done: Callable[[int], None],
        idle: Callable[[], None],
        after: int | None = None,
    ) -> None:
        self.windows, self.lateness, self.done, self.idle = windows, lateness, done, idle
        self.late = 0
        self.mark = LAST
        self.after = after
        self._closed = FIRST if after is None else after - windows.window

    def add(self, block: Block, select: Select) -> None:
        """Count the selected rows of a block; judge the windows that are complete then."""
        picks = select(block)
        if not len(picks):
            return
        self.windows.update(block, picks)
        for window in self.windows.windows():
            if window > self._closed:
                break
            self.late += self.windows.probes_of(window)
            self.windows.pop(window)
        self.until(min(self.windows.newest, self.mark))

    def due(self) -> int | None:
        """Time (ns) at which the clock completes the first open window; None without one."""
        starts = self.windows.windows()
        return starts[0] + self.windows.window + self.lateness if starts else None

    def until(self, now: int) -> None:
        """Judge the windows that are complete at ``now`` (ns)."""
        length = self.windows.window
        for window in self.windows.windows():
            if window + length + self.lateness > now:
                break
            self.close(window)
        self._closed = max(self._closed, (now - self.lateness) // length * length - length)

    def close(self, window: int) -> None:
        """Judge a window and forget it."""
        self.done(window)
        self.windows.pop(window)
        self._closed = max(self._closed, window)

    def finish(self) -> None:
        """Judge the windows that are still open: the input has ended."""
        for window in self.windows.windows():
            self.close(window)


def length_of(window: int) -> str:
    """A length (ns) as the command line has it; '' for 0."""
    from confluo_tools.units import format_duration

    return format_duration(window) if window else ""


class ProbeSource(Input):
    """Probe records of any input, or of one log that grows.

    ``schema``: that of all text inputs; by default, that of text with the fields of a probe.
    Raises SchemaError for records of another kind.
    """

    def __init__(
        self,
        inputs: Sequence[str],
        ins: cli.InputOptions,
        follow: bool,
        *,
        engine: str | None = None,
        request: QueryRequest | None = None,
        schema: Schema | None = None,
    ) -> None:
        from confluo_tools.pingmesh.analysis.probe_kind import check_kind, probe_schema

        cli.engine_without_follow(engine, follow)
        self.follow, self.stopped, self.late = follow, 0, 0
        self.metadata: dict[str, str] = {}
        self.filters: Mapping[str, str] | None
        if follow and one_log(inputs):
            from confluo_tools import multilog
            from confluo_tools.multilog.views import named_filters

            self.log = multilog.open(inputs[0], readonly=True)
            self.schema, self.name, self.filters = self.log.schema, inputs[0], named_filters(self.log)
        else:
            reader = ins.open(inputs, schema=schema or probe_schema(), request=request, follow=follow)
            reader = self.reader = cli.on_engine(reader, engine)
            self.schema, self.name, self.filters = reader.schema, reader.name, reader.filters
            self.metadata = reader.metadata
        try:
            check_kind(self.schema, self.name)
        except BaseException:
            self.close()
            raise

    def run(self, follower: WindowFollower, select: Select, counts: Callable[[], str], *, finish: bool) -> None:
        """Follow until a pipe ends or a signal arrives.

        ``finish``: judge the open windows at the end, as far as they are filled.  Without it they are left for the
        next run.
        """
        from confluo_tools.inputs import follow as following

        with following.StopSignal() as ending:
            with cli.signals(ending, counts=counts):
                if self.reader is not None:
                    if follower.after is not None:
                        self.reader.skip_before(follower.after)
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
            cli.note(f"{self.late} probes arrived after their window was judged", hint="--lateness TIME waits longer")

    def status(self, found: int) -> int:
        """Exit status: 128 + the signal that ended it, else whether ``found`` rows were written."""
        if self.stopped:
            return 128 + self.stopped
        return cli.OK if found else cli.NOTHING

    def _gone(self, rows: int) -> None:
        if not cli.state.quiet:
            cli.note(
                f"{rows:,} records were removed before they were read", where=self.name, hint="keep more of the log"
            )


class WindowOutput:
    """Writes the rows of each window once; with a MultiLog as output also across restarts.

    ``options``: those that the rows depend on, {name: value}.  ``apart``: columns in which a row may differ when its
    window is judged again.  ``memory``: returns the state that the next run needs (see `restored`), as JSON values.
    """

    def __init__(
        self,
        out: LogOutput | cli.RecordOutput,
        stack: ExitStack,
        *,
        follow: bool,
        options: Mapping[str, Any],
        apart: Sequence[str] = (),
        memory: Callable[[], Any] = lambda: None,
    ) -> None:
        stack.enter_context(out)
        self.out, self._memory = out, memory
        self.progress: FollowCheckpoint | None = None
        self._rows, self._dirty, self._saved = 0, False, 0.0
        if follow and isinstance(out, LogOutput):
            from confluo_tools.multilog.follow_checkpoint import FollowCheckpoint

            self.progress = FollowCheckpoint(out.log, options, apart)
            stack.callback(self.progress.close)
            if self.progress.done is not None and not cli.state.quiet:
                from confluo_tools.units import format_time

                cli.note(f"continues after {format_time(self.progress.done, 0)}", where=out.path)

    @property
    def keeps(self) -> bool:
        """Whether another run can continue where this one ends."""
        return self.progress is not None

    @property
    def after(self) -> int | None:
        """End (ns) of the last window that an earlier run judged; None without one."""
        return None if self.progress is None else self.progress.done

    def since(self, since: int | None) -> int | None:
        """First time (ns) of the probes to read: ``since``, or `after` if that is later."""
        times = [time for time in (since, self.after) if time is not None]
        return max(times, default=None)

    def restored(self) -> Any:
        """The state that ``memory`` returned when the last run ended; None in the first run."""
        return None if self.progress is None else self.progress.memory

    def begin(self) -> None:
        """Save a checkpoint before the first window, so that a run after a crash recognises the rows of this one."""
        self._save()

    def write(self, blocks: Iterable[Block], end: int) -> None:
        """Write the rows of a window that ends at ``end`` (ns)."""
        from confluo_tools.core.multilog.control import fault

        for found in blocks:
            block = found if self.progress is None else self.progress.new_rows(found)
            if block.rows:
                self.out.write(block, None)
                self._rows += block.rows
        if self.progress is not None:
            fault("follow-told")
            self.progress.commit(end)
            self._dirty = True
            if time.monotonic() - self._saved >= CHECKPOINT_INTERVAL:
                self._save()

    def idle(self) -> None:
        """Flush, and save a checkpoint if there are new windows: no input at the moment, or the end."""
        self.out.flush()
        if self._dirty:
            self._save()

    def _save(self) -> None:
        if self.progress is not None:
            self._saved = time.monotonic()
            self._dirty = not self.progress.save(self._memory(), self._rows)


def follow_windows(
    source: ProbeSource,
    output: WindowOutput,
    windows: OpenWindows,
    select: Select,
    judge: Callable[[int], Iterable[Block]],
    lateness: int,
) -> None:
    """Follow ``source`` and write the blocks of ``judge`` (by start of the window) when each window is complete."""

    def done(start: int) -> None:
        output.write(judge(start), start + windows.window)

    follower = WindowFollower(windows, lateness, done, output.idle, output.after)
    output.begin()
    source.run(follower, select, lambda: f"{windows.probes} probes", finish=not output.keeps)
    output.idle()
