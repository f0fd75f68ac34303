"""Heat maps: how long pictures take, and how a page of 1,000 x 1,000 pods feels in a browser.

    python bench/heatmap.py [--pods 1000] [--podset 40] [--windows 1] [--no-browser]

Prints step, seconds, bytes.  The bar: 1,000 x 1,000 pods are drawn in 2 s, as SVG and as a page, and the page scrolls
(a frame in less than 33 ms).  Times are those of one core; a browser has several.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support")]

from confluo_tools.pingmesh.heatmap import cells as heatmap_cells
from confluo_tools.pingmesh.heatmap import html as heatmap_html
from confluo_tools.pingmesh.heatmap import svg as heatmap_svg
from confluo_tools.pingmesh.heatmap.model import ColourLimits, Map, Sheet

START = 1_767_225_600_000_000_000
WIDTH = 600_000_000_000


def make(pods: int, podset: int, windows: int) -> Map:
    """A data centre that is well but for its second podset, with drops here and there."""
    rng = random.Random(1)
    names = tuple(f"p{i:04}" for i in range(pods))
    podsets = tuple((f"ps{i // podset:02}", i, min(i + podset, pods)) for i in range(0, pods, podset))
    chart = Map("dc1", "pod", names, podsets, WIDTH, ColourLimits())
    bad = range(podset, 2 * podset)
    for k in range(windows):
        sheet = Sheet(START + k * WIDTH, pods)
        for i in range(pods):
            for j in range(pods):
                p50 = 216e3 + rng.random() * 5e4 if i // podset == j // podset else 268e3 + rng.random() * 5e4
                p99 = p50 * (4 + 3 * rng.random()) * (8 if i in bad or j in bad else 1)
                sheet.put(i * pods + j, p50, p99, (2400, rng.random() < 0.1, 0, 0))
        chart.sheets.append(sheet)
    chart.finish()
    return chart


def timed(step: str, do: Callable[[], Any]) -> Any:
    begin = time.perf_counter()
    found = do()
    took = time.perf_counter() - begin
    size = len(found) if isinstance(found, str | bytes) else ""
    print(f"{step}\t{took:.3f}\t{size}", flush=True)
    return found


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    options.add_argument("--pods", type=int, default=1000)
    options.add_argument("--podset", type=int, default=40)
    options.add_argument("--windows", type=int, default=1)
    options.add_argument("--no-browser", action="store_true")
    args = options.parse_args()
    print("step\tseconds\tbytes")
    chart = make(args.pods, args.podset, args.windows)
    sheet = chart.sheets[-1]
    timed("shades of a metric", lambda: chart.shades(sheet, "p99"))
    timed("pattern of latencies", lambda: chart.pattern(sheet, "p99"))
    timed("pattern of drops", lambda: chart.pattern(sheet, "drop"))
    picture = timed("svg", lambda: heatmap_svg.svg(chart, sheet, "p99", "bench"))
    timed("page", lambda: b"".join(heatmap_html.page([chart], "p99", at=[len(chart.sheets) - 1])))
    try:
        timed("png of the svg", lambda: heatmap_svg.png(picture))
    except Exception as e:
        print(f"png of the svg\t-\t{e}")
    with tempfile.TemporaryDirectory() as folder:
        commands(chart, Path(folder))
        if not args.no_browser:
            browse(Path(folder) / "page.html")


def commands(chart: Map, folder: Path) -> None:
    """The same from a file of cells, the interpreter's start included."""
    import subprocess

    from confluo_tools.formats.output_file import open_sink
    from confluo_tools.formats.writers import open_writer

    cells = folder / "cells.arrows"
    sink = open_sink(str(cells))
    writer = open_writer("stream", heatmap_cells.cell_schema(), sink)
    writer.start()
    for block in heatmap_cells.cell_blocks(chart, "p99", chart.sheets):
        writer.write(block)
    writer.close()
    sink.close()
    for path in ("page.html", "picture.svg", "map.tsv"):
        kind = ["-o", "table"] if path == "map.tsv" else []
        timed(
            f"confluo-pingmesh heatmap cells -w {path}",
            lambda path=path, kind=kind: subprocess.run(
                [ROOT / "bin" / "confluo-pingmesh", "heatmap", cells, *kind, "-w", folder / path], check=True
            ),
        )


def browse(path: Path) -> None:
    """Times until the map is drawn and its values are known, of another metric, and of frames while zooming."""
    from browser import CHROMIUM, Browser

    if CHROMIUM is None:
        print("browser\t-\tno chromium")
        return
    browser = Browser()
    try:
        begin = time.perf_counter()
        browser.open(str(path))
        browser.wait("document.querySelector('#map').dataset.scale")
        print(f"browser: page is drawn\t{time.perf_counter() - begin:.3f}\t{os.path.getsize(path)}")
        browser.wait("document.body.dataset.ready")
        print(f"browser: values are there\t{time.perf_counter() - begin:.3f}\t")
        took = browser.js("""(async () => {
            const map = document.querySelector('#map'), box = map.getBoundingClientRect(), times = [];
            for (let i = 0; i < 60; i++) {
                const more = { deltaY: i < 30 ? -100 : 100, clientX: box.left + 300, clientY: box.top + 300 + i,
                               cancelable: true };
                const begin = performance.now();
                map.dispatchEvent(new WheelEvent("wheel", more));
                times.push(performance.now() - begin);
                await new Promise(requestAnimationFrame);
            }
            return times.sort((a, b) => a - b); })()""")
        print(f"browser: frame while zooming, median\t{took[30] / 1000:.4f}\t")
        print(f"browser: frame while zooming, worst\t{took[-1] / 1000:.4f}\t")
        begin = time.perf_counter()
        before = browser.js("document.body.dataset.ready")
        browser.key("3")
        browser.wait(f"document.body.dataset.ready !== '{before}'")
        print(f"browser: another metric\t{time.perf_counter() - begin:.3f}\t")
        if browser.problems:
            print(f"browser: it complained\t-\t{browser.problems}")
    finally:
        browser.close()


if __name__ == "__main__":
    main()
