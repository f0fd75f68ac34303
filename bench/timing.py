"""What the benchmarks share: whole commands timed in turn, the machine and its load, TSV."""

from __future__ import annotations

import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))


class Run(NamedTuple):
    """One finished command: seconds of wall clock and of CPU, peak resident bytes of the largest process."""

    wall: float
    cpu: float
    peak: int


def run(command: Sequence[str], before: Callable[[], object] = lambda: None) -> Run:
    """Run a command with its output thrown away.  Raises RuntimeError when it fails."""
    before()
    start = time.perf_counter()
    process = subprocess.Popen(list(command), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    assert process.stderr is not None
    words = process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    wall = time.perf_counter() - start
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode not in (0, 1):
        raise RuntimeError(f"{command[0]} exited {process.returncode}: {words.decode(errors='replace')[-300:]}")
    return Run(wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024)


def in_turn(commands: dict[str, Callable[[], Run]], rounds: int) -> dict[str, list[Run]]:
    """Each command once a round, so that a drifting machine hurts all alike; one round to warm up."""
    results: dict[str, list[Run]] = {name: [] for name in commands}
    for i in range(rounds + 1):
        for name, command in commands.items():
            result = command()
            if i:
                results[name].append(result)
    return results


def machine() -> str:
    """One comment line: what this ran on and how busy it was."""
    about = Path("/proc/cpuinfo").read_text().splitlines()
    cpu = next((line.split(":", 1)[1].strip() for line in about if "model name" in line), platform.machine())
    load = os.getloadavg()[0]
    system = f"Linux {platform.release()}, Python {platform.python_version()}"
    return f"# {cpu}, {os.cpu_count()} CPUs, {system}, load {load:.2f}"


def header(*names: str) -> None:
    """The machine, then the column names."""
    print(machine())
    print("#fields", *names, sep="\t")


def row(*values: object) -> None:
    """One TSV line; floats to three significant digits."""
    print(*(f"{v:.3g}" if isinstance(v, float) else str(v) for v in values), sep="\t", flush=True)


def median(runs: Sequence[Run], what: str) -> float:
    """The middle value of one figure."""
    return statistics.median(getattr(r, what) for r in runs)


def ratio(ours: Sequence[Run], theirs: Sequence[Run], what: str = "wall") -> float:
    """Median over the rounds of theirs / ours: above 1 we are faster."""
    return statistics.median(getattr(b, what) / getattr(a, what) for a, b in zip(ours, theirs, strict=True))
