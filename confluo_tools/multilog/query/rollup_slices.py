"""Roll-ups by step of time and other keys, divided by time: what a window of time is put together from."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from confluo_tools.core.query.rollup import Rollup
    from confluo_tools.multilog.query.aggregation import Aggregation

MAX_SHARES = 255  # slices that a roll-up is divided into: the number of a share is a byte


def starts(rollup: Rollup, fine: Aggregation) -> list[int]:
    """The step of time (its start, ns) of each group of a roll-up; it is the first key of ``fine``."""
    out: list[int] = []
    for block in rollup.finish(fine.result.layout, 1.0).blocks() if len(rollup) else ():
        out += memoryview(block.buffer(0)).cast("B").cast("q").tolist()
    return out


def divided(chunk: Rollup, fine: Aggregation, coarse: Aggregation, first: int, end: int) -> list[tuple[int, Rollup]]:
    """[(start, roll-up of ``coarse``)] of the steps first <= start < end, at most 255, of a roll-up of ``fine``.

    ``coarse`` has the same aggregates, and the keys of ``fine`` without the step of time.
    """
    from confluo_tools.core.query.rollup_coarsening import absorb

    steps = starts(chunk, fine)
    number = {start: (start - first) // fine.step + 1 for start in set(steps) if first <= start < end}
    out = []
    shares = bytearray([number.get(start, 0) for start in steps])
    for start, wanted in sorted(number.items()):
        part = chunk
        if len(number) > 1 or 0 in shares:
            part = fine.rollup()
            part.merge_share(chunk, shares, wanted)
        whole = coarse.rollup()
        absorb(whole, part)
        out.append((start, whole))
    return out


def cut(chunk: Rollup, fine: Aggregation, at: int) -> tuple[Rollup | None, Rollup | None]:
    """The groups with steps before ``at``, and the others; None: there are none."""
    early = [start < at for start in starts(chunk, fine)]
    if all(early):
        return (chunk if early else None), None
    if not any(early):
        return None, chunk
    shares = bytearray(early)
    parts = fine.rollup(), fine.rollup()
    for part, wanted in zip(parts, (1, 0), strict=True):
        part.merge_share(chunk, shares, wanted)
    return parts
