"""confluo-vote: which link dropped my packets.  Manual: confluo-vote(1)."""

from __future__ import annotations

import sys

VERBS = ("simulate", "bound")


def main(argv: list[str] | None = None) -> int:
    words = list(sys.argv[1:] if argv is None else argv)
    if words[:1] and words[0] in VERBS:
        from importlib import import_module

        status: int = import_module(f"confluo_tools.vote.{words[0]}_command").main(words[1:])
        return status
    from confluo_tools.vote import analyse_command

    return analyse_command.main(words)
