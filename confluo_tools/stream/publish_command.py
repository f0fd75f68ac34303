"""confluo-stream publish: send records to a topic of Kafka.  Manual: confluo-stream-publish(1)."""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated

from confluo_tools import cli
from confluo_tools.cli.options import Fields, option
from confluo_tools.errors import ConfluoError, UsageError
from confluo_tools.stream.options import Metrics, RunName, Setting

if TYPE_CHECKING:
    from confluo_tools.formats.reader import Reader
    from confluo_tools.kafka.topic_writer import TopicWriter
    from confluo_tools.schema import Schema
    from confluo_tools.stream.stage_counts import StageCount

app = cli.command_app(
    """
# all packets of a log, into a topic of eight partitions that is made if there is none
confluo-stream publish trace.ml --to kafka://broker:9092/telemetry --create 8

# only SYNs, as they are captured
confluo-stream publish live.ml 'tcp_flags has syn' --follow --to kafka://broker:9092/syns

# from another command; compressed, over TLS
confluo-query trace.ml tcp -o stream | confluo-stream publish - --to kafka://broker:9093/tcp \\
    --codec lz4 -X security.protocol=ssl
"""
)

CODECS = ("none", "lz4", "zstd", "snappy")
MAX_SIZE = 900_000  # bytes: the default limit of brokers is 1 MB
MAX_PARTITIONS = 4096
# What an observer of traffic needs of a packet; a topic has these unless --fields says more.
TELEMETRY = frozenset(
    [
        "ts",
        "len",
        "ip_version",
        "proto",
        "src_ip",
        "dst_ip",
        "src_port",
        "dst_port",
        "ttl",
        "ip_id",
        "payload_len",
        "tcp_seq",
        "tcp_ack",
        "tcp_flags",
        "tcp_window",
        "tcp_tsval",
        "tcp_tsecr",
        "flow_hash",
    ]
)


@app.command(panels={"Options": "--to --follow --create", "Network": "--codec --size --linger"})
def publish(
    operands: cli.Operands = None,
    read: cli.Read = None,
    to: Annotated[str | None, option("--to", metavar="TOPIC", help="The topic: kafka://HOST:PORT/NAME.")] = None,
    follow: Annotated[bool, option("--follow", help="Go on with what is added to the log, until a signal.")] = False,
    create: Annotated[
        int, option("--create", metavar="N", min=0, max=MAX_PARTITIONS, help="Make the topic, with N partitions.")
    ] = 0,
    fields: Fields = None,
    codec: Annotated[str, option("--codec", metavar="NAME", help="Compress: none, lz4, zstd, snappy (none).")] = "none",
    size: Annotated[str, option("--size", metavar="BYTES", help="Aim at messages of this size (64Ki).")] = "64Ki",
    linger: Annotated[
        str, option("--linger", metavar="TIME", help="A record waits at most TIME for others (20ms).")
    ] = "20ms",
    setting: Setting = None,
    limit: cli.Limit = None,
    name: RunName = None,
    metrics: Metrics = None,
    *,
    ins: cli.InputOptions,
    common: cli.CommonOptions,
) -> int:
    """Send the records of INPUT for which EXPR holds to a topic of Kafka."""
    from confluo_tools import units
    from confluo_tools.kafka.address import parse
    from confluo_tools.kafka.settings import settings
    from confluo_tools.kafka.topic_writer import TopicWriter

    inputs, text = cli.split_operands(operands or [], read or [], None, ins.at)
    if ins.missing(inputs, follow):
        return cli.usage(app)
    if to is None:
        raise UsageError("no topic", where="--to", hint="write --to kafka://HOST:PORT/NAME")
    address = parse(to)
    given = {"compression.type": cli.one_of("--codec", codec, CODECS), **settings(setting)}
    bytes = cli.of_option("--size", units.size, size)
    if not 1024 <= bytes <= MAX_SIZE:
        raise UsageError(f"{size} is not from 1Ki to {MAX_SIZE}", where="--size")
    wait = cli.duration("--linger", linger, 0, 60 * 10**9)
    from confluo_tools.inputs.follow import one_log
    from confluo_tools.stream.operation.operation import RunOperation

    log = one_log(inputs) if follow else False
    watched = log or name is not None or metrics is not None
    with ExitStack() as stack:
        operation = stack.enter_context(RunOperation(name, inputs, metrics)) if watched else None
        reader = stack.enter_context(ins.open(inputs, follow=follow))
        names = chosen(fields, reader.schema)
        if fields == "help":
            print(cli.list_fields(reader.schema))
            return cli.OK
        writer = TopicWriter(address, reader.schema.project(names), given, size=bytes, linger=wait, create=create)
        run = PublishRun(writer, reader, text, limit)
        if operation is not None:
            operation.serve(run)
        with cli.signals(run.stop, counts=run.counts):
            if log:
                run.tail(inputs[0])
            else:
                run.all()
            writer.close()
    if common.stats or (run.stopped and not cli.state.quiet):
        cli.note(run.counts())
    if run.stopped:
        return 128 + run.stopped
    return cli.OK if writer.sink.rows or follow else cli.NOTHING


def chosen(fields: str | None, schema: Schema) -> list[str]:
    """The fields of the records: those of --fields; of packets, otherwise those of telemetry; of others all."""
    from confluo_tools.schema.choose import choose_fields

    found = choose_fields(fields, schema) if fields != "help" else None
    if found is not None:
        return found
    names = [f.name for f in schema.fields]
    return [n for n in names if n in TELEMETRY] if schema.kind == "packet" else names


class PublishRun:
    """Sends the rows of an input for which an expression holds, at most ``limit`` of them."""

    def __init__(self, writer: TopicWriter, reader: Reader, text: str, limit: int | None) -> None:
        from confluo_tools.expr import compile

        self.writer, self.reader, self.limit = writer, reader, limit
        self.expr = compile(text, reader.schema, now_ns=time.time_ns(), filters=reader.filters)
        for line in self.expr.notes:
            cli.tell(line)
        self.stopped = 0
        self.seen = self.sent = 0  # rows that were tried with the expression; rows to send

    def rows(self) -> list[StageCount]:
        from confluo_tools.stream.stage_counts import StageCount
        from confluo_tools.stream.topic_stages import topic_stages

        name = str(self.reader.schema.kind)
        end = topic_stages(self.writer)
        sent, seen = self.sent, self.seen
        return [StageCount("classify", name, 0, seen, sent, filtered=seen - sent), *end]

    def change(self, text: str) -> list[str]:
        raise ConfluoError("this run has no flows that could be changed")

    def stop(self, number: int) -> None:
        self.stopped = number
        self.writer.stop()

    def counts(self) -> str:
        n = self.writer.producer.counts
        return (
            f"{self.writer.sink.rows} records sent, {n['records_acked']} delivered in {n['acked']} messages,"
            f" {self.writer.lost} lost, {self.writer.producer.queued} messages queued"
        )

    def all(self) -> None:
        """The whole input."""
        from confluo_tools.formats.limit import limited

        self.reader.on_idle(self.writer.idle)
        self.reader.stop_when(lambda: self.stopped != 0)
        for block, picks in limited(self.reader.select(self.expr), self.limit):
            self.seen += block.rows
            self.sent += block.rows if picks is None else len(picks)
            self.writer.write(block, picks)
            if self.stopped:
                return

    def tail(self, path: str) -> None:
        """What the log has, and what is added to it."""
        from confluo_tools.formats.limit import first_rows
        from confluo_tools.inputs.follow import PAUSE
        from confluo_tools.multilog.tails import Tails

        left = self.limit
        with Tails(path) as tails:
            while not self.stopped and left != 0:
                for part, _ in tails.take():
                    picks = self.expr.program.select(part)
                    n = len(picks) if left is None else min(left, len(picks))
                    self.seen += part.rows
                    self.sent += n
                    self.writer.write(*first_rows(part, picks, n))
                    left = None if left is None else left - n
                    if self.stopped or left == 0:
                        break
                self.writer.idle()
                if not tails.moved():
                    time.sleep(min(PAUSE, self.writer.linger / 1e9 or PAUSE))
            if tails.missed:
                cli.warn(f"{tails.missed} records were removed before they were read", where=path)


def main(argv: list[str] | None = None) -> int:
    # It owns its sockets: a broker or a client of `status` that hangs up must not end it by SIGPIPE.
    return cli.run(app, "confluo-stream publish", argv, owns_state=True)
