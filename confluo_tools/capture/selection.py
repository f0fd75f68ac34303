"""Select packets of a capture, count them, handle signals."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Protocol

from confluo_tools.cli.signals import signals
from confluo_tools.errors import UsageError

if TYPE_CHECKING:
    from confluo_tools.core.block.block import Block, Picks
    from confluo_tools.core.query.predicate import Program
    from confluo_tools.schema import Schema


class PacketSource(Protocol):
    """A source of packets: `Captures` (files) or `Nic` (live)."""

    @property
    def counts(self) -> dict[str, int]: ...
    def stop(self) -> None: ...
    def __iter__(self) -> Iterator[Block]: ...


class PacketTotals(Protocol):
    """Packet counters outside `PacketSelection`: the lanes of a live capture."""

    def sums(self) -> tuple[int, int, int, int]: ...


class PacketSelection:
    """Selects packets: those for which the expression holds, then the sample, then the first N.

    Counts packets; signals print the counts or end the capture.
    ``compile``: compiles the expression (each thread needs its own program); None without an expression.
    ``flows``, ``every``: keep one flow, or one packet, in N.  ``latest``: the figures of a moment ago.
    """

    def __init__(
        self, compile: Callable[[], Program] | None, schema: Schema, flows: int, every: int, limit: int | None
    ) -> None:
        self.compile, self.flows, self.every, self.limit = compile, flows, every, limit
        self.program = compile() if compile is not None else None
        self.totals: PacketTotals | None = None
        self.stopped = 0  # number of the signal that ended the capture
        self._sums = (0, 0, 0, 0)
        self._flush = False
        self.latest: dict[str, int] = {}
        self._due = 0.0
        self._start = time.monotonic()
        if self.flows > 1 and "flow_hash" not in schema:
            raise UsageError("the records have no field flow_hash", where="--sample", hint="use a schema that has it")

    def rows(self, captures: PacketSource) -> Iterator[tuple[Block, Picks | None]]:
        """Blocks, each with the rows to keep (None: all)."""
        from confluo_tools.core.block.block import Picks
        from confluo_tools.core.packets.packet import sample_flows, sample_packets

        if self.limit == 0:
            return
        seen = 0
        for block in captures:
            picks = self.program.select(block) if self.program is not None else None
            matched = block.rows if picks is None else len(picks)
            if self.flows > 1 or self.every > 1:
                picks = Picks.of(block.rows) if picks is None else picks
                if self.flows > 1:
                    sample_flows(block, picks, self.flows)
                if self.every > 1:
                    seen = sample_packets(picks, seen, self.every)
            kept = block.rows if picks is None else len(picks)
            last = self.limit is not None and self._sums[2] + kept >= self.limit
            if last and self.limit is not None:
                kept = self.limit - self._sums[2]
                picks = Picks.of(block.rows, range(kept) if picks is None else picks.tolist()[:kept])
            before = self._sums
            self._sums = (before[0] + block.rows, before[1] + matched, before[2] + kept, 0)
            if kept:
                yield block, None if kept == block.rows else picks
            if last:
                return

    def sums(self) -> tuple[int, int, int, int]:
        """Packets (received, matched by the expression, kept, not stored because the disk was full)."""
        return self._sums if self.totals is None else self.totals.sums()

    def figures(self, captures: PacketSource) -> dict[str, int]:
        """The counters so far, by name."""
        seen = captures.counts
        received, matched, kept, lost = self.sums()
        figures = {
            "packets received": received,
            "kept": kept,
            "filtered": received - matched,
            "sampled out": matched - kept - lost,
            "truncated": seen["truncated"],
            "malformed": seen["malformed"],
        }
        if "dropped" in seen:
            figures |= {"dropped by the kernel": seen["dropped"], "dropped by the NIC": seen["missed"]}
        if "dropped" not in seen or seen["bad"]:
            figures["unreadable"] = seen["bad"]
        if seen.get("unknown_link"):
            figures["of link types that are not parsed"] = seen["unknown_link"]
        if seen.get("not_followed"):
            figures["with a tunnel that was not followed"] = seen["not_followed"]
        if lost:
            figures["not stored"] = lost
        return figures | {"bytes": seen["wire_bytes"]}

    def look(self, captures: PacketSource) -> None:
        """Keep the figures in ``latest``, at most once a second: other threads may read them there."""
        now = time.monotonic()
        if now >= self._due:
            self._due = now + 1.0
            self.latest = self.figures(captures)

    def counts(self, captures: PacketSource) -> str:
        """The counters so far on one line."""
        parts = [f"{n} {what}" for what, n in self.figures(captures).items()]
        return ", ".join([*parts, f"{time.monotonic() - self._start:.2f} s"])

    def flush_due(self, live: bool) -> bool:
        due, self._flush = self._flush or live, False
        return due

    def signals(self, captures: PacketSource) -> AbstractContextManager[None]:
        """SIGINT, SIGTERM, SIGHUP: finish.  SIGUSR1: print the counts.  SIGUSR2: flush."""

        def stop(number: int) -> None:
            self.stopped = number
            captures.stop()

        def flush() -> None:
            self._flush = True

        return signals(stop, counts=lambda: self.counts(captures), flush=flush)
