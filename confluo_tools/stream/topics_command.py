"""confluo-stream topics: the topics of a cluster, and what is in them.  Manual: confluo-stream-topics(1)."""

from __future__ import annotations

from typing import Annotated

from confluo_tools import cli
from confluo_tools.cli.options import argument, option
from confluo_tools.stream.options import Setting

app = cli.command_app(
    """
# what is there?
confluo-stream topics kafka://broker:9092

# one topic, partition by partition
confluo-stream topics kafka://broker:9092/telemetry

# how far behind is a consumer group?
confluo-stream topics kafka://broker:9092/telemetry --group archive -f partition,end,committed,lag
"""
)

USUAL = ("topic", "partitions", "messages", "ts", "kind", "records", "bytes", "host")
ONE = ("partition", "messages", "begin", "end", "ts", "kind", "records", "bytes", "first", "host", "seq", "dropped")


GROUP = ("lag", "committed")  # after `messages` and `end`, with --group


@app.command(panels={"Options": "--group -X"})
def topics(
    address: Annotated[str, argument("CLUSTER", "The cluster or a topic of it: kafka://HOST:PORT[/NAME].")],
    group: Annotated[
        str | None, option("--group", metavar="NAME", help="Also print how far this consumer group is behind.")
    ] = None,
    setting: Setting = None,
    *,
    out: cli.OutputOptions,
    common: cli.TalkOptions,
) -> int:
    """List the topics of a cluster, or the partitions of a topic: messages, and the last one of them."""
    from confluo_tools.kafka.address import parse
    from confluo_tools.kafka.settings import settings
    from confluo_tools.kafka.topic_contents import partitions_of, whole_topics
    from confluo_tools.schema import builtin

    schema = builtin("topic")
    if out.listed(schema):
        return cli.OK
    place = parse(address, topic=False)
    rows = partitions_of(place, settings(setting, place), group)
    found = list(rows if place.topic else whole_topics(rows))
    kind = out.kind(answers=True)
    usual = USUAL if not place.topic else ONE
    if group is not None:
        at = usual.index("messages" if not place.topic else "end") + 1
        usual = (*usual[:at], *(GROUP[:1] if not place.topic else GROUP[::-1]), *usual[at:])
    names = out.names(schema, kind, usual)
    out.write_rows(schema, kind, names, found)
    return cli.OK if found else cli.NOTHING


def main(argv: list[str] | None = None) -> int:
    return cli.run(app, "confluo-stream topics", argv)
