"""Probe run of confluo-pingmesh probe: look up targets, probe them, attribute drops to overflows of their hosts.

    with ProbeRun(builtin("probe"), ProbeOptions(wanted=[parse_target("web1:8080", "tcp")], times=10)) as probing:
        for block in probing.blocks(): ...

TCP, UDP and ICMP probes use the compiled `EchoProber`, HTTP probes `http_prober`.  The record of a probe with retries
waits until the target's responder has reported its overflows (note ``overflow``).
"""

from __future__ import annotations

import os
import queue
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from confluo_tools.console import ThreadErrors
from confluo_tools.core.block.block import Staging
from confluo_tools.core.pingmesh.echo_prober import KINDS, MAX_RATE, MAX_TARGET_RATE, MIN_INTERVAL, EchoProber
from confluo_tools.errors import ConfluoError, UsageError
from confluo_tools.pingmesh.probe.targets import (
    MAX_LOOKUPS,
    PORT,
    ProbeTarget,
    TargetLookups,
    ask_counters,
    is_address,
    is_loopback,
)

if TYPE_CHECKING:
    from confluo_tools.core.block.block import Block
    from confluo_tools.pingmesh.probe.http_prober import HttpProber
    from confluo_tools.schema import Schema

LAB, OVERFLOW = 1, 4  # notes
OK, TIMEOUT = 1, 2
NAMES = 5.0  # s for a name lookup
COUNTERS = 4.0  # s for the counters of a responder
ROWS = 1024
MAX_HELD = 64  # blocks waiting for counters: their request may itself be dropped and retried after 1 s
STEP = 50_000_000  # ns between two checks of lookups and HTTP probes
PAYLOADS = {"echo": 1000}
MAX_INTERVAL = 86_400_000_000_000  # ns between two probes
MIN_INTERVAL_BY_HAND = 1_000_000_000  # min ns between two probes of a target by hand, as with ping


class ProbeOptions(NamedTuple):
    """Options of a probe run.  Times in ns.  ``times`` 0: no end.  ``interval``, ``payload`` None: the default.
    ``counters`` None: only of targets on the port of responders.  ``family``: 4, 6 or 0.
    """

    wanted: list[ProbeTarget]
    times: int = 0
    interval: int | None = None
    timeout: int = 0
    payload: int | None = None
    dscp: int = 0
    source: str = ""
    token: int = 0
    family: int = 0
    counters: bool | None = None
    verify: bool = True
    lab: bool = False
    seconds: float = 0.0

    @property
    def lifted(self) -> bool:
        """Whether the limits are lifted: by --lab, or because all targets are this host."""
        return self.lab or all(is_loopback(w) for w in self.wanted)

    @property
    def every(self) -> int:
        """The interval, ns."""
        return MIN_INTERVAL_BY_HAND if self.interval is None else self.interval


class _TargetHost:
    """Overflow counter of a target's host."""

    def __init__(self, address: str, port: int, overflows: int) -> None:
        self.address, self.port, self.overflows = address, port, overflows
        self.unmatched = 0  # overflows not yet attributed to a probe
        self.requested = False


class _UrlSchedule:
    """Schedule of the probes of one URL."""

    def __init__(self, wanted: ProbeTarget, target: Any, left: int, due: float) -> None:
        self.wanted, self.target, self.left, self.due = wanted, target, left, due


class ProbeRun:
    """Context of a probe run.  ``lookup``: as socket.getaddrinfo.  Raises UsageError if a limit is exceeded."""

    def __init__(
        self,
        schema: Schema,
        plan: ProbeOptions,
        *,
        inflight: int = 4096,
        seed: int | None = None,
        lookup: Callable[..., Any] = socket.getaddrinfo,
    ) -> None:
        self.schema, self.plan = schema, plan
        lifted = plan.lifted
        if plan.every < MIN_INTERVAL_BY_HAND and not lifted:
            raise UsageError(
                f"the minimum is {MIN_INTERVAL_BY_HAND // 10**9} s", where="--interval", hint="in a lab, give --lab"
            )
        self._rate = 1e9 / plan.every if plan.every and not lifted else 0.0
        if self._rate * len(plan.wanted) > MAX_RATE:
            raise UsageError(f"more than {MAX_RATE} probes per second", hint="give a longer --interval")
        self._rates: dict[bytes, float] = {}  # probes per second by address
        if plan.every > MAX_INTERVAL:
            raise UsageError(f"{plan.every / 1e9:g} s is too long", where="--interval", hint="the maximum is a day")
        source = (
            socket.inet_pton(socket.AF_INET6 if ":" in plan.source else socket.AF_INET, plan.source)
            if plan.source and is_address(plan.source)
            else None
        )
        if plan.source and source is None:
            raise UsageError(f"'{plan.source[:60]}' is not an address", where="--source")
        ours = 0 if source is None else 4 if len(source) == 4 else 6
        for wanted in plan.wanted:
            if ours and wanted.address and ours != (6 if ":" in wanted.address else 4):
                raise UsageError(f"an IPv{ours} address cannot probe {wanted.text}", where="--source")
        if ours and plan.family and ours != plan.family:
            raise UsageError(f"an IPv{ours} address and -{plan.family} exclude each other", where="--source")
        self.prober = EchoProber(
            schema.layout,
            seed=int.from_bytes(os.urandom(8)) if seed is None else seed,
            inflight=inflight,
            lab=lifted or plan.every < MIN_INTERVAL,
            source=source,
            jitter=0.0 if lifted else 0.03,
        )
        self.prober.token = plan.token
        self._lookup, self._family = lookup, {4: socket.AF_INET, 6: socket.AF_INET6}.get(plan.family or ours, 0)
        self._lookups = TargetLookups(family=self._family, source=plan.source, wake=self.prober.stop, lookup=lookup)
        self._hosts: dict[tuple[bytes, int], _TargetHost] = {}
        self._errors = ThreadErrors("the counters of a target were not read")
        self._counted: queue.SimpleQueue[tuple[tuple[bytes, int], int]] = queue.SimpleQueue()
        self._requests = 0  # requests for counters in progress
        self._held: deque[tuple[Staging, float]] = deque()
        self._spare: list[Staging] = []
        self._http: HttpProber | None = None
        self._urls: list[_UrlSchedule] = []
        self._lost: list[tuple[str, str]] = []
        self._same: list[tuple[str, str]] = []
        self._known: dict[tuple[bytes, int, str, int], str] = {}  # probed peers: the target as given
        self.urls: dict[tuple[int, int], str] = {}  # of the last block: (time, source port) of a record: URL
        self._over = False
        for wanted in plan.wanted:
            self._begin(wanted)

    def __enter__(self) -> ProbeRun:
        return self

    def __exit__(self, *exc: object) -> None:
        if self._http is not None:
            self._http.close()

    def stop(self) -> None:
        """End as soon as possible.  May be called from a signal handler."""
        self._over = True
        self.prober.stop()

    @property
    def under_way(self) -> int:
        """Number of probes in flight; at the end, probes without a result."""
        return self.prober.inflight + (self._http.in_flight if self._http is not None else 0)

    def lost(self) -> list[tuple[str, str]]:
        """New targets that cannot be probed, each with the reason."""
        out, self._lost = self._lost, []
        return out

    def same(self) -> list[tuple[str, str]]:
        """New targets that are duplicates of others, each with the reason."""
        out, self._same = self._same, []
        return out

    # -- targets

    def _begin(self, wanted: ProbeTarget) -> None:
        if wanted.url:
            from confluo_tools.pingmesh.probe.http_prober import HttpProber, PhaseTimeouts, parse_url

            if self._http is None:
                self._http = HttpProber(verify=self.plan.verify, lookup=self._of_family)
                if self.plan.timeout:
                    phase = self.plan.timeout / 1e9
                    self._limits: Any = PhaseTimeouts(dns=phase, connect=phase, tls=phase, first_byte=phase)
                else:
                    self._limits = None
            target = parse_url(wanted.url)._replace(source=self.plan.source, dscp=self.plan.dscp)
            self._urls.append(_UrlSchedule(wanted, target, self.plan.times or -1, time.monotonic()))
            return
        asks = self.plan.counters if self.plan.counters is not None else wanted.port == PORT
        asks = asks and wanted.kind in ("tcp", "echo")
        if wanted.address and not asks and "%" not in wanted.address:
            six = ":" in wanted.address
            self._add(wanted, socket.inet_pton(socket.AF_INET6 if six else socket.AF_INET, wanted.address), 0)
        else:
            self._lookups.start(wanted, counters=asks)

    def _of_family(self, host: str, port: int, family: int, kind: int) -> Any:
        return self._lookup(host, port, self._family or family, kind)

    def _add(self, wanted: ProbeTarget, address: bytes, scope: int) -> None:
        plan = self.plan
        payload = plan.payload if plan.payload is not None else PAYLOADS.get(wanted.kind, 0)
        name = wanted.host if not is_address(wanted.host) else ""
        known = self._known.setdefault((address, wanted.port, wanted.kind, scope), wanted.text)
        if known != wanted.text:
            self._same.append((wanted.text, f"is the same target as {known}: probed once"))
            return
        rate = self._rates[address] = self._rates.get(address, 0.0) + self._rate
        if rate > MAX_TARGET_RATE + 1e-9:
            problem = f"more than {MAX_TARGET_RATE} probes per second to one address; give a longer --interval"
            self._lost.append((wanted.text, problem))
            return
        try:
            self.prober.add(
                address,
                wanted.port,
                KINDS[wanted.kind],
                interval=plan.every,
                timeout=plan.timeout,
                payload=payload,
                dscp=plan.dscp,
                count=plan.times,
                after=0,
                name=name.encode()[:32].decode(errors="ignore"),
                scope=scope,
            )
        except ValueError as e:
            raise UsageError(str(e), where=str(wanted)) from None
        except PermissionError:
            hint = "allow them with sysctl net.ipv4.ping_group_range='0 2147483647'"
            raise ConfluoError("no permission to send ICMP echo requests", where=str(wanted), hint=hint) from None
        except OSError as e:
            raise ConfluoError(f"cannot probe: {e.strerror}", where=str(wanted)) from None

    def _take_lookups(self, seconds: float) -> None:
        """Take the results of lookups."""
        for found in self._lookups.found(seconds):
            if not found.address:
                self._lost.append((found.wanted.text, f"cannot resolve: {found.problem}"))
                continue
            if found.counters is not None:
                text = socket.inet_ntop(socket.AF_INET if len(found.address) == 4 else socket.AF_INET6, found.address)
                text += f"%{found.scope}" if found.scope else ""
                self._hosts[found.address, found.wanted.port] = _TargetHost(
                    text, found.wanted.port, found.counters["overflows"]
                )
            self._add(found.wanted, found.address, found.scope)
        if self._lookups.waiting:
            for wanted in self._lookups.expire(NAMES + (COUNTERS if self.plan.counters is not False else 0.0)):
                self._lost.append((wanted.text, f"cannot resolve: no answer within {NAMES:g} s"))

    # -- the loop

    def blocks(self, *, each: bool = False) -> Iterator[Block | None]:
        """Blocks of records, ``each``: as soon as possible.  Yields None in between, for the caller to check `lost`."""
        plan, prober = self.plan, self.prober
        begun = time.monotonic()
        end = begun + plan.seconds if plan.seconds else float("inf")
        yield None
        while not self._over and time.monotonic() < end:
            self._take_lookups(0.0)
            busy = self._http is not None or bool(self._lookups.waiting) or bool(self._held)
            rows = self._staging()
            if prober.active:
                until = time.monotonic_ns() + (STEP if busy else 20 * STEP)
                prober.run(rows, min(until, int(min(end, 1e9) * 1e9)), 1 if each else 0)
            elif self._lookups.waiting or self._held:
                self._take_lookups(0.01)
            elif self._http is None or not (self._urls or self._http.in_flight):
                break
            if rows.rows:
                self._hold(rows)
            else:
                self._spare.append(rows)
            yield from self._release()
            if self._http is not None:
                block = self._poll(0.0 if prober.active or self._held else 0.1)
                if block is not None:
                    yield block
            yield None
        deadline = time.monotonic() + (COUNTERS if not self._over else 0.0)
        while self._held:
            if time.monotonic() > deadline:
                for host in self._hosts.values():
                    host.requested = False
            else:
                time.sleep(0.005)
            yield from self._release()

    def _staging(self) -> Staging:
        if self._spare:
            rows = self._spare.pop()
            rows.publish(0)
            return rows
        return Staging(self.schema.layout, ROWS)

    def _poll(self, seconds: float) -> Block | None:
        from confluo_tools.formats.block_builder import block_of_rows

        prober = self._http
        assert prober is not None
        now = time.monotonic()
        for url in self._urls:
            if url.due <= now and prober.start(url.target, url, self._limits):
                url.left -= 1
                url.due = max(now, url.due) + self.plan.every / 1e9
        self._urls = [url for url in self._urls if url.left]
        if self._urls:
            seconds = min(seconds, max(0.0, min(url.due for url in self._urls) - now))
        results = prober.poll(seconds)
        done = [result.row() for result in results]
        self.urls = {(r.begun, r.sport): r.tag.wanted.text for r in results}
        if self.prober.lab:
            for row in done:
                row["notes"] = row.get("notes", 0) | LAB
        return block_of_rows(self.schema, done) if done else None

    # -- attribution of drops

    def _hold(self, rows: Staging) -> None:
        """Hold a block until the hosts of its dropped probes have reported their overflows."""
        if self._hosts:
            for i in range(rows.rows):
                host = self._hosts.get(self._key(rows, i))
                if host is not None and not host.requested and self._requests < MAX_LOOKUPS and self._dropped(rows, i):
                    host.requested = True  # otherwise the next drop requests it
                    self._requests += 1
                    request = self._key(rows, i), host
                    try:
                        threading.Thread(target=self._request_counters, args=request, daemon=True).start()
                    except RuntimeError:  # out of memory or threads
                        self._counted.put((request[0], -1))
        self._held.append((rows, time.monotonic() + COUNTERS))

    def _release(self) -> Iterator[Block]:
        """The blocks that wait for no counters any more, in order."""
        while not self._counted.empty():
            key, overflows = self._counted.get()
            self._requests -= 1
            host = self._hosts[key]
            host.requested = False
            if overflows >= 0:
                host.unmatched += max(0, overflows - host.overflows)
                host.overflows = overflows
        while self._held:
            rows, deadline = self._held[0]
            late = time.monotonic() > deadline or len(self._held) > MAX_HELD
            hosts = {self._key(rows, i): None for i in range(rows.rows)} if self._hosts else {}
            if not late and any(key in self._hosts and self._hosts[key].requested for key in hosts):
                return
            self._held.popleft()
            if self._hosts:
                self._mark_overflows(rows)
            yield rows
            self._spare.append(rows)

    def _request_counters(self, key: tuple[bytes, int], host: _TargetHost) -> None:
        counts = None
        try:
            counts = ask_counters(host.address, host.port, COUNTERS - 0.5, self.plan.source)
        except Exception as e:  # every request gets an answer
            self._errors.report(e)
        self._counted.put((key, counts["overflows"] if counts is not None else -1))
        self.prober.stop()

    def _key(self, rows: Staging, i: int) -> tuple[bytes, int]:
        at = self.schema.index
        port = rows.get(at("dst_port"), i)
        if rows.get(at("ip_version"), i) == 4:
            return rows.get(at("dst_ip"), i).to_bytes(4, "big"), port
        return rows.get(at("dst_ip") + 1, i), port

    def _dropped(self, rows: Staging, i: int) -> int:
        """Number of its SYNs that may have been dropped."""
        retries = rows.get(self.schema.index("retries"), i)
        outcome = rows.get(self.schema.index("outcome"), i)
        return int(retries) if outcome == OK else int(retries) + 1 if outcome == TIMEOUT else 0

    def _mark_overflows(self, rows: Staging) -> None:
        notes = rows.writable(self.schema.index("notes")).cast("H")
        for i in range(rows.rows):
            host = self._hosts.get(self._key(rows, i))
            if host is not None and host.unmatched > 0:
                dropped = self._dropped(rows, i)
                if dropped:
                    notes[i] |= OVERFLOW
                    host.unmatched -= min(host.unmatched, dropped)
