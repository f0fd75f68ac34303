"""What commands that read packets from interfaces report on stderr."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from confluo_tools.console import note, state
from confluo_tools.errors import ConfluoError

if TYPE_CHECKING:
    from confluo_tools.kernel.nic import Nic

SAY_DROPS = 10.0  # minimum s between two messages about dropped packets


class DropWatch:
    """Reports dropped packets at the first drop, then every `SAY_DROPS` seconds while drops continue."""

    def __init__(self) -> None:
        self._said = 0
        self._next = 0.0

    def look(self, dropped: int) -> None:
        now = time.monotonic()
        if dropped > self._said and now >= self._next:
            self._next = now + SAY_DROPS
            if not state.quiet:
                hint = "--lanes, --ring, --bpf or -s help"
                note(f"{dropped - self._said} packets were dropped: their ring was full", hint=hint)
            self._said = dropped


def vanished(nic: Nic) -> ConfluoError:
    return ConfluoError("has vanished and did not come back", where=nic.gone, hint="the packets before are kept")


def announce(nic: Nic) -> None:
    """Report that the capture has started, for people and scripts."""
    if not state.quiet:
        names = ", ".join(i.name for i in nic.interfaces)
        lanes = f" in {nic.lanes} lanes" if nic.lanes > 1 else ""
        note(f"capturing from {names}{lanes}; pid {os.getpid()}")
