"""Probes of all kinds to a few targets: names are looked up, probes made, and drops held against the targets' hosts.

    with Probing(builtin("probe"), Plan(wanted=[parse_target("web1:8080", "tcp")], times=10)) as probing:
        for block in probing.blocks(): ...

Datagrams and TCP go through core/pinger, HTTP through `webprobe`.  A probe that was sent again waits until its
target's responder has said whether its host had dropped it (note ``overflow``).
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

from confluo_tools.core.block import Staging
from confluo_tools.core.pinger import KINDS, MAX_RATE, MAX_TARGET_RATE, MIN_INTERVAL, Pinger
from confluo_tools.errors import ConfluoError, UsageError
from confluo_tools.sources.targets import AT_ONCE, PORT, Lookups, Wanted, ask_counters, is_address, is_loopback

if TYPE_CHECKING:
    from confluo_tools.core.block import Block
    from confluo_tools.schema import Schema
    from confluo_tools.sources.webprobe import WebProber

LAB, OVERFLOW = 1, 4  # notes
OK, TIMEOUT = 1, 2
NAMES = 5.0  # s that names may take
COUNTERS = 4.0  # s that a responder may take to tell its counters
ROWS = 1024
HELD = 64  # blocks that may wait for counters: the question itself may be dropped, and be sent again after a second
STEP = 50_000_000  # ns between two looks at what else there is
PAYLOADS = {"echo": 1000}
LONGEST = 86_400_000_000_000  # ns between two probes
BY_HAND = 1_000_000_000  # ns between two probes of a target, at least, where somebody sits and watches, as with ping


class Plan(NamedTuple):
    """Times in ns.  ``times`` 0: no end.  ``interval``, ``payload`` None: the usual.  ``counters`` None: of responders'
    own port.  ``family``: 4, 6 or 0.
    """

    wanted: list[Wanted]
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
        """Whether there are no limits: somebody said so, or all targets are this host."""
        return self.lab or all(is_loopback(w) for w in self.wanted)

    @property
    def every(self) -> int:
        """The interval."""
        return BY_HAND if self.interval is None else self.interval


class _Site:
    """Counters of one target's host."""

    def __init__(self, address: str, port: int, overflows: int) -> None:
        self.address, self.port, self.overflows = address, port, overflows
        self.blame = 0  # overflows that no probe has been told of
        self.asked = False


class _Web:
    """Probes of one URL."""

    def __init__(self, wanted: Wanted, target: Any, left: int, due: float) -> None:
        self.wanted, self.target, self.left, self.due = wanted, target, left, due


class Probing:
    """A context.  ``lookup``: as socket.getaddrinfo.  Raises UsageError for what the limits refuse."""

    def __init__(
        self, schema: Schema, plan: Plan, *, inflight: int = 4096, seed: int | None = None,
        lookup: Callable[..., Any] = socket.getaddrinfo,
    ) -> None:  # fmt: skip
        self.schema, self.plan = schema, plan
        lifted = plan.lifted
        if plan.every < BY_HAND and not lifted:
            raise UsageError(f"a target is probed every {BY_HAND // 10**9} s at most", where="--interval",
                             hint="--lab lifts that, where nobody minds")  # fmt: skip
        self._rate = 1e9 / plan.every if plan.every and not lifted else 0.0
        if self._rate * len(plan.wanted) > MAX_RATE:
            raise UsageError(f"more than {MAX_RATE} probes a second", hint="--interval makes them fewer")
        self._rates: dict[bytes, float] = {}  # a second, by address
        if plan.every > LONGEST:
            raise UsageError(f"{plan.every / 1e9:g} s is too long", where="--interval", hint="a day is the most")
        source = (socket.inet_pton(socket.AF_INET6 if ":" in plan.source else socket.AF_INET, plan.source)
                  if plan.source and is_address(plan.source) else None)  # fmt: skip
        if plan.source and source is None:
            raise UsageError(f"'{plan.source[:60]}' is not an address", where="--source")
        ours = 0 if source is None else 4 if len(source) == 4 else 6
        for wanted in plan.wanted:
            if ours and wanted.address and ours != (6 if ":" in wanted.address else 4):
                raise UsageError(f"an address of IPv{ours} cannot probe {wanted.text}", where="--source")
        if ours and plan.family and ours != plan.family:
            raise UsageError(f"an address of IPv{ours} and -{plan.family} exclude each other", where="--source")
        self.pinger = Pinger(
            schema.layout, seed=int.from_bytes(os.urandom(8)) if seed is None else seed, inflight=inflight,
            lab=lifted or plan.every < MIN_INTERVAL, source=source, jitter=0.0 if lifted else 0.03,
        )  # fmt: skip
        self.pinger.token = plan.token
        self._lookup, self._family = lookup, {4: socket.AF_INET, 6: socket.AF_INET6}.get(plan.family or ours, 0)
        self._lookups = Lookups(family=self._family, source=plan.source, wake=self.pinger.stop, lookup=lookup)
        self._sites: dict[tuple[bytes, int], _Site] = {}
        self._told: queue.SimpleQueue[tuple[tuple[bytes, int], int]] = queue.SimpleQueue()
        self._asking = 0  # responders for their counters
        self._held: deque[tuple[Staging, float]] = deque()
        self._spare: list[Staging] = []
        self._web: WebProber | None = None
        self._urls: list[_Web] = []
        self._lost: list[tuple[str, str]] = []
        self._same: list[tuple[str, str]] = []
        self._known: dict[tuple[bytes, int, str, int], str] = {}  # what is probed: the target as it was written
        self.urls: dict[tuple[int, int], str] = {}  # of records of the last block: when, from which port: which URL
        self._over = False
        for wanted in plan.wanted:
            self._begin(wanted)

    def __enter__(self) -> Probing:
        return self

    def __exit__(self, *exc: object) -> None:
        if self._web is not None:
            self._web.close()

    def stop(self) -> None:
        """End as soon as possible.  May be called from a signal handler."""
        self._over = True
        self.pinger.stop()

    @property
    def under_way(self) -> int:
        """Probes that are out; at the end, those that nobody waited for."""
        return self.pinger.inflight + (self._web.in_flight if self._web is not None else 0)

    def lost(self) -> list[tuple[str, str]]:
        """Targets that could not be probed, and why; each is told once."""
        out, self._lost = self._lost, []
        return out

    def same(self) -> list[tuple[str, str]]:
        """Targets that have turned out to be others', and which; each is told once."""
        out, self._same = self._same, []
        return out

    # -- targets

    def _begin(self, wanted: Wanted) -> None:
        if wanted.url:
            from confluo_tools.sources.webprobe import Limits, WebProber, parse_url

            if self._web is None:
                self._web = WebProber(verify=self.plan.verify, lookup=self._of_family)
                if self.plan.timeout:
                    phase = self.plan.timeout / 1e9
                    self._limits: Any = Limits(dns=phase, connect=phase, tls=phase, first_byte=phase)
                else:
                    self._limits = None
            target = parse_url(wanted.url)._replace(source=self.plan.source, dscp=self.plan.dscp)
            self._urls.append(_Web(wanted, target, self.plan.times or -1, time.monotonic()))
            return
        asks = self.plan.counters if self.plan.counters is not None else wanted.port == PORT
        asks = asks and wanted.kind in ("tcp", "echo")
        if wanted.address and not asks and "%" not in wanted.address:
            six = ":" in wanted.address
            self._add(wanted, socket.inet_pton(socket.AF_INET6 if six else socket.AF_INET, wanted.address), 0)
        else:
            self._lookups.ask(wanted, counters=asks)

    def _of_family(self, host: str, port: int, family: int, kind: int) -> Any:
        return self._lookup(host, port, self._family or family, kind)

    def _add(self, wanted: Wanted, address: bytes, scope: int) -> None:
        plan = self.plan
        payload = plan.payload if plan.payload is not None else PAYLOADS.get(wanted.kind, 0)
        name = wanted.host if not is_address(wanted.host) else ""
        known = self._known.setdefault((address, wanted.port, wanted.kind, scope), wanted.text)
        if known != wanted.text:
            self._same.append((wanted.text, f"is the same place as {known}: probed once"))
            return
        rate = self._rates[address] = self._rates.get(address, 0.0) + self._rate
        if rate > MAX_TARGET_RATE + 1e-9:
            words = f"more than {MAX_TARGET_RATE} probes a second to one address; a longer --interval makes them fewer"
            self._lost.append((wanted.text, words))
            return
        try:
            self.pinger.add(
                address, wanted.port, KINDS[wanted.kind], interval=plan.every, timeout=plan.timeout, payload=payload,
                dscp=plan.dscp, count=plan.times, after=0, name=name.encode()[:32].decode(errors="ignore"), scope=scope,
            )  # fmt: skip
        except ValueError as e:
            raise UsageError(str(e), where=str(wanted)) from None
        except PermissionError:
            hint = "allow it with sysctl net.ipv4.ping_group_range='0 2147483647'"
            raise ConfluoError("this host does not let you send echo requests", where=str(wanted), hint=hint) from None
        except OSError as e:
            raise ConfluoError(f"cannot be probed: {e.strerror}", where=str(wanted)) from None

    def _look(self, seconds: float) -> None:
        """What the threads have found out meanwhile."""
        for found in self._lookups.found(seconds):
            if not found.address:
                self._lost.append((found.wanted.text, f"cannot be resolved: {found.words}"))
                continue
            if found.counters is not None:
                text = socket.inet_ntop(socket.AF_INET if len(found.address) == 4 else socket.AF_INET6, found.address)
                text += f"%{found.scope}" if found.scope else ""
                self._sites[found.address, found.wanted.port] = _Site(
                    text, found.wanted.port, found.counters["overflows"]
                )
            self._add(found.wanted, found.address, found.scope)
        if self._lookups.waiting:
            for wanted in self._lookups.give_up(NAMES + (COUNTERS if self.plan.counters is not False else 0.0)):
                self._lost.append((wanted.text, f"nobody has resolved it for {NAMES:g} s"))

    # -- the loop

    def blocks(self, *, each: bool = False) -> Iterator[Block | None]:
        """Records as they come, ``each`` at once.  Between them None, so that the caller can look at `lost`."""
        plan, pinger = self.plan, self.pinger
        begun = time.monotonic()
        end = begun + plan.seconds if plan.seconds else float("inf")
        yield None
        while not self._over and time.monotonic() < end:
            self._look(0.0)
            busy = self._web is not None or bool(self._lookups.waiting) or bool(self._held)
            rows = self._staging()
            if pinger.active:
                until = time.monotonic_ns() + (STEP if busy else 20 * STEP)
                pinger.run(rows, min(until, int(min(end, 1e9) * 1e9)), 1 if each else 0)
            elif self._lookups.waiting or self._held:
                self._look(0.01)
            elif self._web is None or not (self._urls or self._web.in_flight):
                break
            if rows.rows:
                self._hold(rows)
            else:
                self._spare.append(rows)
            yield from self._release()
            if self._web is not None:
                block = self._poll(0.0 if pinger.active or self._held else 0.1)
                if block is not None:
                    yield block
            yield None
        deadline = time.monotonic() + (COUNTERS if not self._over else 0.0)
        while self._held:
            if time.monotonic() > deadline:
                for site in self._sites.values():
                    site.asked = False
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
        from confluo_tools.formats.build import block_of_rows

        web = self._web
        assert web is not None
        now = time.monotonic()
        for url in self._urls:
            if url.due <= now and web.start(url.target, url, self._limits):
                url.left -= 1
                url.due = max(now, url.due) + self.plan.every / 1e9
        self._urls = [url for url in self._urls if url.left]
        if self._urls:
            seconds = min(seconds, max(0.0, min(url.due for url in self._urls) - now))
        results = web.poll(seconds)
        done = [result.row() for result in results]
        self.urls = {(r.begun, r.sport): r.tag.wanted.text for r in results}
        if self.pinger.lab:
            for row in done:
                row["notes"] = row.get("notes", 0) | LAB
        return block_of_rows(self.schema, done) if done else None

    # -- whose fault it was

    def _hold(self, rows: Staging) -> None:
        """Ask the hosts of those that were dropped, and wait for what they say."""
        if self._sites:
            for i in range(rows.rows):
                site = self._sites.get(self._key(rows, i))
                if site is not None and not site.asked and self._asking < AT_ONCE and self._dropped(rows, i):
                    site.asked = True  # else the next drop asks
                    self._asking += 1
                    threading.Thread(target=self._ask, args=(self._key(rows, i), site), daemon=True).start()
        self._held.append((rows, time.monotonic() + COUNTERS))

    def _release(self) -> Iterator[Block]:
        """The blocks that wait for nobody any more, in their order."""
        while not self._told.empty():
            key, overflows = self._told.get()
            self._asking -= 1
            site = self._sites[key]
            site.asked = False
            if overflows >= 0:
                site.blame += max(0, overflows - site.overflows)
                site.overflows = overflows
        while self._held:
            rows, deadline = self._held[0]
            late = time.monotonic() > deadline or len(self._held) > HELD
            sites = {self._key(rows, i): None for i in range(rows.rows)} if self._sites else {}
            if not late and any(key in self._sites and self._sites[key].asked for key in sites):
                return
            self._held.popleft()
            if self._sites:
                self._blame(rows)
            yield rows
            self._spare.append(rows)

    def _ask(self, key: tuple[bytes, int], site: _Site) -> None:
        told = ask_counters(site.address, site.port, COUNTERS - 0.5, self.plan.source)
        self._told.put((key, told["overflows"] if told is not None else -1))
        self.pinger.stop()

    def _key(self, rows: Staging, i: int) -> tuple[bytes, int]:
        at = self.schema.index
        port = rows.get(at("dst_port"), i)
        if rows.get(at("ip_version"), i) == 4:
            return rows.get(at("dst_ip"), i).to_bytes(4, "big"), port
        return rows.get(at("dst_ip") + 1, i), port

    def _dropped(self, rows: Staging, i: int) -> int:
        """SYNs of it that may have been dropped."""
        retries = rows.get(self.schema.index("retries"), i)
        outcome = rows.get(self.schema.index("outcome"), i)
        return int(retries) if outcome == OK else int(retries) + 1 if outcome == TIMEOUT else 0

    def _blame(self, rows: Staging) -> None:
        notes = rows.writable(self.schema.index("notes")).cast("H")
        for i in range(rows.rows):
            site = self._sites.get(self._key(rows, i))
            if site is not None and site.blame > 0:
                dropped = self._dropped(rows, i)
                if dropped:
                    notes[i] |= OVERFLOW
                    site.blame -= min(site.blame, dropped)
