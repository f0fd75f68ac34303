"""confluo-stream: send records to Kafka, and see what is in its topics.  Manual: confluo-stream(1)."""

from __future__ import annotations

import sys
from typing import NamedTuple


class StreamVerb(NamedTuple):
    """A verb of confluo-stream; its manual is confluo-stream-NAME(1)."""

    name: str
    module: str  # below confluo_tools.stream
    help: str


VERBS = (
    StreamVerb("publish", "publish_command", "send records to a topic"),
    StreamVerb("unpack", "unpack_command", "print the records in messages"),
    StreamVerb("topics", "topics_command", "list the topics of a cluster, and what is in them"),
)

EXAMPLES = (
    "confluo-stream publish trace.ml --to kafka://broker:9092/telemetry --create 8",
    "confluo-query kafka://broker:9092/telemetry 'tcp_flags has syn' --agg count --by dst_ip,1s",
    "confluo-stream topics kafka://broker:9092",
    "kcat -C -b broker -t telemetry -c 1 -e -D '' | confluo-stream unpack | jq .",
)


def main(argv: list[str] | None = None) -> int:
    words = list(sys.argv[1:] if argv is None else argv)
    verb = next((verb for verb in VERBS if words[:1] == [verb.name]), None)
    if verb is not None:
        from importlib import import_module

        status: int = import_module(f"confluo_tools.stream.{verb.module}").main(words[1:])
        return status
    from confluo_tools.cli.verbs import without_verb

    purpose = "Every packet as a record in Kafka, and back."
    manual = "'confluo help stream-VERB' opens the manual of a verb."
    return without_verb(words, "confluo-stream", purpose, {v.name: v.help for v in VERBS}, EXAMPLES, manual)
