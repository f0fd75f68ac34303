"""What an agent does beside probing, each in a thread that may wait: ask for its list, send records, probe the web."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from confluo_tools.core.block import Block
    from confluo_tools.formats.bundle import Bundle
    from confluo_tools.formats.pinglist import Peer
    from confluo_tools.remote.lists import Controller, Reply

SPOOL = 8 << 20  # bytes of records that wait to be sent, compressed
BUNDLE = 2 << 20  # bytes sent at once, at most about
ROWS = 100_000  # and records: a controller takes some 290,000
LONGEST = 30.0  # s between two tries to send
WEB_WAITING = 4096  # results of web probes that wait to be written


def now() -> float:
    """Seconds of a clock that nobody sets, and that goes on while the host sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Asker:
    """Fetches the list again and again; ``told()`` is called when there is an answer to be taken.

    ``pause(first)`` gives the seconds to wait.  The main thread takes answers by `take` and says by `has` which list
    it follows: only that one may be confirmed.
    """

    def __init__(self, ask: Callable[[str], Reply], pause: Callable[[bool], float], told: Callable[[], None]) -> None:
        self._ask, self._pause, self._told = ask, pause, told
        self._etag = ""
        self._answers: deque[Reply] = deque(maxlen=1)
        self._hurry = threading.Event()
        self._obeyed = threading.Event()
        self._ended = False
        self.asked: dict[str, int] = {}
        self._thread = threading.Thread(target=self._work, name="asker", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def take(self) -> Reply | None:
        """The answer that came, once."""
        try:
            return self._answers.popleft()
        except IndexError:
            return None

    def has(self, etag: str) -> None:
        """This list is followed; '': none.  The answer that was taken is obeyed."""
        self._etag = etag
        self._obeyed.set()

    def hurry(self) -> None:
        """Ask at once."""
        self._hurry.set()

    def end(self) -> None:
        """No more questions; one that is under way is not waited for."""
        self._ended = True
        self._obeyed.set()
        self._hurry.set()

    def _work(self) -> None:
        self._hurry.wait(self._pause(True))
        while not self._ended:
            self._hurry.clear()
            self._obeyed.clear()
            reply = self._ask(self._etag)
            self.asked[reply.kind] = self.asked.get(reply.kind, 0) + 1
            self._answers.append(reply)
            self._told()
            # One question, one answer: silence is counted, and what came decides how long to wait.
            while not self._ended and not self._obeyed.wait(1.0):
                pass
            self._hurry.wait(self._pause(False))


class Sender:
    """Records to the controller, every so many seconds or when there are many.  What cannot be sent waits until it can;
    what the controller refuses, and the oldest of what there is no room for, is discarded and counted.
    """

    def __init__(self, controller: Controller, schema: Any, every: float, name: str) -> None:
        import os

        self._controller, self._schema, self._every = controller, schema, every
        self._word = f"{name[:24]}-{os.urandom(8).hex()}"
        self._number = 0
        self._bundle: Bundle | None = None
        self._due = 0.0
        self._waiting: deque[tuple[str, bytes, int]] = deque()
        self._bytes = 0
        self._lock = threading.Lock()
        self._more = threading.Event()
        self._end = threading.Event()
        self.sent = self.discarded = 0
        self.trouble = ""
        self._thread = threading.Thread(target=self._work, name="sender", daemon=True)
        self._thread.start()

    def add(self, block: Block) -> None:
        if self._bundle is None:
            from confluo_tools.formats.bundle import Bundle

            self._bundle, self._due = Bundle(self._schema), now() + self._every
        self._bundle.add(block)

    def step(self, *, all: bool = False) -> None:
        """Hand over what is due."""
        bundle = self._bundle
        if bundle is None or not (all or bundle.size >= BUNDLE or bundle.rows >= ROWS or now() >= self._due):
            return
        self._bundle = None
        data = bundle.bytes()
        with self._lock:
            self._number += 1
            self._waiting.append((f"{self._word}-{self._number}", data, bundle.rows))
            self._bytes += len(data)
            while self._bytes > SPOOL and len(self._waiting) > 1:
                _, old, rows = self._waiting.popleft()
                self._bytes -= len(old)
                self.discarded += rows
        self._more.set()

    def end(self, seconds: float) -> None:
        """Send what there is, for that long at most."""
        self.step(all=True)
        self._end.set()
        self._more.set()
        self._thread.join(seconds)
        with self._lock:
            self.discarded += sum(rows for _, _, rows in self._waiting)
            self._waiting.clear()

    def _work(self) -> None:
        from confluo_tools.remote.lists import send

        while True:
            with self._lock:
                bundle = self._waiting[0] if self._waiting else None
            if bundle is None:
                if self._end.is_set():
                    return
                self._more.wait()
                self._more.clear()
                continue
            upload, data, rows = bundle
            tries = 0
            while True:
                reply = send(self._controller, data, upload)
                if reply.kind != "lost":
                    break
                self.trouble = reply.detail
                if self._end.is_set() or not self._is_first(bundle):
                    break
                self._end.wait(min(2.0**tries, LONGEST))
                tries = min(tries + 1, 8)
            with self._lock:
                if self._is_first(bundle):
                    self._waiting.popleft()
                    self._bytes -= len(data)
                    if reply.kind == "taken":
                        self.sent += rows
                        self.trouble = ""
                    else:
                        self.discarded += rows
                        self.trouble = reply.detail

    def _is_first(self, bundle: tuple[str, bytes, int]) -> bool:
        """Whether it was not discarded meanwhile."""
        with suppress(IndexError):
            return self._waiting[0] is bundle
        return False


class Web:
    """Probes of http and https peers, each at its interval, spread evenly; results are rows of the schema."""

    def __init__(self, sources: Sequence[str], lab: bool) -> None:
        self._lab = lab
        self._us: dict[str, Any] = {}
        self._source = {6 if ":" in source else 4: source for source in sources}  # by the version of IP
        self._lock = threading.Lock()
        self._peers: list[tuple[float, int, Peer]] = []  # a heap by when they are due
        self._list = 0
        self.slow = 1.0
        self._changed = threading.Event()
        self._ended = False
        self.rows: deque[dict[str, Any]] = deque(maxlen=WEB_WAITING)
        self.probes = self.skipped = 0
        self._thread = threading.Thread(target=self._work, name="web", daemon=True)
        self._thread.start()

    def follow(self, peers: Sequence[Peer], version: int, us: dict[str, Any] | None = None) -> None:
        """These from now on; none: stop.  ``us``: what records say of this server, as the list has it."""
        from heapq import heapify

        t = time.monotonic()
        golden = 0.6180339887498949
        heap = [(t + p.interval / 1e9 * (i * golden % 1), i, p) for i, p in enumerate(peers)]
        heapify(heap)
        with self._lock:
            self._peers, self._list = heap, version
            self._us = us if us is not None else self._us
        self._changed.set()

    def end(self) -> None:
        self._ended = True
        self._changed.set()
        self._thread.join(5)

    def _work(self) -> None:
        from heapq import heapreplace

        from confluo_tools.sources.webprobe import Limits, Target, WebProber

        with WebProber(verify=False) as prober:  # what is measured is the way, not who answers
            while not self._ended:
                t = time.monotonic()
                wait = 1.0
                with self._lock:
                    while self._peers:
                        due, i, p = self._peers[0]
                        if due > t:
                            wait = min(wait, due - t)
                            break
                        span = p.interval / 1e9 * self.slow
                        heapreplace(self._peers, (max(due + span, t), i, p))
                        source = self._source.get(6 if ":" in p.address else 4, "")
                        target = Target(p.kind == "https", p.address, p.port, "/ping", p.address, source, p.dscp)
                        limit = p.timeout / 1e9
                        limits = Limits(limit, limit, limit, limit)
                        if prober.start(target, (p, self._list), limits):
                            self.probes += 1
                        else:
                            self.skipped += 1
                if not prober.in_flight and wait > 0.05:
                    self._changed.wait(wait)
                    self._changed.clear()
                    continue
                for result in prober.poll(min(wait, 0.25)):
                    peer, version = result.tag
                    row = result.row()
                    row |= self._us | {"dst": peer.name, "dst_pod": peer.pod, "dst_podset": peer.podset,
                                       "dst_dc": peer.dc, "list": version, "dscp": peer.dscp,
                                       "level": LEVEL[peer.level]}  # fmt: skip
                    row["notes"] = row.get("notes", 0) | (1 if self._lab else 0) | (32 if self.slow > 1 else 0)
                    self.rows.append(row)


LEVEL = {"pod": 1, "dc": 2, "wan": 3, "vip": 4, "adhoc": 5}
