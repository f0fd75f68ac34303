"""What flows that died say about a blamed link: that it is cut, that it is a black hole, or too little.

A link that is cut carries nothing.  A black hole is a switch that drops all packets of some five-tuples or address
pairs, always, and none of the others: its flows die on links that other traces cross and other flows use without loss.
A link that drops packets by chance kills some flows, but most flows that cross it live, with losses.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import sqrt
from typing import NamedTuple

BAD, BLACK_HOLE, UNSURE = "bad", "black_hole", "unsure"
MIN_DEAD = 4  # flows that died, before they accuse a link
MIN_ALIVE = 3  # traces or flows, before they show that a link carries traffic
MIXED = 0.1  # of the dead: as many flows with loss may have crossed a black hole


class Expected(NamedTuple):
    """What flows without loss say about a link, as far as they are known.

    ``certain``: those that must have crossed it; ``missing``: flows that should have died if it were cut, by ECMP, and
    the variance of that.
    """

    certain: float = 0.0
    missing: float = 0.0
    variance: float = 0.0


class DeadFlows(NamedTuple):
    """The evidence about a blamed link.

    ``dead`` flows that it explains, of ``pairs`` pairs of addresses; ``living`` flows that it explains and that got
    packets through; ``crossed``: flows with loss with a trace that crossed it; ``carried``: all traces that did.
    """

    dead: int
    pairs: int
    living: int
    crossed: int
    carried: int
    expected: Expected


def kind_of(seen: DeadFlows) -> str:
    """`BAD`, `BLACK_HOLE` or `UNSURE`."""
    if not _died(seen):
        return BAD
    e = seen.expected
    if e.certain >= MIN_ALIVE:
        return BLACK_HOLE
    if seen.dead < MIN_DEAD:
        return UNSURE
    if seen.dead < e.missing / 2:  # if the link were cut, more flows would have died
        return BLACK_HOLE if seen.dead < e.missing - 2 * sqrt(e.variance) else UNSURE
    traced = seen.carried - seen.crossed >= MIN_ALIVE and seen.crossed <= MIXED * seen.dead
    return BLACK_HOLE if traced else BAD


def kinds_of(seen: Mapping[int, DeadFlows], *, mapped: bool) -> dict[int, str]:
    """`kind_of` each link.

    ``mapped``: a topology says which links are possible.  Without one, links that are cut and a black hole look alike
    when there are several.
    """
    kinds = {number: kind_of(one) for number, one in seen.items()}
    cut = [n for n, kind in kinds.items() if kind == BAD and _died(seen[n])]
    return kinds | (dict.fromkeys(cut, UNSURE) if len(cut) > 1 and not mapped else {})


def _died(seen: DeadFlows) -> bool:
    return seen.dead > 0 and seen.living <= MIXED * seen.dead


def remark(name: str, kind: str, seen: DeadFlows) -> str:
    """What to tell the user about a link that is not simply bad."""
    if kind == BLACK_HOLE:
        some = "one address pair" if seen.pairs == 1 else f"{seen.pairs} address pairs"
        return f"black hole suspected at {name}: {seen.dead} flows of {some} died there, others cross it without loss"
    if seen.dead < MIN_DEAD:
        return f"{name}: flows died there, but {seen.dead} are too few to blame it"
    return f"{name}: {seen.dead} flows died there, but that does not show whether it is cut or a black hole"


def expected(pairs: Iterable[tuple[float, int]]) -> Expected:
    """``pairs``: for each pair of ToRs the chance that a flow crosses the link, and its flows without loss."""
    certain = missing = variance = 0.0
    for chance, flows in pairs:
        if chance >= 1:
            certain += flows
        elif chance > 0:
            missing += flows * chance / (1 - chance)
            variance += flows * chance / (1 - chance) ** 2
    return Expected(certain, missing, variance)
