"""Running a service: records in, results out as records, and to a place for messages."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Protocol

from confluo_tools import cli
from confluo_tools.cli.log_output import LogOutput
from confluo_tools.errors import ConfluoError
from confluo_tools.inputs import follow as following
from confluo_tools.stream.stage_counts import StageCount
from confluo_tools.stream.topic_stages import end_stages

if TYPE_CHECKING:
    from confluo_tools.core.block.block import Block, Picks
    from confluo_tools.kafka.row_writer import PlaceWriter
    from confluo_tools.schema import Schema
    from confluo_tools.stream.services.options import ServiceOptions


class StreamService(Protocol):
    """What a service does with rows.  Its state is bounded, and it reads no clock.  Times in ns since 1970."""

    name: str
    schema: Schema  # of the results

    @property
    def late(self) -> int:
        """Rows that came too late for any result."""

    def take(self, block: Block, picks: Picks | None) -> None:
        """Take rows as they come."""

    def results(self) -> Iterator[Block]:
        """Results since the last call."""

    def due(self) -> int | None:
        """When time alone will change something; None: never."""

    def until(self, now: int) -> None:
        """Time has come to ``now``."""

    def finish(self, ended: bool) -> None:
        """No more rows.  ``ended``: the input has ended; otherwise a signal came."""

    def counts(self) -> str:
        """For --stats and SIGUSR1."""

    def notes(self) -> Iterator[str]:
        """What a user must know about the results."""


class ServiceInput(Protocol):
    """Where a service gets its rows."""

    name: str

    def counts(self) -> list[StageCount]:
        """The stages up to the service."""

    def blocks(
        self, periods: following.OpenPeriods, ending: following.StopSignal
    ) -> Iterator[tuple[Block, Picks | None]]:
        """Blocks and the rows of each that count, until the end or a signal."""

    def waiting(self) -> Iterator[tuple[Block, Picks | None]]:
        """Rows that were held back and need not be any more, while there is nothing to read."""


class ServiceOutput:
    """Results as records of ``out`` (None: none), and to ``place``: there as far as it takes them."""

    def __init__(
        self, out: LogOutput | cli.RecordOutput | None, place: PlaceWriter | None, stack: ExitStack, *, at_once: bool
    ) -> None:
        self.out, self.place, self._at_once = out, place, at_once
        self.rows = 0
        if out is not None:
            stack.enter_context(out)

    def write(self, block: Block) -> None:
        self.rows += block.rows
        if self.out is not None:
            self.out.write(block, None)
            if self._at_once:
                self.out.flush()
        self._send(block)

    def idle(self) -> None:
        if self.out is not None:
            self.out.flush()
        self._send(None)

    def stop(self) -> None:
        """After a signal."""
        if self.place is not None:
            self.place.stop()

    def _send(self, block: Block | None) -> None:
        if self.place is None:
            return
        try:
            if block is not None:
                self.place.write(block)
            else:
                self.place.idle()
        except ConfluoError as e:
            cli.warn(str(e))

    def close(self) -> None:
        """Wait until the place has what was sent; what it does not take is a message, and counted."""
        if self.place is None:
            return
        try:
            self.place.close()
        except ConfluoError as e:
            cli.warn(str(e))

    def stages(self) -> list[StageCount]:
        """What became of the results."""
        return [] if self.place is None else end_stages(self.place)

    def counts(self) -> str:
        text = f"{self.rows} results"
        if self.place is not None:
            n = self.place.counts
            text += f", {n.rows} sent, {n.delivered} delivered, {n.lost} lost"
        return text


class ServiceRun:
    """One run of a service; also the `OpenPeriods` of its input.

    ``live``: the clock ends windows and alerts while the input is silent; otherwise a slow pipe may hold old records.
    """

    mark = 0

    def __init__(
        self, source: ServiceInput, service: StreamService, output: ServiceOutput, lateness: int, *, live: bool
    ) -> None:
        self.source, self.service, self.output, self.lateness = source, service, output, lateness
        self.live, self.stopped = live, 0

    def due(self) -> int | None:
        return self.service.due() if self.live else None

    def until(self, now: int) -> None:
        self.service.until(now)
        self._write()

    def idle(self) -> None:
        for block, picks in self.source.waiting():
            self.service.take(block, picks)
        self._write()
        self.output.idle()

    def counts(self) -> str:
        return f"{self.service.counts()}; {self.output.counts()}"

    def rows(self) -> list[StageCount]:
        """The stages, for `status` and metrics."""
        results, late = self.output.rows, self.service.late
        first = self.source.counts()
        taken = first[-1].given
        rest = max(taken - results - late, 0)
        return [
            *first,
            StageCount("function", self.service.name, 0, taken, taken - rest - late, rest, late),
            *self.output.stages(),
        ]

    def change(self, text: str) -> list[str]:
        raise ConfluoError("a service has no flows that could be changed", hint="start it again with other options")

    def _write(self) -> None:
        for block in self.service.results():
            self.output.write(block)

    def run(self) -> None:
        with following.StopSignal() as ending:

            def stop(number: int) -> None:
                ending(number)
                self.output.stop()

            with cli.signals(stop, counts=self.counts):
                for block, picks in self.source.blocks(self, ending):
                    self.service.take(block, picks)
                    self._write()
                self.service.finish(not ending.number)
                self._write()
                self.output.close()
            self.stopped = ending.number

    def status(self, found: int) -> int:
        """Exit status: 128 + the signal that ended it, else whether there were ``found`` results."""
        if self.stopped:
            return 128 + self.stopped
        return cli.OK if found else cli.NOTHING


def run_service(
    source: ServiceInput,
    service: StreamService,
    on: ServiceOptions,
    out: cli.LogOptions,
    common: cli.CommonOptions,
    usual: tuple[str, ...] = (),
) -> int:
    """Run to the end; returns the exit status.  ``usual``: fields of a table without --wide."""
    if on.ddl:
        from confluo_tools.stream.destination import print_tables

        print_tables([(on.to or "", service.schema)])
        return cli.OK
    kind = out.kind(answers=True)
    names = out.names(service.schema, kind, usual)
    plain = on.to is None or out.output is not None or out.format is not None or out.tsv or out.ndjson
    with ExitStack() as stack:
        place = on.place(service.schema)
        into = out.open(service.schema, kind, names) if plain else None
        output = ServiceOutput(into, place, stack, at_once=on.follow)
        run = ServiceRun(source, service, output, on.late(), live=on.follow)
        operation = stack.enter_context(on.operation(service.name, source.name))
        if operation is not None:
            operation.serve(run)
        run.run()
    if not cli.state.quiet:
        for line in service.notes():
            cli.note(line)
    if common.stats or (run.stopped and not cli.state.quiet):
        cli.note(run.counts())
    return run.status(output.rows)
