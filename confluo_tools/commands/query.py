"""confluo-query: select, aggregate and print records of logs, streams and captures.  Manual: confluo-query(1)."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Annotated

from confluo_tools import cli
from confluo_tools.cli.options import option
from confluo_tools.errors import FormatError, UsageError

if TYPE_CHECKING:
    from confluo_tools.core.block import Block, Picks
    from confluo_tools.core.rollup import Rollup
    from confluo_tools.expr import Expr
    from confluo_tools.formats.reader import Reader
    from confluo_tools.remote.wish import Wish

app = cli.command_app(
    """
# who talked to port 80, and how much
confluo-query trace.ml 'dst_port == 80' -f ts,src_ip,dst_ip,len

# the ten /24 networks that sent most, per second
confluo-query trace.ml tcp --agg 'count, sum(len)' --by 'src_ip/24, 1s' --top 10

# packets of one host, back to a capture
confluo-query trace.ml 'host 10.1.2.3' -o pcap --source trace.pcap | tcpdump -nr -

# segments sent again, by flow
confluo-query trace.ml --analyze tcp retransmission --agg 'count, avg(tcp_rto)' --by flow

# what three hosts saw at one instant, asked where it is
confluo-query --at incident.yaml 'dst_port == 80' --agg count --by host,src_ip

# in a pipe, as NDJSON
zcat trace.pcap.gz | confluo-query - 'tcp_flags has rst' -J
"""
)


@app.command()
def query(
    operands: cli.Operands = None,
    read: cli.Read = None,
    expression: Annotated[
        str | None, option("-e", "--expr", metavar="EXPR", help="The expression; all operands are then inputs.")
    ] = None,
    analyze: cli.Analyze = None,
    analyze_flows: cli.AnalyzeFlows = None,
    state: cli.StateOf = None,
    limit: cli.Limit = None,
    count: cli.Count = False,
    sample: Annotated[
        str | None, option("--sample", metavar="1/N", help="Every Nth flow, the same ones each time.")
    ] = None,
    agg: Annotated[
        str | None, option("--agg", metavar="LIST", help="Aggregates: 'count, sum(len), p99(len), distinct(src_ip)'.")
    ] = None,
    by: Annotated[str | None, option("--by", metavar="LIST", help="Groups: 'dst_ip/24, proto, flow, 1s'.")] = None,
    having: Annotated[
        str | None, option("--having", metavar="EXPR", help="Only groups whose aggregates are so: 'count > 100'.")
    ] = None,
    top: Annotated[
        int | None, option("--top", metavar="N", min=1, help="The N groups with the largest first aggregate.")
    ] = None,
    explain: Annotated[bool, option("--explain", help="Print how the rows were found, instead of the rows.")] = False,
    source: Annotated[
        list[str] | None,
        option("--source", metavar="FILE", help="Capture the packets came from, for -o pcap (repeatable)."),
    ] = None,
    *,
    ins: cli.InputOptions,
    period: cli.PeriodOptions,
    out: cli.OutputOptions,
    common: cli.CommonOptions,
) -> int:
    """Print the records of INPUT for which EXPR holds."""
    inputs, text = split_operands(operands or [], read or [], expression, ins.at)
    if ins.missing(inputs):
        return cli.usage(app)
    if (by or having or top) and agg is None:
        agg = "count"
    span = period.span(out.local)
    wish = wished(text, span, sample, out.fields, limit, count, agg, by, explain)
    if analyze or state is not None:
        wish = analyzed_there(wish, analyze or [], analyze_flows, state)
    opened = ins.open(inputs, wish=wish)
    with cli.analyzed(opened, analyze, analyze_flows, state) as reader:
        if agg is None and out.listed(reader.schema):
            return cli.OK
        asked = Question(reader, compile_expr(text, reader, span, sample))
        groups = Groups(asked, agg, by, having, top) if agg is not None else None
        if explain:
            return tell_plan(asked, groups)
        if count:
            if groups is not None:
                raise UsageError("--count and --agg exclude each other", hint="--agg count counts")
            rows = asked.count(limit)
            print(rows)
        else:
            schema = groups.schema if groups is not None else reader.schema
            if out.listed(schema):
                return cli.OK
            kind, shown = out.kind(answers=groups is not None), out.names(schema)
            with out.records(schema, kind, shown, metadata=reader.metadata, sources=source or []) as into:
                reader.on_idle(into.flush)
                pairs = groups.selected(*span) if groups is not None else asked.selected(shown)
                for block, picks in limited(pairs, limit):
                    into.write(block, picks)
            rows = into.rows if asked.found else 0
        if common.stats:
            cli.note(f"{reader.rows} records read, {asked.found} chosen, {rows} printed")
        return cli.OK if rows else cli.NOTHING


def split_operands(
    operands: list[str], read: list[str], expression: str | None, at: str | None = None
) -> tuple[list[str], str]:
    """(inputs, expression).

    The first operand is the input and the others are the expression, as if joined by blanks (like tcpdump's);
    with -r or --at every operand belongs to the expression, with -e every operand is an input (like grep's).
    """
    if at is not None:
        if read or (expression is not None and operands):
            raise UsageError("the snapshot names the logs", where="--at", hint="leave the other inputs out")
        return [], " ".join(operands) if expression is None else expression
    if expression is not None:
        return [*read, *operands], expression
    if read:
        return read, " ".join(operands)
    if operands and operands[0] != "-" and cli.remote(operands[0]) is None and not os.path.lexists(operands[0]):
        hint = "the first operand is the input, - for standard input"
        raise FormatError("No such file or directory", where=operands[0], hint=hint)
    for word in operands[1:]:
        if os.path.exists(word):
            hint = "several inputs: -r A -r B, or -e EXPR A B"
            raise UsageError("is a file, not an expression", where=word, hint=hint)
    return operands[:1], " ".join(operands[1:])


def wished(
    text: str, span: tuple[int | None, int | None], sample: str | None, fields: str | None, limit: int | None,
    count: bool, agg: str | None, by: str | None, explain: bool,
) -> Wish:  # fmt: skip
    """The question as other hosts get it: what stands here is asked there."""
    from confluo_tools.remote.wish import Wish

    if agg is not None:  # fields and limit are those of the answer
        return Wish(text, *span, sample, agg=agg, by=by, explain=explain)
    if fields == "help":
        return Wish(limit=0)
    return Wish(text, *span, sample, fields, limit, count or explain, explain=explain)


def analyzed_there(wish: Wish, analyze: list[str], flows: int | None, state: str | None) -> Wish:
    """The question with the analyses that other hosts know; else one for all rows, to be analysed here."""
    from confluo_tools.remote.wish import ANALYSES, MAX_FLOWS, Wish

    if state is None and tuple(analyze) == ANALYSES and (flows or 1) <= MAX_FLOWS:
        return wish.but(analyze=ANALYSES, flows=flows)
    return Wish(names=wish.expr)


def compile_expr(text: str, reader: Reader, span: tuple[int | None, int | None], sample: str | None) -> Expr:
    """The expression with the time range and the sample in it."""
    from confluo_tools.expr import compile

    expr = compile(text, reader.schema, filters=reader.filters)
    for note in expr.notes:
        if not cli.state.quiet:
            cli.note(note)
    expr = expr.within(*span)
    if sample is None:
        return expr
    from confluo_tools.expr.sample import sampled

    return sampled(expr, sample)


def limited(pairs: Iterator[tuple[Block, Picks | None]], limit: int | None) -> Iterator[tuple[Block, Picks | None]]:
    """The first ``limit`` rows; reading stops with the last of them."""
    if limit is None:
        yield from pairs
        return
    left = limit
    if left == 0:
        return
    for block, picks in pairs:
        n = block.rows if picks is None else len(picks)
        if n >= left:
            yield first_rows(block, picks, left)
            return
        left -= n
        yield block, picks


def first_rows(block: Block, picks: Picks | None, n: int) -> tuple[Block, Picks | None]:
    if picks is None:
        return block.slice(0, n), None
    from confluo_tools.core.block import Picks

    return block, Picks.of(block.rows, picks.tolist()[:n])


class Question:
    """An expression asked of an input."""

    def __init__(self, reader: Reader, expr: Expr) -> None:
        self.reader, self.expr, self.schema = reader, expr, reader.schema
        self.found = 0  # rows chosen so far

    def selected(
        self, names: list[str] | None = None, by_time: bool = True
    ) -> Iterator[tuple[Block, Picks | None]]:
        """Blocks and which of their rows were chosen.  ``names``: the fields that will be looked at, None for all."""
        for block, picks in self.reader.select(self.expr, self._columns(names), by_time=by_time):
            self.found += block.rows if picks is None else len(picks)
            yield block, picks

    def narrow(self, more: Expr) -> None:
        """Only those rows for which ``more`` holds, too."""
        self.expr = self.expr.also(more)

    def fold(self, names: list[str], make: Callable[[], Rollup]) -> Rollup:
        """The chosen rows, aggregated."""
        rollup, found = self.reader.fold(self.expr, self._columns(names), make)
        self.found += found
        return rollup

    def count(self, limit: int | None) -> int:
        if limit is None:
            self.found = self.reader.count(self.expr)
            return self.found
        return sum([block.rows if picks is None else len(picks) for block, picks in limited(self.selected([]), limit)])

    def _columns(self, names: list[str] | None) -> list[int] | None:
        if names is None:
            return None
        fields = {n for name in names for n in (name, self.schema[name].version) if n in self.schema}
        return [i for i, c in enumerate(self.schema.columns) if c.field.name in fields]


class Groups:
    """The answer of --agg and --by: rows of a schema of its own."""

    def __init__(self, asked: Question, agg: str, by: str | None, having: str | None, top: int | None) -> None:
        from confluo_tools.expr import compile, parse_aggregates, parse_by
        from confluo_tools.store import aggregate

        self.asked, self.top = asked, top
        fields = [f.name for f in asked.schema.fields]
        view = asked.reader.aggregate(agg.strip()) if agg.strip().isidentifier() or "-" in agg else None
        if view is not None:
            agg, by = view.agg, view.by if by is None else by
            for text in (view.filter_text, view.where):
                asked.narrow(compile(text, asked.schema))
        aggs, keys = parse_aggregates(agg, asked.schema), parse_by(by, asked.schema) if by else []
        self.question = aggregate.Question(asked.schema, aggs, keys)
        looked = {*(a.field for a in aggs), *(k.field for k in keys)}
        looked |= set(aggregate.FLOW) if any(k.kind == "flow" for k in keys) else set()
        looked |= {asked.schema.time_field.name} if asked.schema.time_field is not None else set()
        self.names = [n for n in fields if n in looked]
        self.schema = self.question.result
        self.having = compile(having, self.schema) if having is not None else None

    def selected(self, since: int | None, until: int | None) -> Iterator[tuple[Block, Picks | None]]:
        rollup = self.asked.fold(self.names, self.question.rollup)
        for block in self.question.answer(rollup, having=self.having, top=self.top, since=since, until=until):
            yield block, None


def tell_plan(asked: Question, groups: Groups | None) -> int:
    """--explain: find the rows, print how."""
    from time import perf_counter

    asked.reader.timed = True  # type: ignore[attr-defined]
    start = perf_counter()
    if groups is not None:
        for _ in groups.selected(None, None):
            pass
    else:
        asked.count(None)
    seconds = perf_counter() - start
    print(f"input    {asked.reader.name}: {asked.reader.rows:,} records")
    print(f"found    {asked.found:,} in {1000 * seconds:.1f} ms")
    for line in cli.plan_lines(asked.reader.explain(), asked.reader.name):
        print(cli.printable(line))
    return cli.OK


def main(argv: list[str] | None = None) -> int:
    return cli.run(app, "confluo-query", argv)
