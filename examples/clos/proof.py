"""007 end to end: a link drops packets, agents on all hosts detect TCP losses, trace the flows and rank the links.

Each step is compared with the counters of nftables and of the sockets.
"""

from __future__ import annotations

import os
import subprocess
import time
from dataclasses import dataclass, field
from ipaddress import IPv4Address
from pathlib import Path

import drops
import load
import net
import spaces
from agents import Agents
from clos import Clos
from drops import Key
from topology import Mistake

TUPLE = "src_ip,src_port,dst_ip,dst_port"
RETX = "confluo-retx -q --follow --all -w $HOST.retx.ml"
TRACE = (
    "confluo-trace -q --from $HOST.{source} --healthy --topology {file} --rate {rate} --epoch 1h --timeout 1s "
    "--tries {tries} -w $HOST.paths.ml"
)
MODELS = ("vote", "mle")


@dataclass
class Result:
    """``lossy``: flows with losses by TCP_INFO; ``reported``: lossy flows with the same losses in the records.

    ``traced``: paths; ``same``: paths equal to those of the data; ``wrong``: other paths, ? for a missing answer.
    ``crossing``: lossy flows that lost a packet on the link; ``blamed``: crossing flows that confluo-vote assigns to
    the link.  ``ranking``: links, by model.
    """

    link: tuple[str, str]
    packets: int = 0
    dropped: int = 0
    lossy: int = 0
    reported: int = 0
    traced: int = 0
    same: int = 0
    wrong: dict[Key, list[str]] = field(default_factory=dict)
    crossing: int = 0
    blamed: int = 0
    ranking: dict[str, list[tuple[str, str]]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)

    def rank(self, model: str = "vote") -> int:
        """Rank of the link that dropped packets; 0 if it is not ranked."""
        return self.ranking[model].index(self.link) + 1 if self.link in self.ranking[model] else 0


class Proof:
    """Steps of an end-to-end run.  ``folder``: output of the agents; ``environment``: of all commands."""

    def __init__(self, state: net.State, plan: Clos, folder: Path, environment: dict[str, str] | None = None) -> None:
        self.state, self.plan, self.folder = state, plan, folder.resolve()
        self.environment = environment or {}
        self.owner = plan.owner()

    def load_with(
        self, flows: list[load.Flow], *commands: str, parallel: int = load.PARALLEL, give_up: float = 0
    ) -> None:
        """Run the load while these commands run on every host; with ``give_up`` seconds, flows may stay undone."""
        agents = Agents()
        try:
            for command in commands:
                self._start(agents, command)
            agents.wait()
            load.run(self.state, flows, parallel, give_up)
            agents.settle()
        finally:
            status = agents.end()
        if status or not (give_up or all(flow.done for flow in flows)):
            raise Mistake(f"status {status} of {commands}; {sum(not flow.done for flow in flows)} flows not done")

    def on_hosts(self, command: str) -> None:
        """Run a command to its end on every host; status 1 (empty result) is accepted like 0."""
        agents = Agents()
        try:
            self._start(agents, command)
            status = agents.join()
        finally:
            agents.end()
        if status not in (0, 1):
            raise Mistake(f"status {status} of '{command}'")

    def _start(self, agents: Agents, command: str) -> None:
        spaces.on_hosts(agents, self.state, self.plan, command, self.folder, **self.environment)

    def trace(self, source: str = "retx.ml", rate: int = 1000, tries: int = 8) -> None:
        self.on_hosts(TRACE.format(source=source, file=self.state.topology, rate=rate, tries=tries))

    def ask(self, *words: str) -> list[list[str]]:
        """Rows of a command's TSV output, without the header."""
        done = subprocess.run(
            words,
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            env=os.environ | self.environment,
            check=False,
        )
        if done.returncode not in (0, 1):
            raise Mistake(f"{words[0]}: {done.stderr.strip()}")
        return [line.split("\t") for line in done.stdout.splitlines() if not line.startswith("#")]

    def logs(self, what: str) -> list[str]:
        names = (f"{host.name}.{what}" for host in self.plan.host_nodes())
        return [name for name in names if (self.folder / name).exists()]

    def sums(self, what: str, columns: str, *words: str) -> dict[Key, tuple[int, ...]]:
        """Sums of columns ('count' too) by five-tuple, over the logs of all hosts."""
        asked = ", ".join(name if name == "count" else f"sum({name})" for name in columns.split())
        found = {}
        for log in self.logs(what):
            for row in self.ask("confluo-query", log, "-T", "--agg", asked, "--by", TUPLE, *words):
                found[row[0], int(row[1]), row[2], int(row[3])] = tuple(map(int, row[4:]))
        return found

    def paths(self) -> dict[Key, list[str]]:
        """Traced paths from host to host, ? for a missing answer; flows that were not traced are left out."""
        found = {}
        for log in self.logs("paths.ml"):
            for row in self.ask("confluo-query", log, "hops > 0", "-T", "-f", f"{TUPLE},path,notes"):
                source, port, to, to_port, path, notes = row
                way = [self.owner.get(str(IPv4Address(int(node))), "?") for node in path.split(",")]
                end = "?" if "partial" in notes else self.owner[to]
                found[source, int(port), to, int(to_port)] = [self.owner[source], *way, end]
        return found

    def vote(self, *words: str) -> list[list[str]]:
        return self.ask("confluo-vote", *self.logs("paths.ml"), "--topology", self.state.topology, "-T", *words)

    def ranking(self, *words: str) -> list[tuple[str, str]]:
        """Ranked links, highest score first."""
        return [(a, b) for a, b in self.vote("-f", "link_a,link_b", *words)]

    def blamed(self, *words: str) -> dict[Key, tuple[str, str]]:
        """The blamed link of each flow that lost packets."""
        rows = self.vote("--flows", "-f", f"{TUPLE},blame_a,blame_b", *words)
        return {(row[0], int(row[1]), row[2], int(row[3])): (row[4], row[5]) for row in rows}

    def prove(self, link: tuple[str, str], share: str, flows: list[load.Flow]) -> Result:
        """Run all steps for one link that drops packets."""
        result = Result(link)
        drops.forget(self.state, self.plan)
        drops.drop(self.state, self.plan, *link, share)
        begun = time.monotonic()
        self.load_with(flows, RETX)
        result.seconds["load"] = time.monotonic() - begun

        seen = {one.link: one for one in drops.counts(self.state, self.plan)}
        ways = drops.ways(self.plan, seen.values(), [flow.key for flow in flows])
        lost = {flow.key: flow.retrans - flow.dsack for flow in flows if flow.retrans > flow.dsack}
        reported = self.sums("retx.ml", "lost")
        bad = seen[link]
        result.packets, result.dropped, result.lossy = bad.packets, bad.dropped, len(lost)
        result.reported = sum(reported.get(key) == (count,) for key, count in lost.items())

        begun = time.monotonic()
        self.trace()
        result.seconds["trace"] = time.monotonic() - begun
        traced = {key: way for key, way in self.paths().items() if key in ways}
        result.wrong = {key: way for key, way in traced.items() if ways[key] != way}
        result.traced, result.same = len(traced), len(traced) - len(result.wrong)

        begun = time.monotonic()
        result.ranking = {model: self.ranking("--model", model) for model in MODELS}
        result.seconds["vote"] = time.monotonic() - begun
        blamed = self.blamed()
        crossing = [key for key in lost if key in bad.lost]
        result.crossing, result.blamed = len(crossing), sum(blamed.get(key) == link for key in crossing)
        return result
