"""Numbers, durations, times and addresses: tables of sentences, round trips, and other people's parsers."""

from __future__ import annotations

import datetime
import ipaddress
import socket

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from confluo_tools import units
from confluo_tools.errors import UsageError

S = 10**9
NOW = 1_763_632_800 * S  # 2025-11-20T10:00:00Z


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", 0),
        ("1500", 1500),
        ("-5", -5),
        ("+5", 5),
        ("1k", 1000),
        ("1K", 1000),
        ("1.5k", 1500),
        ("64Ki", 65536),
        ("64ki", 65536),
        ("2Mi", 2 << 20),
        ("1.5Gi", 3 << 29),
        ("10G", 10**10),
        ("3T", 3 * 10**12),
        ("0x1F", 31),
        ("-0x10", -16),
        ("0b101", 5),
        ("1e3", 1000),
        ("1.25e2", 125),
        ("1e-3", 0.001),
        (".5", 0.5),
        ("5.", 5),
        ("0.1", 0.1),
        ("1.0001k", 1000.1),
        ("18446744073709551615", 2**64 - 1),
        ("123456789012345678.5e1", 1234567890123456785),
    ],
)
def test_number(text: str, value: int | float) -> None:
    got = units.number(text)
    assert got == value
    assert type(got) is type(value)


@pytest.mark.parametrize(
    "text",
    ["", ".", "-", "1 k", "k", "1kk", "1e", "0x", "0xg", "1.2.3", "1_000", "١", "1\n", "e5", "1m", "9" * 300, "1e9999"],
)
def test_not_a_number(text: str) -> None:
    with pytest.raises(UsageError, match="not a number"):
        units.number(text)


def test_whole_sizes_and_rates() -> None:
    assert [units.size(t) for t in ("1500", "64Ki", "64KiB", "1.5GB", "10B")] == [1500, 65536, 65536, 1_500_000_000, 10]
    assert [units.rate(t) for t in ("10Gbit", "10Gbit/s", "100Mbps", "125MB/s", "9600", "1.5kbit")] == [
        10**10,
        10**10,
        10**8,
        10**9,
        9600,
        1500,
    ]
    for bad in ("1.5", "-1", "0.0001k"):
        with pytest.raises(UsageError, match=r"not a (size|whole)"):
            units.size(bad) if bad != "1.5" else units.integer(bad)
    for bad in ("", "fast", "-1bit", "0.1bit", "10Gbitt"):
        with pytest.raises(UsageError, match="not a rate"):
            units.rate(bad)


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        ("250us", 250_000),
        ("250µs", 250_000),
        ("15m", 900 * S),
        ("15min", 900 * S),
        ("1h30m", 5400 * S),
        ("1ns", 1),
        ("1.5s", 1_500_000_000),
        ("0.000000001s", 1),
        ("1.5us", 1500),
        ("2d", 172800 * S),
        ("1w", 604800 * S),
        ("1d2h3m4.5s", 93784_500_000_000),
        ("0", 0),
        ("-15m", -900 * S),
        ("1m30s", 90 * S),
        ("5ms", 5_000_000),
    ],
)
def test_duration(text: str, ns: int) -> None:
    assert units.duration(text) == ns


@pytest.mark.parametrize(
    "text", ["", "15", "m", "1.5ns", "30m1h", "1s1s", "1 s", "1x", "s1", "-", "9999999999h", "1h-5m", "۵s"]
)
def test_not_a_duration(text: str) -> None:
    with pytest.raises(UsageError, match="not a duration"):
        units.duration(text)


def test_a_bare_number_asks_for_its_unit() -> None:
    with pytest.raises(UsageError, match="15s, 15ms"):
        units.duration("15")


@pytest.mark.parametrize(
    ("text", "iso"),
    [
        ("2026-11-20", "2026-11-20T00:00:00"),
        ("2026-11-20T10:00:00Z", "2026-11-20T10:00:00"),
        ("2026-11-20 10:00:00", "2026-11-20T10:00:00"),
        ("2026-11-20T10:00:00+02:00", "2026-11-20T08:00:00"),
        ("2026-11-20T10:00:00-0530", "2026-11-20T15:30:00"),
        ("2026-11-20t10:00:00z", "2026-11-20T10:00:00"),
        ("2024-02-29", "2024-02-29T00:00:00"),
        ("1969-12-31T23:59:59Z", "1969-12-31T23:59:59"),
        ("2016-12-31T23:59:60Z", "2017-01-01T00:00:00"),
        ("2026-11", "2026-11-01T00:00:00"),
        ("2026-11-20T10", "2026-11-20T10:00:00"),
        ("2026-11-20T10:05", "2026-11-20T10:05:00"),
    ],
)
def test_calendar(text: str, iso: str) -> None:
    expected = datetime.datetime.fromisoformat(iso).replace(tzinfo=datetime.UTC)
    assert units.time(text) == int(expected.timestamp()) * S


def test_fractions_are_exact() -> None:
    assert units.time("2026-11-20T10:00:00.000000001Z") - units.time("2026-11-20T10:00:00Z") == 1
    assert units.time("2026-11-20T10:00:00.1234567899Z") % S == 123_456_789
    assert units.time("@1700000000.25") == 1_700_000_000_250_000_000
    assert units.time("@-0.5") == -500_000_000
    assert units.time("@9007199254.740993001") == 9_007_199_254_740_993_001


@pytest.mark.parametrize("text", ["15m", "15m ago", "now-15m"])
def test_ago(text: str) -> None:
    assert units.time(text, now_ns=NOW) == NOW - 900 * S


def test_now() -> None:
    import time

    assert units.time("now", now_ns=NOW) == NOW
    assert units.time("now+1h", now_ns=NOW) == NOW + 3600 * S
    assert abs(units.time("now") - time.time_ns()) < 3600 * S


@pytest.mark.parametrize(
    ("text", "length"),
    [
        ("2026-11-20", 86400),
        ("2026-11", 30 * 86400),
        ("2024-02", 29 * 86400),
        ("2026-12", 31 * 86400),
        ("2026-11-20T10", 3600),
        ("2026-11-20T10:05", 60),
        ("2026-11-20T10:05:07", 0),
        ("@5", 0),
        ("1h", 0),
    ],
)
def test_until_includes_the_whole_unit(text: str, length: int) -> None:
    assert units.until(text, now_ns=NOW) - units.time(text, now_ns=NOW) == length * S


@pytest.mark.parametrize(
    "text",
    [
        "",
        "yesterday",
        "2026",
        "2026-13",
        "2026-00-01",
        "2026-02-29",
        "2026-11-31",
        "2026-11-20T24:00:00",
        "20261120",
        "2026-11-20T10:60",
        "2026-11-20T10:00:61",
        "@",
        "@x",
        "@1.",
        "-15m",
        "-15m ago",
        "now-",
        "2026-11-20T10:00:00+25",
        "2026-11-20T10:00:00+02:60",
        "1700000000",
        "2026-11-20T10:00:00.Z",
        "٢٠٢٦-11-20",
        "now-15m ago",
    ],
)
def test_not_a_time(text: str) -> None:
    with pytest.raises(UsageError, match="is not a time"):
        units.time(text, now_ns=NOW)


@pytest.mark.parametrize("text", ["9999-01-01", "0001-01-01", "@99999999999", "2262-05"])
def test_times_out_of_range(text: str) -> None:
    with pytest.raises(UsageError, match="out of range"):
        units.time_span(text)


def test_local_times(monkeypatch: pytest.MonkeyPatch) -> None:
    import time

    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    try:
        assert units.time("2026-07-01T12:00:00", local=True) == units.time("2026-07-01T10:00:00Z")
        assert units.time("2026-07-01T12:00:00Z", local=True) == units.time("2026-07-01T12:00:00Z")
        # the day on which clocks go back has 25 hours
        day = units.time_span("2026-10-25", local=True)
        assert day[1] - day[0] == 25 * 3600 * S
        # and two hours with the same name: the time from the first to the second
        hour = units.time_span("2026-10-25T02", local=True)
        assert hour == (units.time("2026-10-25T00:00:00Z"), units.time("2026-10-25T02:00:00Z"))
        assert units.time("2026-10-25T02:30", local=True) == units.time("2026-10-25T00:30:00Z")
        assert units.until("2026-10-25T02:30", local=True) == units.time("2026-10-25T01:31:00Z")
        assert units.until("2026-10-25T02:30:00", local=True) == units.time("2026-10-25T01:30:00Z")
        assert units.until("2026-10-25T01:59", local=True) == units.time("2026-10-25T00:00:00Z")
        # there is no 02:30: it is the moment of the change
        for skipped in ("2026-03-29T02", "2026-03-29T02:30", "2026-03-29T02:30:00.5"):
            assert units.time_span(skipped, local=True) == (units.time("2026-03-29T01:00:00Z"),) * 2
            assert units.is_skipped(skipped, local=True)
            assert not units.is_skipped(skipped)
        text = units.format_time(NOW, local=True)
        assert text.endswith("+01:00")
        assert units.time(text) == NOW
    finally:
        monkeypatch.undo()
        time.tzset()


@given(st.integers(-(1 << 63), (1 << 63) - 1))
def test_times_read_back(ns: int) -> None:
    assert units.time(units.format_time(ns)) == ns


@given(st.integers(-(1 << 63) // S + 1, (1 << 63) // S - 1), st.integers(0, 8))
def test_short_times_read_back(seconds: int, digits: int) -> None:
    assert units.time(units.format_time(seconds * S, digits)) == seconds * S


@given(st.datetimes(datetime.datetime(1678, 1, 1), datetime.datetime(2262, 1, 1)))
def test_times_as_datetime_reads_them(when: datetime.datetime) -> None:
    micros = (when - datetime.datetime(1970, 1, 1)) // datetime.timedelta(microseconds=1)
    assert units.time(when.isoformat()) == micros * 1000
    assert units.format_time(micros * 1000, 6) == when.isoformat(timespec="microseconds") + "Z"


@given(st.integers(-(1 << 63), (1 << 63) - 1))
def test_durations_read_back(ns: int) -> None:
    assert units.duration(units.format_duration(ns)) == ns


@pytest.mark.parametrize(
    ("ns", "text"),
    [
        (0, "0"),
        (1, "1ns"),
        (250_000, "250us"),
        (1_500_000, "1.5ms"),
        (S, "1s"),
        (5400 * S, "1h30m"),
        (-S, "-1s"),
        (86400 * S + 1, "1d0.000000001s"),
    ],
)
def test_durations_are_short(ns: int, text: str) -> None:
    assert units.format_duration(ns) == text


@given(
    st.one_of(st.integers(-(10**18), 10**18), st.integers(-9, 9).map(lambda n: n * 10**12), st.floats(-1e300, 1e300))
)
def test_numbers_read_back(value: int | float) -> None:
    assert type(value)(units.number(units.format_number(value))) == value


@given(st.one_of(st.integers(0, 10**18), st.integers(0, 1 << 20).map(lambda n: n << 30)))
def test_sizes_and_rates_read_back(value: int) -> None:
    assert units.size(units.format_size(value)) == value
    assert units.rate(units.format_rate(value)) == value


def test_numbers_are_short() -> None:
    assert [units.format_number(n) for n in (999, 1000, 1500, 1234567, 10**10)] == [
        "999",
        "1k",
        "1.5k",
        "1234.567k",
        "10G",
    ]
    assert [units.format_size(n) for n in (0, 1024, 65536, 1500, 1_000_000)] == ["0B", "1KiB", "64KiB", "1.5kB", "1MB"]


@given(st.ip_addresses(v=4))
def test_ipv4(address: ipaddress.IPv4Address) -> None:
    assert units.ip(str(address)) == (4, int(address))
    assert units.format_ip4(int(address)) == str(address)


SPARSE6 = st.lists(st.sampled_from([0, 0, 0, 1, 0xFFFF, 0xA0B]), min_size=8, max_size=8).map(
    lambda groups: b"".join(g.to_bytes(2, "big") for g in groups)
)


@given(st.one_of(st.binary(min_size=16, max_size=16), SPARSE6))
def test_ipv6(raw: bytes) -> None:
    text = units.format_ip6(raw)
    assert text == socket.inet_ntop(socket.AF_INET6, raw)
    assert units.try_ip6(text) == raw
    assert units.try_ip6(ipaddress.IPv6Address(raw).exploded) == raw


@given(st.text(alphabet="0123456789abcdefF:.g%", max_size=24))
def test_ipv6_accepts_what_inet_pton_accepts(text: str) -> None:
    try:
        expected = socket.inet_pton(socket.AF_INET6, text)
    except OSError:
        expected = None
    assert units.try_ip6(text) == expected


@given(st.text(alphabet="0123456789.", max_size=16))
def test_ipv4_accepts_what_ipaddress_accepts(text: str) -> None:
    try:
        expected = int(ipaddress.IPv4Address(text))
    except ValueError:
        expected = None
    assert units.try_ip4(text) == expected


@given(st.ip_addresses(), st.integers(0, 128))
def test_prefixes(address: ipaddress.IPv4Address | ipaddress.IPv6Address, bits: int) -> None:
    assume(bits <= address.max_prefixlen)
    net = ipaddress.ip_network((address, bits), strict=False)
    expected = address.version, int(net.network_address), int(net.broadcast_address)
    assert units.prefix(f"{address}/{bits}") == expected
    assert units.try_ip_range(f"{net.network_address}-{net.broadcast_address}") == expected
    assert units.try_ip_range(f"{net.network_address}..{net.broadcast_address}") == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "10.0.0",
        "10.0.0.256",
        "10.0.0.01",
        "10.0.0.0/33",
        "10.0.0.0/",
        "::/129",
        "1.2.3.4/ 8",
        "10.0.0.9-10.0.0.1",
        "10.0.0.1-::1",
        "1:2",
        ":::",
        "12345::",
        "::1%eth0",
        "٣.1.1.1",
    ],
)
def test_not_addresses(text: str) -> None:
    assert units.try_ip_range(text) is None
    with pytest.raises(UsageError, match="is not an address"):
        units.prefix(text)
    if "/" not in text:
        with pytest.raises(UsageError, match="is not an IP address"):
            units.ip(text)


@given(st.integers(0, (1 << 48) - 1))
def test_macs(value: int) -> None:
    text = units.format_mac(value)
    assert units.mac(text) == units.mac(text.upper()) == units.mac(text.replace(":", "-")) == value
    assert units.mac(f"{text[:2]}{text[3:5]}.{text[6:8]}{text[9:11]}.{text[12:14]}{text[15:]}") == value


@pytest.mark.parametrize(
    "text", ["", "00:11:22:33:44", "00:11:22:33:44:55:66", "00:11:22:33:44:gg", "001122334455", "0:11:22:33:44:555"]
)
def test_not_macs(text: str) -> None:
    with pytest.raises(UsageError, match="not a MAC"):
        units.mac(text)


@pytest.mark.parametrize(
    ("value", "value6", "version", "text"),
    [
        (0, bytes(16), None, ""),
        (0, bytes(16), 0, ""),
        (0, bytes(16), 4, "0.0.0.0"),
        (0x0A000001, bytes(16), None, "10.0.0.1"),
        (0x0A000001, bytes(16), 0, "10.0.0.1"),
        (1, bytes(16), None, "::"),
        (1, bytes(16), 6, "::"),
        (1, bytes(16), 4, "0.0.0.1"),
        (0xDEADBEEF, bytes(15) + b"\x01", None, "::1"),
        (0xDEADBEEF, bytes(15) + b"\x01", 6, "::1"),
    ],
)
def test_stored_addresses(value: int, value6: bytes, version: int | None, text: str) -> None:
    assert units.format_ip(value, value6, version) == text
