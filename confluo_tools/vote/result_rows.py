"""Output of confluo-vote: rows of links, flows and scores."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from functools import cache
from typing import TYPE_CHECKING, Any

from confluo_tools.network.topology import ZERO
from confluo_tools.vote import dead_flows, voting
from confluo_tools.vote.partial_paths import UNKNOWN as NO_NODE

if TYPE_CHECKING:
    from confluo_tools.core.block.block import Block
    from confluo_tools.core.vote.flow_tally import FlowTally
    from confluo_tools.network.topology import Topology
    from confluo_tools.schema import Schema
    from confluo_tools.vote.models import Judgement

GOOD = 2
VERDICTS = {dead_flows.BAD: 1, dead_flows.BLACK_HOLE: 3, dead_flows.UNSURE: 4}
FAILED = 1
LINK, NOISE, UNKNOWN = 1, 2, 3


class NodeNames:
    """Names of nodes: from the topology or the aliases, else addresses or numbers."""

    def __init__(self, topology: Topology | None, aliases: dict[int, str]) -> None:
        from confluo_tools.network.topology import Topology as Nothing

        self._topology = topology or Nothing()
        self._names = {ZERO: "0", **aliases}
        self.addresses: dict[int, bytes] = {}

    def of(self, number: int) -> str:
        if number == NO_NODE:
            return "?"
        if number in self.addresses and number not in self._topology.names:
            from confluo_tools import units

            return units.format_ip6(self.addresses[number])
        return self._names.get(number) or self._topology.name(number)


@cache
def ranking_schema() -> Schema:
    from confluo_tools.schema import builtin

    return builtin("vote")


@cache
def score_schema() -> Schema:
    from confluo_tools.schema import builtin

    return builtin("score")


@cache
def flows_schema() -> Schema:
    """Path records with the verdict for each."""
    from confluo_tools.schema import Field, builtin

    names = {LINK: "link", NOISE: "noise", UNKNOWN: "unknown"}
    return builtin("path").plus(
        [
            Field(
                "verdict",
                "enum",
                description="where it lost packets: a link, noise, or not known, without a path",
                names=names,
            ),
            Field("blame_a", "text(64)", description="the link goes from here, or the switch"),
            Field("blame_b", "text(64)", description="to here; empty for a switch"),
            Field("confidence", "f64", description="share of the link in the votes (mle: drop rates) along the path"),
        ]
    )


Failed = Collection[tuple[int, int]]  # links (a, b) and switches (a, a), the ground truth so far


def links(judgement: Judgement, names: NodeNames, failed: Failed, begin: int, length: int, top: int) -> Iterator[Block]:
    """Rows of the schema `vote`: the blamed components, then the best others, up to ``top`` rows."""
    from confluo_tools.formats.block_builder import blocks_of

    tally, judge = judgement.localiser.tally, judgement.localiser
    names.addresses = tally.addresses()
    kinds = judgement.kinds
    rows = [(n, score, VERDICTS[kinds.get(n, dead_flows.BAD)]) for n, score in judgement.blamed]
    taken = {number for number, _ in judgement.blamed}
    if len(rows) < top:
        left = judgement.left
        least = judgement.model.min_score
        others = [n for n in range(len(left)) if n not in taken and judge.votes_of(n) and left[n] > least]
        others.sort(key=lambda n: (-left[n], tally.key(n)))
        rows += [(n, left[n], GOOD) for n in others[: top - len(rows)]]
    out: dict[str, list[Any]] = {c.name: [] for c in ranking_schema().columns}
    for rank, (number, score, verdict) in enumerate(rows, 1):
        a, b = tally.key(number)
        crossing = judge.crossing(number)
        truth = 0 if not failed else FAILED if voting.compare([(a, b)], failed).right else GOOD
        row = {
            "ts": begin,
            "epoch": length,
            "rank": rank,
            "verdict": verdict,
            "link_a": names.of(a),
            "link_b": "" if tally.switches else names.of(b),
            "score": score,
            "votes": judge.votes_of(number),
            "flows": crossing.flows,
            "dead": judge.explained(number).dead if verdict != GOOD else 0,
            "carried": tally.carried_by(number),
            "lost": crossing.lost,
            "sent": crossing.sent + round(crossing.healthy),
            "rate": judgement.rate.get(number, float("nan")),
            "confidence": judgement.confidence(number, score) if verdict == VERDICTS[dead_flows.BAD] else 0.0,
            "truth": truth,
            "a": a,
            "b": b,
        }
        for name, value in row.items():
            out[name].append(value)
    yield from blocks_of(ranking_schema(), out, len(rows))


def flows(judgement: Judgement, names: NodeNames) -> Iterator[Block]:
    """The records of the flows with loss, each with its verdict."""
    from array import array

    from confluo_tools.core.block.block import Block

    tally = judgement.localiser.tally
    names.addresses = tally.addresses()
    schema = flows_schema()
    known: dict[int, tuple[int, bytes, bytes, float]] = {}
    row = 0
    for block in tally.kept:
        verdicts = []
        for _ in range(block.rows):
            number = tally.flow_of(row)
            row += 1
            if number not in known:
                known[number] = _verdict_of(judgement, names, number)
            verdicts.append(known[number])
        buffers: list[Any] = [block.buffer(i) for i in range(block.layout.n)]
        buffers += [
            array("B", [t[0] for t in verdicts]),
            b"".join([t[1] for t in verdicts]),
            b"".join([t[2] for t in verdicts]),
            array("d", [t[3] for t in verdicts]),
        ]
        yield Block.wrap(schema.layout, block.rows, buffers)


def _verdict_of(judgement: Judgement, names: NodeNames, number: int) -> tuple[int, bytes, bytes, float]:
    best, confidence = judgement.verdict(number)
    if best < 0:
        return (NOISE if best == -1 else UNKNOWN), bytes(64), bytes(64), confidence
    tally = judgement.localiser.tally
    a, b = tally.key(best)
    end = "" if tally.switches else names.of(b)
    return LINK, names.of(a).encode()[:64].ljust(64, b"\0"), end.encode()[:64].ljust(64, b"\0"), confidence


def score(judgement: Judgement, failed: Failed, begin: int, length: int, took: int) -> Iterator[Block]:
    """One row of the schema `score`."""
    from confluo_tools.formats.block_builder import blocks_of

    tally = judgement.localiser.tally
    got = voting.compare([tally.key(number) for number in judgement.accused()], failed)
    flows, right, noise, noise_right = _judged(judgement, tally, set(failed))
    row = {
        "ts": begin,
        "epoch": length,
        "model": judgement.model.name,
        "failed": got.failed,
        "blamed": got.blamed,
        "right": got.right,
        "found": got.found,
        "precision": got.precision,
        "recall": got.recall,
        "f1": got.f1,
        "flows": flows,
        "flows_right": right,
        "accuracy": right / flows if flows else float("nan"),
        "noise": noise,
        "noise_right": noise_right,
        "p_bad": judgement.p_bad,
        "p_good": judgement.p_good,
        "took": took,
    }
    yield from blocks_of(score_schema(), {name: [value] for name, value in row.items()}, 1)


def _judged(judgement: Judgement, tally: FlowTally, failed: set[tuple[int, int]]) -> tuple[int, int, int, int]:
    # Flows that lost packets on failed components, those blamed correctly; the others, those called noise.
    count = right = noise = noise_right = 0
    switches = {n for link in failed for n in link}
    devices = {a for a, b in failed if a == b}
    for number in range(tally.flows):
        flow = tally.flow(number)
        truth = flow.truth
        if flow.noise:
            noise += 1
            noise_right += judgement.verdict(number).component == -1
        elif truth is not None and (truth in failed or not devices.isdisjoint(truth)):
            count += 1
            best = judgement.verdict(number).component
            if best >= 0:
                a, b = tally.key(best)
                if tally.switches:
                    right += a in truth and a in switches
                else:
                    right += (a, b) == truth or (truth[0] == truth[1] and truth[0] in (a, b))
    return count, right, noise, noise_right
