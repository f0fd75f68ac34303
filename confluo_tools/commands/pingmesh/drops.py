"""confluo-pingmesh drops: which layer loses packets at random, and on whose way.  Manual: confluo-pingmesh-drops(1)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated, Any

from confluo_tools import cli
from confluo_tools.cli.options import option
from confluo_tools.commands.pingmesh.blackholes import tuple_of
from confluo_tools.commands.pingmesh.windows import Where, WindowOptions

if TYPE_CHECKING:
    from confluo_tools.algo.blackholes import Place
    from confluo_tools.algo.bursts import Course
    from confluo_tools.algo.silent import Finding, Worst
    from confluo_tools.core.block import Block
    from confluo_tools.schema import Schema
    from confluo_tools.store.pairs import Drops, Failure, Pass, Server

    Found = tuple[list[Drops], dict[str, Server]]

app = cli.command_app(
    """
# which layer drops packets, and the pairs that lose most
confluo-pingmesh drops probes.ml

# every ten minutes
confluo-pingmesh drops probes.ml --window 10m --top 0 -T

# as probes come, into a log of its own
confluo-pingmesh drops probes.ml --window 10m --follow -w drops.ml --append

# which switch: on every server, trace the flows that lost packets there; then vote
confluo-pingmesh drops probes.ml -o stream | confluo-trace --from - -w paths.ml
confluo-vote paths.ml
"""
)

WHAT = {"layer": 1, "flow": 2}
STATE = {"steady": 1, "burst": 2, "new": 3}
LAYER = {"tor": 1, "podset": 2, "leaf": 3, "spine": 4, "wan": 5, "all": 6}
REVERSE = 2
PIECE = 15_000_000_000  # ns: at least one round of probes
TENTH = 100_000_000  # ns: nobody knows better when it began
SHOWN = ("what", "layer", "podset", "pod", "state", "dropped", "rate", "src", "src_port", "dst", "way")
PLACES = ("what", "layer", "podset", "pod", "state", "lasted", "ok", "dropped", "rate", "rest")  # and no flows


@app.command()
def drops(
    inputs: cli.Inputs = None,
    where: Where = "",
    topology: Annotated[
        str | None, option("--topology", metavar="FILE", help="Which server is where, for records that do not tell.")
    ] = None,
    above: Annotated[str, option("--above", metavar="RATE", help="A drop rate that is a fault (5e-4).")] = "5e-4",
    ratio: Annotated[
        float, option("--ratio", metavar="N", min=1, help="And N times that of all other probes (2).")
    ] = 2.0,
    lasting: Annotated[
        str, option("--lasting", metavar="TIME", help="What goes on for less, and a quarter of all, is a burst (5m).")
    ] = "5m",
    top: Annotated[int, option("--top", metavar="N", min=0, help="The worst N pairs of servers (100).")] = 100,
    flows: Annotated[
        int, option("--flows", metavar="N", min=1, help="Of each pair the last N probes that lost packets (16).")
    ] = 16,
    all_pairs: Annotated[
        bool, option("--all", help="Pairs of all the fleet, also when no place stands out.")
    ] = False,
    as_sent: Annotated[
        bool, option("--as-sent", help="Five-tuples as they were probed, also where the answer was lost.")
    ] = False,
    *,
    windows: WindowOptions,
    ins: cli.InputOptions,
    period: cli.PeriodOptions,
    out: cli.LogOptions,
    common: cli.CommonOptions,
) -> int:
    """Find the layer of the network that drops packets at random, and the pairs of servers that lose most.

    The probes of these pairs that lost a packet are printed with their five-tuples, for confluo-trace.
    """
    from confluo_tools.commands.pingmesh import following
    from confluo_tools.commands.pingmesh.blackholes import called
    from confluo_tools.schema import builtin
    from confluo_tools.store.pairs import drops_by_windows, drops_of

    schema = builtin("drop")
    if out.listed(schema):
        return cli.OK
    if ins.missing(inputs, windows.follow):
        return cli.usage(app)
    length, patience = windows.lengths()
    worst = cli.fraction("--above", above, least=1e-9)
    work = Work(schema, length, worst, ratio, top, flows, all_pairs=all_pairs, as_sent=as_sent,
                lasting=cli.duration("--lasting", lasting, 0))  # fmt: skip
    begin, end = period.span(out.local)
    kind = out.kind(answers=True)
    names = out.names(schema, kind, [*(["ts"] if length else []), *(SHOWN if top else PLACES)])
    places = called(topology)
    with ExitStack() as stack:
        source = stack.enter_context(following.Source(inputs or [], ins, windows.follow))
        into = out.open(schema, kind, names, metadata=source.metadata)
        stack.enter_context(into)
        ledger = following.Ledger(into, stack, follow=windows.follow, asked={
            "--window": following.length_of(length), "--where": where, "--above": worst, "--ratio": ratio,
            "--lasting": following.length_of(work.lasting),
        })  # fmt: skip
        if not windows.follow:
            assert source.reader is not None
            found, servers, run = drops_by_windows(source.reader, where, length, begin, end, places)
            work.note(run)
            for one in found:
                ledger.tell(work.judge(one, servers), 0)
        else:
            def judge(found: Found, run: Pass) -> Iterator[Block]:
                work.note(run)
                for one in found[0]:
                    yield from work.judge(one, found[1])

            following.follow_pairs(source, ledger, lambda run: drops_of(run, length, places), judge,
                                   length, patience, where, (begin, end))  # fmt: skip
    if not common.quiet and (work.rows or not windows.follow):
        work.tell(common.verbose or common.stats)
    if source.stopped:
        return 128 + source.stopped
    return cli.OK if work.found else cli.NOTHING


class Work:
    """One run: what a fault is, and what is printed of each window."""

    def __init__(
        self, schema: Schema, length: int, above: float, ratio: float, top: int, flows: int, *, all_pairs: bool,
        as_sent: bool, lasting: int,
    ) -> None:  # fmt: skip
        self.lasting = lasting
        self.rows = self.others = self.overflows = 0
        self.schema, self.length, self.above, self.ratio = schema, length, above, ratio
        self.top, self.flows, self.all_pairs, self.as_sent = top, flows, all_pairs, as_sent
        self.found = 0
        self.far: dict[str, list[int]] = {}

    def judge(self, window: Drops, servers: dict[str, Server]) -> Iterator[Block]:
        """Rows of one window: places, then flows of the worst pairs."""
        from confluo_tools.algo import silent
        from confluo_tools.algo.blackholes import Place
        from confluo_tools.formats.build import blocks_of_rows

        place_of = {address: Place(s.pod, s.podset, s.dc) for address, s in servers.items()}
        cells = {(Place(*a), Place(*b)): silent.Count(*n) for (a, b), n in window.cells.items()}
        for name, count in silent.picture(cells).items():
            self.far[name] = [a + b for a, b in zip(self.far.get(name, [0, 0, 0]), count, strict=True)]
        times: dict[tuple[Place, Place], list[int]] = {}
        for (src, dst), failures in window.dropped.items():
            times.setdefault((place_of[src], place_of[dst]), []).extend([ts for ts, _ in failures.ports()])
        begin, end = window.start, window.start + self.length if self.length else window.end
        places = silent.judge(cells, times, begin, end, above=self.above, ratio=self.ratio, lasting=self.lasting)
        findings = [f for f, course in places if course.state == "steady"]
        pairs = []
        for (src, dst), failures in window.dropped.items():
            a, b = place_of[src], place_of[dst]
            if self.all_pairs or any(silent.crosses(f, a, b) for f in findings):
                count = silent.Count(window.ok.get((src, dst), 0), len(failures), window.failed.get((src, dst), 0))
                pairs.append((src, dst, count))
        rows = [self._layer(rank, f, course, self._steady(f, times, begin, end))
                for rank, (f, course) in enumerate(places, 1)]  # fmt: skip
        self.found -= len(rows) - len(findings)
        for rank, pair in enumerate(silent.worst(pairs, self.top), 1):
            lost = sorted(window.dropped[pair.src, pair.dst])[-self.flows :]
            rows += [self._flow(rank, pair, one, servers) for one in lost]
        self.found += len(rows)
        yield from blocks_of_rows(self.schema, [{"ts": window.start, "window": self.length} | row for row in rows])

    def _steady(
        self, finding: Finding, times: dict[tuple[Place, Place], list[int]], begin: int, end: int
    ) -> float:
        """Whether drops that went through the place came all the time."""
        from confluo_tools.algo.blackholes import steadiness
        from confluo_tools.algo.silent import crosses

        its = [ts for pair, some in times.items() if crosses(finding, *pair) for ts in some]
        pieces = max(20, min(len(its) // 3, (end - begin) // PIECE))
        return steadiness(its, begin, end, pieces) if its else 0.0

    def _layer(self, rank: int, f: Finding, course: Course, steady: float) -> dict[str, Any]:
        return {
            "what": WHAT["layer"], "rank": rank, "layer": LAYER[f.layer], "dc": f.place.dc, "podset": f.place.podset,
            "pod": f.place.pod, "other": f.other, **_rate(*f.inside), "rest": digits(f.outside.rate),
            "gain": digits(f.gain), "steady": digits(steady), "state": STATE[course.state],
            "began": course.begin // TENTH * TENTH, "lasted": round((course.end - course.begin) / TENTH) * TENTH,
        }  # fmt: skip

    def _flow(self, rank: int, pair: Worst, one: Failure, servers: dict[str, Server]) -> dict[str, Any]:
        src, dst, sport, dport = one.src, one.dst, one.src_port, one.dst_port
        if one.hint == REVERSE and not self.as_sent:
            src, dst, sport, dport = dst, src, dport, sport
        a, b = servers[src], servers[dst]
        return {
            "ts": one.ts, "what": WHAT["flow"], "rank": rank, **_rate(*pair.probes), "proto": 6, **tuple_of(src, dst),
            "src_port": sport, "dst_port": dport, "way": one.hint, "sent": one.retries + 1, "lost": one.retries,
            "src": a.name, "dst": b.name, "src_pod": a.pod, "dst_pod": b.pod,
        }  # fmt: skip

    def note(self, run: Pass) -> None:
        """Counts of a pass."""
        self.rows += run.rows
        self.others += run.others
        self.overflows += run.overflows

    def tell(self, more: bool) -> None:
        """How well the network is, by how far probes go."""
        if not self.rows:
            cli.note("there are no TCP probes" + (" (what UDP and ICMP lose, they fail)" if self.others else ""))
            return
        if self.overflows:
            cli.note(f"{self.overflows:,} drops were not the network's: the target's host had no room")
        words = {"pod": "in pods", "podset": "in podsets", "dc": "between podsets", "wan": "between data centres"}
        parts = [f"{dropped / ok:.1e} {words[name]} ({dropped:,} of {ok:,})"
                 for name, (ok, dropped, _) in self.far.items() if ok]  # fmt: skip
        failed = sum(n for _, _, n in self.far.values())
        cli.note("drop rate " + ", ".join(parts) + (f"; {failed:,} probes not answered" if more or failed else ""))


def _rate(ok: int, dropped: int, failed: int) -> dict[str, Any]:
    from confluo_tools.algo.sla import wilson

    low, high = wilson(dropped, ok)
    return {"ok": ok, "dropped": dropped, "failed": failed, "rate": digits(dropped / ok if ok else 0.0),
            "low": digits(low), "high": digits(high)}  # fmt: skip


def digits(value: float) -> float:
    """Four of them: no count of drops is good for more."""
    return float(f"{value:.4g}")


def main(argv: Sequence[str] | None = None) -> int:
    return cli.run(app, "confluo-pingmesh drops", argv)
