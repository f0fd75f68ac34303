"""What queries use of views: the postings of indexes, the rows of filters."""

from __future__ import annotations

import os
import resource
from collections import OrderedDict
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from confluo_tools.errors import ConfluoError
from confluo_tools.store.views import base
from confluo_tools.store.views.filter import FilterView, filters
from confluo_tools.store.views.index import IndexView, indexes

if TYPE_CHECKING:
    from confluo_tools.core.chunks import Chunks
    from confluo_tools.core.postings import Postings
    from confluo_tools.core.segment import Part
    from confluo_tools.expr import Expr
    from confluo_tools.store.log import Log


class Reader:
    """The files of views that queries of one open log use.  ``many``: they stay mapped from query to query."""

    def __init__(self, log: Log, many: bool = True) -> None:
        self.log, self.many = log, many
        self.warnings: list[tuple[str, str]] = []
        self._indexes: list[IndexView] = []
        self._open: OrderedDict[tuple[str, int, int, int], tuple[base.View, Any]] = OrderedDict()
        self._most = max(16, min(1024, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 4))
        self._told: set[tuple[str, str]] = set()
        self._compiled: dict[tuple[str, str, int], FilterView] = {}

    def warn(self, path: str, what: str) -> None:
        if (path, what) not in self._told:
            self._told.add((path, what))
            self.warnings.append((path, what))

    def refresh(self) -> list[IndexView]:
        """Look again which indexes there are."""
        self._indexes = indexes(self.log, self.warn)
        return self._indexes

    def filters(self, expr: Expr) -> list[FilterView]:
        """The filters whose rows may serve ``expr``: those that it names, and those that look at no other fields."""
        if not base.names(self.log, "filter-"):
            return []
        found = []
        used = set(expr.fields)
        for view in filters(self.log, self.warn):
            if view.name in expr.demands or (view.fields and used.issuperset(view.fields)):
                known = self._compiled.setdefault((view.name, view.text, view.inode), view)
                try:
                    _ = known.tree
                except (ConfluoError, ValueError) as e:
                    self.warn(view.path, f"is not used: {e}")
                    continue
                found.append(known)
        return found

    def postings(self, part: Part, columns: Iterable[int]) -> dict[int, Postings]:
        """{column: postings} of a segment, for those of ``columns`` that are indexed there."""
        found = {}
        for view in self._indexes:
            if view.column in columns:
                postings = self._get(view, part)
                if postings is not None:
                    found[view.column] = postings
        return found

    def stored(self, part: Part, wanted: Iterable[FilterView]) -> dict[str, Chunks]:
        """{name of a filter: its rows of a segment}, where there are any."""
        opened = {view.name: self._get(view, part) for view in wanted}
        return {name: chunks for name, chunks in opened.items() if chunks is not None}

    def _get(self, view: base.View, part: Part) -> Any:
        name = (view.id, view.inode, part.lane, part.base)
        known = self._open.pop(name, None)
        if known is not None and (known[1].blocks >= part.blocks or not known[1].grown):
            self._open[name] = known  # the last used is the last to go
            return known[1]
        try:
            opened = view.open(part, self.many)
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as e:
            reason = e.strerror if isinstance(e, OSError) else str(e)
            self.warn(view.file(part), f"is not used: {reason}; confluo-index rebuild {view.words} mends it")
            return None
        while len(self._open) >= self._most:
            self._report(*self._open.popitem(last=False)[1])
        self._open[name] = view, opened
        return opened

    def report(self) -> None:
        """Note what was found damaged since the last time."""
        for view, opened in self._open.values():
            self._report(view, opened)

    def _report(self, view: base.View, opened: Any) -> None:
        for number in sorted(opened.damaged):
            what = "postings" if view.kind == "index" else "rows"
            what = f"{what} of block {number} are damaged and not used"
            self.warn(os.fspath(opened.path), f"{what}; confluo-index rebuild {view.words} mends them")
