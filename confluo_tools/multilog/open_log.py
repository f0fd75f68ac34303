"""Open a MultiLog as an input, together with the archives of its older rows."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

from confluo_tools.multilog.reader import LogReader


def open_log(
    path: str,
    *,
    archives: bool = True,
    more: Sequence[str] = (),
    allowed: Callable[[str], bool] | None = None,
    **options: Any,
) -> LogReader:
    """A reader of a MultiLog and of the archives that its older rows were moved to.

    ``archives``: include the archives linked in the log for which ``allowed(real path)`` holds; ``more``: paths of
    other archives.  ``options`` are those of `LogReader`.
    """
    links = os.path.join(path, "archives")
    if not more and not (archives and os.path.exists(links)):
        reader = LogReader(path, **options)
        if not (archives and os.path.exists(links)):
            return reader
        reader.close()  # the first rows were archived meanwhile: its version may lack them
    from confluo_tools.multilog.archive.log_with_archive import LogWithArchiveReader

    return LogWithArchiveReader(path, more, archives, allowed, **options)
