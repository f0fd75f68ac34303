"""The counters of a monitor for Prometheus."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from confluo_tools.endpoint.metrics_endpoint import Numbers
    from confluo_tools.monitor.run import MonitorRun

FIRES = 2  # the phase of a trigger that fires


def numbers(run: MonitorRun) -> Numbers:
    """The counters of ``run``, as another thread sees them."""
    from confluo_tools.endpoint.metrics_endpoint import Numbers as Make

    watch, engine = run.watch, run.engine
    totals: dict[str, tuple[str, float]] = {
        "alerts": ("Alerts that were written", run.fired),
        "records": ("Records that went into windows", engine.feed.rows),
        "keys_dropped": ("Records of keys beyond the limit of a window", engine.dropped),
    }
    firing = sum(state.phase == FIRES for state in list(engine.states.values()))
    values: dict[str, tuple[str, float]] = {
        "triggers": ("Triggers", len(run.triggers)),
        "firing": ("Triggers and keys that fire", firing),
    }
    if watch is not None:
        totals |= {
            "ticks": ("Ticks that were evaluated", watch.ticks),
            "late_records": ("Records that came after a tick that should have seen them", watch.late),
            "lost_records": ("Records that came too late for any window", watch.lost),
            "removed_records": ("Records that were removed before they were seen", watch.missed),
        }
        if engine.clock > 0:
            values["tick_age_seconds"] = ("Time since the last tick", max(time.time() - engine.clock / 1e9, 0.0))
    values["hosts_missing"] = ("Logs that do not answer", len(run.also_firing()))
    if run.runner is not None:
        totals |= {
            "commands": ("Commands of --exec that ended", run.runner.done),
            "commands_failed": ("Commands of --exec that failed", run.runner.failed),
            "commands_dropped": ("Alerts for which --exec had no room", run.runner.dropped),
        }
    if run.sender is not None:
        totals |= {
            "webhook_sent": ("Alerts that the web server took", run.sender.sent),
            "webhook_refused": ("Alerts that the web server refused", run.sender.refused),
            "webhook_dropped": ("Alerts that were dropped because too many waited", run.sender.dropped),
        }
        values["webhook_waiting"] = ("Alerts that wait for the web server", run.sender.waiting)
    return Make(totals, values)
