"""Questions to one Parquet file of packets, next to DuckDB and pyarrow, each as a whole command.  Prints TSV.

    .venv/bin/python bench/parquet.py [--copies 10] [--rounds 5]

The file has the packets of examples/data/campus.pcap.gz again and again, an hour later each time, as confluo-convert
writes them: addresses and names are texts.  `ratio` is the time of the program divided by ours.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from timing import ROOT, Run, header, in_turn, median, ratio, row, run

PYTHON = str(ROOT / ".venv/bin/python")
CAPTURE = ROOT / "examples/data/campus.pcap.gz"
DUCKDB = "import sys, duckdb; duckdb.sql('set threads=1'); print(duckdb.sql(sys.argv[1]).fetchall()[:3])"
PYARROW = "import sys, pyarrow.parquet as p; print(len(p.read_table(sys.argv[1], columns={}, filters={})))"
# name: (arguments of confluo-query, SQL, columns and filters of pyarrow or None)
QUESTIONS = {
    "count by a port": (["dst_port == 53", "--count"], "select count(*) from T where dst_port = 53",
                        (["dst_port"], [("dst_port", "=", 53)])),
    "one hour": (["--since", "2026-11-21T05:00Z", "--until", "2026-11-21T06:00Z", "--count"],
                 ("select count(*) from T where ts >= timestamptz '2026-11-21 05:00:00+00' "
                 "and ts < timestamptz '2026-11-21 06:00:00+00'"), None),
    "bytes by address": (["--agg", "sum(len)", "--by", "src_ip"], "select src_ip, sum(len) from T group by 1", None),
    "packets of an address": (["src_ip == 192.0.2.12", "--count"],
                              "select count(*) from T where src_ip = '192.0.2.12'",
                              (["src_ip"], [("src_ip", "=", "192.0.2.12")])),
}  # fmt: skip


def make(path: Path, copies: int) -> int:
    """Write the file; returns its rows."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    one = path.with_name("one.parquet")
    run([str(ROOT / "bin/confluo-convert"), str(CAPTURE), "-w", str(one)])
    table = pq.read_table(one)
    at = table.schema.get_field_index("ts")
    times, kind = table.column("ts").cast("int64"), table.schema.field("ts")
    with pq.ParquetWriter(path, table.schema) as writer:
        for n in range(copies):
            moved = pa.chunked_array([pa.array([t + n * 3600 * 10**9 for t in times.to_pylist()])]).cast(kind.type)
            parts = [table.set_column(at, kind, moved)] * 20
            writer.write_table(pa.concat_tables(parts))
    return int(pq.ParquetFile(path).metadata.num_rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--copies", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="confluo-bench-"))
    try:
        path = str(folder / "a.parquet")
        rows = make(Path(path), args.copies)
        header("question", "program", "rows", "wall_s", "cpu_s", "ratio")
        for name, (words, sql, filters) in QUESTIONS.items():
            commands = {
                "confluo": [str(ROOT / "bin/confluo-query"), path, *words],
                "DuckDB": [PYTHON, "-c", DUCKDB, sql.replace(" T", f" '{path}'", 1)],
            }
            if filters is not None:
                commands["pyarrow"] = [PYTHON, "-c", PYARROW.format(*filters), path]
            found: dict[str, list[Run]] = in_turn({k: lambda c=c: run(c) for k, c in commands.items()}, args.rounds)
            for program, runs in found.items():
                times = median(runs, "wall"), median(runs, "cpu"), ratio(found["confluo"], runs)
                row(name, program, rows, *times)
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
