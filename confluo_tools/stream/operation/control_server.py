"""The control socket of a run: a thread that answers `status` and `set`, for this user and root only.

A client cannot harm the run: requests and answers are bounded, a client that does not read is hung up, and an error
while an answer is made is the answer.
"""

from __future__ import annotations

import errno
import fcntl
import os
import selectors
import socket
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from confluo_tools.console import describe
from confluo_tools.errors import BusyError, ConfluoError
from confluo_tools.remote.frame_codec import error_of, get, parse
from confluo_tools.stream.operation.control_messages import MAX_ANSWER, MAX_REQUEST, Look, encode, peer, short_path
from confluo_tools.stream.operation.runtime_folder import SUFFIX, make_folder

if TYPE_CHECKING:
    from confluo_tools.stream.stage_counts import WatchedRun

MAX_CLIENTS = 16
PATIENCE = 5.0  # s that a client may take for a whole request, or to read an answer
TICK = 1.0  # s between two looks for clients that take too long
END = 5.0  # s that the thread may take to end


class ControlSocket:
    """The socket of the run ``name``, in the folder of this user.  `serve` starts its thread; `close` removes it.

    The thread keeps the privileges that it starts with: call `serve` after the process has given up its own.
    Raises BusyError when a run with this name goes on, and ConfluoError when there can be no socket.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        folder = make_folder()
        self.path = os.path.join(folder, name + SUFFIX)
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            with open(os.path.join(folder, ".lock"), "wb") as lock, short_path(self.path) as path:
                fcntl.flock(lock, fcntl.LOCK_EX)  # of two that start at once, the second finds the first
                self._bind(path)
                os.chmod(path, 0o600)
                self._sock.listen(MAX_CLIENTS)
                self._inode = os.lstat(path).st_ino
        except OSError as e:
            self._sock.close()
            raise ConfluoError(f"no control socket: {e.strerror}", where=self.path) from None
        except ConfluoError:
            self._sock.close()
            raise
        self._wake, self._waker = socket.socketpair()
        self._thread: threading.Thread | None = None

    def _bind(self, path: str) -> None:
        for last in (False, True):
            try:
                self._sock.bind(path)
                return
            except OSError as e:
                if last or e.errno != errno.EADDRINUSE:
                    raise
            if answers(path):
                hint = "choose another name with --name, or end that run"
                raise BusyError("a run with this name goes on", where=self.name, hint=hint)
            os.unlink(path)  # of a run that was killed

    def serve(self, run: WatchedRun) -> None:
        """Answer requests about ``run``, in a thread."""
        loop = ControlLoop(self._sock, self._wake, self.name, run)
        self._thread = threading.Thread(target=loop.run, name="control", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._waker.close()
        if self._thread is not None:
            self._thread.join(END)
        with suppress(OSError):  # after a change of user, the folder may be that of another user
            if os.lstat(self.path).st_ino == self._inode:
                os.unlink(self.path)
        self._sock.close()
        if self._thread is None or not self._thread.is_alive():
            self._wake.close()


def answers(path: str) -> bool:
    """Whether a process listens at the socket ``path``."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as probe:
        try:
            probe.connect(path)
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        except OSError:
            return True  # it listens, and has no room, or it is that of another user
        return True


class ControlClient:
    """A connected client: what it has sent, and what it has yet to read."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.have = bytearray()
        self.answer = memoryview(b"")
        self.last = False  # hang up after the answer
        self.since = time.monotonic()  # of the request, or the answer, that is not complete

    @property
    def waits(self) -> bool:
        """Whether it has begun something that it must complete."""
        return bool(self.have or self.answer)


class ControlLoop:
    """The clients of a control socket, until the other end of ``wake`` is closed."""

    def __init__(self, sock: socket.socket, wake: socket.socket, name: str, run: WatchedRun) -> None:
        self.sock, self.name, self.watched = sock, name, run
        self.clients: dict[int, ControlClient] = {}
        self.selector = selectors.DefaultSelector()
        self.selector.register(sock, selectors.EVENT_READ)
        self.selector.register(wake, selectors.EVENT_READ)
        self.wake = wake

    def run(self) -> None:
        import signal

        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # they are for the main thread
        try:
            while True:
                for key, _ in self.selector.select(TICK):
                    if key.fileobj is self.wake:
                        return
                    if key.fileobj is self.sock:
                        self._accept()
                    else:
                        self._move(key.data)
                limit = time.monotonic() - PATIENCE
                for client in [c for c in self.clients.values() if c.waits and c.since < limit]:
                    self._drop(client)
        finally:
            for client in list(self.clients.values()):
                self._drop(client)
            self.selector.close()

    def _accept(self) -> None:
        try:
            sock, _ = self.sock.accept()
        except OSError:
            time.sleep(0.05)  # no descriptors left: the client waits
            return
        sock.setblocking(False)
        if len(self.clients) == MAX_CLIENTS:
            self._drop(min(self.clients.values(), key=lambda c: c.since))
        client = self.clients[sock.fileno()] = ControlClient(sock)
        self.selector.register(sock, selectors.EVENT_READ, client)

    def _drop(self, client: ControlClient) -> None:
        self.selector.unregister(client.sock)
        del self.clients[client.sock.fileno()]
        client.sock.close()

    def _move(self, client: ControlClient) -> None:
        """Read from the client, or write to it."""
        try:
            if client.answer:
                self._write(client)
                return
            data = client.sock.recv(65536)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._drop(client)
            return
        if not client.have:
            client.since = time.monotonic()
        client.have += data
        self._next(client)

    def _next(self, client: ControlClient) -> None:
        """Answer the first complete request that the client has sent."""
        line, end, rest = client.have.partition(b"\n")
        if not end and len(line) < MAX_REQUEST:
            return
        client.have = rest
        client.since = time.monotonic()
        if len(line) >= MAX_REQUEST:
            self._give(client, {"error": {"what": "the request is too long"}}, last=True)
            return
        if peer(client.sock)[1] not in (0, os.geteuid()):
            hint = "run it as that user, or as root"
            self._give(client, {"error": {"what": "this run is that of another user", "hint": hint}}, last=True)
            return
        try:
            request = parse(bytes(line))
            verb = get(request, "do", str)
            text = get(request, "flows", str) if verb == "set" else ""
            if verb not in ("status", "set"):
                raise ValueError("unknown request")
        except ValueError as e:
            self._give(client, {"error": {"what": f"protocol error: {e}"}}, last=True)
            return
        self._give(client, self._answer(verb, text))

    def _answer(self, verb: str, text: str) -> dict[str, Any]:
        try:
            if verb == "set":
                return {"changed": self.watched.change(text)}
            rows = self.watched.rows()
            now = time.time_ns(), time.monotonic_ns()
            return Look(self.name, os.uname().nodename, os.getpid(), *now, rows).message()
        except ConfluoError as e:
            return {"error": error_of(e)}
        except Exception as e:  # the run goes on
            return {"error": {"what": describe(e)}}

    def _give(self, client: ControlClient, value: dict[str, Any], *, last: bool = False) -> None:
        data = encode(value)
        if len(data) > MAX_ANSWER:
            data = encode({"error": {"what": "the answer is too long"}})
        client.answer, client.last, client.since = memoryview(data), last, time.monotonic()
        try:
            self._write(client)
        except OSError:
            self._drop(client)

    def _write(self, client: ControlClient) -> None:
        """Write what fits; then wait for room, or for the next request."""
        try:
            while client.answer:
                client.answer = client.answer[client.sock.send(client.answer, socket.MSG_NOSIGNAL) :]
        except BlockingIOError:
            self.selector.modify(client.sock, selectors.EVENT_WRITE, client)
            return
        if client.last:
            self._drop(client)
            return
        self.selector.modify(client.sock, selectors.EVENT_READ, client)
        if client.have:
            self._next(client)
