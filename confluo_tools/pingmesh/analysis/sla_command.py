"""confluo-pingmesh sla: drop rate and latency with intervals, and alerts.  Manual: confluo-pingmesh-sla(1)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated, Any

from confluo_tools import cli
from confluo_tools.cli.options import option
from confluo_tools.errors import UsageError
from confluo_tools.pingmesh.analysis.window_options import RetrySignature, RuleTexts, Where, WindowOptions, zoned

if TYPE_CHECKING:
    from confluo_tools.core.block.block import Block
    from confluo_tools.pingmesh.analysis.follow import ProbeSource, WindowOutput
    from confluo_tools.pingmesh.analysis.grouping import Scope
    from confluo_tools.pingmesh.analysis.probe_tally import Cell, Key, WindowTally
    from confluo_tools.pingmesh.analysis.sla import Hysteresis, Rule, RuleResult
    from confluo_tools.schema import Field, Schema

app = cli.command_app(
    """
# drop rate, P50 and P99 of each podset, every ten minutes
confluo-pingmesh sla probes.ml --by podset --window 10m

# the ten worst pairs of pods by P99
confluo-pingmesh sla probes.ml --by pod_pair --top 10 --metric p99

# alerts of services as records; the topology lists their servers
confluo-pingmesh sla probes.ml --by service --topology topology.yaml --window 10m --alerts -o ndjson

# follow the log; write alerts to another log
confluo-pingmesh sla probes.ml --by dc --window 1m --follow
confluo-pingmesh sla probes.ml --by podset --window 10m --follow --alerts -w alarms.ml --append

# records of other programs, without TCP_INFO: infer drops from connection times
confluo-pingmesh sla other.csv --signature windows
"""
)

EXACT = 512  # maximum samples of exact quantiles
REMEMBERED = 6  # windows without probes after which a group is forgotten
METRICS = ("drop", "failed", "p50", "p99", "p999")
SHOWN = ("probes", "drop_rate", "drop_low", "drop_high", "failed", "p50", "p99", "state", "why")
STATES = {1: "ok", 2: "bad", 3: "not_enough_probes", 4: "no_probes", 5: "no_answers"}
COUNTS = (
    "probes",
    "ok",
    "dropped",
    "overflow",
    "failed",
    "timeout",
    "refused",
    "unreachable",
    "reset",
    "garbled",
    "local",
    "forward",
    "reverse",
    "slow",
    "samples",
)
TIMES = ("p50", "p50_low", "p50_high", "p99", "p99_low", "p99_high", "p999", "seen50", "seen99")


class SlaWindowOptions(WindowOptions):
    """Window options with a shorter lateness: sla only waits for retries and answers."""

    lateness: Annotated[
        str | None, option("--lateness", metavar="TIME", help="--follow: wait for late records up to TIME (15s).")
    ] = None

    usual_lateness = "15s"


@app.command(
    panels={
        "Options": "--by --window --rule --alerts --follow --top",
        "Filtering": "-e --as",
        "Analysis": "--background --false-alarm --power --topology --signature --metric --engine",
        "Alerts": "--raise --calm",
        "Time": "--lateness",
    }
)
def sla(
    inputs: cli.Inputs = None,
    by: Annotated[
        str,
        option(
            "--by", metavar="SCOPE", help="Group by all, server, pod, podset, dc, service, X_pair or fields (podset)."
        ),
    ] = "podset",
    side: Annotated[
        str, option("--as", metavar="SIDE", help="Count the probes that X sent (source) or received (target).")
    ] = "source",
    where: Where = "",
    rule: RuleTexts = None,
    background: Annotated[
        str | None, option("--background", metavar="RATE", help="Drop rate of a healthy network (threshold / 10).")
    ] = None,
    false_alarm: Annotated[
        str | None, option("--false-alarm", metavar="P", help="False alarm probability per group and window (1e-6).")
    ] = None,
    power: Annotated[
        str | None, option("--power", metavar="P", help="Power required to detect twice the threshold (0.9).")
    ] = None,
    alerts: Annotated[bool, option("--alerts", help="Print alerts that begin or end instead of windows.")] = False,
    raised: Annotated[
        int, option("--raise", metavar="N", min=1, help="--alerts: begin after N bad windows in a row (1).")
    ] = 1,
    calmed: Annotated[
        int, option("--calm", metavar="N", min=1, help="--alerts: end after N calm windows in a row (2).")
    ] = 2,
    topology: Annotated[
        str | None, option("--topology", metavar="FILE", help="--by service: file that lists the servers.")
    ] = None,
    signature: RetrySignature = None,
    top: Annotated[
        int | None, option("--top", metavar="N", min=1, help="Print only the N worst rows of each window.")
    ] = None,
    metric: Annotated[
        str, option("--metric", metavar="WHAT", help="--top: rank by drop, failed, p50, p99 or p999 (drop).")
    ] = "drop",
    *,
    engine: cli.Engine = None,
    windows: SlaWindowOptions,
    ins: cli.InputOptions,
    period: cli.PeriodOptions,
    out: cli.LogOptions,
    common: cli.CommonOptions,
) -> int:
    """Print drop rate (from retries of the kernel), P50 and P99 of probes by group and window, and judge them by rules.

    INPUT contains probe records: of confluo-pingmesh probe, agent and simulate, or of other programs.
    """
    from confluo_tools.pingmesh.analysis import follow as following
    from confluo_tools.pingmesh.analysis import grouping
    from confluo_tools.pingmesh.analysis.probe_tally import WindowTally
    from confluo_tools.pingmesh.analysis.sla import SIGNATURES, retry_signature
    from confluo_tools.schema import builtin

    probe = builtin("probe")
    scope = grouping.Scope(by, side, probe)
    schema = builtin("alert") if alerts else rows_schema(scope, probe)
    if out.listed(schema):
        return cli.OK
    cli.one_of("--metric", metric, METRICS)
    if signature is not None:
        cli.one_of("--signature", signature, SIGNATURES)
    rules = grouping.parse_rules(rule or grouping.RULES, background=background, false_alarm=false_alarm, power=power)
    length, lateness = windows.lengths()
    if alerts and top:
        raise UsageError("--alerts and --top exclude each other")
    if ins.missing(inputs, windows.follow):
        return cli.usage(app)
    report = SlaReport(scope, schema, rules, top=top, metric=metric, alerts=(raised, calmed) if alerts else None)
    if scope.service:
        report.services = grouping.services(grouping.fleet_of(topology, "--by service"))
    span, where = period.span(out.local), zoned(where, out.local)
    kind = out.kind(answers=True)
    names = out.names(schema, kind, [] if alerts else [*(["ts"] if length else []), *scope.names, *SHOWN])
    expr = scope.where(where)
    with ExitStack() as stack:
        source = stack.enter_context(
            following.ProbeSource(
                inputs or [],
                ins,
                windows.follow,
                engine=engine,
                request=grouping.query_request(expr, *span),
                schema=probe,
            )
        )
        tally = WindowTally(
            source.schema,
            scope.by,
            window=length,
            limits=grouping.limits_of(rules),
            signature=retry_signature(signature) if signature is not None else (),
            where=source.name,
        )
        output = following.WindowOutput(
            out.open(schema, kind, names, metadata=source.metadata),
            stack,
            follow=windows.follow,
            memory=report.memory,
            options={
                "--alerts": alerts,
                "--by": by,
                "--as": side,
                "--window": following.length_of(length),
                "-e": where,
            },
        )
        run(source, tally, expr, span, report, output, lateness)
    print_notes(tally, source, common.stats)
    return source.status(report.found)


def run(
    source: ProbeSource,
    tally: WindowTally,
    where: str,
    span: tuple[int | None, int | None],
    report: SlaReport,
    output: WindowOutput,
    lateness: int,
) -> None:
    """Count probes, and write the rows of each window."""
    from confluo_tools.pingmesh.analysis.follow import follow_windows
    from confluo_tools.pingmesh.analysis.probe_tally import probe_filter

    since, until = span
    if not source.follow:
        assert source.reader is not None
        tally.read(source.reader, where, since, until)
        for start in tally.windows():
            output.write(report.blocks(tally, start), 0)
            if tally.window:
                tally.pop(start)
        return
    select = probe_filter(source.schema, where, source.filters).within(output.since(since), until).program.select
    report.restore(output.restored())
    follow_windows(source, output, tally, select, lambda start: report.blocks(tally, start), lateness)


def rows_schema(scope: Scope, probe: Schema) -> Schema:
    """The fields of a row: group, counts, rates, quantiles and state."""
    from confluo_tools.schema import Field, Schema

    def rate(name: str, about: str) -> Field:
        return Field(name, "f64", "", about)

    keys: list[Field] = []
    for name, field in zip(scope.names, scope.by, strict=False):
        f = probe[field]
        keys.append(
            Field(name, "text(32)", "", "service that the servers belong to")
            if scope.service
            else Field(name, f.type, f.unit, f.description, f.names, "")
        )
    about = {
        "probes": "probes sent",
        "ok": "answered",
        "dropped": "answered after a SYN retransmission",
        "overflow": "the same, but dropped by the target's host",
        "failed": "not answered",
        "timeout": "failed: no answer",
        "refused": "failed: connection refused",
        "unreachable": "failed: destination unreachable",
        "reset": "failed: connection reset",
        "garbled": "failed: unexpected answer",
        "local": "could not be sent; in no rate",
        "forward": "of dropped, those with a hint that the request was lost",
        "reverse": "of dropped, those with a hint that the answer was lost",
        "slow": "--signature: slow, but not by the time of a retransmission",
        "samples": "round-trip times",
    }
    times = {
        "p50": "median of round-trip times",
        "p99": "99th percentile of round-trip times",
        "p999": "99.9th percentile of round-trip times",
        "seen50": "median as measured by the program, with delays of its host",
        "seen99": "99th percentile as measured by the program",
    }
    low, high = "lower bound, 95 % (0: unknown)", "upper bound, 95 % (0: unknown)"
    return Schema(
        "sla",
        [
            Field("ts", "time", "ns", "start of the window"),
            Field("window", "duration", "ns", "length of the window"),
            *keys,
            *[Field(name, "u64", "probes", about[name]) for name in COUNTS],
            rate("drop_rate", "dropped / ok; nan: none answered"),
            rate("drop_low", "lower bound, 95 % (Wilson)"),
            rate("drop_high", "upper bound, 95 % (Wilson)"),
            rate("failed_rate", "failed / probes"),
            *[Field(n, "duration", "ns", times.get(n) or (low if n.endswith("low") else high)) for n in TIMES],
            rate("host_share", "share of the time spent in the prober's host; nan: unknown"),
            Field(
                "state",
                "enum",
                "",
                "result of the rules; not_enough_probes: too few to detect twice the threshold",
                names=STATES,
            ),
            Field("why", "text(48)", "", "metrics of the rules with this result"),
            Field("needed", "u64", "probes", "dropped probes from which the drop rule is bad"),
        ],
        "Probe results by group and window.",
    )


class SlaReport:
    """Rows of each window, or alerts."""

    def __init__(
        self,
        scope: Scope,
        schema: Schema,
        rules: Sequence[tuple[str, Rule]],
        *,
        top: int | None,
        metric: str,
        alerts: tuple[int, int] | None,
    ) -> None:
        from confluo_tools.pingmesh.analysis.sla import Hysteresis

        self.scope, self.schema, self.rules, self.top, self.metric = scope, schema, rules, top, metric
        self.services: dict[str, tuple[str, ...]] = {}
        self.alarms: list[Hysteresis] = [] if alerts is None else [Hysteresis(*alerts) for _ in rules]
        self.found = 0
        self._seen: dict[Key, int] = {}  # {group: last window with probes}
        self._windows = 0

    def blocks(self, tally: WindowTally, window: int) -> Iterator[Block]:
        """The records of one window; call in the order of time."""
        cells = tally.cells(window, self.scope.unions(tally, window, self.services))
        length = tally.window or tally.newest + 1 - cells.start
        rows = sorted([*cells, *self._silent(cells.keys)], key=lambda pair: pair[0])
        if self.alarms:
            yield from self._alerts(cells.start + length, length, rows)
            return
        if self.top is not None:
            rows = sorted(rows, key=lambda pair: -self._rank(pair[1]))[: self.top]
        yield from self._rows(cells.start, length, rows)

    def memory(self) -> dict[str, Any]:
        """The state that later windows depend on, as JSON values."""
        alarms = [[text, alarms.memory()] for (text, _), alarms in zip(self.rules, self.alarms, strict=False)]
        return {"alarms": alarms, "windows": self._windows, "seen": [[list(k), n] for k, n in self._seen.items()]}

    def restore(self, memory: dict[str, Any] | None) -> None:
        """Continue from the `memory` of an earlier run; alerts of removed rules are forgotten."""
        if memory is None:
            return
        known = dict(memory["alarms"])
        for (text, _), alarms in zip(self.rules, self.alarms, strict=False):
            alarms.restore(known.get(text, ()))
        self._windows = memory["windows"]
        self._seen = {tuple(key): n for key, n in memory["seen"]}

    def _silent(self, keys: Sequence[Key]) -> list[tuple[Key, Cell]]:
        """Empty cells for the groups that had probes in the last windows, but have none in this one."""
        from confluo_tools.pingmesh.analysis.probe_tally import Cell

        self._windows += 1
        self._seen.update(dict.fromkeys(keys, self._windows))
        if len(self._seen) == len(keys):
            return []
        self._seen = {key: last for key, last in self._seen.items() if self._windows - last <= REMEMBERED}
        return [(key, Cell()) for key, last in self._seen.items() if last < self._windows]

    def _rank(self, cell: Cell) -> float:
        from confluo_tools.pingmesh.analysis.sla import finite, wilson

        if self.metric == "drop":  # the lower bound, so that one drop of three probes is not the worst
            return wilson(cell.dropped, cell.ok)[0] if cell.ok else -1.0
        if self.metric == "failed":
            return wilson(cell.failed, cell.probes)[0] if cell.probes else -1.0
        return finite(getattr(cell, self.metric), -1.0)

    def _rows(self, start: int, length: int, rows: list[tuple[Key, Cell]]) -> Iterator[Block]:
        from operator import attrgetter

        from confluo_tools.formats.block_builder import blocks_of
        from confluo_tools.pingmesh.analysis.sla import state_of, wilson

        codes = {name: code for code, name in STATES.items()}
        n = len(rows)
        cells = [cell for _, cell in rows]
        columns: dict[str, list[Any]] = {"ts": [start] * n, "window": [length] * n}
        for i, name in enumerate(self.scope.names):
            columns |= _key_columns(self.schema, name, [key[i] for key, _ in rows])
        columns |= {name: list(map(attrgetter(name), cells)) for name in COUNTS}
        columns |= {
            name: [_duration(v, c) for v, c in zip(map(attrgetter(name), cells), columns["samples"], strict=True)]
            for name in TIMES
        }
        between = [wilson(c.dropped, c.ok) for c in cells]
        rates = {
            "drop_rate": [c.drop_rate for c in cells],
            "failed_rate": [c.failed_rate for c in cells],
            "drop_low": [low for low, _ in between],
            "drop_high": [high for _, high in between],
            "host_share": [c.host_share for c in cells],
        }
        columns |= {name: [float(f"{value:.4g}") for value in values] for name, values in rates.items()}
        judged = [[rule.judge(c) for _, rule in self.rules] for c in cells]
        states = [state_of(j) for j in judged]
        columns["state"] = [codes[s] for s in states]
        columns["why"] = [self._why(s, j) for s, j in zip(states, judged, strict=True)]
        drop = next((rule for _, rule in self.rules if rule.metric == "drop"), None)
        columns["needed"] = [drop.test.needed(c.ok) if drop is not None and c.ok else 0 for c in cells]
        self.found += n
        yield from blocks_of(self.schema, columns, n)

    def _why(self, state: str, judged: list[RuleResult]) -> str:
        if state == "ok":
            return ""
        return ",".join(rule.metric for (_, rule), j in zip(self.rules, judged, strict=True) if j.state == state)

    def _alerts(self, tick: int, length: int, rows: list[tuple[Key, Cell]]) -> Iterator[Block]:
        from hashlib import blake2b
        from os import uname

        from confluo_tools.formats.block_builder import blocks_of
        from confluo_tools.pingmesh.analysis.sla import CLEAR, FIRE, REPEAT, wilson

        events = {FIRE: 1, CLEAR: 2, REPEAT: 3}
        columns: dict[str, list[Any]] = {}
        n = 0
        for (text, rule), alarms in zip(self.rules, self.alarms, strict=True):
            for key, cell in rows:
                judged = rule.judge(cell)
                alarm = alarms.feed(key, tick, judged)
                if alarm is None or alarm.event == REPEAT:
                    continue
                n += 1
                name = " ".join(f"{a}={b}" for a, b in zip(self.scope.names, key, strict=True))
                low, high = wilson(judged.hits, judged.n)
                values = {
                    "ts": tick,
                    "trigger": rule.metric,
                    "event": events[alarm.event],
                    "value": judged.value,
                    "threshold": rule.threshold,
                    "rows": judged.n,
                    "window": length,
                    "lasted": alarm.lasted,
                    "key": name,
                    "values": [float(judged.hits), float(judged.n), float(judged.needed), low, high],
                    "condition": text,
                    "host": uname().nodename,
                    "key_id": int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "little"),
                }
                for column, value in values.items():
                    columns.setdefault(column, []).append(value)
        self.found += n
        yield from blocks_of(self.schema, columns, n)


def _duration(ns: float, samples: int) -> int:
    # Four digits of values known within 0.4 %; 0 for nan.
    if ns != ns:
        return 0
    return int(ns) if samples <= EXACT else round(float(f"{ns:.4g}"))


def _key_columns(schema: Schema, name: str, values: list[Any]) -> dict[str, list[Any]]:
    # An address has two columns.
    if schema[name].type.kind != "ip":
        return {name: values}
    from confluo_tools import units
    from confluo_tools.schema import fold6

    four, six = [], []
    for text in values:
        version, value = units.ip(text) if text else (4, 0)
        raw = value.to_bytes(16, "big") if version == 6 else bytes(16)
        four.append(fold6(raw) if version == 6 else value)
        six.append(raw)
    return {name: four, f"{name}6": six}


def print_notes(tally: WindowTally, source: ProbeSource, stats: bool) -> None:
    """Print what was left out, and counts."""
    if tally.unknown:
        hint = "for records of other programs, --signature guesses retries and outcomes"
        cli.warn(f"{tally.unknown} records have no kind or outcome", where=source.name, hint=hint)
    if tally.crowded and not cli.state.quiet:
        cli.note(f"{tally.crowded} drops beyond a million in a window were not compared with overflows of targets")
    if stats:
        cli.note(f"{tally.probes} probes")


def main(argv: list[str] | None = None) -> int:
    return cli.run(app, "confluo-pingmesh sla", argv)
