"""Read archives.

    ArchiveReader("archive/")            all rows of an archive, as an input

`log_with_archive` reads a log together with its archives.

Hours and row groups in which no row can match, by partition or statistics, are skipped.  Of the others the columns of
the expression are read first, and the requested columns only where rows match.  Rows are merged by time, as those of a
MultiLog are (confluo_tools/multilog/query/time_order.py), or come lane by lane in row order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from itertools import groupby
from typing import TYPE_CHECKING, Any

from confluo_tools.errors import FormatError, SchemaError
from confluo_tools.expr import leaves, zones
from confluo_tools.formats.merge import by_time as merged_by_time
from confluo_tools.formats.reader import Reader, Warn
from confluo_tools.multilog.archive import parquet_parts
from confluo_tools.multilog.archive.folders import find_parts, hosts, merged_into
from confluo_tools.multilog.archive.open_ahead import OpenedPart, PartFile, Reading, open_ahead
from confluo_tools.multilog.archive.parquet_parts import GROUP, HOUR, ParquetPart
from confluo_tools.multilog.archive.part_check import FooterCheck
from confluo_tools.multilog.archive.path_fields import PathColumns, with_path_fields
from confluo_tools.multilog.archive.storage import DiskFile, open_file, request_early, storage
from confluo_tools.multilog.query import time_order
from confluo_tools.schema.schema_fit import with_names

if TYPE_CHECKING:
    from confluo_tools.core.block.block import Block, Picks
    from confluo_tools.core.query.predicate import Program
    from confluo_tools.formats.merge import Ranked
    from confluo_tools.schema import Schema

Rows = Iterator[tuple["Block", "Picks"]]
Lane = tuple[str, int]  # uuid of the log, number of the lane
BatchRows = tuple[list[PartFile], int, int]  # parts of a batch, the first row to read, and the one after the last
TRIES = 20


class ArchiveScan:
    """One scan of parts of archives; the rows have ``schema``.

    ``columns``: numbers of the columns to read, None for all; ``path_fields``: names of those that the path has.
    ``damaged``: (path, problem) of damaged parts so far.
    """

    def __init__(
        self, schema: Schema, tree: leaves.Tree, columns: Sequence[int] | None, path_fields: Sequence[str] = ()
    ) -> None:
        self.schema, self.tree = schema, tree
        self._path = PathColumns(schema, path_fields)
        self.columns = list(range(schema.layout.n)) if columns is None else sorted(set(columns))
        self.rows = self.parts = self.groups = self.skipped = 0
        self.damaged: list[tuple[str, str]] = []
        self._footers = FooterCheck()
        self._lists = frozenset(i for i, c in enumerate(schema.columns) if c.count > 1)
        field = schema.time_field
        self._time = -1 if field is None else schema.index(field.name)
        self._limited = self._time in leaves.columns(tree)  # the condition has limits of time
        self._wide = parquet_parts.extended(schema)
        self._arrow: list[Any] = []  # Arrow types of the columns, filled on first use

    def _program(self, lo: int, hi: int | None) -> tuple[Program, Schema]:
        # The expression, and lo <= log_row < hi unless that always holds.
        from confluo_tools.core.query.predicate import Program

        if lo == 0 and hi is None:
            return Program(self.tree, self.schema.layout), self.schema
        last = (1 << 64) - 1 if hi is None else hi - 1
        within = leaves.Range(self.schema.layout.n, lo, last)
        return Program(leaves.And((within, self.tree)), self._wide.layout), self._wide

    def explain(self) -> dict[str, int]:
        """Files opened, row groups of all files, and row groups skipped by times of files and by statistics."""
        return {"files": self.parts, "groups": self.groups, "passed_over": self.skipped}

    def lane(self, parts: Sequence[PartFile], below: int | None = None, covered: int = 0) -> Rows:
        """The rows of one lane in the order in which they were written.

        ``below``: only rows before this number; ``covered``: only rows from this number on.
        """
        yield from self.batches(ranges(parts, below, covered))

    def batches(self, wanted: Iterable[BatchRows]) -> Rows:
        """The rows of batches, one after the other."""
        readings = self._readings(wanted, self.columns)
        for _, of_batch in groupby(self._groups(readings), key=lambda one: one[0].place.name.batch):
            yield from self._batch(of_batch)

    def _readings(self, batches: Iterable[BatchRows], rest: Sequence[int] = ()) -> Iterator[Reading]:
        for batch, lo, hi in batches:
            program, schema = self._program(*_limits(batch, lo, hi))
            for place in batch:
                yield Reading(place, program, schema, batch[0].name.first, rest, (lo, hi))

    def streams(self, parts: Sequence[PartFile], lane: int, below: int | None = None) -> list[Iterator[Ranked]]:
        """The rows of `lane` by time, as streams for `by_time`; ``lane``: its number among the lanes of the reader."""
        return self.streams_of(list(ranges(parts, below)), lane)

    def streams_of(self, wanted: Sequence[BatchRows], lane: int) -> list[Iterator[Ranked]]:
        """The rows of batches by time, as streams for `by_time`.  ``wanted``: what `ranges` gave for one lane."""
        batches = []
        for batch, lo, hi in wanted:
            program = self._program(*_limits(batch, lo, hi))
            batches.append(time_order.Span(*self._hours(batch), batch[0].name.first, (batch, program, (lo, hi))))
        if time_order.goes_back(batches):  # by the hour; the statistics are exact
            batches = [b._replace(lo=lo, hi=hi) for b in batches for lo, hi in [self._times(b)]]
        found = time_order.streams(batches)
        if len(found) > 1:
            self.read_times()
        if len(found) <= time_order.MAX_STREAMS:
            return [self._by_time(stream, lane) for stream in found]

        def read(some: Sequence[time_order.Span], lo: int, hi: int) -> Iterator[Ranked]:
            return self._by_time(some, lane, lo, hi)

        return [time_order.sliced(self.schema, self.columns, batches, read)]

    def read_times(self) -> None:
        """The times will be needed, too: several streams are merged."""
        field = self.schema.time_field
        if field is not None:
            self.columns = sorted({self.schema.index(field.name), *self.columns})

    def merged(self, streams: Sequence[Iterator[Ranked]]) -> Rows:
        """Merge `streams` by time.  A single one is in order, and its times are not read."""
        from confluo_tools.core.block.block import Picks as Make

        if len(streams) == 1:
            for block, picks, _ in streams[0]:
                yield block, Make.of(block.rows) if picks is None else picks
            return
        self.read_times()
        yield from merged_by_time(self.schema, streams, self.columns)

    def _by_time(
        self, stream: Sequence[time_order.Span], lane: int, lo: int = time_order.EARLIEST, hi: int = time_order.LATEST
    ) -> Iterator[Ranked]:
        # The parts of a batch are its hours, each sorted by time.
        readings = [
            Reading(place, program, schema, span.first, self.columns, rows)
            for span in stream
            for places, (program, schema), rows in [span.item]
            for place in places
            if place.name.hour * HOUR <= hi and (place.name.hour + 1) * HOUR > lo
        ]
        return self._ranked(self._groups(readings), lane)

    def _ranked(self, groups: Iterable[tuple[Reading, ParquetPart, int]], lane: int) -> Iterator[Ranked]:
        for reading, part, group in groups:
            for block, picks in self._group(reading, part, group, False):
                yield block, picks, time_order.rank(lane, reading.first)

    def _hours(self, batch: Sequence[PartFile]) -> tuple[int, int]:
        return batch[0].name.hour * HOUR, (batch[-1].name.hour + 1) * HOUR - 1

    def _times(self, span: time_order.Span) -> tuple[int, int]:
        # The first and last time of a batch; its hours where a file cannot be read, or has no statistics.
        field, batch = self.schema.time_field, span.item[0]
        ends = [self._hours(batch)[0]], [self._hours(batch)[1]]
        for i, place in ((0, batch[0]), (1, batch[-1])):
            try:
                known = self._footers.known(place.name, place.path)
                if known is not None and known.times is not None:
                    ends[i][0] = known.times[i]
                    continue
                part = open_part(place)
            except (FormatError, OSError):
                continue  # reported when its rows are read
            try:
                zones_of = [part.zone(group, field.name) for group in range(part.groups)] if field is not None else []
            finally:
                part.close()
            if zones_of and None not in zones_of:
                ends[i][0] = (min if i == 0 else max)(zone[i] for zone in zones_of if zone is not None)
        return ends[0][0], ends[1][0]

    def count(self, parts: Sequence[PartFile], below: int | None = None, covered: int = 0) -> int:
        """Number of rows that `lane` would yield."""
        return self.count_batches(ranges(parts, below, covered))

    def count_batches(self, wanted: Iterable[BatchRows]) -> int:
        """Number of rows that `batches` would yield."""
        return sum(self._count(*found) for found in self._groups(self._readings(wanted)))

    def _count(self, reading: Reading, part: ParquetPart, group: int) -> int:
        rows, program, schema = part.group_rows(group), reading.program, reading.schema
        assert program is not None
        if schema is self.schema and self._known(reading, part, group) == zones.ALL:
            return rows
        try:
            columns = self._read(reading, part, group, program.columns)
        except FormatError as e:
            self._damage(part.path, e)
            return 0
        return sum(program.count(block) for block in parquet_parts.blocks(schema, rows, columns))

    def _batch(self, groups: Iterable[tuple[Reading, ParquetPart, int]]) -> Rows:
        pieces: list[Block] | None = None
        for reading, part, group in groups:
            if pieces is None and not part.in_time_order:
                pieces = []
            for block, picks in self._group(reading, part, group, pieces is not None):
                if pieces is None:
                    yield block, picks
                else:
                    pieces.append(block.take(picks))
        if pieces:
            from confluo_tools.core.block.block import Block as Make
            from confluo_tools.core.block.block import Picks

            n = self.schema.layout.n
            for block in parquet_parts.in_row_order(self._wide, pieces):  # fields have other names there
                buffers = [block.buffer(i) for i in range(n)]
                yield Make.wrap(self.schema.layout, block.rows, buffers), Picks.of(block.rows)

    def _groups(self, readings: Iterable[Reading]) -> Iterator[tuple[Reading, ParquetPart, int]]:
        # The row groups of parts that may contain matching rows.  Of objects, the first are opened now.
        return self._counted(open_ahead(readings, self._opened))

    def _counted(self, parts: Iterator[OpenedPart]) -> Iterator[tuple[Reading, ParquetPart, int]]:
        with closing(parts):  # type: ignore[type-var]
            for reading, part, groups, problem, passed in parts:
                if part is None and problem:
                    self.damaged.append((reading.place.path, problem))
                    continue
                if part is None:
                    self.rows += passed
                    self.groups += -(-passed // GROUP)
                    self.skipped += -(-passed // GROUP)
                    continue
                self.parts += 1
                self.groups += part.groups
                self.skipped += part.groups - len(groups)
                self.rows += part.rows
                for group in groups:
                    yield reading, part, group

    def _opened(self, reading: Reading) -> OpenedPart:
        try:
            passed = self._outside(reading.place) if self._limited else 0
            if passed:
                return OpenedPart(reading, None, [], passed=passed)
            reading, part = self._open_or_merged(reading)
        except FormatError as e:
            return OpenedPart(reading, None, [], _left_out(e))
        except FileNotFoundError:
            return OpenedPart(reading, None, [], "was removed meanwhile; its rows are left out")
        except OSError as e:
            return OpenedPart(reading, None, [], f"cannot be opened: {e.strerror or e}")
        known = [self._known(reading, part, group) for group in range(part.groups)]
        groups = [group for group, holds in enumerate(known) if holds != zones.NONE]
        if reading.program is not None:
            counted = reading.schema is self.schema and not reading.rest
            read = [group for group in groups if not counted or known[group] != zones.ALL]
            first = {*reading.program.columns} - self._path.numbers
            with suppress(OSError):  # it is said when they are read
                part.plan(read, self._wide, sorted(first), sorted({*reading.rest} - first - self._path.numbers))
        return OpenedPart(reading, part, groups)

    def _outside(self, place: PartFile) -> int:
        # The number of rows of a part if none of them can match by the times that its record has, else 0.
        known = self._footers.known(place.name, place.path)
        if known is None or known.times is None:
            return 0
        times = known.times
        held = zones.holds(self.tree, lambda col: times if col == self._time else None, self._lists)
        return known.rows if held == zones.NONE else 0

    def _open_or_merged(self, reading: Reading) -> tuple[Reading, ParquetPart]:
        # The part, or the one with which it was merged since the archive was listed.
        for _ in range(TRIES):
            try:
                return reading, open_part(reading.place, self._footers)
            except FileNotFoundError:
                place = merged_into(reading.place, *reading.rows)
                if place is None:
                    raise
                program, schema = self._program(*reading.rows)
                reading = reading._replace(
                    place=place, program=None if reading.program is None else program, schema=schema
                )
        return reading, open_part(reading.place, self._footers)

    def _known(self, reading: Reading, part: ParquetPart, group: int) -> int:
        name = reading.place.name

        def zone(col: int) -> tuple[Any, Any] | None:
            if col in self._path.numbers:
                return (self._path.value(col, name.host, name.hour // 24),) * 2
            column = self._wide.columns[col]
            return part.zone(group, column.name, 8 * column.size if column.code <= 4 else 0)

        return zones.holds(self.tree, zone, self._lists)

    def _read(
        self, reading: Reading, part: ParquetPart, group: int, columns: Sequence[int], wanted: bytearray | None = None
    ) -> dict[int, Any]:
        if not self._arrow:
            self._arrow = parquet_parts.arrow_types(self._wide)
        own = [i for i in columns if i not in self._path.numbers]
        found = part.read(group, self._wide, self._arrow, own, wanted)
        return found | {i: self._path.repeated(i, reading.place.name) for i in columns if i in self._path.numbers}

    def _group(self, reading: Reading, part: ParquetPart, group: int, numbered: bool) -> Rows:
        # Read the columns of the expression first, the others only if a row matches.
        from confluo_tools.core.parquet.column_chunk import wanted_stretches

        rows, program, schema = part.group_rows(group), reading.program, reading.schema
        assert program is not None
        try:
            columns = self._read(reading, part, group, program.columns)
            chosen = [program.select(block) for block in parquet_parts.blocks(schema, rows, columns)]
            if not any(map(len, chosen)):
                return
            rest = {*self.columns, *([self._wide.layout.n - 1] if numbered else [])} - columns.keys()
            columns |= self._read(reading, part, group, sorted(rest), wanted_stretches(chosen))
        except FormatError as e:
            self._damage(part.path, e)
            return
        given = self._wide if numbered else self.schema
        for block, picks in zip(parquet_parts.blocks(given, rows, columns), chosen, strict=True):
            if len(picks):
                yield block, picks

    def _damage(self, path: str, e: FormatError) -> None:
        self.damaged.append((path, _left_out(e)))

    def possible(self, batch: Sequence[PartFile]) -> list[PartFile]:
        """The parts of a batch that may have matching rows by their statistics; the others count as looked at."""
        kept = []
        for place in batch:
            before = self.rows, self.parts, self.groups, self.skipped, len(self.damaged)
            rows = place.name.first, place.name.end
            if next(self._groups([Reading(place, None, self.schema, 0, (), rows)]), None) is None:
                continue
            self.rows, self.parts, self.groups, self.skipped = before[:4]  # counted when it is read
            del self.damaged[before[4] :]
            kept.append(place)
        return kept


def _left_out(e: FormatError) -> str:
    return f"{e.what}; its rows are left out"


def open_part(place: PartFile, footers: FooterCheck | None = None) -> ParquetPart:
    """A part, open for reading.  Raises FormatError: it is damaged, or not as its record says; OSError."""
    if footers is not None:
        request_early(place.path, footers.load, place.name, place.path)
    file = open_file(place.path, place.stat)
    try:
        problem = footers.problem(place.name, place.path, file) if footers is not None else ""
        if problem:
            raise FormatError(problem, where=place.path)
        return ParquetPart(place.path, None if isinstance(file, DiskFile) else file)
    finally:
        if isinstance(file, DiskFile):
            file.close()


def in_time_order(place: PartFile) -> bool:
    """`ParquetPart.in_time_order` of a part; False if it cannot be read."""
    try:
        part = open_part(place)
    except (FormatError, OSError):
        return False
    part.close()
    return part.in_time_order


def ranges(
    parts: Sequence[PartFile], below: int | None = None, covered: int = 0
) -> Iterator[tuple[list[PartFile], int, int]]:
    """The batches of one lane in row order, and the rows to read of each: from a first one up to a last, not included.

    A part has all rows of its hour from the first to the last row of its batch.  So batches that overlap, such as those
    that are being merged or are in several archives, are sorted out hour by hour, and each row is read once.
    ``below``: only rows before this number; ``covered``: only rows from this number on.
    """
    roots: dict[str, int] = {}
    hours: dict[int, list[tuple[PartFile, str]]] = {}
    for place in parts:
        root = place.path[: -len(place.name.path)]
        roots[root] = roots.get(root, 0) + 1
        hours.setdefault(place.name.hour, []).append((place, root))
    found: dict[tuple[int, int, int, int], list[PartFile]] = {}
    for hour in sorted(hours):
        done = covered
        for place, _ in sorted(hours[hour], key=lambda p: (p[0].name.first, -p[0].name.end, -roots[p[1]], p[1])):
            first, end = place.name.first, place.name.end
            lo, hi = max(first, done), end if below is None else min(end, below)
            if lo < hi:
                done = end
                found.setdefault((first, end, lo, hi), []).append(place)
    for (_, _, lo, hi), batch in sorted(found.items(), key=lambda one: (one[0][0], one[1][0].name.hour, one[0])):
        yield batch, lo, hi


def _limits(batch: Sequence[PartFile], lo: int, hi: int) -> tuple[int, int | None]:
    # What `ArchiveScan._program` has to test of lo <= log_row < hi.
    name = batch[0].name
    return lo if lo > name.first else 0, hi if hi < name.end else None


def by_lane(places: Iterable[PartFile]) -> dict[Lane, list[PartFile]]:
    out: dict[Lane, list[PartFile]] = {}
    for place in places:
        out.setdefault((place.name.uuid, place.name.lane), []).append(place)
    oldest: dict[str, int] = {}
    for (uuid, _), parts in out.items():
        oldest[uuid] = min(oldest.get(uuid, parts[0].name.hour), *(p.name.hour for p in parts))
    return dict(sorted(out.items(), key=lambda item: (oldest[item[0][0]], item[0])))  # lane order decides equal times


def tree_of(expr: Any) -> leaves.Tree:
    tree: leaves.Tree = leaves.TRUE if expr is None else expr.tree
    return tree


class ArchiveReader(Reader):
    """The rows of an archive by time: all hosts (or only ``host``), logs and lanes.

    ``without``: uuids (hexadecimal) of logs to leave out.  ``below``: by uuid, of each lane the first row that is read
    elsewhere: only rows before it are read.  It may change until rows are read.  ``path_fields``: fields to add.
    Foreign files are skipped with a note, damaged files with a warning.  Raises FormatError when the archive contains
    no part.
    """

    format = "archive"
    by_time = True

    def __init__(
        self,
        path: str,
        *,
        host: str | None = None,
        without: Iterable[str] = (),
        below: Mapping[str, Sequence[int]] | None = None,
        path_fields: Iterable[str] = (),
        warn: Warn | None = None,
        note: Warn | None = None,
    ) -> None:
        super().__init__(path, warn)
        self.path, self._note = path, note
        self._files = storage(path, listed=True)
        self._hosts = None if host is None else {host}
        self.without, self._firsts = set(without), {} if below is None else below
        self._scan: ArchiveScan | None = None
        self.schema, self.path_fields = with_path_fields(self._schema(), path_fields)
        self._path_columns = PathColumns(self.schema, self.path_fields)
        self._time = self.schema.index(self.schema.time_field.name) if self.schema.time_field is not None else -1
        hosts = self.hosts()
        if len(hosts) == 1:
            self.metadata["confluo:host"] = hosts[0]

    def hosts(self) -> list[str]:
        """Names of the hosts in the archive."""
        return [n for n in hosts(self.path, self._files) if self._hosts is None or n in self._hosts]

    def logs(self) -> list[str]:
        """uuids of the logs in the archive."""
        return sorted({place.name.uuid for place in self.places(leaves.TRUE)})

    def _schema(self) -> Schema:
        for _ in range(TRIES):
            with suppress(FileNotFoundError):  # a part was removed since the folders were listed
                return self._merged_schema()
            self._files = storage(self.path, listed=True)
        return self._merged_schema()

    def _merged_schema(self) -> Schema:
        # Columns may have been added to a log: merge the schemas of the newest part of each log.
        newest: dict[str, PartFile] = {}
        for place in find_parts(self.path, leaves.TRUE, -1, self._hosts, self._files):
            known = newest.get(place.name.uuid)
            if known is None or (place.name.hour, place.name.end) >= (known.name.hour, known.name.end):
                newest[place.name.uuid] = place
        found: Schema | None = None
        for place in sorted(newest.values(), key=lambda p: (-p.name.hour, p.path)):
            try:
                part = open_part(place)
                schema = part.schema
                part.close()
            except FormatError as e:
                self.warn_of_part(f"{place.path}: {e.what}")
                continue
            found = schema if found is None else _merge_schemas(found, schema, place.path)
        if found is None:
            hint = "confluo-archive creates archives; confluo-info describes MultiLogs"
            raise FormatError("contains no part of an archive", where=self.path, hint=hint)
        return found

    def places(self, tree: leaves.Tree) -> list[PartFile]:
        """The parts that may have rows for which ``tree`` holds."""
        places = find_parts(self.path, tree, self._time, self._hosts, self._files, self._path_columns)
        return [p for p in places if p.name.uuid not in self.without]

    def list_again(self) -> None:
        """See parts that came since it was opened."""
        self._files = storage(self.path, listed=True)

    def below(self, lane: Lane) -> int | None:
        """Rows of a lane from this one on are read elsewhere; None: all rows are read here."""
        firsts = self._firsts.get(lane[0])
        if firsts is None:
            return None
        return firsts[lane[1]] if lane[1] < len(firsts) else 0

    def blocks(self) -> Iterator[Block]:
        for block, picks in self._select(leaves.TRUE, None, True):
            yield block if len(picks) == block.rows else block.take(picks)

    def select(
        self, expr: Any, columns: Sequence[int] | None = None, *, by_time: bool = True
    ) -> Iterator[tuple[Block, Picks | None]]:
        yield from self._select(tree_of(expr), columns, by_time)
        if self._scan is not None:
            self.rows += self._scan.rows

    def _select(self, tree: leaves.Tree, columns: Sequence[int] | None, by_time: bool) -> Rows:
        lanes = by_lane(self.places(tree))
        by_time = by_time and self._time >= 0
        scan = self._scan = ArchiveScan(self.schema, tree, columns, self.path_fields)
        if by_time:
            if len(lanes) > 1:
                scan.read_times()
            numbered = enumerate(lanes.items())
            streams = [s for n, (lane, parts) in numbered for s in scan.streams(parts, n, self.below(lane))]
            yield from scan.merged(streams)
        else:
            for lane, parts in lanes.items():
                yield from scan.lane(parts, self.below(lane))
        report_damage(scan, self.warn_of_part)

    def count(self, expr: Any) -> int:
        tree = tree_of(expr)
        scan = self._scan = ArchiveScan(self.schema, tree, [], self.path_fields)
        found = sum(scan.count(parts, self.below(lane)) for lane, parts in by_lane(self.places(tree)).items())
        self.rows += scan.rows
        report_damage(scan, self.warn_of_part)
        return found

    def explain(self) -> dict[str, Any] | None:
        return None if self._scan is None else {"archive": self._scan.explain()}

    def warn_of_part(self, what: str) -> None:
        """Report a problem of a part; ``what`` begins with its path."""
        if self._warn is not None:
            self._warn(what)


def report_damage(scan: ArchiveScan, warn: Warn | None) -> None:
    """Warn of each damaged part of a scan."""
    for path, what in dict.fromkeys(scan.damaged):
        if warn is not None:
            warn(f"{path}: {what}")


def _merge_schemas(first: Schema, other: Schema, where: str) -> Schema:
    if other.kind != first.kind:
        what = f"holds records of kind '{other.kind}', other parts of kind '{first.kind}'"
        raise SchemaError(what, where=where, hint="an archive has records of one kind")
    new = []
    for field in other.fields:
        if field.name not in first:
            new.append(field)
        elif first[field.name].type != field.type:
            what = f"'{field.name}' has type {field.type.text}, in other parts {first[field.name].type.text}"
            raise SchemaError(what, where=where)
    return with_names(first.plus(new) if new else first, "other parts", other, where, "read them through their logs")
