"""confluo-pingmesh respond: answer probes only.  Manual: confluo-pingmesh-respond(1)."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

from confluo_tools import cli
from confluo_tools.cli.log_output import LogOutput
from confluo_tools.cli.options import option
from confluo_tools.errors import UsageError

if TYPE_CHECKING:
    from confluo_tools.core.block.block import Block
    from confluo_tools.pingmesh.agent.host_counters import HostCounts, ProcessLoad
    from confluo_tools.pingmesh.probe.responder import ListenAddress, Responder
    from confluo_tools.schema import Schema

app = cli.command_app(
    """
# answer TCP probes and HTTP requests on all addresses, port 8765
confluo-pingmesh respond

# answer udp probes with this token as well
confluo-pingmesh respond --token 7b16a5c1f0e29d43

# a second port with another class of service; run as another user
sudo confluo-pingmesh respond --listen 10.0.0.7 --qos 8766:cs1 -Z pingmesh

# log every ten seconds what this host dropped
confluo-pingmesh respond -w host.ml --keep 7d
"""
)

EVERY = "10s"


@app.command(
    panels={
        "Options": "--listen --qos -w --duration -Z --name",
        "Probes": "--token --backlog --connections --idle --rate",
        "Time": "--every",
    }
)
def respond(
    listen: Annotated[
        list[str] | None,
        option(
            "--listen", metavar="ADDR[:PORT]", help="Listen at this address (repeatable; all addresses, port 8765)."
        ),
    ] = None,
    qos: Annotated[
        list[str] | None,
        option(
            "--qos", metavar="PORT:CLASS", help="Listen on PORT too, with answers of CLASS: cs1, ef, 8 (repeatable)."
        ),
    ] = None,
    token: Annotated[
        list[str] | None,
        option("--token", metavar="HEX", help="Answer udp probes with this token (repeatable; default: none)."),
    ] = None,
    backlog: Annotated[
        int | None,
        option("--backlog", metavar="N", min=0, max=65535, help="Limit connections waiting to be accepted (1024)."),
    ] = None,
    connections: Annotated[
        int | None, option("--connections", metavar="N", min=1, max=65000, help="Limit connections at once (4096).")
    ] = None,
    idle: Annotated[
        str, option("--idle", metavar="TIME", help="Close connections after TIME without a byte (5s).")
    ] = "5s",
    rate: Annotated[
        int | None,
        option(
            "--rate", metavar="N", min=1, max=100_000_000, help="Limit connections, and udp probes, to N per second."
        ),
    ] = None,
    name: Annotated[str | None, option("--name", metavar="NAME", help="Name of this host in the records.")] = None,
    every: Annotated[
        str | None, option("--every", metavar="TIME", help="Write a record at this interval (10s).")
    ] = None,
    duration: cli.Duration = None,
    user: cli.User = None,
    *,
    out: cli.RecordingOptions,
    common: cli.CommonOptions,
) -> int:
    """Answer probes: TCP, echo, HTTP and UDP."""
    from confluo_tools.cli.privileges import FILES, account, hand_over
    from confluo_tools.pingmesh.probe.responder import BACKLOG, CAPACITY, Responder
    from confluo_tools.schema import builtin

    wanted = out.output is not None or out.format is not None or out.tsv or out.ndjson or out.fields is not None
    if not wanted and (name is not None or every is not None):
        option = "--name" if name is not None else "--every"
        raise UsageError(f"{option} needs records", hint="write them with -w LOG")
    schema = builtin("probe")
    if out.listed(schema):
        return cli.OK
    kind, names = out.kind(), out.names(schema)
    log = out.log(schema, names, views=True, small=True) if kind == "multilog" else None
    out.line_buffered = True
    owner = account(user) if user is not None else None
    seconds = time_of("--duration", duration) if duration is not None else None
    between = time_of("--every", every or EVERY)
    responder = Responder(
        places(listen or [], qos or []),
        tokens=[cli.token("--token", text) for text in token or []],
        udp=bool(token),
        backlog=BACKLOG if backlog is None else backlog,
        capacity=connections or CAPACITY,
        idle=time_of("--idle", idle),
        rate=rate or 0,
    )
    run = ResponderSession(responder, (name or socket.gethostname())[:32], schema if wanted else None)
    into: LogOutput | cli.RecordOutput | None = log
    try:
        with cli.signals(run.stop, counts=run.counts):
            if wanted and log is None and out.output in (None, "-"):
                into = out.records(schema, kind, names)
            hand_over(log, owner, keep=FILES if wanted else 0)
            if wanted and into is None:
                into = out.records(schema, kind, names)
            responder.start()
            cli.tell(f"answering on {', '.join(map(spell, responder.bound))}; pid {os.getpid()}")
            if into is not None:
                with into:
                    run.record(into, seconds, between)
            else:
                run.wait(seconds)
    except BrokenPipeError:
        run.stopped = run.stopped or 13
    finally:
        if common.stats or run.stopped:
            cli.tell(run.counts())
        responder.close()
    return 128 + run.stopped if run.stopped else cli.OK


class ResponderSession:
    """Runs the responder until the end or a signal, and writes records of the host."""

    def __init__(self, responder: Responder, name: str, schema: Schema | None) -> None:
        from confluo_tools.formats.block_builder import address_columns

        self.responder, self.name = responder, name
        self.stopped = 0
        self._over = threading.Event()
        self._start = time.monotonic()
        self._schema = schema
        place = responder.bound[0].address
        self._address = {} if place in ("0.0.0.0", "::") else address_columns("src", place)
        if schema is not None:
            self._last = self._read()
            self._row(self._last)  # loads its modules before the change of user

    def stop(self, number: int) -> None:
        self.stopped = number
        self._over.set()

    def counts(self) -> str:
        """Counts so far, on one line."""
        counts = self.responder.counts
        parts = [f"{counts[what]} {what}" for what in ("connections", "echoed", "requests", "datagrams")]
        bad = {
            "not answered": sum(counts[what] for what in ("short", "magic", "token", "looped", "foreign", "unsent")),
            "closed by limits": sum(counts[what] for what in ("evicted", "idle", "overlong", "no_room")),
            "overflows": self.responder.own_drops(),
            "datagrams dropped": self.responder.udp_drops(),
        }
        parts += [f"{n} {what}" for what, n in bad.items() if n]
        return ", ".join([*parts, f"{time.monotonic() - self._start:.2f} s"])

    def wait(self, seconds: float | None) -> None:
        """Wait for the end."""
        self._over.wait(seconds)

    def record(self, into: LogOutput | cli.RecordOutput, seconds: float | None, between: float) -> None:
        """Wait for the end; write a record every ``between`` seconds and at the end."""
        end = None if seconds is None else time.monotonic() + seconds
        over = False
        while not over:
            left = between if end is None else min(between, end - time.monotonic())
            over = self._over.wait(max(0.0, left)) or (end is not None and time.monotonic() >= end)
            now = self._read()
            into.write(self._row(now), None)
            into.flush()
            self._last = now

    def _read(self) -> tuple[HostCounts, ProcessLoad]:
        from confluo_tools.pingmesh.agent.host_counters import load

        return self.responder.counters(), load()

    def _row(self, now: tuple[HostCounts, ProcessLoad]) -> Block:
        from confluo_tools.formats.block_builder import block_of_rows
        from confluo_tools.pingmesh.agent.host_counters import host_row

        assert self._schema is not None
        (counters, cost), (before, earlier) = now, self._last
        row = {**host_row(counters - before, cost, earlier), "src": self.name, **self._address}
        return block_of_rows(self._schema, [row])


def places(listen: Sequence[str], qos: Sequence[str]) -> list[ListenAddress]:
    """The listen addresses of ``10.0.0.7``, ``10.0.0.7:9000``, ``[::1]:9000``, ``:9000``; --qos adds ports to them."""
    from confluo_tools.pingmesh.probe.responder import PORT, ListenAddress

    found: list[ListenAddress] = []
    for text in listen or [f":{PORT}"]:
        address, port = text, PORT
        if text.startswith("["):
            address, bracket, rest = text[1:].partition("]")
            if not bracket or (rest and not rest.startswith(":")):
                raise UsageError(f"'{text[:60]}' is not an address", where="--listen", hint="write e.g. [::1]:8765")
            port = port_of("--listen", rest[1:]) if rest else PORT
        elif text.count(":") == 1:
            address, _, rest = text.partition(":")
            port = port_of("--listen", rest)
        for each in [address] if address else ["0.0.0.0", "::"]:
            found.append(ListenAddress(each, port))
    for address in list(dict.fromkeys(place.address for place in found)):
        for text in qos:
            number_, colon, word = text.partition(":")
            if not colon:
                raise UsageError(f"'{text[:60]}' is not a port and a class", where="--qos", hint="write e.g. 8766:cs1")
            dscp = cli.traffic_class("--qos", word)
            found.append(ListenAddress(address, port_of("--qos", number_), dscp))
    taken = [(place.address, place.port) for place in found if place.port]
    for twice in taken:
        if taken.count(twice) > 1:
            raise UsageError(f"duplicate address {spell(ListenAddress(*twice))}", where="--qos" if qos else "--listen")
    return found


def port_of(option: str, text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 6 and int(text) < 1 << 16):
        raise UsageError(f"'{text[:60]}' is not a port", where=option, hint="0 to 65535; 0: any free port")
    return int(text)


def time_of(option: str, text: str) -> float:
    """A time in seconds."""
    return cli.duration(option, text, 10_000_000) / 1e9


def spell(place: ListenAddress) -> str:
    address = f"[{place.address}]" if ":" in place.address else place.address
    return f"{address}:{place.port}" + (f" (class {place.dscp})" if place.dscp else "")


def main(argv: Sequence[str] | None = None) -> int:
    return cli.run(app, "confluo-pingmesh respond", argv, owns_state=True)
