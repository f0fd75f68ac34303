"""Constants of an expression, read as the type of the field they are compared with."""

from __future__ import annotations

import struct

from confluo_tools import units
from confluo_tools.errors import UsageError
from confluo_tools.expr.syntax import ExprError, ListError, Value
from confluo_tools.expr.words import CONSTANTS, PROTOCOLS, SERVICES
from confluo_tools.schema import Field

NUMBERS = frozenset({"u8", "u16", "u32", "u64", "i8", "i16", "i32", "i64"})
BYTE_UNITS = frozenset({"B", "bytes"})
RATE_UNITS = frozenset({"bit/s", "bps"})
_DASHED = NUMBERS | {"enum", "duration", "ipv4", "f32", "f64"}  # kinds with ranges that may be written with a dash
_WHAT = {
    "ipv4": "an IPv4 address",
    "mac": "a MAC address",
    "time": "a time",
    "duration": "a duration",
    "enum": "a value",
    "flags": "a flag",
    "f32": "a number",
    "f64": "a number",
}
_EXAMPLE = {
    "ipv4": "write e.g. 10.1.2.3, 10.0.0.0/8, 10.*.*.1",
    "mac": "write e.g. 00:11:22:aa:bb:cc",
    "time": "write e.g. 2026-11-20T10:00:00Z, @1700000000.25, 15m (ago)",
    "duration": "write e.g. 250us, 1.5s, 1h30m; a number needs its unit",
}


class Typer:
    """Reads constants of one expression; errors have a position in ``text``.

    ``local``: times without a zone are local.
    """

    def __init__(self, text: str, now_ns: int | None, local: bool = False) -> None:
        self.text, self.now_ns, self.local = text, now_ns, local
        self.listed = ""  # the file of the values that are being read; their positions are -LINE

    def fail(self, pos: int, what: str, hint: str = "") -> ExprError:
        if pos < 0:
            return ListError(what, self.listed, -pos, hint)
        return ExprError(what, self.text, pos, hint)

    # -- integers: numbers, enum, flags, ipv4, mac, time, duration

    def span(self, field: Field, value: Value, clipped: bool = False) -> tuple[int, int, bool]:
        """(lo, hi, is it a range?) of a constant for ``field``.

        What the field cannot hold is an error, unless ``clipped`` (an order makes sense with any value).
        ``hi`` is ``lo - 1`` for a local time that the clock skips: no moment has it.
        """
        lo, hi, ranged = self._span(field, value)
        least, most = field.type.bounds
        if not clipped and (lo < least or hi > most):
            raise self.fail(value.pos, f"{value.text} does not fit {field.name} ({field.type.text}: {least} to {most})")
        return lo, hi, ranged

    def ranges(self, field: Field, value: Value, clipped: bool = False) -> list[tuple[int, int]]:
        """The values (lo, hi) that a constant equals, sorted and disjoint.

        A local time that the clock shows twice has two ranges, and one that it skips has none.
        """
        lo, hi, ranged = self.span(field, value, clipped)
        if lo > hi:
            return []
        if ranged or not self.local or field.type.element != "time" or lo == hi:
            return [(lo, hi)]
        return units.time_ranges(value.text, now_ns=self.now_ns, local=True)

    def _span(self, field: Field, value: Value) -> tuple[int, int, bool]:
        text, kind = value.text, field.type.element
        one = self.single(field, text, value)
        if one is not None:
            return (*one, kind == "ipv4" and "/" in text)
        low, dots, high = text.partition("..")
        if dots:
            least, most = field.type.bounds
            first = self.single(field, low, value) if low else (least, least)
            last = self.single(field, high, value) if high else (most, most)
            if first is not None and last is not None:
                return self._between(first, last, value)
        elif kind in _DASHED:
            at = text.find("-", 1)
            while at > 0:
                first, last = self.single(field, text[:at], value), self.single(field, text[at + 1 :], value)
                if first is not None and last is not None:
                    return self._between(first, last, value)
                at = text.find("-", at + 1)
        raise self.misread(field, value)

    def _between(self, first: tuple[int, int], last: tuple[int, int], value: Value) -> tuple[int, int, bool]:
        lo, hi = first[0], last[1]
        skipped = first[0] > first[1] or last[0] > last[1]  # inside the hour that the clock skips
        if lo > hi + skipped:
            raise self.empty(value)
        return lo, hi, True

    def empty(self, value: Value) -> ExprError:
        return self.fail(value.pos, f"the range '{value.text}' is empty", "write the smaller value first")

    def misread(self, field: Field, value: Value) -> ExprError:
        kind = field.type.element
        hint = _EXAMPLE.get(kind, "")
        if field.names:
            hint = self.near(value.text, field) or "there are " + ", ".join(list(field.names.values())[:8])
        what = _WHAT.get(kind, "a number")
        shown = value.text if len(value.text) <= 40 else value.text[:37] + "..."
        return self.fail(value.pos, f"'{shown}' is not {what} for {field.name} ({field.type.text})", hint)

    def near(self, text: str, field: Field) -> str:
        from difflib import get_close_matches

        near = get_close_matches(text.lower(), field.names.values(), n=1, cutoff=0.6)
        return f"did you mean '{near[0]}'?" if near else ""

    def single(self, field: Field, text: str, value: Value) -> tuple[int, int] | None:
        """(lo, hi) of one constant without range marks, None if it is not one; see `span` for lo > hi."""
        kind = field.type.element
        if kind == "ipv4":
            net = units.try_prefix(text)
            if net is not None and net[0] == 6:
                raise self.fail(value.pos, f"{field.name} (ipv4) holds IPv4 addresses only")
            return None if net is None else (net[1], net[2])
        if kind == "time":
            return self._time(field, text, value)
        number: int | None
        if kind == "mac":
            number = units.try_mac(text)
        elif kind == "duration":
            number = units.try_duration(text)
        elif kind == "flags":
            number = self._flags(field, text)
        else:
            number = self._named(field, text)
            if number is None:
                number = self._number(field, text, value)
        return None if number is None else (number, number)

    def _number(self, field: Field, text: str, value: Value) -> int | None:
        number = units.try_number(text)
        if number is None and field.unit:
            number = _with_unit(field.unit, text)
        if number is None and text.lower() in ("true", "false"):
            number = int(text.lower() == "true")
        if isinstance(number, float):
            raise self.fail(value.pos, f"{field.name} ({field.type.text}) holds whole numbers, not {text}")
        return number

    def _time(self, field: Field, text: str, value: Value) -> tuple[int, int] | None:
        number = units.try_number(text) if text[:1].isdigit() or text[:1] in "+-" else None
        if isinstance(number, int):
            if 0 < abs(number) < 10**17:  # zero is the value of an absent time
                year = f"{number:04d}-01-01 for the year, " if 1677 < number < 2263 else ""
                hint = f"a bare number is nanoseconds; write {year}@{number} for seconds"
                raise self.fail(value.pos, f"{text} ns is within three years of 1970", hint)
            return number, number
        try:
            found = units.time_ranges(text, now_ns=self.now_ns, local=self.local)
        except UsageError as e:
            if "out of range" in e.what:
                raise self.fail(value.pos, e.what, e.hint) from None
            return None
        return found[0][0], found[-1][1]

    def _named(self, field: Field, text: str) -> int | None:
        name = text.lower()
        if field.names:
            for number, word in field.names.items():
                if word.lower() == name:
                    return number
        if field.name == "proto":
            return PROTOCOLS.get(name)
        if field.name in ("icmp_type", "icmp_code", "tcp_flags"):
            return CONSTANTS.get(name)
        if field.name.endswith("port"):
            return SERVICES.get(name)
        return None

    def _flags(self, field: Field, text: str) -> int | None:
        total = 0
        for part in text.replace("|", "+").split("+"):
            bit = self._named(field, part)
            if bit is None:
                number = units.try_number(part)
                if not isinstance(number, int) or number < 0:
                    return None
                bit = number
            total |= bit
        return total

    def mask(self, field: Field, value: Value) -> int:
        """A mask for an integer column."""
        if field.type.kind in ("time", "duration", "bytes", "text") or field.type.is_list or field.type.is_float:
            raise self.fail(value.pos, f"{field.name} ({field.type.text}) cannot be masked")
        number = self._flags(field, value.text)
        if number is None:
            one = self.single(field, value.text, value)
            if one is None or one[0] != one[1]:
                raise self.misread(field, value)
            number = one[0]
        most = field.type.bounds[1]
        if not 0 < number <= most:
            what = f"the mask {value.text} does not fit {field.name} ({field.type.text})"
            raise self.fail(value.pos, what if number else "a mask of 0 lets nothing through")
        return number

    def constant(self, value: Value, most: int) -> int:
        """A constant that header bytes are compared with: numbers and names such as ``tcp-syn``, joined by | or +."""
        total = 0
        for part in value.text.replace("|", "+").split("+"):
            number = CONSTANTS.get(part.lower(), PROTOCOLS.get(part.lower()))
            if number is None:
                found = units.try_number(part)
                if found is None:
                    address = units.try_ip4(part)
                    if address is None:
                        raise self.fail(value.pos, f"'{part}' is not a number", "write e.g. 0x02 or tcp-syn|tcp-ack")
                    found = address
                if not isinstance(found, int):
                    raise self.fail(value.pos, f"{part} is not a whole number")
                number = found
            total |= number
        if not 0 <= total <= most:
            size = most.bit_length() // 8
            raise self.fail(value.pos, f"{value.text} does not fit {size} byte{'s' if size > 1 else ''}")
        return total

    # -- floats

    def real(self, field: Field, value: Value) -> tuple[float, float, bool]:
        """(lo, hi, is it a range?), rounded to the precision of the field."""
        number = self._real(field, value.text, value)
        if number is not None:
            return number, number, False
        for mark in ("..", "-"):
            at = value.text.find(mark, 0 if mark == ".." else 1)
            while at >= 0:
                low, high = value.text[:at], value.text[at + len(mark) :]
                first = self._real(field, low, value) if low else float("-inf")
                last = self._real(field, high, value) if high else float("inf")
                if first is not None and last is not None and (mark == ".." or (low and high)):
                    if first > last:
                        raise self.empty(value)
                    return first, last, True
                at = value.text.find(mark, at + 1)
        raise self.misread(field, value)

    def _real(self, field: Field, text: str, value: Value) -> float | None:
        if text.lower().lstrip("+-") == "inf":
            return float(text)
        number = units.try_number(text)
        if number is None and field.unit:
            number = _with_unit(field.unit, text)
        if number is None:
            return None
        try:
            real = float(number)
            return float(struct.unpack("<f", struct.pack("<f", real))[0]) if field.type.base == "f32" else real
        except OverflowError:
            raise self.fail(value.pos, f"{text} does not fit {field.name} ({field.type.text})") from None

    # -- bytes

    def raw(self, field: Field, value: Value, padded: bool = True) -> bytes:
        """The bytes of a text or, without quotes, of 0x and hexadecimal digits; padded with zeros."""
        text = value.text
        if not value.quoted and text[:2].lower() == "0x":
            try:
                data = bytes.fromhex(text[2:])
            except ValueError:
                hint = "write two digits a byte, or quotes for a text"
                raise self.fail(value.pos, f"'{text}' is not a row of bytes", hint) from None
        else:
            try:
                data = text.encode("utf-8", "surrogateescape")
            except UnicodeEncodeError:
                raise self.fail(value.pos, "this text cannot be written as UTF-8") from None
        if not padded:
            return data
        size = field.type.size
        if len(data) > size:
            raise self.fail(value.pos, f"{len(data)} bytes do not fit {field.name} ({field.type.text})")
        return data.ljust(size, b"\0")


def wildcard(text: str) -> tuple[int, int] | None:
    """(value, mask) of ``192.*.*.1`` (32 bits) or ``00:11:22:*:*:*`` (48 bits); None if it is not one."""
    mark, parts, base = (".", 4, 10) if "." in text else (":", 6, 16)
    groups = text.split(mark)
    if "*" not in text or len(groups) != parts:
        return None
    value = mask = 0
    for group in groups:
        value, mask = value << 8, mask << 8
        if group == "*":
            continue
        if not group.isascii() or not group.isalnum() or len(group) > 3:
            return None
        try:
            number = int(group, base)
        except ValueError:
            return None
        if number > 255:
            return None
        value, mask = value | number, mask | 255
    return value, mask


def _with_unit(unit: str, text: str) -> int | float | None:
    # A number written with the unit of its field: 64KiB for bytes, 10Gbit for bit/s, 5ms for us.
    if unit in BYTE_UNITS and text[-1:] == "B":
        return units.try_number(text[:-1])
    if unit in RATE_UNITS:
        try:
            return units.rate(text)
        except UsageError:
            return None
    if unit in units.TIME_UNITS:
        ns = units.try_duration(text)
        if ns is not None:
            size = units.TIME_UNITS[unit]
            return ns // size if ns % size == 0 else ns / size
    return None
