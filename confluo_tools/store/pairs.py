"""Probes by pairs of servers: what black holes and silent drops are found from, in one pass over the records.

Several roll-ups are kept at once; rows of failures and drops, which are few, are looked at one by one.  Memory grows
with pairs of servers (about 100 bytes each), with servers times slices of time, and with failures and drops
(about 40 bytes each).
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from confluo_tools.errors import SchemaError, UsageError
from confluo_tools.store.mesh import check, overflowed

if TYPE_CHECKING:
    from confluo_tools.core.block import Block, Picks
    from confluo_tools.core.rollup import Rollup
    from confluo_tools.expr import Expr
    from confluo_tools.formats.reader import Reader
    from confluo_tools.schema import Schema
    from confluo_tools.store.aggregate import Question

MOST_WINDOWS = 4096  # that are open at a time
MOST_ROWS = 20_000_000  # failures or drops that are looked at
NONE = "kind in (event, fault)"  # their times may be any
PROBES = "kind in (tcp, echo, http, https)"  # the kernel tries these again: udp and icmp lose by the packet
ANSWERED = "outcome in (ok, refused, reset, garbled)"  # the target's host sent something back
FAILED = "outcome in (timeout, unreachable)"
_CODES = "BHIQbhiqfd"  # of memoryview, by the physical types 1 to 10
DROPPED = "outcome == ok && retries > 0 && !(notes has overflow)"


class Server(NamedTuple):
    """A server as records call it; its address when they do not."""

    name: str
    pod: str
    podset: str
    dc: str


FAILURE = ("ts", "src_ip", "dst_ip", "src_port", "dst_port", "retries", "hint", "elapsed")


class Failure(NamedTuple):
    """One probe that was not answered, or only after a retry."""

    ts: int
    src: str  # address
    dst: str
    src_port: int
    dst_port: int
    retries: int
    hint: int
    elapsed: int


class Failures(Sequence[Failure]):
    """Many of them, in 34 bytes each."""

    def __init__(self) -> None:
        self._names: list[str] = []
        self._number: dict[str, int] = {}
        self.columns = [array(code) for code in "qIIHHBBq"]

    def extend(self, columns: Sequence[Sequence[Any]]) -> None:
        """Rows of the fields `FAILURE`, column by column."""
        for i, (kept, values) in enumerate(zip(self.columns, columns, strict=True)):
            kept.extend(map(self._of, values) if i in (1, 2) else values)

    def _of(self, name: str) -> int:
        number = self._number.get(name)
        if number is None:
            number = self._number[name] = len(self._names)
            self._names.append(name)
        return number

    def __len__(self) -> int:
        return len(self.columns[0])

    def __getitem__(self, row: Any) -> Any:
        ts, src, dst, *rest = [column[row] for column in self.columns]
        return Failure(ts, self._names[src], self._names[dst], *rest)

    def ends(self) -> Iterator[tuple[int, str, str]]:
        """Time, source and target of each."""
        names, (ts, src, dst, *_) = self._names, self.columns
        for when, a, b in zip(ts, src, dst, strict=True):
            yield when, names[a], names[b]


class Some(Sequence[Failure]):
    """Some of them, by number."""

    def __init__(self, whole: Failures) -> None:
        self._whole = whole
        self._numbers = array("I")

    def add(self, number: int) -> None:
        self._numbers.append(number)

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, row: Any) -> Any:
        return self._whole[self._numbers[row]]

    def ports(self) -> list[tuple[int, int]]:
        """(time, source port) of each."""
        ts, _, _, port, *_ = self._whole.columns
        return [(ts[i], port[i]) for i in self._numbers]


@dataclass
class Window:
    """What probes of a window met, by addresses as text.

    Of pairs with failures: ``answered`` {pair: (probes that were answered, first, last time)}, ``retried`` {pair:
    those of them after a retry}, ``failures``: the others.  ``ends`` {(server, slice): [answered, failed]} as source
    or target; ``crossing`` {place: [answered, failed]} of probes that cross the border of a pod (pod, podset,
    dc) or of a podset (podset, dc); ``tried`` {probes: pairs with so many}.
    """

    start: int
    answered: dict[tuple[str, str], tuple[int, int, int]] = field(default_factory=dict)
    retried: dict[tuple[str, str], int] = field(default_factory=dict)
    failures: dict[tuple[str, str], Some] = field(default_factory=dict)
    ends: dict[tuple[str, int], list[int]] = field(default_factory=dict)
    crossing: dict[tuple[str, ...], list[int]] = field(default_factory=dict)
    tried: Counter[int] = field(default_factory=Counter)


class _Sum:
    # A question, the rows that it is asked of, and its state.
    def __init__(self, expr: Expr, question: Question) -> None:
        self.expr, self.question = expr, question
        self.rollup: Rollup = question.rollup()

    def rows(self, text: _Text) -> Iterator[list[Any]]:
        """The answer, row by row; addresses and text as str."""
        for block in self.question.answer(self.rollup):
            yield from zip(*_values(self.question.result, block, text), strict=True)


class _Text(dict[tuple[int, bytes], str]):
    # Addresses as text, each formatted once.
    def __missing__(self, key: tuple[int, bytes]) -> str:
        from confluo_tools.units import format_ip

        self[key] = text = format_ip(*key) or ""
        return text


def _values(schema: Schema, block: Block, text: _Text, names: Sequence[str] | None = None) -> list[list[Any]]:
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
            found.append([data[i : i + size].rstrip(b"\0").decode("utf-8", "replace")
                          for i in range(0, size * block.rows, size)])  # fmt: skip
        else:
            found.append(block.buffer(at).cast(_CODES[f.columns[0].code - 1]).tolist())  # type: ignore[call-overload]
    return found


class Of(NamedTuple):
    """Where probes come from, for those who bring them to many a `Pass` themselves; ``made``: what all these share."""

    schema: Schema
    name: str
    filters: Mapping[str, str] | None
    made: dict[tuple[str, ...], Any]


class Pass:
    """One pass over ``reader``: `ask` and `look` first, then `run`, then the answers.

    ``where``: which of its probes.  Raises SchemaError when it has none.
    """

    def __init__(self, reader: Reader | Of, where: str = "", since: int | None = None,
                 until: int | None = None) -> None:  # fmt: skip
        check(reader.schema, (), reader.name)
        for name in (*FAILURE, "notes"):
            if name not in reader.schema:
                hint = "schema probe has; do not leave it out"
                raise SchemaError(f"has no field '{name}'", where=reader.name, hint=hint)
        self.reader, self.schema = reader, reader.schema
        self._made: dict[tuple[str, ...], Any] = reader.made if isinstance(reader, Of) else {}
        self.text = _Text()
        self.rows = self.others = self.overflows = 0
        hosts = "overflows" in self.schema and where.strip()
        self.asked = f"({where}) or kind == host" if hosts else where
        self._where = self.compile(self.asked).within(since, until)
        self._every = self.compile(PROBES)
        self._hosts: Expr | None = None
        self.spans: list[tuple[int, int, int, str]] = []  # from, to, overflows, whose
        if all(name in self.schema for name in ("overflows", "elapsed", "src")):
            self._hosts = self.compile("kind == host && overflows > 0")
        self._sums: list[_Sum] = []
        self._looks: list[tuple[Expr, Failures]] = []
        self._columns: set[str] = set(FAILURE) | {"kind", "outcome", "notes", "src"} | set(self._where.fields)

    def compile(self, text: str) -> Expr:
        from confluo_tools.expr import compile

        if (text,) not in self._made:
            self._made[text,] = compile(text, self.schema, filters=self.reader.filters)
        found: Expr = self._made[text,]
        return found

    def ask(self, what: str, aggs: str, by: str) -> _Sum:
        """Aggregates of the rows for which ``what`` holds."""
        from confluo_tools.expr import parse_aggregates, parse_by
        from confluo_tools.store.aggregate import Question

        question = self._made.get((aggs, by))
        if question is None:
            schema = self.schema
            question = self._made[aggs, by] = Question(schema, parse_aggregates(aggs, schema), parse_by(by, schema))
        made = _Sum(self.compile(f"{PROBES} && ({what})"), question)
        self._columns.update(made.question.reads)
        self._sums.append(made)
        return made

    def look(self, what: str) -> Failures:
        """The rows for which ``what`` holds, as `run` finds them."""
        found = Failures()
        self._looks.append((self.compile(f"{PROBES} && ({what})"), found))
        return found

    def run(self) -> None:
        """Read it all.  Raises UsageError for too much to remember."""
        assert not isinstance(self.reader, Of)
        self._columns.update(("overflows",) if self._hosts is not None else ())
        columns = [i for i, c in enumerate(self.schema.columns) if c.field.name in self._columns]
        for block, picks in self.reader.select(self._where, columns, by_time=False):
            if picks is not None and len(picks) < block.rows:
                block = block.take(picks)
            self.take(block)

    def take(self, block: Block) -> None:
        """Rows that were selected."""
        probes = len(self._every.program.select(block))
        self.rows += probes
        self.others += block.rows - probes
        for one in self._sums:
            picks: Picks = one.expr.program.select(block)
            if len(picks):
                one.rollup.update(block, picks)
        for expr, found in self._looks:
            picks = expr.program.select(block)
            if not len(picks):
                continue
            if len(found) + len(picks) > MOST_ROWS:
                what = f"more than {MOST_ROWS} probes failed or were dropped"
                raise UsageError(what, where=self.reader.name, hint="choose a part: --since, --until, --where")
            found.extend(_values(self.schema, block.take(picks), self.text, FAILURE))
        if self._hosts is not None:
            picks = self._hosts.program.select(block)
            if len(picks):
                names = ("ts", "elapsed", "overflows", "src_ip", "src")
                for ts, took, lost, address, name in zip(
                    *_values(self.schema, block.take(picks), self.text, names), strict=True
                ):
                    self.spans.append((ts - took, ts, lost, address or name))

    def excused(self, probes: Failures, servers: Mapping[str, Server]) -> tuple[set[int], int]:
        """Numbers of those that the target's host dropped, as it told (records of kind host), and how many it did.

        Which of those at one time and target were the host's nobody knows: where most were, none is left.
        """
        if not self.spans:
            return set(), 0
        number: dict[str, int] = {}
        for address, server in servers.items():  # hosts tell their addresses, or only their names
            number[server.name] = number[address] = number.get(server.name, len(number))
        spans = [(begin, end, lost, (number[whose],)) for begin, end, lost, whose in self.spans if whose in number]
        told = {target for *_, (target,) in spans}
        drops = [(p.ts, p.ts + p.elapsed, p.retries or 1, number[p.dst], i) for i, p in enumerate(probes)
                 if number[p.dst] in told]  # fmt: skip
        theirs = set(overflowed(drops, spans, {}))
        ends: dict[int, list[tuple[int, int]]] = {}
        for begin, end, _, (target,) in sorted(spans, key=lambda span: span[1]):
            ends.setdefault(target, []).append((end, begin))
        together: dict[tuple[int, int], list[int]] = {}
        for begin, end, _, target, i in drops:
            its = ends.get(target, [])
            at = bisect_left(its, (begin,))
            if at < len(its) and its[at][1] <= end:
                together.setdefault((target, at), []).append(i)
        unclear = [i for same in together.values() if 2 * len(theirs.intersection(same)) > len(same) for i in same]
        return theirs.union(unclear), len(theirs)


class Servers:
    """Who has which address: names and places as ``called`` says, else as the records have them."""

    def __init__(self, run: Pass, called: Mapping[str, Server]) -> None:
        self._called = called
        self._run = run
        self._sums = []
        for end in ("src", "dst"):
            names = (end, f"{end}_pod", f"{end}_podset", f"{end}_dc")
            there = [name in run.schema for name in names]
            asked = ", ".join(f"first({name})" for name in names if name in run.schema) or "count"
            self._sums.append((there, run.ask("outcome != local", asked, f"{end}_ip")))

    def read(self) -> dict[str, Server]:
        """{address: server}; a name that several addresses have is followed by each one's."""
        found: dict[str, Server] = {}
        for there, one in self._sums:
            for address, *values in one.rows(self._run.text):
                words = [values.pop(0) if is_there else "" for is_there in there]
                known = found.get(address)
                if known is None or not known.pod:
                    found[address] = Server(*words)
        return {address: self._called.get(address) or (s if s.name else s._replace(name=address))
                for address, s in found.items()}  # fmt: skip


def by_windows(
    reader: Reader, where: str, window: int, piece: int, since: int | None = None, until: int | None = None,
    called: Mapping[str, Server] | None = None,
) -> tuple[list[Window], dict[str, Server], Pass]:  # fmt: skip
    """Windows of ``window`` ns (0: one for all) in order, the servers, and the pass that was made.

    ``piece``: ns, the slices of time that servers are known to be well in.  ``called``: servers by address, for
    records that do not tell.
    """
    run = Pass(reader, where, since, until)
    found = holes_of(run, window, piece, called)
    run.run()
    return *found(), run


def holes_of(
    run: Pass, window: int, piece: int, called: Mapping[str, Server] | None
) -> Callable[[], tuple[list[Window], dict[str, Server]]]:
    """Ask for what `by_windows` gives; it is there when the pass is made."""
    servers = Servers(run, called or {})
    step = f"ts/{window}ns, " if window else ""
    pairs = run.ask(ANSWERED, "count, min(ts), max(ts)", f"{step}src_ip, dst_ip")
    again = run.ask(f"{ANSWERED} && retries > 0", "count", f"{step}src_ip, dst_ip")
    ends = [run.ask(ANSWERED, "count", f"ts/{piece}ns, {end}_ip") for end in ("src", "dst")]
    failures = run.look(f"{FAILED} && !(notes has overflow)")
    return lambda: _holes(run, servers, pairs, again, ends, failures, window, piece)


def _holes(
    run: Pass, servers: Servers, pairs: _Sum, again: _Sum, ends: Sequence[_Sum], failures: Failures, window: int,
    piece: int,
) -> tuple[list[Window], dict[str, Server]]:  # fmt: skip
    windows: dict[int, Window] = {}
    known = servers.read()
    theirs, run.overflows = run.excused(failures, known)

    def of(start: int) -> Window:
        if start not in windows:
            windows[start] = Window(start)
        return windows[start]

    seen: dict[tuple[str, int], list[int]] = {}
    begin = 1 << 63
    for number, (ts, src, dst) in enumerate(failures.ends()):
        if number in theirs:
            continue
        if ts < begin:
            begin = ts
        its = of(ts // window * window if window else 0)
        some = its.failures.get((src, dst))
        if some is None:
            some = its.failures[src, dst] = Some(failures)
        some.add(number)
        when_ = ts // piece * piece
        for address in (src, dst):
            counts = seen.get((address, when_))
            if counts is None:
                counts = seen[address, when_] = [0, 0]
            counts[1] += 1
    for *when, src, dst, count, first, last in pairs.rows(run.text):
        its = of(when[0] if window else 0)
        failed = its.failures.get((src, dst))
        if failed is not None:
            its.answered[src, dst] = count, first, last
        its.tried[count + len(failed or ())] += 1
        begin = min(begin, first)
        _cross(its, known[src], known[dst], 0, count)
    for its in windows.values():
        for pair, failed in its.failures.items():
            if pair not in its.answered:
                its.tried[len(failed)] += 1
            _cross(its, known[pair[0]], known[pair[1]], 1, len(failed))
    for *when, src, dst, count in again.rows(run.text):
        of(when[0] if window else 0).retried[src, dst] = count
    for one in ends:
        for when_, address, count in one.rows(run.text):
            seen.setdefault((address, when_), [0, 0])[0] += count
    for (address, when_), counts in seen.items():
        of(when_ // window * window if window else 0).ends[address, when_] = counts
    if not window and windows:
        windows[0].start = begin
    return [windows[start] for start in sorted(windows)], known


def _cross(window: Window, a: Server, b: Server, what: int, count: int) -> None:
    """Count probes between two servers for each border that they cross."""
    for level, end, other in ((3, a, b), (3, b, a), (2, a, b), (2, b, a)):
        if end[-level:] != other[-level:]:
            window.crossing.setdefault(end[-level:], [0, 0])[what] += count


@dataclass
class Drops:
    """What probes of a window met: ``cells`` {(pod of source, of target): [ok, dropped, failed]} by servers' places
    (pod, podset, dc); ``ok`` and ``failed`` {pair of addresses: probes} of pairs with drops; ``dropped``: these drops.
    ``end``: after the last probe that was answered.
    """

    start: int
    end: int = field(default=0, compare=False)
    cells: dict[tuple[tuple[str, ...], tuple[str, ...]], list[int]] = field(default_factory=dict)
    ok: dict[tuple[str, str], int] = field(default_factory=dict)
    failed: dict[tuple[str, str], int] = field(default_factory=dict)
    dropped: dict[tuple[str, str], Some] = field(default_factory=dict)


def drops_by_windows(
    reader: Reader, where: str, window: int, since: int | None = None, until: int | None = None,
    called: Mapping[str, Server] | None = None,
) -> tuple[list[Drops], dict[str, Server], Pass]:  # fmt: skip
    """The same for drops.  ``ok``, dropped and failed are those of `store.mesh`."""
    run = Pass(reader, where, since, until)
    found = drops_of(run, window, called)
    run.run()
    return *found(), run


def drops_of(
    run: Pass, window: int, called: Mapping[str, Server] | None
) -> Callable[[], tuple[list[Drops], dict[str, Server]]]:
    """Ask for what `drops_by_windows` gives; it is there when the pass is made."""
    servers = Servers(run, called or {})
    step = f"ts/{window}ns, " if window else ""
    answered = run.ask("outcome == ok", "count, min(ts), max(ts)", f"{step}src_ip, dst_ip")
    unanswered = run.ask("outcome in (timeout, refused, unreachable, reset, garbled)", "count",
                         f"{step}src_ip, dst_ip")  # fmt: skip
    dropped = run.look(DROPPED)
    return lambda: _drops(run, servers, answered, unanswered, dropped, window)


def _drops(
    run: Pass, servers: Servers, answered: _Sum, unanswered: _Sum, dropped: Failures, window: int
) -> tuple[list[Drops], dict[str, Server]]:
    known = servers.read()
    theirs, run.overflows = run.excused(dropped, known)
    windows: dict[int, Drops] = {}
    begin = 1 << 63

    def cell(its: Drops, src: str, dst: str) -> list[int]:
        return its.cells.setdefault((known[src][1:], known[dst][1:]), [0, 0, 0])

    def of(start: int) -> Drops:
        if start not in windows:
            windows[start] = Drops(start)
        return windows[start]

    for number, drop in enumerate(dropped):
        if number in theirs:
            continue
        its = of(drop.ts // window * window if window else 0)
        pair = drop.src, drop.dst
        if pair not in its.dropped:
            its.dropped[pair] = Some(dropped)
        its.dropped[pair].add(number)
        cell(its, drop.src, drop.dst)[1] += 1
    for *when, src, dst, count, first, last in answered.rows(run.text):
        its = of(when[0] if window else 0)
        its.end = max(its.end, last + 1)
        cell(its, src, dst)[0] += count
        begin = min(begin, first)
        if (src, dst) in its.dropped:
            its.ok[src, dst] = count
    for *when, src, dst, count in unanswered.rows(run.text):
        its = of(when[0] if window else 0)
        cell(its, src, dst)[2] += count
        if (src, dst) in its.dropped:
            its.failed[src, dst] = count
    if not window and windows:
        windows[0].start = begin if begin < 1 << 63 else 0
    return [windows[start] for start in sorted(windows)], known


T = TypeVar("T")


class Open(Generic[T]):
    """Windows of ``window`` ns that are open, each with a pass of its own: for those who follow a log.

    ``ask``: what of each pass, see `holes_of` and `drops_of`; `judge` gives the answer, and the pass.  What hosts tell
    of their overflows counts for each window that it reaches into.  ``newest``: time of the newest record.
    """

    def __init__(
        self, of: Of, where: str, since: int | None, until: int | None, window: int,
        ask: Callable[[Pass], Callable[[], T]],
    ) -> None:  # fmt: skip
        self.window, self.newest = window, -(1 << 63)
        self._make: Callable[[], Pass] = lambda: Pass(of, where, since, until)
        self._ask = ask
        one = self._make()
        asked = f"({one.asked}) && !({NONE})" if one.asked.strip() else f"!({NONE})"
        self.select = one.compile(asked).within(since, until).program.select
        self._ts = of.schema.index("ts")
        self._open: dict[int, tuple[Pass, Callable[[], T]]] = {}
        self._spans: list[tuple[int, int, int, str]] = []

    def update(self, block: Block, picks: Picks | None = None) -> None:
        """Take in rows that `select` chose."""
        from confluo_tools.core.block import Picks as Chosen

        if picks is not None and len(picks) < block.rows:
            block = block.take(picks)
        if not block.rows:
            return
        times = memoryview(block.buffer(self._ts)).cast("q")
        low, high = min(times), max(times)
        self.newest = max(self.newest, high)
        if low // self.window == high // self.window:
            self._take(low // self.window * self.window, block)
            return
        rows: dict[int, list[int]] = {}
        for row, ts in enumerate(times):
            rows.setdefault(ts // self.window, []).append(row)
        for number in sorted(rows):
            self._take(number * self.window, block.take(Chosen.of(block.rows, rows[number])))

    def _take(self, start: int, block: Block) -> None:
        if start not in self._open:
            if len(self._open) >= MOST_WINDOWS:
                raise UsageError(f"more than {MOST_WINDOWS:,} windows at a time", hint="take longer ones, or --since")
            run = self._make()
            self._open[start] = run, self._ask(run)
        run, _ = self._open[start]
        run.take(block)
        self._spans += run.spans
        run.spans.clear()

    def windows(self) -> list[int]:
        """Starts of the windows there are, ascending."""
        return sorted(self._open)

    def probes_of(self, window: int) -> int:
        """Probes of a window."""
        return self._open[window][0].rows

    def judge(self, window: int) -> tuple[T, Pass]:
        """What is asked of a window, and the pass that was made of it."""
        run, found = self._open[window]
        run.spans = [span for span in self._spans if span[1] >= window]
        return found(), run

    def pop(self, window: int) -> None:
        """Forget a window, and what hosts told of times before it."""
        del self._open[window]
        if not any(start < window for start in self._open):
            self._spans = [span for span in self._spans if span[1] >= window]
