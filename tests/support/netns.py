"""Network namespaces that are thrown away: real interfaces, real packets, nothing of the machine's own network.

    with Lab() as lab:
        a, b = lab.pair()                         # two namespaces, v0 in each, 10.77.0.1 and 10.77.0.2
        b.run("tc", "qdisc", "show", "dev", "v0")
        with b.inside():                          # sockets that this thread opens now are b's
            ...

Names carry our pid and a counter, so that tests may run side by side; leaving the context removes what it made.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from running import completed, popen

CLONE_NEWNET = 0x40000000
_numbers = itertools.count()
# Source ports for flows whose retransmissions are traced: concurrent tests have different ones.  Tracing reports all
# namespaces, and a flow of the same addresses and ports in another one is taken for ours (CAVEATS of confluo-retx).
PORTS = 24_000 + int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:]) % 8 * 4_000 + os.getpid() % 20 * 100


def _ip(*words: str) -> str:
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"ip {' '.join(words)}: {done.stderr.strip()}")
    return done.stdout


@functools.cache
def missing() -> str:
    """Why there can be no namespaces here, '' when there can."""
    name = f"cfl{os.getpid()}-try"
    try:
        _ip("netns", "add", name)
        _ip("-n", name, "link", "add", "v0", "type", "veth", "peer", "name", "v1")
    except FileNotFoundError:
        return "no ip(8)"
    except OSError as e:
        return f"no network namespaces: {e}"
    finally:
        subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
    return ""


class Space:
    """One namespace.  ``address``: the last one that `Lab.link` gave it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.address = ""

    def argv(self, *words: Any) -> list[str]:
        """The command line that runs ``words`` in here."""
        return ["ip", "netns", "exec", self.name, *map(str, words)]

    def run(self, *words: Any, check: bool = True, **more: Any) -> subprocess.CompletedProcess[bytes]:
        more.setdefault("stdin", subprocess.DEVNULL)
        done = completed(self.argv(*words), capture_output=True, check=False, timeout=60, **more)
        if check and done.returncode:
            raise OSError(f"{' '.join(map(str, words))}: {done.stderr.decode().strip()}")
        return done

    def popen(self, *words: Any, **more: Any) -> subprocess.Popen[bytes]:
        """The process itself, not a shell around it: its pid is that of the command."""
        return popen(self.argv(*words), **more)

    def ip(self, *words: Any) -> str:
        """Run ip(8) in here."""
        return _ip("-n", self.name, *map(str, words))

    @contextmanager
    def inside(self) -> Iterator[None]:
        """This thread's network is that of the namespace."""
        libc = ctypes.CDLL(None, use_errno=True)

        def enter(fd: int) -> None:
            if libc.setns(fd, CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), "setns")

        before = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        here = os.open(Path("/run/netns") / self.name, os.O_RDONLY | os.O_CLOEXEC)
        try:
            enter(here)
            try:
                yield
            finally:
                enter(before)
        finally:
            os.close(before)
            os.close(here)


class Lab:
    """A context: namespaces and the links between them.  Skips the test where there can be none."""

    def __init__(self) -> None:
        self._spaces: list[Space] = []
        self._nets = 0

    def __enter__(self) -> Lab:
        if missing():
            pytest.skip(missing())
        return self

    def __exit__(self, *exc: object) -> None:
        for space in self._spaces:  # what runs in there first: the kernel keeps a namespace that is used
            done = subprocess.run(["ip", "netns", "pids", space.name], capture_output=True, text=True, check=False)
            for pid in done.stdout.split():
                with suppress(ProcessLookupError):
                    os.kill(int(pid), 9)
            subprocess.run(["ip", "netns", "del", space.name], capture_output=True, check=False)

    def space(self, name: str = "") -> Space:
        """A new namespace with lo up, IPv6 off (it sends packets by itself) unless the test turns it on."""
        space = Space(f"cfl{os.getpid()}-{next(_numbers)}{name and '-'}{name}")
        self._spaces.append(space)
        _ip("netns", "add", space.name)
        for which in ("all", "default"):
            space.run("sh", "-c", f"echo 1 >/proc/sys/net/ipv6/conf/{which}/disable_ipv6", check=False)
        space.ip("link", "set", "lo", "up")
        return space

    def link(self, a: Space, b: Space, names: Sequence[str] = ("v0", "v0"), net: str = "") -> None:
        """A veth pair, up, with addresses .1 and .2 of ``net`` (10.77.N unless given) and fixed neighbours."""
        net = net or f"10.77.{self._nets}"
        self._nets += 1
        mac = [f"02:00:00:{self._nets:02x}:00:0{side}" for side in (1, 2)]
        a.ip(
            "link",
            "add",
            names[0],
            "address",
            mac[0],
            "type",
            "veth",
            "peer",
            "name",
            names[1],
            "address",
            mac[1],
            "netns",
            b.name,
        )
        for side, (space, name) in enumerate(zip((a, b), names, strict=True)):
            space.address = f"{net}.{side + 1}"
            space.ip("addr", "add", f"{space.address}/24", "dev", name)
            space.ip("link", "set", name, "up")
            space.ip("neigh", "add", f"{net}.{2 - side}", "lladdr", mac[1 - side], "dev", name, "nud", "permanent")

    def pair(self) -> tuple[Space, Space]:
        """Two namespaces with one veth pair, v0 in both."""
        a, b = self.space("a"), self.space("b")
        self.link(a, b)
        return a, b
