"""Conditions on flow records as conditions on their packets, so that indexes and zone maps find these."""

from __future__ import annotations

from typing import Any

from confluo_tools.expr.leaves import And, Bytes, InByteRanges, InRanges, InSet, Not, Or, Pair, Range, Tree, columns
from confluo_tools.schema import Schema

ENDS = (("src_ip", "dst_ip"), ("src_ip6", "dst_ip6"), ("src_port", "dst_port"))
ALONE = ("proto", "ip_version")
ICMP = (1, 58)  # their flows have types of messages for ports


def packets_of(tree: Tree, flows: Schema, packets: Schema) -> Tree | None:
    """A condition on packets that holds for all packets of each flow for which ``tree`` holds; None: all packets.

    It holds for all packets of a five-tuple or for none of them, so the flows that are left are those that the whole
    input has.  The conditions of a conjunction that read only the five-tuple give it: a packet has them in the
    direction of its flow or in the other one.
    """
    from confluo_tools.expr.simplify import Simplifier

    same, other = _columns(flows, packets)
    ports = {flows.index("src_port"), flows.index("dst_port")}
    simplify, found = Simplifier(packets), []
    for part in tree.items if isinstance(tree, And) else (tree,):
        read = columns(part)
        if not read or not read <= same.keys() or not _plain(part):
            continue
        either = [_moved(part, same), _moved(part, other)]
        if read & ports:
            either.append(InSet(packets.index("proto"), ICMP, None))
        found.append(simplify.either(either))
    return simplify.both(found) if found else None


def _columns(flows: Schema, packets: Schema) -> tuple[dict[int, int], dict[int, int]]:
    """Columns of flows -> those of packets in the direction of the flow, and in the other one."""
    pairs = [*ENDS, *((name, name) for name in ALONE)]
    same, other = {}, {}
    for one, two in pairs:
        if one in packets.layout.names and two in packets.layout.names:
            for there, back in ((one, two), (two, one)):
                at = flows.layout.index(there)
                same[at], other[at] = packets.layout.index(there), packets.layout.index(back)
    return same, other


def _plain(tree: Tree) -> bool:
    if isinstance(tree, (And, Or)):
        return all(_plain(item) for item in tree.items)
    if isinstance(tree, Not):
        return _plain(tree.item)
    return isinstance(tree, (Bytes, InByteRanges, InRanges, InSet, Pair, Range))


def _moved(tree: Any, to: dict[int, int]) -> Any:
    """The tree with the tests on other columns."""
    if isinstance(tree, (And, Or)):
        return type(tree)(tuple([_moved(item, to) for item in tree.items]))
    if isinstance(tree, Not):
        return Not(_moved(tree.item, to))
    values = {name: getattr(tree, name) for name in tree.__slots__}
    values |= {name: to[values[name]] for name in ("col", "col2") if name in values}
    return type(tree)(**values)
