"""HTTP probes, phase by phase: name lookup, connect, TLS, first byte of the response.

    prober = HttpProber()
    prober.start(parse_url("https://10.0.0.7:8443/health"))        many may be in flight
    for result in prober.poll(1.0): result.row()                   the fields of schema 'probe'

One thread, no privileges.  Names are resolved by a few other threads; a lookup that hangs delays no other.  Each probe
is a new connection from a new port, and ends with a reset, so that the port is free at once.  Redirects are not
followed.

The request and the check of the status line are written here, not by http.client: that blocks, and cannot time the
phases of hundreds of connections in one thread, set their socket options before connect, or stop after 13 bytes.
"""

from __future__ import annotations

import errno
import os
import selectors
import socket
import struct
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from confluo_tools.core.pingmesh.echo_prober import labels_change
from confluo_tools.errors import UsageError
from confluo_tools.formats.block_builder import address_columns
from confluo_tools.pingmesh.probe.name_resolver import NameResolver

if TYPE_CHECKING:
    import ssl


HTTP, HTTPS = 3, 4  # kinds of schema 'probe'; then its outcomes, hints and notes
OK, TIMEOUT, REFUSED, UNREACHABLE, RESET, LOCAL, GARBLED = 1, 2, 3, 4, 5, 6, 7
FORWARD, REVERSE, RELABEL = 1, 2, 2
IN_FLIGHT = 256
MAX_IN_FLIGHT = 4096
RESOLVERS = 4  # threads for name lookups
SYN_RETRIES = 2  # the kernel gives up after some 7 s
HEAD = 4096  # bytes per read of a response
_RTT, _RETRANS = 68, 100  # offsets in struct tcp_info
_AUTOFLOWLABEL = 70  # IPV6_AUTOFLOWLABEL
_ERRORS = {
    errno.ECONNREFUSED: REFUSED,
    errno.ETIMEDOUT: TIMEOUT,
    errno.EHOSTUNREACH: UNREACHABLE,
    errno.ENETUNREACH: UNREACHABLE,
    errno.EHOSTDOWN: UNREACHABLE,
    errno.ENETDOWN: UNREACHABLE,
    errno.ECONNRESET: RESET,
    errno.ECONNABORTED: RESET,
    errno.EPIPE: RESET,
}


class PhaseTimeouts(NamedTuple):
    """Time-outs of the phases, in s."""

    dns: float = 3.0
    connect: float = 8.0
    tls: float = 5.0
    first_byte: float = 10.0


class HttpTarget(NamedTuple):
    """``host``: name in the request and in TLS (SNI); ``address``: where to connect ('': look up ``host``); ``source``:
    source address.
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


def parse_url(text: str) -> HttpTarget:
    """The target of ``http://host[:port][/path]`` or https.  Raises UsageError."""
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
        raise UsageError(f"'{text[:80]}' has characters outside ASCII", hint="write them as %XX")
    address = ""
    for family in (socket.AF_INET, socket.AF_INET6):
        with suppress(OSError, ValueError):
            socket.inet_pton(family, host.partition("%")[0])
            address = host
    secure = parts.scheme == "https"
    return HttpTarget(secure, host, port or (443 if secure else 80), path, address)


class HttpResult:
    """Result of a probe.  Times in ns, 0: not measured.  ``problem``: text of an error."""

    __slots__ = (
        "target",
        "tag",
        "begun",
        "outcome",
        "errno",
        "src",
        "sport",
        "dst",
        "rtt",
        "elapsed",
        "retries",
        "hint",
        "dns",
        "tls",
        "first_byte",
        "status",
        "payload",
        "problem",
    )

    def __init__(self, target: HttpTarget, tag: Any) -> None:
        self.target, self.tag = target, tag
        self.begun = time.time_ns()
        self.outcome = self.errno = self.sport = self.rtt = self.elapsed = self.retries = self.hint = 0
        self.dns = self.tls = self.first_byte = self.status = self.payload = 0
        self.src = self.dst = self.problem = ""

    def row(self) -> dict[str, Any]:
        """Columns of schema `probe`; missing ones are 0."""
        row: dict[str, Any] = {
            "ts": self.begun,
            "kind": HTTPS if self.target.tls else HTTP,
            "level": 5,
            "outcome": self.outcome,
            "proto": 6,
            "src_port": self.sport,
            "dst_port": self.target.port,
            "dscp": self.target.dscp,
            "payload": self.payload,
            "retries": min(self.retries, 255),
            "hint": self.hint,
            "rtt": self.rtt,
            "elapsed": self.elapsed,
            "dns": self.dns,
            "tls": self.tls,
            "first_byte": self.first_byte,
            "status": self.status,
            "errno": self.errno,
            "dst": self.target.host,
            "detail": self.problem,
        }
        for side, address in (("src", self.src), ("dst", self.dst or self.target.address)):
            row |= address_columns(side, address)
        if self.retries and row.get("ip_version") == 6 and labels_change():
            row["notes"] = RELABEL
        return row


class _Probe:
    """A probe in flight: each phase has a deadline, and ``step`` continues it when the socket is ready."""

    __slots__ = (
        "target",
        "result",
        "limits",
        "sock",
        "deadline",
        "step",
        "phase",
        "began",
        "since",
        "rest",
        "head",
        "over",
        "events",
    )

    def __init__(self, target: HttpTarget, tag: Any, limits: PhaseTimeouts) -> None:
        self.target, self.limits = target, limits
        self.result = HttpResult(target, tag)
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


class HttpProber:
    """Many HTTP probes at once.  ``context``: TLS context (default: the system's authorities, or none with ``verify``
    False).  ``lookup``: as socket.getaddrinfo.
    """

    def __init__(
        self,
        *,
        in_flight: int = IN_FLIGHT,
        limits: PhaseTimeouts = PhaseTimeouts(),
        verify: bool = True,
        context: ssl.SSLContext | None = None,
        resolvers: int = RESOLVERS,
        lookup: Callable[..., Any] = socket.getaddrinfo,
    ) -> None:
        if not 1 <= in_flight <= MAX_IN_FLIGHT or not 1 <= resolvers <= 64:
            raise UsageError(f"{in_flight} probes in flight are out of range", hint=f"1 to {MAX_IN_FLIGHT}")
        self._max, self._limits, self._verify, self._context = in_flight, limits, verify, context
        self._selector = selectors.EpollSelector()
        self._resolver = NameResolver[_Probe](resolvers, lookup)
        self._selector.register(self._resolver.wake, selectors.EVENT_READ)
        self._under_way: set[_Probe] = set()
        self._done: list[HttpResult] = []

    @property
    def in_flight(self) -> int:
        return len(self._under_way)

    def fileno(self) -> int:
        """A descriptor that is readable when `poll` has work, except time-outs."""
        return self._selector.fileno()

    def next_deadline(self) -> float | None:
        """Monotonic time (s) of the next time-out of a phase."""
        return min((p.deadline for p in self._under_way), default=None)

    def start(self, target: HttpTarget, tag: Any = None, limits: PhaseTimeouts | None = None) -> bool:
        """Start a probe; False: too many are in flight, this one is not started."""
        if len(self._under_way) >= self._max:
            return False
        if target.tls and self._context is None:
            self._context = self._make_context()  # some 20 ms: before the probe, not in it
        probe = _Probe(target, tag, limits or self._limits)
        self._under_way.add(probe)
        if target.address:
            self._guard(probe, lambda p: self._connect(p, target.address))
        else:
            probe.enter("name", probe.limits.dns, None)
            if not self._resolver.start(probe):
                self._end(probe, LOCAL, errno.EAGAIN, "too many name lookups")
        return True

    def poll(self, seconds: float = 0.0) -> list[HttpResult]:
        """Wait up to ``seconds`` for a probe to end; returns the results of ended probes."""
        until = time.monotonic() + seconds
        while True:
            now = time.monotonic()
            first = self.next_deadline()
            wait = 0.0 if self._done else max(0.0, min(until, first if first is not None else until) - now)
            for key, _ in self._selector.select(wait):
                if key.data is None:
                    self._resolved()
                elif not key.data.over:
                    self._guard(key.data, key.data.step)
            self._time_out(time.monotonic())
            if self._done or time.monotonic() >= until:
                done, self._done = self._done, []
                return done

    def probe(self, target: HttpTarget, limits: PhaseTimeouts | None = None) -> HttpResult:
        """Run one probe to its end."""
        tag = object()
        if not self.start(target, tag, limits):
            raise UsageError(f"{self._max} probes are in flight already")
        while True:
            for result in self.poll(1.0):
                if result.tag is tag:
                    return result
                self._done.append(result)  # of another probe

    def close(self) -> None:
        """End; probes in flight are cancelled."""
        for probe in list(self._under_way):
            self._end(probe, LOCAL, errno.ECANCELED, "cancelled")
        self._done = []
        self._resolver.close()
        self._selector.close()

    def __enter__(self) -> HttpProber:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # -- phases

    def _guard(self, probe: _Probe, step: Callable[[_Probe], int]) -> None:
        """Run a step of a probe; the step returns the epoll events to wait for, 0 at the end of the probe."""
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

    def _resolved(self) -> None:
        with suppress(BlockingIOError):
            os.read(self._resolver.wake, 4096)
        while self._resolver.answers:
            probe, took, found = self._resolver.answers.popleft()
            if probe.over:
                continue
            if isinstance(found, OSError) or not found:
                text = found.strerror if isinstance(found, OSError) and found.strerror else "no address"
                self._end(probe, LOCAL, errno.ENOENT, f"name: {text}")
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
            level, option = (
                (socket.IPPROTO_IPV6, socket.IPV6_TCLASS) if ":" in address else (socket.IPPROTO_IP, socket.IP_TOS)
            )
            sock.setsockopt(level, option, target.dscp << 2)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, _AUTOFLOWLABEL, 0)  # as the echo prober: retries keep their path
        if target.source:
            sock.bind((target.source, 0))
        probe.since = time.perf_counter_ns()
        plain, _, scope = address.partition("%")
        where: Any = (plain, target.port)
        if family == socket.AF_INET6:
            where = (plain, target.port, 0, _scope(scope))
        problem = sock.connect_ex(where)
        if problem not in (0, errno.EINPROGRESS):
            self._set_source(probe)
            # an immediate error is of this host, except a refusal on loopback
            here = LOCAL if problem != errno.ECONNREFUSED else REFUSED
            self._end(probe, here, problem, f"connect: {os.strerror(problem)}")
            return 0
        return selectors.EVENT_WRITE

    def _set_source(self, probe: _Probe) -> None:
        if probe.sock is not None:
            with suppress(OSError):
                probe.result.src, probe.result.sport = probe.sock.getsockname()[:2]

    def _connected(self, probe: _Probe) -> int:
        assert probe.sock is not None
        result = probe.result
        result.elapsed = time.perf_counter_ns() - probe.since
        problem = probe.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        self._set_source(probe)
        self._read_tcp_info(probe)
        if problem:
            raise OSError(problem, os.strerror(problem))
        if probe.target.tls:
            assert self._context is not None
            context = self._context
            probe.enter("tls", probe.limits.tls, self._handshake)
            probe.sock = context.wrap_socket(
                probe.sock, server_hostname=probe.target.host.partition("%")[0], do_handshake_on_connect=False
            )
            if probe.events:  # the selector still has the socket that TLS replaced
                probe.events = 0
                self._forget(probe)
            return self._handshake(probe)
        return self._request(probe)

    def _forget(self, probe: _Probe) -> None:
        assert probe.sock is not None
        with suppress(KeyError, ValueError):
            self._selector.unregister(probe.sock)

    def _read_tcp_info(self, probe: _Probe) -> None:
        """Read round-trip time and retries of the handshake, and the direction of a loss, from TCP_INFO."""
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
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # without the system's authorities, which take megabytes
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
        probe.enter("response", probe.limits.first_byte, self._send_request)
        return self._send_request(probe)

    def _send_request(self, probe: _Probe) -> int:
        wanted = 0
        while probe.rest and not wanted:
            sent, wanted = self._try(probe, lambda s: s.send(probe.rest), selectors.EVENT_WRITE)
            probe.rest = probe.rest[sent or 0 :]
        if wanted:
            return wanted
        probe.step = self._read_response
        return self._read_response(probe)

    def _read_response(self, probe: _Probe) -> int:
        result = probe.result
        while True:
            data, wanted = self._try(probe, lambda s: s.recv(HEAD), selectors.EVENT_READ)
            if wanted:
                return wanted
            if not result.first_byte:
                if not data:
                    self._end(probe, RESET, 0, "closed without a response")
                    return 0
                result.first_byte = time.perf_counter_ns() - probe.since
            probe.head += data
            line = probe.head[:13]
            if not line.startswith(b"HTTP/1."[: len(line)]) or (len(line) < 12 and not data):
                self._end(probe, GARBLED, 0, "the response is not HTTP")
                return 0
            if len(line) >= 12:
                if line[7:8].isdigit() and line[8:9] == b" " and line[9:12].isdigit():
                    result.status = int(line[9:12])
                    self._end(probe, OK, 0, "")
                else:
                    self._end(probe, GARBLED, 0, "the response is not HTTP")
                return 0

    def _try(self, probe: _Probe, what: Callable[[socket.socket], Any], usual: int) -> tuple[Any, int]:
        """The result of an operation, or None and the events to wait for first."""
        assert probe.sock is not None
        try:
            return what(probe.sock), 0
        except BlockingIOError:
            return None, usual
        except OSError as e:
            kind = type(e).__name__  # ssl is imported only for https
            if kind == "SSLWantReadError":
                return None, selectors.EVENT_READ
            if kind == "SSLWantWriteError":
                return None, selectors.EVENT_WRITE
            raise

    # -- ends

    def _time_out(self, now: float) -> None:
        for probe in [p for p in self._under_way if p.deadline <= now]:
            if probe.phase == "name":
                self._end(probe, LOCAL, errno.ETIMEDOUT, "name: time-out")
                continue
            if probe.phase == "connect":
                self._set_source(probe)
                with suppress(OSError):
                    self._read_tcp_info(probe)
                probe.result.rtt = probe.result.hint = 0
            self._end(probe, TIMEOUT, errno.ETIMEDOUT, f"{probe.phase}: time-out")

    def _fail(self, probe: _Probe, e: OSError) -> None:
        if type(e).__module__ == "ssl":
            text = getattr(e, "verify_message", "") or getattr(e, "reason", "") or "failed"
            self._end(probe, GARBLED, errno.EPROTO, f"tls: {str(text).replace('_', ' ').lower()}")
            return
        number = e.errno if e.errno and e.errno > 0 else errno.EIO  # errors of getaddrinfo are negative
        self._end(probe, _ERRORS.get(number, LOCAL), number, f"{probe.phase}: {os.strerror(number)}")

    def _end(self, probe: _Probe, outcome: int, number: int, problem: str) -> None:
        result = probe.result
        result.outcome, result.errno, result.problem = outcome, number, problem
        if outcome != OK:
            result.rtt = result.hint = 0
            result.elapsed = time.perf_counter_ns() - probe.began  # of the whole probe, not of the connect
        probe.over = True
        self._under_way.discard(probe)
        self._done.append(result)
        if probe.sock is not None:
            if probe.events:
                self._forget(probe)
            probe.sock.close()
            probe.sock = None


def _choose(found: list[Any], source: str) -> str:
    """The first address of the IP version of ``source``."""
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
