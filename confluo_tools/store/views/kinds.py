"""The kinds of views.  A new kind is a row here, a subclass of `base.View`, and a page in docs/format-views.md.

Everything else goes by this table: listing, keeping up to date in one pass over each new block, coverage, check,
rebuild, drop.  (Index and filter also make queries find rows: see `reader`.)
"""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING

from confluo_tools.errors import UsageError
from confluo_tools.store.views import aggregate, base, filter, index, state

if TYPE_CHECKING:
    from confluo_tools.store.log import Log


# Of each kind what makes a view of its definition.
KINDS: dict[str, base.Load] = {
    "index": index.load,
    "filter": filter.load,
    "aggregate": aggregate.load,
    "state": state.load,
}
assert tuple(KINDS) == base.KINDS


def views(log: Log, warn: base.Warn | None = None, kinds: tuple[str, ...] | None = None) -> list[base.View]:
    """All views of ``log`` that can be used, kind by kind, by name.  The others are told to ``warn(path, what)``."""
    found: list[base.View] = []
    for kind, make in KINDS.items():
        if kinds is None or kind in kinds:
            found += base.load(log, kind, partial(make, log), warn)
    return found


def drop_view(log: Log, name: str, kind: str | None = None) -> bool:
    """Remove the filter, aggregate (or other named view) ``name``; False when there was none.

    Queries under way go on with it.  UsageError: a filter that an aggregate is made of.
    """
    for one in KINDS if kind is None else (kind,):
        label = os.path.basename(name)
        if one == "index" and kind is None:
            continue
        if one == "filter" and f"filter-{label}" in base.names(log, "filter-"):
            users = aggregate.made_of(log, label)
            if users:
                what = f"aggregate '{users[0]}' is made of filter '{label}'"
                hint = f"confluo-index LOG drop aggregate {users[0]} first"
                raise UsageError(what, where=log.path, hint=hint)
        if base.remove(log, f"{one}-{label}"):
            return True
    return False
