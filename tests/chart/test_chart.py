"""Pictures of groups: what is drawn is what the table says, read back from the picture."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import browser
from confluo_tools.chart import model, scale, terminal
from confluo_tools.chart.model import Chart, ChartLine, ChartMeasure
from confluo_tools.chart.page import page
from confluo_tools.chart.svg import PANEL, svg
from confluo_tools.units import value_text
from running import CAMPUS, lines, run

SVG = "{http://www.w3.org/2000/svg}"
POINT = re.compile(r"[ML]([\d.]+) ([\d.]+)")


def query(*words: str) -> str:
    done = run("confluo-query", str(CAMPUS), *words)
    assert done.returncode == 0, done.stderr
    return done.stdout.decode()


def table(*words: str) -> list[list[str]]:
    return [line.split("\t") for line in query(*words, "-T", "--no-header").splitlines()]


def panels(text: str) -> list[ET.Element]:
    return [g for g in ET.fromstring(text).iter(f"{SVG}g") if g.get("class") == "panel"]


def heights(panel: ET.Element, high: float) -> list[list[float]]:
    """The values of each line, from the places of its points; the panel goes from 0 to ``high``."""
    top = min(
        float(re.search(r" ([\d.]+)h", g.get("d", ""))[1])
        for g in panel
        if "h" in g.get("d", "") and g.get("class") == "grid"
    )  # type: ignore[index]
    drawn = [g.get("d", "") for g in panel if g.get("class") == "line"]
    return [[high * (1 - (float(y) - top) / PANEL) for _, y in POINT.findall(d)] for d in drawn]


def test_lines_have_the_values_of_the_table() -> None:
    words = ("tcp", "--agg", "sum(len), count", "--by", "1s")
    rows = table(*words)
    for number, panel in enumerate(panels(query(*words, "-o", "svg"))):
        values = [float(row[1 + number]) for row in rows]
        ticks = scale.value_ticks(0, max(values))
        (found,) = heights(panel, ticks[-1])
        assert found == pytest.approx(values, abs=ticks[-1] / 1500)
        tips = [t.text or "" for t in panel.iter(f"{SVG}title")]
        assert [t.split("\n")[0] for t in tips] == [row[0].partition(".")[0] + "Z" for row in rows]
        assert [t.split("\n")[1] for t in tips] == [value_text(v, ["B", ""][number]) for v in values]


def test_lines_by_name_are_those_with_the_largest_values() -> None:
    words = ("--agg", "sum(len)", "--by", "1s, dst_port")
    totals: dict[str, float] = {}
    for _, port, size in table(*words):
        totals[port] = totals.get(port, 0) + float(size)
    (panel,) = panels(query(*words, "-o", "svg"))
    tip = next(panel.iter(f"{SVG}title")).text or ""
    shown = {line.rpartition(": ")[0] for line in tip.split("\n")[1:]}
    assert shown == set(sorted(totals, key=lambda n: totals[n], reverse=True)[: model.MAX_LINES])
    assert f"{len(totals) - model.MAX_LINES:,} smaller lines are not shown" in query(*words, "-o", "svg")


def test_bars_have_the_values_of_the_table() -> None:
    words = ("--agg", "count, avg(len)", "--by", "src_ip", "--top", "9")
    rows = table(*words)
    for number, panel in enumerate(panels(query(*words, "-o", "svg"))):
        bars = [float(r.get("width", "")) for r in panel.iter(f"{SVG}rect")]
        values = [float(row[1 + number]) for row in rows]
        assert bars == pytest.approx([v * max(bars) / max(values) for v in values], abs=0.6)
        texts = [t.text for t in panel.iter(f"{SVG}title")]
        assert texts == [f"{r[0]}: {value_text(v, ['', 'B'][number])}" for r, v in zip(rows, values, strict=True)]


def test_a_sparkline_has_a_character_for_each_step() -> None:
    words = ("--agg", "count", "--by", "1s")
    values = [float(row[1]) for row in table(*words)]
    first, drawn, when = query(*words, "-o", "spark").splitlines()
    assert first == f"count, up to {value_text(max(values))}"
    assert [terminal.BLOCKS.index(c) for c in drawn] == [min(int(v / max(values) * 8), 7) for v in values]
    assert when == "2026-11-21T01:18:38Z to 2026-11-21T01:18:50Z"


@given(st.lists(st.one_of(st.none(), st.floats(0, 1e12)), min_size=1, max_size=500), st.integers(8, 200))
def test_no_peak_is_lost(values: list[float | None], width: int) -> None:
    short = terminal.shortened(values, width)
    assert len(short) <= width
    assert max([v for v in short if v is not None], default=None) == max(
        [v for v in values if v is not None], default=None
    )


@given(st.integers(-(10**15), 0).map(lambda n: n / 1000), st.integers(0, 10**15).map(lambda n: n / 1000))
def test_values_are_between_their_ticks(low: float, high: float) -> None:
    ticks = scale.value_ticks(low, high)
    assert 2 <= len(ticks) <= 12
    assert ticks[0] <= low <= high <= ticks[-1]


@given(st.integers(0, 4 * 10**18), st.integers(1, 4 * 10**18))
def test_ticks_of_time_are_few_and_told_apart(first: int, span: int) -> None:
    ticks = scale.time_ticks(first, first + span)
    assert len(ticks) <= 9
    assert all(first <= t <= first + span for t in ticks)
    if len(ticks) > 1 and ticks[1] - ticks[0] < scale.DAY // 8:
        assert len({scale.time_text(t, ticks[1] - ticks[0]) for t in ticks}) == len(ticks)


def test_bars_of_a_number_stay_in_its_order() -> None:
    words = ("--agg", "count", "-o", "spark", "--by")
    shown = [line.split()[0] for line in lines(run("confluo-query", CAMPUS, *words, "len"))[1:-1]]
    assert len(shown) == model.MAX_BARS
    assert shown == sorted(shown, key=int)
    ports = lines(run("confluo-query", CAMPUS, *words, "src_ip,dst_ip,src_port"))[1:9]
    sizes = [float(line.split()[3]) for line in ports]
    assert sizes == sorted(sizes, reverse=True)


@given(st.floats(1e-6, 1e17))
def test_texts_of_values_are_right_to_three_digits(value: float) -> None:
    number, _, prefix = value_text(value, "").partition(" ")
    size = {"P": 1e15, "T": 1e12, "G": 1e9, "M": 1e6, "k": 1e3, "": 1, "m": 1e-3, "µ": 1e-6}[prefix]
    assert float(number) * size == pytest.approx(value, rel=0.0051)


def made(name: str, *values: float | None) -> Chart:
    times = tuple(range(0, 10**9 * len(values), 10**9))
    return Chart(
        "p99 by name", ("name",), (ChartMeasure("p99", "ns", False),), times, 10**9, (ChartLine(name, (values,)),), 0
    )


def test_unknown_values_are_gaps() -> None:
    (panel,) = panels("".join(svg(made("x", 1.0, None, None, 3.0, 4.0))))
    (path,) = [g.get("d", "") for g in panel if g.get("class") == "line"]
    assert (path.count("M"), len(POINT.findall(path))) == (2, 3)
    assert "".join(terminal.spark(made("x", 1.0, None, 4.0), 80)).count("▃ █") == 1


HOSTILE = "<script>alert(1)</script>&\"'\x00\x1b[2J" + "long" * 100


def test_names_of_the_input_are_only_text() -> None:
    text = "".join(svg(made(HOSTILE, 1.0, 2.0)))
    assert "<script" not in text
    assert "\x1b" not in text
    ET.fromstring(text)
    assert "<script" not in "".join(page(made(HOSTILE, 1.0), "confluo-query '<script>'"))


@pytest.mark.skipif(browser.CHROMIUM is None, reason="no Chromium")
def test_a_page_in_a_browser(tmp_path: Path) -> None:
    path = tmp_path / "rate.html"
    query("--agg", "sum(len), count", "--by", "1s,proto", "-w", str(path))
    one = browser.Browser()
    try:
        one.open(str(path))
        assert one.js("document.querySelectorAll('svg .panel').length") == 2
        assert one.js("document.querySelectorAll('svg .line').length") == 10
        rows = table("--agg", "sum(len), count", "--by", "1s,proto")
        cells = one.js("[...document.querySelectorAll('tbody tr')].map(r => [...r.cells].map(c => c.textContent))")
        known = {(time.partition(".")[0] + "Z", proto): (size, count) for time, proto, size, count in rows}
        assert {(t, p): (s, c) for t, p, s, c in cells if c != "0"} == known
        back = "getComputedStyle(document.body).backgroundColor"
        light = one.js(back)
        one.prefer("dark")
        assert one.js(back) != light
        assert one.problems == []
    finally:
        one.close()


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["-o", "svg"], "-o svg: draws groups; add --agg and --by: --agg 'sum(len)' --by 1s"),
        (
            ["--agg", "first(src_ip)", "-o", "spark"],
            "first_src_ip (ip) is not a number to draw; choose aggregates such as",
        ),
        (["--agg", "count", "--by", "1s", "-f", "count", "-o", "html"], "--fields: a picture needs all groups; leave"),
        (["--agg", "count", "-w", "x.png"], "-w x.png: cannot write .png; use .svg or .html"),
        (["--agg", "count", "--by", "10ns", "-o", "svg"], "steps of time do not fit into a picture; use longer steps"),
    ],
)
def test_what_cannot_be_drawn(words: list[str], error: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = run("confluo-query", str(CAMPUS), *words)
    assert (done.returncode, done.stdout) == (2, b"")
    (line,) = done.stderr.decode().splitlines()
    assert error in line
    assert not list(tmp_path.iterdir())


def test_nothing_found_is_an_empty_picture() -> None:
    done = run("confluo-query", str(CAMPUS), "proto == 77", "--agg", "count", "--by", "1s", "-o", "svg")
    assert done.returncode == 1
    ET.fromstring(done.stdout)
    assert lines(run("confluo-query", str(CAMPUS), "udp", "--agg", "count", "-o", "spark"))[0] == "count, up to 456"
