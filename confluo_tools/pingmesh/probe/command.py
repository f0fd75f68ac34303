"""confluo-pingmesh probe: probe targets by hand, like ping(8).  Manual: confluo-pingmesh-probe(1)."""

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
    from confluo_tools.pingmesh.probe.targets import ProbeTarget

app = cli.command_app(
    """
# how long do connections take, and are SYNs lost?
confluo-pingmesh probe 10.0.0.7:8080 10.0.0.8 -c 100

# echo 1000 bytes ten times a second, in a lab
confluo-pingmesh probe --kind echo --payload 1000 -i 100ms --lab 10.0.0.7

# time the phases of an HTTPS request
confluo-pingmesh probe https://web1/health -c 3

# write a log for later queries
confluo-pingmesh probe 10.0.0.7 10.0.0.8 -w probes.ml
"""
)

SPARE = 128  # descriptors for other uses


class ProbeOutput(cli.LogOptions):
    """Output options with the format `lines`, for people."""

    formats = ("lines", *cli.LogOptions.formats)
    default_format = "lines on a terminal, otherwise stream"

    def kind(self, *, answers: bool = False) -> str:
        """The format: `lines` if given, or on a terminal without other output options."""
        default = self.format is None and self.output is None and not (self.tsv or self.ndjson or self.fields)
        if self.format == "lines" or (default and cli.is_terminal(1)):
            only_for_logs({"--append": self.append})
            return "lines"
        return super().kind(answers=answers)


@app.command(
    panels={
        "Options": "-c -i --kind --payload --timeout -w",
        "Probes": "--dscp --source --token -4 -6 --counters --insecure --lab",
    }
)
def probe(
    targets: Annotated[
        list[str], typer.Argument(metavar="TARGET...", help="HOST, HOST:PORT or a URL; port 8765.", show_default=False)
    ],
    count: Annotated[
        int | None, option("-c", "--count", metavar="N", min=1, help="Stop after N probes of each target.")
    ] = None,
    interval: Annotated[
        str | None, option("-i", "--interval", metavar="TIME", help="Probe each target at this interval (1s).")
    ] = None,
    kind: Annotated[
        list[str] | None,
        option("--kind", metavar="KIND", help="Kind of probe: tcp, echo, http, https, udp, icmp (repeatable; tcp)."),
    ] = None,
    payload: Annotated[
        str | None, option("--payload", metavar="SIZE", help="Send SIZE bytes, up to 64KiB (echo 1000, udp, icmp 48).")
    ] = None,
    timeout: Annotated[
        str | None, option("--timeout", metavar="TIME", help="Count a probe as failed after TIME (tcp 9s, udp 3s).")
    ] = None,
    dscp: Annotated[str | None, option("--dscp", metavar="CLASS", help="Class of service: cs1, ef, 8.")] = None,
    source: Annotated[str | None, option("--source", metavar="ADDR", help="Probe from this source address.")] = None,
    token: Annotated[
        str | None, option("--token", metavar="HEX", help="Token of udp probes, as given to the responders.")
    ] = None,
    four: Annotated[bool, option("-4", help="Use only IPv4 addresses of names.")] = False,
    six: Annotated[bool, option("-6", help="Use only IPv6 addresses of names.")] = False,
    counters: Annotated[
        bool | None,
        option("--counters/--no-counters", help="Read overflow counters of responders (default: on port 8765)."),
    ] = None,
    insecure: Annotated[bool, option("--insecure", help="Accept any certificate of https targets.")] = False,
    lab: Annotated[bool, option("--lab", help="Lift the limits on intervals and rates; mark each record.")] = False,
    duration: cli.Duration = None,
    *,
    out: ProbeOutput,
    common: cli.CommonOptions,
) -> int:
    """Probe targets and print the result of each probe."""
    from confluo_tools.pingmesh.probe.runner import ProbeOptions, ProbeRun
    from confluo_tools.schema import builtin

    schema = builtin("probe")
    if out.listed(schema):
        return cli.OK
    chosen = out.kind()
    lines = chosen == "lines"
    wanted = read_targets(targets, kind or ["tcp"])
    if four and six:
        raise UsageError("-4 and -6 exclude each other")
    if token is None and any(w.kind == "udp" for w in wanted):
        cli.tell("udp without --token: responders do not answer")
    plan = ProbeOptions(
        wanted=wanted,
        times=count or 0,
        lab=lab,
        payload=size_of("--payload", payload),
        dscp=cli.traffic_class("--dscp", dscp or "0"),
        interval=time_of("--interval", interval),
        timeout=time_of("--timeout", timeout) or 0,
        source=source or "",
        token=0 if token is None else cli.token("--token", token),
        family=4 if four else 6 if six else 0,
        counters=counters,
        verify=not insecure,
        seconds=(time_of("--duration", duration) or 0) / 1e9,
    )
    into = None if lines else out.open(schema, chosen, out.names(schema), lanes=256)
    from confluo_tools.pingmesh.probe.ping_report import ProbePrinter, ProbeSummary
    from confluo_tools.pingmesh.probe.responder import make_room

    room = make_room(4096 + SPARE)
    sums = ProbeSummary(wanted)
    printer = ProbePrinter(wanted) if lines else None
    with ProbeRun(schema, plan, inflight=max(16, min(4096, room - SPARE))) as probing:
        run = ProbeSession(probing, sums, printer, lines=lines or out.line_buffered)
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


class ProbeSession:
    """Runs the probes and writes their records, until the end or a signal."""

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
            for probe in self.sums.take(block, self.probing.urls):
                if self.printer is not None:
                    self.printer.probe(probe)
        for what, why in self.probing.lost():
            cli.warn(why, where=what)


def read_targets(texts: Sequence[str], kinds: Sequence[str]) -> list[ProbeTarget]:
    """The targets, each with each kind, without duplicates."""
    from confluo_tools.pingmesh.probe.targets import KINDS, parse_target

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
