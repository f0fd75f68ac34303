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
    ReplayVerb("explain", "explain.command", "name every gap, retransmission and delayed acknowledgement of TCP"),
    ReplayVerb("queues", "queues.command", "replay switch queues: lengths, drops, and who shared them"),
)


def _usage(words: list[str]) -> int:
    """Print the list of verbs: the help, or the error for a missing or unknown verb."""
    wanted = words[:1] in (["-h"], ["--help"], ["help"])
    lines = ["Usage: confluo-replay VERB [ARGS...]", "", "What did TCP connections and switch queues really do?", ""]
    lines += [f"  {verb.name:<10} {verb.help}" for verb in VERBS]
    lines += [
        "",
        "  --help     Print this list; after a verb, its options.",
        "  --version  Print the version of the program and of its format.",
        "",
        "Examples:",
        "  confluo-replay explain client.pcap server.pcap",
        "  confluo-replay queues all/*.ml --topology fat.yaml -w queues.ml",
        "",
        "'confluo help replay-VERB' opens the manual of a verb.",
    ]
    if words and not wanted:
        from difflib import get_close_matches

        near = get_close_matches(words[0], [verb.name for verb in VERBS], n=1)
        hint = f"did you mean '{near[0]}'?" if near else "confluo-replay --help lists them"
        word = words[0][:60].encode("ascii", "backslashreplace").decode()
        print(f"confluo-replay: unknown verb '{word}'; {hint}", file=sys.stderr)
        return 2
    print("\n".join(lines), file=sys.stdout if wanted else sys.stderr)
    return 0 if wanted else 2


def main(argv: list[str] | None = None) -> int:
    words = list(sys.argv[1:] if argv is None else argv)
    verb = next((verb for verb in VERBS if words[:1] == [verb.name]), None)
    if verb is not None:
        from importlib import import_module

        status: int = import_module(f"confluo_tools.replay.{verb.module}").main(words[1:])
        return status
    if words[:1] == ["--version"]:
        from confluo_tools.cli.runner import version

        print(version("confluo-replay"))
        return 0
    return _usage(words)
