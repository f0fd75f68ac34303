"""The options of confluo-capture that no other command has."""

from __future__ import annotations

from typing import Annotated

import typer

from confluo_tools.cli.options import option
from confluo_tools.cli.state import OK, printable


def _list_interfaces(wanted: bool) -> bool:
    if wanted:
        from confluo_tools.sources.interfaces import describe_all

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
Decap = Annotated[
    str, option("--decap", metavar="WHICH", help="IP and transport fields of the outer or inner packet.")
]
Sample = Annotated[str | None, option("--sample", metavar="1/N", help="Keep every Nth flow, the same ones each time.")]
SamplePackets = Annotated[str | None, option("--sample-packets", metavar="1/N", help="Keep every Nth packet.")]
Snap = Annotated[
    int, option("-s", "--snap", metavar="N", min=0, max=65535, help="Keep the first N bytes of each packet.")
]
Offset = Annotated[
    bool | None,
    option("--offset/--no-offset", help="Keep where each packet stands in its file (default: of files)."),
]
SchemaFile = Annotated[
    str | None, option("--schema", metavar="FILE", help="Other fields than those of 'packet': a schema.")
]
Telemetry = Annotated[bool, option("--telemetry", help="Keep in-band telemetry: switch_path, queue_depth.")]
Follow = Annotated[bool, option("--follow", help="Wait for the last file to grow.")]
LaneCount = Annotated[
    int | None,
    option("--lanes", metavar="N", min=1, max=65535, help="With -i: capture with N threads, each a lane of LOG.  "
            "With -r: how many may write to a new LOG at once."),
]  # fmt: skip
Fanout = Annotated[
    str | None, option("--fanout", metavar="HOW", help="How lanes share packets: hash (by flow), cpu or rr.")
]
Bpf = Annotated[
    str | None, option("--bpf", metavar="FILTER", help="Let the kernel drop what this pcap-filter(7) does not take.")
]
NoPromiscuous = Annotated[bool, option("-p", "--no-promiscuous", help="Only packets that are for this machine.")]
RingSize = Annotated[
    str | None, option("--ring", metavar="SIZE", help="Room for packets that wait, of each lane (32MiB).")
]
Stamps = Annotated[
    str | None, option("--timestamps", metavar="WHOSE", help="host (the kernel) or hardware (the NIC).")
]
Immediate = Annotated[bool, option("--immediate", help="Rows appear after a millisecond, not after eight.")]
Wait = Annotated[
    str | None, option("--wait", metavar="TIME", help="How long an interface that has vanished may be away (10s).")
]
