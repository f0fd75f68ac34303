"""Logs of three hosts, and one with all of their rows.  The hosts are this machine; their servers are processes."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from confluo_tools import multilog
from confluo_tools.monitor import host_logs
from confluo_tools.monitor.alerts import AlertBlocks
from confluo_tools.monitor.engine import TriggerEngine
from confluo_tools.monitor.host_logs import HostLogs
from confluo_tools.monitor.hosts_watch import HostsWatch
from confluo_tools.monitor.language import parse_trigger
from confluo_tools.monitor.watch import LiveWatch
from confluo_tools.remote.connect import RemoteShell
from confluo_tools.schema import builtin
from monitor_lab import MS, SECOND, START, Clocks
from monitor_writer import rows_of
from running import BIN, executable

Row = tuple[int, int, int, int]  # ts, len, dst_port, src_ip
HOSTS = ("", "alpha", "beta")  # of the three logs; the first one is local

RSH = """#!/bin/sh
host=$1
shift
[ -e {folder}/down-$host ] && {{ echo "ssh: connect to host $host port 22: No route to host" >&2; exit 255; }}
echo $$ > {folder}/new-$host && mv {folder}/new-$host {folder}/pid-$host
exec "$@"
"""


def remote_shell(folder: Path) -> str:
    """What to put into CONFLUO_RSH: hosts are away while there is a file down-HOST; pid-HOST is their server."""
    return str(executable(folder / "rsh", RSH.format(folder=folder)))


def server(folder: Path, host: str) -> int:
    """The process id of the last server of a host."""
    return int((folder / f"pid-{host}").read_text())


class HostsLab:
    """The logs in ``folder``; rows go to them in turn, and to all.ml."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.paths = [folder / f"x{i}.ml" for i in range(len(HOSTS))]
        self.whole = folder / "all.ml"
        self._logs = [multilog.create(path, builtin("header64")) for path in (*self.paths, self.whole)]
        self._writers = [log.writer(ahead=-1) for log in self._logs]

    @property
    def names(self) -> list[str]:
        return [f"{host}:{path}" if host else str(path) for host, path in zip(HOSTS, self.paths, strict=True)]

    def append(self, rows: Sequence[Row]) -> None:
        shares = [*(rows[i :: len(HOSTS)] for i in range(len(HOSTS))), rows]
        for writer, share in zip(self._writers, shares, strict=True):
            if share:
                writer.append(rows_of(*([r[i] for r in share] for i in range(4))))
                writer.flush()

    def close(self) -> None:
        for each in (*self._writers, *self._logs):
            each.close()


class WatchLab(HostsLab):
    """Such logs, watched in this process by clocks of our own.  ``fired``: (tick, trigger, event, value)."""

    def __init__(self, folder: Path, texts: list[str], patch: pytest.MonkeyPatch) -> None:
        super().__init__(folder)
        shell = RemoteShell(remote_shell(folder), f"{BIN / 'confluo-serve'} --stdio")
        patch.setattr(host_logs, "shell", lambda: shell)
        self.clocks, self.said = Clocks(), list[str]()
        self.fired: list[tuple[int, str, int, float]] = []
        self.logs = HostLogs(self.names, texts, self.said.append, live=True)
        engine = TriggerEngine(
            self.logs.schema, [parse_trigger(t, self.logs.schema) for t in texts], lag=10 * MS, partials=True
        )
        clocks = {"clock": lambda: self.clocks.now, "steady": lambda: self.clocks.up}
        self.watch = HostsWatch(
            self.logs, engine, AlertBlocks(engine), self.tell, lag=10 * MS, patience=10**6 * SECOND, **clocks
        )
        self.watch.follow(START, None, {})
        self.live = LiveWatch(self.watch, 10 * MS, note=self.said.append, **clocks)

    def tell(self, tick: int, block: object) -> None:
        schema = builtin("alert")
        get = block.get  # type: ignore[attr-defined]
        for row in range(block.rows):  # type: ignore[attr-defined]
            name = get(schema.index("trigger"), row).rstrip(b"\0").decode()
            event, value = (get(schema.index(key), row) for key in ("event", "value"))
            self.fired.append((tick - START, name, event, value))

    def step_until(self, done: Callable[[], bool], *, go: int = 0, seconds: float = 60.0) -> None:
        """Let the monitor work until ``done``; ``go``: ns that the steady clock goes on each time."""
        end = time.monotonic() + seconds
        while not done():
            assert time.monotonic() < end, (self.fired, self.said, self.watch.changes)
            self.clocks.now += go
            self.clocks.up += go
            self.live.step()
            self.watch.wait(0.01)

    def evaluated(self, tick: int) -> Callable[[], bool]:
        return lambda: self.watch.engine.clock >= START + tick

    def close(self) -> None:
        self.watch.close()
        self.logs.close()
        super().close()


def signal_server(folder: Path, host: str, number: int) -> None:
    os.kill(server(folder, host), number)
