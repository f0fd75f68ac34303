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
ListThem = Annotated[
    bool, option("-D", "--list-interfaces", help="List the interfaces.", is_eager=True, callback=_list_interfaces)
]
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
Telemetry = Annotated[
    bool, option("--telemetry", help="Keep in-band telemetry: switch_path, queue_depth, hop_time, hop_latency.")
]
Digest = Annotated[
    bool, option("--digest", help="Keep a hash of each packet, packet_digest, so that copies can be found.")
]
TelemetryClock = Annotated[
    str,
    option("--telemetry-clock", metavar="UNIT", help="Read times of switches as seconds and UNIT: us (default), ns."),
]
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
NetFlow = Annotated[
    Names, option("--netflow", metavar="[ADDRESS]:PORT", help="Receive NetFlow v5, v9 and IPFIX there (repeatable).")
]
SFlow = Annotated[Names, option("--sflow", metavar="[ADDRESS]:PORT", help="Receive sFlow v5 there (repeatable).")]
ScaleSamples = Annotated[
    bool, option("--scale-samples", help="Multiply packets and bytes of exported records by their sampling rate.")
]
