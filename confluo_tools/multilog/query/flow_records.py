"""Flow records (`--flows`, confluo-flows): packets in, rows of the schema `conn` out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from confluo_tools.errors import SchemaError
from confluo_tools.formats.reader import Reader, Wrapper
from confluo_tools.schema import Schema, builtin

if TYPE_CHECKING:
    from confluo_tools.core.block.block import Block, Picks
    from confluo_tools.core.flows.conn_table import ConnTable
    from confluo_tools.expr.leaves import Tree

MAX_FLOWS = 1 << 22  # 1 GB of memory, used as flows appear


def conn_table(schema: Schema, flows: int | None = None, idle: int = 0, active: int = 0) -> ConnTable:
    """A table for packets of ``schema``; timeouts in ns, 0: none.  Raises SchemaError if they are not packets."""
    from confluo_tools.core.flows.conn_table import ConnTable

    try:
        return ConnTable(schema.layout, builtin("conn").layout, flows or MAX_FLOWS, idle, active)
    except KeyError as e:
        hint = "it holds flows: leave --flows out" if schema.kind == "conn" else "flows are made of packets"
        raise SchemaError(f"no field '{e.args[0]}' in '{schema.kind}'", where="flows", hint=hint) from None
    except ValueError as e:
        raise SchemaError(str(e), where="flows") from None


def packet_columns(schema: Schema) -> list[int]:
    """Numbers of the columns that a table reads."""
    from confluo_tools.core.flows.conn_table import USED

    return [i for i, c in enumerate(schema.columns) if c.name in USED]


def packet_fields(schema: Schema) -> list[str]:
    """Names of the fields with these columns."""
    columns = schema.columns
    return list(dict.fromkeys(columns[i].field.name for i in packet_columns(schema)))


def inexact(evicted: int, option: str) -> str:
    """The message for flows that a full table gave up."""
    what = "flow was cut short" if evicted == 1 else "flows were cut short"
    return f"{evicted:,} {what} because the table was full, so the records are not exact; raise the limit with {option}"


class FlowReader(Wrapper):
    """The flows of the packets of ``reader`` for which ``packets`` (an Expr) holds, as rows of the schema `conn`.

    Rows come when their flows end; at the end of the input the earliest flow comes first.
    ``alone``: no flow ends because of the packets of another one (no idle timeout).  Then a condition on flows also
    chooses the packets that are read, where the order of these is not in question.
    """

    def __init__(
        self,
        reader: Reader,
        packets: Any,
        table: ConnTable,
        *,
        alone: bool = False,
        warn: Callable[[str], None] | None = None,
    ) -> None:
        super().__init__(reader, warn)
        self.packets, self.table = packets, table
        self._narrow = alone and reader.by_time
        self.schema = builtin("conn")
        self.metadata = {k: v for k, v in reader.metadata.items() if not k.startswith("confluo:schema")}

    def select(
        self, expr: Any, columns: Sequence[int] | None = None, *, by_time: bool = True
    ) -> Iterator[tuple[Block, Picks | None]]:
        if self._narrow:
            self._read_only(expr.tree)
        yield from super().select(expr, columns, by_time=by_time)

    def _read_only(self, tree: Tree) -> None:
        # Leave out packets of flows that do not pass.
        from confluo_tools.expr import Expr
        from confluo_tools.expr.simplify import Simplifier
        from confluo_tools.multilog.query.flow_conditions import packets_of

        wanted, given, schema = packets_of(tree, self.schema, self.reader.schema), self.packets, self.reader.schema
        if wanted is not None:
            both = Simplifier(schema).both([given.tree, wanted])
            self.packets = Expr(given.text, schema, given.syntax, both, given.notes, given.demands)

    def blocks(self) -> Iterator[Block]:
        from confluo_tools.multilog.query.derived_fields import OrderCheck

        order, schema = OrderCheck(self.reader), self.reader.schema
        for block, picks in self.reader.select(self.packets, packet_columns(schema)):
            order.see(block, picks)
            yield from self.table.process(
                block if block.layout is schema.layout else block.project(schema.layout), picks
            )
        yield from self.table.finish()
        problem = order.problem("--flows")
        if problem is not None:
            self.warn(problem)
        if self.table.evicted:
            self.warn(inexact(self.table.evicted, "--analyze-flows N"))
