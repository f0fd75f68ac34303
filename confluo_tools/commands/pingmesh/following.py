"""Probes as they come: what sla, blackholes and drops share to judge each window when it is over, and once."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from confluo_tools import cli
from confluo_tools.cli.log_output import LogOutput
from confluo_tools.errors import ConfluoError, UsageError

if TYPE_CHECKING:
    from confluo_tools.core.block import Block, Picks
    from confluo_tools.core.segment import SegmentBlock
    from confluo_tools.formats.reader import Reader
    from confluo_tools.remote.wish import Wish
    from confluo_tools.schema import Schema
    from confluo_tools.store.log import Log
    from confluo_tools.store.monitor import Tail
    from confluo_tools.store.pairs import Pass
    from confluo_tools.store.progress import Progress

T = TypeVar("T")

SECOND = 1_000_000_000
FIRST, LAST = -(1 << 63), (1 << 63) - 1
PAUSE = 0.1  # s between two looks at a log
SAVE = 1.0  # s between two states that are written while windows follow each other
MOVED = 1.0  # s after which it is seen that another log has the name


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
        self.late = self.missed = 0
        self._after = FIRST if after is None else after
        self._closed = FIRST if after is None else after - mesh.window

    def add(self, block: Block, select: Callable[[Block], Any], mark: int = LAST) -> None:
        """Take in a block.  Nothing that is still to come from the log is older than ``mark``."""
        picks = select(block)
        if not len(picks):
            return
        self.mesh.update(block, picks)
        for window in self.mesh.windows():
            if window > self._closed:
                break
            self.late += self.mesh.probes_of(window)
            self.mesh.pop(window)
        self.until(min(self.mesh.newest, mark))

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

    def read(self, reader: Reader, select: Callable[[Block], Any]) -> None:
        """From a pipe, or anything that ends."""
        reader.on_idle(lambda: self._wait(reader))
        for block in reader:
            self.add(block, select)
        self.finish()

    def _wait(self, reader: Reader) -> None:
        # Before a read that would block: until there are bytes, or a window is over by the clock and nothing came for
        # a while (what is old when it comes is not late: somebody plays back records).
        from select import select

        self.idle()
        quiet = time.time_ns() + self.lateness
        fd = getattr(getattr(reader, "stream", None), "fd", None)
        while fd is not None and (windows := self.mesh.windows()):
            due = windows[0] + self.mesh.window + self.lateness
            left = (max(due, quiet) - time.time_ns()) / SECOND
            if left > 0 and select([fd], [], [], min(left, 3600.0))[0]:
                return
            self.until(time.time_ns())
            self.idle()

    def tail(
        self, log: Log, select: Callable[[Block], Any], stopped: Callable[[], bool], *, finish: bool = True
    ) -> None:
        """From a log that grows, and from the one that takes its name, until a signal.

        ``finish``: then judge windows that are still open, as far as they are; else somebody will go on with them.
        """
        tails: list[Tail] = []
        quiet = 0
        looked = time.monotonic()
        first = log
        try:
            while not stopped():
                if self._take(log, tails, select, stopped):
                    quiet = time.time_ns() + self.lateness
                    continue
                if time.time_ns() >= quiet:
                    self.until(time.time_ns())
                self.idle()
                if time.monotonic() - looked >= MOVED:
                    looked = time.monotonic()
                    other = _another(log)
                    if other is not None and not self._take(log, tails, select, stopped):
                        self._leave(log, tails, first)
                        log, tails = other, []
                        continue
                time.sleep(PAUSE)
            if finish:
                self.finish()
        finally:
            self._leave(log, tails, first)

    def _take(self, log: Log, tails: list[Tail], select: Callable[[Block], Any], stopped: Callable[[], bool]) -> bool:
        """What has come, the earliest block of all lanes first: hosts that are behind close no window of others."""
        from confluo_tools.store.monitor import Tail

        version = log.version()
        tails += [Tail(lane, version.firsts[lane]) for lane in range(len(tails), len(version.tails))]
        ts = log.schema.index("ts")
        heap: list[tuple[int, int, Block]] = []
        coming = [tail.more(log, end) for tail, end in zip(tails, version.tails, strict=False)]

        def next_of(lane: int) -> bool:
            for block, start, stop in coming[lane]:
                low, high = _times(block, ts, start, stop)
                if high >= self._after:
                    heappush(heap, (low, lane, block.slice(start, stop - start)))
                    return True
            return False

        grown = [next_of(lane) for lane in range(len(coming))]
        while heap and not stopped():
            _, lane, part = heappop(heap)
            next_of(lane)
            self.add(part, select, heap[0][0] if heap else LAST)
        return any(grown)

    def _leave(self, log: Log, tails: list[Tail], first: Log) -> None:
        self.missed += sum(tail.missed for tail in tails)
        tails.clear()
        if log is not first:
            log.close()


def _times(block: SegmentBlock, ts: int, start: int, stop: int) -> tuple[int, int]:
    # Bounds of the times in these rows.
    zones = block.zones(ts)
    if zones is not None:
        return zones[0] + FIRST, zones[1] + FIRST
    times = memoryview(block.buffer(ts)).cast("q")[start:stop]
    return min(times), max(times)


def _another(log: Log) -> Log | None:
    # The log that has the name now, when that is another one: somebody moved ours away and began anew.
    from confluo_tools import store

    try:
        found = store.open(log.path, readonly=True)
    except (ConfluoError, OSError):
        return None  # none yet
    if found.uuid != log.uuid and found.schema.layout.names == log.schema.layout.names:
        return found
    found.close()
    return None


def times(window: int, follow: bool, lateness: str) -> int:
    """The lateness in ns, for --follow with windows of that length.  Raises UsageError."""
    from confluo_tools import units

    found = cli.of_option("--lateness", units.duration, lateness)
    if follow and not window:
        raise UsageError("needs --window TIME", where="--follow", hint="write e.g. 10m")
    if found < 0:
        raise UsageError("is not possible", where=f"--lateness {lateness}", hint="0 or more")
    return found


def length_of(window: int) -> str:
    """As it is written on a command line, '' for none."""
    from confluo_tools.units import format_duration

    return format_duration(window) if window else ""


def one_log(inputs: Sequence[str]) -> bool:
    """--follow: whether it is a log of this host.  Raises UsageError for several inputs and other hosts."""
    from confluo_tools.formats import detect

    logs = [name for name in inputs if cli.remote(name) is not None or detect.is_multilog(name)]
    if logs and (len(inputs) > 1 or cli.remote(logs[0]) is not None):
        hint = "without --follow, any number of logs on any hosts are read"
        raise UsageError("--follow watches one MultiLog of this host, or a pipe", where=logs[-1], hint=hint)
    return bool(logs)


class Source:
    """The probes: of any input, or of a log as it grows.  ``schema``: of text that names none."""

    def __init__(
        self, inputs: Sequence[str], input_format: str | None, follow: bool, *, at: str | None = None,
        partial: bool = False, wish: Wish | None = None, schema: Schema | None = None,
    ) -> None:  # fmt: skip
        from confluo_tools.commands.pingmesh.scopes import check_kind

        self.follow, self.stopped, self.late = follow, 0, 0
        self.log: Log | None = None
        self.reader: Reader | None = None
        self.metadata: dict[str, str] = {}
        self.filters: Mapping[str, str] | None
        if follow and one_log(inputs):
            from confluo_tools import store
            from confluo_tools.store.rules import named_filters

            self.log = store.open(inputs[0], readonly=True)
            self.schema, self.name, self.filters = self.log.schema, inputs[0], named_filters(self.log)
        else:
            reader = self.reader = cli.open_records(
                inputs, input_format=input_format, schema=schema, at=at, partial=partial, wish=wish
            )
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
        """Follow to the end of a pipe, or until a signal."""
        def stop(number: int) -> None:
            self.stopped = number

        if self.log is None:
            assert self.reader is not None
            follower.read(self.reader, select)
        else:
            with cli.signals(stop, counts=counts):
                follower.tail(self.log, select, lambda: self.stopped > 0, finish=finish)
        self.late = follower.late
        if follower.missed and not cli.state.quiet:
            cli.note(f"{follower.missed:,} records were removed before they were seen", where=self.name,
                     hint="keep more of the log")  # fmt: skip
        if self.late and not cli.state.quiet:
            cli.note(f"{self.late} probes came after their window was over", hint="--lateness TIME waits longer")

    def close(self) -> None:
        if self.reader is not None:
            self.reader.close()
        if self.log is not None:
            self.log.close()

    def __enter__(self) -> Source:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


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
