"""Verbs of commands as `confluo-pingmesh plan`: a table of them, and how one is run.

It loads nothing else, so that a verb starts as fast as a command of its own.
"""

from __future__ import annotations

from typing import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence


class Verb(NamedTuple):
    """A verb of a command; its manual is COMMAND-NAME(1)."""

    name: str
    module: str  # with `main`; below the package of the command
    help: str


def run_verb(verbs: Sequence[Verb], package: str, words: list[str]) -> int | None:
    """Run the verb with which ``words`` begin, and return its status; None when they begin with none of these."""
    verb = next((verb for verb in verbs if words[:1] == [verb.name]), None)
    if verb is None:
        return None
    from importlib import import_module

    status: int = import_module(f"{package}.{verb.module}").main(words[1:])
    return status
