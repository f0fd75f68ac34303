"""What a host's kernel counts beside the probes: connections that it had no room for are not the network's.  proc(5).

    counters = HostCounters()             of the network namespace that this thread is in, wherever we go later
    before = counters.read()
    counters.read() - before              Counters(overflows, listen_drops, syn_retrans, ...)
"""

from __future__ import annotations

import os
import time
from typing import NamedTuple

from confluo_tools.errors import ConfluoError

HOST = 16  # kind of schema 'probe'
WORD = 1 << 32
ROOM = 1 << 16  # bytes of /proc/net/netstat: about 6 KiB today


class Counters(NamedTuple):
    """Counts since the namespace was made, or between two readings.  ``span``: ns since boot, or between them.

    ``overflows``: connections that the queues of listening sockets had no room for (ListenOverflows).
    ``listen_drops``: all SYNs and ACKs that listening sockets dropped, those included (ListenDrops).
    ``syn_retrans``: SYNs and SYN-ACKs that were sent again, by all programs (TCPSynRetrans).
    ``opens``, ``accepts``, ``fails``: connections begun, accepted, and that came to nothing.
    ``udp_drops``: datagrams for which sockets had no room (RcvbufErrors).
    """

    overflows: int
    listen_drops: int
    syn_retrans: int
    opens: int
    accepts: int
    fails: int
    udp_drops: int
    span: int

    def __sub__(self, before: Counters) -> Counters:
        """What happened since ``before``; the kernel's counters wrap or start again, ours do not go below 0."""
        return Counters._make(_since(new, old) for new, old in zip(self, before, strict=True))


FIELDS = (
    ("TcpExt", "ListenOverflows"), ("TcpExt", "ListenDrops"), ("TcpExt", "TCPSynRetrans"), ("Tcp", "ActiveOpens"),
    ("Tcp", "PassiveOpens"), ("Tcp", "AttemptFails"), ("Udp", "RcvbufErrors"),
)  # fmt: skip


class HostCounters:
    """Reads the counters of the network namespace in which it was made.  Raises ConfluoError: there are none."""

    def __init__(self) -> None:
        self._files: list[int] = []
        try:
            for name in ("netstat", "snmp"):
                # not /proc/net: that is the namespace of the process's first thread
                path = f"/proc/thread-self/net/{name}"
                self._files.append(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
        except OSError as e:
            self.close()
            raise ConfluoError(f"cannot be read: {e.strerror}", where=path) from None

    def read(self) -> Counters:
        """The counters now; those that this kernel does not have are 0."""
        found: dict[tuple[str, str], int] = {}
        for file in self._files:
            found.update(parse(os.pread(file, ROOM, 0).decode("ascii", "replace")))
        counts = [found.get(field, 0) for field in FIELDS]
        return Counters._make([*counts, time.clock_gettime_ns(time.CLOCK_BOOTTIME)])

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


class Load(NamedTuple):
    """What this process takes: resident memory in bytes, processor time in ns, and when that was (monotonic ns)."""

    rss: int
    cpu: int
    at: int

    def share(self, before: Load) -> float:
        """Of one core, since ``before``."""
        return (self.cpu - before.cpu) / (self.at - before.at) if self.at > before.at else 0.0


def load() -> Load:
    """Of this process, now."""
    with open("/proc/self/statm", "rb") as f:
        pages = int(f.read().split()[1])
    return Load(pages * os.sysconf("SC_PAGESIZE"), time.process_time_ns(), time.monotonic_ns())


def host_row(gone: Counters, load: Load, before: Load) -> dict[str, int | float]:
    """What a record of kind host tells of the time between two readings, by columns of schema 'probe'."""
    most = (1 << 32) - 1
    return {
        "ts": time.time_ns(), "kind": HOST, "elapsed": gone.span, "overflows": min(gone.overflows, most),
        "listen_drops": min(gone.listen_drops, most), "syn_retrans": min(gone.syn_retrans, most),
        "rss": load.rss, "cpu": load.share(before),
    }  # fmt: skip


def parse(text: str) -> dict[tuple[str, str], int]:
    """(group, name) -> value, of pairs of lines as in /proc/net/netstat and snmp; what does not fit is left out."""
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
    # a counter of 32 bits went round; otherwise it is another boot's
    return new + WORD - old if WORD // 2 < old < WORD and new < WORD // 2 else new
