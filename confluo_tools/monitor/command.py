"""confluo-monitor: conditions over sliding windows of a MultiLog; alerts are records.  Manual: confluo-monitor(1)."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from confluo_tools import cli, config
from confluo_tools.cli.options import option
from confluo_tools.errors import UsageError
from confluo_tools.inputs.topics import is_topic, spool_of

if TYPE_CHECKING:
    from confluo_tools.core.block.block import Block
    from confluo_tools.kafka.topic_spool import TopicSpool
    from confluo_tools.monitor.alerts import AlertLog
    from confluo_tools.monitor.exec import CommandRunner
    from confluo_tools.monitor.language import Trigger
    from confluo_tools.monitor.watch import LogWatch
    from confluo_tools.multilog.log import Log
    from confluo_tools.multilog.query.derived_fields import Analysis
    from confluo_tools.schema import Schema

app = cli.command_app(
    """
# hosts that receive more than a gigabyte per second, checked every millisecond
confluo-monitor live.ml --trigger 'heavy: sum(len) > 1G over 1s every 1ms by dst_ip' -o ndjson

# for cron: exit status 0 if a trigger fires now
confluo-monitor live.ml --once --until now --trigger 'silent: count < 1 over 5m'

# what would have fired yesterday
confluo-monitor trace.ml --triggers rules.yaml --since 2026-11-19 --until 2026-11-19

# scanners, with a command for each alert
confluo-monitor live.ml --exec 'logger -t confluo' \\
    --trigger 'scan: distinct(dst_port) > 100 over 10s every 1s by src_ip clear distinct(dst_port) < 50'
"""
)

MARGIN = 60 * 10**9  # ns of records of a topic that are kept longer than windows see them
SAVE = 1.0  # seconds between two writes of the state
LAG = "200ms"  # more than records of a capture were late on a loaded machine: bench/lag.tsv
EXEC_WAIT = 60.0  # seconds that a replay waits for its last commands; when following, fewer
EXEC_WAIT_LIVE = 5.0


@app.command(
    panels={
        "Options": "-t --triggers --check --once --alerts --exec",
        "Alerts": "--list --exec-max",
        "Time": "--since --until --wait --lag --catch-up",
    }
)
def monitor(
    log: Annotated[
        str | None, typer.Argument(metavar="LOG", help="The MultiLog, or a topic of Kafka.", show_default=False)
    ] = None,
    trigger: Annotated[
        list[str] | None,
        option("-t", "--trigger", metavar="TEXT", help="NAME: CONDITION over WINDOW [every PERIOD] [by KEYS] ..."),
    ] = None,
    triggers: Annotated[
        list[str] | None, option("--triggers", metavar="FILE", help="Triggers from a YAML file (repeatable).")
    ] = None,
    listing: Annotated[bool, option("--list", help="Print the parsed triggers.")] = False,
    check: Annotated[bool, option("--check", help="Check the triggers, then end.")] = False,
    once: Annotated[bool, option("--once", help="Evaluate once; exit status 0 if a trigger fires, else 1.")] = False,
    since: Annotated[
        str | None, option("--since", metavar="TIME", help="Replay the records from TIME on, then end.")
    ] = None,
    until: Annotated[
        str | None, option("--until", metavar="TIME", help="With --since, --once: up to TIME, not the newest record.")
    ] = None,
    alerts: Annotated[
        str | None, option("--alerts", metavar="PATH", help="Keep alerts in this MultiLog (NAME.alerts.ml), or none.")
    ] = None,
    wait: Annotated[
        str | None,
        option("--wait", metavar="TIME", help="Wait up to TIME for another monitor of the same alerts to end (0)."),
    ] = None,
    lag: Annotated[str, option("--lag", metavar="TIME", help="Wait TIME for late records after a tick (200ms).")] = LAG,
    catch_up: Annotated[
        str,
        option(
            "--catch-up", metavar="TIME", help="Evaluate ticks missed by an earlier monitor, at most TIME back (1h)."
        ),
    ] = "1h",
    execute: Annotated[
        str | None, option("--exec", metavar="CMD", help="Run CMD for each alert, with the alert as NDJSON on stdin.")
    ] = None,
    exec_max: Annotated[
        int, option("--exec-max", metavar="N", min=1, max=256, help="Run at most N commands at once (4).")
    ] = 4,
    analyze: cli.Analyze = None,
    analyze_flows: cli.AnalyzeFlows = None,
    *,
    out: cli.OutputOptions,
    common: cli.CommonOptions,
) -> int:
    """Report when a condition over a sliding window of LOG begins to hold, and when it ends."""
    if log is None:
        return cli.usage(app)
    from confluo_tools import multilog, units

    if out.fields == "help":
        from confluo_tools.schema import builtin

        out.listed(builtin("alert"))
        return cli.OK
    local = config.truth("local", out.local)
    live = not once and since is None
    with ExitStack() as sources:
        spool = sources.enter_context(spool_of(log, follow=live)) if is_topic(log) else None
        source = spool.log if spool is not None else sources.enter_context(multilog.open(log, readonly=True))
        looked = analyses(source.schema, analyze, analyze_flows)
        found = read_triggers(
            source, looked[-1].schema if looked else source.schema, trigger or [], triggers or [], local
        )
        if listing or check:
            if listing:
                show(found, out.tsv, out.ndjson)
            return cli.OK
        if until is not None and not (once or since is not None):
            raise UsageError("--until needs --since or --once", hint="without them, the log is followed")
        if once and since is not None:
            raise UsageError("--once and --since exclude each other")
        back = cli.duration("--catch-up", catch_up, 0)
        first = units.time(since, local=local) if since is not None else None
        run = MonitorRun(
            source,
            found,
            alerts_path(log, alerts, live=live),
            lambda: analyses(source.schema, analyze, analyze_flows),
            lag=cli.duration("--lag", lag, 0),
            catch_up=back,
            patience=cli.duration("--wait", wait, 0) / 1e9 if wait is not None else 0.0,
        )
        words = command_words(execute)
        if spool is not None:
            fill(spool, found, first, live=live, back=back if run.path is not None and os.path.exists(run.path) else 0)
            run.check = spool.check
        with ExitStack() as stack:
            run.open(stack)
            schema = run.alerts.schema
            run.out = stack.enter_context(out.records(schema, out.kind(), out.names(schema)))
            if words:
                run.runner = stack.enter_context(running(words, exec_max, live=live))
            stack.enter_context(run.signals())
            end = units.until(until, local=local) if until is not None else None
            if once:
                run.once(end)
            elif first is not None:
                run.replay(first, end)
            else:
                run.live()
        run.report_evictions()
        if common.stats or (run.stopped and not cli.state.quiet):
            cli.note(run.counts())
        if run.stopped:
            return 128 + run.stopped
        return cli.OK if run.fired or not (once or since is not None) else cli.NOTHING


def fill(spool: TopicSpool, found: Sequence[Trigger], since: int | None, *, live: bool, back: int) -> None:
    """Read the records of a topic that windows see: from ``since``, or from now, and ``back`` ns before (catch-up)."""
    reach = max(t.window + t.hold + 2 * t.period for t in found) + back + MARGIN
    begin = (time.time_ns() if since is None else since) - reach
    spool.fill(begin if live or since is not None else 0, reach + MARGIN if live else None)


def analyses(schema: Schema, specs: list[str] | None, flows: int | None) -> list[Analysis]:
    """The analyses of --analyze; each sees the fields of those before."""
    if not specs:
        return []
    from confluo_tools.multilog.query.derived_fields import FLOWS, Analysis

    found: list[Analysis] = []
    for spec in specs:
        found.append(Analysis(found[-1].schema if found else schema, spec, flows=flows or FLOWS))
    return found


def read_triggers(log: Log, schema: Schema, texts: list[str], files: list[str], local: bool = False) -> list[Trigger]:
    """All triggers of the command line and of files, parsed; UsageError for an invalid one or a duplicate name.

    ``local``: their times without a zone are local times.
    """
    from confluo_tools.expr.syntax import ExprError
    from confluo_tools.monitor.language import parse_trigger
    from confluo_tools.monitor.trigger_files import named_views, read_trigger_file
    from confluo_tools.multilog.views import named_filters

    views, filters = named_views(log), named_filters(log)
    found: list[Trigger] = []
    names: set[str] = set()
    for where, text in [*(("", t) for t in texts), *(pair for f in files for pair in read_trigger_file(f))]:
        try:
            one = parse_trigger(text, schema, views, filters, local=local)
        except ExprError as e:
            if where:
                e.where = f"{where}, {e.where}"
            raise
        if one.name in names:
            raise UsageError(f"two triggers are called '{one.name}'", where=where)
        names.add(one.name)
        found.append(one)
    if not found:
        raise UsageError("no trigger", hint="--trigger 'heavy: sum(len) > 1G over 1s', or --triggers FILE")
    return found


def show(found: Sequence[Trigger], tsv: bool, ndjson: bool) -> None:
    """Print the parsed triggers: a table, or TSV or NDJSON for programs."""
    from confluo_tools.units import format_duration

    head = ("trigger", "condition", "window", "period", "by", "where", "for", "rearm")
    rows = [
        (
            t.name,
            t.condition_text,
            format_duration(t.window),
            format_duration(t.period),
            t.by,
            " | ".join(sorted({m.where for m in t.measures if m.where})),
            format_duration(t.hold) if t.hold else "",
            format_duration(t.rearm) if t.rearm else "",
        )
        for t in found
    ]
    if ndjson:
        import json

        for row in rows:
            print(json.dumps(dict(zip(head, row, strict=True))))
    elif tsv or not cli.is_terminal(1):
        print("#fields\t" + "\t".join(head))
        for row in rows:
            print("\t".join(c or "-" for c in row))
    else:
        cells = [tuple(h.upper() for h in head), *rows]
        widths = [max(len(line[i]) for line in cells) for i in range(len(head))]
        for line in cells:
            print("  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)).rstrip())


def alerts_path(log: str, given: str | None, *, live: bool) -> str | None:
    """The path of the alerts log: as given; else, if the log is followed, next to it; else None."""
    if given is not None:
        return None if given == "none" else given
    if not live:
        return None
    path = os.path.abspath(log if not is_topic(log) else log.partition("?")[0].rpartition("/")[2])
    return f"{path.removesuffix('.ml')}.alerts.ml"


def command_words(text: str | None) -> list[str]:
    """The command of --exec, split as a shell does; it runs without a shell."""
    if text is None:
        return []
    import shlex
    from shutil import which

    try:
        words = shlex.split(text)
    except ValueError as e:
        raise UsageError(str(e).lower(), where="--exec", hint="write e.g. --exec 'logger -t confluo'") from None
    if not words:
        raise UsageError("no command", where="--exec")
    if which(words[0]) is None:
        hint = "for a shell: --exec \"sh -c '...'\""
        raise UsageError(f"there is no command '{words[0]}'", where="--exec", hint=hint)
    return words


@contextmanager
def running(words: list[str], max_running: int, *, live: bool) -> Iterator[CommandRunner]:
    """Runs commands in the background; at the end it waits for them for a while."""
    from confluo_tools.monitor.exec import CommandRunner

    def report(what: str) -> None:
        if not cli.state.quiet:
            cli.note(what)

    runner = CommandRunner(words, max_running, report)
    try:
        yield runner
    finally:
        if not runner.wait(EXEC_WAIT_LIVE if live else EXEC_WAIT):
            cli.warn("some commands are still running", where="--exec")
        if runner.dropped:
            cli.warn(f"{runner.dropped} alerts were dropped", where="--exec", hint="the command is too slow")


class MonitorRun:
    """One run of the command on one log."""

    def __init__(
        self,
        log: Log,
        triggers: Sequence[Trigger],
        alerts: str | None,
        analyses: Callable[[], list[Analysis]],
        *,
        lag: int,
        catch_up: int,
        patience: float,
    ) -> None:
        from confluo_tools.monitor.alerts import AlertBlocks
        from confluo_tools.monitor.engine import TriggerEngine
        from confluo_tools.multilog.views import named_filters

        self.log, self.triggers, self.path, self.lag, self.catch_up = log, triggers, alerts, lag, catch_up
        self.patience = patience
        self.filters = named_filters(log)
        self.analyses = analyses
        found = analyses()
        self.schema = found[-1].schema if found else log.schema
        self.engine = TriggerEngine(self.schema, triggers, lag=lag, seed=log.uuid, filters=self.filters)
        self.alerts = AlertBlocks(self.engine)
        self.kept: AlertLog | None = None
        self.out: cli.RecordOutput | None = None
        self.runner: CommandRunner | None = None
        self.watch: LogWatch | None = None
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
            for line, name in lines(block, self.alerts.schema):
                self.runner.put(line, name)

    def watching(self) -> LogWatch:
        from confluo_tools.monitor.watch import LogWatch

        self.watch = LogWatch(self.log, self.engine, self.alerts, self.deliver, self.analyses())
        return self.watch

    # -- the three modes

    def once(self, until: int | None) -> None:
        """Each trigger at its last tick: the first one that sees the newest record, or the last one up to ``until``."""
        from confluo_tools.monitor.alerts import AlertBlocks
        from confluo_tools.monitor.engine import TriggerEngine
        from confluo_tools.monitor.watch import LogWatch

        version = self.log.version()
        for period in sorted({t.period for t in self.triggers}):
            some = [t for t in self.triggers if t.period == period]
            self.engine = TriggerEngine(self.schema, some, lag=self.lag, seed=self.log.uuid, filters=self.filters)
            self.alerts = AlertBlocks(self.engine)
            watch = self.watch = LogWatch(self.log, self.engine, self.alerts, lambda tick, block: None, self.analyses())
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
        self.note_removed(watch, "triggers wait until their windows are full")
        watch.advance(until, self.enough)
        self.save(force=True)

    def note_removed(self, watch: LogWatch, then: str) -> None:
        from confluo_tools.units import format_time

        if watch.short is not None and not cli.state.quiet:
            what = f"records older than {format_time(watch.short, 3)} have been removed: {then}"
            cli.note(what, where=self.log.path)

    def enough(self) -> bool:
        self.save()
        return bool(self.stopped)

    def live(self) -> None:
        """Follow the log by the clock."""
        from confluo_tools.monitor.late_records import LateRecords
        from confluo_tools.monitor.watch import LEARN, LiveWatch
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
        watch.begin(now, earlier, learn=LEARN)
        self.note_removed(watch, "triggers wait until their windows are full")
        late = LateRecords(cli.tell)
        live = LiveWatch(watch, self.lag, note=cli.note, late=late)
        while not self.stopped:
            pause = live.step()
            self.save()
            self.check()
            if pause > 0 and not self.stopped:
                time.sleep(min(pause, 0.2))
        self.save(force=True)
        late.end()

    def save(self, *, force: bool = False) -> None:
        if self.kept is None:
            return
        now = time.monotonic()
        if (force or now - self._saved >= SAVE) and self.engine.clock != self._tick:
            self.kept.save(self.engine.clock, self.engine, force=force)
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
        if self.runner is not None:
            parts |= {"commands": self.runner.done, "failed": self.runner.failed}
        return ", ".join([*(f"{n} {what}" for what, n in parts.items()), f"{time.monotonic() - self._start:.2f} s"])


def lines(block: Block, schema: Any) -> Iterator[tuple[bytes, str]]:
    """(NDJSON line, name of the trigger) of each alert."""
    from confluo_tools.core.text.text_writer import Printer
    from confluo_tools.formats.text import printing_plan

    plan = printing_plan(schema, [f.name for f in schema.fields], "ndjson")
    text = Printer(schema.layout, plan, "ndjson").lines(block)
    name = schema.index("trigger")
    for row, line in enumerate(text.splitlines(keepends=True)):
        yield line, block.get(name, row).rstrip(b"\0").decode("utf-8", "replace")


def main(argv: Sequence[str] | None = None) -> int:
    return cli.run(app, "confluo-monitor", argv, owns_state=True)
