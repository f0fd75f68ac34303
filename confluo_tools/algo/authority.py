"""Who lets an agent probe: the fail-closed rules of Pingmesh's agent, and of slowing down.

An agent probes only while it holds a list that its controller has confirmed.  Every way of asking in vain ends at the
same place: no peers.  Pure: time comes in as a number, answers as values; whoever asks is elsewhere.
"""

from __future__ import annotations

import random
from typing import NamedTuple

PATIENCE = 3  # answers in a row that may fail to come; the last of them ends the probing
EARLY = 5.0  # s to the second question of an agent that has had no list yet; then twice that, and so on
LEASE = 2  # intervals of grace after which a list that nobody confirmed or denied is over, too

# What came of asking once.
LIST, SAME, MISSING, EMPTY, BAD, LOST = "list", "same", "missing", "empty", "bad", "lost"
# What is to be done with the peers.
KEEP, TAKE, CLEAR = "keep", "take", "clear"
# Why there are none: names of the field `reason` of the probe schema.
REASONS = {MISSING: "no_list", EMPTY: "empty_list", BAD: "bad_list", LOST: "controller_lost"}


class Answer(NamedTuple):
    """What came of asking the controller once; ``detail`` in words, ``version`` and ``peers`` of a list."""

    kind: str
    detail: str = ""
    version: int = 0
    peers: int = 0


class Step(NamedTuple):
    """What follows: ``act`` on the peers, and the ``event`` and ``reason`` to tell ('' when there is none)."""

    act: str
    event: str = ""
    reason: str = ""
    detail: str = ""


class Authority:
    """Whether an agent may probe.

    ``interval`` is the time between two questions and ``deadline`` the longest that one takes, in seconds, as ``now``
    is of a clock that never steps and goes on while the host sleeps.  Until the first list nothing is probed.
    """

    def __init__(self, interval: float, deadline: float, seed: int = 0, *, patience: int = PATIENCE) -> None:
        if interval <= 0 or deadline <= 0 or patience < 1:
            raise ValueError("interval, deadline and patience are above 0")
        self.interval, self.deadline, self.patience = interval, deadline, patience
        self.probing = False
        self.version = 0
        self.lost = 0  # in a row
        self.reason = ""  # why we are not probing, once somebody was told
        self.confirmed = float("-inf")
        self._random = random.Random(seed)
        self._began = False
        self._early = 0  # questions before the first list

    def heard(self, answer: Answer, now: float) -> Step:
        """The controller was asked: what follows from its answer."""
        kind = answer.kind
        if kind == SAME and not self.probing:
            kind, answer = LOST, Answer(LOST, "says that nothing changed to an agent that has no list")
        if kind == LIST and not answer.peers:
            kind = EMPTY
        if kind == LOST:
            self.lost += 1
            if self.lost < self.patience:
                return Step(KEEP)
            return self._end(LOST, f"{self.lost} times without an answer: {answer.detail}")
        self.lost = 0
        if kind == SAME:
            self.confirmed = now
            return Step(KEEP)
        if kind != LIST:
            return self._end(kind, answer.detail or REASONS[kind].replace("_", " "))
        event = "resumed" if self._began and not self.probing else "list"
        if self.probing and answer.version == self.version:
            event = ""
        self.probing = self._began = True
        self.confirmed, self.version, self.reason = now, answer.version, ""
        return Step(TAKE, event, "", answer.detail)

    def passed(self, now: float) -> Step:
        """Time went by: a list that was not confirmed for too long (nobody asks any more; the host slept) is over."""
        if self.probing and now > self.lease:
            return self._end(LOST, f"nothing was heard for {now - self.confirmed:.0f} s")
        return Step(KEEP)

    @property
    def lease(self) -> float:
        """Until when the list holds, whatever happens."""
        return self.confirmed + (self.patience + LEASE) * self.interval + self.patience * self.deadline

    def pause(self, *, first: bool = False) -> float:
        """Seconds until the next question: the interval and up to a tenth more or less, so that a fleet does not ask
        in step.  ``first``: before the first one, up to a tenth of it.  Until there was a list, it is asked sooner:
        controllers and agents are often started together.
        """
        share = self._random.random()
        if first:
            return self.interval * share / 10
        every = self.interval
        if not self._began:
            every = min(every, EARLY * 2 ** min(self._early, 20))
            self._early += 1
        return every * (0.9 + share / 5)

    def _end(self, kind: str, detail: str) -> Step:
        reason, told = REASONS[kind], self.reason
        self.probing, self.version, self.reason = False, 0, reason
        return Step(CLEAR, "" if told == reason else "stopped", reason, detail)


PACES = (1, 2, 4, 10)  # how many times the planned intervals


class Pressure(NamedTuple):
    """How the host is, each as a share of what it may be: 1 is the limit."""

    cpu: float = 0.0  # of the agent, of its allowance
    memory: float = 0.0
    late: float = 0.0  # probes begun late
    failed: float = 0.0  # probes that this host could not send

    def worst(self) -> tuple[float, str]:
        """The largest, and its name."""
        return max(zip(self, self._fields, strict=True))


class Throttle:
    """Slows an agent down while its host has no room for it, and never to nothing: a silent agent is a blind spot.

    Engages above ``high``, step by step; lets go below ``low``, after ``calm`` looks in a row.
    """

    def __init__(self, high: float = 0.9, low: float = 0.75, calm: int = 3) -> None:
        if not 0 < low < high or calm < 1:
            raise ValueError("0 < low < high and calm above 0")
        self.high, self.low, self.calm = high, low, calm
        self.step = 0
        self._calm = 0

    @property
    def pace(self) -> int:
        """How many times the planned intervals are to be waited."""
        return PACES[self.step]

    @property
    def slowest(self) -> bool:
        return self.step == len(PACES) - 1

    def look(self, pressure: Pressure) -> bool:
        """Take a look; says whether the pace changed."""
        worst, _ = pressure.worst()
        before = self.step
        if worst > self.high:
            self._calm = 0
            self.step = min(self.step + 1, len(PACES) - 1)
        elif worst < self.low:
            self._calm += 1
            if self._calm >= self.calm and self.step:
                self.step, self._calm = self.step - 1, 0
        else:
            self._calm = 0
        return self.step != before
