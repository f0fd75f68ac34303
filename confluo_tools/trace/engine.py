"""The main loop of confluo-trace: read records, pass flows to the prober at the rate of the bucket, write paths."""

from __future__ import annotations

import os
import queue
import time
from collections import Counter, deque
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol

from confluo_tools.core.block.block import Staging
from confluo_tools.core.trace.flow_table import NOTES, FlowTable, NumberMap
from confluo_tools.errors import SchemaError

if TYPE_CHECKING:
    from confluo_tools.core.block.block import Block, Layout
    from confluo_tools.core.trace.traceroute_prober import TracerouteProber
    from confluo_tools.schema import Schema
    from confluo_tools.trace.token_bucket import TokenBucket
    from confluo_tools.trace.traceroute_sockets import Allowed

SECOND = 1_000_000_000
LATE = SECOND // 4  # how late records of a current epoch may be
QUIET = 5 * SECOND  # least time without records after which an epoch of another time ends
GRACE = 2 * SECOND  # how long after that probes to silent switches may be repeated
ROWS = 4096  # per block that is written
PROBES = 6  # other source ports that are traced to a destination in an epoch, when a path to it ends early
POPS = 4096  # flows looked at in one turn
MAX_LOOKUPS = 256  # flows that are looked up ahead of their turn
NEVER = (1 << 63) - 1
PARTIAL, LOOP, UNMAPPED, CAPPED = (NOTES[n] for n in ("partial", "loop", "unmapped", "capped"))

Flow = tuple[int, int, bytes, bytes, int, int, int]  # what `FlowTable.pop` gives


class Lookup(Protocol):
    """Lookup of the real destination of a flow: `trace.vip_lookup`."""

    problem: str

    @property
    def waiting(self) -> int: ...
    def ask(self, what: object, src: bytes, sport: int, dst: bytes, dport: int) -> None: ...
    def answers(self) -> list[tuple[Any, Any]]: ...


class Epoch:
    """One epoch of the records' time.  ``live``: it is now, or was a moment ago.

    ``late``: it was over before its first record was read.
    """

    def __init__(self, book: FlowTable, start: int, length: int, now: int) -> None:
        self.book, self.start, self.end = book, start, start + length
        wall = time.time_ns()
        self.live = abs(wall - start) < 2 * length
        self.late = self.live and self.end <= wall
        # When it ends, by the monotonic clock, unless a record of another epoch ends it earlier.
        self.due = now + (max(LATE, self.end + LATE - wall) if self.live else max(length, QUIET))
        self.until = now + length  # as long its flows may be traced when the records are over early
        self.closing = self.over = False  # no more records come, no more flows are traced
        self.under_way = self.capped = 0  # flows that are looked up or traced; that were looked up in vain
        self.shown = False  # its records are written, but for flows that are under way
        self.silent: list[tuple[int, bytes, int]] = []  # number, destination, hops of paths that ended in silence
        self.probed: set[bytes] = set()  # destinations with paths that ended early


class TraceEngine:
    """Passes flows with losses to ``prober`` (set it, like `versions`, before `run`) and writes their paths.

    ``epoch`` in ns; ``max_flows``: flows that are kept per epoch; ``tors``: {host address: its ToR},
    ``tors_known``: paths contain ToRs by that number; ``since``: older records are ignored, ns.
    ``write`` gets blocks of ``schema``, ``say`` messages for the user.
    """

    prober: TracerouteProber

    def __init__(
        self,
        bucket: TokenBucket,
        allowed: Allowed,
        lookup: Lookup | None,
        schema: Schema,
        write: Callable[[Block], None],
        say: Callable[[str], None],
        *,
        epoch: int,
        healthy: bool,
        max_flows: int,
        tors: NumberMap,
        tors_known: bool,
        since: int,
    ) -> None:
        self._bucket, self._allowed, self._lookup = bucket, allowed, lookup
        self._write, self._say = write, say
        self._length, self._healthy, self._max_flows, self._since = epoch, healthy, max_flows, since
        self._tors, self._tors_known = tors, tors_known
        self._out = schema
        self._staging: Staging | None = None
        self._layout: Layout | None = None
        self._layout_of = ""
        self._now: Epoch | None = None
        self._before: FlowTable | None = None
        self._epochs: list[Epoch] = []  # the closing ones, oldest first, then the one of now
        self._ready: deque[tuple[Epoch, Flow, bytes, int]] = deque()  # looked up, to be started
        self._probes: deque[tuple[Epoch, int, int, Flow, bytes, int]] = deque()  # flow, source port; when nothing waits
        self._flying: dict[int, tuple[Epoch, Flow, bytes, int, bool]] = {}
        self._next_id = 0
        self._input: queue.Queue[Block | BaseException | None] = queue.Queue(2)
        self._held: tuple[Block, int] | None = None  # rows of a later epoch, until the one before is done
        self._ended = False
        self.wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.stopped = 0
        self.versions = {4, 6}
        self.written = self.traced = self.capped = self.records = self.skipped = self.overflow = 0
        self.before = self.late = 0
        self.notes: Counter[str] = Counter()
        self._note: tuple[float, Callable[[], object]] | None = None

    # -- from other threads

    def put(self, what: Block | BaseException | None) -> None:
        """The next block of records, an error that ends them, or their end."""
        while not self.stopped:
            try:
                self._input.put(what, timeout=0.2)
                os.eventfd_write(self.wake, 1)
                return
            except queue.Full:
                continue

    def stop(self, number: int = 0) -> None:
        """Finish soon, without tracing further flows."""
        self.stopped = number or -1
        os.eventfd_write(self.wake, 1)

    def note_every(self, seconds: float, call: Callable[[], object]) -> None:
        """Call ``call`` every ``seconds``."""
        self._note = seconds, call

    @property
    def rate(self) -> float:
        return self._bucket.rate

    def figures(self) -> dict[str, int]:
        """What happened so far."""
        now = self._epochs
        seen = self.prober.counts
        figures = {
            "records read": self.records + sum(e.book.records for e in now),
            "traced": self.traced,
            "capped": self.capped,
            "written": self.written,
            "probes": seen["probes"],
            "answers": seen["answers"],
        }
        more = {
            "before --since": self.before + sum(e.book.before_since for e in now),
            "read after their epoch": self.late + sum(e.book.records for e in now if e.late),
            "not of TCP flows": self.skipped + sum(e.book.skipped for e in now),
            "of flows beyond --flows": self.overflow + sum(e.book.overflow for e in now),
            "forged": seen["forged"],
            "answers to others": seen["stray"],
            "answered twice": seen["duplicates"],
            "malformed": seen["bad"],
            "not sent": seen["unsent"],
        }
        more |= {f"refused: {why}": n for why, n in self.notes.items() if why not in ("unmapped", "capped")}
        more["unmapped"] = self.notes["unmapped"]
        return figures | {what: n for what, n in more.items() if n}

    # -- the loop

    def run(self, duration: int = 0) -> None:
        """Run until the records end, ``duration`` ns (0: no limit) are over or `stop`, and all epochs are written.

        Raises what `put` was given.
        """
        end = time.monotonic_ns() + duration if duration else NEVER
        noted = 0.0
        while True:
            if time.monotonic_ns() >= end and not self.stopped:
                self.stop()
            if self._note is not None and time.monotonic() >= noted:
                noted = time.monotonic() + self._note[0]
                self._note[1]()
            self._read()
            now = time.monotonic_ns()
            if self._now is not None and (now >= self._now.due or self.stopped or (self._ended and not self._held)):
                self._close(now)
            self._turn(now)
            self._finish_epochs(time.monotonic_ns())
            if not self._epochs and (self.stopped or (self._ended and self._held is None)):
                return
            self.prober.run(self._pause(time.monotonic_ns()))
            with suppress(BlockingIOError):
                os.eventfd_read(self.wake)

    def _pause(self, now: int) -> int:
        """Longest sleep in ms when nothing arrives."""
        until = now + SECOND // 5
        if (self._waiting() and self.prober.room) or self.prober.holding:
            until = min(until, now + self._bucket.wait(now))
        if self._lookup is not None and self._lookup.waiting:
            until = min(until, now + 2_000_000)
        if self._now is not None:
            until = min(until, self._now.due)
        for epoch in self._epochs:
            if epoch.closing:
                until = min([until, *(at for at in (epoch.until, epoch.until + GRACE) if at > now)])
        if not self._input.empty() and not self._blocked():
            return 0
        return max(0, -(-(until - now) // 1_000_000))

    def _waiting(self) -> bool:
        return bool(self._ready or self._probes) or any(e.book.waiting and not e.over for e in self._epochs)

    # -- records

    def _blocked(self) -> bool:
        """Records of a later epoch wait until the one before is done, unless they are of now."""
        return self._held is not None and any(e.closing for e in self._epochs)

    def _read(self) -> None:
        for _ in range(64):
            if self._blocked() or self.stopped:
                return
            if self._held is not None:
                block, row = self._held
                self._held = None
            else:
                try:
                    got = self._input.get_nowait()
                except queue.Empty:
                    return
                if got is None:
                    self._ended = True
                    return
                if isinstance(got, BaseException):
                    self._ended = True
                    self.stop()
                    raise got
                block, row = self._fitting(got), 0
            self._feed(block, row)

    def schema_of(self, layout: Layout, name: str) -> None:
        """Set the layout of the records.  Raises SchemaError when they have no five-tuple."""
        try:
            FlowTable(layout, max_flows=1)
        except KeyError as e:
            what = f"has no field {e.args[0]}: its records are not of flows"
            raise SchemaError(what, where=name, hint="use records of kind retx, packet or path") from None
        except ValueError as e:
            hint = "confluo-convert --schema path converts text"
            raise SchemaError(f"the field {e} has another type here", where=name, hint=hint) from None
        self._layout, self._layout_of = layout, name

    def _fitting(self, block: Block) -> Block:
        assert self._layout is not None
        if block.layout is self._layout:
            return block
        try:
            return block.project(self._layout)
        except ValueError as e:
            raise SchemaError(str(e), where=self._layout_of) from None

    def _feed(self, block: Block, row: int) -> None:
        ts = block.layout.index("ts")
        while row < block.rows:
            now = time.monotonic_ns()
            if self._now is None:
                first = int(block.get(ts, row))
                if first < self._since or first == NEVER:
                    self.before += 1
                    row += 1
                    continue
                self._open(first // self._length * self._length, now)
            assert self._now is not None
            # What is late by an epoch at most is counted now; what is from elsewhere in time has an epoch of its own.
            begin, end = self._now.start - self._length, self._now.end
            row = self._now.book.take(block, row, begin=max(begin, -NEVER), until=min(end, NEVER), since=self._since)
            if not self._now.live:  # it has no end by our clock: it ends when no record has come for as long
                self._now.due = now + max(self._length, QUIET)
            if row < block.rows:
                live = self._now.live
                self._close(now)
                if not live:
                    self._held = block, row
                    return

    def _open(self, start: int, now: int) -> None:
        assert self._layout is not None
        book = FlowTable(
            self._layout,
            max_flows=self._max_flows,
            healthy=self._healthy,
            before=self._before,
            fresh=now - self._length,
        )
        self._now = Epoch(book, start, self._length, now)
        self._epochs.append(self._now)

    def _close(self, now: int) -> None:
        epoch = self._now
        if epoch is None:
            return
        epoch.closing = True
        if epoch.live and not self._ended:
            epoch.until = now  # the next one has begun: its flows come first
        self._before, self._now = epoch.book, None

    # -- probes

    def _turn(self, now: int) -> None:
        prober, bucket = self.prober, self._bucket
        if prober.holding:
            prober.again(bucket.take(now, prober.holding))
        if self._lookup is not None:
            for what, end in self._lookup.answers():
                self._looked_up(what, end)
            if self._lookup.problem:
                self._say(f"the lookup {self._lookup.problem}: flows that wait for it are not traced")
                self._lookup.problem = ""
        budget = POPS
        while not self.stopped and prober.room and bucket.wait(now) == 0 and budget:
            budget -= 1
            if self._ready:
                if not self._start(*self._ready.popleft(), now):
                    break
            elif not self._next() and not self._next_probe():
                break
            now = time.monotonic_ns()
        prober.run(0)
        for done in prober.finished():
            self._finished(*done)

    def _next(self) -> bool:
        """Prepare the next flow; whether there was one that we may look at now."""
        for epoch in self._epochs:
            if epoch.over:
                continue
            if self._lookup is not None and self._lookup.waiting >= MAX_LOOKUPS:
                return False
            flow = epoch.book.pop()
            if flow is None:
                continue
            _, _, src, dst, sport, dport, _ = flow
            epoch.under_way += 1
            if self._lookup is not None:
                self._lookup.ask((epoch, flow), src, sport, dst, dport)
                for what, end in self._lookup.answers():
                    self._looked_up(what, end)
            else:
                self._ready.append((epoch, flow, dst, dport))
            return True
        return False

    def _next_probe(self) -> bool:
        """Prepare another source port to a destination with a path that ended early; whether there was one."""
        while self._probes:
            epoch, like, sport, flow, dst, dport = self._probes.popleft()
            number = None if epoch.over else epoch.book.add_probe(like, sport)
            epoch.under_way -= 1
            if number is not None:
                epoch.under_way += 1
                _, version, src, to, _, to_port, rtt = flow
                self._ready.append((epoch, (number, version, src, to, sport, to_port, rtt), dst, dport))
                return True
        return False

    def _compare(self, epoch: Epoch, flow: Flow, dst: bytes, dport: int) -> None:
        """A flow failed and its path ends early: other source ports show which links carry packets."""
        if dst in epoch.probed or epoch.over:
            return
        epoch.probed.add(dst)
        for i in range(1, PROBES + 1):
            sport = 1024 + (flow[4] - 1024 + 9973 * i) % 64512
            self._probes.append((epoch, flow[0], sport, flow, dst, dport))
            epoch.under_way += 1

    def _looked_up(self, what: tuple[Epoch, Flow], end: Any) -> None:
        epoch, flow = what
        if end is None:
            self._refuse(epoch, flow[0], "unmapped", UNMAPPED)
        else:
            self._ready.append((epoch, flow, end.address, end.port))

    def _refuse(self, epoch: Epoch, number: int, why: str, notes: int = 0) -> None:
        epoch.book.refuse(number, notes)
        epoch.under_way -= 1
        self.notes[why] += 1

    def _start(self, epoch: Epoch, flow: Flow, dst: bytes, dport: int, now: int) -> bool:
        """False: not now."""
        number, version, src, _, sport, _, rtt = flow
        why = self._allowed.refusal(version, src, dst) if version in self.versions else f"no IPv{version}"
        if why:
            self._refuse(epoch, number, why)
            return True
        tor = self._tors.find(number_of(dst)) if self._tors_known else 0
        if not self.prober.start(self._next_id, version, src, dst, sport, dport, rtt, tor):
            self._ready.append((epoch, flow, dst, dport))  # it is still being traced for the previous epoch
            return False
        self._bucket.take(now, 1)
        self._flying[self._next_id] = epoch, flow, dst, dport, tor != 0
        self._next_id += 1
        return True

    def _finished(
        self, which: int, hops: int, nodes: list[int], addresses: bytes, end: str, error: int, took: int
    ) -> None:
        epoch, flow, dst, dport, tor_known = self._flying.pop(which)
        number = flow[0]
        epoch.under_way -= 1
        if end == "error" and not hops:
            epoch.book.refuse(number)
            self.notes[os.strerror(error).lower()] += 1
            return
        notes = LOOP | PARTIAL if end == "loop" else PARTIAL if end in ("unreachable", "error", "hops") else 0
        if end == "silence":
            if epoch.book.failed(number):
                self._compare(epoch, flow, dst, dport)
            if tor_known or not hops:
                notes = PARTIAL
            else:
                epoch.silent.append((number, dst, hops))
        epoch.book.store(number, dst, dport, notes, nodes, addresses, time.monotonic_ns())
        self.traced += 1

    # -- epochs

    def _finish_epochs(self, now: int) -> None:
        while self._epochs and self._epochs[0].closing:
            epoch = self._epochs[0]
            late = epoch.over = bool(self.stopped) or now >= epoch.until
            if epoch.under_way and late:
                self._drop_ready(epoch)
                if self.prober.holding and (self.stopped or now >= epoch.until + GRACE):
                    self.prober.give_up()
                    for done in self.prober.finished():
                        self._finished(*done)
            if epoch.book.waiting and not late:
                return
            if not epoch.under_way:
                self._write_epoch(epoch)
                self._end_epoch(epoch)
                del self._epochs[0]
            elif epoch.live and not epoch.shown:  # readers should not wait for the last answer
                epoch.shown = True
                self._write_epoch(epoch)
                return
            else:
                return

    def _drop_ready(self, epoch: Epoch) -> None:
        # Looked up, but not in time.
        kept: deque[tuple[Epoch, Flow, bytes, int]] = deque()
        for one in self._ready:
            if one[0] is epoch:
                self._refuse(epoch, one[1][0], "capped", CAPPED)
                epoch.capped += 1
            else:
                kept.append(one)
        self._ready = kept
        epoch.under_way -= sum(one[0] is epoch for one in self._probes)
        self._probes = deque(one for one in self._probes if one[0] is not epoch)

    def _write_epoch(self, epoch: Epoch) -> None:
        """Write the records of all flows that are not being traced and were not written before."""
        book = epoch.book
        for number, dst, hops in epoch.silent:
            if hops < self.prober.reach(dst):  # others came farther on the way to it
                book.add_notes(number, PARTIAL)
        epoch.silent.clear()
        if self._staging is None:
            self._staging = Staging(self._out.layout, ROWS)
        at = 0
        while at < len(book):
            at = book.emit(self._staging, at, CAPPED, self._tors)
            if self._staging.rows:
                self._write(self._staging)
                self.written += self._staging.rows

    def _end_epoch(self, epoch: Epoch) -> None:
        book = epoch.book
        self.records += book.records
        self.skipped += book.skipped
        self.overflow += book.overflow
        self.before += book.before_since
        self.late += book.records if epoch.late else 0
        capped = book.waiting + epoch.capped
        self.capped += capped
        if capped or book.overflow:
            lost = (
                f", and {book.overflow} records of flows beyond {self._max_flows} were left out"
                if book.overflow
                else ""
            )
            why = f", to keep to {self._bucket.rate:g} per second"
            if epoch.late:
                why = ": their records were read after the end of their epoch"
            self._say(f"{capped} flows were not traced{why}{lost}")
        self.prober.forget()


def number_of(address: bytes) -> int:
    """The number of an address in records."""
    from confluo_tools.schema import fold6

    return int.from_bytes(address, "big") if len(address) == 4 else fold6(address)
