"""One run of confluo-monitor: --once, a replay, or following by the clock."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import TYPE_CHECKING, Any

from confluo_tools import cli

if TYPE_CHECKING:
    from confluo_tools.core.block.block import Block
    from confluo_tools.monitor.alerts import AlertLog, EarlierAlerts
    from confluo_tools.monitor.engine import TriggerEngine
    from confluo_tools.monitor.exec import CommandRunner
    from confluo_tools.monitor.host_logs import HostLogs
    from confluo_tools.monitor.hosts_watch import HostsWatch
    from confluo_tools.monitor.language import Trigger
    from confluo_tools.monitor.notes import AlertLines, TriggerNotes
    from confluo_tools.monitor.watch import LogWatch
    from confluo_tools.monitor.webhook import WebhookSender
    from confluo_tools.multilog.log import Log
    from confluo_tools.multilog.query.derived_fields import Analysis

SAVE = 1.0  # seconds between two writes of the state


def alert_lines(run: MonitorRun) -> AlertLines:
    """What prints alerts with the notes of their triggers."""
    from confluo_tools.monitor.notes import AlertLines

    return AlertLines(run.alerts.schema, run.notes)


class MonitorRun:
    """One run of the command on one log."""

    def __init__(
        self,
        log: Log | HostLogs,
        triggers: Sequence[Trigger],
        alerts: str | None,
        analyses: Callable[[], list[Analysis]],
        *,
        lag: int,
        catch_up: int,
        patience: float,
    ) -> None:
        from confluo_tools.monitor.alerts import AlertBlocks

        self.log, self.triggers, self.path, self.lag, self.catch_up = log, triggers, alerts, lag, catch_up
        self.patience = patience
        self.analyses = analyses
        found = analyses()
        self.schema = found[-1].schema if found else log.schema
        self.engine = self.make_engine(triggers)
        self.notes: dict[str, TriggerNotes] = {}
        self.alerts = AlertBlocks(self.engine, notes=self.notes)
        self.kept: AlertLog | None = None
        self.out: cli.RecordOutput | None = None
        self.runner: CommandRunner | None = None
        self.sender: WebhookSender | None = None
        self.lines: AlertLines | None = None
        self.watch: LogWatch | HostsWatch | None = None
        self.fired = self.stopped = 0
        self._start = self._saved = time.monotonic()
        self._tick = 0
        self.check: Callable[[], None] = lambda: None  # raises when the input has ended by an error

    def open(self, stack: ExitStack) -> None:
        if self.path is None:
            return
        from confluo_tools.monitor.alerts import AlertLog

        self.kept = AlertLog(self.path, self.log, wait=self.patience, argv=[cli.state.prog, *cli.state.argv])
        stack.callback(self.kept.close)

    def deliver(self, tick: int, block: Block) -> None:
        """Handle the alerts of one tick: append them to the alerts log, print them, run commands."""
        self.fired += block.rows
        if self.kept is not None:
            self.kept.append(block)
        if self.out is not None:
            self.out.write(block)
            self.out.flush()
        if self.runner is not None:
            if self.lines is None:
                self.lines = alert_lines(self)
            for line, name in self.lines.of(block):
                self.runner.put(line, name)
        if self.sender is not None:
            self.sender.wake()

    def make_engine(self, triggers: Sequence[Trigger]) -> TriggerEngine:
        from confluo_tools.monitor.engine import TriggerEngine as Engine
        from confluo_tools.multilog.log import Log
        from confluo_tools.multilog.views import named_filters

        assert isinstance(self.log, Log)
        filters = named_filters(self.log)
        return Engine(self.schema, triggers, lag=self.lag, seed=self.log.uuid, filters=filters)

    def make_watch(self, sink: Callable[[int, Block], None]) -> LogWatch | HostsWatch:
        """What evaluates the triggers of `engine`."""
        from confluo_tools.monitor.watch import LogWatch
        from confluo_tools.multilog.log import Log

        assert isinstance(self.log, Log)
        return LogWatch(self.log, self.engine, self.alerts, sink, self.analyses())

    def watching(self) -> LogWatch | HostsWatch:
        self.watch = self.make_watch(self.deliver)
        return self.watch

    # -- the three modes

    def once(self, until: int | None) -> None:
        """Each trigger at its last tick: the first one that sees the newest record, or the last one up to ``until``."""
        from confluo_tools.monitor.alerts import AlertBlocks

        version = self.log.version()
        for period in sorted({t.period for t in self.triggers}):
            some = [t for t in self.triggers if t.period == period]
            self.engine = self.make_engine(some)
            self.alerts = AlertBlocks(self.engine, notes=self.notes)
            watch = self.watch = self.make_watch(lambda tick, block: None)
            at = until
            if at is None:
                newest = watch.newest(version)
                if newest is None:
                    return
                at = (newest // period + 1) * period
            at = at // period * period
            watch.begin(at - self.engine.hold - period, version=version, wait=False)
            self.note_removed(watch, "windows see the remaining ones")
            watch.advance(at)
            events = self.engine.firing()
            if events:
                for e in events:
                    e.lasted = 0
                self.deliver(at, self.alerts.block(events))

    def replay(self, since: int, until: int | None) -> None:
        """The ticks later than ``since``, up to ``until`` or to those that see the newest record."""
        version = self.log.version()
        watch = self.watching()
        if until is None:
            newest = watch.newest(version)
            if newest is None:
                return
            until = newest + max(t.period for t in self.triggers)
        earlier = self.kept.earlier(self.triggers) if self.kept is not None else None
        if earlier is not None and earlier.tick < since:
            earlier = None
        watch.begin(since, earlier, version)
        self.clear_removed(earlier)
        self.note_removed(watch, "triggers wait until their windows are full")
        watch.advance(until, self.enough)
        self.save(force=True)

    def clear_removed(self, earlier: EarlierAlerts | None) -> None:
        """Clear alerts of triggers that fired in an earlier run, and are not among those of this one."""
        if earlier is not None and earlier.gone:
            tick = max(earlier.tick, earlier.written_tick)
            self.deliver(tick, self.alerts.gone(tick, earlier.gone))

    def note_removed(self, watch: LogWatch | HostsWatch, then: str) -> None:
        from confluo_tools.units import format_time

        if watch.short is not None and not cli.state.quiet:
            what = f"records older than {format_time(watch.short, 3)} have been removed: {then}"
            cli.note(what, where=self.log.path)

    def enough(self) -> bool:
        self.save()
        return bool(self.stopped)

    def live(self) -> None:
        """Follow the log by the clock."""
        from confluo_tools.inputs.late_records import LateRecords
        from confluo_tools.monitor.watch import LiveWatch
        from confluo_tools.units import format_duration

        watch = self.watching()
        now = time.time_ns() - self.lag
        earlier = self.kept.earlier(self.triggers) if self.kept is not None else None
        if earlier is not None and earlier.tick > now:
            cli.note(f"the last alerts are {format_duration((earlier.tick - now) // 10**6 * 10**6)} ahead of the clock")
            earlier.pass_to(now)
        if earlier is not None and now - earlier.tick > self.catch_up:
            missed = format_duration((now - earlier.tick - self.catch_up) // 10**9 * 10**9)
            cli.note(f"ticks of {missed} are left out: the last monitor ended too long ago", where=self.log.path)
            earlier.pass_to(now - self.catch_up)
        self.begin_live(now, earlier)
        self.clear_removed(earlier)
        self.note_removed(watch, "triggers wait until their windows are full")
        late = LateRecords(cli.tell)
        live = LiveWatch(watch, self.lag, note=cli.note, late=late)
        while not self.stopped:
            pause = live.step()
            self.save()
            self.check()
            if not self.stopped:
                watch.wait(min(pause, 0.2))
        self.save(force=True)
        late.end()

    def begin_live(self, now: int, earlier: EarlierAlerts | None) -> None:
        """Begin to follow; the first tick is the one after ``now``, or where an earlier run ended."""
        from confluo_tools.monitor.watch import LEARN, LogWatch

        assert isinstance(self.watch, LogWatch)
        self.watch.begin(now, earlier, learn=LEARN)

    def also_firing(self) -> list[list[Any]]:
        """Alerts that fire and are not of the engine, for `AlertLog.save`."""
        return []

    def save(self, *, force: bool = False) -> None:
        if self.kept is None:
            return
        now = time.monotonic()
        if (force or now - self._saved >= SAVE) and self.engine.clock != self._tick:
            self.kept.save(self.engine.clock, self.engine, force=force, also=self.also_firing())
            self._saved, self._tick = now, self.engine.clock

    # -- signals and counts

    def signals(self) -> AbstractContextManager[None]:
        """SIGINT, SIGTERM, SIGHUP: finish.  SIGUSR1: print the counts."""

        def stop(number: int) -> None:
            self.stopped = number

        return cli.signals(stop, counts=self.counts)

    def report_evictions(self) -> None:
        """Warn of analyses that forgot flows, because alerts may then be missing or wrong."""
        from confluo_tools.multilog.query.derived_fields import evictions

        for analysis in self.watch.analyses if self.watch is not None else ():
            if analysis.evicted:
                cli.warn(evictions(analysis.evicted, f"--analyze {analysis.name}"), where=self.log.path)

    def serve(self, metrics: str, stack: ExitStack) -> None:
        """Serve the counters for Prometheus."""
        from confluo_tools.endpoint.metrics_endpoint import MetricsEndpoint, NumbersCollector, metrics_socket
        from confluo_tools.monitor.metrics import numbers

        sock = stack.enter_context(metrics_socket(metrics))
        collector = NumbersCollector("monitor", {"log": self.log.path}, lambda: numbers(self))
        stack.callback(MetricsEndpoint(sock, collector).close)

    def counts(self) -> str:
        """Counts so far, on one line."""
        watch = self.watch
        parts = {"triggers": len(self.triggers), "alerts": self.fired}
        if watch is not None:
            parts |= {"ticks": watch.ticks, "records": self.engine.feed.rows}
            parts |= {"late": watch.late, "too late": watch.lost}
            if self.engine.dropped:
                parts["of too many keys"] = self.engine.dropped
            if watch.missed:
                parts["removed unseen"] = watch.missed
            if watch.damaged:
                parts["damaged runs"] = watch.damaged
        if self.sender is not None:
            parts |= {"sent": self.sender.sent, "waiting": self.sender.waiting}
        if self.runner is not None:
            parts |= {"commands": self.runner.done, "failed": self.runner.failed}
        return ", ".join([*(f"{n} {what}" for what, n in parts.items()), f"{time.monotonic() - self._start:.2f} s"])
