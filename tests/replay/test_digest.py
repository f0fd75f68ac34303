"""Digests of headers: an equal list has equal digests, and a change is found within its 64 packets."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from confluo_tools.replay.recording.digest import header_digests

_word = st.integers(0, (1 << 32) - 1)
_header = st.tuples(
    _word,
    _word,
    _word,
    st.integers(0, 511),
    st.integers(0, 65535),
    st.lists(_word, max_size=4).map(lambda edges: tuple(edges + edges)),
)


@given(st.lists(_header, min_size=1, max_size=20), st.integers(1, 10), st.data())
def test_one_changed_field_changes_the_digest_of_its_packets(few, times, data):
    headers = few * times * 4
    place = data.draw(st.integers(0, len(headers) - 1))
    field = data.draw(st.integers(0, 3))
    bit = data.draw(st.integers(0, 8))
    other = list(headers)
    values = list(headers[place])
    values[field] ^= 1 << bit
    other[place] = tuple(values)
    before, after = header_digests(headers), header_digests(other)
    assert len(before) == -(-len(headers) // 64)
    assert [n for n, (a, b) in enumerate(zip(before, after, strict=True)) if a != b] == [place // 64]


def test_digest_of_known_headers():
    # FNV-1a by hand: the recorder computes the same value in other languages
    digest = 0x811C9DC5
    for word in (1, 2, 3, 16 | 2 << 9 | 512 << 16, 100, 200):
        digest = (digest ^ word) * 0x01000193 % 2**32
        digest ^= digest >> 15
    assert header_digests([(1, 2, 3, 16, 512, (100, 200))]) == [digest]
