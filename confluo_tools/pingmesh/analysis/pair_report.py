"""What blackholes and drops share: one pass over pairs of servers, at once or window by window."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    from confluo_tools.core.block.block import Block
    from confluo_tools.pingmesh.analysis.follow import ProbeSource, WindowOutput
    from confluo_tools.pingmesh.analysis.pair_tally import LocatedServer, PairPass

T = TypeVar("T")


class PairReport(Protocol[T]):
    """What a command makes of a pass over pairs of servers."""

    found: int  # rows so far
    length: int  # of a window, ns; 0: a single one

    def request(self, run: PairPass) -> Callable[[], T]:
        """Register the aggregates of a pass; the function that returns them after the pass."""

    def judge(self, found: T, run: PairPass) -> Iterator[Block]:
        """The rows of all windows of a pass."""


def run_pairs(
    source: ProbeSource,
    report: PairReport[T],
    open_output: Callable[[], WindowOutput],
    where: str,
    span: tuple[int | None, int | None],
    lateness: int,
) -> None:
    """Judge the pairs of ``source``: all windows at once, or each when it is complete if the source is followed.

    ``open_output`` is called before the first row is written; without following, after all rows are judged.
    """
    from confluo_tools.pingmesh.analysis.follow import follow_windows
    from confluo_tools.pingmesh.analysis.pair_tally import OpenPairWindows, PairPass, PassSource

    since, until = span
    if not source.follow:
        assert source.reader is not None
        run = PairPass(source.reader, where, since, until)
        found = report.request(run)
        run.run()
        blocks = list(report.judge(found(), run))
        open_output().write(blocks, 0)
        return
    output = open_output()
    probes = PassSource(source.schema, source.name, source.filters, {})
    windows = OpenPairWindows(probes, where, output.since(since), until, report.length, report.request)
    follow_windows(source, output, windows, windows.select, lambda start: report.judge(*windows.judge(start)), lateness)


def servers_by_address(topology: str | None) -> dict[str, LocatedServer]:
    """The servers of a topology file, by address."""
    if topology is None:
        return {}
    from confluo_tools.network.topology_file import read_fleet
    from confluo_tools.pingmesh.analysis.pair_tally import LocatedServer

    return {s.address: LocatedServer(s.name, s.pod, s.podset, s.dc) for s in read_fleet(topology).servers}


def address_pair(src: str, dst: str) -> dict[str, Any]:
    """Columns of a source and a destination address."""
    from confluo_tools.formats.block_builder import address_columns

    return {"ip_version": 4} | address_columns("src", src) | address_columns("dst", dst)
