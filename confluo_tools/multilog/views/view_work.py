"""What confluo-index does with the views of one log: a method for each verb, here or for another host."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from confluo_tools.errors import UsageError
from confluo_tools.multilog.views.listing import LISTED

if TYPE_CHECKING:
    from confluo_tools.multilog.log import Log
    from confluo_tools.multilog.views.base import View
    from confluo_tools.multilog.views.view_request import ViewRequest

READING = ("list", "check")  # verbs that change nothing


class ViewUpdate(NamedTuple):
    """``what`` was updated: ``blocks`` and ``new`` rows in ``seconds``; it has
    ``covered`` of ``rows``, in ``size`` bytes."""

    what: str
    blocks: int
    new: int
    seconds: float
    covered: int
    rows: int
    size: int


class ViewReports(Protocol):
    """What the work reports: problems, notes, progress, and with ``stats`` each update."""

    stats: bool

    def warn(self, what: str, where: str, hint: str = "") -> None: ...

    def note(self, what: str, where: str = "") -> None: ...

    def progress(self, what: str, rows: int) -> AbstractContextManager[Callable[[int], Any] | None]:
        """What is called with the number of rows that are done."""

    def updated(self, done: ViewUpdate) -> None: ...


class ViewWork:
    """The work of ``request`` on the log at ``path``, waiting ``patience`` s for other maintainers.

    ``added``: blocks.  Raises ConfluoError.
    """

    def __init__(self, path: str, request: ViewRequest, patience: float, reports: ViewReports) -> None:
        from confluo_tools import multilog

        self.log: Log = multilog.open(path, readonly=request.verb in READING)
        self.path, self.reports = path, reports
        self.request, self.patience = request, patience
        self.added = 0
        for name in request.names if request.kind == "index" else ():
            if name not in self.log.schema:
                near = self.log.schema.suggest(name)
                hint = near if near.startswith("did you") else "confluo-info --fields LOG lists the names"
                raise UsageError(f"no field '{name}'", where=path, hint=hint)

    # -- the work

    def run(self, argv: Sequence[str]) -> None:
        """Do the verb.  ``argv``: the command line, for the history of the log."""
        before = self.defined()
        getattr(self, self.request.verb)()
        if self.defined() != before:
            self.log.remember(list(argv))

    def listing(self) -> list[dict[str, Any]]:
        """The views of the request: the values of the fields LISTED."""
        from confluo_tools.multilog import views

        version = self.log.version()
        rows = []
        for view in self.existing():
            if not self.request.selects(view):
                continue
            covered, total, size = views.coverage(self.log, view, version)
            values = (view.kind, view.label, getattr(view, "bucket", 0), covered, total, size, view.definition)
            rows.append(dict(zip(LISTED, values, strict=True)))
        return rows

    def defined(self) -> list[str]:
        from confluo_tools.multilog import views

        return [view.id for view in views.views(self.log)]

    def existing(self) -> Sequence[View]:
        from confluo_tools.multilog import views

        return views.views(self.log, lambda path, what: self.reports.warn(what, path))

    def views(self) -> list[View]:
        """The views that the request names; without names all views of its kind, if it has one."""
        existing = self.existing()
        for name in self.request.names:
            if not any(self.request.selects(v) and v.label == name for v in existing):
                if self.request.kind == "index":
                    hint = f"confluo-index LOG add {name} creates it"
                    raise UsageError(f"no index of '{name}'", where=self.path, hint=hint)
                from difflib import get_close_matches

                near = get_close_matches(name, [v.label for v in existing if v.kind == self.request.kind], n=1)
                hint = f"did you mean '{near[0]}'?" if near else "confluo-index LOG lists them"
                raise UsageError(f"no {self.request.kind} '{name}'", where=self.path, hint=hint)
        return [view for view in existing if self.request.selects(view)]

    # -- verbs

    def add(self) -> None:
        for view in self.request.add(self.log):
            self.update_view(view)

    def drop(self) -> None:
        from confluo_tools.multilog import views

        kind = self.request.kind or "index"
        for name in self.request.names:
            if not views.drop_view(self.log, name, kind):
                self.reports.note(f"no index of '{name}'" if kind == "index" else f"no {kind} '{name}'", self.path)

    def list(self) -> None:
        """`listing` has the list."""

    def update(self) -> None:
        for view in self.views():
            self.update_view(view)

    def rebuild(self) -> None:
        for view in self.views():
            self.update_view(view, rebuild=True)

    def update_view(self, view: View, rebuild: bool = False) -> None:
        """Add complete blocks that a view does not cover yet."""
        from confluo_tools.multilog import views
        from confluo_tools.multilog.views.base import write_error

        version = self.log.version()
        before = views.coverage(self.log, view, version).covered if self.reports.stats and not rebuild else 0
        begin = time.perf_counter()
        what = f"index of {view.label}" if view.kind == "index" else view.spec
        with self.reports.progress(what, version.rows) as progress, views.maintaining(view, self.patience):
            try:
                blocks = views.update(self.log, view, rebuild=rebuild, progress=progress)
            except FileNotFoundError:  # it was dropped meanwhile
                raise
            except OSError as e:
                raise write_error(self.log, e) from None
        self.added += blocks
        if self.reports.stats:
            seconds = time.perf_counter() - begin
            covered, rows, size = views.coverage(self.log, view, self.log.version())
            self.reports.updated(ViewUpdate(what, blocks, covered - before, seconds, covered, rows, size))

    def check(self) -> None:
        """Check every file of the views."""
        from confluo_tools.multilog import views

        for view in self.views():
            for path, reason in views.check(self.log, view):
                self.reports.warn(reason, path, f"confluo-index LOG rebuild {view.spec} repairs it")
