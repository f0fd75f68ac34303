"""Commands that run in the namespaces of hosts while there is traffic, and get SIGINT after it."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import net
from topology import Mistake

PATIENCE = 20.0  # s for a command to open its socket, and for one to end
SETTLE = 0.3  # s from its open socket to the first packet that it takes, at least: a busy machine takes longer
UNDERWAY = 0.5  # s until the last packets have come, and the kernel has reported the last sockets
LISTENERS = ("capture", "tcpdump", "dumpcap", "tshark", "retx")
INET_DIAG = "4"
DROP_ALL = "bpf filter (1):  0x06 0 0 0,"  # as ss prints it: return 0


class Agents:
    """``start`` them, ``wait`` until they listen, ``end`` them."""

    def __init__(self) -> None:
        self._running: list[subprocess.Popen[bytes]] = []
        self._due: list[tuple[subprocess.Popen[bytes], str, str, int]] = []  # with the sockets that there will be
        self._sockets: dict[str, int] = {}

    def start(self, space: str, command: str, folder: Path | None = None, **environment: str) -> None:
        """Run a line of shell in a namespace, in ``folder``."""
        self._sockets.setdefault(space, listening(space))
        child = subprocess.Popen(
            ["ip", "netns", "exec", space, "sh", "-c", command],
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            cwd=folder,
            env=os.environ | environment,
        )
        self._running.append(child)
        if any(word in command.split()[0] for word in LISTENERS):
            self._sockets[space] += 1
            self._due.append((child, space, command, self._sockets[space]))

    def wait(self) -> None:
        """A capture has begun when its socket is open; other commands give no sign."""
        begun = time.monotonic()
        for child, space, command, sockets in self._due:
            while listening(space) < sockets:
                if child.poll() is not None:
                    raise Mistake(f"'{command}' ended with status {child.returncode} before the traffic began")
                if time.monotonic() > begun + PATIENCE:
                    raise Mistake(f"'{command}' does not begin to listen")
                time.sleep(0.02)
        if self._due:
            time.sleep(max(SETTLE, time.monotonic() - begun))
        self._due.clear()

    def join(self) -> int:
        """Wait until all of them have ended by themselves; their worst exit status."""
        return max(abs(child.wait()) for child in self._running)

    def settle(self) -> None:
        """After the traffic: what is under way to them, or to anybody, arrives."""
        time.sleep(UNDERWAY)

    def end(self) -> int:
        """SIGINT, the last first; 0 if all of them end well."""
        status = 0
        for child in reversed(self._running):
            if child.poll() is None:
                os.killpg(child.pid, signal.SIGINT)
        for child in self._running:
            try:
                status = max(status, child.wait(PATIENCE) not in (0, 130, -2))
            except subprocess.TimeoutExpired:
                os.killpg(child.pid, signal.SIGKILL)
                child.wait()
                status = 2
        self._running.clear()
        return status


def listening(space: str) -> int:
    """Sockets that take packets, and those that have joined a group of sock_diag.

    A capture opens its sockets with a filter that drops all packets, and replaces that when its output is ready, which
    may take seconds on a busy machine.
    """
    with net.inside(space):
        packets = Path("/proc/thread-self/net/packet").read_text().splitlines()
        netlink = [line.split() for line in Path("/proc/thread-self/net/netlink").read_text().splitlines()]
    closed = 0
    if len(packets) > 1:
        with suppress(Mistake, FileNotFoundError):  # a kernel or machine without packet_diag or ss: then it is unknown
            filters = net.run("ip", "netns", "exec", space, "ss", "--packet", "--bpf", "--no-header", "--numeric")
            closed = filters.count(DROP_ALL)
    return len(packets) - closed + sum(words[1] == INET_DIAG and int(words[3], 16) != 0 for words in netlink[1:])
