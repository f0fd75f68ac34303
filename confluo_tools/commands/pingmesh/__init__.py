"""confluo-pingmesh: is it the network?  Manual: confluo-pingmesh(1)."""

from __future__ import annotations

import sys

# name, one line; each is a module of this package with its own manual, confluo-pingmesh-NAME(1)
VERBS: tuple[tuple[str, str], ...] = (
    ("plan", "who is to probe whom: pinglists from a topology"),
    ("serve", "the controller that agents pull their pinglists from"),
    ("agent", "probe the servers on a pinglist, and answer the probes of others"),
    ("probe", "probes to some targets, like ping"),
    ("respond", "answer probes, and nothing else"),
    ("blackholes", "switches that eat packets of some pairs of servers for good"),
    ("drops", "the layer that drops packets at random, and flows to trace"),
    ("sla", "drop rate and latency with intervals, and alarms"),
    ("verdict", "is it the network? for a service and a span, with the evidence"),
    ("simulate", "probes of a fleet whose network has faults, and the truth about them"),
    ("heatmap", "latency and drops between pods as a picture that has a name"),
)


def _usage(words: list[str]) -> int:
    """Without a verb: what there is."""
    wanted = words[:1] in (["-h"], ["--help"], ["help"])
    lines = ["Usage: confluo-pingmesh VERB [ARGS...]", ""]
    lines += ["Is it the network?  Latency and loss between all servers.", ""]
    lines += [f"  {name:<10} {line}" for name, line in VERBS]
    lines += [
        "",
        "  --help     This list; after a verb, its options.",
        "  --version  The version of the program and of its format.",
        "",
        "Examples:",
        "  confluo-pingmesh simulate --fault spine_drops,rate=4% -w try.ml    # to try the others on",
        "  confluo-pingmesh heatmap try.ml --metric drop",
        "  confluo-pingmesh verdict try.ml --servers p001s01,p005s01",
        "  confluo-pingmesh plan topology.yaml -w pinglists/                  # and now in earnest",
        "  confluo-pingmesh probe 10.0.0.7:8080 -c 100                        # or by hand",
        "",
        "'confluo help pingmesh-VERB' opens the manual of one.",
    ]
    if words and not wanted:
        from difflib import get_close_matches

        near = get_close_matches(words[0], [name for name, _ in VERBS], n=1)
        hint = f"did you mean '{near[0]}'?" if near else "confluo-pingmesh --help lists them"
        word = words[0][:60].encode("ascii", "backslashreplace").decode()
        print(f"confluo-pingmesh: no verb '{word}'; {hint}", file=sys.stderr)
        return 2
    print("\n".join(lines), file=sys.stdout if wanted else sys.stderr)
    return 0 if wanted else 2


def main(argv: list[str] | None = None) -> int:
    words = list(sys.argv[1:] if argv is None else argv)
    if words[:1] and any(words[0] == name for name, _ in VERBS):
        from importlib import import_module

        status: int = import_module(f"confluo_tools.commands.pingmesh.{words[0]}").main(words[1:])
        return status
    if words[:1] == ["--version"]:
        from confluo_tools.cli.runner import version

        print(version("confluo-pingmesh"))
        return 0
    return _usage(words)
