"""confluo-pingmesh probe: probes to some targets, like ping(8).  Manual: confluo-pingmesh-probe(1)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from confluo_tools import cli, config
from confluo_tools.cli import capture_options as options
from confluo_tools.cli.log_output import LogOutput
from confluo_tools.cli.options import option
from confluo_tools.errors import UsageError

if TYPE_CHECKING:
    from confluo_tools.sources.targets import Wanted

app = cli.command_app(
    """
# how long do connections take, and are SYNs lost?
confluo-pingmesh probe 10.0.0.7:8080 10.0.0.8 -c 100

# payload there and back, ten a second, where nobody minds
confluo-pingmesh probe --kind echo --payload 1000 -i 100ms --lab 10.0.0.7

# a web server, phase by phase
confluo-pingmesh probe https://web1/health -c 3

# into a log, to be asked later
confluo-pingmesh probe 10.0.0.7 10.0.0.8 -w probes.ml
"""
)

SPARE = 128  # descriptors that are not for probes


@app.command()
def probe(
    targets: Annotated[
        list[str], typer.Argument(metavar="TARGET...", help="HOST, HOST:PORT or a URL; port 8765.", show_default=False)
    ],
    count: Annotated[int | None, option("-c", "--count", metavar="N", min=1, help="Probes of each target.")] = None,
    interval: Annotated[
        str | None, option("-i", "--interval", metavar="TIME", help="Between two of a target (1s).")
    ] = None,
    kind: Annotated[
        list[str] | None,
        option("--kind", metavar="KIND", help="tcp, echo, http, https, udp or icmp (repeatable; tcp)."),
    ] = None,
    payload: Annotated[
        str | None, option("--payload", metavar="SIZE", help="Bytes, at most 64KiB (echo: 1000, udp, icmp: 48).")
    ] = None,
    timeout: Annotated[
        str | None, option("--timeout", metavar="TIME", help="When a probe has failed (tcp 9s, udp 3s).")
    ] = None,
    dscp: Annotated[str | None, option("--dscp", metavar="CLASS", help="Class of service: cs1, ef, 8.")] = None,
    source: Annotated[str | None, option("--source", metavar="ADDR", help="Address of ours to probe from.")] = None,
    token: Annotated[str | None, option("--token", metavar="HEX", help="Of the responders, for udp.")] = None,
    four: Annotated[bool, option("-4", help="Names: only their IPv4 addresses.")] = False,
    six: Annotated[bool, option("-6", help="Names: only their IPv6 addresses.")] = False,
    counters: Annotated[
        bool | None,
        option("--counters/--no-counters", help="Ask responders what their hosts dropped (default: on port 8765)."),
    ] = None,
    insecure: Annotated[bool, option("--insecure", help="https: any certificate will do.")] = False,
    lab: Annotated[bool, option("--lab", help="Lift the limits; all records say so.")] = False,
    duration: options.Duration = None,
    output: options.Output = None,
    append: Annotated[bool, option("--append", help="LOG may exist; the records are added to it.")] = False,
    fields: cli.Fields = None,
    format: Annotated[
        str | None,
        option("-o", "--format", metavar="FORMAT", help="lines (default on a terminal), or as of other commands."),
    ] = None,
    tsv: cli.Tsv = False,
    ndjson: cli.Ndjson = False,
    force: cli.Force = False,
    numeric: cli.Numeric = False,
    no_header: cli.NoHeader = False,
    wide: cli.Wide = False,
    line_buffered: cli.LineBuffered = False,
    color: cli.Color = None,
    file: cli.Config = None,
    stats: cli.Stats = False,
    quiet: cli.Quiet = False,
    verbose: cli.Verbose = False,
) -> int:
    """Probe targets and tell how each probe went."""
    from confluo_tools.schema import builtin
    from confluo_tools.sources.pinging import Plan, Probing

    if file is not None:
        config.use_file(file)
    to_log = format != "lines" and cli.is_log_output(output, format, tsv=tsv, ndjson=ndjson)
    cli.only_for_logs(to_log, {"--append": append})
    schema = builtin("probe")
    if fields == "help":
        print(cli.list_fields(schema))
        return cli.OK
    names = cli.choose_fields(fields, schema)
    wanted = read_targets(targets, kind or ["tcp"])
    lines = format == "lines" or (
        format is None and not (tsv or ndjson or fields) and output is None and cli.is_terminal(1)
    )
    if four and six:
        raise UsageError("-4 and -6 exclude each other")
    if token is None and any(w.kind == "udp" for w in wanted):
        cli.tell("udp without --token: responders do not answer that")
    plan = Plan(
        wanted=wanted, times=count or 0, lab=lab, payload=size_of("--payload", payload),
        dscp=cli.traffic_class("--dscp", dscp or "0"),
        interval=span("--interval", interval), timeout=span("--timeout", timeout) or 0, source=source or "",
        token=0 if token is None else cli.token("--token", token), family=4 if four else 6 if six else 0,
        counters=counters, verify=not insecure,
        seconds=(span("--duration", duration) or 0) / 1e9,
    )  # fmt: skip
    out: LogOutput | cli.RecordOutput | None = None
    if to_log:
        shape = schema.project(names) if names else schema
        out = LogOutput(
            str(output), shape, append=append, asked=(), index=None, sync="none", lanes=256, small=True,
        )  # fmt: skip
        if out.schema.kind != schema.kind:
            raise UsageError(f"is a log of '{out.schema.kind}'", where=out.path, hint="choose another name")
    elif not lines:
        fmt = cli.choose_format(format, tsv=tsv, ndjson=ndjson, path=output)
        out = cli.output(
            schema, fmt, path=output, force=force, fields=names, header=not no_header, numeric=numeric, wide=wide,
            line_buffered=line_buffered, color=color,
        )  # fmt: skip
    from confluo_tools.commands.pingmesh.lines import Lines, Sums
    from confluo_tools.sources.responder import make_room

    room = make_room(4096 + SPARE)
    sums = Sums(wanted)
    printer = Lines(wanted) if lines else None
    with Probing(schema, plan, inflight=max(16, min(4096, room - SPARE))) as probing:
        run = Run(probing, sums, printer, lines=lines or line_buffered)
        with cli.signals(run.stop, counts=lambda: sums.line(probing.under_way)):
            if printer is not None and not quiet:
                printer.head(plan)
            if out is None:
                run.go(None)
            else:
                with out as into:
                    run.go(into)
        left = probing.under_way
    if printer is not None and not quiet:
        printer.summary(sums, left)
    elif stats or (run.stopped and not quiet):
        cli.note(sums.line(left))
    if run.stopped:
        return 128 + run.stopped
    return cli.OK if sums.ok else cli.NOTHING


class Run:
    """Probes until it is over or a signal comes."""

    def __init__(self, probing: Any, sums: Any, printer: Any, *, lines: bool) -> None:
        self.probing, self.sums, self.printer, self.each = probing, sums, printer, lines
        self.stopped = 0

    def stop(self, number: int) -> None:
        self.stopped = number
        self.probing.stop()

    def go(self, into: LogOutput | cli.RecordOutput | None) -> None:
        for block in self.probing.blocks(each=self.each):
            for what, why in self.probing.lost():
                cli.warn(why, where=what)
            for what, why in self.probing.same():
                cli.tell(f"{what} {why}")
            if block is None:
                continue
            if into is not None:
                into.write(block, None)
                if self.each:
                    into.flush()
            for told in self.sums.take(block, self.probing.urls):
                if self.printer is not None:
                    self.printer.tell(told)
        for what, why in self.probing.lost():
            cli.warn(why, where=what)


def read_targets(texts: Sequence[str], kinds: Sequence[str]) -> list[Wanted]:
    """Each target with each kind, once."""
    from confluo_tools.sources.targets import KINDS, parse_target

    for kind in kinds:
        if kind not in KINDS:
            raise UsageError(f"no kind of probe '{kind[:60]}'", where="--kind", hint=f"there are {', '.join(KINDS)}")
    found = [parse_target(text, kind) for text in texts for kind in kinds]
    return list({(w.host, w.kind, w.port, w.url): w for w in reversed(found)}.values())[::-1]


def span(option: str, text: str | None) -> int | None:
    """A time in ns."""
    if text is None:
        return None
    from confluo_tools.units import duration

    ns = cli.of_option(option, duration, text)
    if not 0 < ns <= 366 * 86400 * 10**9:
        raise UsageError(f"'{text[:60]}' is not possible", where=option)
    return ns


def size_of(option: str, text: str | None) -> int | None:
    if text is None:
        return None
    from confluo_tools.units import size

    return cli.of_option(option, size, text)


def main(argv: Sequence[str] | None = None) -> int:
    return cli.run(app, "confluo-pingmesh probe", argv, owns_state=True)
