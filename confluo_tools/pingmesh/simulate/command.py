"""confluo-pingmesh simulate: probes of a fleet with network faults.  Manual: confluo-pingmesh-simulate(1)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from confluo_tools import cli
from confluo_tools.cli.options import option
from confluo_tools.errors import UsageError

if TYPE_CHECKING:
    from confluo_tools.pingmesh.simulate.simulation import Fault

app = cli.command_app(
    """
# one hour; the second podset loses power after 20 minutes
confluo-pingmesh simulate --span 1h --fault podset_down:ps02,from=20m -w probes.ml

# a spine switch drops 1 % at random; then print the records of the faults
confluo-pingmesh simulate --seed 7 --fault spine_drops:dc1/3,rate=1% -w probes.ml
confluo-query probes.ml 'kind == fault'

# your own topology; a ToR drops 5 % of the address pairs
confluo-pingmesh simulate --topology topology.yaml --fault blackhole1:p003 -o stream
"""
)

MAX_SPAN = 400 * 86400 * 10**9


def _number(*names: str, help: str, min: int = 1, max: int = 1 << 20) -> Any:
    return option(*names, metavar="N", min=min, max=max, help=help)


@app.command(
    panels={
        "Options": "--topology --fault --span --seed -w --start",
        "Network": "--dcs --podsets --pods --servers --leaves --spines --per-podset",
        "Probes": "--interval --hosts --payload --classic",
        "Faults": "--noise",
    }
)
def simulate(
    topology: Annotated[
        str | None, option("--topology", metavar="FILE", help="Topology file as for plan (YAML; default: a grid).")
    ] = None,
    dcs: Annotated[int, _number("--dcs", help="Number of data centres (1).")] = 1,
    podsets: Annotated[int, _number("--podsets", help="Podsets per data centre (4).")] = 4,
    pods: Annotated[int, _number("--pods", help="Pods per podset (4).")] = 4,
    servers: Annotated[int, _number("--servers", help="Servers per pod (8).")] = 8,
    leaves: Annotated[int, _number("--leaves", max=1024, help="Leaf switches per podset (4).")] = 4,
    spines: Annotated[int, _number("--spines", max=4096, help="Spine switches per data centre (8).")] = 8,
    per_podset: Annotated[
        int, _number("--per-podset", help="Let N servers of a podset probe other data centres (2).")
    ] = 2,
    fault: Annotated[
        list[str] | None, option("--fault", metavar="KIND[:PLACE][,NAME=VALUE...]", help="Add a fault (repeatable).")
    ] = None,
    span: Annotated[str, option("--span", metavar="TIME", help="Simulate this long (10m).")] = "10m",
    start: Annotated[str, option("--start", metavar="TIME", help="Start at TIME.")] = "2026-01-01T00:00:00Z",
    interval: Annotated[
        str, option("--interval", metavar="TIME", help="Probe each pair at this interval (10s).")
    ] = "10s",
    hosts: Annotated[
        str, option("--hosts", metavar="TIME", help="Write the counters of servers at this interval; 0: never (1m).")
    ] = "1m",
    noise: Annotated[
        str,
        option(
            "--noise", metavar="A,B,C", help="Loss rate of handshakes in a pod, a DC, between DCs (1e-5,4e-5,1e-4)."
        ),
    ] = "1e-5,4e-5,1e-4",
    payload: Annotated[int, _number("--payload", min=0, max=65536, help="Echo N bytes; 0: connect only (0).")] = 0,
    classic: Annotated[
        bool, option("--classic", help="Retry SYNs after 1 s and 3 s, as with tcp_syn_linear_timeouts=0.")
    ] = False,
    seed: Annotated[
        int, _number("--seed", min=0, max=(1 << 64) - 1, help="Seed of random numbers; same seed, same records (1).")
    ] = 1,
    *,
    out: cli.LogOptions,
    common: cli.CommonOptions,
) -> int:
    """Simulate the probes of a fleet with network faults.

    Writes a record of each fault, then of each probe, and of the counters of each server.
    """
    from confluo_tools import units
    from confluo_tools.network.fleet import make_grid
    from confluo_tools.network.topology_file import read_fleet
    from confluo_tools.pingmesh.simulate.simulation import ProbeSimulation, SimulationSettings

    try:
        fleet = make_grid(dcs, podsets, pods, servers) if topology is None else read_fleet(topology)
    except ValueError as e:
        raise UsageError(str(e), where="--dcs, --podsets, --pods, --servers") from None
    levels = [chance(text, "--noise") for text in noise.split(",")]
    if len(levels) != 3:
        raise UsageError(f"'{noise[:60]}' is not three rates", where="--noise", hint="write e.g. 1e-5,4e-5,1e-4")
    simulation = ProbeSimulation(
        fleet,
        SimulationSettings(
            seed=seed,
            start=units.time(start),
            span=cli.duration("--span", span, 1, MAX_SPAN),
            interval=cli.duration("--interval", interval, 1_000_000, 3600 * units.SECOND),
            hosts=cli.duration("--hosts", hosts, 10**9, MAX_SPAN) if hosts != "0" else 0,
            faults=[parse_fault(text) for text in fault or []],
            noise=(levels[0], levels[1], levels[2]),
            linear=not classic,
            payload=payload,
            leaves=leaves,
            spines=spines,
            per_podset=per_podset,
        ),
    )
    schema = simulation.schema
    if out.listed(schema):
        return cli.OK
    with out.open(schema, out.kind(), out.names(schema), small=False) as into:
        for block in simulation.blocks():
            into.write(block, None)
    if common.stats:
        core = simulation.core
        cli.note(
            f"{core.probes} probes of {core.pairs} pairs of {core.n} servers, {core.lost} sent again, "
            f"{core.failed} failed; faults: {len(simulation.placed)}"
        )
    return cli.OK if into.rows else cli.NOTHING


def parse_fault(text: str) -> Fault:
    """The fault in ``podset_down:ps02,from=5m,for=10m`` or ``spine_drops,rate=1%,delay=2ms``."""
    from confluo_tools import units
    from confluo_tools.pingmesh.simulate.simulation import Fault

    head, *rest = text.split(",")
    kind, _, place = head.partition(":")
    given: dict[str, str] = {}
    for word in rest:
        name, equals, value = word.partition("=")
        if not equals or name in given or name not in ("rate", "delay", "from", "for"):
            raise UsageError(f"invalid '{word[:60]}'", where="--fault", hint="use rate=1%, delay=5ms, from=2m, for=5m")
        given[name] = value
    try:
        times = {name: units.duration(given[name]) for name in ("delay", "from", "for") if name in given}
    except UsageError as e:
        raise UsageError(e.what, where="--fault", hint=e.hint) from None
    return Fault(
        kind,
        place,
        rate=chance(given["rate"], "--fault") if "rate" in given else None,
        delay=times.get("delay"),
        start=times.get("from", 0),
        length=times.get("for"),
    )


def chance(text: str, where: str) -> int:
    """The probability in ``0.5``, ``1e-6`` or ``0.05%``, in units of 2**-63."""
    from confluo_tools.pingmesh.simulate.simulation import CERTAIN

    return int(cli.fraction(where, text, "a chance") * CERTAIN)


def main(argv: list[str] | None = None) -> int:
    return cli.run(app, "confluo-pingmesh simulate", argv)
