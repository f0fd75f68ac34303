"""Options of confluo-stream publish for flows, and for packets of interfaces."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from confluo_tools import cli
from confluo_tools.cli import nic_options
from confluo_tools.cli.options import option
from confluo_tools.errors import UsageError

if TYPE_CHECKING:
    from confluo_tools.kernel.nic import Nic
    from confluo_tools.schema import Schema

MAX_WORKERS = 64


class CollectOptions(cli.OptionGroup):
    """Interfaces to read packets from, flows, and the threads for them."""

    interface: nic_options.Interfaces = None
    flows: Annotated[
        str | None, option("--flows", metavar="FILE", help="The flows: what belongs to each, its functions, its topic.")
    ] = None
    workers: Annotated[
        int, option("--workers", metavar="N", min=1, max=MAX_WORKERS, help="Run functions in N threads (1).")
    ] = 1
    lanes: Annotated[int | None, option("--lanes", metavar="N", min=1, help="Capture with N threads (1).")] = None
    bpf: nic_options.Bpf = None
    decap: nic_options.Decap = "outer"
    fanout: nic_options.Fanout = None
    ring: nic_options.RingSize = None
    no_promiscuous: nic_options.NoPromiscuous = False
    timestamps: nic_options.Stamps = None
    immediate: nic_options.Immediate = False
    wait: nic_options.Wait = None
    duration: cli.Duration = None
    user: cli.User = None

    def only_for_interfaces(self) -> None:
        """Raise UsageError for an option that is for -i alone, if there is none."""
        if self.interface:
            return
        given = {
            "--lanes": self.lanes,
            "--bpf": self.bpf,
            "--decap": self.decap != "outer",
            "--fanout": self.fanout,
            "--ring": self.ring,
            "-p": self.no_promiscuous,
            "--timestamps": self.timestamps,
            "--immediate": self.immediate,
            "--wait": self.wait,
            "--duration": self.duration,
            "-Z": self.user,
        }
        for name, value in given.items():
            if value:
                raise UsageError(f"{name} is for live captures", hint="-i names an interface")

    def open(self, schema: Schema) -> Nic:
        """The interfaces; see `open_nic`.  Raises UsageError and ConfluoError."""
        from confluo_tools.kernel.nic import MAX_LANES, RING, open_nic, ring_size

        lanes, fanout, stamps = self.lanes or 1, self.fanout or "hash", self.timestamps or "host"
        if lanes > MAX_LANES:
            raise UsageError(f"{lanes} lanes exceed the limit", where="--lanes", hint=f"use at most {MAX_LANES}")
        patience = cli.seconds("--wait", self.wait)
        return open_nic(
            self.interface or [],
            schema,
            lanes=lanes,
            fanout=cli.one_of("--fanout", fanout, ("hash", "cpu", "rr")),
            filter=self.bpf or "",
            ring=RING if self.ring is None else ring_size(self.ring),
            promiscuous=not self.no_promiscuous,
            timestamps=cli.one_of("--timestamps", stamps, ("host", "hardware")),
            immediate=self.immediate,
            decap=cli.one_of("--decap", self.decap, ("outer", "inner")),
            seconds=cli.seconds("--duration", self.duration),
            wait=10.0 if patience is None else patience,
            notify=cli.note,
        )
