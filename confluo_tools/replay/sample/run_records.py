"""Records by group as runs of times at even steps, and the times of such runs."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from confluo_tools.core.replay.queue_engine import time_order
from confluo_tools.core.replay.rate_sampling import RunSampler, infer_times
from confluo_tools.errors import FormatError, SchemaError
from confluo_tools.formats.block_builder import blocks_of
from confluo_tools.replay.sampling import gap_runs
from confluo_tools.schema.model import Field, Schema
from confluo_tools.schema.types import ARRAY_CODES

if TYPE_CHECKING:
    from confluo_tools.core.block.block import Block
    from confluo_tools.formats.reader import Reader

FLOW = ("ip_version", "proto", "src_ip", "dst_ip", "src_port", "dst_port")
MAX_EVENTS, LATEST = 1 << 28, (1 << 63) - 1
_INTEGERS = ("u8", "u16", "u32", "u64", "i8", "i16", "i32", "i64")


def runs_schema(schema: Schema, by: Sequence[str]) -> Schema:
    """The time field and the fields ``by`` of a schema, then ``count`` and ``step``.

    Raises SchemaError without a time field, for fields that do not exist, and for runs of runs.
    """
    time = schema.time_field
    if time is None:
        raise SchemaError("the records have no time")
    if "step" in by or "count" in by:
        raise SchemaError("runs have a count and a step of their own")
    if _are_runs(schema) and (schema.kind == "run" or schema["step"].type.kind == "duration"):
        raise SchemaError("holds runs", hint="--expand makes single records of them")
    fields = schema.project([time.name, *dict.fromkeys(name for name in by if name != time.name)]).fields
    count = Field("count", "u32", description="records of this run")
    step = Field("step", "duration", "ns", "time from one record of the run to the next")
    return Schema("run", [*fields, count, step], "Records at even steps of time, as one")


def times_schema(schema: Schema) -> Schema:
    """The schema of the single records of runs.  Raises SchemaError for other records."""
    if not _are_runs(schema):
        raise SchemaError(f"holds records of kind '{schema.kind}', not runs")
    return Schema("event", schema.project([f.name for f in schema.fields if f.name not in ("count", "step")]).fields)


def _are_runs(schema: Schema) -> bool:
    # Text has lost the kind, and CSV and JSON the types.
    if schema.kind not in ("run", "record") or schema.time_field is None:
        return False
    fields = [field for field in schema.fields if field.name in ("count", "step")]
    return len(fields) == 2 and all(
        f.type.base in _INTEGERS and f.type.kind in (f.type.base, "duration") for f in fields
    )


class RecordSampler:
    """Turns rows into runs, group by group, as they come.  ``gap``: end a run at gaps instead (gap-based sampling)."""

    def __init__(self, schema: Schema, threshold: int, gap: int | None = None) -> None:
        self.schema, self._threshold, self._gap = schema, threshold, gap
        self._time, *keys = [c.name for c in schema.columns if c.name not in ("count", "step")]
        self._keys = keys
        self._samplers: dict[tuple[Any, ...], RunSampler] = {}
        self._times: dict[tuple[Any, ...], array[int]] = {}  # of gap-based sampling
        self.events = 0

    def blocks(self, block: Block) -> Iterator[Block]:
        """The runs that end in a block of the input."""
        self.events += block.rows
        groups: dict[tuple[Any, ...], array[int]] = {}
        times = _column(block, self._time)
        keys: Any = zip(*(_column(block, name) for name in self._keys), strict=True) if self._keys else None
        for time, key in zip(times, keys or [()] * block.rows, strict=True):
            its = groups.get(key)
            if its is None:
                its = groups[key] = array("q")
            its.append(time)
        found = _Runs(self.schema, self._time, self._keys)
        for key, its in groups.items():
            if self._gap is not None:
                self._times.setdefault(key, array("q")).extend(its)
                continue
            sampler = self._samplers.get(key)
            if sampler is None:
                sampler = self._samplers[key] = RunSampler(self._threshold)
            runs = sampler.offer(its)
            found.add(key, runs.times, runs.counts, runs.steps)
        yield from found.blocks()

    def rest(self) -> Iterator[Block]:
        """The runs that the end of the input ends."""
        found = _Runs(self.schema, self._time, self._keys)
        for key, sampler in self._samplers.items():
            runs = sampler.flush()
            found.add(key, runs.times, runs.counts, runs.steps)
        for key, times in self._times.items():
            bursts = list(gap_runs(times, self._gap or 0))
            found.add(key, [r.time for r in bursts], [r.packets for r in bursts], [r.step for r in bursts])
        yield from found.blocks()


class _Runs:
    def __init__(self, schema: Schema, time: str, keys: list[str]) -> None:
        self._schema, self._time, self._keys = schema, time, keys
        self._columns: dict[str, list[Any]] = {c.name: [] for c in schema.columns}

    def add(self, key: tuple[Any, ...], times: Sequence[int], counts: Sequence[int], steps: Sequence[int]) -> None:
        self._columns[self._time].extend(times)
        self._columns["count"].extend(counts)
        self._columns["step"].extend(steps)
        for name, value in zip(self._keys, key, strict=True):
            self._columns[name].extend([value] * len(times))

    def blocks(self) -> Iterator[Block]:
        times = self._columns[self._time]
        order = sorted(range(len(times)), key=times.__getitem__)
        columns = {name: [values[i] for i in order] for name, values in self._columns.items()}
        yield from blocks_of(self._schema, columns, len(times))


def expanded(reader: Reader, schema: Schema) -> Iterator[Block]:
    """The single records of runs, by time.  Raises FormatError for more than 2^28 records, and impossible runs."""
    time, *keys = [c.name for c in schema.columns]
    groups: dict[tuple[Any, ...], tuple[array[int], array[int], array[int]]] = {}
    total = 0
    for block in reader:
        columns = [_column(block, name) for name in (time, "step", "count", *keys)]
        for start, step, count, *key in zip(*columns, strict=True):
            if count < 0 or not -LATEST <= start + step * max(count - 1, 1) <= LATEST:
                raise FormatError(f"a run of {count} records at steps of {step} ns is not possible", where=reader.name)
            total += count
            if total > MAX_EVENTS:
                raise FormatError(f"more than {MAX_EVENTS} records", where=reader.name, hint="expand a part of it")
            its = groups.setdefault(tuple(key), (array("q"), array("q"), array("I")))
            for column, value in zip(its, (start, step, count), strict=True):
                column.append(value)
    times, owner = array("q"), array("I")
    for number, (starts, steps, counts) in enumerate(groups.values()):
        inferred = infer_times(starts, steps, counts)
        times += inferred
        owner += array("I", [number]) * len(inferred)
    if not times:
        return
    names = list(groups)
    base = min(times)
    if max(times) - base > LATEST:
        raise FormatError("the times are more than 292 years apart", where=reader.name, hint="expand a part of it")
    order = time_order(array("q", [t - base for t in times]))
    for start in range(0, len(order), 65536):
        some = order[start : start + 65536]
        of = [names[owner[i]] for i in some]
        values: dict[str, Any] = {name: [key[k] for key in of] for k, name in enumerate(keys)}
        yield from blocks_of(schema, values | {time: [times[i] for i in some]}, len(some))


def _column(block: Block, name: str) -> Any:
    # The values of a physical column, one for each row: numbers, or bytes.
    at = block.layout.get(name)
    if at < 0:
        raise SchemaError(f"no column '{name}'")
    _, code, _, count = block.layout.describe(at)
    if code <= len(ARRAY_CODES) and count == 1:
        numbers: Any = block.buffer(at)
        return numbers.cast(ARRAY_CODES[code - 1])[: block.rows]
    return [_hashable(block.get(at, row)) for row in range(block.rows)]


def _hashable(value: Any) -> Any:
    return bytes(value) if isinstance(value, bytes | bytearray | memoryview) else tuple(value)
