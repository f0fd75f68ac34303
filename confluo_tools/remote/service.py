"""What stands around the controller's application: uvicorn, sockets that listen, and bounds for who connects to them.

asyncio's own servers accept without end: with no descriptors left, they write a traceback for each try.  Here the
number of connections is bounded from accept(2) on, handshakes of TLS included, and the oldest one makes room.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections import OrderedDict
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from ssl import SSLContext

HEADER_TIME = 10.0  # s that a connection may take to say what it wants, and before that to agree on TLS
LIFE = 120.0  # s after which a connection is over when its answer is
LAST = 90.0  # s more after which it is over in any case
GOODBYE = 5.0  # s that the other side may take to say that it has understood the end
CONNECTIONS = 4096
SPARE = 128  # descriptors that are not for connections: files, memory, the log
TURN = 64  # connections that are taken before others have their turn
PAUSE = 0.02  # s without new connections when the host has no descriptors left


class Door:
    """Takes connections of one socket; ``crowd`` are all that there are, of all doors, oldest first.

    As much of asyncio's Server as uvicorn needs.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, factory: Callable[[], Any], sock: socket.socket, tls: SSLContext | None,
        crowd: OrderedDict[socket.socket, None], most: int,
    ) -> None:  # fmt: skip
        self._loop, self._factory, self._sock, self._tls = loop, factory, sock, tls
        self._crowd, self._most = crowd, most
        self._tasks: set[asyncio.Task[None]] = set()
        self._again: asyncio.TimerHandle | None = None
        self.sockets = (sock,)
        sock.setblocking(False)
        loop.add_reader(sock, self._accept)

    def close(self) -> None:
        if self._again is not None:
            self._again.cancel()
        self._loop.remove_reader(self._sock)

    async def wait_closed(self) -> None:
        for task in list(self._tasks):
            task.cancel()

    def _accept(self) -> None:
        for _ in range(TURN):
            try:
                one, _ = self._sock.accept()
            except OSError as e:
                if e.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                    self._most = max(1, len(self._crowd) * 7 // 8)  # others have taken what we counted on
                    self._make_room()
                    self._loop.remove_reader(self._sock)
                    self._again = self._loop.call_later(PAUSE, self._loop.add_reader, self._sock, self._accept)
                return
            self._make_room()
            self._crowd[one] = None
            one.setblocking(False)
            task = self._loop.create_task(self._greet(one))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _make_room(self) -> None:
        while len(self._crowd) >= self._most:
            oldest, _ = self._crowd.popitem(last=False)
            with suppress(OSError):
                oldest.shutdown(socket.SHUT_RDWR)  # it is its transport's to close, which sees its end now

    async def _greet(self, one: socket.socket) -> None:
        try:
            transport, protocol = await self._loop.connect_accepted_socket(
                self._factory, one, ssl=self._tls, ssl_handshake_timeout=HEADER_TIME if self._tls else None,
                ssl_shutdown_timeout=GOODBYE if self._tls else None,
            )  # fmt: skip
        except (OSError, asyncio.CancelledError):  # no handshake: a stranger, or somebody who left
            self._crowd.pop(one, None)
            one.close()
            return
        protocol.when_over = lambda: self._crowd.pop(one, None)
        if transport.is_closing():
            self._crowd.pop(one, None)


class Service:
    """uvicorn around ``app`` on sockets that listen already; ends when `stop` was called.

    ``beside``: a socket for what anybody may ask, without TLS.  ``most``: connections at once.
    """

    def __init__(
        self, app: Any, sockets: list[socket.socket], tls: SSLContext | None, beside: socket.socket | None = None,
        *, most: int = CONNECTIONS,
    ) -> None:  # fmt: skip
        from contextlib import nullcontext

        import uvicorn
        from uvicorn.protocols.http.h11_impl import H11Protocol

        crowd: OrderedDict[socket.socket, None] = OrderedDict()

        class Protocol(H11Protocol):
            """Puts the client's certificate where the application sees it, and lasts no longer than it should."""

            when_over: Callable[[], Any] | None = None

            def connection_made(self, transport: Any) -> None:
                super().connection_made(transport)
                cert, inner = transport.get_extra_info("peercert"), self.app

                async def app(scope: Any, receive: Any, send: Any) -> None:
                    await inner({**scope, "confluo.peercert": cert}, receive, send)

                self.app = app
                self._ends = [self.loop.call_later(HEADER_TIME, self._late), self.loop.call_later(LIFE, self.shutdown),
                              self.loop.call_later(LIFE + LAST, transport.abort)]  # fmt: skip

            def _late(self) -> None:
                if getattr(self, "scope", None) is None:
                    self.transport.abort()

            def connection_lost(self, exc: Exception | None) -> None:
                for end in self._ends:
                    end.cancel()
                if self.when_over is not None:
                    self.when_over()
                super().connection_lost(exc)

        class Server(uvicorn.Server):
            def capture_signals(self) -> Any:  # they are the command's
                return nullcontext()

            async def startup(self, sockets: list[socket.socket] | None = None) -> None:
                config = self.config

                def protocol() -> Any:
                    return Protocol(config=config, server_state=self.server_state, app_state={})

                loop = asyncio.get_running_loop()
                self.servers: list[Any] = [
                    Door(loop, protocol, one, config.ssl, crowd, most) for one in sockets or []
                ]  # fmt: skip
                self.started = True

        def server(app: Any, tls: SSLContext | None) -> uvicorn.Server:
            return Server(uvicorn.Config(
                app, http=Protocol, ws="none", lifespan="off", log_config=None, log_level="critical",
                access_log=False, server_header=False, proxy_headers=False, timeout_keep_alive=15,
                timeout_graceful_shutdown=5, h11_max_incomplete_event_size=16384, loop="asyncio",
                ssl_context_factory=(lambda *_: tls) if tls is not None else None,
            ))  # fmt: skip

        self._servers = [(server(app, tls), sockets)]
        if beside is not None:
            self._servers.append((server(app.state.beside, None), [beside]))
        for one, _ in self._servers:
            one.config.load()

    def stop(self) -> None:
        for one, _ in self._servers:
            one.should_exit = True

    def run(self) -> None:
        async def all() -> None:
            if not os.environ.get("CONFLUO_DEBUG"):  # how strangers break off is no news
                asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
            await asyncio.gather(*(one.serve(sockets=its) for one, its in self._servers))

        asyncio.run(all())
