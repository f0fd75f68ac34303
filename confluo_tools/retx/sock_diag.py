"""Losses of the TCP sockets of this network namespace, as records.  sock_diag(7), tracefs.

watch = open_watch(follow=True)         opens sockets and trace buffers; privileges may be dropped now
watch.begin()                           starts to record
for block in watch: ...                 rows of the schema retx, until watch.stop()
"""

from __future__ import annotations

import os
import select
import socket
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from confluo_tools.core.retx.sock_diag_poller import SockDiagPoller
from confluo_tools.errors import ConfluoError
from confluo_tools.kernel.network_namespace import inside
from confluo_tools.schema import Schema, builtin
from confluo_tools.units import format_duration

if TYPE_CHECKING:
    from confluo_tools.core.block.block import Block
    from confluo_tools.kernel.tracefs import RetransmissionTrace

FLOWS = 65536
CPU = 0.03  # of a core
TICK = 0.1  # s between two rounds
SETTLE = 100_000_000  # ns to wait for a DSACK after a retransmission
POLL = 1.0  # s between two polls of all sockets
POLL_TRACED = 10.0  # the same, when retransmissions are traced
BURST = 2.0  # s over which the limit holds
RECEIVE = 4 << 20  # bytes of notifications that wait in the kernel
_SOCK_DIAG, _ADD_MEMBERSHIP, _SOL_NETLINK, _RCVBUFFORCE, _MEMINFO = 4, 1, 270, 33, 55
_TCP_DESTROY, _TCP6_DESTROY = 1, 3


class SockDiagWatch:
    """Losses of TCP sockets, live.  Iterates as Blocks; `open_watch` makes it.

    ``all``: include sockets without losses.  ``tell`` gets a line when events were missed.
    """

    def __init__(
        self,
        *,
        follow: bool,
        all: bool,
        tracing: RetransmissionTrace | None,
        sockets: Sequence[socket.socket | None],
        flows: int = FLOWS,
        cpu: float = CPU,
        interval: float | None = None,
        seconds: float | None = None,
        snmp: int = -1,
        tell: Callable[[str], None] | None = None,
    ) -> None:
        self.schema: Schema = builtin("retx")
        self._ends, self._ask, self._dump = sockets
        self._tracing = tracing
        self._follow, self._cpu, self._seconds = follow, cpu, seconds
        self._interval = interval if interval is not None else POLL_TRACED if tracing is not None else POLL
        self._tell = tell or (lambda line: None)
        self._snmp = snmp
        self._stop = False
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.late = 0.0  # s that rounds had to wait to keep the limit
        self.agent = SockDiagPoller(
            self.schema.layout,
            ends=self._ends.fileno() if self._ends is not None else -1,
            ask=self._ask.fileno(),  # type: ignore[union-attr]
            dump=self._dump.fileno(),  # type: ignore[union-attr]
            all=all,
            flows=flows,
            settle=SETTLE if follow else 0,
            **(tracing.arguments if tracing is not None else {}),
        )

    def __enter__(self) -> SockDiagWatch:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        for one in (self._ends, self._ask, self._dump):
            if one is not None:
                one.close()
        if self._tracing is not None:
            self._tracing.close()
        for fd in (self._wake, self._snmp):
            if fd >= 0:
                os.close(fd)
        self._wake = self._snmp = -1

    @property
    def sources(self) -> list[str]:
        """Descriptions of the sources."""
        found = []
        if self._ends is not None:
            found.append("ends of sockets")
        if self._tracing is not None:
            found.append("traced retransmissions")
        return [*found, f"a look at all sockets every {format_duration(round(self._interval * 1e9))}"]

    def stop(self) -> None:
        """End after the pending records.  May be called from a signal handler."""
        self._stop = True
        with suppress(OSError):
            os.eventfd_write(self._wake, 1)

    def begin(self) -> None:
        """Start to record."""
        self._before = self.retransmitted()
        if self._tracing is not None:
            self._tracing.begin()
        self.agent.begin()

    def __iter__(self) -> Iterator[Block]:
        if self._follow:
            yield from self._live()
        self.agent.last()
        while True:
            block = self.agent.step()
            if block is not None:
                yield block
            if not (self.agent.more or self.agent.busy):
                break
        if self._follow:
            self._report(last=True)

    def _live(self) -> Iterator[Block]:
        agent, now = self.agent, time.monotonic()
        end = now + self._seconds if self._seconds is not None else None
        next_poll, next_report = now + self._interval, now + 1.0
        worked = self._work = time.process_time()
        most = credit = BURST * self._cpu
        before = now
        waiting = select.poll()
        waiting.register(self._wake, select.POLLIN)
        while not self._stop and (end is None or now < end):
            block = agent.step()
            if block is not None:
                yield block
            if now >= next_poll and not agent.busy:
                agent.poll()
                next_poll = now + self._interval
            now = time.monotonic()
            if now >= next_report:
                next_report = now + 1.0
                self._report()
            work = time.process_time()
            credit = min(credit + (now - before) * self._cpu, most) - (work - worked)
            worked, before = work, now
            pause = 0.0 if agent.more else TICK
            if credit < 0:
                pause = max(pause, -credit / self._cpu)
                self.late += pause - TICK
            if end is not None:
                pause = min(pause, max(end - now, 0.0))
            waiting.poll(pause * 1000)
            now = time.monotonic()

    # -- what was missed

    _before = 0
    _said: tuple[int, ...] = (0, 0, 0, 0)

    def lost(self) -> int:
        """Ends of sockets that the kernel could not report for lack of buffer space."""
        if self._ends is None:
            return 0
        words = self._ends.getsockopt(socket.SOL_SOCKET, _MEMINFO, 36)
        return int(struct.unpack("9I", words[:36])[8]) if len(words) >= 36 else 0

    def untraced(self) -> int:
        """Events for which the trace buffers had no room."""
        return self._tracing.lost() if self._tracing is not None else 0

    def retransmitted(self) -> int:
        """Retransmissions of this network namespace since it was created (/proc/net/snmp); 0: unknown."""
        try:
            lines = [line.split() for line in os.pread(self._snmp, 65536, 0).splitlines() if line.startswith(b"Tcp:")]
            return int(lines[1][lines[0].index(b"RetransSegs")])
        except (OSError, ValueError, IndexError):
            return 0

    def _report(self, *, last: bool = False) -> None:
        ends, events, counts = self.lost(), self.untraced(), self.agent.counts
        now = (ends, events, counts["excess"], counts["unfollowed"])
        if ends > self._said[0]:
            self._tell(f"{ends - self._said[0]} ends of sockets were missed: too many at once")
            if not last:
                self.agent.poll()
        if events > self._said[1]:
            self._tell(f"{events - self._said[1]} retransmissions were not traced one by one: too many at once")
        if now[2] > self._said[2]:
            self._tell(f"{now[2] - self._said[2]} traced retransmissions belong to flows beyond --flows")
        if now[3] > self._said[3] == 0:
            self._tell("more sockets than --flows: the others are recorded when they end")
        self._said = now

    @property
    def counts(self) -> dict[str, int]:
        """What happened so far, by name."""
        counts = self.agent.counts
        return counts | {
            "lost_ends": self.lost(),
            "untraced": self.untraced(),
            "kernel_retrans": self.retransmitted() - self._before,
        }


def open_watch(
    *,
    follow: bool = False,
    all: bool = False,
    trace: str = "auto",
    netns: str | None = None,
    flows: int = FLOWS,
    cpu: float = CPU,
    interval: float | None = None,
    seconds: float | None = None,
    tell: Callable[[str], None] | None = None,
) -> SockDiagWatch:
    """Open the sockets and trace buffers.  ``trace``: 'auto', 'always' or 'never'.  ``netns``: a name or path.

    Raises ConfluoError, UsageError.
    """
    say = tell or (lambda line: None)
    tracing = None
    if follow and trace != "never":
        from confluo_tools.kernel.tracefs import open_tracing

        try:
            tracing = open_tracing()
        except ConfluoError as e:
            if trace == "always":
                raise
            say(f"{e}; retransmissions are not traced one by one")
    sockets: list[socket.socket | None] = []
    try:
        with inside(netns):
            sockets.append(_listener(all, say) if follow else None)
            sockets += [_diag(), _diag()]
            snmp = _open("/proc/thread-self/net/snmp")
    except BaseException:
        for one in sockets:
            if one is not None:
                one.close()
        if tracing is not None:
            tracing.close()
        raise
    return SockDiagWatch(
        follow=follow,
        all=all,
        tracing=tracing,
        sockets=sockets,
        flows=flows,
        cpu=cpu,
        interval=interval,
        seconds=seconds,
        snmp=snmp,
        tell=tell,
    )


def _open(path: str) -> int:
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return -1


def _diag() -> socket.socket:
    try:
        one = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _SOCK_DIAG)
    except OSError as e:
        raise ConfluoError(f"the kernel has no sock_diag: {e.strerror}", hint="CONFIG_INET_DIAG") from None
    try:
        one.bind((0, 0))
        with suppress(OSError):
            one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
    except BaseException:
        one.close()
        raise
    return one


def _listener(all: bool, say: Callable[[str], None]) -> socket.socket | None:
    """A socket that receives the ends of all TCP sockets, or (unless ``all``) of those that retransmitted."""
    from confluo_tools.kernel import bpf

    one = _diag()
    try:
        try:
            one.setsockopt(socket.SOL_SOCKET, _RCVBUFFORCE, RECEIVE)
        except OSError:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE)
        if not all:
            bpf.attach(one.fileno(), retransmitters())
        for group in (_TCP_DESTROY, _TCP6_DESTROY):
            one.setsockopt(_SOL_NETLINK, _ADD_MEMBERSHIP, group)
    except OSError as e:
        one.close()
        say(f"cannot receive ends of sockets: {e.strerror}; polling finds them")
        return None
    return one


def retransmitters() -> bytes:
    """A BPF program that keeps the ends of sockets that have retransmitted.

    It reads tcpi_total_retrans in the attribute INET_DIAG_INFO.  Sockets that are already disconnected, without
    counters, are kept too: their cookie identifies them.
    """
    nlattr = 0xFFFFF000 + 12  # SKF_AD_OFF + SKF_AD_NLATTR: the attribute of type X from offset A on
    program = [
        (0x28, 0, 0, 16 + 6),  # the other port
        (0x15, 7, 0, 0),  # none: keep
        (0x00, 0, 0, 16 + 72),  # A = where attributes begin
        (0x01, 0, 0, 2),  # X = INET_DIAG_INFO
        (0x20, 0, 0, nlattr),
        (0x15, 4, 0, 0),  # there is none: drop
        (0x07, 0, 0, 0),  # X = A
        (0x40, 0, 0, 4 + 100),
        (0x15, 1, 0, 0),  # nothing was sent again: drop
        (0x06, 0, 0, 0xFFFFFFFF),
        (0x06, 0, 0, 0),
    ]
    return b"".join(struct.pack("HBBI", *line) for line in program)
