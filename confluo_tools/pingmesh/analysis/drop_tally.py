"""Drop tally: answered probes and drops by pair of servers, in windows, for the search for silent drops.

Drops of servers that did not answer for a while (`silent_servers`) are kept apart: they are not the network's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from confluo_tools.pingmesh.analysis.failure_list import FailureSubset
from confluo_tools.pingmesh.analysis.pair_tally import PairPass, PairWindows, ServerLookup
from confluo_tools.pingmesh.analysis.silent_servers import LostProbe, SilentServer, silent_servers

if TYPE_CHECKING:
    from confluo_tools.formats.reader import Reader
    from confluo_tools.pingmesh.analysis.failure_list import FailureList
    from confluo_tools.pingmesh.analysis.pair_tally import LocatedServer, PairAggregate

DROPPED = "outcome == ok && retries > 0 && !(notes has overflow)"


@dataclass
class DropWindow:
    """Probe results of a window for the search for silent drops.

    ``cells`` {(place of source, of target): [ok, dropped, failed]}; a place is (pod, podset, dc).
    For pairs (addresses as text) with drops: ``ok`` and ``failed`` {pair: probes}, ``dropped`` {pair: drops}.
    ``silent``: servers that did not answer for a while; their drops are not in the counts of drops.
    ``end``: time after the last probe that was answered.
    """

    start: int
    end: int = field(default=0, compare=False)
    cells: dict[tuple[tuple[str, ...], tuple[str, ...]], list[int]] = field(default_factory=dict)
    ok: dict[tuple[str, str], int] = field(default_factory=dict)
    failed: dict[tuple[str, str], int] = field(default_factory=dict)
    dropped: dict[tuple[str, str], FailureSubset] = field(default_factory=dict)
    silent: list[SilentServer] = field(default_factory=list)


def drop_windows(
    reader: Reader,
    where: str,
    window: int,
    since: int | None = None,
    until: int | None = None,
    known_servers: Mapping[str, LocatedServer] | None = None,
) -> tuple[PairWindows[DropWindow], PairPass]:
    """Like `blackhole_windows`, for drops.  ``ok``, dropped and failed as in `pingmesh.analysis.probe_tally`."""
    run = PairPass(reader, where, since, until)
    found = request_drops(run, window, known_servers)
    run.run()
    return found(), run


def request_drops(
    run: PairPass, window: int, known_servers: Mapping[str, LocatedServer] | None
) -> Callable[[], PairWindows[DropWindow]]:
    """Register what `drop_windows` needs; the function that returns it after the pass."""
    servers = ServerLookup(run, known_servers or {})
    step = f"ts/{window}ns, " if window else ""
    answered = run.aggregate("outcome == ok", "count, min(ts), max(ts)", f"{step}src_ip, dst_ip")
    unanswered = run.aggregate(
        "outcome in (timeout, refused, unreachable, reset, garbled)", "count", f"{step}src_ip, dst_ip"
    )
    dropped = run.collect(DROPPED)
    return lambda: _drop_windows(run, servers, answered, unanswered, dropped, window)


def _drop_windows(
    run: PairPass,
    servers: ServerLookup,
    answered: PairAggregate,
    unanswered: PairAggregate,
    dropped: FailureList,
    window: int,
) -> PairWindows[DropWindow]:
    known = servers.read()
    excluded, run.overflows = run.host_drops(dropped, known)
    windows: dict[int, DropWindow] = {}
    pairs: dict[int, dict[tuple[str, str], tuple[int, int]]] = {}  # {window: {pair: (answered, failed)}}
    begin = 1 << 63

    def window_at(start: int) -> DropWindow:
        if start not in windows:
            windows[start], pairs[start] = DropWindow(start), {}
        return windows[start]

    for *when, src, dst, count, first, last in answered.rows(run.text):
        start = when[0] if window else 0
        found = window_at(start)
        found.end = max(found.end, last + 1)
        begin = min(begin, first)
        pairs[start][src, dst] = count, 0
    for *when, src, dst, count in unanswered.rows(run.text):
        start = when[0] if window else 0
        window_at(start)
        pairs[start][src, dst] = pairs[start].get((src, dst), (0, 0))[0], count
    numbers: dict[int, list[int]] = {}  # {window: numbers of its drops}
    for number, (ts, _, _) in enumerate(dropped.ends()):
        if number not in excluded:
            numbers.setdefault(ts // window * window if window else 0, []).append(number)
    for start, found in windows.items():
        first = start if window else begin
        _fill(found, pairs.pop(start), numbers.get(start, []), dropped, known, first, start + window or found.end)
    if not window and windows:
        windows[0].start = begin if begin < 1 << 63 else 0
    return PairWindows([windows[start] for start in sorted(windows)], known)


def _fill(
    found: DropWindow,
    pairs: Mapping[tuple[str, str], tuple[int, int]],
    numbers: list[int],
    dropped: FailureList,
    known: Mapping[str, LocatedServer],
    begin: int,
    end: int,
) -> None:
    """Judge silent servers, then count the other drops by place."""
    drops = [LostProbe(p.ts, p.src, p.dst) for p in (dropped[i] for i in numbers)]
    pod_of = {address: server[1:] if server.pod else () for address, server in known.items()}
    found.silent = silent_servers(pairs, drops, pod_of, begin, end)
    own = {numbers[i] for server in found.silent for i in server.drops}
    for (src, dst), (ok, failed) in pairs.items():
        counts = found.cells.setdefault((known[src][1:], known[dst][1:]), [0, 0, 0])
        counts[0] += ok
        counts[2] += failed
    for number in numbers:
        if number in own:
            continue
        drop = dropped[number]
        pair = drop.src, drop.dst
        if pair not in found.dropped:
            found.dropped[pair] = FailureSubset(dropped)
            found.ok[pair], found.failed[pair] = pairs.get(pair, (0, 0))
        found.dropped[pair].add(number)
        found.cells[known[drop.src][1:], known[drop.dst][1:]][1] += 1
