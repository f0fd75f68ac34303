"""Link types: LINKTYPE_ number in captures, libpcap's name, entry of the parser, hardware types of Linux interfaces.

The only table of link types.  The parser (pyx/packets/c_link.pxd) and the rings of live capture are compiled from it by
pyx/packets/generate.py; Python code looks up `LINK_TYPES`.  Numbers: https://www.tcpdump.org/linktypes.html
"""

from __future__ import annotations

from typing import NamedTuple


class LinkType(NamedTuple):
    """``parser``: entry of `open_link`, where the link header of such frames is parsed."""

    number: int
    name: str  # of libpcap, without DLT_
    description: str
    parser: str
    hardware: tuple[int, ...] = ()  # ARPHRD_ numbers of the interfaces that carry such frames
    dlt: int = -1  # libpcap's own number on Linux, where it is another one


_TABLE = (
    LinkType(1, "EN10MB", "Ethernet", "ethernet", (1, 772)),
    # ARPHRD_NONE (tun, WireGuard), RAWIP, TUNNEL, TUNNEL6, SIT
    LinkType(101, "RAW", "raw IP", "ip", (0xFFFE, 519, 768, 769, 776), 12),
    LinkType(113, "LINUX_SLL", "cooked", "cooked"),
    LinkType(276, "LINUX_SLL2", "cooked v2", "cooked2"),
    LinkType(105, "IEEE802_11", "802.11", "wlan", (801,)),
    LinkType(127, "IEEE802_11_RADIO", "802.11 with radiotap", "radiotap", (803,)),
    LinkType(0, "NULL", "BSD loopback", "loopback"),
    LinkType(108, "LOOP", "OpenBSD loopback", "loopback"),
    LinkType(109, "ENC", "OpenBSD IPsec", "enc"),
    LinkType(9, "PPP", "PPP", "hdlc"),
    LinkType(50, "PPP_SERIAL", "PPP in HDLC framing", "hdlc"),
    LinkType(166, "PPP_PPPD", "PPP of pppd, with direction", "pppd"),
    LinkType(51, "PPP_ETHER", "PPPoE", "pppoe"),
    LinkType(104, "C_HDLC", "Cisco HDLC", "cisco_hdlc"),
    LinkType(219, "MPLS", "MPLS", "mpls"),
    LinkType(228, "IPV4", "raw IPv4", "ip"),
    LinkType(229, "IPV6", "raw IPv6", "ip"),
    LinkType(239, "NFLOG", "Linux netfilter log", "nflog"),
    LinkType(10, "FDDI", "FDDI", "fddi"),
    LinkType(107, "FRELAY", "Frame Relay", "frame_relay"),
    LinkType(7, "ARCNET", "ARCnet", "arcnet"),
    LinkType(129, "ARCNET_LINUX", "ARCnet of Linux", "arcnet_linux"),
    LinkType(242, "IPOIB", "IP over InfiniBand", "infiniband"),
    LinkType(258, "PKTAP", "Apple PKTAP", "pktap"),
    LinkType(12, "RAW", "raw IP", "ip"),
    LinkType(14, "RAW", "raw IP", "ip"),
)
LINK_TYPES = {link.number: link for link in _TABLE}
ETHERNET, RAW_IP, COOKED = 1, 101, 113
BY_HARDWARE = {hardware: link.number for link in _TABLE for hardware in link.hardware}


def link_name(number: int) -> str:
    """libpcap's name of a link type, its number where the table has none."""
    return LINK_TYPES[number].name if number in LINK_TYPES else str(number)


def describe_link(number: int) -> str:
    """What frames of a link type are, in words."""
    return LINK_TYPES[number].description if number in LINK_TYPES else str(number)
