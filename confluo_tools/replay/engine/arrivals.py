"""Which packet of the sender each received packet is."""

from __future__ import annotations

from array import array
from collections import defaultdict

from confluo_tools.errors import ConfluoError
from confluo_tools.replay.recording import ConnectionEnd
from confluo_tools.replay.recording.connection import arrivals as by_identification

_FIELDS = ("seq", "ack", "len", "tcp_flags", "window")


def arrivals(sender: ConnectionEnd, receiver: ConnectionEnd) -> array[int]:
    """For each packet that ``receiver`` processed, its number in the order in which ``sender`` sent it; -1: none.

    IPv4 packets are found by their identification, those of IPv6 by their headers.  Raises ConfluoError.
    """
    if receiver.flow.version == 4:
        return by_identification(sender, receiver)
    if len(sender.headers_sent) < sender.packets_sent or len(receiver.headers_received) < receiver.packets_received:
        raise ConfluoError("packets of IPv6 have no identification", hint="record with --level headers at both ends")
    places: dict[tuple[object, ...], list[int]] = defaultdict(list)
    sent = zip(*(sender.headers_sent[name] for name in _FIELDS), sender.sack_sent, strict=True)
    for number, header in enumerate(sent):
        places[header].append(number)
    out, expected = array("q"), 0
    for header in zip(*(receiver.headers_received[name] for name in _FIELDS), receiver.sack_received, strict=True):
        found = places.get(header)
        out.append(min(found, key=lambda n: abs(n - expected)) if found else -1)
        expected = max(expected, out[-1] + 1)
    return out
