"""Options of confluo-capture only."""

from __future__ import annotations

from typing import Annotated

import typer

from confluo_tools.cli.options import option
from confluo_tools.console import OK, printable


def _list_interfaces(wanted: bool) -> bool:
    if wanted:
        from confluo_tools.kernel.interfaces import describe_all

        for number, name, link, what in describe_all():
            print(f"{number:>3}  {printable(name):<16}{link:<22}{what}")
        raise typer.Exit(OK)
    return wanted


Names = list[str] | None
ReadFiles = Annotated[
    Names, option("-r", "--read", metavar="FILE", help="Capture to read (repeatable); - or none: stdin.")
]
Interfaces = Annotated[
    Names, option("-i", "--interface", metavar="NAME", help="Interface to capture from (repeatable), or any.")
]
ListThem = Annotated[
    bool, option("-D", "--list-interfaces", help="List the interfaces.", is_eager=True, callback=_list_interfaces)
]
Decap = Annotated[str, option("--decap", metavar="WHICH", help="Use the outer or inner IP and transport fields.")]
Sample = Annotated[str | None, option("--sample", metavar="1/N", help="Keep every Nth flow, the same ones each time.")]
SamplePackets = Annotated[str | None, option("--sample-packets", metavar="1/N", help="Keep every Nth packet.")]
Snap = Annotated[
    int, option("-s", "--snap", metavar="N", min=0, max=65535, help="Keep the first N bytes of each packet.")
]
Offset = Annotated[
    bool | None,
    option("--offset/--no-offset", help="Keep the position of each packet in its file (default for files)."),
]
SchemaFile = Annotated[str | None, option("--schema", metavar="FILE", help="Use a schema other than 'packet'.")]
Telemetry = Annotated[bool, option("--telemetry", help="Keep in-band telemetry: switch_path, queue_depth.")]
Follow = Annotated[bool, option("--follow", help="Wait for the last file to grow.")]
LaneCount = Annotated[
    int | None,
    option(
        "--lanes",
        metavar="N",
        min=1,
        max=65535,
        help="With -i: capture with N threads, one lane of LOG each.  With -r: allow N writers of a new LOG.",
    ),
]
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
