"""Lease of a Pingmesh agent: the fail-closed rules for probing, and the throttle.

An agent probes only while it holds a list that its controller has confirmed.  Every failure to confirm it ends in the
same state: no peers.  Pure: time is an argument, answers are values; `agent.loop` does the I/O.
"""

from __future__ import annotations

import random
from typing import NamedTuple

PATIENCE = 3  # lost answers in a row that end the probing
EARLY = 5.0  # s to the second fetch of an agent without a list; doubled each time
GRACE = 2  # intervals added to the lease of a list that is neither confirmed nor denied

# Results of a fetch.
LIST, SAME, MISSING, EMPTY, BAD, LOST = "list", "same", "missing", "empty", "bad", "lost"
# Actions on the peers.
KEEP, TAKE, CLEAR = "keep", "take", "clear"
# Reasons for having no peers: values of field `reason` of schema `probe`.
REASONS = {MISSING: "no_list", EMPTY: "empty_list", BAD: "bad_list", LOST: "controller_lost"}


class ControllerAnswer(NamedTuple):
    """Result of a fetch; ``detail``: text, ``version`` and ``peers`` of a list."""

    kind: str
    detail: str = ""
    version: int = 0
    peers: int = 0


class LeaseStep(NamedTuple):
    """Result of an update: the action on the peers, and the event and its reason to record ('': none)."""

    act: str
    event: str = ""
    reason: str = ""
    detail: str = ""


class Lease:
    """Permission to probe, granted by a confirmed list.

    ``interval``: seconds between two fetches; ``deadline``: max seconds of a fetch; ``now`` is of a monotonic clock
    that goes on while the host is suspended.  Before the first list nothing is probed.
    """

    def __init__(self, interval: float, deadline: float, seed: int = 0, *, patience: int = PATIENCE) -> None:
        if interval <= 0 or deadline <= 0 or patience < 1:
            raise ValueError("interval, deadline and patience must be above 0")
        self.interval, self.deadline, self.patience = interval, deadline, patience
        self.probing = False
        self.version = 0
        self.lost = 0  # in a row
        self.reason = ""  # why the agent does not probe, once recorded
        self.confirmed = float("-inf")
        self._random = random.Random(seed)
        self._began = False
        self._early = 0  # fetches before the first list

    def update(self, answer: ControllerAnswer, now: float) -> LeaseStep:
        """Apply the result of a fetch."""
        kind = answer.kind
        if kind == SAME and not self.probing:
            kind, answer = LOST, ControllerAnswer(LOST, "reports an unchanged list to an agent without a list")
        if kind == LIST and not answer.peers:
            kind = EMPTY
        if kind == LOST:
            self.lost += 1
            if self.lost < self.patience:
                return LeaseStep(KEEP)
            return self._end(LOST, f"no answer {self.lost} times: {answer.detail}")
        self.lost = 0
        if kind == SAME:
            self.confirmed = now
            return LeaseStep(KEEP)
        if kind != LIST:
            return self._end(kind, answer.detail or REASONS[kind].replace("_", " "))
        event = "resumed" if self._began and not self.probing else "list"
        if self.probing and answer.version == self.version:
            event = ""
        self.probing = self._began = True
        self.confirmed, self.version, self.reason = now, answer.version, ""
        return LeaseStep(TAKE, event, "", answer.detail)

    def check(self, now: float) -> LeaseStep:
        """End an expired lease: the fetching thread is stuck, or the host was suspended."""
        if self.probing and now > self.expires:
            return self._end(LOST, f"list not confirmed for {now - self.confirmed:.0f} s")
        return LeaseStep(KEEP)

    @property
    def expires(self) -> float:
        """Time at which the lease ends unless the list is confirmed."""
        return self.confirmed + (self.patience + GRACE) * self.interval + self.patience * self.deadline

    def pause(self, *, first: bool = False) -> float:
        """Seconds until the next fetch: the interval plus or minus up to a tenth, so that agents do not fetch in step.

        ``first``: up to a tenth of the interval.  Before the first list fetches are more frequent: controllers and
        agents are often started together.
        """
        share = self._random.random()
        if first:
            return self.interval * share / 10
        every = self.interval
        if not self._began:
            every = min(every, EARLY * 2 ** min(self._early, 20))
            self._early += 1
        return every * (0.9 + share / 5)

    def _end(self, kind: str, detail: str) -> LeaseStep:
        reason, before = REASONS[kind], self.reason
        self.probing, self.version, self.reason = False, 0, reason
        return LeaseStep(CLEAR, "" if before == reason else "stopped", reason, detail)


PACES = (1, 2, 4, 10)  # factors on the planned intervals


class Pressure(NamedTuple):
    """Use of resources, each as a share of its limit."""

    cpu: float = 0.0  # of the agent
    memory: float = 0.0
    late: float = 0.0  # probes skipped
    failed: float = 0.0  # probes that this host could not send

    def worst(self) -> tuple[float, str]:
        """The largest share, and its name."""
        return max(zip(self, self._fields, strict=True))


class Throttle:
    """Slows an agent down under pressure, but never stops it: a silent agent is a blind spot.

    Slows by one step above ``high``; speeds up by one step after ``calm`` checks in a row below ``low``.
    """

    def __init__(self, high: float = 0.9, low: float = 0.75, calm: int = 3) -> None:
        if not 0 < low < high or calm < 1:
            raise ValueError("0 < low < high and calm above 0 are required")
        self.high, self.low, self.calm = high, low, calm
        self.step = 0
        self._calm = 0

    @property
    def pace(self) -> int:
        """Factor on the planned intervals."""
        return PACES[self.step]

    @property
    def slowest(self) -> bool:
        return self.step == len(PACES) - 1

    def update(self, pressure: Pressure) -> bool:
        """Apply a check; returns whether the pace changed."""
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
