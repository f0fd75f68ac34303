"""What a replay needs from the settings of a recording, and whether this host can provide it."""

from __future__ import annotations

import os
import re
from dataclasses import replace

from confluo_tools.errors import ConfluoError
from confluo_tools.kernel.tick import WHEEL, tick_length, tick_phase
from confluo_tools.replay.engine.network import EndSettings
from confluo_tools.replay.engine.replayed_options import options_before
from confluo_tools.replay.recording import ConnectionEnd, RecordedConnection
from confluo_tools.replay.recording.route_metrics import metrics_towards, well_formed

CONGESTION = "tcp_congestion_control"
CHOSEN = "option:TCP_CONGESTION"
SYSCTL = "tcp_"  # settings with this prefix are of net.ipv4
SEGMENTS = "gso:"  # most segments of a packet, with the name of the device
_SYSCTL_NAME = re.compile(r"tcp_[a-z0-9_]+")
HEADERS = {4: 40, 6: 60}  # bytes of IP and TCP
INSTEAD = {4: ("192.0.2.1", "192.0.2.2"), 6: ("2001:db8::1", "2001:db8::2")}  # RFC 5737, RFC 3849


def connection_settings(connection: RecordedConnection) -> tuple[EndSettings, EndSettings]:
    """The settings of both ends.  Loopback addresses, and equal ones, are replaced: two namespaces need others."""
    client, server = end_settings(connection.client), end_settings(connection.server)
    if client.address == server.address or client.address.startswith("127.") or server.address.startswith("127."):
        ours = INSTEAD[connection.client.flow.version]
        client, server = replace(client, address=ours[0]), replace(server, address=ours[1])
    return client, server


def end_settings(end: ConnectionEnd) -> EndSettings:
    """The settings of one end."""
    words = end.settings
    sysctls = {f"ipv4/{name}": str(value) for name, value in words.items() if name != CONGESTION and _is_sysctl(name)}
    segments = [number(end, name) for name in words if name.startswith(SEGMENTS)]
    return EndSettings(
        address=end.flow.src,
        port=end.flow.src_port,
        mtu=(number(end, "mss") or 1500 - HEADERS[end.flow.version]) + HEADERS[end.flow.version],
        sysctls=sysctls,
        options=options_before(end),
        congestion=congestion_of(end),
        gso_max_segs=min(segments, default=0) or int(words.get("grade") == "strict"),
        route=well_formed(str(words.get("route", ""))) or metrics_towards(end.flow.dst, words),
    )


def congestion_of(end: ConnectionEnd) -> str:
    """The congestion control that the program chose, else that of the host."""
    return str(end.settings.get(CHOSEN) or end.settings.get(CONGESTION, ""))


def number(end: ConnectionEnd, name: str) -> int:
    """A setting that is a number, also if it was written as a word; 0 if it is missing."""
    value = end.settings.get(name, 0)
    return int(value) if isinstance(value, int) or value.isdecimal() else 0


def _is_sysctl(name: str) -> bool:
    """Whether a setting is one of net.ipv4 that this kernel has."""
    return _SYSCTL_NAME.fullmatch(name) is not None and os.path.exists(f"/proc/sys/net/ipv4/{name}")


def phase_of(end: ConnectionEnd, origin: int) -> int:
    """The place of time ``origin`` among the ticks of the recording host, ns: see `tick_phase`."""
    # Without it the monotonic clock of the begin: right on this host until it reboots.
    phase = number(end, "phase") if "phase" in end.settings else tick_phase(number(end, "began"))
    return (phase + origin - end.began) % (WHEEL * (number(end, "tick") or tick_length()))


def differences(connection: RecordedConnection) -> list[str]:
    """How this host differs from those of the recording, in words: the replay may differ for it.

    Raises ConfluoError if it cannot replay at all.
    """
    found = []
    here = os.uname().release
    for name, end in (("client", connection.client), ("server", connection.server)):
        kernel = str(end.settings.get("kernel", here))
        if kernel != here:
            found.append(f"the {name} was recorded on Linux {kernel}, this is {here}")
        tick = number(end, "tick")
        if tick and tick != tick_length():
            found.append(
                f"the {name} was recorded with HZ={10**9 // tick}, this kernel has HZ={10**9 // tick_length()}"
            )
        found += [
            f"this kernel has no net.ipv4.{setting}, which was {value} at the {name}"
            for setting, value in end.settings.items()
            if setting.startswith(SYSCTL) and not _is_sysctl(setting)
        ]
        if end.settings.get("options") == 0:
            found.append(f"the socket options of the {name} were not recorded")
        _check_congestion(congestion_of(end), name)
    return found


def _check_congestion(wanted: str, name: str) -> None:
    with open("/proc/sys/net/ipv4/tcp_available_congestion_control", encoding="ascii") as f:
        here = f.read().split()
    if wanted and wanted not in here:
        raise ConfluoError(
            f"the {name} used congestion control '{wanted}', this kernel has {', '.join(here)}",
            hint=f"load it: modprobe tcp_{wanted}; confluo-replay explain, diff and --as-packetdrill need none",
        )
