"""The records of the schema `recording` in Python.

`read_ends` collects the rows of each end of each connection, `pair_ends` joins the two ends of a connection,
`Runs.expanded` gives the single events, and `RunWriter` writes events as rows.
"""

from __future__ import annotations

from confluo_tools.replay.recording.connection import ConnectionEnd, FiveTuple, RecordedConnection, pair_ends
from confluo_tools.replay.recording.reader import RecordingReader, read_ends
from confluo_tools.replay.recording.run_writer import Event, RunWriter
from confluo_tools.replay.recording.runs import Runs

__all__ = [
    "ConnectionEnd",
    "Event",
    "FiveTuple",
    "RecordedConnection",
    "RecordingReader",
    "RunWriter",
    "Runs",
    "pair_ends",
    "read_ends",
]
