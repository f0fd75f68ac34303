"""Packets for a service: any input, or one that grows, with the rows for which an expression holds."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from confluo_tools import cli
from confluo_tools.inputs import follow as following
from confluo_tools.inputs.topics import is_topic
from confluo_tools.stream.fetch_stages import FetchStages, fetch_stages
from confluo_tools.stream.services.topic_order import TopicOrder
from confluo_tools.stream.stage_counts import StageCount

if TYPE_CHECKING:
    from confluo_tools.core.block.block import Block, Picks
    from confluo_tools.expr import Expr
    from confluo_tools.formats.reader import Reader
    from confluo_tools.schema import Schema

LAST = (1 << 63) - 1


class ServiceSource(following.Input):
    """The rows of ``inputs`` from ``since`` on, before ``until`` (ns), for which ``text`` holds.

    A topic that is not followed is read to its end and sorted by time, because its partitions come one by one; messages
    of one that is followed wait for partitions that are behind.  ``reader``: instead of the inputs, if they are open.
    """

    def __init__(
        self,
        inputs: Sequence[str],
        text: str,
        ins: cli.InputOptions,
        span: tuple[int | None, int | None],
        *,
        follow: bool,
        local: bool,
        reader: Reader | None = None,
    ) -> None:
        from confluo_tools.remote.request import QueryRequest

        self.follow, self.text, self.span, self.local = follow, text, span, local
        self._order: TopicOrder | None = None
        self.seen = self.given = 0  # rows that came, and those for which the expression holds
        self._fetched: FetchStages | None = None
        if reader is not None:
            self.reader, self.schema, self.name = reader, reader.schema, reader.name
        elif follow and following.one_log(inputs):
            from confluo_tools import multilog

            self.log = multilog.open(inputs[0], readonly=True)
            self.schema, self.name = self.log.schema, inputs[0]
        else:
            reader = ins.open(inputs, request=QueryRequest(text, *span), follow=follow)
            self._fetched = fetch_stages(reader)
            sort = not follow and any(is_topic(name) for name in inputs)
            self.reader = reader = cli.analyzed(reader, None, sort=sort)
            self.schema, self.name = reader.schema, reader.name
        try:
            time_field = self.schema.time_field
            if follow and self.reader is not None and self.reader.format == "kafka" and time_field is not None:
                self._order = TopicOrder(self.schema.index(time_field.name))
            self.expr = self._compile(self.schema)
        except BaseException:
            self.close()
            raise

    def _compile(self, schema: Schema) -> Expr:
        from confluo_tools import config
        from confluo_tools.expr import compile, read_list

        filters = None
        if self.reader is not None:
            filters = self.reader.filters
        else:
            from confluo_tools.multilog.views import named_filters

            filters = named_filters(self.log)
        now = time.time_ns()
        expr = compile(
            self.text, schema, now_ns=now, filters=filters, local=config.truth("local", self.local), lists=read_list
        )
        for line in expr.notes:
            cli.tell(line)
        return expr.within(*self.span)

    def blocks(
        self, periods: following.OpenPeriods, ending: following.StopSignal
    ) -> Iterator[tuple[Block, Picks | None]]:
        """Blocks and the rows of each that count, until the end or a signal."""
        if self.reader is None:
            blocks = following.tail(self.log.path, periods, ending, self.span[0], self._gone)
        elif getattr(self.reader, "stream", None) is not None or self.follow:
            blocks = following.read(self.reader, periods, ending)
        else:
            for block, picks in self.reader.select(self.expr):
                self._count(block, picks)
                yield block, picks
                if ending.came():
                    return
            return
        for block in blocks:
            if self._order is None:
                yield from self._selected(block)
                continue
            self._order.add(block)
            for held in self._order.ready(periods.mark):
                yield from self._selected(held)
        yield from self.waiting(LAST)

    def waiting(self, mark: int | None = None) -> Iterator[tuple[Block, Picks | None]]:
        """Rows of a topic that waited for other partitions, and need not any more."""
        if self._order is None:
            return
        if mark is None:
            mark = self.reader.consumer.mark  # type: ignore[union-attr]
        for block in self._order.ready(mark):
            yield from self._selected(block)

    def _selected(self, block: Block) -> Iterator[tuple[Block, Picks | None]]:
        picks = self.expr.program.select(block)
        self._count(block, picks)
        if len(picks):
            yield block, picks

    def _count(self, block: Block, picks: Picks | None) -> None:
        self.seen += block.rows
        self.given += block.rows if picks is None else len(picks)

    def counts(self) -> list[StageCount]:
        """The stages up to the service."""
        seen, given = self.seen, self.given
        first = self._fetched() if self._fetched is not None else [StageCount("receive", self.name, 0, seen, seen)]
        return [*first, StageCount("classify", "", 0, seen, given, seen - given)]

    def _gone(self, rows: int) -> None:
        cli.note(f"{rows:,} records were removed before they were read", where=self.name, hint="keep more of the log")
