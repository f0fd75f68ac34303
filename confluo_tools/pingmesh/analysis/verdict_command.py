"""confluo-pingmesh verdict: is the network the cause of a problem?  Manual: confluo-pingmesh-verdict(1)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isnan
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from confluo_tools import cli
from confluo_tools.cli.options import option
from confluo_tools.errors import UsageError
from confluo_tools.pingmesh.analysis.window_options import RetrySignature, RuleTexts, Where, zoned

if TYPE_CHECKING:
    from confluo_tools.engine.partial import Partial
    from confluo_tools.expr import Expr
    from confluo_tools.formats.reader import Reader
    from confluo_tools.pingmesh.analysis.probe_tally import Cell, WindowCells, WindowTally
    from confluo_tools.pingmesh.analysis.silent_servers import SilentServer
    from confluo_tools.pingmesh.analysis.sla import Rule
    from confluo_tools.pingmesh.analysis.verdict import Evidence, NetworkVerdict
    from confluo_tools.schema import Schema

app = cli.command_app(
    """
# the service search was slow at 14:30: was it the network?
confluo-pingmesh verdict probes.ml --service search --topology topology.yaml --since 14:30 --until 14:40

# two servers, compared with the hour before
confluo-pingmesh verdict probes.ml --servers web01,web02 --since 15m --before 1h

# in a script: exit status 0 if it was the network
confluo-pingmesh verdict probes.ml --service search --topology topology.yaml --since 15m -q -T > /dev/null
"""
)

SENTENCES = {
    "network": "It is the network",
    "one_server": "It is one server",
    "unreachable": "Some servers cannot be reached",
    "hosts": "It is not the network, but the hosts",
    "not_network": "It is not the network",
    "not_enough_probes": "Undecided",
    "no_probes": "Undecided",
}
SHOWN = ("what", "metric", "now", "between", "limit_text", "earlier", "probes", "state")
STATES = {1: "ok", 2: "bad", 3: "not_enough_probes", 4: "no_probes", 5: "risen", 6: "no_answers"}
TIMES = ("p50", "p99", "p999", "seen99")


@app.command(
    panels={
        "Options": "--service --servers --topology --since --until --rule",
        "Filtering": "-e",
        "Analysis": "--before --false-alarm --signature --engine",
    }
)
def verdict(
    inputs: cli.Inputs = None,
    service: Annotated[
        str | None, option("--service", metavar="NAME", help="Judge the servers of this service (--topology).")
    ] = None,
    servers: Annotated[
        str | None, option("--servers", metavar="NAMES", help="Judge these servers, separated by commas.")
    ] = None,
    topology: Annotated[
        str | None, option("--topology", metavar="FILE", help="File with the services, and the pods of servers.")
    ] = None,
    before: Annotated[
        str | None, option("--before", metavar="TIME", help="Compare with TIME before --since (as long as the span).")
    ] = None,
    where: Where = "",
    rule: RuleTexts = None,
    false_alarm: Annotated[
        str | None, option("--false-alarm", metavar="P", help="Chance that a healthy network is judged bad (1e-6).")
    ] = None,
    signature: RetrySignature = None,
    *,
    engine: cli.Engine = None,
    ins: cli.InputOptions,
    period: cli.PeriodOptions,
    out: cli.OutputOptions,
    common: cli.CommonOptions,
) -> int:
    """Decide whether the network caused a problem of some servers, and print the evidence.

    INPUT contains probe records of the whole fleet.
    """
    from confluo_tools.pingmesh.analysis import grouping
    from confluo_tools.pingmesh.analysis.probe_kind import check_kind
    from confluo_tools.pingmesh.analysis.sla import SIGNATURES
    from confluo_tools.schema import builtin

    schema = evidence_schema()
    if out.listed(schema):
        return cli.OK
    if signature is not None:
        cli.one_of("--signature", signature, SIGNATURES)
    rules = grouping.parse_rules(rule or grouping.RULES, background=None, false_alarm=false_alarm, power=None)
    if any(r.metric in ("failed", "silent") for _, r in rules):
        raise UsageError("failures are always judged", where="--rule", hint="use drop, p50, p99 or p999")
    span, earlier = spans(period.span(out.local), before)
    where = zoned(where, out.local)
    if ins.missing(inputs):
        return cli.usage(app)
    judged = members(service, servers, topology)
    kind = out.kind(answers=True)
    names = out.names(schema, kind, SHOWN)
    first = earlier[0] if earlier is not None else span[0]
    request = grouping.query_request(where if judged.dcs else no_wan(where), first, span[1])
    with cli.on_engine(ins.open(inputs, schema=builtin("probe"), request=request), engine) as reader:
        check_kind(reader.schema, reader.name)
        counts = VerdictCounts(reader, judged, rules, signature)
        counts.read(where, span, earlier)
        found = counts.verdict()
        if kind == "table" and out.output is None and names == list(SHOWN):
            print(cli.printable(f"{judged.name}: {SENTENCES[found.verdict]}: {found.why}."))
            print(
                cli.printable(f"It reaches: {found.where}." if found.where else "") + ("\n" if found.where else ""),
                flush=True,
            )  # rows bypass the buffer of sys.stdout
        with out.records(schema, kind, names, metadata=reader.metadata) as into:
            write(into, schema, found, judged.name, counts.start, counts.length)
        if common.stats:
            cli.note(f"{counts.now.probes} probes, {counts.then.probes if counts.then is not None else 0} before")
    return cli.OK if found.verdict in ("network", "one_server") else cli.NOTHING


def no_wan(where: str | None, wan: bool = False) -> str:
    """The expression without probes between data centres, which always take long; ``wan``: only those."""
    level = "level == wan" if wan else "not level == wan"
    return f"({where}) and {level}" if where and where.strip() else level


def spans(
    span: tuple[int | None, int | None], before: str | None
) -> tuple[tuple[int | None, int | None], tuple[int, int] | None]:
    """(the span, the span before it to compare with), ns.  Raises UsageError."""
    import time

    first, last = span
    if first is None:
        if before is not None:
            raise UsageError("needs --since TIME", where="--before", hint="TIME is the begin of the span")
        return (None, last), None
    if before is not None:
        length = cli.duration("--before", before, 0)
    else:
        length = (last or max(time.time_ns(), first + 1)) - first
    return (first, last), (first - length, first) if length else None


class Members(NamedTuple):
    """The servers to judge.  ``pods``: {pod: its servers to judge}, if known; ``dcs``: their data centres, if the
    fleet has others; ``name``: of the service, of the server, or ``N servers``.
    """

    servers: list[str]
    pods: dict[str, list[str]]
    dcs: set[str]
    name: str


def members(service: str | None, servers: str | None, topology: str | None) -> Members:
    """The servers of the options.  Raises UsageError."""
    from confluo_tools.pingmesh.analysis import grouping

    if (service is None) == (servers is None):
        raise UsageError("needs servers to judge", hint="--service NAME with --topology FILE, or --servers NAMES")
    fleet = grouping.fleet_of(topology, "--service") if service is not None or topology is not None else None
    if service is not None:
        assert fleet is not None
        if service not in fleet.services:
            known = ", ".join(list(fleet.services)[:8]) or "none"
            raise UsageError(f"unknown service '{service[:60]}'", where=str(topology), hint=f"services are {known}")
        names = list(fleet.services[service])
    else:
        names = list(dict.fromkeys(word.strip() for word in str(servers).split(",") if word.strip()))
        if not names:
            raise UsageError("names no server", where="--servers")
    pods: dict[str, list[str]] = {}
    dcs: set[str] = set()
    for name in names:
        if fleet is not None:
            if name not in fleet:
                raise UsageError(f"unknown server '{name[:60]}'", where=str(topology))
            pods.setdefault(fleet.server(name).pod, []).append(name)
            if len(fleet.dcs) > 1:
                dcs.add(fleet.server(name).dc)
    return Members(names, pods, dcs, service or (names[0] if len(names) == 1 else f"{len(names)} servers"))


class VerdictCounts:
    """Counts in the span and before it, by whether a server, or its pod, is to be judged."""

    BY = ("src", "dst", "src_pod", "dst_pod")
    FAR = ("src_dc", "dst_dc")

    def __init__(
        self, reader: Reader, judged: Members, rules: Sequence[tuple[str, Rule]], signature: str | None
    ) -> None:
        from confluo_tools.pingmesh.analysis.silent_tally import SilentTally

        self.reader, self.servers, self.rules = reader, judged.servers, [r for _, r in rules]
        servers = {name: number for number, name in enumerate(judged.servers, 1)}
        pods = {pod: number for number, pod in enumerate(judged.pods, 1)}
        self.pods, self.dcs = judged.pods, judged.dcs
        self._classes = {"src": servers, "dst": servers, "src_pod": pods, "dst_pod": pods}
        self._signature = signature
        self.now = self._tally()
        self.silent = SilentTally(reader.schema) if SilentTally.possible(reader.schema) else None
        self.then: WindowTally | None = None
        self.far = self._tally(self.FAR) if self.dcs else None
        self.far_then: WindowTally | None = None
        self.start = self.length = 0

    def _tally(self, by: tuple[str, ...] = BY) -> WindowTally:
        from confluo_tools.pingmesh.analysis import sla
        from confluo_tools.pingmesh.analysis.probe_tally import WindowTally

        limits = [round(r.threshold) for r in self.rules if r.metric in sla.QUANTILES]
        signature = sla.retry_signature(self._signature) if self._signature is not None else ()
        return WindowTally(
            self.reader.schema,
            by,
            classes=self._classes if by == self.BY else None,
            limits=limits,
            where=self.reader.name,
            signature=signature,
        )

    def read(self, where: str | None, span: tuple[int | None, int | None], earlier: tuple[int, int] | None) -> None:
        """Count all probes, in one pass."""
        from confluo_tools.engine.reader import gather
        from confluo_tools.engine.several_partial import SeveralPartial
        from confluo_tools.pingmesh.analysis.probe_tally import probe_filter

        schema, filters = self.reader.schema, self.reader.filters
        expr = all_ = probe_filter(schema, no_wan(where), filters)
        near = expr.within(*span)
        parts: list[tuple[Expr, Partial]] = [(near, self.now)]
        if earlier is not None:
            self.then = self._tally()
            parts.append((expr.within(*earlier), self.then))
        if self.far is not None:
            far = probe_filter(schema, no_wan(where, True), filters)
            parts.append((far.within(*span), self.far))
            if earlier is not None:
                self.far_then = self._tally(self.FAR)
                parts.append((far.within(*earlier), self.far_then))
            all_ = probe_filter(schema, where or "", filters)
        if self.silent is not None:
            parts.append((near, self.silent))
        both = all_.within(span[0] if earlier is None else earlier[0], span[1])
        gather(self.reader, both, SeveralPartial(schema, parts))
        if self.now.probes:
            self.start = self.now.oldest if span[0] is None else span[0]
            self.length = max((self.now.newest + 1 if span[1] is None else span[1]) - self.start, 0)

    def verdict(self) -> NetworkVerdict:
        from confluo_tools.pingmesh.analysis.verdict import DOWN, assess

        silent: list[SilentServer] = []
        own: Mapping[Any, Sequence[int]] = {}
        if self.silent is not None:
            silent = self.silent.find()
            down = [s.server for s in silent if s.server in self.servers and s.own.failed >= DOWN * s.own.probes]
            silent = [s for s in silent if s.server not in down]  # `assess` judges these by their counts
            own = self.silent.by_class(silent, self._classes)
            if self.silent.crowded:
                cli.note("too many lost probes to look for servers that did not answer for a while; read less time")
        now, then = VerdictGroups(self.now, own), VerdictGroups(self.then)
        groups = now.groups()
        each = now.servers(len(self.servers))
        pairs = {name: each[i] for i, name in enumerate(self.servers, 1)}
        number = {name: i for i, name in enumerate(self.servers, 1)}
        neighbours = now.neighbours()
        pods = {pod: (names, neighbours.get(i)) for i, (pod, names) in enumerate(self.pods.items(), 1)}
        past = self._far_of(self.far_then)
        far = {name: (cell, past.get(name)) for name, cell in self._far_of(self.far).items()}
        return assess(
            groups, then.groups(), pairs, self.rules, lambda name: now.without(number[name]), pods, far, silent
        )

    def _far_of(self, tally: WindowTally | None) -> dict[str, Cell]:
        if tally is None or not tally.windows():
            return {}
        return {
            f"{src} > {dst}": cell
            for (src, dst), cell in sorted(tally.cells(0), key=lambda pair: pair[0])
            if self.dcs & {src, dst}
        }


class VerdictGroups:
    """Joined groups of a `WindowTally` by `VerdictCounts.BY`; ``own``: {key: [dropped, failed]} not by the network."""

    def __init__(self, tally: WindowTally | None, own: Mapping[Any, Sequence[int]] | None = None) -> None:
        self._own = own or {}
        self.tally = tally if tally is not None and tally.windows() else None
        self.keys = self.tally.keys(0) if self.tally is not None else []

    def _joined(self, unions: dict[Any, list[int]]) -> dict[Any, Cell]:
        if self.tally is None:
            return {}
        found: WindowCells = self.tally.cells(0, [((name,), numbers) for name, numbers in unions.items()])
        cells = {key[0]: cell for key, cell in found}
        for name, numbers in unions.items() if self._own else ():
            cell = cells[name]
            dropped, failed = (sum(self._own.get(self.keys[i], (0, 0))[what] for i in numbers) for what in (0, 1))
            cell.dropped -= min(cell.dropped, dropped)
            late = min(cell.timeout, failed)
            cell.timeout -= late
            cell.unreachable -= min(cell.unreachable, failed - late)
        return cells

    def groups(self) -> dict[str, Cell]:
        """The groups of `pingmesh.analysis.verdict` that have probes, by name."""
        from confluo_tools.pingmesh.analysis import verdict

        unions: dict[str, list[int]] = {
            name: []
            for name in (verdict.SOURCE, verdict.TARGET, verdict.NEIGHBOURS, verdict.TO_NEIGHBOURS, verdict.REST)
        }
        for i, (src, dst, src_near, dst_near) in enumerate(self.keys):
            if src:
                unions[verdict.SOURCE].append(i)
            if dst:
                unions[verdict.TARGET].append(i)
            if src or dst:
                continue
            if src_near:
                unions[verdict.NEIGHBOURS].append(i)
            if dst_near:
                unions[verdict.TO_NEIGHBOURS].append(i)
            if not (src_near or dst_near):
                unions[verdict.REST].append(i)
        return self._joined({name: numbers for name, numbers in unions.items() if numbers})

    def neighbours(self) -> dict[int, Cell]:
        """Probes to the other servers of each pod, by number of the pod."""
        unions: dict[int, list[int]] = {}
        for i, (_, dst, _, dst_near) in enumerate(self.keys):
            if dst_near and not dst:
                unions.setdefault(dst_near, []).append(i)
        return self._joined(unions)

    def servers(self, n: int) -> dict[int, tuple[Cell | None, Cell | None]]:
        """(probes from, probes to) each server, by number."""
        unions: dict[tuple[int, bool], list[int]] = {}
        for i, (src, dst, *_) in enumerate(self.keys):
            if src:
                unions.setdefault((src, False), []).append(i)
            if dst:
                unions.setdefault((dst, True), []).append(i)
        found = self._joined(unions)
        return {i: (found.get((i, False)), found.get((i, True))) for i in range(1, n + 1)}

    def without(self, number: int) -> list[Cell]:
        """The probes from and to the servers, without those of one of them."""
        rest = [i for i, (src, dst, *_) in enumerate(self.keys) if number not in (src, dst)]
        ends = {side: [i for i in rest if self.keys[i][side]] for side in (0, 1)}
        return list(self._joined({side: numbers for side, numbers in ends.items() if numbers}).values())


def evidence_schema() -> Schema:
    """The fields of a row: one number of the evidence."""
    from confluo_tools.pingmesh.analysis.verdict import VERDICTS
    from confluo_tools.schema import Field, Schema

    about = {
        "value": "a rate, or ns",
        "low": "lower bound, 95 %",
        "high": "upper bound, 95 %",
        "limit": "values above are bad",
        "before": "value before the span; nan: unknown",
    }
    return Schema(
        "verdict",
        [
            Field("ts", "time", "ns", "start of the span"),
            Field("span", "duration", "ns", "length of the span"),
            Field("service", "text(32)", "", "service, or servers"),
            Field("verdict", "enum", "", "verdict", names=dict(enumerate(VERDICTS, 1))),
            Field("why", "text(200)", "", "reason"),
            Field("reach", "text(24)", "", "extent of the problem"),
            Field("servers", "text(160)", "", "servers with the problem, if not all"),
            Field("what", "text(40)", "", "group of probes"),
            Field("metric", "text(16)", "", "drop, failed, overflow (rates), p50, p99, p999, seen99 (ns)"),
            *[Field(name, "f64", "", text) for name, text in about.items()],
            Field("probes", "u64", "probes", "number of probes"),
            Field("state", "enum", "", "result; risen: not bad, but higher than before", names=STATES),
            Field("now", "text(16)", "", "value, formatted"),
            Field("between", "text(32)", "", "interval, formatted"),
            Field("limit_text", "text(16)", "", "limit, formatted"),
            Field("earlier", "text(16)", "", "value before, formatted"),
        ],
        "Evidence for and against the network.",
    )


def write(out: cli.RecordOutput, schema: Schema, found: NetworkVerdict, name: str, start: int, length: int) -> None:
    """Write the evidence as rows; without any, one row with the verdict."""
    from confluo_tools.formats.block_builder import blocks_of
    from confluo_tools.pingmesh.analysis.verdict import VERDICTS

    evidence: Sequence[Evidence | None] = found.evidence or (None,)
    n = len(evidence)
    codes = {state: code for code, state in STATES.items()}
    columns: dict[str, list[Any]] = {
        "ts": [start] * n,
        "span": [length] * n,
        "service": [name] * n,
        "why": [found.why] * n,
        "verdict": [VERDICTS.index(found.verdict) + 1] * n,
        "reach": [found.where] * n,
        "servers": [",".join(found.servers)] * n,
    }
    rows = [e for e in evidence if e is not None]
    if rows:
        columns |= {
            "what": [e.what for e in rows],
            "metric": [e.metric for e in rows],
            **{key: [float(getattr(e, key)) for e in rows] for key in ("value", "low", "high", "limit", "before")},
            "probes": [e.probes for e in rows],
            "state": [codes[e.state] for e in rows],
            "now": [formatted(e.metric, e.value) for e in rows],
            "between": [_between(e) for e in rows],
            "limit_text": [formatted(e.metric, e.limit) for e in rows],
            "earlier": [formatted(e.metric, e.before) for e in rows],
        }
    for block in blocks_of(schema, columns, n):
        out.write(block)


def _between(e: Evidence) -> str:
    digits = 3 if e.metric in TIMES else 2
    low, high = formatted(e.metric, e.low, digits), formatted(e.metric, e.high, digits)
    return f"{low} .. {high}" if low and high else f"from {low}" if low else ""


def formatted(metric: str, value: float, digits: int = 3) -> str:
    """Format a value: ``0.23%`` or ``1.18ms``; '' for nan."""
    from confluo_tools import units

    if isnan(value):
        return ""
    if metric in TIMES:
        return units.format_duration(round(float(f"{value:.{digits}g}")))
    return f"{100 * value:.{digits}g}%" if 100 * value < 999 else f"{100 * value:.0f}%"


def main(argv: list[str] | None = None) -> int:
    return cli.run(app, "confluo-pingmesh verdict", argv)
