"""The analysis of confluo-vote: paths in, ranked links out, epoch by epoch."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from math import isfinite
from typing import TYPE_CHECKING, Annotated

from confluo_tools import cli
from confluo_tools.cli.following import Ending, Input, one_log
from confluo_tools.cli.options import option
from confluo_tools.errors import SchemaError, UsageError

if TYPE_CHECKING:
    from confluo_tools.algo.routes import Routes
    from confluo_tools.algo.topology import Topology
    from confluo_tools.commands.vote import models
    from confluo_tools.commands.vote.answer import Names
    from confluo_tools.commands.vote.epochs import Epochs
    from confluo_tools.core.block import Block
    from confluo_tools.core.votes import Tally
    from confluo_tools.schema import Schema

app = cli.command_app(
    """
# which links dropped packets, every 30 seconds
confluo-vote paths.ml --epoch 30s

# as paths come in
confluo-vote paths.ml --follow --epoch 30s -o ndjson

# by likelihood, its parameters fitted to each epoch; names of the topology
confluo-vote paths.ml --model mle --topology clos.yaml

# whom each flow with loss has to blame
confluo-vote paths.ml --flows -f src_ip,dst_ip,lost,verdict,blame_a,blame_b

# how right three models are about five bad links
confluo-vote simulate --failures 5 --healthy path -o stream | confluo-vote - --model vote,mle,cover --score
"""
)

SECOND = 1_000_000_000
SHOWN = {  # of tables that are not --wide
    "links": ("ts", "rank", "verdict", "link_a", "link_b", "score", "votes", "flows", "rate", "confidence"),
    "flows": ("ts", "src_ip", "src_port", "dst_ip", "dst_port", "lost", "verdict", "blame_a", "blame_b"),
    "score": ("ts", "model", "failed", "blamed", "precision", "recall", "f1", "accuracy", "took"),
}


@app.command()
def vote(
    inputs: cli.Inputs = None,
    model: Annotated[
        str, option("--model", metavar="MODEL", help="vote, mle, cover, milp-binary or milp-integer (vote).")
    ] = "vote",
    by: Annotated[str, option("--by", metavar="WHAT", help="Blame a link or a switch (link).")] = "link",
    epoch: Annotated[
        str | None, option("--epoch", metavar="TIME", help="A ranking for each TIME (one for all; --follow: 30s).")
    ] = None,
    follow: Annotated[
        bool, option("--follow", help="Go on as records come; print each epoch when it is over.")
    ] = False,
    lateness: Annotated[
        str, option("--lateness", metavar="TIME", help="--follow: how late records may be (1s).")
    ] = "1s",
    topology: Annotated[
        str | None, option("--topology", metavar="FILE", help="The network: names, aliases, where ECMP sends flows.")
    ] = None,
    aliases: Annotated[
        str | None, option("--alias", metavar="FILE", help="Which switch an address belongs to: lines ADDRESS NAME.")
    ] = None,
    adjust: Annotated[
        str | None,
        option("--adjust", metavar="HOW", help="vote: what the blamed explains: flows, ecmp or none (flows)."),
    ] = None,
    total: Annotated[
        str | None,
        option("--total", metavar="WHICH", help="vote: threshold is of the running or initial votes (running)."),
    ] = None,
    threshold: Annotated[
        str | None,
        option("--threshold", metavar="SHARE", help="vote: blame no link with less of the votes (1%)."),
    ] = None,
    floor: Annotated[
        float | None,
        option("--floor", metavar="VOTES", min=0, help="vote: blame no link with no more VOTES (0.67)."),
    ] = None,
    noise: Annotated[
        float | None,
        option("--noise", metavar="VOTES", min=0, help="A flow whose best link has no more votes is noise (its own)."),
    ] = None,
    literal: Annotated[
        bool, option("--literal", help="Flows blame the link with most votes, even if it explains nothing.")
    ] = False,
    healthy: Annotated[
        str, option("--healthy", metavar="HOW", help="Flows without loss: by path, by ecmp, or none (path).")
    ] = "path",
    p_bad: Annotated[
        str | None, option("--p-bad", metavar="RATE", help="mle: drop rate over a bad link (fitted to each).")
    ] = None,
    p_good: Annotated[
        str | None, option("--p-good", metavar="RATE", help="mle: drop rate over good paths (fitted).")
    ] = None,
    prior: Annotated[
        float | None, option("--prior", metavar="LOG", help="mle: logarithm of the odds that a link is bad (fitted).")
    ] = None,
    ratio: Annotated[
        float | None, option("--ratio", metavar="N", min=1, help="mle, fitted: bad is N times worse than good (2).")
    ] = None,
    time_limit: Annotated[
        str | None, option("--time-limit", metavar="TIME", help="milp: how long the solver may take (60s).")
    ] = None,
    flows: Annotated[bool, option("--flows", help="Print flows with loss and whom each has to blame.")] = False,
    score: Annotated[bool, option("--score", help="Print how right it is, from the truth in the records.")] = False,
    top: Annotated[
        int, option("--top", metavar="N", min=0, help="N links an epoch, and all that are blamed (10).")
    ] = 10,
    *,
    ins: cli.InputOptions,
    out: cli.OutputOptions,
    common: cli.CommonOptions,
) -> int:
    """Rank the links (or switches) that dropped packets, from the paths of flows and what they lost.

    INPUT holds path records: of confluo-trace, of confluo-vote simulate, or of other programs.
    Two words are commands of their own: confluo-vote simulate makes such records, confluo-vote bound computes what
    Theorems 1 to 3 promise.
    """
    from confluo_tools.commands.vote import answer, models

    if flows and score:
        raise UsageError("--flows and --score exclude each other")
    schema = answer.flows_schema() if flows else answer.score_schema() if score else answer.ranking_schema()
    if out.listed(schema):
        return cli.OK
    names = _models(model, score)
    usual = models.Settings()
    settings = models.Settings(
        adjust=cli.one_of("--adjust", adjust or usual.adjust, models.ADJUST),
        running=cli.one_of("--total", total or "running", ("running", "initial")) == "running",
        threshold=usual.threshold if threshold is None else cli.fraction("--threshold", threshold),
        floor=usual.floor if floor is None else floor, noise=-1.0 if noise is None else noise,
        literal=literal, p_bad=_rate("--p-bad", p_bad), p_good=_rate("--p-good", p_good), prior=prior,
        ratio=usual.ratio if ratio is None else ratio,
        seconds=usual.seconds if time_limit is None else cli.duration("--time-limit", time_limit) / SECOND,
    )  # fmt: skip
    for name, value in {"--floor": floor, "--noise": noise, "--prior": prior, "--ratio": ratio}.items():
        if value is not None and not isfinite(value):
            raise UsageError(f"'{value}' is no number", where=name)
    if (settings.p_bad is None) != (settings.p_good is None):
        raise UsageError("--p-bad and --p-good go together", hint="without both, they are fitted")
    if settings.p_bad is not None and settings.p_good is not None and settings.p_bad <= settings.p_good:
        raise UsageError("--p-bad is not above --p-good")
    length = cli.duration("--epoch", epoch) if epoch is not None else 30 * SECOND if follow else 0
    patience = cli.duration("--lateness", lateness, 0)
    if ins.missing(inputs, follow):
        return cli.usage(app)
    work = Work(
        names, settings, switches=cli.one_of("--by", by, ("link", "switch")) == "switch",
        healthy=models.HEALTHY.index(cli.one_of("--healthy", healthy, models.HEALTHY)), length=length, top=top,
        what="flows" if flows else "score" if score else "links",
    )  # fmt: skip
    work.map(topology, aliases)
    kind = out.kind(answers=True)
    shown = out.names(schema, kind, [name for name in SHOWN[work.what] if name != "ts" or length])
    _unused("vote", names, {"--adjust": adjust, "--total": total, "--threshold": threshold, "--floor": floor})
    _unused("mle", names, {"--p-bad": p_bad, "--p-good": p_good, "--prior": prior, "--ratio": ratio})
    _unused("milp", names, {"--time-limit": time_limit})
    with ExitStack() as stack:
        ending = stack.enter_context(Ending()) if follow else None
        source = stack.enter_context(Source(inputs or [], ins, ending))
        into = stack.enter_context(out.records(schema, kind, shown, metadata=source.metadata))
        if ending is not None:
            stack.enter_context(cli.signals(ending))
        work.run(source, into, follow, patience)
    work.tell(common.stats, common.verbose)
    if ending is not None and ending.number:
        return 128 + ending.number
    return cli.OK if work.found else cli.NOTHING


def _models(text: str, many: bool) -> list[str]:
    from confluo_tools.commands.vote.models import MODELS

    if "," in text and not many:
        raise UsageError(f"not '{text[:60]}'", where="--model", hint="several need --score")
    return [cli.one_of("--model", word, MODELS) for word in text.split(",")]


def _unused(model: str, chosen: Sequence[str], given: Mapping[str, object]) -> None:
    """Say which options are of no use, because none of the chosen models asks for them."""
    if not any(name.startswith(model) for name in chosen):
        for option, value in given.items():
            if value is not None:
                cli.tell(f"{option} is for --model {model}, which is not asked")


def _rate(option: str, text: str | None) -> float | None:
    return None if text is None else cli.fraction(option, text, "a drop rate", inside=True)


class Source(Input):
    """The records: of any input, or following (``ending``), of a log as it grows or a pipe, until a signal."""

    def __init__(self, inputs: Sequence[str], ins: cli.InputOptions, ending: Ending | None) -> None:
        from confluo_tools.schema import builtin

        self.ending = ending
        self.given: Sequence[str] | None = None  # the fields of a table of text, where they are known
        if ending is not None and one_log(inputs):
            from confluo_tools import store

            self.log = store.open(inputs[0], readonly=True)
            schema, name, self.metadata = self.log.schema, inputs[0], {}
        else:
            self.reader = ins.open(inputs, schema=builtin("path"))
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
        if self.given is not None:  # flows without paths are told of as such
            needed, given = needed[:3], self.given  # type: ignore[assignment]
        missing = [n for n in needed if n not in given]
        if missing:
            raise SchemaError(f"has no field '{missing[0]}'", where=name, hint="confluo-vote(1) lists what it needs")

    def blocks(self, epochs: Epochs) -> Iterator[Block]:
        """Blocks of the schema `path`; following, epochs are handed over while nothing comes."""
        from confluo_tools.cli import following

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


class Work:
    """One run: which models, and what is printed of each epoch."""

    def __init__(
        self, names: list[str], settings: models.Settings, *, switches: bool, healthy: int, length: int, top: int,
        what: str,
    ) -> None:  # fmt: skip
        self.models, self.settings, self.switches, self.healthy = names, settings, switches, healthy
        self.length, self.top, self.what = length, top, what
        self.topology: Topology | None = None
        self.routes: Routes | None = None
        self.alias: dict[int, int] = {}
        self.strangers: set[int] = set()
        self.failed: set[tuple[int, int]] = set()
        self.found = 0
        self.blind = False
        self.counts = dict.fromkeys((
            "records", "flows", "sent", "lost", "healthy_flows", "repeated", "partial", "loops", "cut", "pathless",
            "placeless", "components",
        ), 0)  # fmt: skip
        self.epochs_seen = self.late = self.took = 0

    def map(self, topology: str | None, aliases: str | None) -> None:
        """Read what is known of the network."""
        called: dict[int, str] = {}
        if topology is not None:
            from confluo_tools.algo.routes import Routes
            from confluo_tools.formats.topology import read_topology

            self.topology = read_topology(topology)
            self.routes = Routes(self.topology, self.switches)
            self.alias |= self.topology.alias
        if aliases is not None:
            from confluo_tools.formats.aliases import read_aliases

            known = {name: n for n, name in self.topology.names.items()} if self.topology is not None else None
            more, called = read_aliases(aliases, known)
            self.alias |= more
        self.called = called
        if self.settings.adjust == "ecmp" and self.routes is None and "vote" in self.models:
            raise UsageError("--adjust ecmp needs to know the network", hint="--topology FILE describes it")
        if self.healthy == 2 and self.routes is None and "mle" in self.models:
            raise UsageError("--healthy ecmp needs to know the network", hint="--topology FILE describes it")

    def run(self, source: Source, out: cli.RecordOutput, follow: bool, lateness: int) -> None:
        from confluo_tools.commands.vote.answer import Names
        from confluo_tools.commands.vote.epochs import Epochs
        from confluo_tools.core.votes import Tally

        names = Names(self.topology, self.called)

        def make() -> Tally:
            return Tally(
                switches=self.switches, healthy=self.healthy, keep=self.what == "flows", alias=self.alias or None,
                tor_of=self.topology.tor_of if self.topology is not None else None,
            )  # fmt: skip

        def done(begin: int, tally: Tally) -> None:
            self.judge(begin, tally, names, out)
            if follow:
                out.flush()

        epochs = Epochs(self.length, lateness, follow, make, done)
        epochs.idle = out.flush
        for block in source.blocks(epochs):
            epochs.add(block)
        epochs.finish()
        self.late = epochs.late

    def judge(self, begin: int, tally: Tally, names: Names, out: cli.RecordOutput) -> None:
        """Judge an epoch and print it."""
        from confluo_tools.commands.vote import answer, models

        self.epochs_seen += 1
        self.failed |= set(tally.truth())  # what has failed stays failed
        for name in self.counts:
            self.counts[name] += getattr(tally, name)
        if self.topology is not None:
            self._look_for_strangers(tally)
        for model in self.models:
            before = time.perf_counter_ns()
            judgement = models.judge(tally, model, self.settings, self.routes)
            took = time.perf_counter_ns() - before
            self.took += took
            self.blind |= judgement.blind and tally.flows > 0
            if self.what == "links":
                self.found += len(judgement.blamed)
                blocks = answer.links(judgement, names, self.failed, begin, self.length, self.top)
            elif self.what == "flows":
                self.found += tally.kept_rows
                blocks = answer.flows(judgement, names)
            else:
                self.found += 1
                blocks = answer.score(judgement, self.failed, begin, self.length, took)
            for block in blocks:
                out.write(block)

    def _look_for_strangers(self, tally: Tally) -> None:
        # Switches of paths that the topology lacks.  Hosts may be missing: they have one link.
        assert self.topology is not None
        here, hosts = self.topology.neighbours, self.topology.tor_of
        near: dict[int, int] = {}
        for a, b in map(tally.key, range(tally.components)):
            for node, other in ((a, b), (b, a)):
                if node not in here and node not in hosts and node not in self.strangers and (
                    self.switches or near.setdefault(node, other) != other
                ):
                    self.strangers.add(node)

    def tell(self, stats: bool, verbose: bool) -> None:
        """What was odd; with --stats, counts."""
        if self.late:
            cli.tell(f"{self.late} records came after their epoch was printed; --lateness waits for them")
        if self.strangers:
            from confluo_tools.commands.vote.answer import Names

            names = Names(self.topology, self.called)
            some = ", ".join([names.of(n) for n in sorted(self.strangers)[:3]])
            more = ", ..." if len(self.strangers) > 3 else ""
            cli.tell(f"{len(self.strangers)} switches of paths are not in the topology: {some}{more}")
        if self.counts["flows"] and self.counts["pathless"] >= self.counts["flows"]:
            cli.tell("none of the flows with loss has a path; confluo-trace finds paths")
        if self.blind and not (self.settings.p_bad and self.settings.p_good):
            hint = "; --topology may tell" if self.counts["healthy_flows"] and self.topology is None else ""
            what = "where flows without loss went is not known: mle cannot fit drop rates, 0.7 % and 0.03 % are taken"
            cli.tell(what + hint)
        if stats or verbose:
            c = self.counts
            epochs = "1 epoch" if self.epochs_seen == 1 else f"{self.epochs_seen:,} epochs"
            cli.note(
                f"{c['records']:,} records in {epochs}: {c['flows']:,} flows with loss, "
                f"{c['healthy_flows']:,} without; {c['lost']:,} of {c['sent']:,} packets lost"
            )
            cli.note(
                f"paths: {c['pathless']:,} of flows with loss not known, {c['partial']:,} partial, {c['loops']:,} with "
                f"loops, {c['cut']:,} longer than 16 hops; {c['repeated']:,} records of flows that were there already"
            )
            cli.note(f"judged in {self.took / 1e6:.1f} ms")


def main(argv: list[str] | None = None) -> int:
    return cli.run(app, "confluo-vote", argv)
