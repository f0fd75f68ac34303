"""Recordings of real TCP without a recorder: a request and a response over two veth pairs, with drops.

One loop is program, wire and recorder: it makes the calls, forwards packets with a delay, and writes down the inputs.
The calls come when the sockets are ready, the packets when the wire delivers them: nothing is repeated.
"""

from __future__ import annotations

import os
import select
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from confluo_tools import multilog
from confluo_tools.core.replay.serial_replay import IP_OFFSET, FrameSender
from confluo_tools.formats.block_builder import blocks_of_rows
from confluo_tools.kernel.tick import tick_length, tick_phase
from confluo_tools.replay.engine import script as inputs
from confluo_tools.replay.engine.attempt import Applied, Attempt
from confluo_tools.replay.engine.network import EndSettings, ReplayEnd
from confluo_tools.replay.engine.rows import rows_of
from confluo_tools.replay.engine.script import Script, Step
from confluo_tools.replay.engine.segments import RawPacket, segments_of
from confluo_tools.replay.engine.tick import on_time
from confluo_tools.replay.record.host_settings import STRICT
from confluo_tools.replay.recording import ConnectionEnd, FiveTuple, RecordedConnection
from confluo_tools.replay.recording.kinds import Role
from confluo_tools.schema import builtin
from netns import PORTS

REQUEST = 100
PORT = PORTS + 11  # of the client: another one in each worker, because tracing reports all namespaces
ADDRESSES = {4: ("10.9.0.1", "10.9.0.2"), 6: ("fd00:9::1", "fd00:9::2")}
CLIENT, SERVER = 0, 1
SILENCE = 0.06  # s after the end of the response


@dataclass
class Traffic:
    """``drops``: (end that sent it, number of its packet).  ``rate``: bit/s; ``delay``: ns each way."""

    size: int = 100_000
    drops: frozenset[tuple[int, int]] = frozenset()
    congestion: str = "reno"
    strict: bool = True
    version: int = 4
    rate: float = 100e6
    delay: int = 1_000_000
    chunk: int = 65536


class Frame(NamedTuple):
    """A packet on the wire: ``due`` in ns after the start; its headers, and its bytes in all."""

    due: int
    number: int
    head: bytes
    length: int


class FreeRun:
    """One connection that runs freely: the server answers a request of `REQUEST` B with ``traffic.size`` B."""

    def __init__(self, traffic: Traffic) -> None:
        self.traffic = traffic
        client, server = ADDRESSES[traffic.version]
        flow = FiveTuple(traffic.version, client, PORT, server, 8080)
        settings: dict[str, int | str] = {"tcp_congestion_control": traffic.congestion, "tick": tick_length()}
        settings |= {**STRICT, "gso:tun": 1} if traffic.strict else {}
        self.ends = (ConnectionEnd(flow, 1, Role.CLIENT), ConnectionEnd(flow.reversed, 2, Role.SERVER))
        for end in self.ends:
            end.settings = dict(settings)
        self.steps: tuple[list[Step], list[Step]] = ([], [])
        self.applied: tuple[list[Applied], list[Applied]] = ([], [])
        self.packets: tuple[list[RawPacket], list[RawPacket]] = ([], [])
        self._received = [0, 0]
        self._wire: tuple[list[Frame], list[Frame]] = ([], [])
        self._free = [0, 0]
        self._start = 0
        self._server: socket.socket | None = None
        self._sent_request = self._over = False
        self._requested, self._left = 0, traffic.size

    def run(self) -> Attempt:
        """Run to the end and return all that happened."""
        from confluo_tools.replay.engine.settings import end_settings

        settings: list[EndSettings] = [end_settings(end) for end in self.ends]
        with ReplayEnd(settings[0], server=False) as client, ReplayEnd(settings[1], server=True) as server, on_time():
            self._devices = client.device, server.device
            self._senders = FrameSender(client.device), FrameSender(server.device)
            self._start, wall = time.monotonic_ns(), time.time_ns()
            phase = tick_phase(self._start)
            for end in self.ends:
                end.began = wall
                end.settings["phase"] = phase
            assert client.socket is not None
            assert server.socket is not None
            try:
                self._talk(client.socket, server.socket, (settings[1].address, 8080))
            finally:
                if self._server is not None:
                    self._server.close()
        for side, end in enumerate(self.ends):
            end.ended = wall + self._now()
            end.settings |= syn_settings(self.packets[side][0].head, "")
            end.settings |= syn_settings(self.packets[1 - side][0].head, "peer_")
        script = Script(RecordedConnection(*self.ends), self.steps, (wall, wall))
        return Attempt(script, self.steps, self.applied, self.packets, segments_of(self.packets), -1)

    def _now(self) -> int:
        return time.monotonic_ns() - self._start

    def _input(self, side: int, step: Step, action: Callable[[], int]) -> int:
        """Apply an input and write it down."""
        self._drain()
        at = self._now()
        sent, received = len(self.packets[side]), self._received[side]
        try:
            result = action()
        except BlockingIOError as e:
            result = -e.errno
        self.steps[side].append(step._replace(at=at, sent=sent, result=result))
        self.applied[side].append(Applied(at, result, sent, received))
        self._drain()
        return result

    def _drain(self) -> None:
        for side, device in enumerate(self._devices):
            while True:
                try:
                    data = os.read(device, 1 << 17)
                except BlockingIOError:
                    break
                at, number = self._now(), len(self.packets[side])
                if data[IP_OFFSET] >> 4 == 6 and data[IP_OFFSET + 6] != 6:
                    continue  # a multicast report
                head = 20 if data[IP_OFFSET] >> 4 == 4 else 40
                head += (data[IP_OFFSET + head + 12] >> 4) * 4
                gso = int.from_bytes(data[4:6], "little") if data[1] else 0
                whole = IP_OFFSET + head
                self.packets[side].append(RawPacket(at, len(data) - IP_OFFSET, gso, data[IP_OFFSET:whole]))
                self._free[side] = max(self._free[side], at) + int(len(data) * 8e9 / self.traffic.rate)
                if (side, number) not in self.traffic.drops:
                    frame = Frame(self._free[side] + self.traffic.delay, number, data[:whole], len(data))
                    self._wire[side].append(frame)

    def _deliver(self) -> list[int]:
        """Deliver what has arrived; the ends that got a packet."""
        served = []
        for side in (CLIENT, SERVER):
            wire = self._wire[1 - side]
            while wire and wire[0].due <= self._now():
                frame = wire.pop(0)
                step = Step(0, packet=frame.number, kind=inputs.PACKET)
                self._input(side, step, lambda side=side, f=frame: self._senders[side].send(f.head, f.length))
                self._received[side] += 1
                served.append(side)
        return served

    def _talk(self, client: socket.socket, listener: socket.socket, address: tuple[str, int]) -> None:
        deadline = time.monotonic() + 20
        self._input(CLIENT, Step(0, kind=inputs.CONNECT), lambda: client.connect_ex(address) * 0)
        quiet = 0.0
        while time.monotonic() < deadline and (not quiet or time.monotonic() < quiet):
            self._drain()
            for side in self._deliver():
                if side == SERVER:
                    self._serve(listener)
                elif self._ask(client):
                    quiet = quiet or time.monotonic() + SILENCE
        assert quiet, "the response did not come to its end"

    def _serve(self, listener: socket.socket) -> None:
        """The server got a packet."""
        if self._server is None:
            if not select.select([listener], [], [], 0)[0]:
                return
            self._server = self._accept(listener)
        if self._requested < REQUEST:
            self._requested += self._receive(SERVER, self._server)[0]
        if self._requested == REQUEST and self._left:
            self._left -= self._respond(self._server, self._left)
            if not self._left:
                self._shutdown(SERVER, self._server)

    def _ask(self, client: socket.socket) -> bool:
        """The client got a packet; whether it has all."""
        if not self._sent_request:
            if not select.select([], [client], [], 0)[1]:
                return False
            self._sent_request = True
            self._send(CLIENT, client, REQUEST)
        if not self._over and self._receive(CLIENT, client)[1]:
            self._over = True
            self._shutdown(CLIENT, client)
        return self._over

    def _shutdown(self, side: int, made: socket.socket) -> None:
        self._input(side, Step(0, kind=inputs.SHUTDOWN, flags=1), lambda: made.shutdown(1) or 0)

    def _accept(self, listener: socket.socket) -> socket.socket:
        made: list[socket.socket] = []

        def accept() -> int:
            made.append(listener.accept()[0])
            return 0

        self._input(SERVER, Step(0, kind=inputs.ACCEPT), accept)
        made[0].setblocking(False)
        return made[0]

    def _send(self, side: int, made: socket.socket, size: int) -> int:
        return self._input(side, Step(0, size=size, kind=inputs.SEND), lambda: made.send(bytes(size)))

    def _receive(self, side: int, made: socket.socket) -> tuple[int, bool]:
        """Receive until nothing is left: the bytes, and whether the stream ended."""
        got = 0
        while True:
            n = self._input(side, Step(0, size=1 << 16, kind=inputs.RECV), lambda: len(made.recv(1 << 16)))
            if n <= 0:
                return got, n == 0
            got += n

    def _respond(self, made: socket.socket, left: int) -> int:
        """Send while the socket is writable; the bytes sent."""
        sent = 0
        while sent < left:
            poll = select.poll()
            poll.register(made, select.POLLOUT)
            step = Step(0, kind=inputs.POLL, flags=select.POLLOUT)
            if not self._input(SERVER, step, lambda poll=poll: sum(event for _, event in poll.poll(0))):
                break
            n = self._send(SERVER, made, min(self.traffic.chunk, left - sent))
            if n <= 0:
                break
            sent += n
        return sent


def syn_settings(head: bytes, prefix: str) -> dict[str, int | str]:
    """What the options of a SYN offer, as a recorder writes it."""
    options = head[(20 if head[0] >> 4 == 4 else 40) + 20 :]
    found = {"mss": 0, "wscale": -1, "sack": 0, "timestamps": 0}
    while options and options[0]:
        size = 1 if options[0] == 1 else options[1]
        value = int.from_bytes(options[2:size], "big")
        found |= {2: {"mss": value}, 3: {"wscale": value}, 4: {"sack": 1}, 8: {"timestamps": 1}}.get(options[0], {})
        options = options[size:]
    return {f"{prefix}{name}": value for name, value in found.items()}


def write_recording(path: Path, done: Attempt, headers: bool = True) -> Path:
    """Write what a run did as a recording; without ``headers``, its digests remain."""
    rows = [row for row in rows_of(done) if headers or row["kind"] not in (13, 14)]
    with multilog.create(path, builtin("recording"), lanes=1) as log, log.writer() as lane:
        for block in blocks_of_rows(builtin("recording"), rows):
            lane.append(block)
    return path


def record(path: Path, traffic: Traffic, headers: bool = True) -> Path:
    """Record one connection."""
    return write_recording(path, FreeRun(traffic).run(), headers)
