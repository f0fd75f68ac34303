"""confluo-stream service histogram: the counts of tshark's lengths, however the input is cut; errors of its options."""

from __future__ import annotations

import json
import subprocess
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from confluo_tools.formats.block_builder import block_of_rows
from confluo_tools.schema import builtin
from confluo_tools.stream.services.histogram import HistogramService
from running import CAMPUS, lines, run

SECOND = 10**9
PACKETS = builtin("packet").project(["ts", "len"])


def test_counts_are_those_of_tshark() -> None:
    command = ["tshark", "-n", "-r", str(CAMPUS), "-T", "fields", "-e", "frame.time_epoch", "-e", "frame.len"]
    expected: Counter[tuple[int, float]] = Counter()
    for line in subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines():
        time, size = line.split("\t")
        expected[int(time.partition(".")[0]) // 4 * 4, int(size) // 100 * 100] += 1
    words = ("--field", "len", "--bins", "0..10000/100", "--window", "4s", "-J", "-n")
    done = run("confluo-stream", "service", "histogram", str(CAMPUS), *words, "-f", "ts,low,count")
    assert (done.returncode, done.stderr) == (0, b"")
    from confluo_tools import units

    found: Counter[tuple[int, float]] = Counter()
    for row in map(json.loads, lines(done)):
        found[units.time(row["ts"]) // SECOND, row["low"]] += row["count"]
    assert found == expected


@given(
    st.lists(st.tuples(st.integers(0, 40), st.integers(0, 5000)), max_size=40).map(sorted),
    st.lists(st.integers(0, 40), max_size=4),
)
@settings(max_examples=50)
def test_cuts_change_nothing(packets: list[tuple[int, int]], cuts: list[int]) -> None:
    expected: Counter[tuple[int, int]] = Counter((t // 10 * 10, size.bit_length()) for t, size in packets)
    service = HistogramService(PACKETS, "len", "log2", window=10 * SECOND, lateness=SECOND)
    found: Counter[tuple[int, int]] = Counter()
    for start in sorted({0, *(c for c in cuts if c < len(packets))}):
        end = min([c for c in cuts if c > start], default=len(packets))
        rows = [{"ts": t * SECOND, "len": size} for t, size in packets[start:end]]
        if rows:
            service.take(block_of_rows(PACKETS, rows), None)
    service.finish(True)
    for block in service.results():
        names = [block.layout.index(name) for name in ("ts", "low", "count")]
        for r in range(block.rows):
            ts, low, count = (block.get(i, r) for i in names)
            found[ts // SECOND, int(low).bit_length() if low > 0 else 0] += count
    assert found == expected


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["--field", "nothing"], "--field: no field 'nothing' in schema 'packet'"),
        (["--field", "src_ip"], "--field: src_ip (ip) is not a number"),
        (["--bins", "10"], "--bins: '10' is not a range of bins; write 0..1500/100 for bins of 100, or log2"),
        (["--window", "10ms"], "--lateness: '1s' is too long; 600ms at most"),
    ],
)
def test_errors_are_one_line(words: list[str], error: str) -> None:
    done = run("confluo-stream", "service", "histogram", str(CAMPUS), *words)
    assert done.returncode == 2
    assert done.stderr.decode().startswith(f"confluo-stream service histogram: {error}")
    assert done.stderr.count(b"\n") == 1
