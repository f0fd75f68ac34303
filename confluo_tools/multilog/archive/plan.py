"""What a run of confluo-archive would do, as records of the schema ``archive_plan``, for --dry-run."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from confluo_tools.schema import load

if TYPE_CHECKING:
    from confluo_tools.multilog.archive.compaction import MergedBatch
    from confluo_tools.multilog.archive.retention import RemovedPart
    from confluo_tools.multilog.archive.writer import BatchResult
    from confluo_tools.multilog.retain import SealedSegment
    from confluo_tools.schema import Schema

BATCHES = ("log", "lane", "first", "rows", "newest", "bytes")  # the fields of each form
SEGMENTS = ("path", "rows")
PARTS = ("path", "bytes")
MERGES = ("path", "parts", "into")
Row = Mapping[str, Any]


def plan_schema(*forms: Sequence[str]) -> Schema:
    """The schema with the fields of these forms."""
    names = dict.fromkeys(name for form in forms for name in form)
    return load(os.path.join(os.path.dirname(__file__), "plan.yaml")).project(names)


def batches(found: Iterable[tuple[str, BatchResult]]) -> list[Row]:
    """Batches of logs that would be archived, or that are archived and would be removed from the log."""
    return [
        {
            "log": log,
            "lane": one.lane,
            "first": one.first,
            "rows": one.end - one.first,
            "newest": one.newest or 0,
            "bytes": one.log_bytes,
        }
        for log, one in found
    ]


def segments(found: Iterable[SealedSegment]) -> list[Row]:
    """Segments that would be deleted or compressed."""
    return [{"path": one.path, "rows": one.end - one.base} for one in found]


def parts(found: Iterable[RemovedPart]) -> list[Row]:
    """Parts of an archive that would be removed."""
    return [{"path": one.path, "bytes": one.bytes} for one in found]


def merges(archive: str, found: Sequence[MergedBatch]) -> list[Row]:
    """How many parts of ``archive`` would become how many; nothing if none would be merged."""
    before, after = sum(one.parts for one in found), sum(one.into for one in found)
    return [{"path": archive, "parts": before, "into": after}] if found else []
