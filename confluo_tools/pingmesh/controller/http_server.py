"""HTTP server of the controller: uvicorn on listening sockets, with limits on connections.

uvicorn itself limits neither the number of connections nor their age.  The limits are added through its public
interface: `Listener`, a socket passed to ``uvicorn.Server.serve``, counts connections from accept(2) on, TLS
handshakes included, and closes the oldest at the limit; `LimitedConnection`, a protocol class passed as
``uvicorn.Config(http=...)``, wraps uvicorn's own protocol and closes connections that are silent or too old.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import time
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from ssl import SSLContext

HEADER_TIME = 10.0  # s for the TLS handshake, and then for the first request head
LIFE = 120.0  # s after which a connection closes with its next answer
LAST = 90.0  # s after LIFE at which a connection is aborted
MAX_CONNECTIONS = 4096
SPARE = 128  # descriptors for other uses: files, memory, the log
PAUSE = 0.02  # s between two evictions for want of descriptors: closing takes a few turns of the loop
BACKLOG = 2048


class Connections:
    """The open connections of all listeners by descriptor, oldest first, at most ``limit``."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._open: OrderedDict[int, AcceptedSocket] = OrderedDict()
        self._evicted = 0.0

    def add(self, sock: AcceptedSocket) -> None:
        self._evict()
        self._open[sock.fileno()] = sock

    def remove(self, fd: int) -> None:
        self._open.pop(fd, None)

    def get(self, fd: int) -> AcceptedSocket | None:
        return self._open.get(fd)

    def shrink(self) -> bool:
        """Close an eighth of the connections, and allow no more from now on; False: none is open."""
        if not self._open:
            return False
        now = time.monotonic()
        if now - self._evicted >= PAUSE:
            self._evicted = now
            self._limit = max(1, len(self._open) * 7 // 8)
            self._evict()
        return True

    def _evict(self) -> None:
        while len(self._open) >= self._limit:
            self._open.popitem(last=False)[1].disconnect()


class AcceptedSocket(socket.socket):
    """An accepted connection: leaves `Connections` when closed; disconnected if TLS takes longer than HEADER_TIME."""

    def __init__(self, sock: socket.socket, connections: Connections) -> None:
        super().__init__(sock.family, sock.type, sock.proto, sock.detach())
        self._connections = connections
        self.handshake = asyncio.get_running_loop().call_later(HEADER_TIME, self.disconnect)

    def disconnect(self) -> None:
        """End both directions; the transport then sees the end and closes the socket."""
        with suppress(OSError):
            self.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.handshake.cancel()
        self._connections.remove(self.fileno())
        super().close()


class Listener(socket.socket):
    """A duplicate of a listening socket; counts its connections in ``connections``."""

    def __init__(self, sock: socket.socket, connections: Connections) -> None:
        super().__init__(sock.family, sock.type, sock.proto, os.dup(sock.fileno()))
        self._connections = connections

    def accept(self) -> tuple[socket.socket, Any]:
        try:
            sock, address = super().accept()
        except OSError as e:
            # asyncio logs a traceback and pauses for 1 s when descriptors run out; oldest connections give way instead.
            if e.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM) and self._connections.shrink():
                raise BlockingIOError from None
            raise
        accepted = AcceptedSocket(sock, self._connections)
        self._connections.add(accepted)
        return accepted, address


class ConnectionState:
    """What the application knows of its connection: the client's certificate, and when the connection began."""

    def __init__(self, certificate: dict[str, Any] | None) -> None:
        self.certificate = certificate or {}
        self.began = time.monotonic()
        self.requests = 0


class LimitedConnection(asyncio.Protocol):
    """One connection: forwards all events to uvicorn's protocol, made by ``make(state)``, and aborts it when late."""

    def __init__(self, make: Callable[[ConnectionState], asyncio.Protocol], connections: Connections) -> None:
        self._make, self._connections = make, connections
        self._timers: list[asyncio.TimerHandle] = []

    def connection_made(self, transport: Any) -> None:
        accepted = self._connections.get(transport.get_extra_info("socket").fileno())
        if accepted is not None:
            accepted.handshake.cancel()
        self._state = ConnectionState(transport.get_extra_info("peercert"))
        self._transport = transport
        loop = asyncio.get_running_loop()
        self._timers = [
            loop.call_later(HEADER_TIME, self._abort_if_silent),
            loop.call_later(LIFE + LAST, transport.abort),
        ]
        self._protocol = self._make(self._state)
        self._protocol.connection_made(transport)

    def _abort_if_silent(self) -> None:
        if not self._state.requests:
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        for timer in self._timers:
            timer.cancel()
        self._protocol.connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._protocol.data_received(data)

    def eof_received(self) -> bool | None:
        return self._protocol.eof_received()

    def pause_writing(self) -> None:
        self._protocol.pause_writing()

    def resume_writing(self) -> None:
        self._protocol.resume_writing()


def end_old_connections(app: Any) -> Any:
    """The ASGI application ``app``; answers on connections older than LIFE have ``Connection: close``."""

    async def limited(scope: Any, receive: Any, send: Any) -> None:
        state = scope["state"]["connection"]
        state.requests += 1

        async def send_or_close(message: Any) -> None:
            if message["type"] == "http.response.start" and time.monotonic() - state.began > LIFE:
                message = {**message, "headers": [*message.get("headers", ()), (b"connection", b"close")]}
            await send(message)

        await app(scope, receive, send_or_close)

    return limited


class HttpService:
    """uvicorn running ``app`` on listening ``sockets`` until `stop`.

    ``state_app`` on ``state_socket``: /healthz and /metrics alone, without TLS.  ``limit``: connections at once.
    """

    def __init__(
        self,
        app: Any,
        sockets: Sequence[socket.socket],
        tls: SSLContext | None,
        state_app: Any = None,
        state_socket: socket.socket | None = None,
        *,
        limit: int = MAX_CONNECTIONS,
    ) -> None:
        self._connections = Connections(limit)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._servers = [(self._server(app, tls), list(sockets))]
        if state_socket is not None:
            self._servers.append((self._server(state_app, None), [state_socket]))

    def _server(self, app: Any, tls: SSLContext | None) -> Any:
        import uvicorn

        options: dict[str, Any] = {
            "ws": "none",
            "lifespan": "off",
            "log_config": None,
            "log_level": "critical",
            "access_log": False,
            "server_header": False,
            "proxy_headers": False,
            "backlog": BACKLOG,
            "timeout_keep_alive": 15,
            "timeout_graceful_shutdown": 5,
            "h11_max_incomplete_event_size": 16384,
            "loop": "asyncio",
        }
        inner = uvicorn.Config(app, http="h11", **options)
        inner.load()

        # The one thing used here that uvicorn does not document: protocol classes take keyword arguments, one of them
        # ``app_state``, which becomes scope["state"].  pyproject.toml therefore has an upper bound on its version.
        def protocol(**given: Any) -> LimitedConnection:
            def make(state: ConnectionState) -> asyncio.Protocol:
                made: asyncio.Protocol = inner.http_protocol_class(
                    **{**given, "app_state": {**given["app_state"], "connection": state}}
                )
                return made

            return LimitedConnection(make, self._connections)

        factory = (lambda *_: tls) if tls is not None else None
        config = uvicorn.Config(
            end_old_connections(app),
            http=protocol,  # type: ignore[arg-type]
            ssl_context_factory=factory,
            **options,
        )
        config.load()
        return uvicorn.Server(config)

    def stop(self) -> None:
        """End `run`, from any thread or signal handler."""
        for server, _ in self._servers:
            server.should_exit = True

    def call(self, function: Callable[[], None]) -> None:
        """Call ``function`` in the thread of the event loop, from any thread or signal handler."""
        if self._loop is None:
            function()
        else:
            self._loop.call_soon_threadsafe(function)

    def run(self) -> None:
        """Serve until `stop`.  The loop has a thread of its own: in the main thread, uvicorn takes over signals."""
        with ThreadPoolExecutor(1, thread_name_prefix="http") as executor:
            executor.submit(asyncio.run, self._serve()).result()

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        if not os.environ.get("CONFLUO_DEBUG"):  # clients may disconnect at any time
            self._loop.set_exception_handler(lambda loop, context: None)
        await asyncio.gather(*(server.serve(sockets=self._listeners(its)) for server, its in self._servers))

    def _listeners(self, sockets: Iterable[socket.socket]) -> list[socket.socket]:
        return [Listener(sock, self._connections) for sock in sockets]
