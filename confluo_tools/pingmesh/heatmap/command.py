"""confluo-pingmesh heatmap: draw latency and drops between pods.  Manual: confluo-pingmesh-heatmap(1)."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated

from confluo_tools import cli, config
from confluo_tools.cli.options import option
from confluo_tools.errors import UsageError
from confluo_tools.pingmesh.analysis.window_options import Where, zoned

if TYPE_CHECKING:
    from confluo_tools.formats.reader import Reader
    from confluo_tools.pingmesh.heatmap.cells import Cells, Unit
    from confluo_tools.pingmesh.heatmap.html import Pairs
    from confluo_tools.pingmesh.heatmap.model import ColourLimits, Map, Sheet

app = cli.command_app(
    """
# on the terminal: P99 between pods in the last ten minutes
confluo-pingmesh heatmap probes.ml

# all windows of a day as one interactive page
confluo-pingmesh heatmap probes.ml --since 24h --window 30m -w mesh.html

# drops as a picture
confluo-pingmesh heatmap probes.ml --metric drop -w drops.svg

# only the patterns, window by window, as records
confluo-pingmesh heatmap probes.ml --patterns -J
"""
)

BY = ("pod", "podset", "server", "dc")
ALL_CELLS = 5_000  # up to this number of cells in all windows a page contains the server pairs of every cell
WORST_CELLS = 400  # beyond, those of this number of cells
MAX_PAIRS = 200_000
FAILURES = ("timeout", "refused", "unreachable", "reset", "garbled")


class HeatmapOutput(cli.OutputOptions):
    """The output options; the map can be written as a picture or a page, too."""

    pictures = ("svg", "html", "png")
    default_format = "a map on a terminal, otherwise tsv"


@app.command(
    panels={
        "Options": "-w --metric --by --window --topology --patterns",
        "Filtering": "-e --dc",
        "Analysis": "--green --red --engine",
        "Time": "--when",
        "Output": "--no-pairs --title --palette --theme --scale",
    }
)
def heatmap(
    inputs: cli.Inputs = None,
    where: Where = "",
    metric: Annotated[str, option("--metric", metavar="WHAT", help="Draw p50, p99 or drop (p99).")] = "p99",
    by: Annotated[
        str | None,
        option("--by", metavar="WHAT", help="Draw a row per pod, podset, server, or dc (data centre) (pod)."),
    ] = None,
    dc: Annotated[str | None, option("--dc", metavar="NAME", help="Draw only this data centre.")] = None,
    window: Annotated[
        str, option("--window", metavar="TIME", help="Length of a window, or all: a single window (10m).")
    ] = "10m",
    when: Annotated[
        str | None, option("--when", metavar="TIME", help="Draw the window that contains TIME (last complete one).")
    ] = None,
    green: Annotated[
        str | None, option("--green", metavar="LIMIT", help="Draw values below LIMIT green (4ms; drops 0.05%).")
    ] = None,
    red: Annotated[
        str | None, option("--red", metavar="LIMIT", help="Draw values above LIMIT red (5ms; drops 0.1%).")
    ] = None,
    topology: Annotated[
        str | None, option("--topology", metavar="FILE", help="Names and order of pods, also of silent ones.")
    ] = None,
    patterns: Annotated[bool, option("--patterns", help="Print the pattern of each window, as records.")] = False,
    no_pairs: Annotated[bool, option("--no-pairs", help="Leave the server pairs of cells out of a page.")] = False,
    title: Annotated[str, option("--title", metavar="TEXT", help="Title of a page.")] = "",
    palette: Annotated[
        str, option("--palette", metavar="NAME", help="paper: green to red; safe: blue to purple (paper).")
    ] = "paper",
    theme: Annotated[
        str, option("--theme", metavar="NAME", help="light, dark, or auto: that of the browser (auto).")
    ] = "auto",
    scale: Annotated[float, option("--scale", metavar="N", min=0.25, max=8, help="Scale of a PNG (2).")] = 2.0,
    *,
    engine: cli.Engine = None,
    ins: cli.InputOptions,
    period: cli.PeriodOptions,
    out: HeatmapOutput,
    common: cli.TalkOptions,
) -> int:
    """Draw latency or drops between pods, or between data centres, as a heat map, and name its pattern."""
    from confluo_tools.pingmesh.heatmap.colours import NAMES, THEMES

    cli.one_of("--metric", metric, ("p50", "p99", "drop"))
    cli.one_of("--by", by or "pod", BY)
    cli.one_of("--palette", palette, NAMES)
    cli.one_of("--theme", theme, (*THEMES, "auto"))
    if out.fields == "help":
        from confluo_tools.pingmesh.heatmap.cells import cell_schema, pattern_schema

        out.listed(pattern_schema() if patterns else cell_schema())
        return cli.OK
    if ins.missing(inputs):
        return cli.usage(app)
    if by == "dc" and dc is not None:
        raise UsageError("draws all data centres in one map", where="--by dc", hint="leave --dc out")
    local = _local(out)
    source = ProbeInputs(inputs or [], zoned(where, local), period.span(local), ins, engine)
    kind = choose(out, patterns)
    width = _width(window)
    limits = _limits(metric, green, red)
    with source.open() as reader:
        cells, width = load_cells(reader, source, by or "pod", width)
        if by is not None and not cells.probes and len(cells) and cells.by not in ("", by):
            units = "data centres" if cells.by == "dc" else f"{cells.by}s"
            raise UsageError(f"the input contains cells between {units}", where=f"--by {by}", hint="leave it out")
    by = cells.by or by or "pod"
    known = fleet_units(topology, by) if topology is not None else []
    charts = [c for c in cells.maps(by, width, limits, known) if c.sheets and (dc is None or c.dc == dc)]
    if by == "dc" and kind == "html" and cells.probes and source.again:  # add a map of each data centre
        with source.open() as reader:
            within, _ = load_cells(reader, source, "pod", width)
        known = fleet_units(topology, "pod") if topology is not None else []
        charts += [c for c in within.maps("pod", width, limits, known) if c.sheets]
    note_missing(cells, by)
    if not charts:
        if dc is not None and len(cells):
            raise UsageError(f"no probes within data centre '{dc[:60]}'", where="--dc")
        return cli.NOTHING
    numbers = [_window_at(chart, when, local) for chart in charts]
    if kind == "html":
        write_page(
            charts,
            numbers,
            source,
            out,
            metric=metric,
            title=title,
            palette=palette,
            theme=theme,
            pairs=not no_pairs and cells.probes,
        )
    elif kind in ("svg", "png"):
        write_picture(
            kind,
            charts,
            numbers,
            out,
            metric=metric,
            palette=palette,
            scale=scale,
            theme="light" if theme == "auto" else theme,
        )
    elif kind == "table" and not patterns:
        write_text(charts, numbers, out, metric=metric, palette=palette)
    else:
        from confluo_tools.pingmesh.heatmap import cells as records

        schema = records.pattern_schema() if patterns else records.cell_schema()
        make = records.pattern_block if patterns else records.cell_blocks
        with out.records(schema, kind, out.names(schema)) as into:
            for chart, number in zip(charts, numbers, strict=True):
                for block in make(chart, metric, chart.sheets if when is None else chart.sheets[number : number + 1]):
                    into.write(block)
    return cli.OK


class ProbeInputs:
    """Inputs, expression and span; the records can be read several times."""

    def __init__(
        self,
        inputs: list[str],
        text: str,
        span: tuple[int | None, int | None],
        ins: cli.InputOptions,
        engine: str | None = None,
    ) -> None:
        self.inputs, self.text, self.ins, self.engine = inputs, text, ins, engine
        self.first, self.after = span

    @property
    def again(self) -> bool:
        """Whether the inputs can be read a second time."""
        return self.ins.at is not None or (
            bool(self.inputs)
            and all(cli.remote(path) is not None or os.path.isfile(path) or os.path.isdir(path) for path in self.inputs)
        )

    @property
    def words(self) -> str:
        """The inputs as shell words; '' if they can be read only once."""
        from shlex import join

        return "" if not self.again else join(["--at", self.ins.at] if self.ins.at is not None else self.inputs)

    def open(self) -> Reader:
        from confluo_tools.pingmesh.analysis.probe_kind import probe_schema

        return cli.on_engine(self.ins.open(self.inputs, schema=probe_schema()), self.engine)

    def where(self, more: str = "") -> str:
        """The expression, combined with ``more``."""
        return " and ".join(f"({part})" for part in (self.text, more) if part)


def choose(out: HeatmapOutput, patterns: bool) -> str:
    """The output format: a picture, a map on a terminal, or that of records.  Raises UsageError."""
    if not patterns and out.format == "table" and not out.tsv and not out.ndjson:
        return "table"
    kind = out.kind(answers=True)
    if patterns and kind in out.pictures:
        raise UsageError("--patterns prints records, not a picture", where="-o", hint="leave one of them out")
    return kind


def _width(text: str) -> int:

    if text == "all":
        return 0
    width = cli.duration("--window", text, 1_000_000)
    if width % 1_000_000:
        raise UsageError(f"invalid length of a window '{text}'", where="--window", hint="write e.g. 10m, 1h, all")
    return width


def _limits(metric: str, green: str | None, red: str | None) -> ColourLimits:
    from confluo_tools.pingmesh.heatmap.model import ColourLimits

    defaults = ColourLimits()

    if metric == "drop":
        low = cli.fraction("--green", green, "a drop rate", inside=True) if green else defaults.drop_green
        high = cli.fraction("--red", red, "a drop rate", inside=True) if red else max(defaults.drop_red, low)
        limits = ColourLimits(drop_green=low if green or low < high else high / 2, drop_red=high)
        ends: tuple[float, float] = (limits.drop_green, limits.drop_red)
    else:
        near = cli.duration("--green", green) if green else defaults.green
        far = cli.duration("--red", red) if red else max(defaults.red, near)
        limits = ColourLimits(green=near if green or near < far else far, red=far)
        ends = (limits.green, limits.red)
    if not 0 < ends[0] <= ends[1]:
        raise UsageError("the green limit exceeds the red limit", where="--green, --red")
    return limits


def fleet_units(path: str, by: str) -> list[Unit]:
    """The units of a topology file, in file order."""
    from confluo_tools.network.topology_file import read_fleet

    fleet = read_fleet(path)
    if by == "dc":
        return [("", "", name) for name in fleet.dcs]
    names = [(s.dc, s.podset, {"pod": s.pod, "podset": s.podset, "server": s.name}[by]) for s in fleet.servers]
    return list(dict.fromkeys(names))


def load_cells(reader: Reader, source: ProbeInputs, by: str, width: int) -> tuple[Cells, int]:
    """(cells of all windows, length of a window): counted from probes, or read from the records of an earlier run."""
    from confluo_tools.pingmesh.heatmap.cells import Cells, are_cells, read_cells

    cells = Cells()
    if are_cells(reader.schema):
        if source.text or source.first is not None or source.after is not None:
            hint = "filter them with confluo-query"
            raise UsageError("the input contains cells, which cannot be filtered", where=reader.name, hint=hint)
        return cells, read_cells(reader, cells)
    from confluo_tools.pingmesh.analysis.probe_tally import WindowTally

    cells.probes = True
    what = "" if by == "server" else f"_{by}"
    parts = ("_dc",) if by == "dc" else ("_dc", "_podset", what)
    places = [f"{end}{name}" for end in ("src", "dst") for name in parts]
    tally = WindowTally(reader.schema, places, window=width, where=reader.name)
    tally.read(reader, source.where(), source.first, source.after)
    for start in tally.windows():
        found = tally.cells(start)
        if by == "dc":
            src, dst = ([cells.number(("", "", key[i])) for key in found.keys] for i in (0, 1))
        else:
            src, dst = ([cells.number(key[i : i + 3]) for key in found.keys] for i in (0, 3))
        failed = [sum(row) for row in zip(*map(found.column, FAILURES), strict=True)]
        counts = [*[found.column(name).tolist() for name in ("ok", "dropped", "overflow")], failed]
        cells.add(found.start, src, dst, found.column("p50").tolist(), found.column("p99").tolist(), counts)
        tally.pop(start)
    return cells, width


def note_missing(cells: Cells, by: str) -> None:
    """Print notes on probes that are on no map."""
    word = "data centre" if by == "dc" else by
    if cells.unnamed:
        cli.note(f"{cells.unnamed:,} probes without the name of a {word} are left out")
    if cells.apart:
        cli.note(f"{cells.apart:,} cells between data centres are left out; --by dc draws them")
    if not len(cells):
        cli.note(
            "no probes between places with names"
            + ("" if by == "server" else "; --by server draws those between servers")
        )
    elif 2 * len(cells.senders) < len(cells.units):
        cli.note(
            f"only {len(cells.senders)} of {len(cells.units)} {word}s sent probes; the rows of the others are white"
        )


def _window_at(chart: Map, when: str | None, local: bool) -> int:
    """The number of the window that contains the time ``when``; without it, of the last complete one."""
    if when is None:
        return chart.latest()
    from confluo_tools import units

    ts = units.time(when, local=local)
    for i, sheet in enumerate(chart.sheets):
        if not chart.width or sheet.start <= ts < sheet.start + chart.width:
            return i
    first, last = (units.format_time(chart.sheets[i].start, 0, local) for i in (0, -1))
    hint = f"windows begin from {first} to {last}" if len(chart.sheets) > 1 else f"the only window begins at {first}"
    raise UsageError("no probes at this time", where=f"--when {when}", hint=hint)


def write_page(
    charts: list[Map],
    at: list[int],
    source: ProbeInputs,
    out: cli.OutputOptions,
    *,
    metric: str,
    title: str,
    palette: str,
    theme: str,
    pairs: bool,
) -> None:
    from confluo_tools.pingmesh.heatmap.html import page

    behind = load_pairs(charts, at, source) if pairs and charts[0].by in ("pod", "dc") else []
    with out.sink() as sink:
        for piece in page(
            charts,
            metric,
            at=at,
            pairs=behind,
            title=title,
            palette=palette,
            theme=theme,
            command=cli.command_line(),
            source=source.words,
            local=_local(out),
        ):
            sink.write(piece)


def write_picture(
    kind: str,
    charts: list[Map],
    at: list[int],
    out: cli.OutputOptions,
    *,
    metric: str,
    palette: str,
    theme: str,
    scale: float,
) -> None:
    from confluo_tools.pingmesh.heatmap.svg import png, svg

    number = 0
    if len(charts) > 1:
        names = [chart.pattern(chart.sheets[i], metric).name for chart, i in zip(charts, at, strict=True)]
        number = next((i for i, name in enumerate(names) if name != "normal"), 0)
        others = ", ".join(f"{c.dc or '-'} ({name})" for c, name in zip(charts, names, strict=True))
        cli.note(f"the picture shows one data centre, {charts[number].dc or '-'} of {others}; --dc selects another")
    chart, sheet = charts[number], charts[number].sheets[at[number]]
    text = svg(chart, sheet, metric, span(chart, sheet, _local(out)), palette=palette, theme=theme)
    data = text.encode() if kind == "svg" else png(text, scale)
    with out.sink() as sink:
        sink.write(data)


def write_text(charts: list[Map], at: list[int], out: cli.OutputOptions, *, metric: str, palette: str) -> None:
    from confluo_tools.formats.table import PIPE_WIDTH, screen_width
    from confluo_tools.pingmesh.heatmap.text import text_map

    width = 1 << 14 if out.wide else screen_width() if out.output is None and cli.is_terminal(1) else PIPE_WIDTH
    colours = out.output is None and cli.colour(1, out.color)
    texts = [
        text_map(
            chart,
            chart.sheets[i],
            metric,
            span(chart, chart.sheets[i], _local(out)),
            width=width,
            palette=palette,
            color=colours,
        )
        for chart, i in zip(charts, at, strict=True)
    ]
    sink = out.sink()
    sink.write("\n".join(texts).encode())
    sink.close()


def span(chart: Map, sheet: Sheet, local: bool) -> str:
    """The time of a window: ``2026-01-01 00:10 – 00:20 UTC``."""
    from confluo_tools import units

    ahead, zone = units.time_zone(sheet.start, local)
    first, last = (
        units.format_time(ts + ahead * units.SECOND, 0).replace("T", " ").rstrip("Z")
        for ts in (sheet.start, sheet.start + chart.width)
    )
    if not chart.width:
        return f"from {first} {zone}"
    if chart.width % (60 * units.SECOND) == 0:
        first, last = first[:16], last[:16]
    return f"{first} – {last.removeprefix(first[:11])} {zone}"


def _local(out: cli.OutputOptions) -> bool:
    return config.truth("local", out.local)


# ---------------------------------------------------------------- pairs of servers of a cell


def load_pairs(charts: list[Map], at: list[int], source: ProbeInputs) -> list[Pairs]:
    """The pairs of servers of all cells of small maps, and of the worst cells of others."""
    from confluo_tools.pingmesh.analysis.probe_tally import tally
    from confluo_tools.pingmesh.heatmap.html import Pairs

    found = [Pairs() for _ in charts]
    if not source.again:
        for pairs in found:
            pairs.why = "The records came through a pipe, which is read once. A log or a file shows servers."
        return found
    whole = sum(len(c.names) ** 2 * len(c.sheets) for c in charts) <= ALL_CELLS
    more = "" if whole else worst_cells_filter(charts, at)
    for pairs in found:
        pairs.whole = whole
        pairs.why = "" if whole else f"This page contains the servers of the {WORST_CELLS} worst cells."
    if not whole and not more:
        return found
    where = {}  # data centre ("": between them) -> (number of the map, windows, pods)
    for number, chart in enumerate(charts):
        starts = {sheet.start: i for i, sheet in enumerate(chart.sheets)}
        pods = {name: i for i, name in enumerate(chart.names)}
        where[chart.dc] = (number, starts, pods)
    names: list[dict[str, int]] = [{} for _ in charts]
    left = MAX_PAIRS
    with source.open() as reader:
        by = ("src_dc", "dst_dc", "src_pod", "dst_pod", "src", "dst")
        for start, key, cell in tally(
            reader, by=by, window=charts[0].width, where=source.where(more), since=source.first, until=source.after
        ):
            place, src, dst = (key[0], key[2], key[3]) if key[0] == key[1] else ("", key[0], key[1])
            if place not in where or (not place and charts[where[place][0]].by != "dc"):
                continue
            number, starts, pods = where[place]
            if start not in starts or src not in pods or dst not in pods:
                continue
            if not left:
                for pairs in found:
                    pairs.whole, pairs.why = False, f"This page contains only {MAX_PAIRS:,} pairs of servers."
                break
            left -= 1
            known, columns = names[number], found[number].columns
            row = (
                starts[start],
                pods[src] * len(pods) + pods[dst],
                known.setdefault(key[4], len(known)),
                known.setdefault(key[5], len(known)),
                cell.ok,
                cell.dropped,
                cell.overflow,
                cell.failed,
                *[round(ns / 100) if ns > 0 else 0 for ns in (cell.p50, cell.p99)],
            )
            for column, value in zip(columns.values(), row, strict=True):
                column.append(min(value, (1 << 32) - 1))
    for pairs, numbers in zip(found, names, strict=True):
        pairs.names = list(numbers)
    return found


def worst_cells_filter(charts: list[Map], at: list[int]) -> str:
    """An expression for the probes of the worst cells: of the windows that are shown first, then of the others."""
    ranked = []
    for number, chart in enumerate(charts):
        for i, sheet in enumerate(chart.sheets):
            worst = [max(pair) for pair in zip(chart.shades(sheet, "p99"), chart.shades(sheet, "drop"), strict=True)]
            ends = len(chart.names) + 1  # a data centre against itself has its own map
            ranked += [
                (-worst[k], i != at[number], -sheet.failed[k], number, i, k)
                for k in range(len(worst))
                if (chart.by != "dc" or k % ends) and (7 <= worst[k] < 13 or (not worst[k] and sheet.failed[k]))
            ]
    worst_cells: dict[tuple[int, int], dict[str, list[str]]] = {}
    for *_, number, i, k in sorted(ranked)[:WORST_CELLS]:
        chart, n = charts[number], len(charts[number].names)
        worst_cells.setdefault((number, i), {}).setdefault(chart.names[k // n], []).append(chart.names[k % n])
    parts = []
    for (number, i), targets in worst_cells.items():
        chart, start = charts[number], charts[number].sheets[i].start
        unit = chart.by
        pairs = " or ".join(
            f"(src_{unit} == {_quoted(src)} and ({' or '.join(f'dst_{unit} == {_quoted(name)}' for name in dst)}))"
            for src, dst in targets.items()
        )
        time = f"ts >= {start} and ts < {start + chart.width} and " if chart.width else ""
        parts.append(f"({time}({pairs}))")
    return " or ".join(parts)


def _quoted(name: str) -> str:
    return '"' + name.replace("\\", "\\\\").replace('"', '\\"') + '"'


def main(argv: list[str] | None = None) -> int:
    return cli.run(app, "confluo-pingmesh heatmap", argv)
