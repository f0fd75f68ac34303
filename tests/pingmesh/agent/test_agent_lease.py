"""Fail closed: against the paper's rules in words, and a twin that only remembers what was heard."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from confluo_tools.pingmesh.agent.lease import PACES, ControllerAnswer, Lease, Pressure, Throttle

ONE = ControllerAnswer("list", "", 7, 10)


def asked(*answers: ControllerAnswer, every: float = 10.0) -> tuple[Lease, list[str]]:
    """A lease after these answers, and its steps in words."""
    agent, did = Lease(every, 1.0), []
    for i, answer in enumerate(answers):
        step = agent.update(answer, i * every)
        did.append(f"{step.act} {step.event} {step.reason}".rstrip())
    return agent, did


def lost(why: str = "refused") -> ControllerAnswer:
    return ControllerAnswer("lost", why)


def test_nothing_is_probed_before_there_is_a_list() -> None:
    agent = Lease(10, 1)
    assert not agent.probing
    assert agent.check(1e9).act == "keep"  # and nothing to end


def test_the_third_question_in_vain_ends_it_and_says_why() -> None:
    agent, did = asked(ONE, lost(), lost(), lost("timed out"), lost(), ONE)
    assert did == [
        "take list",
        "keep",
        "keep",
        "clear stopped controller_lost",
        "clear  controller_lost",
        "take resumed",
    ]
    assert agent.probing
    assert not asked(ONE, lost(), lost("a"), lost("timed out"))[0].probing
    again = Lease(10, 1)
    for answer in (ONE, lost(), lost()):
        again.update(answer, 0)
    assert again.update(lost("timed out"), 0).detail == "no answer 3 times: timed out"


def test_an_answer_between_begins_the_count_anew() -> None:
    agent, did = asked(ONE, lost(), lost(), ControllerAnswer("same"), lost(), lost())
    assert agent.probing
    assert did[1:] == ["keep"] * 5


@pytest.mark.parametrize(("kind", "reason"), [("missing", "no_list"), ("empty", "empty_list"), ("bad", "bad_list")])
def test_a_controller_that_has_no_list_for_us_ends_it_at_once(kind: str, reason: str) -> None:
    """An operator stops the fleet by taking the files away."""
    agent, did = asked(ONE, ControllerAnswer(kind, "why"), ControllerAnswer(kind, "why"))
    assert did == ["take list", f"clear stopped {reason}", f"clear  {reason}"]
    assert not agent.probing
    assert agent.reason == reason


def test_a_list_without_peers_is_empty() -> None:
    assert asked(ONE, ControllerAnswer("list", "", 8, 0))[1][1] == "clear stopped empty_list"


def test_who_has_no_list_is_not_told_that_it_is_the_same() -> None:
    """Else a controller that always says 304 would let a fleet believe it has been confirmed."""
    did = asked(ControllerAnswer("same"), ControllerAnswer("same"), ControllerAnswer("same"))[1]
    assert did == ["keep", "keep", "clear stopped controller_lost"]
    did = asked(ONE, ControllerAnswer("missing"), ControllerAnswer("same"), ONE)[1]
    assert did == ["take list", "clear stopped no_list", "keep", "take resumed"]


def test_another_reason_is_told_too() -> None:
    assert asked(ONE, ControllerAnswer("missing"), lost(), lost(), lost(), ControllerAnswer("bad"))[1][1:] == [
        "clear stopped no_list",
        "keep",
        "keep",
        "clear stopped controller_lost",
        "clear stopped bad_list",
    ]


def test_the_same_list_again_is_taken_silently() -> None:
    assert asked(ONE, ONE, ONE._replace(version=8))[1] == ["take list", "take", "take list"]


def test_a_list_that_nobody_confirms_is_over() -> None:
    """The one who asks has died, or the host slept through it all."""
    agent = Lease(10, 1)
    agent.update(ONE, 100)
    assert agent.check(100 + 5 * 10 + 3).act == "keep"
    step = agent.check(100 + 5 * 10 + 3.1)
    assert (step.act, step.event, step.reason) == ("clear", "stopped", "controller_lost")
    assert not agent.probing
    assert agent.check(1e9).act == "keep"  # reported once


KINDS = st.sampled_from(["list", "same", "missing", "empty", "bad", "lost"])


@given(st.lists(st.tuples(KINDS, st.floats(0.1, 40)), max_size=60), st.integers(0, 3))
def test_it_probes_only_with_a_confirmed_list(heard: list[tuple[str, float]], version: int) -> None:
    """Twin: the last answer that was not silence, the silences since, and the time since a list was confirmed."""
    agent, now, holds, silences, confirmed = Lease(10, 1), 0.0, False, 0, 0.0
    events: list[tuple[str, str]] = []
    for kind, wait in heard:
        now += wait
        if holds and now > confirmed + 53:
            holds = False
        steps = [agent.check(now)]
        assert agent.probing == holds
        if kind == "same" and not holds:
            kind = "lost"
        silences = silences + 1 if kind == "lost" else 0
        if kind in ("missing", "empty", "bad") or silences >= 3:
            holds = False
        elif kind in ("list", "same"):
            holds, confirmed = True, now
        sent = ControllerAnswer(kind, "", version, 3 if kind == "list" else 0)
        steps.append(agent.update(sent, now))
        assert agent.probing == holds
        assert (steps[1].act == "clear") <= (not holds)
        events += [(s.event, s.reason) for s in steps if s.event]
        assert bool(agent.reason) == (not holds and any(e == "stopped" for e, _ in events))
        if events and not holds and agent.reason:
            assert events[-1] == ("stopped", agent.reason)  # the last record says why
    names = [e for e, _ in events]
    assert all(a != b or a in ("list", "stopped") for a, b in pairwise(names))


def test_a_fleet_does_not_ask_in_step_and_each_agent_asks_often_enough() -> None:
    def asking(seed: int) -> Lease:
        agent = Lease(100, 1, seed)
        agent.update(ONE, 0)
        return agent

    pauses = [[its.pause() for _ in range(3)] for its in map(asking, range(50))]
    assert all(90 <= p <= 110 for row in pauses for p in row)
    assert len({round(row[0], 3) for row in pauses}) > 40
    assert pauses[0] == [asking(0).pause(), *pauses[0][1:]]  # seeded
    assert all(0 <= Lease(100, 1, seed).pause(first=True) <= 10 for seed in range(50))


def test_an_agent_that_never_had_a_list_asks_sooner() -> None:
    """Else one that is started with its controller, and a moment too early, waits for five minutes."""
    agent = Lease(300, 1, 7)
    early = [agent.pause() for _ in range(8)]
    assert all(
        0.9 * wanted <= p <= 1.1 * wanted for p, wanted in zip(early, [5, 10, 20, 40, 80, 160, 300, 300], strict=True)
    )
    agent.update(ONE, 0)
    agent.update(ControllerAnswer("lost"), 1)
    assert agent.pause() >= 270  # once there was one, no faster than --every
    assert Lease(1, 1, 7).pause() <= 1.1  # nor ever slower


def test_an_agent_without_patience_is_refused() -> None:
    for bad in ((0, 1), (1, 0), (-1, 1)):
        with pytest.raises(ValueError, match="above 0"):
            Lease(*bad)


def test_it_slows_down_step_by_step_and_recovers_slowly() -> None:
    throttle = Throttle()
    assert throttle.pace == 1
    assert [(throttle.update(Pressure(cpu=0.95)), throttle.pace) for _ in range(5)] == [
        (True, 2),
        (True, 4),
        (True, 10),
        (False, 10),
        (False, 10),
    ]
    assert throttle.slowest
    assert [throttle.update(Pressure(cpu=0.8)) for _ in range(10)] == [False] * 10  # between: stays
    assert [throttle.update(Pressure(cpu=0.1)) for _ in range(9)] == [False, False, True] * 3
    assert throttle.pace == 1


@given(st.lists(st.floats(0, 3), max_size=80))
def test_it_never_stops_and_never_jumps(looks: list[float]) -> None:
    throttle, before = Throttle(), 0
    for share in looks:
        changed = throttle.update(Pressure(late=share))
        assert throttle.pace in PACES
        assert abs(throttle.step - before) <= 1
        assert changed == (throttle.step != before)
        assert not (share > 0.9 and throttle.step < before)
        assert not (share >= 0.75 and throttle.step < before)
        before = throttle.step


def test_the_worst_is_named() -> None:
    assert Pressure(cpu=0.2, memory=0.5, late=0.95).worst() == (0.95, "late")
