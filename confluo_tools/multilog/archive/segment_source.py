"""Where the sealed segments of a log come from when they are archived, and how they are removed there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from confluo_tools.core.multilog.control import fault
from confluo_tools.multilog import retain
from confluo_tools.multilog.archive.links import link_archive
from confluo_tools.multilog.retain import SealedSegment, SegmentCatalog, disk_bytes

if TYPE_CHECKING:
    from confluo_tools.core.multilog.segment import Segment
    from confluo_tools.multilog.log import Log


class SegmentSource(Protocol):
    """The sealed segments of one log, on this host or another.

    ``log``: its schema and the shapes of its segments; ``name``: of the log, for people; ``lanes``: their number.
    """

    log: Log
    name: str

    @property
    def lanes(self) -> int: ...

    def lane(self, lane: int) -> list[SealedSegment]:
        """The sealed segments of a lane that are kept, oldest first."""

    def newest(self, segment: SealedSegment) -> int | None:
        """The latest time of the rows of a segment (ns); None when unknown."""

    def disk_bytes(self, segment: SealedSegment) -> int:
        """Disk space of a segment."""

    def open(self, segment: SealedSegment, damage: list[tuple[str, int | None, str]]) -> Segment:
        """The segment, for reading; what is damaged in it will be appended to ``damage``.

        Raises FileNotFoundError (it was removed), ValueError (it is damaged), OSError, ConfluoError.
        """

    def remove(self, lane: int, end: int, archive: str, oldest: int, newest: int) -> None:
        """Remove the rows of ``lane`` before row ``end``, which are whole segments.

        The rows that ``archive`` got last are from ``oldest`` to ``newest`` (ns).  Raises ConfluoError.
        """


class LogSegments:
    """The segments of a log of this host; removing them links the archive in the log."""

    def __init__(self, log: Log) -> None:
        self.log, self.name = log, log.path
        self.catalog = SegmentCatalog(log)

    @property
    def lanes(self) -> int:
        return self.log.control.claimed

    def lane(self, lane: int) -> list[SealedSegment]:
        return self.catalog.lane(lane)

    def newest(self, segment: SealedSegment) -> int | None:
        return self.catalog.newest(segment)

    def disk_bytes(self, segment: SealedSegment) -> int:
        return disk_bytes(segment.path)

    def open(self, segment: SealedSegment, damage: list[tuple[str, int | None, str]]) -> Segment:
        return self.log.open_segment(segment.path, segment.lane, segment.base, segment.end - segment.base, damage)

    def remove(self, lane: int, end: int, archive: str, oldest: int, newest: int) -> None:
        try:
            link_archive(self.log, archive, oldest, newest)
            fault("archive-remembered")
            with retain.removal_lock(self.log, 5.0):
                retain.remove(self.log, {lane: end})
        except OSError as e:
            raise self.log.write_error(e) from None
