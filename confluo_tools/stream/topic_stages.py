"""The last stages of a run: rows packed into messages, and messages delivered."""

from __future__ import annotations

from typing import TYPE_CHECKING

from confluo_tools.stream.stage_counts import StageCount

if TYPE_CHECKING:
    from confluo_tools.kafka.row_writer import PlaceWriter
    from confluo_tools.kafka.topic_writer import TopicWriter


def end_stages(writer: PlaceWriter, pipeline: int = 0) -> list[StageCount]:
    """`deliver` of a writer; for a topic also `send`."""
    from confluo_tools.kafka.topic_writer import TopicWriter

    if isinstance(writer, TopicWriter):
        return topic_stages(writer, pipeline)
    n = writer.counts
    queued = max(0, n.rows - n.delivered - n.lost)
    return [StageCount("deliver", writer.name, pipeline, n.rows, n.delivered, 0, n.lost, queued=queued)]


def topic_stages(writer: TopicWriter, pipeline: int = 0) -> list[StageCount]:
    """`send` and `deliver` of a writer with a producer of its own.

    Counters are read from the last to the first, so that no stage seems to give what the one before did not take.
    """
    n = writer.producer.counts
    flow, place = "all", str(writer.address)
    delivered = n["records_acked"] + n["records_failed"]
    dropped = writer.sink.dropped + writer.sink.refused
    taken = max(writer.sink.rows, n["records_sent"] + dropped)
    return [
        StageCount(
            "send", flow, pipeline, taken, n["records_sent"], 0, dropped, queued=taken - n["records_sent"] - dropped
        ),
        StageCount(
            "deliver",
            place,
            pipeline,
            n["records_sent"],
            n["records_acked"],
            0,
            n["records_failed"],
            queued=n["records_sent"] - min(delivered, n["records_sent"]),
        ),
    ]
