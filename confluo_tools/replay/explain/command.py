"""confluo-replay explain: why a TCP connection waited or sent again.  Manual: confluo-replay-explain(1)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

from confluo_tools import cli
from confluo_tools.cli.options import option
from confluo_tools.errors import UsageError

if TYPE_CHECKING:
    from confluo_tools.core.block.block import Block
    from confluo_tools.core.block.result_table import Rows
    from confluo_tools.core.replay.explainer import Explainer
    from confluo_tools.replay.explain.flows import FlowEnds

app = cli.command_app(
    """
# every gap, retransmission and delayed acknowledgement, with its name
confluo-replay explain client.pcap

# captures of both ends: what was lost, and what only came late
confluo-replay explain client.pcap server.pcap -o table

# what the time of the slowest messages went to
confluo-replay explain client.pcap --by cause --slowest 1%

# one connection as a picture to look into
confluo-replay explain client.pcap --flow 10.0.0.1:4711-10.0.0.2:80 -w flow.html

# the connections that lost packets
confluo-retx -o stream | confluo-replay explain capture.ml --flows -
"""
)

BY = ("cause", "size")
LABEL_FIELDS = ("ts", "src_port", "dst_port", "name", "why", "certainty", "duration", "packet")
MESSAGE_FIELDS = ("ts", "src_port", "dst_port", "bytes", "took", "ideal", "slowdown", "main")
CAUSE_FIELDS = ("cause", "messages", "events", "time", "share", "longest")
EVIDENCE_HINTS = {
    "other_end": "the other end (give captures of both ends)",
    "handshake": "the handshake (window scaling is not known)",
    "sack": "SACK blocks (read the capture file itself)",
    "timers": "timers",
    "calls": "calls",
    "probes": "cwnd",
}


class ExplainOutput(cli.LogOptions):
    """The output options; one connection can be drawn as a picture or a page, too."""

    pictures = ("svg", "html")


@app.command(panels={"Options": "--by --slowest --messages --flow --flows --gap"})
def explain(
    inputs: cli.Inputs = None,
    by: Annotated[
        str | None, option("--by", metavar="WHAT", help="Sum the time by cause, or by size and cause of messages.")
    ] = None,
    slowest: Annotated[
        str | None, option("--slowest", metavar="SHARE", help="Only the slowest messages, e.g. 1%.")
    ] = None,
    messages: Annotated[bool, option("--messages", help="Print one record per message.")] = False,
    flow: Annotated[
        list[str] | None,
        option("--flow", metavar="FLOW", help="Only this connection, SRC:PORT-DST:PORT; may be repeated."),
    ] = None,
    flows: Annotated[
        str | None, option("--flows", metavar="FILE", help="Only the connections in these records (-: stdin).")
    ] = None,
    gap: Annotated[str, option("--gap", metavar="TIME", help="Shortest wait that is explained (1ms).")] = "1ms",
    *,
    ins: cli.InputOptions,
    out: ExplainOutput,
    common: cli.CommonOptions,
) -> int:
    """Name every gap in sending, every retransmission and every delayed acknowledgement of TCP connections.

    INPUT is one capture, taken anywhere on the path, or two: one of each end; or recordings, or a replay.
    """
    from confluo_tools.replay.explain.causes import causes
    from confluo_tools.replay.explain.flows import parse_flow
    from confluo_tools.replay.explain.taps import Taps
    from confluo_tools.schema import builtin

    if by is not None:
        cli.one_of("--by", by, BY)
        if messages:
            raise UsageError("--by and --messages exclude each other")
    schema = builtin("cause" if by else "message" if messages else "explanation")
    if out.listed(schema):
        return cli.OK
    share = cli.fraction("--slowest", slowest, inside=False) if slowest is not None else None
    shortest = cli.duration("--gap", gap, 0)
    if ins.missing(inputs):
        return cli.usage(app)
    chosen = {parse_flow(text) for text in flow} if flow else None
    kind = out.kind(answers=True)
    if kind in out.pictures and (by or messages):
        raise UsageError("draws labels", where=f"-o {kind}", hint="leave --by and --messages out")
    usual = (
        (*(("size",) if by == "size" else ()), *CAUSE_FIELDS) if by else MESSAGE_FIELDS if messages else LABEL_FIELDS
    )
    names = out.names(schema, kind, usual)
    if flows == "-" and "-" in (inputs or ["-"]):
        raise UsageError("standard input can be read only once", where="--flows -", hint="name the capture")
    if flows == "-" and not (by or messages or chosen or share is not None or kind in out.pictures):
        from confluo_tools.inputs.follow import StopSignal
        from confluo_tools.replay.explain.labels import PATTERNS
        from confluo_tools.replay.explain.live_flows import LiveFlows

        def labels(named: set[FlowEnds]) -> Rows:
            return Taps(inputs or [], ins, shortest, named).explain().rows(schema.layout, PATTERNS)

        with (
            StopSignal() as ending,
            cli.open_records(["-"]) as reader,
            out.open(schema, kind, names, metadata=reader.metadata) as into,
            cli.signals(ending),
        ):
            live = LiveFlows(labels, into, ending)
            live.read(reader)
        if ending.number:
            return 128 + ending.number
        return cli.OK if live.rows else cli.NOTHING
    if flows is not None:
        from confluo_tools.replay.explain.flows import read_flows

        chosen = (chosen or set()) | read_flows(flows)
    taps = Taps(inputs or ["-"], ins, shortest, chosen)
    explainer = taps.explain()
    counts = f"{explainer.labels:,} labels, {explainer.messages_found:,} messages"
    if share is not None:
        explainer.keep_slowest(share)
    if kind in out.pictures:
        from confluo_tools.replay.explain.timeline_output import write_timeline

        if explainer.packets:
            write_timeline(kind, taps, explainer.count, labels_of(explainer), out)
        note_missing(explainer)
        return cli.OK if explainer.packets else cli.NOTHING
    with out.open(schema, kind, names, metadata=taps.metadata) as into:
        rows = 0
        if by:
            found = causes(explainer, schema, by_size=by == "size")
        else:
            found = messages_of(explainer) if messages else labels_of(explainer)
        for block in found:
            into.write(block, None)
            rows += block.rows
    if not common.quiet:
        note_missing(explainer)
    if common.stats or common.verbose:
        cli.note(f"{explainer.packets:,} TCP packets of {explainer.count:,} connections: {counts}")
    return cli.OK if rows else cli.NOTHING


def labels_of(explainer: Explainer) -> Iterator[Block]:
    """Records of the schema `explanation`, by time."""
    from confluo_tools.replay.explain.labels import PATTERNS
    from confluo_tools.schema import builtin

    schema = builtin("explanation")
    rows = explainer.rows(schema.layout, PATTERNS)
    rows.sort([(schema.index("ts"), False)])
    return rows.blocks()


def messages_of(explainer: Explainer) -> Iterator[Block]:
    """Records of the schema `message`, by time."""
    from confluo_tools.replay.explain.labels import LABELS
    from confluo_tools.schema import builtin

    schema = builtin("message")
    rows = explainer.messages(schema.layout, LABELS)
    rows.sort([(schema.index("ts"), False)])
    return rows.blocks()


def note_missing(explainer: Explainer) -> None:
    """Say which evidence was not in the input."""
    from confluo_tools.replay.explain.labels import EVIDENCE

    if not explainer.packets:
        cli.tell("the input contains no TCP packets of these connections")
        return
    lacking = {name for bit, name in enumerate(EVIDENCE) if explainer.lacking >> bit & 1}
    named = [hint for name, hint in EVIDENCE_HINTS.items() if name in lacking]
    if named:
        cli.tell(f"evidence that could say more is missing: {', '.join(named)}")


def main(argv: list[str] | None = None) -> int:
    return cli.run(app, "confluo-replay explain", argv)
