"""A network to practise diagnosis on: hosts, switches that write telemetry, queues, faults, and real TCP between them.

    python3 examples/lab run examples/lab/congestion.yaml --on 'd: confluo-capture -q -i eth0 -w d.ml --telemetry tcp'

builds the lab, starts the commands in the namespaces of their hosts, makes the traffic, ends the commands with
SIGINT and removes everything.  The same in steps: up, exec, traffic, down.  README.md describes the YAML.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import fabric
import net
import topology
import traffic
from agents import Agents


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="lab", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="build a lab, make its traffic, remove it")
    build = commands.add_parser("up", help="build a lab and leave it there")
    for one in (run, build):
        one.add_argument("file", help="description of the lab")
        one.add_argument("--name", help="name of the lab; needed for several labs from one file")
    run.add_argument(
        "--on", action="append", default=[], metavar="HOST: COMMAND", help="run this command on HOST during the traffic"
    )
    run.add_argument("--seconds", type=float, help="how long the traffic lasts")
    run.add_argument("--report", metavar="FILE", help="write what flows and switches did, as JSON")
    drive = commands.add_parser("traffic", help="make the traffic of a lab that is up")
    drive.add_argument("name")
    drive.add_argument("--seconds", type=float)
    execute = commands.add_parser("exec", help="run a command on a host of a lab that is up")
    execute.add_argument("name")
    execute.add_argument("host")
    execute.add_argument("words", nargs=argparse.REMAINDER)
    remove = commands.add_parser("down", help="remove a lab")
    remove.add_argument("name")
    commands.add_parser("list", help="the labs that are up")
    forward = commands.add_parser("forward")  # what up starts
    forward.add_argument("file")
    forward.add_argument("folder", type=Path)
    args = parser.parse_args()
    try:
        return int(COMMANDS[args.command](args))
    except (topology.Mistake, OSError) as e:
        print(f"lab: {e}", file=sys.stderr)
        return 2


def do_run(args: argparse.Namespace) -> int:
    plan = topology.load(args.file)
    wanted = [on.partition(":") for on in args.on]
    for host, colon, command in wanted:
        if host.strip() not in plan.hosts or not colon or not command.strip():
            raise topology.Mistake(f"--on '{host}{colon}{command}': write HOST: COMMAND, of {', '.join(plan.hosts)}")
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    state = net.up(plan, args.file, args.name or f"{plan.name}{os.getpid()}")
    commands = Agents()
    try:
        for host, _, command in wanted:
            commands.start(state.space(host.strip()), command.strip())
            commands.wait()
        flows = traffic.run(plan, state, args.seconds or plan.duration)
        commands.settle()
    finally:
        status = commands.end()
        counts = net.down(state)
    if args.report:
        Path(args.report).write_text(json.dumps({"flows": flows, **counts}, indent=1) + "\n")
    return status


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt(number)


def do_up(args: argparse.Namespace) -> int:
    plan = topology.load(args.file)
    state = net.up(plan, args.file, args.name or plan.name)
    for name, host in plan.hosts.items():
        print(f"{name}\t{host.ip4}\t{host.ip6}\tip netns exec {state.space(name)} ...")
    return 0


def do_traffic(args: argparse.Namespace) -> int:
    state = net.find(args.name)
    plan = topology.load(state.topology)
    for row in traffic.run(plan, state, args.seconds or plan.duration):
        print(json.dumps(row))
    return 0


def do_exec(args: argparse.Namespace) -> int:
    space = net.find(args.name).space(args.host)
    return subprocess.run(["ip", "netns", "exec", space, *[w for w in args.words if w != "--"]], check=False).returncode


def do_down(args: argparse.Namespace) -> int:
    net.down(net.find(args.name))
    return 0


def do_list(args: argparse.Namespace) -> int:
    for name in net.names():
        print(name, net.find(name).topology, sep="\t")
    return 0


def do_forward(args: argparse.Namespace) -> int:
    fabric.main(topology.load(args.file), args.folder / "ready", args.folder / "counts.json")
    return 0


COMMANDS = {
    "run": do_run,
    "up": do_up,
    "traffic": do_traffic,
    "exec": do_exec,
    "down": do_down,
    "list": do_list,
    "forward": do_forward,
}

if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt as e:
        sys.exit(128 + (e.args[0] if e.args else signal.SIGINT))
