"""Options of commands that read packets from interfaces."""

from __future__ import annotations

from typing import Annotated

from confluo_tools.cli.groups import InputOptions
from confluo_tools.cli.options import option
from confluo_tools.formats.registry import INPUTS, either

Interfaces = Annotated[
    list[str] | None,
    option("-i", "--interface", metavar="NAME", help="Interface to capture from (repeatable), or any."),
]
Decap = Annotated[str, option("--decap", metavar="WHICH", help="Use the outer or inner IP and transport fields.")]
Fanout = Annotated[
    str | None, option("--fanout", metavar="HOW", help="How lanes share packets: hash (by flow), cpu or rr.")
]
Bpf = Annotated[
    str | None,
    option("--bpf", metavar="FILTER", help="Let the kernel drop packets that do not match a pcap-filter(7)."),
]
NoPromiscuous = Annotated[bool, option("-p", "--no-promiscuous", help="Capture only packets to or from this machine.")]
RingSize = Annotated[str | None, option("--ring", metavar="SIZE", help="Size of the packet ring of each lane (32MiB).")]
Stamps = Annotated[str | None, option("--timestamps", metavar="CLOCK", help="Clock: host (kernel) or hardware (NIC).")]
Immediate = Annotated[bool, option("--immediate", help="Write rows after 1 ms instead of 8 ms.")]
Wait = Annotated[str | None, option("--wait", metavar="TIME", help="Wait TIME for an interface that vanished (10s).")]


class NicInput(InputOptions):
    """The input options; -i names an interface."""

    input_format: Annotated[
        str | None,
        option(
            "--input-format", metavar="FORMAT", panel="Input", help=f"Input format, if not detected: {either(INPUTS)}."
        ),
    ] = None
