"""confluo-stream service top: the largest senders, ports or flows.  Manual: confluo-stream-service-top(1)."""

from __future__ import annotations

from typing import Annotated

from confluo_tools import cli
from confluo_tools.cli.options import option
from confluo_tools.stream.services.options import SHARED, LiveServiceOptions

app = cli.command_app(
    """
# who sends the most, each ten seconds?
confluo-stream service top kafka://broker:9092/telemetry --follow -J

# the five largest flows of a capture
confluo-stream service top trace.pcap --by flow --top 5 --window 0 -o table

# by packets, of networks
confluo-stream service top trace.ml --by dst_ip/24 --rank packets -o table
"""
)

RANKS = ("bytes", "packets")
MAX_TOP = 10_000


@app.command(panels={**SHARED, "Options": "--by --top --window --follow --to -w", "Analysis": "--rank", "Output": "-f"})
def top(
    operands: cli.Operands = None,
    by: Annotated[str, option("--by", metavar="LIST", help="Keys: fields, prefixes, flow, host (src_ip).")] = "src_ip",
    most: Annotated[
        int, option("--top", metavar="N", min=1, max=MAX_TOP, help="Report the N largest of each window (10).")
    ] = 10,
    window: Annotated[str, option("--window", metavar="TIME", help="Report each TIME apart; 0: all at once (10s).")] = (
        "10s"
    ),
    rank: Annotated[str, option("--rank", metavar="WHAT", help="Order by bytes or packets (bytes).")] = "bytes",
    *,
    on: LiveServiceOptions,
    ins: cli.InputOptions,
    period: cli.PeriodOptions,
    out: cli.LogOptions,
    common: cli.CommonOptions,
) -> int:
    """Report the keys with the most bytes or packets, by window."""
    from confluo_tools.stream.services.guarded import GuardedService
    from confluo_tools.stream.services.options import window_length
    from confluo_tools.stream.services.run import run_service
    from confluo_tools.stream.services.source import ServiceSource
    from confluo_tools.stream.services.top import TopService

    inputs, text = cli.split_operands(operands or [], on.source or [], None, ins.at)
    if ins.missing(inputs, on.follow):
        return cli.usage(app)
    length, what = window_length(window, on.follow), cli.one_of("--rank", rank, RANKS)
    with ServiceSource(inputs, text, ins, period.span(out.local), follow=on.follow, local=out.local) as source:
        service = TopService(source.schema, by, what, most=most, window=length, lateness=on.late())
        if out.listed(service.schema):
            return cli.OK
        return run_service(source, GuardedService(service, source.schema), on, out, common)


def main(argv: list[str] | None = None) -> int:
    return cli.run(app, "confluo-stream service top", argv)
