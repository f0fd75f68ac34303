"""confluo-pingmesh probe: probes to some targets, like ping(8).  Manual: confluo-pingmesh-probe(1)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from confluo_tools import cli
from confluo_tools.cli.log_output import LogOutput
from confluo_tools.cli.options import option
from confluo_tools.cli.output import only_for_logs
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


class Output(cli.LogOptions):
    """Records, or lines to be read."""

    format: Annotated[
        str | None,
        option("-o", "--format", metavar="FORMAT", help="lines (default on a terminal), or as of other commands."),
    ] = None

    def kind(self, *, answers: bool = False) -> str:
        """As of other commands; 'lines' by that name, and on a terminal when nothing else was asked for."""
        silent = self.format is None and self.output is None and not (self.tsv or self.ndjson or self.fields)
        if self.format == "lines" or (silent and cli.is_terminal(1)):
            only_for_logs({"--append": self.append})
            return "lines"
        return super().kind(answers=answers)


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
    duration: cli.Duration = None,
    *,
    out: Output,
    common: cli.CommonOptions,
) -> int:
    """Probe targets and tell how each probe went."""
    from confluo_tools.schema import builtin
    from confluo_tools.sources.pinging import Plan, Probing

    schema = builtin("probe")
    if out.listed(schema):
        return cli.OK
    chosen = out.kind()
    lines = chosen == "lines"
    wanted = read_targets(targets, kind or ["tcp"])
    if four and six:
        raise UsageError("-4 and -6 exclude each other")
    if token is None and any(w.kind == "udp" for w in wanted):
        cli.tell("udp without --token: responders do not answer that")
    plan = Plan(
        wanted=wanted, times=count or 0, lab=lab, payload=size_of("--payload", payload),
        dscp=cli.traffic_class("--dscp", dscp or "0"),
        interval=time_of("--interval", interval), timeout=time_of("--timeout", timeout) or 0, source=source or "",
        token=0 if token is None else cli.token("--token", token), family=4 if four else 6 if six else 0,
        counters=counters, verify=not insecure,
        seconds=(time_of("--duration", duration) or 0) / 1e9,
    )  # fmt: skip
    into = None if lines else out.open(schema, chosen, out.names(schema), lanes=256)
    from confluo_tools.commands.pingmesh.lines import Lines, Sums
    from confluo_tools.sources.responder import make_room

    room = make_room(4096 + SPARE)
    sums = Sums(wanted)
    printer = Lines(wanted) if lines else None
    with Probing(schema, plan, inflight=max(16, min(4096, room - SPARE))) as probing:
        run = Run(probing, sums, printer, lines=lines or out.line_buffered)
        with cli.signals(run.stop, counts=lambda: sums.line(probing.under_way)):
            if printer is not None and not common.quiet:
                printer.head(plan)
            if into is None:
                run.go(None)
            else:
                with into:
                    run.go(into)
        left = probing.under_way
    if printer is not None and not common.quiet:
        printer.summary(sums, left)
    elif common.stats or (run.stopped and not common.quiet):
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
        cli.one_of("--kind", kind, KINDS)
    found = [parse_target(text, kind) for text in texts for kind in kinds]
    return list({(w.host, w.kind, w.port, w.url): w for w in reversed(found)}.values())[::-1]


def time_of(option: str, text: str | None) -> int | None:
    """A time in ns."""
    return None if text is None else cli.duration(option, text, most=366 * 86400 * 10**9)


def size_of(option: str, text: str | None) -> int | None:
    if text is None:
        return None
    from confluo_tools.units import size

    return cli.of_option(option, size, text)


def main(argv: Sequence[str] | None = None) -> int:
    return cli.run(app, "confluo-pingmesh probe", argv, owns_state=True)
