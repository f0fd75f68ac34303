"""What confluo-pingmesh sla costs: the ten-minute job over a log of probes, whole commands on one core.

Bar: 100 million probe records of ten minutes, by podset, in 10 s of one core.  Records have only the columns that are
needed (78 bytes), so that 100 million need 8 GB; the log is made in --folder and deleted.

    bench/sla.py                        # 2 million records: some seconds
    bench/sla.py --records 1e8          # the bar
    bench/sla.py --records 1e8 --only podset

TSV: which question (or which other program, with the two passes that it needs for the same numbers), records, groups,
seconds, ns a record, peak memory; the best of --times.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
from array import array
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from confluo_tools import multilog
from confluo_tools.core.block.block import Block
from confluo_tools.schema import builtin

ROWS = 65536
SCHEMA = builtin("probe").project(
    ["ts", "kind", "level", "outcome", "notes", "retries", "hint", "rtt", "elapsed", "src", "src_podset", "dst_podset"]
)
PODSETS, PODS, SERVERS = 20, 50, 40  # 40,000 servers
SPAN = 600_000_000_000
START = 1_767_225_600_000_000_000
SLA = ["confluo-pingmesh", "sla", "LOG", "--window", "10m", "-T"]
QUESTIONS = {
    "podset": [*SLA, "--by", "podset"],
    "podset_pair": [*SLA, "--by", "podset_pair"],
    "server": [*SLA, "--by", "server", "-f", "server,ok,dropped,p50,p99,state"],
    "query": [
        "confluo-query",
        "LOG",
        "kind < host and outcome == ok and retries == 0",
        "-T",
        "--by",
        "10m,src_podset",
        "--agg",
        "count, p50(rtt), p99(rtt)",
    ],
    "query2": [
        "confluo-query",
        "LOG",
        "kind < host and outcome == ok and retries > 0",
        "-T",
        "--by",
        "10m,src_podset",
        "--agg",
        "count",
    ],
}


def blocks(n: int, r: random.Random) -> list[list[object]]:
    """Columns of ``n`` blocks, without times."""
    out: list[list[object]] = []
    for _ in range(n):
        rtt = [0 if r.random() < 1e-4 else int(r.lognormvariate(12.4, 0.5)) for _ in range(ROWS)]
        places = [r.randrange(PODSETS) for _ in range(ROWS)]
        names = [f"p{r.randrange(PODS):03d}s{r.randrange(SERVERS):02d}-{place:02d}" for place in places]
        out.append(
            [
                None,
                bytes([1]) * ROWS,
                bytes([2]) * ROWS,
                bytes([1]) * ROWS,
                None,
                bytes(0 if v else 1 for v in rtt),
                None,
                array("q", rtt),
                array("q", [v + int(r.lognormvariate(11, 0.7)) if v else 1_010_000_000 for v in rtt]),
                b"".join(name.encode().ljust(32, b"\0") for name in names),
                b"".join(f"dc1-ps{place:02d}".encode().ljust(16, b"\0") for place in places),
                b"".join(f"dc1-ps{r.randrange(PODSETS):02d}".encode().ljust(16, b"\0") for _ in range(ROWS)),
            ]
        )
    return out


def make(path: Path, records: int) -> None:
    """The log."""
    parts = blocks(8, random.Random(1))
    with multilog.create(str(path), SCHEMA) as log, log.writer() as writer:
        for start in range(0, records, ROWS):
            rows = min(ROWS, records - start)
            step = max(SPAN // records, 1)
            columns = list(parts[start // ROWS % len(parts)])
            columns[0] = array("q", range(START + start * step, START + (start + rows) * step, step))
            writer.append(Block.wrap(SCHEMA.layout, rows, columns))


def measured(words: list[str], times: int) -> tuple[float, int, int]:
    """(seconds of the fastest, rows of its answer, peak KiB)."""
    best, groups, memory = float("inf"), 0, 0
    script = (
        "import json,os,resource,subprocess,sys,time; begin=time.perf_counter();"
        "done=subprocess.run(json.loads(sys.argv[1]),stdout=subprocess.PIPE,check=False);"
        "took=time.perf_counter()-begin; usage=resource.getrusage(resource.RUSAGE_CHILDREN);"
        "print(json.dumps([took, done.stdout.count(b'\\n')-2, usage.ru_maxrss]))"
    )
    core = str(max(os.sched_getaffinity(0)))
    for _ in range(times):
        command = ["taskset", "-c", core, sys.executable, "-c", script, json.dumps(words)]
        took, groups, memory = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
        best = min(best, took)
    return best, groups, memory


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=float, default=2e6)
    parser.add_argument("--times", type=int, default=2)
    parser.add_argument("--only", nargs="*", default=list(QUESTIONS), help=f"of {', '.join(QUESTIONS)}")
    parser.add_argument("--folder", default=None, help="where the log is made (a temporary folder)")
    options = parser.parse_args()
    records = int(options.records)
    print("#fields\tquestion\trecords\tgroups\tseconds\tns_a_record\tpeak_mib", flush=True)
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        log = Path(folder) / "probes.ml"
        make(log, records)
        for name in options.only:
            program, *words = [w.replace("LOG", str(log)) for w in QUESTIONS[name]]
            took, groups, memory = measured([str(ROOT / "bin" / program), *words], options.times)
            values = (f"{took:.2f}", f"{1e9 * took / records:.1f}", f"{memory / 1024:.0f}")
            print(name, records, groups, *values, sep="\t", flush=True)


if __name__ == "__main__":
    main()
