"""The order of rows: by time, rows of equal time by lane, rows of one lane by their number.

Zone maps say where the times of a lane go back: blocks with times that overlap are merged, each in a stream of its
own; the others follow one another.  So a lane in order costs one look at each zone map, and one at the times that are
read.  A merge holds one block of each stream.  Where more than `MAX_STREAMS` blocks overlap, `sliced` reads the lane
several times, each time the rows of a range of time that fit into `SLICE_BYTES`: memory does not grow with the log.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

if TYPE_CHECKING:
    from confluo_tools.core.block.block import Block, Picks
    from confluo_tools.core.multilog.segment import SegmentPart
    from confluo_tools.formats.merge import Ranked
    from confluo_tools.schema import Schema

Blocks = tuple["SegmentPart", Iterable[int]]  # some blocks of a segment

MAX_STREAMS = 16
SLICE_BYTES = 32 << 20  # of the rows of one slice
SAMPLES = 32  # of the times of a slice
SIGN = 1 << 63
EARLIEST, LATEST = -SIGN, SIGN - 1
LANE = 48  # bits of a row number below the number of the lane in a rank


class Piece(NamedTuple):
    """A block of a log: its times are from ``lo`` to ``hi`` (ns)."""

    lo: int
    hi: int
    part: SegmentPart
    number: int

    @property
    def first(self) -> int:
        """Number of its first row."""
        return int(self.part.base + self.number * self.part.segment.capacity)


class Span(NamedTuple):
    """Rows of a lane with times from ``lo`` to ``hi`` (ns), from number ``first`` on; ``item``: where they are."""

    lo: int
    hi: int
    first: int
    item: Any


Timed = TypeVar("Timed", Piece, Span)


def rank(lane: int, first: int) -> int:
    """The rank of rows of a lane, from row ``first`` on, among rows of equal time."""
    return lane << LANE | first


def pieces(parts: Iterable[Blocks], time: int) -> list[Piece]:
    """Blocks of a lane, in row order, with the times in their zone maps.  A damaged block has the earliest time."""
    out = []
    for part, numbers in parts:
        for number in numbers:
            block = part.block(number)
            zone = None if block is None else block.zones(time)
            if zone is None:
                out.append(Piece(EARLIEST, EARLIEST, part, number))
            else:
                out.append(Piece(zone[0] - SIGN, zone[1] - SIGN, part, number))
    return out


def goes_back(timed: Sequence[Timed]) -> bool:
    """Whether a piece begins before the end of one before it; pieces in row order."""
    return any(a.hi > b.lo for a, b in pairwise(timed))


def streams(timed: Iterable[Timed]) -> list[list[Timed]]:
    """The pieces of a lane as few streams; in each of them no row is earlier than the rows of the pieces before."""
    out: list[list[Timed]] = []
    ends: list[tuple[int, int, int]] = []  # of each stream: the last time, the first row of the piece, its number
    for one in sorted(timed, key=lambda p: (p.lo, p.first)):
        if ends and ends[0][:2] <= (one.lo, one.first):
            i = heapq.heappop(ends)[2]
        else:
            i = len(out)
            out.append([])
        out[i].append(one)
        heapq.heappush(ends, (one.hi, one.first, i))
    return out


def ranked(rows: Iterable[tuple[Block, Picks]]) -> Iterator[Ranked]:
    """Blocks of a log with their ranks."""
    for block, picks in rows:
        yield block, picks, rank(block.lane, block.base)


def sliced(
    schema: Schema,
    columns: Sequence[int] | None,
    timed: Sequence[Timed],
    read: Callable[[Sequence[Timed], int, int], Iterator[Ranked]],
) -> Iterator[Ranked]:
    """The rows of one lane by time, slice by slice, for any number of pieces that overlap.

    ``read(pieces, lo, hi)``: the rows of pieces in row order, at least those with lo <= time <= hi (ns).
    """
    from confluo_tools.core.block.block import Picks
    from confluo_tools.core.multilog.log_scan import between_times
    from confluo_tools.formats.merge import by_time

    field = schema.time_field
    if field is None:
        return
    time = schema.index(field.name)
    row_bytes = sum(c.size * c.count for i, c in enumerate(schema.columns) if columns is None or i in set(columns))
    for lo, hi in _slices(time, timed, read, max(SLICE_BYTES // row_bytes, 4096)):
        rows = (
            (block, chosen, place)
            for block, picks, place in read([p for p in timed if p.lo <= hi and p.hi >= lo], lo, hi)
            if len(chosen := between_times(block, picks or Picks.of(block.rows), time, lo, hi))
        )
        if lo == hi:  # they come by rank already, and may be too many to be kept
            yield from rows
            continue
        kept = [(block.take_columns(chosen, columns), None, place) for block, chosen, place in rows]
        place = kept[0][2] if kept else 0
        streams_of = [iter([one]) for one in kept]
        del kept
        for block, picks in by_time(schema, streams_of, columns):
            yield block, picks, place
        del streams_of


def _slices(
    time: int, timed: Sequence[Timed], read: Callable[[Sequence[Timed], int, int], Iterator[Ranked]], rows: int
) -> Iterator[tuple[int, int]]:
    # Ranges of time, one after the other, with about `rows` rows each, or of one instant.
    from confluo_tools.core.block.block import Picks
    from confluo_tools.core.multilog.log_scan import sample_times

    step = max(rows // SAMPLES, 1)
    samples: list[int] = []
    seen, lo, hi = 0, SIGN, -SIGN
    for block, picks, _ in read(timed, -SIGN, SIGN - 1):
        picks = Picks.of(block.rows) if picks is None else picks
        if not len(picks):
            continue
        low, high, some = sample_times(block, picks, time, -seen % step, step)
        lo, hi, seen = min(lo, low), max(hi, high), seen + len(picks)
        samples += some
    samples.sort()
    begin = lo
    for i in range(SAMPLES, len(samples), SAMPLES):
        cut = samples[i]
        if cut > begin:
            yield begin, cut - 1
            begin = cut
        if i + SAMPLES < len(samples) and samples[i + SAMPLES] == cut == begin:
            yield cut, cut
            begin = cut + 1
    if begin <= hi:
        yield begin, hi
