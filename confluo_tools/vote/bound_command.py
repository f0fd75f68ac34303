"""confluo-vote bound: the bounds of the theorems of 007 for a network.  Manual: confluo-vote-bound(1)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from confluo_tools import cli
from confluo_tools.cli.options import option
from confluo_tools.errors import UsageError

if TYPE_CHECKING:
    from confluo_tools.network.topology import Clos, Topology
    from confluo_tools.schema import Schema

app = cli.command_app(
    """
# how often may hosts trace, and what is the ranking worth?
confluo-vote bound --topology clos.yaml

# bad links drop 0.1% or more, good ones at most one packet in 10^8
confluo-vote bound --pods 4 --bad 0.1% --good 1e-8 --failures 1,5,10

# only the rate of traceroutes, for a script
confluo-vote bound --topology clos.yaml -o ndjson
"""
)

Row = tuple[str, str, int, float, str, bool | None]
MAX_STEPS = 200_000_000  # ToRs times directed links, without a Clos


def _number(*names: str, help: str) -> Any:
    return option(*names, metavar="N", min=1, help=help)


@app.command(
    panels={
        "Options": "--topology --failures --bad --good --packets --connections",
        "Network": "--pods --tors --t1s --t2s --hosts --t-max",
    }
)
def bound(
    topology: Annotated[
        str | None, option("--topology", metavar="FILE", help="The network: YAML, or a list of its links.")
    ] = None,
    pods: Annotated[int, _number("--pods", help="Without --topology: pods (2).")] = 2,
    tors: Annotated[int, _number("--tors", help="ToRs of a pod (20).")] = 20,
    t1s: Annotated[int, _number("--t1s", help="T1 switches of a pod (8).")] = 8,
    t2s: Annotated[int, _number("--t2s", help="T2 switches (10).")] = 10,
    hosts: Annotated[int, _number("--hosts", help="Hosts of a ToR (40).")] = 40,
    t_max: Annotated[
        str, option("--t-max", metavar="N", help="ICMP messages a second that a switch may send (100).")
    ] = "100",
    failures: Annotated[str, option("--failures", metavar="LIST", help="Numbers of bad links (1,5).")] = "1,5",
    bad: Annotated[str, option("--bad", metavar="RATE", help="Bad links drop at least this (0.05%).")] = "0.05%",
    good: Annotated[str, option("--good", metavar="RATE", help="Good links drop at most this (1e-8).")] = "1e-8",
    packets: Annotated[str, option("--packets", metavar="A..B", help="Packets of a connection (10..90).")] = "10..90",
    connections: Annotated[int, _number("--connections", help="Of a host in an epoch (60).")] = 60,
    *,
    out: cli.OutputOptions,
    common: cli.TalkOptions,
) -> int:
    """Print what Theorems 1 to 3 and Lemma 2 of 007 say about a network: traceroutes a second, drop rates of good
    links, chance of a wrong ranking.
    """
    from confluo_tools.formats.block_builder import blocks_of
    from confluo_tools.network.topology import Clos, as_clos

    schema = schema_of_answers()
    if out.listed(schema):
        return cli.OK
    most = number(t_max, "--t-max")
    if topology is not None:
        from confluo_tools.network.topology_file import read_topology

        network = read_topology(topology, "confluo-vote bound")
        clos = as_clos(network)
    else:
        network, clos = None, Clos(pods, tors, t1s, t2s, hosts)
    if clos is not None and not (clos.all_hosts and clos.pods * clos.tors > 1):
        raise UsageError("one ToR or no hosts: there is nothing to trace", where=topology or "")
    if clos is None:
        assert network is not None
        rows = of_any(network, most, str(topology))
        cli.note(f"{topology}: is not a Clos: only the bound of Theorem 1 is computed, over all paths")
    else:
        low, _, high = packets.partition("..")
        span = number(low, "--packets"), number(high or low, "--packets")
        if not 1 <= span[0] <= span[1] <= 1e9:
            raise UsageError(f"'{packets}' is not a number of packets", where="--packets", hint="write e.g. 10..90")
        rows = [*of_clos(clos, most)]
        drops = cli.fraction("--bad", bad, "a chance"), cli.fraction("--good", good, "a chance")
        rows += of_ranking(clos, counts(failures, clos), drops, span, connections)
    with out.records(schema, out.kind(answers=True), out.names(schema)) as into:
        of, quantity, k, value, unit, holds = (list(column) for column in zip(*rows, strict=True))
        columns = {
            "of": of,
            "quantity": quantity,
            "k": k,
            "value": value,
            "unit": unit,
            "holds": [0 if h is None else 1 if h else 2 for h in holds],
        }
        for block in blocks_of(schema, columns, len(rows)):
            into.write(block)
    return cli.OK


def schema_of_answers() -> Schema:
    """The schema of the output; it has no time, so that a log cannot contain it."""
    from confluo_tools.schema import Field, Schema

    return Schema(
        "bound",
        [
            Field("of", "text(16)", description="theorem1, lemma2, theorem2 or theorem3"),
            Field("quantity", "text(48)", description="what the value is of"),
            Field("k", "u32", description="bad links; 0: it does not depend on them"),
            Field("value", "f64", description="the bound, or what is there; inf: there is none"),
            Field("unit", "text(24)", description="unit of the value"),
            Field("holds", "enum", description="whether a condition is met", names={1: "yes", 2: "no"}),
        ],
        "What the theorems of 007 promise for a network.",
    )


def of_clos(clos: Clos, t_max: float) -> list[Row]:
    """Theorem 1, both ways of counting, and what switches have to answer then."""
    from confluo_tools.network import traceroute_rate

    full, paper = traceroute_rate.trace_rate_full(clos, t_max), traceroute_rate.trace_rate_paper(clos, t_max)
    rows: list[Row] = [
        ("theorem1", "traceroutes, all answers counted", 0, full, "1/s host", None),
        ("theorem1", "traceroutes, as in the paper", 0, paper, "1/s host", None),
    ]
    for rate, name in ((full, ""), (paper, ", paper's bound")):
        for level, its in traceroute_rate.answers(clos, rate).items():
            switch = ("host", "ToR", "T1", "T2")[level]
            rows.append(("theorem1", f"answers of a {switch}{name}", 0, its, "1/s", its <= t_max * (1 + 1e-12)))
    return rows


def of_any(network: Topology, t_max: float, path: str) -> list[Row]:
    """The bound that keeps each switch below ``t_max``, and the switches that it is reached at."""
    from confluo_tools.network import traceroute_rate

    tors = sum(1 for n in network.hosts_at().values() if n)
    if tors < 2:
        raise UsageError("has hosts at fewer than two ToRs: there is nothing to trace", where=path)
    links = sum(map(len, network.neighbours.values()))
    if tors * links > MAX_STEPS:
        raise UsageError(f"{tors} ToRs and {links} links would take too long", where=path, hint="give a Clos")
    load = traceroute_rate.answers_at(network, 1.0)
    busiest = max(load, key=load.__getitem__)
    rate = t_max / load[busiest] if load[busiest] else float("inf")
    rows: list[Row] = [("theorem1", "traceroutes, all answers counted", 0, rate, "1/s host", None)]
    for level, name in ((1, "ToR"), (2, "T1"), (3, "T2")):
        its = max((n for switch, n in load.items() if network.level.get(switch) == level), default=None)
        if its is not None:
            rows.append(("theorem1", f"answers of a {name}, at most", 0, its * rate, "1/s", True))
    return rows


def of_ranking(
    clos: Clos, counts: list[int], rates: tuple[float, float], packets: tuple[float, float], connections: int
) -> list[Row]:
    """Lemma 2 and Theorems 2 and 3 for each number of bad links."""
    from confluo_tools.vote import theorems

    needed, k_max = theorems.pods_needed(clos), theorems.max_bad_links(clos)
    rows: list[Row] = [
        ("lemma2", "ToRs of a pod, as many as T2s", 0, clos.t2s, "ToRs", clos.tors >= clos.t2s),
        ("lemma2", "pods", 0, needed, "pods", clos.pods >= needed),
        ("theorem2", "bad links, fewer than", 0, k_max, "links", None),
    ]
    n = clos.all_hosts * connections
    for k in counts:
        p = theorems.promise(clos, k, *rates, packets, n)
        rows += [
            ("theorem2", "alpha", k, p.alpha, "", k < k_max),
            ("theorem2", "good links drop at most", k, p.good_drops, "a packet", rates[1] <= p.good_drops),
            ("lemma2", "votes for a bad link, at least", k, p.bad_votes * n, "an epoch", None),
            ("lemma2", "votes for a good link, at most", k, p.good_votes * n, "an epoch", None),
            ("theorem3", "a pair of links is ranked wrong", k, p.misranked, "chance", None),
            ("theorem3", "the same, with the best threshold", k, p.misranked_best, "chance", None),
            ("theorem3", "any pair of links is", k, p.misranked_any, "chance", None),
            ("theorem3", "95% sure of all pairs after", k, p.connections / n, "epochs", None),
        ]
    return rows


def number(text: str, where: str) -> float:
    """A number above 0."""
    from confluo_tools import units

    value = units.try_number(text)
    if value is None or not 0 < value < float("inf"):
        raise UsageError(f"'{text[:60]}' is not a number above 0", where=where)
    return float(value)


def counts(text: str, clos: Clos) -> list[int]:
    """``1,5,10``: numbers of links."""
    from confluo_tools.vote.theorems import fabric_links

    found = []
    for word in text.split(","):
        if not (word.strip().isascii() and word.strip().isdigit() and 1 <= int(word) < fabric_links(clos)):
            raise UsageError(f"'{word[:60]}' is not a possible number of bad links here", where="--failures")
        found.append(int(word))
    return found


def main(argv: list[str] | None = None) -> int:
    return cli.run(app, "confluo-vote bound", argv)
