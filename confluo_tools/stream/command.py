"""confluo-stream: send records to Kafka, and see what is in its topics.  Manual: confluo-stream(1)."""

from __future__ import annotations

import sys

from confluo_tools.verbs import Verb, run_verb

VERBS = (
    Verb("publish", "publish_command", "send records to a topic"),
    Verb("unpack", "unpack_command", "print the records in messages"),
    Verb("status", "operation.status_command", "show where the records of a run are"),
    Verb("set", "operation.set_command", "give a run other flows"),
    Verb("topics", "topics_command", "list the topics of a cluster, and what is in them"),
    Verb("service", "services.command", "find floods, losses and slow flows in a stream"),
)

EXAMPLES = (
    "confluo-stream publish trace.ml --to kafka://broker:9092/telemetry --create 8",
    "confluo-query kafka://broker:9092/telemetry 'tcp_flags has syn' --agg count --by dst_ip,1s",
    "confluo-stream topics kafka://broker:9092",
    "kcat -C -b broker -t telemetry -c 1 -e -D '' | confluo-stream unpack | jq .",
)


def main(argv: list[str] | None = None) -> int:
    words = list(sys.argv[1:] if argv is None else argv)
    status = run_verb(VERBS, "confluo_tools.stream", words)
    if status is not None:
        return status
    from confluo_tools.cli.verbs import without_verb

    purpose = "Every packet as a record in Kafka, and back."
    manual = "'confluo help stream-VERB' opens the manual of a verb."
    return without_verb(words, "confluo-stream", purpose, VERBS, EXAMPLES, manual)
