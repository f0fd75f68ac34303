"""Captures of this project against tshark and tcpdump: examples/data, and every encapsulation made byte by byte.

The captures of `$CONFLUO_TEST_DATA` add other people's traffic: `test_packet_truth.py`, `test_filter_truth.py`.
"""

from __future__ import annotations

import gzip
import re
import shutil
import subprocess
from pathlib import Path

import pytest

import make_links
import oracle_packets
from confluo_tools.expr import compile
from confluo_tools.formats.pcap import open_captures
from running import DATA, ROOT

pytestmark = pytest.mark.skipif(
    not (shutil.which("tshark") and shutil.which("tcpdump")), reason="needs tshark and tcpdump"
)
EXAMPLES = sorted(path.name for path in DATA.glob("*.gz"))
MADE = {
    "tagged": make_links.tagged,
    "fragments": make_links.fragments,
    "tunnels": lambda: [frame for frames in make_links.tunnelled().values() for frame in frames],
}
FILTERS = [
    tuple(line.split("\t"))
    for line in (ROOT / "tests" / "packets" / "filters.tsv").read_text().splitlines()
    if not line.startswith("#")
]


@pytest.fixture(scope="module")
def capture(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    folder = tmp_path_factory.mktemp("own")
    if request.param in MADE:
        return make_links.write(folder / "x.pcap", MADE[request.param]())
    path = folder / request.param.removesuffix(".gz")
    path.write_bytes(gzip.decompress((DATA / request.param).read_bytes()))
    return path


every = pytest.mark.parametrize("capture", [*EXAMPLES, *MADE], indirect=True)


def rows(path: Path, decap: str = "outer") -> list[oracle_packets.OurRow]:
    with open_captures([str(path)], decap=decap) as captures:
        found = [oracle_packets.OurRow(block, i) for block in captures for i in range(block.rows)]
    assert not captures.warnings
    return found


@every
def test_every_field_equals_tshark(capture: Path) -> None:
    theirs = [oracle_packets.expected(t) for t in oracle_packets.live_lines(capture)]
    wrong = []
    for i, (their, mine) in enumerate(zip(theirs, rows(capture), strict=True), 1):
        for field in oracle_packets.FIELDS:
            known = their[field]
            if known in (oracle_packets.ANY, mine[field]) or (known is None and field not in ("src_ip", "dst_ip")):
                continue
            if oracle_packets.explain(capture.name, field, their, mine) is None:
                wrong.append(f"packet {i}: {field} is {mine[field]}, tshark says {known} ({their['chain']})")
    assert not wrong, "\n".join(wrong[:20])


def test_every_deliberate_difference_happens(tmp_path: Path) -> None:
    """Headers, times and sections that tshark shows otherwise: each row of docs/oracles.md, and no other."""
    seen, wrong = set(), []
    for name, content in make_links.odd().items():
        (tmp_path / name).write_bytes(content)
        theirs = [oracle_packets.expected(t) for t in oracle_packets.live_lines(tmp_path / name)]
        for i, (their, mine) in enumerate(zip(theirs, rows(tmp_path / name), strict=True), 1):
            for field in oracle_packets.FIELDS:
                known = their[field]
                if known in (oracle_packets.ANY, mine[field]) or (known is None and field not in ("src_ip", "dst_ip")):
                    continue
                why = oracle_packets.explain(name, field, their, mine)
                seen.add(why)
                if why is None:
                    wrong.append(f"{name}, packet {i}: {field} is {mine[field]}, tshark says {known}")
    assert not wrong, "\n".join(wrong)
    assert seen == {difference.name for difference in oracle_packets.DIFFERENCES}


def test_packets_equal_capinfos(tmp_path: Path) -> None:
    for name in EXAMPLES:
        path = tmp_path / name.removesuffix(".gz")
        path.write_bytes(gzip.decompress((DATA / name).read_bytes()))
        command = ["capinfos", "-T", "-r", "-c", "-M", path]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        assert len(rows(path)) == int(done.stdout.split("\t")[1])


@every
def test_options_tunnels_and_inner_headers_equal_tshark(capture: Path) -> None:
    live, outer, inner = oracle_packets.tshark(capture), rows(capture), rows(capture, "inner")
    wrong = []
    for i, (row, out, inn) in enumerate(zip(live, outer, inner, strict=True), 1):
        if (out["notes"] | inn["notes"]) & oracle_packets.BROKEN:
            continue
        for mine, theirs in ((out, oracle_packets.outer(row)), (inn, oracle_packets.innermost(row, inn))):
            wrong += [
                f"packet {i}: {field} is {mine[field]}, tshark says {known} ({row['frame.protocols'][0]})"
                for field, known in theirs.items()
                if mine[field] != known
            ]
    assert not wrong, "\n".join(wrong[:20])


def matches(path: Path, display: list[str]) -> list[int]:
    """Packets that each display filter selects, in one run of tshark."""
    single = ("-o", "ip.defragment:FALSE", "-o", "ipv6.defragment:FALSE")  # a fragment counts in its own frame
    command = ["tshark", "-n", "-q", "-r", path, *single, "-z", "io,stat,0," + ",".join(display)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    [line] = [line for line in done.stdout.splitlines() if re.match(r"\|\s+[\d.]+ <>", line)]
    return [int(cell) for cell in line.split("|")[2:-1:2] if cell.strip()]  # frames and bytes of each


def tcpdump(path: Path, expression: str) -> int | None:
    done = subprocess.run(["tcpdump", "-n", "--count", "-r", path, expression], capture_output=True, text=True)
    return int(done.stdout.split()[0]) if done.returncode == 0 else None


@every
def test_filters_equal_the_peers(capture: Path) -> None:
    """Our count is tshark's, or that without headers that ICMP errors quote, or tcpdump's (docs/oracles-filters.md)."""
    with open_captures([str(capture)]) as captures:
        programs = [compile(bpf, captures.schema).program for bpf, _ in FILTERS]
        ours = [0] * len(programs)
        for block in captures:
            for i, program in enumerate(programs):
                ours[i] += len(program.select(block))
    theirs = matches(capture, [display for _, display in FILTERS])
    unquoted = matches(capture, [f"({display}) && !icmp && !icmpv6" for _, display in FILTERS])
    for (bpf, display), mine, *tshark in zip(FILTERS, ours, theirs, unquoted, strict=True):
        if mine not in tshark:
            bpf_count = tcpdump(capture, bpf)
            if bpf_count is not None:
                assert mine == bpf_count, (bpf, mine, tshark)
            else:  # refused, because the capture has several link types; an error may quote what 'not' excludes
                [most] = matches(capture, [f"({display}) || icmp || icmpv6"])
                assert min(tshark) < mine <= most, (bpf, mine, tshark)
