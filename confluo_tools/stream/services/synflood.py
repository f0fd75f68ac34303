"""SYN floods as alerts: half-open connections by target in sliding windows; the counting is core.stream.syn_flood."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from confluo_tools import units
from confluo_tools.errors import UsageError
from confluo_tools.schema import Schema, builtin, fold6
from confluo_tools.stream.services.fields import check_fields

if TYPE_CHECKING:
    from collections.abc import Callable

    from confluo_tools.core.block.block import Block, Picks

STEPS = 10  # of a window
FIRE, CLEAR = 1, 2
TCP = 6


class SynFloodService:
    """Alerts when at least ``threshold`` connections to a target within ``window`` ns stay half-open.

    A connection is half-open unless its client acknowledges within ``timeout`` ns after its first SYN.  An alert needs
    the share ``ratio`` of all attempts; it ends below the share ``clear`` of either limit.  Targets are addresses, and
    addresses with a port.  Raises SchemaError for rows without TCP fields, UsageError for limits that do not fit.
    """

    name = "synflood"

    def __init__(
        self,
        packets: Schema,
        threshold: int,
        window: int,
        *,
        ratio: float,
        clear: float,
        timeout: int,
        lateness: int,
        host: str | None = None,
    ) -> None:
        from confluo_tools.core.stream.syn_flood import NEEDED, USED, SynFlood

        self.schema = builtin("alert")
        check_fields(packets, NEEDED)
        self._packets = packets.project([n for n in USED if n in packets])
        self.reach = window + timeout + lateness
        self._make: Callable[[], SynFlood] = lambda: SynFlood(
            self._packets.layout,
            window,
            timeout=timeout,
            lateness=lateness,
            threshold=threshold,
            ratio=ratio,
            clear=clear,
            steps=STEPS,
        )
        self._before: Counter[str] = Counter()  # counts, and events, before the last time that it began again
        self._events: list[Any] = []
        try:
            self._core = self._make()
        except ValueError:
            what = "does not fit a window of " + units.format_duration(window)
            raise UsageError(what, where="--timeout", hint="take a longer window, or a shorter timeout") from None
        self.threshold, self.window, self.host = threshold, window, os.uname().nodename if host is None else host
        self.condition = f"half-open >= {threshold} within {units.format_duration(window)}, and {ratio:.0%} of attempts"
        self.rows = 0

    def take(self, block: Block, picks: Picks | None) -> None:
        self.rows += block.rows if picks is None else len(picks)
        self._core.take(block.project(self._packets.layout), picks)

    def due(self) -> int | None:
        return self._core.due

    def until(self, now: int) -> None:
        self._core.until(now)

    def finish(self, ended: bool) -> None:
        if ended:
            self._core.finish()

    def restart(self) -> None:
        self._core.finish()
        self._events += self._core.events()
        self._before.update({n: count for n, count in self._core.counts.items() if n != "targets"})
        self._core = self._make()

    @property
    def late(self) -> int:
        return self._counts()["late"]

    def _counts(self) -> dict[str, int]:
        return {n: count + self._before[n] for n, count in self._core.counts.items()}

    def results(self) -> Iterator[Block]:
        from confluo_tools.formats.block_builder import blocks_of_rows

        events, self._events = [*self._events, *self._core.events()], []
        rows = [self._alert(*event) for event in events]
        yield from blocks_of_rows(self.schema, rows)

    def _alert(
        self,
        fires: bool,
        tick: int,
        lasted: int,
        address: int,
        address6: bytes,
        version: int,
        port: int,
        key_id: int,
        attempts: int,
        completed: int,
        answered: int,
        resets: int,
    ) -> dict[str, Any]:
        half = attempts - completed
        key = f"dst_ip={units.format_ip(address, address6 or bytes(16), version)}"
        return {
            "ts": tick,
            "trigger": "synflood",
            "event": FIRE if fires else CLEAR,
            "value": float(half),
            "threshold": float(self.threshold),
            "rows": attempts,
            "window": self.window,
            "lasted": lasted,
            "key": key if port < 0 else f"{key} dst_port={port}",
            "ip_version": version,
            "proto": TCP,
            "dst_ip": fold6(address6) if address6 else address,
            "dst_ip6": address6,
            "dst_port": max(port, 0),
            "values": (half, attempts, half / attempts if attempts else 0.0, answered, resets),
            "condition": self.condition,
            "key_id": key_id,
            "host": self.host,
        }

    def counts(self) -> str:
        n = self._counts()
        return f"{self.rows} packets, {n['syns']} SYNs, {n['late']} late, {n['targets']} targets"

    def notes(self) -> Iterator[str]:
        n = self._counts()
        if n["syns"] and not n["acks"]:
            yield "no packet has an ACK, so every connection counts as half-open; the input should have all packets"
        if n["late"]:
            yield f"{n['late']} packets came too late for their window; --lateness TIME waits longer"
        if n["displaced"]:
            yield f"{n['displaced']} half-open connections were forgotten before their time-out: too many at once"
