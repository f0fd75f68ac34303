"""confluo-stream service histogram: distributions of a field.  Manual: confluo-stream-service-histogram(1)."""

from __future__ import annotations

from typing import Annotated

from confluo_tools import cli
from confluo_tools.cli.options import option
from confluo_tools.stream.services.options import SHARED, LiveServiceOptions

app = cli.command_app(
    """
# the sizes of packets, each ten seconds
confluo-stream service histogram kafka://broker:9092/telemetry --follow -J

# in bins of 100 bytes, of a minute
confluo-stream service histogram trace.ml --field len --bins 0..1600/100 --window 1m -o table
"""
)

USUAL = ("ts", "low", "high", "count", "total")


@app.command(panels={**SHARED, "Options": "--field --bins --window --follow --to -w", "Output": "-f"})
def histogram(
    operands: cli.Operands = None,
    field: Annotated[
        str, option("--field", metavar="FIELD", help="The number to count; or the sum or difference of two (len).")
    ] = "len",
    bins: Annotated[
        str, option("--bins", metavar="BINS", help="LOW..HIGH/STEP, or log2: powers of two (log2).")
    ] = "log2",
    window: Annotated[str, option("--window", metavar="TIME", help="Report each TIME apart (10s).")] = "10s",
    *,
    on: LiveServiceOptions,
    ins: cli.InputOptions,
    period: cli.PeriodOptions,
    out: cli.LogOptions,
    common: cli.CommonOptions,
) -> int:
    """Report how the values of a field are distributed, by window."""
    from confluo_tools.schema import builtin
    from confluo_tools.stream.functions.words import MAX_OPEN
    from confluo_tools.stream.services.histogram import HistogramService
    from confluo_tools.stream.services.run import run_service
    from confluo_tools.stream.services.source import ServiceSource

    if out.listed(builtin("histogram")):
        return cli.OK
    inputs, text = cli.split_operands(operands or [], on.source or [], None, ins.at)
    if ins.missing(inputs, on.follow):
        return cli.usage(app)
    length, late = cli.duration("--window", window, 1_000_000), on.late()
    cli.duration("--lateness", on.lateness, 0, MAX_OPEN * length)
    with ServiceSource(inputs, text, ins, period.span(out.local), follow=on.follow, local=out.local) as source:
        service = HistogramService(source.schema, field, bins, window=length, lateness=late)
        return run_service(source, service, on, out, common, USUAL)


def main(argv: list[str] | None = None) -> int:
    return cli.run(app, "confluo-stream service histogram", argv)
