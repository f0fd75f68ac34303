"""Kernel counters of this host, proc(5): connections dropped by full queues are not lost in the network.

counters = HostCounters()             of the current network namespace of this thread, for good
before = counters.read()
counters.read() - before              HostCounts(overflows, listen_drops, syn_retrans, ...)
"""

from __future__ import annotations

import os
import time
from typing import NamedTuple

from confluo_tools.errors import ConfluoError

HOST = 16  # kind of schema 'probe'
WORD = 1 << 32
ROOM = 1 << 16  # bytes of /proc/net/netstat: about 6 KiB today


class HostCounts(NamedTuple):
    """Counts since the namespace was created, or between two readings.  ``span``: ns since boot, or between them.

    ``overflows``: connections dropped by full queues of listening sockets (ListenOverflows).
    ``listen_drops``: all SYNs and ACKs that listening sockets dropped, those included (ListenDrops).
    ``syn_retrans``: SYNs and SYN-ACKs that were sent again, by all programs (TCPSynRetrans).
    ``opens``, ``accepts``, ``fails``: connections started, accepted, failed.
    ``udp_drops``: datagrams dropped by full receive buffers (RcvbufErrors).
    """

    overflows: int
    listen_drops: int
    syn_retrans: int
    opens: int
    accepts: int
    fails: int
    udp_drops: int
    span: int

    def __sub__(self, before: HostCounts) -> HostCounts:
        """The difference; kernel counters may wrap or restart, the difference is never negative."""
        return HostCounts._make(_since(new, old) for new, old in zip(self, before, strict=True))


FIELDS = (
    ("TcpExt", "ListenOverflows"),
    ("TcpExt", "ListenDrops"),
    ("TcpExt", "TCPSynRetrans"),
    ("Tcp", "ActiveOpens"),
    ("Tcp", "PassiveOpens"),
    ("Tcp", "AttemptFails"),
    ("Udp", "RcvbufErrors"),
)


class HostCounters:
    """Reader of the counters of one network namespace.  Raises ConfluoError if they cannot be opened."""

    def __init__(self) -> None:
        self._files: list[int] = []
        try:
            for name in ("netstat", "snmp"):
                # not /proc/net: it is of the namespace of the process's first thread
                path = f"/proc/thread-self/net/{name}"
                self._files.append(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
        except OSError as e:
            self.close()
            raise ConfluoError(f"cannot read: {e.strerror}", where=path) from None

    def read(self) -> HostCounts:
        """The counters now; 0 for counters that this kernel lacks."""
        found: dict[tuple[str, str], int] = {}
        for file in self._files:
            found.update(parse(os.pread(file, ROOM, 0).decode("ascii", "replace")))
        counts = [found.get(field, 0) for field in FIELDS]
        return HostCounts._make([*counts, time.clock_gettime_ns(time.CLOCK_BOOTTIME)])

    def close(self) -> None:
        for file in self._files:
            os.close(file)
        self._files = []

    def __enter__(self) -> HostCounters:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()


class ProcessLoad(NamedTuple):
    """Resident memory (bytes) and processor time (ns) of this process, at a time (monotonic ns)."""

    rss: int
    cpu: int
    at: int

    def share(self, before: ProcessLoad) -> float:
        """Share of one core since ``before``."""
        return (self.cpu - before.cpu) / (self.at - before.at) if self.at > before.at else 0.0


def load() -> ProcessLoad:
    """The load of this process now."""
    with open("/proc/self/statm", "rb") as f:
        pages = int(f.read().split()[1])
    return ProcessLoad(pages * os.sysconf("SC_PAGESIZE"), time.process_time_ns(), time.monotonic_ns())


def host_row(gone: HostCounts, load: ProcessLoad, before: ProcessLoad) -> dict[str, int | float]:
    """A record of kind `host` for the time between two readings, by columns of schema `probe`."""
    max_u32 = (1 << 32) - 1
    return {
        "ts": time.time_ns(),
        "kind": HOST,
        "elapsed": gone.span,
        "overflows": min(gone.overflows, max_u32),
        "listen_drops": min(gone.listen_drops, max_u32),
        "syn_retrans": min(gone.syn_retrans, max_u32),
        "rss": load.rss,
        "cpu": load.share(before),
    }


def parse(text: str) -> dict[tuple[str, str], int]:
    """{(group, name): value} of the line pairs of /proc/net/netstat and snmp; invalid lines are skipped."""
    found: dict[tuple[str, str], int] = {}
    lines = text.splitlines()
    for names, values in zip(lines[::2], lines[1::2], strict=False):
        group, _, head = names.partition(":")
        again, _, body = values.partition(":")
        if group == again:
            for name, value in zip(head.split(), body.split(), strict=False):
                if value.lstrip("-").isdigit():
                    found[group, name] = int(value)
    return found


def _since(new: int, old: int) -> int:
    if new >= old:
        return new - old
    # a 32-bit counter wrapped, or the host rebooted
    return new + WORD - old if WORD // 2 < old < WORD and new < WORD // 2 else new
