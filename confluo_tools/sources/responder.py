"""The answering side of probes: TCP connections are accepted and get their bytes back, HTTP requests on the same port
an answer, datagrams with a known token go back as long as they came.

    with Responder([Listen("0.0.0.0", 8765)], tokens=[list.token]) as responder:     a thread of its own answers
        responder.counts["connections"], responder.own_drops()

The loop is compiled, see core/responder.  No privileges are needed.  Whoever is not answered by it was not answered by
the kernel either: the sockets' queues overflowed, and `own_drops` tells how often.
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

from confluo_tools.core.responder import Answerer
from confluo_tools.errors import ConfluoError, UsageError
from confluo_tools.sources.hostcounters import Counters, HostCounters

PORT = 8765
BACKLOG = 1024  # connections that wait for us; the kernel's somaxconn may allow less
CAPACITY = 4096  # connections at once
MOST = 65000
PAYLOAD = 65536  # bytes that a connection gets back, as in core/responder
DATAGRAMS = 1 << 20  # bytes of datagrams that wait for us
SPARE = 64  # descriptors that are not for connections
_TIMESTAMPNS, _PKTINFO, _RECVPKTINFO, _MEMINFO, _DROPS, _AUTOFLOWLABEL = 35, 8, 49, 55, 8, 70


class Listen(NamedTuple):
    """Where to listen: an address ('0.0.0.0' and '::' are all of IPv4 and of IPv6), a port for TCP and UDP (0: one
    that is free), and the class of service that answers are marked with.
    """

    address: str
    port: int = PORT
    dscp: int = 0


class Responder:
    """Listens from the start, in the network namespace of this thread; answers in a thread after `start`, or while
    `run` is called.  A context: starts and closes.

    ``tokens``: datagrams with one of these are answered, without any none are; may be set again at any time.
    ``backlog``: connections that may wait for us (the kernel lets one more wait).  ``capacity``: connections at once;
    another one ends the least active.  ``idle``, ``life``: s without a byte and in all after which one is ended.
    ``rate``: connections a second that are looked at, and as many datagrams (0: all).
    Raises UsageError for addresses that are none, ConfluoError for those that cannot be had.
    """

    def __init__(
        self, listen: Sequence[Listen] = (Listen("0.0.0.0"), Listen("::")), *, tokens: Iterable[int] = (),
        backlog: int = BACKLOG, capacity: int = CAPACITY, idle: float = 5.0, life: float = 20.0, rate: int = 0,
        udp: bool = True,
    ) -> None:  # fmt: skip
        if not 1 <= capacity <= MOST:
            raise UsageError(f"{capacity} connections at once are not possible", hint=f"1 to {MOST}")
        room = make_room(capacity + SPARE) - SPARE
        self.capacity = max(1, min(capacity, room))
        self._born = time.monotonic()
        self._answerer = Answerer(
            capacity=self.capacity, idle=int(idle * 1e9), life=int(life * 1e9), rate=rate, document=self.document
        )
        self._thread: threading.Thread | None = None
        self._stop = False
        self._tcp: list[socket.socket] = []
        self._udp: list[socket.socket] = []
        self.bound: list[Listen] = []  # with the ports that we got
        self.host = HostCounters()
        try:
            self.tokens = tokens
            for place in listen:
                self._open(place, backlog, udp, must=len(listen) == 1)
            if not self._tcp:
                raise ConfluoError("no address to listen on")
            self.document()  # all modules are loaded: later, they may not be ours to read
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
            raise UsageError("up to eight tokens of 64 bits, none of them 0", where="token") from None

    @property
    def port(self) -> int:
        """The first one."""
        return self.bound[0].port

    @property
    def counts(self) -> dict[str, int]:
        """What happened so far: connections, echoed (of them, with payload), requests, datagrams (answered), those not
        answered by reason (short, magic, token, looped, foreign, unsent), connections that were ended by us (evicted,
        idle, overlong, no_room), and open: those there are now.
        """
        return self._answerer.counts

    def own_drops(self) -> int:
        """Connections that our listening sockets had no room for: not the network's doing (listen(2))."""
        return sum(_drops(s) for s in self._tcp)

    def counters(self) -> Counters:
        """Those of the host, but for ``overflows``: of our own sockets, because what others had no room for excuses
        no probe that was lost on its way to us.
        """
        return self.host.read()._replace(overflows=self.own_drops())

    def udp_drops(self) -> int:
        """Datagrams that our sockets had no room for."""
        return sum(_drops(s) for s in self._udp)

    def document(self) -> bytes:
        """What GET /counters answers: JSON.  The host's counters are of our network namespace."""
        import json

        host = self.host.read()
        told = {"overflows": host.overflows, "listen_drops": host.listen_drops, "syn_retrans": host.syn_retrans,
                "udp_drops": host.udp_drops, "own_drops": self.own_drops(), "own_udp_drops": self.udp_drops(),
                "uptime": round(time.monotonic() - self._born, 3), "capacity": self.capacity}  # fmt: skip
        return json.dumps(told | self.counts).encode() + b"\n"

    # -- running

    def start(self) -> None:
        """Answer in a thread of its own, until `stop`."""
        if self._thread is None:
            self._stop = False
            self._thread = threading.Thread(target=self._answer, name="responder", daemon=True)
            self._thread.start()

    def _answer(self) -> None:
        while not self._stop:
            self._answerer.run()

    def run(self, milliseconds: int = -1) -> None:
        """Answer in this thread for that long; -1: until `wake`."""
        self._answerer.run(milliseconds)

    def wake(self) -> None:
        """End `run`, from any thread or signal handler."""
        self._answerer.wake()

    def stop(self) -> None:
        """Answer no more; the sockets stay, and what comes waits in the kernel's queues."""
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

    def _open(self, place: Listen, backlog: int, udp: bool, *, must: bool) -> None:
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
                    continue  # that number was free for TCP only
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


def refusal(place: Listen, e: OSError) -> ConfluoError:
    """Why we cannot listen there."""
    where = f"[{place.address}]:{place.port}" if ":" in place.address else f"{place.address}:{place.port}"
    if e.errno == errno.EADDRINUSE:
        return ConfluoError("another program listens there", where=where, hint="choose another port")
    if e.errno == errno.EADDRNOTAVAIL:
        return ConfluoError("this host has no such address", where=where, hint="'ip address' lists what it has")
    if e.errno == errno.EINVAL and place.address.lower().startswith("fe8") and "%" not in place.address:
        return ConfluoError("is an address of each link", where=where, hint=f"say of which: {place.address}%eth0")
    if e.errno == errno.EACCES:
        return ConfluoError("you may not listen there", where=where, hint="ports from 1024 on are everybody's")
    return ConfluoError(f"cannot be listened on: {e.strerror}", where=where)


def _socket(place: Listen, kind: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in place.address else socket.AF_INET
    address, _, scope = place.address.partition("%")
    try:
        socket.inet_pton(family, address)
        number = (socket.if_nametoindex(scope) if not scope.isdigit() else int(scope)) if scope else 0
    except OSError:
        raise UsageError("is not an address", where=place.address[:60], hint="write numbers, not names") from None
    if not 0 <= place.port < 1 << 16 or not 0 <= place.dscp < 64:
        raise UsageError("no such port or class of service", where=f"{place.port}, {place.dscp}")
    s = socket.socket(family, kind | socket.SOCK_NONBLOCK)
    try:
        if family == socket.AF_INET6:
            s.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            s.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_TCLASS, place.dscp << 2)
            s.setsockopt(socket.IPPROTO_IPV6, _AUTOFLOWLABEL, 0)  # answers that are sent again keep their way
        else:
            s.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, place.dscp << 2)
        if kind == socket.SOCK_STREAM:  # what is set here, its connections have, too
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
    """Let this process have so many more descriptors than it has, as far as it may; how many it then can have."""
    used = len(os.listdir("/proc/self/fd"))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = used + descriptors
    if soft < wanted:
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (min(wanted, hard), hard))
        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return min(descriptors, soft - used)
