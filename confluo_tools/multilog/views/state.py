"""State views: the states of all keys of a state definition (confluo-state(5)).  File format: docs/format-state.md.

Rows are folded in query order, by time over all lanes, so a state depends on rows of several lanes.  The view stores
the states after a prefix of this order that later writes cannot change: it ends where the first lane has no more rows.
A query loads the stored states and folds the remaining rows.  When a new lane starts with rows older than the stored
states, all rows are folded again.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from confluo_tools.core.multilog.control import crc
from confluo_tools.core.multilog.log_scan import LaneMerger
from confluo_tools.errors import StoreError, UsageError
from confluo_tools.expr import compile
from confluo_tools.multilog.ownership import chown_to_owner
from confluo_tools.multilog.query import state_definitions
from confluo_tools.multilog.views import base

if TYPE_CHECKING:
    from confluo_tools.core.block.block import Block, Picks
    from confluo_tools.core.query.state_machine import StateMachine
    from confluo_tools.multilog.log import Log
    from confluo_tools.multilog.version import Version

FILE = "states"
MAGIC = b"CFLSTATE"
HEAD = struct.Struct("<8sII16s32sQQQqII")  # magic version endian uuid digest keys rows bytes newest lanes crc
HEAD_BYTES = 128
BLOCK = 65536
MIN_NEW_ROWS = 65536  # new rows required before the states are written again
MAX_KEYS = 1 << 20  # beyond this number, keys not seen for a long time are evicted
LONG_AGO = -(1 << 63)
Tails = dict[int, int]  # lane -> number of its rows in the states


class FoldedStates:
    """The states after some rows: ``tails`` rows of each lane; ``newest``: their latest time."""

    __slots__ = ("machine", "newest", "tails")

    def __init__(self, machine: StateMachine, tails: Tails | None = None, newest: int = LONG_AGO) -> None:
        self.machine, self.newest = machine, newest
        self.tails = {} if tails is None else tails

    @property
    def rows(self) -> int:
        return sum(self.tails.values())

    def take(self, block: Block, picks: Picks | None, time: int) -> None:
        """Fold rows in order; ``time``: number of the time column, -1 for none."""
        self.machine.update(block, picks)
        if time >= 0 and block.rows:
            zones = block.zones(time)
            latest = zones[1] - (1 << 63) if zones else max(block.buffer(time).cast("q"))
            self.newest = max(self.newest, latest)


class StateView(base.View):
    """The states of a definition: ``text`` is its YAML, ``params`` the parameters as given by the user."""

    kind = "state"
    whole_log = True

    def __init__(self, log: Log, label: str, path: str, text: str, params: str) -> None:
        super().__init__(label, path)
        self.log, self.text, self.params = log, text, params
        self._kept: tuple[int, FoldedStates] | None = None  # mtime of the file, its content

    @property
    def name(self) -> str:
        return self.label

    @cached_property
    def state(self) -> state_definitions.StateDefinition:
        found = state_definitions.parse(self.text, f"state {self.label}")
        found.set_params(dict(pair.split("=", 1) for pair in self.params.split(",") if pair))
        return found

    @property
    def definition(self) -> str:
        fields = ", ".join(f.name for f in self.state.state_fields)
        given = f" ({self.params})" if self.params else ""
        return f"{self.state.name}{given}: {fields} by {', '.join(self.state.key)}"

    @property
    def digest(self) -> bytes:  # type: ignore[override]
        return self.state.digest

    @property
    def path_of_states(self) -> str:
        return os.path.join(self.path, FILE)

    # -- the file

    def read(self) -> tuple[FoldedStates, int]:
        """The stored states, and the size of the file.

        Raises OSError if there is no file, ValueError if it is invalid.
        """
        schema = self.log.schema
        with open(self.path_of_states, "rb") as f:
            data = f.read()
        if len(data) < HEAD_BYTES:
            raise ValueError("it is too short")
        magic, version, endian, uuid, digest, keys, _, size, newest, lanes, check = HEAD.unpack_from(data)
        if (magic, version, endian) != (MAGIC, 1, 0x01020304):
            raise ValueError("it is not a state file of this version")
        if uuid != self.log.uuid or digest != self.digest:
            raise ValueError("it belongs to another log or definition")
        if size != len(data) - HEAD_BYTES or check != crc(data[: HEAD.size - 4] + data[HEAD_BYTES:]):
            raise ValueError("its checksum is wrong")
        machine = self.state.machine(schema, flows=max(MAX_KEYS, keys))
        layout = machine.states
        if size != 8 * lanes + keys * layout.row_bytes:
            raise ValueError("its size is wrong")
        tails = dict(enumerate(struct.unpack_from(f"<{lanes}Q", data, HEAD_BYTES)))
        at, view = HEAD_BYTES + 8 * lanes, memoryview(data)
        from confluo_tools.core.block.block import Block

        for start in range(0, keys, BLOCK):
            n = min(BLOCK, keys - start)
            columns = []
            for i in range(layout.n):
                _, _, width, count = layout.describe(i)
                columns.append(view[at : at + n * width * count])
                at += n * width * count
            machine.load(Block.wrap(layout, n, columns))
        return FoldedStates(machine, tails, newest), len(data)

    def write(self, folded: FoldedStates) -> None:
        """Replace the stored states atomically.  Raises OSError."""
        machine, tails = folded.machine, folded.tails
        lanes = max(tails, default=-1) + 1
        body = [struct.pack(f"<{lanes}Q", *(tails.get(lane, 0) for lane in range(lanes)))]
        for block in machine.blocks():
            body += [bytes(block.buffer(i)) for i in range(machine.states.n)]
        data = b"".join(body)
        head = HEAD.pack(
            MAGIC,
            1,
            0x01020304,
            self.log.uuid,
            self.digest,
            machine.count,
            folded.rows,
            len(data),
            folded.newest,
            lanes,
            0,
        )
        head = head[:-4] + struct.pack("<I", crc(head[:-4] + data))
        temporary = f"{self.path_of_states}.tmp"
        with open(temporary, "wb") as f:
            f.write(head.ljust(HEAD_BYTES, b"\0"))
            f.write(data)
        chown_to_owner(self.path, temporary)
        os.rename(temporary, self.path_of_states)

    # -- folding

    def fresh(self) -> FoldedStates:
        return FoldedStates(self.state.machine(self.log.schema, flows=MAX_KEYS))

    def stored(self, version: Version) -> FoldedStates:
        """The stored states, or empty ones if the stored states are invalid or newer than ``version``."""
        try:
            folded, _ = self.read()
        except (OSError, ValueError):
            return self.fresh()
        return self.fresh() if any(rows > version[lane] for lane, rows in folded.tails.items()) else folded

    def at(self, version: Version, warn: base.Warn | None = None) -> StateMachine:
        """The states of all rows of ``version``."""
        return self._fold(self.stored(version), version, warn=warn).machine

    def advance(
        self,
        version: Version,
        *,
        rebuild: bool = False,
        lazily: bool = False,
        stop: base.StopEvent | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> int:
        """Fold the stable prefix of ``version`` and store the states; returns the number of rows in blocks.

        ``lazily``: only if there are enough new rows.  The caller holds `maintaining`.  Raises OSError.
        """
        kept, self._kept = self._kept, None
        try:
            now = os.stat(self.path_of_states).st_mtime_ns
        except OSError:
            now = -1
        if rebuild:
            folded = self.fresh()
        elif kept is not None and kept[0] == now:
            folded = kept[1]
        else:
            folded = self.stored(version)
        before = folded.rows
        if now < 0 or rebuild or version.rows - before >= (max(MIN_NEW_ROWS, folded.machine.count) if lazily else 1):
            folded = self._fold(folded, version, stable=True, stop=stop, progress=progress)
            if folded.rows != before or now < 0 or rebuild:
                self.write(folded)
                now = os.stat(self.path_of_states).st_mtime_ns
        self._kept = now, folded
        return -(-max(0, folded.rows - before) // BLOCK)

    def _fold(
        self,
        folded: FoldedStates,
        version: Version,
        *,
        stable: bool = False,
        stop: base.StopEvent | None = None,
        progress: Callable[[int], None] | None = None,
        warn: base.Warn | None = None,
    ) -> FoldedStates:
        """Fold the rows that are not in ``folded`` yet, in query order.

        ``stable``: stop where the first lane ends, because later rows may still be inserted after that time.
        """
        from confluo_tools.multilog.query.plan import QueryPlan

        schema, tails = self.log.schema, folded.tails
        moment = schema.time_field
        time = schema.index(moment.name) if moment is not None else -1
        names = {*self.state.needs(schema), *([moment.name] if moment else [])}
        columns = [i for i, c in enumerate(schema.columns) if c.field.name in names]
        where = compile(self.state.expression, schema) if self.state.expression else None

        def known(part: Any, number: int) -> bool:
            end = part.base + min((number + 1) * part.segment.capacity, part.rows)
            return bool(end <= tails.get(part.lane, 0))

        plan = QueryPlan(self.log, version, where, columns=columns, skip=known, use_indexes=False)
        streams = {lane: _after(rows, tails.get(lane, 0)) for lane, rows in plan.lanes().items()}
        full = {lane: rows for lane, rows in enumerate(version.tails) if rows}
        order = sorted(full)
        heads = [next(streams.get(lane, iter(())), None) for lane in order]
        for lane, head in zip(order, heads, strict=True):
            if folded.rows and head is not None and not tails.get(lane) and time >= 0:
                block, picks = head
                if block.get(time, picks.tolist()[0]) <= folded.newest:
                    return self._fold(self.fresh(), version, stable=stable, stop=stop, progress=progress, warn=warn)
        if len(order) < 2 or time < 0:
            for lane, head in zip(order, heads, strict=True):
                while head is not None:
                    block, picks = head
                    folded.take(block, picks, time)
                    tails[lane] = block.base + block.rows
                    if progress is not None:
                        progress(folded.rows)
                    if stop is not None and stop.is_set():
                        return folded
                    head = next(streams[lane], None)
            tails.update(full)
        else:
            merger = LaneMerger(schema.layout, len(order), time, columns)
            _merge(merger, folded, [streams.get(lane, iter(())) for lane in order], heads, time, stable, stop)
            for i, lane in enumerate(order):
                rest = heads[i]
                tails[lane] = full[lane] if rest is None else _next_row(rest, merger.used(i))
        if warn is not None:
            for path, what in plan.left_out:
                warn(path, what)
        return folded

    # -- coverage and check

    def covered(self, version: Version) -> base.Coverage:
        """The part of ``version`` that is in the stored states."""
        try:
            folded, size = self.read()
        except (OSError, ValueError):
            return base.Coverage(0, version.rows, 0)
        rows = sum(min(rows, version[lane]) for lane, rows in folded.tails.items())
        return base.Coverage(rows, version.rows, size)

    def problems(self) -> Iterator[tuple[str, str]]:
        """Yield (path, problem) if the file is invalid."""
        try:
            self.read()
        except FileNotFoundError:
            return
        except (OSError, ValueError) as e:
            yield self.path_of_states, (e.strerror or str(e)) if isinstance(e, OSError) else str(e)


Head = tuple[Any, "Picks"]  # a block and selected rows


def _merge(
    merger: LaneMerger,
    folded: FoldedStates,
    streams: Sequence[Iterator[Head]],
    heads: list[Head | None],
    time: int,
    stable: bool,
    stop: base.StopEvent | None,
) -> None:
    """Fold by time; ``heads``: the current item of each stream, None at its end; updated."""
    for i, head in enumerate(heads):
        merger.load(i, *(head or (None, None)))
    while not (stable and (None in heads or (stop is not None and stop.is_set()))):
        block = merger.step()
        if block is not None:
            folded.take(block, None, time)
            continue
        i = merger.hungry
        if i < 0:
            break
        heads[i] = head = next(streams[i], None)
        if head is None and stable:
            break  # the remaining rows of other lanes may be newer than rows that this lane will get
        merger.load(i, *(head or (None, None)))
    block = merger.flush()
    if block is not None:
        folded.take(block, None, time)


def _next_row(head: Head, used: int) -> int:
    block, picks = head
    rows = picks.tolist()
    return int(block.base + (rows[used] if used < len(rows) else block.rows))


def _after(rows: Iterator[tuple[Any, Picks]], first: int) -> Iterator[tuple[Any, Picks]]:
    """The rows of a lane from row number ``first`` on."""
    from confluo_tools.core.block.block import Picks

    for block, picks in rows:
        if block.base < first:
            left = [r for r in picks.tolist() if block.base + r >= first]
            if not left:
                continue
            picks = Picks.of(block.rows, left)
        yield block, picks


def load(log: Log, label: str, path: str, about: dict[str, str]) -> StateView:
    """Load a state view from its definition.  Raises ValueError when it is invalid."""
    text = about.get("define")
    if about.get("name") != label or text is None:
        raise ValueError("its definition is damaged")
    return StateView(log, label, path, text, about.get("params", ""))


def states(log: Log, warn: base.Warn | None = None) -> list[StateView]:
    """The state views of ``log``, by name."""
    found = base.load(log, "state", lambda label, path, about: load(log, label, path, about), warn)
    return [view for view in found if isinstance(view, StateView)]


def find_state(log: Log, name: str) -> StateView | None:
    """The state view ``name``, or None."""
    return next((view for view in states(log) if view.label == name), None) if name else None


def add_state(log: Log, name: str, define: str | None = None) -> StateView:
    """Add a state view; ``define``: an argument of `state_definitions.resolve`, by default ``name``.

    Adding the same view again has no effect.  Raises UsageError, SchemaError, StoreError.
    """
    from confluo_tools.multilog.views.filter import check_name, make

    spec = define or name
    found = None if state_definitions.names_class(spec) else state_definitions.resolve(spec)
    if not isinstance(found, state_definitions.StateDefinition):
        what = "a state class cannot be a view"
        raise UsageError(what, where=spec, hint="a log must not make programs run code; use --analyze")
    found.machine(log.schema)
    if found.expression:
        compile(found.expression, log.schema)
    given = spec.rpartition(":")[2] if "=" in spec.rpartition(":")[2] else ""
    check_name(log, "state", name)
    about = ["# States of a MultiLog: derived data, which may be deleted at any time.", "kind: state", f"name: {name}"]
    about += [f"params: {base.quoted(given)}", f"define: {base.quoted(found.text)}"]
    make(log, "state", load, name, about)
    view = find_state(log, name)
    if view is None:
        raise StoreError(f"there is no state '{name}'", where=log.path)
    if (view.text, view.params) != (found.text, given):
        raise UsageError(f"state '{name}' exists with another definition", where=log.path, hint="drop it first")
    return view
