"""confluo-stream service tcp-rate: rates of TCP flows.  Manual: confluo-stream-service-tcp-rate(1)."""

from __future__ import annotations

from typing import Annotated

from confluo_tools import cli
from confluo_tools.cli.options import option
from confluo_tools.stream.services.options import SHARED, LiveServiceOptions

app = cli.command_app(
    """
# the flows of each second, as they arrive in a topic
confluo-stream service tcp-rate kafka://broker:9092/telemetry --follow --window 1s -J

# whole connections of a capture, the fast ones
confluo-stream service tcp-rate trace.pcap --window 0 -o stream | confluo-query - 'throughput > 1000000' -o table

# which flows retransmit?
confluo-stream service tcp-rate trace.ml -o stream | confluo-query - 'retransmitted > 0' -o table
"""
)

USUAL = ("ts", "src_ip", "src_port", "dst_ip", "dst_port", "throughput", "goodput", "retransmitted", "rtt_min")


@app.command(panels={**SHARED, "Options": "--window --follow --to -o -w", "Output": "-f"})
def tcp_rate(
    operands: cli.Operands = None,
    window: Annotated[str, option("--window", metavar="TIME", help="Report each TIME apart; 0: all at once (10s).")] = (
        "10s"
    ),
    *,
    on: LiveServiceOptions,
    ins: cli.InputOptions,
    period: cli.PeriodOptions,
    out: cli.LogOptions,
    common: cli.CommonOptions,
) -> int:
    """Report throughput, goodput, retransmissions and round trips of TCP flows by window."""
    from confluo_tools.schema import builtin
    from confluo_tools.stream.services.guarded import GuardedService
    from confluo_tools.stream.services.options import window_length
    from confluo_tools.stream.services.run import run_service
    from confluo_tools.stream.services.source import ServiceSource
    from confluo_tools.stream.services.tcp_rate import TcpRateService

    if out.listed(builtin("tcp_rate")):
        return cli.OK
    inputs, text = cli.split_operands(operands or [], on.source or [], None, ins.at)
    if ins.missing(inputs, on.follow):
        return cli.usage(app)
    length = window_length(window, on.follow)
    with ServiceSource(inputs, text, ins, period.span(out.local), follow=on.follow, local=out.local) as source:
        service = TcpRateService(source.schema, window=length, lateness=on.late())
        return run_service(source, GuardedService(service, source.schema), on, out, common, USUAL)


def main(argv: list[str] | None = None) -> int:
    return cli.run(app, "confluo-stream service tcp-rate", argv)
