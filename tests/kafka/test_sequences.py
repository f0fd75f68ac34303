"""Sequences of messages against their definition, also when a reader is started again in the middle."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from confluo_tools.kafka.message import Envelope
from confluo_tools.kafka.sequences import SequenceCheck


def envelope(host: str, seq: int, dropped: int = 0, partition: int = 0) -> Envelope:
    return Envelope(host, 0, 1, partition, seq, 0, 0, 1, dropped)


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 30)), max_size=60), st.integers(0, 60))
def test_each_message_counts_once(messages: list[tuple[str, int]], restart: int) -> None:
    check = SequenceCheck()
    missing = repeated = 0
    first: dict[str, int] = {}
    seen: set[tuple[str, int]] = set()
    for number, (host, seq) in enumerate(messages):
        if number == restart:
            saved = json.loads(json.dumps(check.saved()))
            missing, repeated, check = check.missing, check.repeated, SequenceCheck()
            check.restore(saved)
        new = (host, seq) not in seen and seq >= first.setdefault(host, seq)
        assert check.is_new(envelope(host, seq)) == new
        if new:
            seen.add((host, seq))
    spans = {host: max(seq for h, seq in seen if h == host) - low + 1 for host, low in first.items()}
    assert missing + check.missing == sum(spans.values()) - len(seen)
    assert repeated + check.repeated == len(messages) - len(seen)


def test_records_that_senders_dropped() -> None:
    check = SequenceCheck()
    check.is_new(envelope("new", 0, dropped=3))
    check.is_new(envelope("new", 0, dropped=5, partition=1))
    check.is_new(envelope("old", 7, dropped=100))
    check.is_new(envelope("old", 8, dropped=102))
    assert check.dropped == 5 + 2


def test_two_senders_with_one_name_do_not_disturb_each_other() -> None:
    """The start of each tells them apart, also when their messages alternate."""
    check = SequenceCheck()
    for seq in range(5):
        for run in (1, 2):
            envelope = Envelope("same", 0, run, 0, seq, first=0, last=0, records=1, dropped=10 * run * seq)
            assert check.is_new(envelope)
    assert (check.missing, check.repeated, check.dropped) == (0, 0, 4 * 10 + 4 * 20)
