"""confluo-replay queues: what was in the switch queues that packets passed.  Manual: confluo-replay-queues(1)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from confluo_tools import cli
from confluo_tools.cli.options import option
from confluo_tools.errors import FormatError, SchemaError, UsageError

if TYPE_CHECKING:
    from array import array
    from collections.abc import Mapping, Sequence

    from confluo_tools.network.topology import Topology
    from confluo_tools.replay.queues.open_loop import OpenLoop
    from confluo_tools.replay.queues.sent_packets import QueueFlow, SentPackets

app = cli.command_app(
    """
# recordings of all hosts: which queues did the packets pass, and who else was in them?
confluo-replay queues all/*.ml --topology fat.yaml -w queues.ml

# the longest queues, and their drops
confluo-query queues.ml --agg 'max(queue), count(event == dropped)' --by switch,to

# made-up traffic, to try it
confluo-replay queues --simulate 2ms --load 30% --topology fat.yaml -w queues.ml

# how exact is a replay with clocks and times that are off by up to 5 microseconds?
confluo-replay queues --simulate 4ms --topology fat.yaml --clock-error 5us --sampling-error 5us --score
"""
)

START = 1_767_225_600 * 1_000_000_000  # of simulated traffic: 2026-01-01
MAX_SIMULATED = 1 << 27  # packets
SAMPLE = 64  # --score compares the queues that every 64th packet sees
USUAL = ("ts", "event", "src_ip", "src_port", "dst_ip", "dst_port", "hop", "switch", "to", "queue", "delay", "share")


@app.command(
    panels={
        "Options": "-w --topology --drops --simulate --picture --score",
        "Network": "--paths",
        "Analysis": "--clock-error --sampling-error",
        "Traffic": "--load --incasts --seed",
    }
)
def queues(
    inputs: cli.Inputs = None,
    topology: Annotated[
        str | None, option("--topology", metavar="FILE", help="Topology file: links, speeds, delays and buffers.")
    ] = None,
    paths: Annotated[
        list[str] | None, option("--paths", metavar="FILE", help="Paths of flows from confluo-trace (repeatable).")
    ] = None,
    drops: Annotated[
        str | None,
        option(
            "--drops", metavar="HOW", help="recorded: drop packets known to be lost; buffer: where there is no room."
        ),
    ] = None,
    simulate: Annotated[
        str | None, option("--simulate", metavar="TIME", help="Make up traffic of this length instead of inputs.")
    ] = None,
    load: Annotated[
        str | None, option("--load", metavar="SHARE", help="Simulated: share of the hosts' speed that flows use (30%).")
    ] = None,
    incasts: Annotated[
        float | None, option("--incasts", metavar="N", min=0, max=1e6, help="Simulated: incasts a second (2400).")
    ] = None,
    seed: Annotated[int, option("--seed", metavar="N", min=0, help="Seed of traffic and clocks (1).")] = 1,
    clock_error: Annotated[
        str, option("--clock-error", metavar="TIME", help="Shift the clock of each host by up to TIME (0).")
    ] = "0",
    sampling_error: Annotated[
        str | None, option("--sampling-error", metavar="TIME", help="Infer times by Algorithm 1, within TIME.")
    ] = None,
    picture: Annotated[
        str | None, option("--picture", metavar="FILE.html", help="Draw the queues over time, too, as a page.")
    ] = None,
    score: Annotated[
        bool, option("--score", help="Print drop error and queue difference of replays with these errors.")
    ] = False,
    *,
    ins: cli.InputOptions,
    out: cli.LogOptions,
    common: cli.CommonOptions,
) -> int:
    """Replay the times at which hosts sent packets through the switches of a network.

    The output has a record for each packet and switch: what was in the queue, who shared it, whether it was dropped.
    """
    from confluo_tools.schema import builtin

    kind = builtin("queue")
    if out.listed(kind):
        return cli.OK
    if simulate is None and ins.missing(inputs):
        return cli.usage(app)
    if simulate is not None and inputs:
        raise UsageError("--simulate makes the packets up", hint="leave the inputs out")
    if simulate is None and (load is not None or incasts is not None):
        name = "--incasts" if load is None else "--load"
        raise UsageError("is of made-up traffic", where=name, hint="give --simulate TIME, or leave it out")
    if topology is None:
        raise UsageError("the network is not known", where="--topology", hint="confluo-topology(5) describes the file")
    clock = cli.duration("--clock-error", clock_error, 0, 10**9)
    sampling = cli.duration("--sampling-error", sampling_error, 0, 10**9) if sampling_error is not None else None
    cli.one_of("--drops", drops or "buffer", ("recorded", "buffer"))
    if picture is not None:
        cli.picture_format(picture, ("html",), where="--picture")
        if score:
            raise UsageError("--score draws nothing", hint="leave --picture out")
    if score:
        if drops:
            raise UsageError("--score tries both ways to drop", hint="leave --drops out")
        _only_text(out)

    from confluo_tools.network.topology_file import read_topology
    from confluo_tools.replay.queues.open_loop import OpenLoop
    from confluo_tools.replay.queues.ports import PortMap

    network = read_topology(topology, "confluo-replay queues")
    if simulate is not None:
        length = cli.duration("--simulate", simulate, 1000, 3600 * 10**9)
        share = cli.fraction("--load", load or "30%", "a share")
        packets = _simulated(network, length, share, 2400 if incasts is None else incasts, seed, topology)
    else:
        packets = _collected(inputs, ins, network)
    if not packets:
        cli.tell("no packets")
        return cli.NOTHING
    replay = OpenLoop(PortMap(network), packets, _paths(paths, network))
    if replay.unrouted:
        cli.warn(
            f"{replay.unrouted} flows have no way through the network, and {replay.unrouted_packets} packets are left"
            " out",
            where=topology,
        )
    times = _times(packets, sampling, clock, seed)
    try:
        if score:
            return _score(replay, times)
        by_tags = (drops or ("buffer" if simulate is not None else "recorded")) == "recorded"
        status = _write(replay, times, packets.lost if by_tags else None, out, common.stats)
        if picture is not None:
            _draw(replay, times, packets.lost if by_tags else None, picture, out.force)
        return status
    except OverflowError as e:
        raise FormatError(str(e)) from None


def _only_text(out: cli.LogOptions) -> None:
    given = {"-w": out.output not in (None, "-"), "-o": out.format not in (None, "tsv"), "-J": out.ndjson}
    for name, value in (given | {"-f": out.fields is not None, "--append": out.append}).items():
        if value:
            raise UsageError("--score prints lines of text", where=name, hint=f"leave {name} out")


def _simulated(network: Topology, length: int, load: float, incasts: float, seed: int, path: str) -> SentPackets:
    from confluo_tools.network.topology import PLAIN
    from confluo_tools.replay.queues.synthetic import expected_packets, make_traffic

    hosts = sorted(network.tor_of)
    if len(hosts) < 2:
        raise UsageError("has fewer than two hosts", where=path)
    speed = network.hardware.server_link.speed
    if not expected_packets(len(hosts), length, load, incasts, speed) < MAX_SIMULATED:
        what = f"--simulate would make more than {MAX_SIMULATED:,} packets"
        raise UsageError(what, hint="take less time, a lower --load or fewer --incasts")
    address = {host: host for host in hosts}
    for number, host in network.alias.items():
        if number >= PLAIN and address.get(host, PLAIN) < PLAIN:
            address[host] = number
    return make_traffic(hosts, address, length=length, load=load, incasts=incasts, speed=speed, seed=seed, start=START)


def _collected(inputs: Sequence[str] | None, ins: cli.InputOptions, network: Topology) -> SentPackets:
    from confluo_tools.replay.queues.collect import Collector

    collector = Collector(network)
    for path in inputs or ["-"]:
        with ins.open([path]) as reader:
            if reader.schema.kind == "recording":
                collector.add_recording(reader)
            elif reader.schema.kind == "packet":
                collector.add_capture(reader)
            else:
                what = f"holds records of kind '{reader.schema.kind}'"
                raise SchemaError(what, where=path, hint="give recordings, replays or captures")
    packets = collector.packets
    if collector.unknown:
        cli.tell(f"{collector.unknown} flows have a host that is not in the topology, and are left out")
    if collector.derived:
        cli.tell(f"the sizes of {collector.derived} packets are not recorded: they follow from the calls of their end")
    if collector.unmatched:
        cli.tell(
            f"which packets of {collector.unmatched} directions were lost is not known: IPv6 needs recordings of both"
            " ends with headers"
        )
    return packets


def _paths(files: Sequence[str] | None, network: Topology) -> Mapping[QueueFlow, Sequence[int]]:
    if not files:
        return {}
    from confluo_tools.inputs.open import open_records
    from confluo_tools.replay.queues.path_input import read_paths

    with open_records(files) as reader:
        return read_paths(reader, network)


def _times(packets: SentPackets, sampling: int | None, clock: int, seed: int) -> array[int]:
    from confluo_tools.replay.queues.sent_packets import sampled_times, shifted_times

    times = sampled_times(packets, sampling) if sampling is not None else packets.times
    return shifted_times(packets, times, clock, seed + 1) if clock else times


def _write(replay: OpenLoop, times: array[int], lost: Sequence[int] | None, out: cli.LogOptions, stats: bool) -> int:
    from confluo_tools.replay.queues.rows import QueueRecords
    from confluo_tools.schema import builtin

    its = builtin("queue")
    kind, names = out.kind(), out.names(its, out.kind(), USUAL)
    with out.open(its, kind, names, small=False) as into:
        records = QueueRecords(its, replay)
        for rows in replay.run(times, lost, name_flows=True):
            into.write(records.block(rows), None)
    if stats:
        known = sum(replay.packets.lost)
        cli.note(
            f"{len(replay.packets)} packets of {len(replay.packets.flows)} flows, {known} known to be lost;"
            f" {replay.events} packets at switches, {replay.drops} dropped"
        )
    return cli.OK if into.rows else cli.NOTHING


def _draw(replay: OpenLoop, times: array[int], lost: Sequence[int] | None, path: str, force: bool) -> None:
    # The replay is repeated: first all ports, then the flows in the longest queues.
    from confluo_tools import config
    from confluo_tools.cli.output import compression_of
    from confluo_tools.formats.output_file import open_sink
    from confluo_tools.replay.queues.picture import STACKS, QueueHeat, QueueStacks, page

    sink = open_sink(path, force=config.truth("clobber", force), compression=compression_of(path, "html"))
    span = 0
    for rows in replay.run(times, lost):
        span = max(span, rows.time[rows.count - 1] if rows.count else 0)
    heat = QueueHeat(span)
    for rows in replay.run(times, lost):
        heat.add(rows)
    stacks = QueueStacks(heat, heat.ports(STACKS))
    for rows in replay.run(times, lost, name_flows=True):
        stacks.add(rows)
    name_of = replay.ports.topology.name
    names = [f"{name_of(a)} to {name_of(b)}" for a, b in replay.ports.ends]
    sink.write(page(heat, stacks, names, [str(flow) for flow in replay.packets.flows]).encode())
    sink.close()


def _score(replay: OpenLoop, times: array[int]) -> int:
    from array import array

    from confluo_tools.replay.queues.open_loop import drops_of
    from confluo_tools.replay.queues.score import compare_drops, queue_differences

    truth = drops_of(replay.run(sample=SAMPLE))
    contents = replay.contents()
    tags = array("B", [0]) * len(replay.packets)
    for packet in truth:
        tags[packet] = 1
    print("drops\tdropped\tdrop_error\tfalse_accepts\tfalse_drops\twrong_places\tqueue_diff_mean\tqueue_diff_p99")
    for name, lost in (("buffer", None), ("recorded", tags)):
        found = compare_drops(truth, drops_of(replay.run(times, lost, sample=SAMPLE)))
        apart = queue_differences(contents, replay.contents())
        mean = sum(apart) / len(apart) if apart else 0.0
        last = apart[len(apart) * 99 // 100] if apart else 0
        print(
            f"{name}\t{found.dropped}\t{found.error:.4f}\t{found.false_accepts}\t{found.false_drops}"
            f"\t{found.wrong_places}\t{mean:.0f}\t{last}"
        )
    return cli.OK


def main(argv: list[str] | None = None) -> int:
    return cli.run(app, "confluo-replay queues", argv)
