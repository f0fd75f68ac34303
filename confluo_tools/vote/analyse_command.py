"""The analysis of confluo-vote: paths in, ranked links out, epoch by epoch."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from math import isfinite
from typing import TYPE_CHECKING, Annotated, Any

from confluo_tools import cli
from confluo_tools.cli.options import option
from confluo_tools.errors import ConfluoError, SchemaError, UsageError
from confluo_tools.inputs.follow import Input, StopSignal, one_log

if TYPE_CHECKING:
    from confluo_tools.core.block.block import Block
    from confluo_tools.core.vote.flow_tally import FlowTally
    from confluo_tools.network.ecmp import Routes
    from confluo_tools.network.topology import Topology
    from confluo_tools.schema import Schema
    from confluo_tools.vote import models
    from confluo_tools.vote.epochs import Epochs
    from confluo_tools.vote.result_rows import NodeNames

app = cli.command_app(
    """
# which links dropped packets, every 30 seconds
confluo-vote paths.ml --epoch 30s

# as records arrive
confluo-vote paths.ml --follow --epoch 30s -o ndjson

# by likelihood, fitted to each epoch; names from the topology
confluo-vote paths.ml --model mle --topology clos.yaml

# the link blamed for each flow with loss
confluo-vote paths.ml --flows -f src_ip,dst_ip,lost,verdict,blame_a,blame_b

# how well do three models find five bad links?
confluo-vote simulate --failures 5 --healthy path -o stream | confluo-vote - --model vote,mle,cover --score
"""
)

SECOND = 1_000_000_000
SHOWN = {  # columns of tables without --wide
    "links": ("ts", "rank", "verdict", "link_a", "link_b", "score", "votes", "flows", "rate", "confidence"),
    "flows": ("ts", "src_ip", "src_port", "dst_ip", "dst_port", "lost", "verdict", "blame_a", "blame_b"),
    "score": ("ts", "model", "failed", "blamed", "precision", "recall", "f1", "accuracy", "took"),
}


@app.command(
    panels={
        "Options": "--model --by --epoch --follow --topology --top",
        "Network": "--alias",
        "Analysis": "--adjust --total --threshold --floor --noise --literal --healthy --p-bad --p-good --prior"
        " --ratio --time-limit --engine",
        "Output": "--flows --score",
        "Time": "--lateness",
    }
)
def vote(
    inputs: cli.Inputs = None,
    model: Annotated[
        str, option("--model", metavar="MODEL", help="How to find them: vote, mle, ...; help lists the models (vote).")
    ] = "vote",
    by: Annotated[str, option("--by", metavar="WHAT", help="What to blame: link or switch (link).")] = "link",
    epoch: Annotated[
        str | None, option("--epoch", metavar="TIME", help="Print a ranking per TIME (one in all; --follow: 30s).")
    ] = None,
    follow: Annotated[
        bool, option("--follow", help="Continue as records arrive; print each epoch at its end.")
    ] = False,
    lateness: Annotated[
        str | None, option("--lateness", metavar="TIME", help="With --follow, wait TIME for late records (1s).")
    ] = None,
    topology: Annotated[
        str | None, option("--topology", metavar="FILE", help="Topology file: names, addresses, ECMP paths.")
    ] = None,
    aliases: Annotated[
        str | None, option("--alias", metavar="FILE", help="Lines 'ADDRESS NAME': assign addresses to switches.")
    ] = None,
    adjust: Annotated[
        str | None,
        option(
            "--adjust", metavar="HOW", help="vote: remove the votes of a blamed link by flows, ecmp or none (flows)."
        ),
    ] = None,
    total: Annotated[
        str | None,
        option(
            "--total", metavar="WHICH", help="vote: total that --threshold refers to, running or initial (running)."
        ),
    ] = None,
    threshold: Annotated[
        str | None,
        option("--threshold", metavar="SHARE", help="vote: minimum share of the votes to blame a link (1%)."),
    ] = None,
    floor: Annotated[
        float | None, option("--floor", metavar="VOTES", min=0, help="vote: a blamed link has more than VOTES (0.67).")
    ] = None,
    noise: Annotated[
        float | None,
        option("--noise", metavar="VOTES", min=0, help="A flow is noise if its best link has at most VOTES (its own)."),
    ] = None,
    literal: Annotated[
        bool, option("--literal", help="A flow blames the link with most votes, also one that is not blamed.")
    ] = False,
    healthy: Annotated[
        str, option("--healthy", metavar="HOW", help="Locate flows without loss by path, ecmp or none (path).")
    ] = "path",
    p_bad: Annotated[
        str | None, option("--p-bad", metavar="RATE", help="mle: drop rate of a bad link (fitted per link).")
    ] = None,
    p_good: Annotated[
        str | None, option("--p-good", metavar="RATE", help="mle: drop rate of good paths (fitted).")
    ] = None,
    prior: Annotated[
        float | None, option("--prior", metavar="LOG", help="mle: log odds that a link is bad (fitted).")
    ] = None,
    ratio: Annotated[
        float | None,
        option("--ratio", metavar="N", min=1, help="mle, fitted: a bad link drops N times as much as good ones (2)."),
    ] = None,
    time_limit: Annotated[
        str | None, option("--time-limit", metavar="TIME", help="milp: time limit of the solver (60s).")
    ] = None,
    flows: Annotated[bool, option("--flows", help="Print the flows with loss and the link blamed for each.")] = False,
    score: Annotated[
        bool, option("--score", help="Print precision and recall, from the truth in the records.")
    ] = False,
    top: Annotated[
        int, option("--top", metavar="N", min=0, help="Print N links per epoch, and all blamed ones (10).")
    ] = 10,
    *,
    engine: cli.Engine = None,
    ins: cli.InputOptions,
    out: cli.OutputOptions,
    common: cli.CommonOptions,
) -> int:
    """Rank the links (or switches) that dropped packets, from the paths of flows and what they lost.

    INPUT contains path records of confluo-trace, confluo-vote simulate or other programs.
    confluo-vote simulate simulates such records; confluo-vote bound computes Theorems 1 to 3 for a network.
    """
    from confluo_tools.vote import models, registry, result_rows

    if model == "help":
        print("\n".join(registry.help_lines()))
        return cli.OK
    if flows and score:
        raise UsageError("--flows and --score exclude each other")
    schema = (
        result_rows.flows_schema() if flows else result_rows.score_schema() if score else result_rows.ranking_schema()
    )
    if out.listed(schema):
        return cli.OK
    names = _models(model, score)
    usual = models.ModelSettings()
    settings = models.ModelSettings(
        adjust=cli.one_of("--adjust", adjust or usual.adjust, models.ADJUST),
        running=cli.one_of("--total", total or "running", ("running", "initial")) == "running",
        threshold=usual.threshold if threshold is None else cli.fraction("--threshold", threshold),
        floor=usual.floor if floor is None else floor,
        noise=-1.0 if noise is None else noise,
        literal=literal,
        p_bad=_rate("--p-bad", p_bad),
        p_good=_rate("--p-good", p_good),
        prior=prior,
        ratio=usual.ratio if ratio is None else ratio,
        seconds=usual.seconds if time_limit is None else cli.duration("--time-limit", time_limit) / SECOND,
    )
    for name, value in {"--floor": floor, "--noise": noise, "--prior": prior, "--ratio": ratio}.items():
        if value is not None and not isfinite(value):
            raise UsageError(f"'{value}' is not a finite number", where=name)
    if (settings.p_bad is None) != (settings.p_good is None):
        raise UsageError("--p-bad and --p-good go together", hint="without both, they are fitted")
    if settings.p_bad is not None and settings.p_good is not None and settings.p_bad <= settings.p_good:
        raise UsageError("--p-bad must be greater than --p-good")
    length = cli.duration("--epoch", epoch) if epoch is not None else 30 * SECOND if follow else 0
    patience = cli.duration("--lateness", lateness or "1s", 0)
    cli.engine_without_follow(engine, follow)
    if ins.missing(inputs, follow):
        return cli.usage(app)
    work = VoteRun(
        names,
        settings,
        switches=cli.one_of("--by", by, ("link", "switch")) == "switch",
        healthy=models.HEALTHY.index(cli.one_of("--healthy", healthy, models.HEALTHY)),
        length=length,
        top=top,
        what="flows" if flows else "score" if score else "links",
    )
    work.map(topology, aliases)
    kind = out.kind(answers=True)
    shown = out.names(schema, kind, [name for name in SHOWN[work.what] if name != "ts" or length])
    given = {"--adjust": adjust, "--total": total, "--threshold": threshold, "--floor": floor, "--p-bad": p_bad}
    given |= {"--p-good": p_good, "--prior": prior, "--ratio": ratio, "--time-limit": time_limit}
    _warn_unused(names, [name for name, value in given.items() if value is not None])
    if lateness is not None and not follow:
        cli.tell("--lateness has no effect without --follow")
    with ExitStack() as stack:
        ending = stack.enter_context(StopSignal()) if follow else None
        source = stack.enter_context(PathRecords(inputs or [], ins, ending, engine))
        into = stack.enter_context(out.records(schema, kind, shown, metadata=source.metadata))
        if ending is not None:
            stack.enter_context(cli.signals(ending))
        work.run(source, into, follow, patience)
    work.report(common.stats, common.verbose)
    if ending is not None and ending.number:
        return 128 + ending.number
    return cli.OK if work.found else cli.NOTHING


def _models(text: str, many: bool) -> list[str]:
    from confluo_tools.vote.registry import NAMES

    if "," in text and not many:
        raise UsageError(
            f"'{text[:60]}' is more than one model", where="--model", hint="several models require --score"
        )
    return [cli.one_of("--model", word, NAMES) for word in text.split(",")]


def _warn_unused(chosen: Sequence[str], given: Sequence[str]) -> None:
    """Warn of options that none of the chosen models uses."""
    from confluo_tools.vote.registry import users_of

    for name in given:
        users = users_of(name)
        if not set(users) & set(chosen):
            verb = "uses" if len(users) == 1 else "use"
            cli.tell(f"{name} has no effect: only --model {' and '.join(users)} {verb} it")


def _rate(option: str, text: str | None) -> float | None:
    return None if text is None else cli.fraction(option, text, "a drop rate", inside=True)


class PathRecords(Input):
    """Path records of any input; with ``ending``, of a pipe or a log as it grows, until a signal."""

    def __init__(
        self, inputs: Sequence[str], ins: cli.InputOptions, ending: StopSignal | None, engine: str | None
    ) -> None:
        from confluo_tools.schema import builtin

        self.ending, self.engine = ending, engine
        self.given: Sequence[str] | None = None  # the fields of a text table, if known
        if ending is not None and one_log(inputs):
            from confluo_tools import multilog

            self.log = multilog.open(inputs[0], readonly=True)
            schema, name, self.metadata = self.log.schema, inputs[0], {}
        else:
            reader = ins.open(inputs, schema=builtin("path"), follow=ending is not None)
            self.reader = cli.on_engine(reader, engine)
            schema, name, self.metadata = self.reader.schema, self.reader.name, self.reader.metadata
            self.given = self.reader.given
        try:
            self._check(schema, name)
        except BaseException:
            self.close()
            raise
        self.name, self._layout = name, builtin("path").layout

    def _check(self, schema: Schema, name: str) -> None:
        if schema.kind != "path":
            what = f"holds records of kind '{schema.kind}', not paths of flows"
            raise SchemaError(what, where=name, hint="confluo-trace finds the paths of flows")
        needed, given = ["src_ip", "dst_ip", "lost", "hops", "path"], schema
        if self.given is not None:  # flows without paths are counted
            needed, given = needed[:3], self.given  # type: ignore[assignment]
        missing = [n for n in needed if n not in given]
        if missing:
            raise SchemaError(f"has no field '{missing[0]}'", where=name, hint="confluo-vote(1) lists what it needs")

    def blocks(self, epochs: Epochs) -> Iterator[Block]:
        """Blocks of the schema `path`; when following, finished epochs are printed while no record arrives."""
        from confluo_tools.inputs import follow as following

        blocks: Iterator[Block]
        if self.ending is None:
            assert self.reader is not None
            blocks = iter(self.reader)
        elif self.reader is not None:
            blocks = following.read(self.reader, epochs, self.ending)
        else:
            blocks = following.tail(self.log.path, epochs, self.ending)
        for block in blocks:
            try:
                yield block.project(self._layout)
            except ValueError as e:
                raise SchemaError(str(e), where=self.name) from None

    def epochs(self, options: Mapping[str, Any], length: int) -> Iterator[tuple[int, FlowTally]]:
        """(begin, tally) of all epochs, tallied by the engine."""
        from confluo_tools.engine.reader import gather
        from confluo_tools.expr import compile
        from confluo_tools.vote.path_partial import PathPartial

        assert self.reader is not None
        partial = PathPartial(self.reader.schema, options, length)
        try:
            gather(self.reader, compile("", self.reader.schema), partial)
        except MemoryError as e:
            raise ConfluoError(f"the flows exceed the memory: {e}", hint="ask for fewer records") from None
        yield from partial.epochs()


class VoteRun:
    """One run: the models, and what is printed per epoch."""

    def __init__(
        self,
        names: list[str],
        settings: models.ModelSettings,
        *,
        switches: bool,
        healthy: int,
        length: int,
        top: int,
        what: str,
    ) -> None:
        self.models, self.settings, self.switches, self.healthy = names, settings, switches, healthy
        self.length, self.top, self.what = length, top, what
        self.topology: Topology | None = None
        self.routes: Routes | None = None
        self.alias: dict[int, int] = {}
        self.unknown_switches: set[int] = set()
        self.failed: set[tuple[int, int]] = set()
        self.found = 0
        self.blind = False
        self.counts = dict.fromkeys(
            (
                "records",
                "flows",
                "sent",
                "lost",
                "healthy_flows",
                "repeated",
                "partial",
                "loops",
                "cut",
                "pathless",
                "placeless",
                "components",
            ),
            0,
        )
        self.epochs_seen = self.late = self.took = 0

    def map(self, topology: str | None, aliases: str | None) -> None:
        """Read the topology and the aliases."""
        called: dict[int, str] = {}
        if topology is not None:
            from confluo_tools.network.ecmp import Routes
            from confluo_tools.network.topology_file import read_topology

            self.topology = read_topology(topology)
            self.routes = Routes(self.topology, self.switches)
            self.alias |= self.topology.alias
        if aliases is not None:
            from confluo_tools.network.aliases import read_aliases

            known = {name: n for n, name in self.topology.names.items()} if self.topology is not None else None
            more, called = read_aliases(aliases, known)
            self.alias |= more
        self.called = called
        if self.routes is None:
            from confluo_tools.vote.models import HEALTHY
            from confluo_tools.vote.registry import model_of

            for name in self.models:
                option = model_of(name).needs_routes(self.settings, HEALTHY[self.healthy])
                if option is not None:
                    raise UsageError(f"{option} needs a topology", hint="--topology FILE describes it")

    def run(self, source: PathRecords, out: cli.RecordOutput, follow: bool, lateness: int) -> None:
        from confluo_tools.core.vote.flow_tally import FlowTally
        from confluo_tools.vote.epochs import Epochs
        from confluo_tools.vote.result_rows import NodeNames

        names = NodeNames(self.topology, self.called)

        options: dict[str, Any] = {
            "switches": self.switches,
            "healthy": self.healthy,
            "keep": self.what == "flows",
            "alias": self.alias or None,
            "tor_of": self.topology.tor_of if self.topology is not None else None,
        }
        if source.engine is not None:
            for begin, tally in source.epochs(options, self.length):
                self.judge(begin, tally, names, out)
            return

        def make() -> FlowTally:
            return FlowTally(**options)

        def done(begin: int, tally: FlowTally) -> None:
            self.judge(begin, tally, names, out)
            if follow:
                out.flush()

        epochs = Epochs(self.length, lateness, follow, make, done)
        epochs.idle = out.flush
        for block in source.blocks(epochs):
            epochs.add(block)
        epochs.finish()
        self.late = epochs.late

    def judge(self, begin: int, tally: FlowTally, names: NodeNames, out: cli.RecordOutput) -> None:
        """Judge an epoch and print it."""
        from confluo_tools.vote import models, result_rows

        self.epochs_seen += 1
        self.failed |= set(tally.truth())  # a failed link stays failed
        for name in self.counts:
            self.counts[name] += getattr(tally, name)
        if self.topology is not None:
            self._find_unknown_switches(tally)
        for model in self.models:
            before = time.perf_counter_ns()
            judgement = models.judge(tally, model, self.settings, self.routes)
            took = time.perf_counter_ns() - before
            self.took += took
            self.blind |= judgement.blind and tally.flows > 0
            if self.what == "links":
                self.found += len(judgement.blamed)
                self._remark(judgement, names)
                blocks = result_rows.links(judgement, names, self.failed, begin, self.length, self.top)
            elif self.what == "flows":
                self.found += tally.kept_rows
                blocks = result_rows.flows(judgement, names)
            else:
                self.found += 1
                blocks = result_rows.score(judgement, self.failed, begin, self.length, took)
            for block in blocks:
                out.write(block)

    def _remark(self, judgement: models.Judgement, names: NodeNames) -> None:
        """Warn of links where flows died that are not simply bad."""
        from confluo_tools.vote.dead_flows import BAD, remark

        tally = judgement.localiser.tally
        for number, kind in judgement.kinds.items():
            if kind != BAD:
                a, b = tally.key(number)
                cli.tell(remark(f"{names.of(a)} -> {names.of(b)}", kind, judgement.evidence[number]))

    def _find_unknown_switches(self, tally: FlowTally) -> None:
        # Switches of paths that the topology lacks.  Hosts may be missing: they have one link.
        assert self.topology is not None
        here, hosts = self.topology.neighbours, self.topology.tor_of
        near: dict[int, int] = {}
        for a, b in map(tally.key, range(tally.components)):
            for node, other in ((a, b), (b, a)):
                if (
                    node not in here
                    and node not in hosts
                    and node not in self.unknown_switches
                    and (self.switches or near.setdefault(node, other) != other)
                ):
                    self.unknown_switches.add(node)

    def report(self, stats: bool, verbose: bool) -> None:
        """Print warnings; with --stats, counts."""
        if self.late:
            cli.tell(f"{self.late} records arrived after their epoch was printed; raise --lateness")
        if self.unknown_switches:
            from confluo_tools.vote.result_rows import NodeNames

            names = NodeNames(self.topology, self.called)
            some = ", ".join([names.of(n) for n in sorted(self.unknown_switches)[:3]])
            more = ", ..." if len(self.unknown_switches) > 3 else ""
            cli.tell(f"{len(self.unknown_switches)} switches of paths are not in the topology: {some}{more}")
        if self.counts["flows"] and self.counts["pathless"] >= self.counts["flows"]:
            cli.tell("none of the flows with loss has a path; confluo-trace finds paths")
        if self.blind and not (self.settings.p_bad and self.settings.p_good):
            hint = "; use --topology" if self.counts["healthy_flows"] and self.topology is None else ""
            what = "paths of flows without loss are unknown: mle cannot fit drop rates and uses 0.7 % and 0.03 %"
            cli.tell(what + hint)
        if stats or verbose:
            c = self.counts
            epochs = "1 epoch" if self.epochs_seen == 1 else f"{self.epochs_seen:,} epochs"
            cli.note(
                f"{c['records']:,} records in {epochs}: {c['flows']:,} flows with loss, "
                f"{c['healthy_flows']:,} without; {c['lost']:,} of {c['sent']:,} packets lost"
            )
            cli.note(
                f"paths of flows with loss: {c['pathless']:,} unknown, {c['partial']:,} partial, {c['loops']:,} with "
                f"loops, {c['cut']:,} longer than 16 hops; {c['repeated']:,} repeated records of a flow"
            )
            cli.note(f"judged in {self.took / 1e6:.1f} ms")


def main(argv: list[str] | None = None) -> int:
    return cli.run(app, "confluo-vote", argv)
