"""The pump of one lane.  It can replace its rings: when an interface is created again, sockets that share packets
(PACKET_FANOUT) cannot be bound a second time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from confluo_tools.core.kernel.ring import Pump

if TYPE_CHECKING:
    from confluo_tools.core.block.block import Block
    from confluo_tools.core.kernel.ring import BlockSink, Ring
    from confluo_tools.core.packets.packet import Packets


class LanePump:
    """A `Pump` for ``rings`` with the same interface; after `replace` it drains the old ring, then reads the new one.

    Use it from one thread; `replace` and `stop` from any.
    """

    def __init__(self, rings: list[Ring], packets: Packets, wake: int, sink: BlockSink | None) -> None:
        self.packets, self._wake, self._sink = packets, wake, sink
        self._rings, self._wanted = list(rings), list(rings)  # now; after all pending changes
        self._pump = self._made(self._rings)
        self._before = 0
        self._changes: deque[tuple[Ring, Ring, Callable[[], None]]] = deque()
        self._stop = False

    def _made(self, rings: list[Ring]) -> Pump:
        return Pump(list(rings), self.packets, self._wake, sink=self._sink)

    @property
    def received(self) -> int:
        """Packets so far."""
        return self._before + self._pump.received

    @property
    def failed(self) -> list[int]:
        """Numbers of the rings with a pending event on their socket."""
        return self._pump.failed

    def replace(self, old: Ring, new: Ring, done: Callable[[], None]) -> None:
        """Continue with ``new`` in place of ``old``, which gets no more packets.  Call ``done`` when it is empty.

        Does nothing when this pump does not read ``old``.
        """
        if old not in self._wanted:
            return
        self._wanted = [new if ring is old else ring for ring in self._wanted]
        self._changes.append((old, new, done))
        self._pump.stop()

    def run(self, timeout: int) -> str:
        """As `Pump.run`."""
        while True:
            while self._changes:
                last = self._made([self._changes[0][0]])
                try:
                    why = last.run(0)
                finally:
                    self._before += last.received
                if why == "limit":
                    return why
                self._change()
            why = self._pump.run(timeout)
            if why != "stopped" or self._stop:
                return why
            self._go()  # `replace` stopped it

    def until_stopped(self, clear: Callable[[], None]) -> None:
        """`run` until it is stopped or has reached its limit.  ``clear``: reads the pending errors of sockets.

        Raises OSError when rows cannot be stored.
        """
        while (why := self.run(1000)) in ("idle", "trouble"):
            if why == "trouble":
                clear()

    def drain(self, settled: int, clear: Callable[[], None]) -> None:
        """`run` until the rings are empty: no new packets arrive.  ``settled``: ms until the last ones are there."""
        self.go()
        while self.run(settled) == "trouble":
            clear()

    def next(self, timeout: int) -> Block | None:
        """As `Pump.next`."""
        while self._changes:
            last = self._made([self._changes[0][0]])
            block = last.next(0)
            self._before += last.received
            if block is not None:
                return block
            self._change()
        return self._pump.next(timeout)

    def _change(self) -> None:
        old, new, done = self._changes.popleft()
        self._rings = [new if ring is old else ring for ring in self._rings]
        before = self._pump
        self._pump = self._made(self._rings)
        self._before += before.received
        if self._stop:
            self._pump.stop()
        done()

    def stop(self) -> None:
        """Make `run` return soon; `go` allows it again."""
        self._stop = True
        self._pump.stop()

    def go(self) -> None:
        self._stop = False
        self._go()

    def _go(self) -> None:
        self._pump.go()
        if self._stop:  # `stop` came in between
            self._pump.stop()
