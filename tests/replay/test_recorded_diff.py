"""`confluo-replay diff`: what a recording does not say is no proof."""

from __future__ import annotations

from test_recording import ends_of
from test_recording_reader import WHOLE

from confluo_tools.replay.engine.diff_command import line_of
from confluo_tools.replay.engine.recorded_diff import end_diff
from confluo_tools.replay.recording.kinds import Kind


def without(*kinds: Kind) -> list[dict[str, object]]:
    return [dict(row) for row in WHOLE if row["kind"] not in kinds]


def test_whole_recordings_are_the_same() -> None:
    for end in ends_of(WHOLE):
        found = end_diff(end, end)
        assert (found.first, found.proof != "") == (-1, True)
        assert line_of(found).startswith("same (")


def test_recordings_without_headers_and_digests_cannot_be_compared() -> None:
    """A recorder that was killed leaves no number of packets: 0 headers are not all of them."""
    for end in ends_of(without(Kind.END, Kind.DIGEST, Kind.SENT)):
        found = end_diff(end, end)
        assert found.proof == ""
        assert line_of(found).startswith("cannot be compared")


def test_times_are_not_compared_without_the_begin() -> None:
    for whole, late in zip(ends_of(WHOLE), ends_of(without(Kind.BEGIN)), strict=True):
        assert end_diff(whole, late).errors == []
        assert end_diff(whole, whole).errors != []
