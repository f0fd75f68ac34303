"""Lowers pcap-filter words, header bytes and flows to tests on the fields of the packet schema.

Words look at the outermost IP header, also behind VLAN tags and MPLS labels.
A guard (IP version, protocol, first fragment) is added if the schema has its field.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from confluo_tools import units
from confluo_tools.expr.fields import FieldTests
from confluo_tools.expr.leaves import FALSE, TRUE, Tree
from confluo_tools.expr.simplify import Intervals
from confluo_tools.expr.syntax import ByteRef, Compare, FieldRef, Value, Word
from confluo_tools.expr.words import ETHERTYPES, HEADERS, PROTOCOLS, SERVICES

if TYPE_CHECKING:
    from confluo_tools.schema import Field

ONLY4 = frozenset({"icmp", "igmp"})  # protocols that BPF looks for in IPv4 only
WITH_PORTS = {"tcp": 6, "udp": 17, "sctp": 132}
FIRST = "frag_offset"
BROADCAST = (1 << 48) - 1
GROUP_BIT = 1 << 40  # the lowest bit of the first byte of a MAC address: multicast


def primitive(low: FieldTests, word: Word) -> Tree:
    """The leaves of one primitive."""
    kind = word.kind
    if kind in ("host", "net") and word.proto == "ether":
        return _ether_host(low, word)
    if kind in ("host", "net"):
        return low.both([_protocol(low, word), _hosts(low, word)])
    if kind in ("port", "portrange"):
        return _ports(low, word)
    if kind == "proto":
        return _proto_number(low, word)
    if kind in ("greater", "less"):
        limit = _number(low, word, 1 << 32)
        return _test(low, word, "len", [(limit, 1 << 64)] if kind == "greater" else [(0, limit)])
    if kind in ("broadcast", "multicast"):
        return _cast(low, word)
    if kind in ("vlan", "mpls"):
        return _tags(low, word)
    if kind in ("geneve", "vxlan"):
        tunnel = _test(low, word, "tunnel", [({"vxlan": 2, "geneve": 3}[kind],) * 2])
        if word.value is None:
            return tunnel
        vni = _number(low, word, (1 << 24) - 1)
        return low.both([tunnel, _test(low, word, "vni", [(vni, vni)])])
    return _protocol(low, word)


# -- the parts of a primitive


def _test(low: FieldTests, word: Word, name: str, intervals: Intervals, mask: int | None = None) -> Tree:
    """A test on the integer field ``name``, which ``word`` needs."""
    return low.within(low.col(_need(low, word, name)), intervals, mask)


def _need(low: FieldTests, word: Word, name: str) -> Field:
    if name not in low.schema:
        said = word.proto if not word.kind else word.kind
        what = f"'{said}' needs the field {name}, which schema '{low.schema.kind}' does not have"
        raise low.fail(word.pos, what)
    return low.schema[name]


def _guard(low: FieldTests, name: str, intervals: Intervals) -> Tree:
    """A test on ``name`` if the schema has it."""
    return low.within(low.schema.index(name), intervals) if name in low.schema else TRUE


def _protocol(low: FieldTests, word: Word) -> Tree:
    """The test of the protocol qualifier; a bare protocol word is only this."""
    proto = word.proto
    if not proto:
        return TRUE
    if proto in ("ip", "ip6", "arp", "rarp", "pppoed", "pppoes"):
        if proto in low.schema and not word.kind and not _has_words(low, proto):
            return low.nonzero(FieldRef(proto, None, word.pos))  # a schema with a field of that name
        if proto in ("ip", "ip6"):
            # Also a frame that claims to carry IP, whatever its header looks like: so do tcpdump and tshark.
            claim = ETHERTYPES[proto]
            version = _test(low, word, "ip_version", [(4, 4) if proto == "ip" else (6, 6)])
            claimed = _guard(low, "eth_type", [(claim, claim)]) if "eth_type" in low.schema else FALSE
            return low.either([version, claimed])
        return _test(low, word, "eth_type", [(ETHERTYPES[proto],) * 2])
    if proto == "ether":
        raise low.fail(word.pos, "'ether' needs an address", "write ether host 00:11:22:33:44:55")
    number = PROTOCOLS[proto]
    tests = [_above_ip(low, _need(low, word, "proto"), number)]
    if proto in ONLY4:
        tests.append(_guard(low, "ip_version", [(4, 4)]))
    elif proto == "icmp6":
        tests.append(_guard(low, "ip_version", [(6, 6)]))
    return low.both(tests)


def _has_words(low: FieldTests, proto: str) -> bool:
    return ("ip_version" if proto in ("ip", "ip6") else "eth_type") in low.schema


def _sides(low: FieldTests, word: Word, names: tuple[str, str], test: dict[str, Tree]) -> Tree:
    """A test of the source and one of the destination, joined by the direction."""
    if word.direction in ("src", "dst"):
        return test[names[0] if word.direction == "src" else names[1]]
    sides = [test[names[0]], test[names[1]]]
    return low.both(sides) if word.direction == "src and dst" else low.either(sides)


def _names(word: Word, source: str, destination: str) -> tuple[str, ...]:
    if word.direction in ("src", "dst"):
        return (source if word.direction == "src" else destination,)
    return source, destination


def _hosts(low: FieldTests, word: Word) -> Tree:
    value = _value(low, word)
    found = units.try_ip_range(value.text)
    if word.kind == "net" and found is None:
        found = _short_net(value.text)
    if found is None:
        hint = "names are not looked up" if value.text[:1].isalpha() and ":" not in value.text else ""
        if units.try_mac(value.text) is not None:
            hint = f"write ether host {value.text}"
        elif value.text.isdigit() and word.kind == "host":
            hint = f"write {word.proto + ' ' if word.proto else ''}port {value.text}"
        raise low.fail(value.pos, f"'{value.text}' is not an address", hint or "write e.g. 10.0.0.1 or 10.0.0.0/8")
    if word.kind == "host" and found[1] != found[2]:
        raise low.fail(value.pos, f"'{value.text}' is a range of addresses", f"write net {value.text}")
    if (word.proto == "ip" and found[0] == 6) or (word.proto in ("ip6", "icmp6") and found[0] == 4):
        raise low.fail(value.pos, f"'{value.text}' is not an address of {word.proto}")
    if found[0] == 6 and word.proto in ("arp", "rarp"):
        raise low.fail(value.pos, f"'{value.text}' is not an address of {word.proto}")
    tests: dict[str, Tree] = {}
    for name in _names(word, "src_ip", "dst_ip"):
        field = _need(low, word, name)
        if field.type.kind not in ("ip", "ipv4"):
            raise low.fail(word.pos, f"'{word.kind}' needs addresses, but {name} is {field.type.text}")
        if field.type.kind == "ipv4" and found[0] == 6:
            raise low.fail(value.pos, f"{name} (ipv4) holds IPv4 addresses only")
        pair = [(found[1], found[2])]
        tests[name] = low.ip4(field, pair) if found[0] == 4 else low.ip6(field, pair)
    return _sides(low, word, ("src_ip", "dst_ip"), tests)


def _short_net(text: str) -> tuple[int, int, int] | None:
    """``10``, ``192.168``, ``10.1.2``: a class by the number of its parts, as tcpdump reads it; ``10/8``."""
    head, slash, bits = text.partition("/")
    parts = head.split(".")
    if len(parts) > 3 or not all(p.isascii() and p.isdigit() and len(p) <= 3 for p in parts):
        return None
    return units.try_prefix(f"{'.'.join(parts + ['0'] * (4 - len(parts)))}/{bits if slash else 8 * len(parts)}")


def _value(low: FieldTests, word: Word) -> Value:
    assert word.value is not None
    return word.value


def _ports(low: FieldTests, word: Word) -> Tree:
    """Ports of TCP, UDP, SCTP.  Rows of other protocols and later fragments have 0 for a port."""
    value = _value(low, word)
    if word.proto and word.proto not in (*WITH_PORTS, "ip", "ip6"):
        raise low.fail(word.pos, f"{word.proto} has no ports", "write e.g. tcp port 80")
    lo, hi = _port_range(low, value)
    tests = {n: _test(low, word, n, [(lo, hi)]) for n in _names(word, "src_port", "dst_port")}
    parts = [_protocol(low, word), _sides(low, word, ("src_port", "dst_port"), tests)]
    if lo == 0:
        parts.append(_guard(low, "proto", [(n, n) for n in WITH_PORTS.values()]))
        parts.append(_guard(low, FIRST, [(0, 0)]))
    return low.both(parts)


def _port_range(low: FieldTests, value: Value) -> tuple[int, int]:
    text = value.text.lower()
    low_text, mark, high_text = text.partition(".." if ".." in text else "-")
    ends = [_port(text)] * 2
    if ends[0] is None and mark:
        ends = [_port(low_text), _port(high_text)]
    lo, hi = ends
    if lo is None or hi is None:
        hint = "write e.g. port 80, port https, portrange 1-1023"
        raise low.fail(value.pos, f"'{value.text}' is not a port", hint)
    if max(lo, hi) > 65535:
        raise low.fail(value.pos, f"{max(lo, hi)} is not a port", "ports go from 0 to 65535")
    return min(lo, hi), max(lo, hi)  # tcpdump swaps them too


def _port(text: str) -> int | None:
    number = units.try_number(text)
    if isinstance(number, int) and number >= 0:
        return number
    return SERVICES.get(text)


def _proto_number(low: FieldTests, word: Word) -> Tree:
    value = _value(low, word)
    text = value.text.lower()
    if word.proto == "ether":
        number = units.try_number(text) if text not in ETHERTYPES else ETHERTYPES[text]
        name, most = "eth_type", 65535
    else:
        if word.proto not in ("", "ip", "ip6"):
            raise low.fail(word.pos, f"'{word.proto} proto' is not possible", "write ip proto 47")
        number = units.try_number(text) if text not in PROTOCOLS else PROTOCOLS[text]
        name, most = "proto", 255
    field = _need(low, word, name)
    for code, known in field.names.items():
        if known == text:
            number = code
    if not isinstance(number, int) or not 0 <= number <= most:
        hint = low.typer.near(text, field) or "write its number"
        raise low.fail(value.pos, f"'{value.text}' is not a protocol", hint)
    if word.proto == "ether":
        return low.within(low.col(field), [(number, number)])
    return low.both([_protocol(low, word), _above_ip(low, field, number)])


def _above_ip(low: FieldTests, proto: Field, number: int) -> Tree:
    """The protocol above IP is ``number``; an authentication header is stepped over and leaves a note."""
    test = low.within(low.col(proto), [(number, number)])
    notes = low.schema["notes"].names if "notes" in low.schema else {}
    bit = next((bit for bit, name in notes.items() if name == "auth"), 0)
    if number != PROTOCOLS["ah"] or not bit:
        return test
    return low.either([test, low.within(low.schema.index("notes"), [(bit, bit)], bit)])


def _ether_host(low: FieldTests, word: Word) -> Tree:
    value = _value(low, word)
    number = units.try_mac(value.text)
    if number is None:
        raise low.fail(value.pos, f"'{value.text}' is not a MAC address", "write e.g. ether host 00:11:22:33:44:55")
    tests = {n: _test(low, word, n, [(number, number)]) for n in _names(word, "eth_src", "eth_dst")}
    return _sides(low, word, ("eth_src", "eth_dst"), tests)


def _cast(low: FieldTests, word: Word) -> Tree:
    if word.proto in ("ip", "ip6"):
        if word.kind == "broadcast":
            raise low.fail(word.pos, "'ip broadcast' needs a netmask", "write dst host 10.0.0.255")
        field = _need(low, word, "dst_ip")
        if word.proto == "ip":
            return low.both([low.ip4(field, [(224 << 24, (240 << 24) - 1)]), _guard(low, "ip_version", [(4, 4)])])
        if field.type.kind == "ipv4":
            raise low.fail(word.pos, "dst_ip (ipv4) holds IPv4 addresses only")
        return low.ip6(field, [(255 << 120, (256 << 120) - 1)])
    if word.kind == "broadcast":
        return _test(low, word, "eth_dst", [(BROADCAST, BROADCAST)])
    return _test(low, word, "eth_dst", [(GROUP_BIT, GROUP_BIT)], GROUP_BIT)


def _number(low: FieldTests, word: Word, most: int) -> int:
    value = _value(low, word)
    number = units.try_number(value.text)
    if not isinstance(number, int) or not 0 <= number <= most:
        raise low.fail(value.pos, f"'{value.text}' is not a number for '{word.kind}'", f"0 to {most}")
    return number


def _tags(low: FieldTests, word: Word) -> Tree:
    """``vlan``: tagged at all; ``vlan N``: N is the id of the first or second tag.  ``mpls`` likewise, first label."""
    kind = word.kind
    count, ids = ("vlan_count", ("vlan", "vlan2")) if kind == "vlan" else ("mpls_count", ("mpls_label",))
    many = 1 << 16
    if word.value is None:
        name = count if count in low.schema else ids[0]
        return _test(low, word, name, [(1, 1 << 32)])
    number = _number(low, word, 4095 if kind == "vlan" else (1 << 20) - 1)
    tests = []
    for depth, name in enumerate(ids, 1):
        if depth == 1 or name in low.schema:
            guard = _guard(low, count, [(depth, many)]) if number == 0 or depth == 1 else TRUE
            tests.append(low.both([_test(low, word, name, [(number, number)]), guard]))
    return low.either(tests)


# -- bytes of headers


def header_bytes(low: FieldTests, ref: ByteRef, node: Compare | None) -> Tree:
    """``tcp[13] & 2 != 0`` and the like, for the bytes that are kept in some field."""
    layout = HEADERS.get(ref.proto)
    if layout is None:
        hint = "possible are " + ", ".join(HEADERS)
        raise low.fail(ref.pos, f"bytes of '{ref.proto}' are not stored", hint)
    bits = 8 * ref.size
    most = (1 << bits) - 1
    mask = most
    if ref.mask is not None:
        mask = low.typer.constant(ref.mask, most)
    pieces = _pieces(low, ref, mask)
    if node is None:
        tree = low.negate(_same(low, pieces, 0))
    else:
        if node.op in ("like", "has"):
            raise low.fail(node.pos, f"'{node.op}' does not apply to bytes of a header", "write == or &")
        if node.many and node.op not in ("in", "==", "!="):
            raise low.fail(node.values[0].pos, f"'{node.op}' needs one value, not a set")
        found = []
        for value in node.values:
            first, dots, last = value.text.partition("..")
            if dots and node.op in ("in", "==", "!="):
                lo = low.typer.constant(Value(first, False, value.pos), most)
                hi = low.typer.constant(Value(last, False, value.pos), most)
                found.append(low.both([low.negate(_below(low, pieces, lo)), _below(low, pieces, hi, True)]))
            else:
                found.append(_relation(low, pieces, node.op, low.typer.constant(value, most)))
        tree = low.both(found) if node.op == "!=" else low.either(found)
    return low.both([*_header_guard(low, ref), tree])


Piece = tuple[int, int | None, int, int]  # bits, column (None: always 0), mask and shift in the column


def _pieces(low: FieldTests, ref: ByteRef, mask: int) -> list[Piece]:
    """The runs of bits that make up the word read, the most significant first."""
    start, bits = ref.offset * 8, ref.size * 8
    out: list[Piece] = []
    at = start
    while at < start + bits:
        here = next((p for p in HEADERS[ref.proto] if p[0] <= at < p[0] + p[1]), None)
        if here is None:
            following = [p[0] for p in HEADERS[ref.proto] if p[0] > at]
            end = min([*following, start + bits])
        else:
            end = min(here[0] + here[1], start + bits)
        count = end - at
        part = mask >> (start + bits - end) & ((1 << count) - 1)
        if not part:
            out.append((count, None, 0, 0))
        elif here is None or here[2] not in low.schema:
            raise _not_stored(low, ref)
        else:
            shift = here[3] + here[0] + here[1] - end
            out.append((count, low.schema.index(here[2]), part, shift))
        at = end
    return out


def _not_stored(low: FieldTests, ref: ByteRef) -> Exception:
    known: dict[str, list[str]] = {}
    for first, bits, name, _ in HEADERS[ref.proto]:
        if name in low.schema:
            start, last = first // 8, (first + bits - 1) // 8
            start = last if name == "tcp_flags" else start
            size = f":{last - start + 1}" if last > start else ""
            known.setdefault(f"{ref.proto}[{start}{size}]", []).append(name)
    written = f"{ref.proto}[{ref.offset}{f':{ref.size}' if ref.size > 1 else ''}]"
    hint = (
        ("stored are " + ", ".join([f"{k} ({', '.join(v)})" for k, v in known.items()]))
        if known
        else "use the fields of the schema"
    )
    return low.fail(ref.pos, f"{written} is not stored", hint)


def _header_guard(low: FieldTests, ref: ByteRef) -> list[Tree]:
    # As BPF does: bytes of TCP, UDP, SCTP and ICMP are those of the first fragment over IPv4.
    if ref.proto == "ether":
        return []
    version = 6 if ref.proto in ("ip6", "icmp6") else 4
    guards = [_guard(low, "ip_version", [(version, version)])]
    if ref.proto not in ("ip", "ip6"):
        guards.append(_guard(low, "proto", [(PROTOCOLS[ref.proto],) * 2]))
        guards.append(_guard(low, FIRST, [(0, 0)]))
    return guards


def _relation(low: FieldTests, pieces: list[Piece], op: str, value: int) -> Tree:
    if op in ("==", "in"):
        return _same(low, pieces, value)
    if op == "!=":
        return low.negate(_same(low, pieces, value))
    if op == "<":
        return _below(low, pieces, value)
    if op == "<=":
        return _below(low, pieces, value, True)
    return low.negate(_below(low, pieces, value, op == ">"))


def _split(pieces: list[Piece], value: int) -> list[int]:
    out = []
    left = sum(p[0] for p in pieces)
    for bits, *_ in pieces:
        left -= bits
        out.append(value >> left & ((1 << bits) - 1))
    return out


def _one(low: FieldTests, piece: Piece, lo: int, hi: int) -> Tree:
    """lo <= piece <= hi."""
    _, col, part, shift = piece
    if col is None:
        return TRUE if lo <= 0 <= hi else FALSE
    if lo > hi:
        return FALSE
    return low.within(col, [(lo << shift, (hi << shift) + (1 << shift) - 1)], part << shift)


def _same(low: FieldTests, pieces: list[Piece], value: int) -> Tree:
    tests = []
    for piece, part in zip(pieces, _split(pieces, value), strict=True):
        if piece[1] is not None and part & ~piece[2]:
            return FALSE
        tests.append(_one(low, piece, part, part))
    return low.both(tests)


def _below(low: FieldTests, pieces: list[Piece], value: int, equal: bool = False) -> Tree:
    """The word read is below ``value`` (or equal): piece by piece, from the most significant."""
    tree: Tree = TRUE if equal else FALSE
    for piece, part in reversed(list(zip(pieces, _split(pieces, value), strict=True))):
        less = _one(low, piece, 0, part - 1)
        tree = low.either([less, low.both([_one(low, piece, part, part), tree])])
    return tree


# -- flows, and words compared like fields


def pseudo(low: FieldTests, node: Compare, ref: FieldRef) -> Tree:
    """``flow == A:p-B:q/proto`` (that direction), ``conn`` (both), ``host``, ``net``, ``port`` (either side)."""
    if ref.mask is not None or node.op not in ("==", "!=", "in"):
        what = "a mask" if ref.mask is not None else f"'{node.op}'"
        raise low.fail(ref.pos, f"'{ref.name}' does not apply to {what}", f"write {ref.name} == ... or in {{...}}")
    found = []
    for value in node.values:
        if ref.name in ("flow", "conn"):
            found.append(_flow(low, ref, value))
        else:
            kind = ref.name if ref.name == "port" else "net"
            found.append(primitive(low, Word("", "", kind, value, ref.pos)))
    tree = low.either(found)
    return low.negate(tree) if node.op == "!=" else tree


def _flow(low: FieldTests, ref: FieldRef, value: Value) -> Tree:
    flow = parse_flow(value.text)
    if flow is None:
        hint = "write e.g. 10.0.0.1:34512-10.0.1.7:80/tcp or [2001:db8::1]:443-[2001:db8::2]:53124"
        raise low.fail(value.pos, f"'{value.text}' is not a flow", hint)
    source, destination, proto = flow
    if source[0][0] != destination[0][0]:
        raise low.fail(value.pos, "one end of the flow is IPv4, the other IPv6")
    there = _ends(low, ref, value, source, destination)
    if ref.name == "conn":
        there = low.either([there, _ends(low, ref, value, destination, source)])
    tests = [there]
    if proto is not None:
        number = PROTOCOLS.get(proto, units.try_number(proto))
        if not isinstance(number, int) or not 0 <= number <= 255:
            raise low.fail(value.pos, f"'{proto}' is not a protocol")
        tests.append(_above_ip(low, _need(low, Word("", "", ref.name, value, ref.pos), "proto"), number))
    return low.both(tests)


End = tuple[tuple[int, int], int | None]


def _ends(low: FieldTests, ref: FieldRef, value: Value, source: End, destination: End) -> Tree:
    word = Word("", "", ref.name, value, ref.pos)
    tests: list[Tree] = []
    for side, ((version, address), port) in (("src", source), ("dst", destination)):
        field = _need(low, word, f"{side}_ip")
        if field.type.kind not in ("ip", "ipv4") or (field.type.kind == "ipv4" and version == 6):
            raise low.fail(value.pos, f"{field.name} ({field.type.text}) does not hold such addresses")
        pair = [(address, address)]
        tests.append(low.ip4(field, pair) if version == 4 else low.ip6(field, pair))
        if port is not None:
            tests.append(_test(low, word, f"{side}_port", [(port, port)]))
    return low.both(tests)


def parse_flow(text: str) -> tuple[End, End, str | None] | None:
    """(source, destination, protocol) of ``A:p-B:q/proto``; ports and protocol may be left out."""
    head, slash, proto = text.partition("/")
    left, dash, right = head.partition("-")
    source, destination = _end(left), _end(right)
    if not dash or source is None or destination is None or (slash and not proto):
        return None
    return source, destination, proto.lower() if slash else None


def _end(text: str) -> End | None:
    port: int | None = None
    if text[:1] == "[":
        address, _, rest = text[1:].partition("]")
        if rest and rest[0] != ":":
            return None
        port_text = rest[1:] if rest else ""
        marked = bool(rest)
    elif text.count(":") == 1:
        address, _, port_text = text.partition(":")
        marked = True
    else:
        address, port_text, marked = text, "", False
    if marked and port_text != "*":
        number = units.try_number(port_text)
        if not isinstance(number, int) or not 0 <= number <= 65535:
            return None
        port = number
    found = units.try_ip(address)
    return None if found is None else (found, port)
