"""Options of flow records: --flows of confluo-query, and the timeouts that it shares with confluo-flows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from confluo_tools.cli.groups import OptionGroup
from confluo_tools.cli.option_values import duration
from confluo_tools.cli.options import option
from confluo_tools.errors import UsageError

if TYPE_CHECKING:
    from confluo_tools.formats.reader import Reader
    from confluo_tools.multilog.query.flow_records import FlowReader

SHOWN = (
    "ts",
    "duration",
    "proto",
    "src_ip",
    "src_port",
    "dst_ip",
    "dst_port",
    "conn_state",
    "history",
    "src_packets",
    "dst_packets",
    "src_bytes",
    "dst_bytes",
)  # in a table without --wide


class FlowTimeouts(OptionGroup):
    """When a flow ends, and when a long one gives a record."""

    idle_timeout: Annotated[
        str | None, option("--idle-timeout", metavar="TIME", help="End a flow TIME after its last packet.")
    ] = None
    active_timeout: Annotated[
        str | None, option("--active-timeout", metavar="TIME", help="Write a record of a flow that is TIME old.")
    ] = None

    def timeouts(self, idle: int = 0, active: int = 0) -> tuple[int, int]:
        """(idle, active) in ns, or these defaults; 0: none.  Raises UsageError."""
        if self.idle_timeout is not None:
            idle = duration("--idle-timeout", self.idle_timeout, 0)
        if self.active_timeout is not None:
            active = duration("--active-timeout", self.active_timeout, 0)
        return idle, active


class FlowOptions(FlowTimeouts):
    """--flows: the rows of a query are the flows of its packets."""

    flows: Annotated[
        bool, option("--flows", help="Turn packets into flow records; EXPR and all other options are about these.")
    ] = False
    packets: Annotated[
        str | None, option("--packets", metavar="EXPR", help="With --flows: use only packets for which EXPR holds.")
    ] = None

    @classmethod
    def options(cls) -> dict[str, Any]:
        found = super().options()
        return {name: found[name] for name in ("flows", "packets", *(n for n in found if n.endswith("timeout")))}

    @property
    def shown(self) -> tuple[str, ...]:
        """The fields of flows in a table without --wide."""
        return SHOWN if self.flows else ()

    def check(self, **others: object) -> None:
        """Raise UsageError for options without --flows, or for ``others`` with it: {name of an option: value}."""
        if not self.flows:
            for name in ("packets", "idle_timeout", "active_timeout"):
                if getattr(self, name) is not None:
                    raise UsageError("requires --flows", where=f"--{name.replace('_', '-')}")
            return
        for name, value in others.items():
            if value:
                hint = "confluo-flows follows" if name == "follow" else "it is about packets"
                raise UsageError("does not go with --flows", where=f"--{name}", hint=hint)

    def open(
        self,
        reader: Reader,
        span: tuple[int | None, int | None],
        sample: str | None,
        max_flows: int | None,
        local: bool,
        *,
        sort: bool,
    ) -> FlowReader:
        """The flows of the packets in ``span``."""
        from confluo_tools.console import warn
        from confluo_tools.inputs.open import analyzed
        from confluo_tools.inputs.selection import compile_expr
        from confluo_tools.multilog.query.flow_records import FlowReader, conn_table

        table = conn_table(reader.schema, max_flows, *self.timeouts())
        reader = analyzed(reader, None, sort=sort)
        packets = compile_expr(self.packets or "", reader, span, sample, local)
        return FlowReader(reader, packets, table, alone=not self.timeouts()[0], warn=warn)
