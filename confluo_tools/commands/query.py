"""confluo-query: select, aggregate and print records of logs, streams and captures.  Manual: confluo-query(1)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from confluo_tools import cli
from confluo_tools.cli.options import option
from confluo_tools.console import is_terminal
from confluo_tools.errors import UsageError
from confluo_tools.formats.limit import limited
from confluo_tools.inputs.windows import check_windows

if TYPE_CHECKING:
    from confluo_tools.chart.output import ChartOutput
    from confluo_tools.cli.log_output import LogOutput
    from confluo_tools.inputs.grouped_rows import GroupedRows
    from confluo_tools.inputs.selection import Selection

app = cli.command_app(
    """
# who talked to port 80, and how much
confluo-query trace.ml 'dst_port == 80' -f ts,src_ip,dst_ip,len

# the ten /24 networks that sent most, per second
confluo-query trace.ml tcp --agg 'count, sum(len)' --by 'src_ip/24, 1s' --top 10

# packets of one host, back to a capture
confluo-query trace.ml 'host 10.1.2.3' -o pcap --source trace.pcap | tcpdump -nr -

# TCP connections without an answer, by their originator
confluo-query trace.ml --flows 'conn_state == S0' --agg count --by src_ip

# segments sent again, by flow
confluo-query trace.ml --analyze tcp retransmission --agg 'count, avg(tcp_rto)' --by flow

# where most bytes went
confluo-query trace.ml --geo GeoLite2-City.mmdb --agg 'sum(len)' --by dst_country --top 10

# what three hosts saw at one instant, queried where it is stored
confluo-query --at incident.yaml 'dst_port == 80' --agg count --by host,src_ip

# in a pipe, as NDJSON
zcat trace.pcap.gz | confluo-query - 'tcp_flags has rst' -J
"""
)


class QueryOutput(cli.LogOptions):
    """The output options; records can go to a MultiLog, packets to a capture, and groups to a picture, too."""

    formats = (*cli.PACKET_FORMATS, "multilog", *cli.CHARTS)
    pictures = cli.CHARTS


@app.command(
    panels={
        "Options": "--agg --by --since -f -o -w",
        "Input": "-e -F --schema --source",
        "Filtering": "--sample",
        "Analysis": "--dedup --unnest --fill --having --sort --top --memory-limit --explain"
        " --flows --packets --idle-timeout --active-timeout",
    }
)
def query(
    operands: cli.Operands = None,
    read: cli.Read = None,
    expression: Annotated[
        str | None, option("-e", "--expr", metavar="EXPR", help="Filter expression; all operands are inputs.")
    ] = None,
    expr_file: Annotated[
        str | None, option("-F", "--expr-file", metavar="FILE", help="As -e, with the expression in FILE.")
    ] = None,
    analyze: cli.Analyze = None,
    analyze_flows: cli.AnalyzeFlows = None,
    sort_input: cli.SortInput = False,
    state: cli.StateOf = None,
    geo: cli.Geo = None,
    dedup: Annotated[
        str | None,
        option("--dedup", metavar="TIME", help="Leave out copies of a packet that came at most TIME before: 10ms."),
    ] = None,
    unnest: Annotated[
        str | None,
        option(
            "--unnest", metavar="LIST", help="Make one row of each element of these lists: 'switch_path,queue_depth'."
        ),
    ] = None,
    limit: cli.Limit = None,
    count: cli.Count = False,
    sample: Annotated[
        str | None, option("--sample", metavar="1/N", help="Select every Nth flow, always the same ones.")
    ] = None,
    agg: Annotated[
        str | None,
        option("--agg", metavar="LIST", help="Compute aggregates: 'count, sum(len), p99(len), distinct(src_ip)'."),
    ] = None,
    by: Annotated[
        str | None, option("--by", metavar="LIST", help="Group by keys: 'dst_ip/24, conn, host, 1s, 1mo, len/100'.")
    ] = None,
    fill: Annotated[bool, option("--fill", help="Also print the steps without records, with 0 or no value.")] = False,
    having: Annotated[
        str | None, option("--having", metavar="EXPR", help="Keep only groups for which EXPR holds: 'count > 100'.")
    ] = None,
    sort: Annotated[
        str | None,
        option("--sort", metavar="KEYS", help="Sort groups by columns; - for the largest first: '-count,src_ip'."),
    ] = None,
    top: Annotated[
        int | None, option("--top", metavar="N", min=1, help="Keep N groups: the first of --sort, or the largest.")
    ] = None,
    memory: Annotated[
        str | None,
        option(
            "--memory-limit",
            metavar="SIZE",
            help="Use at most this much memory for groups, then temporary files (half of what is free).",
        ),
    ] = None,
    engine: cli.Engine = None,
    explain: Annotated[bool, option("--explain", help="Print the query plan instead of the rows.")] = False,
    source: Annotated[
        list[str] | None,
        option("--source", metavar="FILE", help="Read packets for -o pcap from this capture (repeatable)."),
    ] = None,
    synthesize: cli.Synthesize = False,
    field_types: cli.SchemaOf = None,
    *,
    ins: cli.InputOptions,
    live: cli.TailOptions,
    flows: cli.FlowOptions,
    period: cli.PeriodOptions,
    out: QueryOutput,
    hiding: cli.AnonymizeOptions,
    common: cli.CommonOptions,
) -> int:
    """Print the records of INPUT for which EXPR holds."""
    if expr_file is not None:
        if expression is not None:
            raise UsageError("-e and -F exclude each other", hint="leave one out")
        from confluo_tools.expr.list_file import read_expression

        expression = read_expression(expr_file)
    inputs, text = cli.split_operands(operands or [], read or [], expression, ins.at)
    if ins.missing(inputs, live.follow):
        return cli.usage(app)
    if sort is not None and not (agg or by or having):
        raise UsageError("orders groups", where="--sort", hint="add --agg or --by; --sort-input orders records by time")
    if fill and not by:
        raise UsageError("fills steps", where="--fill", hint="add them: --by 1s, --by len/100")
    if (by or having or top) and agg is None:
        agg = "count"
    span = period.span(out.local)
    others: dict[str, object] = {"state": state, "count": count, "explain": explain}
    tailed = {"follow": live.follow, "last": live.last, "cursor": live.cursor}
    live.check(agg or by, limit, **others, **({"analyze": analyze, "sort-input": sort_input} if live.cursor else {}))
    window = check_dedup(dedup, tailed, state=state, engine=engine)
    flows.check(analyze=analyze, state=state, engine=engine, source=source, synthesize=synthesize, **tailed)
    with cli.LiveInput(live, ins, inputs, span[1]) as live_input:
        if agg is None and state is None and not (count or explain or flows.flows):
            from confluo_tools.units import format_time

            made = {
                "the expression": text,
                "--fields": out.fields,
                "--sample": sample,
                "--analyze": analyze,
                "--unnest": unnest,
                "--dedup": dedup,
            }
            made |= {"--until": format_time(span[1])} if span[1] is not None else {}
            span = live_input.into_log(out, made, span[0]), span[1]
        from confluo_tools import config, units
        from confluo_tools.inputs.grouped_rows import GroupedRows
        from confluo_tools.inputs.named_fields import (
            address_databases,
            geo_fields,
            located,
            names_digest,
            names_telemetry,
            path_fields,
        )
        from confluo_tools.inputs.open import without_copies
        from confluo_tools.inputs.selection import Selection, compile_expr
        from confluo_tools.remote.request import request_all, request_analysis, request_rows
        from confluo_tools.schema import named

        local = config.truth("local", out.local)
        request = request_rows(
            text, span, sample, out.fields, limit, count, agg, by, explain, local, having=having, sort=sort
        )
        if flows.flows:
            request = request_rows(flows.packets or "", span, sample, None, None, False, None, None, False)
        elif analyze or state is not None:
            request = request_analysis(request, tuple(analyze or ()), analyze_flows, state)
        if unnest is not None and (state is not None or flows.flows):
            what = f"{'flows' if flows.flows else 'states'} have no lists"
            raise UsageError(what, where="--unnest", hint="leave one of the options out")
        if unnest is not None and request.names is None:
            from confluo_tools.multilog.query.unnested import names_of

            whole = any(tailed.values())  # of growing logs, hosts send whole rows
            request = request_all(text) if whole else request.replace(unnest=names_of(unnest))
        if window is not None and not flows.flows:
            request = request_all(text)  # copies may be of other hosts
        wanted = named(field_types) if field_types is not None else None
        places = geo_fields([text, out.fields, agg, by, having, sort]) if geo else ()
        if places and not flows.flows:  # only this host has the databases
            request = request_all(text)
        of_paths = path_fields([text, flows.packets], [out.fields, agg, by])
        telemetry = names_telemetry([text, out.fields, agg, by, unnest, flows.packets])
        digest = window is not None or names_digest([text, out.fields, agg, by, flows.packets])
        opened = live_input.open(
            request=request, schema=wanted, telemetry=telemetry, digest=digest, path_fields=of_paths
        )
        memory_size = None if memory is None else units.size(memory)
        if window is not None:
            opened = without_copies(opened, window, memory_size, sort=sort_input or len(inputs) > 1)
        copies = opened
        if engine is not None and (analyze or state is not None):
            what = "--analyze and --state follow all records in the order of time, which one core does"
            raise UsageError(what, where="--engine", hint="leave one of the options out")
        if engine is not None and places:
            what = "looks addresses up on this host"
            raise UsageError(what, where="--geo", hint="leave --engine out")
        if flows.flows:
            opened = flows.open(opened, span, sample, analyze_flows, local, sort=sort_input)
            span, sample = (None, None), None  # of the packets, not of the flows
        else:
            opened = cli.on_engine(opened, engine, limit)
        with cli.analyzed(opened, analyze, analyze_flows, state, sort=sort_input and not flows.flows) as analyzed:
            databases = address_databases(geo if places else None)
            reader = located(cli.unnested(analyzed, unnest, engine), databases, places)
            if agg is None and out.listed(reader.schema):
                return cli.OK
            selection = Selection(reader, compile_expr(text, reader, span, sample, local))
            if live_input.last is not None:
                selection.expr = reader.newest(selection.expr, live_input.last)
            groups = None
            if agg is not None:
                groups = GroupedRows(selection, agg, by, having, top, local, memory_size, sort, fill)
            if explain:
                return print_plan(selection, groups)
            if count:
                if groups is not None:
                    raise UsageError("--count and --agg exclude each other", hint="--agg count counts")
                with live_input.until_signal():
                    rows = selection.count(limit)
                print(rows)
            else:
                schema = groups.schema if groups is not None else reader.schema
                if out.listed(schema):
                    return cli.OK
                kind = out.kind(answers=groups is not None)
                usual = flows.shown if groups is None else ()
                hidden = hiding.records(schema, kind)
                written = schema if hidden is None else hidden.schema
                shown = live_input.names(out.names(written, kind, [name for name in usual if name in written]))
                into: cli.RecordOutput | LogOutput | ChartOutput
                at_once: cli.RecordOutput | LogOutput | None = None  # an output of rows as they come
                if kind in cli.CHARTS:
                    into = draw(groups, kind, shown, out)
                elif kind == "multilog":
                    into = at_once = out.log(written, shown, any_kind=True, shared=live_input.shared, anonymous=hidden)
                else:
                    sources = cli.capture_sources(source, inputs, reader, kind, synthesize=synthesize)
                    more = {"metadata": reader.metadata, "sources": sources, "synthesize": synthesize}
                    into = at_once = out.records(schema, kind, shown, anonymous=hidden, **more)
                by_window = groups is not None and at_once is not None and live_input.windowed
                if by_window and groups is not None and check_windows(groups, top=top, memory=memory):
                    write_windows(groups, at_once, live_input)
                else:
                    with into, live_input.writing(None if groups is not None else at_once):
                        if kind == "multilog":
                            from confluo_tools.cli.log_output import number_captures

                            number_captures(reader, at_once, inputs)
                        if groups is None:  # groups come at the end: a failure before must not leave a header
                            reader.on_idle(into.flush)
                        write = into.write if at_once is None else live_input.rows_into(at_once, reader)
                        read_names = shown if hidden is None else None  # what is hidden may depend on other fields
                        pairs = groups.selected(*span) if groups is not None else selection.selected(read_names)
                        for block, picks in limited(pairs, limit):
                            write(block, picks)
                rows = into.rows if selection.found else 0
            live_input.finish()
            if common.stats:
                left_out = "" if window is None else f"{getattr(copies, 'copies', 0)} copies left out, "
                cli.note(f"{reader.rows} records read, {left_out}{selection.found} selected, {rows} printed")
            return live_input.status(cli.OK if rows else cli.NOTHING)


def check_dedup(dedup: str | None, tailed: dict[str, Any], **others: object) -> int | None:
    """The time of --dedup in ns, None without it.  Raises UsageError for options that do not go with it."""
    if dedup is None:
        return None
    for name, value in {**tailed, **others}.items():
        if value not in (None, False):
            raise UsageError(f"--dedup and --{name} exclude each other", hint="leave one of the options out")
    return cli.duration("--dedup", dedup, 0)


def write_windows(groups: GroupedRows, into: Any, live_input: cli.LiveInput) -> None:
    """Write the groups of an input that grows, each window when it has ended."""
    selection = groups.selection
    with into:
        windows = live_input.windows(groups, into)
        with live_input.writing(into):
            for block, picks in selection.selected(groups.names_with_time):
                windows.add(block, picks, selection.reader.mark)
            live_input.end_windows(windows)


def draw(groups: GroupedRows | None, kind: str, names: list[str] | None, out: QueryOutput) -> ChartOutput:
    """The output of groups as a picture."""
    from confluo_tools import config
    from confluo_tools.chart.output import ChartOutput
    from confluo_tools.formats.table import PIPE_WIDTH, screen_width

    if groups is None:
        raise UsageError("draws groups", where=f"-o {kind}", hint="add --agg and --by: --agg 'sum(len)' --by 1s")
    width = screen_width() if kind == "spark" and out.output in (None, "-") and is_terminal(1) else PIPE_WIDTH
    force, local = config.truth("clobber", out.force), config.truth("local", out.local)
    from confluo_tools.cli.output import compression_of

    return ChartOutput(
        kind,
        groups.chart(names),
        path=out.output,
        force=force,
        local=local,
        width=width,
        command=cli.command_line(),
        packed=compression_of(out.output, kind),
    )


def print_plan(selection: Selection, groups: GroupedRows | None) -> int:
    """Run the query, print its plan (--explain)."""
    from time import perf_counter

    selection.reader.timed = True  # type: ignore[attr-defined]
    start = perf_counter()
    if groups is not None:
        for _ in groups.selected(None, None):
            pass
    else:
        selection.count(None)
    seconds = perf_counter() - start
    print(f"input    {selection.reader.name}: {selection.reader.rows:,} records")
    print(f"found    {selection.found:,} in {1000 * seconds:.1f} ms")
    for line in cli.plan_lines(selection.reader.explain(), selection.reader.name):
        print(cli.printable(line))
    return cli.OK


def main(argv: list[str] | None = None) -> int:
    return cli.run(app, "confluo-query", argv)
