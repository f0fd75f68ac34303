"""Options of sockets that have no connection yet, and those that a listener gives to its connections."""

from __future__ import annotations

import ctypes
import os
import re
import socket
from collections.abc import Iterable, Iterator
from contextlib import suppress

from confluo_tools.kernel.socket_option_trace import MADE
from confluo_tools.replay.recording.socket_options import (
    BEYOND,
    IPPROTO_TCP,
    NAMES,
    SO_LINGER,
    SO_RCVBUF,
    SO_SNDBUF,
    SOL_SOCKET,
    TCP_CONGESTION,
    OptionValue,
    option_of,
)

MAX_SOCKETS = 1 << 16
_LISTEN = "0A"
_PIDFD_OPEN, _PIDFD_GETFD = 434, 438  # of every architecture
_NOT_ASKED = {"SO_SNDBUFFORCE", "SO_RCVBUFFORCE", "TCP_QUICKACK"}  # no options that getsockopt returns


class SocketOptions:
    """What is known of sockets by their addresses in the kernel, and of listeners by their ports."""

    def __init__(self) -> None:
        self._of: dict[int, dict[tuple[int, int], OptionValue]] = {}
        self._problems: dict[int, str] = {}
        self._listeners: dict[int, tuple[int, list[OptionValue], str]] = {}  # port: its socket and options

    def set(self, sk: int, level: int, option: int, value: bytes) -> None:
        """An option of a socket without a connection; `MADE`: the socket is new."""
        if level == MADE:
            self.connects(sk)
            if len(self._of) >= MAX_SOCKETS:
                del self._of[next(iter(self._of))]
            self._of[sk] = {}
            return
        found = option_of(level, option, value)
        if (level, option) in BEYOND:
            self._problems[sk] = problem_of(level, option)
        elif found is not None and sk in self._of:
            self._of[sk][level, option] = found
        for listener, options, _ in self._listeners.values():
            if listener == sk and found is not None:
                options.append(found)

    def connects(self, sk: int) -> tuple[list[OptionValue], str]:
        """The options of a socket that connects, and why it cannot be replayed."""
        return list(self._of.pop(sk, {}).values()), self._problems.pop(sk, "")

    def listens(self, sk: int, port: int) -> None:
        """A socket listens: its connections have its options.  Not one of another network namespace."""
        if sk not in self._of:
            return
        self._listeners[port] = (sk, *self.connects(sk))

    def inherited(self, port: int) -> tuple[list[OptionValue], str]:
        """The options of a connection to this port, and why it cannot be replayed."""
        return self._listeners.get(port, (0, [], ""))[1:]

    def ask_listeners(self, ports: Iterable[int]) -> None:
        """Ask sockets that listen already, in the network namespace of this thread, for their options."""
        for port, options in listener_options(frozenset(ports)):
            self._listeners[port] = (0, options, "")


def problem_of(level: int, option: int) -> str:
    """Why an option is in the way of a replay; '' if it is not."""
    name = BEYOND.get((level, option))
    return f"the program uses {name}, which is not replayed" if name else ""


def listener_options(ports: frozenset[int]) -> Iterator[tuple[int, list[OptionValue]]]:
    """(port, the options that differ from those of a new socket) of each socket that listens at one of the ports."""
    wanted = dict(_listening(ports))
    if not wanted:
        return
    for pid in [name for name in os.listdir("/proc") if name.isdigit()]:
        with suppress(OSError):  # processes end
            for fd in os.listdir(f"/proc/{pid}/fd"):
                match = re.fullmatch(r"socket:\[(\d+)\]", os.readlink(f"/proc/{pid}/fd/{fd}"))
                if match and int(match[1]) in wanted:
                    found = _options_of(int(pid), int(fd))
                    yield wanted.pop(int(match[1])), found
                    if not wanted:
                        return


def _listening(ports: frozenset[int]) -> Iterator[tuple[int, int]]:
    """(inode, port) of the sockets that listen."""
    for name in ("tcp", "tcp6"):
        with suppress(OSError), open(f"/proc/thread-self/net/{name}", encoding="ascii") as f:
            for line in f:
                words = line.split()
                if len(words) > 9 and words[3] == _LISTEN and int(words[1].rpartition(":")[2], 16) in ports:
                    yield int(words[9]), int(words[1].rpartition(":")[2], 16)


def _options_of(pid: int, fd: int) -> list[OptionValue]:
    call = ctypes.CDLL(None, use_errno=True).syscall
    process = call(_PIDFD_OPEN, pid, 0)
    if process < 0:
        return []
    copy = call(_PIDFD_GETFD, process, fd, 0)
    os.close(process)
    if copy < 0:
        return []
    with socket.socket(fileno=copy) as theirs, socket.socket(theirs.family, socket.SOCK_STREAM) as fresh:
        return [value for value in _asked(theirs) if value not in _asked(fresh)]


def _asked(s: socket.socket) -> list[OptionValue]:
    found = []
    for (level, option), name in NAMES.items():
        if name in _NOT_ASKED:
            continue
        size = 16 if (level, option) == (IPPROTO_TCP, TCP_CONGESTION) else 8 if option == SO_LINGER else 4
        with suppress(OSError):
            value = option_of(level, option, s.getsockopt(level, option, size))
            if value is not None and (level, option) in ((SOL_SOCKET, SO_SNDBUF), (SOL_SOCKET, SO_RCVBUF)):
                value = value._replace(value=value.value // 2)  # the kernel doubles them
            if value is not None:
                found.append(value)
    return found
