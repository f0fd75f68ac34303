"""Probes tallied: counts and quantiles of what each group of them met, window by window, in one pass.

A *probe* is a record of schema `probe` with a kind below 16.  What is counted where is the same for every job, be its
window ten minutes or a day:

* ``ok``: it was answered, however late; ``dropped`` of these: only after the kernel had sent a SYN again.
* ``overflow``: so had those, but it was the target's host that dropped them: as the probe's note says, or the
  counters of that host (kind `host`) for that time; not when it was lost on the way back.  No part of ``dropped``.
* ``failed``: timeout, refused, unreachable, reset or garbled; no part of ``ok``, and never of the drop rate.
* ``local``: this host could not send it; nobody's, in no rate.
* Round-trip times are those of answered probes that were not sent again: only these have one.

`tally` is the whole of it; `Mesh` is for those who feed blocks themselves, follow a log, or join groups.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import nan
from typing import TYPE_CHECKING, Any

from confluo_tools.errors import ConfluoError, SchemaError, UsageError

if TYPE_CHECKING:
    from confluo_tools.core.block import Block, Picks
    from confluo_tools.expr import Expr
    from confluo_tools.formats.reader import Reader
    from confluo_tools.schema import Schema

Key = tuple[Any, ...]
Signature = Sequence[tuple[int, int, int]]
# Quantiles of a cell: of round trips, and of what the program saw.  Millionths, and thousandths of a standard deviation
# of the rank aside: the intervals are those of 95 %.
RTT = {
    "p50": (500_000, 0), "p99": (990_000, 0), "p999": (999_000, 0), "p50_low": (500_000, -1960),
    "p50_high": (500_000, 1960), "p99_low": (990_000, -1960), "p99_high": (990_000, 1960),
}  # fmt: skip
SEEN = {"seen50": (500_000, 0), "seen99": (990_000, 0)}
LIMITS = 4
NEEDS = ("ts", "kind", "outcome")
READS = (*NEEDS, "notes", "retries", "hint", "rtt", "elapsed", "overflows", "src", "dst", "src_ip", "dst_ip")
_NUMBERS = "BHIQbhiqfd"  # codes of array, by physical type


class Cell:
    """One group of probes of one window.

    Counts: ``ok``, ``dropped``, ``overflow`` (see the module), ``timeout``, ``refused``, ``unreachable``, ``reset``,
    ``garbled``, ``local``; ``forward`` and ``reverse`` of those dropped have a hint which way; ``slow`` of those
    that were classed by time alone took long, but not as long as a drop makes it.
    ``samples`` round-trip times, of which ``p50``, ``p99``, ``p999`` (ns, nan without any) and how many are above each
    of the limits that were asked for (``above``, a tuple).  Of up to 512 samples quantiles are exact (the value of
    rank ceil(q n)), of more within 1/256 of that.  ``p50_low`` ... ``p99_high``: intervals of 95 % that hold whatever
    the distribution; nan where there are too few samples for such a bound.
    ``seen50`` and ``seen99``: datagrams and plain connects as the program saw them, its host's delays included;
    ``network_ns`` and ``seen_ns`` are the sums of both over the probes that have both.
    """

    __slots__ = (
        "ok", "dropped", "overflow", "timeout", "refused", "unreachable", "reset", "garbled", "local",
        "forward", "reverse", "slow", "network_ns", "seen_ns", "above", "samples", "p50", "p99", "p999",
        "p50_low", "p50_high", "p99_low", "p99_high", "seen50", "seen99",
    )  # fmt: skip

    def __init__(self) -> None:
        self.ok = self.dropped = self.overflow = self.timeout = self.refused = self.unreachable = 0
        self.reset = self.garbled = self.local = self.forward = self.reverse = self.slow = 0
        self.network_ns = self.seen_ns = self.samples = 0
        self.above: tuple[int, ...] = (0,) * LIMITS
        self.p50 = self.p99 = self.p999 = self.seen50 = self.seen99 = nan
        self.p50_low = self.p50_high = self.p99_low = self.p99_high = nan

    @property
    def failed(self) -> int:
        """Probes that were not answered."""
        return self.timeout + self.refused + self.unreachable + self.reset + self.garbled

    @property
    def probes(self) -> int:
        """Probes that were sent."""
        return self.ok + self.failed

    @property
    def drop_rate(self) -> float:
        """``dropped`` by ``ok``; nan when none was answered."""
        return self.dropped / self.ok if self.ok else nan

    @property
    def failed_rate(self) -> float:
        """``failed`` by ``probes``; nan without any."""
        return self.failed / self.probes if self.probes else nan

    @property
    def host_share(self) -> float:
        """Of the time that probes took, the share that went by in the prober's host; nan when it is not known."""
        return 1 - self.network_ns / self.seen_ns if self.seen_ns else nan


class Tallied:
    """All groups of one window: ``start``, ``keys``, and a column of numbers, one for each group, by name.

    `column` takes the names of `Cell`'s counts and quantiles (`above`, `above2` ... for the limits).
    """

    def __init__(self, start: int, keys: list[Key], counts: bytes, quantiles: bytes) -> None:
        from confluo_tools.core.meshtally import COUNTERS

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
            (c.ok, c.dropped, c.overflow, c.timeout, c.refused, c.unreachable, c.reset, c.garbled, c.local, c.forward,
             c.reverse, c.slow, c.network_ns, c.seen_ns) = counts[at : at + first]  # fmt: skip
            c.above, c.samples = tuple(counts[at + first : at + first + LIMITS]), counts[at + samples]
            (c.p50, c.p99, c.p999, c.p50_low, c.p50_high, c.p99_low, c.p99_high, c.seen50,
             c.seen99) = quantiles[i * many : (i + 1) * many]  # fmt: skip
            yield key, c


class Mesh:
    """Probes of ``schema`` by window and group, as they are fed; see `tally` for the arguments.

    ``limits``: up to four round-trip times (ns), above each of which samples are counted.
    ``signature``: (from, to, drops) of connection times in ns, for records that do not say how often they were sent.
    ``classes``: {field of type text: {value: number from 1}}: keys have the number instead, 0 for all other values.
    Raises ConfluoError when there are more windows (262,144 at a time) or groups than there is room for: half of the
    host's memory.
    """

    def __init__(
        self, schema: Schema, by: Sequence[str], *, window: int = 0, limits: Sequence[int] = (),
        signature: Signature = (), where: str = "", classes: Mapping[str, Mapping[str, int]] | None = None,
    ) -> None:  # fmt: skip
        from confluo_tools.core.meshtally import MeshTally

        check(schema, by, where)
        if window < 0:
            raise UsageError("a window of less than nothing")
        self.schema, self.by, self.window = schema, tuple(by), window
        columns = [[schema.index(c.name) for c in schema[name].columns] for name in by]
        self._classes = {
            schema.index(name): {value.encode(): number for value, number in of.items()}
            for name, of in (classes or {}).items()
        }
        try:
            self._tally = MeshTally(
                schema.layout, columns, window, classes=self._classes, limits=limits, signature=signature,
                most_bytes=os.sysconf("SC_PAGESIZE") * os.sysconf("SC_PHYS_PAGES") // 2,
            )  # fmt: skip
        except ValueError as e:
            raise UsageError(str(e), where=", ".join(by)) from None
        self._budget: dict[tuple[int, int, int, int], int] = {}
        self._settled: set[int] = set()

    @property
    def probes(self) -> int:
        """Probes so far."""
        return self._tally.probes

    @property
    def unknown(self) -> int:
        """Records that are no probes, hosts, events or faults: they say no kind, or no outcome."""
        return self._tally.unknown

    @property
    def crowded(self) -> int:
        """Drops beyond a million in a window: these were not held against the counters of hosts."""
        return self._tally.crowded

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
            if picks is not None:
                block, picks = block.take(picks), None
            block = block.project(self.schema.layout)
        try:
            self._tally.update(block, picks)
        except MemoryError:
            hint = "ask for less time, longer windows or fewer groups"
            raise ConfluoError("more windows and groups than there is room for", hint=hint) from None

    def windows(self) -> list[int]:
        """Starts of the windows there are, ascending; of one for all, 0."""
        return self._tally.windows()

    def start(self, window: int) -> int:
        """When the window begins: its first probe, if it is one for all."""
        return window if self.window else self._tally.oldest

    def probes_of(self, window: int) -> int:
        """Probes of a window, those that could not be sent among them."""
        found = Tallied(window, [()], *self._counted(window, [list(range(self._tally.groups(window)))]))
        [(_, cell)] = found
        return cell.probes + cell.local

    def keys(self, window: int) -> list[Key]:
        """The key of each group of a window, in the order in which they came."""
        parts = iter(self._tally.keys(window))
        columns = [
            memoryview(next(parts)).cast("Q").tolist() if self.schema.index(name) in self._classes
            else _values(self.schema, name, parts) for name in self.by
        ]  # fmt: skip
        return list(zip(*columns, strict=True)) if columns else [()] * self._tally.groups(window)

    def tallied(self, window: int, unions: Iterable[tuple[Key, Iterable[int]]] | None = None) -> Tallied:
        """The groups of a window; or joined ones: (key, which groups, by their numbers in `keys`)."""
        self._settle(window)
        if unions is None:
            return Tallied(self.start(window), self.keys(window), *self._counted(window))
        pairs = [(key, list(numbers)) for key, numbers in unions]
        counts = self._counted(window, [numbers for _, numbers in pairs])
        return Tallied(self.start(window), [key for key, _ in pairs], *counts)

    def _counted(self, window: int, unions: list[list[int]] | None = None) -> tuple[bytes, bytes]:
        return self._tally.counts(window, tuple(RTT.values()), tuple(SEEN.values()), unions)

    def pop(self, window: int) -> None:
        """Forget a window, and what hosts told of times before it."""
        self._tally.pop(window)
        self._settled.discard(window)
        if self.window and not [w for w in self.windows() if w < window]:
            self._tally.forget_spans(window)
            self._budget = {span: n for span, n in self._budget.items() if span[1] > window}

    def _settle(self, window: int) -> None:
        # Hold the drops of the window against what the hosts of their targets told, once.
        if window in self._settled:
            return
        self._settled.add(window)
        spans = self._tally.spans()
        if not spans:
            return
        drops = self._tally.pending(window, {t for *_, targets in spans for t in targets})
        found = overflowed(drops, spans, self._budget)
        self._tally.excuse(window, found)


def overflowed(
    drops: Iterable[tuple[int, int, int, int, int]], spans: Iterable[tuple[int, int, int, Sequence[int]]],
    used: dict[tuple[int, int, int, int], int],
) -> list[int]:  # fmt: skip
    """Numbers of the drops that overflows at their target explain.

    ``drops``: (from, to, retries, target, number).  ``spans``: (from, to, overflows, targets, all of one host).
    A drop is explained by a span of its target that it overlaps and that has overflows left; it takes as many as it
    had retries.  Drops and spans go in the order of their times.  ``used``: overflows of spans that are taken.
    """
    of: dict[int, list[tuple[tuple[int, int, int, int], int]]] = {}
    for begin, end, overflows, targets in spans:
        for target in targets:
            of.setdefault(target, []).append(((begin, end, overflows, min(targets)), overflows))
    for list_ in of.values():
        list_.sort()
    found = []
    first: dict[int, int] = {}
    for begin, end, retries, target, number in sorted(drops):
        known = of.get(target, [])
        at = first.get(target, 0)
        while at < len(known) and (known[at][0][1] < begin or used.get(known[at][0], 0) >= known[at][1]):
            at += 1  # later drops do not need it either
        first[target] = at
        for span, overflows in known[at:]:
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
    told: Callable[[Mesh], None] | None = None,
) -> Iterator[tuple[int, Key, Cell]]:
    """(start of the window, key, cell) of all probes of ``reader`` for which ``where`` holds, sorted.

    ``by``: names of fields; a key has their values: text as str, addresses as text, numbers as int.
    ``window``: ns, windows begin at its multiples since 1970; 0: one for all, which begins with the first probe.
    ``since``, ``until``: ns, half open.  ``told`` gets the `Mesh` when all is read, for its counters.
    Memory grows with windows and groups (about 200 bytes each, and at most 4 KiB of samples or, beyond 512 of
    them, some 10 KiB of counts).  Raises SchemaError for records that are no probes, UsageError, ExprError.
    """
    mesh = read(reader, by, window=window, where=where, since=since, until=until, limits=limits, signature=signature)
    if told is not None:
        told(mesh)
    for start in mesh.windows():
        found = mesh.tallied(start)
        for key, cell in sorted(found, key=lambda pair: pair[0]):
            yield found.start, key, cell


def read(
    reader: Reader, by: Sequence[str], *, window: int = 0, where: str = "", since: int | None = None,
    until: int | None = None, limits: Sequence[int] = (), signature: Signature = (),
) -> Mesh:  # fmt: skip
    """All probes of a reader in a `Mesh`; see `tally`."""
    mesh = Mesh(reader.schema, by, window=window, limits=limits, signature=signature, where=reader.name)
    expr = chosen(reader.schema, where, reader.filters).within(since, until)
    for block, picks in reader.select(expr, columns_of(reader.schema, by, expr), by_time=False):
        mesh.update(block, picks)
    return mesh


def chosen(schema: Schema, where: str, filters: Mapping[str, str] | None) -> Expr:
    """The expression of `tally`: records of hosts are looked at in any case."""
    from confluo_tools.expr import compile

    expr = compile(where, schema, filters=filters)
    if where.strip() and "overflows" in schema:
        return compile(f"({where}) or kind == host", schema, filters=filters)
    return expr


def columns_of(schema: Schema, by: Iterable[str], expr: Expr) -> list[int]:
    """Numbers of the columns that a tally looks at."""
    wanted = {*READS, *by, *expr.fields}
    return [i for i, c in enumerate(schema.columns) if c.field.name in wanted]


def check(schema: Schema, by: Iterable[str], where: str) -> None:
    """Raises SchemaError when these are no probes, UsageError for a group that there is not."""
    if schema.kind != "probe":
        what = f"holds records of kind '{schema.kind}', not probes"
        raise SchemaError(what, where=where, hint="confluo-pingmesh probe, agent and simulate make probes")
    for name in NEEDS:
        if name not in schema:
            raise SchemaError(f"has no field '{name}'", where=where, hint="schema probe has; do not leave it out")
    for name in by:
        if name not in schema:
            raise UsageError(f"no field '{name}' in schema '{schema.kind}'", hint=schema.suggest(name))


def _values(schema: Schema, name: str, parts: Iterator[bytes]) -> list[Any]:
    # What the bytes of a key's column mean.
    field = schema[name]
    main, *six = field.columns
    raw = next(parts)
    width = main.size * main.count
    if six:
        from confluo_tools.units import format_ip

        more = next(parts)
        four = memoryview(raw).cast("I").tolist()
        return [format_ip(v, more[16 * i : 16 * i + 16]) for i, v in enumerate(four)]
    if main.code > len(_NUMBERS) or main.count > 1:
        cut = [raw[i : i + width] for i in range(0, len(raw), width)]
        if field.type.kind != "text":
            return cut
        words = {v: v.rstrip(b"\0").decode("utf-8", "replace") for v in set(cut)}  # few, in many groups
        return [words[v] for v in cut]
    from array import array

    return array(_NUMBERS[main.code - 1], raw).tolist()
