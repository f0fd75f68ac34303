"""Pictures of confluo-replay explain: what is in the SVG, and what the page shows in a real browser."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from test_explain_cmd import MSS, Talk, lines
from test_explain_twin import START, write

from browser import CHROMIUM, Browser
from confluo_tools.replay.explain.timeline import TimedPacket, draw
from running import run

CHOSEN = "10.78.0.1:4711-10.78.0.2:80"
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def pcap(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Data, a timeout, and a closed window."""
    talk = Talk()
    for _ in range(3):
        talk.send(0)
    talk.send(250, seq=2 * MSS + 1)
    talk.send(300, seq=2 * MSS + 1)
    talk.ack(10, window=0)
    talk.add(400, 1, 16, 1, talk.next, window=60_000)
    talk.send(0)
    talk.ack(10)
    return write(tmp_path_factory.mktemp("timeline") / "talk.pcap", talk.frames)


def drawn(pcap: Path, name: str) -> Path:
    path = pcap.with_name(name)
    done = run("confluo-replay", "explain", pcap, "-q", "-w", path, "--force")
    assert (done.returncode, done.stderr) == (0, b"")
    return path


def test_every_packet_and_label_is_in_the_picture(pcap: Path) -> None:
    root = ElementTree.parse(drawn(pcap, "talk.svg")).getroot()
    tips = [e.findtext(f"{SVG}title") or "" for e in root.iter(f"{SVG}path")]
    segments = [tip for tip in tips if tip.startswith("packet ")]
    assert len(segments) == 7  # SYN, four segments, two of them again
    assert "packet 7: 2,001 + 1,000" in segments
    labels = [e for e in root.iter(f"{SVG}rect") if e.get("class") == "label"]
    said = [e.findtext(f"{SVG}title") or "" for e in labels]
    assert [tip.partition(" ")[0].rstrip(",") for tip in said] == [row["name"] for row in lines(pcap)]
    assert any(tip.startswith("zero-window (known): 410.000 ms, packet 11") for tip in said), said
    wait = max(float(e.get("width") or 0) for e in labels)
    assert pytest.approx(wait, rel=0.02) == 1100 * 410 / 980


def test_sequence_numbers_go_on_after_they_wrap() -> None:
    high = 2**32 - 1000
    packets = [TimedPacket(START, 0, high, 0, 0, 2, 100, 0, 1)]
    packets += [TimedPacket(START + i, 0, (high + 1 + 1000 * i) % 2**32, 1, 1000, 16, 100, -1, i + 2) for i in range(4)]
    packets += [TimedPacket(START + 9, 1, 0, (high + 4001) % 2**32, 0, 16, 100, -1, 9)]
    line = draw("wrap", packets, [])
    assert [s.seq for s in line.sent] == [0, 1, 1001, 2001, 3001]
    assert not any(s.again for s in line.sent)
    assert (line.acked[0].ack, line.acked[0].edge) == (4001, 4101)


def test_one_connection_at_a_time(pcap: Path, tmp_path: Path) -> None:
    talk = Talk()
    talk.send(0)
    first = [(ts, frame) for ts, frame in talk.frames]
    other = [(ts + 1, frame[:20] + b"\x22\x22" + frame[22:]) for ts, frame in first[:1]]
    two = write(tmp_path / "two.pcap", first + other)
    done = run("confluo-replay", "explain", two, "-q", "-w", tmp_path / "two.svg")
    assert (done.returncode, b"draws one connection, the input has 2" in done.stderr) == (2, True)
    done = run("confluo-replay", "explain", two, "-q", "-w", tmp_path / "two.svg", "--flow", CHOSEN)
    assert done.returncode == 0, done.stderr
    with pcap.open("rb") as stdin:
        done = run("confluo-replay", "explain", "-", "-o", "svg", stdin=stdin)
    assert (done.returncode, b"reads the packets twice" in done.stderr) == (2, True)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    its = Browser(1200, 760)
    yield its
    its.close()


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed; bin/check installs it as root")
def test_the_page_in_a_browser(browser: Browser, pcap: Path) -> None:
    """Each label is shown where it is drawn; the wheel and keys zoom and move."""
    browser.open(str(drawn(pcap, "talk.html")))
    browser.wait("document.body.dataset.ready")
    data: dict[str, Any] = json.loads(browser.js("document.querySelector('#data').textContent"))
    assert browser.text("#title") == CHOSEN
    assert len(data["labels"]) == len(lines(pcap))
    top, left = browser.js("(b => [b.top, b.left])(document.querySelector('#plot').getBoundingClientRect())")

    def hover(x: str, y: str) -> str:
        browser.point(left + browser.js(x), top + browser.js(y))
        browser.wait("!document.querySelector('#tip').hidden")
        return browser.text("#tip")

    for i, (_, _, _, words) in enumerate(data["labels"]):
        at = f"data.labels[{i}]"
        assert hover(f"(x({at}[0]) + x({at}[0] + {at}[1])) / 2", f"bandTop({at}[2]) + 9") == words
    assert hover("x(data.sent[1][0])", "y(data.sent[1][1] + 500)").startswith("packet 4: 1 + 1000")
    browser.key("+")
    assert browser.js("to - from") == pytest.approx(data["end"] / 2)
    browser.wheel(left + 600, top + 100, -100)
    assert browser.js("to - from") == pytest.approx(data["end"] * 0.4)
    browser.key("0")
    assert browser.js("[from, to]") == [0, data["end"]]
    assert browser.problems == []
