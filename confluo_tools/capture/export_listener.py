"""Flow records from the network: UDP sockets that exporters send to, as blocks of rows."""

from __future__ import annotations

import errno
import os
import select
import socket
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress

from confluo_tools.capture.export_address import ExportAddress
from confluo_tools.core.block.block import Block
from confluo_tools.core.capture.export_sockets import ExportSockets
from confluo_tools.core.capture.flow_exports import FlowExports
from confluo_tools.endpoint import listen_address

PATIENCE = 0.05  # s that rows wait for more
FLUSH = 0.2  # s that they wait at most
LOOK = 0.2  # s between two checks of the clock and the output
DRAIN = 2.0  # s that what the sockets still hold may take at the end
_RCVBUFFORCE, _TIMESTAMPNS, _MEMINFO = 33, 35, 55  # options of SOL_SOCKET
_DROPS = 8  # word of SO_MEMINFO


class ExportListener:
    """Binds ``addresses`` and iterates what arrives, as blocks.  ``buffer``: bytes of each socket's buffer.

    The sockets exist when the object does, so privileges can be dropped before it is iterated.
    ``seconds``: end after this time.  ``idle`` is called several times a second.  Raises ConfluoError.
    """

    live = True

    def __init__(
        self, addresses: Sequence[ExportAddress], decoder: FlowExports, *, buffer: int, seconds: float | None = None
    ) -> None:
        self.decoder = decoder
        self.idle: Callable[[], None] = lambda: None
        self._sockets: list[socket.socket] = []
        self._seconds, self._end = seconds, 0.0
        self._stop = False
        self._output: select.poll | None = None
        self._next_look = 0.0
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        try:
            for address in addresses:
                self._sockets.append(_open(address, buffer))
            pairs = [(s.fileno(), a.sflow) for s, a in zip(self._sockets, addresses, strict=True)]
            self._receiver = ExportSockets(decoder, pairs, self._wake)
            self._dropped = [_drops(s) for s in self._sockets]
        except BaseException:
            self.close()
            raise
        self._drops = 0

    def __enter__(self) -> ExportListener:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        for sock in self._sockets:
            sock.close()
        self._sockets = []
        if self._wake >= 0:
            os.close(self._wake)
            self._wake = -1

    @property
    def names(self) -> list[str]:
        """The addresses as bound: port 0 became another one."""
        return [listen_address.show(*s.getsockname()[:2]) for s in self._sockets]

    def watch_output(self, fd: int) -> None:
        """End when the reader of the pipe ``fd`` has ended."""
        self._output = select.poll()
        self._output.register(fd, 0)

    def stop(self) -> None:
        """End after what has arrived.  A signal handler may call it."""
        self._stop = True
        with suppress(OSError):
            os.eventfd_write(self._wake, 1)

    def __iter__(self) -> Iterator[Block]:
        decoder = self.decoder
        self._end = time.monotonic() + self._seconds if self._seconds is not None else 0.0
        taken = time.monotonic()
        while not self._stop:
            came = self._receiver.receive(int((PATIENCE if decoder.waiting else LOOK) * 1000))
            now = time.monotonic()
            while decoder.ready or (decoder.waiting and (not came or now - taken >= FLUSH)):
                yield decoder.take()
                taken = now
            if now >= self._next_look:
                self._look(now)
        yield from self._rest()

    def _rest(self) -> Iterator[Block]:
        end = time.monotonic() + DRAIN
        with suppress(BlockingIOError):
            os.eventfd_read(self._wake)
        while self._receiver.receive(0) and time.monotonic() < end:
            while self.decoder.ready:
                yield self.decoder.take()
        while self.decoder.waiting:
            yield self.decoder.take()

    def _look(self, now: float) -> None:
        """Raises BrokenPipeError: the reader of the output has ended."""
        self._next_look = now + LOOK
        if self._end and now >= self._end:
            self._stop = True
        if self._output is not None and self._output.poll(0):
            raise BrokenPipeError(errno.EPIPE, "the reader has ended")
        self.idle()

    @property
    def dropped(self) -> int:
        """Datagrams that the kernel dropped because a buffer was full."""
        for i, sock in enumerate(self._sockets):
            now = _drops(sock)
            self._drops += (now - self._dropped[i]) & 0xFFFFFFFF
            self._dropped[i] = now
        return self._drops

    @property
    def counts(self) -> dict[str, int]:
        return {**self.decoder.counts, "dropped": self.dropped}


def _open(address: ExportAddress, buffer: int) -> socket.socket:
    sock = listen_address.datagrams(address.host, address.port)
    try:
        sock.setsockopt(socket.SOL_SOCKET, _RCVBUFFORCE, buffer // 2)  # the kernel doubles it
    except PermissionError:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer // 2)  # at most net.core.rmem_max
    sock.setsockopt(socket.SOL_SOCKET, _TIMESTAMPNS, 1)
    return sock


def _drops(sock: socket.socket) -> int:
    words = sock.getsockopt(socket.SOL_SOCKET, _MEMINFO, 64)
    return int(struct.unpack_from("=I", words, 4 * _DROPS)[0]) if len(words) > 4 * _DROPS else 0
