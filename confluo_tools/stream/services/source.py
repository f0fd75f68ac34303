"""Packets for a service: any input, or one that grows, with the rows for which an expression holds."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from confluo_tools import cli
from confluo_tools.inputs import follow as following
from confluo_tools.inputs.topics import is_topic

if TYPE_CHECKING:
    from confluo_tools.core.block.block import Block, Picks
    from confluo_tools.expr import Expr
    from confluo_tools.schema import Schema


class ServiceSource(following.Input):
    """The rows of ``inputs`` from ``since`` on, before ``until`` (ns), for which ``text`` holds.

    A topic that is not followed is read to its end and sorted by time, because its partitions come one by one.
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
    ) -> None:
        from confluo_tools.remote.request import QueryRequest

        self.follow, self.text, self.span, self.local = follow, text, span, local
        if follow and following.one_log(inputs):
            from confluo_tools import multilog

            self.log = multilog.open(inputs[0], readonly=True)
            self.schema, self.name = self.log.schema, inputs[0]
        else:
            reader = ins.open(inputs, request=QueryRequest(text, *span))
            sort = not follow and any(is_topic(name) for name in inputs)
            self.reader = reader = cli.analyzed(reader, None, sort=sort)
            self.schema, self.name = reader.schema, reader.name
        try:
            self.expr = self._compile(self.schema)
        except BaseException:
            self.close()
            raise

    def _compile(self, schema: Schema) -> Expr:
        from confluo_tools.expr import compile

        filters = None
        if self.reader is not None:
            filters = self.reader.filters
        else:
            from confluo_tools.multilog.views import named_filters

            filters = named_filters(self.log)
        expr = compile(self.text, schema, now_ns=time.time_ns(), filters=filters, local=self.local)
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
            for pair in self.reader.select(self.expr):
                yield pair
                if ending.came():
                    return
            return
        for block in blocks:
            picks = self.expr.program.select(block)
            if len(picks):
                yield block, picks

    def _gone(self, rows: int) -> None:
        cli.note(f"{rows:,} records were removed before they were read", where=self.name, hint="keep more of the log")
