"""sample: {rate: 1000/s}.  Rate-based sampling of five-tuples: Algorithm 1 of DETER.

A record is kept when its time does not fit an even rate, within 1/rate, since the record of its five-tuple that was
kept before.  So no five-tuple gives more records than the rate, and the times of all records are known within 1/rate.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from confluo_tools import units
from confluo_tools.errors import UsageError
from confluo_tools.schema.choose import FLOW_FIELDS
from confluo_tools.stream.functions import words

if TYPE_CHECKING:
    from confluo_tools.core.stream.rate_sample import RateSampleStage
    from confluo_tools.schema import Schema

EXAMPLE = "sample: {rate: 1000/s}"
LONGEST = 10**9  # ns of a run, by default
FLOWS = 65536
HASH = "flow_hash"
MAX_FLOWS = 1 << 24
MAX_RATE = 10**9  # a second

_RATE = re.compile(r"\s*([^/]+?)\s*/\s*(ms|s|m|min|h)\s*\Z")
TYPES = {"src_ip": 3, "dst_ip": 3, "src_port": 2, "dst_port": 2, "proto": 1}  # codes of their columns


def read(value: Any, schema: Schema, where: str) -> RateSample:
    """``value``: {rate: N/UNIT} and perhaps {longest, flows}."""
    given = words.mapping(value, ("rate", "longest", "flows"), ("rate",), where, EXAMPLE)
    threshold = threshold_of(given["rate"], f"{where}: rate")
    longest = words.duration(given.get("longest", "1s"), f"{where}: longest", words.MS, words.DAY)
    flows = words.whole(given.get("flows", FLOWS), f"{where}: flows", 1, MAX_FLOWS)
    time = schema.time_field
    fits = all(name in schema and schema[name].columns[0].code == code for name, code in TYPES.items())
    if time is None or not fits:
        what = f"records of '{schema.kind}' lack {time_or_flow(schema)}"
        raise UsageError(what, where=where, hint="write sample: 1/10 for every tenth record")
    for name in ("run_packets", "run_step"):
        if name in schema:
            raise UsageError(f"the records have a field {name}", where=where, hint="sample by rate once")
    return RateSample(threshold, longest, flows, time.name, HASH not in schema)


def time_or_flow(schema: Schema) -> str:
    lacking = [name for name in FLOW_FIELDS if name not in schema]
    return ", ".join([*(["a time"] if schema.time_field is None else []), *lacking]) or "a five-tuple"


def threshold_of(value: Any, where: str) -> int:
    """Nanoseconds between two records at the rate: of 1000/s a million."""
    match = _RATE.match(value) if isinstance(value, str) and len(value) < 64 else None
    number = units.try_number(match[1]) if match else None
    if match is None or number is None:
        raise UsageError(f"'{str(value)[:60]}' is not a rate", where=where, hint="write e.g. 1000/s, 10/m")
    unit = units.TIME_UNITS[match[2]]
    if not 0 < number <= MAX_RATE * unit // units.SECOND:
        raise UsageError(f"a rate of {value.strip()} is not possible", where=where, hint="at most 1G/s is")
    threshold = -int(-unit // number)
    if threshold > words.DAY:
        raise UsageError(f"{value.strip()} is less than one record a day", where=where)
    return threshold


@dataclass(frozen=True)
class RateSample:
    """One record for each run of a five-tuple at an even rate, within ``threshold`` ns."""

    threshold: int
    longest: int
    flows: int
    time: str
    whole: bool  # without flow_hash workers do not keep five-tuples together
    keeps = True

    @property
    def needs(self) -> frozenset[str]:
        return frozenset([self.time, *FLOW_FIELDS])

    def after(self, schema: Schema) -> Schema:
        from confluo_tools.schema import Field

        packets = Field(
            "run_packets", "u32", "", "records of the five-tuple that this one is a sample of, itself included"
        )
        step = Field("run_step", "duration", "ns", "time from one of them to the next")
        return schema.plus([packets, step])

    def remarks(self, stage: RateSampleStage) -> list[str]:
        if not stage.evicted:
            return []
        what = words.number(stage.evicted, "five-tuple")
        return [f"{what} of more than {self.flows:,} ended early: more records than needed; raise flows:"]

    def stage(self, schema: Schema) -> RateSampleStage:
        from confluo_tools.core.stream.rate_sample import RateSampleStage

        out = self.after(schema).layout
        return RateSampleStage(schema.layout, out, schema.index(self.time), self.threshold, self.longest, self.flows)
