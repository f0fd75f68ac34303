"""How a partial path may continue: the links after its last switch; one of them may be cut."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from confluo_tools.network.topology import Link, Topology

UNKNOWN = 0  # the far end of a link, when nothing says which switch it is


class PartialEnd(NamedTuple):
    """The last node that answered, the destination of the flow, and the ToR of that (0: not known)."""

    last: int
    dst: int
    dst_tor: int


def following(
    ends: Iterable[PartialEnd], topology: Topology | None, seen: Callable[[int], list[Link]]
) -> dict[tuple[int, int, int], list[Link]]:
    """The links that flows to these destinations may take after the last node.

    By ECMP, if a topology knows both ends.  Otherwise a link to `UNKNOWN` and ``seen(node)``, the links from the node
    that other paths contain.
    """
    return {end: _onward(end, topology) or [(end.last, UNKNOWN), *seen(end.last)] for end in ends}


def inside(gap: Link, topology: Topology | None, seen: Callable[[int], list[Link]]) -> list[Link]:
    """The links that a path may have taken between two nodes, when the switches between them did not answer.

    By ECMP; without a topology those over one switch that other paths contain.
    """
    a, b = gap
    if topology is None:
        near = seen(a)
        return [link for first in near for link in (first, *seen(first[1])) if first == link or link[1] == b]
    start = topology.tor_of.get(a, a)
    ways = [] if a == start else [(a, start)]
    return [*ways, *topology.shares(start, b)]


def _onward(end: PartialEnd, topology: Topology | None) -> list[Link]:
    if end.last == end.dst_tor:
        return [(end.last, end.dst)]
    if topology is None:
        return []
    if end.last in topology.tor_of:  # no switch answered
        return [(end.last, topology.tor_of[end.last])]
    if end.dst_tor not in topology.neighbours or end.last not in topology.neighbours:
        return []
    far = topology.distances(end.dst_tor)
    left = far.get(end.last, 0)
    return [(end.last, b) for b in topology.neighbours[end.last] if far.get(b) == left - 1]
