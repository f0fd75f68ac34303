"""Writers that tell each other: python causal_writers.py LOG LOG ...

One process per log, in a ring.  The first appends event n to its log, publishes it, and notifies the second, which
does the same, and so on; the last notifies the first, which goes on with n + 1.  So the numbers of rows never grow
along the ring, and the first is at most one ahead of the last.  "ready" is printed when the first event is everywhere.
"""

from __future__ import annotations

import os
import sys

from confluo_tools import multilog
from log_rows import signed_block


def write(path: str, number: int, told: int, tell: int, first: bool) -> None:
    with multilog.open(path).writer(ahead=-1) as writer:
        n = 0
        while True:
            if not (first and n == 0) and os.read(told, 1) != b"x":
                return
            if first and n == 1:
                os.write(1, b"ready\n")
            writer.append(signed_block(number, n, 1))
            writer.flush()  # returns when the row is published
            n += 1
            os.write(tell, b"x")


def main() -> None:
    paths = sys.argv[1:]
    pipes = [os.pipe() for _ in paths]
    for i, path in enumerate(paths):
        if os.fork() == 0:
            told, tell = pipes[i][0], pipes[(i + 1) % len(paths)][1]
            for fd in {fd for pipe in pipes for fd in pipe} - {told, tell}:
                os.close(fd)
            try:
                write(path, i, told, tell, i == 0)
            finally:
                os._exit(0)
    for pipe in pipes:
        os.close(pipe[0])
        os.close(pipe[1])
    for _ in paths:
        os.wait()


if __name__ == "__main__":
    main()
