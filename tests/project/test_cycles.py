"""The garbage collector clears the attributes of objects in a cycle before it frees them."""

from __future__ import annotations

import subprocess
import sys

from running import environment

CYCLES = """
import gc
from confluo_tools.core.block.block import Layout
from confluo_tools.core.clickhouse.native_batch import NativeBatch, NativeShape
from confluo_tools.core.multilog.log_scan import LogScan
from confluo_tools.core.query.predicate import Program
from confluo_tools.expr.leaves import Range

layout = Layout([(f"c{i}", 3, 4, 1) for i in range(30)])
for _ in range(300):
    shape = NativeShape(layout, [(b"c", b"UInt32", "copy", 0, -1, -1, 4, 1, False, None)], [])
    shape.heads.append(NativeBatch(shape, 1000))
    scan = LogScan(Program(Range(0, 1, 5), layout))
    scan.postings["me"] = scan
    del shape, scan
    assert gc.collect() > 0
"""


def test_objects_in_a_cycle_are_freed() -> None:
    """In a process of its own: with memory that is freed twice, it dies."""
    words = [sys.executable, "-c", CYCLES]
    done = subprocess.run(words, capture_output=True, text=True, env=environment(PYTHONMALLOC="malloc"), timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
