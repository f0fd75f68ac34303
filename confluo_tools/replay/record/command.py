"""confluo-replay-record: record what TCP connections did, for a replay.  Manual: confluo-replay-record(1)."""

from __future__ import annotations

import sys

from confluo_tools.verbs import Verb, run_verb

VERBS = (
    Verb("run", "run_command", "run a command and record its connections"),
    Verb("attach", "attach_command", "record the connections of a running service"),
)
EXAMPLES = (
    "sudo confluo-replay-record run -w c.ml -- ./client 10.0.0.2",
    "sudo confluo-replay-record attach --port 8080 -w s.ml --keep 1h,2G",
)


def main(argv: list[str] | None = None) -> int:
    words = list(sys.argv[1:] if argv is None else argv)
    status = run_verb(VERBS, "confluo_tools.replay.record", words)
    if status is not None:
        return status
    from confluo_tools.cli.verbs import without_verb

    purpose = "Record what each end of a TCP connection did, so that it can be replayed."
    manual = "'confluo help replay-record' opens the manual."
    return without_verb(words, "confluo-replay-record", purpose, VERBS, EXAMPLES, manual)
