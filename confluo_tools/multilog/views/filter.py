"""Filter views: named expressions, with the matching rows of each block.  Paper: section 3 (Table 1), 4.

    views.add_filter(log, "web", "dst_port in {80, 443}")
    confluo-query LOG 'filter web and len > 1000'

Queries also use the stored rows when the expression of the filter is part of theirs, without naming it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cached_property, partial
from typing import TYPE_CHECKING

from confluo_tools.core.multilog.view_file import pack
from confluo_tools.errors import ConfluoError, StoreError, UsageError
from confluo_tools.multilog.views import base

if TYPE_CHECKING:
    from confluo_tools.core.block.block import Picks
    from confluo_tools.core.multilog.segment import SegmentBlock
    from confluo_tools.expr import Expr
    from confluo_tools.multilog.log import Log
    from confluo_tools.schema import Schema

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,62}\Z")
MEANING = 2  # version of the expression language, part of the digest: filters of another version are rebuilt
_LATER = 86_400_000_000_000


class FilterView(base.View):
    """A named expression: ``name``, ``text``, and ``tree``, which is compiled on first use."""

    kind = "filter"

    def __init__(self, log: Log, name: str, text: str, path: str, fields: tuple[str, ...] = ()) -> None:
        super().__init__(name, path)
        self.name, self.text, self.fields = name, text, fields
        self._schema: Schema = log.schema
        self._expr: Expr | None = None

    @property
    def definition(self) -> str:
        return self.text

    @property
    def expr(self) -> Expr:
        """The expression, compiled.  Raises ExprError."""
        if self._expr is None:
            self._expr = compiled(self.text, self._schema)
        return self._expr

    @property
    def tree(self):  # type: ignore[no-untyped-def,override]
        return self.expr.tree

    @cached_property
    def columns(self) -> tuple[int, ...]:  # type: ignore[override]
        from confluo_tools.expr import leaves

        return tuple(sorted(leaves.columns(self.tree)))

    @cached_property
    def digest(self) -> bytes:  # type: ignore[override]
        return digest("filter", self.text)

    def chunk(self, block: SegmentBlock, picks: Picks) -> bytes:
        return pack(picks)


def digest(*texts: str) -> bytes:
    """Hash of the definition of a view.  It is stored in the files of the view; files with another one are not used."""
    from hashlib import sha256

    return sha256("\0".join((str(MEANING), *texts)).encode("utf-8", "surrogateescape")).digest()


def compiled(text: str, schema: Schema) -> Expr:
    """Compile the expression of a view.  Raises ExprError; ValueError if it is relative to the current time."""
    from confluo_tools.expr import compile

    now = 1_700_000_000_000_000_000
    expr = compile(text, schema, now_ns=now, filters=NoFilterNames())
    if compile(text, schema, now_ns=now + _LATER + 1, filters=NoFilterNames()).tree != expr.tree:
        raise ValueError("it is relative to the current time, so its rows would change")
    return expr


class NoFilterNames(Mapping[str, str]):
    """The empty set of filter names: an expression of a view may not use filters, which could be dropped."""

    hint = "write its expression instead: a view must not depend on a filter name"

    def __getitem__(self, name: str) -> str:
        raise KeyError(name)

    def __iter__(self):  # type: ignore[no-untyped-def]
        return iter(())

    def __len__(self) -> int:
        return 0


def load(log: Log, label: str, path: str, about: dict[str, str]) -> FilterView:
    """Load a filter from its definition.  Raises ValueError when it is invalid for this log."""
    text = about.get("expr")
    if about.get("name") != label or text is None or not NAME.match(label):
        raise ValueError("its definition is damaged")
    fields = tuple(f for f in about.get("fields", "").split(",") if f)
    if any(f not in log.schema for f in fields):
        raise ValueError("it uses a field that the MultiLog does not have")
    return FilterView(log, label, text, path, fields)


def filters(log: Log, warn: base.Warn | None = None) -> list[FilterView]:
    """The filters of ``log``, by name.  Invalid definitions are reported to ``warn(path, what)``."""
    found = base.load(log, "filter", partial(load, log), warn)
    return [view for view in found if isinstance(view, FilterView)]


def named_filters(log: Log) -> dict[str, str]:
    """{name: expression} of the filters of a log."""
    return {f.name: f.text for f in filters(log)}


def find_filter(log: Log, name: str) -> FilterView:
    """The filter ``name``.  Raises StoreError if it does not exist."""
    for view in base.load(log, "filter", partial(load, log), only=name):
        if isinstance(view, FilterView):
            return view
    from difflib import get_close_matches

    near = get_close_matches(name, [f.name for f in filters(log)], n=1)
    hint = f"did you mean '{near[0]}'?" if near else "confluo-index LOG list shows them"
    raise StoreError(f"there is no filter '{name}'", where=log.path, hint=hint)


def add_filter(log: Log, name: str, text: str) -> FilterView:
    """Add a filter.  `build` or a `Maintainer` then evaluates it for the existing rows.

    Adding the same filter again has no effect.  Raises UsageError (invalid name, name in use, expression relative to
    the current time), ExprError, StoreError.
    """
    check_name(log, "filter", name)
    try:
        expr = compiled(text, log.schema)
    except ValueError as e:
        raise UsageError(f"invalid filter '{name}': {e}", where=log.path) from None
    about = ["# A filter of a MultiLog: the rows that match are derived data, which may be deleted at any time."]
    about += ["kind: filter", f"name: {name}", f"expr: {base.quoted(text)}", f"fields: {','.join(expr.fields)}"]
    make(log, "filter", load, name, about)
    view = find_filter(log, name)
    if view.text != text:
        raise UsageError(f"filter '{name}' exists: {view.text}", where=log.path, hint="drop it first")
    return view


def check_name(log: Log, kind: str, name: str) -> None:
    """Raise UsageError unless ``name`` is valid and unused: all kinds but indexes share one set of names."""
    if not NAME.match(name):
        hint = "use letters, digits, _ and -, starting with a letter"
        raise UsageError(f"invalid view name '{name}'", where=log.path, hint=hint)
    for other in base.KINDS:
        if other not in ("index", kind) and base.names(log, f"{other}-{name}").count(f"{other}-{name}"):
            raise UsageError(f"name '{name}' is used by a view of kind {other}", where=log.path, hint="drop it first")


def make(log: Log, kind: str, load: base.Load, name: str, about: list[str]) -> None:
    """Write a definition unless there is a valid one."""
    try:
        if not base.load(log, kind, partial(load, log), only=name):
            base.remove(log, f"{kind}-{name}")
            base.create(log, kind, name, about)
    except OSError as e:
        raise base.write_error(log, e) from None


class FilterNames(Mapping[str, str]):
    """{name: expression} of the filters of a log, read on first use."""

    hint = ""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._views: dict[str, FilterView] | None = None

    @property
    def views(self) -> dict[str, FilterView]:
        if self._views is None:
            self._views = {view.name: view for view in filters(self._log)}
        return self._views

    def __getitem__(self, name: str) -> str:
        return self.views[name].text

    def __iter__(self):  # type: ignore[no-untyped-def]
        return iter(self.views)

    def __len__(self) -> int:
        return len(self.views)


__all__ = ["ConfluoError", "FilterNames", "FilterView", "add_filter", "filters", "find_filter"]
