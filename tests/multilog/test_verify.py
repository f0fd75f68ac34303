"""Damage: every flipped bit of a sealed segment is found and reported, and no reader returns wrong rows."""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from confluo_tools import multilog
from confluo_tools.core.multilog.seal import crc_of_bytes, crc_of_pages
from confluo_tools.core.multilog.segment import Segment
from confluo_tools.errors import StoreError
from confluo_tools.multilog.verify import VerifyFinding, verify
from log_rows import ALL_TYPES, SIGNED, block_of, random_columns, signed_block

ROWS = [40_000, 65_536, 65_536, 30_000, 500]  # a compact segment at the end


class Columns(list[bytes]):
    """The bytes of each column, with a short repr."""

    def __repr__(self) -> str:
        return "Columns"


def made(path: Path, *sessions: list[int]) -> tuple[Path, list[bytes]]:
    """A closed log with these numbers of rows, appended by one writer after the other, and its columns."""
    log = multilog.create(path, ALL_TYPES, segment_blocks=2)
    columns = [b""] * ALL_TYPES.layout.n
    for session in sessions:
        with log.writer() as writer:
            for k, rows in enumerate(session):
                piece = random_columns(ALL_TYPES, rows, k, zero=0.4)
                writer.append(block_of(ALL_TYPES, piece))
                columns = [a + b.tobytes() for a, b in zip(columns, piece, strict=True)]
    assert len(log.segments()) == 3
    assert list(verify(log)) == []
    return path, Columns(columns)


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[bytes]]:
    """A closed log of several segments, and its columns."""
    return made(tmp_path_factory.mktemp("log") / "t.ml", ROWS[:4], ROWS[4:])


@pytest.fixture
def copy(original: tuple[Path, list[bytes]], tmp_path: Path) -> Path:
    shutil.copytree(original[0], tmp_path / "t.ml")
    return tmp_path / "t.ml"


def read_carefully(path: Path, columns: list[bytes]) -> tuple[int, list[tuple[str, int | None, str]]]:
    """Number of rows that a new reader returns, all correct, and the damage that it records."""
    log = multilog.open(path)
    rows = 0
    for block in log.blocks():
        if not block.check():
            continue
        rows += block.rows
        for i, column in enumerate(log.schema.columns):
            width = column.size * column.count
            expected = columns[i][block.base * width : (block.base + block.rows) * width]
            assert bytes(block.buffer(i)) == expected, f"silently wrong: {column.name} of the block at {block.base}"
    assert len(set(log.damage)) == len(log.damage)
    return rows, log.damage


def flip(path: str, bit: int) -> None:
    with open(path, "r+b") as f:
        f.seek(bit // 8)
        byte = f.read(1)[0]
        f.seek(bit // 8)
        f.write(bytes([byte ^ 1 << bit % 8]))


def place(path: Path, segment: int, at: int) -> tuple[int | None, str | None]:
    """The block and the column that contain byte ``at`` of the file, from the geometry."""
    part = multilog.open(path).segments()[segment]
    capacity = part.segment.capacity
    stride, buffers = part.segment.shape.geometry(capacity)
    header = len(part.segment.shape.header)
    block, inside = divmod(at - header, stride)
    if at < header or block >= part.blocks:
        return None, None
    for name, (offset, size) in zip(ALL_TYPES.layout.names, buffers, strict=True):
        if offset <= inside - part.segment.shape.message < offset + size:
            return block, name
    return block, None


def check_flip(path: Path, columns: list[bytes], segment: int, bit: int) -> None:
    """Flip one bit, run verify and a reader, and flip it back."""
    name = multilog.open(path).segments()[segment].path
    block, column = place(path, segment, bit // 8)
    flip(name, bit)
    try:
        found = [f for f in verify(multilog.open(path)) if f.damage]
        assert found, f"bit {bit} of {name} was not found"
        assert {f.path for f in found} == {name}
        if block is not None:
            assert {f.block for f in found} == {block}
        if column is not None:
            assert all(column in f.columns for f in found), (column, found)
            assert any(f"column {column}" in str(f) or f" or {column}" in str(f) for f in found)
        rows, damage = read_carefully(path, columns)
        expected = len(columns[0]) // (ALL_TYPES.columns[0].size * ALL_TYPES.columns[0].count)
        assert damage or rows == expected
        assert expected - rows <= 65536  # one block, not more
    finally:
        flip(name, bit)


@settings(max_examples=150, deadline=None)
@given(segment=st.integers(0, 2), where=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
def test_any_flipped_bit_is_found_and_named(
    original: tuple[Path, list[bytes]], segment: int, where: float, bit: int
) -> None:
    path, columns = original
    size = os.path.getsize(multilog.open(path).segments()[segment].path)
    check_flip(path, columns, segment, int(where * size) * 8 + bit)


def test_flips_in_every_part_of_a_segment(tmp_path: Path) -> None:
    """Header, batch message, block head, zones, edges of columns, and each byte of seal and footer's end."""
    path, columns = made(tmp_path / "t.ml", [900], [700], [500])
    part = multilog.open(path).segments()[2]
    shape, size = part.segment.shape, os.path.getsize(part.path)
    stride, buffers = shape.geometry(part.segment.capacity)
    header, end = len(shape.header), len(shape.header) + stride
    places = [0, 5, 7, 8, 12, 13, 16, 40, header - 1, header, header + 9, header + shape.message - 1]
    places += range(header + shape.message, header + shape.message + 128, 3)
    places += range(header + shape.message + 128, header + shape.message + 128 + 16 * ALL_TYPES.layout.n, 7)
    for offset, length in buffers:
        places += [header + shape.message + offset, header + shape.message + offset + length - 1]
    places += range(end, end + 64 + 128 + 32)
    places += range(end + 192, size, 97)
    places += range(size - 10, size)
    chance = random.Random(1)
    for at in places:
        check_flip(path, columns, 2, at * 8 + chance.randrange(8))


@pytest.mark.slow
def test_flips_of_every_byte(tmp_path: Path) -> None:
    path, columns = made(tmp_path / "t.ml", [900], [700], [500])
    size = os.path.getsize(multilog.open(path).segments()[2].path)
    chance = random.Random(2)
    for at in range(0, size, 13):
        check_flip(path, columns, 2, at * 8 + chance.randrange(8))


def test_a_reader_checks_only_what_it_looks_at(copy: Path) -> None:
    """A damaged column does not affect others; its pages are verified when it is read."""
    log = multilog.open(copy)
    part = log.segments()[0]
    block = part.block(0)
    assert block is not None
    used = [i for i in range(ALL_TYPES.layout.n) if any(bytes(block.buffer(i)))]
    bad, fine = used[2], used[5]
    offset = part.segment.shape.geometry()[1][bad][0] + len(part.segment.shape.header) + part.segment.shape.message
    flip(part.path, (offset + 9000) * 8)
    block = multilog.open(copy).segments()[0].block(0)
    assert block is not None
    assert block.check([fine])
    assert not block.check([bad])
    assert block.segment.damage == [(part.path, 0, f"column {ALL_TYPES.layout.names[bad]} is damaged")]
    assert block.segment.block(0, block.rows) is None  # not returned again
    assert not block.check()
    assert len(block.segment.damage) == 1
    from confluo_tools.core.block.block import Picks

    block = multilog.open(copy).segments()[0].block(0)
    assert block is not None
    width = ALL_TYPES.columns[bad].size * ALL_TYPES.columns[bad].count
    assert block.check([bad], Picks.of(block.rows, [0, 1, 20_000]))  # other pages
    assert not block.check([bad], Picks.of(block.rows, [0, 9000 // width]))


def findings(path: Path) -> list[VerifyFinding]:
    return [f for f in verify(multilog.open(path)) if f.damage]


def test_a_missing_segment(copy: Path, original: tuple[Path, list[bytes]]) -> None:
    part = multilog.open(copy).segments()[1]
    os.unlink(part.path)
    rows, damage = read_carefully(copy, original[1])
    assert rows == sum(ROWS) - part.rows
    reason = f"rows {part.base} to {part.base + part.rows - 1} are missing"
    assert damage == [(str(copy / "lane-000"), None, reason)]
    assert [(f.path, f.what) for f in findings(copy)] == [(str(copy / "lane-000"), reason)]


def test_segments_that_are_gone_from_either_end(copy: Path, original: tuple[Path, list[bytes]]) -> None:
    first, *_, last = multilog.open(copy).segments()
    os.unlink(first.path)
    os.unlink(last.path)
    rows, damage = read_carefully(copy, original[1])
    assert rows == sum(ROWS) - first.rows - last.rows
    assert [d[2] for d in damage] == [
        f"rows 0 to {first.rows - 1} are missing",
        f"rows {last.base} to {sum(ROWS) - 1} are missing",
    ]
    assert [f.what for f in findings(copy)] == [d[2] for d in damage]
    shutil.rmtree(copy / "lane-000")
    assert read_carefully(copy, original[1])[0] == 0
    assert [f.what for f in findings(copy)][-1] == f"rows 0 to {sum(ROWS) - 1} are missing"


@pytest.mark.parametrize("size", [0, 7, 16, 5000, 40_000, -1, -11, -3000])
@pytest.mark.parametrize("segment", [0, 1, 2])
def test_a_segment_cut_short(copy: Path, original: tuple[Path, list[bytes]], size: int, segment: int) -> None:
    part = multilog.open(copy).segments()[segment]
    whole = os.path.getsize(part.path)
    if not 0 <= size % whole < whole or size > whole:
        pytest.skip("the segment is shorter")
    os.truncate(part.path, size if size >= 0 else whole + size)
    rows, damage = read_carefully(copy, original[1])
    found = findings(copy)
    assert {f.path for f in found} == {part.path}
    if size >= 0:
        assert rows == sum(ROWS) - part.rows
        assert [d[0] for d in damage] == [part.path]


def test_something_else_in_its_place(copy: Path, original: tuple[Path, list[bytes]], tmp_path: Path) -> None:
    parts = multilog.open(copy).segments()
    other = multilog.create(tmp_path / "other.ml", ALL_TYPES, segment_blocks=2)
    with other.writer() as writer:
        writer.append(block_of(ALL_TYPES, random_columns(ALL_TYPES, 500, 9)))
    foreign = other.segments()[0].path
    cases = {
        "belongs to another MultiLog": lambda p: shutil.copy(foreign, p),
        "it should be row": lambda p: shutil.copy(parts[0].path, p),
        "it has 0 bytes": lambda p: Path(p).write_bytes(b""),
        "its header is damaged": lambda p: Path(p).write_bytes(os.urandom(80_000)),
        "it is cut short: 8192 bytes": lambda p: os.truncate(p, 8192),
        "it is not a regular file": lambda p: os.unlink(p) or os.mkdir(p),
        "is not a regular file": lambda p: os.unlink(p) or os.mkfifo(p),
        "it is a symbolic link": lambda p: os.unlink(p) or os.symlink("nowhere", p),
    }
    for reason, put in cases.items():
        keep = Path(parts[2].path).read_bytes()
        put(parts[2].path)
        rows, damage = read_carefully(copy, original[1])
        assert rows == sum(ROWS) - parts[2].rows, reason
        assert len(damage) == 1
        assert damage[0][0] == parts[2].path
        assert reason in damage[0][2]
        assert any(f.path == parts[2].path for f in findings(copy))
        (os.rmdir if os.path.isdir(parts[2].path) else os.unlink)(parts[2].path)
        Path(parts[2].path).write_bytes(keep)
    assert findings(copy) == []


def test_left_overs_are_told_but_are_no_damage(copy: Path) -> None:
    lane = copy / "lane-000"
    (lane / ".seg-0000000000000000.tmp").write_bytes(b"x")
    (lane / "seg-0000000099999999.arrow").write_bytes(b"")
    (lane / "notes.txt").write_text("mine")
    found = list(verify(multilog.open(copy)))
    assert [(os.path.basename(f.path), f.damage) for f in found] == [
        (".seg-0000000000000000.tmp", False),
        ("notes.txt", False),
        ("seg-0000000099999999.arrow", False),
    ]
    with multilog.open(copy).writer() as writer:
        assert writer.base == sum(ROWS)
    assert [os.path.basename(f.path) for f in verify(multilog.open(copy))] == ["notes.txt"]


def test_growing_segments_are_checked_for_structure(tmp_path: Path) -> None:
    log = multilog.create(tmp_path / "t.ml", SIGNED, segment_blocks=3)
    writer = log.writer(ahead=-1)
    for k in range(3):
        writer.append(signed_block(1, k * 65536, 65536))
    part = log.segments()[0]
    assert list(verify(log)) == []
    stride, _ = part.segment.shape.geometry()
    head = len(part.segment.shape.header) + part.segment.shape.message + stride
    flip(part.path, (head + 3) * 8)  # the magic of block 1
    reader = multilog.open(tmp_path / "t.ml")
    assert [b.base for b in reader.blocks()] == [0, 2 * 65536]
    assert reader.damage == [(part.path, 1, "the head of the block is not that of this block")]
    assert [(f.block, f.what) for f in findings(tmp_path / "t.ml")] == [
        (1, "the head of the block is not that of this block")
    ]
    flip(part.path, (head + 3) * 8)
    writer.close()
    assert list(verify(log)) == []


@pytest.fixture(scope="module")
def growing(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A log of a dead writer, and its one unsealed segment."""
    path = tmp_path_factory.mktemp("log") / "t.ml"
    log = multilog.create(path, ALL_TYPES, segment_blocks=3)
    writer = log.writer(ahead=-1)
    for k in range(4):
        writer.append(block_of(ALL_TYPES, random_columns(ALL_TYPES, 40_000, k)))
    writer.stop()
    return path, log.segments()[0].path


@settings(max_examples=150, deadline=None)
@given(
    changes=st.lists(st.tuples(st.integers(0, 14_000), st.binary(min_size=1, max_size=9)), min_size=1, max_size=4),
    block=st.integers(0, 2),
)
def test_noise_in_a_growing_segment(growing: tuple[Path, str], changes: list[tuple[int, bytes]], block: int) -> None:
    """Without checksums values may be wrong, but no reader crashes, and the next writer continues."""
    path, name = growing
    segment = multilog.open(path).segments()[0].segment
    stride, header = segment.shape.geometry()[0], len(segment.shape.header)
    with open(name, "r+b") as f:
        keep = []
        for change, new in changes:
            at = change if change < header else block * stride + change
            f.seek(at)
            keep.append((at, f.read(9)))
            f.seek(at)
            f.write(new)
    try:
        log = multilog.open(path)
        for b in log.blocks():
            assert b.check()
            for i in range(log.schema.layout.n):
                b.zones(i)
                bytes(b.buffer(i))
        list(verify(log))
        shutil.rmtree(path.parent / "next.ml", ignore_errors=True)
        shutil.copytree(path, path.parent / "next.ml")
        with multilog.open(path.parent / "next.ml").writer() as writer:
            assert writer.base == 160_000
            writer.append(block_of(ALL_TYPES, random_columns(ALL_TYPES, 10, 1)))
        assert multilog.open(path.parent / "next.ml").version().rows == 160_010
    finally:
        with open(name, "r+b") as f:
            for at, old in reversed(keep):
                f.seek(at)
                f.write(old)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda p: p[:100], "100 bytes of 4096"),
        (lambda p: p[:0], "0 bytes of 4096"),
        (lambda p: b"X" + p[1:], "no control page"),
        (lambda p: p[:8] + b"\x03" + p[9:], "format version 3"),
        (lambda p: p[:12] + p[12:16][::-1] + p[16:], "other byte order"),
        (lambda p: p[:20] + bytes([p[20] ^ 0xFF]) + p[21:], "damaged"),
        (lambda p: p[:5000], "cut short"),
        (lambda p: p[:-1], "cut short"),
        (lambda p: p[:-100] + bytes([p[-100] ^ 0xFF]) + p[-99:], "damaged"),
        (lambda p: signed(p[:40] + (1_000_000).to_bytes(4, "little") + p[44:]), "1000000 lanes"),
        (lambda p: signed(p[:40] + (4096).to_bytes(4, "little") + p[44:]), "cut short"),
        (lambda p: signed(p[:36] + (0).to_bytes(4, "little") + p[40:]), "its control page is invalid"),
        (lambda p: signed(p[:36] + (2**31).to_bytes(4, "little") + p[40:]), "its control page is invalid"),
        (lambda p: signed(p[:56] + (2**63).to_bytes(8, "little") + p[64:]), "cut short"),
        (lambda p: signed(p[:64] + (2**32 - 1).to_bytes(4, "little") + p[68:]), "cut short"),
        (lambda p: signed(p[:76] + (64).to_bytes(4, "little") + p[80:]), "do not match"),
    ],
)
def test_hostile_control_pages(copy: Path, change, reason: str) -> None:  # type: ignore[no-untyped-def]
    control = copy / "control"
    control.write_bytes(change(control.read_bytes()))
    with pytest.raises(StoreError, match=reason) as error:
        multilog.open(copy)
    assert str(error.value).startswith(f"{copy}: ")
    assert "\n" not in str(error.value)


def test_version_2_without_compressed_segments(copy: Path, original: tuple[Path, list[bytes]]) -> None:
    """What a compression leaves that died after it wrote the version."""
    control = copy / "control"
    page = control.read_bytes()
    control.write_bytes(signed(page[:8] + b"\x02" + page[9:]))
    log = multilog.open(copy)
    assert log.control.version == 2
    rows = log.version().rows
    assert read_carefully(copy, original[1]) == (rows, [])
    assert list(verify(log)) == []
    with multilog.open(copy).writer() as writer:
        writer.append(block_of(ALL_TYPES, random_columns(ALL_TYPES, 10, 1)))
    assert multilog.open(copy).version().rows == rows + 10


def signed(page: bytes) -> bytes:
    """The control page with a valid checksum, as an attacker would write it."""
    from confluo_tools.core.multilog.control import crc

    return page[:2044] + crc(page[:2044]).to_bytes(4, "little") + page[2048:]


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 6000), st.integers(0, 255)), min_size=1, max_size=5), st.booleans())
def test_noise_in_the_control_page(
    original: tuple[Path, list[bytes]], changes: list[tuple[int, int]], resign: bool
) -> None:
    """Rejected, or read with rows that were written: never a crash, never an invented row."""
    path, columns = original
    control = path / "control"
    keep = control.read_bytes()
    page = bytearray(keep)
    for at, value in changes:
        page[at] = value
    control.write_bytes(signed(bytes(page)) if resign else bytes(page))
    try:
        read_carefully(path, columns)
        list(verify(multilog.open(path)))
    except StoreError:
        pass
    finally:
        control.write_bytes(keep)


WAYS = (0, 1, 2, 3)  # tables, instruction, products of two sizes


def test_checksums_of_pages_in_each_way() -> None:
    data = np.random.default_rng(1).integers(0, 256, 4096 * 5, dtype=np.uint8).tobytes() + bytes(4096)
    pages = [data[i : i + 4096] for i in range(0, len(data), 4096)]
    slow = [slow_crc32c(p) for p in pages]
    assert [crc_of_pages(data, way) for way in WAYS] == [slow] * 4
    assert slow_crc32c(b"123456789") == 0xE3069283  # the check value of CRC-32C (RFC 3720)
    from confluo_tools.core.multilog.control import crc

    for n in (0, 1, 7, 8, 9, 63, 1000, 4097):
        assert crc(data[:n]) == slow_crc32c(data[:n])


@settings(max_examples=50)
@given(st.integers(1, 9000), st.integers(0, 64), st.randoms(use_true_random=False))
def test_checksums_of_any_bytes_in_each_way(n: int, start: int, random: random.Random) -> None:
    data = memoryview(random.randbytes(start + n))[start:]
    assert {crc_of_bytes(data, way) for way in WAYS} == {slow_crc32c(bytes(data))}


def slow_crc32c(data: bytes) -> int:
    value = 0xFFFFFFFF
    for byte in data:
        value ^= byte
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
    return value ^ 0xFFFFFFFF


def test_a_segment_object_refuses_nonsense(copy: Path) -> None:
    part = multilog.open(copy).segments()[0]
    segment = part.segment
    assert isinstance(segment, Segment)
    assert segment.block(-1, 1) is None
    assert segment.block(99, 1) is None
    assert segment.block(0, 65537) is None
    with pytest.raises(IndexError):
        part.block(2)
