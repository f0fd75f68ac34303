"""confluo-pingmesh simulate: probes of a fleet whose network has faults.  Manual: confluo-pingmesh-simulate(1)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from confluo_tools import cli
from confluo_tools.cli.options import option
from confluo_tools.errors import UsageError

if TYPE_CHECKING:
    from confluo_tools.sources.meshsim import Fault

app = cli.command_app(
    """
# an hour of a fleet whose second podset loses power after 20 minutes
confluo-pingmesh simulate --span 1h --fault podset_down:ps02,from=20m -w probes.ml

# a spine switch drops 1 % at random; what was broken is in the records, too
confluo-pingmesh simulate --seed 7 --fault spine_drops:dc1/3,rate=1% -w probes.ml
confluo-query probes.ml 'kind == fault'

# a ToR that drops 5 % of the pairs of addresses, between the servers of a topology of one's own
confluo-pingmesh simulate --topology topology.yaml --fault blackhole1:p003 -o stream
"""
)

MOST_SPAN = 400 * 86400 * 10**9


def _number(*names: str, help: str, least: int = 1, most: int = 1 << 20) -> Any:
    return option(*names, metavar="N", min=least, max=most, help=help)


@app.command()
def simulate(
    topology: Annotated[
        str | None, option("--topology", metavar="FILE", help="The fleet: YAML as for plan; else it is a grid.")
    ] = None,
    dcs: Annotated[int, _number("--dcs", help="Data centres (1).")] = 1,
    podsets: Annotated[int, _number("--podsets", help="Podsets of a data centre (4).")] = 4,
    pods: Annotated[int, _number("--pods", help="Pods of a podset (4).")] = 4,
    servers: Annotated[int, _number("--servers", help="Servers of a pod (8).")] = 8,
    leaves: Annotated[int, _number("--leaves", most=1024, help="Leaf switches of a podset (4).")] = 4,
    spines: Annotated[int, _number("--spines", most=4096, help="Spine switches of a data centre (8).")] = 8,
    per_podset: Annotated[
        int, _number("--per-podset", help="Servers of a podset that probe other data centres (2).")
    ] = 2,
    fault: Annotated[
        list[str] | None,
        option("--fault", metavar="KIND[:PLACE][,NAME=VALUE...]", help="What breaks, and where (repeatable)."),
    ] = None,
    span: Annotated[str, option("--span", metavar="TIME", help="For how long (10m).")] = "10m",
    start: Annotated[str, option("--start", metavar="TIME", help="When it begins.")] = "2026-01-01T00:00:00Z",
    interval: Annotated[str, option("--interval", metavar="TIME", help="Between probes of a pair (10s).")] = "10s",
    hosts: Annotated[
        str, option("--hosts", metavar="TIME", help="Between records of a server's counters; 0: none (1m).")
    ] = "1m",
    noise: Annotated[
        str,
        option("--noise", metavar="A,B,C", help="Loss of a handshake in a pod, a DC, between DCs (1e-5,4e-5,1e-4)."),
    ] = "1e-5,4e-5,1e-4",
    payload: Annotated[int, _number("--payload", least=0, most=65536, help="Bytes echoed; 0: connect only (0).")] = 0,
    classic: Annotated[
        bool, option("--classic", help="SYNs are sent again after 1 s and 3 s, as with tcp_syn_linear_timeouts=0.")
    ] = False,
    seed: Annotated[int, _number("--seed", least=0, most=(1 << 64) - 1,
                                 help="Same seed, same records on every machine (1).")] = 1,
    *,
    out: cli.LogOptions,
    common: cli.CommonOptions,
) -> int:  # fmt: skip
    """Simulate the probes of a fleet whose network has faults: a record of each fault, then of each probe, and of
    each server's counters.
    """
    from confluo_tools import units
    from confluo_tools.algo.fleet import make_grid
    from confluo_tools.formats.fleet import read_fleet
    from confluo_tools.sources.meshsim import Settings, Simulation

    try:
        fleet = make_grid(dcs, podsets, pods, servers) if topology is None else read_fleet(topology)
    except ValueError as e:
        raise UsageError(str(e), where="--dcs, --podsets, --pods, --servers") from None
    levels = [chance(text, "--noise") for text in noise.split(",")]
    if len(levels) != 3:
        raise UsageError(f"'{noise[:60]}' are not three chances", where="--noise", hint="write e.g. 1e-5,4e-5,1e-4")
    simulation = Simulation(fleet, Settings(
        seed=seed, start=units.time(start), span=cli.duration("--span", span, 1, MOST_SPAN),
        interval=cli.duration("--interval", interval, 1_000_000, 3600 * units.SECOND),
        hosts=cli.duration("--hosts", hosts, 10**9, MOST_SPAN) if hosts != "0" else 0,
        faults=[a_fault(text) for text in fault or []], noise=(levels[0], levels[1], levels[2]), linear=not classic,
        payload=payload, leaves=leaves, spines=spines, per_podset=per_podset,
    ))  # fmt: skip
    schema = simulation.schema
    if out.listed(schema):
        return cli.OK
    with out.open(schema, out.kind(), out.names(schema), small=False) as into:
        for block in simulation.blocks():
            into.write(block, None)
    if common.stats:
        core = simulation.core
        cli.note(f"{core.probes} probes of {core.pairs} pairs of {core.n} servers, {core.lost} sent again, "
                 f"{core.failed} failed; faults: {len(simulation.placed)}")  # fmt: skip
    return cli.OK if into.rows else cli.NOTHING


def a_fault(text: str) -> Fault:
    """``podset_down:ps02,from=5m,for=10m`` or ``spine_drops,rate=1%,delay=2ms``."""
    from confluo_tools import units
    from confluo_tools.sources.meshsim import Fault

    head, *rest = text.split(",")
    kind, _, place = head.partition(":")
    given: dict[str, str] = {}
    for word in rest:
        name, equals, value = word.partition("=")
        if not equals or name in given or name not in ("rate", "delay", "from", "for"):
            raise UsageError(f"'{word[:60]}' is not understood", where="--fault",
                             hint="there are rate=1%, delay=5ms, from=2m, for=5m")  # fmt: skip
        given[name] = value
    try:
        times = {name: units.duration(given[name]) for name in ("delay", "from", "for") if name in given}
    except UsageError as e:
        raise UsageError(e.what, where="--fault", hint=e.hint) from None
    return Fault(
        kind, place, rate=chance(given["rate"], "--fault") if "rate" in given else None, delay=times.get("delay"),
        start=times.get("from", 0), length=times.get("for"),
    )  # fmt: skip


def chance(text: str, where: str) -> int:
    """``0.5``, ``1e-6`` or ``0.05%`` as the simulator has it."""
    from confluo_tools.sources.meshsim import CERTAIN

    return int(cli.fraction(where, text, "a chance") * CERTAIN)


def main(argv: list[str] | None = None) -> int:
    return cli.run(app, "confluo-pingmesh simulate", argv)
