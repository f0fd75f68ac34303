"""The kinds of views.  A new kind is a row here, a subclass of `base.View`, and a page in docs/format-views.md.

Everything else goes by this table: listing, keeping up to date in one pass over each new block, coverage, check,
rebuild, drop.  (Index and filter also make queries find rows: see `reader`.)
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from confluo_tools.store.views import aggregate, base, filter, index, state

if TYPE_CHECKING:
    from confluo_tools.store.log import Log


# Of each kind what makes a view of its definition: load(log, label, path, definition), ValueError: it is no use.
KINDS: dict[str, Callable[[Log, str, str, dict[str, str]], base.View]] = {
    "index": index.load,
    "filter": filter.load,
    "aggregate": aggregate.load,
    "state": state.load,
}


def views(log: Log, warn: base.Warn | None = None, kinds: tuple[str, ...] | None = None) -> list[base.View]:
    """All views of ``log`` that can be used, kind by kind, by name.  The others are told to ``warn(path, what)``."""
    found: list[base.View] = []
    for kind, make in KINDS.items():
        if kinds is None or kind in kinds:
            found += base.load(log, kind, partial(make, log), warn)
    return found
