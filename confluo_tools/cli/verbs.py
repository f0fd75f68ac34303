"""The list of verbs of a command: its help, or the error for a missing or unknown verb."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from confluo_tools.plain_print import plain_print
from confluo_tools.verbs import Verb


def without_verb(
    words: list[str], prog: str, purpose: str, verbs: Sequence[Verb], examples: Sequence[str], manual: str
) -> int:
    """What ``prog WORDS`` does when the first word is not a verb: print the list or the version; returns the status.

    ``manual``: the sentence that names the manual.
    """
    if words[:1] == ["--version"]:
        from confluo_tools.cli.runner import version

        return plain_print(prog, version(prog) + "\n")
    wanted = words[:1] in (["-h"], ["--help"], ["help"])
    if words and not wanted:
        from difflib import get_close_matches

        near = get_close_matches(words[0], [verb.name for verb in verbs], n=1)
        hint = f"did you mean '{near[0]}'?" if near else f"{prog} --help lists them"
        word = words[0][:60].encode("ascii", "backslashreplace").decode()
        plain_print(prog, f"{prog}: unknown verb '{word}'; {hint}\n", sys.stderr)
        return 2
    width = max(len(word) for word in ("--version", *(verb.name for verb in verbs)))
    lines = [f"Usage: {prog} VERB [ARGS...]", "", purpose, ""]
    lines += [f"  {verb.name:<{width}}  {verb.help}" for verb in verbs]
    lines += [
        "",
        f"  {'--help':<{width}}  Print this list; after a verb, its options.",
        f"  {'--version':<{width}}  Print the version of the program and of its format.",
        "",
        "Examples:",
        *(f"  {example}" for example in examples),
        "",
        manual,
    ]
    text = "\n".join(lines) + "\n"
    if wanted:
        return plain_print(prog, text)
    plain_print(prog, text, sys.stderr)
    return 2
