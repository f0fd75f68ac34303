"""A writer process for the tests: python log_writer.py LOG WRITER BATCH ROWS [THREADS] [AHEAD] [wait]

Writes rows of the SIGNED schema; thread i is writer WRITER + i.  After each append, when its rows are
published, a line "WRITER ROWS" goes to stdout in one write.  "ready" comes first, "done" last.  With "wait", each
thread keeps its lane after its last row until the process is killed.
"""

from __future__ import annotations

import os
import sys
import threading

from confluo_tools import multilog
from log_rows import signed_block


def write(path: str, writer: int, batch: int, rows: int, ahead: int, wait: bool) -> None:
    with multilog.open(path).writer(ahead=ahead) as lane:
        for start in range(0, rows, batch):
            n = min(batch, rows - start)
            lane.append(signed_block(writer, start, n))
            os.write(1, b"%d %d\n" % (writer, start + n))
        if wait:
            threading.Event().wait()


def main() -> None:
    wait = sys.argv[-1] == "wait"
    numbers = sys.argv[2:-1] if wait else sys.argv[2:]
    path, writer, batch, rows, threads, ahead = sys.argv[1], *map(int, [*numbers, "1", "1"][:5])
    os.write(1, b"ready\n")
    running = [
        threading.Thread(target=write, args=(path, writer + i, batch, rows, ahead, wait)) for i in range(threads)
    ]
    for t in running:
        t.start()
    for t in running:
        t.join()
    os.write(1, b"done\n")


if __name__ == "__main__":
    main()
