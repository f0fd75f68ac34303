"""State views: the states of all keys of a state definition (confluo-state(5)).  File format: docs/format-state.md.

Rows are folded in query order, by time over all lanes, so a state depends on rows of several lanes.  The view stores
the states after a beginning of this order that later writes do not change if their times do not go back: it ends
before the last time of the first lane that ends, and consists of the first rows of each lane.  A query loads the
stored states and folds the remaining rows.  If one of them belongs before the last folded row, all rows are folded
again.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Any

from confluo_tools.core.base.log_file import open_log_file
from confluo_tools.core.multilog.control import crc
from confluo_tools.core.multilog.log_scan import split_by_time
from confluo_tools.errors import StoreError, UsageError
from confluo_tools.expr import compile
from confluo_tools.multilog.ownership import as_owner
from confluo_tools.multilog.query import state_definitions
from confluo_tools.multilog.views import base

if TYPE_CHECKING:
    from confluo_tools.core.block.block import Block, Picks
    from confluo_tools.core.query.state_machine import StateMachine
    from confluo_tools.multilog.log import Log
    from confluo_tools.multilog.version import Version

FILE = "states"
MAGIC = b"CFLSTATE"
VERSION = 2  # 1: rows of a lane were folded as they were written
HEAD = struct.Struct("<8sII16s32sQQQqII")  # magic version endian uuid digest keys rows bytes newest lanes crc
HEAD_BYTES = 128
BLOCK = 65536
MIN_NEW_ROWS = 65536  # new rows required before the states are written again
MAX_KEYS = 1 << 20  # beyond this number, keys not seen for a long time are evicted
LONG_AGO, LATEST = -(1 << 63), (1 << 63) - 1
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
        last = block.rows - 1 if picks is None else picks.last
        self.machine.update(block, picks)
        if time >= 0 and last >= 0:
            self.newest = max(self.newest, block.get(time, last))


class OldStates(ValueError):
    """The stored states are of an earlier version: all rows are folded again."""


class StoppedBetween(Exception):
    """Folding was stopped where the rows folded so far are not the first rows of each lane."""


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
        with open(self.path_of_states, "rb", opener=open_log_file) as f:
            data = f.read()
        if len(data) < HEAD_BYTES:
            raise ValueError("it is too short")
        magic, version, endian, uuid, digest, keys, _, size, newest, lanes, check = HEAD.unpack_from(data)
        if (magic, version, endian) == (MAGIC, 1, 0x01020304):
            raise OldStates("it was written by an earlier version")
        if (magic, version, endian) != (MAGIC, VERSION, 0x01020304):
            raise ValueError("it is not a state file of this version")
        if uuid != self.log.uuid or digest != self.digest:
            raise ValueError("it belongs to another log or definition")
        if size != len(data) - HEAD_BYTES or check != crc(data[: HEAD.size - 4] + data[HEAD_BYTES:]):
            raise ValueError("its checksum is wrong")
        if keys > size:  # each has several bytes
            raise ValueError("its size is wrong")
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
            VERSION,
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
        with as_owner(self.log_path):
            with open(temporary, "wb", opener=open_log_file) as f:
                f.write(head.ljust(HEAD_BYTES, b"\0"))
                f.write(data)
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
            try:
                folded = self._fold(folded, version, stable=True, stop=stop, progress=progress)
            except StoppedBetween:
                return 0
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

        ``stable``: stop before the last time of the lane that ends first, because rows may still be written after it,
        and where the folded rows are the first rows of each lane.  Raises StoppedBetween.
        """
        from confluo_tools.formats.merge import by_time
        from confluo_tools.multilog.query.plan import QueryPlan

        schema, tails = self.log.schema, folded.tails
        moment = schema.time_field
        time = schema.index(moment.name) if moment is not None else -1
        full = {lane: rows for lane, rows in enumerate(version.tails) if rows}
        ends = full
        if time >= 0:
            lanes = [UnfoldedRows(self.log, version, lane, tails.get(lane, 0), time) for lane in sorted(full)]
            last = max((lane for lane, rows in tails.items() if rows), default=-1)
            if folded.rows and any((lane.least, lane.lane) < (folded.newest, last) for lane in lanes):
                return self._fold(self.fresh(), version, stable=stable, stop=stop, progress=progress, warn=warn)
            if stable and len(lanes) > 1:
                ends = common_end(lanes)
        names = {*self.state.needs(schema), *([moment.name] if moment else [])}
        columns = [i for i, c in enumerate(schema.columns) if c.field.name in names]
        where = compile(self.state.expression, schema) if self.state.expression else None

        def outside(part: Any, number: int) -> bool:
            first = part.base + number * part.segment.capacity
            end = part.base + min((number + 1) * part.segment.capacity, part.rows)
            return bool(end <= tails.get(part.lane, 0) or first >= ends[part.lane])

        plan = QueryPlan(self.log, version, where, columns=columns, skip=outside, use_indexes=False)
        begins = dict(tails)
        rows: Iterator[tuple[Block, Picks]]
        if time >= 0:
            streams = [
                (
                    (*_between(block, picks, begins.get(block.lane, 0), ends[block.lane]), rank)
                    for block, picks, rank in s
                )
                for s in plan.streams()
            ]
            rows = by_time(schema, streams, columns)
        else:
            rows = (_between(block, picks, begins.get(block.lane, 0), ends[block.lane]) for block, picks in plan)
        alone = len(full) == 1 or time < 0
        for block, picks in rows:
            folded.take(block, picks, time)
            if alone and block.lane >= 0:  # as it is in the lane: the rows before are folded, too
                tails[block.lane] = block.base + block.rows
                if progress is not None:
                    progress(folded.rows)
            if stop is not None and stop.is_set():
                if alone and block.lane >= 0:
                    return folded
                raise StoppedBetween
        tails.update(ends)
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
        except (FileNotFoundError, OldStates):
            return
        except (OSError, ValueError) as e:
            yield self.path_of_states, (e.strerror or str(e)) if isinstance(e, OSError) else str(e)


class UnfoldedRows:
    """The rows of ``lane`` from number ``begin`` on, by their times (column ``time``)."""

    def __init__(self, log: Log, version: Version, lane: int, begin: int, time: int) -> None:
        from confluo_tools.multilog.query.time_order import EARLIEST, pieces

        self.lane, self.begin, self.end, self.time = lane, begin, version[lane], time
        parts = [(part, range(part.blocks)) for part in log.segments(version) if part.lane == lane]
        found = [piece for piece in pieces(parts, time) if piece.hi != EARLIEST]
        self.pieces = [piece for piece in found if piece.part.base + piece.part.rows > begin]
        self.latest = max((piece.hi for piece in found[:-1]), default=LONG_AGO)
        if found:  # rows after the version may be in the zone map of the last block
            block = found[-1].part.block(found[-1].number)
            if block is not None and block.check([time]):
                self.latest = max(self.latest, *memoryview(block.buffer(time)).cast("q"))

    def split(self, cut: int) -> tuple[int, int]:
        """(number of the first row that is not before ``cut``, least time from that row on)."""
        for i, piece in enumerate(self.pieces):
            if piece.hi < cut:
                continue
            block, begin = piece.part.block(piece.number), max(self.begin - piece.first, 0)
            if block is None or begin >= block.rows or not block.check([self.time]):
                continue
            at, least = split_by_time(block, self.time, begin, cut)
            if at < block.rows:
                return piece.first + at, min([least, *(later.lo for later in self.pieces[i + 1 :])])
        return self.end, LATEST

    @property
    def least(self) -> int:
        """The least time of these rows."""
        return self.split(LONG_AGO)[1]


def common_end(lanes: list[UnfoldedRows]) -> dict[int, int]:
    """{lane: row}: the rows before these are earlier than all others, and no lane has ended before them."""
    cut = min(lane.latest for lane in lanes)
    while True:
        found = {lane.lane: lane.split(cut) for lane in lanes}
        least = min(low for _, low in found.values())
        if least >= cut:
            return {lane: row for lane, (row, _) in found.items()}
        cut = least


def _between(block: Block, picks: Picks | None, begin: int, end: int) -> tuple[Block, Picks]:
    """The picked rows from row number ``begin`` of the lane on, before row ``end``."""
    from confluo_tools.core.block.block import Picks as Make

    picks = Make.of(block.rows) if picks is None else picks
    if begin <= block.base and block.base + block.rows <= end:
        return block, picks
    return block, picks.within(max(begin - block.base, 0), max(min(end - block.base, block.rows), 0))


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
