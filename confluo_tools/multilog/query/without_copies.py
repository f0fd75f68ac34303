"""Packets without the copies that were captured at a second place, or mirrored twice (--dedup)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from confluo_tools.errors import ConfluoError, UsageError
from confluo_tools.formats.reader import Reader, Wrapper
from confluo_tools.multilog.query.derived_fields import OrderCheck
from confluo_tools.units import format_duration

if TYPE_CHECKING:
    from confluo_tools.core.block.block import Block, Picks
    from confluo_tools.core.query.packet_copies import PacketCopies

UNCLEAR = "record has no packet_digest, and its fields do not tell packets apart: it was kept"
UNCLEAR_MANY = "records have no packet_digest, and their fields do not tell packets apart: they were kept"


class WithoutCopies(Wrapper):
    """The packets of ``reader`` without those that are equal to one at most ``window`` ns before: see `PacketCopies`.

    Of the rows that an expression selects, or of all rows.  ``memory``: bytes for the packets of a window; None: half
    of the free memory of this host.
    Raises UsageError if the records are not packets, or have no fields that tell packets apart; ConfluoError, while
    they are read, if a window needs more memory.
    """

    def __init__(
        self,
        reader: Reader,
        window: int,
        *,
        memory: int | None = None,
        warn: Callable[[str], None] | None = None,
        note: Callable[[str], None] | None = None,
    ) -> None:
        super().__init__(reader, warn)
        self.schema, self.given, self.by_time = reader.schema, reader.given, reader.by_time
        self.filters = reader.filters
        self._window, self._memory, self._note = window, memory, note
        self.copies = self.unclear = 0  # rows so far: left out; kept without a comparison
        self._numbers = [self.schema.layout.get(name) for name in self._finder().needs]

    def _finder(self) -> PacketCopies:
        from confluo_tools.core.query.packet_copies import PacketCopies
        from confluo_tools.multilog.query.group_spill import free_memory

        kind = self.schema.kind
        if kind != "packet":
            raise UsageError(f"compares packets, not records of kind '{kind}'", where="--dedup", hint="leave it out")
        most = free_memory() // 2 if self._memory is None else self._memory
        try:
            return PacketCopies(self.schema.layout, self._window, most)
        except ValueError:
            hint = "capture with --digest"
            raise UsageError("the records have no packet_digest", where="--dedup", hint=hint) from None

    def blocks(self) -> Iterator[Block]:
        from confluo_tools.core.block.block import Picks

        before = self.reader.rows
        rows = ((block, Picks.of(block.rows)) for block in self.reader)
        for block, picks in self._kept(rows, before):
            assert picks is not None
            yield block if len(picks) == block.rows else block.take(picks)

    def __iter__(self) -> Iterator[Block]:
        return self.blocks()

    def select(
        self, expr: Any, columns: Sequence[int] | None = None, *, by_time: bool = True
    ) -> Iterator[tuple[Block, Picks | None]]:
        needed = None if columns is None else sorted({*columns, *self._numbers})
        before = self.reader.rows
        yield from self._kept(self.reader.select(expr, needed), before)

    def _kept(self, rows: Any, before: int) -> Iterator[tuple[Block, Picks | None]]:
        finder, order = self._finder(), OrderCheck(self.reader)
        for block, picks in rows:
            self.rows = self.reader.rows - before
            order.see(block, picks)
            try:
                kept = finder.kept_of(block, picks)
            except OverflowError:
                what = f"the packets within {format_duration(self._window)} need more memory than the limit"
                hint = "use a shorter time, or --memory-limit"
                raise ConfluoError(what, where="--dedup", hint=hint) from None
            self.copies = finder.copies
            if len(kept):
                yield block, kept
        self.rows = self.reader.rows - before
        self._report(finder, order)

    def _report(self, finder: PacketCopies, order: OrderCheck) -> None:
        self.copies, self.unclear = finder.copies, finder.unclear
        problem = order.problem("--dedup")
        if problem is not None:
            self.warn(problem)
        if finder.unclear and self._note is not None:
            self._note(f"{self.name}: {finder.unclear:,} {UNCLEAR if finder.unclear == 1 else UNCLEAR_MANY}")
