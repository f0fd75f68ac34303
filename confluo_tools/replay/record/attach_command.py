"""confluo-replay-record attach: record the connections of a running service.  Manual: confluo-replay-record(1)."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Annotated, Any

from confluo_tools import cli
from confluo_tools.cli.options import option
from confluo_tools.errors import UsageError

app = cli.command_app(
    """
# record a service all the time, and keep the last hour, at most 2 GB
sudo confluo-replay-record attach --port 8080 -w c.ml --keep 1h,2G

# with the headers of all packets, for a minute
sudo confluo-replay-record attach --port 8080 --level headers --duration 1m -w c.ml

# what it recorded so far
confluo-query c.ml 'kind == call' --agg 'sum(count)' --by call
"""
)

MAX_PORTS = 64
Port = Annotated[list[str] | None, option("--port", metavar="PORT", help="Connections with this port; repeatable.")]
Netns = Annotated[str | None, option("--netns", metavar="NAME", help="Record in this network namespace.")]
Interface = Annotated[str | None, option("-i", "--interface", metavar="NAME", help="Their interface (any).")]
Source = Annotated[str | None, option("--source", metavar="SOURCE", help="How to record: tracefs or bpf (tracefs).")]
Level = Annotated[str | None, option("--level", metavar="LEVEL", help="What to record: signals or headers (signals).")]


@app.command(
    panels={"Options": "--port -w --keep --source --level --duration", "Network": "--netns", "Capture": "--interface"}
)
def attach(
    port: Port = None,
    interface: Interface = None,
    level: Level = None,
    source: Source = None,
    netns: Netns = None,
    duration: cli.Duration = None,
    *,
    out: cli.RecordingOptions,
    common: cli.CommonOptions,
) -> int:
    """Record the TCP connections of a port until a signal."""
    from confluo_tools.kernel.network_namespace import inside
    from confluo_tools.replay.record.session import RecordingSession, open_recorder, recording_schema

    headers = cli.one_of("--level", level or "signals", ("signals", "headers")) == "headers"
    schema = recording_schema(headers=headers, lists=source == "bpf")
    if out.listed(schema):
        return cli.OK
    if not port:
        raise UsageError("--port is missing", hint="it names the service, for example --port 8080")
    ports = frozenset(_number(text) for text in port)
    seconds = cli.seconds("--duration", duration, 1_000_000)
    with ExitStack() as stack:
        output: Any = out.open(schema, out.kind(), out.names(schema))
        if netns is not None:
            stack.enter_context(inside(netns))
        recorder = open_recorder(schema, source, ports=ports, headers=headers, interface=interface or "any")
        stack.callback(recorder.close)
        session = RecordingSession(recorder, stack.enter_context(output))
        with cli.signals(session.stop, counts=session.counts):
            session.begin()
            end = time.monotonic() + seconds if seconds is not None else None
            session.pump(lambda: end is not None and time.monotonic() >= end)
            session.finish()
        if common.stats or session.stopped:
            cli.note(session.counts())
    return 128 + session.stopped if session.stopped else cli.OK


def _number(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 0 < int(text) < 65536:
        raise UsageError(f"'{text}' is not a port", where="--port", hint="1 to 65535 are")
    return int(text)


def main(argv: Sequence[str] | None = None) -> int:
    return cli.run(app, "confluo-replay-record attach", argv, owns_state=True)
