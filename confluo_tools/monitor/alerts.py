"""Alerts: events of triggers as records, and the alerts log, from which a monitor resumes.

The alerts of one tick are appended in one batch.  In the alerts log are `monitor.lock`, held by the monitor that
writes it, and `monitor.json`: its last tick and the triggers that fire, replaced every second.  Later events are
read from the alerts themselves, so a monitor that was killed resumes where it ended.
"""

from __future__ import annotations

import json
import math
import os
import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from confluo_tools.core.base.log_file import open_log_file
from confluo_tools.core.multilog.control import fault
from confluo_tools.errors import BusyError, StoreError
from confluo_tools.monitor.notes import AlertLines, TriggerNotes
from confluo_tools.multilog.atomic_file import replace
from confluo_tools.multilog.locks import lock, open_lock
from confluo_tools.schema import Schema, builtin
from confluo_tools.units import natural_key

if TYPE_CHECKING:
    from confluo_tools.core.block.block import Block
    from confluo_tools.core.text.text_writer import Printer
    from confluo_tools.monitor.engine import Event, TriggerEngine
    from confluo_tools.monitor.host_logs import HostLogs
    from confluo_tools.monitor.language import Trigger
    from confluo_tools.multilog.log import Log, LogWriter
    from confluo_tools.multilog.query.aggregation import Aggregation

KINDS = {"fire": 1, "clear": 2, "repeat": 3}
TUPLE = ("ip_version", "proto", "src_ip", "src_ip6", "dst_ip", "dst_ip6", "src_port", "dst_port")
LOCK, STATE = "monitor.lock", "monitor.json"
FORMAT = 1
NONE = -(1 << 63)


class AlertKey:
    """The key of an alert: as ``text``, and the bytes of the five-tuple columns."""

    __slots__ = ("text", "columns")

    def __init__(self, text: bytes, columns: dict[str, bytes]) -> None:
        self.text, self.columns = text, columns


class AlertBlocks:
    """Makes blocks of alerts from events; ``schema``: of the alerts; ``notes``: of their triggers, by name."""

    def __init__(
        self, engine: TriggerEngine, host: str | None = None, notes: Mapping[str, TriggerNotes] | None = None
    ) -> None:
        self.engine, self.schema = engine, builtin("alert")
        self.host = _text(os.uname().nodename if host is None else host, self._size("host"))
        self.notes: Mapping[str, TriggerNotes] = {} if notes is None else notes
        self._keys: dict[int, KeyNames] = {}
        layout = self.schema.layout
        self._index = {name: i for i, name in enumerate(layout.names)}
        self._width = [layout.describe(i)[2] * layout.describe(i)[3] for i in range(layout.n)]

    def _size(self, name: str) -> int:
        return self.schema[name].type.size

    def known(self, event: Event) -> AlertKey:
        """The key of an event, as an alert has it."""
        if event.known is not None:
            known: AlertKey = event.known
            return known
        if not event.key:
            return AlertKey(b"", {})
        names = self._keys.get(event.trigger)
        if names is None:
            question = self.engine.key_question(event.trigger)
            assert question is not None
            names = self._keys[event.trigger] = KeyNames(self.engine.triggers[event.trigger], question)
        return names.known(event.key, self._size("key"))

    def gone(self, tick: int, firing: Sequence[GoneAlert]) -> Block:
        """Records that clear what fires of triggers that do not exist any more."""
        return self.noted(tick, firing, "clear", "the trigger was removed")

    def noted(self, tick: int, alerts: Sequence[GoneAlert], event: str, about: str, lasted: int | None = None) -> Block:
        """Records of alerts that no condition decides; ``about``: what they say instead of one.

        ``lasted``: ns since they fired; None: up to ``tick``.
        """
        rows = _AlertRows(self, len(alerts))
        for row, each in enumerate(alerts):
            rows.put("ts", row, struct.pack("<q", tick))
            rows.put("trigger", row, _text(each.trigger, self._size("trigger")))
            rows.put("event", row, bytes([KINDS[event]]))
            for name in ("value", "threshold"):
                rows.put(name, row, struct.pack("<d", math.nan))
            rows.put("lasted", row, struct.pack("<q", max(tick - each.fired, 0) if lasted is None else lasted))
            rows.put("key", row, each.known.text)
            rows.put("condition", row, _text(about, self._size("condition")))
            rows.put("key_id", row, struct.pack("<Q", each.key_id))
            rows.put("host", row, self.host)
            for name, data in each.known.columns.items():
                rows.put(name, row, data)
        return rows.block()

    def block(self, events: Sequence[Event]) -> Block:
        """Records of the ``events`` of a tick, by trigger and key: hashes of keys differ between logs."""
        rows = _AlertRows(self, len(events))
        put = rows.put
        for row, (e, known) in enumerate(sorted(((e, self.known(e)) for e in events), key=_place)):
            trigger = self.engine.triggers[e.trigger]
            put("ts", row, struct.pack("<q", e.tick))
            put("trigger", row, _text(trigger.name, self._size("trigger")))
            put("event", row, bytes([KINDS[e.kind]]))
            put("value", row, struct.pack("<d", e.value))
            put("threshold", row, struct.pack("<d", e.threshold))
            put("rows", row, struct.pack("<Q", max(e.rows, 0)))
            put("window", row, struct.pack("<q", trigger.window))
            put("lasted", row, struct.pack("<q", e.lasted))
            put("key", row, known.text)
            put("values", row, struct.pack(f"<{len(e.values[:8])}d", *e.values[:8]))
            put("condition", row, _text(trigger.condition_text, self._size("condition")))
            put("key_id", row, struct.pack("<Q", e.hash))
            put("host", row, self.host)
            for name, data in known.columns.items():
                put(name, row, data)
        if any(self.engine.triggers[e.trigger].name in self.notes for e in events):
            self._note(rows)
        return rows.block()

    def _note(self, rows: _AlertRows) -> None:
        # The notes of triggers, with the fields of the alerts in their texts.
        lines = AlertLines(self.schema, self.notes)
        for row, notes in enumerate(list(lines.notes_of(rows.block()))):
            for name, value in notes.items():
                text = " ".join([f"{n}={v}" for n, v in value.items()]) if isinstance(value, dict) else value
                rows.put(name, row, _text(text, self._size(name)))


class _AlertRows:
    """Columns of alerts that are filled row by row; what is not put is zero."""

    def __init__(self, of: AlertBlocks, rows: int) -> None:
        self._of, self._rows = of, rows
        self._columns = [bytearray(w * rows) for w in of._width]

    def put(self, name: str, row: int, data: bytes) -> None:
        i = self._of._index[name]
        at = row * self._of._width[i]
        self._columns[i][at : at + len(data)] = data

    def block(self) -> Block:
        from confluo_tools.core.block.block import Block

        return Block.wrap(self._of.schema.layout, self._rows, [bytes(c) for c in self._columns])


class KeyNames:
    """Keys of one trigger: their bytes as text, and as columns of alerts."""

    def __init__(self, trigger: Trigger, question: Aggregation) -> None:
        self.by = trigger.keys
        first = [n for n in question.keys if n != "bucket_"]
        self.schema: Schema = question.result.project(first)
        layout = self.schema.layout
        self.widths = [layout.describe(i)[2] * layout.describe(i)[3] for i in range(layout.n)]
        self.names = layout.names
        self.suffix = {k.label: f"/{k.arg}" for k in self.by if k.kind == "prefix"}
        self.suffix6 = {k.label: f"/{k.arg6}" for k in self.by if k.kind == "prefix" and k.arg6}
        self.alert = builtin("alert")
        self._printer: Printer | None = None

    def known(self, key: bytes, most: int) -> AlertKey:
        from confluo_tools.core.block.block import Block
        from confluo_tools.core.text.text_writer import Printer
        from confluo_tools.formats.text import printing_plan

        parts, at = [], 0
        for width in self.widths:
            parts.append(key[at : at + width])
            at += width
        fields = [f.name for f in self.schema.fields]
        if self._printer is None:
            self._printer = Printer(self.schema.layout, printing_plan(self.schema, fields, "tsv"), "tsv", True)
        line = self._printer.lines(Block.wrap(self.schema.layout, 1, parts))
        words = []
        for name, value in zip(fields, line.decode("utf-8", "replace").rstrip("\n").split("\t"), strict=True):
            suffix = (self.suffix6 if ":" in value else self.suffix).get(name, "") if value != "-" else ""
            words.append(f"{name}={value}{suffix}")
        columns = {}
        for name, data in zip(self.names, parts, strict=True):
            if name in TUPLE and len(data) == self._alert_width(name):
                columns[name] = data
        if (
            "ip_version" not in columns and {"src_ip", "dst_ip"} <= columns.keys()
        ):  # of one version only: the bytes decide
            six = any(any(columns.get(n, b"")) for n in ("src_ip6", "dst_ip6"))
            columns["ip_version"] = b"\6" if six else b"\4" if any(columns["src_ip"] + columns["dst_ip"]) else b"\0"
        return AlertKey(_text(" ".join(words), most), columns)

    def _alert_width(self, name: str) -> int:
        _, _, size, count = self.alert.layout.describe(self.alert.index(name))
        return size * count


def _place(one: tuple[Event, AlertKey]) -> tuple[int, list[tuple[int, int, str]], int]:
    event, known = one
    return event.trigger, natural_key(known.text.decode("utf-8", "replace")), event.hash


def _text(text: str, most: int) -> bytes:
    data = text.encode("utf-8", "surrogateescape")[:most]
    return data.decode("utf-8", "ignore").encode() if len(data) == most else data


class AlertLog:
    """The alerts log at ``path``, created if missing, locked by this process.

    ``wait``: seconds to wait for the lock.  Raises BusyError, StoreError, DiskFullError.
    `earlier` returns the progress of the monitors before this one.
    """

    def __init__(
        self, path: str, source: Log | HostLogs, *, wait: float = 0.0, argv: Sequence[str] | None = None
    ) -> None:
        from confluo_tools import multilog

        self.path, self.source = path, source
        schema = builtin("alert")
        if not multilog.is_log(path):
            multilog.create(path, schema, lanes=16, segment_blocks=1, argv=argv).close()
        self._lock = open_lock(path, LOCK)
        try:
            hint = "--wait TIME waits for it, --alerts PATH writes to another log"
            lock(self._lock, wait, BusyError("another monitor writes these alerts", where=path, hint=hint))
            self.log = multilog.open(path)
            if self.log.schema.layout.names != schema.layout.names:
                self._add_columns(schema)
            if self.log.schema.layout.names != schema.layout.names:
                hint = "name another one: --alerts PATH"
                raise StoreError("is not a log of alerts of this version", where=path, hint=hint)
            if argv is not None:
                self.log.remember(list(argv))
            self._writer: LogWriter | None = None
        except BaseException:
            os.close(self._lock)
            raise

    def _add_columns(self, schema: Schema) -> None:
        # A log of an earlier version lacks the last fields; its alerts are absent there.
        from confluo_tools import multilog
        from confluo_tools.multilog.add_columns import add_columns

        names = [f.name for f in self.log.schema.fields]
        if names == [f.name for f in schema.fields][: len(names)]:
            self.log.close()
            add_columns(self.path, schema.fields[len(names) :])
            self.log = multilog.open(self.path)

    def append(self, block: Block) -> None:
        """The alerts of one tick."""
        if self._writer is None:
            self._writer = self.log.writer(ahead=-1)
        fault("alert-append")
        self._writer.append(block)
        fault("alert-appended")

    def flush(self) -> None:
        """Publish all alerts, also those that a freeze delays."""
        if self._writer is not None and not self._writer.closed:
            self._writer.flush()

    def close(self) -> None:
        try:
            if self._writer is not None:
                self._writer.close()
            self.log.close()
        finally:
            os.close(self._lock)

    # -- the state file

    def save(self, tick: int, engine: TriggerEngine, *, force: bool = False, also: Sequence[list[Any]] = ()) -> None:
        """Write the last tick and the triggers that fire, as an atomic replacement of the state file.

        ``also``: entries of alerts that fire and are not of the engine.
        """
        if self._writer is not None and not self._writer.poll():
            if not force:
                return  # a freeze delays rows: the state must not be ahead of them
            self._writer.flush()
        firing: list[list[Any]] = []
        for i, h, fired, last, ready, known in engine.memory():
            text, columns = (known.text, known.columns) if known is not None else (b"", {})
            firing.append(
                [engine.triggers[i].name, h, fired, last, ready, text.hex(), {n: d.hex() for n, d in columns.items()}]
            )
        firing += also
        data = {
            "format": FORMAT,
            "log": self.source.uuid.hex(),
            "alerts": self.log.uuid.hex(),
            "tick": tick,
            "tails": list(self.log.version().tails),
            "firing": firing,
        }
        try:
            replace(os.path.join(self.path, STATE), json.dumps(data).encode() + b"\n", point="monitor-state")
        except OSError as e:
            raise self.log.write_error(e) from None

    def _saved(self) -> dict[str, Any] | None:
        try:
            with open(os.path.join(self.path, STATE), encoding="utf-8", opener=open_log_file) as f:
                data = json.load(f)
            if data["format"] == FORMAT and data["alerts"] == self.log.uuid.hex() and isinstance(data["tick"], int):
                if data["log"] != self.source.uuid.hex():
                    what = "has the alerts of another log"
                    raise StoreError(what, where=self.path, hint="name another one: --alerts PATH")
                return dict(data)
        except (OSError, ValueError, KeyError, TypeError):
            pass  # missing or incomplete: the alerts themselves have the rest
        return None

    def earlier(self, triggers: Sequence[Trigger]) -> EarlierAlerts | None:
        """The progress of the monitors before this one, for triggers of the same names; None if there was none."""
        saved = self._saved()
        out = EarlierAlerts(NONE)
        state: dict[tuple[str, int], list[Any]] = {}
        tails: list[int] = []
        if saved is not None:
            out.tick, tails = saved["tick"], saved["tails"]
            for name, h, fired, last, ready, text, columns in saved["firing"]:
                known = AlertKey(bytes.fromhex(text), {n: bytes.fromhex(d) for n, d in columns.items()})
                state[name, h] = [fired, last, ready, known]
        number = {t.name: i for i, t in enumerate(triggers)}
        rows = list(self._rows(tails))
        if rows and rows[-1][0] > out.tick:
            # The last tick may be written in part only: it is evaluated again, without the alerts that exist.
            last = rows[-1][0]
            out.written = {(number[n], h, event) for t, n, event, h, _ in rows if t == last and n in number}
            out.written_tick, out.tick = last, last - 1

        def states() -> list[tuple[int, int, int, int, int, Any]]:
            return [(number[name], h, *rest) for (name, h), rest in state.items() if name in number]

        before = None
        for tick, name, event, h, known in rows:
            if tick == out.written_tick and before is None:
                before = states()
            i = number.get(name, -1)
            rearm = triggers[i].rearm if i >= 0 else 0
            if event == KINDS["clear"]:
                state[name, h] = [0, tick, tick + rearm, known]
            elif event == KINDS["repeat"] and (name, h) in state:
                state[name, h][1] = tick
            else:
                state[name, h] = [tick, tick, NONE, known]
        out.gone = [
            GoneAlert(name, h, rest[0], rest[3]) for (name, h), rest in state.items() if rest[0] and name not in number
        ]
        out.after = states()
        out.states = out.after if before is None else before
        return None if out.tick == NONE else out

    def _rows(self, tails: list[int]) -> Iterator[tuple[int, str, int, int, AlertKey]]:
        # Alerts that the state file does not know, in the order of their ticks.
        schema = self.log.schema
        at = {n: schema.index(n) for n in ("ts", "trigger", "event", "key", "key_id", *TUPLE)}
        found = []
        for block in self.log.blocks():
            before = tails[block.lane] if block.lane < len(tails) else 0
            if block.base + block.rows <= before or not block.check(at.values()):
                continue
            for row in range(max(before - block.base, 0), block.rows):
                get = {n: block.get(i, row) for n, i in at.items()}
                columns = {}
                for n in TUPLE:
                    _, _, size, _ = schema.layout.describe(at[n])
                    v = get[n]
                    columns[n] = v if isinstance(v, bytes) else int(v).to_bytes(size, "little")
                name = get["trigger"].rstrip(b"\0").decode("utf-8", "replace")
                known = AlertKey(get["key"].rstrip(b"\0"), columns)
                found.append((get["ts"], name, get["event"], get["key_id"], known))
        found.sort(key=lambda f: f[0])
        return iter(found)


class GoneAlert(NamedTuple):
    """An alert that fires of a ``trigger`` that does not exist any more.  ``fired``: when, ns."""

    trigger: str
    key_id: int
    fired: int
    known: AlertKey


class EarlierAlerts:
    """The end of an earlier run.  ``tick``: all ticks up to it are done.  ``states``: for `TriggerEngine.restore`.

    ``written``: alerts (trigger, key_id, event) that exist of ``written_tick``, the tick after; ``after``: the states
    with these.  ``gone``: alerts that fire, of triggers with other names.
    """

    def __init__(self, tick: int) -> None:
        self.tick = tick
        self.written: set[tuple[int, int, int]] = set()
        self.written_tick = NONE
        self.states: list[tuple[int, int, int, int, int, Any]] = []
        self.after = self.states
        self.gone: list[GoneAlert] = []

    def pass_to(self, tick: int) -> None:
        """Leave out the ticks up to ``tick``."""
        self.tick = tick
        if tick >= self.written_tick:
            self.states = self.after
