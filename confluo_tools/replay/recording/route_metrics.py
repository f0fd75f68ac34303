"""Metrics of routes in recordings: settings `route:PREFIX` with words of ip-route(8)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from ipaddress import ip_address, ip_network

ROUTE = "route:"
_NUMBER, _TIME, _WORD = r"\d{1,10}", r"\d{1,9}(?:ms|s|us)?", r"[a-z][a-z0-9_]{0,15}"
# What decides how TCP sends; the size of packets is known from the handshake.
METRICS: Mapping[str, str] = {
    **dict.fromkeys(("initcwnd", "initrwnd", "quickack", "window", "ssthresh", "cwnd", "reordering"), _NUMBER),
    **dict.fromkeys(("rto_min", "rtt", "rttvar"), _TIME),
    **dict.fromkeys(("congctl", "features"), _WORD),
}


def metrics_towards(address: str, settings: Mapping[str, int | str]) -> str:
    """The metrics of the route with the longest prefix, as words of ip-route(8); only those that are well formed."""
    target, best, words = ip_address(address), -1, ""
    for name, value in settings.items():
        if not name.startswith(ROUTE):
            continue
        try:
            network = ip_network(name.removeprefix(ROUTE), strict=False)
        except ValueError:
            continue
        if network.version == target.version and target in network and network.prefixlen > best:
            best, words = network.prefixlen, str(value)
    return well_formed(words)


def well_formed(words: str) -> str:
    """The known metrics among ``words``: a recording may come from anywhere, and ip(8) runs what it reads."""
    found, split = [], words.split()
    for name, value in zip(split[::2], split[1::2], strict=False):
        if name in METRICS and re.fullmatch(METRICS[name], value):
            lock = "lock " if name == "cwnd" else ""  # without it, it has no effect
            found.append(f"{name} {lock}{value}")
    return " ".join(found)
