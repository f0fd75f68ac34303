"""Flows that lost only acknowledgements: the bad link is on their way back, which no trace follows (007, section 9.1).

A link that drops many packets also drops handshake answers and acknowledgements of flows that cross it in the other
direction.  Their senders retransmit, and their votes would blame good links.  So after each blamed link, the flows
that it can explain in this way are taken out, if there are not more of them than the link can have caused, and not
more on any one link than chance puts there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import log
from typing import NamedTuple

from confluo_tools.vote import voting

CRITICAL = 8  # acknowledgements of a flow that cause a retransmission when they are lost: the handshake, the last ones
MARGIN = 3  # flows more than expected, at least
HEAVY = 0.03  # drop rate of flows on a link that drops enough acknowledgements to notice
SEVERE = 0.25  # share of its packets that a flow has lost: more than by lost acknowledgements
LEAST = 5  # with fewer flows than this part of those expected, the link drops no acknowledgements: they lost data

Link = tuple[int, int]


class LossyFlow(NamedTuple):
    """A flow with loss: its number, its ends, their ToRs, and the links it votes for."""

    number: int
    src: int
    dst: int
    src_tor: int
    dst_tor: int
    links: tuple[Link, ...]


def expected(flows: int, lost: int, sent: int) -> float:
    """Flows that retransmit because a link dropped their acknowledgements, at most.

    ``flows`` with loss crossed the link in its own direction and ``lost`` that number of the packets ``sent``.  The
    same number of flows is taken to cross it on their way back as on their way out.
    """
    if not flows or not lost:
        return 0.0
    p = min(lost / max(sent, 1), 1.0)
    crossed = flows / (1 - (1 - p) ** (sent / flows))
    return float(crossed * (1 - (1 - p) ** CRITICAL))


def explained(
    flows: Sequence[LossyFlow],
    chance: Callable[[LossyFlow], float],
    most: float,
    spread: Callable[[LossyFlow], Mapping[Link, float]] | None,
    components: int,
) -> list[int]:
    """The numbers of the flows that lost acknowledgements on a blamed link.

    ``chance``: that the way back of a flow crosses that link; ``most``: the number of flows that it can have caused.
    ``spread``: by ECMP, the chance that a flow crosses each link between switches.  Flows stay if their link has
    significantly more of them than that: it is bad, too.
    """
    candidates = [flow for flow in flows if chance(flow) > 0]
    if spread is not None:
        heavy = _heavier(candidates, spread, components)
        candidates = [flow for flow in candidates if heavy.isdisjoint(flow.links)]
    if not most / LEAST <= len(candidates) <= 2 * most + MARGIN:
        return []
    return [flow.number for flow in candidates]


def _heavier(
    flows: Sequence[LossyFlow], spread: Callable[[LossyFlow], Mapping[Link, float]], components: int
) -> set[Link]:
    """Links with more of these flows than their share by chance."""
    count: dict[Link, int] = {}
    pairs: dict[Link, int] = {}
    some: dict[Link, LossyFlow] = {}
    for flow in flows:
        pair = flow.src_tor, flow.dst_tor
        pairs[pair] = pairs.get(pair, 0) + 1
        some[pair] = flow
        for link in flow.links:
            count[link] = count.get(link, 0) + 1
    mean: dict[Link, float] = {}
    for pair, n in pairs.items():
        for link, share in spread(some[pair]).items():
            mean[link] = mean.get(link, 0.0) + n * share
    found = set()
    for link, n in count.items():
        m = mean.get(link, 0.0)  # links of hosts have none: all flows of a host cross its link
        if m and n > voting.PEERS * m and n * log(n / m) - (n - m) > log(components / voting.CHANCE):
            found.add(link)
    return found
