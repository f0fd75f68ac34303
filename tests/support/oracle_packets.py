"""What tshark says of each packet, brought into the fields of our packet schema, and the differences we mean.

The columns are those of truth/README.md next to the captures.  tshark prints the outermost occurrence of each
field by itself, so `frame.protocols` decides which header a value belongs to.
"""

from __future__ import annotations

import gzip
import subprocess
from collections.abc import Callable, Iterator
from functools import lru_cache
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from confluo_tools.core.block.block import Block

Row = dict[str, Any]
ANY = "any"
EXTENSIONS = {"ipv6.hopopts", "ipv6.dstopts", "ipv6.routing", "ipv6.fraghdr", "ah", "ipv6.hipopts"}
NUMBER = {"tcp": 6, "udp": 17, "icmp": 1, "icmpv6": 58, "sctp": 132, "ip": 4, "ipv6": 41, "gre": 47, "mipv6": 135}
VLAN_TYPES = {0x8100, 0x88A8, 0x9100}

# Fields compared.  What tshark has no column for (TCP options, SCTP ports, tunnels) has tests of its own.
_FIELDS = (
    "ts len cap_len iface eth_src eth_dst eth_type vlan mpls_label ip_version src_ip dst_ip proto ttl ip_id ip_len ecn "
    "dscp ip_flags frag_offset src_port dst_port tcp_seq tcp_ack tcp_flags tcp_window payload_len icmp_type icmp_code"
)
FIELDS = _FIELDS.split()


def lines(path: Path) -> Iterator[dict[str, str]]:
    """Rows of a truth file, by tshark's names."""
    with gzip.open(path, "rt", encoding="utf-8", newline="\n") as f:
        names = next(f).rstrip("\n").split("\t")
        for line in f:
            yield dict(zip(names, line.rstrip("\n").split("\t"), strict=True))


# The columns of a truth file; what `expected` reads.
_TRUTH = (
    "frame.number frame.time_epoch frame.len frame.cap_len frame.interface_id frame.protocols eth.src eth.dst eth.type "
    "vlan.id mpls.label ip.version ip.src ip.dst ipv6.src ipv6.dst ip.proto ipv6.nxt ip.ttl ipv6.hlim ip.id ip.len "
    "ipv6.plen ip.dsfield.ecn ip.dsfield.dscp ipv6.tclass.ecn ipv6.tclass.dscp ip.flags ip.frag_offset "
    "ipv6.fraghdr.offset tcp.srcport tcp.dstport tcp.seq_raw tcp.ack_raw tcp.flags tcp.window_size_value tcp.len "
    "udp.srcport udp.dstport icmp.type icmp.code icmpv6.type"
)


def live_lines(path: Path) -> Iterator[dict[str, str]]:
    """The rows of `lines`, from a run of tshark now."""
    options = ("ip.defragment:FALSE", "ipv6.defragment:FALSE", "tcp.desegment_tcp_streams:FALSE")
    command = ["tshark", "-n", "-r", str(path), *(w for o in options for w in ("-o", o))]
    command += ["-T", "fields", "-E", "separator=/t", "-E", "occurrence=f"]
    command += [w for name in _TRUTH.split() for w in ("-e", name)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    for line in done.stdout.splitlines():
        yield dict(zip(_TRUTH.split(), line.split("\t"), strict=True))


def is_packet(t: dict[str, str]) -> bool:
    """tshark also numbers pcapng custom blocks; they have neither a time nor a link layer."""
    return bool(t["frame.time_epoch"]) or t["frame.protocols"] != "data"


def number(text: str) -> int:
    return int(text, 0) if text else 0


def nanoseconds(text: str) -> int:
    """tshark prints 9 digits of a second, and a fraction of a second or more as it is: 1418145370.1000000000."""
    seconds, _, fraction = text.partition(".")
    return int(seconds or 0) * 10**9 + int(fraction or 0)


def expected(t: dict[str, str]) -> Row:
    """Our fields of one packet as tshark sees it; None where tshark cannot tell."""
    chain = t["frame.protocols"].split(":")
    row: Row = dict.fromkeys(FIELDS, 0)
    row.update(src_ip=None, dst_ip=None, chain=chain)
    row["ts"] = nanoseconds(t["frame.time_epoch"])
    row["len"], row["cap_len"] = number(t["frame.len"]), number(t["frame.cap_len"])
    row["iface"] = number(t["frame.interface_id"])
    if chain[0] == "eth":
        row["eth_src"] = int(t["eth.src"].replace(":", ""), 16) if t["eth.src"] else 0
        row["eth_dst"] = int(t["eth.dst"].replace(":", ""), 16) if t["eth.dst"] else 0
        row["eth_type"] = number(t["eth.type"])
        if row["eth_type"] in VLAN_TYPES or not t["eth.type"]:
            row["eth_type"] = None  # the type after the tags or in the SNAP header has no column
    else:
        row["eth_src"] = row["eth_dst"] = row["eth_type"] = None
    at = next((i for i, name in enumerate(chain) if name in ("ip", "ipv6")), len(chain))
    if "ieee8021ad" in chain[:at]:
        row["vlan"] = None  # the outer tag has another name, and no column
    elif "vlan" in chain[:at]:
        row["vlan"] = number(t["vlan.id"])
    if "mpls" in chain[:at]:
        row["mpls_label"] = number(t["mpls.label"])
    if at == len(chain):
        if "arp" in chain:
            row["src_ip"] = row["dst_ip"] = ANY  # no columns
        return row
    if chain[at : at + 2] == ["ip", "ipv6"] and t["ip.version"] == "6":
        at += 1  # EtherType of IPv4, version number of IPv6
    version = 4 if chain[at] == "ip" else 6
    row["ip_version"] = version
    above = at + 1
    if version == 4:
        row["src_ip"], row["dst_ip"] = t["ip.src"] or None, t["ip.dst"] or None
        row.update(
            proto=number(t["ip.proto"]),
            ttl=number(t["ip.ttl"]),
            ip_id=number(t["ip.id"]),
            ip_len=number(t["ip.len"]),
            ecn=number(t["ip.dsfield.ecn"]),
            dscp=number(t["ip.dsfield.dscp"]),
            ip_flags=number(t["ip.flags"]),
            frag_offset=8 * number(t["ip.frag_offset"]),
        )
        if chain[above : above + 1] == ["ah"] and above + 1 < len(chain):
            above += 1  # stepped over
            row["proto"] = NUMBER.get(chain[above])
    else:
        row["src_ip"], row["dst_ip"] = t["ipv6.src"] or None, t["ipv6.dst"] or None
        row.update(
            proto=number(t["ipv6.nxt"]),
            ttl=number(t["ipv6.hlim"]),
            ip_len=40 + number(t["ipv6.plen"]),
            ecn=number(t["ipv6.tclass.ecn"]),
            dscp=number(t["ipv6.tclass.dscp"]),
            frag_offset=8 * number(t["ipv6.fraghdr.offset"]),
        )
        while above < len(chain) and chain[above] in EXTENSIONS:
            above += 1
        if above > at + 1:  # the last next-header has no column, but the layer above has a name
            row["proto"] = NUMBER.get(chain[above]) if above < len(chain) else None
            row["ip_flags"] = None
    layer = chain[above] if above < len(chain) else ""
    if layer == "tcp":
        row.update(
            src_port=number(t["tcp.srcport"]),
            dst_port=number(t["tcp.dstport"]),
            tcp_seq=number(t["tcp.seq_raw"]),
            tcp_ack=number(t["tcp.ack_raw"]),
            tcp_flags=number(t["tcp.flags"]),
            tcp_window=number(t["tcp.window_size_value"]),
            payload_len=number(t["tcp.len"]),
        )
    else:
        row["payload_len"] = None
        if layer == "udp":
            row.update(src_port=number(t["udp.srcport"]), dst_port=number(t["udp.dstport"]))
        elif layer == "sctp":
            row.update(src_port=None, dst_port=None)
        elif layer == "icmp":
            row.update(icmp_type=number(t["icmp.type"]), icmp_code=number(t["icmp.code"]))
        elif layer == "icmpv6":
            row.update(icmp_type=number(t["icmpv6.type"]), icmp_code=None)
    return row


@lru_cache(1 << 16)
def address(value: int, value6: bytes, version: int) -> str | None:
    if version == 6:
        return str(ip_address(value6))
    return str(ip_address(value)) if version == 4 or value else None


class OurRow:
    """One row of a block of the packet schema, addresses as text; a field is read when it is asked for."""

    __slots__ = ("block", "row")

    def __init__(self, block: Block, row: int) -> None:
        self.block, self.row = block, row

    def __getitem__(self, name: str) -> Any:
        value = self.block.get(self.block.layout.index(name), self.row)
        return address(value, self[name + "6"], self["ip_version"]) if name in ("src_ip", "dst_ip") else value


class Difference:
    """One deliberate difference, a row of the table in docs/oracles.md.

    ``fields`` may differ where ``holds`` (file name, field, tshark's row, our row).
    """

    def __init__(self, name: str, fields: str, holds: Callable[[str, str, Row, OurRow], bool]) -> None:
        self.name, self.fields, self.holds = name, fields.split(), holds


HEADERS = (
    "src_ip dst_ip proto ttl ip_id ip_len ecn dscp ip_flags frag_offset src_port dst_port "
    "tcp_seq tcp_ack tcp_flags tcp_window icmp_type icmp_code"
)
BROKEN = 1 | 2  # notes: truncated, malformed

DIFFERENCES = [
    Difference(
        "cut-address",
        "src_ip dst_ip",
        lambda f, n, t, o: t[n] is None and o["notes"] & 1 == 1 and o[n] in ("::", "0.0.0.0"),
    ),
    Difference("broken-header", HEADERS, lambda f, n, t, o: not t[n] and o["notes"] & BROKEN != 0),
    Difference("no-version", "ip_version", lambda f, n, t, o: o[n] == 0 and o["notes"] & 2 == 2 and o["eth_type"] > 0),
    Difference(
        "jumbo",
        "ip_len",
        lambda f, n, t, o: t[n] == 40 and "ipv6.hopopts" in t["chain"] and o["len"] > 65535 and o[n] == o["len"] - 14,
    ),
    Difference(
        "sections",
        "iface",
        lambda f, n, t, o: (
            o[n] > t[n]
            and f in ("pcapng_le_diff202.pcapng", "pcapng_multi_section_le_diff201.pcapng", "sections.pcapng")
        ),
    ),
    Difference("after-2262", "ts", lambda f, n, t, o: t[n] >= 2**63 and o[n] == 2**63 - 1 and o["notes"] & 64 == 64),
    Difference(
        "odd-fraction",
        "ts",
        lambda f, n, t, o: (
            o["notes"] & 64 == 64
            and f in ("tcpdump_timestamp_invalid_micro.pcap", "fraction.pcap")
            and o[n] % 10**9 == 2**31 * 1000 % 10**9
        ),
    ),
]


def explain(file: str, field: str, theirs: Row, mine: OurRow) -> str | None:
    """Name of the deliberate difference that covers this one."""
    return next((d.name for d in DIFFERENCES if field in d.fields and d.holds(file, field, theirs, mine)), None)


# tshark prints here the fields for which the stored truth has no column: every occurrence, outermost first.
_LIVE = (
    "frame.protocols ip.src ip.dst ipv6.src ipv6.dst ip.proto ipv6.nxt ip.ttl ipv6.hlim ip.len ipv6.plen ip.id "
    "tcp.srcport tcp.dstport udp.srcport udp.dstport sctp.srcport sctp.dstport tcp.seq_raw tcp.ack_raw tcp.flags "
    "tcp.window_size_value tcp.len icmp.type icmp.code icmpv6.type icmpv6.code tcp.option_kind tcp.options.mss_val "
    "tcp.options.wscale.shift tcp.options.timestamp.tsval tcp.options.timestamp.tsecr arp.src.proto_ipv4 "
    "arp.dst.proto_ipv4 eth.type vlan.etype vlan.id ieee8021ad.id mpls.label vxlan.vni geneve.vni gre.key "
    "erspan.spanid pppoe.session_id ipv6.hopopts.nxt ipv6.dstopts.nxt ipv6.routing.nxt ipv6.fraghdr.nxt "
    "ipv6.fraghdr.more udp.length frame.time_epoch"
)
LIVE = _LIVE.split()


PLACE = {name: i for i, name in enumerate(LIVE)}


class LiveRow:
    """A packet by the fields of LIVE, lists of all occurrences, made when they are asked for."""

    __slots__ = ("values",)

    def __init__(self, line: str) -> None:
        self.values = line.split("\t")
        assert len(self.values) == len(LIVE), line

    def __getitem__(self, name: str) -> list[str]:
        value = self.values[PLACE[name]]
        return value.split("|") if value else []


def tshark(path: Path) -> list[LiveRow]:
    """Every packet of a capture."""
    options = ("ip.defragment:FALSE", "ipv6.defragment:FALSE", "tcp.desegment_tcp_streams:FALSE")
    command = ["tshark", "-n", "-r", str(path), *(w for o in options for w in ("-o", o))]
    command += ["-T", "fields", "-E", "separator=/t", "-E", "occurrence=a", "-E", "aggregator=|"]
    command += [w for name in LIVE for w in ("-e", name)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    rows = map(LiveRow, done.stdout.splitlines())
    return [r for r in rows if r["frame.time_epoch"] or r["frame.protocols"] != ["data"]]


QUOTING = ("icmp", "icmpv6", "sflow")
OPTION_BITS = {2: 1, 3: 2, 4: 4, 5: 8, 8: 16, 34: 32, 30: 64}


class Layers:
    """The layers of one live row: which header is the outermost or innermost, and its values."""

    def __init__(self, row: LiveRow) -> None:
        self.row = row
        chain = row["frame.protocols"][0].split(":")
        quoted = next((i for i, name in enumerate(chain) if name in QUOTING), len(chain))
        self.chain = chain[: quoted + 1]  # headers that ICMP errors and sFlow quote are not headers of this packet
        self.ips = [i for i, name in enumerate(self.chain) if name in ("ip", "ipv6")]

    def value(self, field: str, at: int) -> str:
        """The field's value in the layer at position ``at``; '' when it has none."""
        name = self.chain[at]
        nth = self.chain[:at].count(name)
        values = self.row[field]
        return values[nth] if nth < len(values) else ""

    def above(self, at: int) -> int:
        """Position of the layer above the IP header at ``at``, past extension headers."""
        at += 1
        while at < len(self.chain) and self.chain[at] in EXTENSIONS:
            at += 1
        return at

    def five_tuple(self, at: int) -> Row:
        """IP and transport fields of the IP header at position ``at``."""
        v6 = self.chain[at] == "ipv6"
        p = "ipv6" if v6 else "ip"
        row: Row = {"ip_version": 6 if v6 else 4}
        row["src_ip"], row["dst_ip"] = self.value(f"{p}.src", at), self.value(f"{p}.dst", at)
        row["ttl"] = number(self.value("ipv6.hlim" if v6 else "ip.ttl", at))
        up = self.above(at)
        if up == at + 1:
            row["proto"] = number(self.value("ipv6.nxt" if v6 else "ip.proto", at))
        layer = self.chain[up] if up < len(self.chain) else ""
        row["src_port"] = row["dst_port"] = 0
        if layer in ("tcp", "udp", "sctp"):
            row["src_port"] = number(self.value(f"{layer}.srcport", up))
            row["dst_port"] = number(self.value(f"{layer}.dstport", up))
        if layer == "tcp":
            row["tcp_seq"] = number(self.value("tcp.seq_raw", up))
            row["tcp_flags"] = number(self.value("tcp.flags", up))
            row["payload_len"] = number(self.value("tcp.len", up))
        if layer == "icmp":
            row["icmp_type"] = number(self.value("icmp.type", up))
            row["icmp_code"] = number(self.value("icmp.code", up))
        return row


def outer(row: LiveRow) -> Row:
    """Fields that only live columns tell, of the outermost headers."""
    layers = Layers(row)
    chain, out = layers.chain, Row()
    first = layers.ips[0] if layers.ips else len(chain)
    if chain[0] == "eth" and "llc" not in chain[:first] and row["eth.type"]:
        tags = [n for n in chain[:first] if n in ("vlan", "ieee8021ad")]
        ids = [int(v) for v in row["ieee8021ad.id"] + row["vlan.id"]]
        if "pwethcw" not in chain:  # tags of a frame inside a pseudowire are not this frame's
            out["vlan_count"] = len(tags)
            out["vlan"], out["vlan2"] = (*ids, 0, 0)[:2] if len(tags) > 1 else (ids[0] if tags else 0, 0)
            types = row["eth.type"][:1] + row["vlan.etype"][: len(tags)]
            if "ieee8021ad" not in tags:
                out["eth_type"] = number(types[-1])
        labels = row["mpls.label"] if "mpls" in chain[:first] else []
        out["mpls_count"] = len(labels)
    if "arp" in chain[:first] and row["arp.src.proto_ipv4"]:
        source, target = row["arp.src.proto_ipv4"][0], row["arp.dst.proto_ipv4"][0]
        out["src_ip"], out["dst_ip"] = (None if a == "0.0.0.0" else a for a in (source, target))
    if not layers.ips:
        return out
    out |= layers.five_tuple(first)
    up = layers.above(first)
    layer = chain[up] if up < len(chain) else ""
    if layer == "tcp" and chain.count("tcp") == 1:
        kinds = [int(k) for k in row["tcp.option_kind"]]
        bits = 0
        for kind in kinds:
            if kind > 1:
                bits |= OPTION_BITS.get(kind, 128)
        if 254 not in kinds:
            out["tcp_opts"] = bits
        for field, name in (
            ("tcp_mss", "mss_val"),
            ("tcp_wscale", "wscale.shift"),
            ("tcp_tsval", "timestamp.tsval"),
            ("tcp_tsecr", "timestamp.tsecr"),
        ):
            values = row[f"tcp.options.{name}"]
            out[field] = number(values[-1]) if values else 0
    if layer == "udp" and chain[first] == "ip" and int(row["udp.length"][0]) + 20 == int(row["ip.len"][0]):
        out["payload_len"] = int(row["udp.length"][0]) - 8  # elsewhere IP and UDP contradict each other: IP wins
    if layer == "icmpv6" and row["icmpv6.code"]:
        out["icmp_code"] = int(row["icmpv6.code"][0])
    return out


def innermost(row: LiveRow, mine: OurRow) -> Row:
    """IP and transport fields of the innermost IP header."""
    layers = Layers(row)
    return layers.five_tuple(layers.ips[-1]) if layers.ips else {}
