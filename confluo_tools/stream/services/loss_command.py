"""confluo-stream service loss: losses between two observation points.  Manual: confluo-stream-service-loss(1)."""

from __future__ import annotations

from typing import Annotated

from confluo_tools import cli
from confluo_tools.cli.options import argument, option
from confluo_tools.errors import UsageError
from confluo_tools.stream.services.options import SHARED, ServiceOptions

app = cli.command_app(
    """
# two captures of the same traffic, at both ends of a path
confluo-stream service loss client.pcap server.pcap -o table

# which packets were lost?
confluo-stream service loss a.ml b.ml 'tcp port 443' --packets -o stream | confluo-query - 'seen != both'

# two topics, in windows of a minute
confluo-stream service loss kafka://broker:9092/left kafka://broker:9092/right --window 1m -J
"""
)

USUAL = ("ts", "way", "src_ip", "src_port", "dst_ip", "dst_port", "sent", "lost", "reordered", "delay_mean")
PASSAGE = ("ts", "seen", "delay", "reordered", "proto", "src_ip", "src_port", "dst_ip", "dst_port", "ip_id", "tcp_seq")


@app.command(
    panels={
        **SHARED,
        "Options": "--window --packets --offset --to -o -w",
        "Analysis": "--timeout --all",
        "Output": "-f",
    }
)
def loss(
    operands: Annotated[
        list[str] | None,
        argument("[A] [B] [EXPR]", "The two inputs, with the packets of each point; then a filter expression."),
    ] = None,
    window: Annotated[str, option("--window", metavar="TIME", help="Report each TIME apart; 0: all at once (10s).")] = (
        "10s"
    ),
    packets: Annotated[bool, option("--packets", help="Output a record for each packet instead.")] = False,
    offset: Annotated[
        str, option("--offset", metavar="TIME", help="The clock of B is ahead by TIME, e.g. 3.2ms, -40us (0).")
    ] = "0",
    timeout: Annotated[
        str, option("--timeout", metavar="TIME", help="Lost: not at the other point within TIME (2s).")
    ] = "2s",
    everyone: Annotated[bool, option("--all", help="Also flows that were seen at one point only.")] = False,
    *,
    on: ServiceOptions,
    ins: cli.InputOptions,
    period: cli.PeriodOptions,
    out: cli.LogOptions,
    common: cli.CommonOptions,
) -> int:
    """Find the packets of A that are missing in B, and the other way round: loss, delay, reordering by flow."""
    from confluo_tools.schema import builtin
    from confluo_tools.stream.services.loss import LossService
    from confluo_tools.stream.services.options import window_length
    from confluo_tools.stream.services.run import run_service
    from confluo_tools.stream.services.source import ServiceSource
    from confluo_tools.stream.services.two_points import TwoPoints

    if out.listed(builtin("passage" if packets else "loss")):
        return cli.OK
    words = operands or []
    if not words and not on.source:
        return cli.usage(app)
    inputs, rest = (on.source, words) if on.source else (words[:2], words[2:])
    if len(inputs) != 2:
        raise UsageError(f"{len(inputs)} inputs instead of 2", hint="name what each point saw: A B, --from A --from B")
    if ins.at is not None:
        raise UsageError("a snapshot is one input", where="--at", hint="name two")
    ahead, span, text = signed("--offset", offset), period.span(out.local), " ".join(rest)
    length = window_length(window)
    wait = cli.duration("--timeout", timeout, 1_000, 600 * 10**9)
    with (
        ServiceSource(inputs[:1], text, ins, span, follow=False, local=out.local) as a,
        ServiceSource(inputs[1:], text, ins, span, follow=False, local=out.local) as b,
    ):
        points = TwoPoints(a, b, ahead)
        service = LossService(
            [a.schema, b.schema],
            points,
            window=length,
            timeout=wait,
            lateness=on.late(),
            offset=ahead,
            each=packets,
            everyone=everyone,
        )
        return run_service(points, service, on, out, common, PASSAGE if packets else USUAL)


def signed(name: str, text: str) -> int:
    """A duration in ns that may be negative.  Raises UsageError."""
    return -cli.duration(name, text[1:], 0) if text.startswith("-") else cli.duration(name, text, 0)


def main(argv: list[str] | None = None) -> int:
    return cli.run(app, "confluo-stream service loss", argv)
