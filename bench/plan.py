"""What confluo-pingmesh plan costs: lists of large fleets, and the pairs as records.

Bars: the lists of 100,000 servers (253.8 million pairs) in 60 s on one core, in memory that grows with the servers.

    bench/plan.py                     # to 20,000 servers: some seconds
    bench/plan.py --servers 100000    # needs 1.7 GB of disk under --folder
    bench/plan.py --sign              # signed, too

TSV: servers, pods, pairs, form (yaml, arrow; pairs: a stream of all records to /dev/null, of three fields), seconds,
CPU seconds, pairs a second, MiB resident at most, MiB on disk, and then the same lists once more (nothing changes).
Each in a process of its own.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
COLUMNS = ("servers", "pods", "pairs", "form", "s", "cpu_s", "pairs_a_second", "rss_mib", "disk_mib", "again_s")
SHAPES = {1000: (5, 5), 4000: (5, 20), 20000: (25, 20), 50000: (25, 50), 100000: (25, 100)}  # podsets, pods; 40 servers


def measured(*words: str) -> tuple[float, float, float]:
    """(seconds, CPU seconds, MiB resident at most) of a plan."""
    begin = time.monotonic()
    with open(os.devnull, "wb") as null:
        command = [sys.executable, "-m", "confluo_tools", "pingmesh", "plan", *words]
        child = subprocess.Popen(command, cwd=ROOT, stdout=null)
        _, status, used = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        sys.exit(f"plan {' '.join(words)}: status {child.returncode}")
    return time.monotonic() - begin, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--servers", type=int, default=20000, choices=sorted(SHAPES), help="the largest fleet")
    parser.add_argument("--folder", help="where the lists go for a while (a temporary folder)")
    parser.add_argument("--sign", action="store_true", help="sign them")
    args = parser.parse_args()
    print("\t".join(COLUMNS))
    with tempfile.TemporaryDirectory(dir=args.folder) as top:
        more = []
        if args.sign:
            key = f"{top}/key.pem"
            subprocess.run(["openssl", "genpkey", "-algorithm", "ed25519", "-out", key], check=True)
            more = ["--sign", key]
        for servers, (podsets, pods) in SHAPES.items():
            if servers > args.servers:
                break
            topology, lists = f"{top}/t.yaml", f"{top}/lists"
            Path(topology).write_text(f"grid: {{dcs: 1, podsets: {podsets}, pods: {pods}, servers: 40}}\n")
            pairs = servers * (39 + podsets * pods - 1)
            for form in ("yaml", "arrow", "pairs"):
                if (form == "yaml" and pairs > 1_000_000) or (form == "pairs" and pairs > 20_000_000):
                    continue
                disk = again = float("nan")
                if form == "pairs":
                    took = measured(topology, "-o", "stream", "-f", "src,dst,level")
                else:
                    took = measured(topology, "-o", form, "-w", lists, *more)
                    disk = sum(e.stat().st_size for e in os.scandir(lists)) / (1 << 20)
                    again = measured(topology, "-o", form, "-w", lists, *more)[0]
                    shutil.rmtree(lists)
                cells = [
                    str(servers),
                    str(podsets * pods),
                    str(pairs),
                    form,
                    f"{took[0]:.2f}",
                    f"{took[1]:.2f}",
                    f"{pairs / took[0]:.0f}",
                    f"{took[2]:.0f}",
                    f"{disk:.1f}",
                    f"{again:.2f}",
                ]
                print("\t".join(cells), flush=True)


if __name__ == "__main__":
    main()
