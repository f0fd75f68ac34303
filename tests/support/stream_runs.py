"""A run of confluo-stream that tests control: its counters are what the test says."""

from __future__ import annotations

import threading

from confluo_tools.errors import UsageError
from confluo_tools.stream.stage_counts import StageCount

ROWS = [
    StageCount("receive", "eth0", 0, 1000, 990, 0, 10, queued=4096, space=1 << 20),
    StageCount("receive", "eth0", 1, 500, 500, 0, 0, queued=0, space=1 << 20),
    StageCount("classify", "syn", 0, 1490, 40, 1450, 0),
    StageCount("queue", "syn", 0, 40, 33, 0, 2, queued=5, space=250),
    StageCount("function", "sample 1/2", 0, 33, 16, 17, 0),
    StageCount("send", "syns", 0, 16, 15, 0, 0, queued=1, space=699),
    StageCount("deliver", "syns", 0, 15, 11, 0, 3, queued=1),
    StageCount("fetch", "telemetry", 3, 70, 70, 0, 0, queued=9),
]


class ScriptedRun:
    """A run with ``stages``; `change` takes texts that begin with ``flows:``."""

    def __init__(self, stages: list[StageCount] | None = None) -> None:
        self.stages = list(ROWS if stages is None else stages)
        self.flows: list[str] = []
        self.looks = 0
        self.failure: Exception | None = None
        self.seen = threading.Event()

    def rows(self) -> list[StageCount]:
        self.looks += 1
        self.seen.set()
        if self.failure is not None:
            raise self.failure
        return self.stages

    def change(self, text: str) -> list[str]:
        if not text.startswith("flows:"):
            raise UsageError("has no list 'flows'", where="flows.yaml", hint="see confluo-stream-publish(1)")
        changed = [f"{line.strip()}: now runs" for line in text.splitlines()[1:]]
        self.flows.append(text)
        return changed
