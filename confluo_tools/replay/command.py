"""confluo-replay: what did this TCP connection, and the network, really do?  Manual: confluo-replay(1)."""

from __future__ import annotations

import sys

from confluo_tools.verbs import Verb, run_verb

VERBS = (
    Verb("diff", "engine.diff_command", "compare two recordings or replays of TCP connections"),
    Verb("explain", "explain.command", "name every gap, retransmission and delayed acknowledgement of TCP"),
    Verb("queues", "queues.command", "replay switch queues: lengths, drops, and who shared them"),
    Verb("sample", "sample.command", "write times of records as runs, each within a bound, and back"),
)


def main(argv: list[str] | None = None) -> int:
    words = list(sys.argv[1:] if argv is None else argv)
    status = run_verb(VERBS, "confluo_tools.replay", words)
    if status is not None:
        return status
    from confluo_tools.replay.engine.replay_command import main as replay

    return replay(words)
