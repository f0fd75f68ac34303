"""Runs a collector: packets of interfaces, or the records of an input, through flows to their places."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, NamedTuple

from confluo_tools import cli

if TYPE_CHECKING:
    from confluo_tools.cli.privileges import Account
    from confluo_tools.formats.reader import Reader
    from confluo_tools.kernel.nic import Nic
    from confluo_tools.stream.collector import StreamCollector
    from confluo_tools.stream.flow_chain import OpenOutlet
    from confluo_tools.stream.flows_file import FlowsReader, StreamFlow
    from confluo_tools.stream.operation.operation import RunOperation


class FlowPlan(NamedTuple):
    """What a run does with its records."""

    reader: FlowsReader
    flows: list[StreamFlow]
    open_outlet: OpenOutlet
    workers: int


def from_interfaces(
    nic: Nic, plan: FlowPlan, operation: RunOperation | None, owner: Account | None, stats: bool
) -> int:
    """Packets, until a signal, the end of --duration or the loss of all interfaces."""
    from confluo_tools.cli.nic_notes import announce, vanished
    from confluo_tools.cli.privileges import hand_over
    from confluo_tools.stream.collector import StreamCollector
    from confluo_tools.stream.lane_input import NicLanes
    from confluo_tools.stream.preload import preload

    stopped = 0
    with nic:
        if owner is not None:
            preload()
        hand_over(None, owner)
        collector = StreamCollector(
            plan.reader, plan.flows, plan.open_outlet, lanes=nic.lanes, workers=plan.workers, wait=False
        )
        lanes = NicLanes(nic, collector)

        def stop(number: int) -> None:
            nonlocal stopped
            stopped = number
            collector.stop()
            nic.stop()

        with cli.signals(stop, counts=lambda: totals(collector)):
            collector.start()
            nic.begin()
            announce(nic)
            if operation is not None:
                operation.serve(collector)
            try:
                lanes.run()
            finally:
                end(collector, stats, stopped)
    if nic.gone:
        raise vanished(nic)
    return 128 + stopped if stopped else cli.OK


def from_input(
    reader: Reader,
    name: str,
    plan: FlowPlan,
    operation: RunOperation | None,
    text: str,
    limit: int | None,
    follow: bool,
    stats: bool,
) -> int:
    """The records of ``reader``.  ``follow``: it is a log that grows."""
    from confluo_tools.stream.collector import StreamCollector
    from confluo_tools.stream.fetch_stages import fetch_stages
    from confluo_tools.stream.input_run import InputRun
    from confluo_tools.stream.lane_input import InputLane

    collector = StreamCollector(
        plan.reader, plan.flows, plan.open_outlet, lanes=1, workers=plan.workers, wait=True, finite=not follow
    )
    run = InputRun(InputLane(name, collector, fetch_stages(reader)), reader, text, limit)

    def stop(number: int) -> None:
        run.stopped = number
        collector.stop()

    with cli.signals(stop, counts=lambda: totals(collector)):
        collector.start()
        if operation is not None:
            operation.serve(collector)
        try:
            run.all()
        finally:
            end(collector, stats, run.stopped)
    if run.stopped:
        return 128 + run.stopped
    delivered = any(c.given for c in collector.rows() if c.stage == "deliver")
    return cli.OK if delivered or follow else cli.NOTHING


def end(collector: StreamCollector, stats: bool, stopped: int) -> None:
    from confluo_tools.stream.stage_table import stage_table

    try:
        collector.close()
    finally:
        for line in collector.remarks():
            cli.warn(line)
        if stats:
            print("\n".join(stage_table(collector.rows())), file=sys.stderr)
        elif stopped and not cli.state.quiet:
            cli.note(totals(collector))


def totals(collector: StreamCollector) -> str:
    """The counters on one line, for a signal."""
    counts = collector.rows()

    received = sum(c.taken for c in counts if c.stage in ("receive", "fetch"))
    unmatched = sum(c.filtered for c in counts if c.stage == "classify")
    filtered = sum(c.filtered for c in counts if c.stage == "function")
    dropped = sum(c.dropped for c in counts)
    queued = sum(c.queued for c in counts if c.stage in ("queue", "send", "deliver"))
    delivered = sum(c.given for c in counts if c.stage == "deliver")
    return (
        f"{received} records received, {unmatched} of no flow, {filtered} filtered, {dropped} dropped,"
        f" {queued} queued, {delivered} delivered"
    )
