"""Namespaces and links of a lab: made, remembered in a state file, and removed by what that file says."""

from __future__ import annotations

import array
import ctypes
import fcntl
import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from topology import Link, Mistake, Topology

STATE = Path("/run/confluo-lab")
NETNS = Path("/run/netns")
MTU, PACKET = 1700, 1500  # links take longer packets than hosts send: switches write into them
SIOCETHTOOL = 0x8946
OFFLOADS = (0x17, 0x1F, 0x24, 0x2C)  # what sets checksums of sent packets, TSO, GSO, GRO (linux/ethtool.h)
CLONE_NEWNET = 0x40000000


@contextmanager
def punctual() -> Iterator[None]:
    """Before other work of the machine, where that is allowed: what comes late here would look like a network's fault.

    Processes that are started meanwhile have the usual priority.
    """
    usual = os.sched_getscheduler(0), os.sched_getparam(0)
    with suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_RR | os.SCHED_RESET_ON_FORK, os.sched_param(1))
    try:
        yield
    finally:
        with suppress(OSError):
            os.sched_setscheduler(0, *usual)


def identity(space: str) -> str:
    """Inode and time of a namespace: the kernel gives the inode of one that was removed to the next one."""
    found = (NETNS / space).stat()
    return f"{found.st_ino} {found.st_ctime_ns}"


def run(*words: str) -> str:
    done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Mistake(f"{' '.join(words)}: {done.stderr.strip() or f'exit status {done.returncode}'}")
    return done.stdout


@dataclass
class State:
    """What was made: ``spaces`` maps namespaces to `identity`, ``switches`` is (pid, start time) of their process."""

    lab: str
    topology: str
    spaces: dict[str, str] = field(default_factory=dict)
    switches: tuple[int, str] | None = None

    @property
    def folder(self) -> Path:
        return STATE / self.lab

    def space(self, host: str) -> str:
        return f"lab-{self.lab}-{host}"

    def save(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        new = self.folder / "state.tmp"
        new.write_text(json.dumps(asdict(self)))
        new.rename(self.folder / "state.json")


def names() -> list[str]:
    """The labs that are up."""
    return sorted(path.parent.name for path in STATE.glob("*/state.json"))


def find(lab: str) -> State:
    path = STATE / lab / "state.json"
    if "/" in lab or not path.exists():
        raise Mistake(f"there is no lab '{lab}'; there are: {', '.join(names()) or 'none'}")
    data = json.loads(path.read_text())
    switches = data["switches"] and (int(data["switches"][0]), str(data["switches"][1]))
    return State(data["lab"], data["topology"], data["spaces"], switches or None)


def at(path: str) -> State | None:
    """The lab that was built from (or into) a file, if it is up."""
    return next((lab for lab in map(find, names()) if lab.topology == str(Path(path).resolve())), None)


def started(pid: int) -> str:
    """When the process began, '' if there is none: a pid alone may be another's by now."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[19]
    except OSError:
        return ""


@contextmanager
def inside(space: str) -> Iterator[None]:
    """This thread's network is that of the namespace."""
    libc = ctypes.CDLL(None, use_errno=True)
    before = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    here = os.open(NETNS / space, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if libc.setns(here, CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"setns {space}")
        yield
    finally:
        libc.setns(before, CLONE_NEWNET)
        os.close(before)
        os.close(here)


def begin(lab: str, path: str, everyone: Sequence[str]) -> State:
    """A lab without anything yet, on record: whatever is made from here on, `down` removes."""
    if os.geteuid():
        raise Mistake("namespaces need root")
    for program in ("ip", "nft", "tc"):
        if shutil.which(program) is None:
            raise Mistake(f"there is no {program}; install iproute2 and nftables")
    state = State(lab, str(Path(path).resolve()))
    if state.folder.exists() or any((NETNS / state.space(name)).exists() for name in everyone):
        raise Mistake(f"lab '{lab}' is there already; take it down first, or choose another --name")
    state.save()
    return state


def up(topology: Topology, path: str, lab: str) -> State:
    """Build everything; what was made is removed again if anything fails."""
    everyone = [*topology.hosts, "switches"]
    state = begin(lab, path, everyone)
    try:
        for name in everyone:
            add_space(state, name, {"ipv4/tcp_congestion_control": topology.congestion})
        for link in topology.links:
            _link(state, topology, link)
        if topology.switches:
            _switches(state)
    except BaseException:
        down(state)
        raise
    return state


def add_space(state: State, name: str, settings: Mapping[str, str]) -> None:
    """A namespace that says nothing by itself; ``settings`` are below /proc/sys/net, the unknown ones left out."""
    space = state.space(name)
    run("ip", "netns", "add", space)
    state.spaces[space] = identity(space)
    state.save()
    run("ip", "-n", space, "link", "set", "lo", "up")
    with inside(space):
        quiet = {
            "ipv6/conf/all/accept_ra": "0",
            "ipv6/conf/default/accept_ra": "0",
            "ipv6/conf/default/router_solicitations": "0",
            "ipv6/conf/default/addr_gen_mode": "1",
            "ipv4/tcp_no_metrics_save": "1",
        }
        for key, value in {**quiet, **settings}.items():
            with suppress(FileNotFoundError):
                Path("/proc/sys/net", key).write_text(value)


def _link(state: State, topology: Topology, link: Link) -> None:
    """A veth pair: between two hosts, or from a host to the namespace of the switches, where it has the host's name."""
    hosts = [end for end in link.ends if end in topology.hosts]
    if not hosts:
        return  # between switches: inside their process
    near = state.space(hosts[0])
    far, far_name = (state.space(hosts[1]), "eth0") if len(hosts) == 2 else (state.space("switches"), hosts[0])
    run(
        "ip",
        "-n",
        near,
        "link",
        "add",
        "eth0",
        "mtu",
        str(MTU),
        "type",
        "veth",
        "peer",
        "name",
        far_name,
        "netns",
        far,
        "mtu",
        str(MTU),
    )
    ends = [(near, "eth0", hosts[0]), (far, far_name, hosts[1] if len(hosts) == 2 else "")]
    for space, device, name in ends:
        with inside(space):
            no_offloads(device)
        if name:
            _address(topology, space, name)
        run("ip", "-n", space, "link", "set", "dev", device, "up")
    for space, _, name in ends:
        if name:
            _routes(topology, space, name)
    if link.shape:  # on its way to the first end, so at the other one
        words = [word for key in ("rate", "burst", "limit") for word in (key, link.shape.get(key, "16kb"))]
        run("ip", "netns", "exec", far, "tc", "qdisc", "add", "dev", far_name, "root", "tbf", *words)
    if link.loss:
        run(
            "ip",
            "netns",
            "exec",
            near,
            "nft",
            "add table netdev lab; add chain netdev lab in "
            "{ type filter hook ingress device eth0 priority 0; }; add rule netdev lab in meta length > 250 "
            f"numgen random mod {link.loss} == 0 counter drop",
        )


def _address(topology: Topology, space: str, name: str) -> None:
    host = topology.hosts[name]
    run("ip", "-n", space, "link", "set", "eth0", "address", host.mac)
    run("ip", "-n", space, "addr", "add", f"{host.ip4}/24", "dev", "eth0", "noprefixroute")
    run("ip", "-n", space, "addr", "add", f"{host.ip6}/64", "dev", "eth0", "nodad", "noprefixroute")


def _routes(topology: Topology, space: str, name: str) -> None:
    """Packets of the usual length, and no question for anybody's MAC address."""
    lines = [
        f"route add 10.99.0.0/24 dev eth0 mtu {PACKET} advmss {PACKET - 40}",
        f"-6 route add fd00:99::/64 dev eth0 mtu {PACKET} advmss {PACKET - 60}",
    ]
    for other in topology.hosts.values():
        if other.name != name:
            lines += [f"neigh add {ip} lladdr {other.mac} dev eth0 nud permanent" for ip in (other.ip4, other.ip6)]
    for line in lines:
        run("ip", "-n", space, *line.split())


def no_offloads(device: str) -> None:
    """Packets as they are on a wire: whole checksums, and none longer than a link admits."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as door:
        for command in OFFLOADS:
            value = array.array("B", struct.pack("II", command, 0))
            where = value.buffer_info()[0]
            with suppress(OSError):
                fcntl.ioctl(door, SIOCETHTOOL, struct.pack("16sP", device.encode(), where))


def _switches(state: State) -> None:
    folder, here = state.folder, str(Path(__file__).resolve().parent)
    with open(folder / "switches.log", "wb") as log:
        words = ["ip", "netns", "exec", state.space("switches"), sys.executable, here, "forward"]
        child = subprocess.Popen(
            [*words, state.topology, str(folder)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    state.switches = child.pid, started(child.pid)
    state.save()
    until = time.monotonic() + 20
    while not (folder / "ready").exists():
        if child.poll() is not None or time.monotonic() > until:
            raise Mistake(f"the switches do not start: {(folder / 'switches.log').read_text().strip()}")
        time.sleep(0.02)


def down(state: State) -> dict[str, object]:
    """Remove what the state says that we made, and only that; returns the counts of the switches."""
    counts: dict[str, object] = {}
    if state.switches is not None and state.switches[1] and started(state.switches[0]) == state.switches[1]:
        os.kill(state.switches[0], signal.SIGTERM)
        until = time.monotonic() + 10
        while started(state.switches[0]) == state.switches[1] and time.monotonic() < until:
            with suppress(ChildProcessError):
                os.waitpid(state.switches[0], os.WNOHANG)
            time.sleep(0.01)
    with suppress(OSError, ValueError):
        counts = json.loads((state.folder / "counts.json").read_text())
    for space, made in state.spaces.items():
        with suppress(OSError):
            if identity(space) == made:
                for pid in run("ip", "netns", "pids", space).split():
                    with suppress(ProcessLookupError):
                        os.kill(int(pid), signal.SIGKILL)
                run("ip", "netns", "del", space)
    shutil.rmtree(state.folder, ignore_errors=True)
    with suppress(OSError):
        STATE.rmdir()
    return counts
