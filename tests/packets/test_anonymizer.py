"""Anonymised addresses and frames: against the definitions of AES and Crypto-PAn, published values, and tshark."""

from __future__ import annotations

import gzip
import ipaddress
import shutil
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from hypothesis import given, settings
from hypothesis import strategies as st

import make_links as make
from confluo_tools.core.packets.anonymizer import Anonymizer, aes
from confluo_tools.core.packets.packet import Packets
from confluo_tools.formats.anonymize import AnonymizeChoice, AnonymousRecords
from confluo_tools.formats.pcap import open_captures, packet_schema
from running import DATA

KEY = bytes(range(1, 33))
# Key and addresses of the sample trace of the reference implementation.
REFERENCE_KEY = bytes.fromhex("1522178d33a4cf80130a5b1649907d10d8988f837979652762574c2d2a842202")
REFERENCE = """
24.5.0.80 100.9.15.210, 129.118.74.4 134.136.186.123, 130.132.252.244 133.68.164.234, 128.11.68.132 135.242.180.132,
141.223.7.43 141.167.8.160, 141.233.145.108 141.129.237.235, 152.163.225.39 151.140.114.167,
156.29.3.236 147.225.12.42, 165.247.96.84 162.9.99.234, 166.107.77.190 160.132.178.185, 192.102.249.13 252.138.62.131,
192.215.32.125 252.43.47.189, 192.233.80.103 252.25.108.8, 192.41.57.43 252.222.221.184,
193.150.244.223 253.169.52.216
"""
ADDRESSES = (make.A4, make.B4, make.C4, make.D4, make.A6, make.B6, make.C6, make.D6)
MACS = (make.MAC_A, make.MAC_B, make.MAC_C, make.MAC_D)
CAPTURES = ("campus", "vlan", "tunnel", "raw", "cooked")
SUMS = ("ip.checksum.status", "tcp.checksum.status", "udp.checksum.status", "icmp.checksum.status")
CHECKED = [flag for name in ("ip", "tcp", "udp") for flag in ("-o", f"{name}.check_checksum:TRUE")]
addresses = st.binary(min_size=4, max_size=4) | st.binary(min_size=16, max_size=16)


def ecb(key: bytes, data: bytes) -> bytes:
    return Cipher(algorithms.AES(key), modes.ECB()).encryptor().update(data)


def crypto_pan(key: bytes, address: bytes) -> bytes:
    """The definition: bit i changes by the first bit of the cipher of the first i bits and the rest of the pad."""
    pad = int.from_bytes(ecb(key[:16], key[16:]), "big")
    bits, value = 8 * len(address), int.from_bytes(address, "big")
    flips = 0
    for i in range(bits):
        rest = (1 << (128 - i)) - 1
        block = (value << (128 - bits)) & ~rest | pad & rest
        flips = flips << 1 | ecb(key[:16], block.to_bytes(16, "big"))[0] >> 7
    return (value ^ flips).to_bytes(len(address), "big")


def shared(a: bytes, b: bytes) -> int:
    """The number of first bits that are equal."""
    differ = int.from_bytes(a, "big") ^ int.from_bytes(b, "big")
    return 8 * len(a) - differ.bit_length()


def test_the_cipher_is_that_of_fips_197() -> None:
    key, block = bytes(range(16)), bytes(range(0, 256, 17))
    for portable in (False, True):
        assert aes(key, block, portable=portable).hex() == "69c4e0d86a7b0430d8cdb78070b4c55a"


@given(st.binary(min_size=16, max_size=16), st.binary(max_size=112))
def test_the_cipher_is_that_of_openssl(key: bytes, data: bytes) -> None:
    data = data[: len(data) & ~15]
    assert aes(key, data) == aes(key, data, portable=True) == ecb(key, data)


def test_addresses_are_those_of_the_reference_implementation() -> None:
    core = Anonymizer(REFERENCE_KEY)
    for pair in REFERENCE.split(","):
        given_, wanted = (ipaddress.ip_address(word) for word in pair.split())
        assert ipaddress.ip_address(core.address(given_.packed)) == wanted


@settings(max_examples=25)
@given(st.binary(min_size=32, max_size=32), addresses)
def test_addresses_follow_the_definition(key: bytes, address: bytes) -> None:
    assert Anonymizer(key).address(address) == crypto_pan(key, address)


@given(addresses, st.integers(0, 128), st.data())
def test_prefixes_stay(address: bytes, bits: int, data: st.DataObject) -> None:
    core, size = Anonymizer(KEY), len(address)
    bits = min(bits, 8 * size)
    mask = (1 << (8 * size - bits)) - 1
    tail = data.draw(st.integers(0, mask))
    other = (int.from_bytes(address, "big") & ~mask | tail).to_bytes(size, "big")
    assert shared(core.address(address), core.address(other)) == shared(address, other)


def test_macs_and_ports_are_one_to_one() -> None:
    core, near = Anonymizer(KEY, ports=True), Anonymizer(KEY, keep_oui=True)
    ports = memoryview(bytearray(memoryview(bytes(2 * 65536)))).cast("H")
    for i in range(65536):
        ports[i] = i
    core.hide_ports(ports)
    assert sorted(ports) == list(range(65536))
    assert (ports[0], sum(i == port for i, port in enumerate(ports)) < 20) == (0, True)
    given_ = [0, 0xFFFFFFFFFFFF, *range(0x020000000000, 0x020000010000), 0x3333FF000001, 0x01005E000001]
    for hides in (core, near):
        macs = memoryview(bytearray(8 * len(given_))).cast("Q")
        for i, mac in enumerate(given_):
            macs[i] = mac
        hides.macs(macs)
        assert len(set(macs)) == len(given_)
        assert list(macs[:2]) == given_[:2]
        assert all(a >> 40 & 3 == b >> 40 & 3 for a, b in zip(given_, macs, strict=True))
    assert all(mac >> 24 == 0x020000 for mac in macs[2:-2])
    assert macs[-2] & 0xFFFF != 1  # that of a group has a part of an IPv6 address


def every_frame() -> Iterator[tuple[int, bytes]]:
    for link in make.LINKS:
        yield from ((link, frame) for frame in make.frames(link, (*make.PLAIN, *make.AUTH)))
    yield from ((105, frame) for frame in make.wlan_frames())
    tunnels = [frame for frames in make.tunnelled().values() for frame in frames]
    unread = [make.ethernet(packet) for packet in make.UNREAD.values()]
    yield from ((1, frame) for frame in [*tunnels, *unread, *make.tagged(), *make.fragments(), *hidden_places()])


def hidden_places() -> list[bytes]:
    """Frames with addresses where few look for them."""
    inner = make.ip4(17, make.udp(1, 2, make.C4), src=make.C4, dst=make.D4)
    inner6 = make.ip6(58, bytes(8), src=make.C6, dst=make.D6)
    two = bytes([2, 1]) + make.MAC_C
    prefix = bytes([3, 4, 64, 0]) + bytes(12) + make.C6
    route = bytes([17, 4, 0, 2]) + bytes(4) + make.C6 + make.D6
    segments = bytes([17, 5, 4, 1, 1, 0, 0, 0]) + make.C6 + make.D6 + b"\5\6" + make.C4 + bytes(2)
    home = bytes([17, 2, 0xC9, 16]) + make.C6 + bytes([0x31, 2]) + make.C4[:2]
    record = b"\x07\x0b\x0c" + make.C4 + make.D4 + b"\x44\x0c\x05\x01" + make.C4 + bytes(4) + b"\0"
    options = make.ip4(17, make.udp(9, 9, b""))
    options = b"\x4b" + options[1:3] + bytes([len(options) + 24]) + options[4:20] + record + options[20:]
    mptcp = make.tcp()[:12] + b"\x80\x18" + make.tcp()[14:20] + b"\x1e\x08\x30\x01" + make.C4 + b"\x22\x04ab"
    odd = make.tcp()[:12] + b"\x80\x18" + make.tcp()[14:20] + b"\x02\x06" + make.C4 + b"\x08\x06" + make.C4
    cut = make.ip4(17, make.udp(9, 9, b""))
    cut = b"\x47" + cut[1:3] + bytes([len(cut) + 8]) + cut[4:20] + b"\x07\x06\x04" + make.C4[:3] + b"\0\0" + cut[20:]
    padded = make.l2tp(make.PLAIN[0], 0x0200, b"\0\4" + make.C4)[1]
    bodies = [
        make.ip4(6, odd),
        cut,
        padded,
        make.ip4(1, bytes([3, 1, 0, 0, 0, 0, 0, 0]) + inner),
        make.ip4(1, bytes([5, 1, 0, 0]) + make.C4 + inner),
        make.ip4(1, bytes([3, 1, 0, 0, 0, 0, 0, 0]) + inner[:26]),
        make.ip4(2, bytes([0x16, 0, 0, 0]) + make.C4),
        make.ip4(6, mptcp),
        make.ip4(89, make.C4 * 6),
        make.ip4(132, bytes(12) + make.C4 * 2),
        options,
    ]
    bodies6 = [
        make.ip6(58, bytes([1, 0, 0, 0, 0, 0, 0, 0]) + inner6),
        make.ip6(58, bytes([135, 0, 0, 0, 0, 0, 0, 0]) + make.C6 + two),
        make.ip6(58, bytes([137, 0, 0, 0, 0, 0, 0, 0]) + make.C6 + make.D6 + two),
        make.ip6(58, bytes([134]) + bytes(15) + two + prefix + bytes([25, 3, 0, 0]) + bytes(4) + make.D6),
        make.ip6(58, bytes([131]) + bytes(7) + make.C6),
        make.ip6(43, route + make.udp(1, 2, b"x")),
        make.ip6(43, segments + make.udp(1, 2, b"x")),
        make.ip6(60, home + make.udp(1, 2, b"x")),
    ]
    return [make.ethernet((make.IP, body)) for body in bodies] + [make.ethernet((make.IP6, body)) for body in bodies6]


def test_no_address_and_no_payload_is_in_any_frame() -> None:
    core = Anonymizer(KEY)
    shown = 0
    for link, frame in every_frame():
        for size in range(len(frame) + 1):
            made = core.frame(frame[:size], len(frame), link)
            assert (made is None) == (link in (7, 129, 239, 242, 258))
            if made is None:
                break
            assert len(made) <= size
            for secret in (*ADDRESSES, *MACS, make.C4[:3] + b"\0\0", b"tcp!", b"udp?", b"udp6"):
                assert secret not in made, (link, frame.hex(), made.hex(), secret)
        shown += made is not None and len(made) >= 20
    assert shown > 150


@settings(max_examples=300)
@given(st.sampled_from(list(every_frame())), st.data())
def test_damaged_frames_do_no_harm(one: tuple[int, bytes], data: st.DataObject) -> None:
    link, frame = one
    changes = data.draw(st.lists(st.tuples(st.integers(0, len(frame) - 1), st.integers(0, 255)), max_size=4))
    made_of = bytearray(frame)
    for at, value in changes:
        made_of[at] = value
    made = Anonymizer(KEY, keep_payload=data.draw(st.booleans())).frame(made_of, data.draw(st.integers(0, 70000)), link)
    assert made is None or len(made) <= len(frame)


@pytest.fixture(scope="module", params=CAPTURES)
def capture(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("hide") / "x.pcap"
    path.write_bytes(gzip.decompress((DATA / f"{request.param}.pcap.gz").read_bytes()))
    return path


def hidden(capture: Path, **more: Any) -> Path:
    """The capture with rewritten frames, as a pcap."""
    data, core = capture.read_bytes(), Anonymizer(KEY, **more)
    order = "<" if data[:1] in (b"\xd4", b"\x4d") else ">"
    out, at, link = [data[:24]], 24, struct.unpack_from(order + "I", data, 20)[0]
    while at < len(data):
        second, part, size, wire = struct.unpack_from(order + "IIII", data, at)
        made = core.frame(data[at + 16 : at + 16 + size], wire, link)
        assert made is not None
        out.append(struct.pack(order + "IIII", second, part, len(made), wire) + made)
        at += 16 + size
    path = capture.with_name("hidden.pcap")
    path.write_bytes(b"".join(out))
    return path


def test_the_records_of_a_rewritten_capture_are_the_rewritten_records(capture: Path) -> None:
    schema = packet_schema(offset=False)
    records = AnonymousRecords(schema, AnonymizeChoice(KEY, frozenset(), False))
    with open_captures([str(capture)], schema) as before:
        wanted = [records.block(block) for block in before]
    with open_captures([str(hidden(capture))], schema) as after:
        found = list(after)
    assert [len(block) for block in wanted] == [len(block) for block in found]
    for i, column in enumerate(schema.columns):
        if column.name not in ("cap_len", "notes"):
            for mine, theirs in zip(found, wanted, strict=True):
                assert bytes(mine.buffer(i)) == bytes(theirs.buffer(i)), column.name


@pytest.mark.skipif(not shutil.which("tshark"), reason="needs tshark")
def test_checksums_are_as_before(capture: Path) -> None:
    def states(path: Path) -> list[list[str]]:
        flags = [flag for name in SUMS for flag in ("-e", name)]
        command = ["tshark", "-nr", path, *CHECKED, "-T", "fields", *flags]
        done = subprocess.run(command, capture_output=True, check=True)
        return [
            line.replace("3", "2").split("\t") for line in done.stdout.decode().splitlines()
        ]  # 3: a fragment's is 0

    before = states(capture)
    assert any(any(row) for row in before)
    assert states(hidden(capture, keep_payload=True)) == before
    after = states(hidden(capture))
    assert len(after) == len(before)
    for old, new in zip(before, after, strict=True):
        for mine, theirs in zip(new, old, strict=True):  # where payload is cut, nothing can be said: 2
            assert (mine.count("0"), mine.count("1")) <= (theirs.count("0"), theirs.count("1"))


def test_wrong_checksums_stay_wrong_and_absent_ones_absent() -> None:
    right = make.ethernet((make.IP, make.ip4(17, make.udp(7, 8, b"")[:6] + b"\0\0")))
    total = make.checksum(make.A4 + make.B4 + bytes([0, 17, 0, 8]) + right[34:42])
    cases = {0: "absent", total: "right", total ^ 0x101: "wrong"}
    for given_, state in cases.items():
        made = Anonymizer(KEY).frame(right[:40] + struct.pack(">H", given_), len(right), 1)
        assert made is not None
        check = make.checksum(made[26:34] + bytes([0, 17, 0, 8]) + made[34:42])
        found = "absent" if made[40:42] == b"\0\0" else "wrong" if check else "right"
        assert found == state


def test_rows_of_raw_bytes_are_frames() -> None:
    schema = packet_schema(offset=False, snap=60)
    packets = Packets(schema.layout)
    frames = [make.ethernet(packet) for packet in make.PLAIN]
    for frame in frames:
        packets.add(frame)
    block = packets.take()
    made = AnonymousRecords(schema, AnonymizeChoice(KEY, frozenset(), False)).block(block)
    raw, cap = made.buffer(schema.index("raw")), memoryview(bytes(made.buffer(schema.index("cap_len")))).cast("I")
    for i, frame in enumerate(frames):
        wanted = Anonymizer(KEY).frame(frame[:60], len(frame), 1)
        assert wanted is not None
        assert (bytes(raw[60 * i : 60 * i + 60]), cap[i]) == (wanted.ljust(60, b"\0"), len(wanted))
