"""A run of confluo-monitor on several logs, or on logs of other hosts."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from confluo_tools import cli
from confluo_tools.errors import UsageError
from confluo_tools.monitor.alerts import AlertKey, GoneAlert
from confluo_tools.monitor.engine import TriggerEngine
from confluo_tools.monitor.hosts_watch import HostsWatch
from confluo_tools.monitor.run import MonitorRun
from confluo_tools.units import format_duration

if TYPE_CHECKING:
    from confluo_tools.core.block.block import Block
    from confluo_tools.monitor.alerts import EarlierAlerts
    from confluo_tools.monitor.host_logs import HostLogs
    from confluo_tools.monitor.language import Trigger

MISSING = "host-missing"  # the trigger of alerts about logs that do not answer


class HostsRun(MonitorRun):
    """One run of the command on ``logs``.  ``host_wait``: ns that ticks wait for a log that does not answer."""

    watch: HostsWatch | None

    def __init__(
        self, logs: HostLogs, triggers: Sequence[Trigger], alerts: str | None, *, host_wait: int, **more: Any
    ) -> None:
        if any(t.name == MISSING for t in triggers):
            raise UsageError("is the trigger of hosts that do not answer", where=MISSING, hint="choose another name")
        self.logs, self.host_wait = logs, host_wait
        super().__init__(logs, triggers, alerts, list, **more)
        self.check = self.report_changes

    def make_engine(self, triggers: Sequence[Trigger]) -> TriggerEngine:
        return TriggerEngine(
            self.schema, triggers, lag=self.lag, seed=self.logs.uuid, filters=self.logs.filters, partials=True
        )

    def make_watch(self, sink: Callable[[int, Block], None]) -> HostsWatch:
        return HostsWatch(self.logs, self.engine, self.alerts, sink, lag=self.lag, patience=self.host_wait)

    def begin_live(self, now: int, earlier: EarlierAlerts | None) -> None:
        away = {}
        if earlier is not None:
            names = {each.name for each in self.logs.partials}
            kept = [g for g in earlier.gone if g.trigger == MISSING and _name(g.known) in names]
            away = {_name(g.known): g.fired for g in kept}
            earlier.gone = [g for g in earlier.gone if g not in kept]
        assert self.watch is not None
        self.watch.follow(now, earlier, away)

    def report_changes(self) -> None:
        """Tell of logs that have become missing, or answer again, and write alerts about them."""
        assert self.watch is not None
        changes, self.watch.changes = self.watch.changes, []
        for name, since, reason, late in changes:
            lasted = max(self.watch.now() - since, 0)
            if reason:
                what = f"{reason}; triggers go on without it"
                cli.tell(what if name.partition(":")[0] in reason else f"{name}: {what}")
            else:
                records = f"; {late} of its records came after their ticks" if late else ""
                cli.tell(f"{name}: answers again, after {format_duration(lasted // 10**6 * 10**6)}{records}")
            tick = self.watch.last_tick()
            alert = GoneAlert(MISSING, _id(name), since, _key(name))
            about = "the log does not answer"
            self.deliver(tick, self.alerts.noted(tick, [alert], "fire" if reason else "clear", about, lasted))

    def also_firing(self) -> list[list[Any]]:
        feeds = self.watch.feeds if self.watch is not None else ()
        gone = [feed for feed in feeds if feed.missing is not None]
        return [[MISSING, _id(f.name), f.missing, f.missing, 0, _key(f.name).text.hex(), {}] for f in gone]


def _key(name: str) -> AlertKey:
    return AlertKey(f"log={name}".encode("utf-8", "surrogateescape")[:200], {})


def _name(key: AlertKey) -> str:
    return key.text.decode("utf-8", "surrogateescape").removeprefix("log=")


def _id(name: str) -> int:
    digest = blake2b(name.encode("utf-8", "surrogateescape"), digest_size=8).digest()
    return int(struct.unpack("<Q", digest)[0])
