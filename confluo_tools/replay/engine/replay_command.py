"""confluo-replay: replay recorded TCP connections until they are the same.  Manual: confluo-replay(1)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

from confluo_tools import cli
from confluo_tools.cli.options import option
from confluo_tools.errors import ConfluoError, UsageError
from confluo_tools.replay.engine.output import ReplayOutput

if TYPE_CHECKING:
    from confluo_tools.formats.reader import Reader
    from confluo_tools.replay.engine.tries import Outcome
    from confluo_tools.replay.recording import FiveTuple, RecordedConnection

app = cli.command_app(
    """
# replay all connections of a recording; status 0: each is the same as recorded
sudo confluo-replay c.ml

# one connection, recorded on two hosts; keep what the replay did
sudo confluo-replay server.ml client.ml --flow 10.0.0.1:4711-10.0.0.2:8080/tcp -w again.ml

# only the server was recorded, with headers
sudo confluo-replay server.ml --engine decoupled

# the connections that lost packets
confluo-query retx.ml 'lost > 5' -o stream | sudo confluo-replay c.ml --flows - -w again.ml

# replay again, look deeper
sudo confluo-replay c.ml --trace tcp_probe,cong_state,retransmit -w deep.ml

# a script of one end for packetdrill, from headers
confluo-replay again.ml --as-packetdrill >case.pkt

# the packets that were not captured
sudo confluo-replay c.ml -o pcap | tshark -r -
"""
)

ALONE = "--engine decoupled replays one end alone, confluo-replay explain works with it"
DIFFERENT = 3  # exit status: a replay differs from its recording

Flow = Annotated[
    str | None, option("--flow", metavar="FLOW", help="Replay this connection: SRC:PORT-DST:PORT/tcp (all).")
]
Flows = Annotated[
    str | None, option("--flows", metavar="FILE", help="Replay only the connections in these records (-: stdin).")
]
Tries = Annotated[
    int, option("--tries", metavar="N", min=1, max=1000, help="Replay up to N times until it is the same (1).")
]

Engine = Annotated[
    str,
    option(
        "--engine", metavar="NAME", help="serial: inputs in recorded order; decoupled, naive: see the manual (serial)."
    ),
]

Trace = Annotated[
    str | None, option("--trace", metavar="LIST", help="Add what the kernel traces: tcp_probe, cong_state, retransmit.")
]


AsPacketdrill = Annotated[
    bool, option("--as-packetdrill", help="Replay nothing; write a script of one end for packetdrill.")
]


Hold = Annotated[bool, option("--hold", help="Before each try print how to enter its networks, and wait for Enter.")]


@app.command(panels={"Options": "--flow --flows --tries --trace -w -o", "Analysis": "--engine --hold --as-packetdrill"})
def replay(
    inputs: cli.Inputs = None,
    flow: Flow = None,
    flows: Flows = None,
    tries: Tries = 1,
    engine: Engine = "serial",
    trace: Trace = None,
    hold: Hold = False,
    as_packetdrill: AsPacketdrill = False,
    *,
    ins: cli.InputOptions,
    out: ReplayOutput,
    talk: cli.TalkOptions,
) -> int:
    """Replay recorded TCP connections on this kernel, and compare them with the recording.

    The exit status is 0 when all replays are the same as recorded, and 3 when one differs.
    The verbs diff, explain and queues have a help of their own: confluo-replay explain --help.
    """
    from confluo_tools.replay.engine.hold import check_standard_input, holding
    from confluo_tools.replay.engine.tries import ENGINES, engine_script, outcomes
    from confluo_tools.schema import builtin

    cli.one_of("--engine", engine, ENGINES)
    from confluo_tools.replay.engine.tracing import trace_points

    points = trace_points(trace or "")
    if ins.missing(inputs):
        return cli.usage(app)
    if out.listed(builtin("recording")):
        return cli.OK
    if as_packetdrill:
        write_script(ins.open(inputs), flow, out)
        return cli.OK
    out.check()
    if hold:
        check_standard_input(inputs)
    if flows == "-" and "-" in (inputs or ["-"]):
        raise UsageError("standard input can be read only once", where="--flows -", hint="name the recording")
    listed = listed_flows(flows) if flows is not None else None
    found = chosen(ins.open(inputs), flow, engine, listed)
    check_rights()
    same = True
    with out.opened() as into:
        for connection in found:
            name = str(connection.client.flow)
            try:
                others = obstacles(connection)
                for line in others:
                    cli.tell(f"{name}: {line}")
                script, last = engine_script(connection, engine), None
                again = outcomes(
                    script, tries, naive=engine == "naive", trace=points, observe=holding(name) if hold else None
                )
                for number, last in enumerate(again, 1):
                    report(name, number, last, tries)
            except ConfluoError as e:
                cli.warn(e.what, where=e.where or name, hint=e.hint)
                continue
            assert last is not None
            if cli.state.quiet and not last.verdict.same:  # they may be why
                for line in others:
                    cli.note(line, where=name)
            same = same and last.verdict.same
            into.write(last.done, last.traced)
    return cli.TROUBLE if cli.state.trouble else cli.OK if same else DIFFERENT


def listed_flows(path: str) -> set[FiveTuple]:
    """The connections in the records of ``path``, both ways.  Raises SchemaError."""
    from confluo_tools.replay.engine.flow import parse_flow
    from confluo_tools.replay.explain.flows import read_flows

    found = {parse_flow(str(ends)) for ends in read_flows(path)}
    return found | {flow.reversed for flow in found}


def chosen(
    reader: Reader, flow: str | None, engine: str, listed: set[FiveTuple] | None = None
) -> list[RecordedConnection]:
    """The connections to replay, of those that are ``listed``.  What cannot be replayed is reported.

    An end alone is one for the engine decoupled.  Raises ConfluoError if none is left.
    """
    from confluo_tools.replay.engine.decoupled import lone_connection
    from confluo_tools.replay.engine.flow import parse_flow
    from confluo_tools.replay.recording import pair_ends, read_ends
    from confluo_tools.replay.recording.kinds import OUT_OF_SEQUENCE

    wanted = parse_flow(flow) if flow is not None else None
    connections, alone = pair_ends([end for end in read_ends(reader, wanted) if listed is None or end.flow in listed])
    if listed is not None and not connections and not alone:
        raise ConfluoError("the recording has none of these connections", where=reader.name)
    if not connections and not alone:
        what = "the recording has no connection" if wanted is None else f"the recording has no connection {wanted}"
        raise ConfluoError(what, where=reader.name)
    hint = "confluo-replay explain works with what is there"
    for end, why in alone:
        if engine == "decoupled":
            connections.append(lone_connection(end))
        else:
            cli.warn(why, where=end.flow, hint=ALONE if end.headers_received.events else hint)
    able = []
    for connection in connections:
        problems = [why for why in connection.problems if engine != "decoupled" or OUT_OF_SEQUENCE not in why]
        if problems:
            cli.warn("; ".join(problems), where=connection.client.flow, hint=hint)
        else:
            able.append(connection)
    return able


def write_script(reader: Reader, flow: str | None, out: ReplayOutput) -> None:
    """Write one end as a script for packetdrill: the first one of --flow, else the one that sent more bytes."""
    from confluo_tools.replay.engine.flow import parse_flow
    from confluo_tools.replay.engine.packetdrill import end_for_script, packetdrill_script
    from confluo_tools.replay.recording import read_ends

    wanted = parse_flow(flow) if flow is not None else None
    ends = [end for end in read_ends(reader) if wanted in (None, end.flow)]
    if not ends:
        what = "the recording has no connection" if wanted is None else f"the recording has no end {wanted}"
        raise ConfluoError(what, where=reader.name)
    out.write_script(packetdrill_script(end_for_script(ends, wanted is not None)))


def check_rights() -> None:
    """Raise ConfluoError if no network for a replay can be made here."""
    from confluo_tools.replay.engine.network import missing

    why = missing()
    if why:
        raise ConfluoError(
            f"no network for a replay can be made: {why}",
            hint="run it as root; confluo-replay explain and diff need no rights",
        )


def obstacles(connection: RecordedConnection) -> list[str]:
    """How this host differs from that of the recording."""
    from confluo_tools.replay.engine.settings import differences

    return differences(connection)


def report(name: str, number: int, outcome: Outcome, tries: int) -> None:
    """Print what came of a try; with --quiet only of the last one, if it differs."""
    verdict = outcome.verdict
    say = cli.tell if number < tries else cli.note
    times = f"time error p50 {verdict.percentile(50):.1f} us, p99 {verdict.percentile(99):.1f} us"
    if verdict.same:
        cli.tell(f"{name}: try {number}: same ({verdict.packets} packets, by {verdict.proof}); {times}")
    elif verdict.differences:
        say(f"{name}: try {number}: differs: {verdict.differences[0]}{_likeness(outcome)}")
    else:
        cli.note(f"{name}: try {number}: cannot be proved: the recording has no digests and no headers")


def _likeness(outcome: Outcome) -> str:
    from confluo_tools.replay.engine.similarity import similarities

    found = similarities(outcome.done)
    words = ", ".join(f"{('client', 'server')[side]} {share:.3f}" for side, share in found.items())
    return f"; similarity {words}" if words else ""


def main(argv: Sequence[str] | None = None) -> int:
    return cli.run(app, "confluo-replay", argv)
