"""One try to replay a connection, and what came of it."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import NamedTuple

from confluo_tools.core.replay.serial_replay import DONE, SerialReplay
from confluo_tools.replay.engine.joined import joined
from confluo_tools.replay.engine.network import EndSettings, ReplayEnd, socket_address
from confluo_tools.replay.engine.script import PACKET, Script, Step
from confluo_tools.replay.engine.segments import RawPacket, SentPacket, raw_packets, segments_of
from confluo_tools.replay.engine.tick import start_time

Observer = Callable[[Sequence[ReplayEnd]], None] | None
TAIL = 20_000_000  # ns after the last input of a naive replay


class Applied(NamedTuple):
    """An input as it was applied: ``at`` in ns after the start, ``result`` of the call, packets before it."""

    at: int
    result: int
    sent: int
    received: int


@dataclass
class Attempt:
    """What both ends did in a replay, the client first.

    ``stuck``: the end that did not send a packet that was waited for; -1: none.
    """

    script: Script
    steps: tuple[list[Step], list[Step]]  # those of the script, or with times that were corrected
    applied: tuple[list[Applied], list[Applied]]
    packets: tuple[list[RawPacket], list[RawPacket]]
    segments: tuple[list[SentPacket], list[SentPacket]]
    stuck: int
    start: int = 0  # CLOCK_MONOTONIC of time 0, ns
    of_timers: tuple[bytes, bytes] = (b"", b"")  # for each packet of an end: 1 if a timer sent it

    def arriving(self, side: int) -> list[SentPacket]:
        """The packets that may come to an end: those of the other end, or of its feed."""
        feed = self.script.feeds[side] if self.script.feeds is not None else None
        return self.segments[1 - side] if feed is None else feed.packets


def attempt(
    script: Script,
    settings: tuple[EndSettings, EndSettings],
    phase: int,
    naive: bool = False,
    relative: bool = False,
    observe: Observer = None,
) -> Attempt:
    """Replay ``script`` once in fresh networks.  ``phase``: place of time 0 among the ticks.

    ``naive``: without order: the calls at their times, and a wire with the recorded delay and drops.
    ``relative``: inputs come at their times after what caused them, not after the start.
    ``observe`` is called with the ends before the start.  Raises ConfluoError.
    """
    feeds = _packed_feeds(script, settings)
    with ExitStack() as stack:
        ends = {side: stack.enter_context(ReplayEnd(settings[side], server=side == 1)) for side in script.sides}
        core = SerialReplay(
            tuple(ends[side].device if side in ends else -1 for side in (0, 1)),
            ends[0].detach() if 0 in ends else -1,
            ends[1].fileno() if 1 in ends else -1,
            socket_address(settings[1]),
            script.packed(),
            feeds=feeds,
        )
        stack.callback(core.close)
        if observe is not None:
            observe(list(ends.values()))
        start = start_time(phase, script.length)
        if naive:
            core.run_freely(start, *script.wire(), script.length + TAIL)
        else:
            core.run(start, relative=relative)
        packets = list(raw_packets(core.packets(0))), list(raw_packets(core.packets(1)))
        applied = tuple([Applied(*a) for a in struct.iter_unpack(DONE, core.applied(side))] for side in (0, 1))
        stuck, of_timers = core.stuck, (core.of_timers(0), core.of_timers(1))
    if script.feeds is not None:
        packets = joined(packets, script.feeds, feeds, _arrived(script, applied))
    return Attempt(script, script.steps, applied, packets, segments_of(packets), stuck, start, of_timers)  # type: ignore[arg-type]


def _arrived(script: Script, applied: Sequence[Sequence[Applied]]) -> list[list[int]]:
    """When each end got its packets, ns after the start."""
    return [
        [a.at for step, a in zip(steps, done, strict=False) if step.kind == PACKET]
        for steps, done in zip(script.steps, applied, strict=True)
    ]


def _packed_feeds(script: Script, settings: tuple[EndSettings, EndSettings]) -> tuple[bytes, bytes]:
    client, server = ((s.address, s.port) for s in settings)
    feeds = script.feeds or (None, None)
    return (
        feeds[0].packed(server, client) if feeds[0] is not None else b"",
        feeds[1].packed(client, server) if feeds[1] is not None else b"",
    )
