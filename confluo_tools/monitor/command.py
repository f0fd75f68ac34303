"""confluo-monitor: conditions over sliding windows of a MultiLog; alerts are records.  Manual: confluo-monitor(1)."""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from confluo_tools import cli, config
from confluo_tools.cli.options import option
from confluo_tools.errors import UsageError
from confluo_tools.monitor.inputs import default_alerts, opened

if TYPE_CHECKING:
    from confluo_tools.kafka.topic_spool import TopicSpool
    from confluo_tools.monitor.exec import CommandRunner
    from confluo_tools.monitor.host_logs import HostLogs
    from confluo_tools.monitor.language import Trigger
    from confluo_tools.monitor.notes import TriggerNotes
    from confluo_tools.monitor.run import MonitorRun
    from confluo_tools.monitor.webhook import HookAddress, WebhookSender
    from confluo_tools.multilog.log import Log
    from confluo_tools.multilog.query.derived_fields import Analysis
    from confluo_tools.schema import Schema

app = cli.command_app(
    """
# hosts that receive more than a gigabyte per second, checked every millisecond
confluo-monitor live.ml --trigger 'heavy: sum(len) > 1G over 1s every 1ms by dst_ip' -o ndjson

# the sum of two hosts, over ssh; a host that is missing is an alert of its own
confluo-monitor gw1:/var/log/live.ml gw2:/var/log/live.ml --trigger 'heavy: sum(len) > 10G over 10s'

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
LAG = "200ms"  # more than records of a capture were late on a loaded machine: bench/lag.tsv
EXEC_WAIT = 60.0  # seconds that a replay waits for its last commands; when following, fewer
EXEC_WAIT_LIVE = 5.0


@app.command(
    panels={
        "Options": "-t --triggers --check --once --alerts --exec",
        "Alerts": "--list --exec-max --webhook",
        "Time": "--since --until --wait --lag --host-wait --catch-up",
    }
)
def monitor(
    logs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="LOG...", help="MultiLogs, also of other hosts: HOST:PATH; or a topic of Kafka.", show_default=False
        ),
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
    host_wait: Annotated[
        str, option("--host-wait", metavar="TIME", help="Wait TIME for a host that does not answer (10s).")
    ] = "10s",
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
    metrics: cli.Metrics = None,
    webhook: Annotated[
        str | None, option("--webhook", metavar="URL", help="POST each alert to URL as JSON, until the server took it.")
    ] = None,
    analyze: cli.Analyze = None,
    analyze_flows: cli.AnalyzeFlows = None,
    *,
    out: cli.OutputOptions,
    common: cli.CommonOptions,
) -> int:
    """Report when a condition over a sliding window begins to hold, and when it ends.

    With several LOGs it is a condition on all of their records together.
    """
    if not logs:
        return cli.usage(app)
    from confluo_tools import units
    from confluo_tools.monitor.trigger_list import trigger_schema
    from confluo_tools.schema import builtin

    if out.listed(trigger_schema() if listing else builtin("alert")):
        return cli.OK
    local = config.truth("local", out.local)
    live = not once and since is None
    with ExitStack() as sources:
        given_input = sources.enter_context(opened(logs, trigger or [], triggers or [], live=live))
        source, spool, hosts = given_input.source, given_input.spool, given_input.hosts
        if hosts is not None and analyze:
            what = "needs the packets of one log of this host"
            raise UsageError(what, where="--analyze", hint="run a monitor where the log is")
        looked = analyses(source.schema, analyze, analyze_flows)
        schema = looked[-1].schema if looked else source.schema
        given = read_triggers(source, schema, trigger or [], triggers or [], local)
        found = given.triggers
        if listing or check:
            if listing:
                print_list(given, out)
            return cli.OK
        if until is not None and not (once or since is not None):
            raise UsageError("--until needs --since or --once", hint="without them, the log is followed")
        if once and since is not None:
            raise UsageError("--once and --since exclude each other")
        back = cli.duration("--catch-up", catch_up, 0)
        first = units.time(since, local=local) if since is not None else None
        path = alerts_path(logs, alerts, live=live)
        times: dict[str, Any] = {
            "lag": cli.duration("--lag", lag, 0),
            "catch_up": back,
            "patience": cli.duration("--wait", wait, 0) / 1e9 if wait is not None else 0.0,
        }
        from confluo_tools.monitor.run import MonitorRun

        if hosts is not None:
            from confluo_tools.monitor.hosts_run import HostsRun

            run: MonitorRun = HostsRun(hosts, found, path, host_wait=cli.duration("--host-wait", host_wait, 0), **times)
        else:
            assert given_input.log is not None
            remade = functools.partial(analyses, source.schema, analyze, analyze_flows)
            run = MonitorRun(given_input.log, found, path, remade, **times)
        run.notes.update(given.notes)
        words, hook = command_words(execute), None
        if (webhook or given.webhook) and not once:
            from confluo_tools.monitor.webhook import parse_address

            hook = parse_address(webhook or given.webhook, "--webhook" if webhook else "webhook")
            if run.path is None:
                raise UsageError("needs an alerts log: alerts wait in it", where="--webhook", hint="add --alerts PATH")
        if spool is not None:
            fill(spool, found, first, live=live, back=back if run.path is not None and os.path.exists(run.path) else 0)
            run.check = spool.check
        with ExitStack() as stack:
            run.open(stack)
            schema = run.alerts.schema
            run.out = stack.enter_context(out.records(schema, out.kind(), out.names(schema)))
            if words:
                run.runner = stack.enter_context(running(words, exec_max, live=live))
            if metrics is not None:
                run.serve(metrics, stack)
            if hook is not None:
                run.sender = stack.enter_context(sending(run, hook, live=live))
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


class TriggersGiven(NamedTuple):
    """The triggers of a command line, the ``notes`` of those that have some, by name, and the webhook of a file."""

    triggers: list[Trigger]
    notes: dict[str, TriggerNotes]
    webhook: str


def read_triggers(
    log: Log | HostLogs, schema: Schema, texts: list[str], files: list[str], local: bool = False
) -> TriggersGiven:
    """All triggers of the command line and of files, parsed; UsageError for an invalid one or a duplicate name.

    ``local``: their times without a zone are local times.
    """
    from confluo_tools.expr.syntax import ExprError
    from confluo_tools.monitor.host_logs import HostLogs
    from confluo_tools.monitor.language import parse_trigger
    from confluo_tools.monitor.trigger_files import TriggerEntry, named_views, read_trigger_file
    from confluo_tools.multilog.views import named_filters

    views, filters = (log.views, log.filters) if isinstance(log, HostLogs) else (named_views(log), named_filters(log))
    given = TriggersGiven([], {}, "")
    names: set[str] = set()
    read = [(f, read_trigger_file(f)) for f in files]
    for f, found in read:
        if found.webhook and given.webhook not in ("", found.webhook):
            raise UsageError("names another webhook than the file before", where=f, hint="use one for all")
        given = given._replace(webhook=found.webhook or given.webhook)
    for entry in [*(TriggerEntry("", t) for t in texts), *(entry for _, found in read for entry in found.entries)]:
        try:
            one = parse_trigger(entry.text, schema, views, filters, local=local)
        except ExprError as e:
            if entry.where:
                e.where = f"{entry.where}, {e.where}"
            raise
        if one.name in names:
            raise UsageError(f"two triggers are called '{one.name}'", where=entry.where)
        names.add(one.name)
        given.triggers.append(one)
        if entry.notes is not None:
            given.notes[one.name] = entry.notes
    if not given.triggers:
        raise UsageError("no trigger", hint="--trigger 'heavy: sum(len) > 1G over 1s', or --triggers FILE")
    return given


def print_list(given: TriggersGiven, out: cli.OutputOptions) -> None:
    """Write the triggers as records; a table without --wide has the parts that one of them has."""
    from confluo_tools.monitor.trigger_list import records_of, trigger_schema

    schema, rows = trigger_schema(), records_of(given.triggers, given.notes)
    kind = out.kind(answers=True)
    names = out.names(schema, kind, [f.name for f in schema.fields if any(f.name in row for row in rows)])
    out.write_rows(schema, kind, names, rows)


def alerts_path(logs: Sequence[str], given: str | None, *, live: bool) -> str | None:
    """The path of the alerts log: as given; else, if logs are followed, the default; else None."""
    if given is not None:
        return None if given == "none" else given
    return default_alerts(logs) if live else None


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


@contextmanager
def sending(run: MonitorRun, address: HookAddress, *, live: bool) -> Iterator[WebhookSender]:
    """Sends alerts in the background; at the end it waits for the server for a while."""
    from confluo_tools.monitor.run import alert_lines
    from confluo_tools.monitor.webhook import WebhookSender

    assert run.kept is not None
    sender = WebhookSender(address, run.kept.log, alert_lines(run), cli.tell)
    try:
        yield sender
    finally:
        run.kept.flush()
        left = sender.finish(EXEC_WAIT_LIVE if live else EXEC_WAIT)
        if left:
            cli.note(f"{left} alerts wait for {address.shown}: the next run sends them", where="--webhook")
        if sender.dropped or sender.refused:
            what = f"{sender.dropped} alerts were dropped, {sender.refused} were refused by the server"
            cli.warn(what, where="--webhook")


def main(argv: Sequence[str] | None = None) -> int:
    return cli.run(app, "confluo-monitor", argv, owns_state=True)
