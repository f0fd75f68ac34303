"""confluo-pingmesh: latency and loss between all servers of a network.  Manual: confluo-pingmesh(1)."""

from __future__ import annotations

import sys

from confluo_tools.verbs import Verb, run_verb

VERBS = (
    Verb("plan", "plan.command", "make pinglists from a topology"),
    Verb("serve", "controller.command", "serve pinglists to agents"),
    Verb("agent", "agent.command", "probe the servers on a pinglist, and answer probes"),
    Verb("probe", "probe.command", "probe some targets, like ping"),
    Verb("respond", "probe.respond_command", "only answer probes"),
    Verb("blackholes", "analysis.blackholes_command", "find switches that drop all packets of some pairs of servers"),
    Verb("drops", "analysis.drops_command", "find the layer that drops packets at random, and flows to trace"),
    Verb("sla", "analysis.sla_command", "print drop rate and latency with intervals, and alerts"),
    Verb("verdict", "analysis.verdict_command", "decide whether the network is the cause of a problem"),
    Verb("simulate", "simulate.command", "simulate probes of a fleet with known faults"),
    Verb("heatmap", "heatmap.command", "draw latency and drops between pods, and name the pattern"),
)


EXAMPLES = (
    "confluo-pingmesh simulate --fault spine_drops,rate=4% -w try.ml    # probes to try the verbs on",
    "confluo-pingmesh heatmap try.ml --metric drop",
    "confluo-pingmesh verdict try.ml --servers p001s01,p005s01",
    "confluo-pingmesh plan topology.yaml -w pinglists/                  # for a real network",
    "confluo-pingmesh probe 10.0.0.7:8080 -c 100                        # a few probes by hand",
)


def main(argv: list[str] | None = None) -> int:
    words = list(sys.argv[1:] if argv is None else argv)
    status = run_verb(VERBS, "confluo_tools.pingmesh", words)
    if status is not None:
        return status
    from confluo_tools.cli.verbs import without_verb

    purpose = "Is it the network?  Measure latency and loss between all servers."
    manual = "'confluo help pingmesh-VERB' opens the manual of a verb."
    return without_verb(words, "confluo-pingmesh", purpose, VERBS, EXAMPLES, manual)
