"""confluo-vote: which link dropped my packets.  Manual: confluo-vote(1)."""

from __future__ import annotations

import sys

from confluo_tools.verbs import Verb, run_verb

VERBS = (
    Verb("simulate", "simulate_command", "simulate flows of a network with known faults"),
    Verb("bound", "bound_command", "print what the theorems of 007 promise for a network"),
)


def main(argv: list[str] | None = None) -> int:
    words = list(sys.argv[1:] if argv is None else argv)
    status = run_verb(VERBS, "confluo_tools.vote", words)
    if status is not None:
        return status
    from confluo_tools.vote.analyse_command import main as analyse

    return analyse(words)
