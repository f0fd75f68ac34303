"""Maps of data centres against each other: names, floors, outputs, and the way inside."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from browser import CHROMIUM, Browser
from confluo_tools.pingmesh.heatmap.patterns import classify_dcs
from probe_records import fault, stream
from running import run

MINUTE = 60_000_000_000
GRID = (3, 2, 2, 4)
LATE = {"start": 10 * MINUTE, "delay": 30_000_000}


def heatmap(path: Path, *words: Any, status: int = 0) -> str:
    done = run("confluo-pingmesh", "heatmap", path, *map(str, words))
    assert done.returncode == status, done.stderr.decode()
    return (done.stderr if status else done.stdout).decode()


def rows(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


@pytest.fixture(scope="module")
def slow_link(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """From the tenth minute on, what goes from dc1 to dc3 is late; dc2 is down from the twentieth on."""
    down = [fault("podset_down", f"ps0{i}", start=20 * MINUTE) for i in (3, 4)]
    return stream(
        tmp_path_factory.mktemp("dcs") / "p.arrows",
        fault("congestion", "dc1>dc3", **LATE),
        *down,
        grid=GRID,
        span=30 * MINUTE,
    )


@pytest.mark.parametrize(
    ("blocks", "name"),
    [
        (["G"], "normal"),
        (["GG", "GG"], "normal"),
        ([".GG", "G.G", "GG."], "normal"),  # only probes between them were selected
        (["GWG", "WWW", "GWG"], "data centre down: dc2"),
        (["GWG", "W.W", "GWG"], "data centre down: dc2"),
        (["GWG", "WGW", "GWG"], "data centre cut off: dc2"),
        (["GWW", "WWW", "WWW"], "data centre down: dc2, dc3"),
        (["WW", "WG"], "data centre down: dc1"),
        (["GRG", "RGR", "GRG"], "data centre failure: dc2"),
        (["GRG", "RRR", "GRG"], "data centre failure: dc2"),
        (["RR", "RG"], "data centre failure: dc1"),
        (["GG", "GR"], "trouble inside: dc2"),
        (["R"], "trouble inside: dc1"),
        (["GR", "RG"], "wan failure"),
        (["GRR", "RGR", "RRG"], "wan failure"),
        (["GW", "WG"], "wan down"),
        (["GGR", "GGG", "RGG"], "link failure: dc1 - dc3"),
        (["GGW", "GGG", "WGG"], "link down: dc1 - dc3"),
        (["GGGR", "GGWG", "GWGG", "RGGG"], "link failure: dc1 - dc4; link down: dc2 - dc3"),
        (["GWRG", "WWWW", "RWGG", "GWGG"], "data centre down: dc2; link failure: dc1 - dc3"),
        (["GGR", "GGG", "GGG"], "unclassified"),  # round trips take both ways
        (["GGR", "GRG", "RGG"], "unclassified"),
        (["GYG", "YGG", "GGG"], "unclassified"),
        (["WW", "WW"], "unclassified"),
        (["..", ".."], "unclassified"),
        ([], "unclassified"),
    ],
)
def test_names(blocks: list[str], name: str) -> None:
    assert classify_dcs(blocks, [f"dc{i + 1}" for i in range(len(blocks))]).text == name


def test_a_link_a_data_centre_and_their_names(slow_link: Path) -> None:
    for metric in ("p50", "p99"):
        found = rows(heatmap(slow_link, "--by", "dc", "--metric", metric, "--patterns", "-J"))
        assert [(r["ts"][14:16], r["pattern"], r["dc"] or "", r["peer"] or "") for r in found] == [
            ("00", "normal", "", ""),
            ("10", "link failure", "dc1", "dc3"),
            ("20", "data centre down", "dc2", ""),
            ("20", "link failure", "dc1", "dc3"),
        ]
    drops = rows(heatmap(slow_link, "--by", "dc", "--metric", "drop", "--patterns", "-J"))
    assert [r["pattern"] for r in drops] == ["normal", "normal", "data centre down"]


def test_colours_are_by_what_is_above_the_least_median(slow_link: Path) -> None:
    """Against medians of the records themselves."""
    asked = run(
        "confluo-query",
        slow_link,
        "kind == tcp and outcome == ok and retries == 0 and src_dc != dst_dc",
        "-f",
        "ts,src_dc,dst_dc,rtt",
        "-T",
        "--no-header",
    )
    of: dict[tuple[int, str, str], list[int]] = {}
    for line in asked.stdout.decode().splitlines():
        ts, src, dst, rtt = line.split("\t")
        of.setdefault((int(ts[14:15]), src, dst), []).append(int(rtt))
    medians = {key: statistics.median_low(its) for key, its in of.items()}
    floors = {frozenset(key[1:]): 10**12 for key in medians}
    for (_, src, dst), value in medians.items():
        floors[frozenset((src, dst))] = min(floors[frozenset((src, dst))], value)
    cells = [r for r in rows(heatmap(slow_link, "--by", "dc", "-J")) if r["src"] != r["dst"] and r["ok"]]
    windows = sorted({r["ts"] for r in cells})
    assert len(cells) == len(medians) == 3 * 6 - 4
    for cell in cells:
        key = windows.index(cell["ts"]), cell["src"], cell["dst"]
        assert (cell["src_dc"], cell["dst_dc"], cell["src_podset"] or "") == (cell["src"], cell["dst"], "")
        assert cell["ok"] >= len(of[key])
        assert cell["p50"] == pytest.approx(medians[key], rel=1 / 128)
        above = cell["p99"] - floors[frozenset(key[1:])]
        assert cell["colour"] == ("red" if above > 5_000_000 else "green"), (cell, above)
    assert {r["colour"] for r in cells} == {"red", "green"}
    assert min(floors.values()) > 5_000_000  # so that all would be red by themselves


def test_cells_of_data_centres_are_drawn_again(slow_link: Path, tmp_path: Path) -> None:
    heatmap(slow_link, "--by", "dc", "-w", tmp_path / "cells.arrows")
    for words in ([], ["--by", "dc"]):
        assert heatmap(tmp_path / "cells.arrows", *words, "-T") == heatmap(slow_link, "--by", "dc", "-T")
    assert heatmap(tmp_path / "cells.arrows", "-o", "svg") == heatmap(slow_link, "--by", "dc", "-o", "svg")
    said = heatmap(tmp_path / "cells.arrows", "--by", "pod", status=2)
    assert said.endswith("--by pod: the input contains cells between data centres; leave it out\n")
    heatmap(slow_link, "--by", "podset", "-w", tmp_path / "podsets.arrows")
    assert "podsets" in heatmap(tmp_path / "podsets.arrows", "-o", "svg")
    assert "the input contains cells between podsets" in heatmap(tmp_path / "podsets.arrows", "--by", "dc", status=2)


def test_pictures_and_words(slow_link: Path, tmp_path: Path) -> None:
    text = heatmap(slow_link, "--by", "dc", "-o", "table", "--when", "2026-01-01T00:10")
    lines = text.splitlines()
    assert lines[0].startswith("P99 · between data centres · 2026-01-01 00:10")
    assert lines[1].startswith("link failure: dc1 - dc3. Between these two P99 is more than 5 ms above the")
    at = lines.index("      dc1 dc2 dc3")  # above the columns
    shapes = [line.split() for line in lines[at + 1 : at + 4]]
    assert [its[0] for its in shapes] == ["dc1", "dc2", "dc3"]
    assert [its[1] for its in shapes] == ["········████", "············", "████········"]
    assert "> +5 ms: 2" in text
    picture = heatmap(slow_link, "--by", "dc", "-o", "svg", "--when", "2026-01-01T00:10")
    ElementTree.fromstring(picture)
    assert ">link failure: dc1 - dc3" in picture
    assert "3 data centres" in picture
    assert picture.count("<title>") == 1 + 9
    assert ", lowest " in picture.partition("<title>dc1 → dc3: ")[2].partition("<")[0]
    assert ", lowest " not in picture.partition("<title>dc1 → dc1: ")[2].partition("<")[0]
    heatmap(slow_link, "--by", "dc", "-w", tmp_path / "m.png")
    assert (tmp_path / "m.png").read_bytes().startswith(b"\x89PNG")


def test_one_map_of_all(slow_link: Path, tmp_path: Path) -> None:
    assert "draws all data centres in one map; leave --dc out" in heatmap(
        slow_link, "--by", "dc", "--dc", "dc1", status=2
    )
    (tmp_path / "t.yaml").write_text("grid: {dcs: 4, podsets: 2, pods: 2, servers: 4}\n")
    text = heatmap(slow_link, "--by", "dc", "--topology", tmp_path / "t.yaml", "-o", "table")
    assert "data centre down: dc2, dc4" in text
    done = run("confluo-pingmesh", "heatmap", slow_link, "-T")
    assert b"cells between data centres are left out; --by dc draws them" in done.stderr


def test_a_data_centre_that_falls_silent_is_not_a_log_that_ends(slow_link: Path) -> None:
    """Its last window is as whole as that of the others: it is shown, and white."""
    found = [r for r in rows(heatmap(slow_link, "--patterns", "-J")) if r["dc"] == "dc2"]
    assert [(r["partial"], r["pattern"]) for r in found] == [("no", "normal"), ("no", "normal"), ("no", "unclassified")]
    text = heatmap(slow_link, "--dc", "dc2", "-o", "table")
    assert "00:20 – 00:30" in text
    assert "No probe was answered, if any was sent." in text


# ---------------------------------------------------------------- the page


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if CHROMIUM is None:
        pytest.skip("chromium is not installed; bin/check installs it as root")
    its = Browser()
    yield its
    its.close()


def opened(browser: Browser, path: str) -> None:
    browser.problems.clear()
    browser.open("about:blank")
    browser.open(path)
    browser.wait("document.body.dataset.ready")


@pytest.mark.slow
def test_from_data_centres_to_pods(browser: Browser, slow_link: Path, tmp_path: Path) -> None:
    heatmap(slow_link, "--by", "dc", "-w", tmp_path / "m.html", "--when", "2026-01-01T00:10")
    opened(browser, str(tmp_path / "m.html"))
    assert browser.text("#title") == "Round trips · between data centres"
    assert browser.text("#pattern").lower() == "link failure: dc1 - dc3"
    assert "3 data centres" in browser.text("#about")
    options = browser.js("[...document.querySelectorAll('#dc option')].map(o => o.textContent)")
    assert options == ["All data centres · link failure", "dc1", "dc2", "dc3"]
    for key in ("ArrowRight", "ArrowRight", "ArrowRight", "Enter"):  # the first takes hold of a cell
        browser.key(key)
    browser.wait("document.querySelectorAll('#pairs tbody tr').length")
    assert "lowest median of both" in browser.text("#cell")
    servers = browser.js("[...document.querySelectorAll('#pairs tbody tr')].map(r => r.title)")
    assert len(servers) == 16  # two of each podset of dc1 to as many of dc3
    assert all(
        s[:4] in {f"p00{i}" for i in range(1, 5)} and s[10:14] in {"p009", "p010", "p011", "p012"} for s in servers
    )
    # both ends can be read, and nothing is to be scrolled sideways
    cut = "[...document.querySelectorAll('#pairs td, #cell .scroll')].filter(e => e.scrollWidth > e.clientWidth).length"
    assert browser.js(cut) == 0
    buttons = browser.js("[...document.querySelectorAll('.inside')].map(b => b.textContent)")
    assert buttons == ["Pods of dc1 →", "Pods of dc3 →"]
    browser.js("document.querySelector('.inside').click()")
    browser.wait("document.querySelector('#title').textContent === 'Round trips · dc1'")
    assert browser.text("#when").startswith("2026-01-01 00:10")  # the same window
    assert "4 pods in 2 podsets" in browser.text("#about")
    assert browser.problems == []


@pytest.mark.slow
def test_the_page_begins_where_the_trouble_is(browser: Browser, slow_link: Path, tmp_path: Path) -> None:
    heatmap(slow_link, "-w", tmp_path / "m.html")
    opened(browser, str(tmp_path / "m.html"))
    assert browser.text("#title") == "Round trips · dc2"
    options = browser.js("[...document.querySelectorAll('#dc option')].map(o => o.textContent)")
    assert options == ["dc1", "dc2 · unclassified", "dc3"]


@pytest.mark.slow
def test_commands_to_copy_are_one_word_to_a_shell(browser: Browser, tmp_path: Path) -> None:
    """Names are other people's: what they hold is not run by who copies the line."""
    import shlex

    from heatmap_lab import probes, write

    evil = ["$(touch x)", "`id`", "a'b", 'c"d']
    its = probes([[[1.0] * 4 for _ in range(4)]], podset=2)
    for row in its:
        for end in ("src", "dst"):
            row[f"{end}_pod"] = evil[int(row[f"{end}_pod"][1:])]
    path = write(tmp_path / "p.arrows", its)
    heatmap(path, "--no-pairs", "-w", tmp_path / "m.html")
    opened(browser, str(tmp_path / "m.html"))
    commands = []
    for i in range(4):
        opened(browser, f"file://{tmp_path}/m.html#c={i * 4 + (i + 1) % 4}")
        time.sleep(0.05)
        browser.wait("!!document.querySelector('#cell code')")
        commands.append(browser.js("document.querySelector('#cell code').textContent"))
    names = [browser.js("JSON.parse(document.getElementById('head').textContent).maps[0].names")][0]
    assert sorted(names) == sorted(evil)
    for i, text in enumerate(commands):
        words = shlex.split(text)
        assert words[:3] == ["confluo-pingmesh", "heatmap", str(path)]
        done = run(*words[:1], *words[1:-2], "-J")
        found = rows(done.stdout.decode())
        assert len(found) == 4, (text, done.stderr)
        pods = {name: {r["src"] for r in its if r["src_pod"] == name} for name in evil}
        assert {r["src"] for r in found} == pods[names[i]]
