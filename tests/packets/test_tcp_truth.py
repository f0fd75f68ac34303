"""`--analyze tcp` on real captures: every field of every segment as tshark says; else docs/oracles-tcp.md."""

from __future__ import annotations

import gzip
import random
import re
import shutil
from collections import Counter
from functools import cache
from pathlib import Path

import pytest
from conftest import DATA, ROOT

import make_tcp
import oracle_tcp as oracle
from oracle_packets import lines

PAGE = ROOT / "docs" / "oracles-tcp.md"
SHORT = {
    "retransmission",
    "fast_retransmission",
    "spurious_retransmission",
    "out_of_order",
    "duplicate_ack",
    "zero_window",
    "lost_segment",
    "keep_alive",
}
NOT_COUNTED = {"irtt", "no-ack"}  # on too many segments for the page to count

needs_tshark = pytest.mark.skipif(not shutil.which("tshark"), reason="no tshark here")


def manifest() -> list[str]:
    """Captures with TCP; big_ in the name: compared with stored results of tshark."""
    path = DATA / "pcaps" / "MANIFEST.tsv"
    if not path.exists():
        return ["none"]
    rows = [line.split("\t") for line in path.read_text(encoding="utf-8").splitlines()]
    features = rows[0].index("tshark_features")
    return sorted(row[0] for row in rows[1:] if "streams=" in row[features])


CAPTURES = manifest()
BIG = [name for name in CAPTURES if name.startswith("big_")] or ["none"]
EXAMPLES = sorted(p.name for p in (ROOT / "examples" / "data").glob("*.pcap*.gz"))


@cache
def table() -> dict[tuple[str, str, str], int]:
    """(reason, field, capture) -> segments."""
    rows = {}
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        cells = [c.strip() for c in line.strip("|").split("|")]
        if len(cells) == 4 and re.fullmatch(r"tcp_\w+", cells[1]):
            assert (cells[0], cells[1], cells[2]) not in rows, line
            rows[cells[0], cells[1], cells[2]] = int(cells[3])
    return rows


def differences(path: Path) -> tuple[Counter[tuple[str, str]], list[str], int]:
    """Segments by (reason, field), differences without a reason, segments compared."""
    found: Counter[tuple[str, str]] = Counter()
    wrong, segments = [], 0
    for i, (theirs, mine) in enumerate(zip(oracle.expected(path), oracle.ours(path), strict=True), 1):
        if "tcp" not in theirs["chain"]:
            if mine["tcp_analysis"]:
                wrong.append(f"packet {i}: {mine['tcp_analysis']}, and it is not TCP: {theirs['chain']}")
            continue
        segments += 1
        for field in oracle.FIELDS:
            if theirs[field] != mine[field]:
                why = oracle.reason(field, theirs, mine)
                if why is None:
                    wrong.append(f"packet {i}: {field} is {mine[field]}, tshark says {theirs[field]}")
                else:
                    found[why, field] += 1
    return found, wrong, segments


@needs_tshark
@pytest.mark.parametrize("name", [n for n in CAPTURES if not n.startswith("big_")])
def test_every_segment_equals_tshark(pcaps: Path, name: str) -> None:
    found, wrong, segments = differences(pcaps / name)
    assert not wrong, "\n".join(wrong[:20])
    assert segments
    told = {(why, field): n for (why, field, capture), n in table().items() if capture == name}
    assert told == {key: n for key, n in found.items() if key[0] not in NOT_COUNTED}


@needs_tshark
@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_equal_tshark(name: str) -> None:
    found, wrong, segments = differences(ROOT / "examples" / "data" / name)
    assert not wrong, "\n".join(wrong[:20])
    assert segments
    assert {why for why, _ in found} <= NOT_COUNTED | {"sacked", "cut", "tunnel", "quoted"}


@needs_tshark
@pytest.mark.parametrize("name", ["ndpi_vxlan.pcap", "libpcap_geneve.pcap"])
def test_inside_a_tunnel_with_decap_inner(pcaps: Path, name: str) -> None:
    inner_equals_tshark(pcaps / name)


@needs_tshark
def test_inside_tunnels_of_the_examples(tmp_path: Path) -> None:
    """VXLAN, GRE, IP in IP and GENEVE."""
    path = tmp_path / "tunnel.pcap"
    path.write_bytes(gzip.decompress((ROOT / "examples" / "data" / "tunnel.pcap.gz").read_bytes()))
    inner_equals_tshark(path)


def inner_equals_tshark(path: Path) -> None:
    compared = 0
    for theirs, mine in zip(oracle.expected(path), oracle.ours(path, "inner"), strict=True):
        if "tcp" in theirs["chain"]:
            wrong = {
                f: (mine[f], theirs[f])
                for f in oracle.FIELDS
                if mine[f] != theirs[f] and oracle.reason(f, theirs, mine) not in NOT_COUNTED
            }
            assert not wrong
            compared += 1
    assert compared


@pytest.mark.parametrize("name", BIG)
def test_every_flag_of_a_big_capture(pcaps: Path, name: str) -> None:
    """The truth lists the frames on which tshark set one of these flags, or another."""
    truth = {
        int(t["frame.number"]): {n for n in SHORT if t[f"tcp.analysis.{n}"]}
        for t in lines(pcaps / "truth" / f"{name}.tcpanalysis.tsv.gz")
    }
    mine = {i: row["tcp_analysis"] & SHORT for i, row in enumerate(oracle.ours(pcaps / name), 1)}
    assert {i: flags for i, flags in mine.items() if flags} == {i: flags for i, flags in truth.items() if flags}
    assert any(truth.values())


def test_the_page_names_captures_that_exist() -> None:
    if CAPTURES != ["none"]:
        assert {capture for _, _, capture in table()} <= set(CAPTURES)
    assert table()


@needs_tshark
@pytest.mark.parametrize("seed", range(3))
def test_made_up_conversations_equal_tshark(tmp_path: Path, seed: int) -> None:
    """Cases that no capture contains; the page describes the exception."""
    path = tmp_path / "made-up.pcap"
    make_tcp.capture(path, seed, 150)
    segments = 0
    odd: list[str] = []
    for i, (theirs, mine) in enumerate(zip(oracle.expected(path), oracle.ours(path), strict=True), 1):
        segments += 1
        for field in oracle.FIELDS:
            if theirs[field] == mine[field] or oracle.reason(field, theirs, mine) in NOT_COUNTED:
                continue
            earlier = field == "tcp_bytes_in_flight" and mine[field] > theirs[field]
            assert earlier, f"segment {i}: {field} is {mine[field]}, tshark says {theirs[field]}"
            odd.append(field)
    assert segments > 1000
    assert len(odd) < segments / 500


@needs_tshark
@pytest.mark.parametrize("seed", range(3))
def test_segments_that_the_capture_lacks(tmp_path: Path, seed: int) -> None:
    """ACKs of what was not seen, and all other flags, on the same segments as in tshark."""
    rng = random.Random(seed)
    path = tmp_path / "gaps.pcap"
    segments = [(number, segment) for number in range(400) for segment in make_tcp.with_gaps(rng, 14)]
    make_tcp.write(path, [(i * 10**6, make_tcp.frame(*one)) for i, one in enumerate(segments)])
    theirs = [row["tcp_analysis"] for row in oracle.expected(path)]
    assert [row["tcp_analysis"] for row in oracle.ours(path)] == theirs
    assert sum("ack_lost_segment" in flags for flags in theirs) > 300


def test_sequence_numbers_wrap_around(tmp_path: Path) -> None:
    """2^32 bytes later and with every number shifted, the verdicts are the same ones."""

    def fields(shift: int) -> list[tuple[object, ...]]:
        path = tmp_path / f"{shift}.pcap"
        rows: list[make_tcp.Segment] = [(0, 1000, 0, make_tcp.SYN, 900, 0, 2), (1, 5000, 1001, 18, 900, 0, 2)]
        rows += [(0, 1001 + 100 * i, 5001, make_tcp.ACK, 900, 100, -1) for i in (0, 1, 3, 4, 2, 2, 5)]
        rows += [(1, 5001, 1001 + 100 * i, make_tcp.ACK, 900, 0, -1) for i in (2, 2, 2, 5, 6)]
        rows += [(0, 1600, 5001, make_tcp.ACK, 900, 1, -1), (0, 1601, 5001, 17, 900, 0, -1)]
        shifted = [(s, seq + shift, ack and ack + shift, *rest) for s, seq, ack, *rest in rows]
        make_tcp.write(path, [(i * 10**6, make_tcp.frame(0, tuple(r))) for i, r in enumerate(shifted)])  # type: ignore[arg-type]
        return [
            tuple(row[f] if f != "tcp_analysis" else sorted(row[f]) for f in oracle.FIELDS) for row in oracle.ours(path)
        ]

    plain = fields(0)
    assert {flag for row in plain for flag in row[0]} >= {  # type: ignore[attr-defined]
        "lost_segment",
        "out_of_order",
        "retransmission",
        "duplicate_ack",
        "keep_alive",
    }
    # A next number of 0 means "unknown", as in Wireshark: the shifts avoid it.
    assert all(fields((1 << 32) - 1000 - by) == plain for by in (50, 150, 250, 450, 550, 4100))
