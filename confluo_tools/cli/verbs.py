"""The list of verbs of a command: its help, or the error for a missing or unknown verb."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence


def without_verb(
    words: list[str], prog: str, purpose: str, verbs: Mapping[str, str], examples: Sequence[str], manual: str
) -> int:
    """What ``prog WORDS`` does when the first word is not a verb: print the list or the version; returns the status.

    ``verbs``: {name: what it does}; ``manual``: the sentence that names the manual.
    """
    if words[:1] == ["--version"]:
        from confluo_tools.cli.runner import version

        print(version(prog))
        return 0
    wanted = words[:1] in (["-h"], ["--help"], ["help"])
    if words and not wanted:
        from difflib import get_close_matches

        near = get_close_matches(words[0], list(verbs), n=1)
        hint = f"did you mean '{near[0]}'?" if near else f"{prog} --help lists them"
        word = words[0][:60].encode("ascii", "backslashreplace").decode()
        print(f"{prog}: unknown verb '{word}'; {hint}", file=sys.stderr)
        return 2
    width = max(7, *(len(name) for name in verbs))
    lines = [f"Usage: {prog} VERB [ARGS...]", "", purpose, ""]
    lines += [f"  {name:<{width}} {line}" for name, line in verbs.items()]
    lines += [
        "",
        "  --help     Print this list; after a verb, its options.",
        "  --version  Print the version of the program and of its format.",
        "",
        "Examples:",
        *(f"  {example}" for example in examples),
        "",
        manual,
    ]
    print("\n".join(lines), file=sys.stdout if wanted else sys.stderr)
    return 0 if wanted else 2
