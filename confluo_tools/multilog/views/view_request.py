"""The words of confluo-index: a verb, a kind of view, and views to define or names of views."""

from __future__ import annotations

from typing import TYPE_CHECKING

from confluo_tools.errors import UsageError
from confluo_tools.multilog.views.registry import KINDS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from confluo_tools.multilog.log import Log
    from confluo_tools.multilog.views.base import View

VERBS = ("add", "drop", "list", "update", "rebuild", "check")
EXAMPLES = {
    "index": "for example: confluo-index LOG add src_ip",
    "filter": "for example: confluo-index LOG add filter web 'dst_port in {80, 443}'",
    "aggregate": "for example: confluo-index LOG add aggregate bytes 'sum(len)' --by dst_ip",
    "state": "for example: confluo-index LOG add state maxseq, or add state NAME --define FILE",
}


class ViewRequest:
    """``verb``; ``kind`` of view (None: all kinds); ``rest``: the other words, names first; ``names`` of views.

    ``buckets``: the text after the colon of each index, '' without one.  Raises UsageError.
    """

    def __init__(self, words: list[str], follow: bool) -> None:
        self.verb, self.rest = (words[0], words[1:]) if words else ("update" if follow else "list", [])
        if self.verb not in VERBS:
            from difflib import get_close_matches

            near = get_close_matches(self.verb, VERBS, n=1)
            hint = f"did you mean '{near[0]}'?" if near else f"use {', '.join(VERBS)}"
            raise UsageError(f"unknown verb '{self.verb}'", hint=hint)
        self.kind: str | None = None
        if self.rest and self.rest[0] in KINDS:
            self.kind, self.rest = self.rest[0], self.rest[1:]
        elif self.rest or self.verb == "add":
            self.kind = "index"
        if self.verb in ("add", "drop") and not self.rest:
            missing = "a field" if self.kind in ("index", None) else "a name"
            raise UsageError(f"{self.verb} needs {missing}", hint=EXAMPLES.get(self.kind or "index", ""))
        if follow and self.verb in ("drop", "rebuild", "check"):
            raise UsageError(f"--follow and {self.verb} exclude each other")
        self.names, self.buckets = list(self.rest), [""] * len(self.rest)
        if self.kind == "index":
            pairs = [word.partition(":") for word in self.rest]
            self.names, self.buckets = [p[0] for p in pairs], [p[2] for p in pairs]
            if self.verb != "add" and any(self.buckets):
                raise UsageError("a bucket is given when an index is added", hint="drop the index, then add it again")
        elif self.verb == "add":
            self.names = self.rest[:1]

    def options(
        self, filter: str | None, where: str | None, by: str | None, bucket: str | None, define: str | None
    ) -> None:
        """Set the options of `add aggregate` and `add state`.  Raises UsageError with any other verb or kind."""
        if define is not None and (self.verb, self.kind) != ("add", "state"):
            raise UsageError("--define is for add state", hint=EXAMPLES["state"])
        self.state = define
        given = {"--filter": filter, "--where": where, "--by": by, "--bucket": bucket}
        if (self.verb, self.kind) != ("add", "aggregate"):
            for name, value in given.items():
                if value is not None:
                    raise UsageError(f"{name} is for add aggregate", hint=EXAMPLES["aggregate"])
        self.filter, self.where, self.by, self.bucket = filter, where or "", by or "", bucket

    def selects(self, view: View) -> bool:
        """Whether the request is for ``view``."""
        return (self.kind is None or view.kind == self.kind) and (not self.names or view.label in self.names)

    def add(self, log: Log) -> Iterator[View]:
        """Define the views of `add` in ``log``, each when the one before it has been taken.  Raises UsageError."""
        from confluo_tools.multilog import views

        if self.kind != "index":
            yield self._define(log)
            return
        for name, text in zip(self.names, self.buckets, strict=True):
            yield views.add_index(log, name, _bucket(log, name, text) if text else None)

    def _define(self, log: Log) -> View:
        from confluo_tools import units
        from confluo_tools.multilog import views

        name, text = self.rest[0], " ".join(self.rest[1:])
        if self.kind == "state":
            if text:
                raise UsageError(f"'{text}' after the name of a state", hint=EXAMPLES["state"])
            return views.add_state(log, name, self.state)
        if self.kind == "filter":
            if len(self.rest) < 2:
                raise UsageError(f"filter '{name}' needs an expression", hint=EXAMPLES["filter"])
            return views.add_filter(log, name, text)
        if len(self.rest) < 2:
            raise UsageError(f"aggregate '{name}' needs aggregate functions", hint=EXAMPLES["aggregate"])
        step = units.duration(self.bucket) if self.bucket is not None else 1_000_000
        return views.add_aggregate(log, name, text, filter=self.filter, where=self.where, by=self.by, bucket=step)


def _bucket(log: Log, field: str, text: str) -> int:
    # `1ms` for times and durations, an integer for other fields.
    from confluo_tools import units

    if log.schema[field].type.kind in ("time", "duration"):
        return units.duration(text)
    return units.integer(text)
