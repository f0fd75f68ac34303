"""A mapped file that cannot be read ends a command with one line."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from running import ROOT

READ = """
import mmap, os, sys
from confluo_tools.core.base.log_file import explain_bus_errors, leave_bus_errors
path, how = sys.argv[1:]
with open(path, "r+b") as file:
    file.truncate(1 << 20)
    whole = mmap.mmap(file.fileno(), 1 << 20)
    explain_bus_errors("confluo-query", 2)
    if how == "no more":
        leave_bus_errors()
    if how == "in a fork" and os.fork():
        os._exit(os.waitstatus_to_exitcode(os.wait()[1]))
    if how != "whole":
        file.truncate(0)
    print(whole[70000])
"""
LINE = ": a part of it cannot be read: it became shorter, or its disk has an error or is full\n"


@pytest.mark.parametrize(
    ("how", "status", "said"),
    [
        ("shorter", 2, "confluo-query: PATH" + LINE),
        ("in a fork", 2, ""),
        ("no more", -signal.SIGBUS, ""),
        ("whole", 0, ""),
    ],
)
def test_a_page_that_is_not_there(tmp_path: Path, how: str, status: int, said: str) -> None:
    path = tmp_path / "a file\nof two lines"
    path.touch()
    done = subprocess.run(
        [sys.executable, "-c", READ, path, how], cwd=ROOT, capture_output=True, text=True, check=False
    )
    shown = str(path).replace("\n", "\\012")  # as the kernel writes it
    assert (done.returncode, done.stderr) == (status, said.replace("PATH", shown))


def test_a_command_ends_with_a_line(tmp_path: Path) -> None:
    """The segment becomes shorter while it is read."""
    program = """
import os, sys
import confluo_tools.multilog.query.plan as plan
from confluo_tools.__main__ import main
log = sys.argv[1]
assert main(["capture", "-q", "-r", "examples/data/campus.pcap.gz", "-w", log]) == 0
scan = plan.LogScan
def shorter(program):
    os.truncate(f"{log}/lane-000/seg-0000000000000000.arrow", 4096)
    return scan(program)
plan.LogScan = shorter
sys.exit(main(["query", log, "-T"]))
"""
    log = str(tmp_path / "a.ml")
    done = subprocess.run([sys.executable, "-c", program, log], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == f"confluo-query: {log}/lane-000/seg-0000000000000000.arrow{LINE}"
