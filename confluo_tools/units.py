"""Numbers, sizes, rates, durations, times and addresses as people write them, and back; and their order.

One parser for all commands and expressions.  Each reader raises UsageError saying what was expected;
each ``format_*`` prints what its reader reads back to the same value.  Times and durations are integers
of nanoseconds throughout: no float ever holds one.
"""

from __future__ import annotations

import re

from confluo_tools.errors import UsageError

INT64 = (-(1 << 63), (1 << 63) - 1)
MAX_CHARS = 200  # no number, time or address is longer

SUFFIXES = {
    "": 1,
    "k": 10**3,
    "K": 10**3,
    "M": 10**6,
    "G": 10**9,
    "T": 10**12,
    "P": 10**15,
    "Ki": 1 << 10,
    "ki": 1 << 10,
    "Mi": 1 << 20,
    "Gi": 1 << 30,
    "Ti": 1 << 40,
    "Pi": 1 << 50,
}
TIME_UNITS = {
    "ns": 1,
    "us": 10**3,
    "µs": 10**3,
    "μs": 10**3,
    "ms": 10**6,
    "s": 10**9,
    "m": 60 * 10**9,
    "min": 60 * 10**9,
    "h": 3600 * 10**9,
    "d": 86400 * 10**9,
    "w": 7 * 86400 * 10**9,
}
SECOND = 10**9
DAY = 86400 * SECOND

_NUMBER = re.compile(
    r"([+-]?)(?:0[xX]([0-9a-fA-F]+)|0[bB]([01]+)|(\d*)(?:\.(\d*))?(?:[eE]([+-]?\d{1,3}))?([kKMGTP]i?)?)\Z"
)
_DIGITS = re.compile(r"([0-9]+)")
_PART = re.compile(r"(\d+)(?:\.(\d+))?(ns|us|µs|μs|ms|min|[smhdw])")
_TIME = re.compile(
    r"(\d{4})-(\d\d)(?:-(\d\d)(?:[Tt _](\d\d)(?::(\d\d)(?::(\d\d)(?:\.(\d+))?)?)?)?)?\s?([Zz]|[+-]\d\d(?::?\d\d)?)?\Z"
)
_HEX = frozenset("0123456789abcdefABCDEF")


# -- numbers ---------------------------------------------------------------------------------------------------


def try_number(text: str) -> int | float | None:
    """``number``, but None when ``text`` is not one."""
    match = _NUMBER.match(text) if len(text) <= MAX_CHARS and text.isascii() else None
    if match is None:
        return None
    sign, hexa, binary, whole, part, power, suffix = match.groups()
    value: int | float
    if hexa or binary:
        value = int(hexa, 16) if hexa else int(binary, 2)
    else:
        if not whole and not part:
            return None
        part = part or ""
        value = int((whole or "0") + part) * SUFFIXES[suffix or ""]
        scale = int(power or 0) - len(part)
        if scale >= 0:
            value *= 10**scale
        elif value % 10**-scale == 0:
            value //= 10**-scale
        else:
            try:
                value = value / 10**-scale
            except OverflowError:
                return None
    return -value if sign == "-" else value


def number(text: str) -> int | float:
    """``1500``, ``1.5k``, ``64Ki``, ``0x1f``, ``1e-3``: an int when it is whole (exactly), else a float."""
    value = try_number(text)
    if value is None:
        raise UsageError(f"'{_short(text)}' is not a number", hint="write e.g. 1500, 1.5k, 64Ki, 0x1f")
    return value


def integer(text: str) -> int:
    """A whole ``number``."""
    value = number(text)
    if not isinstance(value, int):
        raise UsageError(f"'{_short(text)}' is not a whole number")
    return value


def size(text: str) -> int:
    """Bytes: ``1500``, ``64Ki``, ``64KiB``, ``1.5GB``."""
    value = try_number(text[:-1] if text[-1:] == "B" else text)
    if not isinstance(value, int) or value < 0:
        raise UsageError(f"'{_short(text)}' is not a size", hint="write e.g. 1500, 64Ki, 1GB")
    return value


def rate(text: str) -> int:
    """Bits a second: ``10Gbit``, ``10Gbit/s``, ``100Mbps``, ``125MB/s`` (bytes), ``9600``."""
    for ending, bits in (("bit/s", 1), ("bits/s", 1), ("bps", 1), ("bit", 1), ("B/s", 8), ("", 1)):
        if text.endswith(ending):
            value = try_number(text[: len(text) - len(ending)])
            if isinstance(value, (int, float)) and value >= 0 and (value * bits) % 1 == 0:
                return int(value * bits)
    raise UsageError(f"'{_short(text)}' is not a rate", hint="write e.g. 10Gbit, 100Mbps, 125MB/s")


def format_number(value: int | float) -> str:
    """As short as is exact: ``1.5k``, ``20M``, ``1234567``.  ``number`` reads it back."""
    if isinstance(value, float) and not (value.is_integer() and abs(value) < 1e15):
        return repr(value)
    value = int(value)
    for suffix, unit in (("P", 10**15), ("T", 10**12), ("G", 10**9), ("M", 10**6), ("k", 10**3)):
        if abs(value) >= unit and value % (unit // 1000) == 0:
            return _decimal(value, unit) + suffix
    return str(value)


def format_size(value: int) -> str:
    """Bytes: ``64KiB``, ``1.5GB``, ``1234567B``, as short as is exact.  ``size`` reads it back."""
    for suffix, unit in (("PiB", 1 << 50), ("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if value and value % unit == 0:
            return f"{value // unit}{suffix}"
    return format_number(value) + "B"


def format_rate(value: int) -> str:
    """Bits a second: ``10Gbit/s``.  ``rate`` reads it back."""
    return format_number(value) + "bit/s"


_PREFIXES = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""), (1e-3, "m"), (1e-6, "µ"))
_TIMES = ((1e9, "s"), (1e6, "ms"), (1e3, "µs"), (1.0, "ns"))


def value_text(value: float | None, unit: str = "") -> str:
    """A value with three digits: ``1.25 MB``, ``830 µs``, ``12``; ``-`` if it is not known."""
    if value is None:
        return "-"
    if value == 0:
        return "0"
    size = abs(value)
    if unit == "ns":
        scale, name = next((pair for pair in _TIMES if size >= pair[0]), _TIMES[-1])
        return f"{_three(value / scale)} {name}"
    unit = {"bytes": "B", "bytes/s": "B/s"}.get(unit, unit)
    if 1 <= size < 1000 and not unit:
        return _three(value)
    scale, name = next((pair for pair in _PREFIXES if size >= pair[0] * 0.9995), _PREFIXES[-1])
    return f"{_three(value / scale)} {name}{unit}".rstrip()


def _three(value: float) -> str:
    text = f"{value:.3g}"
    return text if "e" not in text else f"{value:.0f}"


def _decimal(value: int, unit: int) -> str:
    # value / unit, exactly; unit is a power of ten.
    whole, rest = divmod(abs(value), unit)
    digits = str(rest).rjust(len(str(unit)) - 1, "0").rstrip("0")
    return ("-" if value < 0 else "") + str(whole) + ("." + digits if digits else "")


def _short(text: str) -> str:
    return text if len(text) <= 60 else text[:57] + "..."


# -- durations -------------------------------------------------------------------------------------------------


def try_duration(text: str) -> int | None:
    """``duration``, but None when ``text`` is not one."""
    rest = text[1:] if text[:1] == "-" else text
    if rest == "0":
        return 0
    if not rest or len(rest) > MAX_CHARS or not rest.replace("µ", "u").replace("μ", "u").isascii():
        return None
    total, at, before = 0, 0, 1 << 62
    while at < len(rest):
        match = _PART.match(rest, at)
        if match is None:
            return None
        whole, part, name = match.groups()
        unit = TIME_UNITS[name]
        if unit >= before:  # 1h30m, not 30m1h
            return None
        before, at = unit, match.end()
        total += int(whole) * unit
        if part:
            value = int(part) * unit
            if value % 10 ** len(part):
                return None  # finer than a nanosecond
            total += value // 10 ** len(part)
    total = -total if text[0] == "-" else total
    return total if INT64[0] <= total <= INT64[1] else None


def duration(text: str) -> int:
    """Nanoseconds: ``250us``, ``15m``, ``1h30m``, ``1.5s``, ``1ns``, ``2d``, ``0``."""
    value = try_duration(text)
    if value is None:
        hint = f"a number needs its unit: {text}s, {text}ms" if text.isdigit() else "write e.g. 250us, 1.5s, 15m, 1h30m"
        raise UsageError(f"'{_short(text)}' is not a duration", hint=hint)
    return value


def format_duration(ns: int) -> str:
    """``250us``, ``1.5s``, ``1h30m``, ``2d3h4m5.5s``: exact.  ``duration`` reads it back."""
    if ns < 0:
        return "-" + format_duration(-ns)
    if ns == 0:
        return "0"
    if ns < SECOND:
        name, unit = ("ms", 10**6) if ns >= 10**6 else ("us", 10**3) if ns >= 10**3 else ("ns", 1)
        return _decimal(ns, unit) + name
    out = []
    for name in ("d", "h", "m"):
        count, ns = divmod(ns, TIME_UNITS[name])
        if count:
            out.append(f"{count}{name}")
    if ns:
        out.append(_decimal(ns, SECOND) + "s")
    return "".join(out)


# -- times -----------------------------------------------------------------------------------------------------


def time_span(text: str, *, now_ns: int | None = None, local: bool = False) -> tuple[int, int]:
    """(first, after) nanosecond of what ``text`` names (see time_ranges); both the same when it is an instant.

    Of a time that the local clock shows twice, from the first to the second; both are the change if it skips the time.
    """
    ranges, instant = _read_time(text, now_ns, local)
    first, last = ranges[0][0], ranges[-1][1]
    return first, max(first, last if instant else last + 1)


def time_ranges(text: str, *, now_ns: int | None = None, local: bool = False) -> list[tuple[int, int]]:
    """(first, last) nanosecond of each range of moments that ``text`` names, in their order.

    ``2026-11-20T10:00:00.25Z`` (any fraction, any zone; none is UTC, or the local one if ``local``), ``now``,
    ``@1700000000.25`` (seconds since 1970), ``15m`` or ``15m ago``, ``now-15m`` are instants.
    ``2026-11``, ``2026-11-20``, ``2026-11-20T10`` and ``2026-11-20T10:05`` are a month, a day, an hour, a minute.
    A local time can have two ranges, when the clock goes back.  If the clock goes forward and skips it, the only
    range is empty: it begins at the change and ends a nanosecond before.
    """
    return _read_time(text, now_ns, local)[0]


def is_skipped(text: str, *, local: bool = False) -> bool:
    """Whether the local clock never shows the time ``text``, because it goes forward then."""
    first, last = _read_time(text, None, local)[0][0]
    return first > last


def _read_time(text: str, now_ns: int | None, local: bool) -> tuple[list[tuple[int, int]], bool]:
    # The ranges of time_ranges, and whether they are instants.
    text = text.strip()
    found = _calendar(text, local) if len(text) <= MAX_CHARS else None
    if found is None:
        moment = _instant(text, now_ns) if len(text) <= MAX_CHARS else None
        if moment is None:
            raise UsageError(
                f"'{_short(text)}' is not a time",
                hint="write e.g. 2026-11-20, 2026-11-20T10:00:00.5Z, @1700000000.25, 15m (ago), now",
            )
        found = [(moment, moment)], True
    ranges, instant = found
    if ranges[0][0] < INT64[0] or ranges[-1][1] + (not instant) > INT64[1]:
        raise UsageError(f"'{_short(text)}' is out of range", hint="times go from 1677-09-21 to 2262-04-11")
    return found


def time(text: str, *, now_ns: int | None = None, local: bool = False) -> int:
    """Nanoseconds since 1970 UTC of the beginning of ``text`` (see time_span): what --since means."""
    return time_span(text, now_ns=now_ns, local=local)[0]


def until(text: str, *, now_ns: int | None = None, local: bool = False) -> int:
    """The first nanosecond after ``text``: what --until means, so that a date includes its whole day."""
    return time_span(text, now_ns=now_ns, local=local)[1]


def _instant(text: str, now_ns: int | None) -> int | None:
    if text[:1] == "@":
        return _seconds(text[1:])
    ago = text.removesuffix("ago").rstrip()
    sign = -1
    if text == "now":
        ago = "0"
    elif text[:4] in ("now-", "now+"):
        sign, ago = -1 if text[3] == "-" else 1, text[4:]
    shift = try_duration(ago)
    if shift is None or ago[:1] == "-":
        return None
    if now_ns is None:
        from time import time_ns

        now_ns = time_ns()
    return now_ns + sign * shift


def _seconds(text: str) -> int | None:
    sign, text = (-1, text[1:]) if text[:1] == "-" else (1, text)
    whole, dot, part = text.partition(".")
    if not (whole.isascii() and whole.isdigit()) or (dot and not (part.isascii() and part.isdigit())):
        return None
    return sign * (int(whole) * SECOND + int((part + "0" * 9)[:9]))


def _calendar(text: str, local: bool) -> tuple[list[tuple[int, int]], bool] | None:
    match = _TIME.match(text) if text.isascii() else None
    if match is None:
        return None
    year, month = int(match[1]), int(match[2])
    if not 1 <= month <= 12:
        return None
    day, hour, minute, second = (int(match[i] or d) for i, d in ((3, 1), (4, 0), (5, 0), (6, 0)))
    if not 1 <= day <= _month_days(year, month) or hour > 23 or minute > 59 or second > 60:
        return None
    zone = match[8]
    shift = 0
    if zone and zone not in "Zz":
        digits = zone[1:].replace(":", "").ljust(4, "0")
        if int(digits[:2]) > 23 or int(digits[2:]) > 59:
            return None
        shift = (int(digits[:2]) * 3600 + int(digits[2:]) * 60) * (-1 if zone[0] == "-" else 1)
    begin = days_from_civil(year, month, day) * 86400 + hour * 3600 + minute * 60 + second - shift
    days = 1 if match[3] else _month_days(year, month)
    end = begin + (1 if match[6] else 60 if match[5] else 3600 if match[4] else days * 86400)
    seconds = _local_ranges(begin, end) if local and not zone else [(begin, end)]
    if match[6] and seconds[0][0] < seconds[0][1]:
        fraction = int(((match[7] or "") + "0" * 9)[:9])
        moments = [moment * SECOND + fraction for first, after in seconds for moment in range(first, after)]
        return [(moment, moment) for moment in moments], True
    return [(first * SECOND, after * SECOND - 1) for first, after in seconds], bool(match[6])


def _local_ranges(begin: int, end: int) -> list[tuple[int, int]]:
    """The ranges (first, after) of moments at which the local clock shows a time from ``begin`` to before ``end``.

    All are seconds since 1970: of moments in UTC, of ``begin`` and ``end`` in local time.  If the clock skips these
    times: the moment of the change, as an empty range.
    """
    found: list[tuple[int, int]] = []
    low, last = begin - 86400, end + 86400  # no zone is a day ahead of UTC or behind it
    change = last
    try:
        while low < last:
            ahead, high = utc_offset(low * SECOND), _next_change(low, last)
            if low + ahead >= end:
                change = min(change, low)
            first, after = max(low, begin - ahead), min(high, end - ahead)
            if first < after:
                if found and found[-1][1] == first:
                    first = found.pop()[0]
                found.append((first, after))
            low = high
    except (OverflowError, ValueError, OSError):
        raise UsageError("that local time is out of range") from None
    return found or [(change, change)]


def _next_change(low: int, last: int) -> int:
    """The first second after ``low`` that has another offset from UTC; ``last`` if there is none before it."""
    ahead = utc_offset(low * SECOND)
    while low < last:
        high = min(low + 86400, last)  # each offset holds for longer than a day
        if utc_offset(high * SECOND) != ahead:
            while high - low > 1:
                middle = (low + high) // 2
                if utc_offset(middle * SECOND) == ahead:
                    low = middle
                else:
                    high = middle
            return high
        low = high
    return last


def _month_days(year: int, month: int) -> int:
    if month == 2:
        return 29 if year % 4 == 0 and (year % 100 or year % 400 == 0) else 28
    return 30 if month in (4, 6, 9, 11) else 31


def days_from_civil(year: int, month: int, day: int) -> int:
    """Days since 1970-01-01 of a Gregorian date (importing datetime would cost 3 ms)."""
    year -= month <= 2
    era, yoe = divmod(year, 400)
    doy = (153 * (month + (-3 if month > 2 else 9)) + 2) // 5 + day - 1
    return era * 146097 + yoe * 365 + yoe // 4 - yoe // 100 + doy - 719468


def civil_from_days(days: int) -> tuple[int, int, int]:
    """The inverse of ``days_from_civil``."""
    era, doe = divmod(days + 719468, 146097)
    yoe = (doe - doe // 1460 + doe // 36524 - doe // 146096) // 365
    doy = doe - (365 * yoe + yoe // 4 - yoe // 100)
    mp = (5 * doy + 2) // 153
    month = mp + 3 if mp < 10 else mp - 9
    return yoe + era * 400 + (month <= 2), month, doy - (153 * mp + 2) // 5 + 1


def utc_offset(ns: int) -> int:
    """How many seconds local time was ahead of UTC then."""
    from time import localtime

    return localtime(ns // SECOND).tm_gmtoff


def format_zone(offset: int) -> str:
    """``+01:00``."""
    return f"{'-' if offset < 0 else '+'}{abs(offset) // 3600:02d}:{abs(offset) // 60 % 60:02d}"


def time_zone(ns: int, local: bool) -> tuple[int, str]:
    """(how many seconds it is ahead of UTC then, its name): of local time or of UTC."""
    ahead = utc_offset(ns) if local else 0
    return ahead, format_zone(ahead) if local else "UTC"


def format_time(ns: int, digits: int = 9, local: bool = False) -> str:
    """RFC 3339 with ``digits`` digits of a second: ``2026-11-20T10:00:00.000000001Z``.  ``time`` reads it back."""
    seconds, fraction = divmod(ns, SECOND)
    zone = "Z"
    if local:
        offset = utc_offset(ns)
        seconds += offset
        zone = format_zone(offset)
    days, rest = divmod(seconds, 86400)
    year, month, day = civil_from_days(days)
    part = f".{fraction:09d}"[: digits + 1] if digits else ""
    return f"{year:04d}-{month:02d}-{day:02d}T{rest // 3600:02d}:{rest // 60 % 60:02d}:{rest % 60:02d}{part}{zone}"


# -- addresses -------------------------------------------------------------------------------------------------


# A leading zero is refused: some programs read 010 as eight, others as ten.
_OCTETS = {str(value): value for value in range(256)}


def try_ip4(text: str) -> int | None:
    """``10.1.2.3`` as an integer in host order; None when it is not one."""
    try:
        a, b, c, d = text.split(".")
        return _OCTETS[a] << 24 | _OCTETS[b] << 16 | _OCTETS[c] << 8 | _OCTETS[d]
    except (KeyError, ValueError):
        return None


def try_ip6(text: str) -> bytes | None:
    """``2001:db8::1`` or ``::ffff:10.0.0.1`` as 16 bytes; None when it is not one."""
    if len(text) < 2 or len(text) > 45:
        return None
    if "." in text:
        head, _, tail = text.rpartition(":")
        value = try_ip4(tail)
        if value is None:
            return None
        text = f"{head}:{value >> 16:x}:{value & 0xFFFF:x}"
    left, gap, right = text.partition("::")
    groups = left.split(":") if left else []
    if gap:
        tail_groups = right.split(":") if right else []
        missing = 8 - len(groups) - len(tail_groups)
        if missing < 1:
            return None
        groups = groups + ["0"] * missing + tail_groups
    if len(groups) != 8:
        return None
    out = bytearray()
    for group in groups:
        if not 1 <= len(group) <= 4 or not _HEX.issuperset(group):
            return None
        out += int(group, 16).to_bytes(2, "big")
    return bytes(out)


def try_ip(text: str) -> tuple[int, int] | None:
    """(4 or 6, the address as an integer)."""
    four = try_ip4(text)
    if four is not None:
        return 4, four
    six = try_ip6(text) if ":" in text else None
    return (6, int.from_bytes(six, "big")) if six is not None else None


def ip(text: str) -> tuple[int, int]:
    """(4 or 6, the address as an integer)."""
    value = try_ip(text)
    if value is None:
        raise UsageError(f"'{_short(text)}' is not an IP address", hint="write e.g. 10.1.2.3 or 2001:db8::1")
    return value


def try_prefix(text: str) -> tuple[int, int, int] | None:
    """(4 or 6, first address, last address) of ``10.0.0.0/8`` or of one address.  Host bits are ignored."""
    head, slash, bits = text.partition("/")
    address = try_ip(head)
    if address is None:
        return None
    version, value = address
    width = 32 if version == 4 else 128
    if not slash:
        return version, value, value
    if not (bits.isascii() and bits.isdigit()) or len(bits) > 3 or int(bits) > width:
        return None
    free = (1 << width - int(bits)) - 1
    return version, value & ~free, value | free


def prefix(text: str) -> tuple[int, int, int]:
    """(4 or 6, first address, last address) of ``10.0.0.0/8``, ``2001:db8::/32`` or one address."""
    value = try_prefix(text)
    if value is None:
        raise UsageError(f"'{_short(text)}' is not an address or a prefix", hint="write e.g. 10.0.0.0/8, 2001:db8::/32")
    return value


def try_ip_range(text: str) -> tuple[int, int, int] | None:
    """(4 or 6, first, last) of a prefix, an address, ``10.0.0.1-10.0.0.9`` or ``10.0.0.1..10.0.0.9``."""
    for mark in ("..", "-"):
        low, found, high = text.partition(mark)
        if found:
            first, last = try_ip(low), try_ip(high)
            if first and last and first[0] == last[0] and first[1] <= last[1]:
                return first[0], first[1], last[1]
            if mark == "-":
                return None
    return try_prefix(text)


def format_ip4(value: int) -> str:
    """Dotted text of an IPv4 address in host order."""
    return f"{value >> 24 & 255}.{value >> 16 & 255}.{value >> 8 & 255}.{value & 255}"


def format_ip6(value: bytes) -> str:
    """Text of 16 bytes, as RFC 5952 and inet_ntop(3) write it."""
    groups = [value[i] << 8 | value[i + 1] for i in range(0, 16, 2)]
    best = length = 0
    i = 0
    while i < 8:
        j = i
        while j < 8 and groups[j] == 0:
            j += 1
        if j - i > length and j - i > 1:
            best, length = i, j - i
        i = j + 1
    if best == 0 and (length == 6 or (length == 5 and groups[5] == 0xFFFF)):
        return ("::ffff:" if length == 5 else "::") + format_ip4(groups[6] << 16 | groups[7])
    words = [f"{g:x}" for g in groups]
    if not length:
        return ":".join(words)
    return ":".join(words[:best]) + "::" + ":".join(words[best + length :])


def format_ip(value: int, value6: bytes = bytes(16), version: int | None = None) -> str:
    """Text of a stored ``ip`` field: its two columns and, if the schema has it, its version; '' when absent."""
    if version == 6 or any(value6):
        return format_ip6(value6)
    if version is None and value == 1:
        return "::"
    return format_ip4(value) if value or version == 4 else ""


def try_mac(text: str) -> int | None:
    """``00:11:22:aa:bb:cc``, ``00-11-22-aa-bb-cc`` or ``0011.22aa.bbcc`` as an integer."""
    parts = text.split(":") if ":" in text else text.split("-") if "-" in text else text.split(".")
    width = 4 if "." in text else 2
    if len(parts) != 12 // width or not all(1 <= len(p) <= width and _HEX.issuperset(p) for p in parts):
        return None
    return int("".join(p.rjust(width, "0") for p in parts), 16)


def mac(text: str) -> int:
    """A MAC address as an integer."""
    value = try_mac(text)
    if value is None:
        raise UsageError(f"'{_short(text)}' is not a MAC address", hint="write e.g. 00:11:22:aa:bb:cc")
    return value


def format_mac(value: int) -> str:
    """``00:11:22:aa:bb:cc``.  ``mac`` reads it back."""
    return ":".join(f"{value:012x}"[i : i + 2] for i in range(0, 12, 2))


def natural_key(text: str) -> list[tuple[int, int, str]]:
    """A key that sorts p2 before p10."""
    parts = _DIGITS.split(text)  # every second one is a number
    return [(0, int(part), "") if i % 2 else (1, 0, part) for i, part in enumerate(parts) if part]
