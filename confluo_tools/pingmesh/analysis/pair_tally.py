"""Pair tally: probes counted by pair of servers in one pass, for the search for black holes and silent drops.

A pass feeds several roll-ups; the rows of failures and drops, which are few, are kept one by one.  Memory: about
100 bytes per pair of servers, 40 bytes per failure or drop, and a counter per server and slice of time.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Self, TypeVar

from confluo_tools.engine.partial import Partial
from confluo_tools.engine.state_pieces import pack, unpack
from confluo_tools.errors import FormatError, SchemaError, UsageError
from confluo_tools.pingmesh.analysis.failure_list import FAILURE, FailureList, FailureSubset
from confluo_tools.pingmesh.analysis.probe_tally import check, overflow_drops
from confluo_tools.schema.types import ARRAY_CODES

if TYPE_CHECKING:
    from confluo_tools.core.block.block import Block, Picks
    from confluo_tools.core.query.rollup import Rollup
    from confluo_tools.expr import Expr
    from confluo_tools.formats.reader import Reader
    from confluo_tools.multilog.query.aggregation import Aggregation
    from confluo_tools.schema import Schema

MAX_WINDOWS = 4096  # open at a time
MAX_ROWS = 20_000_000  # failures or drops kept in memory
NONE = "kind in (event, fault)"  # their times may have any value
PROBES = "kind in (tcp, echo, http, https)"  # the kernel retransmits these; udp and icmp probes are single packets
ANSWERED = "outcome in (ok, refused, reset, garbled)"  # the target's host sent a packet back
FAILED = "outcome in (timeout, unreachable)"


class LocatedServer(NamedTuple):
    """A server and its place, as records name it; ``name`` is its address when they do not."""

    name: str
    pod: str
    podset: str
    dc: str


T = TypeVar("T")


@dataclass
class PairWindows(Generic[T]):
    """``windows`` in the order of time, and the ``servers`` of their pairs by address."""

    windows: list[T]
    servers: dict[str, LocatedServer]


@dataclass
class BlackholeWindow:
    """Probe results of a window for the search for black holes.  Pairs are (source, target), addresses as text.

    For pairs with failures: ``answered`` {pair: (probes answered, time of the first, of the last)}, ``retried``
    {pair: probes answered after a retry}, ``failures`` {pair: probes that failed}.
    ``ends`` {(server, slice): [answered, failed]}, as source or target.
    ``crossing`` {place: [answered, failed]}: probes that cross the border of a pod (pod, podset, dc) or of a podset
    (podset, dc).  ``tried`` {number of probes: number of pairs}.
    """

    start: int
    answered: dict[tuple[str, str], tuple[int, int, int]] = field(default_factory=dict)
    retried: dict[tuple[str, str], int] = field(default_factory=dict)
    failures: dict[tuple[str, str], FailureSubset] = field(default_factory=dict)
    ends: dict[tuple[str, int], list[int]] = field(default_factory=dict)
    crossing: dict[tuple[str, ...], list[int]] = field(default_factory=dict)
    tried: Counter[int] = field(default_factory=Counter)


class PairAggregate:
    """Aggregates of the rows for which an expression holds."""

    def __init__(self, expr: Expr, question: Aggregation) -> None:
        self.expr, self.question = expr, question
        self.rollup: Rollup = question.rollup()

    def rows(self, text: _AddressText) -> Iterator[list[Any]]:
        """The result, row by row; addresses and text as str."""
        for block in self.question.answer(self.rollup):
            yield from zip(*read_values(self.question.result, block, text=text), strict=True)


class _AddressText(dict[tuple[int, bytes], str]):
    # Cache of addresses as text.
    def __missing__(self, key: tuple[int, bytes]) -> str:
        from confluo_tools.units import format_ip

        self[key] = text = format_ip(*key) or ""
        return text


def read_values(
    schema: Schema, block: Block, names: Sequence[str] | None = None, text: _AddressText | None = None
) -> list[list[Any]]:
    """The values of fields (all by default) of a block, as columns; addresses and text as str."""
    text = _AddressText() if text is None else text
    found: list[list[Any]] = []
    for f in schema.fields if names is None else [schema[name] for name in names]:
        at = block.layout.index(f.name)
        if f.type.kind == "ip":
            six = bytes(block.buffer(at + 1))
            parts = [six[i : i + 16] for i in range(0, 16 * block.rows, 16)]
            numbers = block.buffer(at).cast("I").tolist()
            found.append([text[key] for key in zip(numbers, parts, strict=True)])
        elif f.type.kind == "text":
            size = f.columns[0].size
            data = bytes(block.buffer(at))
            found.append(
                [data[i : i + size].rstrip(b"\0").decode("utf-8", "replace") for i in range(0, size * block.rows, size)]
            )
        else:
            found.append(block.buffer(at).cast(ARRAY_CODES[f.columns[0].code - 1]).tolist())  # type: ignore[call-overload]
    return found


class PassSource(NamedTuple):
    """Source of a `PairPass` that is fed by `PairPass.add`.  ``made``: compiled parts, shared by all its passes."""

    schema: Schema
    name: str
    filters: Mapping[str, str] | None
    made: dict[tuple[str, ...], Any]


class PairPass(Partial):
    """One pass over ``reader``: register with `aggregate` and `collect`, then `run`, then read the results.

    Its states merge exactly: those of the aggregates, and the failures in the order of the rows.

    ``where``: expression that selects probes.  Raises SchemaError for other records.
    """

    name = "pairs"

    def __init__(
        self, reader: Reader | PassSource, where: str = "", since: int | None = None, until: int | None = None
    ) -> None:
        check(reader.schema, (), reader.name)
        for name in (*FAILURE, "notes"):
            if name not in reader.schema:
                hint = "schema probe has; do not leave it out"
                raise SchemaError(f"has no field '{name}'", where=reader.name, hint=hint)
        self.reader, self.schema = reader, reader.schema
        self._made: dict[tuple[str, ...], Any] = reader.made if isinstance(reader, PassSource) else {}
        self.text = _AddressText()
        self.rows = self.others = self.overflows = 0
        hosts = "overflows" in self.schema and where.strip()
        self.where = f"({where}) or kind == host" if hosts else where
        self._expr = self.compile(self.where).within(since, until)
        self._every = self.compile(PROBES)
        self._hosts: Expr | None = None
        self.spans: list[tuple[int, int, int, str]] = []  # from, to, overflows, host
        if all(name in self.schema for name in ("overflows", "elapsed", "src")):
            self._hosts = self.compile("kind == host && overflows > 0")
        self._sums: list[PairAggregate] = []
        self._looks: list[tuple[Expr, FailureList]] = []
        self._asked: dict[str, list[Any]] = {"aggregates": [], "collected": []}
        self._names: set[str] = set(FAILURE) | {"kind", "outcome", "notes", "src"}
        self._names.update(("overflows",) if self._hosts is not None else ())

    def compile(self, text: str) -> Expr:
        from confluo_tools.expr import compile

        if (text,) not in self._made:
            self._made[text,] = compile(text, self.schema, filters=self.reader.filters)
        found: Expr = self._made[text,]
        return found

    def aggregate(self, what: str, aggs: str, by: str) -> PairAggregate:
        """Register aggregates of the rows for which ``what`` holds."""
        from confluo_tools.expr import parse_aggregates, parse_by
        from confluo_tools.multilog.query.aggregation import Aggregation

        question = self._made.get((aggs, by))
        if question is None:
            schema = self.schema
            question = self._made[aggs, by] = Aggregation(schema, parse_aggregates(aggs, schema), parse_by(by, schema))
        made = PairAggregate(self.compile(f"{PROBES} && ({what})"), question)
        self._names.update(made.question.reads)
        self._sums.append(made)
        self._asked["aggregates"].append([what, aggs, by])
        return made

    def collect(self, what: str) -> FailureList:
        """Register a list of the rows for which ``what`` holds."""
        found = FailureList()
        self._asked["collected"].append(what)
        self._looks.append((self.compile(f"{PROBES} && ({what})"), found))
        return found

    @property
    def columns(self) -> list[int]:  # type: ignore[override]
        """Numbers of the columns that `update` reads."""
        return [i for i, c in enumerate(self.schema.columns) if c.field.name in self._names]

    def run(self) -> None:
        """Read all records.  Raises UsageError when failures or drops exceed `MAX_ROWS`."""
        from confluo_tools.engine.reader import gather

        assert not isinstance(self.reader, PassSource)
        gather(self.reader, self._expr, self)

    def settings(self) -> dict[str, Any]:
        return self._asked

    @classmethod
    def of(cls, schema: Schema, settings: Mapping[str, Any]) -> Self:
        try:
            made = cls(PassSource(schema, "the input", None, {}))
            for what, aggs, by in settings["aggregates"]:
                made.aggregate(what, aggs, by)
            for what in settings["collected"]:
                made.collect(what)
        except (KeyError, TypeError, AttributeError) as e:
            raise ValueError(f"invalid settings of a pass over pairs: {e}") from None
        return made

    def update(self, block: Block, picks: Picks | None) -> None:
        if picks is not None and len(picks) < block.rows:
            block = block.take_columns(picks, self.columns)
        self.add(block)

    def dump(self) -> bytes:
        from json import dumps

        from confluo_tools.core.query.rollup_codec import dump

        head = dumps([self.rows, self.others, self.spans]).encode()
        return pack([head, *[dump(one.rollup) for one in self._sums], *[found.dump() for _, found in self._looks]])

    def merge(self, data: bytes | memoryview) -> None:
        from confluo_tools.core.query.rollup_codec import load

        head, *states = unpack(data, 1 + len(self._sums) + len(self._looks))
        rows, others, spans = _counts(head)
        for one, state in zip(self._sums, states, strict=False):
            rollup = one.question.rollup()
            load(rollup, state)
            one.rollup.merge(rollup)
        for (_, found), state in zip(self._looks, states[len(self._sums) :], strict=True):
            found.merge(state)
            if len(found) > MAX_ROWS:
                raise self._too_many()
        self.rows += rows
        self.others += others
        self.spans += spans

    def _too_many(self) -> UsageError:
        what = f"more than {MAX_ROWS} probes failed or were dropped"
        return UsageError(what, where=self.reader.name, hint="read fewer: --since, --until, --where")

    def add(self, block: Block) -> None:
        """Count all rows of a block."""
        probes = len(self._every.program.select(block))
        self.rows += probes
        self.others += block.rows - probes
        for aggregate in self._sums:
            picks: Picks = aggregate.expr.program.select(block)
            if len(picks):
                aggregate.rollup.update(block, picks)
        for expr, found in self._looks:
            picks = expr.program.select(block)
            if not len(picks):
                continue
            if len(found) + len(picks) > MAX_ROWS:
                raise self._too_many()
            found.extend(read_values(self.schema, block.take(picks), FAILURE, self.text))
        if self._hosts is not None:
            picks = self._hosts.program.select(block)
            if len(picks):
                names = ("ts", "elapsed", "overflows", "src_ip", "src")
                for ts, took, lost, address, name in zip(
                    *read_values(self.schema, block.take(picks), names, self.text), strict=True
                ):
                    self.spans.append((ts - took, ts, lost, address or name))

    def host_drops(self, probes: FailureList, servers: Mapping[str, LocatedServer]) -> tuple[set[int], int]:
        """Numbers of the probes to exclude because the target's host dropped them, and how many it did drop.

        Hosts report their overflows in records of kind `host`.  Which drops of one target and time these were is
        unknown: where the host dropped most of them, all are excluded.
        """
        if not self.spans:
            return set(), 0
        number: dict[str, int] = {}
        for address, server in servers.items():  # hosts report their address, or only their name
            number[server.name] = number[address] = number.get(server.name, len(number))
        spans = [(begin, end, lost, (number[host],)) for begin, end, lost, host in self.spans if host in number]
        reporting = {target for *_, (target,) in spans}
        drops = [
            (p.ts, p.ts + p.elapsed, p.retries or 1, number[p.dst], i)
            for i, p in enumerate(probes)
            if number.get(p.dst) in reporting
        ]
        dropped = set(overflow_drops(drops, spans, {}))
        ends: dict[int, list[tuple[int, int]]] = {}
        for begin, end, _, (target,) in sorted(spans, key=lambda span: span[1]):
            ends.setdefault(target, []).append((end, begin))
        together: dict[tuple[int, int], list[int]] = {}
        for begin, end, _, target, i in drops:
            target_spans = ends.get(target, [])
            at = bisect_left(target_spans, (begin,))
            if at < len(target_spans) and target_spans[at][1] <= end:
                together.setdefault((target, at), []).append(i)
        unclear = [i for same in together.values() if 2 * len(dropped.intersection(same)) > len(same) for i in same]
        return dropped.union(unclear), len(dropped)


def _counts(head: bytes) -> tuple[int, int, list[tuple[int, int, int, str]]]:
    # Probes, other rows, and overflows of hosts, of a state.  Raises ValueError.
    from json import loads

    try:
        rows, others, spans = loads(head)
        found = [(begin, end, lost, name) for begin, end, lost, name in spans]
    except (TypeError, RecursionError) as e:
        raise ValueError(f"the state of a share of probes is damaged: {e}") from None
    numbers = [rows, others, *[n for *three, _ in found for n in three]]
    if not all(type(n) is int for n in numbers) or not all(isinstance(name, str) for *_, name in found):
        raise ValueError("the state of a share of probes is damaged: overflows of hosts")
    return rows, others, found


class ServerLookup:
    """Names and places of servers by address: from ``known_servers``, else from the records."""

    def __init__(self, run: PairPass, known_servers: Mapping[str, LocatedServer]) -> None:
        self._called = known_servers
        self._run = run
        self._sums = []
        for end in ("src", "dst"):
            names = (end, f"{end}_pod", f"{end}_podset", f"{end}_dc")
            there = [name in run.schema for name in names]
            aggregates = ", ".join(f"first({name})" for name in names if name in run.schema) or "count"
            self._sums.append((there, run.aggregate("outcome != local", aggregates, f"{end}_ip")))

    def read(self) -> dict[str, LocatedServer]:
        """{address: server}."""
        found: dict[str, LocatedServer] = {}
        for there, aggregate in self._sums:
            for address, *values in aggregate.rows(self._run.text):
                words = [values.pop(0) if is_there else "" for is_there in there]
                known = found.get(address)
                if known is None or not known.pod:
                    found[address] = LocatedServer(*words)
        return _KnownServers(
            (address, self._called.get(address) or (s if s.name else s._replace(name=address)))
            for address, s in found.items()
        )


class _KnownServers(dict[str, LocatedServer]):
    # Servers by address.  All that are looked up sent or got probes, unless the state of a share is a lie.
    def __missing__(self, address: str) -> LocatedServer:
        raise FormatError(f"the states of the shares contradict each other: {address} has failures, but no probes")


def blackhole_windows(
    reader: Reader,
    where: str,
    window: int,
    piece: int,
    since: int | None = None,
    until: int | None = None,
    known_servers: Mapping[str, LocatedServer] | None = None,
) -> tuple[PairWindows[BlackholeWindow], PairPass]:
    """Windows of ``window`` ns (0: a single one), and the pass that made them.

    ``piece``: length (ns) of the slices of time in which a server is healthy or not.  ``known_servers``: servers by
    address, for records without their places.
    """
    run = PairPass(reader, where, since, until)
    found = request_blackholes(run, window, piece, known_servers)
    run.run()
    return found(), run


def request_blackholes(
    run: PairPass, window: int, piece: int, known_servers: Mapping[str, LocatedServer] | None
) -> Callable[[], PairWindows[BlackholeWindow]]:
    """Register what `blackhole_windows` needs; the function that returns it after the pass."""
    servers = ServerLookup(run, known_servers or {})
    step = f"ts/{window}ns, " if window else ""
    pairs = run.aggregate(ANSWERED, "count, min(ts), max(ts)", f"{step}src_ip, dst_ip")
    again = run.aggregate(f"{ANSWERED} && retries > 0", "count", f"{step}src_ip, dst_ip")
    ends = [run.aggregate(ANSWERED, "count", f"ts/{piece}ns, {end}_ip") for end in ("src", "dst")]
    failures = run.collect(f"{FAILED} && !(notes has overflow)")
    return lambda: _blackhole_windows(run, servers, pairs, again, ends, failures, window, piece)


def _blackhole_windows(
    run: PairPass,
    servers: ServerLookup,
    pairs: PairAggregate,
    again: PairAggregate,
    ends: Sequence[PairAggregate],
    failures: FailureList,
    window: int,
    piece: int,
) -> PairWindows[BlackholeWindow]:
    windows: dict[int, BlackholeWindow] = {}
    known = servers.read()
    excluded, run.overflows = run.host_drops(failures, known)

    def window_at(start: int) -> BlackholeWindow:
        if start not in windows:
            windows[start] = BlackholeWindow(start)
        return windows[start]

    seen: dict[tuple[str, int], list[int]] = {}
    begin = 1 << 63
    for number, (ts, src, dst) in enumerate(failures.ends()):
        if number in excluded:
            continue
        if ts < begin:
            begin = ts
        found = window_at(ts // window * window if window else 0)
        pair_failures = found.failures.get((src, dst))
        if pair_failures is None:
            pair_failures = found.failures[src, dst] = FailureSubset(failures)
        pair_failures.add(number)
        when_ = ts // piece * piece
        for address in (src, dst):
            counts = seen.get((address, when_))
            if counts is None:
                counts = seen[address, when_] = [0, 0]
            counts[1] += 1
    for *when, src, dst, count, first, last in pairs.rows(run.text):
        found = window_at(when[0] if window else 0)
        failed = found.failures.get((src, dst))
        if failed is not None:
            found.answered[src, dst] = count, first, last
        found.tried[count + len(failed or ())] += 1
        begin = min(begin, first)
        _cross(found, known[src], known[dst], 0, count)
    for found in windows.values():
        for pair, failed in found.failures.items():
            if pair not in found.answered:
                found.tried[len(failed)] += 1
            _cross(found, known[pair[0]], known[pair[1]], 1, len(failed))
    for *when, src, dst, count in again.rows(run.text):
        window_at(when[0] if window else 0).retried[src, dst] = count
    for aggregate in ends:
        for when_, address, count in aggregate.rows(run.text):
            seen.setdefault((address, when_), [0, 0])[0] += count
    for (address, when_), counts in seen.items():
        window_at(when_ // window * window if window else 0).ends[address, when_] = counts
    if not window and windows:
        windows[0].start = begin
    return PairWindows([windows[start] for start in sorted(windows)], known)


def _cross(window: BlackholeWindow, a: LocatedServer, b: LocatedServer, what: int, count: int) -> None:
    """Add ``count`` probes between two servers to each border that they cross; ``what``: 0 answered, 1 failed."""
    for level, end, other in ((3, a, b), (3, b, a), (2, a, b), (2, b, a)):
        if end[-level:] != other[-level:]:
            window.crossing.setdefault(end[-level:], [0, 0])[what] += count


class OpenPairWindows(Generic[T]):
    """Open windows of ``window`` ns, each with its own pass, for a log that is followed.

    ``request``: registers what each pass counts, see `request_blackholes` and `request_drops`.  Overflows that hosts
    report count in each window that their time overlaps.  ``newest``: time of the newest record.  ``probes``: in
    the windows that were judged.
    """

    def __init__(
        self,
        source: PassSource,
        where: str,
        since: int | None,
        until: int | None,
        window: int,
        request: Callable[[PairPass], Callable[[], T]],
    ) -> None:
        self.window, self.newest, self.probes = window, -(1 << 63), 0
        self._make: Callable[[], PairPass] = lambda: PairPass(source, where, since, until)
        self._request = request
        first = self._make()
        expr = f"({first.where}) && !({NONE})" if first.where.strip() else f"!({NONE})"
        self.select = first.compile(expr).within(since, until).program.select
        self._ts = source.schema.index("ts")
        self._open: dict[int, tuple[PairPass, Callable[[], T]]] = {}
        self._spans: list[tuple[int, int, int, str]] = []

    def update(self, block: Block, picks: Picks | None = None) -> None:
        """Count rows that `select` picked."""
        from confluo_tools.core.block.block import Picks

        if picks is not None and len(picks) < block.rows:
            block = block.take(picks)
        if not block.rows:
            return
        times = memoryview(block.buffer(self._ts)).cast("q")
        low, high = min(times), max(times)
        self.newest = max(self.newest, high)
        if low // self.window == high // self.window:
            self._add(low // self.window * self.window, block)
            return
        rows: dict[int, list[int]] = {}
        for row, ts in enumerate(times):
            rows.setdefault(ts // self.window, []).append(row)
        for number in sorted(rows):
            self._add(number * self.window, block.take(Picks.of(block.rows, rows[number])))

    def _add(self, start: int, block: Block) -> None:
        if start not in self._open:
            if len(self._open) >= MAX_WINDOWS:
                hint = "use a longer --window, or --since"
                raise UsageError(f"more than {MAX_WINDOWS:,} windows are open", hint=hint)
            run = self._make()
            self._open[start] = run, self._request(run)
        run, _ = self._open[start]
        run.add(block)
        self._spans += run.spans
        run.spans.clear()

    def windows(self) -> list[int]:
        """Starts of the open windows, ascending."""
        return sorted(self._open)

    def probes_of(self, window: int) -> int:
        """Probes of a window."""
        return self._open[window][0].rows

    def judge(self, window: int) -> tuple[T, PairPass]:
        """The result of a window, and its pass."""
        run, found = self._open[window]
        run.spans = [span for span in self._spans if span[1] >= window]
        self.probes += run.rows
        return found(), run

    def pop(self, window: int) -> None:
        """Forget a window, and the overflows that ended before it."""
        del self._open[window]
        if not any(start < window for start in self._open):
            self._spans = [span for span in self._spans if span[1] >= window]
