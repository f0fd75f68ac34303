"""sample by rate: Algorithm 1 of DETER for each five-tuple, as its definition in Python has it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate, pairwise
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from confluo_tools.core.block.block import Picks
from confluo_tools.core.stream import rate_sample, run_rows
from confluo_tools.errors import UsageError
from confluo_tools.formats.block_builder import block_of_rows
from confluo_tools.replay.sampling import RateSampler, TimeRun, inferred_times
from confluo_tools.schema import Schema, builtin
from confluo_tools.stream.functions import read as read_function
from confluo_tools.stream.functions.rate_sample import threshold_of
from function_lab import FunctionRun, cut

SECOND = 10**9
START = 1_700_000_000 * SECOND
PACKET = builtin("packet").project(["ts", "len", "src_ip", "dst_ip", "src_port", "dst_port", "proto"])
FLOW = ("src_ip", "dst_ip", "src_port", "dst_port", "proto")
GAPS = st.one_of(
    st.integers(0, 3_000_000), st.sampled_from([10_000, 10_000, 1_000_000, SECOND, 5 * SECOND, -2_000_000])
)
ARRIVALS = st.lists(st.tuples(GAPS, st.integers(0, 4)), min_size=1, max_size=150)
FIVE_TUPLES = [(1, 2, 3, 4, 6), (2, 1, 4, 3, 6), (1, 2, 3, 4, 17), (1, 2, 3, 5, 6), (9, 2, 3, 4, 6)]


@pytest.fixture(scope="module", autouse=True, params=[True, False], ids=["wide", "narrow"])
def instructions(request: pytest.FixtureRequest) -> Iterator[None]:
    """All tests with the wide instructions of the processor, and without."""
    rate_sample.use_wide(request.param)
    run_rows.use_marked(request.param)
    yield
    rate_sample.use_wide(True)
    run_rows.use_marked(True)


def packets(arrivals: list[tuple[int, int]], start: int = START) -> list[dict[str, int]]:
    times = accumulate((gap for gap, _ in arrivals), initial=start)
    return [
        {"ts": t, "len": i, **dict(zip(FLOW, FIVE_TUPLES[flow], strict=True))}
        for i, (t, (_, flow)) in enumerate(zip(times, arrivals, strict=False))
    ]


def expected_runs(rows: list[dict[str, int]], threshold: int, longest: int) -> list[tuple[int, ...]]:
    """(number of its first row, packets, step) of all runs, by the definition of `replay/sampling.py`."""
    samplers: dict[tuple[int, ...], RateSampler] = {}
    first: dict[tuple[int, ...], int] = {}
    out: list[tuple[int, ...]] = []

    def add(flow: tuple[int, ...], run: TimeRun | None) -> None:
        if run is not None:
            out.append((first[flow], run.packets, run.step))

    for row in rows:
        flow = tuple(row[name] for name in FLOW)
        sampler = samplers.setdefault(flow, RateSampler(threshold))
        if sampler.count and row["ts"] - sampler.time >= longest:
            add(flow, sampler.flush())
        add(flow, sampler.offer(row["ts"]))
        if sampler.count == 1:
            first[flow] = row["len"]
    for flow, sampler in samplers.items():
        add(flow, sampler.flush())
    return sorted(out)


@given(
    ARRIVALS,
    st.sampled_from([START, 2**61 - SECOND // 2, -(2**61)]),  # times that need care when they are subtracted
    st.sampled_from(["1k/s", "100/s", "1G/s"]),
    st.lists(st.integers(1, 70), min_size=1, max_size=5),
)
def test_runs_are_those_of_the_definition(arrivals: Any, start: int, rate: str, sizes: list[int]) -> None:
    rows = packets(arrivals, start)
    out = FunctionRun({"sample": {"rate": rate}}, PACKET)
    for turn, block in enumerate(cut(block_of_rows(PACKET, rows), sizes)):
        assert out.stage.write(block, now=turn)
    out.finish()
    found = sorted(out.rows("len", "run_packets", "run_step"))
    assert found == expected_runs(rows, threshold_of(rate, ""), SECOND)
    assert sum(packets for _, packets, _ in found) == len(rows)
    for number, *flow in out.rows("len", *FLOW):
        assert flow == [rows[number][name] for name in FLOW]


WIDE = builtin("packet").project([*(f.name for f in PACKET.fields), "ip_version", "tcp_seq", "tcp_flags"])


@given(
    st.integers(0, 10**6),
    st.sampled_from([3, 40, 3000]),  # flows: neighbours in a block are of one, of some, of none
    st.sampled_from(["1/s", "1k/s", "1G/s"]),
    st.sampled_from([1, 3, 20]),  # of so many rows one is passed on
)
@settings(max_examples=20, deadline=None)
def test_runs_of_many_flows_keep_their_rows(seed: int, flows: int, rate: str, every: int) -> None:
    random = Random(seed)
    times = accumulate((random.choice([0, 1000, 1000, 500_000]) for _ in range(2500)), initial=START)
    hosts = [random.randrange(2**32) for _ in range(flows)]
    rows = [
        {"ts": t, "len": i, "src_ip": random.choice(hosts), "dst_ip": 1, "src_port": 2, "dst_port": 3, "proto": 6}
        | {"tcp_seq": i * 2654435761 % 2**32, "tcp_flags": i % 512, "ip_version": i % 7}
        | {"src_ip6": random.randbytes(16)}
        for i, t in enumerate(times)
    ]
    out = FunctionRun({"sample": {"rate": rate}}, WIDE)
    taken: list[dict[str, Any]] = []
    for turn, block in enumerate(cut(block_of_rows(WIDE, rows), [1000, 301])):
        chosen = [i for i in range(block.rows) if random.randrange(every) == 0]
        taken += [rows[block.get(WIDE.index("len"), i)] for i in chosen]
        picks = None if every == 1 else Picks.of(block.rows, chosen)
        assert out.stage.write(block, picks, now=turn)
    out.finish()
    found = sorted(out.rows("len", "run_packets", "run_step"))
    assert found == expected_runs(taken, threshold_of(rate, ""), SECOND)
    names = [name for name in rows[0] if name != "len"]
    for number, *values in out.rows("len", *names):
        assert values == [rows[number][name] for name in names]


@given(ARRIVALS, st.lists(st.integers(1, 9), min_size=1, max_size=5))
def test_looks_at_old_flows_change_when_runs_are_given_not_which(arrivals: Any, sizes: list[int]) -> None:
    rows = sorted(packets(arrivals), key=lambda row: row["ts"])
    out = FunctionRun({"sample": {"rate": "1k/s", "longest": "1s"}}, PACKET)
    for turn, block in enumerate(cut(block_of_rows(PACKET, rows), sizes)):
        assert out.stage.write(block, now=turn * SECOND)
        assert out.stage.pass_time(turn * SECOND)
    out.finish()
    assert sorted(out.rows("len", "run_packets", "run_step")) == expected_runs(rows, 10**6, SECOND)


@given(st.lists(st.integers(0, 5_000_000), min_size=1, max_size=300))
def test_all_times_are_known_within_the_threshold_and_the_rate_is_kept(gaps: list[int]) -> None:
    rows = packets([(gap, 0) for gap in gaps])
    out = FunctionRun({"sample": {"rate": "500/s", "longest": "1d"}}, PACKET)
    out.write([block_of_rows(PACKET, rows)])
    out.finish()
    runs = [TimeRun(*run) for run in out.rows("ts", "run_packets", "run_step")]
    for inferred, row in zip(inferred_times(runs), rows, strict=True):
        assert abs(inferred - row["ts"]) <= 2_000_000
    times = [run.time for run in runs]
    assert all(b - a > 2_000_000 for a, b in pairwise(times))


@given(ARRIVALS, st.integers(1, 4))
def test_flows_that_were_displaced_have_their_runs_given(arrivals: Any, most: int) -> None:
    rows = packets(arrivals)
    out = FunctionRun({"sample": {"rate": "1k/s", "flows": most}}, PACKET)
    out.write([block_of_rows(PACKET, rows)])
    stage: Any = out.finish()
    assert sum(n for [n] in out.rows("run_packets")) == len(rows)
    flows = {tuple(row[name] for name in FLOW) for row in rows}
    assert (stage.evicted > 0) == (len(flows) > most)


def test_many_flows_and_full_blocks() -> None:
    rows = [{"ts": START + i * 1000, "len": i % 65536, "src_ip": i % 5000, "proto": 17} for i in range(20_000)]
    out = FunctionRun({"sample": {"rate": "1k/s"}}, PACKET)
    out.write([block_of_rows(PACKET, rows)])
    out.finish()
    # Each flow is at an even rate.
    assert sorted(out.rows("src_ip", "run_packets")) == [(flow, 4) for flow in range(5000)]
    assert {step for [step] in out.rows("run_step")} == {5_000_000}


@given(st.integers(0, 1000), st.integers(1, 2000))
@settings(max_examples=3)
def test_rows_that_wait_for_long_hold_up_no_others(seed: int, cut_at: int) -> None:
    random = Random(seed)

    # Every third record is alone in its flow and waits until the end; the others are of 20 flows without an even rate.
    def flow(i: int) -> dict[str, int]:
        return {"src_ip": 100 + i, "proto": 17} if i % 3 == 0 and i < 6000 else {"src_ip": random.randrange(20)}

    empty = dict.fromkeys(FLOW, 0)
    times = accumulate(random.choice([0, 100, 70_000]) for _ in range(15_000))
    rows = [{"ts": START + t, "len": i, **empty, **flow(i)} for i, t in enumerate(times)]
    out = FunctionRun({"sample": {"rate": "1M/s", "longest": "1d"}}, PACKET)
    for turn, block in enumerate(cut(block_of_rows(PACKET, rows), [cut_at, 700])):
        assert out.stage.write(block, now=turn)
    given_early = len(out.rows("ts"))
    out.finish()
    found = out.rows("len", "run_packets", "run_step")
    assert sorted(found) == expected_runs(rows, 1000, 86400 * SECOND)
    assert given_early > (len(found) - 2000) // 3
    last: dict[tuple[int, ...], int] = {}
    for number, *of_flow in out.rows("len", *FLOW):
        assert number > last.get(tuple(of_flow), -1)
        last[tuple(of_flow)] = number


def test_a_run_that_has_ended_is_given_though_an_older_one_lasts() -> None:
    out = FunctionRun({"sample": {"rate": "1k/s", "longest": "1d"}}, PACKET)
    assert out.stage.write(block_of_rows(PACKET, packets([(0, 0), (10, 1), (10**7, 1), (5, 1), (10, 1)])), now=1)
    assert out.rows("len") == []
    assert out.stage.pass_time(SECOND)
    assert out.rows("len") == [(1,)]
    assert out.stage.pass_time(2 * SECOND)
    assert out.rows("len") == [(1,)]
    out.finish()
    assert out.rows("len", "run_packets") == [(1, 2), (0, 1), (3, 2)]


def test_silence_gives_the_runs_that_wait() -> None:
    out = FunctionRun({"sample": {"rate": "1k/s", "longest": "1s"}}, PACKET)
    assert out.stage.write(block_of_rows(PACKET, packets([(0, 0), (10, 1)])), now=1)
    assert out.stage.pass_time(SECOND)
    assert out.blocks == []
    assert out.stage.pass_time(3 * SECOND)
    assert len(out.rows("ts")) == 2


@pytest.mark.parametrize(
    ("text", "threshold"),
    [
        ("1000/s", 10**6),
        ("1k/s", 10**6),
        ("1/m", 60 * SECOND),
        ("3/s", 333_333_334),
        ("2.5/s", 400_000_000),
        ("1/ms", 10**6),
        ("1G/s", 1),
        ("0.5 / h", 7200 * SECOND),
    ],
)
def test_a_rate_is_a_time_between_records(text: str, threshold: int) -> None:
    assert threshold_of(text, "") == threshold


@pytest.mark.parametrize(
    ("value", "complaint"),
    [
        ({"rate": "1000"}, "rate: '1000' is not a rate; write e.g. 1000/s, 10/m"),
        ({"rate": 1000}, "rate: '1000' is not a rate"),
        ({"rate": "x/s"}, "rate: 'x/s' is not a rate"),
        ({"rate": "0/s"}, "rate: a rate of 0/s is not possible; at most 1G/s is"),
        ({"rate": "-1/s"}, "rate: a rate of -1/s is not possible"),
        ({"rate": "2G/s"}, "rate: a rate of 2G/s is not possible"),
        ({"rate": "1e-9/h"}, "rate: 1e-9/h is less than one record a day"),
        ({"rate": "1/s", "by": "flow"}, "unknown word 'by'"),
        ({"rate": "1/s", "flows": 10**12}, "flows: '1000000000000' is not a number from 1 to 16777216"),
        ({"rate": "1/s", "longest": "0"}, "longest: 0 is not from 1ms to 1d"),
    ],
)
def test_a_wrong_rate_is_one_clear_line(value: object, complaint: str) -> None:
    with pytest.raises(UsageError) as e:
        read_function("sample", value, PACKET, "flows.yaml: flow 'f'")
    assert str(e.value).startswith("flows.yaml: flow 'f': sample: ")
    assert complaint in str(e.value)


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        (["len"], "records of 'packet' lack a time, src_ip, dst_ip, src_port, dst_port, proto"),
        (["ts", "src_ip", "dst_ip", "src_port", "dst_port"], "records of 'packet' lack proto"),
    ],
)
def test_records_without_five_tuples_have_no_rate(fields: list[str], complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        read_function("sample", {"rate": "1/s"}, builtin("packet").project(fields), "flow 'f'")


def test_a_rate_twice_is_refused() -> None:
    once = read_function("sample", {"rate": "1/s"}, PACKET, "flow 'f'").after(PACKET)
    assert isinstance(once, Schema)
    with pytest.raises(UsageError, match="the records have a field run_packets; sample by rate once"):
        read_function("sample", {"rate": "1/s"}, once, "flow 'f'")
