"""Traffic over a router that loses packets, captured at both ends."""

from __future__ import annotations

import re
import shutil
import signal
import socket
import subprocess
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import pytest

from netns import Lab, Space
from running import next_line

BYTES = 600_000  # each way, by TCP
DATAGRAMS = 300  # each way
RULES = """table ip lossy { chain forward { type filter hook forward priority 0;
  numgen random mod 32 == 7 counter drop; }; }"""


class LossyPath(NamedTuple):
    a: Path  # captures
    b: Path
    addresses: tuple[str, str]
    dropped: int  # packets that the router lost, as the kernel counts them


def lossy_path(lab: Lab, folder: Path) -> LossyPath:
    """Skips the test without nft."""
    left, router, right = lab.space("left"), lab.space("router"), lab.space("right")
    lab.link(left, router, ("v0", "v0"))
    near = router.address
    lab.link(router, right, ("v1", "v0"))
    left.ip("route", "add", "default", "via", near)
    right.ip("route", "add", "default", "via", router.address)
    router.run("sysctl", "-qw", "net.ipv4.ip_forward=1")
    if shutil.which("nft") is None:
        pytest.skip("nft is not installed")
    router.run("nft", RULES)
    paths = folder / "a.pcap", folder / "b.pcap"
    with ExitStack() as stack:
        for space, path in zip((left, right), paths, strict=True):
            words = [
                "tcpdump",
                "-i",
                "v0",
                "-n",
                "-U",
                "--immediate-mode",
                "-B",
                "16384",
                "-s",
                "128",
                "-w",
                path,
                "ip",
            ]
            dump = space.popen(*words, stderr=subprocess.PIPE, bufsize=0)
            assert dump.stderr is not None
            stack.callback(dump.stderr.close)
            stack.callback(dump.wait, 30)
            stack.callback(dump.send_signal, signal.SIGINT)
            assert b"listening" in next_line(dump.stderr)
        talk(left, right)
        settle(paths)
    return LossyPath(*paths, (left.address, right.address), drops(router))


def talk(left: Space, right: Space) -> None:
    """TCP and UDP both ways, at once."""
    with ExitStack() as stack:
        with left.inside():
            here = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
            here.bind((left.address, 7000))
            client = stack.enter_context(socket.socket())
        with right.inside():
            there = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
            there.bind((right.address, 7000))
            listener = stack.enter_context(socket.create_server((right.address, 7001)))
        client.settimeout(60)
        listener.settimeout(60)
        answer = threading.Thread(target=serve, args=(listener,))
        answer.start()
        client.connect((right.address, 7001))
        reader = threading.Thread(target=receive, args=(client,))
        reader.start()
        for i in range(DATAGRAMS):
            here.sendto(bytes(10 + i % 7), (right.address, 7000))
            there.sendto(bytes(20 + i), (left.address, 7000))
        client.sendall(bytes(BYTES))
        reader.join(60)
        answer.join(60)
        client.close()


def serve(listener: socket.socket) -> None:
    connection, _ = listener.accept()
    with connection:
        connection.settimeout(60)
        connection.sendall(bytes(BYTES))
        receive(connection)


def receive(connection: socket.socket) -> None:
    left = BYTES
    while left:
        left -= len(connection.recv(min(left, 65536)))


def settle(paths: tuple[Path, ...]) -> None:
    """Wait until the captures grow no more."""
    end, quiet, before = time.monotonic() + 30, 0, -1
    while quiet < 5:
        assert time.monotonic() < end
        time.sleep(0.05)
        size = sum(path.stat().st_size for path in paths)
        quiet, before = (quiet + 1 if size == before else 0), size


def drops(router: Space) -> int:
    found = re.search(r"packets (\d+)", router.run("nft", "list", "table", "ip", "lossy").stdout.decode())
    assert found
    return int(found[1])
