"""The first stage of a run that reads a topic: what came of each partition, and what waits there (the lag)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from confluo_tools.stream.stage_counts import StageCount

if TYPE_CHECKING:
    from confluo_tools.formats.reader import Reader

FetchStages = Callable[[], list[StageCount]]


def fetch_stages(reader: Reader | None) -> FetchStages | None:
    """Makes the rows of the stage `fetch`; None if ``reader`` is not that of a topic.  Any thread may call it."""
    from confluo_tools.kafka.topic_reader import TopicReader

    if not isinstance(reader, TopicReader):
        return None

    def rows() -> list[StageCount]:
        lags = reader.lags
        return [
            StageCount("fetch", reader.name, p, n, n, queued=lags.get(p, 0)) for p, n in sorted(reader.fetched.items())
        ]

    return rows
