"""Background threads of an agent: fetch its pinglist, send its records, run HTTP probes."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from confluo_tools.console import ThreadErrors, describe

if TYPE_CHECKING:
    from confluo_tools.core.block.block import Block
    from confluo_tools.pingmesh.agent.controller_client import Controller, ControllerReply
    from confluo_tools.pingmesh.agent.upload_batch import UploadBatch
    from confluo_tools.pingmesh.plan.pinglist_file import PinglistPeer

MAX_SPOOL = 8 << 20  # compressed bytes of records waiting to be sent
BATCH_BYTES = 2 << 20  # compressed bytes at which an upload is sent
BATCH_ROWS = 100_000  # records at which it is sent: a controller accepts some 290,000
MAX_RETRY_PAUSE = 30.0  # s between two attempts to send
MAX_HTTP_RESULTS = 4096  # results of HTTP probes waiting to be written
PAUSE = 1.0  # s after an error before a thread goes on


def now() -> float:
    """Monotonic seconds; the clock goes on while the host is suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class PinglistFetcher:
    """Thread that fetches the pinglist periodically by ``fetch(etag)``, and calls ``notify()`` for each reply.

    ``pause(first)`` returns the seconds to wait.  The main thread gets a reply by `take` and then calls `follow` with
    the ETag of the list it follows: only that list may be confirmed.
    """

    def __init__(
        self, fetch: Callable[[str], ControllerReply], pause: Callable[[bool], float], notify: Callable[[], None]
    ) -> None:
        self._fetch, self._pause, self._notify = fetch, pause, notify
        self.etag = ""
        self._replies: deque[ControllerReply] = deque(maxlen=1)
        self._hurry = threading.Event()
        self._applied = threading.Event()
        self._ended = False
        self._errors = ThreadErrors("fetching the list failed, and is tried again")
        self.fetches: dict[str, int] = {}
        self._thread = threading.Thread(target=self._work, name="fetcher", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def take(self) -> ControllerReply | None:
        """The latest reply, once."""
        try:
            return self._replies.popleft()
        except IndexError:
            return None

    def follow(self, etag: str) -> None:
        """Set the list that is followed ('': none); the reply that was taken is applied."""
        self.etag = etag
        self._applied.set()

    def hurry(self) -> None:
        """Fetch at once."""
        self._hurry.set()

    def end(self) -> None:
        """Stop; does not wait for a fetch in progress."""
        self._ended = True
        self._applied.set()
        self._hurry.set()

    def _work(self) -> None:
        self._hurry.wait(self._pause(True))
        while not self._ended:
            self._hurry.clear()
            self._applied.clear()
            reply = self._try_fetch()
            self.fetches[reply.kind] = self.fetches.get(reply.kind, 0) + 1
            self._replies.append(reply)
            self._notify()
            # The main thread applies each reply before the next pause, which depends on it.
            while not self._ended and not self._applied.wait(1.0):
                pass
            self._hurry.wait(self._pause(False))

    def _try_fetch(self) -> ControllerReply:
        try:
            return self._fetch(self.etag)
        except Exception as e:  # the controller did not answer this
            from confluo_tools.pingmesh.agent.controller_client import ControllerReply

            self._errors.report(e)
            return ControllerReply("lost", describe(e))


class RecordSender:
    """Thread that sends records to the controller, every ``every`` seconds or when a batch is full.

    Batches that cannot be sent wait.  Batches that the controller refuses, and the oldest above MAX_SPOOL, are
    discarded and counted.
    """

    def __init__(self, controller: Controller, schema: Any, every: float, name: str) -> None:
        import os

        self._controller, self._schema, self._every = controller, schema, every
        self._prefix = f"{name[:24]}-{os.urandom(8).hex()}"
        self._number = 0
        self._batch: UploadBatch | None = None
        self._due = 0.0
        self._waiting: deque[tuple[str, bytes, int]] = deque()
        self._bytes = 0
        self._lock = threading.Lock()
        self._ready = threading.Event()
        self._end = threading.Event()
        self.sent = self.discarded = 0
        self.problem = ""
        self._errors = ThreadErrors("sending records failed, and is tried again")
        self._thread = threading.Thread(target=self._work, name="sender", daemon=True)
        self._thread.start()

    def add(self, block: Block) -> None:
        if self._batch is None:
            from confluo_tools.pingmesh.agent.upload_batch import UploadBatch

            self._batch, self._due = UploadBatch(self._schema), now() + self._every
        self._batch.add(block)

    def step(self, *, all: bool = False) -> None:
        """Queue the current batch if it is due."""
        batch = self._batch
        if batch is None or not (all or batch.size >= BATCH_BYTES or batch.rows >= BATCH_ROWS or now() >= self._due):
            return
        self._batch = None
        data = batch.bytes()
        with self._lock:
            self._number += 1
            self._waiting.append((f"{self._prefix}-{self._number}", data, batch.rows))
            self._bytes += len(data)
            while self._bytes > MAX_SPOOL and len(self._waiting) > 1:
                _, old, rows = self._waiting.popleft()
                self._bytes -= len(old)
                self.discarded += rows
        self._ready.set()

    def end(self, seconds: float) -> None:
        """Send what is left, for up to ``seconds``."""
        self.step(all=True)
        self._end.set()
        self._ready.set()
        self._thread.join(seconds)
        with self._lock:
            self.discarded += sum(rows for _, _, rows in self._waiting)
            self._waiting.clear()

    def _send(self, data: bytes, upload: str) -> ControllerReply:
        from confluo_tools.pingmesh.agent.controller_client import ControllerReply, send

        try:
            return send(self._controller, data, upload)
        except Exception as e:  # the controller did not answer this
            self._errors.report(e)
            return ControllerReply("lost", describe(e))

    def _work(self) -> None:
        while True:
            with self._lock:
                batch = self._waiting[0] if self._waiting else None
            if batch is None:
                if self._end.is_set():
                    return
                self._ready.wait()
                self._ready.clear()
                continue
            upload, data, rows = batch
            tries = 0
            while True:
                reply = self._send(data, upload)
                if reply.kind != "lost":
                    break
                self.problem = reply.detail
                if self._end.is_set() or not self._is_first(batch):
                    break
                self._end.wait(min(2.0**tries, MAX_RETRY_PAUSE))
                tries = min(tries + 1, 8)
            with self._lock:
                if self._is_first(batch):
                    self._waiting.popleft()
                    self._bytes -= len(data)
                    if reply.kind == "taken":
                        self.sent += rows
                        self.problem = ""
                    else:
                        self.discarded += rows
                        self.problem = reply.detail

    def _is_first(self, batch: tuple[str, bytes, int]) -> bool:
        """Whether the batch is still in the queue."""
        with suppress(IndexError):
            return self._waiting[0] is batch
        return False


class HttpProbes:
    """Thread for HTTP probes: each peer at its interval, evenly spread; results are rows of schema `probe`."""

    def __init__(self, sources: Sequence[str], lab: bool) -> None:
        self._lab = lab
        self._own: dict[str, Any] = {}
        self._source = {6 if ":" in source else 4: source for source in sources}  # by IP version
        self._lock = threading.Lock()
        self._peers: list[tuple[float, int, PinglistPeer]] = []  # a heap by due time
        self._list = 0
        self.slow = 1.0
        self._changed = threading.Event()
        self._ended = False
        self.rows: deque[dict[str, Any]] = deque(maxlen=MAX_HTTP_RESULTS)
        self.probes = self.skipped = 0
        self._thread = threading.Thread(target=self._work, name="web", daemon=True)
        self._thread.start()

    def follow(self, peers: Sequence[PinglistPeer], version: int, own: dict[str, Any] | None = None) -> None:
        """Probe these peers from now on (none: stop).  ``own``: fields of this server in the records."""
        from heapq import heapify

        t = time.monotonic()
        golden = 0.6180339887498949
        heap = [(t + p.interval / 1e9 * (i * golden % 1), i, p) for i, p in enumerate(peers)]
        heapify(heap)
        with self._lock:
            self._peers, self._list = heap, version
            self._own = own if own is not None else self._own
        self._changed.set()

    def end(self) -> None:
        self._ended = True
        self._changed.set()
        self._thread.join(5)

    def _work(self) -> None:
        errors = ThreadErrors("probing by HTTP failed, and is tried again")
        while not self._ended:
            try:
                self._probe()
            except Exception as e:
                errors.report(e)
                self._changed.wait(PAUSE)
                self._changed.clear()

    def _probe(self) -> None:
        from heapq import heapreplace

        from confluo_tools.pingmesh.probe.http_prober import HttpProber, HttpTarget, PhaseTimeouts

        with HttpProber(verify=False) as prober:  # the probe measures the path, not the identity of the server
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
                        target = HttpTarget(p.kind == "https", p.address, p.port, "/ping", p.address, source, p.dscp)
                        limit = p.timeout / 1e9
                        limits = PhaseTimeouts(limit, limit, limit, limit)
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
                    row |= self._own | {
                        "dst": peer.name,
                        "dst_pod": peer.pod,
                        "dst_podset": peer.podset,
                        "dst_dc": peer.dc,
                        "list": version,
                        "dscp": peer.dscp,
                        "level": LEVEL[peer.level],
                    }
                    row["notes"] = row.get("notes", 0) | (1 if self._lab else 0) | (32 if self.slow > 1 else 0)
                    self.rows.append(row)


LEVEL = {"pod": 1, "dc": 2, "wan": 3, "vip": 4, "adhoc": 5}
