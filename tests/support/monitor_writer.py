"""Rows that come by the clock: `python monitor_writer.py LOG SECONDS PERIOD_MS ROWS [PAUSE_FROM PAUSE_TO]`.

Every PERIOD_MS, ROWS rows of header64 with the time of now; none between the two seconds.  Prints how many.
"""

from __future__ import annotations

import struct
import sys
import time

from confluo_tools import multilog
from confluo_tools.core.block.block import Block
from confluo_tools.schema import builtin


def rows_of(times: list[int], lens: list[int], ports: list[int], hosts: list[int] | None = None) -> Block:
    """A block of header64."""
    layout, n = builtin("header64").layout, len(times)
    columns: list[bytes | None] = [None] * layout.n
    columns[layout.index("ts")] = struct.pack(f"<{n}q", *times)
    columns[layout.index("len")] = struct.pack(f"<{n}I", *lens)
    columns[layout.index("dst_port")] = struct.pack(f"<{n}H", *ports)
    columns[layout.index("src_ip")] = struct.pack(f"<{n}I", *(hosts or [0x0A000001] * n))
    return Block.wrap(layout, n, columns)


def main(path: str, seconds: float, period: float, rows: int, pause: tuple[float, float]) -> int:
    log = multilog.open(path)
    total, begin = 0, time.monotonic()
    with log.writer(ahead=-1) as writer:
        while (now := time.monotonic() - begin) < seconds:
            if not pause[0] <= now < pause[1]:
                t = time.time_ns()
                writer.append(rows_of([t] * rows, [100] * rows, [80] * rows))
                total += rows
            time.sleep(period / 1000)
    print(total)
    return 0


if __name__ == "__main__":
    words = sys.argv[1:]
    sys.exit(main(words[0], float(words[1]), float(words[2]), int(words[3]), (float(words[4]), float(words[5]))))
