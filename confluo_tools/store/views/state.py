"""State views: the states of all keys of a definition (confluo-state(5)), for the whole log.  docs/format-state.md.

Rows are folded in the order of a question, by time over all lanes, so a state depends on rows of several lanes at a
time.  What is stored is a beginning of that order: as far as it cannot change any more whatever is written next, that
is, up to where the first lane has no more rows.  A question takes the stored states and folds the rest.
A lane that begins later with rows from before makes the stored states void: then all rows are folded again.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from confluo_tools.core.control import crc
from confluo_tools.core.search import Merger
from confluo_tools.errors import StoreError, UsageError
from confluo_tools.expr import compile
from confluo_tools.store import stateful
from confluo_tools.store.owner import give
from confluo_tools.store.views import base

if TYPE_CHECKING:
    from confluo_tools.core.block import Block, Picks
    from confluo_tools.core.statemachine import Machine
    from confluo_tools.store.log import Log
    from confluo_tools.store.version import Version

FILE = "states"
MAGIC = b"CFLSTATE"
HEAD = struct.Struct("<8sII16s32sQQQqII")  # magic version endian uuid digest keys rows bytes newest lanes crc
HEAD_BYTES = 128
BLOCK = 65536
LEAST = 65536  # rows that are worth writing the states anew
MOST = 1 << 20  # keys; for more, some that were not seen for long are forgotten
LONG_AGO = -(1 << 63)
Tails = dict[int, int]  # lane -> rows of it that are in the states


class Folded:
    """States, the rows of each lane that are in them, and the latest time among these."""

    __slots__ = ("machine", "newest", "tails")

    def __init__(self, machine: Machine, tails: Tails | None = None, newest: int = LONG_AGO) -> None:
        self.machine, self.newest = machine, newest
        self.tails = {} if tails is None else tails

    @property
    def rows(self) -> int:
        return sum(self.tails.values())

    def take(self, block: Block, picks: Picks | None, time: int) -> None:
        """Rows in order; ``time``: column of their time, -1: none."""
        self.machine.update(block, picks)
        if time >= 0 and block.rows:
            zones = block.zones(time)
            latest = zones[1] - (1 << 63) if zones else max(block.buffer(time).cast("q"))
            self.newest = max(self.newest, latest)


class StateView(base.View):
    """The states of a definition: ``text`` is its YAML, ``params`` are the parameters as they were given."""

    kind = "state"
    whole = True

    def __init__(self, log: Log, label: str, path: str, text: str, params: str) -> None:
        super().__init__(label, path)
        self.log, self.text, self.params = log, text, params
        self._kept: tuple[int, Folded] | None = None  # mtime of the file that these are

    @property
    def name(self) -> str:
        return self.label

    @cached_property
    def state(self) -> stateful.Definition:
        found = stateful.parse(self.text, f"state {self.label}")
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

    def read(self) -> tuple[Folded, int]:
        """The stored states, and the size of the file.

        OSError: there is no file; ValueError: it cannot be believed.
        """
        schema = self.log.schema
        with open(self.path_of_states, "rb") as f:
            data = f.read()
        if len(data) < HEAD_BYTES:
            raise ValueError("it is too short")
        magic, version, endian, uuid, digest, keys, _, size, newest, lanes, check = HEAD.unpack_from(data)
        if (magic, version, endian) != (MAGIC, 1, 0x01020304):
            raise ValueError("it is no file of states of this version")
        if uuid != self.log.uuid or digest != self.digest:
            raise ValueError("it is of another log or definition")
        if size != len(data) - HEAD_BYTES or check != crc(data[: HEAD.size - 4] + data[HEAD_BYTES:]):
            raise ValueError("its checksum is wrong")
        machine = self.state.machine(schema, flows=max(MOST, keys))
        layout = machine.states
        if size != 8 * lanes + keys * layout.row_bytes:
            raise ValueError("its size is wrong")
        tails = dict(enumerate(struct.unpack_from(f"<{lanes}Q", data, HEAD_BYTES)))
        at, view = HEAD_BYTES + 8 * lanes, memoryview(data)
        from confluo_tools.core.block import Block

        for start in range(0, keys, BLOCK):
            n = min(BLOCK, keys - start)
            columns = []
            for i in range(layout.n):
                _, _, width, count = layout.describe(i)
                columns.append(view[at : at + n * width * count])
                at += n * width * count
            machine.load(Block.wrap(layout, n, columns))
        return Folded(machine, tails, newest), len(data)

    def write(self, folded: Folded) -> None:
        """Replace the stored states; a reader sees the old ones or the new ones.  OSError."""
        machine, tails = folded.machine, folded.tails
        lanes = max(tails, default=-1) + 1
        body = [struct.pack(f"<{lanes}Q", *(tails.get(lane, 0) for lane in range(lanes)))]
        for block in machine.blocks():
            body += [bytes(block.buffer(i)) for i in range(machine.states.n)]
        data = b"".join(body)
        head = HEAD.pack(MAGIC, 1, 0x01020304, self.log.uuid, self.digest, machine.count, folded.rows,
                         len(data), folded.newest, lanes, 0)  # fmt: skip
        head = head[:-4] + struct.pack("<I", crc(head[:-4] + data))
        temporary = f"{self.path_of_states}.tmp"
        with open(temporary, "wb") as f:
            f.write(head.ljust(HEAD_BYTES, b"\0"))
            f.write(data)
        give(self.path, temporary)
        os.rename(temporary, self.path_of_states)

    # -- folding

    def fresh(self) -> Folded:
        return Folded(self.state.machine(self.log.schema, flows=MOST))

    def stored(self, version: Version) -> Folded:
        """States to go on from at ``version``: the stored ones, or none when these are newer or cannot be believed."""
        try:
            folded, _ = self.read()
        except (OSError, ValueError):
            return self.fresh()
        return self.fresh() if any(rows > version[lane] for lane, rows in folded.tails.items()) else folded

    def at(self, version: Version, warn: base.Warn | None = None) -> Machine:
        """The states of all rows of ``version``."""
        return self._fold(self.stored(version), version, warn=warn).machine

    def advance(
        self, version: Version, *, anew: bool = False, lazily: bool = False, stop: base.Stop | None = None,
        tell: Callable[[int], None] | None = None,
    ) -> int:  # fmt: skip
        """Fold what is settled at ``version`` and store the states; returns how many blocks' worth of rows.

        ``lazily``: only when there is enough to be worth it.  The caller is `maintaining` the view.  OSError.
        """
        kept, self._kept = self._kept, None
        try:
            now = os.stat(self.path_of_states).st_mtime_ns
        except OSError:
            now = -1
        if anew:
            folded = self.fresh()
        elif kept is not None and kept[0] == now:
            folded = kept[1]
        else:
            folded = self.stored(version)
        before = folded.rows
        if now < 0 or anew or version.rows - before >= (max(LEAST, folded.machine.count) if lazily else 1):
            folded = self._fold(folded, version, settled=True, stop=stop, tell=tell)
            if folded.rows != before or now < 0 or anew:
                self.write(folded)
                now = os.stat(self.path_of_states).st_mtime_ns
        self._kept = now, folded
        return -(-max(0, folded.rows - before) // BLOCK)

    def _fold(
        self, folded: Folded, version: Version, *, settled: bool = False, stop: base.Stop | None = None,
        tell: Callable[[int], None] | None = None, warn: base.Warn | None = None,
    ) -> Folded:  # fmt: skip
        """Feed the rows that are not in ``folded`` yet, in the order of a question.

        ``settled``: no further than to where the first lane ends.
        """
        from confluo_tools.store.plan import Plan

        schema, tails = self.log.schema, folded.tails
        moment = schema.time_field
        time = schema.index(moment.name) if moment is not None else -1
        names = {*self.state.needs(schema), *([moment.name] if moment else [])}
        columns = [i for i, c in enumerate(schema.columns) if c.field.name in names]
        where = compile(self.state.expression, schema) if self.state.expression else None

        def known(part: Any, number: int) -> bool:
            end = part.base + min((number + 1) * part.segment.capacity, part.rows)
            return bool(end <= tails.get(part.lane, 0))

        plan = Plan(self.log, version, where, columns=columns, skip=known, use_indexes=False)
        streams = {lane: _after(rows, tails.get(lane, 0)) for lane, rows in plan.lanes().items()}
        full = {lane: rows for lane, rows in enumerate(version.tails) if rows}
        order = sorted(full)
        heads = [next(streams.get(lane, iter(())), None) for lane in order]
        for lane, head in zip(order, heads, strict=True):
            if folded.rows and head is not None and not tails.get(lane) and time >= 0:
                block, picks = head
                if block.get(time, picks.tolist()[0]) <= folded.newest:
                    return self._fold(self.fresh(), version, settled=settled, stop=stop, tell=tell, warn=warn)
        if len(order) < 2 or time < 0:
            for lane, head in zip(order, heads, strict=True):
                while head is not None:
                    block, picks = head
                    folded.take(block, picks, time)
                    tails[lane] = block.base + block.rows
                    if tell is not None:
                        tell(folded.rows)
                    if stop is not None and stop.is_set():
                        return folded
                    head = next(streams[lane], None)
            tails.update(full)
        else:
            merger = Merger(schema.layout, len(order), time, columns)
            _merge(merger, folded, [streams.get(lane, iter(())) for lane in order], heads, time, settled, stop)
            for i, lane in enumerate(order):
                rest = heads[i]
                tails[lane] = full[lane] if rest is None else _next_row(rest, merger.used(i))
        if warn is not None:
            for path, what in plan.left_out:
                warn(path, what)
        return folded

    # -- what all views are asked

    def covered(self, version: Version) -> tuple[int, int, int]:
        """(rows of ``version`` that are in the states, rows of ``version``, bytes on disk)."""
        try:
            folded, size = self.read()
        except (OSError, ValueError):
            return 0, version.rows, 0
        rows = sum(min(rows, version[lane]) for lane, rows in folded.tails.items())
        return rows, version.rows, size

    def wrong(self) -> Iterator[tuple[str, str]]:
        """(path, what is wrong) when the file cannot be believed."""
        try:
            self.read()
        except FileNotFoundError:
            return
        except (OSError, ValueError) as e:
            yield self.path_of_states, (e.strerror or str(e)) if isinstance(e, OSError) else str(e)


Head = tuple[Any, "Picks"]  # a block and rows of it


def _merge(
    merger: Merger, folded: Folded, streams: Sequence[Iterator[Head]], heads: list[Head | None], time: int,
    settled: bool, stop: base.Stop | None,
) -> None:  # fmt: skip
    """Fold by time; ``heads`` are what the streams gave last, and afterwards what is not used up (None: at the end)."""
    for i, head in enumerate(heads):
        merger.load(i, *(head or (None, None)))
    while not (settled and (None in heads or (stop is not None and stop.is_set()))):
        block = merger.step()
        if block is not None:
            folded.take(block, None, time)
            continue
        i = merger.hungry
        if i < 0:
            break
        heads[i] = head = next(streams[i], None)
        if head is None and settled:
            break  # what the others have left may come after rows that this one will get
        merger.load(i, *(head or (None, None)))
    block = merger.flush()
    if block is not None:
        folded.take(block, None, time)


def _next_row(head: Head, used: int) -> int:
    block, picks = head
    rows = picks.tolist()
    return int(block.base + (rows[used] if used < len(rows) else block.rows))


def _after(rows: Iterator[tuple[Any, Picks]], first: int) -> Iterator[tuple[Any, Picks]]:
    """The rows of a lane from number ``first`` on."""
    from confluo_tools.core.block import Picks

    for block, picks in rows:
        if block.base < first:
            left = [r for r in picks.tolist() if block.base + r >= first]
            if not left:
                continue
            picks = Picks.of(block.rows, left)
        yield block, picks


def load(log: Log, label: str, path: str, about: dict[str, str]) -> StateView:
    """The state behind a definition.  ValueError: it makes no sense."""
    text = about.get("define")
    if about.get("name") != label or text is None:
        raise ValueError("its definition is damaged")
    return StateView(log, label, path, text, about.get("params", ""))


def states(log: Log, warn: base.Warn | None = None) -> list[StateView]:
    """The state views of ``log``, by name."""
    found = base.load(log, "state", lambda label, path, about: load(log, label, path, about), warn)
    return [view for view in found if isinstance(view, StateView)]


def find_state(log: Log, name: str) -> StateView | None:
    return next((view for view in states(log) if view.label == name), None) if name else None


def add_state(log: Log, name: str, define: str | None = None) -> StateView:
    """Keep the states of a definition: ``define`` as `stateful.resolve` takes it, by default ``name``.

    The same again changes nothing.  Raises UsageError, SchemaError, StoreError.
    """
    from confluo_tools.store.views.filter import check_name, make

    spec = define or name
    found = None if stateful.names_class(spec) else stateful.resolve(spec)
    if not isinstance(found, stateful.Definition):
        what = "the states of a class cannot be kept"
        raise UsageError(what, where=spec, hint="no code is run because of what stands in a log; use --analyze")
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
        raise UsageError(f"there is a state '{name}' of another definition", where=log.path, hint="drop it first")
    return view
