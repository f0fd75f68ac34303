"""confluo-stream service loss: losses between two observation points.  Manual: confluo-stream-service-loss(1)."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated

from confluo_tools import cli
from confluo_tools.cli.options import argument, option
from confluo_tools.errors import UsageError
from confluo_tools.stream.services.options import SHARED, ServiceOptions

if TYPE_CHECKING:
    from confluo_tools.formats.reader import Reader

app = cli.command_app(
    """
# two captures of the same traffic, at both ends of a path
confluo-stream service loss client.pcap server.pcap -o table

# which packets were lost?
confluo-stream service loss a.ml b.ml 'tcp port 443' --packets -o stream | confluo-query - 'seen != both'

# two topics, in windows of a minute; or one, to which the hosts left and right publish
confluo-stream service loss kafka://broker:9092/left kafka://broker:9092/right --window 1m -J
confluo-stream service loss kafka://broker:9092/telemetry --points left,right --window 1m -J
"""
)

USUAL = ("ts", "way", "src_ip", "src_port", "dst_ip", "dst_port", "sent", "lost", "reordered", "delay_mean")
PASSAGE = ("ts", "seen", "delay", "reordered", "proto", "src_ip", "src_port", "dst_ip", "dst_port", "ip_id", "tcp_seq")


@app.command(
    panels={
        **SHARED,
        "Options": "--window --packets --points --offset --to -w",
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
    points: Annotated[
        str | None, option("--points", metavar="A,B", help="Hosts A and B in one topic, to which both publish.")
    ] = None,
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
    from confluo_tools.inputs.topics import is_topic
    from confluo_tools.schema import builtin
    from confluo_tools.stream.services.hosts import split_by_host
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
    hosts = None if points is None else two_hosts(points)
    count = 2 if hosts is None else 1
    inputs, rest = (on.source, words) if on.source else (words[:count], words[count:])
    if len(inputs) != count or (hosts is not None and not is_topic(inputs[0])):
        hint = "name what each point saw: A B, --from A --from B; or --points A,B for one topic"
        raise UsageError(f"{len(inputs)} inputs instead of 2", hint=hint)
    if ins.at is not None:
        raise UsageError("a snapshot is one input", where="--at", hint="name two")
    ahead, span, text = signed("--offset", offset), period.span(out.local), " ".join(rest)
    length = window_length(window)
    wait = cli.duration("--timeout", timeout, 1_000, 600 * 10**9)
    with ExitStack() as stack:
        readers: list[Reader | None] = [None, None]
        if hosts is not None:
            from confluo_tools.remote.request import QueryRequest

            topic = stack.enter_context(ins.open(inputs, request=QueryRequest(text, *span)))
            readers = [stack.enter_context(reader) for reader in split_by_host(topic, hosts)]
            inputs = [*inputs, *inputs]
        a, b = (
            stack.enter_context(ServiceSource([name], text, ins, span, follow=False, local=out.local, reader=reader))
            for name, reader in zip(inputs, readers, strict=True)
        )
        both = TwoPoints(a, b, ahead)
        service = LossService(
            [a.schema, b.schema],
            both,
            window=length,
            timeout=wait,
            lateness=on.late(),
            offset=ahead,
            each=packets,
            everyone=everyone,
        )
        return run_service(both, service, on, out, common, PASSAGE if packets else USUAL)


def two_hosts(text: str) -> tuple[str, str]:
    """The hosts in ``A,B``.  Raises UsageError."""
    a, _, b = (word.strip() for word in text.partition(","))
    if not a or not b or "," in b or a == b:
        raise UsageError(f"'{text[:60]}' is not two hosts", where="--points", hint="write A,B")
    return a, b


def signed(name: str, text: str) -> int:
    """A duration in ns that may be negative.  Raises UsageError."""
    return -cli.duration(name, text[1:], 0) if text.startswith("-") else cli.duration(name, text, 0)


def main(argv: list[str] | None = None) -> int:
    return cli.run(app, "confluo-stream service loss", argv)
