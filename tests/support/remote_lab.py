"""Other hosts without a network: a remote shell that runs the command here, and what may stand between."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from running import BIN, environment

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
    rsh = folder / "rsh"
    rsh.write_text(RSH.replace("PYTHON", sys.executable).replace("DELAY", str(delay)))
    rsh.chmod(0o755)
    return str(rsh)


def env(folder: Path, **more: str) -> dict[str, str]:
    """The environment of a command that reaches other hosts through `shell`."""
    path = f"{BIN}{os.pathsep}{os.environ['PATH']}"
    return environment(CONFLUO_RSH=shell(folder), **{"PATH": path, **more})


def tool(folder: Path, **more: Any) -> Any:
    """A `RemoteShell` of confluo_tools.remote.connect that goes through `shell`; serve is that of this checkout."""
    from confluo_tools.remote.connect import RemoteShell

    return RemoteShell(shell(folder), f"{BIN / 'confluo-serve'} --stdio", **more)
