"""One try to replay a connection, and what came of it."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from confluo_tools.core.replay.serial_replay import DONE, SerialReplay
from confluo_tools.replay.engine.network import EndSettings, ReplayEnd, socket_address
from confluo_tools.replay.engine.script import Script, Step
from confluo_tools.replay.engine.segments import RawPacket, SentPacket, raw_packets, segments_of
from confluo_tools.replay.engine.tick import start_time

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


def attempt(
    script: Script,
    settings: tuple[EndSettings, EndSettings],
    phase: int,
    naive: bool = False,
    observe: Callable[[ReplayEnd, ReplayEnd], None] | None = None,
) -> Attempt:
    """Replay ``script`` once in fresh networks.  ``phase``: ns between a tick and time 0.

    ``naive``: without order: the calls at their times, and a wire with the recorded delay and drops.
    ``observe`` is called with both ends before the start.  Raises ConfluoError.
    """
    with ReplayEnd(settings[0], server=False) as client, ReplayEnd(settings[1], server=True) as server:
        core = SerialReplay(
            (client.device, server.device),
            client.detach(),
            server.fileno(),
            socket_address(settings[1]),
            script.packed(),
        )
        try:
            if observe is not None:
                observe(client, server)
            start = start_time(phase)
            if naive:
                core.run_freely(start, *script.wire(), script.length + TAIL)
            else:
                core.run(start)
            packets = tuple(list(raw_packets(core.packets(side))) for side in (0, 1))
            applied = tuple([Applied(*a) for a in struct.iter_unpack(DONE, core.applied(side))] for side in (0, 1))
        finally:
            core.close()
    return Attempt(script, script.steps, applied, packets, segments_of(packets), core.stuck, start)  # type: ignore[arg-type]
