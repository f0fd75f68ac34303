"""Query plan: find the rows of an expression with zone maps, indexes and scans.  The result is always exact.

    plan = Plan(log, version, expr)
    for block, picks in plan: ...            lane by lane; `ordered` is by time (time_order.py)
    plan.count()                             reads no rows where zone maps or postings suffice

For each block (pyx/multilog/log_scan.pyx, pyx/query/c_program.pxd) zone maps decide as many tests as possible.
Postings give the row lists of the most selective tests, which are intersected and united.  The other tests scan the
block, or test only the candidate rows.  A block without postings (beyond the watermark of a view, or of a damaged
file) is scanned.  Paper: section 5.1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

from confluo_tools.core.block.block import Block, Picks
from confluo_tools.core.multilog.log_scan import LogScan
from confluo_tools.core.query.predicate import Program
from confluo_tools.errors import UsageError
from confluo_tools.expr import leaves
from confluo_tools.expr.describe import describe
from confluo_tools.formats.merge import by_time
from confluo_tools.multilog.query import time_order
from confluo_tools.multilog.views.view_reader import ViewReader

if TYPE_CHECKING:
    from confluo_tools.core.multilog.postings import Postings
    from confluo_tools.core.multilog.segment import SegmentBlock, SegmentPart
    from confluo_tools.core.multilog.view_file import ViewFile
    from confluo_tools.expr import Expr
    from confluo_tools.formats.merge import Ranked
    from confluo_tools.multilog.log import Log
    from confluo_tools.multilog.query.time_order import Blocks, Piece
    from confluo_tools.multilog.version import Version
    from confluo_tools.multilog.views.filter import FilterView
    from confluo_tools.schema import Schema

# Bytes of mapped segments kept in memory behind the cursor: for a single query, and for repeated queries (`reader`).
KEEP_ONE, KEEP_MANY = 64 << 20, 512 << 20


class QueryPlan:
    """The rows of ``log`` at ``version`` (None: now) for which ``expr`` (None: all) holds, since <= time < until (ns).

    ``columns``: numbers of the physical columns that the caller reads (None: all).  Their checksums are verified
    before a block is returned; damaged blocks are left out: see `damaged` and `warnings`.
    ``reader``: keeps view files mapped between queries.
    ``skip(part, number)``: returns True for a block to skip.
    ``timed``: measure each step for `explain`.  Raises UsageError for a time range without a time field.
    """

    def __init__(
        self,
        log: Log,
        version: Version | None = None,
        expr: Expr | None = None,
        since: int | None = None,
        until: int | None = None,
        *,
        columns: Iterable[int] | None = None,
        use_indexes: bool = True,
        reader: ViewReader | None = None,
        skip: Callable[[SegmentPart, int], bool] | None = None,
        timed: bool = False,
    ) -> None:
        self.log = log
        self.version = log.version() if version is None else version
        schema = log.schema
        if expr is not None and (since is not None or until is not None):
            expr = expr.within(since, until)
        tree: leaves.Tree = leaves.TRUE if expr is None else expr.tree
        if expr is None and (since is not None or until is not None):
            tree = _time_range(schema, since, until)
        self._skipped = skip
        self._reader: ViewReader | None = (reader or ViewReader(log, many=False)) if use_indexes else None
        self._filters: list[FilterView] = []
        if self._reader is not None and expr is not None:
            self._filters, tree = _known(tree, self._reader.filters(expr), expr)
        self.program = Program(tree, schema.layout)
        self.program.timed = timed
        self.columns = None if columns is None else sorted(set(columns))
        self.damaged = 0  # number of damaged blocks left out
        self._used = self.program.columns
        self._indexable = set(self.program.indexable) if use_indexes else set()
        self._indexes = self._reader.refresh() if self._reader is not None and self._indexable else []
        self._indexed: dict[int, int] = {}  # column -> number of blocks with postings
        self._by_filter: dict[str, int] = {}  # name -> number of blocks with stored rows
        # If the version was pinned, the damage found at that time is reported by this plan.
        self._seen_damage = 0 if self.version.pinned is not None else len(log.damage)
        self._seen_removed = 0 if self.version.pinned is not None else len(log.removed)
        self._keep = KEEP_MANY if reader is not None and reader.many else KEEP_ONE
        self._blocks = 0
        row_bytes = schema.layout.row_bytes
        self._scan_bytes = sum(_width(schema, i) for i in self._used) / row_bytes
        self._given_bytes = 1.0 if self.columns is None else sum(_width(schema, i) for i in self.columns) / row_bytes

    # --- rows

    def __iter__(self) -> Iterator[tuple[SegmentBlock, Picks]]:
        """Yield (block, selected rows), lane by lane in row order; blocks without a match are left out.

        The Picks object is reused: read it before the next iteration.
        """
        return self.rows_of(self._every_block())

    def rows_of(self, parts: Iterable[Blocks]) -> Iterator[tuple[SegmentBlock, Picks]]:
        """The same for some blocks, which are taken as they are needed."""
        search, picks = LogScan(self.program), Picks()  # one per generator: `ordered` interleaves them
        select = search.select
        columns = self.columns
        mapped = _MappedSegments(self._keep)
        for part, numbers in parts:
            search.open(*self._views(part))
            given = False
            for number in numbers:
                if self._skipped is not None and self._skipped(part, number):
                    continue
                block = part.block(number)
                found = -1 if block is None else select(block, picks)
                self._blocks += 1
                if found == 0:
                    continue
                if block is None or found < 0 or (columns != [] and not block.check(columns, picks)):
                    self._skip(block)
                    continue
                given = True
                yield block, picks
            mapped.add(part, search.postings, self._touched(part, given, search.postings))

    def count(self, parts: Iterable[Blocks] | None = None) -> int:
        """Number of matching rows (in some blocks).  Reads no rows where zone maps or postings suffice."""
        search, picks = LogScan(self.program), Picks()
        count = search.count
        mapped = _MappedSegments(self._keep)
        total = 0
        for part, numbers in self._every_block() if parts is None else parts:
            search.open(*self._views(part))
            for number in numbers:
                if self._skipped is not None and self._skipped(part, number):
                    continue
                block = part.block(number)
                found = -1 if block is None else count(block, picks)
                self._blocks += 1
                if found < 0:
                    self._skip(block)
                else:
                    total += found
            mapped.add(part, search.postings, self._touched(part, False, search.postings))
        return total

    def ordered(self, parts: Sequence[Blocks] | None = None) -> Iterator[tuple[Block, Picks]]:
        """The rows by time, rows of equal time by lane, then by number (`time_order`), in whatever order they are.

        Blocks that come next as they are are passed through; other rows are copied into blocks without lane and base.
        ``parts``: only these blocks, each once, those of a lane in their order.
        """
        if self.log.schema.time_field is None:
            yield from self if parts is None else self.rows_of(parts)
        else:
            yield from by_time(self.log.schema, self.streams(parts), self.columns)

    def streams(self, parts: Sequence[Blocks] | None = None) -> list[Iterator[Ranked]]:
        """The rows as streams for `by_time`.  Raises UsageError without a time field."""
        schema = self.log.schema
        if schema.time_field is None:
            raise UsageError(f"schema '{schema.kind}' has no time field")
        time = schema.index(schema.time_field.name)
        if self.columns is not None:
            self.columns = sorted({time, *self.columns})
        out = []
        parts = list(self._every_block()) if parts is None else parts
        for lane in sorted({part.lane for part, _ in parts}):
            own = [(part, numbers) for part, numbers in parts if part.lane == lane]
            pieces = time_order.pieces(own, time)
            if not time_order.goes_back(pieces):
                out.append(time_order.ranked(self.rows_of(own)))
                continue
            found = time_order.streams(pieces)
            if len(found) <= time_order.MAX_STREAMS:
                out += [self._pieces(stream) for stream in found]
            else:
                out.append(time_order.sliced(schema, self.columns, pieces, lambda some, lo, hi: self._passing(some)))
        return out

    def _pieces(self, pieces: Sequence[Piece]) -> Iterator[Ranked]:
        runs = groupby(pieces, key=lambda p: p.part)
        return time_order.ranked(self.rows_of((part, [p.number for p in run]) for part, run in runs))

    def _passing(self, pieces: Sequence[Piece]) -> Iterator[Ranked]:
        # For readers that copy what they need: no segment stays in memory.
        for part, run in groupby(pieces, key=lambda p: p.part):
            yield from self._pieces(list(run))
            part.release()

    def lanes(self) -> dict[int, Iterator[tuple[SegmentBlock, Picks]]]:
        """The rows of each non-empty lane, in row order."""
        every = list(self._every_block())
        lanes = sorted({part.lane for part, _ in every})
        return {lane: self.rows_of([one for one in every if one[0].lane == lane]) for lane in lanes}

    def _every_block(self) -> Iterator[Blocks]:
        for part in self.log.segments(self.version):
            yield part, range(part.blocks)

    # --- access to views

    def _views(self, part: SegmentPart) -> tuple[dict[int, Postings], dict[str, ViewFile]]:
        stored: dict[str, ViewFile] = {}
        if self._reader is not None and self._filters:
            stored = self._reader.stored(part, self._filters)
            for name, chunks in stored.items():
                self._by_filter[name] = self._by_filter.get(name, 0) + min(chunks.blocks, part.blocks)
        return self._postings(part), stored

    def _postings(self, part: SegmentPart) -> dict[int, Postings]:
        if self._reader is None or not self._indexes:
            return {}
        postings = self._reader.postings(part, self._indexable)
        for column, found in postings.items():
            self._indexed[column] = self._indexed.get(column, 0) + min(found.blocks, part.blocks)
        return postings

    def _touched(self, part: SegmentPart, given: bool, postings: dict[int, Postings]) -> float:
        # Estimated bytes of the segment and of its postings that this plan has brought into memory.
        size: float = part.rows * self.log.schema.layout.row_bytes
        lists = sum(map(len, postings.values()))
        if self._keep == KEEP_ONE:
            return lists + size  # a page fault may map 2 MiB around the address, and the pages are not used again
        return lists + size * max(self._given_bytes * given, 0.02 if postings else self._scan_bytes)

    def _skip(self, block: SegmentBlock | None) -> None:
        if block is not None:
            block.check(self._used)  # records the damaged column, and excludes the block
        self.damaged += 1

    @property
    def left_out(self) -> list[tuple[str, str]]:
        """(path, problem) of the parts of the log with rows missing from the result."""
        return problems(self.log, self._seen_damage, self._seen_removed)

    @property
    def unused(self) -> list[tuple[str, str]]:
        """(path, problem) of views that were not used; the result does not depend on them."""
        if self._reader is None:
            return []
        self._reader.report()
        return list(self._reader.warnings)

    @property
    def warnings(self) -> list[tuple[str, str]]:
        """All problems found: `left_out` and `unused`."""
        return self.left_out + self.unused

    # --- statistics

    def explain(self) -> dict[str, Any]:
        """Statistics of the plan so far, for --explain.

        version_rows, blocks, damaged, matched (rows), ns (in the program, if timed), and three lists: indexes {field,
        bucket, blocks} and filters {name, blocks} that were used; steps, one per test in tree order: {depth, op, text,
        zone_none, zone_all, by_index, by_scan, by_list (blocks decided in each way), rows_in (rows read), posted (rows
        from postings), selectivity (posted rows / rows of their blocks, None without postings), ns}.
        """
        schema = self.log.schema
        steps: list[dict[str, Any]] = []

        def walk(node: dict[str, Any], depth: int) -> None:
            if node["op"] == "test":
                step = {key: node[key] for key in _COUNTERS}
                step["selectivity"] = node["posted"] / node["posted_of"] if node["posted_of"] else None
                text = describe(leaves.Not(node["leaf"]) if node["negated"] else node["leaf"], schema)
                steps.append({"depth": depth, "op": "test", "text": text, **step})
                return
            text = node["op"] if "items" in node else str(node["value"]).lower()
            text = f"filter {node['name']}, or, for blocks that it does not cover" if text == "filter" else text
            steps.append({"depth": depth, "op": node["op"], "text": text})
            for item in node.get("items", ()):
                walk(item, depth + 1)

        walk(self.program.describe(), 0)
        return {
            "version_rows": self.version.rows,
            "blocks": self._blocks,
            "damaged": self.damaged,
            "matched": self.program.chosen,
            "ns": self.program.ns,
            "indexes": [
                {"field": v.field, "bucket": v.bucket, "blocks": self._indexed[v.column]}
                for v in self._indexes
                if v.column in self._indexed
            ],
            "filters": [{"name": name, "blocks": blocks} for name, blocks in self._by_filter.items()],
            "steps": steps,
        }


def problems(log: Log, damage: int = 0, removed: int = 0) -> list[tuple[str, str]]:
    """(path, problem) of what ``log`` has found damaged or removed so far, without the first ones of each."""
    return [
        (path, reason if block is None else f"block {block}: {reason}") for path, block, reason in log.damage[damage:]
    ] + [
        (log.path, f"{end - start:,} rows of lane {lane} were removed by retention in the meantime")
        for lane, start, end in dict.fromkeys(log.removed[removed:])
    ]


_COUNTERS = ("zone_none", "zone_all", "by_index", "by_scan", "by_list", "rows_in", "posted", "ns")


class _MappedSegments:
    # Mapped segments behind the cursor; their memory is released when it exceeds `keep` bytes.
    def __init__(self, keep: int) -> None:
        self.keep = keep
        self.parts: list[tuple[SegmentPart, dict[int, Postings], float]] = []
        self.size = 0.0

    def add(self, part: SegmentPart, postings: dict[int, Postings], size: float) -> None:
        self.parts.append((part, postings, size))
        self.size += size
        while self.size > self.keep and self.parts:
            old, lists, much = self.parts.pop(0)
            old.release()
            for one in lists.values():
                one.release()
            self.size -= much


def _known(tree: leaves.Tree, views: list[FilterView], expr: Expr) -> tuple[list[FilterView], Any]:
    # The filters with stored rows that the tree can use, and the tree with `Stored` in their places.
    used: dict[str, FilterView] = {}
    for view in sorted(views, key=lambda v: -len(getattr(v.tree, "items", ()))):  # most specific first
        if isinstance(view.tree, leaves.Const):
            continue
        found = _with_stored(tree, view.name, view.tree)
        if found is tree and expr.demands.get(view.name) == view.text and tree != leaves.FALSE:
            # The simplifier has merged the filter with other tests, but it still holds for every row.
            rest = tree.items if isinstance(tree, leaves.And) else (tree,)
            found = _all((leaves.Stored(view.name, view.tree), *rest))
        if found is not tree:
            used[view.name], tree = view, found
    return list(used.values()), tree


def _all(items: tuple[Any, ...], kind: type[leaves.And] | type[leaves.Or] = leaves.And) -> Any:
    return kind(items)


def _with_stored(tree: Any, name: str, part: Any) -> Any:
    # `tree` with `part` marked wherever it occurs; the same object if it does not occur.
    if tree == part:
        return leaves.Stored(name, part)
    if not isinstance(tree, (leaves.And, leaves.Or)):
        return tree
    items = tree.items
    wanted = part.items if type(part) is type(tree) else ()
    if wanted and all(w in items for w in wanted):
        rest = tuple([i for i in items if i not in wanted])
        return _all((leaves.Stored(name, part), *rest), type(tree))
    inner = tuple([_with_stored(i, name, part) for i in items])
    return tree if all(a is b for a, b in zip(inner, items, strict=True)) else type(tree)(inner)


def _width(schema: Schema, column: int) -> int:
    _, _, size, count = schema.layout.describe(column)
    return size * count


def _time_range(schema: Schema, since: int | None, until: int | None) -> leaves.Tree:
    if schema.time_field is None:
        raise UsageError(f"schema '{schema.kind}' has no time field", hint="--since and --until need one")
    lo = -(1 << 63) if since is None else max(since, -(1 << 63))
    hi = (1 << 63) - 1 if until is None else min(until - 1, (1 << 63) - 1)
    return leaves.Range(schema.index(schema.time_field.name), lo, hi) if lo <= hi else leaves.FALSE
