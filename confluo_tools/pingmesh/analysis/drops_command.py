"""confluo-pingmesh drops: find the layer that drops packets at random.  Manual: confluo-pingmesh-drops(1)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated, Any

from confluo_tools import cli
from confluo_tools.cli.options import option
from confluo_tools.pingmesh.analysis.window_options import Places, Where, WindowOptions, zoned

if TYPE_CHECKING:
    from confluo_tools.core.block.block import Block
    from confluo_tools.pingmesh.analysis.blackholes import NetworkPlace
    from confluo_tools.pingmesh.analysis.drop_tally import DropWindow
    from confluo_tools.pingmesh.analysis.failure_list import Failure
    from confluo_tools.pingmesh.analysis.loss_bursts import LossPeriod
    from confluo_tools.pingmesh.analysis.pair_tally import LocatedServer, PairPass, PairWindows
    from confluo_tools.pingmesh.analysis.silent_drops import DropFinding, WorstPair
    from confluo_tools.pingmesh.analysis.silent_servers import SilentServer
    from confluo_tools.schema import Schema

app = cli.command_app(
    """
# the layer that drops packets, and the pairs of servers with the highest drop rates
confluo-pingmesh drops probes.ml

# every ten minutes
confluo-pingmesh drops probes.ml --window 10m --top 0 -T

# follow the log, and write to another log
confluo-pingmesh drops probes.ml --window 10m --follow -w drops.ml --append

# find the switch: trace the flows that lost packets, on every server; then vote
confluo-pingmesh drops probes.ml -o stream | confluo-trace --from - -w paths.ml
confluo-vote paths.ml
"""
)

WHAT = {"layer": 1, "flow": 2}
STATE = {"steady": 1, "burst": 2, "new": 3, "silent": 4}
LAYER = {"tor": 1, "podset": 2, "leaf": 3, "spine": 4, "wan": 5, "all": 6, "server": 7}
REVERSE = 2
PIECE = 15_000_000_000  # ns: at least one round of probes
TENTH = 100_000_000  # ns: resolution of ``began`` and ``lasted``
SHOWN = ("what", "layer", "podset", "pod", "state", "dropped", "rate", "src", "src_port", "dst", "way")
PLACES = ("what", "layer", "podset", "pod", "src", "state", "lasted", "ok", "dropped", "rate", "rest")  # without flows


@app.command(
    panels={
        "Options": "--topology --window --follow --above --flows --top",
        "Filtering": "-e",
        "Analysis": "--ratio --lasting --all --as-sent --engine",
        "Time": "--lateness",
    }
)
def drops(
    inputs: cli.Inputs = None,
    where: Where = "",
    topology: Places = None,
    above: Annotated[str, option("--above", metavar="RATE", help="Minimum drop rate of a fault (5e-4).")] = "5e-4",
    ratio: Annotated[
        float, option("--ratio", metavar="N", min=1, help="Minimum ratio to the drop rate of all other probes (2).")
    ] = 2.0,
    lasting: Annotated[
        str, option("--lasting", metavar="TIME", help="Shorter than TIME, and than a quarter of all: a burst (5m).")
    ] = "5m",
    top: Annotated[int, option("--top", metavar="N", min=0, help="Print the N worst pairs of servers (100).")] = 100,
    flows: Annotated[
        int, option("--flows", metavar="N", min=1, help="Print the last N probes of each pair that lost packets (16).")
    ] = 16,
    all_pairs: Annotated[bool, option("--all", help="Print pairs of the whole fleet, also without a finding.")] = False,
    as_sent: Annotated[
        bool, option("--as-sent", help="Print five-tuples as probed, also where the answer was lost.")
    ] = False,
    *,
    engine: cli.Engine = None,
    windows: WindowOptions,
    ins: cli.InputOptions,
    period: cli.PeriodOptions,
    out: cli.LogOptions,
    common: cli.CommonOptions,
) -> int:
    """Find the layer of the network that drops packets at random, and the pairs of servers with the most drops.

    Prints the five-tuples of the probes of these pairs that lost a packet, for confluo-trace.
    """
    from confluo_tools.pingmesh.analysis import follow as following
    from confluo_tools.pingmesh.analysis import pair_report
    from confluo_tools.schema import builtin

    schema = builtin("drop")
    if out.listed(schema):
        return cli.OK
    if ins.missing(inputs, windows.follow):
        return cli.usage(app)
    length, lateness = windows.lengths()
    report = DropReport(
        schema,
        length,
        cli.fraction("--above", above, least=1e-9),
        ratio,
        top,
        flows,
        all_pairs=all_pairs,
        as_sent=as_sent,
        lasting=cli.duration("--lasting", lasting, 0),
    )
    span, where = period.span(out.local), zoned(where, out.local)
    kind = out.kind(answers=True)
    names = out.names(schema, kind, [*(["ts"] if length else []), *(SHOWN if top else PLACES)])
    report.known_servers = pair_report.servers_by_address(topology)
    with ExitStack() as stack:
        source = stack.enter_context(following.ProbeSource(inputs or [], ins, windows.follow, engine=engine))
        output = following.WindowOutput(
            out.open(schema, kind, names, metadata=source.metadata),
            stack,
            follow=windows.follow,
            options={
                "--window": following.length_of(length),
                "--where": where,
                "--above": report.above,
                "--ratio": ratio,
                "--lasting": following.length_of(report.lasting),
            },
        )
        pair_report.run_pairs(source, report, lambda: output, where, span, lateness)
    if not common.quiet and (report.rows or not windows.follow):
        report.print_notes(common.verbose or common.stats)
    return source.status(report.found)


class DropReport:
    """Rows of silent drops, window by window; see `pair_report.PairReport`."""

    def __init__(
        self,
        schema: Schema,
        length: int,
        above: float,
        ratio: float,
        top: int,
        flows: int,
        *,
        all_pairs: bool,
        as_sent: bool,
        lasting: int,
    ) -> None:
        self.lasting = lasting
        self.rows = self.others = self.overflows = 0
        self.schema, self.length, self.above, self.ratio = schema, length, above, ratio
        self.top, self.flows, self.all_pairs, self.as_sent = top, flows, all_pairs, as_sent
        self.found = 0
        self.known_servers: dict[str, LocatedServer] = {}
        self.by_distance: dict[str, list[int]] = {}  # [answered, dropped, failed]

    def request(self, run: PairPass) -> Callable[[], PairWindows[DropWindow]]:
        """Register the aggregates of a pass."""
        from confluo_tools.pingmesh.analysis.drop_tally import request_drops

        return request_drops(run, self.length, self.known_servers)

    def judge(self, found: PairWindows[DropWindow], run: PairPass) -> Iterator[Block]:
        """The rows of all windows of a pass."""
        self.rows += run.rows
        self.others += run.others
        self.overflows += run.overflows
        for window in found.windows:
            yield from self.judge_window(window, found.servers)

    def judge_window(self, window: DropWindow, servers: dict[str, LocatedServer]) -> Iterator[Block]:
        """Rows of one window: places, then flows of the worst pairs."""
        from confluo_tools.formats.block_builder import blocks_of_rows
        from confluo_tools.pingmesh.analysis import silent_drops
        from confluo_tools.pingmesh.analysis.blackholes import NetworkPlace

        place_of = {address: NetworkPlace(s.pod, s.podset, s.dc) for address, s in servers.items()}
        cells = {(NetworkPlace(*a), NetworkPlace(*b)): silent_drops.Count(*n) for (a, b), n in window.cells.items()}
        for name, count in silent_drops.by_distance(cells).items():
            self.by_distance[name] = [a + b for a, b in zip(self.by_distance.get(name, [0] * 3), count, strict=True)]
        times: dict[tuple[NetworkPlace, NetworkPlace], list[int]] = {}
        for (src, dst), failures in window.dropped.items():
            times.setdefault((place_of[src], place_of[dst]), []).extend([ts for ts, _ in failures.ports()])
        begin, end = window.start, window.start + self.length if self.length else window.end
        places = silent_drops.judge(cells, times, begin, end, above=self.above, ratio=self.ratio, lasting=self.lasting)
        findings = [f for f, period in places if period.state == "steady"]
        pairs = []
        for (src, dst), failures in window.dropped.items():
            a, b = place_of[src], place_of[dst]
            if self.all_pairs or any(silent_drops.crosses(f, a, b) for f in findings):
                count = silent_drops.Count(
                    window.ok.get((src, dst), 0), len(failures), window.failed.get((src, dst), 0)
                )
                pairs.append((src, dst, count))
        rows = [
            self._layer(rank, f, period, self._steady(f, times, begin, end))
            for rank, (f, period) in enumerate(places, 1)
        ]
        rows += [self._server(len(rows) + i, s, servers[s.server]) for i, s in enumerate(window.silent, 1)]
        self.found -= len(rows) - len(findings)
        for rank, pair in enumerate(silent_drops.worst(pairs, self.top), 1):
            lost = sorted(window.dropped[pair.src, pair.dst])[-self.flows :]
            rows += [self._flow(rank, pair, drop, servers) for drop in lost]
        self.found += len(rows)
        yield from blocks_of_rows(self.schema, [{"ts": window.start, "window": self.length} | row for row in rows])

    def _steady(
        self, finding: DropFinding, times: dict[tuple[NetworkPlace, NetworkPlace], list[int]], begin: int, end: int
    ) -> float:
        """How steadily the drops of a place occur, 0 to 1; see `blackholes.steadiness`."""
        from confluo_tools.pingmesh.analysis.blackholes import steadiness
        from confluo_tools.pingmesh.analysis.silent_drops import crosses

        drops = [ts for pair, pair_times in times.items() if crosses(finding, *pair) for ts in pair_times]
        pieces = max(20, min(len(drops) // 3, (end - begin) // PIECE))
        return steadiness(drops, begin, end, pieces) if drops else 0.0

    def _layer(self, rank: int, f: DropFinding, period: LossPeriod, steady: float) -> dict[str, Any]:
        return {
            "what": WHAT["layer"],
            "rank": rank,
            "layer": LAYER[f.layer],
            "dc": f.place.dc,
            "podset": f.place.podset,
            "pod": f.place.pod,
            "other": f.other,
            **_rate(*f.inside),
            "rest": digits(f.outside.rate),
            "gain": digits(f.gain),
            "steady": digits(steady),
            "state": STATE[period.state],
            "began": period.begin // TENTH * TENTH,
            "lasted": round((period.end - period.begin) / TENTH) * TENTH,
        }

    def _server(self, rank: int, silent: SilentServer, server: LocatedServer) -> dict[str, Any]:
        """A server that did not answer for a while, next to the share of probes that its neighbours dropped."""
        own, near = silent.own, silent.neighbours
        return {
            "what": WHAT["layer"],
            "rank": rank,
            "layer": LAYER["server"],
            "dc": server.dc,
            "podset": server.podset,
            "pod": server.pod,
            "src": server.name,
            **_rate(own.answered, own.dropped, own.failed),
            "rest": digits(near.dropped / near.answered if near.answered else 0.0),
            "state": STATE["silent"],
        }

    def _flow(self, rank: int, pair: WorstPair, drop: Failure, servers: dict[str, LocatedServer]) -> dict[str, Any]:
        from confluo_tools.pingmesh.analysis.pair_report import address_pair

        src, dst, sport, dport = drop.src, drop.dst, drop.src_port, drop.dst_port
        if drop.hint == REVERSE and not self.as_sent:
            src, dst, sport, dport = dst, src, dport, sport
        a, b = servers[src], servers[dst]
        return {
            "ts": drop.ts,
            "what": WHAT["flow"],
            "rank": rank,
            **_rate(*pair.probes),
            "proto": 6,
            **address_pair(src, dst),
            "src_port": sport,
            "dst_port": dport,
            "way": drop.hint,
            "sent": drop.retries + 1,
            "lost": drop.retries,
            "src": a.name,
            "dst": b.name,
            "src_pod": a.pod,
            "dst_pod": b.pod,
        }

    def print_notes(self, more: bool) -> None:
        """Print the drop rate of the network, by distance of the probes."""
        if not self.rows:
            cli.note("no TCP probes" + (" (UDP and ICMP probes fail when a packet is lost)" if self.others else ""))
            return
        if self.overflows:
            cli.note(f"{self.overflows:,} drops are not the network's: the target's listen queue was full")
        words = {"pod": "in pods", "podset": "in podsets", "dc": "between podsets", "wan": "between data centres"}
        parts = [
            f"{dropped / ok:.1e} {words[name]} ({dropped:,} of {ok:,})"
            for name, (ok, dropped, _) in self.by_distance.items()
            if ok
        ]
        failed = sum(n for _, _, n in self.by_distance.values())
        cli.note("drop rate " + ", ".join(parts) + (f"; {failed:,} probes not answered" if more or failed else ""))


def _rate(ok: int, dropped: int, failed: int) -> dict[str, Any]:
    from confluo_tools.pingmesh.analysis.sla import wilson

    low, high = wilson(dropped, ok)
    return {
        "ok": ok,
        "dropped": dropped,
        "failed": failed,
        "rate": digits(dropped / ok if ok else 0.0),
        "low": digits(low),
        "high": digits(high),
    }


def digits(value: float) -> float:
    """Round to four significant digits: counts of drops are not more precise."""
    return float(f"{value:.4g}")


def main(argv: Sequence[str] | None = None) -> int:
    return cli.run(app, "confluo-pingmesh drops", argv)
