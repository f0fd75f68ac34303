"""Posting files against brute force: every type, buckets, damage, truncated and foreign files."""

from __future__ import annotations

import os
import struct
from bisect import bisect_right

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from confluo_tools.core.block.block import Block, Layout
from confluo_tools.core.multilog.postings import Postings, PostingsBuilder, blank, file_key, offsets

UUID = bytes(range(16))
DTYPE = {1: "u1", 2: "u2", 3: "u4", 4: "u8", 5: "i1", 6: "i2", 7: "i4", 8: "i8", 9: "f4", 10: "f8"}
SIZE = {1: 1, 2: 2, 3: 4, 4: 8, 5: 1, 6: 2, 7: 4, 8: 8, 9: 4, 10: 8}


def order_key(code, value):
    """The twin of pyx/block/c_sort_key.pxd."""
    if code <= 4:
        return value
    if code <= 8:
        return value + 2**63
    if code <= 10:
        bits = struct.unpack(">Q", struct.pack(">d", value + 0.0))[0]
        return bits ^ (2**64 - 1) if bits >> 63 else bits | 1 << 63
    return int.from_bytes(value[:8].ljust(8, b"\0"), "big")


def expected(code, values, bucket):
    lists: dict[int, list[int]] = {}
    for row, value in enumerate(values):
        key = order_key(code, value // bucket if bucket > 1 else value)
        lists.setdefault(key, []).append(row)
    return sorted(lists.items())


def file_of(tmp_path, blocks, code, size, bucket=1, room=16, name="a.idx"):
    """A posting file of these blocks of one column; its path and key."""
    path = os.fspath(tmp_path / name)
    key = file_key(UUID, 0, blocks[0].base if blocks else 0, "x", code, size, bucket, room)
    with open(path, "wb") as f:
        f.write(blank(key, room))
    builder = PostingsBuilder()
    fd = os.open(path, os.O_RDWR)
    for number, block in enumerate(blocks):
        builder.append(fd, number, block, 0, bucket)
    os.close(fd)
    return path, key


def block_of(values, code, size=None, base=0):
    size = size or SIZE[code]
    data = b"".join(values) if code == 11 else np.array(values, dtype=DTYPE[code]).tobytes()
    return Block.wrap(Layout([("x", code, size, 1)]), len(values), [data], base=base)


def integers(code):
    bits = SIZE[code] * 8
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if code > 4 else (0, (1 << bits) - 1)
    return st.one_of(
        st.sampled_from([low, low + 1, 0, 1, high - 1, high]),
        st.integers(low, high),
        st.integers(max(low, -3), min(high, 70)),
    )


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_postings_are_the_rows_of_each_value(tmp_path_factory, data):
    code = data.draw(st.integers(1, 11))
    size = data.draw(st.sampled_from([1, 4, 8, 16])) if code == 11 else SIZE[code]
    if code == 11:
        one = st.binary(min_size=size, max_size=size)
    elif code > 8:
        one = st.floats(width=SIZE[code] * 8, allow_nan=False)
    else:
        one = integers(code)
    values = data.draw(st.lists(one, min_size=1, max_size=120))
    if data.draw(st.booleans()):
        values.sort()
    bucket = data.draw(st.sampled_from([1, 2, 7, 10, 1000, 2**40])) if code <= 8 else 1
    path, key = file_of(tmp_path_factory.mktemp("p"), [block_of(values, code, size, base=1 << 20)], code, size, bucket)
    for mapped in (False, True):
        postings = Postings(path, key, mapped)
        assert postings.keys(0) == expected(code, values, bucket)
        assert postings.sound(whole=True)


@pytest.mark.parametrize("rows", [1, 63, 64, 65, 65535, 65536])
@pytest.mark.parametrize("kind", ["constant", "few", "u16", "all different", "random u32", "random u64", "time"])
def test_full_blocks_of_every_spread(tmp_path, kind, rows):
    rng = np.random.default_rng(rows)
    code, values = {
        "constant": (3, np.full(rows, 7)),
        "few": (3, rng.integers(0x0A000000, 0x0A000100, rows)),
        "u16": (2, rng.integers(0, 65536, rows)),
        "all different": (3, rng.permutation(rows) * 65521),
        "random u32": (3, rng.integers(0, 2**32, rows)),
        "random u64": (4, rng.integers(0, 2**64, rows, dtype="u8")),
        "time": (8, 1_700_000_000_000_000_000 + np.arange(rows) * 100),
    }[kind]
    bucket = 1_000_000 if kind == "time" else 1
    path, key = file_of(tmp_path, [block_of(values, code)], code, SIZE[code], bucket)
    found = Postings(path, key).keys(0)
    assert found == expected(code, values.tolist(), bucket)
    assert sum(len(r) for _, r in found) == rows


def test_nan_and_both_zeros_have_keys(tmp_path):
    values = [0.0, -0.0, float("nan"), 1.0, float("inf"), float("-inf")]
    path, key = file_of(tmp_path, [block_of(values, 10)], 10, 8)
    lists = [rows for _, rows in Postings(path, key).keys(0)]
    assert lists == [[5], [0, 1], [3], [4], [2]]


def test_low_cardinality_costs_two_bytes_a_row():
    rng = np.random.default_rng(1)
    chunk = PostingsBuilder().chunk(block_of(rng.integers(0, 256, 65536), 3), 0)
    assert len(chunk) / 65536 < 2.1


def test_unpublished_bytes_are_not_looked_at(tmp_path):
    # A maintainer that dies after writing a chunk, or half of one, leaves bytes after the published ones.
    blocks = [block_of([1, 2, 1], 3, base=0), block_of([5] * 9, 3, base=65536)]
    path, key = file_of(tmp_path, blocks[:1], 3, 4)
    whole = file_of(tmp_path, blocks, 3, 4, name="b.idx")[0]
    with open(whole, "rb") as f:
        full = f.read()
    with open(path, "r+b") as f:
        f.seek(0, 2)
        f.write(full[f.tell() : -7])
    postings = Postings(path, key)
    assert postings.blocks == 1
    assert postings.keys(0) == [(1, [0, 2]), (2, [1])]
    assert postings.keys(1) is None
    fd = os.open(path, os.O_RDWR)
    PostingsBuilder().append(fd, 1, blocks[1], 0, 1)  # the next maintainer overwrites them
    os.close(fd)
    assert postings.grown
    assert Postings(path, key).keys(1) == [(5, list(range(9)))]


def test_blocks_are_appended_in_order_only(tmp_path):
    path, _ = file_of(tmp_path, [block_of([1], 3)], 3, 4, room=2)
    fd = os.open(path, os.O_RDWR)
    try:
        for number in (0, 2, 99):
            with pytest.raises(ValueError, match="not the next"):
                PostingsBuilder().append(fd, number, block_of([1], 3, base=65536), 0, 1)
        PostingsBuilder().append(fd, 1, None, 0, 1)
        with pytest.raises(ValueError, match="not the next"):
            PostingsBuilder().append(fd, 2, block_of([1], 3, base=131072), 0, 1)
    finally:
        os.close(fd)


def test_a_block_left_out_has_no_postings(tmp_path):
    path, key = file_of(tmp_path, [block_of([1], 3), None, block_of([2], 3, base=131072)], 3, 4)
    postings = Postings(path, key)
    assert [postings.keys(i) for i in range(3)] == [[(1, [0])], None, [(2, [0])]]
    assert postings.damaged == set()
    assert postings.sound(whole=True)


def test_files_of_something_else_are_refused(tmp_path):
    path, key = file_of(tmp_path, [block_of([1], 3)], 3, 4)
    for other in (
        file_key(bytes(16), 0, 0, "x", 3, 4, 1, 16),  # another log
        file_key(UUID, 1, 0, "x", 3, 4, 1, 16),  # another lane
        file_key(UUID, 0, 65536, "x", 3, 4, 1, 16),  # another segment
        file_key(UUID, 0, 0, "y", 3, 4, 1, 16),  # another field
        file_key(UUID, 0, 0, "x", 7, 4, 1, 16),  # another type
        file_key(UUID, 0, 0, "x", 3, 4, 10, 16),  # another bucket
    ):
        with pytest.raises(ValueError, match="another segment"):
            Postings(path, other)
    with open(path, "wb") as f:
        f.write(b"")
    with pytest.raises(ValueError, match="0 bytes"):
        Postings(path, key)
    with open(path, "wb") as f:
        f.write(os.urandom(9000))
    with pytest.raises(ValueError, match="damaged"):
        Postings(path, key)


def test_any_flipped_bit_is_noticed(tmp_path):
    rng = np.random.default_rng(3)
    blocks = [block_of(rng.integers(0, 40, 3000), 3, base=0), block_of(rng.integers(0, 2**32, 500), 3, base=65536)]
    path, key = file_of(tmp_path, blocks, 3, 4)
    with open(path, "rb") as f:
        good = f.read()
    want = [Postings(path, key).keys(0), Postings(path, key).keys(1)]
    for bit in rng.integers(0, len(good) * 8, 600):
        bad = bytearray(good)
        bad[bit >> 3] ^= 1 << (bit & 7)
        with open(path, "wb") as f:
            f.write(bad)
        try:
            postings = Postings(path, key)
        except ValueError:
            continue
        mapped = Postings(path, key, mapped=True)
        for i in range(2):
            assert postings.keys(i) in (want[i], None)
            assert mapped.keys(i) == postings.keys(i)


def test_cut_files_give_what_is_whole(tmp_path):
    blocks = [block_of(list(range(200)), 3, base=0), block_of(list(range(300)), 3, base=65536)]
    path, key = file_of(tmp_path, blocks, 3, 4)
    size = os.path.getsize(path)
    want = [Postings(path, key).keys(i) for i in range(2)]
    for length in sorted({*range(0, size, 97), size - 1, 4096, 4097}, reverse=True):
        os.truncate(path, length)
        try:
            postings = Postings(path, key)
        except ValueError:
            assert length < 4096
            continue
        assert postings.keys(0) in (want[0], None)
        assert postings.keys(1) is None or length == size
        mapped = Postings(path, key, mapped=True)
        assert [mapped.keys(i) for i in range(2)] == [postings.keys(i) for i in range(2)]


def test_hostile_counts_are_bounded(tmp_path):
    path, key = file_of(tmp_path, [block_of([1], 3)], 3, 4)
    at = offsets()["index file"]["published"]
    for count in (17, 2**32, 2**63):
        with open(path, "r+b") as f:
            f.seek(at)
            f.write(struct.pack("<Q", count))
        with pytest.raises(ValueError, match="damaged"):
            Postings(path, key)
    with open(path, "r+b") as f:  # an entry outside of the file
        f.seek(at)
        f.write(struct.pack("<Q", 2))
        f.seek(offsets()["index file"]["table"] + 16)
        f.write(struct.pack("<QII", 1 << 40, 64, 1))
    postings = Postings(path, key)
    assert postings.keys(1) is None
    assert postings.damaged == {1}


def test_lists_need_a_list_index_and_floats_no_buckets():
    lists = Block.wrap(Layout([("x", 2, 2, 4)]), 1, [bytes(8)])
    with pytest.raises(ValueError, match="cannot be indexed"):
        PostingsBuilder().chunk(lists, 0)
    with pytest.raises(ValueError, match="cannot be indexed"):
        PostingsBuilder().chunk(block_of([1.0], 10), 0, 10)
    with pytest.raises(ValueError, match="0 rows"):
        PostingsBuilder().chunk(block_of([], 3), 0)


def test_buckets_of_negative_numbers_go_down(tmp_path):
    values = [-(2**63), -(2**63) + 1, -11, -10, -1, 0, 9, 10, 2**63 - 1]
    path, key = file_of(tmp_path, [block_of(values, 8)], 8, 8, 10)
    keys = [k - 2**63 for k, _ in Postings(path, key).keys(0)]
    assert keys == sorted({v // 10 for v in values})
    assert bisect_right(keys, -1) == keys.index(0)
