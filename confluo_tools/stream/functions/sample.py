"""sample: 1/X.  Every Xth row of the flow, or every Xth five-tuple with all its rows; by rate: rate_sample.py."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from confluo_tools.errors import ConfluoError, UsageError

if TYPE_CHECKING:
    from confluo_tools.core.stream.stage import StreamStage
    from confluo_tools.schema import Schema
    from confluo_tools.stream.functions.rate_sample import RateSample

HASH = "flow_hash"


def read(value: Any, schema: Schema, where: str, flow: str) -> ShareSample | RateSample:
    """``value``: 1/X, or {share: 1/X, by: flow}, or {rate: N/s}."""
    if isinstance(value, dict) and "rate" in value:
        from confluo_tools.stream.functions import rate_sample

        return rate_sample.read(value, schema, where)
    words = value if isinstance(value, dict) else {"share": value}
    for word in words:
        if word not in ("share", "by"):
            raise UsageError(f"unknown word '{word}'", where=where, hint="write share and by, or rate")
    if "share" not in words:
        raise UsageError("needs a share", where=where, hint="as in 'sample: 1/10'")
    by = words.get("by", "packet")
    if by not in ("packet", "flow"):
        raise UsageError(f"'{by}' is unknown", where=f"{where}: by", hint="write packet or flow")
    if by == "flow" and HASH not in schema:
        raise UsageError(f"the records have no field {HASH}", where=f"{where}: by", hint="sample packets")
    from confluo_tools.expr.sample import share

    try:
        return ShareSample(share(str(words["share"])), by == "flow")
    except ConfluoError as e:
        raise UsageError(e.what, where=where, hint="write 1/100 for one in a hundred") from None


@dataclass(frozen=True)
class ShareSample:
    """One row, or one five-tuple, in ``x``."""

    x: int
    flows: bool
    keeps = True

    @property
    def whole(self) -> bool:
        return not self.flows

    @property
    def needs(self) -> frozenset[str]:
        return frozenset([HASH]) if self.flows else frozenset()

    def after(self, schema: Schema) -> Schema:
        return schema

    def remarks(self, stage: StreamStage) -> list[str]:
        return []

    def stage(self, schema: Schema) -> StreamStage:
        from confluo_tools.core.stream.row_choice import FlowSampleStage, SampleStage

        if self.flows:
            return FlowSampleStage(schema.layout, self.x, schema.index(HASH))
        return SampleStage(schema.layout, self.x)
