"""Every field of every packet of real captures against tshark; differences must stand in docs/oracles.md."""

from __future__ import annotations

import re
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import DATA, ROOT

import oracle_packets
from confluo_tools.formats.pcap import open_captures
from confluo_tools.schema import builtin

CAPTURES = sorted(p.name for p in (DATA / "pcaps").glob("*.pcap*")) or ["none"]
BIG = 50_000  # packets: the truth of larger captures is of their first 5000

needs_tshark = pytest.mark.skipif(not shutil.which("tshark"), reason="no tshark here")


def rows(path: Path, decap: str = "outer") -> Iterator[oracle_packets.OurRow]:
    with open_captures([str(path)], decap=decap) as captures:
        for block in captures:
            for i in range(block.rows):
                yield oracle_packets.OurRow(block, i)
    assert not captures.damaged
    assert all("link type that is not parsed" in line for line in captures.warnings)


@pytest.mark.parametrize("name", CAPTURES)
def test_every_field_equals_tshark(pcaps: Path, name: str) -> None:
    truth = pcaps / "truth" / f"{name}.packets.tsv.gz"
    whole = truth.exists()
    if not whole:
        truth = pcaps / "truth" / f"{name}.first5000.tsv.gz"
    theirs = [oracle_packets.expected(t) for t in oracle_packets.lines(truth) if oracle_packets.is_packet(t)]
    wrong: Counter[str] = Counter()
    packets = 0
    for packets, mine in enumerate(rows(pcaps / name), 1):
        if packets > len(theirs):
            continue
        their = theirs[packets - 1]
        for field in oracle_packets.FIELDS:
            known = their[field]
            untold = known == oracle_packets.ANY or (known is None and field not in ("src_ip", "dst_ip"))
            if untold or known == mine[field]:
                continue
            if oracle_packets.explain(name, field, their, mine) is None:
                wrong[f"packet {packets}: {field} is {mine[field]}, tshark says {known}"] += 1
    assert not wrong, "\n".join(list(wrong)[:20])
    assert packets == len(theirs) if whole else packets >= BIG


@pytest.mark.parametrize("name", CAPTURES)
def test_counts_equal_every_peer(pcaps: Path, name: str) -> None:
    """capinfos does not count pcapng custom blocks; the manifest has its number."""
    lines = [line.split("\t") for line in (pcaps / "MANIFEST.tsv").read_text().splitlines()]
    column = {n: i for i, n in enumerate(lines[0])}
    line = next(line for line in lines if line[0] == name)
    with open_captures([str(pcaps / name)]) as captures:
        assert sum(block.rows for block in captures) == int(line[column["packets"]])


@needs_tshark
@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n in CAPTURES if not n.startswith("big_")])
def test_options_tunnels_and_inner_headers_equal_tshark(pcaps: Path, name: str) -> None:
    live = oracle_packets.tshark(pcaps / name)
    outer, inner = list(rows(pcaps / name)), list(rows(pcaps / name, "inner"))
    assert len(live) == len(outer) == len(inner)
    wrong: list[str] = []
    for i, (row, out, inn) in enumerate(zip(live, outer, inner, strict=True), 1):
        if out["notes"] & oracle_packets.BROKEN or inn["notes"] & oracle_packets.BROKEN:
            continue
        for mode, mine, theirs in (
            ("outer", out, oracle_packets.outer(row)),
            ("inner", inn, oracle_packets.innermost(row, inn)),
        ):
            wrong += [
                f"packet {i}, {mode}: {field} is {mine[field]}, tshark says {known} ({row['frame.protocols'][0]})"
                for field, known in theirs.items()
                if mine[field] != known
            ]
    assert not wrong, "\n".join(wrong[:20])


def test_the_table_of_differences_is_the_one_that_is_tested() -> None:
    text = (ROOT / "docs" / "oracles.md").read_text()
    table = text.split("## Fields", 1)[1].split("\n## ", 1)[0]
    found = dict(re.findall(r"^\| `([\w-]+)` \| ([^|]+) \|", table, re.M))
    assert set(found) == {d.name for d in oracle_packets.DIFFERENCES}
    for d in oracle_packets.DIFFERENCES:
        assert sorted(re.findall(r"\w+", found[d.name])) == sorted(d.fields), d.name


def test_every_difference_still_happens(pcaps: Path) -> None:
    """A row of the table that explains nothing is a row too many."""
    seen = set()
    for name in CAPTURES:
        truth = pcaps / "truth" / f"{name}.packets.tsv.gz"
        if not truth.exists() or not any(w in name for w in ("pcapng", "tcpdump", "ndpi_f")):
            continue
        theirs = [oracle_packets.expected(t) for t in oracle_packets.lines(truth) if oracle_packets.is_packet(t)]
        for their, mine in zip(theirs, rows(pcaps / name), strict=True):
            seen |= {
                oracle_packets.explain(name, f, their, mine)
                for f in oracle_packets.FIELDS
                if their[f] != mine[f] and their[f] != oracle_packets.ANY and (their[f] is not None or "_ip" in f)
            }
    assert {d.name for d in oracle_packets.DIFFERENCES} <= seen


def test_the_schema_says_what_the_parser_fills() -> None:
    from confluo_tools.core.packets.packet import column_names

    names = {c.name for c in builtin("packet").columns}  # optional fields, too
    assert names == set(column_names())
