"""Field types: what a YAML schema may name, and the physical column behind each.

``u8 .. u64  i8 .. i64  f32  f64`` are themselves; the others are views of them:

=============== ======================= ==========================================================
ipv4            u32                     host byte order, so that a range of addresses is a range;
                                        zero: without an address
ip              u32 + bytes(16)         NAME holds an IPv4 address or `fold6` of the IPv6 address,
                                        NAME6 the IPv6 address (all zero for IPv4)
mac             u64                     48 bits
time            i64                     nanoseconds since 1970-01-01 UTC
duration        i64                     nanoseconds
enum, enum(uN)  u8 or uN                one name per value
flags, flags(uN) u16 or uN              one name per bit
bytes(N)        N bytes
text(N)         N bytes                 UTF-8, zeros at the end: names
list(T, N)      N values of T           zero elements are absent
=============== ======================= ==========================================================
"""

from __future__ import annotations

import re

from confluo_tools.errors import SchemaError

# name -> (code, bytes); the codes are those of pyx/block/c_block.pxd.
PHYSICAL = {
    "u8": (1, 1),
    "u16": (2, 2),
    "u32": (3, 4),
    "u64": (4, 8),
    "i8": (5, 1),
    "i16": (6, 2),
    "i32": (7, 4),
    "i64": (8, 8),
    "f32": (9, 4),
    "f64": (10, 8),
}
BYTES = 11
ARRAY_CODES = "BHIQbhiqfd"  # of array and memoryview, by the codes 1 to 10
ALIASES = {"ipv4": "u32", "mac": "u64", "time": "i64", "duration": "i64"}
MAX_BYTES = 65535
MAX_LIST = 255

_TYPE = re.compile(r"\s*([a-z][a-z0-9]*)\s*(?:\(\s*([a-z0-9]+)\s*(?:,\s*(\d+)\s*)?\))?\s*$")


class Type:
    """One field type.  ``kind`` is its first word; ``base`` the physical type of one element.

    ``count`` is the number of elements a row (1 unless a list), ``size`` the bytes of one.
    """

    __slots__ = ("kind", "base", "code", "size", "count", "text", "element")

    def __init__(self, text: str) -> None:
        match = _TYPE.match(text)
        if not match:
            raise SchemaError(f"unknown type '{text}'", hint="write e.g. u16, ip, bytes(64), list(u16, 8)")
        kind, first, second = match.groups()
        self.kind, self.count, self.element = kind, 1, kind
        self.base = ALIASES.get(kind, kind)
        if kind in ("bytes", "text"):
            self.code, self.size = BYTES, _bounded(text, first, MAX_BYTES)
            if second:
                raise SchemaError(f"unknown type '{text}'", hint=f"write {kind}(N)")
        elif kind == "list":
            if first is None or second is None:
                raise SchemaError(f"unknown type '{text}'", hint="write list(TYPE, N)")
            element = Type(first)
            if element.kind in ("ip", "list", "bytes", "text", "enum", "flags"):
                hint = "use a number, ipv4, mac, time or duration"
                raise SchemaError(f"a list of {first} is not possible", hint=hint)
            self.base, self.code, self.size = element.base, element.code, element.size
            self.element, self.count = element.kind, _bounded(text, second, MAX_LIST)
        else:
            if kind in ("enum", "flags"):
                self.base = first or ("u8" if kind == "enum" else "u16")
                if self.base not in ("u8", "u16", "u32", "u64"):
                    raise SchemaError(f"'{text}' needs an unsigned base type", hint=f"write {kind}(u16)")
            elif kind == "ip":
                self.base = "u32"
            if self.base not in PHYSICAL or (first and kind not in ("enum", "flags")):
                raise SchemaError(f"unknown type '{text}'", hint="write e.g. u16, ip, bytes(64), list(u16, 8)")
            self.code, self.size = PHYSICAL[self.base]
        self.text = self._canonical(first)

    def _canonical(self, first: str | None) -> str:
        if self.is_bytes:
            return f"{self.kind}({self.size})"
        if self.kind == "list":
            return f"list({self.element}, {self.count})"
        return f"{self.kind}({first})" if first else self.kind

    def __repr__(self) -> str:
        return f"Type({self.text!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Type) and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.text)

    @property
    def is_list(self) -> bool:
        return self.kind == "list"

    @property
    def is_bytes(self) -> bool:
        return self.kind in ("bytes", "text")

    @property
    def zero_is_absent(self) -> bool:
        """Whether a zero element means that there is none, for aggregates and for tests: in lists, and of ``ipv4``.

        A field of type ``ip`` has no address either if it is zero, unless its version field is 4.  Aggregates skip zero
        of type ``mac`` as well; tests match it, because the frames of the loopback interface have it.
        """
        return self.is_list or self.kind == "ipv4"

    @property
    def is_float(self) -> bool:
        return self.base in ("f32", "f64")

    @property
    def bounds(self) -> tuple[int, int]:
        """Smallest and largest integer of one element (SchemaError for floats and bytes)."""
        if self.base not in PHYSICAL or self.is_float:
            raise SchemaError(f"{self.text} has no integer range")
        bits = self.size * 8
        if self.base[0] == "i":
            return -(1 << bits - 1), (1 << bits - 1) - 1
        return 0, (1 << (48 if self.element == "mac" else bits)) - 1


def _bounded(text: str, number: str | None, most: int) -> int:
    if number is None or not number.isdigit() or not 1 <= int(number) <= most:
        raise SchemaError(f"'{text}' needs a length from 1 to {most}")
    return int(number)


V6_ANY = 1  # what `::` folds to; 0.0.0.1 is not an address anybody sends from


def fold6(address: bytes) -> int:
    """The 32-bit stand-in of a 16-byte IPv6 address: never 0, so that a zero column means absent.

    FNV-1a over four little-endian 32-bit words, then mixed; `::` folds to V6_ANY.
    pyx/block/c_ipv6_hash.pxd is the same function.
    """
    if not any(address):
        return V6_ANY
    h = 0x811C9DC5
    for i in (0, 4, 8, 12):
        h = ((h ^ int.from_bytes(address[i : i + 4], "little")) * 0x01000193) & 0xFFFFFFFF
        h ^= h >> 15
    return h or 2
