"""confluo-stream service synflood: report SYN floods as alerts.  Manual: confluo-stream-service-synflood(1)."""

from __future__ import annotations

from typing import Annotated

from confluo_tools import cli
from confluo_tools.cli.options import option
from confluo_tools.errors import UsageError
from confluo_tools.stream.services.options import SHARED, LiveServiceOptions

app = cli.command_app(
    """
# as packets arrive in a topic; alerts go to another one
confluo-stream service synflood kafka://broker:9092/telemetry --follow --to kafka://broker:9092/alerts

# in a capture, with smaller limits
confluo-stream service synflood trace.pcap --threshold 100/1s -o table

# only what goes to the servers of one network
confluo-stream service synflood --from kafka://broker:9092/telemetry 'net 192.0.2.0/24' -J
"""
)

USUAL = ("ts", "event", "key", "value", "rows", "lasted")


@app.command(
    panels={
        **SHARED,
        "Options": "--threshold --follow --to -o -w",
        "Analysis": "--ratio --clear --timeout",
        "Output": "-f",
    }
)
def synflood(
    operands: cli.Operands = None,
    threshold: Annotated[
        str, option("--threshold", metavar="N/TIME", help="Half-open connections within TIME (1000/10s).")
    ] = "1000/10s",
    ratio: Annotated[
        str, option("--ratio", metavar="SHARE", help="Least share of half-open among all attempts (50%).")
    ] = "50%",
    clear: Annotated[
        str, option("--clear", metavar="SHARE", help="An alert ends below SHARE of threshold or ratio (50%).")
    ] = "50%",
    timeout: Annotated[
        str, option("--timeout", metavar="TIME", help="Half-open: no ACK of the client within TIME (3s).")
    ] = "3s",
    *,
    on: LiveServiceOptions,
    ins: cli.InputOptions,
    period: cli.PeriodOptions,
    out: cli.LogOptions,
    common: cli.CommonOptions,
) -> int:
    """Report targets with many half-open TCP connections: an alert when it begins, another one when it ends."""
    from confluo_tools.schema import builtin
    from confluo_tools.stream.services.guarded import GuardedService
    from confluo_tools.stream.services.run import run_service
    from confluo_tools.stream.services.source import ServiceSource
    from confluo_tools.stream.services.synflood import SynFloodService

    if out.listed(builtin("alert")):
        return cli.OK
    inputs, text = cli.split_operands(operands or [], on.source or [], None, ins.at)
    if ins.missing(inputs, on.follow):
        return cli.usage(app)
    count, window = rate_limit("--threshold", threshold)
    share = cli.fraction("--ratio", ratio, least=0.01)
    end = cli.fraction("--clear", clear, least=0.01)
    wait = cli.duration("--timeout", timeout, 1_000_000, 600 * 10**9)
    with ServiceSource(inputs, text, ins, period.span(out.local), follow=on.follow, local=out.local) as source:
        service = SynFloodService(
            source.schema, count, window, ratio=share, clear=end, timeout=wait, lateness=on.late()
        )
        return run_service(source, GuardedService(service, source.schema), on, out, common, USUAL)


def rate_limit(name: str, text: str) -> tuple[int, int]:
    """(N, ns) of ``1000/10s``; ``1000/s`` is one second.  Raises UsageError."""
    from confluo_tools import units

    count, slash, time = text.partition("/")
    number = units.try_number(count)
    if not slash or not isinstance(number, int) or not 1 <= number <= 1 << 40:
        raise UsageError(f"'{text[:60]}' is not N/TIME", where=name, hint="write e.g. 1000/10s")
    window = cli.duration(name, f"1{time}" if time[:1].isalpha() else time, 10_000_000, 86400 * 10**9)
    return number, window - window % 10


def main(argv: list[str] | None = None) -> int:
    return cli.run(app, "confluo-stream service synflood", argv)
