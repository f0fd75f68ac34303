"""Targets as people write them, the addresses behind their names, and what their responder says about itself.

    wanted = parse_target("web1:8080", "tcp")
    lookups = Lookups(); lookups.ask(wanted, counters=False); lookups.found(0.1)

Nobody waits for a name: each is looked up in a thread of its own, and one that hangs is left behind.
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

from confluo_tools.errors import UsageError

PORT = 8765  # of responders
KINDS = ("tcp", "echo", "http", "https", "udp", "icmp")
LONGEST = 253  # letters of a name
AT_ONCE = 128  # lookups
MOST_ANSWER = 8192  # bytes of /counters that are read


class Wanted(NamedTuple):
    """``text``: as it was written.  ``address``: '' when the name must be looked up.  ``url``: of kinds http, https."""

    text: str
    kind: str
    host: str
    port: int
    address: str = ""
    url: str = ""

    def __str__(self) -> str:
        return f"{self.text} {self.kind}"


class Found(NamedTuple):
    """``address``: packed, b'' when there is none, and ``words`` say why.  ``counters``: None: nobody told."""

    wanted: Wanted
    address: bytes
    scope: int
    counters: dict[str, int] | None
    words: str


def parse_target(text: str, kind: str) -> Wanted:
    """``10.0.0.7``, ``web1:8080``, ``[2001:db8::1]:80``, ``2001:db8::1``, ``http://web1/ping``.  Raises UsageError."""
    if "://" in text:
        from confluo_tools.sources.webprobe import parse_url

        target = parse_url(text)
        scheme = "https" if target.tls else "http"
        return Wanted(text, scheme, target.host, target.port, target.address, text)
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
    if len(host) > LONGEST or not host.isprintable() or " " in host or "/" in host:
        raise UsageError(f"'{text[:60]}' is not a host", hint="write an address or a name")
    address = host if is_address(host) else ""
    if address and _needs_scope(address):
        raise UsageError(f"'{text[:60]}' is an address of each link", hint=f"say of which: {host[:40]}%eth0")
    number = number or usual
    if kind in ("http", "https"):
        shown = f"[{host}]" if ":" in host else host
        return Wanted(text, kind, host, number, address, f"{kind}://{shown}:{number}/ping")
    return Wanted(text, kind, host, 0 if kind == "icmp" else number, address)


def is_address(text: str) -> bool:
    """IPv4 with four numbers, or IPv6, with a scope if need be."""
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            socket.inet_pton(family, text.partition("%")[0] if family == socket.AF_INET6 else text)
        except (OSError, ValueError):
            continue
        return True
    return False


def _needs_scope(address: str) -> bool:
    return ":" in address and "%" not in address and socket.inet_pton(socket.AF_INET6, address)[:2] == b"\xfe\x80"


def is_loopback(wanted: Wanted) -> bool:
    """Whether nobody else's network is touched, as far as is known before the name is looked up."""
    return wanted.address.startswith("127.") or wanted.address == "::1" or wanted.host == "localhost"


def ask_counters(address: str, port: int, seconds: float = 3.0, source: str = "") -> dict[str, int] | None:
    """What the responder at a target says that its host dropped; None when it does not say."""
    import json

    asked = http.client.HTTPConnection(address, port, timeout=seconds, source_address=(source, 0) if source else None)
    try:
        asked.request("GET", "/counters", headers={"Connection": "close"})
        answer = asked.getresponse()
        if answer.status != 200:
            return None
        told: Any = json.loads(answer.read(MOST_ANSWER))
    except (OSError, http.client.HTTPException, ValueError, RecursionError):
        return None
    finally:
        asked.close()
    if not isinstance(told, dict) or not isinstance(told.get("overflows"), int):
        return None
    found = {str(name): value for name, value in told.items() if isinstance(value, int)}
    # of the responder's own sockets, if it tells: what others on that host had no room for excuses no lost SYN here
    found["overflows"] = found.get("own_drops", found["overflows"])
    return found


class Lookups:
    """Names and counters, asked for in threads, `AT_ONCE` of them.  ``family``: of socket, 0: any.  ``wake``: is called
    from another thread when there is something new.
    """

    def __init__(
        self, *, family: int = 0, source: str = "", wake: Callable[[], None] = lambda: None,
        lookup: Callable[..., Any] = socket.getaddrinfo,
    ) -> None:  # fmt: skip
        self._family, self._source, self._wake, self._lookup = family, source, wake, lookup
        self._answers: queue.SimpleQueue[Found] = queue.SimpleQueue()
        self._queue: deque[tuple[Wanted, bool]] = deque()
        self._since: dict[Wanted, float] = {}  # those that are looked up now
        self.waiting: dict[Wanted, None] = {}

    def ask(self, wanted: Wanted, *, counters: bool) -> None:
        """Find the address of a target and, if wished, its responder's counters."""
        self.waiting[wanted] = None
        self._queue.append((wanted, counters))
        self._start()

    def _start(self) -> None:
        while self._queue and len(self._since) < AT_ONCE:
            wanted, counters = self._queue.popleft()
            try:
                threading.Thread(target=self._work, args=(wanted, counters), name="lookup", daemon=True).start()
            except RuntimeError:  # no room for a thread
                self._answers.put(Found(wanted, b"", 0, None, "no thread to look it up"))
            self._since[wanted] = time.monotonic()

    def found(self, seconds: float) -> list[Found]:
        """What has come meanwhile; waits for something as long as there is nothing."""
        out: list[Found] = []
        while True:
            try:
                one = self._answers.get(timeout=seconds) if seconds > 0 and not out else self._answers.get_nowait()
            except queue.Empty:
                return out
            if one.wanted in self.waiting:
                del self.waiting[one.wanted], self._since[one.wanted]
                out.append(one)
            self._start()

    def give_up(self, seconds: float) -> list[Wanted]:
        """Those that did not answer for so long; they will not be told any more, and others take their places."""
        before = time.monotonic() - seconds
        late = [wanted for wanted, since in self._since.items() if since < before]
        for wanted in late:
            del self.waiting[wanted], self._since[wanted]
        self._start()
        return late

    def _work(self, wanted: Wanted, counters: bool) -> None:
        address, scope, words, told = b"", 0, "", None
        try:
            name = wanted.address or wanted.host
            rows = self._lookup(name, wanted.port, self._family, socket.SOCK_STREAM)
            family, _, _, _, place = rows[0]
            text = str(place[0]).partition("%")[0]
            address = socket.inet_pton(family, text)
            scope = int(place[3]) if family == socket.AF_INET6 else 0
            if counters:
                told = ask_counters(str(place[0]), wanted.port, source=self._source)
        except OSError as e:
            words = e.strerror or "no address"
        except (IndexError, ValueError, UnicodeError):
            words = "no address"
        self._answers.put(Found(wanted, address, scope, told, words))
        self._wake()
