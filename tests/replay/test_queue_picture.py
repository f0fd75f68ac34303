"""The page with queues over time: what it draws against all rows, and a real browser."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest
from test_queues import fat_tree, traffic

from browser import CHROMIUM, Browser
from confluo_tools.replay.queues.open_loop import OpenLoop
from confluo_tools.replay.queues.picture import LEFT, SLICES, STACK_HEIGHT, TOP, QueueHeat, QueueStacks, page
from confluo_tools.replay.queues.ports import PortMap
from running import run

SVG = "{http://www.w3.org/2000/svg}"


def test_the_page_shows_the_longest_queues_and_their_flows() -> None:
    network = fat_tree(4)
    packets = traffic(network, 1, load=0.1, incasts=3000.0)
    replay = OpenLoop(PortMap(network), packets)
    everything = [
        (rows.time[i], rows.port[i], rows.queue[i], rows.flags[i] & 1)
        for rows in replay.run()
        for i in range(rows.count)
    ]
    span = max(time for time, *_ in everything)
    heat = QueueHeat(span)
    for rows in replay.run():
        heat.add(rows)
    longest: dict[int, int] = {}
    for _, port, queue, _ in everything:
        longest[port] = max(longest.get(port, 0), queue)
    (port,) = heat.ports(1)
    assert longest[port] == max(longest.values()) > 0
    slices = [0] * SLICES
    for time, its, queue, _ in everything:
        if its == port:
            slices[min(time // heat.width, SLICES - 1)] = max(slices[min(time // heat.width, SLICES - 1)], queue)
    assert list(heat.longest[port]) == slices
    assert sum(heat.drops.values()) == sum(dropped for *_, dropped in everything)
    stacks = QueueStacks(heat, [port])
    for rows in replay.run(name_flows=True):
        stacks.add(rows)
    moments = stacks.moments[port]
    assert [moment.queue for moment in moments] == slices
    assert all(sum(size for _, size in m.shares) <= m.queue for m in moments)
    assert any(m.shares for m in moments)
    names = [f"port <{n}>" for n in range(len(replay.ports.ends))]
    text = page(heat, stacks, names, [str(flow) for flow in packets.flows])
    drawings = text.split("<svg ")[1:]
    trees = [ElementTree.fromstring("<svg " + part.split("</svg>")[0] + "</svg>") for part in drawings]
    assert len(trees) == 2
    cells = [r for r in trees[0].iter(f"{SVG}rect") if f"port <{port}>," in (r.findtext(f"{SVG}title") or "")]
    assert len(cells) == sum(queue > 0 for queue in slices)
    bands = [p.attrib["points"].split() for p in trees[1].iter(f"{SVG}polygon")]
    top = [float(point.split(",")[1]) for point in bands[-1][: 2 * SLICES : 2]]
    wanted = [TOP + STACK_HEIGHT * (1 - queue / max(slices)) for queue in slices]
    assert top == pytest.approx(wanted, abs=0.06)  # the upper edge of the last band is the queue
    assert all(float(points[0].split(",")[0]) == LEFT for points in bands)


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed; bin/check installs it as root")
def test_a_browser_draws_the_page(tmp_path: Path) -> None:
    (tmp_path / "fat.yaml").write_text("topology: 1\nfat_tree: 4\nbuffer: {size: 300kB}\n")
    words = ["--simulate", "1ms", "--topology", "fat.yaml", "-w", "queues.ml", "--picture", "queues.html"]
    done = run("confluo-replay", "queues", *words, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, b"")
    browser = Browser()
    try:
        browser.open(str(tmp_path / "queues.html"))
        assert browser.js("document.title") == "Switch queues"
        assert browser.js("document.querySelectorAll('svg').length") == 5
        assert browser.js("[...document.querySelectorAll('svg text')].every(t => t.getBoundingClientRect().left >= 0)")
        assert browser.js("document.querySelectorAll('polygon.band').length") > 4
        assert browser.problems == []
    finally:
        browser.close()
    again = run("confluo-replay", "queues", *words[:-4], "-T", "--picture", "queues.html", cwd=tmp_path)
    assert again.returncode == 2
    assert b"queues.html: " in again.stderr
