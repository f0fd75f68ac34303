"""aggregate: {agg: 'count, sum(len)', by: src_ip, every: 10s}.  What --agg and --by give, for each window of time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from confluo_tools.errors import ConfluoError, UsageError
from confluo_tools.stream.functions import words
from confluo_tools.stream.functions.words import Windows

if TYPE_CHECKING:
    from confluo_tools.core.block.block import Block
    from confluo_tools.core.query.rollup import Rollup
    from confluo_tools.core.stream.aggregate import AggregateStage
    from confluo_tools.multilog.query.aggregation import Aggregation
    from confluo_tools.schema import Schema

EXAMPLE = "aggregate: {agg: 'count, sum(len)', by: src_ip, every: 10s}"
GROUPS = 1_000_000
MAX_GROUPS = 100_000_000


def read(value: Any, schema: Schema, where: str, flow: str) -> WindowAggregate:
    """``value``: {agg, every} and perhaps {by, late, groups}."""
    given = words.mapping(value, ("agg", "by", "every", "late", "groups"), ("agg", "every"), where, EXAMPLE)
    agg = words.text(given["agg"], f"{where}: agg", EXAMPLE)
    by = words.text(given["by"], f"{where}: by", EXAMPLE) if "by" in given else ""
    windows = words.windows(given, schema, where)
    groups = words.whole(given.get("groups", GROUPS), f"{where}: groups", 1, MAX_GROUPS)
    try:
        from confluo_tools.expr.group_keys import parse_by

        if any(key.field == windows.time for key in (parse_by(by, schema) if by else ())):
            raise UsageError(f"{windows.time} cannot be a key", hint="the windows of every: are one")
        whole = aggregation(agg, by, windows, schema, timed=True)
    except ConfluoError as e:
        raise UsageError(e.what, where=where, hint=e.hint) from None
    needs = frozenset([*whole.reads, windows.time])
    return WindowAggregate(agg, by, windows, groups, needs, whole.rollup().ordered)


def aggregation(agg: str, by: str, windows: Windows, schema: Schema, *, timed: bool) -> Aggregation:
    """``timed``: with the window as the first key, as the result has it; otherwise for one window."""
    from confluo_tools.expr import parse_aggregates
    from confluo_tools.expr.group_keys import GroupKey, parse_by
    from confluo_tools.multilog.query.aggregation import Aggregation

    keys = parse_by(by, schema) if by else []
    if timed:
        keys.insert(0, GroupKey("bucket", windows.time, windows.every, 0, windows.time))
    return Aggregation(schema, parse_aggregates(agg, schema), keys)


@dataclass(frozen=True)
class WindowAggregate:
    """``agg`` of the rows of each window, grouped ``by`` keys, in parts where there are more than ``groups``."""

    agg: str
    by: str
    windows: Windows
    groups: int
    needs: frozenset[str]
    ordered: bool
    keeps = False
    whole = True

    def after(self, schema: Schema) -> Schema:
        return aggregation(self.agg, self.by, self.windows, schema, timed=True).result

    def remarks(self, stage: AggregateStage) -> list[str]:
        out = words.remarks(stage, self.windows)
        if stage.parts:
            what = f"windows had more than {self.groups:,} groups and were given in {stage.parts + 1:,} parts or more"
            out.append(f"{what}; add them, or raise groups:")
        if stage.problem is not None:
            out.append(f"records were lost: {stage.problem}")
        return out

    def part(self, schema: Schema) -> AggregateStage:
        from confluo_tools.core.stream.shared_windows import SLOTS

        return self.stage(schema, SLOTS)

    def stage(self, schema: Schema, slots: int = 0) -> AggregateStage:
        from confluo_tools.core.stream.aggregate import AggregateStage
        from confluo_tools.multilog.query.aggregation import with_time

        window = aggregation(self.agg, self.by, self.windows, schema, timed=False)
        result, (time, every, late) = self.after(schema), self.windows

        def answer(rollup: Rollup, start: int) -> Iterator[Block]:
            blocks = window.answer(rollup, since=start, until=start + every)
            return (with_time(result, block, start) for block in blocks)

        number = schema.index(time)
        return AggregateStage(schema.layout, number, every, late, window.rollup, answer, self.groups, slots)
