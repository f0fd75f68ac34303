"""--sample 1/N: the packets of one flow in N, the same flows at capture and in every later query."""

from __future__ import annotations

from confluo_tools.errors import UsageError
from confluo_tools.expr import Expr
from confluo_tools.expr.leaves import Range
from confluo_tools.expr.simplify import Simplifier

HASHES = 1 << 32


def share(text: str) -> int:
    """N of ``1/N``.  Raises UsageError."""
    one, slash, many = text.partition("/")
    if one != "1" or not slash or not many.isdigit() or not 1 <= int(many) <= 1 << 31:
        raise UsageError(f"'{text}' is not a share", where="--sample", hint="write 1/100 for one flow in a hundred")
    return int(many)


def sampled(expr: Expr, text: str) -> Expr:
    """``expr`` and a test that the flow hash is among the first 2^32 / N, as `core.packets.packet.sample_flows` has it.

    Samples are nested: every flow of 1/100 is in 1/10.  Rows without a flow (hash 0) are in all of them.
    """
    n = share(text)
    if "flow_hash" not in expr.schema:
        what = f"schema '{expr.schema.kind}' has no flow_hash"
        raise UsageError(what, where="--sample", hint="only records of packets can be sampled by flow")
    test = Range(expr.schema.index("flow_hash"), 0, HASHES // n - 1)
    tree = Simplifier(expr.schema).both([expr.tree, test])
    return Expr(expr.text, expr.schema, expr.syntax, tree, expr.notes, expr.demands)
