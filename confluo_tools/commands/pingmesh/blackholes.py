"""confluo-pingmesh blackholes: which ToRs eat packets for good.  Manual: confluo-pingmesh-blackholes(1)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated, Any

from confluo_tools import cli, config
from confluo_tools.cli.options import option
from confluo_tools.commands.pingmesh.windows import Where, WindowOptions
from confluo_tools.errors import SchemaError, UsageError

if TYPE_CHECKING:
    from confluo_tools.algo.blackholes import Pair, Place, Verdict
    from confluo_tools.core.block import Block
    from confluo_tools.schema import Schema
    from confluo_tools.store.pairs import Pass, Server, Window

    Found = tuple[list[Window], dict[str, Server]]

app = cli.command_app(
    """
# ToRs to reload, and what is above them
confluo-pingmesh blackholes probes.ml

# every pair of servers that cannot reach each other, with the ports that die
confluo-pingmesh blackholes probes.ml --pairs -o ndjson

# the daily job: no more than 20 proposals a day, those of earlier runs counted
confluo-pingmesh blackholes probes.ml --since 1d -w holes.ml --append

# as probes come: a judgement of each hour
confluo-pingmesh blackholes probes.ml --window 1h --follow -w holes.ml --append

# how far does a packet get?
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


@app.command()
def blackholes(
    inputs: cli.Inputs = None,
    where: Where = "",
    topology: Annotated[
        str | None, option("--topology", metavar="FILE", help="Which server is where, for records that do not tell.")
    ] = None,
    piece: Annotated[
        str, option("--slice", metavar="TIME", help="Servers are well or not for so long at a time (1m).")
    ] = "1m",
    threshold: Annotated[
        str, option("--threshold", metavar="SHARE", help="Score from which a ToR is a candidate (50%).")
    ] = "50%",
    group: Annotated[
        int, option("--group", metavar="N", min=1, help="No verdict on a ToR with fewer healthy servers (3).")
    ] = 3,
    least: Annotated[
        str, option("--least", metavar="N[,M]", help="Failures of a pair: of type 1 at least N, of type 2 M (5,3).")
    ] = "5,3",
    tries: Annotated[
        int, option("--tries", metavar="N", min=2, max=16, help="SYNs that a probe sends before it gives up (3).")
    ] = 3,
    literal: Annotated[
        bool, option("--literal", help="As in the paper: a pair counts for both of its ToRs.")
    ] = False,
    budget: Annotated[
        int, option("--budget", metavar="N", min=0, help="ToRs that are proposed a day, at most (20).")
    ] = 20,
    pairs: Annotated[bool, option("--pairs", help="Print the pairs, also those that a place explains.")] = False,
    top: Annotated[int, option("--top", metavar="N", min=0, help="Pairs that are printed at most (100).")] = 100,
    *,
    windows: WindowOptions,
    ins: cli.InputOptions,
    period: cli.PeriodOptions,
    out: cli.LogOptions,
    common: cli.CommonOptions,
) -> int:
    """Find ToRs that eat packets of some pairs of servers, or of some of their ports, for good.

    Nothing is reloaded: ToRs are proposed, at most so many a day, and what is above them is told.
    """
    from confluo_tools.commands.pingmesh import following
    from confluo_tools.schema import builtin
    from confluo_tools.store.pairs import by_windows, holes_of

    schema = builtin("blackhole")
    if out.listed(schema):
        return cli.OK
    if ins.missing(inputs, windows.follow):
        return cli.usage(app)
    length, patience = windows.lengths()
    pieces = cli.duration("--slice", piece)
    if length:  # windows are made of whole slices
        pieces = length if pieces >= length else length // -(-length // pieces)
    kind = out.kind(answers=True)
    work = Work(
        schema, threshold=cli.fraction("--threshold", threshold, least=1e-9), group=group, least=_least(least),
        tries=tries, literal=literal, budget=budget, pairs=pairs, top=top, length=length, pieces=pieces,
    )  # fmt: skip
    begin, end = period.span(out.local)
    if out.append:
        work.read_proposals(str(out.output))
    places = called(topology)
    with ExitStack() as stack:
        source = stack.enter_context(following.Source(inputs or [], ins, windows.follow))
        rows: list[dict[str, Any]] = []
        if not windows.follow:
            assert source.reader is not None
            found, servers, run = by_windows(source.reader, where, length, pieces, begin, end, places)
            work.note(run, servers)
            rows = [row for one in found for row in work.judge(one, servers)]
        kinds = {row["what"] == WHAT["pair"] for row in rows} if not windows.follow else {True, False}
        usual = [*(SHOWN_PLACES if False in kinds or not kinds else ()), *(SHOWN_PAIRS if True in kinds else ())]
        names = out.names(schema, kind, list(dict.fromkeys(usual)))
        into = out.open(schema, kind, names, metadata=source.metadata, sync=config.text("sync", None))
        stack.enter_context(into)
        ledger = following.Ledger(into, stack, follow=windows.follow, apart=("action",), asked={
            "--window": following.length_of(length), "--where": where, "--slice": following.length_of(pieces),
            "--threshold": work.threshold, "--group": group,
            "--least": least, "--tries": tries, "--literal": literal, "--pairs": pairs,
        })  # fmt: skip
        if not windows.follow:
            ledger.tell(work.blocks(rows), 0)
        else:
            def judge(found: Found, run: Pass) -> Iterator[Block]:
                work.note(run, found[1])
                for one in found[0]:
                    yield from work.blocks(work.judge(one, found[1]))

            following.follow_pairs(source, ledger, lambda run: holes_of(run, length, pieces, places), judge,
                                   length, patience, where, (begin, end))  # fmt: skip
    if work.probes or not windows.follow:
        work.tell(common.verbose or common.stats)
    if source.stopped:
        return 128 + source.stopped
    return cli.OK if work.found else cli.NOTHING


class Work:
    """One run: how to judge, and what is printed of each window."""

    def __init__(
        self, schema: Schema, *, threshold: float, group: int, least: tuple[int, int], tries: int, literal: bool,
        budget: int, pairs: bool, top: int, length: int, pieces: int,
    ) -> None:  # fmt: skip
        self.schema, self.threshold, self.group, self.least, self.tries = schema, threshold, group, least, tries
        self.literal, self.budget, self.pairs, self.top = literal, budget, pairs, top
        self.length, self.pieces = length, pieces
        self.found = self.probes = self.others = self.unclear = self.outages = self.symptoms = self.left_out = 0
        self.servers: set[str] = set()
        self.ill: set[str] = set()  # servers that were not well at some time
        self.tried: Counter[int] = Counter()  # pairs by how many ports they were tried with
        self.proposed: dict[int, set[Place]] = {}  # by day

    def note(self, run: Pass, servers: dict[str, Server]) -> None:
        """Counts of a pass."""
        self.probes += run.rows
        self.others += run.others
        self.servers |= servers.keys()

    def blocks(self, rows: list[dict[str, Any]]) -> Iterator[Block]:
        from confluo_tools.formats.build import blocks_of_rows

        return blocks_of_rows(self.schema, rows)

    def read_proposals(self, path: str) -> None:
        """Those of earlier runs, from the log that ours will be added to."""
        import os

        from confluo_tools.algo.blackholes import Place

        if not os.path.lexists(path):
            return
        with cli.open_records([path]) as reader:
            if reader.schema.kind != self.schema.kind:
                raise SchemaError(f"is a log of '{reader.schema.kind}'", where=path, hint="choose another name")
            at = [reader.schema.layout.get(name) for name in ("ts", "what", "action", "pod", "podset", "dc")]
            if min(at) < 0:
                raise SchemaError("lacks what tells of earlier proposals", where=path, hint="write it without -f")
            for block in reader:
                for row in range(block.rows):
                    ts, what, action, *names = [block.get(i, row) for i in at]
                    if what == WHAT["tor"] and action == ACTION["propose"]:
                        place = Place(*[bytes(n).rstrip(b"\0").decode("utf-8", "replace") for n in names])
                        self.proposed.setdefault(ts // DAY, set()).add(place)

    def judge(self, window: Window, servers: dict[str, Server]) -> list[dict[str, Any]]:
        """Rows of one window: verdicts, then pairs."""
        from confluo_tools.algo import blackholes as algo

        place_of = {address: algo.Place(s.pod, s.podset, s.dc) for address, s in servers.items()}
        well = {end: ok >= algo.HEALTHY * (ok + failed) for end, (ok, failed) in window.ends.items()}
        suspects: list[tuple[Pair, int]] = []
        pairs: list[Pair] = []
        ports: dict[tuple[str, str], int] = {}
        mixed: dict[str, list[int]] = {}  # of a server's pairs that fail at times: failures, probes
        for (src, dst), failures in window.failures.items():
            reached, first, last = window.answered.get((src, dst), (0, 0, 0))
            pair = algo.Pair(src, dst, reached, window.retried.get((src, dst), 0), first, last)
            for ts, port in failures.ports():
                when = ts // self.pieces * self.pieces
                if well.get((src, when)) and well.get((dst, when)):
                    pair.failures.append((ts, port))
                else:
                    pair.unclear += 1
            self.unclear += pair.unclear
            pairs.append(pair)
            ports[src, dst] = failures[-1].dst_port
            if pair.failed and algo.type_of(pair, least=(1, 1)) != 1:
                for end in (src, dst):
                    its = mixed.setdefault(end, [0, 0])
                    its[0] += pair.failed
                    its[1] += pair.failed + reached
        loss = {end: failed / probes for end, (failed, probes) in mixed.items()}
        for pair in pairs:
            worse = max(loss.get(pair.src, 0.0), loss.get(pair.dst, 0.0))
            kind = algo.type_of(pair, least=self.least, tries=self.tries, loss=worse)
            if kind:
                suspects.append((pair, kind))
            elif pair.failed >= min(self.least):
                self.outages += 1
        self.symptoms += len(suspects)
        self.ill |= {address for (address, _), good in well.items() if not good}
        self.tried += window.tried
        crossing = {algo.Place(*key) if len(key) == 3 else algo.Place("", *key): (n[0], n[1])
                    for key, n in window.crossing.items()}  # fmt: skip
        healthy = {address for (address, _), good in well.items() if good}
        verdicts = algo.judge(suspects, healthy, place_of, crossing, threshold=self.threshold,
                              group=self.group, literal=self.literal)  # fmt: skip
        proposed = self.proposed.setdefault(window.start // DAY, set())
        algo.ration(verdicts, budget=self.budget, before=proposed)
        proposed |= {v.place for v in verdicts if v.action == "propose"}
        loose = [one for one in suspects
                 if self.pairs or not any(algo.explains(v, one[0], place_of) for v in verdicts)]  # fmt: skip
        loose.sort(key=lambda one: (-one[0].failed, one[0].src, one[0].dst))
        self.left_out += max(0, len(loose) - self.top)
        rows = [] if self.pairs else [self._place(v) for v in verdicts]
        rows += [self._pair(pair, kind, ports[pair.src, pair.dst], servers) for pair, kind in loose[: self.top]]
        self.found += len(rows)
        return [{"ts": window.start, "window": self.length} | row for row in rows]

    def _place(self, v: Verdict) -> dict[str, Any]:
        kind = BOTH if v.type1 and v.type2 else 1 if v.type1 else 2
        return {
            "what": WHAT[v.what], "action": ACTION[v.action], "type": kind, "dc": v.place.dc, "podset": v.place.podset,
            "pod": v.place.pod, "server": v.server, "score": round(v.score, 4), "literal": round(v.literal, 4),
            "steady": round(v.steady, 4), "servers": v.servers, "shown": v.shown, "pairs": v.pairs,
            "type1": v.type1, "type2": v.type2,
        }  # fmt: skip

    def _pair(self, pair: Pair, kind: int, port: int, servers: dict[str, Server]) -> dict[str, Any]:
        from confluo_tools.algo.blackholes import paths_seen

        sent = pair.reached + pair.failed
        times = [ts for ts, _ in pair.failures]
        return {
            "what": WHAT["pair"], "action": ACTION["notify"], "type": kind, "pairs": 1, "type1": int(kind == 1),
            "type2": int(kind == 2), "proto": 6, **tuple_of(pair.src, pair.dst), "src_port": max(pair.failures)[1],
            "dst_port": port, "src": servers[pair.src].name, "dst": servers[pair.dst].name, "sent": sent,
            "lost": pair.failed, "retried": pair.retried, "unclear": pair.unclear, "first": min(times),
            "last": max(times), "ports": pair.ports[:32], "port_count": len(pair.ports),
            "paths": round(sent / pair.failed, 3) if kind == 2 else 1.0, "paths_seen": paths_seen(sent),
        }  # fmt: skip

    def tell(self, more: bool) -> None:
        """What cannot be seen in the rows."""
        if cli.state.quiet:
            return
        from confluo_tools.algo.blackholes import paths_seen

        if not self.probes:
            what = "there are no TCP probes" + (" (UDP and ICMP cannot tell loss from a hole)" if self.others else "")
            cli.note(what)
            return
        if self.left_out:
            cli.note(f"{self.left_out} more pairs", hint="--top N prints more")
        half, ports = self.tried.total() // 2, 0
        for ports in sorted(self.tried):  # the median
            half -= self.tried[ports]
            if half < 0:
                break
        cli.note(f"{self.probes:,} probes between {len(self.servers):,} servers; from one pair ({ports} ports) a hole "
                 f"on one of more than {paths_seen(ports)} equal paths may not be seen")  # fmt: skip
        if self.ill:
            servers = "1 server was" if len(self.ill) == 1 else f"{len(self.ill):,} servers were"
            cli.note(f"{servers} not well at times: what failed then "
                     f"({self.unclear:,} probes) counts for nothing")  # fmt: skip
        if more:
            cli.note(
                f"{self.symptoms:,} pairs with symptoms, {self.outages:,} with failures that are none; "
                f"{self.others:,} other records"
            )


def called(topology: str | None) -> dict[str, Server]:
    """The servers of a topology file, by address."""
    if topology is None:
        return {}
    from confluo_tools.formats.fleet import read_fleet
    from confluo_tools.store.pairs import Server

    return {s.address: Server(s.name, s.pod, s.podset, s.dc) for s in read_fleet(topology).servers}


def tuple_of(src: str, dst: str) -> dict[str, Any]:
    """Columns of two addresses."""
    from confluo_tools.formats.build import address_columns

    return {"ip_version": 4} | address_columns("src", src) | address_columns("dst", dst)


def _least(text: str) -> tuple[int, int]:
    first, _, second = text.partition(",")
    words = (first, second or first)
    if not all(word.isascii() and word.isdigit() and 1 <= int(word) <= 10**6 for word in words):
        raise UsageError(f"'{text[:60]}' are no numbers of failures", where="--least", hint="write e.g. 5,3")
    return int(words[0]), int(words[1])


def main(argv: Sequence[str] | None = None) -> int:
    return cli.run(app, "confluo-pingmesh blackholes", argv)
