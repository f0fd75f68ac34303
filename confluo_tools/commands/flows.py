"""confluo-flows: turn packets into flow records, live or from files.  Manual: confluo-flows(1)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Annotated

from confluo_tools import cli, config
from confluo_tools.cli import flow_options, nic_options
from confluo_tools.cli.nic_notes import DropWatch, announce, vanished
from confluo_tools.cli.options import option
from confluo_tools.errors import UsageError
from confluo_tools.inputs.follow import StopSignal

if TYPE_CHECKING:
    from confluo_tools.cli.log_output import LogOutput
    from confluo_tools.core.block.block import Block, Picks
    from confluo_tools.core.flows.conn_table import ConnTable
    from confluo_tools.expr import Expr
    from confluo_tools.formats.reader import Reader
    from confluo_tools.kernel.nic import Nic

app = cli.command_app(
    """
# flows of an interface, one record when a flow ends or is a minute old
sudo confluo-flows -i eth0 -w flows.ml --active-timeout 60s --idle-timeout 15s --keep 7d -Z nobody

# flows of a capture that is still being written, as a growing log
confluo-flows live.ml --follow -w flows.ml

# connections without an answer, as they are given up
sudo confluo-flows -i eth0 -o stream | confluo-query - 'conn_state == S0' -J
"""
)

SECOND = 10**9
IDLE, ACTIVE = 60 * SECOND, 300 * SECOND  # timeouts, as of nfpcapd(1)
FLUSH = 1.0  # s that a record of a flow that has ended waits at most


@app.command(
    panels={
        "Options": "-i -w --idle-timeout --active-timeout --follow --packets",
        "Capture": "--bpf --decap --ring -p --timestamps --wait",
        "Limits": "--max-flows",
    }
)
def flows(
    inputs: cli.Inputs = None,
    interface: nic_options.Interfaces = None,
    packets: Annotated[
        str | None, option("--packets", metavar="EXPR", help="Use only packets for which EXPR holds.")
    ] = None,
    bpf: nic_options.Bpf = None,
    decap: nic_options.Decap = "outer",
    ring: nic_options.RingSize = None,
    no_promiscuous: nic_options.NoPromiscuous = False,
    timestamps: nic_options.Stamps = None,
    wait: nic_options.Wait = None,
    duration: cli.Duration = None,
    user: cli.User = None,
    max_flows: Annotated[
        int | None,
        option("--max-flows", metavar="N", min=1, max=1 << 26, help="Keep at most N flows in memory (4194304)."),
    ] = None,
    *,
    ins: nic_options.NicInput,
    live: cli.LiveOptions,
    timeouts: cli.FlowTimeouts,
    period: cli.PeriodOptions,
    out: cli.RecordingOptions,
    common: cli.CommonOptions,
) -> int:
    """Write one record for each flow of packets, when it ends or turns old."""
    from confluo_tools.schema import builtin

    schema = builtin("conn")
    if out.listed(schema):
        return cli.OK
    given = inputs or []
    check(interface, {"INPUT": given, "--follow": live.follow, "--since": period.since, "--until": period.until})
    only_live = {"--bpf": bpf, "--ring": ring, "-p": no_promiscuous, "--timestamps": timestamps, "--wait": wait}
    check(not interface, {**only_live, "--duration": duration, "-Z": user, "--decap": decap != "outer"}, "interfaces")
    if not interface and ins.missing(given, live.follow):
        return cli.usage(app)
    span, kind, local = period.span(out.local), out.kind(), config.truth("local", out.local)
    names = out.names(schema, kind, flow_options.SHOWN)
    idle, active = timeouts.timeouts(IDLE, ACTIVE)
    stored = out.log(schema, names, views=bool(interface), old=not interface) if kind == "multilog" else None

    def opened() -> LogOutput | cli.RecordOutput:
        return stored if stored is not None else out.records(schema, kind, names)

    from confluo_tools.multilog.query.flow_records import conn_table

    if interface:
        from confluo_tools.cli.privileges import account
        from confluo_tools.expr import compile
        from confluo_tools.kernel.nic import RING, open_nic, ring_size

        owner = account(user) if user is not None else None
        patience = cli.seconds("--wait", wait)
        nic = open_nic(
            interface,
            filter=bpf or "",
            ring=RING if ring is None else ring_size(ring),
            promiscuous=not no_promiscuous,
            timestamps=cli.one_of("--timestamps", "host" if timestamps is None else timestamps, ("host", "hardware")),
            decap=decap,
            seconds=cli.seconds("--duration", duration),
            wait=10.0 if patience is None else patience,
            notify=cli.note,
        )
        from confluo_tools.cli.privileges import hand_over

        with nic:
            expr = compile(packets or "", nic.schema, local=local)
            run = FlowRun(conn_table(nic.schema, max_flows, idle, active), live=True)
            hand_over(stored, owner)
            return from_nic(run, nic, expr, opened(), stats=common.stats)
    from confluo_tools.inputs.selection import compile_expr
    from confluo_tools.remote.request import request_rows

    with cli.LiveInput(live, ins, given, span[1]) as live_input:
        request = request_rows(packets or "", span, None, None, None, False, None, None, False)
        with live_input.open(request=request) as reader:
            expr = compile_expr(packets or "", reader, span, None, local)
            run = FlowRun(conn_table(reader.schema, max_flows, idle, active), live=live.follow)
            return from_reader(run, reader, expr, opened(), live_input, stats=common.stats)


def check(live: object, others: dict[str, object], kind: str = "inputs") -> None:
    """Raise UsageError for options of ``kind`` where the packets come from elsewhere."""
    for name, value in others.items():
        if live and value:
            other = "interfaces" if kind == "inputs" else "inputs"
            raise UsageError(f"{name} is for {kind}, not for {other}", hint="confluo-flows(1)")


class FlowRun:
    """Packets through the table into the output.  ``live``: flows also end by the clock while no packet comes."""

    def __init__(self, table: ConnTable, *, live: bool) -> None:
        self.table, self.live = table, live
        self.into: LogOutput | cli.RecordOutput | None = None
        self.rows = self.stopped = 0
        self._event, self._came, self._flushed = 0, 0, time.monotonic()
        self._start = time.monotonic()

    def write(self, blocks: Iterable[Block]) -> None:
        assert self.into is not None
        for block in blocks:
            self.into.write(block, None)
            self.rows += block.rows

    def see(self, block: Block, picks: Picks | None) -> None:
        """Process packets."""
        self.write(self.table.process(block, picks))
        if self.live:
            self._event, self._came = self.table.now or 0, time.monotonic_ns()
            self.flush()

    def idle(self) -> None:
        """No packet is waiting: the time of the packets goes on as the clock does."""
        if self.live and self.table.now is not None:
            self.write(self.table.advance(self._event + time.monotonic_ns() - self._came))
            self.flush()

    def flush(self) -> None:
        """Write the records so far, once in a while."""
        now = time.monotonic()
        if self.table.waiting and now - self._flushed >= FLUSH:
            self._flushed = now
            self.write([self.table.take()])
            assert self.into is not None
            self.into.flush()

    def finish(self) -> None:
        """End all flows."""
        self.write(self.table.finish())

    def counts(self) -> str:
        table = self.table
        parts = [f"{table.packets} packets", f"{table.skipped} without an IP header", f"{table.late} late"]
        parts += [f"{self.rows + table.waiting} records", f"{table.count} flows in memory"]
        return ", ".join([*parts, f"{table.evicted} cut short", f"{time.monotonic() - self._start:.2f} s"])

    def report(self, name: str, *, stats: bool) -> None:
        """Messages at the end."""
        from confluo_tools.multilog.query.flow_records import inexact

        if self.table.evicted:
            cli.warn(inexact(self.table.evicted, "--max-flows N"), where=name)
        if stats or (self.stopped and not cli.state.quiet):
            cli.note(self.counts())


def from_nic(run: FlowRun, nic: Nic, expr: Expr, into: LogOutput | cli.RecordOutput, *, stats: bool) -> int:
    """Read packets until a signal, the end of --duration or the loss of all interfaces."""
    drops, program = DropWatch(), expr.program

    def stop(number: int) -> None:
        run.stopped = number
        nic.stop()

    nic.idle = run.idle
    with cli.signals(stop, counts=run.counts):
        with into:
            run.into = into
            if isinstance(into, cli.RecordOutput):
                nic.watch_output(into.fileno())
            nic.begin()
            announce(nic)
            looked = time.monotonic()
            for block in nic:
                run.see(block, program.select(block))
                if time.monotonic() - looked >= FLUSH:
                    looked = time.monotonic()
                    drops.look(nic.drops().dropped)
            run.finish()
        lost = nic.drops()
        if lost.dropped + lost.missed:
            what = f"{lost.dropped + lost.missed:,} packets were dropped, so the records are not exact"
            cli.warn(what, hint="--ring and --bpf help")
        run.report(", ".join(i.name for i in nic.interfaces), stats=stats)
        if nic.gone:
            raise vanished(nic)
    return 128 + run.stopped if run.stopped else cli.OK


def from_reader(
    run: FlowRun,
    reader: Reader,
    expr: Expr,
    into: LogOutput | cli.RecordOutput,
    live_input: cli.LiveInput,
    *,
    stats: bool,
) -> int:
    """Read an input to its end, or as it grows, until a signal."""
    from confluo_tools.formats.pcap.reader import CaptureReader
    from confluo_tools.multilog.query.derived_fields import OrderCheck
    from confluo_tools.multilog.query.flow_records import packet_columns

    order, layout = OrderCheck(reader), reader.schema.layout
    if run.live:
        order.column = -1  # what comes late is counted
    with StopSignal() as ending:

        def stop(number: int) -> None:
            run.stopped = number
            ending(number)
            if isinstance(reader, CaptureReader):
                reader.captures.stop()

        def rows() -> Iterator[tuple[Block, Picks | None]]:
            if getattr(reader, "stream", None) is None or reader.polled:
                reader.on_idle(run.idle)
                reader.stop_when(ending.came)
                yield from reader.select(expr, packet_columns(reader.schema))
                return
            from confluo_tools.inputs.follow import read

            program = expr.program
            for block in read(reader, _Waiting(run.idle), ending):
                yield block, program.select(block)

        with cli.signals(stop, counts=run.counts), into:
            run.into = into
            for block, picks in rows():
                order.see(block, picks)
                run.see(block if block.layout is layout else block.project(layout), picks)
                if ending.came():
                    break
            run.finish()
        live_input.finish()
    problem = order.problem("flows")
    if problem is not None:
        cli.warn(problem.replace("; sort the input with --sort-input", ""), where=reader.name)
    run.report(reader.name, stats=stats)
    return 128 + run.stopped if run.stopped else cli.OK if run.rows else cli.NOTHING


class _Waiting:
    """What a pipe waits for besides bytes: nothing.  See `OpenPeriods`."""

    lateness = 0

    def __init__(self, idle: Callable[[], None]) -> None:
        self.idle, self.mark = idle, 0

    def due(self) -> int | None:
        return None

    def until(self, now: int) -> None:
        pass


def main(argv: list[str] | None = None) -> int:
    return cli.run(app, "confluo-flows", argv, owns_state=True)
