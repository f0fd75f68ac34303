"""confluo-top: show the groups of records with the largest rates, every second.  Manual: confluo-top(1)."""

from __future__ import annotations

import os
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated, Any

from confluo_tools import cli, config
from confluo_tools.cli import nic_options
from confluo_tools.cli.options import option
from confluo_tools.errors import UsageError
from confluo_tools.inputs.follow import StopSignal

if TYPE_CHECKING:
    from confluo_tools.core.block.block import Block
    from confluo_tools.top.model import TopLook, TopModel
    from confluo_tools.top.sources import RecordSource

app = cli.command_app(
    """
# who sends how much to whom, every second
confluo-top live.ml

# the packets of an interface, by server port; no log is needed
sudo confluo-top -i eth0 --by proto,dst_port -Z nobody

# who opens connections to many ports?
confluo-top host1:/data/live.ml 'tcp_flags == syn' --by src_ip --agg 'distinct(dst_port), rate'

# for a script: one look at the last minute
confluo-top live.ml --window 60s --once -o ndjson
"""
)

MIN_EVERY, MAX_EVERY = 100_000_000, 3600 * 10**9  # ns
SHOWN = 10  # groups of an update that is not for a screen


class TopInput(nic_options.NicInput):
    """The input options without --at: a snapshot is one instant, and nothing follows it."""

    @classmethod
    def options(cls) -> dict[str, Any]:
        return {name: kind for name, kind in super().options().items() if name != "at"}


class TopOutput(cli.OutputOptions):
    """The output options; -n is the number of updates."""

    default_format = "a live view on a terminal, otherwise tsv"

    numeric: Annotated[
        bool, option("--numeric", panel="Output", help="Print numbers, not names, of protocols, flags and the like.")
    ] = False


@app.command(
    panels={
        "Options": "-i --by --agg --window --every -n",
        "Capture": "--bpf --decap --ring -p",
        "Analysis": "--sort --top",
        "Output": "--once",
        "Input": "-e",
    }
)
def top(
    operands: cli.Operands = None,
    read: cli.Read = None,
    expression: Annotated[
        str | None, option("-e", "--expr", metavar="EXPR", help="Filter expression; all operands are inputs.")
    ] = None,
    interface: nic_options.Interfaces = None,
    by: Annotated[
        str | None, option("--by", metavar="LIST", help="Group by these keys at the start: 'src_ip', 'flow'.")
    ] = None,
    agg: Annotated[
        str | None, option("--agg", metavar="LIST", help="Show these aggregates at the start: 'rate(len), rate'.")
    ] = None,
    order: Annotated[
        str | None, option("--sort", metavar="NAME", help="Show the groups with the largest values of this column.")
    ] = None,
    window: Annotated[
        str, option("--window", metavar="TIME", help="Aggregate the records of the last TIME (10s).")
    ] = "10s",
    every: Annotated[str, option("--every", metavar="TIME", help="Time between two updates (1s).")] = "1s",
    updates: Annotated[
        int | None, option("-n", "--updates", metavar="N", min=1, help="Print N updates, without the live view.")
    ] = None,
    once: Annotated[bool, option("--once", help="As -n 1.")] = False,
    top: Annotated[
        int, option("--top", metavar="N", min=1, help=f"Print N groups per update, without the live view ({SHOWN}).")
    ] = SHOWN,
    bpf: nic_options.Bpf = None,
    decap: nic_options.Decap = "outer",
    ring: nic_options.RingSize = None,
    no_promiscuous: nic_options.NoPromiscuous = False,
    user: cli.User = None,
    *,
    ins: TopInput,
    out: TopOutput,
    common: cli.TalkOptions,
) -> int:
    """Show the groups of records with the largest rates of the last seconds, again and again."""
    if once and updates is not None:
        raise UsageError("--once and -n exclude each other", hint="--once is -n 1")
    step = cli.duration("--every", every, MIN_EVERY, MAX_EVERY)
    span = whole_slices(cli.duration("--window", window), step)
    if interface:
        if read:
            raise UsageError("-i and -r exclude each other", hint="leave one out")
        text = " ".join(operands or []) if expression is None else expression
        inputs: list[str] = []
    else:
        inputs, text = cli.split_operands(operands or [], read or [], expression)
        only_live = {"--bpf": bpf, "--ring": ring, "-p": no_promiscuous, "-Z": user, "--decap": decap != "outer"}
        for name, value in only_live.items():
            if value:
                raise UsageError(f"{name} is for interfaces", hint="name one with -i")
        if ins.missing(inputs):
            return cli.usage(app)
    local = config.truth("local", out.local)
    screen = is_screen(out, updates, once)
    with ExitStack() as stack:
        ending = stack.enter_context(StopSignal())
        source: RecordSource
        if interface:
            source = from_nic(stack, interface, text, ending, bpf, decap, ring, no_promiscuous, user, local)
        else:
            source = from_inputs(ins, inputs, text, ending, local)
        from confluo_tools.top import choices
        from confluo_tools.top.model import TopModel

        groups = choices.groups(source.schema, by)
        aggregates = choices.aggregates(source.schema, agg)
        model = TopModel(source, groups, aggregates, every=step, window=span, order=order)
        if out.listed(model.question.fine.result):
            return cli.OK
        stack.callback(source.close)
        with cli.signals(ending):
            if screen:
                show(model, title(interface or inputs or ["standard input"], text), ending, out, local)
                found = True
            else:
                found = write(model, ending, out, 1 if once else updates, top)
    return 128 + ending.number if ending.number else cli.OK if found else cli.NOTHING


def whole_slices(window: int, every: int) -> int:
    """``window``, a multiple of ``every``.  Raises UsageError."""
    from confluo_tools.top.slices import MAX_SLICES
    from confluo_tools.units import format_duration

    if window % every or window < every:
        what = f"{format_duration(window)} is not a multiple of {format_duration(every)}, the time between updates"
        raise UsageError(what, where="--window", hint="change --every or --window")
    if window // every > MAX_SLICES:
        hint = f"at most {MAX_SLICES} times --every; write a longer --every"
        raise UsageError(f"{format_duration(window)} is too long", where="--window", hint=hint)
    return window


def is_screen(out: TopOutput, updates: int | None, once: bool) -> bool:
    """Whether there is a live view: on a terminal, where no other output is named."""
    named = out.format or out.tsv or out.ndjson or out.output or out.fields or once or updates is not None
    return not named and cli.is_terminal(1) and os.environ.get("TERM", "dumb") != "dumb"


def title(inputs: list[str], text: str) -> str:
    """What is shown: the names of the inputs, and the expression."""
    return cli.printable("  ".join(filter(None, (", ".join(inputs), text))))


def from_inputs(ins: TopInput, inputs: list[str], text: str, ending: StopSignal, local: bool) -> RecordSource:
    """Logs, which are queried, or any other input, which is read as it comes."""
    from confluo_tools.inputs.selection import compile_expr
    from confluo_tools.inputs.topics import is_topic
    from confluo_tools.top.sources import PolledLogs, RecordFeed

    if inputs and all(is_log(name) for name in inputs):
        return PolledLogs(ins, inputs, text, local)
    topic = any(is_topic(name) for name in inputs)
    reader = ins.open(inputs, follow=True) if topic else ins.open(inputs)
    reader.skip_before(time.time_ns() - 60 * 10**9)
    reader.stop_when(ending.came)
    expr = compile_expr(text, reader, (None, None), None, local)
    return RecordFeed(reader.select(expr), reader.schema, lambda: ending(0), lambda: os.eventfd_write(ending.wake, 1))


def is_log(name: str) -> bool:
    """Whether an input is a log, here or elsewhere, or an archive."""
    from confluo_tools.formats import detect

    return cli.remote(name) is not None or detect.is_multilog(name) or detect.is_archive(name)


def from_nic(
    stack: ExitStack,
    names: list[str],
    text: str,
    ending: StopSignal,
    bpf: str | None,
    decap: str,
    ring: str | None,
    no_promiscuous: bool,
    user: str | None,
    local: bool,
) -> RecordSource:
    """The packets of interfaces."""
    from confluo_tools.cli.privileges import account, hand_over
    from confluo_tools.expr import compile
    from confluo_tools.kernel.nic import RING, open_nic, ring_size
    from confluo_tools.top.sources import RecordFeed

    owner = account(user) if user is not None else None
    size = RING if ring is None else ring_size(ring)
    nic = stack.enter_context(
        open_nic(
            names, filter=bpf or "", ring=size, promiscuous=not no_promiscuous, decap=decap, notify=lambda line: None
        )
    )
    expr = compile(text, nic.schema, local=local)
    hand_over(None, owner)
    nic.begin()
    rows = ((block, expr.program.select(block)) for block in nic)
    return RecordFeed(rows, nic.schema, nic.stop, lambda: os.eventfd_write(ending.wake, 1), live=True)


def show(model: TopModel, name: str, ending: StopSignal, out: TopOutput, local: bool) -> None:
    """The live view."""
    from confluo_tools.top.screen import TopScreen
    from confluo_tools.top.view import TopView

    TopScreen(model, TopView(name, model.every, colour=cli.colour(1, out.color), local=local), ending).run()


def write(model: TopModel, ending: StopSignal, out: TopOutput, updates: int | None, most: int) -> bool:
    """Write updates as records; whether there were any."""
    schema, source = model.question.fine.result, model.source
    kind = out.kind(answers=True)
    rows, left = 0, updates
    with out.records(schema, kind, out.names(schema)) as into:
        due = time.monotonic()
        while not ending.came() and (left is None or left > 0):
            over = source.ended
            look = model.look(time.time_ns(), most)
            if look is not None and (over or complete(look, model)):
                left = None if left is None else left - 1
                for block in stamped(look, model):
                    into.write(block)
                    rows += block.rows
                into.flush()
            if over:
                break
            due += model.every / 1e9
            pause(ending, due - time.monotonic() if left != 0 else 0.0)
    return rows > 0


def complete(look: TopLook, model: TopModel) -> bool:
    """Whether a look is of a whole window, and not of old records that are still being read."""
    from confluo_tools.top.sources import RecordFeed

    reading = look.behind > 0 and isinstance(model.source, RecordFeed)
    return not reading and look.window.until - look.window.since >= model.window


def pause(ending: StopSignal, seconds: float) -> None:
    """Wait for the next update, a signal or the end of the input."""
    from select import select

    if seconds > 0:
        select([ending.wake], [], [], seconds)


def stamped(look: TopLook, model: TopModel) -> list[Block]:
    """The rows of a look, with the end of its window as their time."""
    from confluo_tools.multilog.query.aggregation import with_time

    return [with_time(model.question.fine.result, block, look.window.until) for block in look.window.rows]


def main(argv: list[str] | None = None) -> int:
    return cli.run(app, "confluo-top", argv, owns_state=True)
