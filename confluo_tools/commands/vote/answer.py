"""What confluo-vote prints of a judgement: rows of links, of flows, of scores."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from functools import cache
from typing import TYPE_CHECKING, Any

from confluo_tools.algo import voting
from confluo_tools.algo.topology import ZERO

if TYPE_CHECKING:
    from confluo_tools.algo.topology import Topology
    from confluo_tools.commands.vote.models import Judgement
    from confluo_tools.core.block import Block
    from confluo_tools.core.votes import Tally
    from confluo_tools.schema import Schema

BAD, GOOD = 1, 2
FAILED = 1
LINK, NOISE, UNKNOWN = 1, 2, 3


class Names:
    """What nodes are called: by the topology or the aliases, else as addresses or numbers."""

    def __init__(self, topology: Topology | None, aliases: dict[int, str]) -> None:
        from confluo_tools.algo.topology import Topology as Nothing

        self._topology = topology or Nothing()
        self._names = {ZERO: "0", **aliases}
        self.addresses: dict[int, bytes] = {}

    def of(self, number: int) -> str:
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
    """Path records with what is concluded of each."""
    from confluo_tools.schema import Field, builtin

    names = {LINK: "link", NOISE: "noise", UNKNOWN: "unknown"}
    return builtin("path").plus([
        Field("verdict", "enum", description="where it lost packets: a link, noise, or not known, without a path",
              names=names),
        Field("blame_a", "text(64)", description="the link goes from here, or the switch"),
        Field("blame_b", "text(64)", description="to here; empty for a switch"),
        Field("confidence", "f64", description="share of the link in the votes (mle: drop rates) along the path"),
    ])  # fmt: skip


Failed = Collection[tuple[int, int]]  # links (a, b) and switches (a, a), the ground truth so far


def links(
    judgement: Judgement, names: Names, failed: Failed, begin: int, length: int, top: int
) -> Iterator[Block]:
    """Rows of the schema `vote`: what is blamed, then at most so many of the others that ``top`` rows result."""
    from confluo_tools.formats.build import blocks_of

    tally, judge = judgement.judge.tally, judgement.judge
    names.addresses = tally.addresses()
    rows = [(number, score, BAD) for number, score in judgement.blamed]
    taken = {number for number, _ in judgement.blamed}
    if len(rows) < top:
        left = judgement.left
        least = -1e299 if judgement.model == "mle" else 1e-9
        others = [n for n in range(len(left)) if n not in taken and judge.votes_of(n) and left[n] > least]
        others.sort(key=lambda n: (-left[n], tally.key(n)))
        rows += [(n, left[n], GOOD) for n in others[: top - len(rows)]]
    out: dict[str, list[Any]] = {c.name: [] for c in ranking_schema().columns}
    for rank, (number, score, verdict) in enumerate(rows, 1):
        a, b = tally.key(number)
        flows, lost, sent, healthy = judge.crossing(number)
        truth = 0 if not failed else FAILED if voting.compare([(a, b)], failed).right else GOOD
        row = {
            "ts": begin, "epoch": length, "rank": rank, "verdict": verdict, "link_a": names.of(a),
            "link_b": "" if tally.switches else names.of(b), "score": score, "votes": judge.votes_of(number),
            "flows": flows, "lost": lost, "sent": sent + round(healthy),
            "rate": judgement.rate.get(number, float("nan")),
            "confidence": judgement.confidence(number, score) if verdict == BAD else 0.0, "truth": truth,
            "a": a, "b": b,
        }  # fmt: skip
        for name, value in row.items():
            out[name].append(value)
    yield from blocks_of(ranking_schema(), out, len(rows))


def flows(judgement: Judgement, names: Names) -> Iterator[Block]:
    """The records of the flows with loss, each with its verdict."""
    from array import array

    from confluo_tools.core.block import Block

    tally = judgement.judge.tally
    names.addresses = tally.addresses()
    schema = flows_schema()
    known: dict[int, tuple[int, bytes, bytes, float]] = {}
    row = 0
    for block in tally.kept:
        told = []
        for _ in range(block.rows):
            number = tally.flow_of(row)
            row += 1
            if number not in known:
                known[number] = _told(judgement, names, number)
            told.append(known[number])
        buffers: list[Any] = [block.buffer(i) for i in range(block.layout.n)]
        buffers += [
            array("B", [t[0] for t in told]), b"".join([t[1] for t in told]), b"".join([t[2] for t in told]),
            array("d", [t[3] for t in told]),
        ]  # fmt: skip
        yield Block.wrap(schema.layout, block.rows, buffers)


def _told(judgement: Judgement, names: Names, number: int) -> tuple[int, bytes, bytes, float]:
    best, confidence = judgement.verdict(number)
    if best < 0:
        return (NOISE if best == -1 else UNKNOWN), bytes(64), bytes(64), confidence
    tally = judgement.judge.tally
    a, b = tally.key(best)
    end = "" if tally.switches else names.of(b)
    return LINK, names.of(a).encode()[:64].ljust(64, b"\0"), end.encode()[:64].ljust(64, b"\0"), confidence


def score(judgement: Judgement, failed: Failed, begin: int, length: int, took: int) -> Iterator[Block]:
    """One row of the schema `score`."""
    from confluo_tools.formats.build import blocks_of

    tally = judgement.judge.tally
    got = voting.compare([tally.key(number) for number, _ in judgement.blamed], failed)
    flows, right, noise, noise_right = _judged(judgement, tally, set(failed))
    row = {
        "ts": begin, "epoch": length, "model": judgement.model, "failed": got.failed, "blamed": got.blamed,
        "right": got.right, "found": got.found, "precision": got.precision, "recall": got.recall, "f1": got.f1,
        "flows": flows, "flows_right": right, "accuracy": right / flows if flows else float("nan"), "noise": noise,
        "noise_right": noise_right, "p_bad": judgement.p_bad, "p_good": judgement.p_good, "took": took,
    }  # fmt: skip
    yield from blocks_of(score_schema(), {name: [value] for name, value in row.items()}, 1)


def _judged(judgement: Judgement, tally: Tally, failed: set[tuple[int, int]]) -> tuple[int, int, int, int]:
    # Flows that lost packets on what had failed, of them blamed rightly; those that had not, of them called noise.
    count = right = noise = noise_right = 0
    switches = {n for link in failed for n in link}
    devices = {a for a, b in failed if a == b}
    for number in range(tally.flows):
        _, _, _, _, truth, is_noise = tally.flow(number)
        if is_noise:
            noise += 1
            noise_right += judgement.verdict(number)[0] == -1
        elif truth is not None and (truth in failed or not devices.isdisjoint(truth)):
            count += 1
            best = judgement.verdict(number)[0]
            if best >= 0:
                a, b = tally.key(best)
                if tally.switches:
                    right += a in truth and a in switches
                else:
                    right += (a, b) == truth or (truth[0] == truth[1] and truth[0] in (a, b))
    return count, right, noise, noise_right
