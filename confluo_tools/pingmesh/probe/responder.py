"""Responder: accepts TCP probes and echoes their bytes, answers HTTP requests on the same port, and UDP probes.

    with Responder([ListenAddress("0.0.0.0", 8765)], tokens=[list.token]) as responder:     answers in its own thread
        responder.counts["connections"], responder.own_drops()

The loop is compiled (core/pingmesh/responder).  No privileges are needed.  Probes that it does not answer were dropped
by full queues of its sockets; `own_drops` counts them.
"""

from __future__ import annotations

import errno
import os
import resource
import socket
import struct
import threading
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import NamedTuple

from confluo_tools.console import ThreadErrors
from confluo_tools.core.pingmesh.responder import ResponderEngine
from confluo_tools.errors import ConfluoError, UsageError
from confluo_tools.pingmesh.agent.host_counters import HostCounters, HostCounts

PORT = 8765
BACKLOG = 1024  # connections waiting to be accepted; the kernel's somaxconn may be lower
CAPACITY = 4096  # connections at once
MAX_CAPACITY = 65000
PAYLOAD = 65536  # max bytes echoed on a connection, as in core/pingmesh/responder
DATAGRAMS = 1 << 20  # bytes of the socket buffers of datagrams
SPARE = 64  # descriptors for other uses
PAUSE = 1.0  # s after an error before it goes on answering
_TIMESTAMPNS, _PKTINFO, _RECVPKTINFO, _MEMINFO, _DROPS, _AUTOFLOWLABEL = 35, 8, 49, 55, 8, 70


class ListenAddress(NamedTuple):
    """Listen address: IP address ('0.0.0.0', '::': all of IPv4, of IPv6), port for TCP and UDP (0: any free port), and
    the class of service of answers.
    """

    address: str
    port: int = PORT
    dscp: int = 0


class Responder:
    """Listens in the network namespace of this thread; answers in a thread after `start`, or during `run`.

    As a context it starts and closes.  ``tokens``: tokens of UDP probes to answer; can be set at any time.
    ``backlog``: connections waiting to be accepted (the kernel adds one).  ``capacity``: connections at once; another
    one closes the least recently active.  ``idle``, ``life``: s without a byte, and in total, after which a connection
    is closed.  ``rate``: connections accepted per second, and UDP probes read per second (0: no limit).
    Raises UsageError for an invalid address, ConfluoError for one that is not available.
    """

    def __init__(
        self,
        listen: Sequence[ListenAddress] = (ListenAddress("0.0.0.0"), ListenAddress("::")),
        *,
        tokens: Iterable[int] = (),
        backlog: int = BACKLOG,
        capacity: int = CAPACITY,
        idle: float = 5.0,
        life: float = 20.0,
        rate: int = 0,
        udp: bool = True,
    ) -> None:
        if not 1 <= capacity <= MAX_CAPACITY:
            raise UsageError(f"{capacity} connections at once are out of range", hint=f"1 to {MAX_CAPACITY}")
        room = make_room(capacity + SPARE) - SPARE
        self.capacity = max(1, min(capacity, room))
        self._born = time.monotonic()
        self._answerer = ResponderEngine(
            capacity=self.capacity, idle=int(idle * 1e9), life=int(life * 1e9), rate=rate, document=self.document
        )
        self._thread: threading.Thread | None = None
        self._stop = False
        self._tcp: list[socket.socket] = []
        self._udp: list[socket.socket] = []
        self.bound: list[ListenAddress] = []  # with actual ports
        self.host = HostCounters()
        try:
            self.tokens = tokens
            for place in listen:
                self._open(place, backlog, udp, must=len(listen) == 1)
            if not self._tcp:
                raise ConfluoError("no address to listen on")
            self.document()  # loads its modules: after the change of user, they may be unreadable
        except BaseException:
            self.close()
            raise

    @property
    def tokens(self) -> list[int]:
        return self._answerer.tokens

    @tokens.setter
    def tokens(self, tokens: Iterable[int]) -> None:
        try:
            self._answerer.tokens = list(tokens)
        except (ValueError, OverflowError):
            raise UsageError("give up to eight 64-bit tokens, none 0", where="token") from None

    @property
    def port(self) -> int:
        """The first port."""
        return self.bound[0].port

    @property
    def counts(self) -> dict[str, int]:
        """Counters: connections, echoed (connections with payload), requests, datagrams (answered), datagrams not
        answered by reason (short, magic, token, looped, foreign, unsent), connections closed by limits (evicted, idle,
        overlong, no_room), and open: connections open now.
        """
        return self._answerer.counts

    def own_drops(self) -> int:
        """Connections dropped by full queues of our listening sockets (listen(2)), not by the network."""
        return sum(_drops(s) for s in self._tcp)

    def counters(self) -> HostCounts:
        """Counters of the host, with ``overflows`` of our own sockets: those of other sockets explain no lost probe."""
        return self.host.read()._replace(overflows=self.own_drops())

    def udp_drops(self) -> int:
        """Datagrams dropped by full buffers of our sockets."""
        return sum(_drops(s) for s in self._udp)

    def document(self) -> bytes:
        """The JSON body of GET /counters.  The host's counters are of our network namespace."""
        import json

        host = self.host.read()
        fields = {
            "overflows": host.overflows,
            "listen_drops": host.listen_drops,
            "syn_retrans": host.syn_retrans,
            "udp_drops": host.udp_drops,
            "own_drops": self.own_drops(),
            "own_udp_drops": self.udp_drops(),
            "uptime": round(time.monotonic() - self._born, 3),
            "capacity": self.capacity,
        }
        return json.dumps(fields | self.counts).encode() + b"\n"

    # -- running

    def start(self) -> None:
        """Answer in a new thread, until `stop`."""
        if self._thread is None:
            self._stop = False
            self._thread = threading.Thread(target=self._answer, name="responder", daemon=True)
            self._thread.start()

    def _answer(self) -> None:
        errors = ThreadErrors("answering failed, and is tried again")
        while not self._stop:
            try:
                self._answerer.run()
            except Exception as e:
                errors.report(e)
                if not self._stop:
                    time.sleep(PAUSE)

    def run(self, milliseconds: int = -1) -> None:
        """Answer in this thread for this many milliseconds; -1: until `wake`."""
        self._answerer.run(milliseconds)

    def wake(self) -> None:
        """End `run`, from any thread or signal handler."""
        self._answerer.wake()

    def stop(self) -> None:
        """Stop answering; the sockets stay open, and the kernel queues what arrives."""
        if self._thread is not None:
            self._stop = True
            self._answerer.wake()
            self._thread.join()
            self._thread = None

    def close(self) -> None:
        self.stop()
        for s in (*self._tcp, *self._udp):
            s.close()
        self._answerer.close()
        self.host.close()

    def __enter__(self) -> Responder:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # -- sockets

    def _open(self, place: ListenAddress, backlog: int, udp: bool, *, must: bool) -> None:
        for attempt in range(16):
            opened: list[socket.socket] = []
            try:
                tcp = _socket(place, socket.SOCK_STREAM)
                opened.append(tcp)
                if tcp is not None:
                    tcp.listen(backlog)
                    port = tcp.getsockname()[1]
                    if udp:
                        opened.append(_socket(place._replace(port=port), socket.SOCK_DGRAM))
            except OSError as e:
                for s in opened:
                    s.close()
                if e.errno == errno.EADDRINUSE and place.port == 0 and attempt < 15:
                    continue  # the port is free for TCP only
                if e.errno in (errno.EAFNOSUPPORT, errno.EPROTONOSUPPORT) and not must:
                    return  # a kernel without IPv6
                if e.errno == errno.EADDRNOTAVAIL and place.address == "::" and not must:
                    return
                raise refusal(place, e) from None
            break
        self._tcp.append(opened[0])
        self._answerer.add(opened[0].fileno(), False)
        if udp:
            self._udp.append(opened[1])
            self._answerer.add(opened[1].fileno(), True)
        self.bound.append(place._replace(port=port))


def refusal(place: ListenAddress, e: OSError) -> ConfluoError:
    """The error for an address that is not available."""
    where = f"[{place.address}]:{place.port}" if ":" in place.address else f"{place.address}:{place.port}"
    if e.errno == errno.EADDRINUSE:
        return ConfluoError("the address is in use", where=where, hint="choose another port")
    if e.errno == errno.EADDRNOTAVAIL:
        return ConfluoError("this host has no such address", where=where, hint="'ip address' lists its addresses")
    if e.errno == errno.EINVAL and place.address.lower().startswith("fe8") and "%" not in place.address:
        return ConfluoError("is a link-local address", where=where, hint=f"add the interface: {place.address}%eth0")
    if e.errno == errno.EACCES:
        return ConfluoError("no permission to listen", where=where, hint="use a port from 1024 on")
    return ConfluoError(f"cannot listen: {e.strerror}", where=where)


def _socket(place: ListenAddress, kind: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in place.address else socket.AF_INET
    address, _, scope = place.address.partition("%")
    try:
        socket.inet_pton(family, address)
        number = (socket.if_nametoindex(scope) if not scope.isdigit() else int(scope)) if scope else 0
    except OSError:
        raise UsageError("not an address", where=place.address[:60], hint="write numbers, not names") from None
    if not 0 <= place.port < 1 << 16 or not 0 <= place.dscp < 64:
        raise UsageError("invalid port or class of service", where=f"{place.port}, {place.dscp}")
    s = socket.socket(family, kind | socket.SOCK_NONBLOCK)
    try:
        if family == socket.AF_INET6:
            s.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            s.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_TCLASS, place.dscp << 2)
            s.setsockopt(socket.IPPROTO_IPV6, _AUTOFLOWLABEL, 0)  # retransmitted answers keep their path
        else:
            s.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, place.dscp << 2)
        if kind == socket.SOCK_STREAM:  # accepted connections inherit these
            s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        else:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, DATAGRAMS)
            s.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, DATAGRAMS)
            s.setsockopt(socket.SOL_SOCKET, _TIMESTAMPNS, 1)
            if family == socket.AF_INET6:
                s.setsockopt(socket.IPPROTO_IPV6, _RECVPKTINFO, 1)
            else:
                s.setsockopt(socket.IPPROTO_IP, _PKTINFO, 1)
        s.bind((address, place.port, 0, number) if family == socket.AF_INET6 else (address, place.port))
    except BaseException:
        s.close()
        raise
    return s


def _drops(s: socket.socket) -> int:
    with suppress(OSError):
        words = s.getsockopt(socket.SOL_SOCKET, _MEMINFO, 36)
        if len(words) >= 36:
            return int(struct.unpack_from("=I", words, 4 * _DROPS)[0])
    return 0


def make_room(descriptors: int) -> int:
    """Raise the limit of open files for this many more descriptors; returns how many are possible."""
    used = len(os.listdir("/proc/self/fd"))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = used + descriptors
    if soft < wanted:
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (min(wanted, hard), hard))
        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return min(descriptors, soft - used)
