"""View files for queries: postings of indexes and stored rows of filters."""

from __future__ import annotations

import os
import resource
from collections import OrderedDict
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from confluo_tools.errors import ConfluoError
from confluo_tools.multilog.views import base
from confluo_tools.multilog.views.filter import FilterView, filters
from confluo_tools.multilog.views.index import IndexView, indexes

if TYPE_CHECKING:
    from confluo_tools.core.multilog.postings import Postings
    from confluo_tools.core.multilog.segment import SegmentPart
    from confluo_tools.core.multilog.view_file import ViewFile
    from confluo_tools.expr import Expr
    from confluo_tools.multilog.log import Log


class ViewReader:
    """Opens the view files that queries of one log use.  ``many``: keep them mapped between queries."""

    def __init__(self, log: Log, many: bool = True) -> None:
        self.log, self.many = log, many
        self.warnings: list[tuple[str, str]] = []
        self._indexes: list[IndexView] = []
        self._open: OrderedDict[tuple[str, int, int, int], tuple[base.View, Any]] = OrderedDict()
        self._max_open = max(16, min(1024, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 4))
        self._warned: set[tuple[str, str]] = set()
        self._compiled: dict[tuple[str, str, int], FilterView] = {}

    def warn(self, path: str, what: str) -> None:
        """Add (path, problem) to ``warnings``, once."""
        if (path, what) not in self._warned:
            self._warned.add((path, what))
            self.warnings.append((path, what))

    def refresh(self) -> list[IndexView]:
        """Read the list of indexes again."""
        self._indexes = indexes(self.log, self.warn)
        return self._indexes

    def filters(self, expr: Expr) -> list[FilterView]:
        """The filters that ``expr`` may use: those it names, and those that read no other fields."""
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

    def postings(self, part: SegmentPart, columns: Iterable[int]) -> dict[int, Postings]:
        """{column: postings} of a segment, for the indexed ones of ``columns``."""
        found = {}
        for view in self._indexes:
            if view.column in columns:
                postings = self._get(view, part)
                if postings is not None:
                    found[view.column] = postings
        return found

    def stored(self, part: SegmentPart, wanted: Iterable[FilterView]) -> dict[str, ViewFile]:
        """{filter name: its view file of a segment}, for the filters that have one."""
        opened = {view.name: self._get(view, part) for view in wanted}
        return {name: chunks for name, chunks in opened.items() if chunks is not None}

    def _get(self, view: base.View, part: SegmentPart) -> Any:
        name = (view.id, view.inode, part.lane, part.base)
        known = self._open.pop(name, None)
        if known is not None and (known[1].blocks >= part.blocks or not known[1].grown):
            self._open[name] = known  # least recently used first
            return known[1]
        try:
            opened = view.open(part, self.many)
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as e:
            reason = e.strerror if isinstance(e, OSError) else str(e)
            self.warn(view.file(part), f"is not used: {reason}; confluo-index rebuild {view.spec} repairs it")
            return None
        while len(self._open) >= self._max_open:
            self._report(*self._open.popitem(last=False)[1])
        self._open[name] = view, opened
        return opened

    def report(self) -> None:
        """Add the damage found in open files to ``warnings``."""
        for view, opened in self._open.values():
            self._report(view, opened)

    def _report(self, view: base.View, opened: Any) -> None:
        for number in sorted(opened.damaged):
            what = "postings" if view.kind == "index" else "rows"
            what = f"{what} of block {number} are damaged and not used"
            self.warn(os.fspath(opened.path), f"{what}; confluo-index rebuild {view.spec} repairs them")
