"""007 from end to end in the Clos of namespaces: what the kernel, the captures and nftables say is one story."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from clos_lab import FIVE, Fabric, drops, load, needs_root, needs_seed, proof, up, ways
from sessions import Shell

pytestmark = [pytest.mark.root, pytest.mark.net, needs_root, needs_seed]

CAPTURE = 'confluo-capture -q -i $TOR -w $HOST.ml "tcp and src host $IP{}"'
# Every kind of segment that was there before: what a busy host sends too soon has a name of its own.
AGAIN = "retransmission || fast_retransmission || spurious_retransmission || out_of_order"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fabric]:
    with up(tmp_path_factory.mktemp("live")) as made:
        yield made


@pytest.fixture
def fabric(made: Fabric) -> Fabric:
    drops.forget(made.state, made.plan)
    return made


@pytest.fixture
def chain(fabric: Fabric, tmp_path: Path) -> proof.Proof:
    return proof.Proof(fabric.state, fabric.plan, tmp_path, Shell(tmp_path).forking())


def five_tuples(path: Path, flows: list[load.Flow]) -> None:
    """As any program may write them."""
    names = "ts ip_version proto src_ip dst_ip src_port dst_port lost"
    rows = [
        (1, 6 if ":" in flow.src_ip else 4, "tcp", flow.src_ip, flow.dst_ip, flow.src_port, flow.dst_port, 1)
        for flow in flows
    ]
    path.write_text("\n".join("\t".join(map(str, row)) for row in [("#fields", *names.split()), *rows]) + "\n")


@pytest.mark.parametrize("ip", [4, 6])
def test_every_traceroute_goes_the_way_of_its_flow(fabric: Fabric, chain: proof.Proof, ip: int) -> None:
    flows = fabric.load(300, ip=ip)
    way = ways(fabric, flows)
    for host in fabric.plan.host_nodes():
        five_tuples(chain.folder / f"{host.name}.tsv", [flow for flow in flows if flow.source == host.name])
    chain.trace("tsv")
    assert chain.paths() == {flow.key: way[flow.key] for flow in flows}


@pytest.mark.parametrize("ip", [4, 6])
def test_captures_show_what_the_kernel_sent_again(fabric: Fabric, chain: proof.Proof, ip: int) -> None:
    """At the sender, from headers alone: flow by flow the number that TCP_INFO has, and the packets too."""
    drops.drop(fabric.state, fabric.plan, *FIVE["T1-T2"], "1/50")
    flows = fabric.flows(200, 50_000, ip=ip)
    chain.load_with(flows, CAPTURE.format(ip))
    sent = chain.sums("ml", "count")
    assert {flow.key: sent.get(flow.key) for flow in flows if sent.get(flow.key, (0,)) < (flow.sent,)} == {}  # no drops
    late = [flow for flow in flows if sent[flow.key] > (flow.sent,)]  # an acknowledgement after the socket's last word
    assert len(late) <= 5
    again = chain.sums("ml", "count", "--analyze", "tcp", "-e", AGAIN)
    told = {flow.key: (flow.retrans,) for flow in flows if flow.retrans}
    assert len(told) > 5
    assert {key: row for key, row in again.items() if key[3] == load.PORT} == told


@pytest.mark.parametrize("ip", [4, 6])
def test_the_kernels_events_are_the_counts_of_its_sockets(fabric: Fabric, chain: proof.Proof, ip: int) -> None:
    """Retransmissions of each flow: traced one by one, reported at its end, and queried by its owner."""
    drops.drop(fabric.state, fabric.plan, *FIVE["T2-T1"], "1/40")
    flows = fabric.flows(300, 50_000, ip=ip)
    chain.load_with(flows, "confluo-retx -q --follow --trace always -w $HOST.retx.ml")
    told = {
        flow.key: (flow.retrans, flow.dsack, flow.retrans - flow.dsack, flow.retrans) for flow in flows if flow.retrans
    }
    found = chain.sums("retx.ml", "retrans dsack lost events")
    assert len(told) > 5
    assert {key: row for key, row in found.items() if key[3] == load.PORT} == told


# Primes: probes come in tens, and a link that drops each hundredth may always drop the same one of them.
SHARES = {
    "host-ToR": "1/101",
    "ToR-T1": "1/199",
    "T1-T2": "1/31",
    "T2-T1": "1/101",
    "T1-ToR": "1/101",
    "ToR-host": "1/101",
}
LINKS = FIVE | {"ToR-host": ("tor2", "h3")}


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "ip"), [*((kind, 4) for kind in SHARES), ("host-ToR", 6), ("T2-T1", 6)])
def test_the_link_that_drops_is_first(fabric: Fabric, chain: proof.Proof, kind: str, ip: int) -> None:
    """Agents on every host, real losses, real traceroutes, real votes."""
    result = chain.prove(LINKS[kind], SHARES[kind], fabric.flows(400, 100_000, ip=ip))
    assert (result.rank("vote"), result.rank("mle")) == (1, 1), result
    assert result.dropped == result.packets // int(SHARES[kind][2:]) > 10
    assert result.reported == result.lossy >= 8
    assert result.traced == result.lossy
    assert all("?" in way for way in result.wrong.values()), result.wrong  # a link that drops may drop all its probes
    assert len(result.wrong) <= 2
    assert result.blamed >= result.crossing - 1 > 5
    assert {node for link in result.ranking["mle"] for node in link} <= set(fabric.plan.nodes)  # none is a stranger


def test_a_link_that_drops_everything_is_the_only_one_blamed(fabric: Fabric, chain: proof.Proof) -> None:
    """Handshakes that do not finish, traces that end before the link, acknowledgements that never come back."""
    link = LINKS["host-ToR"]
    drops.drop(fabric.state, fabric.plan, *link, "100%")
    flows = [flow for flow in fabric.flows(120, 5_000) if link[0] in (flow.source, flow.to)]
    chain.load_with(flows, proof.RETX, parallel=len(flows), give_up=4)
    chain.trace(tries=2)
    for model in ("vote", "mle"):
        rows = chain.vote("--model", model, "-f", "link_a,link_b,verdict")
        assert [(a, b) for a, b, verdict in rows if verdict != "good"] == [link], (model, rows)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["ToR-T1", "T1-ToR"])
def test_the_link_that_drops_is_first_from_captures_too(fabric: Fabric, chain: proof.Proof, kind: str) -> None:
    """The same loss without the kernel's word: from headers at the senders, the same paths and votes."""
    drops.drop(fabric.state, fabric.plan, *LINKS[kind], "1/47")  # more often than 1/101: it must not lose ACKs alone
    flows = fabric.flows(200, 50_000)
    chain.load_with(flows, CAPTURE.format(4), proof.RETX.replace("--all ", ""))
    chain.on_hosts(f"confluo-query $HOST.ml --analyze tcp '{AGAIN}' -o stream -w $HOST.again")
    chain.trace("again")
    needless = {flow.key for flow in flows if flow.dsack}  # only who reads DSACK knows that nothing was lost
    ranking = chain.ranking()
    seen = [one for one in drops.counts(fabric.state, fabric.plan) if one.dropped]
    assert LINKS[kind] in ranking, (ranking, seen, chain.paths())
    assert ranking.index(LINKS[kind]) <= len(needless)
    of_captures = {key: way for key, way in chain.paths().items() if key[3] == load.PORT}
    for log in chain.logs("paths.ml"):
        (chain.folder / log).rename(chain.folder / log.replace(".paths.", ".captured."))
    chain.trace()
    of_sockets = {key: way for key, way in chain.paths().items() if key[3] == load.PORT}
    assert chain.ranking()[0] == LINKS[kind]
    assert of_sockets.keys() <= of_captures.keys() <= of_sockets.keys() | needless
    same = [key for key, way in of_sockets.items() if of_captures[key] == way]
    assert len(same) >= len(of_sockets) - 2  # some probes may be dropped as well


@pytest.mark.slow
def test_at_the_rate_of_theorem_1_switches_answer_all_probes(tmp_path: Path) -> None:
    """Switches that send 100 messages a second: they stand what the bound allows, and not much more.

    The kernel counts a message as none, one or two, by chance; so switches get half of the probes that they can answer.
    """
    with up(tmp_path, icmp=100) as fabric:
        flows = fabric.load(240, 2_000)
        way = ways(fabric, flows)
        whole = {}
        for name, words in (("bound", "--bound full --t-max 50"), ("storm", "--rate 10000 --burst 1000")):
            (tmp_path / name).mkdir()
            chain = proof.Proof(fabric.state, fabric.plan, tmp_path / name, Shell(tmp_path).forking())
            for host in fabric.plan.host_nodes():
                five_tuples(chain.folder / f"{host.name}.tsv", [flow for flow in flows if flow.source == host.name])
            chain.on_hosts(
                f"confluo-trace -q --from $HOST.tsv --topology {fabric.file} {words} --tries 1 -w $HOST.paths.ml"
            )
            found = chain.paths()
            whole[name] = sum(found.get(flow.key) == way[flow.key] for flow in flows)
        assert whole["bound"] >= 230
        assert whole["storm"] <= 120
