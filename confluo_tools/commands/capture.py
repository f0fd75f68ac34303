"""confluo-capture: packets, live or of files, into a MultiLog, or on as records.  Manual: confluo-capture(1)."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from confluo_tools import cli, config
from confluo_tools.cli import capture_options as options
from confluo_tools.cli.chosen import Chosen
from confluo_tools.cli.log_output import LogOutput
from confluo_tools.errors import UsageError

if TYPE_CHECKING:
    from confluo_tools.cli.privileges import Account
    from confluo_tools.core.predicate import Program
    from confluo_tools.schema import Schema
    from confluo_tools.sources import Captures
    from confluo_tools.sources.nic import Nic

app = cli.command_app(
    """
# the network, indexed and limited while it runs, as somebody who may do nothing else
sudo confluo-capture -i eth0 -w live.ml --lanes 2 --index src_ip,dst_port --keep 1h,10G -Z nobody

# a capture becomes a MultiLog that is indexed by four fields
confluo-capture -r trace.pcap.gz -w trace.ml --index src_ip,dst_ip,src_port,dst_port

# only web traffic, to the next command
zcat trace.pcap.gz | confluo-capture -r - 'tcp and port 443' -o stream | confluo-query - 'tcp_flags has syn' --count

# one flow in a hundred, with the first 96 bytes of each packet
confluo-capture -r trace.pcap -w small.ml --sample 1/100 -s 96
"""
)


@app.command()
def capture(
    expr: cli.Expr = None,
    interface: options.Interfaces = None,
    read: options.ReadFiles = None,
    bpf: options.Bpf = None,
    decap: options.Decap = "outer",
    sample: options.Sample = None,
    sample_packets: options.SamplePackets = None,
    limit: cli.Limit = None,
    duration: cli.Duration = None,
    snap: options.Snap = 0,
    offset: options.Offset = None,
    telemetry: options.Telemetry = False,
    schema: options.SchemaFile = None,
    follow: options.Follow = False,
    lanes: options.LaneCount = None,
    fanout: options.Fanout = None,
    ring: options.RingSize = None,
    no_promiscuous: options.NoPromiscuous = False,
    timestamps: options.Stamps = None,
    immediate: options.Immediate = False,
    wait: options.Wait = None,
    user: cli.User = None,
    list_interfaces: options.ListThem = False,
    *,
    out: cli.RecordingOptions,
    common: cli.CommonOptions,
) -> int:
    """Capture packets, or read them from files, and write them as records."""
    inputs, live = read or [], bool(interface)
    only_live = {"--bpf": bpf, "--fanout": fanout, "--ring": ring, "-p": no_promiscuous, "--timestamps": timestamps,
                 "--immediate": immediate, "--duration": duration, "--wait": wait, "-Z": user}  # fmt: skip
    only_files = {"-r": inputs, "--follow": follow, "--offset": offset}
    for option, given in (only_files if live else only_live).items():
        if given:
            raise UsageError(f"{option} is for {'files' if live else 'live captures'}", hint="confluo-capture(1)")
    if not live and cli.no_input(inputs):
        return cli.usage(app)

    kind = out.kind()
    of_files = bool(inputs) and "-" not in inputs
    offset = False if live else offset
    wanted = fields_wanted(schema, offset=of_files if offset is None else offset, snap=snap, telemetry=telemetry)
    if out.listed(wanted):
        return cli.OK
    names = out.names(wanted)
    log: LogOutput | None = None
    if kind == "multilog":
        optional = {"raw": snap, "file_offset": offset, "switch_path": telemetry, "queue_depth": telemetry}
        log = out.log(
            wanted, names, asked=[name for name, on in optional.items() if on], views=live, any_kind=True,
            sync=sync_when(out.sync, again=of_files and not follow), lanes=256 if live else lanes or 256,
        )  # fmt: skip
        wanted = with_fields(wanted, log, without="file_offset" if offset is False else "")
    chosen = Chosen(
        compiler(" ".join(expr or []), wanted), wanted,
        flows=share("--sample", sample), every=share("--sample-packets", sample_packets), limit=limit,
    )  # fmt: skip

    def records() -> cli.RecordOutput:
        return out.records(wanted, kind, names, sources=inputs if of_files and not snap else ())

    if live:
        from confluo_tools.cli.privileges import account
        from confluo_tools.sources.nic import MOST_LANES, RING, open_nic, ring_size

        if lanes is not None and lanes > MOST_LANES:
            raise UsageError(f"{lanes} lanes are too many", where="--lanes", hint=f"{MOST_LANES} are possible")
        owner = account(user) if user is not None else None
        patience = cli.seconds("--wait", wait)
        nic = open_nic(
            interface or [], wanted, lanes=lanes or 1,
            fanout=cli.one_of("--fanout", "hash" if fanout is None else fanout, ("hash", "cpu", "rr")),
            filter=bpf or "", snap=snap, ring=RING if ring is None else ring_size(ring),
            promiscuous=not no_promiscuous,
            timestamps=cli.one_of("--timestamps", "host" if timestamps is None else timestamps, ("host", "hardware")),
            immediate=immediate, decap=decap, seconds=cli.seconds("--duration", duration),
            wait=10.0 if patience is None else patience, tell=cli.note,
        )  # fmt: skip
        return from_nic(nic, chosen, log, records, owner, stats=common.stats)
    from confluo_tools.sources import open_captures

    captures = open_captures(inputs, wanted, decap=decap, follow=follow)
    return from_files(captures, chosen, log, records, stats=common.stats)


def from_files(
    captures: Captures, chosen: Chosen, out: LogOutput | None, records: Callable[[], cli.RecordOutput], *, stats: bool
) -> int:
    """Read captures to their end, or until a signal."""
    with captures, chosen.signals(captures):
        captures.begin()
        into: LogOutput | cli.RecordOutput = out if out is not None else records()
        try:
            with cli.Progress("reading", captures.total_bytes, "B") as progress, into:
                for block, picks in chosen.rows(captures):
                    into.write(block, picks)
                    progress.update(captures.bytes_read)
                    if chosen.flush_due(captures.live):
                        into.flush()
        finally:
            for line in captures.warnings:
                (cli.warn if captures.damaged else cli.note)(line)
            if stats or chosen.stopped:
                cli.note(chosen.counts(captures))
    return 128 + chosen.stopped if chosen.stopped else cli.OK


def from_nic(
    nic: Nic, chosen: Chosen, out: LogOutput | None, records: Callable[[], cli.RecordOutput], owner: Account | None,
    *, stats: bool,
) -> int:  # fmt: skip
    """Capture until a signal, the limit, the end of the time, or the end of the interfaces."""
    from confluo_tools.cli.live import Lanes, announce, vanished
    from confluo_tools.cli.privileges import hand_over
    from confluo_tools.store.captures import Record

    with nic, chosen.signals(nic):
        hand_over(out, owner)
        into: LogOutput | cli.RecordOutput = out if out is not None else records()
        record = None
        try:
            with into:
                if out is not None:
                    lanes = Lanes(nic, out.writers(nic.lanes), chosen)
                    record = Record(out.path, {"interfaces": {i.name: i.index for i in nic.interfaces}})
                nic.begin()
                announce(nic)
                if record is not None:
                    lanes.run(record, chosen)
                else:
                    for block, picks in chosen.rows(nic):
                        into.write(block, picks)
                        into.flush()
            if nic.gone:
                raise vanished(nic)
        finally:
            nic.hush()
            if record is not None:
                record.update(chosen.figures(nic), "signal" if chosen.stopped else "vanished" if nic.gone else "done")
            if stats or chosen.stopped:
                cli.note(chosen.counts(nic))
    return 128 + chosen.stopped if chosen.stopped else cli.OK


def fields_wanted(schema: str | None, *, offset: bool, snap: int, telemetry: bool) -> Schema:
    """The fields to fill: those of the packet schema, or of a schema file or a built-in schema."""
    from confluo_tools.sources import packet_schema

    if schema is None:
        return packet_schema(offset=offset, snap=snap, telemetry=telemetry)
    from confluo_tools.schema import builtin, builtin_names, load

    found = builtin(schema) if schema in builtin_names() and not os.path.exists(schema) else load(schema)
    of_packets(found, schema)
    if snap and "raw" not in found:
        found = found.plus([packet_schema(snap=snap)["raw"]])
    return found


def of_packets(schema: Schema, where: str) -> None:
    """Raises UsageError unless packets have fields of this schema."""
    from confluo_tools.core.packet import column_names

    if not {c.name for c in schema.columns} & {*column_names(), "raw"}:
        raise UsageError("has no field that a packet could fill", where=where, hint="confluo-capture -f help")


def with_fields(wanted: Schema, out: LogOutput, without: str) -> Schema:
    """What to parse: all that an expression may ask for, and all that the log keeps."""
    log = out.schema
    if log.kind != wanted.kind:  # it was made with --schema
        of_packets(log, out.path)
        return log
    types = {c.name: (c.code, c.size, c.count) for c in wanted.columns}
    for column in log.columns:
        if types.get(column.name, (column.code, column.size, column.count)) != (column.code, column.size, column.count):
            hint = f"-s {column.size} does" if column.name == "raw" else "use the schema of the log"
            what = f"field '{column.name}' does not fit the one that the log has ({column.field.type.text})"
            raise UsageError(what, where=out.path, hint=hint)
    return wanted.plus([f for f in log.fields if f.name not in wanted and f.name != without])


def sync_when(flag: str | None, *, again: bool) -> str:
    """What must reach the disk: as asked or configured; else nothing if the input could be read ``again``."""
    if flag is None and config.setting("sync").origin == "default":
        return "none" if again else "seal"
    return config.text("sync", flag)


def compiler(text: str, schema: Schema) -> Callable[[], Program] | None:
    """What makes programs of an expression; None when there is no expression."""
    if not text:
        return None
    from confluo_tools.expr import compile

    for note in compile(text, schema).notes:
        if not cli.state.quiet:
            cli.note(note)
    return lambda: compile(text, schema).program


def share(option: str, text: str | None) -> int:
    """N of 1/N, 1 when the option was not given."""
    if text is None:
        return 1
    from confluo_tools.expr.sample import share as parse

    return cli.of_option(option, parse, text)


def main(argv: Sequence[str] | None = None) -> int:
    return cli.run(app, "confluo-capture", argv, owns_state=True)
