"""What the tally of probes costs, next to the same counts asked of the roll-up, in process on one core.

usage: bench/probe_tally.py [MILLION_PROBES [ROUNDS]]      (4 and 3)

The tally (pyx/pingmesh/probe_tally.pyx) counts probes for sla, verdict and heatmap in one pass.  The roll-up
(pyx/query/rollup.pyx) can say most of it: each counter is a `count(COND)`, times are sums and quantiles.  It does not
have the rest, so the comparison is in its favour: it keeps no drops to compare with the counters of hosts, gives no
confidence intervals, and its quantiles of few values are those of buckets.  The probes are those of bench/sla.py.

Prints TSV: what the roll-up is asked, keys, groups, nanoseconds of CPU a probe (medians) of the tally, which answers
everything each time, and of the roll-up, and how many times faster the tally is (median of neighbouring runs).
"""

from __future__ import annotations

import random
import statistics
import sys
import time
from array import array
from collections.abc import Callable
from typing import Any

from sla import ROWS, SCHEMA, SPAN, START, blocks
from timing import header, row

from confluo_tools.core.block.block import Block
from confluo_tools.expr import compile, parse_aggregates, parse_by
from confluo_tools.multilog.query.aggregation import Aggregation
from confluo_tools.pingmesh.analysis.probe_tally import WindowTally

WINDOW = 600_000_000_000
FEW = "count(outcome == ok) as ok, count(outcome == ok and retries > 0) as dropped, count(outcome == timeout) as lost"
COUNTS = (
    FEW
    + ", count(outcome == ok and retries > 0 and notes has overflow) as overflow"
    + "".join(
        f", count(outcome == {name}) as {name}" for name in ("refused", "unreachable", "reset", "local", "garbled")
    )
    + ", count(retries > 0 and hint == forward) as forward, count(retries > 0 and hint == reverse) as reverse"
    + ", sum(rtt), sum(elapsed)"
)
TIMES = "count as samples, p50(rtt), p99(rtt), p99.9(rtt), p50(elapsed), p99(elapsed)"
WITHOUT_DROPS = "kind < host and outcome == ok and retries == 0 and rtt > 0"
# What is asked: (name, aggregates of all probes, aggregates of those with a round-trip time).
QUESTIONS = (
    ("three counts", FEW, ""),
    ("counts", COUNTS, ""),
    ("times", "", TIMES),
    ("counts and times", COUNTS, TIMES),
)
KEYS = ("src_podset", "src_podset,dst_podset", "src")


def probes(n: int) -> list[Block]:
    """Blocks of probes of ten minutes."""
    parts, out = blocks(4, random.Random(1)), []
    step = max(SPAN // n, 1)
    for start in range(0, n, ROWS):
        columns = list(parts[start // ROWS % len(parts)])
        columns[0] = array("q", range(START + start * step, START + (start + ROWS) * step, step))
        out.append(Block.wrap(SCHEMA.layout, ROWS, columns))
    return out


def tallied(data: list[Block], by: str) -> int:
    tally = WindowTally(SCHEMA, by.split(","), window=WINDOW)
    for block in data:
        tally.update(block)
    return sum(len(tally.cells(window)) for window in tally.windows())


def rolled(data: list[Block], by: str, agg: str, where: str) -> int:
    question = Aggregation(SCHEMA, parse_aggregates(agg, SCHEMA), parse_by(f"10m,{by}", SCHEMA))
    rollup = question.rollup()
    program = compile(where, SCHEMA).program if where else None
    for block in data:
        rollup.update(block, program.select(block) if program is not None else None)
    return sum(block.rows for block in question.answer(rollup))


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    start = time.process_time()
    result = work()
    return time.process_time() - start, result


def main(n: int, rounds: int) -> None:
    data = probes(n)
    n = sum(block.rows for block in data)
    header("roll-up", "by", "groups", "tally_ns", "rollup_ns", "tally_faster_by")
    for by in KEYS:
        for name, counts, times in QUESTIONS:
            ours, theirs = [], []
            groups = 0
            for i in range(rounds + 1):
                a, groups = timed(lambda by=by: tallied(data, by))
                asked = [(agg, where) for agg, where in ((counts, ""), (times, WITHOUT_DROPS)) if agg]
                b, found = timed(lambda by=by, asked=asked: [rolled(data, by, agg, where) for agg, where in asked])
                assert 0.99 * groups <= min(found) <= max(found) <= groups, (by, name, found, groups)
                if i:
                    ours.append(a / n * 1e9)
                    theirs.append(b / n * 1e9)
            faster = statistics.median(b / a for a, b in zip(ours, theirs, strict=True))
            row(name, by, groups, statistics.median(ours), statistics.median(theirs), faster)


if __name__ == "__main__":
    if len(sys.argv) > 3:
        raise SystemExit(__doc__)
    main(
        int(float(sys.argv[1]) * 1e6) if len(sys.argv) > 1 else 4_000_000, int(sys.argv[2]) if len(sys.argv) > 2 else 3
    )
