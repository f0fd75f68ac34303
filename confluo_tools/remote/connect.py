"""Connections to `confluo serve` through the remote shell: the client.

The command line is the setting `rsh` (`ssh` by default), the host, and the setting `remote`; paths and expressions are
never part of it.  All reads are bounded.
"""

from __future__ import annotations

import os
import select
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, NoReturn

from confluo_tools import __version__
from confluo_tools.errors import BusyError, ConfluoError, UsageError
from confluo_tools.remote import frame_codec
from confluo_tools.remote.address import Address
from confluo_tools.remote.ssh_process import SshProcess, take_started

CHUNK = 1 << 18
STALL = 60.0  # seconds without a byte in the middle of a frame, from a server that sends no ALIVE frames
ERRORS = 4096  # bytes kept of what the remote shell writes to its stderr


class RemoteShell(NamedTuple):
    """The remote shell.

    ``wait``: seconds within which a host must answer; ``silence``: seconds without a byte after which a server that
    sends ALIVE frames counts as stopped.
    """

    rsh: str = "ssh"
    command: str = "confluo serve --stdio"
    wait: float = 30.0
    silence: float = 30.0

    def words(self, host: str) -> list[str]:
        """The command line for ``host``.  Raises UsageError."""
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
    """A host cannot be reached, or violates the protocol."""


class HostLostError(RemoteError):
    """A host stopped in the middle of its answer."""


class Connection:
    """A connection to one host.  The constructor starts it; `greet` waits for the server."""

    def __init__(self, address: Address, shell: RemoteShell) -> None:
        self.address, self.shell, self.version = address, shell, ""
        self.can: frozenset[str] = frozenset()  # abilities that the server reports
        self.idle: Callable[[], None] | None = None
        self._have = bytearray()
        self._errors = b""
        words = shell.words(address.host)
        _ignore_sigpipe()
        try:
            self.child = take_started(words) or SshProcess(words)
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
        """Bytes that were received and not parsed yet."""
        return len(self._have)

    # -- sending

    def send(self, *frames: bytes) -> None:
        try:
            frame_codec.write(self.out, *frames)
        except OSError:
            self._undo()

    # -- receiving

    def greet(self) -> None:
        """Wait for the hello of the server.  Raises RemoteError: not reached, or another version."""
        limit = self._started + self.shell.wait
        while b"\n" not in self._have and len(self._have) < frame_codec.HELLO_BYTES:
            if not frame_codec.HELLO.startswith(self._have[: len(frame_codec.HELLO)]):
                break
            if not self._fill(limit):
                raise self.lost()
        line, newline, _ = bytes(self._have[: frame_codec.HELLO_BYTES]).partition(b"\n")
        try:
            protocol, version, self.can = frame_codec.parse_hello(line + newline)
        except (ValueError, UnicodeDecodeError):
            said = line[:60].decode("utf-8", "replace")
            what = f"answers with '{said}' instead of a greeting"
            hint = "its shell must print nothing of its own: see confluo-serve(1)"
            raise RemoteError(what, where=self.name, hint=hint) from None
        del self._have[: len(line) + 1]
        self.version = version
        if protocol != frame_codec.PROTOCOL:
            ours = f"this program {frame_codec.PROTOCOL} ({__version__})"
            what = f"speaks protocol {protocol} (confluo-tools {version}), {ours}"
            raise RemoteError(what, where=self.name, hint="install the same version at both ends")

    def head(self, wait: float | None = None) -> tuple[int, int]:
        """(kind, size of the body) of the next frame, without the body.  ALIVE frames are skipped.

        ``wait``: seconds until the frame, or an ALIVE frame, begins; without it only a server that sends such frames
        has a limit.
        """
        if wait is None and self._lives:
            wait = self.shell.silence
        while True:
            while len(self._have) < frame_codec.HEAD_BYTES:
                self._more(self._stall if self._have else wait)
            try:
                kind, size = frame_codec.parse_head(bytes(self._have[: frame_codec.HEAD_BYTES]))
            except ValueError as e:
                raise self.protocol_error(str(e)) from None
            del self._have[: frame_codec.HEAD_BYTES]
            if kind != frame_codec.ALIVE:
                return kind, size
            if size:
                raise self.protocol_error("a frame 'alive' with a body")

    @property
    def _lives(self) -> bool:
        # Whether the server sends ALIVE frames while it works on an answer.
        return "alive" in self.can

    @property
    def _stall(self) -> float:
        return self.shell.silence if self._lives else STALL

    def body(self, size: int) -> bytes:
        while len(self._have) < size:
            self._more(self._stall)
        data = bytes(self._have[:size])
        del self._have[:size]
        return data

    def some(self, most: int) -> bytes:
        """At least 1 and at most ``most`` bytes of a body."""
        if not self._have:
            self._more(self._stall)
        data = bytes(self._have[:most])
        del self._have[:most]
        return data

    def into(self, out: memoryview) -> int:
        """Read part of a body into ``out``; the number of bytes."""
        if not self._have and len(out) >= 4096:
            self._await(self._stall)
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
            return frame_codec.parse(body)
        except ValueError as e:
            raise self.protocol_error(str(e)) from None

    def receive(self, *kinds: int, wait: float | None = None) -> tuple[int, dict[str, Any]]:
        """The next frame, JSON of one of ``kinds``.  Raises the error of an ERROR frame."""
        kind, size = self.head(wait)
        if kind not in (*kinds, frame_codec.ERROR):
            raise self.protocol_error(f"a frame '{frame_codec.KINDS[kind]}' out of turn")
        message = self.message(self.body(size))
        if kind == frame_codec.ERROR:
            raise self.reported(message)
        return kind, message

    def require(self, ability: str, what: str) -> None:
        """Greet the server.  Raises RemoteError: it is not reached, or without the ability it ``what``."""
        if not self.version:
            self.greet()
        if ability not in self.can:
            hint = "install the same version at both ends"
            raise RemoteError(f"runs confluo-tools {self.version}, which {what}", where=self.name, hint=hint)

    # -- errors

    def silent(self, seconds: float) -> HostLostError:
        """The error for a server that sent nothing for a while; its shell is ended."""
        self.child.kill()  # it may be stopped, and would not see that the connection ends
        self.close()
        hint = "its server or the network has stopped"
        return HostLostError(f"sent nothing for {seconds:g} s", where=self.name, hint=hint)

    def _undo(self) -> NoReturn:
        problem = self._refused()
        self.close()
        raise problem from None

    def _refused(self) -> ConfluoError:
        """The reason why the server hung up: its last message."""
        try:
            if not self.version:
                self.greet()
            kind, size = self.head(1.0)
            return self.reported(self.message(self.body(size))) if kind == frame_codec.ERROR else self.lost()
        except RemoteError as e:
            return e

    def reported(self, message: dict[str, Any]) -> ConfluoError:
        """The error in an ERROR frame."""
        try:
            what, where, hint = (
                frame_codec.get(message, key, str, "")[: frame_codec.MAX_TEXT] for key in ("what", "where", "hint")
            )
        except ValueError as e:
            return self.protocol_error(str(e))
        kind = BusyError if message.get("kind") == BusyError.__name__ else RemoteError
        return kind(what or "reports an error", where=f"{self.name}:{where}" if where else self.name, hint=hint)

    def protocol_error(self, what: str) -> RemoteError:
        return RemoteError(f"protocol error: {what}", where=self.name)

    def lost(self) -> RemoteError:
        """The reason why the connection ended: the last line on stderr of the remote shell, if there is one."""
        limit = time.monotonic() + 2.0
        late = self.child.poll() is None and time.monotonic() >= self._started + self.shell.wait and not self.version
        if not late:
            while self.err >= 0 and time.monotonic() < limit and self._drain(limit):
                pass
        self.close()
        said = [line.strip() for line in self._errors.decode("utf-8", "replace").splitlines() if line.strip()]
        if not self.version:
            if late:
                return RemoteError(f"did not answer within {self.shell.wait:g} s", where=self.name)
            why = said[-1] if said else f"{self.shell.words(self.address.host)[0]} ended with {self.child.returncode}"
            hint = "confluo-tools must be there, and on its PATH" if self.child.returncode == 127 else ""
            return RemoteError(f"cannot be reached: {why}", where=self.name, hint=hint)
        return HostLostError("the connection was lost" + (f": {said[-1]}" if said else ""), where=self.name)

    # -- reading

    def _wait(self, limit: float | None) -> bool:
        # Wait for input.  False: none before `limit`.
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

    def _await(self, seconds: float | None) -> None:
        # Wait for input.  Raises RemoteError: none came within `seconds`.
        if not self._wait(None if seconds is None else time.monotonic() + seconds):
            assert seconds is not None
            raise self.silent(seconds)

    def _more(self, seconds: float | None) -> None:
        # Read more bytes.  Raises RemoteError at the end, or if none came within `seconds`.
        self._await(seconds)
        if not self._fill(None):
            raise self.lost()

    def _fill(self, limit: float | None) -> bool:
        # Read more bytes.  False at the end, or if none came before `limit`.
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
        # Read the rest of stderr: it may contain the reason.
        ready, _, _ = select.select([self.err], [], [], max(limit - time.monotonic(), 0))
        return bool(ready) and self._keep_errors()

    def close(self) -> None:
        """Hang up; the server thaws what it froze, and exits."""
        self.child.close()
        self.err = -1


def _ignore_sigpipe() -> None:
    # A server that hangs up must raise an error, not end this process.  Children get the default back.
    import signal

    with suppress(ValueError):  # not in the main thread: embedded in another program
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)


def connected(address: Address, shell: RemoteShell, ability: str, what: str) -> Connection:
    """A connection to a server with this ability; see `Connection.require`.  Raises RemoteError."""
    peer = Connection(address, shell)
    try:
        peer.require(ability, what)
    except BaseException:
        peer.close()
        raise
    return peer


def begin(addresses: Sequence[Address], shell: RemoteShell) -> list[Connection | RemoteError]:
    """Start connections to several hosts; an error instead of a connection that could not be started."""
    out: list[Connection | RemoteError] = []
    try:
        for address in addresses:
            try:
                out.append(Connection(address, shell))
            except RemoteError as e:
                out.append(e)
    except BaseException:
        close(out)
        raise
    return out


def close(peers: Sequence[Connection | RemoteError]) -> None:
    """Hang up all connections, then wait for all processes."""
    for peer in peers:
        if isinstance(peer, Connection):
            peer.child.hang_up()
    for peer in peers:
        if isinstance(peer, Connection):
            peer.close()
