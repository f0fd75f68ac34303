"""How late records of a live capture are when a monitor sees them: `.venv/bin/python bench/lag.py [SECONDS]`.

A capture in a network namespace writes packets of a UDP sender to a log, with 0, 2 and 4 processes next to it that only
keep a CPU busy.  Two kinds of rows: "lateness" is the time from a packet to when a reader, which looks every
millisecond, sees its row; "monitor" is a monitor with one lag: how many records were late, and how many alerts it has
that a replay of the same log does not have (extra), or the other way around (missing).  Needs root.
lag.tsv has the result from which the default of `--lag` was chosen.
"""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from timing import ROOT, header, row

sys.path.insert(0, str(ROOT / "tests" / "support"))
from confluo_tools import multilog
from confluo_tools.multilog.tail import Tail
from netns import Lab, Space

LAGS = ("10ms", "20ms", "50ms", "100ms", "200ms", "500ms")
TRIGGERS = (
    "a: count > 8 over 10ms every 1ms",
    "b: count < 1 over 10ms every 1ms",
    "c: sum(len) > 3k over 50ms every 1ms by dst_port",
)
SENDER = """
import random, socket, sys, time
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
rng, end = random.Random(5), time.monotonic() + float(sys.argv[2])
while time.monotonic() < end:
    for _ in range(rng.randrange(1, 12)):
        s.sendto(b"x" * rng.randrange(10, 500), (sys.argv[1], 9000 + rng.randrange(4)))
    time.sleep(rng.uniform(0.001, 0.02))
"""


@contextmanager
def busy(n: int) -> Iterator[None]:
    children = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(n)]
    try:
        yield
    finally:
        for child in children:
            child.kill()
            child.wait()


@contextmanager
def capture(at: Space, log: Path) -> Iterator[None]:
    child = at.popen(ROOT / "bin/confluo-capture", "-q", "-i", "v0", "-w", log)
    try:
        while not (log / "multilog.yaml").exists():
            time.sleep(0.05)
        yield
    finally:
        child.send_signal(signal.SIGINT)
        child.wait(60)


def lateness(log: Path, seconds: float) -> list[int]:
    """Of each row of ``log``, the nanoseconds from its time until it is seen."""
    found: list[int] = []
    with multilog.open(log, readonly=True) as source:
        ts = source.schema.index("ts")
        tails: list[Tail] = []
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            rows = source.control.tails()
            tails += [Tail(lane, 0) for lane in range(len(tails), len(rows))]
            for tail in tails:
                if rows[tail.lane] > tail.rows:
                    for block, start, stop in tail.more(source, rows[tail.lane]):
                        now = time.time_ns()
                        found += [now - t for t in memoryview(block.buffer(ts)).cast("q")[start:stop]]
            time.sleep(0.001)
    return sorted(found)


def alerts(log: Path, *more: str) -> subprocess.Popen[str]:
    words = [w for t in TRIGGERS for w in ("-t", t)]
    argv = [str(ROOT / "bin/confluo-monitor"), str(log), *words, "-T", "-n", "-f", "ts,trigger,event,value,key", *more]
    return subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def compared(log: Path, lag: str, seconds: float) -> tuple[str, int, int, int]:
    """(late records as printed, alerts live, alerts only live, alerts only in the replay)."""
    child = alerts(log, "--lag", lag, "--alerts", "none")
    time.sleep(seconds + 3)  # it starts
    child.send_signal(signal.SIGINT)
    out, err = child.communicate(timeout=60)
    live = [line for line in out.splitlines() if not line.startswith("#")]
    if len(live) < 2:
        raise RuntimeError(f"too few alerts: {err[-300:]}")
    replay = alerts(log, "--since", "10m", "--until", "now", "--alerts", "none")
    lines = [line for line in replay.communicate(timeout=120)[0].splitlines() if not line.startswith("#")]
    first, last = live[0].split("\t")[0], live[-1].split("\t")[0]
    again = {line for line in lines if first < line.split("\t")[0] < last}
    now = {line for line in live if first < line.split("\t")[0] < last}
    late = re.findall(r", (\d+) late, ", err)[-1]
    return late, len(now), len(now - again), len(again - now)


def main() -> None:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 8.0
    header("case", "busy", "lag", "rows", "p50_ms", "p99_ms", "p999_ms", "max_ms", "late", "alerts", "extra", "missing")
    for load in (0, 2, 4):
        with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
            lab = stack.enter_context(Lab())
            a, b = lab.pair()
            log = Path(folder) / "live.ml"
            stack.enter_context(capture(b, log))
            time.sleep(1)
            total = (seconds + 9) * (len(LAGS) + 1) + 10
            sender = a.popen(sys.executable, "-c", SENDER, b.address, str(total))
            stack.callback(sender.wait)
            stack.callback(sender.kill)
            stack.enter_context(busy(load))
            found = lateness(log, seconds)
            of = [found[min(int(len(found) * q), len(found) - 1)] / 1e6 for q in (0.5, 0.99, 0.999, 1)]
            row("lateness", load, "", len(found), *of, "", "", "", "")
            for lag in LAGS:
                row("monitor", load, lag, "", "", "", "", "", *compared(log, lag, seconds))


if __name__ == "__main__":
    main()
