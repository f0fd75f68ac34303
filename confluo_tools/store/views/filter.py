"""Filters: named expressions, and for each block the rows for which they hold.  Paper: section 3 (Table 1), 4.

    views.add_filter(log, "web", "dst_port in {80, 443}")
    confluo-query LOG 'filter web and len > 1000'

The stored rows of a filter also serve every expression of which it is a part, named or not.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cached_property, partial
from typing import TYPE_CHECKING

from confluo_tools.core.chunks import pack
from confluo_tools.errors import ConfluoError, StoreError, UsageError
from confluo_tools.store.views import base

if TYPE_CHECKING:
    from confluo_tools.core.block import Picks
    from confluo_tools.core.segment import SegmentBlock
    from confluo_tools.expr import Expr
    from confluo_tools.schema import Schema
    from confluo_tools.store.log import Log

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,62}\Z")
MEANING = 1  # of the language: filters stored when a text meant something else are made anew
_LATER = 86_400_000_000_000


class FilterView(base.View):
    """A named expression: ``name``, its ``text``, and ``tree``, compiled when it is first asked for."""

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
    """What stands in the files of a view, so that those of another definition are not believed."""
    from hashlib import sha256

    return sha256("\0".join((str(MEANING), *texts)).encode("utf-8", "surrogateescape")).digest()


def compiled(text: str, schema: Schema) -> Expr:
    """The expression of a view.  ExprError; ValueError: its meaning would change with time."""
    from confluo_tools.expr import compile

    now = 1_700_000_000_000_000_000
    expr = compile(text, schema, now_ns=now, filters=NoNames())
    if compile(text, schema, now_ns=now + _LATER + 1, filters=NoNames()).tree != expr.tree:
        raise ValueError("it counts from now, so that it would never mean the same again")
    return expr


class NoNames(Mapping[str, str]):
    """The filters that an expression inside a view may name: none, so that dropping one never changes another."""

    hint = "write out its text: what is stored must not depend on other names"

    def __getitem__(self, name: str) -> str:
        raise KeyError(name)

    def __iter__(self):  # type: ignore[no-untyped-def]
        return iter(())

    def __len__(self) -> int:
        return 0


def load(log: Log, label: str, path: str, about: dict[str, str]) -> FilterView:
    """The filter behind a definition.  ValueError: it makes no sense for this log."""
    text = about.get("expr")
    if about.get("name") != label or text is None or not NAME.match(label):
        raise ValueError("its definition is damaged")
    fields = tuple(f for f in about.get("fields", "").split(",") if f)
    if any(f not in log.schema for f in fields):
        raise ValueError("it is of a field that the MultiLog does not have")
    return FilterView(log, label, text, path, fields)


def filters(log: Log, warn: base.Warn | None = None) -> list[FilterView]:
    """The filters of ``log``, by name.  Definitions that are no use are told to ``warn(path, what)``."""
    found = base.load(log, "filter", partial(load, log), warn)
    return [view for view in found if isinstance(view, FilterView)]


def find_filter(log: Log, name: str) -> FilterView:
    """The filter ``name``.  StoreError when there is none."""
    for view in base.load(log, "filter", partial(load, log), only=name):
        if isinstance(view, FilterView):
            return view
    from difflib import get_close_matches

    near = get_close_matches(name, [f.name for f in filters(log)], n=1)
    hint = f"did you mean '{near[0]}'?" if near else "confluo-index LOG list shows them"
    raise StoreError(f"there is no filter '{name}'", where=log.path, hint=hint)


def add_filter(log: Log, name: str, text: str) -> FilterView:
    """Name an expression; whoever maintains it looks at the rows that are there (`built`).

    The same again changes nothing.  Raises UsageError (a bad name, one that is taken, an expression that counts from
    now), ExprError, StoreError.
    """
    check_name(log, "filter", name)
    try:
        expr = compiled(text, log.schema)
    except ValueError as e:
        raise UsageError(f"filter '{name}' cannot be: {e}", where=log.path) from None
    about = ["# A filter of a MultiLog: the rows that match are derived data, which may be deleted at any time."]
    about += ["kind: filter", f"name: {name}", f"expr: {base.quoted(text)}", f"fields: {','.join(expr.fields)}"]
    make(log, "filter", load, name, about)
    view = find_filter(log, name)
    if view.text != text:
        raise UsageError(f"there is a filter '{name}': {view.text}", where=log.path, hint="drop it first")
    return view


def check_name(log: Log, kind: str, name: str) -> None:
    """UsageError unless a view of this kind may be called so: names are shared by all kinds but indexes."""
    if not NAME.match(name):
        hint = "letters, digits, _ and -, beginning with a letter"
        raise UsageError(f"a view cannot be called '{name}'", where=log.path, hint=hint)
    for other in base.KINDS:
        if other not in ("index", kind) and base.names(log, f"{other}-{name}").count(f"{other}-{name}"):
            raise UsageError(f"there is a view '{name}' of another kind: {other}", where=log.path, hint="drop it first")


def make(log: Log, kind: str, load: base.Load, name: str, about: list[str]) -> None:
    """Write a definition unless there is one that ``load`` can use."""
    try:
        if not base.load(log, kind, partial(load, log), only=name):
            base.remove(log, f"{kind}-{name}")
            base.create(log, kind, name, about)
    except OSError as e:
        raise base.trouble(log, e) from None


class Names(Mapping[str, str]):
    """Name -> text of the filters of a log, read when the first one is asked for."""

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


__all__ = ["ConfluoError", "FilterView", "Names", "add_filter", "filters", "find_filter"]
