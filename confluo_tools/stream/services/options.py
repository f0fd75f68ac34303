"""Options that all services share."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Annotated

from confluo_tools import cli
from confluo_tools.cli.options import Metrics, option
from confluo_tools.errors import UsageError
from confluo_tools.stream.options import RunName, Setting

if TYPE_CHECKING:
    from confluo_tools.kafka.row_writer import PlaceWriter
    from confluo_tools.schema import Schema
    from confluo_tools.stream.operation.operation import RunOperation

SHARED = {"Input": "--from", "Time": "--lateness", "Network": "-X", "Output": "--to"}
MAX_LATENESS = 3600 * 10**9  # ns


class ServiceOptions(cli.OptionGroup):
    """Where records come from besides the operands, and the place for results."""

    follow = False  # not annotated: not an option

    def operation(self, service: str, name: str) -> AbstractContextManager[RunOperation | None]:
        return nullcontext()

    source: Annotated[
        list[str] | None, option("--from", metavar="INPUT", help="Read INPUT (repeatable); all operands form EXPR.")
    ] = None
    lateness: Annotated[
        str, option("--lateness", metavar="TIME", help="Wait for records that are up to TIME late (1s).")
    ] = "1s"
    to: Annotated[
        str | None,
        option(
            "--to",
            metavar="PLACE",
            help="Send results to kafka://HOST:PORT/NAME, clickhouse://..., unix:PATH or FILE.messages.",
        ),
    ] = None
    ddl: cli.Ddl = False
    setting: Setting = None

    def late(self) -> int:
        """The lateness in ns."""
        return cli.duration("--lateness", self.lateness, 0, MAX_LATENESS)

    def place(self, schema: Schema) -> PlaceWriter | None:
        """The place of --to: records that it cannot take in time are lost, and counted.  None without --to."""
        if self.to is None:
            return None
        from confluo_tools.kafka.address import SCHEME
        from confluo_tools.stream.destination import Destination

        create = 1 if self.to.startswith(SCHEME) else 0
        return Destination(self.to, self.setting, create=create, best_effort=True).open(schema, wait=False)


class LiveServiceOptions(ServiceOptions):
    """The same for an input that may grow."""

    follow: Annotated[bool, option("--follow", help="Go on with what is added to the input, until a signal.")] = False
    name: RunName = None
    metrics: Metrics = None

    def operation(self, service: str, name: str) -> AbstractContextManager[RunOperation | None]:
        """The sockets of a run of ``service`` that goes on; without --name, its name begins with ``service``."""
        if not self.follow and self.name is None and self.metrics is None:
            return nullcontext()
        from confluo_tools.stream.operation.operation import RunOperation
        from confluo_tools.stream.operation.runtime_folder import default_name

        usual = f"{service}-{default_name([name])}"
        return RunOperation(self.name, [usual], self.metrics, number=True)


def window_length(text: str, follow: bool = False) -> int:
    """The length of --window in ns, 0: a single window.  Raises UsageError for a single one of what is followed."""
    if text != "0":
        return cli.duration("--window", text, 1_000_000)
    if follow:
        raise UsageError("a followed input has no end", where="--window 0", hint="take a time")
    return 0
