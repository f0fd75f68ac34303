"""Derived fields that depend on earlier packets: ``--analyze tcp`` and user-defined state machines.

    Analysis(schema, 'tcp')                  confluo-tcp(7)
    Analysis(schema, 'maxseq')               a state definition by name or path: confluo-state(5)
    Analyzed(reader, [spec, ...])            an input with the fields of these analyses added

An analysis processes the rows in input order; for a MultiLog this is time order over all lanes.
It keeps the state of each flow from block to block.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from confluo_tools.errors import SchemaError, UsageError
from confluo_tools.expr.words import TCP_ANALYSIS_FLAGS
from confluo_tools.formats.reader import Reader, Wrapper
from confluo_tools.schema import Field, Schema

if TYPE_CHECKING:
    from confluo_tools.core.block.block import Block, Picks
    from confluo_tools.expr.leaves import Tree
    from confluo_tools.multilog.query.state_definitions import State, StateDefinition
    from confluo_tools.multilog.views.state import StateView

FLOWS = 1 << 18


def tcp_fields() -> list[Field]:
    """The fields that ``--analyze tcp`` adds, in the order of pyx/packets/tcp_analysis.pyx."""
    return [
        Field(
            "tcp_analysis",
            "flags(u16)",
            "",
            "class of the segment in its conversation",
            {1 << i: name for i, name in enumerate(TCP_ANALYSIS_FLAGS)},
        ),
        Field("tcp_dup_ack_num", "u32", "", "number of this duplicate ACK in its series"),
        Field("tcp_bytes_in_flight", "u32", "B", "bytes sent and not acknowledged, this segment's included"),
        Field("tcp_rel_seq", "u32", "", "sequence number counted from the beginning of the conversation"),
        Field("tcp_rel_ack", "u32", "", "acknowledgement number counted from the beginning"),
        Field("tcp_window_size", "u32", "B", "window, scaled as the handshake says"),
        Field("tcp_rto", "duration", "ns", "of a retransmission: time since the segment was sent before"),
        Field("tcp_ack_rtt", "duration", "ns", "of an ACK: time since the segment that it acknowledges"),
        Field("tcp_irtt", "duration", "ns", "round trip of the handshake, on every segment after it"),
    ]


class Analysis:
    """One analysis of rows of ``schema``.  ``spec``: 'tcp', or a state definition (see `state_definitions`).

    ``schema`` is then the input schema plus the fields of the analysis.  ``flows``: maximum number of flows kept.
    Raises SchemaError when the input lacks a field that the analysis needs.
    """

    def __init__(self, schema: Schema, spec: Any, *, flows: int = FLOWS) -> None:
        self.input, self.spec = schema, spec
        self._core: Any
        self._apply: Callable[[Block], Block]
        if spec == "tcp":
            from confluo_tools.core.packets import tcp_analysis, tcp_columns

            self.name, self.by_flow = "tcp", True
            self.schema = _plus(schema, tcp_fields(), "tcp")
            self.needs = [c for c in map(schema.layout.get, tcp_columns.ANALYSED) if c >= 0]
            try:
                self._core = tcp_analysis.TcpFlows(schema.layout, self.schema.layout, flows)
            except KeyError as e:
                hint = "it needs packets: addresses, ports, proto, tcp_seq, tcp_ack, tcp_flags, tcp_window, payload_len"
                raise SchemaError(f"--analyze tcp: no field '{e.args[0]}' in '{schema.kind}'", hint=hint) from None
            except ValueError as e:
                raise SchemaError(f"--analyze tcp: {e}") from None
            self._apply = self._core.apply
            return
        from confluo_tools.multilog.query.state_definitions import StateDefinition, resolve

        found = resolve(spec) if isinstance(spec, str) else spec
        self.name = found.name or str(spec)
        if isinstance(found, StateDefinition):
            self._define(found, schema, flows)
        else:
            self._instance(found, schema)

    def _define(self, definition: StateDefinition, schema: Schema, flows: int) -> None:
        from confluo_tools.expr import compile

        self.by_flow = definition.by_flow
        self.schema = _plus(schema, definition.result_fields(), self.name)
        core = self._core = definition.machine(schema, self.schema, flows)
        self.needs = [i for i, c in enumerate(schema.columns) if c.field.name in set(definition.needs(schema))]
        if definition.expression:
            program = compile(definition.expression, schema).program
            self._apply = lambda block: core.apply(block, program.select(block))
        else:
            self._apply = core.apply

    def _instance(self, state: State, schema: Schema) -> None:
        """Set up an analysis that is an instance of a user-defined class."""
        self.by_flow = False
        self.schema = _plus(schema, list(state.fields), self.name)
        self.needs = [i for i, c in enumerate(schema.columns) if c.field.name in {schema[n].name for n in state.needs}]
        self._core = None
        layout, n = self.schema.layout, len(schema.columns)
        state.zero(schema)

        def apply(block: Block) -> Block:
            from confluo_tools.core.block.block import Block

            added = list(state.update(block))
            try:
                return Block.wrap(
                    layout, block.rows, [*map(block.buffer, range(n)), *added], lane=block.lane, base=block.base
                )
            except (ValueError, TypeError) as e:
                raise SchemaError(f"--analyze {self.name}: {e}") from None

        self._apply = apply

    def apply(self, block: Block) -> Block:
        """The block with the fields of the analysis added.  Blocks must be given in row order."""
        return self._apply(block if block.layout is self.input.layout else block.project(self.input.layout))

    @property
    def evicted(self) -> int:
        """Number of flows evicted because the maximum was reached."""
        return 0 if self._core is None else int(self._core.evicted)


def _plus(schema: Schema, fields: list[Field], name: str) -> Schema:
    for field in fields:
        if field.name in schema:
            hint = "the input was analysed before"
            raise SchemaError(f"--analyze {name}: field '{field.name}' exists already", hint=hint)
    return schema.plus(fields)


class OrderCheck:
    """Counts the records of an input that are earlier than one before them, where an answer depends on the order."""

    def __init__(self, reader: Reader) -> None:
        field = reader.schema.time_field
        self.column = -1 if field is None or reader.by_time else reader.schema.index(field.name)
        self.back, self._latest = 0, -(1 << 63)

    def see(self, block: Block, picks: Picks | None) -> None:
        """Look at the next rows."""
        if self.column < 0:
            return
        from confluo_tools.core.multilog.log_scan import times_back

        more, self._latest = times_back(block, picks, self.column, self._latest)
        self.back += more

    def problem(self, option: str) -> str | None:
        """What to report at the end of the input; None if the times never go back."""
        if not self.back:
            return None
        what = "record is" if self.back == 1 else "records are"
        return (
            f"{self.back:,} {what} earlier than one before, so {option} may be wrong; sort the input with --sort-input"
        )


def evictions(count: int, option: str) -> str:
    """The message for flows or states that were dropped because of their number."""
    what = "flow was evicted" if count == 1 else "flows were evicted"
    return f"{count:,} {what}, so {option} is not exact; raise the limit with --analyze-flows N"


class AnalyzedReader(Wrapper):
    """The rows of ``reader`` with the fields of analyses added, in the order of ``specs``.

    An expression is applied after the analyses, because they depend on earlier rows.  Conditions that select whole
    conversations (``host``, ``port``, ``flow``: the same for both directions) are passed to the input if every
    analysis works per flow.
    """

    def __init__(
        self, reader: Reader, specs: Sequence[Any], *, flows: int = FLOWS, warn: Callable[[str], None] | None = None
    ) -> None:
        super().__init__(reader, warn)
        self.filters, self.aggregate = reader.filters, reader.aggregate  # type: ignore[method-assign]
        self.analyses: list[Analysis] = []
        self.by_time = reader.by_time
        self._order = OrderCheck(reader)
        schema = reader.schema
        for spec in specs:
            analysis = Analysis(schema, _known(reader, spec), flows=flows)
            self.analyses.append(analysis)
            schema = analysis.schema
        self.schema = schema

    def apply(self, block: Block) -> Block:
        for analysis in self.analyses:
            block = analysis.apply(block)
        return block

    def blocks(self) -> Iterator[Block]:
        before = self.reader.rows
        for block in self.reader:
            self.rows = self.reader.rows - before
            self._order.see(block, None)
            yield self.apply(block)
        self.rows = self.reader.rows - before
        self._report()

    def __iter__(self) -> Iterator[Block]:
        return self.blocks()

    def select(
        self, expr: Any, columns: Sequence[int] | None = None, *, by_time: bool = True
    ) -> Iterator[tuple[Block, Picks | None]]:
        program = expr.program
        for block in self._restricted(expr, columns):
            out = self.apply(block)
            picks = program.select(out)
            if len(picks):
                yield out, picks
        self._report()

    def _restricted(self, expr: Any, columns: Sequence[int] | None) -> Iterator[Block]:
        """The input rows that the analyses need, with the columns that the analyses or the caller read."""
        from confluo_tools.expr import Expr
        from confluo_tools.expr.leaves import TRUE
        from confluo_tools.expr.leaves import columns as columns_of

        tree = whole_flows(expr.tree, self.schema) if all(a.by_flow for a in self.analyses) else None
        pushed = Expr(expr.text, self.reader.schema, expr.syntax, TRUE if tree is None else tree)
        needed = None
        if columns is not None:
            looked = {*columns, *columns_of(expr.tree), *(c for a in self.analyses for c in a.needs)}
            looked |= {self._order.column} - {-1}
            needed = sorted(c for c in looked if c < len(self.reader.schema.columns))
        before = self.reader.rows
        for block, picks in self.reader.select(pushed, needed):
            self.rows = self.reader.rows - before
            self._order.see(block, picks)
            yield block if picks is None else block.take(picks)
        self.rows = self.reader.rows - before

    def _report(self) -> None:
        out_of_order = self._order.problem(" and ".join(f"--analyze {a.name}" for a in self.analyses))
        if out_of_order is not None:
            self.warn(out_of_order)
        for analysis in self.analyses:
            if analysis.evicted:
                self.warn(evictions(analysis.evicted, f"--analyze {analysis.name}"))


class StateReader(Wrapper):
    """The states of a definition after all rows of ``reader``, as records of key and state fields.

    If the MultiLog has a state view with this definition, only the rows after the stored states are read.
    """

    def __init__(
        self, reader: Reader, spec: Any, *, flows: int = FLOWS, warn: Callable[[str], None] | None = None
    ) -> None:
        from confluo_tools.multilog.query.state_definitions import StateDefinition, resolve

        super().__init__(reader, warn)
        self._flows = flows
        found = _known(reader, spec)
        found = resolve(found) if isinstance(found, str) else found
        if not isinstance(found, StateDefinition):
            raise UsageError(f"'{spec}' is not a state definition", where="--state", hint="use --analyze for classes")
        self.definition = found
        self.schema = found.schema(reader.schema)

    def blocks(self) -> Iterator[Block]:
        from confluo_tools.expr import compile

        view = _view(self.reader, self.definition)
        if view is not None:
            reader: Any = self.reader
            machine = view.at(reader.version, lambda path, what: self.warn(f"{path}: {what}"))
        else:
            order = OrderCheck(self.reader)
            rows = self.reader.schema
            machine = self.definition.machine(rows, flows=self._flows)
            chosen = compile(self.definition.expression, rows)
            needs = set(self.definition.needs(rows))
            columns = [i for i, c in enumerate(rows.columns) if c.field.name in needs]
            for block, picks in self.reader.select(chosen, columns):
                order.see(block, picks)
                machine.update(block if block.layout is rows.layout else block.project(rows.layout), picks)
            problem = order.problem(f"--state {self.definition.name}")
            if problem is not None:
                self.warn(problem)
        if machine.evicted:
            self.warn(evictions(machine.evicted, f"--state {self.definition.name}"))
        yield from machine.blocks()


def _known(reader: Reader, spec: Any) -> Any:
    """The definition of the state view named ``spec`` of the log, if any, else ``spec``."""
    log = getattr(reader, "log", None)
    if log is None or spec == "tcp" or not isinstance(spec, str):
        return spec
    from confluo_tools.multilog.views.state import find_state

    view = find_state(log, spec)
    return spec if view is None else view.state


def _view(reader: Reader, definition: StateDefinition) -> StateView | None:
    log = getattr(reader, "log", None)
    if log is None or getattr(reader, "version", None) is None:
        return None
    from confluo_tools.multilog.views.state import states

    return next((view for view in states(log) if view.digest == definition.digest), None)


PAIRS = (("src_ip", "dst_ip"), ("src_ip6", "dst_ip6"), ("src_port", "dst_port"))
ALONE = ("proto", "ip_version", "flow_hash")


def whole_flows(tree: Tree, schema: Schema) -> Tree | None:
    """The conditions of a conjunction that hold for both directions of a conversation or for neither; None if none do.

    Such conditions read only the five-tuple and stay the same when source and destination are exchanged.
    """
    from confluo_tools.expr.leaves import And, columns

    other: dict[int, int] = {}
    for one, two in PAIRS:
        if one in schema.layout.names and two in schema.layout.names:
            other[schema.index(one)], other[schema.index(two)] = schema.index(two), schema.index(one)
    for name in ALONE:
        if name in schema:
            other[schema.index(name)] = schema.index(name)
    parts = tree.items if isinstance(tree, And) else (tree,)
    kept = [part for part in parts if columns(part) and columns(part) <= other.keys()]
    same = {c: c for c in other}
    there = {_shape(part, same) for part in kept}  # `not host A` is two parts, each the mirror of the other
    kept = [part for part in kept if _shape(part, other) in there]
    if not kept:
        return None
    return kept[0] if len(kept) == 1 else And(tuple(kept))


def _shape(tree: Tree, to: dict[int, int]) -> Any:
    """A comparable form of the tree with columns mapped by ``to``, independent of the order of its parts."""
    from confluo_tools.expr.leaves import And, Not, Or, Pair

    if isinstance(tree, (And, Or)):
        return type(tree).__name__, frozenset(_shape(item, to) for item in tree.items)
    if isinstance(tree, Not):
        return "Not", _shape(tree.item, to)
    if isinstance(tree, Pair):
        cols = (to[tree.col], to[tree.col2])
        if tree.op in ("==", "!=") and tree.mask is None:
            return "Pair", tree.op, frozenset(cols)
        return "Pair", tree.op, cols, tree.mask
    values: Any = tuple(getattr(tree, name) for name in tree.__slots__ if name != "col")
    return type(tree).__name__, to[tree.col], values  # type: ignore[union-attr]
