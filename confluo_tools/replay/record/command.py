"""confluo-replay-record: record what TCP connections did, for a replay.  Manual: confluo-replay-record(1)."""

from __future__ import annotations

import sys

VERBS = {"run": "run a command and record its connections", "attach": "record the connections of a running service"}


def _usage(words: list[str]) -> int:
    """Print the list of verbs: the help, or the error for a missing or unknown verb."""
    wanted = words[:1] in (["-h"], ["--help"], ["help"])
    lines = ["Usage: confluo-replay-record VERB [ARGS...]", ""]
    lines += ["Record what each end of a TCP connection did, so that it can be replayed.", ""]
    lines += [f"  {name:<7} {line}" for name, line in VERBS.items()]
    lines += [
        "",
        "  --help     Print this list; after a verb, its options.",
        "  --version  Print the version of the program and of its format.",
        "",
        "Examples:",
        "  sudo confluo-replay-record run -w c.ml -- ./client 10.0.0.2",
        "  sudo confluo-replay-record attach --port 8080 -w s.ml --keep 1h,2G",
        "",
        "'confluo help replay-record' opens the manual.",
    ]
    if words and not wanted:
        from difflib import get_close_matches

        near = get_close_matches(words[0], VERBS, n=1)
        hint = f"did you mean '{near[0]}'?" if near else "confluo-replay-record --help lists them"
        word = words[0][:60].encode("ascii", "backslashreplace").decode()
        print(f"confluo-replay-record: unknown verb '{word}'; {hint}", file=sys.stderr)
        return 2
    print("\n".join(lines), file=sys.stdout if wanted else sys.stderr)
    return 0 if wanted else 2


def main(argv: list[str] | None = None) -> int:
    words = list(sys.argv[1:] if argv is None else argv)
    if words[:1] and words[0] in VERBS:
        from importlib import import_module

        status: int = import_module(f"confluo_tools.replay.record.{words[0]}_command").main(words[1:])
        return status
    if words[:1] == ["--version"]:
        from confluo_tools.cli.runner import version

        print(version("confluo-replay-record"))
        return 0
    return _usage(words)
