"""What an expression means, in plain Python: a syntax tree evaluated on one row of Python values.

Independent of expr/lower.py and everything below it: constants are read with ipaddress, datetime and Fraction,
addresses are ipaddress objects, bytes of headers are read from headers that `struct` packs.
A row is a dict by field name; an absent address is None; a list is a tuple with zeros for absent elements.
"""

from __future__ import annotations

import datetime
import ipaddress
import itertools
import re
import struct
from collections.abc import Iterable, Sequence
from fractions import Fraction
from typing import Any

from confluo_tools.core.block.block import Block
from confluo_tools.expr import syntax
from confluo_tools.expr.words import CONSTANTS, PROTOCOLS
from confluo_tools.schema import Field, Schema, fold6

Row = dict[str, Any]
Address = ipaddress.IPv4Address | ipaddress.IPv6Address

FORMATS = {1: "B", 2: "H", 3: "I", 4: "Q", 5: "b", 6: "h", 7: "i", 8: "q", 9: "f", 10: "d"}
SUFFIXES = {"k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30}
PORTS = {"ssh": 22, "domain": 53, "http": 80, "https": 443}
UNITS = {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9, "m": 60 * 10**9, "h": 3600 * 10**9}


# -- rows as blocks


def address_of(value: int, value6: bytes, version: int | None) -> Address | None:
    """The address that two columns and a version stand for."""
    if version == 6 or any(value6) or (version is None and value == 1):
        return ipaddress.IPv6Address(value6)
    return ipaddress.IPv4Address(value) if value or version == 4 else None


def columns_of(address: Address | None) -> tuple[int, bytes]:
    """The two columns of an address."""
    if address is None:
        return 0, bytes(16)
    if address.version == 4:
        return int(address), bytes(16)
    return fold6(address.packed), address.packed


def block_of(schema: Schema, rows: Sequence[Row]) -> Block:
    """A block of these rows."""
    buffers: list[bytes] = []
    for field in schema.fields:
        values = [row[field.name] for row in rows]
        if field.type.kind == "ip":
            pairs = [columns_of(v) for v in values]
            buffers.append(struct.pack(f"<{len(rows)}I", *[p[0] for p in pairs]))
            buffers.append(b"".join(p[1] for p in pairs))
        elif field.type.kind == "bytes":
            buffers.append(b"".join(values))
        else:
            flat = [e for v in values for e in v] if field.type.is_list else values
            buffers.append(
                struct.pack(
                    f"<{len(flat)}{FORMATS[field.type.code]}",
                    *[int(x) if field.type.kind == "ipv4" else x for x in flat],
                )
            )
    return Block.wrap(schema.layout, len(rows), buffers)


def rows_of(schema: Schema, block: Block) -> list[Row]:
    """The rows of a block, as the twin wants them."""
    out: list[Row] = []
    for number in range(len(block)):
        row: Row = {}
        for field in schema.fields:
            value = block.get(schema.index(field.name), number)
            if field.type.kind == "ip":
                version = block.get(schema.index(field.version), number) if field.version else None
                value = address_of(value, block.get(schema.index(field.name + "6"), number), version)
            row[field.name] = value
        out.append(row)
    return out


# -- constants


def number(text: str) -> Fraction:
    for suffix in sorted(SUFFIXES, key=len, reverse=True):
        if text.endswith(suffix) and not text.startswith("0x"):
            return Fraction(text[: -len(suffix)]) * SUFFIXES[suffix]
    return Fraction(int(text, 16)) if "0x" in text else Fraction(text)


def duration(text: str) -> int:
    total = Fraction(0)
    for digits, unit in re.findall(r"([\d.]+)([a-z]+)", text):
        total += Fraction(digits) * UNITS[unit]
    return int(-total if text.startswith("-") else total)


def moments(text: str, now_ns: int) -> tuple[int, int]:
    """First and last nanosecond of a time."""
    if text.startswith("@"):
        t = int(Fraction(text[1:]) * 10**9)
        return t, t
    if text.startswith("now"):
        t = now_ns - duration(text[4:])
        return t, t
    if text.isdigit():
        return int(text), int(text)
    if not re.match(r"\d{4}-", text):
        return now_ns - duration(text), now_ns - duration(text)
    epoch = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
    when = datetime.datetime.fromisoformat(text)
    when = when if when.tzinfo else when.replace(tzinfo=datetime.UTC)
    first = (when - epoch) // datetime.timedelta(microseconds=1) * 1000
    return first, first + (86400 * 10**9 - 1 if len(text) == 10 else 0)


def length_of(x: tuple[Any, ...]) -> int:
    return max((i + 1 for i, e in enumerate(x) if e != 0), default=0)


def element_of(x: tuple[Any, ...], index: int) -> Any:
    """x[index] of the list without the zeros at its end; 0 if there is none."""
    return dict(enumerate(x)).get(index if index >= 0 else length_of(x) + index, 0)


def flags_of(text: str, names: dict[int, str]) -> int:
    total = 0
    for part in re.split(r"[|+]", text):
        known = {v: k for k, v in names.items()}
        total |= known[part.lower()] if part.lower() in known else CONSTANTS.get(part, 0) or int(number(part))
    return total


class Meaning:
    """Evaluates syntax trees on rows of one schema."""

    def __init__(self, schema: Schema, now_ns: int = 0) -> None:
        self.schema, self.now_ns = schema, now_ns

    def holds(self, node: syntax.Syntax, row: Row) -> bool:
        match node:
            case syntax.Both(items):
                return all(self.holds(i, row) for i in items)
            case syntax.Either(items):
                return any(self.holds(i, row) for i in items)
            case syntax.Negation(item):
                return not self.holds(item, row)
            case syntax.Word():
                return self.word(node, row)
            case syntax.Compare(syntax.ByteRef() as ref, op, values, many) if ref.proto in self.schema:
                field, x = self.schema[ref.proto], element_of(row[ref.proto], ref.offset)
                found = x != 0 and self.element(
                    field, syntax.FieldRef(ref.proto), op.replace("!", "="), x, list(values)
                )
                return found != (op == "!=")
            case syntax.Nonzero(syntax.ByteRef() as ref) if ref.proto in self.schema:
                x = element_of(row[ref.proto], ref.offset)
                return bool(x < 0 or x > 0)
            case syntax.Compare(syntax.LengthRef(name), op, values):
                return self.length(length_of(row[name]), op, [v.text for v in values])
            case syntax.Nonzero(syntax.LengthRef(name)):
                return length_of(row[name]) > 0
            case syntax.ListCompare(syntax.FieldRef(name), op, values):
                return self.sequence(self.schema[name], row[name], op, [v.text for v in values])
            case syntax.Compare(syntax.ByteRef() as ref, op, values):
                return self.header(ref, op, [v.text for v in values], row)
            case syntax.Nonzero(syntax.ByteRef() as ref):
                return self.header(ref, "!=", ["0"], row)
            case syntax.Nonzero(ref):
                return self.alone(ref, row)
            case syntax.Compare(ref, op, values, many):
                return self.compare(ref, op, list(values), many, row)
            case _:
                return True

    # -- fields

    def single(self, field: Field, text: str) -> tuple[Any, Any]:
        """First and last value of one constant."""
        kind = field.type.element
        if kind == "time":
            return moments(text, self.now_ns)
        if kind == "mac":
            value: Any = int(text.replace(":", ""), 16)
        elif kind == "ipv4":
            net = ipaddress.ip_network(text, strict=False)
            return int(net.network_address), int(net.broadcast_address)
        elif kind == "duration":
            value = duration(text)
        elif kind == "flags":
            value = flags_of(text, field.names)
        elif field.names and text.lower() in field.names.values():
            value = next(k for k, v in field.names.items() if v == text.lower())
        elif text in PORTS:
            value = PORTS[text]
        elif text.endswith("inf"):
            value = float(text)
        elif field.unit == "B" and text.endswith("B"):
            value = number(text[:-1])
        else:
            value = number(text)
        if kind in ("f32", "f64"):
            value = float(value)
        if kind == "f32":
            value = struct.unpack("f", struct.pack("f", value))[0]
        return value, value

    def span(self, field: Field, text: str) -> tuple[Any, Any]:
        """First and last value that a constant means."""
        if ".." in text:
            first, _, last = text.partition("..")
            lo = self.single(field, first)[0] if first else float("-inf")
            return lo, self.single(field, last)[1] if last else float("inf")
        if field.type.element == "ipv4" and "-" in text:
            first, last = text.split("-")
            return int(ipaddress.IPv4Address(first)), int(ipaddress.IPv4Address(last))
        parts = re.fullmatch(r"([0-9a-zA-Z.]+)-([0-9a-zA-Z.]+)", text)
        if parts and field.type.element not in ("time", "mac", "flags") and not re.fullmatch(r"\d+e-\d+", text):
            return self.single(field, parts[1])[0], self.single(field, parts[2])[1]
        return self.single(field, text)

    def is_address(self, address: Address | None, text: str) -> bool:
        if address is None:
            return False
        if "*" in text:
            groups = str(address).split(".")
            return address.version == 4 and all(p in ("*", g) for p, g in zip(text.split("."), groups, strict=True))
        first, mark, last = text.partition(".." if ".." in text else "-")
        if mark:
            lo, hi = ipaddress.ip_address(first), ipaddress.ip_address(last)
            return address.version == lo.version and int(lo) <= int(address) <= int(hi)
        net = ipaddress.ip_network(text, strict=False)
        return address.version == net.version and address in net

    def one(self, field: Field, ref: syntax.FieldRef, x: Any, value: syntax.Value) -> bool:
        """Is x the constant?"""
        text, kind = value.text, field.type.kind
        if kind == "bytes":
            data = text.encode("utf-8", "surrogateescape")
            if not value.quoted and text.startswith("0x"):
                data = bytes.fromhex(text[2:])
            return x == data.ljust(field.type.size, b"\0")
        if kind == "ip":
            if ref.mask is not None:
                mask, wanted = ipaddress.ip_address(ref.mask.text), ipaddress.ip_address(text)
                return x is not None and x.version == mask.version and int(x) & int(mask) == int(wanted)
            return self.is_address(x, text)
        if "*" in text and kind in ("ipv4", "mac"):
            shown = str(ipaddress.IPv4Address(x)).split(".") if kind == "ipv4" else re.findall("..", f"{x:012x}")
            return all(p in ("*", g) for p, g in zip(re.split(r"[.:]", text), shown, strict=True))
        if ref.mask is not None:
            x &= flags_of(ref.mask.text, field.names) if kind != "ipv4" else int(ipaddress.ip_address(ref.mask.text))
        lo, hi = self.span(field, text)
        return bool(lo <= x <= hi)

    def compare(self, ref: syntax.FieldRef, op: str, values: list[syntax.Value], many: bool, row: Row) -> bool:
        if op == "!=":
            return not self.compare(ref, "==", values, many, row)
        if ref.name in ("host", "net", "port") and ref.name not in self.schema:
            kind = "port" if ref.name == "port" else "net"
            return any(self.word(syntax.Word("", "", kind, v), row) for v in values)
        if ref.name in ("flow", "conn") and ref.name not in self.schema:
            return any(self.flow(ref.name, v.text, row) for v in values)
        field, x = self.schema[ref.name], row[ref.name]
        other = values[0].text.lower()
        is_name = not many and not values[0].quoted and other in self.schema and other not in field.names.values()
        if is_name and op not in ("in", "like", "has"):
            return self.pair(field, ref, op, x, row[other])
        elements = [e for e in x if e != 0] if field.type.is_list else [x]
        if field.type.kind == "ipv4" and x == 0:
            elements = []  # no address
        return any(self.element(field, ref, op, e, values) for e in elements)

    def element(self, field: Field, ref: syntax.FieldRef, op: str, x: Any, values: list[syntax.Value]) -> bool:
        kind = field.type.kind
        if op == "has" and kind == "flags":
            return any(x & flags_of(v.text, field.names) == flags_of(v.text, field.names) for v in values)
        if op == "has" and kind == "bytes":
            return any(v.text.encode("utf-8", "surrogateescape") in x.rstrip(b"\0") for v in values)
        if op == "like" and kind == "bytes":
            return any(like(v.text.encode("utf-8", "surrogateescape"), x.rstrip(b"\0")) for v in values)
        if op in ("==", "in", "has", "like"):
            return any(self.one(field, ref, x, v) for v in values)
        if kind == "ip":
            limit = ipaddress.ip_address(values[0].text)
            if x is None or x.version != limit.version:
                return False
            lo, hi, x = int(limit), int(limit), int(x)
        elif kind == "bytes":
            lo = hi = values[0].text.encode("utf-8", "surrogateescape").ljust(field.type.size, b"\0")
        else:
            if ref.mask is not None:
                x &= flags_of(ref.mask.text, field.names)
            lo, hi = self.single(field, values[0].text)
        return bool({"<": x < lo, "<=": x <= hi, ">": x > hi, ">=": x >= lo}[op])

    def pair(self, field: Field, ref: syntax.FieldRef, op: str, x: Any, y: Any) -> bool:
        if ref.mask is not None:
            x &= flags_of(ref.mask.text, field.names)
        if op == "==" and field.type.kind in ("ip", "ipv4"):
            return bool(x == y) and x is not None and (x != 0 or field.type.kind == "ip")
        if op == "==":
            return bool(x == y)
        return bool({"<": x < y, "<=": x <= y, ">": x > y, ">=": x >= y}[op])

    def alone(self, ref: syntax.FieldRef, row: Row) -> bool:
        field, x = self.schema[ref.name], row[ref.name]
        if field.type.kind == "ip":
            return x is not None
        if ref.mask is not None:
            return bool(x & flags_of(ref.mask.text, field.names))
        return any(e < 0 or e > 0 for e in (x if isinstance(x, (tuple, bytes)) else (x,)))

    # -- lists

    def length(self, n: int, op: str, texts: list[str]) -> bool:
        spans = [self.span(Field("n", "u32"), text) for text in texts]
        if op in ("==", "!=", "in"):
            return any(lo <= n <= hi for lo, hi in spans) != (op == "!=")
        lo = hi = spans[0][0]
        return bool({"<": n < lo, "<=": n <= hi, ">": n > hi, ">=": n >= lo}[op])

    def sequence(self, field: Field, x: tuple[Any, ...], op: str, texts: list[str]) -> bool:
        """Every choice of places that ``op`` allows is tried."""
        if op == "!=":
            return not self.sequence(field, x, "==", texts)
        n, spans = len(texts), [self.span(field, text) for text in texts]
        places: Iterable[tuple[int, ...]]
        if op == "before":
            places = itertools.combinations(range(len(x)), n)
        else:
            places = [tuple(range(at, at + n)) for at in range(len(x) - n + 1 if op == "has" else 1)]
        there = any(
            all(x[at] != 0 and lo <= x[at] <= hi for at, (lo, hi) in zip(chosen, spans, strict=True))
            for chosen in places
        )
        return there and (op != "==" or length_of(x) == n)

    # -- words of pcap-filter

    def word(self, word: syntax.Word, row: Row) -> bool:
        text = word.value.text if word.value else ""
        kind, version = word.kind, row.get("ip_version")
        if kind == "greater":
            return bool(row["len"] >= number(text))
        if kind == "less":
            return bool(row["len"] <= number(text))
        if kind == "vlan":
            if not text:
                return bool(row["vlan_count"] > 0)
            tags = [row["vlan"], row["vlan2"]][: row["vlan_count"]]
            return int(text) in tags or (int(text) != 0 and int(text) == row["vlan2"])
        if kind == "mpls":
            return bool(row["mpls_count"] > 0 and (not text or row["mpls_label"] == int(text)))
        if kind in ("vxlan", "geneve"):
            return bool(row["tunnel"] == {"vxlan": 2, "geneve": 3}[kind] and (not text or row["vni"] == int(text)))
        if kind in ("broadcast", "multicast"):
            if word.proto in ("ip", "ip6"):
                to = row["dst_ip"]
                return to is not None and to.is_multicast and to.version == version == (4 if word.proto == "ip" else 6)
            return bool(row["eth_dst"] == 2**48 - 1 if kind == "broadcast" else row["eth_dst"] >> 40 & 1)
        if word.proto == "ether" and kind == "proto":
            names = {"ip": 0x800, "arp": 0x806, "ip6": 0x86DD}
            return bool(row["eth_type"] == (names[text] if text in names else number(text)))
        if word.proto == "ether":
            mac = int(text.replace(":", ""), 16)
            return self.sides(word, row["eth_src"] == mac, row["eth_dst"] == mac)
        if not self.protocol(word.proto, row):
            return False
        if kind in ("host", "net"):
            full = text
            if kind == "net" and ":" not in text and text.partition("/")[0].count(".") < 3:
                head, slash, bits = text.partition("/")
                parts = head.split(".")
                full = f"{'.'.join(parts + ['0'] * (4 - len(parts)))}/{bits if slash else 8 * len(parts)}"
            return self.sides(word, self.is_address(row["src_ip"], full), self.is_address(row["dst_ip"], full))
        if kind in ("port", "portrange"):
            parts = re.split(r"-|\.\.", text) if text not in PORTS else [text]
            ends = sorted(PORTS[p] if p in PORTS else int(number(p)) for p in parts)
            if ends[0] == 0 and (row.get("proto", 6) not in (6, 17, 132) or row.get("frag_offset", 0)):
                return False
            return self.sides(word, *[ends[0] <= row[f"{side}_port"] <= ends[-1] for side in ("src", "dst")])
        if kind == "proto":
            return bool(row["proto"] == (PROTOCOLS[text] if text in PROTOCOLS else number(text)))
        return True

    @staticmethod
    def sides(word: syntax.Word, source: bool, destination: bool) -> bool:
        if word.direction == "src and dst":
            return source and destination
        return source if word.direction == "src" else destination if word.direction == "dst" else source or destination

    @staticmethod
    def protocol(proto: str, row: Row) -> bool:
        if proto in ("ip", "ip6"):
            claim = 0x800 if proto == "ip" else 0x86DD
            return bool(row["ip_version"] == (4 if proto == "ip" else 6) or row.get("eth_type") == claim)
        if proto in ("arp", "rarp"):
            return bool(row["eth_type"] == (0x806 if proto == "arp" else 0x8035))
        if proto in ("icmp", "igmp") and row.get("ip_version", 4) != 4:
            return False
        if proto == "icmp6" and row.get("ip_version", 6) != 6:
            return False
        return not proto or bool(row["proto"] == PROTOCOLS[proto])

    def flow(self, name: str, text: str, row: Row) -> bool:
        left, right = text.partition("/")[0].split("-")
        ends = [self.end(left), self.end(right)]
        if "/" in text and row["proto"] != PROTOCOLS[text.partition("/")[2]]:
            return False

        def one_way(ends: list[tuple[Address, str | None]]) -> bool:
            return all(
                row[f"{side}_ip"] == address and (port in (None, "*") or row[f"{side}_port"] == int(port or 0))
                for side, (address, port) in zip(("src", "dst"), ends, strict=True)
            )

        return one_way(ends) or (name == "conn" and one_way(ends[::-1]))

    @staticmethod
    def end(text: str) -> tuple[Address, str | None]:
        """Address and port of one end of a flow."""
        if text.startswith("["):
            address, _, port = text[1:].partition("]")
            return ipaddress.ip_address(address), port[1:] or None
        if "." in text:
            address, _, port = text.partition(":")
            return ipaddress.ip_address(address), port or None
        return ipaddress.ip_address(text), None

    # -- bytes of headers

    def header(self, ref: syntax.ByteRef, op: str, texts: list[str], row: Row) -> bool:
        data = header_of(ref.proto, row)
        if data is None:
            return False
        x = int.from_bytes(data[ref.offset : ref.offset + ref.size], "big")
        if ref.mask is not None:
            x &= constant(ref.mask.text)
        hits = []
        for text in texts:
            first, dots, last = text.partition("..")
            y = constant(first)
            if dots:
                hits.append(y <= x <= constant(last))
            else:
                equal = op in ("==", "in", "!=")
                hits.append(x == y if equal else {"<": x < y, "<=": x <= y, ">": x > y, ">=": x >= y}[op])
        return any(hits) != (op == "!=")


def constant(text: str) -> int:
    return flags_of(text, {})


def header_of(proto: str, row: Row) -> bytes | None:
    """The header that the row was made from, None if it has none of this protocol."""
    if proto == "ether":
        return row["eth_dst"].to_bytes(6, "big") + row["eth_src"].to_bytes(6, "big")
    version = row["ip_version"]
    tos = row["dscp"] << 2 | row["ecn"]
    if proto == "ip6":
        return struct.pack(">IHBB", 6 << 28 | tos << 20, 0, 0, row["ttl"]) if version == 6 else None
    if version != (6 if proto == "icmp6" else 4):
        return None
    if proto == "ip":
        offset = row["ip_flags"] << 13 | row["frag_offset"] >> 3
        source, destination = int(row["src_ip"]), int(row["dst_ip"])
        length = row["ip_len"] & 0xFFFF
        return struct.pack(
            ">BBHHHBBHII", 0x45, tos, length, row["ip_id"], offset, row["ttl"], row["proto"], 0, source, destination
        )
    if row["proto"] != PROTOCOLS[proto] or row["frag_offset"]:
        return None
    if proto in ("icmp", "icmp6"):
        return bytes([row["icmp_type"], row["icmp_code"]])
    ports = struct.pack(">HH", row["src_port"], row["dst_port"])
    if proto != "tcp":
        return ports
    words = row["tcp_seq"], row["tcp_ack"], 5 << 12 | row["tcp_flags"], row["tcp_window"]
    return ports + struct.pack(">IIHH", *words)


def like(pattern: bytes, value: bytes) -> bool:
    """Does the shell pattern match?"""
    parts = {b"*": b".*", b"?": b"."}
    regex = b"".join(parts.get(bytes([c]), re.escape(bytes([c]))) for c in pattern)
    return re.fullmatch(regex, value, re.DOTALL) is not None
