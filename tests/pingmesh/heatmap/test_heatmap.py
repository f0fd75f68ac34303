"""confluo-pingmesh heatmap: its cells against their probes, its pictures against its cells, its refusals."""

from __future__ import annotations

import json
import random
import re
import struct
import zlib
from base64 import b64decode
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from confluo_tools import cli
from confluo_tools.formats.reader import Reader
from confluo_tools.pingmesh.heatmap import cells as heatmap_cells
from confluo_tools.pingmesh.heatmap import colours as heatmap_colours
from confluo_tools.pingmesh.heatmap import svg as heatmap_svg
from confluo_tools.pingmesh.heatmap import text as heatmap_text
from confluo_tools.pingmesh.heatmap.model import CLASS, COUNTS, SHADE_ABSENT, UNIT, ColourLimits, Map, Sheet, group
from heatmap_lab import SERVERS, START, WINDOW, Matrix, canonical_matrices, probes, write
from running import environment, run, shell

ROOT = Path(__file__).resolve().parents[3]
SVG = "{http://www.w3.org/2000/svg}"
FLAT: Matrix = [[1.0, 2.0, 4.5], [9.99, 0, 1.0], [1.0, 1.0, 1.0]]


def heatmap(*words: str | Path, status: int = 0, **more: Any) -> str:
    done = run("confluo-pingmesh", "heatmap", *words, **more)
    assert done.returncode == status, done.stderr.decode()
    return done.stdout.decode()


def table(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


@pytest.fixture(scope="module")
def canonical(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("canonical") / "probes.arrows", probes(canonical_matrices()))


@pytest.fixture(scope="module")
def flat(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("flat") / "probes.arrows", probes([FLAT], podset=1))


# ---------------------------------------------------------------- names


def test_four_windows_four_names(canonical: Path) -> None:
    found = table(heatmap(canonical, "--patterns", "-J"))
    assert [(r["pattern"], r.get("podset") or "") for r in found] == [
        ("normal", ""),
        ("podset down", "ps2"),
        ("podset failure", "ps2"),
        ("spine failure", ""),
    ]
    assert [r["blocks"] for r in found] == ["GGG GGG GGG", "GWG WWW GWG", "GRG RRR GRG", "GRR RGR RRG"]
    assert [(r["none"], r["green"], r["yellow"], r["red"]) for r in found] == [
        (0, 144, 0, 0),
        (80, 64, 0, 0),
        (0, 64, 0, 80),
        (0, 48, 0, 96),
    ]


@pytest.mark.parametrize("seed", range(3))
def test_noise_in_the_probes(seed: int, tmp_path: Path) -> None:
    """5 % of the cells are of another colour; of two broken podsets both are named."""
    rng, matrices = random.Random(seed), canonical_matrices()
    for matrix in matrices:
        for cell in rng.sample(range(144), 7):
            matrix[cell // 12][cell % 12] = rng.choice([0, 1.5, 4.5, 7.0])
    both = canonical_matrices()[0]
    for i in range(12):
        for j in range(12):
            if 4 <= i < 8 or 4 <= j < 8:
                both[i][j] = 8.0
            if i < 4 or j < 4:
                both[i][j] = 0
    found = table(heatmap(write(tmp_path / "p.arrows", probes([*matrices, both])), "--patterns", "-J"))
    assert [(r["pattern"], r.get("podset") or "") for r in found] == [
        ("normal", ""),
        ("podset down", "ps2"),
        ("podset failure", "ps2"),
        ("spine failure", ""),
        ("podset down", "ps1"),
        ("podset failure", "ps2"),
    ]


def test_drops_have_a_map_of_their_own(tmp_path: Path) -> None:
    """Between podsets one probe in 20 is sent again: no latency shows it."""
    rows = probes([[[1.0] * 12 for _ in range(12)]])
    rows = [{**row, "ts": row["ts"] + n} for row in rows for n in range(4)]
    for k, row in enumerate(rows):
        if row["src_podset"] != row["dst_podset"] and k % 20 == 0:
            row.update(retries=1, rtt=0)
    path = write(tmp_path / "p.arrows", rows)
    assert [table(heatmap(path, "--metric", m, "--patterns", "-J"))[0]["pattern"] for m in ("p50", "p99", "drop")] == [
        "normal",
        "normal",
        "spine failure",
    ]
    assert "Drop rate: spine failure" in heatmap(path, "-o", "table")
    for row in rows:
        row["notes"] = 4  # it was the target's host
    path = write(tmp_path / "q.arrows", rows)
    assert table(heatmap(path, "--metric", "drop", "--patterns", "-J"))[0]["pattern"] == "normal"


# ---------------------------------------------------------------- cells


def test_cells_are_what_was_probed(flat: Path) -> None:
    cells = {(r["src"], r["dst"]): r for r in table(heatmap(flat, "-J"))}
    assert len(cells) == 9
    for i, line in enumerate(FLAT):
        for j, ms in enumerate(line):
            cell = cells[f"p{i:02}", f"p{j:02}"]
            odd = round(ms * 100) % 2
            assert cell["ok"] == (SERVERS * (5 + odd) if ms else 0)
            assert cell["dropped"] == (SERVERS * odd if ms else 0)
            assert cell["failed"] == (0 if ms else SERVERS)
            assert (cell["p50"], cell["p99"]) == (round(ms * 5e5), round(ms * 1e6))
            assert cell["colour"] == (("green" if ms < 4 else "yellow" if ms <= 5 else "red") if ms else None)
            assert (cell["src_podset"], cell["dst_dc"]) == (f"ps{i + 1}", "dc1")


def test_cells_are_drawn_as_their_probes_were(canonical: Path, tmp_path: Path) -> None:
    for name in ("cells.parquet", "cells.tsv"):
        heatmap(canonical, "-w", tmp_path / name)
        for words in (["--patterns", "-T"], ["-o", "svg"], ["-o", "table"], ["-T"]):
            assert heatmap(tmp_path / name, *words) == heatmap(canonical, *words)
    done = run("confluo-pingmesh", "heatmap", tmp_path / "cells.tsv", "-e", "src == p01")
    assert done.returncode == 2
    assert b"the input contains cells, which cannot be filtered; filter them with confluo-query" in done.stderr


class Blocks(Reader):
    def __init__(self, schema: Any, blocks: Any) -> None:
        super().__init__("cells")
        self.schema, self.its = schema, list(blocks)

    def blocks(self) -> Any:
        return iter(self.its)


@given(st.integers(1, 5), st.integers(1, 3), st.integers(0, 1 << 30))
def test_maps_survive_as_records(pods: int, windows: int, seed: int) -> None:
    rng = random.Random(seed)
    names, podsets = group([(f"p{i}", f"ps{i % 2}") for i in range(pods)])
    chart = Map("dc", "pod", names, podsets, WINDOW, ColourLimits())
    for k in range(windows):
        sheet = Sheet(START + k * WINDOW, pods)
        for i in range(pods * pods):
            ok = rng.randrange(3)
            sheet.put(
                i,
                ok and rng.random() * 1e7,
                ok and rng.random() * 1e7,
                (ok, rng.randrange(ok + 1), 0, rng.randrange(1, 3)),
            )
        chart.sheets.append(sheet)
    chart.finish()
    cells = heatmap_cells.Cells()
    blocks = list(heatmap_cells.cell_blocks(chart, "p99", chart.sheets))
    rng.shuffle(blocks)
    assert heatmap_cells.read_cells(Blocks(heatmap_cells.cell_schema(), blocks), cells) == WINDOW
    [again] = cells.maps("pod", WINDOW, ColourLimits())
    assert (again.names, again.podsets, again.absent) == (chart.names, chart.podsets, chart.absent)
    for one, other in zip(again.sheets, chart.sheets, strict=True):
        assert one.start == other.start
        for name in ("p50", "p99", *COUNTS):
            assert getattr(one, name) == getattr(other, name)


def test_what_is_left_out_is_told(tmp_path: Path) -> None:
    rows = probes([FLAT], podset=1)
    rows += [{**rows[0], "dst_dc": "dc2", "dst_pod": "p77"}, {**rows[0], "dst_pod": ""}]
    done = run("confluo-pingmesh", "heatmap", write(tmp_path / "p.arrows", rows), "-T", "--no-header")
    assert len(done.stdout.splitlines()) == 9
    assert b"1 cells between data centres are left out; --by dc draws them" in done.stderr
    assert b"1 probes without the name of a pod are left out" in done.stderr
    alone = [row for row in rows if row["src_pod"] == "p00" and row["dst_dc"] == "dc1"]
    done = run("confluo-pingmesh", "heatmap", write(tmp_path / "q.arrows", alone), "-T")
    assert b"only 1 of 3 pods sent probes" in done.stderr


def test_each_data_centre_has_a_map(tmp_path: Path) -> None:
    good, _, bad, _ = canonical_matrices()
    path = write(tmp_path / "p.arrows", probes([good], dc="east") + probes([bad], dc="west"))
    assert [(r["dc"], r["pattern"]) for r in table(heatmap(path, "--patterns", "-J"))] == [
        ("east", "normal"),
        ("west", "podset failure"),
    ]
    assert ">podset failure: ps2" in heatmap(path, "-o", "svg")  # the one that has trouble
    assert ">normal" in heatmap(path, "-o", "svg", "--dc", "east")
    heatmap(path, "-w", tmp_path / "cells.arrows")  # the same names in both
    assert heatmap(tmp_path / "cells.arrows", "-T") == heatmap(path, "-T")
    text = heatmap(path, "-o", "table")
    assert "P99 · east" in text
    assert "P99 · west" in text


def test_the_topology_knows_who_is_silent(tmp_path: Path) -> None:
    """A podset that no probe names is on the map all the same, and white."""
    rows = [r for r in probes(canonical_matrices()[:1]) if "ps2" not in (r["src_podset"], r["dst_podset"])]
    tree = {
        "dcs": {
            "dc1": {
                f"ps{k}": {
                    f"p{i:02}": {f"p{i:02}s{s}": f"10.0.{i}.{s + 1}" for s in range(4)} for i in range(4 * k - 4, 4 * k)
                }
                for k in (3, 2, 1)
            }
        }
    }
    (tmp_path / "t.yaml").write_text(json.dumps(tree))
    path = write(tmp_path / "p.arrows", rows)
    assert table(heatmap(path, "--patterns", "-J"))[0]["pattern"] == "normal"
    [found] = table(heatmap(path, "--patterns", "-J", "--topology", tmp_path / "t.yaml"))
    assert (found["pattern"], found["podset"]) == ("podset down", "ps2")
    text = heatmap(path, "-o", "table", "--topology", tmp_path / "t.yaml")
    assert re.findall(r"^ *p(\d\d) ", text, re.M)[:5] == ["08", "09", "10", "11", "04"]  # in its order


def test_by_podset_and_by_server(canonical: Path) -> None:
    found = table(heatmap(canonical, "--by", "podset", "--when", "2026-01-01T00:25", "--patterns", "-J"))
    assert [(r["pattern"], r["podset"]) for r in found] == [("podset failure", "ps2")]
    words = "-e", "src_pod == p00 and dst_pod == p00", "--by", "server", "--when", "@1767225600", "-J"
    rows = table(heatmap(canonical, *words))
    assert {(r["src"], r["dst"]) for r in rows} == {(f"p00s{i}", f"p00s{(i + 1) % 4}") for i in range(4)}


def test_windows(canonical: Path) -> None:
    assert len(heatmap(canonical, "-T", "--no-header").splitlines()) == 4 * 144
    for words, count in (
        (["--since", "2026-01-01T00:10"], 3),
        (["--until", "2026-01-01T00:09"], 1),
        (["--window", "all"], 1),
        (["--window", "20m"], 2),
        (["-e", "ts >= 2026-01-01T00:30"], 1),
    ):
        starts = {r["ts"] for r in table(heatmap(canonical, *words, "--patterns", "-J"))}
        assert len(starts) == count, words


def test_the_last_window_is_not_the_one_that_was_cut(tmp_path: Path) -> None:
    good = canonical_matrices()[0]
    rows = probes([good, good])
    rows += [{**row, "ts": row["ts"] + 2 * WINDOW} for row in rows[:40]]
    path = write(tmp_path / "p.arrows", rows)
    found = table(heatmap(path, "--patterns", "-J"))
    assert [r["partial"] for r in found] == ["no", "no", "yes"]
    assert "00:10 – 00:20" in heatmap(path, "-o", "table")


# ---------------------------------------------------------------- pictures


def test_every_cell_of_the_svg(canonical: Path) -> None:
    for window, matrix in enumerate(canonical_matrices()):
        text = heatmap(canonical, "-o", "svg", "--when", f"@{1767225600 + 600 * window}")
        cells = {}
        for rect in ElementTree.fromstring(text).iter(f"{SVG}rect"):
            title = rect.find(f"{SVG}title")
            if title is not None:
                names, _, values = str(title.text).partition(": ")
                cells[names] = (CLASS[int(rect.attrib["class"][1:])], values)
        assert len(cells) == 144
        for i, line in enumerate(matrix):
            for j, ms in enumerate(line):
                colour, values = cells[f"p{i:02} → p{j:02}"]
                assert colour == ((1 if ms < 4 else 2 if ms <= 5 else 3) if ms else 0)
                p99 = f"P99 {ms:.1f} ms" if ms >= 10 else f"P99 {ms:.2f} ms" if ms >= 1 else f"P99 {ms * 1e3:.0f} us"
                assert (p99 in values) if ms else (values == "none of 4 probes answered")


def test_the_figure_is_what_the_example_draws(tmp_path: Path) -> None:
    """docs/figures/heatmap.svg, from the commands of the narrated example."""
    text = (ROOT / "examples" / "pingmesh_heatmap_example.md").read_text()
    commands = re.findall(r"^\$ (confluo-pingmesh (?:simulate|heatmap) .*(?:probes.ml -q|failure.svg))$", text, re.M)
    assert len(commands) == 2
    done = shell("; ".join(commands), cwd=tmp_path)
    assert done.returncode == 0, done.stderr.decode()
    assert (tmp_path / "failure.svg").read_text() == (ROOT / "docs" / "figures" / "heatmap.svg").read_text()


def chart(pods: int, podset: int, seed: int = 1) -> Map:
    rng = random.Random(seed)
    names, podsets = group([(f"p{i:03}", f"ps{i // podset:02}") for i in range(pods)])
    made = Map("dc1", "pod", names, podsets, WINDOW, ColourLimits())
    sheet = Sheet(START, pods)
    for i in range(pods * pods):
        p99 = rng.choice([0, 1e5, 3e6, 4.5e6, 6e6, 9e7])
        sheet.put(i, p99 / 2, p99, (100 if p99 else 0, 0, 0, 0 if p99 else 7))
    made.sheets.append(sheet)
    made.finish()
    return made


def test_a_large_svg_has_its_cells_as_pixels() -> None:
    made = chart(150, 10)
    shades = made.shades(made.sheets[0], "p99")
    root = ElementTree.fromstring(heatmap_svg.svg(made, made.sheets[0], "p99", "now"))
    [image] = root.iter(f"{SVG}image")
    png = b64decode(image.attrib["href"].partition(",")[2])
    assert struct.unpack(">II", png[16:24]) == (150, 150)
    data = b"".join(
        png[m.end() : m.end() + struct.unpack(">I", m.group(1))[0]] for m in re.finditer(rb"(?s)(....)IDAT", png)
    )
    raw = zlib.decompress(data)
    assert b"".join(raw[i * 151 + 1 : i * 151 + 151] for i in range(150)) == shades
    assert {raw[i * 151] for i in range(150)} == {0}
    titles = {t.text for r in root.iter(f"{SVG}rect") if (t := r.find(f"{SVG}title")) is not None}
    classes, names = shades.translate(CLASS), ("no data", "green", "yellow", "red")
    for a, b in ((0, 0), (3, 14), (14, 3)):
        cells = b"".join(classes[i * 150 + 10 * b : i * 150 + 10 * b + 10] for i in range(10 * a, 10 * a + 10))
        said = ", ".join(f"{cells.count(k)} {names[k]}" for k in (3, 2, 1, 0))
        assert f"ps{a:02} → ps{b:02}: {said}" in titles


@pytest.mark.parametrize("palette", heatmap_colours.NAMES)
@pytest.mark.parametrize("theme", heatmap_colours.THEMES)
def test_palettes_tell_classes_apart(palette: str, theme: str) -> None:
    """Also in grey: the darkest and lightest of green, yellow and red do not overlap with those of the others."""

    def light(colour: str) -> float:
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    shades = heatmap_colours.PALETTES[palette, theme].shades
    assert len(set(shades)) == len(shades)
    greens, reds = [light(c) for c in shades[1:7]], [light(c) for c in shades[8:13]]
    assert max(reds) < min(greens) if theme == "light" else True
    for its in (greens, reds):
        assert its == sorted(its, reverse=theme == "light")


def test_png_is_drawn(canonical: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("resvg_py")
    heatmap(canonical, "-w", tmp_path / "m.png", "--scale", "1")
    heatmap(canonical, "-w", tmp_path / "m2.png")
    small, large = (struct.unpack(">II", (tmp_path / n).read_bytes()[16:24]) for n in ("m.png", "m2.png"))
    assert (tmp_path / "m.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    assert small[0] > 500
    assert all(abs(2 * a - b) <= 2 for a, b in zip(small, large, strict=True))
    heatmap(canonical, "-w", tmp_path / "m3.png", "--scale", "0.5")
    tiny = struct.unpack(">II", (tmp_path / "m3.png").read_bytes()[16:24])
    assert all(abs(a - 2 * b) <= 2 for a, b in zip(small, tiny, strict=True))
    monkeypatch.setattr(heatmap_svg, "MAX_PNG", 300)
    made = chart(12, 4)
    capped = heatmap_svg.png(heatmap_svg.svg(made, made.sheets[0], "p99", "now"))
    assert max(struct.unpack(">II", capped[16:24])) == 300


def test_few_pods_are_as_wide_as_names_of_podsets_need() -> None:
    made = chart(4, 2)
    made.podsets = (("storage", 0, 2), ("search", 2, 4))
    lines = heatmap_text.text_map(made, made.sheets[0], "p99", "now").splitlines()
    above = next(line for line in lines if "storage" in line)
    assert above.split() == ["storage", "search"]
    at = lines.index(above)
    assert above.index("search") - above.index("storage") == 8
    body = [line[9:].ljust(16) for line in lines[at + 1 : at + 5]]
    assert all(line[i : i + 4] == line[i] * 4 for line in body for i in range(0, 16, 4))


def test_text_has_a_shape_for_each_cell(canonical: Path) -> None:
    for window, matrix in enumerate(canonical_matrices()):
        lines = heatmap(canonical, "-o", "table", "--when", f"@{1767225600 + 600 * window}").splitlines()
        first = next(i for i, line in enumerate(lines) if line.startswith(" p00"))
        for i, row in enumerate(matrix):
            shapes = "".join("··" if 0 < ms < 4 else "▒▒" if 0 < ms <= 5 else "██" if ms else "  " for ms in row)
            assert lines[first + i].rstrip() == f" p{i:02}  {shapes}".rstrip()
        assert max(map(len, lines)) <= 79


@pytest.mark.parametrize(("pods", "podset", "places"), [(30, 10, 30), (60, 10, 60), (200, 1, 100), (1000, 25, 40)])
def test_text_of_many_pods_stays_narrow(pods: int, podset: int, places: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    made = chart(pods, podset)
    text = heatmap_text.text_map(made, made.sheets[0], "p99", "now", width=120)
    lines = text.splitlines()
    assert max(map(len, lines)) <= 120
    body = [line for line in lines if re.match(r" {0,2}(p|ps)\d+  ", line)]
    assert places * 0.9 <= len(body) <= places
    coloured = heatmap_text.text_map(made, made.sheets[0], "p99", "now", width=120, color=True)
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == text
    assert "\x1b[" in coloured


@pytest.mark.parametrize(
    ("units", "text"),
    [
        (50, "5.00 us"),
        (2160, "216 us"),
        (9_994, "999 us"),
        (9_996, "1.00 ms"),
        (15_700, "1.57 ms"),
        (115_000, "11.5 ms"),
        (9_990_000, "999 ms"),
        (10_200_000, "1.02 s"),
    ],
)
def test_latencies_in_words(units: int, text: str) -> None:
    assert heatmap_colours.latency(units) == text


def test_limits_and_shades() -> None:
    """Shades agree with classes at all limits."""
    limits = ColourLimits(green=1_000_000, red=2_000_000)
    made = Map("", "pod", ("a", "b"), (("", 0, 2),), 0, limits)
    sheet = Sheet(0, 2)
    for cell, ns in enumerate((999_900, 1_000_000, 2_000_000, 2_000_100)):
        sheet.put(cell, ns, ns, (1, 0, 0, 0))
    made.sheets.append(sheet)
    made.finish()
    assert list(made.shades(sheet, "p99").translate(CLASS)) == [1, 2, 2, 3]
    assert UNIT == 100
    steps = limits.steps()
    assert steps == sorted(steps)
    assert len(steps) + 1 == SHADE_ABSENT


# ---------------------------------------------------------------- trouble


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--metric", "p98"], "--metric: not 'p98'; there are p50, p99, drop"),
        (["--by", "rack"], "--by: not 'rack'"),
        (["--window", "0s"], "--window"),
        (["--window", "x"], "x"),
        (["--green", "6ms", "--red", "5ms"], "green"),
        (["--metric", "drop", "--red", "200%"], "--red: '200%' is not a drop rate"),
        (["--palette", "neon"], "--palette"),
        (["-w", "mesh.pdf"], "-w mesh.pdf: cannot write .pdf; use .svg, .html or .png"),
        (["--dc", "nowhere"], "--dc: no probes within data centre 'nowhere'"),
        (["--when", "2025-01-01"], "no probes at this time"),
        (["--topology", "nothing.yaml"], "nothing.yaml"),
        (["--patterns", "-o", "svg"], "--patterns prints records"),
        (["-o", "gif"], "unknown output format 'gif'"),
    ],
)
def test_refusals(words: list[str], said: str, canonical: Path) -> None:
    done = run("confluo-pingmesh", "heatmap", canonical, *words)
    lines = [line for line in done.stderr.decode().splitlines() if "left out" not in line]
    assert (done.returncode, done.stdout) == (2, b"")
    assert len(lines) == 1
    assert lines[0].startswith("confluo-pingmesh heatmap: ")
    assert said in lines[0]


def test_other_records_are_no_probes(tmp_path: Path) -> None:
    done = run("confluo-pingmesh", "heatmap", ROOT / "examples/data/vlan.pcap.gz")
    assert done.returncode == 2
    assert b"not probes" in done.stderr
    (tmp_path / "c.ndjson").write_text('{"ts": 1, "src": "a"}\n')
    done = run("confluo-pingmesh", "heatmap", tmp_path / "c.ndjson")
    assert done.returncode == 2
    taken, error = done.stderr.splitlines()
    assert b"field 'ts' as in schema 'packet'" in taken
    assert b"holds records of kind 'record', not probes" in error
    done = run("confluo-pingmesh", "heatmap", tmp_path / "missing")
    assert b"missing: No such file or directory" in done.stderr


def test_logs_of_several_agents_are_one_map(canonical: Path, tmp_path: Path) -> None:
    """Each has what it sent; logs and streams, merged or one after the other, and a snapshot of the logs."""
    text = heatmap(canonical, "-T")
    parts = []
    for k in range(3):
        its = [row for row in probes(canonical_matrices()) if row["src_podset"] == f"ps{k + 1}"]
        parts.append(write(tmp_path / f"{k}.arrows", its))
        assert run("confluo-convert", parts[-1], "-w", tmp_path / f"{k}.ml").returncode == 0
    assert heatmap(*parts, "-T") == text
    logs = [tmp_path / f"{k}.ml" for k in range(3)]
    assert heatmap(*logs, "-T") == text
    assert run("confluo-snapshot", *logs, "-w", tmp_path / "s.yaml").returncode == 0
    assert heatmap("--at", tmp_path / "s.yaml", "-T") == text


def test_nothing_is_no_map(canonical: Path, tmp_path: Path) -> None:
    done = run("confluo-pingmesh", "heatmap", canonical, "-e", "dst_port == 9", "-w", tmp_path / "m.svg")
    assert (done.returncode, done.stdout, (tmp_path / "m.svg").exists()) == (1, b"", False)
    assert b"no probes between places with names" in done.stderr


def test_a_file_is_not_overwritten(canonical: Path, tmp_path: Path) -> None:
    path = tmp_path / "m.svg"
    path.write_text("mine")
    heatmap(canonical, "-w", path, status=2)
    assert path.read_text() == "mine"
    heatmap(canonical, "-w", path, "--force")
    assert path.read_text().startswith("<svg")


def test_through_a_pipe(canonical: Path) -> None:
    data = canonical.read_bytes()
    assert heatmap("-", "--patterns", "-T", stdin=data) == heatmap(canonical, "--patterns", "-T")
    page = heatmap("-", "-o", "html", stdin=data)
    assert "The records came through a pipe" in page


def test_names_cannot_speak_to_a_terminal(tmp_path: Path) -> None:
    rows = probes([FLAT], podset=1)
    for row in rows:
        for name in ("src_pod", "dst_pod", "src_podset", "dst_podset", "src_dc", "dst_dc"):
            row[name] = "\x1b[2J\x07" + row[name]
    path = write(tmp_path / "p.arrows", rows)
    for kind in ("table", "svg"):
        text = heatmap(path, "-o", kind)
        assert not {c for c in text if not c.isprintable()} - {"\n"}
        assert "[2J" in text
    ElementTree.fromstring(heatmap(path, "-o", "svg"))


def test_png_without_its_renderer(flat: Path, tmp_path: Path) -> None:
    (tmp_path / "resvg_py.py").write_text("raise ImportError('not here')\n")
    done = run("confluo-pingmesh", "heatmap", flat, "-w", tmp_path / "m.png", env=environment(PYTHONPATH=str(tmp_path)))
    assert done.returncode == 2
    assert b"PNG needs the package resvg-py; pip install 'confluo-tools[pingmesh]', or use -o svg" in done.stderr
    assert not (tmp_path / "m.png").exists()


@pytest.mark.parametrize("kind", ["svg", "html", "table", "tsv"])
def test_a_full_disk_is_no_success(kind: str, flat: Path) -> None:
    done = shell('confluo-pingmesh heatmap "$1" -o "$2" >/dev/full', flat, kind)
    assert done.returncode == 2
    assert b"No space left on device" in done.stderr


# ---------------------------------------------------------------- servers behind cells


def behind(path: Path, most: int | None, monkeypatch: pytest.MonkeyPatch) -> tuple[Map, Any]:
    """The map, and the pairs behind its cells: of all, or of the worst ``most``."""
    from confluo_tools.pingmesh.heatmap import command

    if most is not None:
        monkeypatch.setattr(command, "ALL_CELLS", 0)
        monkeypatch.setattr(command, "WORST_CELLS", most)
    asked = command.ProbeInputs([str(path)], "", (None, None), cli.InputOptions({}))
    with asked.open() as reader:
        cells, width = command.load_cells(reader, asked, "pod", WINDOW)
    [chart] = cells.maps("pod", width, ColourLimits())
    [pairs] = command.load_pairs([chart], [chart.latest()], asked)
    return chart, pairs


def truth(rows: list[dict[str, Any]]) -> dict[tuple[Any, ...], list[int]]:
    """(window, from, to, server, server) -> ok, dropped, failed, P50 and P99 in units of 100 ns, by hand."""
    found: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows:
        window = (row["ts"] - START) // WINDOW
        found.setdefault((window, row["src_pod"], row["dst_pod"], row["src"], row["dst"]), []).append(row)
    return {
        key: [
            sum(r["outcome"] == 1 for r in its),
            sum(r["outcome"] == 1 and r["retries"] > 0 for r in its),
            sum(r["outcome"] == 2 for r in its),
            *middle(sorted(r["rtt"] // 100 for r in its if r["rtt"])),
        ]
        for key, its in found.items()
    }


def middle(values: list[int]) -> tuple[int, int]:
    return (values[(len(values) + 1) // 2 - 1], values[-1]) if values else (0, 0)


def told(chart: Map, pairs: Any) -> dict[tuple[Any, ...], list[int]]:
    n, c = len(chart.names), pairs.columns
    return {
        (
            c["window"][i],
            chart.names[c["cell"][i] // n],
            chart.names[c["cell"][i] % n],
            pairs.names[c["src"][i]],
            pairs.names[c["dst"][i]],
        ): [c[name][i] for name in ("ok", "dropped", "failed", "p50", "p99")]
        for i in range(len(pairs))
    }


def test_all_pairs_of_a_small_map(canonical: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chart, pairs = behind(canonical, None, monkeypatch)
    assert pairs.whole
    assert told(chart, pairs) == truth(probes(canonical_matrices()))


@pytest.mark.parametrize("most", [1, 30, 200])
def test_pairs_of_the_worst_cells(most: int, canonical: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """None is better than any that is left out; first of the window that is shown, the last one."""
    chart, pairs = behind(canonical, most, monkeypatch)
    assert not pairs.whole
    found, whole = told(chart, pairs), truth(probes(canonical_matrices()))
    assert found == {key: value for key, value in whole.items() if key in found}
    cells = {key[:3] for key in found}
    assert len(found) == SERVERS * len(cells) == SERVERS * most
    shade = {}
    for window, sheet in enumerate(chart.sheets):
        shades = chart.shades(sheet, "p99"), chart.shades(sheet, "drop")
        for i in range(144):
            shade[window, chart.names[i // 12], chart.names[i % 12]] = max(s[i] for s in shades)
    worst = min(shade[cell] for cell in cells)
    assert worst >= 7
    assert all(value <= worst for cell, value in shade.items() if cell not in cells and cell[0] == 3)


def test_pairs_of_pods_with_odd_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    odd = ['"', "\\", "a b' or", "ü*?"]
    rows = probes([[[9.0] * 4 for _ in range(4)]], podset=2)
    for row in rows:
        row["src_pod"], row["dst_pod"] = odd[int(row["src_pod"][1:])], odd[int(row["dst_pod"][1:])]
    path = write(tmp_path / "p.arrows", rows)
    chart, pairs = behind(path, 16, monkeypatch)
    assert told(chart, pairs) == truth(rows)


def test_names_stand_beside_their_cells_and_not_on_others() -> None:
    """Long names of podsets are not cut, the pattern is next to the title, in pictures of one pod and of many."""
    for pods, podset in ((1, 1), (4, 2), (12, 4)):
        made = chart(pods, podset)
        made.podsets = tuple((f"podset-{i:02}-long-x", a, b) for i, (_, a, b) in enumerate(made.podsets))
        root = ElementTree.fromstring(heatmap_svg.svg(made, made.sheets[0], "p99", "2026-01-01 00:10 - 00:20 UTC"))
        texts = list(root.iter("{http://www.w3.org/2000/svg}text"))
        beside = [t for t in texts if (t.text or "").startswith("podset-") and t.get("text-anchor") == "end"]
        assert len(beside) == len(made.podsets)
        assert all(float(t.get("x", 0)) - 7 * len(t.text or "") >= 0 for t in beside)
        head = [t for t in texts if t.get("id") == "pattern" or t.get("y") in ("36", "56")]
        title, about, pattern = (t for t in head)
        for text, wide in ((title, 10.2), (about, 6.3)):
            assert 24 + wide * len(text.text or "") < float(pattern.get("x", 0)) - 29


def test_a_terminal_of_few_colours_gets_the_right_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """The nearest of 16 to a light green was cyan, or grey."""
    made = chart(4, 2)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("COLORTERM", raising=False)
    text = heatmap_text.text_map(made, made.sheets[0], "p99", "now", color=True)
    assert set(re.findall(r"\x1b\[([0-9;]+)m[·▒█]", text)) <= {"30;42", "33;43", "31;41"}
    assert {"30;42", "31;41"} <= set(re.findall(r"\x1b\[([0-9;]+)m[·▒█]", text))
