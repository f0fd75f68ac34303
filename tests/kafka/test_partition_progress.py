"""How far partitions are, next to a look at all of them for each message."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from confluo_tools.kafka.partition_progress import FIRST, LAST, STALLED, PartitionProgress

PARTITIONS = st.integers(0, 3)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("message"), PARTITIONS, st.integers(0, 9)),
        st.tuples(st.just("end"), PARTITIONS, st.just(0)),
        st.tuples(st.just("assign"), st.integers(0, 15), st.just(0)),
        st.tuples(st.just("wait"), st.just(0), st.sampled_from([1, int(STALLED)])),
    ),
    max_size=30,
)


@given(STEPS)
@settings(max_examples=300)
def test_the_mark_is_that_of_all_partitions_that_move(steps):
    progress = PartitionProgress()
    now = since = 100.0
    heard, times, busy = {}, {}, set()
    for word, p, value in steps:
        if word == "message":
            progress.message(p, now)
            progress.records(p, value)
            busy.add(p)
            heard[p], times[p] = now, max(value, times.get(p, FIRST))
        elif word == "end":
            progress.end(p)
            busy.discard(p)
        elif word == "assign":
            busy = {k for k in range(4) if p >> k & 1}
            since = now
            progress.assign(busy, now)
        else:
            now += value
        moving = [times.get(k, FIRST) for k in busy if now - heard.get(k, since) < STALLED]
        assert progress.mark(now) == min(moving, default=LAST)
        assert progress.at_end == (not busy)
        assert [progress.is_at_end(k) for k in range(4)] == [k not in busy for k in range(4)]
