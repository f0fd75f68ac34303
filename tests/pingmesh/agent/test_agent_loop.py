"""The agent's loop in this process, with a controller, a disk and clocks that the test makes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from ipaddress import ip_network
from typing import Any

import pytest

import agent_lab as lab
from confluo_tools.core.block.block import Block
from confluo_tools.errors import DiskFullError
from confluo_tools.pingmesh.agent import loop as mesh_agent
from confluo_tools.pingmesh.agent.controller_client import Controller, ControllerReply
from confluo_tools.pingmesh.agent.loop import AgentSettings, PingmeshAgent
from confluo_tools.pingmesh.plan.graphs import SECOND, Pinglist, PinglistPeer
from confluo_tools.schema import builtin

SCHEMA = builtin("probe")


class Log:
    """Rows as dictionaries; may be full."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self.full = False
        self.refused = 0

    def __call__(self, block: Block) -> None:
        if self.full:
            self.refused += block.rows
            raise DiskFullError("no room", where="log")
        names = ("ts", "kind", "outcome", "notes", "event", "reason", "list", "probes", "rss", "src_pod")
        at = [(name, block.layout.index(name)) for name in names]
        for row in range(block.rows):
            self.rows.append({name: block.get(i, row) for name, i in at})

    def probes(self) -> list[dict[str, Any]]:
        return [row for row in self.rows if row["kind"] < 16]

    def events(self) -> list[str]:
        words, reasons = SCHEMA["event"].names, SCHEMA["reason"].names
        return [f"{words[r['event']]} {reasons.get(r['reason'], '')}".strip() for r in self.rows if r["kind"] == 17]


class Rig:
    """An agent in a thread, and what its controller will say."""

    def __init__(self, reply: ControllerReply, **settings: Any) -> None:
        self.reply, self.log, self.said = reply, Log(), []
        self.fetches: list[str] = []
        here = (ip_network("127.0.0.0/8"),)
        known = AgentSettings(
            "a1", Controller(("nowhere",)), here, every=0.1, deadline=1.0, lab=True, memory=1 << 40, cpu=1e6
        )  # a busy machine does not slow the agent down
        self.agent = PingmeshAgent(known._replace(**settings), None, self.log, report=self.said.append)
        self.agent._fetch = self._fetch  # type: ignore[method-assign]
        self.agent._fetcher._fetch = self._fetch
        self.status: int | None = None
        self._thread = threading.Thread(target=self._run)

    def _fetch(self, etag: str) -> ControllerReply:
        self.fetches.append(etag)
        if self.reply.kind == "list" and etag and etag == self.reply.etag:
            return ControllerReply("same")
        return self.reply

    def _run(self) -> None:
        self.status = self.agent.run(30)

    def until(self, what: Callable[[], object], seconds: float = 15.0) -> None:
        end = time.monotonic() + seconds
        while not what():
            assert time.monotonic() < end, (self.said, len(self.log.rows))
            time.sleep(0.02)

    def __enter__(self) -> Rig:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.agent.stop(15)
        self._thread.join(20)
        assert not self._thread.is_alive()


def found(peers: tuple[PinglistPeer, ...], version: int = 1, etag: str = "e1") -> ControllerReply:
    return ControllerReply("list", "", etag, Pinglist("a1", version, 7, peers))


@pytest.fixture
def targets() -> Iterator[lab.Targets]:
    with lab.Targets(4) as made:
        yield made


@pytest.fixture(autouse=True)
def _hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mesh_agent, "HOST", 0.2)
    monkeypatch.setattr(mesh_agent, "TICK", 0.05)
    monkeypatch.setattr(mesh_agent, "DRAIN", 0.3)
    monkeypatch.setattr(mesh_agent, "DISK", 0.5)


def test_only_the_list_that_is_followed_is_confirmed(targets: lab.Targets) -> None:
    """An agent that refused a list does not ask whether it is still the same."""
    peers = lab.peers_at(*targets.ports, interval=SECOND // 10)
    with Rig(found(peers)) as rig:
        rig.until(lambda: "e1" in rig.fetches and len(rig.fetches) > 3)
        rig.reply = found((*peers, replace(peers[0], name="away", address="10.0.0.1")), 2, "e2")
        rig.until(lambda: "stopped bad_list" in rig.log.events())
        before = len(rig.fetches)
        rig.until(lambda: len(rig.fetches) > before + 3)
        assert set(rig.fetches[before + 1 :]) == {""}
        rig.reply = found(peers, 3, "e3")
        rig.until(lambda: rig.fetches[-1] == "e3")
    assert rig.log.events() == ["started", "list", "stopped bad_list", "resumed", "ended signal"]
    stop = next(r for r in rig.log.rows if r["reason"])
    assert stop["list"] == 1  # the one that is over
    assert rig.status == 0


def test_a_list_that_came_is_not_asked_for_again_at_once(targets: lab.Targets, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pause of an agent without a list is a short one; it is not begun before the answer was looked at."""
    with Rig(found(lab.peers_at(*targets.ports))) as rig:
        lease, pauses = rig.agent.lease, []
        pause, update = lease.pause, lease.update

        def slowly(*answer: Any) -> Any:
            time.sleep(0.05)
            return update(*answer)

        def asked(*, first: bool = False) -> float:
            pauses.append((first, lease.probing))
            return pause(first=first)

        monkeypatch.setattr(lease, "update", slowly)
        monkeypatch.setattr(lease, "pause", asked)
        rig.until(lambda: len(pauses) > 4)
    assert all(probing for first, probing in pauses[1:] if not first)


@pytest.mark.parametrize(
    "address",
    [
        "10.0.0.1",
        "::ffff:10.0.0.1",
        "::ffff:127.0.0.1",
        "128.0.0.0",
        "126.255.255.255",
        "::",
        "0.0.0.0",
        "fe80::1",
        "::2",
        "255.255.255.255",
        "224.0.0.1",
    ],
)
def test_whatever_its_address_looks_like(targets: lab.Targets, address: str) -> None:
    """127.0.0.0/8 is allowed, and ::1; IPv4 in IPv6 is not one more way there."""
    here = ip_network("127.0.0.0/8"), ip_network("::1/128")
    with Rig(found((replace(lab.peers_at(targets.ports[0])[0], address=address),)), allow=here) as rig:
        rig.until(lambda: len(rig.log.events()) > 1)
        assert rig.log.events()[1] == "stopped bad_list"
        assert rig.agent.tally.probes == 0


def test_a_peer_that_the_core_refuses_ends_the_whole_list(targets: lab.Targets) -> None:
    """Twice the same, and without --lab an interval below 10 s: refused, not rounded."""
    one = lab.peers_at(targets.ports[0])
    with Rig(found(one * 2)) as rig:
        rig.until(lambda: rig.log.events()[1:] == ["stopped bad_list"])
        assert targets.quiet_for(0.3)
    with Rig(found(one), lab=False) as rig:
        rig.until(lambda: rig.log.events()[1:] == ["stopped bad_list"])
        assert "the minimum is 10 s" in rig.said[-1]
        assert targets.quiet_for(0.3)


@pytest.mark.parametrize("kinds", [("http",), ("https", "tcp", "echo"), ("tcp",)])
def test_no_address_is_asked_too_often_by_probes_of_all_kinds(kinds: tuple[str, ...]) -> None:
    """22 ports of one address every 10 s are 2.2 a second; requests are counted like connections."""
    peers = tuple(
        PinglistPeer(f"t{i}", "127.0.0.1", 1000 + i, kinds[i % len(kinds)], interval=10 * SECOND, payload=0)
        for i in range(22)
    )
    with Rig(found(peers), lab=False) as rig:
        rig.until(lambda: rig.log.events()[1:] == ["stopped bad_list"])
        assert "more than 2 probes a second" in rig.said[-1]
    with Rig(found(peers[:2]), lab=False) as rig:
        rig.until(lambda: rig.log.events()[1:] == ["list"])


def test_web_probes_are_sent_from_the_address_of_their_version() -> None:
    """Of two addresses the first was taken for all, and the error ended the agent."""
    peers = tuple(
        PinglistPeer(f"t{i}", address, 1, "http", interval=SECOND // 10)
        for i, address in enumerate(("127.0.0.1", "::1", "127.0.0.2"))
    )
    here = ip_network("127.0.0.0/8"), ip_network("::1/128")
    with Rig(found(peers), allow=here, http_source=("127.0.0.1", "::1")) as rig:
        rig.until(lambda: len(rig.log.probes()) > 10)
    assert {SCHEMA["outcome"].names[r["outcome"]] for r in rig.log.probes()} == {"refused"}
    assert rig.status == 0


def test_a_full_disk_costs_these_records_and_nothing_else(targets: lab.Targets) -> None:
    with Rig(found(lab.peers_at(*targets.ports, interval=SECOND // 20))) as rig:
        rig.until(lambda: len(rig.log.probes()) > 10)
        rig.log.full = True
        rig.until(lambda: rig.agent.discarded > 30)
        count = targets.count
        assert rig.log.refused < rig.agent.discarded  # it was not tried each time
        rig.log.full = False
        kept = len(rig.log.probes())
        rig.until(lambda: len(rig.log.probes()) > kept + 10)
        assert targets.count > count
    assert any("no room" in line for line in rig.said)
    assert "resumed disk" in rig.log.events()
    # what was sent is what was kept or discarded; a probe or two may have been out at the end
    in_log, lost = len(rig.log.probes()), rig.agent.discarded
    assert in_log < rig.agent.tally.probes <= in_log + lost
    assert abs(rig.agent.tally.probes - targets.count) <= 4


@pytest.mark.parametrize("step", [86400, -86400])
def test_a_clock_that_is_set_changes_nothing(targets: lab.Targets, monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    """Records have the new time; the pace, the list and the time-outs do not know of it."""
    true_ns, true = time.time_ns, time.time
    offset = 0
    monkeypatch.setattr(time, "time_ns", lambda: true_ns() + offset)
    monkeypatch.setattr(time, "time", lambda: true() + offset / 1e9)
    with Rig(found(lab.peers_at(*targets.ports, interval=SECOND // 5))) as rig:
        rig.until(lambda: targets.count > 8)
        before, offset, since = targets.count, step * SECOND, time.monotonic()
        time.sleep(2)
        sent, planned = targets.count - before, (time.monotonic() - since) * 4 * 5
        assert rig.agent.lease.probing
    assert planned * 0.3 < sent < planned * 1.5 + 8
    told = [event for event in rig.log.events() if not event.endswith("local_pressure")]  # other tests' doing, if any
    assert told == ["started", "list", "ended signal"]
    assert {row["outcome"] for row in rig.log.probes()} == {1}


def test_too_much_memory_ends_it_and_says_so(targets: lab.Targets) -> None:
    with Rig(found(lab.peers_at(*targets.ports)), memory=1 << 20) as rig:
        rig.until(lambda: rig.status is not None)
    assert rig.status == 2
    assert rig.log.events()[-1] == "ended limit"
    assert "memory" in rig.said[-1]


def test_a_host_without_room_slows_it_down_and_it_never_stops(
    targets: lab.Targets, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Rig(found(lab.peers_at(*targets.ports, interval=SECOND // 10)), cpu=1e-6) as rig:
        rig.until(lambda: sum(e == "slowed local_pressure" for e in rig.log.events()) == 3)
        assert rig.agent.throttle.pace == 10
        before = targets.count
        rig.until(lambda: targets.count > before + 3)  # a tenth as fast, but not silent
        assert any(row["notes"] & 32 for row in rig.log.probes())
        rig.agent.settings = rig.agent.settings._replace(cpu=1.0)
        rig.until(lambda: "resumed local_pressure" in rig.log.events())
        assert rig.agent.throttle.pace == 1
    assert not rig.log.probes()[0]["notes"] & 32
    assert rig.status == 0


def test_over_its_share_for_too_long_it_ends(targets: lab.Targets, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mesh_agent, "PATIENCE", 0.5)
    with Rig(found(lab.peers_at(*targets.ports, interval=SECOND // 10)), cpu=1e-6) as rig:
        rig.until(lambda: rig.status is not None)
    assert rig.status == 2
    assert rig.log.events()[-1] == "ended limit"


def test_records_of_the_host_add_up(targets: lab.Targets) -> None:
    with Rig(found(lab.peers_at(*targets.ports, interval=SECOND // 10))) as rig:
        rig.until(lambda: targets.count > 40)
    hosts = [row for row in rig.log.rows if row["kind"] == 16]
    assert len(hosts) > 3
    assert sum(row["probes"] for row in hosts) == targets.count == len(rig.log.probes())
    assert all(1 << 20 < row["rss"] < 1 << 31 for row in hosts)


def test_it_says_where_it_is(targets: lab.Targets) -> None:
    with Rig(found(lab.peers_at(*targets.ports))) as rig:
        rig.until(lambda: rig.log.probes())
    assert {row["src_pod"].rstrip(b"\0") for row in rig.log.probes()} == {b"p1"}
    with Rig(found(lab.peers_at(*targets.ports)), place=("q9", "", "")) as rig:
        rig.until(lambda: rig.log.probes())
    assert {row["src_pod"].rstrip(b"\0") for row in rig.log.probes()} == {b"q9"}


def test_a_server_that_is_moved(targets: lab.Targets) -> None:
    """Its next list has another place: what was counted before counts on, and requests are from there, too."""
    peers = (
        *lab.peers_at(*targets.ports, interval=SECOND // 50),
        PinglistPeer("w", "127.0.0.1", 1, "http", interval=SECOND // 10),
    )
    reply = found(peers)
    assert reply.pinglist is not None
    with Rig(reply) as rig:
        rig.until(lambda: len(rig.log.probes()) > 50 and sum(r["kind"] == 16 for r in rig.log.rows) > 1)
        moved = replace(reply.pinglist, version=2, place=("p2", "ps2", "dc2"))
        rig.reply = reply._replace(etag="e2", pinglist=moved)
        hosts = sum(r["kind"] == 16 for r in rig.log.rows)
        rig.until(lambda: {r["kind"] for r in rig.log.rows if r["src_pod"].rstrip(b"\0") == b"p2"} >= {1, 3, 16})
        rig.until(lambda: sum(r["kind"] == 16 for r in rig.log.rows) > hosts + 3)
    told = sum(row["probes"] for row in rig.log.rows if row["kind"] == 16)
    assert abs(told - len(rig.log.probes())) <= 5  # some may have been out when the lists changed, and at the end
    assert rig.status == 0


def test_the_fetching_thread_has_died(targets: lab.Targets) -> None:
    """The lease ends a list that is not confirmed."""
    with Rig(found(lab.peers_at(*targets.ports, interval=SECOND // 10)), every=0.2, deadline=0.1) as rig:
        rig.until(lambda: rig.agent.lease.probing)

        def dead(etag: str) -> ControllerReply:
            threading.Event().wait()
            raise AssertionError

        rig.agent._fetcher._fetch = dead
        rig.until(lambda: "stopped controller_lost" in rig.log.events())
        assert "list not confirmed for" in rig.said[-1]
        assert targets.quiet_for(0.5)
