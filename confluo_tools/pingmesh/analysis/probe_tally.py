"""Probe tally: counts and quantiles of the results of probes, by window and group, in one pass.

A *probe* is a record of schema `probe` with a kind below 16.  The counts mean the same in every command:

* ``ok``: answered, however late; of these ``dropped``: only after a SYN retransmission.
* ``overflow``: answered after a SYN retransmission, but the target's host dropped the SYN, according to a note of the
  probe or to the counters of that host (kind `host`) for that time; not if the answer was lost.  Not in ``dropped``.
* ``failed``: timeout, refused, unreachable, reset or garbled; not in ``ok``, and not in the drop rate.
* ``local``: this host could not send it; in no rate.
* Round-trip times are those of answered probes without a retransmission: only these have one.

`tally` reads all probes of a reader; `WindowTally` is for callers that feed blocks, follow a log or join groups.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import nan
from typing import TYPE_CHECKING, Any, Self

from confluo_tools.engine.partial import Partial
from confluo_tools.errors import ConfluoError, UsageError
from confluo_tools.pingmesh.analysis.probe_kind import NEEDS, check_kind
from confluo_tools.schema.types import ARRAY_CODES

if TYPE_CHECKING:
    from confluo_tools.core.block.block import Block, Picks
    from confluo_tools.expr import Expr
    from confluo_tools.formats.reader import Reader
    from confluo_tools.schema import Schema

Key = tuple[Any, ...]
Signature = Sequence[tuple[int, int, int]]
# Quantiles of a cell: of round-trip times, and of times as measured by the program.  (quantile in millionths, offset of
# the rank in thousandths of its standard deviation: 1.96 gives intervals of 95 %.)
RTT = {
    "p50": (500_000, 0),
    "p99": (990_000, 0),
    "p999": (999_000, 0),
    "p50_low": (500_000, -1960),
    "p50_high": (500_000, 1960),
    "p99_low": (990_000, -1960),
    "p99_high": (990_000, 1960),
}
SEEN = {"seen50": (500_000, 0), "seen99": (990_000, 0)}
LIMITS = 4
READS = (*NEEDS, "notes", "retries", "hint", "rtt", "elapsed", "overflows", "src", "dst", "src_ip", "dst_ip")


class Cell:
    """One group of probes in one window.

    Counts: ``ok``, ``dropped``, ``overflow`` (see the module), ``timeout``, ``refused``, ``unreachable``, ``reset``,
    ``garbled``, ``local``; ``forward`` and ``reverse``: of dropped, those with a hint which direction lost the
    packet; ``slow``: classed by time alone, slow, but not by the time of a retransmission.
    ``samples``: number of round-trip times; ``p50``, ``p99``, ``p999``: their quantiles (ns, nan without samples);
    ``above``: number of samples above each limit.  Quantiles of up to 512 samples are exact (the value of rank
    ceil(q n)), of more within 1/256.  ``p50_low`` ... ``p99_high``: distribution-free intervals of 95 %; nan with
    too few samples.
    ``seen50`` and ``seen99``: times of datagrams and plain connects as measured by the program, with delays of its
    host; ``network_ns`` and ``seen_ns``: sums of both times over the probes that have both.
    """

    __slots__ = (
        "ok",
        "dropped",
        "overflow",
        "timeout",
        "refused",
        "unreachable",
        "reset",
        "garbled",
        "local",
        "forward",
        "reverse",
        "slow",
        "network_ns",
        "seen_ns",
        "above",
        "samples",
        "p50",
        "p99",
        "p999",
        "p50_low",
        "p50_high",
        "p99_low",
        "p99_high",
        "seen50",
        "seen99",
    )

    def __init__(self) -> None:
        self.ok = self.dropped = self.overflow = self.timeout = self.refused = self.unreachable = 0
        self.reset = self.garbled = self.local = self.forward = self.reverse = self.slow = 0
        self.network_ns = self.seen_ns = self.samples = 0
        self.above: tuple[int, ...] = (0,) * LIMITS
        self.p50 = self.p99 = self.p999 = self.seen50 = self.seen99 = nan
        self.p50_low = self.p50_high = self.p99_low = self.p99_high = nan

    @property
    def failed(self) -> int:
        """Probes not answered."""
        return self.timeout + self.refused + self.unreachable + self.reset + self.garbled

    @property
    def probes(self) -> int:
        """Probes sent."""
        return self.ok + self.failed

    @property
    def drop_rate(self) -> float:
        """``dropped`` / ``ok``; nan when none was answered."""
        return self.dropped / self.ok if self.ok else nan

    @property
    def failed_rate(self) -> float:
        """``failed`` / ``probes``; nan without probes."""
        return self.failed / self.probes if self.probes else nan

    @property
    def host_share(self) -> float:
        """Share of the time of probes that was spent in the prober's host; nan if unknown."""
        return 1 - self.network_ns / self.seen_ns if self.seen_ns else nan


class WindowCells:
    """All groups of one window, column by column: ``start``, ``keys``, and `column`; iterates over (key, `Cell`).

    `column` takes the names of the counts and quantiles of `Cell` (`above`, `above2` ... for the limits).
    """

    def __init__(self, start: int, keys: list[Key], counts: bytes, quantiles: bytes) -> None:
        from confluo_tools.core.pingmesh.probe_tally import COUNTERS

        self.start, self.keys = start, keys
        self._counts, self._quantiles = memoryview(counts).cast("Q"), memoryview(quantiles).cast("d")
        names = [*COUNTERS, "samples", "seen"]
        self._width = len(names)
        self._count = {name: i for i, name in enumerate(names)}
        self._quantile = {name: i for i, name in enumerate([*RTT, *SEEN])}

    def __len__(self) -> int:
        return len(self.keys)

    def column(self, name: str) -> memoryview[Any]:
        """u64 counts, or f64 quantiles in ns."""
        at = self._count.get(name)
        if at is not None:
            return self._counts[at :: self._width]
        return self._quantiles[self._quantile[name] :: len(self._quantile)]

    def __iter__(self) -> Iterator[tuple[Key, Cell]]:
        counts, quantiles = self._counts.tolist(), self._quantiles.tolist()
        wide, many = self._width, len(self._quantile)
        first, samples = self._count["above"], self._count["samples"]
        for i, key in enumerate(self.keys):
            c, at = Cell.__new__(Cell), i * wide
            (
                c.ok,
                c.dropped,
                c.overflow,
                c.timeout,
                c.refused,
                c.unreachable,
                c.reset,
                c.garbled,
                c.local,
                c.forward,
                c.reverse,
                c.slow,
                c.network_ns,
                c.seen_ns,
            ) = counts[at : at + first]
            c.above, c.samples = tuple(counts[at + first : at + first + LIMITS]), counts[at + samples]
            (c.p50, c.p99, c.p999, c.p50_low, c.p50_high, c.p99_low, c.p99_high, c.seen50, c.seen99) = quantiles[
                i * many : (i + 1) * many
            ]
            yield key, c


class WindowTally(Partial):
    """Counts of probes by window and group; see `tally` for the arguments.  Its states merge exactly.

    ``limits``: up to four round-trip times (ns); samples above each are counted.
    ``signature``: (from, to, drops) of connection times in ns, for records without a number of retries.
    ``classes``: {field of type text: {value: number from 1}}: keys contain the number instead, 0 for all other values.
    ``where``: name of the input, for errors.
    Raises ConfluoError when windows (262,144 at a time) or groups exceed the room: half of the host's memory.
    """

    name = "probes"

    def __init__(
        self,
        schema: Schema,
        by: Sequence[str],
        *,
        window: int = 0,
        limits: Sequence[int] = (),
        signature: Signature = (),
        where: str = "",
        classes: Mapping[str, Mapping[str, int]] | None = None,
    ) -> None:
        from confluo_tools.core.pingmesh.probe_tally import ProbeTally

        check(schema, by, where)
        if window < 0:
            raise UsageError("window is negative")
        self.schema, self.by, self.window = schema, tuple(by), window
        self.columns = columns_of(schema, by)
        named = {name: dict(numbers) for name, numbers in (classes or {}).items()}
        self._settings = {"by": list(by), "window": window, "limits": list(limits), "classes": named}
        self._settings["signature"] = [list(part) for part in signature]
        columns = [[schema.index(c.name) for c in schema[name].columns] for name in by]
        self._classes = {
            schema.index(name): {value.encode(): number for value, number in numbers.items()}
            for name, numbers in (classes or {}).items()
        }
        try:
            self._tally = ProbeTally(
                schema.layout,
                columns,
                window,
                classes=self._classes,
                limits=limits,
                signature=signature,
                max_bytes=os.sysconf("SC_PAGESIZE") * os.sysconf("SC_PHYS_PAGES") // 2,
            )
        except ValueError as e:
            raise UsageError(str(e), where=", ".join(by)) from None
        self._budget: dict[tuple[int, int, int, int], int] = {}
        self._overflows_applied: set[int] = set()

    @property
    def probes(self) -> int:
        """Probes so far."""
        return self._tally.probes

    @property
    def unknown(self) -> int:
        """Records without a known kind or outcome."""
        return self._tally.unknown

    @property
    def crowded(self) -> int:
        """Drops beyond a million in a window: not compared with the counters of hosts."""
        return self._tally.drops_not_kept

    @property
    def newest(self) -> int:
        """Time of the newest probe."""
        return self._tally.newest

    @property
    def oldest(self) -> int:
        """Time of the oldest probe."""
        return self._tally.oldest

    def update(self, block: Block, picks: Picks | None = None) -> None:
        """Count the (picked) rows of a block."""
        if block.layout is not self.schema.layout:
            block = block.project(self.schema.layout)
        try:
            self._tally.update(block, picks)
        except MemoryError:
            raise _too_much() from None

    def settings(self) -> dict[str, Any]:
        return self._settings

    @classmethod
    def of(cls, schema: Schema, settings: Mapping[str, Any]) -> Self:
        more = dict(settings)
        try:
            more["signature"] = [(low, high, lost) for low, high, lost in more["signature"]]
            return cls(schema, more.pop("by"), **more)
        except (KeyError, TypeError, OverflowError) as e:
            raise ValueError(f"invalid settings of a tally of probes: {e}") from None

    def dump(self) -> bytes:
        from confluo_tools.core.pingmesh.probe_tally_state import dump

        return dump(self._tally)

    def merge(self, data: bytes | memoryview) -> None:
        from confluo_tools.core.pingmesh.probe_tally_state import load, merge

        other = self.fresh()._tally
        try:
            load(other, data)
            if self._tally.windows() or self._tally.unknown or self._tally.spans():
                merge(self._tally, other)
            else:
                self._tally = other
        except MemoryError:
            raise _too_much() from None

    def read(self, reader: Reader, where: str = "", since: int | None = None, until: int | None = None) -> None:
        """Count all probes of a reader for which ``where`` holds; ``since`` and ``until`` in ns, half open."""
        from confluo_tools.engine.reader import gather

        gather(reader, probe_filter(reader.schema, where, reader.filters).within(since, until), self)

    def windows(self) -> list[int]:
        """Starts of the windows, ascending; 0 of a single window."""
        return self._tally.windows()

    def start(self, window: int) -> int:
        """Start of a window (ns); of a single window the time of the first probe."""
        return window if self.window else self._tally.oldest

    def probes_of(self, window: int) -> int:
        """Probes of a window, including those that could not be sent."""
        found = WindowCells(window, [()], *self._counted(window, [list(range(self._tally.groups(window)))]))
        [(_, cell)] = found
        return cell.probes + cell.local

    def keys(self, window: int) -> list[Key]:
        """The key of each group of a window, in the order of their first probes."""
        parts = iter(self._tally.keys(window))
        columns = [
            memoryview(next(parts)).cast("Q").tolist()
            if self.schema.index(name) in self._classes
            else _values(self.schema, name, parts)
            for name in self.by
        ]
        return list(zip(*columns, strict=True)) if columns else [()] * self._tally.groups(window)

    def cells(self, window: int, unions: Iterable[tuple[Key, Iterable[int]]] | None = None) -> WindowCells:
        """The groups of a window.  ``unions``: (key, numbers in `keys`) of groups to join instead."""
        self._apply_overflows(window)
        if unions is None:
            return WindowCells(self.start(window), self.keys(window), *self._counted(window))
        pairs = [(key, list(numbers)) for key, numbers in unions]
        counts = self._counted(window, [numbers for _, numbers in pairs])
        return WindowCells(self.start(window), [key for key, _ in pairs], *counts)

    def _counted(self, window: int, unions: list[list[int]] | None = None) -> tuple[bytes, bytes]:
        return self._tally.counts(window, tuple(RTT.values()), tuple(SEEN.values()), unions)

    def pop(self, window: int) -> None:
        """Forget a window, and the overflows that ended before it."""
        self._tally.pop(window)
        self._overflows_applied.discard(window)
        if self.window and not [w for w in self.windows() if w < window]:
            self._tally.forget_spans(window)
            self._budget = {span: n for span, n in self._budget.items() if span[1] > window}

    def _apply_overflows(self, window: int) -> None:
        # Compare the drops of the window with the overflows that the hosts of their targets report, once.
        if window in self._overflows_applied:
            return
        self._overflows_applied.add(window)
        spans = self._tally.spans()
        if not spans:
            return
        drops = self._tally.pending(window, {t for *_, targets in spans for t in targets})
        found = overflow_drops(drops, spans, self._budget)
        self._tally.mark_overflow(window, found)


def _too_much() -> ConfluoError:
    hint = "read less time, or use longer windows or fewer groups"
    return ConfluoError("windows and groups exceed the memory", hint=hint)


def overflow_drops(
    drops: Iterable[tuple[int, int, int, int, int]],
    spans: Iterable[tuple[int, int, int, Sequence[int]]],
    used: dict[tuple[int, int, int, int], int],
) -> list[int]:
    """Numbers of the drops that overflows of their target explain.

    ``drops``: (from, to, retries, target, number).  ``spans``: (from, to, overflows, targets, all of one host).
    A span explains a drop of its target that it overlaps while it has overflows left; the drop uses as many as it
    had retries.  Drops and spans are matched in the order of time.  ``used``: {span: overflows used}.
    """
    by_target: dict[int, list[tuple[tuple[int, int, int, int], int]]] = {}
    for begin, end, overflows, targets in spans:
        for target in targets:
            by_target.setdefault(target, []).append(((begin, end, overflows, min(targets)), overflows))
    for target_spans in by_target.values():
        target_spans.sort()
    found = []
    first: dict[int, int] = {}
    for begin, end, retries, target, number in sorted(drops):
        target_spans = by_target.get(target, [])
        at = first.get(target, 0)
        while at < len(target_spans) and (
            target_spans[at][0][1] < begin or used.get(target_spans[at][0], 0) >= target_spans[at][1]
        ):
            at += 1  # later drops do not need it either
        first[target] = at
        for span, overflows in target_spans[at:]:
            if span[0] > end:
                break
            if span[1] >= begin and used.get(span, 0) < overflows:
                used[span] = used.get(span, 0) + retries
                found.append(number)
                break
    return found


def tally(
    reader: Reader,
    by: Sequence[str] = ("src_pod", "dst_pod"),
    *,
    window: int = 0,
    where: str = "",
    since: int | None = None,
    until: int | None = None,
    limits: Sequence[int] = (),
    signature: Signature = (),
) -> Iterator[tuple[int, Key, Cell]]:
    """(start of the window, key, cell) of all probes of ``reader`` for which ``where`` holds, sorted.

    ``by``: names of fields; a key contains their values: text as str, addresses as text, numbers as int.
    ``window``: ns; windows begin at its multiples since 1970.  0: a single window that begins with the first probe.
    ``since``, ``until``: ns, half open.
    Memory per window and group: about 200 bytes, and at most 4 KiB of samples or, beyond 512 samples, some 10 KiB of
    counts.  Raises SchemaError for other records, UsageError, ExprError.
    """
    counted = WindowTally(reader.schema, by, window=window, limits=limits, signature=signature, where=reader.name)
    counted.read(reader, where, since, until)
    for start in counted.windows():
        found = counted.cells(start)
        for key, cell in sorted(found, key=lambda pair: pair[0]):
            yield found.start, key, cell


def probe_filter(schema: Schema, where: str, filters: Mapping[str, str] | None) -> Expr:
    """The expression ``where``; it also selects the records of hosts."""
    from confluo_tools.expr import compile

    expr = compile(where, schema, filters=filters)
    if where.strip() and "overflows" in schema:
        return compile(f"({where}) or kind == host", schema, filters=filters)
    return expr


def columns_of(schema: Schema, by: Iterable[str]) -> list[int]:
    """Numbers of the columns that a tally reads."""
    wanted = {*READS, *by}
    return [i for i, c in enumerate(schema.columns) if c.field.name in wanted]


def check(schema: Schema, by: Iterable[str], where: str) -> None:
    """Raises SchemaError for other records than probes, UsageError for an unknown group."""
    check_kind(schema, where)
    for name in by:
        if name not in schema:
            raise UsageError(f"no field '{name}' in schema '{schema.kind}'", hint=schema.suggest(name))


def _values(schema: Schema, name: str, parts: Iterator[bytes]) -> list[Any]:
    # The values of a key's column.
    field = schema[name]
    main, *six = field.columns
    raw = next(parts)
    width = main.size * main.count
    if six:
        from confluo_tools.units import format_ip

        more = next(parts)
        four = memoryview(raw).cast("I").tolist()
        return [format_ip(v, more[16 * i : 16 * i + 16]) for i, v in enumerate(four)]
    if main.code > len(ARRAY_CODES) or main.count > 1:
        cut = [raw[i : i + width] for i in range(0, len(raw), width)]
        if field.type.kind != "text":
            return cut
        words = {v: v.rstrip(b"\0").decode("utf-8", "replace") for v in set(cut)}  # few distinct values
        return [words[v] for v in cut]
    from array import array

    return array(ARRAY_CODES[main.code - 1], raw).tolist()
