"""Traces of Flock's simulator, as confluo-vote reads them: next to a reader in plain Python."""

from __future__ import annotations

import gzip
import lzma
import os
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

import make_flock
from confluo_tools.core.block.block import Block
from confluo_tools.formats.bytestream import ByteStream
from confluo_tools.inputs.open import open_one
from confluo_tools.network.topology import ZERO
from confluo_tools.schema import builtin
from confluo_tools.vote.flock import FlockReader
from running import ROOT, run

FAT_TREE = Path(os.environ.get("CONFLUO_TEST_DATA", ROOT.parent / "shared")) / "traces" / "fat-tree"

TRACE = b"""Failing_link 1 0 0.01
Failing_link 7 7 0.5
FP 2 1 0
FP 0 1 2
FID  10005 10006 2 0 19500 0.0
FPT 2 1 0
FPRT 0 1 2
SS  100.5 13 1 0
SS  958.25 40 3 1
FID  10007 10008 2 2 100 5.5
FPT 2
SS 6 1 0 0
FID 10009 10010 7 2 9 1
FPT 7 2
SS 8 10 4 0
FID 10009 10010 7 2 9 1
FPT 7 2
SS 8 10 2 2
"""


def rows(path: Path, fields: str) -> list[list[str]]:
    done = run("confluo-convert", path, "-T", "--no-header", "-f", fields)
    assert (done.returncode, done.stderr) == (0, b"")
    return [line.split("\t") for line in done.stdout.decode().splitlines()]


@pytest.mark.parametrize(
    "pack",
    [
        bytes,
        gzip.compress,
        zstandard.compress,
        lzma.compress,
        lambda d: lzma.compress(d[:99]) + bytes(8) + lzma.compress(d[99:]),
    ],
)
def test_a_trace_of_flock(tmp_path: Path, pack: object) -> None:
    path = tmp_path / "trace"
    path.write_bytes(pack(TRACE))  # type: ignore[operator]
    zero = str(ZERO)
    got = rows(path, "kind,notes,ts,sent,lost,hops,path,src_tor,dst_tor,link_a,link_b")
    assert got[0][:2] + got[0][-2:] == ["failed", "-", "1", zero]
    assert got[1][-2:] == ["7", "7"]
    assert got[2][:3] == ["flow", "-", "1970-01-01T00:00:00.958250000Z"]
    assert got[2][3:] == ["40", "3", "3", f"2,1,{zero}", "2", zero, "1", zero]
    assert got[3][3:] == ["1", "0", "1", "2", "2", "2", "0", "0"]
    assert got[4][1:5] + got[4][-2:] == ["-", "1970-01-01T00:00:00.008000000Z", "10", "4", "7", "7"]
    assert got[5][1] == "noise"
    assert [r[0] for r in rows(path, "src_ip")[2:]] == ["0.0.39.21", "0.0.39.23", "0.0.39.25", "0.0.39.25"]


FIELDS = (
    "ts",
    "kind",
    "notes",
    "src_ip",
    "dst_ip",
    "sent",
    "lost",
    "hops",
    "path",
    "src_tor",
    "dst_tor",
    "link_a",
    "link_b",
    "rate",
)


def values(blocks: list[Block]) -> list[tuple[object, ...]]:
    layout = builtin("path").layout
    at = [layout.index(name) for name in FIELDS]
    return [tuple(block.get(i, row) for i in at) for block in blocks for row in range(block.rows)]


def number(word: bytes) -> int:
    if not word.isdigit() or int(word) >= 1 << 32:
        raise ValueError(word)
    return int(word)


def real(word: bytes) -> float:
    if not word.replace(b".", b"").isdigit():
        raise ValueError(word)
    return float(word)


def twin(lines: list[bytes]) -> tuple[list[tuple[object, ...]], list[int]]:
    """The rows of a trace, and the numbers of the lines that do not fit."""
    out: list[tuple[object, ...]] = []
    bad: list[int] = []
    failed: set[tuple[int, int]] = set()
    flow: dict[str, Any] | None = None

    def end() -> None:
        if flow is None or "damaged" in flow:
            return
        path: list[int] = flow.get("path", [])
        ts, sent, lost, noise = flow.get("snap", (flow["start"], 0, 0, 0))
        src, dst, src_tor, dst_tor = flow["ends"]
        links = list(pairwise([src, *path, dst]))
        hit = [(a, b) if (a, b) in failed else (b, b) for a, b in links if (a, b) in failed or (b, b) in failed]
        lone = 16 if lost and (lost <= noise or not hit) else 0
        link = hit[0] if lost and not lone and len(hit) == 1 else (0, 0)
        out.append((ts, 1, lone, src, dst, sent, lost, len(path), b"", src_tor, dst_tor, *link, 0.0, path))

    for i, line in enumerate(lines, 1):
        words = line.split()
        what, rest = (words[0], words[1:]) if words else (b"", [])
        try:
            if what == b"FID":
                end()
                flow = None
                ends = [number(w) or ZERO for w in rest[:4]]
                if len(ends) < 4:
                    raise ValueError
                start = int(real(rest[5]) * 1e6) if len(rest) > 5 else 0
                flow = {"ends": ends, "start": start}
            elif what == b"FPT":
                path = [number(w) or ZERO for w in rest]
                if flow is not None:
                    flow["path"] = path
            elif what == b"SS":
                if flow is None:
                    raise ValueError
                flow["snap"] = int(real(rest[0]) * 1e6), number(rest[1]), number(rest[2]), number((*rest, b"0")[3])
            elif what == b"Failing_link":
                a, b, rate = rest
                link = number(a) or ZERO, number(b) or ZERO
                out.append((0, 2, 0, 0, 0, 0, 0, 0, b"", 0, 0, *link, real(rate), []))
                failed.add(link)
            elif what not in (b"", b"FP", b"FPRT"):
                raise ValueError
        except (ValueError, IndexError):
            bad.append(i)
            if flow is not None:
                flow["damaged"] = True
    end()
    for n, row in enumerate(out):
        path: Any = row[-1]
        out[n] = (*row[:8], tuple((path + [0] * 16)[:16]), *row[9:-1])
    return out, bad


def pieces(text: bytes, cuts: list[int]) -> tuple[list[tuple[object, ...]], list[str]]:
    """What the reader makes of a text that comes in pieces."""
    read, write = os.pipe()
    os.close(write)
    told: list[str] = []
    stream = ByteStream(read, "trace")
    with FlockReader(stream, warn=told.append) as reader:
        ends = [0, *sorted(min(c, len(text)) for c in cuts), len(text)]
        parts = [text[a:b] for a, b in pairwise(ends) if b > a]
        stream.some = iter([*parts, b""]).__next__  # type: ignore[method-assign]
        found = values(list(reader))
    return found, told


LINES = [
    *TRACE.splitlines(),
    b"",
    b"FID",
    b"SS 1",
    b"FPT",
    b"FPT ",
    b"FID 1 2 3 99999999999",
    b"\xff",
    b"FIDX 1 2 3 4",
    b"FID 0 0 0 0",
    b"SS 3 -1 0 0",
    b"SS 1 4294967295 4294967296 0",
    b"SS 1.5 7 7",
    b" FPT 1 x",
    b"FPT 3 x 1",
    b"Failing_link 10005 2 0.25",
    b"Failing_link 3 4",
    b"Failing_link 1 2 x",
    b"FID 10 11 3 4\r",
    b"FP x",
    b"FPT " + b"5 " * 20,
    b"SS nan 1 1 0",
    b"SS 1e400 1 1 0",
    b"FID 1 2 3 4 5 -",
    b"FIDS",
]


@given(st.lists(st.sampled_from(LINES), max_size=40), st.lists(st.integers(0, 600), max_size=5))
@settings(max_examples=300)
def test_any_lines_in_any_pieces_as_the_twin_has_them(lines: list[bytes], cuts: list[int]) -> None:
    found, told = pieces(b"\n".join(lines), cuts)
    rows, bad = twin(lines)
    assert found == rows
    assert [int(t.split("line ")[1].split(":")[0]) for t in told[:5]] == bad[:5]
    assert len(told) == min(len(bad), 5) + (len(bad) > 5)


@pytest.mark.parametrize("whose", ["made", "others"] if FAT_TREE.exists() else ["made"])
def test_a_whole_trace_as_the_twin_has_it(whose: str, tmp_path: Path) -> None:
    path = FAT_TREE / "random_f8_s1.xz"
    if whose == "made":
        path = tmp_path / "trace.xz"
        path.write_bytes(lzma.compress(make_flock.trace(1, 8, flows=20_000).text, preset=0))
    with open_one(str(path)) as reader:
        found = values(list(reader))
    rows, bad = twin(lzma.open(path).read().splitlines())
    assert bad == []
    assert found == rows


def test_a_damaged_line_is_told_and_spoils_no_other_flow(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    path.write_bytes(
        TRACE + b"FPT 1 x\n"  # of the last flow of TRACE
        b"FID 1 2\nFPT 9 9\nSS 1 2 3 0\nhello\n"  # lines after a malformed FID belong to no flow
        b"FID 1 2 3 4\nFPT 3\nSS 1 -5 0 0\nFID 5 6 7 8\nFPT 7 8\nSS 1 5 2 0\n"
    )
    done = run("confluo-convert", path, "-T", "--no-header", "-f", "src_tor,dst_tor,sent,lost,path")
    assert done.returncode == 2
    lines = done.stdout.decode().splitlines()
    assert [line.split("\t")[:4] for line in lines[2:]] == [
        ["2", str(ZERO), "40", "3"],
        ["2", "2", "1", "0"],
        ["7", "2", "10", "4"],
        ["7", "8", "5", "2"],
    ]
    assert lines[-1].endswith("7,8")
    for line in (b"19: 'FPT 1 x'", b"20: 'FID 1 2'", b"22: 'SS 1 2 3 0'", b"23: 'hello'", b"26: 'SS 1 -5 0 0'"):
        assert b"line " + line + b" is not a record of a trace\n" in done.stderr


def test_a_trace_that_is_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    packed = lzma.compress(TRACE * 300)
    path.write_bytes(packed[: len(packed) // 2])
    done = run("confluo-vote", path)
    assert done.returncode == 2
    assert b"the xz data are cut off" in done.stderr
    # The last number may be a part of one: a cut line is not a flow.
    head = gzip.compress(b"FID 1 2 3 4\nFPT 3 4\nSS 1 500 4 0\nFID 1 2 3 4\nFPT 3 4\nSS 1 500 4", 0)
    path.write_bytes(head[:-10])
    done = run("confluo-convert", path, "-T", "--no-header", "-f", "sent,lost")
    assert (done.returncode, done.stdout) == (2, b"500\t4\n")


def test_a_line_without_end(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    path.write_bytes(TRACE + b"FPT " + b"1 " * (1 << 20))
    done = run("confluo-vote", path)
    assert done.returncode == 2
    assert b"has a line of more than 1 MiB" in done.stderr
