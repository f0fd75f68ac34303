"""flows.yaml: flows by name, what belongs to each, and what becomes of its records.  confluo-stream-publish(1)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from confluo_tools.errors import ConfluoError, UsageError
from confluo_tools.stream.destination import takes_many

if TYPE_CHECKING:
    from confluo_tools.schema import Schema
    from confluo_tools.stream.functions import FlowFunction, WindowFunction

MAX_BYTES = 1 << 20
MAX_FLOWS = 64
MAX_FUNCTIONS = 16
MAX_WORKERS = 64
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
WORDS = ("name", "match", "fields", "functions", "to", "workers", "worker", "continue")


@dataclass(frozen=True)
class StreamFlow:
    """A flow.  ``match``: its expression, "": all records.  ``goes_on``: its records may belong to later flows, too.

    ``to``: where its records go.  ``workers``: threads for it alone, 0: shared ones.  ``worker``: name of the shared
    thread, "": any of the shared ones.  ``batch``: the fields that its functions and its records need, of those that
    are classified; ``out``: the fields of its records, of those that the last function gives.  ``in_lane``: the number
    of functions that run before its records are shared among workers.
    """

    name: str
    match: str
    goes_on: bool
    functions: tuple[tuple[str, FlowFunction], ...]
    to: str
    workers: int
    worker: str
    batch: Schema
    out: tuple[str, ...]
    in_lane: int = 0

    @property
    def named(self) -> list[tuple[str, FlowFunction]]:
        """The functions with names of their own: filter, filter.2, ..."""
        words = [word for word, _ in self.functions]
        again = [words[:i].count(word) + 1 for i, word in enumerate(words)]
        return [(f"{w}.{n}" if n > 1 else w, f) for n, (w, f) in zip(again, self.functions, strict=True)]

    @property
    def whole(self) -> str:
        """The function that needs all records of the flow in one worker; "": there is none."""
        if self.windows is not None:
            return self.functions[self.in_lane][0] if self.windows.ordered else ""
        return next((word for word, f in self.functions[self.in_lane :] if f.whole), "")

    @property
    def windows(self) -> WindowFunction | None:
        """The first function in workers, if its windows are decided in the lanes.

        What comes after it is in one worker, for its results are few.
        """
        from confluo_tools.stream.functions import WindowFunction

        first = [f for _, f in self.functions[self.in_lane : self.in_lane + 1]]
        return first[0] if first and isinstance(first[0], WindowFunction) else None

    @property
    def records(self) -> Schema:
        """The schema of what goes to its place."""
        schema = self.batch
        for _, function in self.functions:
            if not function.keeps:
                schema = only(schema, function.needs)
            schema = function.after(schema)
        return only(schema, self.out)


def only(schema: Schema, names: Iterable[str]) -> Schema:
    """``schema`` with these fields alone, in its order; with its first field if it has none of them."""
    wanted = set(names)
    kept = [f.name for f in schema.fields if f.name in wanted]
    return schema if len(kept) == len(schema.fields) else schema.project(kept or [schema.fields[0].name])


class FlowsReader:
    """Reads flows for records of ``schema``.  ``to``, ``fields``: of flows that have none.  ``filters``: of a log."""

    def __init__(
        self, schema: Schema, to: str, fields: str | None = None, filters: Mapping[str, str] | None = None
    ) -> None:
        self.schema, self.to, self.fields, self.filters = schema, to, fields, filters

    def whole(self, name: str, match: str = "") -> list[StreamFlow]:
        """One flow for all records for which an expression holds."""
        return [self._flow({"name": name, "match": match} if match else {"name": name}, name)]

    def file(self, path: str) -> list[StreamFlow]:
        """The flows in a file.  Raises UsageError."""
        from confluo_tools import guarded_yaml

        try:
            return self.text(guarded_yaml.read(path, MAX_BYTES).decode(errors="replace"), path)
        except OSError as e:
            raise UsageError(e.strerror or str(e), where=path) from None
        except guarded_yaml.YamlError as e:
            raise UsageError(e.problem, where=path) from None

    def text(self, text: str, where: str = "flows.yaml") -> list[StreamFlow]:
        """The flows in a YAML text.  Raises UsageError."""
        from confluo_tools import guarded_yaml

        try:
            data = guarded_yaml.load(text, max_bytes=MAX_BYTES)
        except guarded_yaml.YamlError as e:
            raise UsageError(e.problem, where=f"{where}:{e.line}" if e.line else where) from None
        if not isinstance(data, dict) or not isinstance(data.get("flows"), list) or not data["flows"]:
            raise UsageError("has no list 'flows'", where=where, hint="write flows: and then - name: NAME for each")
        _known(data, ("flows",), where)
        if len(data["flows"]) > MAX_FLOWS:
            raise UsageError(f"{len(data['flows'])} flows exceed the limit", where=where, hint=f"at most {MAX_FLOWS}")
        flows: list[StreamFlow] = []
        for number, entry in enumerate(data["flows"], 1):
            flow = self._flow(entry, self._name(entry, f"{where}: flow {number}"), where)
            if any(flow.name == other.name for other in flows):
                raise UsageError(f"two flows are named '{flow.name}'", where=where, hint="rename one")
            flows.append(flow)
        return flows

    def _name(self, entry: Any, where: str) -> str:
        if not isinstance(entry, dict):
            raise UsageError("is not a mapping", where=where, hint="write - name: NAME, then its words below")
        name = entry.get("name")
        if name is None:
            raise UsageError("has no name", where=where, hint="write name: NAME")
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            hint = "use letters, digits, '.', '_' and '-', at most 64"
            raise UsageError(f"'{str(name)[:80]}' cannot be a name", where=where, hint=hint)
        return name

    def _flow(self, entry: dict[str, Any], name: str, path: str = "") -> StreamFlow:
        where = f"{path}: flow '{name}'" if path else ""
        _known(entry, WORDS, where)
        match = entry.get("match", "")
        if not isinstance(match, str):
            raise UsageError(f"'{match}' is not an expression", where=f"{where}: match", hint="leave it out for all")
        goes_on = entry.get("continue", False)
        if not isinstance(goes_on, bool):
            raise UsageError(f"'{goes_on}' is neither true nor false", where=f"{where}: continue")
        to = entry.get("to", self.to)
        if not isinstance(to, str) or not to:
            raise UsageError("has no place for its records", where=where, hint="write to: PLACE, or --to PLACE")
        self._compile(match, f"{where}: match" if where else "")
        workers, worker = self._threads(entry, where)
        functions, schema = self._functions(entry.get("functions"), name, where)
        fields = entry.get("fields", self.fields if schema is self.schema else None)
        out = self._fields(fields, schema, f"{where}: fields" if where else "--fields")
        in_lane = self._in_lane(functions)
        batch = self._batch(functions[in_lane:], out)
        flow = StreamFlow(name, match, goes_on, functions, to, workers, worker, batch, out, in_lane)
        if workers > 1 and flow.whole:
            what = f"{flow.whole} needs all records of the flow in one thread"
            if flow.windows is not None:
                what = f"{flow.whole}: first, last and sums of floats depend on the order of records"
            raise UsageError(what, where=f"{where}: workers", hint="write workers: 1")
        if workers > 1 and flow.windows is None and not takes_many(to):
            raise UsageError("only a topic or a table takes records from several workers", where=f"{where}: workers")
        return flow

    def _in_lane(self, functions: tuple[tuple[str, FlowFunction], ...]) -> int:
        """Functions up to the last one that needs all records, or has windows; others run in workers."""
        from confluo_tools.stream.functions import WindowFunction

        n = 0
        for number, (_, function) in enumerate(functions, 1):
            if isinstance(function, WindowFunction):
                return number - 1
            if not function.keeps or function.after(self.schema) is not self.schema:
                break
            if function.whole:
                n = number
        return n

    def _compile(self, match: str, where: str) -> None:
        if not match:
            return
        from confluo_tools.expr import compile

        try:
            compile(match, self.schema, filters=self.filters)
        except ConfluoError as e:
            if not where:
                raise
            raise UsageError(f"{e.where}: {e.what}" if e.where else e.what, where=where, hint=e.hint) from None

    def _threads(self, entry: dict[str, Any], where: str) -> tuple[int, str]:
        workers, worker = entry.get("workers", 0), entry.get("worker", "")
        if "workers" in entry and (type(workers) is not int or not 1 <= workers <= MAX_WORKERS):
            raise UsageError(f"'{workers}' is not from 1 to {MAX_WORKERS}", where=f"{where}: workers")
        if "worker" in entry:
            if workers:
                raise UsageError("worker and workers exclude each other", where=where, hint="leave one out")
            if not isinstance(worker, str) or not _NAME.fullmatch(worker):
                raise UsageError(f"'{str(worker)[:80]}' cannot be a name", where=f"{where}: worker")
        return workers, worker

    def _functions(self, listed: Any, name: str, where: str) -> tuple[tuple[tuple[str, FlowFunction], ...], Schema]:
        from confluo_tools.stream import functions as table

        found: list[tuple[str, FlowFunction]] = []
        schema = self.schema
        if listed is None:
            return (), schema
        if not isinstance(listed, list) or len(listed) > MAX_FUNCTIONS:
            hint = "write - WORD: VALUE for each"
            raise UsageError(
                f"is not a list of at most {MAX_FUNCTIONS} functions", where=f"{where}: functions", hint=hint
            )
        for entry in listed:
            if entry == "passthrough":
                continue
            if not isinstance(entry, dict) or len(entry) != 1:
                hint = "write - WORD: VALUE, as in '- sample: 1/10'"
                raise UsageError(f"'{str(entry)[:80]}' is not a function", where=f"{where}: functions", hint=hint)
            [(word, value)] = entry.items()
            function = table.read(str(word), value, schema, where, name)
            schema = function.after(schema)
            found.append((str(word), function))
        return tuple(found), schema

    def _fields(self, fields: Any, schema: Schema, where: str) -> tuple[str, ...]:
        from confluo_tools.stream.telemetry import chosen

        if isinstance(fields, list):
            fields = ",".join(map(str, fields))
        if fields is not None and not isinstance(fields, str):
            raise UsageError(f"'{fields}' is not a list of fields", where=where)
        try:
            return tuple(chosen(fields, schema))
        except ConfluoError as e:
            raise UsageError(e.what, where=where, hint=e.hint) from None

    def _batch(self, functions: tuple[tuple[str, FlowFunction], ...], out: tuple[str, ...]) -> Schema:
        needed = set(out)
        for _, function in reversed(functions):
            needed = needed | function.needs if function.keeps else set(function.needs)
        return only(self.schema, needed)


def _known(entry: Mapping[Any, Any], words: tuple[str, ...], where: str) -> None:
    for word in entry:
        if word not in words:
            from difflib import get_close_matches

            near = get_close_matches(str(word), words, 1)
            hint = f"did you mean '{near[0]}'?" if near else f"write {', '.join(words)}"
            raise UsageError(f"unknown word '{str(word)[:80]}'", where=where, hint=hint)
