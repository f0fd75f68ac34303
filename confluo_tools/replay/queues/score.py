"""How far a replay of queues is from the truth: drop error and queue difference (DETER, section 5.4)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

Contents = Mapping[tuple[int, int], Mapping[int, int]]  # (packet, hop) -> {flow: bytes in the queue}


@dataclass(frozen=True)
class DropErrors:
    """``false_accepts`` were dropped only in the truth, ``false_drops`` only in the replay, ``wrong_places`` at two
    different ports; ``dropped`` in either.
    """

    false_accepts: int
    false_drops: int
    wrong_places: int
    dropped: int

    @property
    def error(self) -> float:
        """The paper's drop error; 0 without any drop."""
        return (self.false_accepts + self.false_drops + self.wrong_places) / self.dropped if self.dropped else 0.0


def compare_drops(truth: Mapping[int, int], replay: Mapping[int, int]) -> DropErrors:
    """Compare {packet: port that dropped it} of both."""
    both = truth.keys() & replay.keys()
    wrong = sum(truth[packet] != replay[packet] for packet in both)
    return DropErrors(len(truth) - len(both), len(replay) - len(both), wrong, len(truth.keys() | replay.keys()))


def queue_differences(truth: Contents, replay: Contents) -> list[int]:
    """For each packet and hop in both: the bytes by which its queues differ, summed over flows; ascending."""
    found = []
    for key, ours in truth.items():
        theirs = replay.get(key)
        if theirs is not None:
            found.append(sum(abs(ours.get(f, 0) - theirs.get(f, 0)) for f in ours.keys() | theirs.keys()))
    return sorted(found)
