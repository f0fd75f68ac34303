"""confluo-pingmesh verdict: is it the network? for a service and a span.  Manual: confluo-pingmesh-verdict(1)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isnan
from typing import TYPE_CHECKING, Annotated, Any

from confluo_tools import cli
from confluo_tools.cli.options import option
from confluo_tools.commands.pingmesh.windows import Where
from confluo_tools.errors import UsageError

if TYPE_CHECKING:
    from confluo_tools.algo.sla import Rule
    from confluo_tools.algo.verdict import Evidence, Verdict
    from confluo_tools.formats.reader import Reader
    from confluo_tools.schema import Schema
    from confluo_tools.store.mesh import Cell, Mesh, Tallied

app = cli.command_app(
    """
# the service was slow at half past two: was it the network?
confluo-pingmesh verdict probes.ml --service search --topology topology.yaml --since 14:30 --until 14:40

# of some servers, against the hour before
confluo-pingmesh verdict probes.ml --servers web01,web02 --since 15m --before 1h

# for a script: status 0 when it was
confluo-pingmesh verdict probes.ml --service search --topology topology.yaml --since 15m -q -T > /dev/null
"""
)

SENTENCES = {
    "network": "It is the network", "one_server": "It is one server", "unreachable": "Some connections cannot be made",
    "hosts": "It is not the network, but hosts", "not_network": "It is not the network",
    "not_enough_probes": "Nobody can tell", "no_probes": "Nobody can tell",
}  # fmt: skip
SHOWN = ("what", "metric", "now", "between", "limit_text", "earlier", "probes", "state")
STATES = {1: "ok", 2: "bad", 3: "not_enough_probes", 4: "no_probes", 5: "risen", 6: "no_answers"}
TIMES = ("p50", "p99", "p999", "seen99")


@app.command()
def verdict(
    inputs: cli.Inputs = None,
    service: Annotated[
        str | None, option("--service", metavar="NAME", help="Of the servers of this service (--topology).")
    ] = None,
    servers: Annotated[
        str | None, option("--servers", metavar="NAMES", help="Of these servers, with commas between.")
    ] = None,
    topology: Annotated[
        str | None, option("--topology", metavar="FILE", help="Which servers a service has, and who is beside them.")
    ] = None,
    before: Annotated[
        str | None, option("--before", metavar="TIME", help="Compare with TIME before --since (as long as the span).")
    ] = None,
    where: Where = "",
    rule: Annotated[
        list[str] | None,
        option("--rule", metavar="RULE", help="What is bad (repeatable; 'drop > 1e-3', 'p99 > 5ms')."),
    ] = None,
    false_alarm: Annotated[
        str | None, option("--false-alarm", metavar="P", help="Chance that a good network looks bad (1e-6).")
    ] = None,
    signature: Annotated[
        str | None,
        option("--signature", metavar="OS", help="Guess retries from times: linux, linux-classic or windows."),
    ] = None,
    *,
    ins: cli.InputOptions,
    period: cli.PeriodOptions,
    out: cli.OutputOptions,
    common: cli.CommonOptions,
) -> int:
    """Say whether it was the network that some servers suffered from, with the evidence.

    INPUT holds probe records of all the fleet.
    """
    from confluo_tools.algo.sla import SIGNATURES
    from confluo_tools.commands.pingmesh import scopes
    from confluo_tools.schema import builtin

    schema = evidence_schema()
    if out.listed(schema):
        return cli.OK
    if signature is not None:
        cli.one_of("--signature", signature, SIGNATURES)
    rules = scopes.parse_rules(rule or scopes.RULES, background=None, false_alarm=false_alarm, power=None)
    if any(r.metric in ("failed", "silent") for _, r in rules):
        raise UsageError("failures are looked at in any case", where="--rule", hint="rules are about drop and times")
    span, earlier = spans(period.span(out.local), before)
    if ins.missing(inputs):
        return cli.usage(app)
    who, pods, dcs, name = members(service, servers, topology)
    kind = out.kind(answers=True)
    names = out.names(schema, kind, SHOWN)
    first = earlier[0] if earlier is not None else span[0]
    wish = scopes.wish(where if dcs else no_wan(where), first, span[1])
    with ins.open(inputs, schema=builtin("probe"), wish=wish) as reader:
        scopes.check_kind(reader.schema, reader.name)
        work = Work(reader, who, pods, dcs, rules, signature)
        work.read(where, span, earlier)
        found = work.verdict()
        if kind == "table" and out.output is None and names == list(SHOWN):
            print(cli.printable(f"{name}: {SENTENCES[found.verdict]}: {found.why}."))
            print(cli.printable(f"It reaches: {found.where}." if found.where else "") + ("\n" if found.where else ""),
                  flush=True)  # rows do not go through Python's buffer
        with out.records(schema, kind, names, metadata=reader.metadata) as into:
            write(into, schema, found, name, work.start, work.length)
        if common.stats:
            cli.note(f"{work.now.probes} probes, {work.then.probes if work.then is not None else 0} before")
    return cli.OK if found.verdict in ("network", "one_server") else cli.NOTHING


def no_wan(where: str | None, wan: bool = False) -> str:
    """Without probes between data centres, whose round trips are long by nature; or only those."""
    level = "level == wan" if wan else "not level == wan"
    return f"({where}) and {level}" if where and where.strip() else level


def spans(
    span: tuple[int | None, int | None], before: str | None
) -> tuple[tuple[int | None, int | None], tuple[int, int] | None]:
    """The span, and the one before it that it is compared with."""
    import time


    first, last = span
    if first is None:
        if before is not None:
            raise UsageError("needs --since TIME", where="--before", hint="before what?")
        return (None, last), None
    if before is not None:
        length = cli.duration("--before", before, 0)
    else:
        length = (last or max(time.time_ns(), first + 1)) - first
    return (first, last), (first - length, first) if length else None


def members(
    service: str | None, servers: str | None, topology: str | None
) -> tuple[list[str], dict[str, list[str]], set[str], str]:
    """(names of the servers, those of each pod if that is known, their data centres if there are others, what to call
    them).
    """
    from confluo_tools.commands.pingmesh import scopes

    if (service is None) == (servers is None):
        raise UsageError("whose network?", hint="--service NAME with --topology FILE, or --servers NAMES")
    fleet = scopes.fleet_of(topology, "--service") if service is not None or topology is not None else None
    if service is not None:
        assert fleet is not None
        if service not in fleet.services:
            known = ", ".join(list(fleet.services)[:8]) or "none"
            raise UsageError(f"no service '{service[:60]}'", where=str(topology), hint=f"there are {known}")
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
                raise UsageError(f"no server '{name[:60]}'", where=str(topology))
            pods.setdefault(fleet.server(name).pod, []).append(name)
            if len(fleet.dcs) > 1:
                dcs.add(fleet.server(name).dc)
    return names, pods, dcs, service or (names[0] if len(names) == 1 else f"{len(names)} servers")


class Work:
    """Counts of the span and of what was before it, by whether a server, or its pod, is one of ours."""

    BY = ("src", "dst", "src_pod", "dst_pod")
    FAR = ("src_dc", "dst_dc")

    def __init__(
        self, reader: Reader, servers: Sequence[str], pods: Mapping[str, Sequence[str]], dcs: set[str],
        rules: Sequence[tuple[str, Rule]], signature: str | None,
    ) -> None:  # fmt: skip
        self.reader, self.servers, self.rules = reader, list(servers), [r for _, r in rules]
        ours = {name: number for number, name in enumerate(servers, 1)}
        near = {pod: number for number, pod in enumerate(pods, 1)}
        self.pods, self.dcs = pods, dcs
        self._classes = {"src": ours, "dst": ours, "src_pod": near, "dst_pod": near}
        self._signature = signature
        self.now = self._mesh()
        self.then: Mesh | None = None
        self.far = self._mesh(self.FAR) if dcs else None
        self.far_then: Mesh | None = None
        self.start = self.length = 0

    def _mesh(self, by: tuple[str, ...] = BY) -> Mesh:
        from confluo_tools.algo import sla
        from confluo_tools.store.mesh import Mesh

        limits = [round(r.threshold) for r in self.rules if r.metric in sla.QUANTILES]
        signature = sla.signature(self._signature) if self._signature is not None else ()
        return Mesh(
            self.reader.schema, by, classes=self._classes if by == self.BY else None, limits=limits,
            where=self.reader.name, signature=signature,
        )  # fmt: skip

    def read(self, where: str | None, span: tuple[int | None, int | None], earlier: tuple[int, int] | None) -> None:
        """All probes, in one pass."""
        from confluo_tools.store import mesh as tally

        expr = all_ = tally.chosen(self.reader.schema, no_wan(where), self.reader.filters)
        meshes = [(expr.within(*span).program, self.now)]
        if earlier is not None:
            self.then = self._mesh()
            meshes.append((expr.within(*earlier).program, self.then))
        if self.far is not None:
            far = tally.chosen(self.reader.schema, no_wan(where, True), self.reader.filters)
            meshes.append((far.within(*span).program, self.far))
            if earlier is not None:
                self.far_then = self._mesh(self.FAR)
                meshes.append((far.within(*earlier).program, self.far_then))
            all_ = tally.chosen(self.reader.schema, where or "", self.reader.filters)
        both = all_.within(span[0] if earlier is None else earlier[0], span[1])
        columns = tally.columns_of(self.reader.schema, [*self.BY, *self.FAR, *expr.fields], both)
        for block, _ in self.reader.select(both, columns, by_time=False):
            for program, mesh in meshes:
                picks = program.select(block)
                if len(picks):
                    mesh.update(block, picks)
        if self.now.probes:
            self.start = self.now.oldest if span[0] is None else span[0]
            self.length = max((self.now.newest + 1 if span[1] is None else span[1]) - self.start, 0)

    def verdict(self) -> Verdict:
        from confluo_tools.algo import verdict as algo

        now, then = Parts(self.now), Parts(self.then)
        groups = now.groups()
        each = now.servers(len(self.servers))
        pairs = {name: each[i] for i, name in enumerate(self.servers, 1)}
        number = {name: i for i, name in enumerate(self.servers, 1)}
        beside = now.beside()
        pods = {pod: (its, beside.get(i)) for i, (pod, its) in enumerate(self.pods.items(), 1)}
        past = self._far_of(self.far_then)
        far = {name: (cell, past.get(name)) for name, cell in self._far_of(self.far).items()}
        return algo.weigh(groups, then.groups(), pairs, self.rules, lambda name: now.without(number[name]), pods, far)

    def _far_of(self, mesh: Mesh | None) -> dict[str, Cell]:
        if mesh is None or not mesh.windows():
            return {}
        return {f"{src} > {dst}": cell for (src, dst), cell in sorted(mesh.tallied(0), key=lambda its: its[0])
                if self.dcs & {src, dst}}  # fmt: skip


class Parts:
    """Unions of what a `Mesh` counted by `Work.BY`."""

    def __init__(self, mesh: Mesh | None) -> None:
        self.mesh = mesh if mesh is not None and mesh.windows() else None
        self.keys = self.mesh.keys(0) if self.mesh is not None else []

    def _joined(self, unions: dict[Any, list[int]]) -> dict[Any, Cell]:
        if self.mesh is None:
            return {}
        found: Tallied = self.mesh.tallied(0, [((name,), numbers) for name, numbers in unions.items()])
        return {key[0]: cell for key, cell in found}

    def groups(self) -> dict[str, Cell]:
        """By the names of `algo.verdict`, those that have probes."""
        from confluo_tools.algo import verdict as algo

        unions: dict[str, list[int]] = {
            name: [] for name in (algo.SOURCE, algo.TARGET, algo.BESIDE, algo.BESIDE_TO, algo.REST)
        }
        for i, (src, dst, src_near, dst_near) in enumerate(self.keys):
            if src:
                unions[algo.SOURCE].append(i)
            if dst:
                unions[algo.TARGET].append(i)
            if src or dst:
                continue
            if src_near:
                unions[algo.BESIDE].append(i)
            if dst_near:
                unions[algo.BESIDE_TO].append(i)
            if not (src_near or dst_near):
                unions[algo.REST].append(i)
        return self._joined({name: numbers for name, numbers in unions.items() if numbers})

    def beside(self) -> dict[int, Cell]:
        """Probes to others of each pod, by its number."""
        unions: dict[int, list[int]] = {}
        for i, (_, dst, _, dst_near) in enumerate(self.keys):
            if dst_near and not dst:
                unions.setdefault(dst_near, []).append(i)
        return self._joined(unions)

    def servers(self, n: int) -> dict[int, tuple[Cell | None, Cell | None]]:
        """Probes from and to each server, by number."""
        unions: dict[tuple[int, bool], list[int]] = {}
        for i, (src, dst, *_) in enumerate(self.keys):
            if src:
                unions.setdefault((src, False), []).append(i)
            if dst:
                unions.setdefault((dst, True), []).append(i)
        found = self._joined(unions)
        return {i: (found.get((i, False)), found.get((i, True))) for i in range(1, n + 1)}

    def without(self, number: int) -> list[Cell]:
        """What is left of the probes from and to the servers, without all those of one of them."""
        rest = [i for i, (src, dst, *_) in enumerate(self.keys) if number not in (src, dst)]
        ends = {side: [i for i in rest if self.keys[i][side]] for side in (0, 1)}
        return list(self._joined({side: numbers for side, numbers in ends.items() if numbers}).values())


def evidence_schema() -> Schema:
    """The fields of the answer: a row for each number that was looked at."""
    from confluo_tools.algo.verdict import VERDICTS
    from confluo_tools.schema import Field, Schema

    about = {
        "value": "a rate, or ns", "low": "95 % sure it is not less", "high": "95 % sure it is not more",
        "limit": "more is bad", "before": "the value before the span; nan: not known",
    }  # fmt: skip
    return Schema("verdict", [
        Field("ts", "time", "ns", "start of the span"), Field("span", "duration", "ns", "its length"),
        Field("service", "text(32)", "", "who was asked about"),
        Field("verdict", "enum", "", "what it is", names=dict(enumerate(VERDICTS, 1))),
        Field("why", "text(200)", "", "because of"), Field("reach", "text(24)", "", "how far it reaches"),
        Field("servers", "text(160)", "", "the servers it is about, if not all"),
        Field("what", "text(40)", "", "probes that the number is of"),
        Field("metric", "text(16)", "", "drop, failed, overflow (rates), p50, p99, p999, seen99 (ns)"),
        *[Field(name, "f64", "", text) for name, text in about.items()],
        Field("probes", "u64", "probes", "of so many"),
        Field("state", "enum", "", "what it says; risen: not bad, but more than before", names=STATES),
        Field("now", "text(16)", "", "the value as people write it"), Field("between", "text(32)", "", "its interval"),
        Field("limit_text", "text(16)", "", "the limit"), Field("earlier", "text(16)", "", "the value before"),
    ], "Evidence for and against the network.")  # fmt: skip


def write(out: cli.RecordOutput, schema: Schema, found: Verdict, name: str, start: int, length: int) -> None:
    """The evidence as rows; without any, one row that has the verdict."""
    from confluo_tools.algo.verdict import VERDICTS
    from confluo_tools.formats.build import blocks_of

    evidence: Sequence[Evidence | None] = found.evidence or (None,)
    n = len(evidence)
    codes = {state: code for code, state in STATES.items()}
    columns: dict[str, list[Any]] = {
        "ts": [start] * n, "span": [length] * n, "service": [name] * n, "why": [found.why] * n,
        "verdict": [VERDICTS.index(found.verdict) + 1] * n, "reach": [found.where] * n,
        "servers": [",".join(found.servers)] * n,
    }  # fmt: skip
    rows = [e for e in evidence if e is not None]
    if rows:
        columns |= {
            "what": [e.what for e in rows], "metric": [e.metric for e in rows],
            **{key: [float(getattr(e, key)) for e in rows] for key in ("value", "low", "high", "limit", "before")},
            "probes": [e.probes for e in rows], "state": [codes[e.state] for e in rows],
            "now": [people(e.metric, e.value) for e in rows],
            "between": [_between(e) for e in rows], "limit_text": [people(e.metric, e.limit) for e in rows],
            "earlier": [people(e.metric, e.before) for e in rows],
        }  # fmt: skip
    for block in blocks_of(schema, columns, n):
        out.write(block)


def _between(e: Evidence) -> str:
    digits = 3 if e.metric in TIMES else 2
    low, high = people(e.metric, e.low, digits), people(e.metric, e.high, digits)
    return f"{low} .. {high}" if low and high else f"from {low}" if low else ""


def people(metric: str, value: float, digits: int = 3) -> str:
    """``0.23%`` or ``1.18ms``; '' of none."""
    from confluo_tools import units

    if isnan(value):
        return ""
    if metric in TIMES:
        return units.format_duration(round(float(f"{value:.{digits}g}")))
    return f"{100 * value:.{digits}g}%" if 100 * value < 999 else f"{100 * value:.0f}%"


def main(argv: list[str] | None = None) -> int:
    return cli.run(app, "confluo-pingmesh verdict", argv)
