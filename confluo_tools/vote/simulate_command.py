"""confluo-vote simulate: simulate flows through a Clos with bad links.  Manual: confluo-vote-simulate(1)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from confluo_tools import cli, config
from confluo_tools.cli.options import option
from confluo_tools.errors import UsageError

if TYPE_CHECKING:
    from confluo_tools.network.topology import Clos

app = cli.command_app(
    """
# the network of the paper with five bad links; what does voting find?
confluo-vote simulate --failures 5 --seed 7 -o stream | confluo-vote - --score

# a tenth of the hosts, all flows with paths, to a file
confluo-vote simulate --hosts 4 --healthy path -w flows.arrows

# one link drops many packets, the others few
confluo-vote simulate --failures 5 --rate 10%..100% --rate 0.01%..0.1% -T

# four in five flows go to ten ToRs
confluo-vote simulate --traffic skewed --epochs 10 -o stream | confluo-vote - --score
"""
)

MAX_EPOCHS = 1 << 20
TRAFFIC = {"uniform": (0.0, 0.0), "skewed": (0.25, 0.8), "hot": (0.0, 0.5)}  # share of ToRs (0: one), of flows


def _number(*names: str, help: str, least: int = 1, most: int | None = None) -> Any:
    return option(*names, metavar="N", min=least, max=most, help=help)


@app.command(
    panels={
        "Options": "-w --topology --failures --epochs --seed --quirks",
        "Network": "--pods --tors --t1s --t2s --hosts --write-topology",
        "Faults": "--where --devices --fail --rate --noise --deaths --holes",
        "Traffic": "--connections --packets --sizes --traffic --hot-tors --skew --healthy --cap --silence",
        "Time": "--epoch --start",
    }
)
def simulate(
    pods: Annotated[int, _number("--pods", help="Pods (2).")] = 2,
    tors: Annotated[int, _number("--tors", help="ToRs of a pod (20).")] = 20,
    t1s: Annotated[int, _number("--t1s", help="T1 switches of a pod (8).")] = 8,
    t2s: Annotated[int, _number("--t2s", help="T2 switches (10).")] = 10,
    hosts: Annotated[int, _number("--hosts", help="Hosts of a ToR (40).")] = 40,
    topology: Annotated[
        str | None, option("--topology", metavar="FILE", help="Topology file of a Clos, instead of its counts.")
    ] = None,
    write_topology: Annotated[
        str | None, option("--write-topology", metavar="FILE", help="Write the topology file of the network.")
    ] = None,
    failures: Annotated[
        int | None, _number("--failures", least=0, help="Number of failed links (1; 0 with --fail or --devices).")
    ] = None,
    where: Annotated[
        str,
        option("--where", metavar="KINDS", help="Kinds of links that fail: fabric, all, or tor-t1,t1-t2,... (fabric)."),
    ] = "fabric",
    devices: Annotated[int, _number("--devices", least=0, help="Number of switches that fail as a whole (0).")] = 0,
    fail: Annotated[
        list[str] | None,
        option("--fail", metavar="A:B[=RATE]", help="Make this link fail, or the switch A:A (repeatable)."),
    ] = None,
    rate: Annotated[
        list[str] | None,
        option("--rate", metavar="A..B", help="Drop rate of failures (0.01%..1%); repeat it for the second, ..."),
    ] = None,
    noise: Annotated[str, option("--noise", metavar="RATE", help="Highest drop rate of good links (1e-6).")] = "1e-6",
    connections: Annotated[
        str, option("--connections", metavar="N", help="Flows per host and epoch: N or A..B (60).")
    ] = "60",
    packets: Annotated[str, option("--packets", metavar="N", help="Packets per flow: N or A..B (1..100).")] = "1..100",
    sizes: Annotated[
        str, option("--sizes", metavar="HOW", help="uniform, or pareto: most flows small, few large (uniform).")
    ] = "uniform",
    traffic: Annotated[
        str, option("--traffic", metavar="HOW", help="uniform, skewed (80% to 25% of the ToRs) or hot (50% to one).")
    ] = "uniform",
    hot_tors: Annotated[
        int | None, _number("--hot-tors", help="Number of ToRs that receive more than their share.")
    ] = None,
    skew: Annotated[
        str | None, option("--skew", metavar="SHARE", help="Share of the flows to the hot ToRs: 80%, 0.5.")
    ] = None,
    epochs: Annotated[int, _number("--epochs", help="Number of epochs (1).")] = 1,
    epoch: Annotated[str, option("--epoch", metavar="TIME", help="Length of an epoch (30s).")] = "30s",
    start: Annotated[str, option("--start", metavar="TIME", help="Start of the first epoch.")] = "2026-01-01T00:00:00Z",
    healthy: Annotated[
        str, option("--healthy", metavar="HOW", help="Write flows without loss: none, bare or path (none).")
    ] = "none",
    cap: Annotated[
        int, _number("--cap", least=0, most=(1 << 32) - 1, help="Trace at most N flows per host and epoch; 0: all (0).")
    ] = 0,
    silence: Annotated[
        str, option("--silence", metavar="SHARE", help="Share of switches that do not answer traceroutes (0).")
    ] = "0",
    deaths: Annotated[
        bool, option("--deaths", help="Simulate handshakes, time-outs, lost acknowledgements and traces with losses.")
    ] = False,
    holes: Annotated[
        str,
        option(
            "--holes", metavar="WHAT", help="Failures drop all packets of some pairs or flows, not some of all (none)."
        ),
    ] = "none",
    quirks: Annotated[
        str,
        option("--quirks", metavar="LIST", help="Behave as the authors' program: last-hop, two-draws, culprit, all."),
    ] = "",
    seed: Annotated[
        int, _number("--seed", least=0, help="Seed; the same seed gives the same records everywhere (1).")
    ] = 1,
    *,
    out: cli.LogOptions,
    common: cli.CommonOptions,
) -> int:
    """Simulate flows through a Clos with links that drop packets.

    The output has a record of each failed link, then of each flow with loss, with its path and the link that dropped.
    """
    from confluo_tools import units
    from confluo_tools.network.topology import Clos
    from confluo_tools.vote.simulator import HEALTHY, HOLES, QUIRKS, ClosSettings, ClosSimulation

    clos = Clos(pods, tors, t1s, t2s, hosts) if topology is None else read_clos(topology, write_topology is None)
    cli.one_of("--sizes", sizes, ("uniform", "pareto"))
    cli.one_of("--healthy", healthy, HEALTHY)
    if cli.one_of("--holes", holes, HOLES) != "none" and not deaths:
        raise UsageError("requires --deaths", where="--holes")
    odd = [q.strip() for q in quirks.split(",") if q.strip()]
    odd = list(QUIRKS) if odd == ["all"] else odd
    for name in odd:
        if name not in QUIRKS:  # 'all' excludes others
            raise UsageError(
                f"unknown quirk '{name[:60]}'", where="--quirks", hint=f"the quirks are {', '.join(QUIRKS)}, all"
            )
    if epochs > MAX_EPOCHS:
        raise UsageError(f"more than {MAX_EPOCHS}", where="--epochs")
    length = cli.duration("--epoch", epoch, 1000, 3600 * units.SECOND)
    if seed >= 1 << 64:
        raise UsageError("must be below 2^64", where="--seed")
    begin = cli.of_option("--start", units.time, start)
    if begin + epochs * length >= 1 << 63:
        raise UsageError("the last epoch is beyond the end of time, 2262-04-11", where="--start")
    hot, share = hot_share(traffic, hot_tors, skew, clos)
    simulation = ClosSimulation(
        clos,
        ClosSettings(
            seed=seed,
            where=kinds(where),
            devices=devices,
            fail=named(fail or [], clos),
            failures=failures if failures is not None else 0 if fail or devices else 1,
            rates=[rates(text) for text in rate or ["0.01%..1%"]],
            noise=chance(noise, "--noise"),
            connections=span(connections, "--connections", 0),
            packets=span(packets, "--packets", 1),
            pareto=sizes == "pareto",
            hot_tors=hot,
            skew=share,
            healthy=HEALTHY.index(healthy),
            quirks=sum(QUIRKS[name] for name in set(odd)),
            cap=cap,
            silence=chance(silence, "--silence"),
            deaths=deaths,
            holes=HOLES.index(holes),
            epochs=epochs,
            length=length,
            start=begin,
        ),
    )
    schema = simulation.schema
    if out.listed(schema):
        return cli.OK
    kind, names = out.kind(), out.names(schema)
    if write_topology is not None:
        write_yaml(write_topology, clos, out.force)
    with out.open(schema, kind, names, small=False) as into:
        for block in simulation.blocks():
            into.write(block, None)
    if common.stats:
        core = simulation.core
        cli.note(
            f"{core.flows} flows, {core.affected} with loss; {core.packets} packets, {core.lost} lost; "
            f"{len(simulation.failed)} failures; {clos}"
        )
    return cli.OK if into.rows else cli.NOTHING


def read_clos(path: str, warn: bool) -> Clos:
    """The Clos of a file.  ``warn`` when the simulated nodes have other numbers."""
    from confluo_tools.network.topology import as_clos
    from confluo_tools.network.topology_file import read_topology

    network = read_topology(path, "confluo-vote simulate")
    clos = as_clos(network)
    if clos is not None and network.clos is None and warn:
        cli.tell(f"{path}: the simulated nodes have other numbers; --write-topology FILE writes them")
    if clos is None:
        raise UsageError("is not a Clos: each ToR has links to all T1s of its pod, and each T1 to all T2s", where=path)
    return clos


def write_yaml(path: str, clos: Clos, force: bool) -> None:
    """Write the topology file of a Clos."""
    from confluo_tools.formats.output_file import open_yaml
    from confluo_tools.network.network_file import NetworkFile
    from confluo_tools.network.topology_writer import text_of

    sink = open_yaml(path, force=config.truth("clobber", force))
    sink.write(text_of(NetworkFile(path, clos=clos)).encode())
    sink.close()


def chance(text: str, where: str) -> int:
    """``0.5``, ``1e-6`` or ``0.05%`` as the simulator has it."""
    from confluo_tools.vote.simulator import probability

    return probability(cli.fraction(where, text, "a chance"))


def rates(text: str) -> tuple[int, int]:
    """``0.01%..1%`` or one rate."""
    low, _, high = text.partition("..")
    found = chance(low, "--rate"), chance(high or low, "--rate")
    if found[0] > found[1]:
        raise UsageError(f"'{text}' starts above its end", where="--rate")
    return found


def span(text: str, where: str, least: int) -> tuple[int, int]:
    """``60`` or ``10..60``: whole numbers up to 2^24."""
    from confluo_tools import units

    low, _, high = text.partition("..")
    ends = [units.try_number(low), units.try_number(high or low)]
    if not all(isinstance(n, int) for n in ends) or not least <= ends[0] <= ends[1] <= 1 << 24:  # type: ignore[operator]
        raise UsageError(f"'{text[:60]}' is not a number of {where[2:]}", where=where, hint="write e.g. 60 or 10..60")
    return int(ends[0]), int(ends[1])  # type: ignore[arg-type]


def hot_share(traffic: str, hot_tors: int | None, skew: str | None, clos: Clos) -> tuple[int, int]:
    """The number of hot ToRs, and the share of the flows to them."""
    from confluo_tools.vote.simulator import probability

    cli.one_of("--traffic", traffic, TRAFFIC)
    part, share = TRAFFIC[traffic]
    if traffic == "uniform" and (hot_tors is None) != (skew is None):
        raise UsageError("--hot-tors and --skew go together", hint="or use --traffic hot or skewed")
    some = hot_tors if hot_tors is not None else max(1, round(part * clos.pods * clos.tors)) if share else 0
    return some, chance(skew, "--skew") if skew is not None else probability(share)


def kinds(text: str) -> list[int]:
    """``fabric``, ``all`` or names of kinds of links."""
    from confluo_tools.vote.simulator import FABRIC, KINDS

    found: list[int] = []
    for word in text.split(","):
        if word.strip() == "fabric":
            found += FABRIC
        elif word.strip() == "all":
            found += range(len(KINDS))
        elif word.strip() in KINDS:
            found.append(KINDS.index(word.strip()))
        else:
            raise UsageError(
                f"unknown kind of link '{word[:60]}'",
                where="--where",
                hint=f"the kinds are {', '.join(KINDS)}, fabric, all",
            )
    return found


def named(texts: list[str], clos: Clos) -> list[tuple[int, int, int | None]]:
    """``tor-1-2:t1-1-3=0.5%`` or ``1:41``, ``t2-3:t2-3`` for a switch: node numbers and the rate, None to draw it."""
    if not texts:
        return []
    from confluo_tools.network.topology import make_clos

    known = {name: number for number, name in make_clos(clos).names.items()}
    found: list[tuple[int, int, int | None]] = []
    for text in texts:
        link, equals, its = text.partition("=")
        a, colon, b = link.partition(":")
        ends = [
            known.get(word) or (int(word) if word.isascii() and word.isdigit() and len(word) < 9 else 0)
            for word in (a, b)
        ]
        if not colon or not all(ends):
            unknown = next((word for word, number in zip((a, b), ends, strict=True) if not number), text)
            raise UsageError(
                f"'{unknown[:60]}' is not a node of this network",
                where="--fail",
                hint="write e.g. tor-1-2:t1-1-3=0.5%, or t2-3:t2-3 for a switch",
            )
        found.append((ends[0], ends[1], chance(its, "--fail") if equals else None))
    return found


def main(argv: list[str] | None = None) -> int:
    return cli.run(app, "confluo-vote simulate", argv)
