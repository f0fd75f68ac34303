"""Rows for the steps that have no group (--fill): from first to last, for all other keys."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Protocol

from confluo_tools.errors import UsageError

if TYPE_CHECKING:
    from confluo_tools.core.block.block import Block, Layout
    from confluo_tools.core.block.result_table import Rows
    from confluo_tools.expr.group_keys import GroupKey

MOST = 1_000_000  # rows that are made
PART = 1024  # rows of a block


class Steps(Protocol):
    """Where steps begin: see `TimeSteps`."""

    def start(self, value: int, /) -> int: ...
    def after(self, start: int, /) -> int: ...


class NumberSteps:
    """Steps at the multiples of ``width``."""

    def __init__(self, width: int) -> None:
        self.width = width

    def start(self, value: int, /) -> int:
        """The step of ``value``."""
        return value // self.width * self.width

    def after(self, start: int, /) -> int:
        """The step after the one at ``start``: the lowest may begin at the least number of its type."""
        return (start // self.width + 1) * self.width


class PowerSteps:
    """Steps at 0 and at the powers of ``base``, also the negative ones."""

    def __init__(self, base: int) -> None:
        self.base = base

    def start(self, value: int, /) -> int:
        """The step of ``value``: the power at or below its absolute value, with its sign."""
        power = 1
        while power * self.base <= abs(value):
            power *= self.base
        return power if value > 0 else -power if value else 0

    def after(self, start: int, /) -> int:
        """The step after the one at ``start``."""
        if start > 0:
            return start * self.base
        return start + 1 if start >= -1 else -(-start // self.base)


def number_steps(key: GroupKey) -> Steps | None:
    """The steps of numbers or durations of a key; None: it has others, or none.  A time is not distinguished."""
    if key.kind in ("step", "bucket"):
        return NumberSteps(key.arg)
    return PowerSteps(key.arg) if key.kind == "power" else None


def filled(rows: Rows, keys: int, time: int, steps: Steps, span: tuple[int | None, int | None], empty: Block) -> Rows:
    """``rows`` and one more for each of the ``steps`` and each value of the other keys without one.

    ``keys``: the number of key columns, which come first; ``time``: the column of the steps.  ``span``: the first
    value and the one after the last, where they are given; the steps of the rows otherwise.  ``empty``: the other
    columns of a group without rows.  Raises UsageError if more than `MOST` rows had to be made.
    """
    from confluo_tools.core.block.block import Block
    from confluo_tools.core.block.result_table import Rows

    layout, blocks = rows.layout, list(rows.blocks())
    others = [i for i in range(keys) if i != time]
    found = {(block.get(time, i), key) for block in blocks for i, key in enumerate(_keys(block, others))}
    names = sorted({key for _, key in found}) or [()] * (not others)
    most = (MOST + len(found)) // max(len(names), 1)
    starts = list(islice(_starts([t for t, _ in found], steps, span), most + 1)) if names else []
    if len(starts) > most:
        what = f"more than {MOST:,} empty groups"
        raise UsageError(
            what, where="--fill", hint="use longer steps, fewer groups, or a shorter time: --since, --until"
        )
    made = [(t, key) for t in starts for key in names if (t, key) not in found]
    for start in range(0, len(made), PART):
        part = made[start : start + PART]
        blocks.append(Block.wrap(layout, len(part), _columns(layout, part, time, others, empty)))
    return Rows.of(layout, [(block, 0) for block in blocks])


def _starts(seen: Sequence[int], steps: Steps, span: tuple[int | None, int | None]) -> Iterator[int]:
    since, until = span
    if not seen and (since is None or until is None):
        return
    start = min(seen) if since is None else steps.start(since)
    last = max(seen) if until is None else until - 1
    while start <= last:
        yield start
        start = steps.after(start)


def _keys(block: Block, columns: Sequence[int]) -> Iterator[tuple[bytes, ...]]:
    # The bytes of these columns, row by row.
    parts = []
    for i in columns:
        _, _, size, count = block.layout.describe(i)
        data, width = bytes(block.buffer(i)), size * count
        parts.append([data[k * width : (k + 1) * width] for k in range(block.rows)])
    return zip(*parts, strict=True) if parts else iter([()] * block.rows)


def _columns(
    layout: Layout, part: Sequence[tuple[int, tuple[bytes, ...]]], time: int, others: Sequence[int], empty: Block
) -> list[bytes]:
    columns: list[bytes] = [b""] * layout.n
    _, _, size, _ = layout.describe(time)
    columns[time] = b"".join([(t & (1 << 8 * size) - 1).to_bytes(size, "little") for t, _ in part])
    for place, i in enumerate(others):
        columns[i] = b"".join([key[place] for _, key in part])
    first = layout.n - empty.layout.n
    for i in range(empty.layout.n):
        columns[first + i] = bytes(empty.buffer(i)) * len(part)
    return columns
