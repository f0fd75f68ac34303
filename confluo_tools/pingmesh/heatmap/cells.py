"""Cells of heat maps: from probes or records, to maps and records."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from confluo_tools.errors import FormatError, UsageError
from confluo_tools.pingmesh.heatmap.model import CLASS, COUNTS, MAX_U32, UNIT, ColourLimits, Map, Sheet, group
from confluo_tools.schema import Field, Schema
from confluo_tools.units import natural_key

if TYPE_CHECKING:
    from confluo_tools.core.block.block import Block
    from confluo_tools.formats.reader import Reader

MAX_CELLS = 1 << 23  # of all windows: a gigabyte of memory for a picture
MAX_PATTERN_PODSETS = 40  # maximum podsets with blocks in a pattern record
NS = 1_000_000_000
Unit = tuple[str, str, str]  # data centre, podset, name
COLOURS = {1: "green", 2: "yellow", 3: "red"}
_PARTS = (("_dc", 16), ("_podset", 16), ("", 32))  # fields of a unit, and their bytes


def cell_schema() -> Schema:
    """Schema of a cell: an ordered pair of pods (or podsets, servers) in a window."""
    return Schema(
        "cell",
        [
            Field("ts", "time", unit="ns", description="start of the window"),
            Field("window", "duration", unit="ns", description="length of the window; 0: all records"),
            Field("src", "text(32)", description="source of the probes"),
            Field("dst", "text(32)", description="destination of the probes"),
            Field("src_podset", "text(16)", description="podset of src"),
            Field("dst_podset", "text(16)", description="podset of dst"),
            Field("src_dc", "text(16)", description="data centre of src"),
            Field("dst_dc", "text(16)", description="data centre of dst"),
            Field("ok", "u32", unit="probes", description="answered"),
            Field("dropped", "u32", unit="probes", description="of these, answered after a SYN retransmission"),
            Field("overflow", "u32", unit="probes", description="the same, but dropped by the target's host"),
            Field("failed", "u32", unit="probes", description="not answered"),
            Field("drop_rate", "f64", description="dropped / ok"),
            Field("p50", "duration", unit="ns", description="median round-trip time of probes without retransmission"),
            Field("p99", "duration", unit="ns", description="99th percentile of these round-trip times"),
            Field("colour", "enum", description="colour by --metric; none: no data", names=COLOURS),
        ],
        "A cell of a heat map: probes from one pod to another in a window.",
    )


def pattern_schema() -> Schema:
    """Schema of a finding in a window."""
    return Schema(
        "pattern",
        [
            Field("ts", "time", unit="ns", description="start of the window"),
            Field("window", "duration", unit="ns", description="length of the window; 0: all records"),
            Field(
                "dc", "text(16)", description="data centre of the map, or of the finding in a map of all data centres"
            ),
            Field("metric", "text(8)", description="p50, p99 or drop"),
            Field(
                "pattern",
                "text(24)",
                description="normal, podset down, podset failure, spine failure, ToR failure (of drops), unclassified; "
                "between data centres: data centre down, data centre cut off, data centre failure, trouble inside, "
                "link down, link failure, wan down, wan failure",
            ),
            Field("podset", "text(16)", description="podset of the finding, if any"),
            Field("peer", "text(16)", description="other data centre of a finding between two"),
            Field("none", "u32", unit="cells", description="without data"),
            Field("green", "u32", unit="cells", description="below the lower limit"),
            Field("yellow", "u32", unit="cells", description="between the limits"),
            Field("red", "u32", unit="cells", description="above the upper limit"),
            Field(
                "partial",
                "enum",
                description="whether the records begin or end within the window",
                names={1: "yes", 2: "no"},
            ),
            Field("pod", "text(16)", description="pod of the ToR with the fault, if it is one ToR"),
            Field(
                "blocks",
                "text(1640)",
                description="colours of the podsets' blocks, row by row: "
                "W none, G, Y, R, ? mixed, . no probes expected",
            ),
        ],
        "Pattern of a heat map.",
    )


class Cells:
    """Collects cells of all windows, then makes the `maps`."""

    def __init__(self) -> None:
        self.units: dict[Unit, int] = {}
        self.probes = False  # counted from probes, not read from records of cells
        self.apart = 0  # number of cells between data centres
        self.unnamed = 0  # number of probes without a place
        self.by = ""  # unit of cells read from records, if known
        self.senders: set[int] = set()
        self._windows: dict[int, _Window] = {}

    def __len__(self) -> int:
        return sum(len(window.columns[0]) for window in self._windows.values())

    def number(self, unit: Unit) -> int:
        """The number of a unit; -1 without a name."""
        return self.units.setdefault(unit, len(self.units)) if unit[2] else -1

    def add(
        self,
        start: int,
        src: Sequence[int],
        dst: Sequence[int],
        p50: Iterable[float],
        p99: Iterable[float],
        counts: Sequence[Sequence[int]],
    ) -> None:
        """Add cells of the window that begins at ``start``, as columns: `number` of units, latencies in ns (nan or 0:
        none), `pingmesh.heatmap.model.COUNTS`.
        """
        dcs = [unit[0] for unit in self.units]
        latencies = [[round(ns / UNIT) or 1 if ns > 0 else 0 for ns in column] for column in (p50, p99)]
        columns = (src, dst, *latencies, *counts)
        if len(set(dcs)) > 1 or -1 in src or -1 in dst:
            rows = []
            for i, (a, b) in enumerate(zip(src, dst, strict=True)):
                if a < 0 or b < 0:
                    self.unnamed += counts[0][i] + counts[3][i]
                elif dcs[a] != dcs[b]:
                    self.apart += 1
                else:
                    rows.append(i)
            columns = tuple([column[i] for i in rows] for column in columns)
        window = self._windows.setdefault(start, _Window())
        for column, values in zip(window.columns, columns, strict=True):
            column.extend(values if not values or max(values) <= MAX_U32 else [min(n, MAX_U32) for n in values])

    def maps(self, by: str, width: int, limits: ColourLimits, known: Sequence[Unit] = ()) -> list[Map]:
        """A map for each data centre.  ``known``: units to include, in this order, also without cells.

        Raises UsageError for too many cells.
        """
        for window in self._windows.values():
            self.senders |= set(window.columns[0])
        order = {unit: i for i, unit in enumerate(known)}
        units = sorted({*self.units, *known}, key=lambda u: (order.get(u, len(order)), *map(natural_key, u)))
        dcs: dict[str, list[Unit]] = {}
        for unit in units:
            dcs.setdefault(unit[0], []).append(unit)
        size = sum(len(names) ** 2 for names in dcs.values()) * max(len(self._windows), 1)
        if size > MAX_CELLS:
            raise UsageError(
                f"{len(self._windows)} windows of {len(units)} {by}s are {size:,} cells, more than {MAX_CELLS:,}",
                hint="use --since, a longer --window, or --by podset",
            )
        charts = [self._map(dc, names, by, width, limits) for dc, names in dcs.items()]
        probes = [sum(sheet.probes for sheet in sheets) for sheets in zip(*[c.sheets for c in charts], strict=True)]
        for chart in charts:
            chart.finish(probes)
        return charts

    def _map(self, dc: str, units: list[Unit], by: str, width: int, limits: ColourLimits) -> Map:
        whole = by in ("podset", "dc")  # each unit is a block
        names, podsets = group([(name, name if whole else podset) for _, podset, name in units])
        chart = Map(dc, by, names, podsets, width, limits)
        at = {(podset, name): i for i, name in enumerate(names) for podset, a, b in podsets if a <= i < b}
        place = [-1] * len(self.units)
        for (unit_dc, podset, name), number in self.units.items():
            if unit_dc == dc:
                place[number] = at[name if whole else podset, name]
        n = len(names)
        rows = [i * n for i in place]  # below 0 for other data centres
        for start in sorted(self._windows):
            sheet, window = Sheet(start, n), self._windows[start]
            src, dst, *columns = window.columns
            where = [rows[a] + place[b] if place[a] >= 0 else -1 for a, b in zip(src, dst, strict=True)]
            in_order = len(where) == n * n and where == list(range(n * n))
            for name, column in zip(("p50", "p99", *COUNTS), columns, strict=True):
                if in_order:
                    setattr(sheet, name, column[:])
                elif any(column):
                    target = getattr(sheet, name)
                    for i, value in zip(where, column, strict=True):
                        if value and i >= 0:
                            target[i] = value
            chart.sheets.append(sheet)
        return chart


class _Window:
    """Columns: numbers of units (source, destination), latencies in `UNIT`, counts."""

    def __init__(self) -> None:
        self.columns = tuple(array("I") for _ in range(4 + len(COUNTS)))


def are_cells(schema: Schema) -> bool:
    """Whether records of a schema are cells; text inputs have no kind, only the fields."""
    return schema.kind == "cell" or all(field.name in schema for field in _wanted())


def _wanted() -> list[Field]:
    """The fields that are read; rate and colour follow from the counts."""
    return [field for field in cell_schema().fields if field.name not in ("drop_rate", "colour")]


def read_cells(reader: Reader, cells: Cells) -> int:
    """Read records of cells into ``cells``; the length of their windows (ns).

    Raises FormatError for windows of different lengths.
    """
    schema = reader.schema
    for field in _wanted():
        if field.name not in schema or schema[field.name].type.text != field.type.text:
            raise FormatError(
                f"has no field {field.name} ({field.type.text}); cells of a heat map need it", where=reader.name
            )
    at = {f.name: schema.index(f.name) for f in _wanted()}
    widths: set[int] = set()
    memo: dict[tuple[bytes, ...], int] = {}
    kinds: set[str] = set()
    latest: dict[bytes, tuple[int, bytes, bytes]] = {}  # name -> number, podset and data centre of its last cell

    def units(block: Block, end: str) -> list[int]:
        dcs, podsets, raw = (bytes(block.buffer(at[end + name]))[: size * block.rows] for name, size in _PARTS)
        names = [raw[i : i + 32] for i in range(0, len(raw), 32)]
        with suppress(KeyError):  # a name nearly always has the same place
            found = [latest[name] for name in names]
            if b"".join([unit[1] for unit in found]) == podsets and b"".join([unit[2] for unit in found]) == dcs:
                return [unit[0] for unit in found]
        numbers = []
        for i, name in enumerate(names):
            key = (dcs[16 * i : 16 * i + 16], podsets[16 * i : 16 * i + 16], name)
            number = memo.get(key)
            if number is None:
                dc, podset, text = (part.rstrip(b"\0").decode("utf-8", "replace") for part in key)
                kinds.add("dc" if text == dc and not podset else "podset" if text == podset else "")
                number = memo[key] = cells.number(("" if text == dc and not podset else dc, podset, text))
            latest[name] = (number, key[1], key[0])
            numbers.append(number)
        return numbers

    def numbers(block: Block, name: str, code: str) -> array[int]:
        return array(code, bytes(block.buffer(at[name]))[: block.rows * (8 if code == "q" else 4)])

    for block in reader:
        widths |= set(numbers(block, "window", "q"))
        starts = numbers(block, "ts", "q")
        columns: list[Sequence[int]] = [
            units(block, "src"),
            units(block, "dst"),
            numbers(block, "p50", "q"),
            numbers(block, "p99", "q"),
            *[numbers(block, name, "I") for name in COUNTS],
        ]
        there = set(starts)
        for start in sorted(there):
            if len(there) > 1:
                rows = [i for i, ts in enumerate(starts) if ts == start]
                src, dst, p50, p99, *counts = ([column[i] for i in rows] for column in columns)
            else:
                src, dst, p50, p99, *counts = columns  # type: ignore[assignment]
            cells.add(start, src, dst, p50, p99, counts)
    if len(widths) > 1:
        raise FormatError("has windows of different lengths", where=reader.name)
    if len(kinds) > 1 and "dc" in kinds:
        raise FormatError("mixes cells of data centres with others", where=reader.name)
    cells.by = kinds.pop() if len(kinds) == 1 else ""
    return widths.pop() if widths else 0


def cell_blocks(chart: Map, metric: str, sheets: Sequence[Sheet]) -> Iterator[Block]:
    """The cells of the sheets with probes, as records of `cell_schema`."""
    from confluo_tools.formats.block_builder import blocks_of

    schema, n = cell_schema(), len(chart.names)
    podset = [name * (chart.by != "dc") for name, first, after in chart.podsets for _ in range(first, after)]
    for sheet in sheets:
        colours = chart.shades(sheet, metric).translate(CLASS)
        there = [i for i in range(n * n) if sheet.ok[i] or sheet.failed[i]]
        rows, columns = [i // n for i in there], [i % n for i in there]
        ok, dropped = [sheet.ok[i] for i in there], [sheet.dropped[i] for i in there]
        yield from blocks_of(
            schema,
            {
                "ts": [sheet.start] * len(there),
                "window": [chart.width] * len(there),
                "src": [chart.names[i] for i in rows],
                "dst": [chart.names[i] for i in columns],
                "src_podset": [podset[i] for i in rows],
                "dst_podset": [podset[i] for i in columns],
                "src_dc": [chart.names[i] for i in rows] if chart.by == "dc" else [chart.dc] * len(there),
                "dst_dc": [chart.names[i] for i in columns] if chart.by == "dc" else [chart.dc] * len(there),
                "ok": ok,
                "dropped": dropped,
                "overflow": [sheet.overflow[i] for i in there],
                "failed": [sheet.failed[i] for i in there],
                "drop_rate": [d / n if n else 0.0 for d, n in zip(dropped, ok, strict=True)],
                "p50": [sheet.p50[i] * 100 for i in there],
                "p99": [sheet.p99[i] * 100 for i in there],
                "colour": [colours[i] for i in there],
            },
            len(there),
        )


def pattern_block(chart: Map, metric: str, sheets: Sequence[Sheet]) -> Iterator[Block]:
    """The findings of each sheet, as records of `pattern_schema`."""
    from confluo_tools.formats.block_builder import blocks_of

    rows: list[Mapping[str, Any]] = []
    for sheet in sheets:
        shades = chart.shades(sheet, metric)
        flat = shades.translate(CLASS)
        pattern = chart.pattern(sheet, metric, shades)
        for finding in pattern.findings:
            rows.append(
                {
                    "ts": sheet.start,
                    "window": chart.width,
                    "metric": metric,
                    "pattern": finding.name,
                    "dc": finding.podset if chart.by == "dc" else chart.dc,
                    "podset": finding.podset if chart.by != "dc" else "",
                    "peer": finding.peer,
                    "pod": finding.pod,
                    "none": flat.count(0),
                    "green": flat.count(1),
                    "yellow": flat.count(2),
                    "red": flat.count(3),
                    "partial": 1 if sheet.partial else 2,
                    "blocks": " ".join(pattern.blocks) if len(pattern.podsets) <= MAX_PATTERN_PODSETS else "",
                }
            )
    columns = {name: [row[name] for row in rows] for name in (rows[0] if rows else ())}
    yield from blocks_of(pattern_schema(), columns, len(rows))
