"""A Clos of network namespaces: ECMP, ICMP and TCP of the kernel, packet loss with known counts.

    python3 examples/clos up clos.yaml                         # 2 pods, 4 ToR, 4 T1, 2 T2, 8 hosts; writes clos.yaml
    python3 examples/clos drop clos.yaml agg1 core1 1/100      # a directed link
    python3 examples/clos load clos.yaml --flows 400 -w flows.tsv
    python3 examples/clos counts clos.yaml
    python3 examples/clos down clos.yaml

The file identifies the fabric.  README.md describes the rest.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent.parent / "lab"))

import clos
import drops
import load
import net
import spaces
from agents import Agents
from topology import Mistake

SIZES = ("pods", "tors", "t1s", "t2s", "hosts")


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="clos", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)

    def add(name: str, help: str) -> argparse.ArgumentParser:
        one = commands.add_parser(name, help=help)
        one.add_argument("file", help="the topology file that 'up' wrote")
        return one

    up = add("up", "build a fabric, and write FILE, which describes it")
    for name, what in zip(SIZES, ("pods", "ToR a pod", "T1 a pod", "T2", "hosts a ToR"), strict=True):
        up.add_argument(f"--{name}", type=int, default=2, metavar="N", help=f"{what} (2)")
    up.add_argument("--seed", type=int, default=1, metavar="N", help="seed of the hash functions of the switches (1)")
    up.add_argument(
        "--icmp",
        type=int,
        default=0,
        metavar="N",
        help="maximum number of ICMP messages per second of a switch; 0: no limit",
    )
    up.add_argument("--name", help="part of the names of the namespaces, lab-NAME-NODE (clos and a number)")
    drop = add("drop", "a directed link drops a share of its TCP packets from now on")
    heal = add("heal", "it drops none")
    for one in (drop, heal):
        one.add_argument("source", metavar="FROM")
        one.add_argument("to", metavar="TO")
    drop.add_argument(
        "share",
        help="packets to drop: 1/200 is every 200th packet, 0.5%% is random, '1/8 flows', '1/8 pairs' a black hole",
    )
    traffic = add("load", "TCP between random hosts of different racks, until all of it has arrived")
    traffic.add_argument("--flows", type=int, default=400, metavar="N", help="number of flows (400)")
    traffic.add_argument("--size", type=_bytes, default=50_000, metavar="BYTES", help="bytes per flow (50k)")
    traffic.add_argument("--seed", type=int, default=1, metavar="N", help="seed of the choice of hosts (1)")
    traffic.add_argument("--ip", type=int, choices=(4, 6), default=4)
    traffic.add_argument(
        "--parallel", type=int, default=load.PARALLEL, metavar="N", help="number of flows at the same time"
    )
    traffic.add_argument("--first-port", type=int, default=20000, metavar="PORT", help="source port of the first flow")
    traffic.add_argument(
        "--during",
        action="append",
        default=[],
        metavar="COMMAND",
        help="run this command on every host ($HOST) during the traffic; end it with SIGINT",
    )
    traffic.add_argument("-w", "--write", metavar="FILE", help="the kernel's counts of each flow, as TSV")
    add("counts", "TCP packets that came by each directed link and were dropped there, as TSV; most drops first")
    add("forget", "all counters are 0 again, and no link drops anything")
    each = add("each", "run a command on every host ($HOST) at once")
    each.add_argument("words", nargs=argparse.REMAINDER, metavar="COMMAND")
    execute = add("exec", "run a command on a host or switch")
    execute.add_argument("node")
    execute.add_argument("words", nargs=argparse.REMAINDER, metavar="COMMAND")
    add("down", "remove the fabric")
    args = parser.parse_args()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    try:
        return int(COMMANDS[args.command](args))
    except (Mistake, OSError) as e:
        print(f"clos: {e}", file=sys.stderr)
        return 2


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt(number)


def _bytes(text: str) -> int:
    return int(text[:-1]) * 1000 ** (" kMG".index(text[-1])) if text[-1:] in "kMG" else int(text)


def _found(args: argparse.Namespace) -> tuple[net.State, clos.Clos]:
    """The fabric that FILE describes."""
    state = net.at(args.file)
    if state is None:
        raise Mistake(f"{args.file}: is not the file of a fabric that is up; 'up' builds one")
    sizes = json.loads((state.folder / "clos.json").read_text())
    return state, clos.Clos(**sizes)


def do_up(args: argparse.Namespace) -> int:
    plan = clos.Clos(**{name: getattr(args, name) for name in SIZES})
    if (there := net.at(args.file)) is not None:
        raise Mistake(f"{args.file}: is the file of '{there.lab}', which is up; take it down first")
    state = spaces.up(plan, args.file, args.name or f"clos{os.getpid()}", args.seed, args.icmp)
    try:
        (state.folder / "clos.json").write_text(json.dumps({name: getattr(args, name) for name in SIZES}))
        Path(args.file).write_text(clos.describe(plan))
    except BaseException:
        net.down(state)
        raise
    print(f"{len(plan.nodes)} namespaces lab-{state.lab}-NODE, {len(plan.links)} links; described in {args.file}")
    return 0


def do_drop(args: argparse.Namespace) -> int:
    drops.drop(*_found(args), args.source, args.to, args.share)
    return 0


def do_heal(args: argparse.Namespace) -> int:
    drops.heal(*_found(args), args.source, args.to)
    return 0


def do_load(args: argparse.Namespace) -> int:
    state, plan = _found(args)
    flows = load.choose(plan, args.flows, args.size, args.seed, args.ip, args.first_port)
    agents = Agents()
    try:
        for command in args.during:
            spaces.on_hosts(agents, state, plan, command)
        agents.wait()
        load.run(state, flows, args.parallel)
        agents.settle()
    finally:
        status = agents.end()
    if args.write:
        Path(args.write).write_text(load.table(flows))
    sums = {what: sum(getattr(flow, what) for flow in flows) for what in ("sent", "retrans", "dsack")}
    print("{} flows, {sent} packets; {retrans} sent again, {dsack} of them for nothing".format(len(flows), **sums))
    undone = sum(not flow.done for flow in flows)
    if undone:
        print(f"clos: {undone} flows did not get through", file=sys.stderr)
    return max(status, 2 if undone else 0)


def do_counts(args: argparse.Namespace) -> int:
    print("#fields\tlink_a\tlink_b\tpackets\tdropped\tflows\n#types\ttext(16)\ttext(16)\tu64\tu64\tu32")
    for seen in sorted(drops.counts(*_found(args)), key=lambda seen: -seen.dropped):
        print(*seen.link, seen.packets, seen.dropped, len(seen.lost), sep="\t")
    return 0


def do_forget(args: argparse.Namespace) -> int:
    drops.forget(*_found(args))
    return 0


def do_each(args: argparse.Namespace) -> int:
    """Run a command to its end on every host; return the highest exit status."""
    agents = Agents()
    try:
        spaces.on_hosts(agents, *_found(args), shlex.join(_words(args)))
        return agents.join()
    finally:
        agents.end()


def do_exec(args: argparse.Namespace) -> int:
    state, plan = _found(args)
    if args.node not in plan.nodes:
        raise Mistake(f"there is no '{args.node}'; there are {', '.join(plan.nodes)}")
    return subprocess.run(["ip", "netns", "exec", state.space(args.node), *_words(args)], check=False).returncode


def _words(args: argparse.Namespace) -> list[str]:
    words = args.words[1:] if args.words[:1] == ["--"] else args.words
    if not words:
        raise Mistake("there is no command")
    return list(words)


def do_down(args: argparse.Namespace) -> int:
    net.down(_found(args)[0])
    return 0


COMMANDS = {
    "up": do_up,
    "drop": do_drop,
    "heal": do_heal,
    "load": do_load,
    "counts": do_counts,
    "forget": do_forget,
    "each": do_each,
    "exec": do_exec,
    "down": do_down,
}

if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt as e:
        sys.exit(128 + (e.args[0] if e.args else signal.SIGINT))
