"""confluo-pingmesh heatmap: latency and drops between pods as a picture.  Manual: confluo-pingmesh-heatmap(1)."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated

from confluo_tools import cli, config
from confluo_tools.cli.options import option
from confluo_tools.commands.pingmesh.windows import Where
from confluo_tools.errors import UsageError

if TYPE_CHECKING:
    from confluo_tools.algo.heatmap import Limits, Map, Sheet
    from confluo_tools.formats.heatmap_cells import Cells, Unit
    from confluo_tools.formats.heatmap_html import Pairs
    from confluo_tools.formats.reader import Reader
    from confluo_tools.sinks.file import Sink

app = cli.command_app(
    """
# on the terminal: P99 between pods in the last ten minutes
confluo-pingmesh heatmap probes.ml

# all windows of a day as one page to look around in
confluo-pingmesh heatmap probes.ml --since 24h --window 30m -w mesh.html

# a picture of drops for a report
confluo-pingmesh heatmap probes.ml --metric drop -w drops.svg

# only names of what is seen, window by window, for a script
confluo-pingmesh heatmap probes.ml --patterns -J
"""
)

PICTURES = ("svg", "html", "png", "table")
OTHERS = ("pdf", "jpg", "jpeg", "gif", "webp", "htm")  # that people might expect, and get records
BY = ("pod", "podset", "server", "dc")
ALL_CELLS = 5_000  # cells of all windows up to which the servers behind each of them go into a page
WORST_CELLS = 400  # else those behind so many
MOST_PAIRS = 200_000
FAILURES = ("timeout", "refused", "unreachable", "reset", "garbled")


@app.command()
def heatmap(
    inputs: cli.Inputs = None,
    where: Where = "",
    metric: Annotated[str, option("--metric", metavar="WHAT", help="p50, p99 or drop (p99).")] = "p99",
    by: Annotated[
        str | None,
        option("--by", metavar="WHAT", help="What has a row: pod, podset, server, or dc: all data centres (pod)."),
    ] = None,
    dc: Annotated[str | None, option("--dc", metavar="NAME", help="Only this data centre.")] = None,
    window: Annotated[
        str, option("--window", metavar="TIME", help="Length of a window, or all: one of everything (10m).")
    ] = "10m",
    when: Annotated[
        str | None, option("--when", metavar="TIME", help="The window this is in.  Without: the last whole one.")
    ] = None,
    green: Annotated[
        str | None, option("--green", metavar="LIMIT", help="Green is below this (4ms; of drops 0.05%).")
    ] = None,
    red: Annotated[
        str | None, option("--red", metavar="LIMIT", help="Red is above this (5ms; of drops 0.1%).")
    ] = None,
    topology: Annotated[
        str | None, option("--topology", metavar="FILE", help="Names and order of pods, also of silent ones.")
    ] = None,
    patterns: Annotated[bool, option("--patterns", help="Print what each window shows, as records.")] = False,
    no_pairs: Annotated[bool, option("--no-pairs", help="No servers behind the cells in a page.")] = False,
    title: Annotated[str, option("--title", metavar="TEXT", help="Of a page.")] = "",
    palette: Annotated[
        str, option("--palette", metavar="NAME", help="paper: green to red; safe: blue to purple (paper).")
    ] = "paper",
    theme: Annotated[
        str, option("--theme", metavar="NAME", help="light, dark or auto: as the reader has it (auto).")
    ] = "auto",
    scale: Annotated[float, option("--scale", metavar="N", min=0.25, max=8, help="Of a PNG (2).")] = 2.0,
    *,
    ins: cli.InputOptions,
    period: cli.PeriodOptions,
    out: cli.OutputOptions,
    common: cli.TalkOptions,
) -> int:  # fmt: skip
    """Draw latency or drops between pods, or between data centres, as a heat map, and name what it shows."""
    from confluo_tools.formats.heatmap_colours import NAMES, THEMES

    cli.one_of("--metric", metric, ("p50", "p99", "drop"))
    cli.one_of("--by", by or "pod", BY)
    cli.one_of("--palette", palette, NAMES)
    cli.one_of("--theme", theme, (*THEMES, "auto"))
    if out.fields == "help":
        from confluo_tools.formats.heatmap_cells import cell_schema, pattern_schema

        out.listed(pattern_schema() if patterns else cell_schema())
        return cli.OK
    if ins.missing(inputs):
        return cli.usage(app)
    if by == "dc" and dc is not None:
        raise UsageError("one map has all data centres", where="--by dc", hint="leave --dc out")
    local = _local(out)
    asked = Asked(inputs or [], where, period.span(local), ins)
    kind = choose(out, patterns)
    width = _width(window)
    limits = _limits(metric, green, red)
    with asked.open() as reader:
        cells, width = gather(reader, asked, by or "pod", width)
        if by is not None and not cells.probes and len(cells) and cells.by not in ("", by):
            theirs = "data centres" if cells.by == "dc" else f"{cells.by}s"
            raise UsageError(f"these are cells between {theirs}", where=f"--by {by}", hint="leave it out")
    by = cells.by or by or "pod"
    known = of_fleet(topology, by) if topology is not None else []
    charts = [c for c in cells.maps(by, width, limits, known) if c.sheets and (dc is None or c.dc == dc)]
    if by == "dc" and kind == "html" and cells.probes and asked.again:  # and those of each of them, to look inside
        with asked.open() as reader:
            within, _ = gather(reader, asked, "pod", width)
        known = of_fleet(topology, "pod") if topology is not None else []
        charts += [c for c in within.maps("pod", width, limits, known) if c.sheets]
    say_what_is_missing(cells, by)
    if not charts:
        if dc is not None and len(cells):
            raise UsageError(f"no probes within '{dc[:60]}'", where="--dc")
        return cli.NOTHING
    numbers = [_find(chart, when, local) for chart in charts]
    if kind == "html":
        write_page(charts, numbers, asked, out, metric=metric, title=title, palette=palette, theme=theme,
                   pairs=not no_pairs and cells.probes)  # fmt: skip
    elif kind in ("svg", "png"):
        write_picture(kind, charts, numbers, out, metric=metric, palette=palette, scale=scale,
                      theme="light" if theme == "auto" else theme)  # fmt: skip
    elif kind == "table" and not patterns:
        write_text(charts, numbers, out, metric=metric, palette=palette)
    else:
        from confluo_tools.formats import heatmap_cells as records

        schema = records.pattern_schema() if patterns else records.cell_schema()
        make = records.pattern_block if patterns else records.cell_blocks
        with out.records(schema, kind, out.names(schema)) as into:
            for chart, number in zip(charts, numbers, strict=True):
                for block in make(chart, metric, chart.sheets if when is None else chart.sheets[number : number + 1]):
                    into.write(block)
    return cli.OK


class Asked:
    """The inputs and which of their records are meant: as often as they are read."""

    def __init__(
        self, inputs: list[str], text: str, span: tuple[int | None, int | None], ins: cli.InputOptions
    ) -> None:
        self.inputs, self.text, self.ins = inputs, text, ins
        self.first, self.after = span

    @property
    def again(self) -> bool:
        """Whether they can be read a second time."""
        return self.ins.at is not None or (bool(self.inputs) and all(
            cli.remote(path) is not None or os.path.isfile(path) or os.path.isdir(path) for path in self.inputs
        ))  # fmt: skip

    @property
    def words(self) -> str:
        """The inputs as the shell has them; '' when they are read only once."""
        from shlex import join

        return "" if not self.again else join(["--at", self.ins.at] if self.ins.at is not None else self.inputs)

    def open(self) -> Reader:
        return self.ins.open(self.inputs)

    def where(self, more: str = "") -> str:
        """The condition: what was asked, and ``more``."""
        return " and ".join(f"({part})" for part in (self.text, more) if part)


def choose(out: cli.OutputOptions, patterns: bool) -> str:
    """The output: a picture or cells as records."""
    if out.format in PICTURES and not out.tsv and not out.ndjson:
        if patterns and out.format != "table":
            raise UsageError("--patterns are records, no picture", where="-o", hint="leave one of them out")
        return out.format
    suffix = os.path.splitext(out.output or "")[1].lower()[1:]
    if out.format is None and not out.tsv and not out.ndjson and not patterns:
        if suffix in PICTURES:
            return suffix
        if suffix in OTHERS:
            raise UsageError(f"makes no .{suffix}", where=f"-w {out.output}", hint=".svg, .png and .html are pictures")
    return out.kind(answers=True)


def _width(text: str) -> int:

    if text == "all":
        return 0
    width = cli.duration("--window", text, 1_000_000)
    if width % 1_000_000:
        raise UsageError(f"'{text}' is no length of a window", where="--window", hint="write e.g. 10m, 1h, all")
    return width


def _limits(metric: str, green: str | None, red: str | None) -> Limits:
    from confluo_tools.algo.heatmap import Limits

    defaults = Limits()

    if metric == "drop":
        low = cli.fraction("--green", green, "a drop rate", inside=True) if green else defaults.drop_green
        high = cli.fraction("--red", red, "a drop rate", inside=True) if red else max(defaults.drop_red, low)
        limits = Limits(drop_green=low if green or low < high else high / 2, drop_red=high)
        ends: tuple[float, float] = (limits.drop_green, limits.drop_red)
    else:
        near = cli.duration("--green", green) if green else defaults.green
        far = cli.duration("--red", red) if red else max(defaults.red, near)
        limits = Limits(green=near if green or near < far else far, red=far)
        ends = (limits.green, limits.red)
    if not 0 < ends[0] <= ends[1]:
        raise UsageError("green ends below where red begins", where="--green, --red")
    return limits


def of_fleet(path: str, by: str) -> list[Unit]:
    """All units of a topology file, in its order."""
    from confluo_tools.formats.fleet import read_fleet

    fleet = read_fleet(path)
    if by == "dc":
        return [("", "", name) for name in fleet.dcs]
    names = [(s.dc, s.podset, {"pod": s.pod, "podset": s.podset, "server": s.name}[by]) for s in fleet.servers]
    return list(dict.fromkeys(names))


def gather(reader: Reader, asked: Asked, by: str, width: int) -> tuple[Cells, int]:
    """The cells of all windows, and their length; probes are tallied, cells of an earlier run taken as they are."""
    from confluo_tools.formats.heatmap_cells import Cells, are_cells, read_cells

    cells = Cells()
    if are_cells(reader.schema):
        if asked.text or asked.first is not None or asked.after is not None:
            hint = "confluo-query chooses some of them"
            raise UsageError("cells are drawn as they are", where=reader.name, hint=hint)
        return cells, read_cells(reader, cells)
    from confluo_tools.store.mesh import read

    cells.probes = True
    what = "" if by == "server" else f"_{by}"
    parts = ("_dc",) if by == "dc" else ("_dc", "_podset", what)
    places = [f"{end}{name}" for end in ("src", "dst") for name in parts]
    mesh = read(reader, places, window=width, where=asked.where(), since=asked.first, until=asked.after)
    for start in mesh.windows():
        found = mesh.tallied(start)
        if by == "dc":
            src, dst = ([cells.number(("", "", key[i])) for key in found.keys] for i in (0, 1))
        else:
            src, dst = ([cells.number(key[i : i + 3]) for key in found.keys] for i in (0, 3))
        failed = [sum(row) for row in zip(*map(found.column, FAILURES), strict=True)]
        counts = [*[found.column(name).tolist() for name in ("ok", "dropped", "overflow")], failed]
        cells.add(found.start, src, dst, found.column("p50").tolist(), found.column("p99").tolist(), counts)
        mesh.pop(start)
    return cells, width


def say_what_is_missing(cells: Cells, by: str) -> None:
    word = "data centre" if by == "dc" else by
    if cells.unnamed:
        cli.note(f"{cells.unnamed:,} probes whose record names no {word} are left out")
    if cells.apart:
        cli.note(f"{cells.apart:,} cells between data centres are on none of these maps; --by dc draws them")
    if not len(cells):
        cli.note("no probes between places that have names"
                 + ("" if by == "server" else "; --by server draws those between servers"))  # fmt: skip
    elif 2 * len(cells.senders) < len(cells.units):
        cli.note(f"probes come from {len(cells.senders)} of {len(cells.units)} {word}s: the others' rows are white, "
                 "whatever the network does")  # fmt: skip


def _find(chart: Map, when: str | None, local: bool) -> int:
    """The number of the window that is meant."""
    if when is None:
        return chart.latest()
    from confluo_tools import units

    ts = units.time(when, local=local)
    for i, sheet in enumerate(chart.sheets):
        if not chart.width or sheet.start <= ts < sheet.start + chart.width:
            return i
    first, last = (units.format_time(chart.sheets[i].start, 0, local) for i in (0, -1))
    theirs = f"windows begin from {first} to {last}" if len(chart.sheets) > 1 else f"the only window begins at {first}"
    raise UsageError(f"no probes then; {theirs}", where=f"--when {when}")


def write_page(
    charts: list[Map], at: list[int], asked: Asked, out: cli.OutputOptions, *, metric: str, title: str, palette: str,
    theme: str, pairs: bool,
) -> None:  # fmt: skip
    from confluo_tools.formats.heatmap_html import page

    behind = gather_pairs(charts, at, asked) if pairs and charts[0].by in ("pod", "dc") else []
    sink = _sink(out)
    try:
        for piece in page(charts, metric, at=at, pairs=behind, title=title, palette=palette, theme=theme,
                          command=cli.command_line(), source=asked.words, local=_local(out)):  # fmt: skip
            sink.write(piece)
        sink.close()
    except BaseException:
        sink.abort()
        raise


def write_picture(
    kind: str, charts: list[Map], at: list[int], out: cli.OutputOptions, *, metric: str, palette: str, theme: str,
    scale: float,
) -> None:  # fmt: skip
    from confluo_tools.formats.heatmap_svg import png, svg

    number = 0
    if len(charts) > 1:
        names = [chart.pattern(chart.sheets[i], metric).name for chart, i in zip(charts, at, strict=True)]
        number = next((i for i, name in enumerate(names) if name != "normal"), 0)
        others = ", ".join(f"{c.dc or '-'} ({name})" for c, name in zip(charts, names, strict=True))
        cli.note(f"one picture is of one data centre: {charts[number].dc or '-'} of {others}; --dc chooses")
    chart, sheet = charts[number], charts[number].sheets[at[number]]
    text = svg(chart, sheet, metric, span(chart, sheet, _local(out)), palette=palette, theme=theme)
    data = text.encode() if kind == "svg" else png(text, scale)
    sink = _sink(out)
    try:
        sink.write(data)
        sink.close()
    except BaseException:
        sink.abort()
        raise


def write_text(charts: list[Map], at: list[int], out: cli.OutputOptions, *, metric: str, palette: str) -> None:
    from confluo_tools.formats.heatmap_text import text_map
    from confluo_tools.formats.table import screen_width

    width = 1 << 14 if out.wide else screen_width() if out.output is None and cli.is_terminal(1) else 79
    colours = out.output is None and cli.colour(1, out.color)
    texts = [
        text_map(chart, chart.sheets[i], metric, span(chart, chart.sheets[i], _local(out)), width=width,
                 palette=palette, color=colours)
        for chart, i in zip(charts, at, strict=True)
    ]  # fmt: skip
    sink = _sink(out)
    sink.write("\n".join(texts).encode())
    sink.close()


def span(chart: Map, sheet: Sheet, local: bool) -> str:
    """The time of a window: ``2026-01-01 00:10 - 00:20 UTC``."""
    from confluo_tools import units

    ahead, zone = units.time_zone(sheet.start, local)
    first, last = (units.format_time(ts + ahead * units.SECOND, 0).replace("T", " ").rstrip("Z")
                   for ts in (sheet.start, sheet.start + chart.width))  # fmt: skip
    if not chart.width:
        return f"from {first} {zone}"
    if chart.width % (60 * units.SECOND) == 0:
        first, last = first[:16], last[:16]
    return f"{first} – {last.removeprefix(first[:11])} {zone}"


def _local(out: cli.OutputOptions) -> bool:
    return config.truth("local", out.local)


def _sink(out: cli.OutputOptions) -> Sink:
    from confluo_tools.sinks.file import open_sink

    return open_sink(out.output, force=config.truth("clobber", out.force))


# ---------------------------------------------------------------- servers behind the cells

def gather_pairs(charts: list[Map], at: list[int], asked: Asked) -> list[Pairs]:
    """The pairs of servers behind all cells of small maps, and behind the worst cells of others."""
    from confluo_tools.formats.heatmap_html import Pairs
    from confluo_tools.store.mesh import tally

    found = [Pairs() for _ in charts]
    if not asked.again:
        for pairs in found:
            pairs.why = "The records came through a pipe, which is read once; of a log or a file, servers are shown."
        return found
    whole = sum(len(c.names) ** 2 * len(c.sheets) for c in charts) <= ALL_CELLS
    more = "" if whole else condition(charts, at)
    for pairs in found:
        pairs.whole = whole
        pairs.why = "" if whole else f"This page has the servers behind the {WORST_CELLS} worst cells."
    if not whole and not more:
        return found
    where = {}  # data centre -> (number of the map, windows, pods); of those between data centres it is ""
    for number, chart in enumerate(charts):
        starts = {sheet.start: i for i, sheet in enumerate(chart.sheets)}
        pods = {name: i for i, name in enumerate(chart.names)}
        where[chart.dc] = (number, starts, pods)
    names: list[dict[str, int]] = [{} for _ in charts]
    left = MOST_PAIRS
    with asked.open() as reader:
        by = ("src_dc", "dst_dc", "src_pod", "dst_pod", "src", "dst")
        for start, key, cell in tally(reader, by=by, window=charts[0].width, where=asked.where(more),
                                      since=asked.first, until=asked.after):
            place, src, dst = (key[0], key[2], key[3]) if key[0] == key[1] else ("", key[0], key[1])
            if place not in where or (not place and charts[where[place][0]].by != "dc"):
                continue
            number, starts, pods = where[place]
            if start not in starts or src not in pods or dst not in pods:
                continue
            if not left:
                for pairs in found:
                    pairs.whole, pairs.why = False, f"This page has {MOST_PAIRS:,} pairs of servers, and no more."
                break
            left -= 1
            known, columns = names[number], found[number].columns
            row = (starts[start], pods[src] * len(pods) + pods[dst], known.setdefault(key[4], len(known)),
                   known.setdefault(key[5], len(known)), cell.ok, cell.dropped, cell.overflow, cell.failed,
                   *[round(ns / 100) if ns > 0 else 0 for ns in (cell.p50, cell.p99)])  # fmt: skip
            for column, value in zip(columns.values(), row, strict=True):
                column.append(min(value, (1 << 32) - 1))
    for pairs, its in zip(found, names, strict=True):
        pairs.names = list(its)
    return found


def condition(charts: list[Map], at: list[int]) -> str:
    """An expression for the probes of the worst cells: those of the windows that are shown first, then of others."""
    ranked = []
    for number, chart in enumerate(charts):
        for i, sheet in enumerate(chart.sheets):
            worst = [max(pair) for pair in zip(chart.shades(sheet, "p99"), chart.shades(sheet, "drop"), strict=True)]
            ends = len(chart.names) + 1  # behind a data centre against itself is a map of its own
            ranked += [(-worst[k], i != at[number], -sheet.failed[k], number, i, k) for k in range(len(worst))
                       if (chart.by != "dc" or k % ends)
                       and (7 <= worst[k] < 13 or (not worst[k] and sheet.failed[k]))]  # fmt: skip
    chosen: dict[tuple[int, int], dict[str, list[str]]] = {}
    for *_, number, i, k in sorted(ranked)[:WORST_CELLS]:
        chart, n = charts[number], len(charts[number].names)
        chosen.setdefault((number, i), {}).setdefault(chart.names[k // n], []).append(chart.names[k % n])
    parts = []
    for (number, i), its in chosen.items():
        chart, start = charts[number], charts[number].sheets[i].start
        of = chart.by
        pairs = " or ".join(
            f"(src_{of} == {_quoted(src)} and ({' or '.join(f'dst_{of} == {_quoted(name)}' for name in dst)}))"
            for src, dst in its.items()
        )
        time = f"ts >= {start} and ts < {start + chart.width} and " if chart.width else ""
        parts.append(f"({time}({pairs}))")
    return " or ".join(parts)


def _quoted(name: str) -> str:
    return '"' + name.replace("\\", "\\\\").replace('"', '\\"') + '"'


def main(argv: list[str] | None = None) -> int:
    return cli.run(app, "confluo-pingmesh heatmap", argv)
