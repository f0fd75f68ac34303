"""Probe targets: parsing, name lookups, and the counters of their responders (http.client).

    target = parse_target("web1:8080", "tcp")
    lookups = TargetLookups(); lookups.start(target, counters=False); lookups.found(0.1)

Each name is looked up in its own thread; a lookup that hangs delays no other.
"""

from __future__ import annotations

import http.client
import queue
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from confluo_tools.console import describe
from confluo_tools.errors import UsageError

PORT = 8765  # of responders
KINDS = ("tcp", "echo", "http", "https", "udp", "icmp")
MAX_NAME = 253  # characters of a host name
MAX_LOOKUPS = 128  # at the same time
MAX_ANSWER = 8192  # bytes of a /counters response


class ProbeTarget(NamedTuple):
    """A parsed target.  ``text``: as given.  ``address``: '' for a name.  ``url``: of kinds http and https."""

    text: str
    kind: str
    host: str
    port: int
    address: str = ""
    url: str = ""

    def __str__(self) -> str:
        return f"{self.text} {self.kind}"


class LookupResult(NamedTuple):
    """``address``: packed, or b'' with a reason in ``problem``.  ``counters``: None: unknown."""

    wanted: ProbeTarget
    address: bytes
    scope: int
    counters: dict[str, int] | None
    problem: str


def parse_target(text: str, kind: str) -> ProbeTarget:
    """``10.0.0.7``, ``web1:8080``, ``[2001:db8::1]:80``, ``2001:db8::1``, ``http://web1/ping``.  Raises UsageError."""
    if "://" in text:
        from confluo_tools.pingmesh.probe.http_prober import parse_url

        target = parse_url(text)
        scheme = "https" if target.tls else "http"
        return ProbeTarget(text, scheme, target.host, target.port, target.address, text)
    host, port = text, ""
    if text.startswith("["):
        host, bracket, port = text[1:].partition("]")
        if not bracket or (port and not port.startswith(":")):
            raise UsageError(f"'{text[:60]}' is not a target", hint="write e.g. [2001:db8::1]:8080")
        port = port[1:] if port else ""
    elif text.count(":") == 1:
        host, _, port = text.partition(":")
    number = int(port) if port.isascii() and port.isdigit() and len(port) < 6 else 0
    usual = 443 if kind == "https" else PORT
    if not host or (port and not 0 < number < 1 << 16) or (text.endswith(":") and not port and "::" not in text):
        raise UsageError(f"'{text[:60]}' is not a target", hint="write HOST, HOST:PORT or a URL")
    if len(host) > MAX_NAME or not host.isprintable() or " " in host or "/" in host:
        raise UsageError(f"'{text[:60]}' is not a host", hint="write an address or a name")
    address = host if is_address(host) else ""
    if address and _needs_scope(address):
        raise UsageError(f"'{text[:60]}' is a link-local address", hint=f"add the interface: {host[:40]}%eth0")
    number = number or usual
    if kind in ("http", "https"):
        shown = f"[{host}]" if ":" in host else host
        return ProbeTarget(text, kind, host, number, address, f"{kind}://{shown}:{number}/ping")
    return ProbeTarget(text, kind, host, 0 if kind == "icmp" else number, address)


def is_address(text: str) -> bool:
    """Whether it is an IPv4 address of four numbers, or IPv6 with an optional scope."""
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            socket.inet_pton(family, text.partition("%")[0] if family == socket.AF_INET6 else text)
        except (OSError, ValueError):
            continue
        return True
    return False


def _needs_scope(address: str) -> bool:
    return ":" in address and "%" not in address and socket.inet_pton(socket.AF_INET6, address)[:2] == b"\xfe\x80"


def is_loopback(wanted: ProbeTarget) -> bool:
    """Whether the target is this host, as far as known before the name is looked up."""
    return wanted.address.startswith("127.") or wanted.address == "::1" or wanted.host == "localhost"


def ask_counters(address: str, port: int, seconds: float = 3.0, source: str = "") -> dict[str, int] | None:
    """The counters of the responder at a target; None if it does not answer."""
    import json

    connection = http.client.HTTPConnection(
        address, port, timeout=seconds, source_address=(source, 0) if source else None
    )
    try:
        connection.request("GET", "/counters", headers={"Connection": "close"})
        answer = connection.getresponse()
        if answer.status != 200:
            return None
        document: Any = json.loads(answer.read(MAX_ANSWER))
    except (OSError, http.client.HTTPException, ValueError, RecursionError):
        return None
    finally:
        connection.close()
    if not isinstance(document, dict) or not isinstance(document.get("overflows"), int):
        return None
    found = {str(name): value for name, value in document.items() if isinstance(value, int)}
    # overflows of the responder's own sockets, if given: those of other sockets explain no lost SYN of ours
    found["overflows"] = found.get("own_drops", found["overflows"])
    return found


class TargetLookups:
    """Looks up names and counters in up to `MAX_LOOKUPS` threads.

    ``family``: address family, 0: any.  ``wake``: called from another thread for each result.
    """

    def __init__(
        self,
        *,
        family: int = 0,
        source: str = "",
        wake: Callable[[], None] = lambda: None,
        lookup: Callable[..., Any] = socket.getaddrinfo,
    ) -> None:
        self._family, self._source, self._wake, self._lookup = family, source, wake, lookup
        self._answers: queue.SimpleQueue[LookupResult] = queue.SimpleQueue()
        self._queue: deque[tuple[ProbeTarget, bool]] = deque()
        self._since: dict[ProbeTarget, float] = {}  # running lookups
        self.waiting: dict[ProbeTarget, None] = {}

    def start(self, wanted: ProbeTarget, *, counters: bool) -> None:
        """Look up the address of a target and, with ``counters``, the counters of its responder."""
        self.waiting[wanted] = None
        self._queue.append((wanted, counters))
        self._start_threads()

    def _start_threads(self) -> None:
        while self._queue and len(self._since) < MAX_LOOKUPS:
            wanted, counters = self._queue.popleft()
            try:
                threading.Thread(target=self._work, args=(wanted, counters), name="lookup", daemon=True).start()
            except RuntimeError:  # out of memory or threads
                self._answers.put(LookupResult(wanted, b"", 0, None, "cannot start a thread"))
            self._since[wanted] = time.monotonic()

    def found(self, seconds: float) -> list[LookupResult]:
        """New results; waits up to ``seconds`` for the first one."""
        out: list[LookupResult] = []
        while True:
            try:
                one = self._answers.get(timeout=seconds) if seconds > 0 and not out else self._answers.get_nowait()
            except queue.Empty:
                return out
            if one.wanted in self.waiting:
                del self.waiting[one.wanted], self._since[one.wanted]
                out.append(one)
            self._start_threads()

    def expire(self, seconds: float) -> list[ProbeTarget]:
        """Give up lookups that run for more than ``seconds``; returns their targets."""
        before = time.monotonic() - seconds
        late = [wanted for wanted, since in self._since.items() if since < before]
        for wanted in late:
            del self.waiting[wanted], self._since[wanted]
        self._start_threads()
        return late

    def _work(self, wanted: ProbeTarget, counters: bool) -> None:
        address, scope, problem, counts = b"", 0, "", None
        try:
            name = wanted.address or wanted.host
            rows = self._lookup(name, wanted.port, self._family, socket.SOCK_STREAM)
            family, _, _, _, place = rows[0]
            text = str(place[0]).partition("%")[0]
            address = socket.inet_pton(family, text)
            scope = int(place[3]) if family == socket.AF_INET6 else 0
            if counters:
                counts = ask_counters(str(place[0]), wanted.port, source=self._source)
        except OSError as e:
            problem = e.strerror or "no address"
        except (IndexError, ValueError, UnicodeError):
            problem = "no address"
        except Exception as e:  # every lookup gets an answer
            problem = describe(e)
        self._answers.put(LookupResult(wanted, address, scope, counts, problem))
        self._wake()
