"""confluo-trace: trace the paths of flows that lose packets.  Manual: confluo-trace(1)."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated

from confluo_tools import cli
from confluo_tools.cli.log_output import LogOutput
from confluo_tools.cli.options import option
from confluo_tools.errors import UsageError
from confluo_tools.inputs.topics import is_topic

if TYPE_CHECKING:
    from confluo_tools.core.block.block import Block
    from confluo_tools.formats.reader import Reader
    from confluo_tools.multilog.log import Log
    from confluo_tools.network.topology import Topology
    from confluo_tools.schema import Schema
    from confluo_tools.trace.engine import TraceEngine
    from confluo_tools.trace.vip_lookup import CommandLookup, FileLookup

app = cli.command_app(
    """
# paths of the flows with losses that confluo-retx recorded
confluo-trace --from retx.ml -w paths.ml

# the agent of a host, without privileges, at the rate that the switches of this network can answer
sudo confluo-trace --from retx.ml --follow --topology clos.yaml -w paths.ml -Z nobody

# flows with retransmissions in a capture, five per second, internal destinations only
confluo-query trace.ml --analyze tcp retransmission -o stream | confluo-trace --rate 5 --only 10.0.0.0/8 -o table

# trace flows to virtual addresses to the server behind them
confluo-trace --from retx.ml --vip 10.9.0.0/16 --map-command 'slb-lookup --stdin' -w paths.ml
"""
)

MS = 1_000_000
EPOCH = 30_000 * MS
RATE = 10.0  # that of the paper
RECORD = 1.0  # s between updates of the counters in the log


Words = list[str] | None
Text = str | None
From = Annotated[
    Words, option("--from", metavar="INPUT", help="Records of flows: MultiLog, stream, ... (repeatable); - is stdin.")
]
Follow = Annotated[bool, option("--follow", help="Continue as the MultiLog or topic grows, until a signal.")]
EpochOf = Annotated[Text, option("--epoch", metavar="TIME", help="Trace a flow once per TIME (30s).")]
Healthy = Annotated[bool, option("--healthy", help="Also write flows without losses; they have no path.")]
Rate = Annotated[float | None, option("--rate", metavar="N", help="Traceroutes per second (from --topology, else 10).")]
Burst = Annotated[
    int | None,
    option(
        "--burst", metavar="N", min=1, max=1 << 20, help="Traceroutes that may start at once (--rate times 100 ms)."
    ),
]
TopologyOf = Annotated[
    Text, option("--topology", metavar="FILE", help="Topology file: names, ToRs, and the rate that switches allow.")
]
Bound = Annotated[
    Text, option("--bound", metavar="WHICH", help="Rate from the topology: full, or paper (Theorem 1 as printed).")
]
TMax = Annotated[
    float | None, option("--t-max", metavar="N", help="ICMP errors per second that a switch may send (100).")
]
Alias = Annotated[Text, option("--alias", metavar="FILE", help="Lines 'ADDRESS NAME': assign addresses to switches.")]
Map = Annotated[Text, option("--map", metavar="FILE", help="Lines 'VIP[:PORT] DIP[:PORT]': real destinations.")]
MapCommand = Annotated[
    Text, option("--map-command", metavar="CMD", help="Command that returns the real destination of each flow.")
]
Vip = Annotated[Words, option("--vip", metavar="PREFIX", help="Look up only these destinations (repeatable).")]
Only = Annotated[Words, option("--only", metavar="PREFIX", help="Send probes to these addresses only (repeatable).")]
Allow = Annotated[
    Words, option("--allow", metavar="KIND", help="Also probe loopback, broadcast, multicast or foreign (repeatable).")
]
Flows = Annotated[
    int | None, option("--flows", metavar="N", min=1, max=1 << 24, help="Keep at most N flows per epoch (262144).")
]
Tries = Annotated[int, option("--tries", metavar="N", min=1, max=8, help="Maximum probes per hop (2).")]
Timeout = Annotated[
    Text, option("--timeout", metavar="TIME", help="Wait TIME for the first answers (300ms); later, as measured.")
]


@app.command(
    panels={
        "Options": "--from --follow -w --epoch --topology --rate",
        "Filtering": "--healthy --only --vip --allow",
        "Network": "--alias --map --map-command",
        "Probes": "--burst --bound --t-max --tries --timeout",
        "Limits": "--flows",
    }
)
def trace(
    source: From = None,
    follow: Follow = False,
    epoch: EpochOf = None,
    healthy: Healthy = False,
    rate: Rate = None,
    burst: Burst = None,
    topology: TopologyOf = None,
    bound: Bound = None,
    t_max: TMax = None,
    alias: Alias = None,
    map: Map = None,
    map_command: MapCommand = None,
    vip: Vip = None,
    only: Only = None,
    allow: Allow = None,
    flows: Flows = None,
    tries: Tries = 2,
    timeout: Timeout = None,
    user: cli.User = None,
    input_format: cli.InputFormat = None,
    since: cli.Since = None,
    duration: cli.Duration = None,
    *,
    out: cli.RecordingOptions,
    common: cli.CommonOptions,
) -> int:
    """Trace the paths of flows that lost packets."""
    from confluo_tools import units
    from confluo_tools.schema import builtin

    schema = builtin("path")
    if out.listed(schema):
        return cli.OK
    inputs = source or []
    if cli.no_input(inputs):
        return cli.usage(app)
    if follow and (len(inputs) != 1 or inputs[0] == "-" or cli.remote(inputs[0]) is not None):
        what = "requires one MultiLog of this host, or a topic"
        raise UsageError(what, where="--follow", hint="name it with --from LOG")
    if map and map_command:
        raise UsageError("--map and --map-command exclude each other")
    if vip and not (map or map_command):
        raise UsageError("requires a lookup", where="--vip", hint="--map FILE or --map-command CMD")
    kind, names = out.kind(), out.names(schema)
    length = cli.duration("--epoch", epoch, 10 * MS) if epoch is not None else EPOCH
    first = cli.duration("--timeout", timeout, MS, 10_000 * MS) if timeout is not None else 300 * MS
    lasts = cli.duration("--duration", duration, 10 * MS) if duration is not None else 0
    begin = time.time_ns() - length if follow else 1 - (1 << 63)
    begin = units.time(since, local=out.local) if since is not None else begin
    network = network_of(topology, alias)
    pace = pace_of(rate, network[0], topology, bound, t_max)

    from confluo_tools.cli.privileges import FILES, account, hand_over
    from confluo_tools.core.trace.flow_table import NumberMap
    from confluo_tools.trace import engine, input_thread
    from confluo_tools.trace.path_table import SHOWN, PathTable
    from confluo_tools.trace.token_bucket import TokenBucket
    from confluo_tools.trace.traceroute_sockets import Allowed, open_sockets

    try:
        bucket = TokenBucket(pace, burst if burst is not None else max(1, round(pace / 10)))
    except (ValueError, OverflowError):
        raise UsageError(f"{pace:g} is out of range", where="--rate", hint="write 0.001 to 10000000") from None
    allowed = Allowed(only or (), allow or ())
    stored = out.log(schema, names, views=follow, old=not follow) if kind == "multilog" else None
    owner = account(user) if user is not None else None
    shape, ways = schema, None
    if kind == "table" and names is None:
        ways = PathTable(schema, network[4])
        shape, names = ways.schema, [f.name for f in ways.schema.fields] if out.wide else list(SHOWN)
    with ExitStack() as stack:
        sockets = stack.enter_context(open_sockets())
        log: Log | None = input_thread.open_log(inputs[0]) if follow and not is_topic(inputs[0]) else None
        if log is not None:
            stack.callback(log.close)
            reader: Reader | None = None
            called, layout = inputs[0], log.schema.layout
        else:
            reader = stack.enter_context(cli.open_records(inputs, input_format=input_format, follow=follow))
            called, layout = reader.name, reader.schema.layout
        if owner is not None:
            preload(shape, kind, names)
        hand_over(stored, owner, keep=FILES)
        lookup = stack.enter_context(_closing(lookup_of(map, map_command, vip or ())))
        into: LogOutput | cli.RecordOutput = stored or out.records(shape, kind, names)

        def write(block: Block) -> None:
            into.write(block if ways is None else ways.of(block), None)
            into.flush()

        run = engine.TraceEngine(
            bucket,
            allowed,
            lookup,
            schema,
            write,
            cli.tell,
            epoch=length,
            healthy=healthy,
            max_flows=flows or 1 << 18,
            tors=NumberMap(network[2]),
            tors_known=bool(network[3]),
            since=begin,
        )
        run.prober = sockets.prober(
            run.wake,
            NumberMap(network[1]),
            tries=tries,
            least=min(50_000_000, first),
            first=first,
            most=max(1_000_000_000, first),
        )
        run.versions = set(sockets.versions())
        run.schema_of(layout, called)
        return work(run, reader, log, into, lasts, common.stats)


def work(
    run: TraceEngine,
    reader: Reader | None,
    log: Log | None,
    into: LogOutput | cli.RecordOutput,
    duration: int,
    stats: bool,
) -> int:
    """Run the loop and report its counts."""
    from confluo_tools.trace import input_thread

    began = time.monotonic()

    def counts() -> str:
        parts = [f"{n} {what}" for what, n in run.figures().items()]
        return ", ".join([*parts, f"{time.monotonic() - began:.2f} s"])

    broken = False
    with cli.signals(run.stop, counts=counts):
        try:
            with into:
                record = None
                if isinstance(into, LogOutput) and log is not None:
                    from confluo_tools.multilog.capture_statistics import CaptureRecord

                    record = CaptureRecord(into.path, {"agent": "confluo-trace"})
                    run.note_every(RECORD, lambda: record.update(run.figures()) if record is not None else None)
                if log is not None and not cli.state.quiet:
                    cli.note(f"tracing at most {run.rate:g} flows per second; pid {os.getpid()}")
                thread = input_thread.read(reader, run) if reader is not None else input_thread.follow(log, run)
                ended = "trouble"
                try:
                    run.run(duration)
                    ended = "signal" if run.stopped > 0 else "done"
                finally:
                    run.stop(run.stopped)
                    if log is not None or (reader is not None and reader.polled):
                        thread.join()  # it reads the log or the topic, which is about to be closed
                    if record is not None:
                        record.update(run.figures(), ended)
        except BrokenPipeError:
            if log is None:
                raise
            broken = True
        finally:
            if stats or (run.stopped > 0 and not broken and not cli.state.quiet):
                cli.note(counts())
    if broken:
        return 128 + 13
    if run.stopped > 0:
        return 128 + run.stopped
    return cli.OK if run.written or log is not None or (reader is not None and reader.polled) else cli.NOTHING


def network_of(
    topology: str | None, alias: str | None
) -> tuple[Topology | None, dict[int, int], dict[int, int], set[int], dict[int, str]]:
    """The topology; {address: node}; {host address: ToR}; ToRs that can occur in a path; {node: name}."""
    found: Topology | None = None
    names: dict[int, str] = {}
    nodes: dict[int, int] = {}
    tors: dict[int, int] = {}
    if topology is not None:
        from confluo_tools.network.topology_file import read_topology

        found = read_topology(topology, "confluo-trace")
        nodes = dict(found.alias)
        names |= found.names
        tors = dict(found.tor_of)
        tors |= {address: tors[node] for address, node in nodes.items() if node in tors}
    if alias is not None:
        from confluo_tools.network.aliases import read_aliases

        known = {name: number for number, name in found.names.items()} if found is not None else {}
        more, called = read_aliases(alias, known)
        nodes |= more
        names |= called
    shown = {tor for tor in tors.values() if tor >= 1 << 24} | (set(tors.values()) & set(nodes.values()))
    return found, nodes, tors, shown, names


def pace_of(
    rate: float | None, topology: Topology | None, path: str | None, bound: str | None, t_max: float | None
) -> float:
    """Traceroutes a second: C_t as given, or of the topology."""
    from confluo_tools.network.traceroute_rate import BOUNDS, T_MAX, trace_rate

    if bound is not None and bound not in BOUNDS:
        raise UsageError(f"unknown bound '{bound}'", where="--bound", hint=f"write {' or '.join(BOUNDS)}")
    for name, given in {"--bound": bound, "--t-max": t_max}.items():
        if given is not None and (topology is None or rate is not None):
            raise UsageError(f"{name} requires --topology and excludes --rate")
    if t_max is not None and not 0 < t_max <= 1e6:
        raise UsageError(f"{t_max:g} is out of range", where="--t-max", hint="write a number up to 1000000")
    if rate is not None:
        return rate
    if topology is None:
        return RATE
    try:
        found = trace_rate(topology, T_MAX if t_max is None else t_max, bound or BOUNDS[0])
    except ValueError as e:
        raise UsageError(str(e), where=str(path), hint="--bound full works for any network") from None
    return min(max(found, 0.001), 1e6) if found != float("inf") else RATE


def lookup_of(path: str | None, command: str | None, vips: Sequence[str]) -> FileLookup | CommandLookup | None:
    """The lookup of real destinations."""
    if path is None and command is None:
        return None
    from confluo_tools.trace.vip_lookup import CommandLookup, FileLookup, Vips

    if path is not None:
        return FileLookup(path, Vips(vips))
    import shlex
    from shutil import which

    try:
        words = shlex.split(command or "")
    except ValueError as e:
        raise UsageError(str(e).lower(), where="--map-command") from None
    if not words or which(words[0]) is None:
        raise UsageError(f"command not found: '{words[0] if words else ''}'", where="--map-command")
    return CommandLookup(words, Vips(vips))


class _closing:
    # contextlib.closing of something that may be None.
    def __init__(self, what: FileLookup | CommandLookup | None) -> None:
        self.what = what

    def __enter__(self) -> FileLookup | CommandLookup | None:
        return self.what

    def __exit__(self, *exc: object) -> None:
        if self.what is not None:
            self.what.close()


def preload(schema: Schema, fmt: str, names: list[str] | None) -> None:
    """Import the modules that are used later: after -Z they may not be readable."""
    from importlib import import_module
    from tempfile import TemporaryDirectory

    from confluo_tools.core.block.block import Block

    ours = ("trace.vip_lookup", "multilog.capture_statistics", "multilog.tail")
    for name in ("shlex", "shutil", "subprocess", *(f"confluo_tools.{one}" for one in ours)):
        import_module(name)
    if fmt == "multilog":
        return
    with (
        TemporaryDirectory() as scratch,
        cli.RecordOutput(schema, fmt, path=os.path.join(scratch, "file"), fields=names) as out,
    ):
        out.write(Block.wrap(schema.layout, 1, [bytes(c.size * c.count) for c in schema.columns]), None)


def main(argv: Sequence[str] | None = None) -> int:
    return cli.run(app, "confluo-trace", argv, owns_state=True)
