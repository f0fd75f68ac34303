"""What a command costs before its first byte, and a small question from start to end, next to others: milliseconds.

usage: bench/startup.py [RUNS]

Each figure is the least of several runs.  The capture has 5,735 packets.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

from timing import ROOT, header, in_turn, row, run

CAPTURE = ROOT / "examples/data/campus.pcap.gz"
PYTHON = str(ROOT / ".venv/bin/python")
PYARROW = "import pyarrow.parquet as p; print(p.read_table('{}', filters=[('dst_port', '=', 53)]).num_rows)"
DUCKDB = "import duckdb; print(duckdb.sql(\"select count(*) from '{}' where dst_port = 53\").fetchall())"


def commands(folder: Path) -> dict[str, list[str]]:
    log, parquet = str(folder / "a.ml"), str(folder / "a.parquet")
    run([tool("convert"), str(CAPTURE), "-w", log])
    run([tool("convert"), log, "-w", parquet])
    return {
        "python -c pass": [PYTHON, "-c", "pass"],
        "confluo --help": [str(ROOT / "bin/confluo"), "--help"],
        "confluo-query --version": [tool("query"), "--version"],
        "confluo-query --help": [tool("query"), "--help"],
        "confluo-capture --version": [tool("capture"), "--version"],
        "confluo-query LOG --count": [tool("query"), log, "dst_port == 53", "--count"],
        "confluo-query CAPTURE --count": [tool("query"), str(CAPTURE), "dst_port == 53", "--count"],
        "confluo-query PARQUET --count": [tool("query"), parquet, "dst_port == 53", "--count"],
        "confluo-query LOG -o arrow": [tool("query"), log, "-o", "arrow"],
        "confluo-query LOG -o parquet": [tool("query"), log, "-o", "parquet"],
        "confluo-sql LOG": [tool("sql"), f"select count(*) from '{log}' where dst_port = 53"],
        "tcpdump -r CAPTURE": ["sh", "-c", "zcat $0 | tcpdump -r - --count dst port 53", str(CAPTURE)],
        "tshark -r CAPTURE": ["tshark", "-r", str(CAPTURE), "-Y", "udp.dstport == 53 or tcp.dstport == 53"],
        "pyarrow, read_table": [PYTHON, "-c", PYARROW.format(parquet)],
        "duckdb, PARQUET": [PYTHON, "-c", DUCKDB.format(parquet)],
    }


def tool(name: str) -> str:
    return str(ROOT / "bin" / f"confluo-{name}")


def main(runs: int) -> None:
    folder = Path(tempfile.mkdtemp(prefix="confluo-bench-"))
    try:
        made = {name: command for name, command in commands(folder).items() if shutil.which(command[0])}
        header("command", "least_cpu_ms", "least_wall_ms")
        found = in_turn({name: lambda command=command: run(command) for name, command in made.items()}, runs)
        for name, results in found.items():
            row(name, min(r.cpu for r in results) * 1000, min(r.wall for r in results) * 1000)
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 10)
