"""What a command costs before its first byte: least CPU milliseconds of several runs.

usage: bench/startup.py [RUNS]
"""

from __future__ import annotations

import sys

from timing import ROOT, header, row, run


def main(runs: int) -> None:
    python = str(ROOT / ".venv/bin/python")
    commands = {
        "python -c pass": [python, "-c", "pass"],
        "confluo --help": [str(ROOT / "bin/confluo"), "--help"],
        "confluo-query --version": [str(ROOT / "bin/confluo-query"), "--version"],
        "confluo-query --help": [str(ROOT / "bin/confluo-query"), "--help"],
        "confluo-capture --version": [str(ROOT / "bin/confluo-capture"), "--version"],
    }
    header("command", "least_cpu_ms", "least_wall_ms")
    for name, command in commands.items():
        results = [run(command) for _ in range(runs)]
        row(name, min(r.cpu for r in results) * 1000, min(r.wall for r in results) * 1000)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 10)
