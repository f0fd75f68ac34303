"""Other hosts without a network: a remote shell that runs the command here, and what may stand between."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from netns import Lab, Space, missing
from running import BIN, environment, executable, forks_with

# sw*: this machine.  down*: unreachable.  slowN*: N ms on the way, in each direction.  mute*: connects, says nothing.
RSH = """#!/bin/sh
host=$1
shift
case $host in
down*) echo "ssh: connect to host $host port 22: No route to host" >&2; exit 255 ;;
mute*) exec sleep 60 ;;
noisy*) echo 'Welcome to the machine'; exec "$@" ;;
slow*) ms=${host#slow}; exec PYTHON DELAY "${ms%%-*}" "$@" ;;
esac
exec "$@"
"""

DELAY = """
import os, select, subprocess, sys, time
wait = int(sys.argv[1]) / 1000
child = subprocess.Popen(sys.argv[2:], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
ends = {0: child.stdin.fileno(), child.stdout.fileno(): 1}
due = []  # (time, descriptor, bytes)
while ends or due:
    timeout = max(due[0][0] - time.monotonic(), 0) if due else None
    for fd in select.select(list(ends), [], [], timeout)[0]:
        data = os.read(fd, 65536)
        due.append((time.monotonic() + wait, ends[fd], data))
        if not data:
            del ends[fd]
    while due and due[0][0] <= time.monotonic():
        _, fd, data = due.pop(0)
        try:
            os.write(fd, data) if data else os.close(fd)
        except OSError:
            sys.exit(1)
        if not data and fd == 1:
            sys.exit(child.wait())
"""


def shell(folder: Path) -> str:
    """What to put into CONFLUO_RSH."""
    delay = folder / "delay.py"
    delay.write_text(DELAY)
    return str(executable(folder / "rsh", RSH.replace("PYTHON", sys.executable).replace("DELAY", str(delay))))


def env(folder: Path, **more: str) -> dict[str, str]:
    """The environment of a command that reaches other hosts through `shell`."""
    path = f"{_commands()}{os.pathsep}{BIN}{os.pathsep}{os.environ['PATH']}"
    return environment(CONFLUO_RSH=shell(folder), **{"PATH": path, **more})


def _commands() -> Path:
    """A folder with the commands, as forks."""
    return forks_with(environment()).folder


def tool(folder: Path, **more: Any) -> Any:
    """A `RemoteShell` of confluo_tools.remote.connect that goes through `shell`; serve is that of this checkout."""
    from confluo_tools.remote.connect import RemoteShell

    return RemoteShell(shell(folder), f"{_commands() / 'confluo-serve'} --stdio", **more)


@contextmanager
def ssh_server(folder: Path, forced: str) -> Iterator[tuple[Space, str]]:
    """A real sshd on the loopback of a namespace of its own, with a key that may only run ``forced``.

    Gives the namespace and the words for CONFLUO_RSH.  Skips the test where there is no sshd.
    """
    sshd = shutil.which("sshd") or shutil.which("sshd", path="/usr/sbin")
    if sshd is None or shutil.which("ssh") is None:
        pytest.skip("sshd is not installed (openssh-server)")
    if missing():
        pytest.skip(missing())
    for name in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name], check=True)
    os.makedirs("/run/sshd", exist_ok=True)
    key = (folder / "user.pub").read_text()
    (folder / "keys").write_text(f'restrict,command="{forced}" {key}')
    (folder / "sshd_config").write_text(
        f"Port 2222\nListenAddress 127.0.0.1\nHostKey {folder}/host\nAuthorizedKeysFile {folder}/keys\n"
        f"PidFile none\nStrictModes no\nUsePAM no\nPermitRootLogin yes\nPasswordAuthentication no\n"
    )
    options = f"-F none -p 2222 -i {folder}/user -o UserKnownHostsFile={folder}/known -o BatchMode=yes"
    with Lab() as lab:
        space = lab.space()
        daemon = space.popen(sshd, "-D", "-e", "-f", folder / "sshd_config", stderr=subprocess.PIPE)
        try:
            assert daemon.stderr is not None
            while b"listening" not in daemon.stderr.readline():
                assert daemon.poll() is None
            yield space, f"ssh {options} -o StrictHostKeyChecking=accept-new"
        finally:
            daemon.terminate()
            daemon.communicate()
