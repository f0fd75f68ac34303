"""The Clos as network namespaces: a namespace per node, a veth pair per link, ECMP routes of the kernel.

README.md gives the reason for each setting.  net.py of the other lab records all created objects and removes them.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import net
from agents import Agents
from clos import HOST, T2, TOR, Clos, Link, Node
from topology import Mistake

HASH_FIELDS = "55"  # source, destination, protocol, both ports; not the flow label, which changes when TCP retries
SEED = "ipv4/fib_multipath_hash_seed"
TABLE = "netdev clos"
MAX_FLOWS = 16384  # flows that a node distinguishes; memory is reserved for all of them
BARE = 121  # bytes: an acknowledgement is shorter, whatever its options, over IPv6 too
WORKERS = 4


def settings(node: Node, seed: int, icmp: int) -> dict[str, str]:
    """Settings that differ from a fresh namespace.  ``icmp``: ICMP messages per second of a switch, 0: no limit."""
    both = {"ipv4/conf/all/rp_filter": "0", "ipv4/conf/default/rp_filter": "0"}
    if node.level == HOST:
        return both | {"ipv4/tcp_early_retrans": "0", "ipv4/tcp_congestion_control": "reno"}
    return both | {
        "ipv4/ip_forward": "1",
        "ipv6/conf/all/forwarding": "1",
        "ipv4/fib_multipath_hash_policy": "3",
        "ipv4/fib_multipath_hash_fields": HASH_FIELDS,
        "ipv6/fib_multipath_hash_policy": "3",
        "ipv6/fib_multipath_hash_fields": HASH_FIELDS,
        SEED: str(seed * 1000 + node.level * 256 + node.number),
        "ipv4/icmp_errors_use_inbound_ifaddr": "1",
        "ipv4/icmp_ratelimit": "0",
        "ipv4/icmp_msgs_per_sec": str(icmp or 1_000_000),
        "ipv4/icmp_msgs_burst": str(max(icmp // 10, 1) if icmp else 1_000_000),
        "ipv6/icmp/ratelimit": "0",
    }


def up(plan: Clos, path: str, lab: str, seed: int = 1, icmp: int = 0) -> net.State:
    """Build the fabric; on failure remove everything created so far."""
    if not Path("/proc/sys/net", SEED).exists():
        raise Mistake(f"this kernel has no {SEED} (Linux 6.11 has): all switches would choose the same way")
    state = net.begin(lab, path, list(plan.nodes))
    try:
        for node in plan.nodes.values():
            net.add_space(state, node.name, settings(node, seed, icmp))
        _batch("", (_pair(state, plan, number) for number in range(len(plan.links))))
        with ThreadPoolExecutor(WORKERS) as pool:
            list(pool.map(lambda node: _furnish(state, plan, node), plan.nodes.values()))
    except BaseException:
        net.down(state)
        raise
    return state


def on_hosts(
    agents: Agents, state: net.State, plan: Clos, command: str, folder: Path | None = None, **environment: str
) -> None:
    """Start a command on every host, with $HOST, $TOR, $IP4 and $IP6 in its environment."""
    for host in plan.host_nodes():
        agents.start(
            state.space(host.name),
            command,
            folder,
            **environment,
            HOST=host.name,
            TOR=host.tor,
            IP4=host.ip4,
            IP6=host.ip6,
        )


def _batch(space: str, lines: Iterable[str]) -> None:
    """Run commands of ip(8) in one process."""
    words = ["ip", *(["-n", space] if space else []), "-batch", "-"]
    _feed(words, "\n".join(lines) + "\n")


def nft(space: str, script: str) -> None:
    _feed(["ip", "netns", "exec", space, "nft", "-f", "-"], script)


def _feed(words: list[str], text: str) -> None:
    done = subprocess.run(words, input=text, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Mistake(f"{' '.join(words)}: {done.stderr.strip() or f'exit status {done.returncode}'}")


def _pair(state: net.State, plan: Clos, number: int) -> str:
    """Create a veth pair; each end is named after the node at the other end."""
    link = plan.links[number]
    low, high = link.ends
    return (
        f"link add name {high} address {link.mac(0)} gso_max_segs 1 netns {state.space(low)} type veth "
        f"peer name {low} address {link.mac(1)} gso_max_segs 1 netns {state.space(high)}"
    )


def _furnish(state: net.State, plan: Clos, node: Node) -> None:
    """Addresses, neighbours and routes of a node, and a counter where each directed link enters it."""
    space = state.space(node.name)
    lines = []
    if node.level != HOST:
        lines += [f"addr add {node.ip4}/32 dev lo", f"addr add {node.ip6}/128 dev lo nodad"]
    around = plan.around(node.name)
    for peer, link, side in around:
        lines += [
            f"addr add {link.ip4[side]}/31 dev {peer.name}",
            f"addr add {link.ip6[side]}/127 dev {peer.name} nodad",
            f"link set dev {peer.name} up",
            f"neigh add {link.ip4[1 - side]} lladdr {link.mac(1 - side)} dev {peer.name} nud permanent",
            f"neigh add {link.ip6[1 - side]} lladdr {link.mac(1 - side)} dev {peer.name} nud permanent",
        ]
    with net.inside(space):
        for peer, _, _ in around:
            net.no_offloads(peer.name)
    _batch(space, [*lines, *_routes(plan, node)])
    nft(space, watch(peer.name for peer, _, _ in around))


def _routes(plan: Clos, node: Node) -> list[str]:
    """Routes: down if the destination is below (hosts of a ToR are on its links), else up over all equal-cost paths."""
    around = plan.around(node.name)
    lines = []
    if node.level == T2:
        for tor in plan.level(TOR):
            lines += _way(
                f"10.77.{tor.number}.0/24",
                f"fd77:0:0:{tor.number:x}::/64",
                [via for via in around if via[0].pod == tor.pod],
            )
        return lines
    for tor, link, side in around:
        if tor.level == TOR and node.level != HOST:
            lines += _way(f"10.77.{tor.number}.0/24", f"fd77:0:0:{tor.number:x}::/64", [(tor, link, side)])
    return lines + _way("0.0.0.0/0", "::/0", [via for via in around if via[0].level > node.level])


def _way(to4: str, to6: str, vias: list[tuple[Node, Link, int]]) -> list[str]:
    hops4 = " ".join(f"nexthop via {link.ip4[1 - side]} dev {peer.name}" for peer, link, side in vias)
    hops6 = " ".join(f"nexthop via {link.ip6[1 - side]} dev {peer.name}" for peer, link, side in vias)
    return [f"route add {to4} {hops4}", f"route add {to6} {hops6}"]


def watch(peers: Iterable[str]) -> str:
    """The nftables table that counts packets per link and flow, and drops packets by rules."""
    key = "iifname . {0} saddr . tcp sport . {0} daddr . tcp dport"
    lines = [f"table {TABLE} {{"]
    for what in ("seen", "lost", "acks"):
        for version, kind in ((4, "ipv4_addr"), (6, "ipv6_addr")):
            lines.append(
                f"set {what}{version} {{ type ifname . {kind} . inet_service . {kind} . inet_service; "
                f"flags dynamic; size {MAX_FLOWS}; counter; }}"
            )
    for peer in peers:
        lines.append(f"""chain faults_{peer} {{ }}
            chain acks_{peer} {{
                meta protocol ip update @acks4 {{ {key.format("ip")} }}
                meta protocol ip6 update @acks6 {{ {key.format("ip6")} }}
            }}
            chain lost_{peer} {{
                counter
                meta length < {BARE} tcp flags & (syn | fin) == 0 jump acks_{peer}
                meta length < {BARE} tcp flags & (syn | fin) == 0 drop
                meta protocol ip update @lost4 {{ {key.format("ip")} }}
                meta protocol ip6 update @lost6 {{ {key.format("ip6")} }}
                drop
            }}
            chain in_{peer} {{
                type filter hook ingress device "{peer}" priority 0;
                meta l4proto != tcp accept
                counter
                meta protocol ip update @seen4 {{ {key.format("ip")} }}
                meta protocol ip6 update @seen6 {{ {key.format("ip6")} }}
                jump faults_{peer}
            }}""")
    return "\n".join([*lines, "}"])
