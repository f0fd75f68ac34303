"""How long a query to another host takes until its first row.

usage: bench/remote.py [RUNS]     (of each measurement; 9)

Bars: with a connection that is open the first row comes after one round trip and the time to the first match; through
CONFLUO_RSH the command adds to an echo through the same shell no more than it takes to load, here and there at once.

Nothing leaves this machine: a relay delays each way (tests/support/remote_lab.py).
`python -c pass`: what any process of ours costs, for comparison.
`serve`: from the start of `confluo serve --stdio`, with its request already in the pipe, to the first byte of rows.
`open connection`: from the question to the first row; the server had time to load.
`echo`: from the start of the shell with cat(1) at its other end until a line has come back, the floor for
`query`: from the start of confluo-query to its first row, and `query --at` of a snapshot of two logs elsewhere.

Prints TSV: what, delay each way in ms, the least and the median of the runs in ms, the median in echoes.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

from timing import ROOT, header, row

sys.path.insert(0, str(ROOT / "tests" / "support"))

from confluo_tools.expr import compile as compile_expr
from confluo_tools.remote import frame_codec
from confluo_tools.remote.address import parse
from confluo_tools.remote.connect import Connection
from confluo_tools.remote.reader import RemoteReader
from confluo_tools.remote.request import QueryRequest
from remote_lab import env, tool
from running import CAMPUS, run

EXPR = "dst_port == 443"
DELAYS = (0, 20)  # ms, each way


def until(words: list[str], wanted: bytes, folder: Path, given: bytes = b"") -> float:
    """Seconds from the start of a process to the first time that it has written ``wanted``."""
    start = time.perf_counter()
    child = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env(folder), bufsize=0)
    assert child.stdin is not None
    assert child.stdout is not None
    if given:
        child.stdin.write(given)
    said = b""
    while wanted not in said:
        assert select.select([child.stdout], [], [], 30)[0], f"{words[0]}: no answer"
        piece = os.read(child.stdout.fileno(), 65536)
        assert piece, f"{words[0]} said only {said[-200:]!r}"
        said += piece
    took = time.perf_counter() - start
    child.stdin.close()
    child.stdout.close()
    child.wait()
    return took


def opened(folder: Path, log: Path, delay: int) -> float:
    """Seconds from the question to the first row over a connection that is open."""
    address = parse(f"slow{delay}:{log}")
    assert address is not None
    peer = Connection(address, tool(folder))
    peer.greet()
    time.sleep(0.2)
    reader = RemoteReader(peer, QueryRequest(EXPR, limit=2))
    start = time.perf_counter()
    reader.ask()
    reader.ready()
    next(iter(reader.select(compile_expr(EXPR, reader.schema))))
    took = time.perf_counter() - start
    reader.close()
    return took


def measured(what: str, delay: int, runs: int, work: Callable[[], float], echo: float = 0.0) -> float:
    times = sorted(work() * 1000 for _ in range(runs + 1))[: runs + 1]
    middle = median(times)
    row(what, delay, times[0], middle, middle / echo if echo else "-")
    return middle


def main() -> None:
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 9
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    header("what", "delay_ms", "least_ms", "median_ms", "of_echo")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        log = folder / "a.ml"
        assert run("confluo-capture", "-q", "-r", CAMPUS, "-w", log).returncode == 0
        python = [sys.executable, "-c", "print('x')"]
        measured("python -c pass", 0, runs, lambda: until(python, b"x", folder))
        asked = frame_codec.hello() + frame_codec.frame(
            frame_codec.QUERY, {"path": str(log), **QueryRequest(EXPR, limit=2).message()}
        )
        serve = [str(ROOT / "bin/confluo"), "serve", "--stdio"]
        measured("serve", 0, runs, lambda: until(serve, bytes((frame_codec.DATA, 0, 0, 0)), folder, asked))
        rsh = env(folder)["CONFLUO_RSH"]
        query = [str(ROOT / "bin/confluo-query")]
        print_rows = [EXPR, "-c", "2", "-f", "dst_port", "-T"]
        measured("query of a log here", 0, runs, lambda: until([*query, str(log), *print_rows], b"\n443", folder))
        for delay in DELAYS:
            far = f"slow{delay}"
            measured("open connection", delay, runs, lambda d=delay: opened(folder, log, d))  # type: ignore[misc]
            echo = measured("echo", delay, runs, lambda f=far: until([rsh, f, "cat"], b"x\n", folder, b"x\n"))  # type: ignore[misc]
            words = [*query, f"{far}:{log}", *print_rows]
            measured("query", delay, runs, lambda w=words: until(w, b"\n443", folder), echo)  # type: ignore[misc]
            cut = folder / f"{delay}.yaml"
            names = [f"{far}:{log}", f"{far}-b:{folder}/b.ml"]
            if not (folder / "b.ml").exists():
                run("confluo-convert", log, "-w", folder / "b.ml")
            done = run("confluo-snapshot", *names, "-w", cut, env=env(folder))
            assert done.returncode == 0, done.stderr
            at = [*query, "--at", str(cut), *print_rows]
            measured("query --at, two logs", delay, runs, lambda w=at: until(w, b"\n443", folder), echo)  # type: ignore[misc]


if __name__ == "__main__":
    main()
