"""confluo-replay: what did this TCP connection, and the network, really do?  Manual: confluo-replay(1)."""

from __future__ import annotations

import sys
from typing import NamedTuple


class ReplayVerb(NamedTuple):
    """A verb of confluo-replay; its manual is confluo-replay-NAME(1)."""

    name: str
    module: str  # below confluo_tools.replay
    help: str


VERBS = (
    ReplayVerb("diff", "engine.diff_command", "compare two recordings or replays of TCP connections"),
    ReplayVerb("explain", "explain.command", "name every gap, retransmission and delayed acknowledgement of TCP"),
    ReplayVerb("queues", "queues.command", "replay switch queues: lengths, drops, and who shared them"),
    ReplayVerb("sample", "sample.command", "write times of records as runs, each within a bound, and back"),
)


def main(argv: list[str] | None = None) -> int:
    from importlib import import_module

    words = list(sys.argv[1:] if argv is None else argv)
    verb = next((verb for verb in VERBS if words[:1] == [verb.name]), None)
    module = "engine.replay_command" if verb is None else verb.module
    status: int = import_module(f"confluo_tools.replay.{module}").main(words if verb is None else words[1:])
    return status
