"""confluo-stream publish: send records to Kafka, to files and to neighbours.  Manual: confluo-stream-publish(1)."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated

from confluo_tools import cli
from confluo_tools.cli import nic_options
from confluo_tools.cli.options import Fields, Metrics, option
from confluo_tools.errors import ConfluoError, UsageError
from confluo_tools.stream.collect_options import CollectOptions
from confluo_tools.stream.input_run import InputRun
from confluo_tools.stream.options import RunName, Setting
from confluo_tools.stream.telemetry import chosen

if TYPE_CHECKING:
    from confluo_tools.formats.reader import Reader
    from confluo_tools.kafka.row_writer import PlaceWriter
    from confluo_tools.schema import Schema
    from confluo_tools.stream.collect import FlowPlan
    from confluo_tools.stream.stage_counts import StageCount

app = cli.command_app(
    """
# packets of an interface, shared among flows, without privileges
sudo confluo-stream publish -i eth0 --flows flows.yaml --to kafka://broker:9092/telemetry --lanes 2 -Z nobody

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
MAX_PARTITIONS = 4096


@app.command(
    panels={
        "Options": "-i --flows --to --follow --create",
        "Network": "--codec --size --linger",
        "Filtering": "--bpf",
        "Capture": "--workers --lanes --decap --fanout --ring -p --timestamps --immediate --wait",
    }
)
def publish(
    operands: cli.Operands = None,
    read: cli.Read = None,
    to: Annotated[
        str | None,
        option(
            "--to",
            metavar="PLACE",
            help="kafka://HOST:PORT/TOPIC, clickhouse://HOST/TABLE, unix:PATH, FILE.messages or -.",
        ),
    ] = None,
    follow: Annotated[bool, option("--follow", help="Go on with what is added to the log, until a signal.")] = False,
    create: Annotated[
        int, option("--create", metavar="N", min=0, max=MAX_PARTITIONS, help="Make the topic, with N partitions.")
    ] = 0,
    fields: Fields = None,
    codec: Annotated[str, option("--codec", metavar="NAME", help="Compress: none, lz4, zstd, snappy (none).")] = "none",
    size: Annotated[
        str | None, option("--size", metavar="BYTES", help="Aim at messages of this size (64Ki; ClickHouse: 32Mi).")
    ] = None,
    linger: Annotated[
        str | None,
        option("--linger", metavar="TIME", help="A record waits at most TIME for others (20ms; ClickHouse: 1s)."),
    ] = None,
    setting: Setting = None,
    limit: cli.Limit = None,
    ddl: cli.Ddl = False,
    name: RunName = None,
    metrics: Metrics = None,
    *,
    ins: nic_options.NicInput,
    live: CollectOptions,
    common: cli.CommonOptions,
) -> int:
    """Send the records of INPUT, or packets, for which EXPR holds to topics of Kafka, or to other places."""
    from confluo_tools import units
    from confluo_tools.stream.destination import FORMS, Destination, print_tables

    live.only_for_interfaces()
    interfaces = live.interface or []
    if interfaces:
        inputs: list[str] = []
        text = " ".join(operands or [])
        only_files = {"-r": read, "--follow": follow, "-c": limit is not None, "--input-format": ins.input_format}
        for word, is_given in only_files.items():
            if is_given:
                raise UsageError(f"{word} is for inputs, not for interfaces", hint="confluo-stream-publish(1)")
    else:
        inputs, text = cli.split_operands(operands or [], read or [], None, ins.at)
        if ins.missing(inputs, follow):
            return cli.usage(app)
    if to is None and live.flows is None:
        raise UsageError("no place for the records", where="--to", hint=f"write {FORMS}")
    cli.one_of("--codec", codec, CODECS)
    place = Destination(to, setting, codec=codec, create=create) if to is not None and live.flows is None else None
    bytes = cli.of_option("--size", units.size, size) if size is not None else None
    wait = cli.duration("--linger", linger, 0, 60 * 10**9) if linger is not None else None
    from confluo_tools.formats.growing import GrowingReader
    from confluo_tools.inputs.follow import one_log
    from confluo_tools.inputs.growing import open_growing
    from confluo_tools.stream.operation.operation import RunOperation

    def planned(schema: Schema, filters: Mapping[str, str] | None = None) -> FlowPlan:
        from confluo_tools.stream.collect import FlowPlan
        from confluo_tools.stream.flows_file import FlowsReader
        from confluo_tools.stream.outlet import places

        flows = FlowsReader(schema, to or "", fields, filters)
        outlets = places(setting, codec, create, size=bytes, linger=wait, wait=not interfaces)
        listed = flows.whole("all", text) if live.flows is None else flows.file(live.flows)
        return FlowPlan(flows, listed, outlets, live.workers)

    if interfaces:
        from confluo_tools.cli.privileges import account
        from confluo_tools.formats.pcap import packet_schema
        from confluo_tools.stream.collect import from_interfaces

        schema = packet_schema(offset=False)
        if fields == "help":
            print(cli.list_fields(schema))
            return cli.OK
        if live.flows is not None and text:
            raise UsageError("--flows has the expressions", where=text, hint="write match: in it, or leave --flows out")
        plan = planned(schema)
        if ddl:
            print_tables((flow.to, flow.records) for flow in plan.flows)
            return cli.OK
        owner = account(live.user) if live.user is not None else None
        nic = live.open(schema)
        with RunOperation(name, interfaces, metrics) as operation:
            return from_interfaces(nic, plan, operation, owner, stats=common.stats)
    log = one_log(inputs) if follow else False
    watched = follow or name is not None or metrics is not None
    with ExitStack() as stack:
        operation_or_none = stack.enter_context(RunOperation(name, inputs, metrics)) if watched else None
        reader = stack.enter_context(open_growing(inputs) if log else ins.open(inputs, follow=follow))
        if fields == "help":
            print(cli.list_fields(reader.schema))
            return cli.OK
        if live.flows is not None:
            from confluo_tools.stream.collect import from_input

            plan = planned(reader.schema, reader.filters)
            if ddl:
                print_tables((flow.to, flow.records) for flow in plan.flows)
                return cli.OK
            return from_input(reader, ",".join(inputs), plan, operation_or_none, text, limit, log, common.stats)
        assert place is not None
        records = reader.schema.project(chosen(fields, reader.schema))
        if ddl:
            print_tables([(place.to, records)])
            return cli.OK
        writer = place.open(records, size=bytes, linger=wait)
        if isinstance(reader, GrowingReader):
            reader.pause = min(reader.pause, writer.linger / 1e9 or reader.pause)
        run = PublishRun(writer, reader, ",".join(inputs), text, limit)
        if operation_or_none is not None:
            operation_or_none.serve(run)
        with cli.signals(run.stop, counts=run.counts):
            run.all()
            writer.close()
    if common.stats or (run.stopped and not cli.state.quiet):
        cli.note(run.counts())
    if run.stopped:
        return 128 + run.stopped
    return cli.OK if writer.counts.rows or follow else cli.NOTHING


class PublishRun(InputRun):
    """Sends the rows of an input to one topic, in one thread."""

    def __init__(self, writer: PlaceWriter, reader: Reader, name: str, text: str, limit: int | None) -> None:
        from confluo_tools.stream.fetch_stages import fetch_stages

        super().__init__(writer, reader, text, limit)
        self.writer, self.name = writer, name
        self._fetched = fetch_stages(reader)

    def rows(self) -> list[StageCount]:
        from confluo_tools.stream.stage_counts import StageCount
        from confluo_tools.stream.topic_stages import end_stages

        end = end_stages(self.writer)
        sent, seen = self.sent, self.seen
        first = self._fetched() if self._fetched is not None else [StageCount("receive", self.name, 0, seen, seen)]
        return [*first, StageCount("classify", "", 0, seen, sent, seen - sent), *end]

    def change(self, text: str) -> list[str]:
        raise ConfluoError("this run has no flows that could be changed", hint="--flows gives it some")

    def before_wait(self) -> None:
        if not self.reader.polled and not self.writer.timed:
            self.writer.sink.flush()  # nothing runs while a pipe is silent
        self.writer.idle()

    def stop(self, number: int) -> None:
        self.stopped = number
        self.writer.stop()

    def counts(self) -> str:
        return str(self.writer.counts)


def main(argv: list[str] | None = None) -> int:
    # It owns its sockets: a broker or a client of `status` that hangs up must not end it by SIGPIPE.
    return cli.run(app, "confluo-stream publish", argv, owns_state=True)
