"""Main loop of an agent: follow the pinglist, probe, write records, stop when the list is not confirmed."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from ipaddress import IPv4Network, IPv6Network, ip_address
from typing import TYPE_CHECKING, Any, NamedTuple

from confluo_tools.core.block.block import Staging
from confluo_tools.core.pingmesh.echo_prober import KINDS, MAX_RATE, MAX_TARGET_RATE, EchoProber
from confluo_tools.errors import DiskFullError
from confluo_tools.pingmesh.agent import lease as rules
from confluo_tools.pingmesh.agent.background import LEVEL, HttpProbes, PinglistFetcher, RecordSender, now
from confluo_tools.pingmesh.agent.host_counters import HostCounters, load
from confluo_tools.pingmesh.agent.lease import ControllerAnswer, Lease, Pressure, Throttle
from confluo_tools.pingmesh.agent.metrics import ProbeCounts
from confluo_tools.schema import builtin

if TYPE_CHECKING:
    from confluo_tools.core.block.block import Block
    from confluo_tools.pingmesh.agent.controller_client import Controller, ControllerReply
    from confluo_tools.pingmesh.plan.pinglist_file import Pinglist, PinglistPeer
    from confluo_tools.pingmesh.probe.responder import Responder

ROWS = 2048  # of the block of new records
TICK = 1.0  # s that a record waits at most
HOST = 10.0  # s between two records of the host, and two checks of its pressure
DRAIN = 1.0  # s for probes in flight at the end
PATIENCE = 60.0  # s above a limit at the slowest pace after which the agent ends
DISK = 10.0  # s before a full disk is tried again
MIN_SAMPLE = 20  # probes below which shares of them are not judged
KIND_HOST, KIND_EVENT = 16, 17
MAX_U32 = (1 << 32) - 1  # of a counter in a record
LIMIT = 2  # exit status of an agent that exceeded its limits


class AgentSettings(NamedTuple):
    """Settings of an agent.  ``allow``: networks of permitted targets.  ``memory``: bytes; ``cpu``: share of a core."""

    name: str
    controller: Controller
    allow: tuple[IPv4Network | IPv6Network, ...]
    every: float = 300.0
    deadline: float = 10.0
    source: tuple[bytes, ...] = ()
    http_source: tuple[str, ...] = ()
    lab: bool = False
    memory: int = 64 << 20
    cpu: float = 0.1
    place: tuple[str, str, str] = ("", "", "")  # pod, podset, data centre


class PingmeshAgent:
    """An agent.  ``write(block)`` writes records and may raise DiskFullError; ``sender`` sends them as well.

    ``report(line)`` prints an event.
    """

    def __init__(
        self,
        settings: AgentSettings,
        responder: Responder | None,
        write: Callable[[Block], None],
        sender: RecordSender | None = None,
        report: Callable[[str], None] = lambda line: None,
    ) -> None:
        from hashlib import blake2b

        self.settings, self.responder, self.sender, self.report = settings, responder, sender, report
        self._write = write
        self.seed = int.from_bytes(blake2b(settings.name.encode(), digest_size=8).digest(), "little")
        self.lease = Lease(settings.every, settings.deadline + 1, self.seed)
        self.throttle = Throttle()
        self.schema = builtin("probe")
        self.tally = ProbeCounts()
        self._block = Staging(self.schema.layout, ROWS)
        self._prober: EchoProber | None = None
        self._http: HttpProbes | None = None
        self._wake = threading.Event()
        self._fetcher = PinglistFetcher(self._fetch, lambda first: self.lease.pause(first=first), self.wake)
        self._counters = responder.counters if responder is not None else HostCounters().read
        self.place = settings.place
        self.stopped = 0  # signal number
        self.status = 0
        self.version = self.peers = self.unprobed = 0
        self.discarded = 0  # records
        self._full_until = 0.0
        self._missed = 0  # discarded records that an event in the log reports
        self._over = 0.0  # time since which a limit is exceeded; 0: none is
        self.share, self.rss, self.overflows = 0.0, 0, 0
        self.events: dict[str, int] = {}

    # -- from other threads and signal handlers

    def wake(self) -> None:
        self._wake.set()
        prober = self._prober
        if prober is not None:
            prober.stop()

    def stop(self, number: int) -> None:
        self.stopped = number
        self.wake()

    def hurry(self) -> None:
        """Fetch the list at once."""
        self._fetcher.hurry()

    @property
    def fetches(self) -> dict[str, int]:
        """Number of fetches by result."""
        return dict(self._fetcher.fetches)

    # -- the loop

    def run(self, seconds: float | None = None) -> int:
        """Run until a signal, a limit, or for ``seconds``; returns the exit status."""
        end = now() + seconds if seconds is not None else float("inf")
        self._host, self._load, self._mine = self._counters(), load(), time.thread_time_ns()
        self._was = (0, 0, 0)
        self._event("started", "", f"pid {os.getpid()}, every {self.settings.every:g} s{sysctls()}")
        self._fetcher.start()
        next_check = now() + HOST
        try:
            while not self.stopped and not self.status and now() < end:
                self._probe(min(TICK, max(0.0, end - now()), max(0.0, next_check - now())))
                reply = self._fetcher.take()
                if reply is not None:
                    self._apply(reply)
                self._act(self.lease.check(now()))
                if now() >= next_check:
                    next_check += HOST
                    self._check_host()
        finally:
            self._end()
        return self.status

    def _probe(self, seconds: float) -> None:
        """Probe for ``seconds``, or until `wake`."""
        prober, until = self._prober, time.monotonic_ns() + int(seconds * 1e9)
        if prober is not None and prober.active:
            if prober.run(self._block, until):
                self._put(self._block)
                self._block.clear()
        elif self._wake.wait(seconds):
            self._wake.clear()
        if self._http is not None and self._http.rows:
            from confluo_tools.formats.block_builder import block_of_rows

            rows = [self._http.rows.popleft() for _ in range(len(self._http.rows))]
            self._put(block_of_rows(self.schema, rows))
        if self.sender is not None:
            self.sender.step()

    def _end(self) -> None:
        self._fetcher.end()
        self._clear()
        if self._prober is not None:
            last = time.monotonic_ns() + int(DRAIN * 1e9)
            while self._prober.active and time.monotonic_ns() < last:
                self._probe((last - time.monotonic_ns()) / 1e9)
        self._check_host(last=True)
        if not self.status:
            self._event("ended", "signal" if self.stopped else "", f"signal {self.stopped}" if self.stopped else "")
        if self._http is not None:
            self._http.end()
        if self.sender is not None:
            self.sender.end(self.settings.deadline)

    # -- the pinglist

    def _fetch(self, etag: str) -> ControllerReply:
        from confluo_tools.pingmesh.agent.controller_client import fetch

        return fetch(self.settings.controller, self.settings.name, etag, self.settings.deadline)

    def _apply(self, reply: ControllerReply) -> None:
        answer = ControllerAnswer(reply.kind, reply.detail)
        found = reply.pinglist
        if found is not None:
            answer = ControllerAnswer(rules.LIST, f"{len(found.peers)} peers", found.version, len(found.peers))
            problem = self._forbidden(found.peers) or self._rate_problem(found.peers)
            if not problem and (found.version != self.version or not self.lease.probing):
                problem = self._follow_list(found)
            if problem:
                answer = ControllerAnswer(rules.BAD, problem)
        step = self.lease.update(answer, now())
        if step.act == rules.TAKE and self.unprobed:
            step = step._replace(detail=f"{step.detail}, {self.unprobed} of them cannot be probed by this host")
        self._fetcher.follow(reply.etag if step.act == rules.TAKE else self._etag_kept(step))
        self._act(step)

    def _etag_kept(self, step: rules.LeaseStep) -> str:
        return self._fetcher.etag if step.act == rules.KEEP and self.lease.probing else ""

    def _act(self, step: rules.LeaseStep) -> None:
        version = self.version
        if step.act == rules.CLEAR:
            self._clear()
            self._fetcher.follow("")
        if step.event:
            self._event(step.event, step.reason, step.detail, list=version or self.version)

    def _forbidden(self, peers: Sequence[PinglistPeer]) -> str:
        """The first target that --allow excludes, as an error; '': none."""
        for p in peers:
            address = ip_address(p.address)
            address = getattr(address, "ipv4_mapped", None) or address  # IPv4-mapped
            if address.is_multicast or address.is_unspecified or not any(address in a for a in self.settings.allow):
                return f"{p.name} at {p.address} is not in --allow"
        return ""

    def _rate_problem(self, peers: Sequence[PinglistPeer]) -> str:
        """The rate limit that the list exceeds, HTTP probes included, as an error; '': none."""
        if self.settings.lab:
            return ""
        rates: dict[str, float] = {}
        for p in peers:
            rate = rates[p.address] = rates.get(p.address, 0.0) + 1e9 / p.interval
            if rate > MAX_TARGET_RATE + 1e-9:
                return f"more than {MAX_TARGET_RATE} probes a second to {p.address}"
        return f"more than {MAX_RATE} probes a second" if sum(rates.values()) > MAX_RATE + 1e-9 else ""

    def _follow_list(self, found: Pinglist) -> str:
        """Follow this list from now on; returns the error, or ''."""
        place = self._place_of(found)
        pod, podset, dc = self.place = place
        if self._prober is None:
            self._prober = EchoProber(
                self.schema.layout,
                seed=self.seed,
                src=self.settings.name,
                pod=pod,
                podset=podset,
                dc=dc,
                source=self.settings.source or None,
                lab=self.settings.lab,
            )
        prober = self._prober
        prober.clear()
        prober.move(pod=pod, podset=podset, dc=dc)
        prober.list, prober.token = found.version, found.token
        prober.slow = self.throttle.pace
        http_peers: list[PinglistPeer] = []
        self.unprobed = 0
        for p in found.peers:
            if p.kind in ("http", "https"):
                http_peers.append(p)
                continue
            try:
                prober.add(
                    ip_address(p.address).packed,
                    p.port,
                    KINDS[p.kind],
                    interval=p.interval,
                    timeout=p.timeout,
                    payload=p.payload,
                    dscp=p.dscp,
                    level=LEVEL[p.level],
                    name=p.name,
                    pod=p.pod,
                    podset=p.podset,
                    dc=p.dc,
                )
            except ValueError as e:
                self._clear()
                return f"{p.name}: {e}"
            except OSError:  # no IPv6, no permission for ICMP
                self.unprobed += 1
        if http_peers and self._http is None:
            self._http = HttpProbes(self.settings.http_source, self.settings.lab)
        if self._http is not None:
            self._http.slow = float(self.throttle.pace)
            own = {"src": self.settings.name, "src_pod": place[0], "src_podset": place[1], "src_dc": place[2]}
            self._http.follow(http_peers, found.version, own)
        if self.responder is not None and found.token:
            self.responder.tokens = [found.token, *[t for t in self.responder.tokens if t != found.token]][:2]
        self.version, self.peers = found.version, len(found.peers)
        return ""

    def _place_of(self, found: Pinglist) -> tuple[str, str, str]:
        """Pod, podset and data centre: from the settings, the list, or a peer of the same pod."""
        if any(self.settings.place):
            return self.settings.place
        if any(found.place):
            return found.place
        for p in found.peers:
            if p.level == "pod":
                return p.pod, p.podset, p.dc
        return self.place

    def _clear(self) -> None:
        """Stop probing.  The responder goes on."""
        if self._prober is not None:
            self._prober.clear()
        if self._http is not None:
            self._http.follow((), 0)
        self.version = self.peers = 0

    # -- the host

    def _check_host(self, *, last: bool = False) -> None:
        """Write a record of the host, and adapt the pace to its pressure."""
        counters, mine, burden = self._counters(), time.thread_time_ns(), load()
        span = max(1, burden.at - self._load.at)
        host, share = counters - self._host, burden.share(self._load)
        own = (mine - self._mine) / span
        probes, skipped, local = self._totals()
        new = probes - self._was[0], skipped - self._was[1], local - self._was[2]
        self._host, self._load, self._mine, self._was = counters, burden, mine, (probes, skipped, local)
        self.share, self.rss, self.overflows = share, burden.rss, counters.overflows
        self._row(
            KIND_HOST,
            elapsed=span,
            probes=new[0],
            skipped=new[1],
            overflows=min(host.overflows, MAX_U32),
            rss=burden.rss,
            listen_drops=min(host.listen_drops, MAX_U32),
            syn_retrans=min(host.syn_retrans, MAX_U32),
            cpu=share,
            notes=32 * (self.throttle.step > 0),
        )
        if last:
            return
        due = new[0] + new[1]
        pressure = Pressure(
            own / self.settings.cpu,
            burden.rss / self.settings.memory,
            new[1] / due / 0.02 if due >= MIN_SAMPLE else 0.0,
            new[2] / due / 0.02 if due >= MIN_SAMPLE else 0.0,
        )
        before = self.throttle.pace
        if self.throttle.update(pressure):
            self._slow(before, pressure)
        worst, what = max((pressure.memory, "memory"), (pressure.cpu if self.throttle.slowest else 0.0, "cpu"))
        if worst <= 1:
            self._over = 0.0
        elif pressure.memory > 1.5 or (self._over and now() - self._over >= PATIENCE):
            self.status = LIMIT
            self._event("ended", "limit", f"{what}: {worst:.2f} times its limit")
        else:
            self._over = self._over or now()

    def _slow(self, before: int, pressure: Pressure) -> None:
        pace = self.throttle.pace
        if self._prober is not None:
            self._prober.slow = pace
        if self._http is not None:
            self._http.slow = float(pace)
        worst, what = pressure.worst()
        if pace == 1:
            self._event("resumed", "local_pressure", "planned intervals again")
        else:
            text = f"planned intervals times {pace}"
            cause = f": {what} at {worst:.0%} of its limit" if pace > before else ""
            self._event("slowed", "local_pressure", text + cause)

    def _totals(self) -> tuple[int, int, int]:
        """Probes, probes skipped because they were late, probes that this host could not send."""
        counts = self._prober.counts if self._prober is not None else {}
        probes, skipped = (self._http.probes, self._http.skipped) if self._http is not None else (0, 0)
        return counts.get("probes", 0) + probes, counts.get("skipped", 0) + skipped, counts.get("local", 0)

    # -- records

    def _event(self, event: str, reason: str, detail: str, **more: Any) -> None:
        names = self.schema["event"].names
        reasons = self.schema["reason"].names
        self._row(
            KIND_EVENT,
            event=next(n for n, word in names.items() if word == event),
            detail=detail,
            reason=next((n for n, word in reasons.items() if word == reason), 0),
            **more,
        )
        self.events[event] = self.events.get(event, 0) + 1
        self.report(f"{event}{f' ({reason})' if reason else ''}{f': {detail}' if detail else ''}")

    def _row(self, kind: int, **values: Any) -> None:
        from confluo_tools.formats.block_builder import block_of_rows

        pod, podset, dc = self.place
        one = {
            "ts": time.time_ns(),
            "kind": kind,
            "src": self.settings.name,
            "src_pod": pod,
            "src_podset": podset,
            "src_dc": dc,
            "list": self.version,
            "peers": self.peers,
            **values,
        }
        self._put(block_of_rows(self.schema, [one]))

    def _put(self, block: Block) -> None:
        """Write records to the log and the sender.  On a full disk the log loses them; probing goes on."""
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
            self.report(str(e))
            return
        if self.discarded > self._missed:
            missed, self._missed = self.discarded - self._missed, self.discarded
            self._event("resumed", "disk", f"{missed} records were discarded")

    def counts(self) -> str:
        """Counts so far, on one line."""
        good, dropped = self.tally.count(1), sum(self.tally.dropped.values())
        figures = [
            f"{self.tally.probes} probes",
            f"{good} ok",
            f"{dropped} of them with a drop",
            f"{self.tally.probes - good - self.tally.local} failed",
            f"{self.peers} peers",
        ]
        figures += [f"{n} fetches: {kind}" for kind, n in sorted(self.fetches.items())]
        if self.tally.local:
            figures.append(f"{self.tally.local} not sent by this host")
        if self.discarded:
            figures.append(f"{self.discarded} records discarded")
        if self.sender is not None:
            figures += [f"{self.sender.sent} sent", f"{self.sender.discarded} not sent to the controller"]
        return ", ".join(figures)


def sysctls() -> str:
    """The sysctls for SYN retries, which connect times in the records depend on."""
    found = ""
    for name in ("tcp_syn_linear_timeouts", "tcp_syn_retries"):
        try:
            with open(f"/proc/sys/net/ipv4/{name}", encoding="ascii") as f:
                found += f", {name} {int(f.read())}"
        except (OSError, ValueError):
            continue
    return found
