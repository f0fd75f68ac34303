"""The page of confluo-pingmesh heatmap in a real browser: what is drawn, what it says, hands and keys."""

from __future__ import annotations

import random
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from browser import CHROMIUM, Browser
from confluo_tools.pingmesh.heatmap import colours as heatmap_colours
from confluo_tools.pingmesh.heatmap import html as heatmap_html
from confluo_tools.pingmesh.heatmap.model import CLASS, SHADE_ABSENT, ColourLimits, Map, Sheet, group
from heatmap_lab import START, WINDOW, Matrix, canonical_matrices, probes, write
from running import environment, run

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed; bin/check installs it as root"),
]
READY = "document.body.dataset.ready"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    its = Browser()
    yield its
    its.close()


@pytest.fixture(scope="module")
def canonical(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page of the four matrices, a window each."""
    folder = tmp_path_factory.mktemp("page")
    write(folder / "probes.arrows", probes(canonical_matrices()))
    done = run("confluo-pingmesh", "heatmap", folder / "probes.arrows", "-w", folder / "mesh.html")
    assert done.returncode == 0, done.stderr.decode()
    return folder / "mesh.html"


def opened(browser: Browser, path: Path, scheme: str = "light", width: int = 1280, height: int = 860) -> None:
    browser.problems.clear()
    browser.size(width, height)
    browser.prefer(scheme)
    browser.open("about:blank")  # another address of the same page would not load it again
    browser.point(2, 2)
    browser.open(str(path))
    browser.wait(READY)


def again(browser: Browser, do: Any) -> None:
    """Do something that draws another sheet, and wait for it."""
    before = browser.js(READY)
    do()
    browser.wait(f"{READY} !== '{before}'")


def place(browser: Browser) -> tuple[float, float, float]:
    """Where the map is in the window: left, top, size of a cell."""
    x, y, scale, left, top = browser.js("""(() => {
        const m = document.querySelector('#map'), b = m.getBoundingClientRect();
        return [+m.dataset.x, +m.dataset.y, +m.dataset.scale, b.left, b.top]; })()""")
    return x + left, y + top, scale


def drawn(browser: Browser, n: int) -> list[list[tuple[int, ...]]]:
    """The colour of each cell, off its middle, where there may be a mark."""
    found = browser.js(f"""(() => {{
        const m = document.querySelector('#map'), copy = document.createElement('canvas'), out = [];
        copy.width = m.width; copy.height = m.height;
        const g = copy.getContext('2d', {{ willReadFrequently: true }});
        g.drawImage(m, 0, 0);
        const x = +m.dataset.x, y = +m.dataset.y, c = +m.dataset.scale, all = g.getImageData(0, 0, m.width, m.height);
        for (let i = 0; i < {n}; i++) for (let j = 0; j < {n}; j++) {{
            const at = 4 * (Math.floor(y + (i + .2) * c) * m.width + Math.floor(x + (j + .2) * c));
            out.push([...all.data.slice(at, at + 3)]); }}
        return out; }})()""")
    return [[tuple(found[i * n + j]) for j in range(n)] for i in range(n)]


def classes(palette: str = "paper", theme: str = "light") -> dict[tuple[int, ...], int]:
    shades = heatmap_colours.PALETTES[palette, theme].shades
    return {tuple(int(c[i : i + 2], 16) for i in (1, 3, 5)): CLASS[k] for k, c in enumerate(shades[:SHADE_ABSENT])}


def expected(matrix: Matrix) -> list[list[int]]:
    return [[(1 if ms < 4 else 2 if ms <= 5 else 3) if ms else 0 for ms in line] for line in matrix]


def seen(browser: Browser, n: int, palette: str = "paper", theme: str = "light") -> list[list[int]]:
    known = classes(palette, theme)
    return [[known.get(colour, -1) for colour in line] for line in drawn(browser, n)]


def hover(browser: Browser, i: int, j: int) -> str:
    x, y, scale = place(browser)
    browser.point(x + (j + 0.5) * scale, y + (i + 0.5) * scale)
    browser.wait("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(true))))")
    return browser.text("#tip")


def test_every_cell_of_every_window(browser: Browser, canonical: Path) -> None:
    """Each has the colour of its P99 and each pattern its name, with the slider, in light and in the dark."""
    names = ["Normal", "Podset down: ps2", "Podset failure: ps2", "Spine failure"]
    for theme in ("light", "dark"):
        opened(browser, canonical, theme)
        assert browser.js("document.querySelector('#time').value") == "3"
        for window, matrix in enumerate(canonical_matrices()):
            if browser.js("document.querySelector('#time').value") != str(window):
                again(
                    browser,
                    lambda w=window: browser.js(
                        f"(() => {{ const t = document.querySelector('#time'); t.value = {w};"
                        " t.dispatchEvent(new Event('input')); })()"
                    ),
                )
            browser.point(2, 2)
            assert seen(browser, 12, theme=theme) == expected(matrix)
            assert browser.text("#pattern").capitalize() == names[window]
            assert f"00:{window}0 – 00:{window + 1}0 UTC" in browser.text("#when")
        assert browser.problems == []


def test_hover_says_what_was_measured(browser: Browser, canonical: Path) -> None:
    opened(browser, canonical)
    matrix = canonical_matrices()[3]
    for i in range(12):
        for j in range(0, 12, 3):
            ms = matrix[i][j]
            odd = round(ms * 100) % 2
            p99 = f"{ms:.1f} ms" if ms >= 9.995 else f"{ms:.2f} ms" if ms >= 1 else f"{ms * 1000:.0f} µs"
            lines = hover(browser, i, j).split("\n")
            words = dict(zip(lines[1::2], lines[2::2], strict=True))
            assert lines[0] == f"p{i:02} → p{j:02}"
            assert words["P99"] == p99
            assert words["probes"] == str(20 + 4 * odd)
            assert words.get("dropped") == ("4" if odd else None)
            assert words["drop rate"] == ("17 %" if odd else "0")
    again(browser, lambda: browser.key("Home"))
    again(browser, lambda: browser.key("."))
    lines = hover(browser, 0, 5).split("\n")
    assert lines == ["p00 → p05", "probes", "4", "not answered", "4"]
    assert browser.problems == []


def test_keys(browser: Browser, canonical: Path) -> None:
    opened(browser, canonical)
    for key in ("Down", "Down", "Right", "Right", "Right", "Right", "Right", "Left"):
        browser.key(f"Arrow{key}")
    assert browser.text("#tip").startswith("p01 → p04")  # the first arrow shows the first cell
    browser.key("Enter")
    browser.wait("document.querySelectorAll('#pairs tbody tr').length")
    assert browser.text("#cell h3") == "p01 → p04"
    rows = [row.split("\t") for row in browser.text("#pairs tbody").split("\n") if row.strip()]
    assert sorted(row[0].strip() for row in rows) == [f"p01s{k} → p04s{k}" for k in range(4)]
    assert {row[2] for row in rows} == {f"{canonical_matrices()[3][1][4]:.2f} ms"}
    assert browser.js("location.hash").endswith("c=16")
    again(browser, lambda: browser.key("1"))
    assert browser.text("#about").startswith("P50")
    again(browser, lambda: browser.key("3"))
    assert browser.text("#about").startswith("Drop rate")
    again(browser, lambda: browser.key("2"))
    again(browser, lambda: browser.key(","))
    assert "00:20 – 00:30" in browser.text("#when")
    assert browser.text("#pattern").lower() == "podset failure: ps2"
    browser.key("Escape")
    browser.point(2, 2)
    assert browser.js("document.querySelectorAll('#pairs').length") == 0
    browser.key("ArrowDown")
    browser.key("c")
    browser.key("Escape")
    browser.wait("document.querySelector('#tip').hidden")
    assert seen(browser, 12, palette="safe") == expected(canonical_matrices()[2])
    browser.key("t")
    assert seen(browser, 12, palette="safe", theme="dark") == expected(canonical_matrices()[2])
    browser.key("?")
    assert browser.js("document.querySelector('#help').open")
    browser.key("1")  # not while one reads
    browser.key("Escape")
    browser.wait("!document.querySelector('#help').open")
    assert browser.text("#about").startswith("P99")
    before = browser.js("document.querySelector('#time').value")
    browser.key(" ")
    browser.wait(f"document.querySelector('#time').value !== '{before}'")
    browser.key(" ")
    assert browser.problems == []


def test_the_address_leads_back(browser: Browser, canonical: Path) -> None:
    opened(browser, canonical)
    again(browser, lambda: browser.key("Home"))
    again(browser, lambda: browser.key("3"))
    address = browser.js("location.href")
    browser.open("about:blank")
    browser.open(address)
    browser.wait(READY)
    assert browser.text("#about").startswith("Drop rate · 2026-01-01 00:00 – 00:10 UTC")


def test_zoom_and_blocks(browser: Browser, canonical: Path) -> None:
    opened(browser, canonical, width=950, height=720)
    x, y, scale = place(browser)
    again_at = (x + 5.5 * scale, y + 2.5 * scale)
    title = hover(browser, 2, 5).split("\n")[0]
    assert title == "p02 → p05"
    for _ in range(4):
        browser.wheel(*again_at, -200)
    browser.wait(f"+document.querySelector('#map').dataset.scale > {scale * 1.05}")
    browser.point(again_at[0] + 1, again_at[1])
    assert browser.text("#tip").split("\n")[0] == title  # what is under the pointer stays there
    browser.key("0")
    assert place(browser) == (x, y, scale)
    box = browser.js(
        "(() => { const b = document.querySelector('#blocks canvas').getBoundingClientRect();"
        " return [b.left, b.top, b.width]; })()"
    )
    browser.click(box[0] + box[2] * 5 / 6, box[1] + box[2] / 2)  # from ps2 to ps3
    big, at = place(browser)[2], place(browser)
    assert big > scale
    assert at[0] <= x + 0.5
    assert at[1] <= y + 0.5
    assert browser.problems == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(("width", "height"), [(1280, 860), (1920, 1080), (390, 844)])
def test_a_picture_of_it_is_not_blank(browser: Browser, canonical: Path, scheme: str, width: int, height: int) -> None:
    opened(browser, canonical, scheme, width, height)
    browser.point(2, 2)
    shares = browser.colours(browser.screenshot())
    palette = heatmap_colours.PALETTES["paper", scheme]
    back = tuple(int(palette.back[i : i + 2], 16) for i in (1, 3, 5))
    assert 0.05 < shares[back] < 0.8
    known = classes(theme=scheme)
    green, red = (sum(share for colour, share in shares.items() if known.get(colour) == k) for k in (1, 3))
    assert green > 0.03
    assert red > 0.06
    assert browser.js("document.documentElement.scrollWidth") <= width  # nothing hangs out
    assert browser.problems == []


def test_svg_and_png_show_the_same(browser: Browser, canonical: Path) -> None:
    """Another renderer, and the browser itself, of the SVG: as much green and red as there are cells."""
    pytest.importorskip("resvg_py")
    source = canonical.parent / "probes.arrows"
    for name in ("m.svg", "m.png"):
        done = run("confluo-pingmesh", "heatmap", source, "--force", "--scale", "1", "-w", canonical.parent / name)
        assert done.returncode == 0, done.stderr.decode()
    browser.problems.clear()
    browser.size(1000, 900)
    browser.open(str(canonical.parent / "m.svg"))
    pictures = [browser.screenshot(), (canonical.parent / "m.png").read_bytes()]
    browser.open("about:blank")
    for picture in pictures:
        shares = browser.colours(picture)
        green, red = (sum(share for colour, share in shares.items() if classes().get(colour) == k) for k in (1, 3))
        assert red / green == pytest.approx(2, rel=0.15)  # 96 cells to 48, and a legend
    assert browser.problems == []


def test_names_of_other_people_do_nothing(browser: Browser, tmp_path: Path) -> None:
    evil = ["</script><b>", "<img onerror=1>", "'\"&amp;\\", "\u2028ü→"]
    rows = probes([[[1.0] * 4 for _ in range(4)]], podset=2)
    for row in rows:
        for end in ("src", "dst"):
            row[f"{end}_pod"] = evil[int(row[f"{end}_pod"][1:])]
            row[end] = f"<i>{row[end]}</i>"
            row[f"{end}_podset"] += "<u>"
    write(tmp_path / "p.arrows", rows)
    done = run("confluo-pingmesh", "heatmap", tmp_path / "p.arrows", "--title", "</script>&", "-w", tmp_path / "m.html")
    assert done.returncode == 0, done.stderr.decode()
    opened(browser, tmp_path / "m.html")
    assert browser.text("#title") == "</script>& · dc1"
    titles = {hover(browser, i, 0).split("\n")[0].partition(" → ")[0] for i in range(4)}
    assert {t.replace("\u2028", "") for t in titles} == {e.replace("\u2028", "") for e in evil}
    x, y, scale = place(browser)
    browser.click(x + scale / 2, y + scale * 1.5)
    browser.wait("document.querySelectorAll('#pairs tbody tr').length")
    assert "<i>" in browser.text("#pairs")
    assert browser.js("document.querySelectorAll('b b, img, #cell u, td i i').length") == 0
    assert browser.problems == []
    done = run("confluo-pingmesh", "heatmap", tmp_path / "p.arrows", "-w", tmp_path / "m.svg")
    browser.open(str(tmp_path / "m.svg"))
    assert browser.js("document.documentElement.tagName") == "svg"
    assert browser.problems == []


def test_a_page_that_is_damaged_says_so(browser: Browser, canonical: Path, tmp_path: Path) -> None:
    """A truncated page, and a window with corrupt bytes."""
    data = canonical.read_bytes()
    browser.problems.clear()
    (tmp_path / "cut.html").write_bytes(data[: len(data) * 2 // 3])
    browser.open(str(tmp_path / "cut.html"))
    assert "the page is incomplete" in browser.text("#verdict")
    at = data.index(b'id="b6">') + len(b'id="b6">')
    (tmp_path / "odd.html").write_bytes(data[: at + 8] + data[at + 8 : at + 40][::-1] + data[at + 40 :])
    browser.open(str(tmp_path / "odd.html"))
    browser.wait("document.querySelector('#pattern').innerText === 'This page is damaged'")
    browser.open("about:blank")
    browser.problems.clear()


def test_two_data_centres(browser: Browser, tmp_path: Path) -> None:
    good, _, bad, _ = canonical_matrices()
    write(tmp_path / "p.arrows", probes([good, good], dc="east") + probes([bad, good], dc="west"))
    assert run("confluo-pingmesh", "heatmap", tmp_path / "p.arrows", "-w", tmp_path / "m.html").returncode == 0
    opened(browser, tmp_path / "m.html")
    assert browser.text("#title") == "Round trips · east"
    assert seen(browser, 12) == expected(good)
    again(browser, lambda: browser.key("d"))
    assert browser.text("#title") == "Round trips · west"
    again(browser, lambda: browser.key("Home"))
    assert seen(browser, 12) == expected(bad)
    assert browser.problems == []


def test_a_thousand_pods(browser: Browser, tmp_path: Path) -> None:
    """A million cells: each can be pointed at, zoomed to, and has its own values."""
    rng, n = random.Random(4), 1000
    names, podsets = group([(f"p{i:03}", f"ps{i // 40:02}") for i in range(n)])
    chart = Map("dc1", "pod", names, podsets, WINDOW, ColourLimits())
    sheet = Sheet(START, n)
    cells = {rng.randrange(n * n): rng.choice([4.5e6, 7e6, 2e7]) for _ in range(500)}
    for i in range(n * n):
        sheet.put(i, 2e5, cells.get(i, 1e6), (100, 0, 0, 0))
    chart.sheets.append(sheet)
    chart.finish()
    path = tmp_path / "big.html"
    path.write_bytes(b"".join(heatmap_html.page([chart], "p99", at=[0])))
    opened(browser, path)
    assert browser.text("#about").endswith("1,000 pods in 25 podsets · 100,000,000 probes")
    counts = [
        line.split("\n")[-1]
        for line in browser.js("[...document.querySelectorAll('#legend li')].map(li => li.innerText)")
    ]
    yellow = sum(ns == 4.5e6 for ns in cells.values())
    assert counts == [f"{len(cells) - yellow}", f"{yellow}", f"{n * n - len(cells):,}", "0"]
    x, y, scale = place(browser)
    assert scale < 1
    # none of the few that are bad falls between two pixels, though there is not one for each
    png = browser.screenshot()
    for cell in list(cells)[::10]:
        i, j = divmod(cell, n)
        near = [
            (round(x + (j + 0.5) * scale) + a, round(y + (i + 0.5) * scale) + b) for a in (-1, 0, 1) for b in (-1, 0, 1)
        ]
        assert any(red > green + 20 for red, green, _ in browser.pixels(png, near)), cell  # lines may lie above
    cell = next(iter(cells))
    i, j = divmod(cell, n)
    px, py = x + (j + 0.5) * scale, y + (i + 0.5) * scale
    for _ in range(40):
        browser.wheel(px, py, -400)
    browser.wait("+document.querySelector('#map').dataset.scale > 20")
    time.sleep(0.1)
    x, y, scale = place(browser)
    lines = hover(browser, i, j).split("\n")
    assert lines[0] == f"p{i:03} → p{j:03}"
    said = dict(zip(lines[1::2], lines[2::2], strict=True))
    assert said["P99"] == {4.5e6: "4.50 ms", 7e6: "7.00 ms", 2e7: "20.0 ms"}[cells[cell]]
    assert browser.problems == []


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("deficiency", ["none", "protanopia", "deuteranopia", "tritanopia"])
def test_colours_that_everybody_can_tell_apart(browser: Browser, deficiency: str, theme: str) -> None:
    """The palette `safe` as the browser shows it to people who see less: no two classes look alike."""
    shades = heatmap_colours.PALETTES["safe", theme].shades[:SHADE_ABSENT]
    cells = "".join(f"<td style='background:{c};width:20px;height:20px;padding:0'>" for c in shades)
    browser.size(400, 100)
    browser.open("about:blank")
    browser.js(f"document.body.innerHTML = `<table style='border-spacing:0'><tr>{cells}</table>`, 0")
    browser.call("Emulation.setEmulatedVisionDeficiency", type=deficiency)
    try:
        picture = browser.screenshot()
    finally:
        browser.call("Emulation.setEmulatedVisionDeficiency", type="none")
    at = [(8 + 20 * k + 10, 18) for k in range(len(shades))]
    seen = browser.pixels(picture, at)
    if deficiency == "none":
        assert seen == [tuple(int(c[i : i + 2], 16) for i in (1, 3, 5)) for c in shades]
    pairs = [
        (sum((a - b) ** 2 for a, b in zip(seen[i], seen[j], strict=True)) ** 0.5, i, j)
        for i in range(len(shades))
        for j in range(i)
        if CLASS[i] != CLASS[j]
    ]
    assert min(pairs)[0] > 25, min(pairs)


def test_local_times(browser: Browser, tmp_path: Path) -> None:
    """--local: of what is given, and of what is shown; a page takes the zone of the host, not that of its reader."""
    path = write(tmp_path / "p.arrows", probes(canonical_matrices()))
    words = ("confluo-pingmesh", "heatmap", path, "--window", "10m", "--local")
    use = environment(TZ="Asia/Kolkata")
    title = run(*words, "-o", "table", env=use).stdout.decode()
    shown = re.search(r"(\d{4}-\d\d-\d\d) 06:00 – 06:10 \+05:30", title)
    assert shown, title
    begin = f"{shown[1]}T06:00"
    assert run(*words, "--when", begin, "-o", "table", env=use).stdout.decode() == title
    assert b"no probes at this time" in run(*words[:-1], "--when", begin, "-o", "table", env=use).stderr
    assert run(*words, "-w", tmp_path / "m.html", env=use).returncode == 0
    opened(browser, tmp_path / "m.html")
    assert shown[0] in browser.text("#when")
    assert browser.problems == []
