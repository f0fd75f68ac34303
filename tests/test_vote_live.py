"""007 from end to end in the Clos of namespaces: what the kernel, the captures and nftables say is one story."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from clos_lab import Fabric, agents, drops, load, needs_root, needs_seed, spaces, up
from sessions import Shell

pytestmark = [pytest.mark.root, pytest.mark.net]


@pytest.fixture(scope="module")
def fabric(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fabric]:
    with up(tmp_path_factory.mktemp("live")) as made:
        yield made


@pytest.fixture(autouse=True)
def _healed(request: pytest.FixtureRequest) -> None:
    if "fabric" in request.fixturenames:
        made = request.getfixturevalue("fabric")
        drops.forget(made.state, made.plan)


def load_with(fabric: Fabric, shell: Shell, flows: list[load.Flow], *commands: str) -> None:
    """The load, while these commands run on every host ($HOST, $TOR, $IP4, $IP6), in the folder of the shell."""
    work = agents.Agents()
    try:
        for command in commands:
            spaces.on_hosts(work, fabric.state, fabric.plan, command, shell.folder, **shell.env)
        work.wait()
        load.run(fabric.state, flows)
    finally:
        status = work.end()
    assert status == 0
    assert all(flow.done for flow in flows)


def answer(shell: Shell, command: str) -> list[list[str]]:
    status, printed = shell.run(command)
    assert status in (0, 1), "\n".join(printed)
    return [line.split("\t") for line in printed]


@needs_root
@needs_seed
@pytest.mark.parametrize("ip", [4, 6])
def test_captures_show_what_the_kernel_sent_again(fabric: Fabric, tmp_path: Path, ip: int) -> None:
    """At the sender, from headers alone: flow by flow the number that TCP_INFO has, and the packets too."""
    shell = Shell(tmp_path)
    drops.drop(fabric.state, fabric.plan, "agg1", "core1", "1/50")
    flows = fabric.flows(150, ip=ip)
    load_with(fabric, shell, flows, f'confluo-capture -q -i $TOR -w $HOST.ml "tcp and src host $IP{ip}"')
    for what, question in (("retrans", "--analyze tcp 'retransmission || out_of_order'"), ("sent", "tcp")):
        seen: dict[tuple[str, int], int] = {}
        for host in fabric.plan.host_nodes():
            for address, port, count in answer(shell, f"confluo-query {host.name}.ml {question} -T --no-header "
                                                      "--agg count --by src_ip,src_port"):  # fmt: skip
                seen[address, int(port)] = int(count)
        told = {flow.key[:2]: getattr(flow, what) for flow in flows if getattr(flow, what)}
        assert told
        assert {key: seen.get(key, 0) for key in told} == told
        assert what == "sent" or {key for key in seen if key[1] != load.PORT} == set(told)

