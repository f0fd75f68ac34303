"""Statistics of live captures: LOG/captures/*.yaml, one small file per capture, updated while it runs.

Read by people and by confluo-info.  Packets that the kernel dropped are not in the log, so the counters are written
during the capture: they survive when it is killed.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from confluo_tools.core.base.log_file import open_log_file
from confluo_tools.errors import StoreError
from confluo_tools.multilog.ownership import as_owner
from confluo_tools.multilog.yaml_line import yaml_flow

FOLDER = "captures"


class CaptureRecord:
    """The statistics file of one capture into ``log``.  ``about``: constant entries, such as the interface names."""

    def __init__(self, log: str | os.PathLike[str], about: Mapping[str, Any]) -> None:
        self._about = {"begun": _now(), "host": os.uname().nodename, "pid": os.getpid(), **about}
        self._folder = Path(log) / FOLDER
        self._path = self._folder / f"{self._about['begun'].replace(':', '')}-{os.getpid()}.yaml"
        self._last: dict[str, Any] = {}
        self._log = log
        with suppress(OSError), as_owner(log):
            self._folder.mkdir(exist_ok=True)

    def update(self, figures: Mapping[str, int], ended: str = "") -> None:
        """Write the counters if one has changed.  Write errors, such as a full disk, are ignored."""
        now = {**figures, "ended": ended}
        if now == self._last:
            return
        self._last = now
        words = {name.replace(" ", "_"): n for name, n in figures.items()}
        lines = [f"{k}: {yaml_flow(v)}\n" for k, v in {**self._about, "until": _now(), **words, "ended": ended}.items()]
        text = "# What a capture saw and could not take: confluo-capture(1).\n" + "".join(lines)
        temporary = self._path.with_suffix(".tmp")
        with suppress(OSError), as_owner(self._log):
            try:
                with open(temporary, "wb", opener=open_log_file) as f:
                    f.write(text.encode())
                os.replace(temporary, self._path)
            except OSError:
                temporary.unlink()


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def captures(log: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """The records of all captures, oldest first.  StoreError when one cannot be read; [] when there are none."""
    folder = Path(log) / FOLDER
    try:
        names = sorted(n for n in os.listdir(folder) if n.endswith(".yaml"))
    except OSError:
        return []
    from confluo_tools import guarded_yaml

    found = []
    for name in names:
        try:
            data = guarded_yaml.load(guarded_yaml.read(folder / name, opener=open_log_file))
        except (OSError, guarded_yaml.YamlError) as e:
            raise StoreError(f"cannot be read: {e}", where=folder / name) from None
        if isinstance(data, dict):
            found.append(data)
    return found
