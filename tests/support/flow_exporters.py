"""Exporters of flow records: datagrams of NetFlow v5, NetFlow v9 (RFC 3954), IPFIX (RFC 7011) and sFlow v5.

Values are big-endian bytes, or integers of any length.  `FIELDS` says what a decoder makes of an information element:
written from the RFCs and IANA's list, not from our decoder.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from ipaddress import ip_address
from typing import NamedTuple

REVERSE = 29305  # RFC 5103
SECOND = 10**9


class Element(NamedTuple):
    """A field of a template.  ``size``: None: of variable length."""

    id: int
    size: int | None
    enterprise: int = 0


class Template(NamedTuple):
    id: int
    fields: Sequence[Element]
    scopes: int = 0


# (information element, sizes that exporters use, our field); addresses and times have tests of their own
NUMBERS: tuple[tuple[int, tuple[int, ...], str], ...] = (
    (1, (4, 8), "bytes"),
    (2, (4, 8), "packets"),
    (4, (1,), "proto"),
    (6, (1, 2), "tcp_flags"),
    (7, (2,), "src_port"),
    (9, (1,), "src_mask"),
    (10, (2, 4), "in_if"),
    (11, (2,), "dst_port"),
    (13, (1,), "dst_mask"),
    (14, (2, 4), "out_if"),
    (16, (2, 4), "src_as"),
    (17, (2, 4), "dst_as"),
    (34, (4,), "sampling"),
    (52, (1,), "ttl"),
    (56, (6,), "eth_src"),
    (80, (6,), "eth_dst"),
    (58, (2,), "vlan"),
    (59, (2,), "out_vlan"),
    (136, (1,), "reason"),
    (195, (1,), "dscp"),
    (351, (8,), "vni"),
)
LIMITS = {"proto": 255, "vlan": 65535, "out_vlan": 65535, "vni": 2**32 - 1, "tcp_flags": 0xFFF, "sampling": 2**32 - 1}


def number(value: int, size: int) -> bytes:
    return value.to_bytes(size, "big")


def packed(address: str) -> bytes:
    return ip_address(address).packed


def mapped(address: str) -> bytes:
    """16 bytes of either family."""
    raw = packed(address)
    return raw if len(raw) == 16 else b"\0" * 10 + b"\xff\xff" + raw


def v5(
    records: Iterable[Mapping[str, int | bytes]],
    *,
    uptime: int = 10_000,
    time: int = 1_700_000_000 * SECOND,
    sequence: int = 0,
    engine: int = 0,
    sampling: int = 0,
) -> bytes:
    """A datagram of NetFlow v5; missing values are zero."""
    rows = list(records)
    out = struct.pack(">HHIIIIHH", 5, len(rows), uptime, time // SECOND, time % SECOND, sequence, engine, sampling)
    for r in rows:
        g = {"src": b"\0" * 4, "dst": b"\0" * 4, "next": b"\0" * 4, **r}
        out += struct.pack(">4s4s4s", g["src"], g["dst"], g["next"])
        out += struct.pack(">HH", g.get("in_if", 0), g.get("out_if", 0))
        out += struct.pack(">IIII", *(g.get(n, 0) for n in ("packets", "bytes", "first", "last")))
        out += struct.pack(
            ">HHBBBB", g.get("src_port", 0), g.get("dst_port", 0), 0, *(g.get(n, 0) for n in ("flags", "proto", "tos"))
        )
        out += struct.pack(">HHBBH", *(g.get(n, 0) for n in ("src_as", "dst_as", "src_mask", "dst_mask")), 0)
    return out


def _fields(fields: Sequence[Element], ipfix: bool) -> bytes:
    out = b""
    for f in fields:
        size = 65535 if f.size is None else f.size
        out += struct.pack(">HH", f.id | (0x8000 if f.enterprise else 0), size)
        out += struct.pack(">I", f.enterprise) if f.enterprise and ipfix else b""
    return out


def _set(id: int, body: bytes, pad: int) -> bytes:
    body += b"\0" * (-len(body) % pad)
    return struct.pack(">HH", id, 4 + len(body)) + body


def template_set(templates: Iterable[Template], *, ipfix: bool, pad: int = 1) -> bytes:
    """A set of templates, all of data or all of options."""
    body, options = b"", False
    for t in templates:
        options = bool(t.scopes)
        if not options:
            head = struct.pack(">HH", t.id, len(t.fields))
        elif ipfix:
            head = struct.pack(">HHH", t.id, len(t.fields), t.scopes)
        else:
            head = struct.pack(">HHH", t.id, 4 * t.scopes, 4 * (len(t.fields) - t.scopes))
        body += head + _fields(t.fields, ipfix)
    return _set((3 if ipfix else 1) if options else (2 if ipfix else 0), body, pad)


def data_set(t: Template, rows: Iterable[Sequence[bytes]], *, pad: int = 1, long: bool = False) -> bytes:
    """Records of a template.  ``long``: lengths of variable fields have three bytes."""
    body = b""
    for row in rows:
        for field, value in zip(t.fields, row, strict=True):
            if field.size is None:
                short = len(value) < 255 and not long
                body += bytes([len(value)]) if short else b"\xff" + struct.pack(">H", len(value))
            else:
                assert len(value) == field.size
            body += value
    return _set(t.id, body, pad)


def v9(
    sets: Sequence[bytes], *, uptime: int = 10_000, seconds: int = 1_700_000_000, sequence: int = 0, source: int = 0
) -> bytes:
    return struct.pack(">HHIIII", 9, len(sets), uptime, seconds, sequence, source) + b"".join(sets)


def ipfix(sets: Sequence[bytes], *, seconds: int = 1_700_000_000, sequence: int = 0, domain: int = 0) -> bytes:
    body = b"".join(sets)
    return struct.pack(">HHIII", 10, 16 + len(body), seconds, sequence, domain) + body


def ntp(ns: int) -> bytes:
    """A time of NTP, rounded down."""
    return struct.pack(">II", ns // SECOND + 2208988800 & 0xFFFFFFFF, ns % SECOND * 2**32 // SECOND)


# -- sFlow v5


def opaque(data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + data + b"\0" * (-len(data) % 4)


def raw_header(frame: bytes, length: int, protocol: int = 1) -> bytes:
    """The record of a sampled header, with its format."""
    return struct.pack(">I", 1) + opaque(struct.pack(">III", protocol, length, 0) + opaque(frame))


def record(format: int, *words: int, extra: bytes = b"") -> bytes:
    return struct.pack(">I", format) + opaque(struct.pack(f">{len(words)}I", *words) + extra)


def router(next_hop: str, src_mask: int, dst_mask: int) -> bytes:
    raw = packed(next_hop)
    return struct.pack(">I", 1002) + opaque(
        struct.pack(">I", len(raw) // 12 + 1) + raw + struct.pack(">II", src_mask, dst_mask)
    )


def gateway(next_hop: str, own: int, source: int, path: Sequence[int]) -> bytes:
    raw = packed(next_hop)
    body = struct.pack(">I", len(raw) // 12 + 1) + raw + struct.pack(">III", own, source, 0)
    body += (
        struct.pack(">I", 1) + struct.pack(f">II{len(path)}I", 2, len(path), *path) if path else struct.pack(">I", 0)
    )
    return struct.pack(">I", 1003) + opaque(body + struct.pack(">II", 0, 100))


def flow_sample(records: Sequence[bytes], *, rate: int = 100, into: int = 3, out: int = 4, wide: bool = False) -> bytes:
    body = struct.pack(">I", 1) + (struct.pack(">II", 0, into) if wide else struct.pack(">I", into))
    body += struct.pack(">III", rate, 1000, 0)
    body += struct.pack(">IIII", 0, into, 0, out) if wide else struct.pack(">II", into, out)
    return struct.pack(">I", 3 if wide else 1) + opaque(body + struct.pack(">I", len(records)) + b"".join(records))


def counter_sample() -> bytes:
    return struct.pack(">I", 2) + opaque(struct.pack(">III", 1, 3, 0))


def sflow(
    samples: Sequence[bytes], *, agent: str = "192.0.2.1", sub: int = 0, sequence: int = 1, uptime: int = 5000
) -> bytes:
    raw = packed(agent)
    head = struct.pack(">II", 5, len(raw) // 12 + 1) + raw
    return head + struct.pack(">IIII", sub, sequence, uptime, len(samples)) + b"".join(samples)
