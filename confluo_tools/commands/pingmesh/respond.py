"""confluo-pingmesh respond: answer probes, and nothing else.  Manual: confluo-pingmesh-respond(1)."""

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
    from confluo_tools.core.block import Block
    from confluo_tools.schema import Schema
    from confluo_tools.sources.hostcounters import Counters, Load
    from confluo_tools.sources.responder import Listen, Responder

app = cli.command_app(
    """
# answer TCP probes and HTTP requests on all addresses, port 8765
confluo-pingmesh respond

# datagrams, too: those with this token
confluo-pingmesh respond --token 7b16a5c1f0e29d43

# a second port whose answers are of another class of service, as another user, for ever
sudo confluo-pingmesh respond --listen 10.0.0.7 --qos 8766:cs1 -Z nobody

# what this host dropped itself, every ten seconds, into a log
confluo-pingmesh respond -w host.ml --keep 7d
"""
)

EVERY = "10s"


@app.command()
def respond(
    listen: Annotated[
        list[str] | None,
        option("--listen", metavar="ADDR[:PORT]", help="Where (repeatable; all addresses, port 8765)."),
    ] = None,
    qos: Annotated[
        list[str] | None,
        option("--qos", metavar="PORT:CLASS", help="Also there; answers are of this class: cs1, ef, 8 (repeatable)."),
    ] = None,
    token: Annotated[
        list[str] | None,
        option("--token", metavar="HEX", help="Answer datagrams with this token (repeatable; without: none)."),
    ] = None,
    backlog: Annotated[
        int | None, option("--backlog", metavar="N", min=0, max=65535, help="Connections that may wait (1024).")
    ] = None,
    connections: Annotated[
        int | None, option("--connections", metavar="N", min=1, max=65000, help="At once (4096).")
    ] = None,
    idle: Annotated[str, option("--idle", metavar="TIME", help="End connections that say nothing (5s).")] = "5s",
    rate: Annotated[
        int | None, option("--rate", metavar="N", min=1, max=100_000_000, help="Look at N a second at most.")
    ] = None,
    name: Annotated[str | None, option("--name", metavar="NAME", help="Of this host in the records.")] = None,
    every: Annotated[str | None, option("--every", metavar="TIME", help="Between two records (10s).")] = None,
    duration: cli.Duration = None,
    user: cli.User = None,
    *,
    out: cli.RecordingOptions,
    common: cli.CommonOptions,
) -> int:
    """Answer probes: TCP, payload, HTTP and datagrams."""
    from confluo_tools.cli.privileges import FILES, account, hand_over
    from confluo_tools.schema import builtin
    from confluo_tools.sources.responder import BACKLOG, CAPACITY, Responder

    wanted = out.output is not None or out.format is not None or out.tsv or out.ndjson or out.fields is not None
    if not wanted and (name is not None or every is not None):
        option = "--name" if name is not None else "--every"
        raise UsageError(f"{option} is for records", hint="write some with -w LOG")
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
        places(listen or [], qos or []), tokens=[cli.token("--token", text) for text in token or []], udp=bool(token),
        backlog=BACKLOG if backlog is None else backlog, capacity=connections or CAPACITY,
        idle=time_of("--idle", idle), rate=rate or 0,
    )  # fmt: skip
    run = Run(responder, (name or socket.gethostname())[:32], schema if wanted else None)
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


class Run:
    """Waits while the responder answers, and writes records of the host."""

    def __init__(self, responder: Responder, name: str, schema: Schema | None) -> None:
        from confluo_tools.formats.build import address_columns

        self.responder, self.name = responder, name
        self.stopped = 0
        self._over = threading.Event()
        self._start = time.monotonic()
        self._schema = schema
        place = responder.bound[0].address
        self._address = {} if place in ("0.0.0.0", "::") else address_columns("src", place)
        if schema is not None:
            self._last = self._read()
            self._row(self._last)  # what it needs is loaded before other people's files cannot be read any more

    def stop(self, number: int) -> None:
        self.stopped = number
        self._over.set()

    def counts(self) -> str:
        """What happened so far, on one line."""
        counts = self.responder.counts
        parts = [f"{counts[what]} {what}" for what in ("connections", "echoed", "requests", "datagrams")]
        bad = {"not answered": sum(counts[what] for what in ("short", "magic", "token", "looped", "foreign", "unsent")),
               "ended by us": sum(counts[what] for what in ("evicted", "idle", "overlong", "no_room")),
               "overflows": self.responder.own_drops(), "datagrams dropped": self.responder.udp_drops()}  # fmt: skip
        parts += [f"{n} {what}" for what, n in bad.items() if n]
        return ", ".join([*parts, f"{time.monotonic() - self._start:.2f} s"])

    def wait(self, seconds: float | None) -> None:
        """Until it is over."""
        self._over.wait(seconds)

    def record(self, into: LogOutput | cli.RecordOutput, seconds: float | None, between: float) -> None:
        """The same; every so many seconds, and at the end, a record."""
        end = None if seconds is None else time.monotonic() + seconds
        over = False
        while not over:
            left = between if end is None else min(between, end - time.monotonic())
            over = self._over.wait(max(0.0, left)) or (end is not None and time.monotonic() >= end)
            now = self._read()
            into.write(self._row(now), None)
            into.flush()
            self._last = now

    def _read(self) -> tuple[Counters, Load]:
        from confluo_tools.sources.hostcounters import load

        return self.responder.counters(), load()

    def _row(self, now: tuple[Counters, Load]) -> Block:
        from confluo_tools.formats.build import block_of_rows
        from confluo_tools.sources.hostcounters import host_row

        assert self._schema is not None
        (counters, cost), (before, earlier) = now, self._last
        row = {**host_row(counters - before, cost, earlier), "src": self.name, **self._address}
        return block_of_rows(self._schema, [row])


def places(listen: Sequence[str], qos: Sequence[str]) -> list[Listen]:
    """``10.0.0.7``, ``10.0.0.7:9000``, ``[::1]:9000``, ``:9000`` and ``8766:cs1``, which is on the same addresses."""
    from confluo_tools.sources.responder import PORT, Listen

    found: list[Listen] = []
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
            found.append(Listen(each, port))
    for address in list(dict.fromkeys(place.address for place in found)):
        for text in qos:
            number_, colon, word = text.partition(":")
            if not colon:
                raise UsageError(f"'{text[:60]}' is no port and class", where="--qos", hint="write e.g. 8766:cs1")
            dscp = cli.traffic_class("--qos", word)
            found.append(Listen(address, port_of("--qos", number_), dscp))
    taken = [(place.address, place.port) for place in found if place.port]
    for twice in taken:
        if taken.count(twice) > 1:
            raise UsageError(f"{spell(Listen(*twice))} is there twice", where="--qos" if qos else "--listen")
    return found


def port_of(option: str, text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 6 and int(text) < 1 << 16):
        raise UsageError(f"'{text[:60]}' is not a port", where=option, hint="0 to 65535; 0: one that is free")
    return int(text)


def time_of(option: str, text: str) -> float:
    """A time in seconds."""
    return cli.duration(option, text, 10_000_000) / 1e9


def spell(place: Listen) -> str:
    address = f"[{place.address}]" if ":" in place.address else place.address
    return f"{address}:{place.port}" + (f" (class {place.dscp})" if place.dscp else "")


def main(argv: Sequence[str] | None = None) -> int:
    return cli.run(app, "confluo-pingmesh respond", argv, owns_state=True)
