"""confluo-capture: write packets, live or from files, to a MultiLog or as records.  Manual: confluo-capture(1)."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, NamedTuple

from confluo_tools import cli, config
from confluo_tools.capture import options
from confluo_tools.capture.export_address import ExportAddress, export_addresses
from confluo_tools.capture.selection import PacketSelection
from confluo_tools.cli import nic_options
from confluo_tools.cli.log_output import LogOutput
from confluo_tools.errors import UsageError
from confluo_tools.schema.telemetry_fields import DIGEST, PLACE, TELEMETRY

if TYPE_CHECKING:
    from confluo_tools.cli.privileges import Account
    from confluo_tools.core.query.predicate import Program
    from confluo_tools.formats.pcap import Captures
    from confluo_tools.kernel.nic import Nic
    from confluo_tools.schema import Schema

app = cli.command_app(
    """
# capture the network into an indexed log of limited size, without privileges
sudo confluo-capture -i eth0 -w live.ml --lanes 2 --index src_ip,dst_port --keep 1h,10G -Z nobody

# convert a capture to a MultiLog with four indexed fields
confluo-capture -r trace.pcap.gz -w trace.ml --index src_ip,dst_ip,src_port,dst_port

# send only web traffic to the next command
zcat trace.pcap.gz | confluo-capture -r - 'tcp and port 443' -o stream | confluo-query - 'tcp_flags has syn' --count

# flow records of routers and switches: NetFlow v5 and v9, IPFIX, sFlow
confluo-capture --netflow :2055 --sflow :6343 -w flows.ml --index src_ip,dst_ip --keep 30d

# keep one flow in a hundred, with the first 96 bytes of each packet
confluo-capture -r trace.pcap -w small.ml --sample 1/100 -s 96
"""
)


class CaptureOutput(cli.RecordingOptions):
    """The output options; also the packet formats and a MultiLog."""

    formats = (*cli.PACKET_FORMATS, "multilog")


@app.command(
    panels={
        "Options": "-i -r -w --index -c --duration",
        "Input": "--netflow --sflow --scale-samples --follow --decap --offset --telemetry --telemetry-clock --digest"
        " --schema",
        "Filtering": "--bpf --sample --sample-packets",
        "Capture": "-D -s --lanes --fanout --ring -p --timestamps --immediate --wait",
    }
)
def capture(
    expr: cli.Expr = None,
    interface: nic_options.Interfaces = None,
    read: options.ReadFiles = None,
    netflow: options.NetFlow = None,
    sflow: options.SFlow = None,
    scale_samples: options.ScaleSamples = False,
    bpf: nic_options.Bpf = None,
    decap: nic_options.Decap = "outer",
    sample: options.Sample = None,
    sample_packets: options.SamplePackets = None,
    limit: cli.Limit = None,
    duration: cli.Duration = None,
    snap: options.Snap = 0,
    offset: options.Offset = None,
    telemetry: options.Telemetry = False,
    telemetry_clock: options.TelemetryClock = "us",
    digest: options.Digest = False,
    schema: options.SchemaFile = None,
    follow: options.Follow = False,
    lanes: options.LaneCount = None,
    fanout: nic_options.Fanout = None,
    ring: nic_options.RingSize = None,
    no_promiscuous: nic_options.NoPromiscuous = False,
    timestamps: nic_options.Stamps = None,
    immediate: nic_options.Immediate = False,
    wait: nic_options.Wait = None,
    user: cli.User = None,
    metrics: cli.Metrics = None,
    list_interfaces: options.ListThem = False,
    *,
    out: CaptureOutput,
    common: cli.CommonOptions,
) -> int:
    """Capture packets, or read them from files, and write them as records."""
    inputs, live = read or [], bool(interface)
    only_interfaces = {
        "--bpf": bpf,
        "--fanout": fanout,
        "-p": no_promiscuous,
        "--timestamps": timestamps,
        "--immediate": immediate,
        "--wait": wait,
    }
    of_sockets = {"--ring": ring, "--duration": duration, "-Z": user, "--metrics": metrics}
    only_live = {**only_interfaces, **of_sockets}
    only_files = {"-r": inputs, "--follow": follow, "--offset": offset}
    if netflow or sflow:
        of_packets_only: dict[str, object] = {
            **only_interfaces,
            "-i": interface,
            "--decap": decap != "outer",
            "--sample": sample,
            "--sample-packets": sample_packets,
            "-s": snap,
            "--offset": offset is not None,
            "--telemetry": telemetry,
            "--digest": digest,
            "--schema": schema,
            "--lanes": lanes,
            **(of_sockets if inputs else {"--follow": follow}),
        }
        for name, value in of_packets_only.items():
            if value:
                raise UsageError(f"{name} does not go with --netflow and --sflow", hint="confluo-capture(1)")
        limits = ExportLimits(limit, cli.seconds("--duration", duration), ring, user, metrics)
        return exported_records(
            export_addresses(netflow, sflow), expr, inputs, out, limits, scale_samples, follow, common.stats
        )
    if scale_samples:
        raise UsageError("--scale-samples is for --netflow and --sflow", hint="confluo-capture(1)")
    for option, given in (only_files if live else only_live).items():
        if given:
            raise UsageError(f"{option} is for {'files' if live else 'live captures'}", hint="confluo-capture(1)")
    if not (live or inputs):
        for word in expr or []:
            if os.path.isfile(word) and ("." in word or "/" in word):  # no word of the language is the name of one
                raise UsageError("is a file, not an expression", where=word, hint=f"-r {word} reads it")
    if not live and cli.no_input(inputs):
        return cli.usage(app)

    hop_ns = cli.one_of("--telemetry-clock", telemetry_clock, ("us", "ns")) == "ns"
    kind = out.kind()
    of_files = bool(inputs) and "-" not in inputs
    offset = False if live else offset
    kept_offset = of_files if offset is None else offset
    wanted = fields_wanted(schema, offset=kept_offset, snap=snap, telemetry=telemetry, digest=digest)
    if out.listed(wanted):
        return cli.OK
    names = out.names(wanted)
    log: LogOutput | None = None
    if kind == "multilog":
        optional = {"raw": snap, DIGEST: digest, **dict.fromkeys(PLACE, offset), **dict.fromkeys(TELEMETRY, telemetry)}
        log = out.log(
            wanted,
            names,
            extra_fields=[name for name, on in optional.items() if on],
            views=live,
            old=not live,
            any_kind=True,
            needed=[f.name for f in wanted.fields] if schema is not None or out.fields is not None else (),
            sync=sync_when(out.sync, again=of_files and not follow),
            lanes=256 if live else lanes or 256,
        )
        if log.exists and schema is None and out.fields is None:
            of_packets(log.schema, log.path)
            filled_by_packets(log.schema, log.path)
        wanted = with_fields(wanted, log, without=PLACE if offset is False else ())
    selection = PacketSelection(
        compiler(" ".join(expr or []), wanted, config.truth("local", out.local)),
        wanted,
        flows=share("--sample", sample),
        every=share("--sample-packets", sample_packets),
        limit=limit,
    )

    def records() -> cli.RecordOutput:
        return out.records(wanted, kind, names, sources=inputs if of_files and not snap else ())

    if live:
        from confluo_tools.cli.privileges import account
        from confluo_tools.kernel.nic import MAX_LANES, RING, open_nic, ring_size

        if lanes is not None and lanes > MAX_LANES:
            raise UsageError(f"{lanes} lanes exceed the limit", where="--lanes", hint=f"use at most {MAX_LANES}")
        owner = account(user) if user is not None else None
        patience = cli.seconds("--wait", wait)
        nic = open_nic(
            interface or [],
            wanted,
            lanes=lanes or 1,
            fanout=cli.one_of("--fanout", "hash" if fanout is None else fanout, ("hash", "cpu", "rr")),
            filter=bpf or "",
            snap=snap,
            ring=RING if ring is None else ring_size(ring),
            promiscuous=not no_promiscuous,
            timestamps=cli.one_of("--timestamps", "host" if timestamps is None else timestamps, ("host", "hardware")),
            immediate=immediate,
            decap=decap,
            hop_ns=hop_ns,
            seconds=cli.seconds("--duration", duration),
            wait=10.0 if patience is None else patience,
            notify=cli.note,
        )
        return from_nic(nic, selection, log, records, owner, metrics, stats=common.stats)
    from confluo_tools.formats.pcap import open_captures

    captures = open_captures(inputs, wanted, decap=decap, follow=follow, hop_ns=hop_ns)
    return from_files(captures, selection, log, records, stats=common.stats)


class ExportLimits(NamedTuple):
    """When to stop, the size of the buffers, as whom to run, and the address of the metrics."""

    limit: int | None
    seconds: float | None
    ring: str | None
    user: str | None
    metrics: str | None


def exported_records(
    addresses: list[ExportAddress],
    expr: list[str] | None,
    inputs: list[str],
    out: CaptureOutput,
    limits: ExportLimits,
    scale: bool,
    follow: bool,
    stats: bool,
) -> int:
    """Write the records that exporters send to ``addresses``, or sent there in captures."""
    from confluo_tools.capture import export_run
    from confluo_tools.schema import builtin

    schema, live = builtin("netflow"), not inputs
    if out.listed(schema):
        return cli.OK
    kind = out.kind()
    names = out.names(schema)
    log = out.log(schema, names, views=live, old=not live) if kind == "multilog" else None
    decoder = export_run.decoder_of(schema, scale)
    program = compiler(" ".join(expr or []), schema, config.truth("local", out.local))
    selection = export_run.RecordSelection(program, schema, limits.limit, decoder)

    def records() -> cli.RecordOutput:
        return out.records(schema, kind, names)

    if not live:
        captures = export_run.open_export_captures(inputs, addresses, decoder, schema, follow=follow)
        status = from_files(captures, selection, log, records, stats=stats)
        selection.remarks()
        return status
    from confluo_tools.capture.export_listener import ExportListener
    from confluo_tools.cli.privileges import account
    from confluo_tools.kernel.nic import RING, ring_size

    owner = account(limits.user) if limits.user is not None else None
    buffer = RING if limits.ring is None else ring_size(limits.ring)
    listener = ExportListener(addresses, decoder, buffer=buffer, seconds=limits.seconds)
    return export_run.from_sockets(listener, selection, log, records, owner, limits.metrics, stats=stats)


def from_files(
    captures: Captures,
    selection: PacketSelection,
    out: LogOutput | None,
    records: Callable[[], cli.RecordOutput],
    *,
    stats: bool,
) -> int:
    """Read captures to their end, or until a signal."""
    with captures, selection.signals(captures):
        captures.begin()
        into: LogOutput | cli.RecordOutput = out if out is not None else records()
        try:
            with cli.Progress("reading", captures.total_bytes, "B") as progress, into:
                if out is not None:
                    captures.number = out.first_capture(captures.names)
                for block, picks in selection.rows(captures):
                    into.write(block, picks)
                    progress.update(captures.bytes_read)
                    if selection.flush_due(captures.live):
                        into.flush()
        finally:
            for line in captures.warnings:
                (cli.warn if captures.damaged else cli.note)(line)
            if stats or selection.stopped:
                cli.note(selection.counts(captures))
    return 128 + selection.stopped if selection.stopped else cli.OK


def from_nic(
    nic: Nic,
    selection: PacketSelection,
    out: LogOutput | None,
    records: Callable[[], cli.RecordOutput],
    owner: Account | None,
    metrics: str | None = None,
    *,
    stats: bool,
) -> int:
    """Capture until a signal, the limit, the end of --duration, or the loss of all interfaces."""
    from confluo_tools.capture.lanes import Lanes
    from confluo_tools.capture.metrics import metrics_socket, numbers, serve_metrics
    from confluo_tools.cli.nic_notes import announce, vanished
    from confluo_tools.cli.privileges import hand_over
    from confluo_tools.multilog.capture_statistics import CaptureRecord

    with nic, selection.signals(nic), ExitStack() as stack:
        listening = metrics_socket(metrics, stack)
        hand_over(out, owner)
        labels = {"interfaces": ",".join(i.name for i in nic.interfaces), "log": "" if out is None else out.path}
        serve_metrics(listening, labels, lambda: numbers(selection.latest), stack)
        into: LogOutput | cli.RecordOutput = out if out is not None else records()
        record = None
        try:
            with into:
                if out is not None:
                    lanes = Lanes(nic, out.writers(nic.lanes), selection)
                    record = CaptureRecord(out.path, {"interfaces": {i.name: i.index for i in nic.interfaces}})
                elif isinstance(into, cli.RecordOutput):
                    nic.watch_output(into.fileno())
                nic.begin()
                announce(nic)
                if record is not None:
                    lanes.run(record, selection)
                else:
                    for block, picks in selection.rows(nic):
                        into.write(block, picks)
                        into.flush()
                        if listening is not None:
                            selection.look(nic)
            if nic.gone:
                raise vanished(nic)
        finally:
            nic.stop_input()
            if record is not None:
                record.update(
                    selection.figures(nic), "signal" if selection.stopped else "vanished" if nic.gone else "done"
                )
            if stats or selection.stopped:
                cli.note(selection.counts(nic))
    return 128 + selection.stopped if selection.stopped else cli.OK


def fields_wanted(schema: str | None, *, offset: bool, snap: int, telemetry: bool, digest: bool) -> Schema:
    """The schema to fill: the packet schema, a schema file or a built-in schema."""
    from confluo_tools.formats.pcap import packet_schema

    if schema is None:
        return packet_schema(offset=offset, snap=snap, telemetry=telemetry, digest=digest)
    from confluo_tools.schema import builtin, builtin_names, load

    found = builtin(schema) if schema in builtin_names() and not os.path.exists(schema) else load(schema)
    of_packets(found, schema)
    if snap and "raw" not in found:
        found = found.plus([packet_schema(snap=snap)["raw"]])
    if digest and DIGEST not in found:
        found = found.plus([packet_schema(digest=True)[DIGEST]])
    return found


def of_packets(schema: Schema, where: str) -> None:
    """Raise UsageError unless packets can fill a field of this schema."""
    from confluo_tools.core.packets.packet import column_names

    if not {c.name for c in schema.columns} & {*column_names(), "raw", DIGEST}:
        raise UsageError("has no field that a packet can fill", where=where, hint="confluo-capture -f help")


def filled_by_packets(schema: Schema, where: str) -> None:
    """Raise UsageError if an existing log has fields that no packet fills: it was made for other records."""
    from confluo_tools.core.packets.packet import column_names
    from confluo_tools.formats.foreign_names import fields_named

    known = {*column_names(), "raw", DIGEST}
    other = [f.name for f in schema.fields if f.name not in known]
    if other:
        shared = ",".join(f.name for f in schema.fields if f.name in known)
        hint = f"-f {shared} fills the others" if shared else "choose another name"
        raise UsageError(f"packets cannot fill {fields_named(other)}", where=where, hint=hint)


def with_fields(wanted: Schema, out: LogOutput, without: Sequence[str]) -> Schema:
    """The fields to parse: those of an expression and those of the log."""
    log = out.schema
    if log.kind != wanted.kind:  # the log was created with --schema
        of_packets(log, out.path)
        return log
    types = {c.name: (c.code, c.size, c.count) for c in wanted.columns}
    for column in log.columns:
        if types.get(column.name, (column.code, column.size, column.count)) != (column.code, column.size, column.count):
            hint = f"use -s {column.size}" if column.name == "raw" else "use the schema of the log"
            what = f"field '{column.name}' has another type in the log ({column.field.type.text})"
            raise UsageError(what, where=out.path, hint=hint)
    return wanted.plus([f for f in log.fields if f.name not in wanted and f.name not in without])


def sync_when(flag: str | None, *, again: bool) -> str:
    """When to sync: the option, else the setting, else `none` if the input can be read ``again``, else `seal`."""
    if flag is None and config.setting("sync").origin == "default":
        return "none" if again else "seal"
    return config.text("sync", flag)


def compiler(text: str, schema: Schema, local: bool) -> Callable[[], Program] | None:
    """A function that compiles the expression; None without an expression.  ``local``: as --local."""
    if not text:
        return None
    from confluo_tools.expr import Expr, compile, read_list

    def compiled() -> Expr:
        return compile(text, schema, local=local, lists=read_list)

    for note in compiled().notes:
        cli.tell(note)
    return lambda: compiled().program


def share(option: str, text: str | None) -> int:
    """N of 1/N; 1 without the option."""
    if text is None:
        return 1
    from confluo_tools.expr.sample import share as parse

    return cli.of_option(option, parse, text)


def main(argv: Sequence[str] | None = None) -> int:
    return cli.run(app, "confluo-capture", argv, owns_state=True)
