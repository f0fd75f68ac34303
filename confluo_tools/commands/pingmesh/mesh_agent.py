"""The agent's loop: a list from the controller, probes by it, records of both, and an end when nobody confirms it."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from ipaddress import IPv4Network, IPv6Network, ip_address
from typing import TYPE_CHECKING, Any, NamedTuple

from confluo_tools.algo import authority as rules
from confluo_tools.algo.authority import Answer, Authority, Pressure, Throttle
from confluo_tools.commands.pingmesh.errands import LEVEL, Asker, Sender, Web, now
from confluo_tools.core.block import Staging
from confluo_tools.core.pinger import KINDS, MAX_RATE, MAX_TARGET_RATE, Pinger
from confluo_tools.errors import DiskFullError
from confluo_tools.schema import builtin
from confluo_tools.sinks.metrics import Tally
from confluo_tools.sources.hostcounters import HostCounters, load

if TYPE_CHECKING:
    from confluo_tools.core.block import Block
    from confluo_tools.formats.pinglist import Peer, Pinglist
    from confluo_tools.remote.lists import Controller, Reply
    from confluo_tools.sources.responder import Responder

ROWS = 2048  # of the block that records are collected in
TICK = 1.0  # s that a record waits at most
HOST = 10.0  # s between two records of the host, and two looks at how it is
DRAIN = 1.0  # s that probes which are out have when we end
PATIENCE = 60.0  # s over a limit, at the slowest, after which we end
DISK = 10.0  # s before a disk that was full is tried again
FEW = 20  # probes of which none can be called a share
KIND_HOST, KIND_EVENT = 16, 17
MOST_U32 = (1 << 32) - 1  # of a counter in a record
LIMIT = 2  # exit status of an agent that took more than it may


class Settings(NamedTuple):
    """What an agent is told.  ``allow``: where its targets may be.  ``memory`` in bytes; ``cpu``: of one core."""

    name: str
    controller: Controller
    allow: tuple[IPv4Network | IPv6Network, ...]
    every: float = 300.0
    deadline: float = 10.0
    source: tuple[bytes, ...] = ()
    web_source: tuple[str, ...] = ()
    lab: bool = False
    memory: int = 64 << 20
    cpu: float = 0.1
    place: tuple[str, str, str] = ("", "", "")  # pod, podset, data centre


class Agent:
    """``write(block)`` takes the records; it may raise DiskFullError.  ``sender``: takes them, too."""

    def __init__(
        self, settings: Settings, responder: Responder | None, write: Callable[[Block], None],
        sender: Sender | None = None, tell: Callable[[str], None] = lambda line: None,
    ) -> None:  # fmt: skip
        from hashlib import blake2b

        self.settings, self.responder, self.sender, self.tell = settings, responder, sender, tell
        self._write = write
        self.seed = int.from_bytes(blake2b(settings.name.encode(), digest_size=8).digest(), "little")
        self.authority = Authority(settings.every, settings.deadline + 1, self.seed)
        self.throttle = Throttle()
        self.schema = builtin("probe")
        self.tally = Tally()
        self._block = Staging(self.schema.layout, ROWS)
        self._pinger: Pinger | None = None
        self._web: Web | None = None
        self._wake = threading.Event()
        self._asker = Asker(self._ask, lambda first: self.authority.pause(first=first), self.wake)
        self._counters = responder.counters if responder is not None else HostCounters().read
        self.place = settings.place
        self.stopped = 0  # the signal
        self.status = 0
        self.version = self.peers = self.unprobed = 0
        self.discarded = 0  # records
        self._full_until = 0.0
        self._missed = 0  # of the discarded ones, those that the log knows of
        self._over = 0.0  # since when a limit is exceeded
        self.share, self.rss, self.overflows = 0.0, 0, 0
        self.events: dict[str, int] = {}

    # -- from other threads and signal handlers

    def wake(self) -> None:
        self._wake.set()
        pinger = self._pinger
        if pinger is not None:
            pinger.stop()

    def stop(self, number: int) -> None:
        self.stopped = number
        self.wake()

    def hurry(self) -> None:
        """Ask for the list at once."""
        self._asker.hurry()

    @property
    def asked(self) -> dict[str, int]:
        """How often the controller was asked, by what came of it."""
        return dict(self._asker.asked)

    # -- the loop

    def run(self, seconds: float | None = None) -> int:
        """Until a signal, a limit, or so many seconds; the exit status (0 when it was told to end)."""
        end = now() + seconds if seconds is not None else float("inf")
        self._host, self._load, self._mine = self._counters(), load(), time.thread_time_ns()
        self._was = (0, 0, 0)
        self._event("started", "", f"pid {os.getpid()}, every {self.settings.every:g} s{sysctls()}")
        self._asker.start()
        next_look = now() + HOST
        try:
            while not self.stopped and not self.status and now() < end:
                self._probe(min(TICK, max(0.0, end - now()), max(0.0, next_look - now())))
                reply = self._asker.take()
                if reply is not None:
                    self._obey(reply)
                self._follow(self.authority.passed(now()))
                if now() >= next_look:
                    next_look += HOST
                    self._look()
        finally:
            self._end()
        return self.status

    def _probe(self, seconds: float) -> None:
        """Probe for so long, or until somebody wakes us."""
        pinger, until = self._pinger, time.monotonic_ns() + int(seconds * 1e9)
        if pinger is not None and pinger.active:
            if pinger.run(self._block, until):
                self._put(self._block)
                self._block.clear()
        elif self._wake.wait(seconds):
            self._wake.clear()
        if self._web is not None and self._web.rows:
            from confluo_tools.formats.build import block_of_rows

            rows = [self._web.rows.popleft() for _ in range(len(self._web.rows))]
            self._put(block_of_rows(self.schema, rows))
        if self.sender is not None:
            self.sender.step()

    def _end(self) -> None:
        self._asker.end()
        self._clear()
        if self._pinger is not None:
            last = time.monotonic_ns() + int(DRAIN * 1e9)
            while self._pinger.active and time.monotonic_ns() < last:
                self._probe((last - time.monotonic_ns()) / 1e9)
        self._look(last=True)
        if not self.status:
            self._event("ended", "signal" if self.stopped else "", f"signal {self.stopped}" if self.stopped else "")
        if self._web is not None:
            self._web.end()
        if self.sender is not None:
            self.sender.end(self.settings.deadline)

    # -- whose word it is

    def _ask(self, etag: str) -> Reply:
        from confluo_tools.remote.lists import fetch

        return fetch(self.settings.controller, self.settings.name, etag, self.settings.deadline)

    def _obey(self, reply: Reply) -> None:
        answer = Answer(reply.kind, reply.detail)
        found = reply.pinglist
        if found is not None:
            answer = Answer(rules.LIST, f"{len(found.peers)} peers", found.version, len(found.peers))
            problem = self._outside(found.peers) or self._too_often(found.peers)
            if not problem and (found.version != self.version or not self.authority.probing):
                problem = self._take(found)
            if problem:
                answer = Answer(rules.BAD, problem)
        step = self.authority.heard(answer, now())
        if step.act == rules.TAKE and self.unprobed:
            step = step._replace(detail=f"{step.detail}, {self.unprobed} of them cannot be probed by this host")
        self._asker.has(reply.etag if step.act == rules.TAKE else self._etag_kept(step))
        self._follow(step)

    def _etag_kept(self, step: rules.Step) -> str:
        return self._asker._etag if step.act == rules.KEEP and self.authority.probing else ""

    def _follow(self, step: rules.Step) -> None:
        version = self.version
        if step.act == rules.CLEAR:
            self._clear()
            self._asker.has("")
        if step.event:
            self._event(step.event, step.reason, step.detail, list=version or self.version)

    def _outside(self, peers: Sequence[Peer]) -> str:
        """Why one of the targets may not be probed; '' when all may."""
        for p in peers:
            address = ip_address(p.address)
            address = getattr(address, "ipv4_mapped", None) or address  # IPv4 by another name
            if address.is_multicast or address.is_unspecified or not any(address in a for a in self.settings.allow):
                return f"{p.name} at {p.address} is not in --allow"
        return ""

    def _too_often(self, peers: Sequence[Peer]) -> str:
        """Which limit the list exceeds, web probes counted in, which the pinger does not know of; '': none."""
        if self.settings.lab:
            return ""
        rates: dict[str, float] = {}
        for p in peers:
            rate = rates[p.address] = rates.get(p.address, 0.0) + 1e9 / p.interval
            if rate > MAX_TARGET_RATE + 1e-9:
                return f"more than {MAX_TARGET_RATE} probes a second to {p.address}"
        return f"more than {MAX_RATE} probes a second" if sum(rates.values()) > MAX_RATE + 1e-9 else ""

    def _take(self, found: Pinglist) -> str:
        """Probe by this list from now on; why not, in words, or ''."""
        place = self._place_of(found)
        pod, podset, dc = self.place = place
        if self._pinger is None:
            self._pinger = Pinger(
                self.schema.layout, seed=self.seed, src=self.settings.name, pod=pod, podset=podset, dc=dc,
                source=self.settings.source or None, lab=self.settings.lab,
            )  # fmt: skip
        pinger = self._pinger
        pinger.clear()
        pinger.move(pod=pod, podset=podset, dc=dc)
        pinger.list, pinger.token = found.version, found.token
        pinger.slow = self.throttle.pace
        web: list[Peer] = []
        self.unprobed = 0
        for p in found.peers:
            if p.kind in ("http", "https"):
                web.append(p)
                continue
            try:
                pinger.add(
                    ip_address(p.address).packed, p.port, KINDS[p.kind], interval=p.interval, timeout=p.timeout,
                    payload=p.payload, dscp=p.dscp, level=LEVEL[p.level], name=p.name, pod=p.pod, podset=p.podset,
                    dc=p.dc,
                )  # fmt: skip
            except ValueError as e:
                self._clear()
                return f"{p.name}: {e}"
            except OSError:  # no IPv6, no permission for ICMP
                self.unprobed += 1
        if web and self._web is None:
            self._web = Web(self.settings.web_source, self.settings.lab)
        if self._web is not None:
            self._web.slow = float(self.throttle.pace)
            us = {"src": self.settings.name, "src_pod": place[0], "src_podset": place[1], "src_dc": place[2]}
            self._web.follow(web, found.version, us)
        if self.responder is not None and found.token:
            self.responder.tokens = [found.token, *[t for t in self.responder.tokens if t != found.token]][:2]
        self.version, self.peers = found.version, len(found.peers)
        return ""

    def _place_of(self, found: Pinglist) -> tuple[str, str, str]:
        """Where this server is: as told, else as the list has it, else as those of its own pod are."""
        if any(self.settings.place):
            return self.settings.place
        if any(found.place):
            return found.place
        for p in found.peers:
            if p.level == "pod":
                return p.pod, p.podset, p.dc
        return self.place

    def _clear(self) -> None:
        """No more probes.  We go on answering those of others."""
        if self._pinger is not None:
            self._pinger.clear()
        if self._web is not None:
            self._web.follow((), 0)
        self.version = self.peers = 0

    # -- how it is going

    def _look(self, *, last: bool = False) -> None:
        """A record of the host, and whether it has room for us."""
        counters, mine, burden = self._counters(), time.thread_time_ns(), load()
        span = max(1, burden.at - self._load.at)
        host, share = counters - self._host, burden.share(self._load)
        own = (mine - self._mine) / span
        probes, skipped, local = self._totals()
        new = probes - self._was[0], skipped - self._was[1], local - self._was[2]
        self._host, self._load, self._mine, self._was = counters, burden, mine, (probes, skipped, local)
        self.share, self.rss, self.overflows = share, burden.rss, counters.overflows
        self._row(
            KIND_HOST, elapsed=span, probes=new[0], skipped=new[1], overflows=min(host.overflows, MOST_U32),
            rss=burden.rss, listen_drops=min(host.listen_drops, MOST_U32),
            syn_retrans=min(host.syn_retrans, MOST_U32), cpu=share,
            notes=32 * (self.throttle.step > 0),
        )  # fmt: skip
        if last:
            return
        due = new[0] + new[1]
        pressure = Pressure(
            own / self.settings.cpu, burden.rss / self.settings.memory,
            new[1] / due / 0.02 if due >= FEW else 0.0, new[2] / due / 0.02 if due >= FEW else 0.0,
        )  # fmt: skip
        before = self.throttle.pace
        if self.throttle.look(pressure):
            self._slow(before, pressure)
        worst, what = max((pressure.memory, "memory"), (pressure.cpu if self.throttle.slowest else 0.0, "cpu"))
        if worst <= 1:
            self._over = 0.0
        elif pressure.memory > 1.5 or (self._over and now() - self._over >= PATIENCE):
            self.status = LIMIT
            self._event("ended", "limit", f"{what}: {worst:.2f} times what it may be")
        else:
            self._over = self._over or now()

    def _slow(self, before: int, pressure: Pressure) -> None:
        pace = self.throttle.pace
        if self._pinger is not None:
            self._pinger.slow = pace
        if self._web is not None:
            self._web.slow = float(pace)
        worst, what = pressure.worst()
        if pace == 1:
            self._event("resumed", "local_pressure", "at the planned pace again")
        else:
            words = f"intervals {pace} times as planned: {what} at {worst:.0%} of its limit"
            self._event("slowed", "local_pressure", words if pace > before else f"intervals {pace} times as planned")

    def _totals(self) -> tuple[int, int, int]:
        """Probes, probes that were due and not sent, probes that this host could not send."""
        counts = self._pinger.counts if self._pinger is not None else {}
        web = (self._web.probes, self._web.skipped) if self._web is not None else (0, 0)
        return counts.get("probes", 0) + web[0], counts.get("skipped", 0) + web[1], counts.get("local", 0)

    # -- records

    def _event(self, event: str, reason: str, detail: str, **more: Any) -> None:
        names = self.schema["event"].names
        reasons = self.schema["reason"].names
        self._row(
            KIND_EVENT, event=next(n for n, word in names.items() if word == event), detail=detail,
            reason=next((n for n, word in reasons.items() if word == reason), 0), **more,
        )  # fmt: skip
        self.events[event] = self.events.get(event, 0) + 1
        self.tell(f"{event}{f' ({reason})' if reason else ''}{f': {detail}' if detail else ''}")

    def _row(self, kind: int, **values: Any) -> None:
        from confluo_tools.formats.build import block_of_rows

        pod, podset, dc = self.place
        one = {"ts": time.time_ns(), "kind": kind, "src": self.settings.name, "src_pod": pod, "src_podset": podset,
               "src_dc": dc, "list": self.version, "peers": self.peers, **values}  # fmt: skip
        self._put(block_of_rows(self.schema, [one]))

    def _put(self, block: Block) -> None:
        """Into the log and to the controller.  A full disk costs these records, and nothing else."""
        self.tally.add(block)
        if self.sender is not None:
            self.sender.add(block)
        if self._full_until:
            if now() < self._full_until:
                self.discarded += block.rows
                return
            self._full_until = 0.0
        try:
            self._write(block)
        except DiskFullError as e:
            self.discarded += block.rows
            self._full_until = now() + DISK
            self.tell(str(e))
            return
        if self.discarded > self._missed:
            missed, self._missed = self.discarded - self._missed, self.discarded
            self._event("resumed", "disk", f"{missed} records were discarded")

    def counts(self) -> str:
        """What happened so far, on one line."""
        good, dropped = self.tally.count(1), sum(self.tally.dropped.values())
        figures = [f"{self.tally.probes} probes", f"{good} ok", f"{dropped} of them after a drop",
                   f"{self.tally.probes - good - self.tally.local} failed", f"{self.peers} peers"]  # fmt: skip
        figures += [f"asked {n} times: {kind}" for kind, n in sorted(self.asked.items())]
        if self.tally.local:
            figures.append(f"{self.tally.local} that this host could not send")
        if self.discarded:
            figures.append(f"{self.discarded} records discarded")
        if self.sender is not None:
            figures += [f"{self.sender.sent} sent", f"{self.sender.discarded} not sent"]
        return ", ".join(figures)



def sysctls() -> str:
    """How this network repeats SYNs: whoever reads times of connections later has to know."""
    found = ""
    for name in ("tcp_syn_linear_timeouts", "tcp_syn_retries"):
        try:
            with open(f"/proc/sys/net/ipv4/{name}", encoding="ascii") as f:
                found += f", {name} {int(f.read())}"
        except (OSError, ValueError):
            continue
    return found
