"""Probes with known percentiles, and the four canonical matrices, for the tests of heat maps."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from confluo_tools.formats.block_builder import blocks_of
from confluo_tools.formats.output_file import open_sink
from confluo_tools.formats.writers import open_writer
from confluo_tools.schema import builtin

ROOT = Path(__file__).resolve().parents[2]
START = 1_767_225_600_000_000_000  # 2026-01-01T00:00:00Z
WINDOW = 600_000_000_000
SERVERS = 4
Matrix = list[list[float]]  # P99 in ms, 0 for no data


def canonical_matrices() -> list[Matrix]:
    """The four pictures of the paper, 12 pods in 3 podsets: normal, podset down, podset failure, spine failure."""
    paths = sorted((ROOT / "tests" / "pingmesh" / "heatmap" / "matrices").glob("*.csv"))
    found = [
        [[float(v or 0) for v in line.split(",")[1:]] for line in path.read_text().splitlines()[1:]] for path in paths
    ]
    assert [len(m) for m in found] == [12] * 4
    return found


def probes(matrices: Sequence[Matrix], podset: int = 4, dc: str = "dc1") -> list[dict[str, Any]]:
    """A window of probes for each matrix: of a cell, each of 4 pairs of servers has 5 probes; the P50 is half the P99.

    One more of each pair was dropped once if the P99 ends in an odd digit (of 10 us); where there is no data, pairs of
    pods have probes that were not answered.
    """
    rows = []
    for window, matrix in enumerate(matrices):
        for i, line in enumerate(matrix):
            for j, ms in enumerate(line):
                for server in range(SERVERS):
                    other = (server + 1) % SERVERS if i == j else server
                    row = {
                        "kind": 1,
                        "level": 1 if i == j else 2,
                        "outcome": 1,
                        "retries": 0,
                        "src_dc": dc,
                        "dst_dc": dc,
                        "src_pod": f"p{i:02}",
                        "dst_pod": f"p{j:02}",
                        "src_podset": f"ps{i // podset + 1}",
                        "dst_podset": f"ps{j // podset + 1}",
                        "src": f"p{i:02}s{server}",
                        "dst": f"p{j:02}s{other}",
                        "rtt": 0,
                    }
                    at = START + window * WINDOW + (i * 12 + j) * 1_000_000_000
                    if not ms:
                        rows.append({**row, "ts": at, "outcome": 2, "retries": 2})
                        continue
                    for k in range(5):
                        rtt = round(ms * 1e6) // (1 if k == 4 else 2)
                        rows.append({**row, "ts": at + k * 100_000_000_000, "rtt": rtt})
                    if round(ms * 100) % 2:
                        rows.append({**row, "ts": at + 5, "retries": 1})
    return rows


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    """Records of schema `probe` as a stream."""
    schema = builtin("probe")
    empty = {c.name: (b"" if c.code == 11 else 0) for c in schema.columns}
    names = list(dict.fromkeys(name for row in rows for name in row))
    columns = {name: [row.get(name, empty[name]) for row in rows] for name in names}
    sink = open_sink(str(path), force=True)
    writer = open_writer("stream", schema, sink)
    writer.start()
    for block in blocks_of(schema, columns, len(rows)):
        writer.write(block)
    writer.close()
    sink.close()
    return path
