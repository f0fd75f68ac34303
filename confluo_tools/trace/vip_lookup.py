"""Lookup of the real destination (DIP) of a flow to a virtual address (VIP), before it is traced (007, section 4.2).

A file of lines; the first match counts:

    10.9.0.1            10.1.2.3            every flow to that address
    10.9.0.1:443        10.1.2.3:8443       to that port
    10.1.1.1:40000 10.9.0.1:443 10.1.2.4    of that source
    10.9.0.7            -                   not known: such flows are not traced

or a command that reads one flow per line, ``SOURCE PORT DESTINATION PORT``, and prints a line for each, in order:
``ADDRESS [PORT]``; ``=`` when the destination is not virtual; anything else when it is unknown.
"""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

from confluo_tools.errors import FormatError, UsageError
from confluo_tools.formats.bytestream import read_whole
from confluo_tools.units import try_ip4, try_ip6

MAX_BYTES = 64 << 20
MAX_LINES = 1 << 20
IN_FLIGHT = 1024  # queries that the command has not answered
RETRY = 5.0  # s until a command that has ended is started again
LINE = 256  # bytes of an answer


class End(NamedTuple):
    """The real destination of a flow."""

    address: bytes
    port: int


class Vips:
    """The prefixes of virtual addresses; without any, all destinations are looked up.  Raises UsageError."""

    def __init__(self, prefixes: Sequence[str]) -> None:
        import ipaddress

        self._nets: dict[int, list[tuple[int, int]]] = {4: [], 6: []}
        self.any = not prefixes
        for text in prefixes:
            try:
                net = ipaddress.ip_network(text, strict=False)
            except ValueError:
                raise UsageError(f"'{text}' is not a prefix", where="--vip", hint="write e.g. 10.9.0.0/16") from None
            self._nets[net.version].append((int(net.network_address), int(net.netmask)))

    def __contains__(self, address: bytes) -> bool:
        if self.any:
            return True
        number = int.from_bytes(address, "big")
        return any(number & mask == net for net, mask in self._nets[4 if len(address) == 4 else 6])


class FileLookup:
    """Lookup in a file.  Raises FormatError with the line."""

    waiting = 0
    problem = ""

    def __init__(self, path: str, vips: Vips) -> None:
        self._vips = vips
        self._to: dict[tuple[bytes, int, bytes, int], End | None] = {}
        self._answers: deque[tuple[object, End | None]] = deque()
        data = read_whole(path, MAX_BYTES, "mapping")
        if data.count(b"\n") > MAX_LINES:
            raise FormatError(f"has more than {MAX_LINES:,} lines", where=path)
        for number, raw in enumerate(data.decode("utf-8", "replace").splitlines(), 1):
            words = raw.split("#")[0].split()
            if words:
                self._line(f"{path}:{number}", words)

    def _line(self, where: str, words: list[str]) -> None:
        hint = "write 'VIP[:PORT] DIP[:PORT]', or a source before it"
        if len(words) not in (2, 3):
            raise FormatError("is not a mapping", where=where, hint=hint)
        source = _endpoint(words[0]) if len(words) == 3 else (b"", 0)
        vip, dip = _endpoint(words[-2]), None if words[-1] == "-" else _endpoint(words[-1])
        if source is None or vip is None or (dip is None and words[-1] != "-"):
            raise FormatError("is not a mapping", where=where, hint=hint)
        if dip is not None and len(dip[0]) != len(vip[0]):
            raise FormatError("maps one version of IP to the other", where=where)
        self._to.setdefault((*source, *vip), None if dip is None else End(*dip))

    def ask(self, what: object, src: bytes, sport: int, dst: bytes, dport: int) -> None:
        """Look up a flow; `answers` returns ``what`` with the answer."""
        self._answers.append((what, self._find(src, sport, dst, dport)))

    def _find(self, src: bytes, sport: int, dst: bytes, dport: int) -> End | None:
        for key in (
            (src, sport, dst, dport),
            (src, 0, dst, dport),
            (src, sport, dst, 0),
            (src, 0, dst, 0),
            (b"", 0, dst, dport),
            (b"", 0, dst, 0),
        ):
            if key in self._to:
                found = self._to[key]
                return None if found is None else End(found.address, found.port or dport)
        # An address that is not listed is a real one, unless --vip says that it is virtual.
        return None if not self._vips.any and dst in self._vips else End(dst, dport)

    def answers(self) -> list[tuple[object, End | None]]:
        """(what, answer) of each lookup that is done; None: unknown."""
        found = list(self._answers)
        self._answers.clear()
        return found

    def close(self) -> None:
        pass


class CommandLookup:
    """Lookup by a command that runs all the time; after ``patience`` seconds, or when it is dead, answers are unknown.

    Raises UsageError: it cannot be started.
    """

    def __init__(self, words: Sequence[str], vips: Vips, patience: float = 1.0) -> None:
        self._words, self._vips, self._patience = list(words), vips, patience
        self._pending: deque[tuple[object, End, float]] = deque()
        self._done: list[tuple[object, End | None]] = []
        self.problem = ""  # a message for the user
        self._start()

    def _start(self) -> None:
        self._out, self._in, self.dead, self._retry = b"", b"", "", 0.0
        try:
            self._child = subprocess.Popen(
                self._words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=os.environ, start_new_session=True
            )
        except OSError as e:
            raise UsageError(f"cannot be started: {e.strerror}", where="--map-command") from None
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        self._to, self._from = self._child.stdin.fileno(), self._child.stdout.fileno()
        os.set_blocking(self._to, False)
        os.set_blocking(self._from, False)

    def _again(self) -> None:
        # One that has ended is started again, now and then.
        if time.monotonic() >= self._retry:
            self.close()
            try:
                self._start()
            except UsageError as e:
                self.dead, self._retry = e.what, time.monotonic() + RETRY

    @property
    def waiting(self) -> int:
        """Questions without an answer."""
        return len(self._pending)

    def ask(self, what: object, src: bytes, sport: int, dst: bytes, dport: int) -> None:
        if dst not in self._vips:
            self._done.append((what, End(dst, dport)))
            return
        if self.dead:
            self._again()
        if self.dead or len(self._pending) >= IN_FLIGHT:
            self._done.append((what, None))
        else:
            self._out += f"{_text(src)} {sport} {_text(dst)} {dport}\n".encode()
            self._pending.append((what, End(dst, dport), time.monotonic() + self._patience))

    def answers(self) -> list[tuple[object, End | None]]:
        try:
            while self._out and not self.dead:
                self._out = self._out[os.write(self._to, self._out) :]
        except BlockingIOError:
            pass
        except OSError:
            self.dead = "has ended"
        try:
            while not self.dead:
                data = os.read(self._from, 65536)
                if not data:
                    self.dead = "has ended"
                self._in += data
                *lines, self._in = self._in.split(b"\n")
                if len(self._in) > LINE or len(lines) > len(self._pending):
                    self.dead = "printed a line without a query"
                    break
                for line in lines:
                    what, asked, _ = self._pending.popleft()
                    self._done.append((what, _answer(line, asked)))
        except BlockingIOError:
            pass
        if self._pending and time.monotonic() > self._pending[0][2]:
            self.dead = self.dead or f"did not answer within {self._patience:g} s"
        if self.dead:  # answers come in order: after a missing one the next ones cannot be assigned
            if not self._retry:
                self.problem, self._retry = self.dead, time.monotonic() + RETRY
            self._done += [(what, None) for what, _, _ in self._pending]
            self._pending.clear()
        done, self._done = self._done, []
        return done

    def close(self) -> None:
        """Its input ends; it gets a moment to end itself."""
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        for end in (self._child.stdin, self._child.stdout):
            with suppress(OSError):
                end.close()
        try:
            self._child.wait(1.0)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()


def _answer(line: bytes, asked: End) -> End | None:
    words = line.decode("ascii", "replace").split()
    if words == ["="]:
        return asked
    if len(words) not in (1, 2) or (len(words) == 2 and not (words[1].isdigit() and len(words[1]) < 6)):
        return None
    address = _address(words[0])
    port = int(words[1]) if len(words) == 2 else asked.port
    if address is None or len(address) != len(asked.address) or not 0 < port < 65536:
        return None
    return End(address, port)


def _address(word: str) -> bytes | None:
    four = try_ip4(word)
    if four is not None:
        return four.to_bytes(4, "big")
    return try_ip6(word) if ":" in word else None


def _endpoint(word: str) -> tuple[bytes, int] | None:
    # ADDRESS, ADDRESS:PORT, [ADDRESS]:PORT
    address = _address(word)
    if address is not None:
        return address, 0
    head, _, port = word.rpartition(":")
    if not (port.isascii() and port.isdigit() and len(port) < 6 and 0 < int(port) < 65536):
        return None
    if head.startswith("[") and head.endswith("]"):
        address = try_ip6(head[1:-1])
    elif ":" not in head:
        address = _address(head)
    return None if address is None else (address, int(port))


def _text(address: bytes) -> str:
    return socket.inet_ntop(socket.AF_INET if len(address) == 4 else socket.AF_INET6, address)
