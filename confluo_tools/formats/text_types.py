"""Types of text columns: those that other programs name, and guesses from the first values."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from confluo_tools.schema import Field

# Type names of other programs (Zeek).
_FOREIGN = {
    "addr": "ip",
    "port": "u16",
    "count": "u64",
    "int": "i64",
    "double": "f64",
    "interval": "f64",
    "bool": "",
    "string": "",
    "enum": "",
}

# A column of whole numbers with such a name, or with a name that ends so, is taken for a time if all are of our years.
_TIMES = ("ts", "time", "start", "end", "first", "last", "date", "epoch", "datetime", "timestamp")
_TIME_ENDS = ("_ts", "_epoch", "_datetime", "_timestamp")
_YEARS = (1_000_000_000, 2_600_000_000)  # s since 1970: 2001 to 2052
_UNITS = (("s", 1, 10**11), ("ms", 10**3, 10**14), ("us", 10**6, 10**17), ("ns", 10**9, 10**20))  # largest number


def foreign_type(text: str) -> str:
    """Our type for the name of a type in ``#types``; '' if there is none."""
    from confluo_tools.errors import SchemaError
    from confluo_tools.schema import Type

    text = _FOREIGN.get(text, text)
    try:
        kind = Type(text).kind if text else ""
    except SchemaError:
        return ""
    return text if kind else ""


def compatible(field: Field, text: str) -> bool:
    """Whether a column of type ``text`` with the name of ``field`` may be read as that field."""
    text = foreign_type(text)
    if not text:
        return True
    from confluo_tools.schema import Type

    other = Type(text)
    return other.text == field.type.text or {other.kind, field.type.kind} <= {"ip", "ipv4"}


def json_values(value: Any, prefix: str = "") -> Iterator[tuple[str, str]]:
    """(name, text) of each value of an object; a value in nested objects has the name ``a.b``."""
    for name, inner in value.items():
        if isinstance(inner, dict):
            yield from json_values(inner, f"{prefix}{name}.")
        else:
            yield prefix + name, _json_text(inner)


def _json_text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(int(value))
    if isinstance(value, list):
        return ",".join(_json_text(v) for v in value)
    if isinstance(value, dict):
        import json

        return json.dumps(value)
    return value if isinstance(value, str) else repr(value)


_MAC = frozenset("0123456789abcdefABCDEF:")


def guess_type(values: Sequence[str], name: str = "") -> str:
    """The narrowest type that holds all of these values; text with room to spare when nothing else fits.

    ``name``: of the field; numbers of some are times.
    """
    from confluo_tools.units import try_ip

    longest = max((len(v.encode("utf-8", "surrogatepass")) for v in values), default=0)
    values = [v for v in (v.strip(" ") for v in values) if v]
    if not values:
        return "text(32)"
    if all(_is_number(v) for v in values):
        return "time" if _named_time(name) and _are_times(values) else _number_type(values)
    if all(try_ip(v) is not None for v in values):
        return "ip"
    if all(len(v) == 17 and v.count(":") == 5 and set(v) <= _MAC for v in values):
        return "mac"
    if all(len(v) >= 10 and v[:4].isdigit() and v[4] == v[7] == "-" and v[8:10].isdigit() for v in values):
        return "time"
    width = 16
    while width < 2 * longest and width < 32768:
        width *= 2
    return f"text({width})"


def epoch_unit(values: Sequence[str]) -> str:
    """The unit of numbers that are times, decided by the largest one: s, ms, us or ns; s without numbers."""
    largest = max((abs(float(v)) for v in values if _is_number(v)), default=0.0)
    return next((unit for unit, _, limit in _UNITS if largest < limit), "s")


def _number_type(values: Sequence[str]) -> str:
    if all(v.lstrip("+-").isdigit() for v in values):
        whole = [int(v) for v in values]
        if min(whole) >= -(1 << 63) and max(whole) < 1 << 63:
            return "i64"
        if min(whole) >= 0 and max(whole) < 1 << 64:
            return "u64"
    return "f64"


def _named_time(name: str) -> bool:
    return name in _TIMES or name.endswith(_TIME_ENDS)


def _are_times(values: Sequence[str]) -> bool:
    unit = epoch_unit(values)
    per_second = next(n for name, n, _ in _UNITS if name == unit)
    return all(_YEARS[0] <= float(v) / per_second < _YEARS[1] for v in values)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return "_" not in text
