"""Settings of the host as rows of a recording."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from confluo_tools.replay.record.host_network import network_settings
from confluo_tools.replay.record.host_settings import host_settings
from confluo_tools.replay.recording.kinds import Kind

EVERY = 60_000_000_000  # ns between two records of them


class SettingRows:
    """Writes them again and again: retention removes the oldest rows.  ``cookie``: of rows of the host."""

    def __init__(self, cookie: int) -> None:
        self._cookie = cookie
        self._settings: dict[str, str] = {}
        self._next = 0

    def begin(self, *, options: bool) -> None:
        """Read them.  ``options``: whether socket options are recorded."""
        self._settings = host_settings() | network_settings() | {"options": str(int(options))}

    def rows(self, now: int, base: int) -> Iterator[dict[str, Any]]:
        """Rows, if it is time.  ``now``: monotonic, ns; ``base``: wall clock less monotonic clock."""
        if now < self._next:
            return
        self._next = now + EVERY
        place = {"kind": Kind.SETTING, "ts": now + base, "count": 1, "cookie": self._cookie}
        for name, value in self._settings.items():
            number = {"value": int(value)} if re.fullmatch(r"-?\d{1,18}", value) else {"text": value}
            yield {**place, "name": name, **number}
