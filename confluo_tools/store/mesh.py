"""Probes tallied: counts and quantiles of what each group of them met, window by window, in one pass.

A *probe* is a record of schema `probe` with a kind below 16.  What is counted where is the same for every job, be its
window ten minutes or a day:

* ``ok``: it was answered, however late; ``dropped`` of these: only after the kernel had sent a SYN again.
* ``overflow``: so had those, but it was the target's host that dropped them (note `overflow`); no part of ``dropped``.
* ``failed``: timeout, refused, unreachable, reset or garbled; no part of ``ok``, and never of the drop rate.
* ``local``: this host could not send it; nobody's, in no rate.
* Round-trip times are those of answered probes that were not sent again: only these have one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from math import nan
from typing import TYPE_CHECKING, Any

from confluo_tools.errors import SchemaError, UsageError

if TYPE_CHECKING:
    from confluo_tools.expr import Expr
    from confluo_tools.formats.reader import Reader
    from confluo_tools.schema import Schema

Key = tuple[Any, ...]
QUANTILES = (0.5, 0.99, 0.999)
NEEDS = ("ts", "kind", "outcome", "notes", "retries", "hint", "rtt", "elapsed")


class Cell:
    """One group of probes of one window.

    Counts: ``ok``, ``dropped``, ``overflow`` (see the module), ``timeout``, ``refused``, ``unreachable``, ``reset``,
    ``garbled``, ``local``; ``forward`` and ``reverse`` of those dropped have a hint which way.
    ``samples`` round-trip times, of which ``p50``, ``p99``, ``p999`` (ns, nan without any); ``elapsed50`` and
    ``elapsed99``: the same probes as the program saw them, its host's delays included.
    A quantile q of n is the value of rank ceil(q n).
    """

    __slots__ = (
        "ok", "dropped", "overflow", "timeout", "refused", "unreachable", "reset", "garbled", "local",
        "forward", "reverse", "samples", "p50", "p99", "p999", "elapsed50", "elapsed99",
    )  # fmt: skip

    def __init__(self) -> None:
        self.ok = self.dropped = self.overflow = self.timeout = self.refused = self.unreachable = 0
        self.reset = self.garbled = self.local = self.forward = self.reverse = self.samples = 0
        self.p50 = self.p99 = self.p999 = self.elapsed50 = self.elapsed99 = nan

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
        return self.failed / self.probes if self.probes else nan


def tally(
    reader: Reader, by: Sequence[str] = ("src_pod", "dst_pod"), *, window: int = 0, where: str | Expr = "",
) -> Iterator[tuple[int, Key, Cell]]:  # fmt: skip
    """(start of the window, key, cell) of all probes of ``reader`` for which ``where`` holds, sorted.

    ``by``: names of fields; a key has their values: text as str, addresses as text, numbers as int.
    ``window``: ns, windows begin at its multiples since 1970; 0: one for all, which begins with the first probe.
    Memory grows with windows and groups.  Raises SchemaError for records that are no probes, UsageError.
    """
    from confluo_tools.expr import compile

    check(reader.schema, by, reader.name)
    if window < 0:
        raise UsageError("a window has some length")
    expr = compile(where, reader.schema, filters=reader.filters) if isinstance(where, str) else where
    yield from _slow(reader, by, window, expr)


def check(schema: Schema, by: Iterable[str], where: str) -> None:
    """Raises SchemaError when these are no probes, UsageError for a group that there is not."""
    if schema.kind != "probe":
        what = f"holds records of kind '{schema.kind}', not probes"
        raise SchemaError(what, where=where, hint="confluo-pingmesh probe, agent and simulate make probes")
    for name in by:
        if name not in schema:
            raise UsageError(f"no field '{name}' in schema '{schema.kind}'", hint=schema.suggest(name))


def _slow(reader: Reader, by: Sequence[str], window: int, expr: Expr) -> Iterator[tuple[int, Key, Cell]]:
    from confluo_tools.units import format_ip

    schema = reader.schema
    at = {name: schema.index(name) for name in NEEDS}
    cells: dict[tuple[int, Key], tuple[Cell, list[int], list[int]]] = {}
    first = None
    for block, picks in reader.select(expr, by_time=False):
        for row in range(block.rows) if picks is None else picks.tolist():
            ts, kind, outcome, notes, retries, hint, rtt, elapsed = [block.get(at[n], row) for n in NEEDS]
            if not 0 < kind < 16 or not 1 <= outcome <= 7:
                continue
            key = []
            for name in by:
                value = block.get(schema.index(name), row)
                if schema[name].type.kind == "ip":
                    value = format_ip(value, block.get(schema.index(name) + 1, row)) or ""
                elif isinstance(value, bytes):
                    value = value.rstrip(b"\0").decode("utf-8", "replace")
                key.append(value)
            first = ts if first is None else min(first, ts)
            cell, rtts, seen = cells.setdefault(
                (ts // window * window if window else 0, tuple(key)), (Cell(), [], [])
            )
            if outcome == 1:
                cell.ok += 1
                if retries and notes & 4:
                    cell.overflow += 1
                elif retries:
                    cell.dropped += 1
                    cell.forward += hint == 1
                    cell.reverse += hint == 2
                elif rtt > 0:
                    rtts.append(rtt)
                    seen.append(elapsed)
            else:
                name = ("timeout", "refused", "unreachable", "reset", "local", "garbled")[outcome - 2]
                setattr(cell, name, getattr(cell, name) + 1)
    for (start, key_), (cell, rtts, seen) in sorted(cells.items(), key=lambda item: item[0]):
        cell.samples = len(rtts)
        cell.p50, cell.p99, cell.p999 = [_quantile(sorted(rtts), q) for q in (500, 990, 999)]
        cell.elapsed50, cell.elapsed99 = [_quantile(sorted(seen), q) for q in (500, 990)]
        yield start if window else first or 0, key_, cell


def _quantile(values: list[int], thousandths: int) -> float:
    return float(values[max(-(-len(values) * thousandths // 1000), 1) - 1]) if values else nan
