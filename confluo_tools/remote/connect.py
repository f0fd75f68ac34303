"""Connections to `confluo serve`, through the remote shell: this end.

The shell's words come from a setting (`rsh`, `ssh` by default), then the host, then the command for the far side; no
path and no question is ever part of a command line.  Everything that is read is bounded.
"""

from __future__ import annotations

import os
import select
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, NoReturn

from confluo_tools import __version__
from confluo_tools.errors import ConfluoError, UsageError
from confluo_tools.remote import wire
from confluo_tools.remote.address import Address
from confluo_tools.remote.spawn import Child, taken

CHUNK = 1 << 18
STALL = 60.0  # seconds without a byte in the middle of a frame
ERRORS = 4096  # bytes kept of what the remote shell writes to its stderr


class Shell(NamedTuple):
    """How other hosts are reached.  ``wait``: seconds until a host must have answered."""

    rsh: str = "ssh"
    command: str = "confluo serve --stdio"
    wait: float = 30.0

    def words(self, host: str) -> list[str]:
        """Raises UsageError."""
        import shlex

        out: list[str] = []
        for name, text in (("CONFLUO_RSH", self.rsh), ("CONFLUO_REMOTE", self.command)):
            try:
                words = shlex.split(text)
            except ValueError as e:
                raise UsageError(f"cannot be split into words: {e}", where=name) from None
            if not words:
                raise UsageError("is empty", where=name)
            out += [*words, host] if not out else words
        return out


class RemoteError(ConfluoError):
    """A host cannot be reached, or does not answer as it should."""


class Peer:
    """A connection to one host.  Made, it has only begun: `greet` waits for the other end."""

    def __init__(self, address: Address, shell: Shell) -> None:
        self.address, self.shell, self.version = address, shell, ""
        self.can: frozenset[str] = frozenset()  # abilities that the other end says it has
        self.idle: Callable[[], None] | None = None
        self._have = bytearray()
        self._errors = b""
        words = shell.words(address.host)
        _ignore_sigpipe()
        try:
            self.child = taken(words) or Child(words)
        except OSError as e:
            hint = "install it, or name another in CONFLUO_RSH"
            raise RemoteError(f"cannot be run: {e.strerror}", where=words[0], hint=hint) from None
        self.out, self.fd, self.err = self.child.stdin, self.child.stdout, self.child.stderr
        self._poll = select.poll()
        self._poll.register(self.fd, select.POLLIN)
        self._poll.register(self.err, select.POLLIN)
        self._started = time.monotonic()
        try:
            self.child.greet()
        except OSError:
            self._undo()

    @property
    def name(self) -> str:
        return self.address.label

    @property
    def waiting(self) -> int:
        """Bytes that have come and were not looked at."""
        return len(self._have)

    # -- what goes out

    def send(self, *frames: bytes) -> None:
        try:
            wire.write(self.out, *frames)
        except OSError:
            self._undo()

    # -- what comes in

    def greet(self) -> None:
        """Wait for the hello of the other end.  Raises RemoteError: not reached, another version."""
        limit = self._started + self.shell.wait
        while b"\n" not in self._have and len(self._have) < wire.HELLO_BYTES:
            if not wire.HELLO.startswith(self._have[: len(wire.HELLO)]):
                break
            if not self._fill(limit):
                raise self.lost()
        line, newline, _ = bytes(self._have[: wire.HELLO_BYTES]).partition(b"\n")
        try:
            protocol, version, self.can = wire.parse_hello(line + newline)
        except (ValueError, UnicodeDecodeError):
            said = line[:60].decode("utf-8", "replace")
            what = f"answers with '{said}' instead of a greeting"
            hint = "its shell must print nothing of its own: see confluo-serve(1)"
            raise RemoteError(what, where=self.name, hint=hint) from None
        del self._have[: len(line) + 1]
        self.version = version
        if protocol != wire.PROTOCOL:
            what = f"speaks protocol {protocol} (confluo-tools {version}), this program {wire.PROTOCOL} ({__version__})"
            raise RemoteError(what, where=self.name, hint="install the same version at both ends")

    def head(self, wait: float | None = None) -> tuple[int, int]:
        """(kind, bytes of the body) of the next frame; the body is still to be read.  ``wait``: seconds for it."""
        limit = None if wait is None else time.monotonic() + wait
        while len(self._have) < wire.HEAD_BYTES:
            begun = bool(self._have)
            if not self._fill(time.monotonic() + STALL if begun else limit):
                raise self.lost()
        try:
            kind, size = wire.parse_head(bytes(self._have[: wire.HEAD_BYTES]))
        except ValueError as e:
            raise self.strange(str(e)) from None
        del self._have[: wire.HEAD_BYTES]
        return kind, size

    def body(self, size: int) -> bytes:
        while len(self._have) < size:
            if not self._fill(time.monotonic() + STALL):
                raise self.lost()
        data = bytes(self._have[:size])
        del self._have[:size]
        return data

    def some(self, most: int) -> bytes:
        """At least one byte, at most so many, of a body."""
        if not self._have and not self._fill(time.monotonic() + STALL):
            raise self.lost()
        data = bytes(self._have[:most])
        del self._have[:most]
        return data

    def into(self, out: memoryview) -> int:
        """The same, into ``out``."""
        if not self._have and len(out) >= 4096 and self._wait(time.monotonic() + STALL):
            try:
                n = os.readv(self.fd, [out])
            except OSError:
                n = 0
            if not n:
                raise self.lost()
            return n
        data = self.some(len(out))
        out[: len(data)] = data
        return len(data)

    def message(self, body: bytes) -> dict[str, Any]:
        try:
            return wire.parse(body)
        except ValueError as e:
            raise self.strange(str(e)) from None

    def receive(self, *kinds: int, wait: float | None = None) -> tuple[int, dict[str, Any]]:
        """The next frame, which must be one of ``kinds`` and JSON; an ERROR frame is raised as what it says."""
        kind, size = self.head(wait)
        if kind not in (*kinds, wire.ERROR):
            raise self.strange(f"a frame '{wire.KINDS[kind]}' out of turn")
        message = self.message(self.body(size))
        if kind == wire.ERROR:
            raise self.told(message)
        return kind, message

    # -- trouble

    def _undo(self) -> NoReturn:
        problem = self._refused()
        self.close()
        raise problem from None

    def _refused(self) -> ConfluoError:
        """Why the other end does not listen any more: what it said before it hung up."""
        try:
            if not self.version:
                self.greet()
            kind, size = self.head(1.0)
            return self.told(self.message(self.body(size))) if kind == wire.ERROR else self.lost()
        except RemoteError as e:
            return e

    def told(self, message: dict[str, Any]) -> ConfluoError:
        """The error that the other end reports."""
        try:
            what, where, hint = (wire.get(message, key, str, "")[: wire.MAX_TEXT] for key in ("what", "where", "hint"))
        except ValueError as e:
            return self.strange(str(e))
        return RemoteError(what or "reports an error", where=f"{self.name}:{where}" if where else self.name, hint=hint)

    def strange(self, what: str) -> RemoteError:
        return RemoteError(f"does not answer as it should: {what}", where=self.name)

    def lost(self) -> RemoteError:
        """Why the connection ended, in the words of the remote shell if it had any."""
        limit = time.monotonic() + 2.0
        late = self.child.poll() is None and time.monotonic() >= self._started + self.shell.wait and not self.version
        if not late:
            while self.err >= 0 and time.monotonic() < limit and self._drain(limit):
                pass
        self.close()
        said = [line.strip() for line in self._errors.decode("utf-8", "replace").splitlines() if line.strip()]
        if not self.version:
            if late:
                return RemoteError(f"does not answer for {self.shell.wait:g} s", where=self.name)
            why = said[-1] if said else f"{self.shell.words(self.address.host)[0]} ended with {self.child.returncode}"
            hint = "confluo-tools must be there, and on its PATH" if self.child.returncode == 127 else ""
            return RemoteError(f"cannot be reached: {why}", where=self.name, hint=hint)
        return RemoteError("the connection was lost" + (f": {said[-1]}" if said else ""), where=self.name)

    # -- below

    def _wait(self, limit: float | None) -> bool:
        # Until there is something to read.  False: not before `limit`.
        first = True
        while True:
            left = None if limit is None else max(limit - time.monotonic(), 0)
            if first and self.idle is not None:
                events = self._poll.poll(0)
                if not events:
                    self.idle()
                    first = False
                    continue
            else:
                events = self._poll.poll(None if left is None else left * 1000 + 1)
            if not events:
                return False
            for fd, _ in events:
                if fd == self.err:
                    self._keep_errors()
            if any(fd == self.fd for fd, _ in events):
                return True

    def _fill(self, limit: float | None) -> bool:
        # Some more bytes.  False at the end, or not before `limit`.
        if not self._wait(limit):
            return False
        try:
            data = os.read(self.fd, CHUNK)
        except OSError:
            data = b""
        self._have += data
        return bool(data)

    def _keep_errors(self) -> bool:
        try:
            data = os.read(self.err, 4096)
        except OSError:
            data = b""
        if not data:
            self._poll.unregister(self.err)
            self.err = -1
            return False
        self._errors = (self._errors + data)[-ERRORS:]
        return True

    def _drain(self, limit: float) -> bool:
        # The rest of stderr: the shell may be about to say why.
        ready, _, _ = select.select([self.err], [], [], max(limit - time.monotonic(), 0))
        return bool(ready) and self._keep_errors()

    def close(self) -> None:
        """Hang up; the other end thaws what it froze, and ends."""
        self.child.close()
        self.err = -1


def _ignore_sigpipe() -> None:
    # A peer that hangs up must be an error of ours, not our end.  Children get the default back.
    import signal

    with suppress(ValueError):  # not the main thread: whoever embeds us decides
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)


def begin(addresses: Sequence[Address], shell: Shell) -> list[Peer | RemoteError]:
    """Connections to several hosts, all on their way; an error in the place of one that cannot even begin."""
    out: list[Peer | RemoteError] = []
    try:
        for address in addresses:
            try:
                out.append(Peer(address, shell))
            except RemoteError as e:
                out.append(e)
    except BaseException:
        close(out)
        raise
    return out


def close(peers: Sequence[Peer | RemoteError]) -> None:
    """Hang up everywhere, then wait for all."""
    for peer in peers:
        if isinstance(peer, Peer):
            peer.child.hang_up()
    for peer in peers:
        if isinstance(peer, Peer):
            peer.close()

