"""Filter expressions on real captures: where tcpdump and tshark count alike, so do we; else docs/oracles-filters.md."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from conftest import DATA, ROOT

from confluo_tools.expr import compile
from confluo_tools.formats.pcap import open_captures

PAGE = ROOT / "docs" / "oracles-filters.md"
CAPTURES = sorted(p.name for p in (DATA / "pcaps").glob("*.pcap*")) or ["none"]

# The tool with the expected count, per reason that the page may give.
SIDE = {
    "tags": "tshark",
    "extensions": "tshark",
    "tunnel": "tcpdump",
    "quoted": "tcpdump",
    "fragments": "tcpdump",
    "ace": "tcpdump",
    "rarp": "tcpdump",
    "blocks": "tcpdump",
    "broken": "",
    "tags, fragments": "",
    "tags, quoted": "",
}

Row = tuple[str, str]


@cache
def table() -> dict[Row, tuple[str, str, str, str]]:
    """(expression, capture) -> (reason, tcpdump's count, tshark's, ours)."""
    rows: dict[Row, tuple[str, str, str, str]] = {}
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        cells = [c.strip() for c in line.replace("\\|", "\0").strip("|").split("|")]
        if len(cells) != 6 or not cells[1].startswith("`"):
            continue
        reason, expression, capture, *counts = cells
        key = expression.strip("`").replace("\0", "|"), capture
        assert key not in rows, f"{key} appears twice on the page"
        rows[key] = (reason, *counts)  # type: ignore[assignment]
    return rows


def truth(pcaps: Path, name: str) -> dict[str, Any]:
    return dict(json.loads((pcaps / "truth" / f"{name}.counts.json").read_text(encoding="utf-8")))


def count(path: Path, expressions: list[str]) -> list[int]:
    with open_captures([str(path)]) as captures:
        programs = [compile(text, captures.schema).program for text in expressions]
        totals = [0] * len(programs)
        for block in captures:
            for i, program in enumerate(programs):
                totals[i] += len(program.select(block))
    return totals


@pytest.mark.parametrize("name", CAPTURES)
def test_counts(pcaps: Path, name: str) -> None:
    known = truth(pcaps, name)
    stopped = known["tcpdump"]["rc"] != 0  # tcpdump gave up in the middle of the file
    filters = known["filters"]
    ours = count(pcaps / name, [f["bpf"] for f in filters])
    listed = {text for text, capture in table() if capture == name}
    wrong = []
    for f, mine in zip(filters, ours, strict=True):
        tcpdump = "error" if stopped or not isinstance(f["tcpdump"], int) else str(f["tcpdump"])
        tshark = str(f["tshark"])
        row = table().get((f["bpf"], name))
        if tcpdump in (tshark, "error") and tshark == str(mine):
            if row:
                wrong.append(f"{f['bpf']}: the page lists a difference, but all counts agree")
        elif tcpdump == tshark:
            wrong.append(f"{f['bpf']}: {mine}, and both peers say {tshark}")
        elif row is None:
            wrong.append(f"{f['bpf']}: {mine}, tcpdump {tcpdump}, tshark {tshark}: not on the page")
        elif row[1:] != (tcpdump, tshark, str(mine)):
            wrong.append(f"{f['bpf']}: {mine}, tcpdump {tcpdump}, tshark {tshark}: the page says {row[1:]}")
        listed.discard(f["bpf"])
    wrong += [f"{text}: on the page, but not counted here" for text in listed]
    assert not wrong, "\n".join(wrong)


def test_every_reason_names_the_side_it_takes() -> None:
    assert len(table()) > 50
    for (text, capture), (reason, tcpdump, tshark, ours) in table().items():
        side = SIDE[reason]
        stopped = tcpdump == "error" and reason == "blocks"
        assert not side or stopped or ours == {"tcpdump": tcpdump, "tshark": tshark}[side], (text, capture)
        assert f"`{reason.split(',')[0]}`" in PAGE.read_text(encoding="utf-8").partition("| why ")[0]


def test_captures_of_the_page_exist(pcaps: Path) -> None:
    assert {capture for _, capture in table()} <= set(CAPTURES)
