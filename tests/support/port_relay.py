"""A port of this host, also in a network namespace: what connects to it there reaches it here."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from netns import Space


@contextmanager
def relay(space: Space, port: int) -> Iterator[None]:
    """Meanwhile 127.0.0.1:``port`` in ``space`` is that port of this host."""
    with space.inside():
        listening = socket.create_server(("127.0.0.1", port))
    open_: list[socket.socket] = [listening]

    def accept() -> None:
        while True:
            try:
                near = listening.accept()[0]
            except OSError:
                return
            try:
                far = socket.create_connection(("127.0.0.1", port), 5)
            except OSError:
                near.close()  # nothing listens here, either
                continue
            far.settimeout(None)
            open_.extend((near, far))
            for one, other in ((near, far), (far, near)):
                threading.Thread(target=copy, args=(one, other), daemon=True).start()

    def copy(one: socket.socket, other: socket.socket) -> None:
        with suppress(OSError):
            while piece := one.recv(1 << 16):
                other.sendall(piece)
        for end in (one, other):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield
    finally:
        for one in open_:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
