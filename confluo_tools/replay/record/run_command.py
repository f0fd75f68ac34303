"""confluo-replay-record run: record the connections of a command.  Manual: confluo-replay-record(1)."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Annotated, Any

import typer

from confluo_tools import cli
from confluo_tools.cli.options import option
from confluo_tools.errors import ConfluoError, UsageError

app = cli.command_app(
    """
# a client and its server, both in the command, in a network namespace of their own
sudo confluo-replay-record run -w both.ml -- ./test-both-ends

# a client in an existing network namespace, which reaches its server
sudo confluo-replay-record run -w c.ml --netns web -- curl -s http://10.0.0.2:8080/

# in a namespace of its own that joins the bridge br0 with this address
sudo confluo-replay-record run -w c.ml --bridge br0 --address 10.0.0.9/24 -- ./client 10.0.0.2
"""
)

QUIET = 2.0  # s after the end of the command that its connections may take to end
Command = Annotated[list[str], typer.Argument(metavar="COMMAND...", help="The command and its arguments, after --.")]
Netns = Annotated[str | None, option("--netns", metavar="NAME", help="Run it in this network namespace.")]
Bridge = Annotated[str | None, option("--bridge", metavar="NAME", help="Join the new namespace to this bridge.")]
Address = Annotated[str | None, option("--address", metavar="ADDR/LEN", help="Address in the new namespace.")]
Gateway = Annotated[str | None, option("--gateway", metavar="ADDR", help="Default route of the new namespace.")]
Grade = Annotated[str | None, option("--grade", metavar="GRADE", help="Settings of TCP: strict or default (strict).")]
Source = Annotated[str | None, option("--source", metavar="SOURCE", help="How to record: tracefs or bpf (tracefs).")]
Level = Annotated[str | None, option("--level", metavar="LEVEL", help="What to record: signals or headers (signals).")]


@app.command(panels={"Options": "-w --grade --source --level", "Network": "--netns --bridge --address --gateway"})
def run(
    words: Command,
    netns: Netns = None,
    bridge: Bridge = None,
    address: Address = None,
    gateway: Gateway = None,
    grade: Grade = None,
    level: Level = None,
    source: Source = None,
    *,
    out: cli.RecordingOptions,
    common: cli.CommonOptions,
) -> int:
    """Run a command and record its TCP connections; the status is that of the command."""
    from confluo_tools.kernel.network_namespace import inside
    from confluo_tools.replay.record.host_settings import StrictGrade
    from confluo_tools.replay.record.session import RecordingSession, open_recorder, recording_schema

    strict = cli.one_of("--grade", grade or "strict", ("strict", "default")) == "strict"
    headers = cli.one_of("--level", level or "signals", ("signals", "headers")) == "headers"
    if netns is not None and (bridge or address or gateway):
        raise UsageError("the namespace has its addresses", where="--netns", hint="leave out --bridge and --address")
    if (bridge is None) != (address is None):
        raise UsageError("--bridge and --address belong together")
    if gateway is not None and bridge is None:
        raise UsageError("is reached over a bridge", where="--gateway", hint="give --bridge and --address as well")
    schema = recording_schema(headers=headers, lists=source == "bpf")
    if out.listed(schema):
        return cli.OK
    kind = out.kind()
    with ExitStack() as stack:
        output: Any = out.open(schema, kind, out.names(schema), small=False)
        if netns is not None:
            stack.enter_context(inside(netns))
        else:
            _new_namespace(bridge, address, gateway)
        if strict:
            stack.enter_context(StrictGrade())
        recorder = open_recorder(schema, source, ports=frozenset(), headers=headers)
        stack.callback(recorder.close)
        session = RecordingSession(recorder, stack.enter_context(output))
        with cli.signals(session.stop, counts=session.counts):
            session.begin()
            child = _start(words)
            stack.callback(_end, child)  # where the records cannot be written
            session.pump(lambda: child.poll() is not None)
            if child.poll() is None:
                child.terminate()
                session.pump(lambda: child.poll() is not None, stopping=True)
            end = time.monotonic() + QUIET
            session.pump(lambda: not recorder.live or time.monotonic() > end)
            session.finish()
        if common.stats:
            cli.note(session.counts())
    return child.returncode if child.returncode >= 0 else 128 - child.returncode


def _start(words: Sequence[str]) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(words, env=os.environ)
    except OSError as e:
        raise ConfluoError(f"cannot be run: {e.strerror}", where=words[0]) from None


def _end(child: subprocess.Popen[bytes]) -> None:
    # A command that goes on would run without a recorder.
    if child.poll() is not None:
        return
    child.terminate()
    try:
        child.wait(QUIET)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()


def _new_namespace(bridge: str | None, address: str | None, gateway: str | None) -> None:
    """Go into a new network namespace, which ends with this process and the command."""
    from confluo_tools.kernel.network_namespace import inside, unshare_network
    from confluo_tools.replay.record.host_settings import ip

    host = _this_namespace()
    unshare_network()
    ip("link", "set", "lo", "up")
    if bridge is None or address is None:
        return
    name = f"cfl{os.getpid()}r"
    ours = _this_namespace()
    with inside(host):
        ip("link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", ours)
        try:
            ip("link", "set", name, "master", bridge, "up")
        except ConfluoError as e:
            ip("link", "del", name)
            hint = "ip link show type bridge lists those of this host"
            raise ConfluoError("is not a bridge", where=f"--bridge {bridge}", hint=hint) from e
    ip("addr", "add", address, "dev", "eth0")
    ip("link", "set", "eth0", "up")
    if gateway is not None:
        ip("route", "add", "default", "via", gateway)


def _this_namespace() -> str:
    """A path of the network namespace of this thread, for as long as this process runs."""
    return f"/proc/{os.getpid()}/fd/{os.open('/proc/thread-self/ns/net', os.O_RDONLY | os.O_CLOEXEC)}"


def main(argv: Sequence[str] | None = None) -> int:
    return cli.run(app, "confluo-replay-record run", argv, owns_state=True)
