"""confluo-pingmesh blackholes: find ToRs with black holes.  Manual: confluo-pingmesh-blackholes(1)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated, Any

from confluo_tools import cli, config
from confluo_tools.cli.options import option
from confluo_tools.errors import SchemaError, UsageError
from confluo_tools.pingmesh.analysis.window_options import Places, Where, WindowOptions, zoned

if TYPE_CHECKING:
    from confluo_tools.core.block.block import Block
    from confluo_tools.pingmesh.analysis.blackholes import BlackholeVerdict, NetworkPlace, ServerPair
    from confluo_tools.pingmesh.analysis.pair_tally import BlackholeWindow, LocatedServer, PairPass, PairWindows
    from confluo_tools.schema import Schema

app = cli.command_app(
    """
# ToRs to reload, and faults above the ToRs
confluo-pingmesh blackholes probes.ml

# every pair of servers that cannot reach each other, with the failing ports
confluo-pingmesh blackholes probes.ml --pairs -o ndjson

# daily job: at most 20 proposals a day, including those of earlier runs
confluo-pingmesh blackholes probes.ml --since 1d -w holes.ml --append

# follow the log and judge each hour
confluo-pingmesh blackholes probes.ml --window 1h --follow -w holes.ml --append

# trace the failing flows
confluo-pingmesh blackholes probes.ml --pairs -o stream | confluo-trace --from - -o table
"""
)

SECOND = 1_000_000_000
DAY = 86400 * SECOND
SHOWN_PLACES = ("what", "action", "type", "podset", "pod", "server", "score", "servers", "shown", "pairs")
SHOWN_PAIRS = ("type", "src", "dst", "lost", "sent", "retried", "ports")
WHAT = {"tor": 1, "leaf": 2, "spine": 3, "upper": 4, "server": 5, "pod_cut": 6, "podset_cut": 7, "pair": 8}
ACTION = {"propose": 1, "later": 2, "done": 3, "notify": 4, "few": 5}
BOTH = 3


@app.command(
    panels={
        "Options": "--topology --window --follow --threshold --pairs --top",
        "Filtering": "-e",
        "Analysis": "--slice --group --least --tries --literal --budget --engine",
        "Time": "--lateness",
    }
)
def blackholes(
    inputs: cli.Inputs = None,
    where: Where = "",
    topology: Places = None,
    piece: Annotated[
        str, option("--slice", metavar="TIME", help="Decide per TIME whether a server is healthy (1m).")
    ] = "1m",
    threshold: Annotated[
        str, option("--threshold", metavar="SHARE", help="Minimum score of a candidate ToR (50%).")
    ] = "50%",
    group: Annotated[
        int, option("--group", metavar="N", min=1, help="Minimum healthy servers of a ToR for a verdict (3).")
    ] = 3,
    least: Annotated[
        str, option("--least", metavar="N[,M]", help="Minimum failures of a pair: type 1 N, type 2 M (5,3).")
    ] = "5,3",
    tries: Annotated[
        int, option("--tries", metavar="N", min=2, max=16, help="SYNs that a probe sends before it fails (3).")
    ] = 3,
    literal: Annotated[
        bool, option("--literal", help="Count each pair for both of its ToRs, as the paper does.")
    ] = False,
    budget: Annotated[int, option("--budget", metavar="N", min=0, help="Propose at most N ToRs a day (20).")] = 20,
    pairs: Annotated[bool, option("--pairs", help="Print the pairs, also those that a place explains.")] = False,
    top: Annotated[int, option("--top", metavar="N", min=0, help="Print at most N pairs (100).")] = 100,
    *,
    engine: cli.Engine = None,
    windows: WindowOptions,
    ins: cli.InputOptions,
    period: cli.PeriodOptions,
    out: cli.LogOptions,
    common: cli.CommonOptions,
) -> int:
    """Find ToRs that drop all packets of some pairs of servers, or of some of their ports, until they are reloaded.

    The command reloads nothing: it proposes ToRs, at most --budget a day, and reports faults above the ToRs.
    """
    from confluo_tools.pingmesh.analysis import follow as following
    from confluo_tools.pingmesh.analysis import pair_report
    from confluo_tools.schema import builtin

    schema = builtin("blackhole")
    if out.listed(schema):
        return cli.OK
    if ins.missing(inputs, windows.follow):
        return cli.usage(app)
    length, lateness = windows.lengths()
    pieces = cli.duration("--slice", piece)
    if length:  # a window is a whole number of slices
        pieces = length if pieces >= length else length // -(-length // pieces)
    kind = out.kind(answers=True)
    report = BlackholeReport(
        schema,
        threshold=cli.fraction("--threshold", threshold, least=1e-9),
        group=group,
        min_failures=_min_failures(least),
        tries=tries,
        literal=literal,
        budget=budget,
        pairs=pairs,
        top=top,
        length=length,
        pieces=pieces,
        known_servers=pair_report.servers_by_address(topology),
    )
    span, where = period.span(out.local), zoned(where, out.local)
    if out.append:
        report.read_proposals(str(out.output))
    with ExitStack() as stack:
        source = stack.enter_context(following.ProbeSource(inputs or [], ins, windows.follow, engine=engine))

        def open_output() -> following.WindowOutput:
            names = out.names(schema, kind, report.shown(windows.follow))
            return following.WindowOutput(
                out.open(schema, kind, names, metadata=source.metadata, sync=config.text("sync", None)),
                stack,
                follow=windows.follow,
                apart=("action",),
                options={
                    "--window": following.length_of(length),
                    "--where": where,
                    "--slice": following.length_of(pieces),
                    "--threshold": report.threshold,
                    "--group": group,
                    "--least": least,
                    "--tries": tries,
                    "--literal": literal,
                    "--pairs": pairs,
                },
            )

        pair_report.run_pairs(source, report, open_output, where, span, lateness)
    if report.probes or not windows.follow:
        report.print_notes(common.verbose or common.stats)
    return source.status(report.found)


class BlackholeReport:
    """Rows of black holes, window by window; see `pair_report.PairReport`."""

    def __init__(
        self,
        schema: Schema,
        *,
        threshold: float,
        group: int,
        min_failures: tuple[int, int],
        tries: int,
        literal: bool,
        budget: int,
        pairs: bool,
        top: int,
        length: int,
        pieces: int,
        known_servers: dict[str, LocatedServer] | None = None,
    ) -> None:
        self.schema, self.threshold, self.group, self.min_failures, self.tries = (
            schema,
            threshold,
            group,
            min_failures,
            tries,
        )
        self.literal, self.budget, self.pairs, self.top = literal, budget, pairs, top
        self.length, self.pieces, self.known_servers = length, pieces, known_servers
        self.kinds: set[int] = set()  # of the rows, see `WHAT`
        self.found = self.probes = self.others = self.unclear = self.outages = self.symptoms = self.left_out = 0
        self.short = 0  # pairs without any answer, and too few probes for a symptom
        self.servers: set[str] = set()
        self.unhealthy: set[str] = set()  # servers, in at least one slice
        self.tried: Counter[int] = Counter()  # {ports tried: pairs}
        self.proposed: dict[int, set[NetworkPlace]] = {}  # by day

    def request(self, run: PairPass) -> Callable[[], PairWindows[BlackholeWindow]]:
        """Register the aggregates of a pass."""
        from confluo_tools.pingmesh.analysis.pair_tally import request_blackholes

        return request_blackholes(run, self.length, self.pieces, self.known_servers)

    def judge(self, found: PairWindows[BlackholeWindow], run: PairPass) -> Iterator[Block]:
        """The rows of all windows of a pass."""
        from confluo_tools.formats.block_builder import blocks_of_rows

        self.probes += run.rows
        self.others += run.others
        self.servers |= found.servers.keys()
        rows = [row for window in found.windows for row in self.judge_window(window, found.servers)]
        self.kinds |= {row["what"] for row in rows}
        yield from blocks_of_rows(self.schema, rows)

    def shown(self, follow: bool) -> list[str]:
        """Default columns: those of places, of pairs or of both, as the rows need them."""
        places = follow or not self.kinds or self.kinds != {WHAT["pair"]}
        pairs = follow or WHAT["pair"] in self.kinds
        return list(dict.fromkeys([*(SHOWN_PLACES if places else ()), *(SHOWN_PAIRS if pairs else ())]))

    def read_proposals(self, path: str) -> None:
        """Read the proposals of earlier runs from the log that this run appends to."""
        import os

        from confluo_tools.pingmesh.analysis.blackholes import NetworkPlace

        if not os.path.lexists(path):
            return
        with cli.open_records([path]) as reader:
            if reader.schema.kind != self.schema.kind:
                raise SchemaError(f"is a log of '{reader.schema.kind}'", where=path, hint="choose another name")
            at = [reader.schema.layout.get(name) for name in ("ts", "what", "action", "pod", "podset", "dc")]
            if min(at) < 0:
                raise SchemaError("has no columns of earlier proposals", where=path, hint="write it without -f")
            for block in reader:
                for row in range(block.rows):
                    ts, what, action, *names = [block.get(i, row) for i in at]
                    if what == WHAT["tor"] and action == ACTION["propose"]:
                        place = NetworkPlace(*[bytes(n).rstrip(b"\0").decode("utf-8", "replace") for n in names])
                        self.proposed.setdefault(ts // DAY, set()).add(place)

    def judge_window(self, window: BlackholeWindow, servers: dict[str, LocatedServer]) -> list[dict[str, Any]]:
        """Rows of one window: verdicts, then pairs."""
        from confluo_tools.pingmesh.analysis import blackholes

        place_of = {address: blackholes.NetworkPlace(s.pod, s.podset, s.dc) for address, s in servers.items()}
        healthy_in = {end: ok >= blackholes.HEALTHY * (ok + failed) for end, (ok, failed) in window.ends.items()}
        suspects: list[blackholes.Symptom] = []
        pairs: list[ServerPair] = []
        ports: dict[tuple[str, str], int] = {}
        mixed: dict[str, list[int]] = {}  # {server: [failures, probes] of its pairs that fail at times}
        for (src, dst), failures in window.failures.items():
            reached, first, last = window.answered.get((src, dst), (0, 0, 0))
            pair = blackholes.ServerPair(src, dst, reached, window.retried.get((src, dst), 0), first, last)
            for ts, port in failures.ports():
                when = ts // self.pieces * self.pieces
                if healthy_in.get((src, when)) and healthy_in.get((dst, when)):
                    pair.failures.append((ts, port))
                else:
                    pair.unclear += 1
            self.unclear += pair.unclear
            pairs.append(pair)
            ports[src, dst] = failures[-1].dst_port
            if pair.failed and blackholes.type_of(pair, min_failures=(1, 1)) != 1:
                for end in (src, dst):
                    counts = mixed.setdefault(end, [0, 0])
                    counts[0] += pair.failed
                    counts[1] += pair.failed + reached
        loss = {end: failed / probes for end, (failed, probes) in mixed.items()}
        for pair in pairs:
            worse = max(loss.get(pair.src, 0.0), loss.get(pair.dst, 0.0))
            kind = blackholes.type_of(pair, min_failures=self.min_failures, tries=self.tries, loss=worse)
            if kind:
                suspects.append(blackholes.Symptom(pair, kind))
            elif pair.failed and not pair.reached:
                self.short += 1
            elif pair.failed >= min(self.min_failures):
                self.outages += 1
        self.symptoms += len(suspects)
        self.unhealthy |= {address for (address, _), good in healthy_in.items() if not good}
        self.tried += window.tried
        crossing = {
            blackholes.NetworkPlace(*key) if len(key) == 3 else blackholes.NetworkPlace("", *key): (n[0], n[1])
            for key, n in window.crossing.items()
        }
        healthy = {address for (address, _), good in healthy_in.items() if good}
        verdicts = blackholes.judge(
            suspects, healthy, place_of, crossing, threshold=self.threshold, group=self.group, literal=self.literal
        )
        proposed = self.proposed.setdefault(window.start // DAY, set())
        blackholes.ration(verdicts, budget=self.budget, before=proposed)
        proposed |= {v.place for v in verdicts if v.action == "propose"}
        listed = [
            s for s in suspects if self.pairs or not any(blackholes.explains(v, s.pair, place_of) for v in verdicts)
        ]
        listed.sort(key=lambda s: (-s.pair.failed, s.pair.src, s.pair.dst))
        self.left_out += max(0, len(listed) - self.top)
        rows = [] if self.pairs else [self._place(v) for v in verdicts]
        rows += [self._pair(pair, kind, ports[pair.src, pair.dst], servers) for pair, kind in listed[: self.top]]
        self.found += len(rows)
        return [{"ts": window.start, "window": self.length} | row for row in rows]

    def _place(self, v: BlackholeVerdict) -> dict[str, Any]:
        kind = BOTH if v.type1 and v.type2 else 1 if v.type1 else 2
        return {
            "what": WHAT[v.what],
            "action": ACTION[v.action],
            "type": kind,
            "dc": v.place.dc,
            "podset": v.place.podset,
            "pod": v.place.pod,
            "server": v.server,
            "score": round(v.score, 4),
            "literal": round(v.literal, 4),
            "steady": round(v.steady, 4),
            "servers": v.servers,
            "shown": v.shown,
            "pairs": v.pairs,
            "type1": v.type1,
            "type2": v.type2,
        }

    def _pair(self, pair: ServerPair, kind: int, port: int, servers: dict[str, LocatedServer]) -> dict[str, Any]:
        from confluo_tools.pingmesh.analysis.blackholes import paths_seen
        from confluo_tools.pingmesh.analysis.pair_report import address_pair

        sent = pair.reached + pair.failed
        times = [ts for ts, _ in pair.failures]
        return {
            "what": WHAT["pair"],
            "action": ACTION["notify"],
            "type": kind,
            "pairs": 1,
            "type1": int(kind == 1),
            "type2": int(kind == 2),
            "proto": 6,
            **address_pair(pair.src, pair.dst),
            "src_port": max(pair.failures)[1],
            "dst_port": port,
            "src": servers[pair.src].name,
            "dst": servers[pair.dst].name,
            "sent": sent,
            "lost": pair.failed,
            "retried": pair.retried,
            "unclear": pair.unclear,
            "first": min(times),
            "last": max(times),
            "ports": pair.ports[:32],
            "port_count": len(pair.ports),
            "paths": round(sent / pair.failed, 3) if kind == 2 else 1.0,
            "paths_seen": paths_seen(sent),
        }

    def print_notes(self, more: bool) -> None:
        """Print notes on what the rows do not show."""
        if cli.state.quiet:
            return
        from confluo_tools.pingmesh.analysis.blackholes import paths_seen

        if not self.probes:
            cli.note("no TCP probes" + (" (UDP and ICMP probes cannot show a black hole)" if self.others else ""))
            return
        if self.short:
            hint = f"read more time; --least N,M sets the least failures of a pair ({self.min_failures[0]})"
            what = "pair of servers never answered" if self.short == 1 else "pairs of servers never answered"
            cli.note(f"{self.short:,} {what}, but their probes are too few to decide", hint=hint)
        if self.left_out:
            cli.note(f"{self.left_out} more pairs", hint="--top N prints more")
        half, ports = self.tried.total() // 2, 0
        for ports in sorted(self.tried):  # the median
            half -= self.tried[ports]
            if half < 0:
                break
        cli.note(
            f"{self.probes:,} probes between {len(self.servers):,} servers; one pair ({ports} ports) may miss a hole "
            f"on one of more than {paths_seen(ports)} equal paths"
        )
        if self.unhealthy:
            servers = "1 server was" if len(self.unhealthy) == 1 else f"{len(self.unhealthy):,} servers were"
            cli.note(f"{servers} unhealthy at times: {self.unclear:,} failures of these times are ignored")
        if more:
            cli.note(
                f"{self.symptoms:,} pairs with symptoms, {self.outages:,} pairs with failures but no symptom; "
                f"{self.others:,} other records"
            )


def _min_failures(text: str) -> tuple[int, int]:
    first, _, second = text.partition(",")
    words = (first, second or first)
    if not all(word.isascii() and word.isdigit() and 1 <= int(word) <= 10**6 for word in words):
        raise UsageError(f"invalid numbers of failures '{text[:60]}'", where="--least", hint="write e.g. 5,3")
    return int(words[0]), int(words[1])


def main(argv: Sequence[str] | None = None) -> int:
    return cli.run(app, "confluo-pingmesh blackholes", argv)
