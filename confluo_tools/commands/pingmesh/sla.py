"""confluo-pingmesh sla: drop rate and latency with intervals, and alarms.  Manual: confluo-pingmesh-sla(1)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated, Any

from confluo_tools import cli
from confluo_tools.cli.options import option
from confluo_tools.commands.pingmesh.windows import Where, WindowOptions
from confluo_tools.errors import UsageError

if TYPE_CHECKING:
    from confluo_tools.algo.sla import Hysteresis, Judged, Rule
    from confluo_tools.commands.pingmesh.following import Ledger, Source
    from confluo_tools.commands.pingmesh.scopes import Scope
    from confluo_tools.core.block import Block
    from confluo_tools.schema import Field, Schema
    from confluo_tools.store.mesh import Cell, Key, Mesh

app = cli.command_app(
    """
# drop rate, P50, P99 of each podset, every ten minutes
confluo-pingmesh sla probes.ml --by podset --window 10m

# the ten worst pairs of pods by P99
confluo-pingmesh sla probes.ml --by pod_pair --top 10 --metric p99

# of services, whose servers the topology names; alarms as records
confluo-pingmesh sla probes.ml --by service --topology topology.yaml --window 10m --alerts -o ndjson

# as probes come in; alarms into a log of their own
confluo-pingmesh sla probes.ml --by dc --window 1m --follow
confluo-pingmesh sla probes.ml --by podset --window 10m --follow --alerts -w alarms.ml --append

# records of others, without TCP_INFO: drops by connection times
confluo-pingmesh sla other.csv --signature windows
"""
)

EXACT = 512  # samples up to which quantiles are
REMEMBERED = 6  # windows that a group may be silent before it is forgotten
METRICS = ("drop", "failed", "p50", "p99", "p999")
SHOWN = ("probes", "drop_rate", "drop_low", "drop_high", "failed", "p50", "p99", "state", "why")
STATES = {1: "ok", 2: "bad", 3: "not_enough_probes", 4: "no_probes", 5: "no_answers"}
COUNTS = ("probes", "ok", "dropped", "overflow", "failed", "timeout", "refused", "unreachable", "reset", "garbled",
          "local", "forward", "reverse", "slow", "samples")  # fmt: skip
TIMES = ("p50", "p50_low", "p50_high", "p99", "p99_low", "p99_high", "p999", "seen50", "seen99")


class Windows(WindowOptions):
    """The same; only retries and answers are waited for."""

    lateness: Annotated[
        str, option("--lateness", metavar="TIME", help="--follow: how late records may be (15s).")
    ] = "15s"


@app.command()
def sla(
    inputs: cli.Inputs = None,
    by: Annotated[
        str, option("--by", metavar="SCOPE", help="all, server, pod, podset, dc, service, X_pair, fields (podset).")
    ] = "podset",
    side: Annotated[
        str, option("--as", metavar="SIDE", help="Of X: the probes it sent (source), or it got (target).")
    ] = "source",
    where: Where = "",
    rule: Annotated[
        list[str] | None,
        option("--rule", metavar="RULE", help="What is bad (repeatable; 'drop > 1e-3', 'p99 > 5ms')."),
    ] = None,
    background: Annotated[
        str | None, option("--background", metavar="RATE", help="Drop rate of a good network (threshold / 10).")
    ] = None,
    false_alarm: Annotated[
        str | None, option("--false-alarm", metavar="P", help="Chance of one for a group and a window (1e-6).")
    ] = None,
    power: Annotated[
        str | None, option("--power", metavar="P", help="Enough probes find twice the threshold so likely (0.9).")
    ] = None,
    alerts: Annotated[bool, option("--alerts", help="Print alarms that begin and end, not the windows.")] = False,
    raised: Annotated[
        int, option("--raise", metavar="N", min=1, help="--alerts: after N bad windows in a row (1).")
    ] = 1,
    calmed: Annotated[
        int, option("--calm", metavar="N", min=1, help="--alerts: over after N calm windows in a row (2).")
    ] = 2,
    topology: Annotated[
        str | None, option("--topology", metavar="FILE", help="--by service: whose servers they are.")
    ] = None,
    signature: Annotated[
        str | None,
        option("--signature", metavar="OS", help="Guess retries from times: linux, linux-classic or windows."),
    ] = None,
    top: Annotated[int | None, option("--top", metavar="N", min=1, help="The N worst rows of each window.")] = None,
    metric: Annotated[
        str, option("--metric", metavar="WHAT", help="--top: by drop, failed, p50, p99 or p999 (drop).")
    ] = "drop",
    *,
    windows: Windows,
    ins: cli.InputOptions,
    period: cli.PeriodOptions,
    out: cli.LogOptions,
    common: cli.CommonOptions,
) -> int:
    """Drop rate (by retries of the kernel), P50 and P99 of probes by group and window, and whether they are good.

    INPUT holds probe records: of confluo-pingmesh probe, agent and simulate, or of other programs.
    """
    from confluo_tools.algo.sla import SIGNATURES
    from confluo_tools.commands.pingmesh import following, scopes
    from confluo_tools.schema import builtin

    probe = builtin("probe")
    scope = scopes.Scope(by, side, probe)
    schema = builtin("alert") if alerts else rows_schema(scope, probe)
    if out.listed(schema):
        return cli.OK
    cli.one_of("--metric", metric, METRICS)
    if signature is not None:
        cli.one_of("--signature", signature, SIGNATURES)
    rules = scopes.parse_rules(
        rule or scopes.RULES, background=background, false_alarm=false_alarm, power=power
    )
    length, patience = windows.lengths()
    if alerts and top:
        raise UsageError("--alerts and --top exclude each other")
    if ins.missing(inputs, windows.follow):
        return cli.usage(app)
    work = Work(scope, schema, rules, top=top, metric=metric, alerts=(raised, calmed) if alerts else None)
    if scope.service:
        work.services = scopes.services(scopes.fleet_of(topology, "--by service"))
    span = period.span(out.local)
    kind = out.kind(answers=True)
    names = out.names(schema, kind, [] if alerts else [*(["ts"] if length else []), *scope.names, *SHOWN])
    asked = Asked(scope, length, where, span, scopes.limits_of(rules), signature)
    with ExitStack() as stack:
        source = stack.enter_context(following.Source(
            inputs or [], ins, windows.follow, wish=scopes.wish(asked.where, *span), schema=probe,
        ))  # fmt: skip
        into = out.open(schema, kind, names, metadata=source.metadata)
        stack.enter_context(into)
        ledger = following.Ledger(
            into, stack, follow=windows.follow, memory=work.memory,
            asked={"--alerts": alerts, "--by": by, "--as": side, "--window": following.length_of(length),
                   "-e": where},
        )  # fmt: skip
        mesh = run(source, asked, work, ledger, patience)
    tell(mesh, source, common.stats)
    if source.stopped:
        return 128 + source.stopped
    return cli.OK if work.found else cli.NOTHING


class Asked:
    """What is counted: the arguments of a `Mesh`."""

    def __init__(
        self, scope: Scope, window: int, where: str, span: tuple[int | None, int | None], limits: Sequence[int],
        signature: str | None,
    ) -> None:  # fmt: skip
        from confluo_tools.algo import sla as algo

        self.scope, self.window, self.where, self.span = scope, window, scope.where(where), span
        self.more: dict[str, Any] = {
            "limits": limits, "signature": algo.signature(signature) if signature is not None else (),
        }  # fmt: skip


def run(source: Source, asked: Asked, work: Work, ledger: Ledger, lateness: int) -> Mesh:
    """Count, and write what ``work`` makes of each window."""
    from confluo_tools.commands.pingmesh.following import Follower
    from confluo_tools.store import mesh as tally

    by = asked.scope.by
    since, until = asked.span
    if not source.follow:
        assert source.reader is not None
        mesh = tally.read(
            source.reader, by, window=asked.window, where=asked.where, since=since, until=until, **asked.more
        )
        for start in mesh.windows():
            ledger.tell(work.blocks(mesh, start), 0)
            if mesh.window:
                mesh.pop(start)
        return mesh
    mesh = tally.Mesh(source.schema, by, window=asked.window, where=source.name, **asked.more)
    expr = tally.chosen(source.schema, asked.where, source.filters).within(ledger.since(since), until)
    follower = Follower(mesh, lateness, lambda start: ledger.tell(work.blocks(mesh, start), start + mesh.window),
                        ledger.idle, ledger.after)  # fmt: skip
    work.restore(ledger.restored())
    ledger.begin()
    source.run(follower, expr.program.select, lambda: f"{mesh.probes} probes", finish=not ledger.keeps)
    ledger.idle()
    return mesh


def rows_schema(scope: Scope, probe: Schema) -> Schema:
    """The fields of the answer."""
    from confluo_tools.schema import Field, Schema

    def rate(name: str, about: str) -> Field:
        return Field(name, "f64", "", about)

    keys: list[Field] = []
    for name, of in zip(scope.names, scope.by, strict=False):
        f = probe[of]
        keys.append(Field(name, "text(32)", "", "service whose servers these are") if scope.service
                    else Field(name, f.type, f.unit, f.description, f.names, ""))  # fmt: skip
    about = {
        "probes": "probes that were sent", "ok": "answered",
        "dropped": "answered after the kernel had sent a SYN again", "overflow": "the same, by the target's host",
        "failed": "not answered", "timeout": "failed: no answer", "refused": "failed: connection refused",
        "unreachable": "failed: no way there", "reset": "failed: connection reset",
        "garbled": "failed: another answer than asked for", "local": "could not be sent: nobody's",
        "forward": "of dropped, those with a hint that it was on the way there",
        "reverse": "of dropped, those with a hint that it was on the way back",
        "slow": "--signature: took long, but not as a drop does", "samples": "round-trip times",
    }  # fmt: skip
    times = {
        "p50": "median of round-trip times", "p99": "99 % of round-trip times are at most this",
        "p999": "99.9 % are at most this", "seen50": "median as the program saw it, its host's delays included",
        "seen99": "P99 as the program saw it",
    }
    low, high = "95 % sure it is not less (0: cannot be said)", "95 % sure it is not more (0: cannot be said)"
    return Schema("sla", [
        Field("ts", "time", "ns", "start of the window"),
        Field("window", "duration", "ns", "length of the window"),
        *keys,
        *[Field(name, "u64", "probes", about[name]) for name in COUNTS],
        rate("drop_rate", "dropped by answered; nan: none was"),
        rate("drop_low", "95 % sure it is not less (Wilson)"), rate("drop_high", "95 % sure it is not more"),
        rate("failed_rate", "failed by sent"),
        *[Field(n, "duration", "ns", times.get(n) or (low if n.endswith("low") else high)) for n in TIMES],
        rate("host_share", "share of the time that went by in the prober's host; nan: not known"),
        Field("state", "enum", "", "what the rules say; not_enough_probes: so few cannot show twice the threshold",
              names=STATES),
        Field("why", "text(48)", "", "the rules that say so"),
        Field("needed", "u64", "probes", "dropped probes that would have been too many (of a rule about drops)"),
    ], "What probes met, by group and window.")  # fmt: skip


class Work:
    """What becomes of each window: rows, or alarms."""

    def __init__(
        self, scope: Scope, schema: Schema, rules: Sequence[tuple[str, Rule]], *, top: int | None, metric: str,
        alerts: tuple[int, int] | None,
    ) -> None:  # fmt: skip
        from confluo_tools.algo.sla import Hysteresis

        self.scope, self.schema, self.rules, self.top, self.metric = scope, schema, rules, top, metric
        self.services: dict[str, tuple[str, ...]] = {}
        self.alarms: list[Hysteresis] = [] if alerts is None else [Hysteresis(*alerts) for _ in rules]
        self.found = 0
        self._seen: dict[Key, int] = {}  # the last window that a group had probes in
        self._windows = 0

    def blocks(self, mesh: Mesh, window: int) -> Iterator[Block]:
        """The records about one window; windows come in the order of time."""
        tallied = mesh.tallied(window, self.scope.unions(mesh, window, self.services))
        length = mesh.window or mesh.newest + 1 - tallied.start
        rows = sorted([*tallied, *self._silent(tallied.keys)], key=lambda pair: pair[0])
        if self.alarms:
            yield from self._alerts(tallied.start + length, length, rows)
            return
        if self.top is not None:
            rows = sorted(rows, key=lambda pair: -self._worth(pair[1]))[: self.top]
        yield from self._rows(tallied.start, length, rows)

    def memory(self) -> dict[str, Any]:
        """What windows to come depend on, as JSON has it."""
        alarms = [[text, alarms.memory()] for (text, _), alarms in zip(self.rules, self.alarms, strict=False)]
        return {"alarms": alarms, "windows": self._windows, "seen": [[list(k), n] for k, n in self._seen.items()]}

    def restore(self, memory: dict[str, Any] | None) -> None:
        """Go on where the run was that had this `memory`; alarms of rules that are no more are forgotten."""
        if memory is None:
            return
        known = dict(memory["alarms"])
        for (text, _), alarms in zip(self.rules, self.alarms, strict=False):
            alarms.restore(known.get(text, ()))
        self._windows = memory["windows"]
        self._seen = {tuple(key): n for key, n in memory["seen"]}

    def _silent(self, keys: Sequence[Key]) -> list[tuple[Key, Cell]]:
        """Groups that had probes in the windows before this one, and have none now."""
        from confluo_tools.store.mesh import Cell

        self._windows += 1
        self._seen.update(dict.fromkeys(keys, self._windows))
        if len(self._seen) == len(keys):
            return []
        self._seen = {key: last for key, last in self._seen.items() if self._windows - last <= REMEMBERED}
        return [(key, Cell()) for key, last in self._seen.items() if last < self._windows]

    def _worth(self, cell: Cell) -> float:
        from confluo_tools.algo.sla import finite, wilson

        if self.metric == "drop":  # what is sure, so that one drop of three probes is not the worst
            return wilson(cell.dropped, cell.ok)[0] if cell.ok else -1.0
        if self.metric == "failed":
            return wilson(cell.failed, cell.probes)[0] if cell.probes else -1.0
        return finite(getattr(cell, self.metric), -1.0)

    def _rows(self, start: int, length: int, rows: list[tuple[Key, Cell]]) -> Iterator[Block]:
        from operator import attrgetter

        from confluo_tools.algo.sla import state_of, wilson
        from confluo_tools.formats.build import blocks_of

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
        }  # fmt: skip
        between = [wilson(c.dropped, c.ok) for c in cells]
        rates = {
            "drop_rate": [c.drop_rate for c in cells], "failed_rate": [c.failed_rate for c in cells],
            "drop_low": [low for low, _ in between], "drop_high": [high for _, high in between],
            "host_share": [c.host_share for c in cells],
        }  # fmt: skip
        columns |= {name: [float(f"{value:.4g}") for value in values] for name, values in rates.items()}
        judged = [[rule.judge(c) for _, rule in self.rules] for c in cells]
        states = [state_of(j) for j in judged]
        columns["state"] = [codes[s] for s in states]
        columns["why"] = [self._why(s, j) for s, j in zip(states, judged, strict=True)]
        drop = next((rule for _, rule in self.rules if rule.metric == "drop"), None)
        columns["needed"] = [drop.test.needed(c.ok) if drop is not None and c.ok else 0 for c in cells]
        self.found += n
        yield from blocks_of(self.schema, columns, n)

    def _why(self, state: str, judged: list[Judged]) -> str:
        if state == "ok":
            return ""
        return ",".join(rule.metric for (_, rule), j in zip(self.rules, judged, strict=True) if j.state == state)

    def _alerts(self, tick: int, length: int, rows: list[tuple[Key, Cell]]) -> Iterator[Block]:
        from hashlib import blake2b
        from os import uname

        from confluo_tools.algo.sla import CLEAR, FIRE, REPEAT, wilson
        from confluo_tools.formats.build import blocks_of

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
                    "ts": tick, "trigger": rule.metric, "event": events[alarm.event], "value": judged.value,
                    "threshold": rule.threshold, "rows": judged.n, "window": length, "lasted": alarm.lasted,
                    "key": name, "values": [float(judged.hits), float(judged.n), float(judged.needed), low, high],
                    "condition": text, "host": uname().nodename,
                    "key_id": int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "little"),
                }  # fmt: skip
                for column, value in values.items():
                    columns.setdefault(column, []).append(value)
        self.found += n
        yield from blocks_of(self.schema, columns, n)


def _duration(ns: float, samples: int) -> int:
    # Four digits of what is known within 0.4 %; 0 for nan.
    if ns != ns:
        return 0
    return int(ns) if samples <= EXACT else round(float(f"{ns:.4g}"))


def _key_columns(schema: Schema, name: str, values: list[Any]) -> dict[str, list[Any]]:
    # Addresses are two columns.
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


def tell(mesh: Mesh, source: Source, stats: bool) -> None:
    """What was left out, and counts."""
    if mesh.unknown:
        hint = "of other programs' records, retries and outcomes are guessed by --signature"
        cli.warn(f"{mesh.unknown} records say no kind or outcome", where=source.name, hint=hint)
    if mesh.crowded and not cli.state.quiet:
        cli.note(f"{mesh.crowded} drops beyond a million of a window were not held against overflows of their targets")
    if stats:
        cli.note(f"{mesh.probes} probes")


def main(argv: list[str] | None = None) -> int:
    return cli.run(app, "confluo-pingmesh sla", argv)
