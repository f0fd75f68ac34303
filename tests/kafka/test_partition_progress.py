"""How far partitions are, next to a look at all of them for each message."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from confluo_tools.kafka.partition_progress import FAR, FIRST, LAST, STALLED, PartitionProgress

PARTITIONS = st.integers(0, 3)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("message"), PARTITIONS, st.sampled_from([0, 1, FAR, FAR + 1, FAR + 2, 3 * FAR, 9 * FAR])),
        st.tuples(st.just("end"), PARTITIONS, st.just(0)),
        st.tuples(st.just("assign"), st.integers(0, 15), st.just(0)),
        st.tuples(st.just("wait"), st.just(0), st.sampled_from([1, int(STALLED)])),
    ),
    max_size=30,
)


def believed(times: list[int]) -> int:
    """The latest time that is no further than `FAR` from one before, or that the next message has reached, too."""
    latest = FIRST
    for t, later in zip(times, [*times, FIRST][1:], strict=True):
        if t <= latest + FAR or later >= t - FAR:
            latest = max(latest, t)
    return latest


def test_one_wrong_clock_moves_no_mark() -> None:
    progress = PartitionProgress()
    progress.assign([0], 0.0)
    for t in (10, 20, 1 << 62, 30):
        progress.message(0, 0.0)
        progress.records(0, t)
        assert progress.mark(0.0) == {10: FIRST, 20: 20, 1 << 62: 20, 30: 30}[t]


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
            heard[p] = now
            times.setdefault(p, []).append(value)
        elif word == "end":
            progress.end(p)
            busy.discard(p)
        elif word == "assign":
            busy = {k for k in range(4) if p >> k & 1}
            since = now
            progress.assign(busy, now)
        else:
            now += value
        moving = [believed(times.get(k, [])) for k in busy if now - heard.get(k, since) < STALLED]
        assert progress.mark(now) == min(moving, default=LAST)
        assert progress.at_end == (not busy)
        assert [progress.is_at_end(k) for k in range(4)] == [k not in busy for k in range(4)]
