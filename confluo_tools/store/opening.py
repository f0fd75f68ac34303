"""MultiLogs as inputs: alone, or with what was moved from them to archives."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

from confluo_tools.store.reader import LogReader


def open_log(
    path: str,
    *,
    archives: bool = True,
    more: Sequence[str] = (),
    allowed: Callable[[str], bool] | None = None,
    **options: Any,
) -> LogReader:
    """A MultiLog as an input, together with what was moved from it to archives.

    ``archives``: to those that it remembers, as far as ``allowed`` (their real paths); ``more``: other archives.
    ``options`` are those of `LogReader`.
    """
    if more or (archives and os.path.exists(os.path.join(path, "archives"))):
        from confluo_tools.store.joined import JoinedReader

        return JoinedReader(path, more, archives, allowed, **options)
    return LogReader(path, **options)
