"""Registry of the kinds of views.  To add a kind:

1. subclass `base.View` in a module of its own, with a `load` function (`filter` is the shortest example);
2. add a row to `KINDS` below and its name to `base.KINDS`;
3. let view_request.py and commands/index.py add it;
4. describe its files in docs/format-views.md.

Listing, maintenance in one pass over each new block, coverage, check, rebuild and drop use this table.  A kind that
finds rows for queries, as index and filter do, is also used in `view_reader`.
"""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING

from confluo_tools.errors import UsageError
from confluo_tools.multilog.views import aggregate, base, filter, index, state

if TYPE_CHECKING:
    from confluo_tools.multilog.log import Log


# kind -> function that creates a view from its definition
KINDS: dict[str, base.Load] = {
    "index": index.load,
    "filter": filter.load,
    "aggregate": aggregate.load,
    "state": state.load,
}
assert tuple(KINDS) == base.KINDS


def views(log: Log, warn: base.Warn | None = None, kinds: tuple[str, ...] | None = None) -> list[base.View]:
    """All valid views of ``log``, by kind and name.  Invalid ones are reported to ``warn(path, what)``."""
    found: list[base.View] = []
    for kind, make in KINDS.items():
        if kinds is None or kind in kinds:
            found += base.load(log, kind, partial(make, log), warn)
    return found


def drop_view(log: Log, name: str, kind: str | None = None) -> bool:
    """Remove the view ``name`` of any kind but index (or of ``kind``); False if it does not exist.

    Running queries keep using it.  Raises UsageError for a filter that an aggregate uses.
    """
    for one in KINDS if kind is None else (kind,):
        label = os.path.basename(name)
        if one == "index" and kind is None:
            continue
        if one == "filter" and f"filter-{label}" in base.names(log, "filter-"):
            users = aggregate.aggregates_of_filter(log, label)
            if users:
                what = f"aggregate '{users[0]}' uses filter '{label}'"
                hint = f"confluo-index LOG drop aggregate {users[0]} first"
                raise UsageError(what, where=log.path, hint=hint)
        if base.remove(log, f"{one}-{label}"):
            return True
    return False
