"""Probes of web servers, phase by phase: the name, the connection, TLS, the first byte of the answer.

    prober = WebProber()
    prober.start(parse_url("https://10.0.0.7:8443/health"))        many may be under way
    for result in prober.poll(1.0): result.row()                   the fields of schema 'probe'

One thread, no privileges.  Names are resolved by a few threads beside it, and one that hangs hangs nothing else.  Each
probe is a new connection from a new port, and ends with a reset, so that no port stays taken.  Redirects are not
followed: what answers is what was probed.
"""

from __future__ import annotations

import errno
import os
import selectors
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from confluo_tools.core.pinger import labels_change
from confluo_tools.errors import UsageError
from confluo_tools.formats.build import address_columns

if TYPE_CHECKING:
    import ssl


HTTP, HTTPS = 3, 4  # kinds of schema 'probe', and its outcomes
OK, TIMEOUT, REFUSED, UNREACHABLE, RESET, LOCAL, GARBLED = 1, 2, 3, 4, 5, 6, 7
FORWARD, REVERSE, RELABEL = 1, 2, 2
IN_FLIGHT = 256
MOST = 4096
RESOLVERS = 4  # names that are looked up at once
WAITING = 1024  # names that wait for it
SYN_RETRIES = 2  # the kernel gives up after some 7 s
HEAD = 4096  # bytes of an answer that are read
_RTT, _RETRANS = 68, 100  # of struct tcp_info
_AUTOFLOWLABEL = 70  # of IPv6
_ERRORS = {
    errno.ECONNREFUSED: REFUSED, errno.ETIMEDOUT: TIMEOUT, errno.EHOSTUNREACH: UNREACHABLE,
    errno.ENETUNREACH: UNREACHABLE, errno.EHOSTDOWN: UNREACHABLE, errno.ENETDOWN: UNREACHABLE,
    errno.ECONNRESET: RESET, errno.ECONNABORTED: RESET, errno.EPIPE: RESET,
}  # fmt: skip


class Limits(NamedTuple):
    """How long each phase may take, in s."""

    dns: float = 3.0
    connect: float = 8.0
    tls: float = 5.0
    first_byte: float = 10.0


class Target(NamedTuple):
    """``host`` is the name in the request, and that TLS is asked for; ``address``: where to connect ('': look the name
    up); ``source``: from which of our addresses.
    """

    tls: bool
    host: str
    port: int
    path: str = "/"
    address: str = ""
    source: str = ""
    dscp: int = 0

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        usual = self.port == (443 if self.tls else 80)
        return f"http{'s' * self.tls}://{host}{'' if usual else f':{self.port}'}{self.path}"


def parse_url(text: str) -> Target:
    """Of ``http://host[:port][/path]`` or https.  Raises UsageError."""
    from urllib.parse import urlsplit

    bad = UsageError(f"'{text[:80]}' is not a URL", hint="write e.g. http://10.0.0.7:8765/ping")
    if not text.isprintable() or " " in text or len(text) > 2000:
        raise bad
    try:
        parts = urlsplit(text)
        host, port = parts.hostname or "", parts.port
        host = host if host.isascii() else host.encode("idna").decode()
        host = host.replace("%25", "%", 1) if ":" in host else host  # RFC 6874: [fe80::1%25eth0]
    except ValueError:
        raise bad from None
    if parts.scheme not in ("http", "https") or not host or port == 0 or parts.username is not None:
        raise bad
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    if not path.isascii():
        raise UsageError(f"'{text[:80]}' has letters that no URL has", hint="write them as %XX")
    address = ""
    for family in (socket.AF_INET, socket.AF_INET6):
        with suppress(OSError, ValueError):
            socket.inet_pton(family, host.partition("%")[0])
            address = host
    secure = parts.scheme == "https"
    return Target(secure, host, port or (443 if secure else 80), path, address)


class Result:
    """How a probe went.  Times in ns; what was not measured is 0.  ``words``: what went wrong, for people."""

    __slots__ = ("target", "tag", "begun", "outcome", "errno", "src", "sport", "dst", "rtt", "elapsed", "retries",
                 "hint", "dns", "tls", "first_byte", "status", "payload", "words")  # fmt: skip

    def __init__(self, target: Target, tag: Any) -> None:
        self.target, self.tag = target, tag
        self.begun = time.time_ns()
        self.outcome = self.errno = self.sport = self.rtt = self.elapsed = self.retries = self.hint = 0
        self.dns = self.tls = self.first_byte = self.status = self.payload = 0
        self.src = self.dst = self.words = ""

    def row(self) -> dict[str, Any]:
        """By columns of schema 'probe'; those that are missing are 0."""
        row: dict[str, Any] = {
            "ts": self.begun, "kind": HTTPS if self.target.tls else HTTP, "level": 5, "outcome": self.outcome,
            "proto": 6, "src_port": self.sport, "dst_port": self.target.port, "dscp": self.target.dscp,
            "payload": self.payload, "retries": min(self.retries, 255), "hint": self.hint, "rtt": self.rtt,
            "elapsed": self.elapsed, "dns": self.dns, "tls": self.tls, "first_byte": self.first_byte,
            "status": self.status, "errno": self.errno, "dst": self.target.host, "detail": self.words,
        }  # fmt: skip
        for side, address in (("src", self.src), ("dst", self.dst or self.target.address)):
            row |= address_columns(side, address)
        if self.retries and row.get("ip_version") == 6 and labels_change():
            row["notes"] = RELABEL
        return row


class _Resolver:
    """Looks names up in a few threads, as many as hang at most; ``answers`` are (job, ns, addresses or error)."""

    def __init__(self, threads: int, lookup: Callable[..., Any]) -> None:
        self._most, self._lookup = threads, lookup
        self._threads = 0
        self._jobs: deque[_Probe] = deque()
        self._there = threading.Semaphore(0)
        self._lock = threading.Lock()
        self.answers: deque[tuple[_Probe, int, list[Any] | OSError]] = deque()
        self.wake, self._waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._over = False

    def ask(self, job: _Probe) -> bool:
        if len(self._jobs) >= WAITING:
            return False
        self._jobs.append(job)
        if self._threads < min(self._most, len(self._jobs) + 1):
            self._threads += 1
            threading.Thread(target=self._work, name="resolver", daemon=True).start()
        self._there.release()
        return True

    def _work(self) -> None:
        while True:
            self._there.acquire()
            if self._over:
                break
            try:
                job = self._jobs.popleft()
            except IndexError:
                continue
            if job.over:
                continue  # nobody waits for it any more
            began = time.perf_counter_ns()
            found: list[Any] | OSError
            try:
                found = self._lookup(job.target.host, job.target.port, 0, socket.SOCK_STREAM)
            except OSError as e:
                found = e
            except UnicodeError:
                found = socket.gaierror(socket.EAI_NONAME, "not a name")
            self.answers.append((job, time.perf_counter_ns() - began, found))
            with suppress(OSError):
                os.write(self._waker, b"x")
        with self._lock:
            self._threads -= 1
            self._done()

    def _done(self) -> None:
        if not self._threads:  # who hangs has the pipe till then
            os.close(self.wake)
            os.close(self._waker)

    def close(self) -> None:
        """Threads that hang end when they do."""
        with self._lock:
            if not self._over:
                self._over = True
                for _ in range(self._threads):
                    self._there.release()
                self._done()


class _Probe:
    """A probe under way: each phase has a deadline, and ``step`` goes on when the socket is ready."""

    __slots__ = ("target", "result", "limits", "sock", "deadline", "step", "phase", "began", "since", "rest", "head",
                 "over", "events")  # fmt: skip

    def __init__(self, target: Target, tag: Any, limits: Limits) -> None:
        self.target, self.limits = target, limits
        self.result = Result(target, tag)
        self.sock: socket.socket | None = None
        self.deadline = 0.0
        self.began = time.perf_counter_ns()
        self.since = 0
        self.phase = ""
        self.step: Callable[[_Probe], int] | None = None
        self.rest = b""
        self.head = b""
        self.over = False
        self.events = 0

    def enter(self, phase: str, limit: float, step: Callable[[_Probe], int] | None) -> None:
        self.phase, self.step = phase, step
        self.deadline = time.monotonic() + limit
        self.since = time.perf_counter_ns()


class WebProber:
    """Many probes at once.  ``context``: of TLS (default: verified by the system's authorities; with ``verify`` False,
    any certificate will do).  ``lookup``: as socket.getaddrinfo.
    """

    def __init__(
        self, *, in_flight: int = IN_FLIGHT, limits: Limits = Limits(), verify: bool = True,
        context: ssl.SSLContext | None = None, resolvers: int = RESOLVERS,
        lookup: Callable[..., Any] = socket.getaddrinfo,
    ) -> None:  # fmt: skip
        if not 1 <= in_flight <= MOST or not 1 <= resolvers <= 64:
            raise UsageError(f"{in_flight} probes at once are not possible", hint=f"1 to {MOST}")
        self._most, self._limits, self._verify, self._context = in_flight, limits, verify, context
        self._selector = selectors.EpollSelector()
        self._resolver = _Resolver(resolvers, lookup)
        self._selector.register(self._resolver.wake, selectors.EVENT_READ)
        self._under_way: set[_Probe] = set()
        self._done: list[Result] = []

    @property
    def in_flight(self) -> int:
        return len(self._under_way)

    def fileno(self) -> int:
        """Can be polled: readable when `poll` has something to do, time-outs apart."""
        return self._selector.fileno()

    def next_deadline(self) -> float | None:
        """When (monotonic s) `poll` should be called at the latest, because a phase took too long."""
        return min((p.deadline for p in self._under_way), default=None)

    def start(self, target: Target, tag: Any = None, limits: Limits | None = None) -> bool:
        """Begin a probe; False: too many are under way, and this one was not begun."""
        if len(self._under_way) >= self._most:
            return False
        if target.tls and self._context is None:
            self._context = self._make_context()  # some 20 ms, which nobody's answer shall wait for
        probe = _Probe(target, tag, limits or self._limits)
        self._under_way.add(probe)
        if target.address:
            self._guard(probe, lambda p: self._connect(p, target.address))
        else:
            probe.enter("name", probe.limits.dns, None)
            if not self._resolver.ask(probe):
                self._end(probe, LOCAL, errno.EAGAIN, "too many names are being looked up")
        return True

    def poll(self, seconds: float = 0.0) -> list[Result]:
        """Go on for up to so long, or until at least one probe has ended: those that have."""
        until = time.monotonic() + seconds
        while True:
            now = time.monotonic()
            first = self.next_deadline()
            wait = 0.0 if self._done else max(0.0, min(until, first if first is not None else until) - now)
            for key, _ in self._selector.select(wait):
                if key.data is None:
                    self._names()
                elif not key.data.over:
                    self._guard(key.data, key.data.step)
            self._late(time.monotonic())
            if self._done or time.monotonic() >= until:
                done, self._done = self._done, []
                return done

    def probe(self, target: Target, limits: Limits | None = None) -> Result:
        """One, to its end."""
        tag = object()
        if not self.start(target, tag, limits):
            raise UsageError(f"{self._most} probes are under way already")
        while True:
            for result in self.poll(1.0):
                if result.tag is tag:
                    return result
                self._done.append(result)  # somebody else's

    def close(self) -> None:
        """Probes that are under way are given up."""
        for probe in list(self._under_way):
            self._end(probe, LOCAL, errno.ECANCELED, "given up")
        self._done = []
        self._resolver.close()
        self._selector.close()

    def __enter__(self) -> WebProber:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # -- phases

    def _guard(self, probe: _Probe, step: Callable[[_Probe], int]) -> None:
        """Take a step: it tells which events it waits for, 0 when the probe is over."""
        try:
            wanted = step(probe)
        except OSError as e:
            self._fail(probe, e)
            return
        if probe.over or probe.sock is None or wanted == probe.events:
            return
        if probe.events:
            self._selector.modify(probe.sock, wanted, probe)
        else:
            self._selector.register(probe.sock, wanted, probe)
        probe.events = wanted

    def _names(self) -> None:
        with suppress(BlockingIOError):
            os.read(self._resolver.wake, 4096)
        while self._resolver.answers:
            probe, took, found = self._resolver.answers.popleft()
            if probe.over:
                continue
            if isinstance(found, OSError) or not found:
                words = found.strerror if isinstance(found, OSError) and found.strerror else "no address"
                self._end(probe, LOCAL, errno.ENOENT, f"name: {words}")
                continue
            probe.result.dns = took
            address = _choose(found, probe.target.source)
            self._guard(probe, lambda p, to=address: self._connect(p, to))  # type: ignore[misc]

    def _connect(self, probe: _Probe, address: str) -> int:
        target = probe.target
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        probe.result.dst = address
        probe.enter("connect", probe.limits.connect, self._connected)
        sock = probe.sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_SYNCNT, SYN_RETRIES)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        if target.dscp:
            level, option = (socket.IPPROTO_IPV6, socket.IPV6_TCLASS) if ":" in address else (
                socket.IPPROTO_IP, socket.IP_TOS)  # fmt: skip
            sock.setsockopt(level, option, target.dscp << 2)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, _AUTOFLOWLABEL, 0)  # as core/pinger does: retries keep their way
        if target.source:
            sock.bind((target.source, 0))
        probe.since = time.perf_counter_ns()
        plain, _, scope = address.partition("%")
        where: Any = (plain, target.port)
        if family == socket.AF_INET6:
            where = (plain, target.port, 0, _scope(scope))
        problem = sock.connect_ex(where)
        if problem not in (0, errno.EINPROGRESS):
            self._named(probe)
            # what the kernel says at once is about this host, but for a loopback that refuses
            here = LOCAL if problem != errno.ECONNREFUSED else REFUSED
            self._end(probe, here, problem, f"connect: {os.strerror(problem)}")
            return 0
        return selectors.EVENT_WRITE

    def _named(self, probe: _Probe) -> None:
        if probe.sock is not None:
            with suppress(OSError):
                probe.result.src, probe.result.sport = probe.sock.getsockname()[:2]

    def _connected(self, probe: _Probe) -> int:
        assert probe.sock is not None
        result = probe.result
        result.elapsed = time.perf_counter_ns() - probe.since
        problem = probe.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        self._named(probe)
        self._ask_kernel(probe)
        if problem:
            raise OSError(problem, os.strerror(problem))
        if probe.target.tls:
            assert self._context is not None
            context = self._context
            probe.enter("tls", probe.limits.tls, self._handshake)
            probe.sock = context.wrap_socket(probe.sock, server_hostname=probe.target.host.partition("%")[0],
                                             do_handshake_on_connect=False)  # fmt: skip
            if probe.events:  # epoll knows the descriptor, the selector does not know its new owner
                probe.events = 0
                self._forget(probe)
            return self._handshake(probe)
        return self._request(probe)

    def _forget(self, probe: _Probe) -> None:
        assert probe.sock is not None
        with suppress(KeyError, ValueError):
            self._selector.unregister(probe.sock)

    def _ask_kernel(self, probe: _Probe) -> None:
        """Round-trip time and retries of the handshake, and which way a packet was lost."""
        result = probe.result
        assert probe.sock is not None
        info = probe.sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 128)
        if len(info) < _RETRANS + 4:
            return
        rtt = struct.unpack_from("=I", info, _RTT)[0] * 1000
        result.retries = struct.unpack_from("=I", info, _RETRANS)[0]
        result.rtt = 0 if result.retries else rtt
        if result.retries == 1 and rtt:
            result.hint = REVERSE if rtt > result.elapsed / 2 else FORWARD

    def _make_context(self) -> ssl.SSLContext:
        import ssl

        if self._verify:
            return ssl.create_default_context()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # without the system's authorities: they are megabytes
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        return context

    def _handshake(self, probe: _Probe) -> int:
        import ssl

        assert isinstance(probe.sock, ssl.SSLSocket)
        try:
            probe.sock.do_handshake()
        except ssl.SSLWantReadError:
            return selectors.EVENT_READ
        except ssl.SSLWantWriteError:
            return selectors.EVENT_WRITE
        probe.result.tls = time.perf_counter_ns() - probe.since
        return self._request(probe)

    def _request(self, probe: _Probe) -> int:
        target = probe.target
        host = f"[{target.host.partition('%')[0]}]" if ":" in target.host else target.host
        probe.rest = (
            f"GET {target.path} HTTP/1.1\r\nHost: {host}:{target.port}\r\nUser-Agent: confluo-pingmesh\r\n"
            "Accept: */*\r\nConnection: close\r\n\r\n"
        ).encode()
        probe.result.payload = len(probe.rest)
        probe.enter("answer", probe.limits.first_byte, self._say)
        return self._say(probe)

    def _say(self, probe: _Probe) -> int:
        wanted = 0
        while probe.rest and not wanted:
            sent, wanted = self._try(probe, lambda s: s.send(probe.rest), selectors.EVENT_WRITE)
            probe.rest = probe.rest[sent or 0 :]
        if wanted:
            return wanted
        probe.step = self._hear
        return self._hear(probe)

    def _hear(self, probe: _Probe) -> int:
        result = probe.result
        while True:
            data, wanted = self._try(probe, lambda s: s.recv(HEAD), selectors.EVENT_READ)
            if wanted:
                return wanted
            if not result.first_byte:
                if not data:
                    self._end(probe, RESET, 0, "closed without an answer")
                    return 0
                result.first_byte = time.perf_counter_ns() - probe.since
            probe.head += data
            line = probe.head[:13]
            if not line.startswith(b"HTTP/1."[: len(line)]) or (len(line) < 12 and not data):
                self._end(probe, GARBLED, 0, "the answer is not HTTP")
                return 0
            if len(line) >= 12:
                if line[7:8].isdigit() and line[8:9] == b" " and line[9:12].isdigit():
                    result.status = int(line[9:12])
                    self._end(probe, OK, 0, "")
                else:
                    self._end(probe, GARBLED, 0, "the answer is not HTTP")
                return 0

    def _try(self, probe: _Probe, what: Callable[[socket.socket], Any], usual: int) -> tuple[Any, int]:
        """What came of it, and which events to wait for first (0: none)."""
        assert probe.sock is not None
        try:
            return what(probe.sock), 0
        except BlockingIOError:
            return None, usual
        except OSError as e:
            kind = type(e).__name__  # ssl is imported by those who use it
            if kind == "SSLWantReadError":
                return None, selectors.EVENT_READ
            if kind == "SSLWantWriteError":
                return None, selectors.EVENT_WRITE
            raise

    # -- ends

    def _late(self, now: float) -> None:
        for probe in [p for p in self._under_way if p.deadline <= now]:
            if probe.phase == "name":
                self._end(probe, LOCAL, errno.ETIMEDOUT, "name: no answer in time")
                continue
            if probe.phase == "connect":
                self._named(probe)
                with suppress(OSError):
                    self._ask_kernel(probe)
                probe.result.rtt = probe.result.hint = 0
            self._end(probe, TIMEOUT, errno.ETIMEDOUT, f"{probe.phase}: no answer in time")

    def _fail(self, probe: _Probe, e: OSError) -> None:
        if type(e).__module__ == "ssl":
            words = getattr(e, "verify_message", "") or getattr(e, "reason", "") or "failed"
            self._end(probe, GARBLED, errno.EPROTO, f"tls: {str(words).replace('_', ' ').lower()}")
            return
        number = e.errno if e.errno and e.errno > 0 else errno.EIO  # those of names are negative
        self._end(probe, _ERRORS.get(number, LOCAL), number, f"{probe.phase}: {os.strerror(number)}")

    def _end(self, probe: _Probe, outcome: int, number: int, words: str) -> None:
        result = probe.result
        result.outcome, result.errno, result.words = outcome, number, words
        if outcome != OK:
            result.rtt = result.hint = 0
            result.elapsed = time.perf_counter_ns() - probe.began  # all of it: that of the connection would mislead
        probe.over = True
        self._under_way.discard(probe)
        self._done.append(result)
        if probe.sock is not None:
            if probe.events:
                self._forget(probe)
            probe.sock.close()
            probe.sock = None


def _choose(found: list[Any], source: str) -> str:
    """The first address that our source can reach."""
    for family, _, _, _, where in found:
        if not source or (family == socket.AF_INET6) == (":" in source):
            return str(where[0])
    return str(found[0][4][0])


def _scope(name: str) -> int:
    if not name:
        return 0
    try:
        return int(name) if name.isdigit() else socket.if_nametoindex(name)
    except OSError:
        raise OSError(errno.ENODEV, os.strerror(errno.ENODEV)) from None
