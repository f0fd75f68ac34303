"""confluo-pingmesh agent: probes by its pinglist, and answers others.  Manual: confluo-pingmesh-agent(1)."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from typing import TYPE_CHECKING, Annotated, Any

from confluo_tools import cli
from confluo_tools.cli.log_output import LogOutput
from confluo_tools.cli.options import option
from confluo_tools.errors import ConfluoError, UsageError

if TYPE_CHECKING:
    from confluo_tools.cli.privileges import Account
    from confluo_tools.commands.pingmesh.mesh_agent import Agent
    from confluo_tools.remote.lists import Controller
    from confluo_tools.sources.responder import Listen

app = cli.command_app(
    """
# on each server of 10.0.0.0/8: probe by the list of this host's name, keep the last day
confluo-pingmesh agent --controller https://pingmesh:8443 --ca ca.pem --allow 10.0.0.0/8 -w probes.ml --append --keep 1d

# lists must be signed by the key of whoever plans; records go to the controller
confluo-pingmesh agent --controller https://pingmesh:8443 --ca ca.pem --cert me.pem --key me.key \\
    --trust plan.pub --allow 10.0.0.0/8 --send 1m

# on one machine, from a folder: what it probes, as text
confluo-pingmesh agent --controller pinglists/ --name p001s01 --every 10s -o tsv
"""
)

LOOPBACK = ("127.0.0.0/8", "::1/128")
NAMES = 32  # bytes of a server's name


Controllers = Annotated[
    list[str] | None, option("--controller", metavar="URL", help="Where lists are: https://HOST:PORT, or a folder "
                              "(repeatable: asked in turn).")
]  # fmt: skip
Name = Annotated[str | None, option("--name", metavar="NAME", help="Whose list is ours (this host's name).")]
Allow = Annotated[
    list[str] | None, option("--allow", metavar="PREFIX", help="Where targets may be (repeatable; only this host).")
]
Every = Annotated[str | None, option("--every", metavar="TIME", help="Ask for the list so often (5m).")]
Deadline = Annotated[str | None, option("--deadline", metavar="TIME", help="An answer must come within (10s).")]
Trust = Annotated[
    str | None, option("--trust", metavar="FILE", help="Public key that lists must be signed with (Ed25519, PEM).")
]
Ca = Annotated[
    str | None, option("--ca", metavar="FILE", help="Who vouches for the controller (PEM; else the system's).")
]
Cert = Annotated[str | None, option("--cert", metavar="FILE", help="Certificate that we show the controller (PEM).")]
Key = Annotated[str | None, option("--key", metavar="FILE", help="Its key, unless it stands there, too.")]
Listen_ = Annotated[
    list[str] | None, option("--listen", metavar="ADDRESS:PORT[/DSCP]", help="Answer probes there (repeatable; "
                              ":8765); answers are marked with DSCP.")
]  # fmt: skip
NoRespond = Annotated[bool, option("--no-respond", help="Do not answer probes.")]
Bind = Annotated[
    list[str] | None, option("--bind", metavar="ADDRESS", help="Probe from this address (one of each IP version).")
]
Metrics = Annotated[
    str | None, option("--metrics", metavar="ADDRESS:PORT", help="For Prometheus: GET /metrics there.")
]
Send = Annotated[str | None, option("--send", metavar="TIME", help="Send records to the controller so often.")]
Memory = Annotated[str | None, option("--memory", metavar="SIZE", help="Resident at most, else we end (64MiB).")]
Cpu = Annotated[str | None, option("--cpu", metavar="SHARE", help="Of one core for probing, at most (10%).")]
Place = Annotated[
    str | None, option("--place", metavar="POD/PODSET/DC", help="Where this server is, if its list cannot tell.")
]
Lab = Annotated[
    bool, option("--lab", help="Without the limits on intervals and rates; each record says so.")
]  # fmt: skip


@app.command()
def agent(
    controller: Controllers = None,
    name: Name = None,
    allow: Allow = None,
    every: Every = None,
    deadline: Deadline = None,
    trust: Trust = None,
    ca: Ca = None,
    cert: Cert = None,
    key: Key = None,
    listen: Listen_ = None,
    no_respond: NoRespond = False,
    bind: Bind = None,
    place: Place = None,
    metrics: Metrics = None,
    send: Send = None,
    memory: Memory = None,
    cpu: Cpu = None,
    lab: Lab = False,
    duration: cli.Duration = None,
    user: cli.User = None,
    *,
    out: cli.RecordingOptions,
    common: cli.CommonOptions,
) -> int:
    """Probe the servers on this host's pinglist, and answer the probes of others, until a signal."""
    from confluo_tools.schema import builtin

    schema = builtin("probe")
    if out.listed(schema):
        return cli.OK
    if not controller:
        if cli.is_terminal(0) and not (allow or name or out.output):
            return cli.usage(app)
        raise UsageError("--controller is needed", hint="write https://HOST:PORT, or a folder of lists")
    kind, names = out.kind(), out.names(schema)
    at = controller_of(controller, trust=trust, ca=ca, cert=cert, key=key, lab=lab)
    if send is not None and all("://" not in place for place in at.places):
        raise UsageError("a folder takes no records", where="--send", hint="write them with -w LOG")

    from confluo_tools.cli.privileges import account, hand_over
    from confluo_tools.commands.pingmesh.errands import Sender
    from confluo_tools.commands.pingmesh.mesh_agent import Agent, Settings
    from confluo_tools.formats import build  # noqa: F401 - later, modules may not be ours to read
    from confluo_tools.remote import endpoint

    sources = [address_of(text) for text in bind or []]
    if len({a.version for a in sources}) < len(sources):
        raise UsageError("one address of each version of IP", where="--bind")
    settings = Settings(
        name_of(name), at, prefixes(allow), every=seconds("--every", every, 300.0, 1.0),
        deadline=seconds("--deadline", deadline, 10.0, 0.1), source=tuple(a.packed for a in sources),
        web_source=tuple(map(str, sources)), lab=lab, memory=size("--memory", memory, 64 << 20),
        cpu=0.1 if cpu is None else cli.core_share("--cpu", cpu), place=place_of(place),
    )  # fmt: skip
    log = out.log(schema, names, small=True) if kind == "multilog" else None
    owner = account(user) if user is not None else None
    limit_memory(settings.memory)
    with ExitStack() as stack:
        responder = None
        if not no_respond:
            from confluo_tools.sources.responder import Responder

            responder = Responder(listens(listen))
            stack.callback(responder.close)
        elif listen:
            raise UsageError("--listen and --no-respond exclude each other")
        door = None
        if metrics is not None:
            door = stack.enter_context(endpoint.listen(*endpoint.parse(metrics, "--metrics"), backlog=16))
        sender: Sender | None = None
        into: LogOutput | cli.RecordOutput | None = log
        if log is None and (out.output is not None or send is None):
            into = out.records(schema, kind, names)
        hand_over(log, owner)  # before there are threads
        may_ask(owner)
        if responder is not None:
            responder.start()
        if send is not None:
            sender = Sender(at, schema, seconds("--send", send, 60.0, 1.0), settings.name)

        def write(block: Any) -> None:
            if into is not None:
                into.write(block, None)
                into.flush()

        agent = Agent(settings, responder, write, sender, cli.tell)
        if door is not None:
            stack.callback(metrics_of(agent, door).close)
        stack.enter_context(cli.signals(agent.stop, counts=agent.counts, flush=agent.hurry))
        reload_on_hangup(agent)
        try:
            if into is not None:
                stack.enter_context(into)
            status = agent.run(seconds("--duration", duration, 0.0, 0.01) if duration is not None else None)
        except BrokenPipeError:
            agent.stopped, status = 13, 0
        if common.stats or (agent.stopped and not common.quiet):
            cli.note(agent.counts())
    if status:
        return status
    return 128 + agent.stopped if agent.stopped else cli.OK


def may_ask(owner: Account | None) -> None:
    """Whoever asks the controller is a child of ours: this user must be able to run Python, and what it reads first.

    Raises ConfluoError.
    """
    if owner is not None and not (os.access(sys.executable, os.X_OK) and os.access(os.__file__, os.R_OK)):
        hint = "install Python where others may read it, or name another user"
        raise ConfluoError(f"{owner.name} may not run it", where=sys.executable, hint=hint)


def reload_on_hangup(agent: Agent) -> None:
    """SIGHUP asks for the list at once, unless it is ignored (nohup)."""
    try:
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
            signal.signal(signal.SIGHUP, lambda number, frame: agent.hurry())
    except ValueError:
        pass  # not in the main thread


def limit_memory(resident: int) -> None:
    """What threads and libraries may map, and what they may fill, beside what is watched: a last resort."""
    import resource
    import threading

    threading.stack_size(512 << 10)
    most = resident + (512 << 20)
    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    if hard == resource.RLIM_INFINITY or most <= hard:
        resource.setrlimit(resource.RLIMIT_DATA, (most, hard))


def metrics_of(agent: Agent, door: Any) -> Any:
    """The endpoint of Prometheus on that socket.  Raises ConfluoError when its package is not there."""
    from confluo_tools.algo.authority import BAD, EMPTY, LIST, LOST, MISSING, SAME
    from confluo_tools.sinks.metrics import Collector, Endpoint

    def gauges() -> Mapping[str, tuple[str, float]]:
        return {
            "pingmesh_probing": ("1 while there is a list to probe by", float(agent.authority.probing)),
            "pingmesh_peers": ("Targets on the list", agent.peers),
            "pingmesh_pace": ("How many times the planned intervals are waited", agent.throttle.pace),
            "pingmesh_agent_cpu_share": ("Of one core, of late", agent.share),
            "pingmesh_questions_lost_in_a_row": ("Of the controller", agent.authority.lost),
        }

    def counters() -> Mapping[str, tuple[str, float]]:
        found: dict[str, tuple[str, float]] = {
            "pingmesh_discarded_records": ("Records that were neither written nor sent", agent.discarded
                                           + (agent.sender.discarded if agent.sender is not None else 0)),
            "pingmesh_listen_overflows": ("Connections that this host had no room for", agent.overflows),
        }  # fmt: skip
        for kind in (LIST, SAME, MISSING, EMPTY, BAD, LOST):
            words = f"Questions to the controller that ended so: {kind}"
            found[f"pingmesh_controller_{kind}"] = words, agent.asked.get(kind, 0)
        if agent.responder is not None:
            answered = agent.responder.counts
            for word in ("connections", "requests", "datagrams"):
                found[f"pingmesh_answered_{word}"] = f"{word.title()} of others that were answered", answered[word]
        return found

    def facts() -> Mapping[str, str]:
        return {"name": agent.settings.name, "list": f"{agent.version:016x}", "reason": agent.authority.reason}

    try:
        return Endpoint(door, Collector(agent.tally, gauges, counters, facts))
    except ModuleNotFoundError as e:
        if not (e.name or "").startswith("prometheus"):
            raise
        raise ConfluoError("--metrics needs the package prometheus_client",
                           hint="pip install 'confluo-tools[pingmesh]'") from None  # fmt: skip


def controller_of(
    places: list[str], *, trust: str | None, ca: str | None, cert: str | None, key: str | None, lab: bool
) -> Controller:
    """Where to ask.  Raises UsageError; ConfluoError for a file that cannot be read."""
    from confluo_tools.remote.lists import Controller, check_place, public_key

    if key is not None and cert is None:
        raise UsageError("--key needs --cert")
    pem = None
    if trust is not None:
        with open(trust, encoding="utf-8", errors="replace") as f:
            pem = f.read(1 << 16)
        try:
            public_key(pem)
        except UsageError as e:
            e.where = trust
            raise
        except ModuleNotFoundError:
            raise ConfluoError("--trust needs the package cryptography",
                               hint="pip install 'confluo-tools[pingmesh]'") from None  # fmt: skip
    for path in (ca, cert, key):
        if path is not None:
            with open(path, "rb"):  # said now, not by the first question
                pass
    found = tuple(check_place(text, signed=pem is not None) for text in places)
    files = [os.path.abspath(path) if path is not None else None for path in (ca, cert, key)]
    return Controller(found, files[0], files[1], files[2], pem, lab)


def name_of(text: str | None) -> str:
    """The name of this server in the topology."""
    from confluo_tools.remote.controller import NAME

    name = text if text is not None else os.uname().nodename
    if not NAME.match(name):
        hint = f"up to {NAMES} letters, digits, '.', '_' and '-'"
        raise UsageError(f"'{name[:60]}' is no name of a server", where="--name", hint=hint)
    return name


def prefixes(words: list[str] | None) -> tuple[IPv4Network | IPv6Network, ...]:
    """Networks that targets may be in; without any, this host."""
    found = []
    for word in words if words is not None else LOOPBACK:
        try:
            found.append(ip_network(word))
        except ValueError as e:
            raise UsageError(f"{str(e)[:80]}", where="--allow", hint="write e.g. 10.0.0.0/8, fd00::/8") from None
    return tuple(found)


def listens(words: list[str] | None) -> list[Listen]:
    """Where to answer."""
    from confluo_tools.remote import endpoint
    from confluo_tools.sources.responder import PORT, Listen

    if words is None:
        return [Listen("0.0.0.0", PORT), Listen("::", PORT)]
    found = []
    for word in words:
        place, slash, dscp = word.partition("/")
        mark = cli.traffic_class("--listen", dscp) if slash else 0
        host, port = endpoint.parse(place, "--listen", PORT)
        hosts = ("0.0.0.0", "::") if host == "::" and not place.startswith("[") else (host,)
        found += [Listen(h, port, mark) for h in hosts]
    return found


def address_of(text: str) -> Any:
    try:
        return ip_address(text)
    except ValueError:
        raise UsageError(f"'{text[:60]}' is not an address", where="--bind", hint="write numbers, not names") from None


def place_of(text: str | None) -> tuple[str, str, str]:
    if text is None:
        return "", "", ""
    words = text.split("/")
    if len(words) != 3 or any(len(word.encode()) > 16 for word in words):
        raise UsageError(f"'{text[:60]}' is no place", where="--place", hint="write POD/PODSET/DC, 16 bytes each")
    return words[0], words[1], words[2]


def seconds(option: str, text: str | None, default: float, least: float) -> float:
    if text is None:
        return default
    return cli.duration(option, text, round(least * 1e9), 86400 * 10**9) / 1e9


def size(option: str, text: str | None, default: int) -> int:
    if text is None:
        return default
    from confluo_tools import units

    found = cli.of_option(option, units.size, text)
    if found < 16 << 20:
        raise UsageError(f"'{text}' is too little", where=option, hint="16MiB is the least")
    return found


def main(argv: list[str] | None = None) -> int:
    return cli.run(app, "confluo-pingmesh agent", argv, owns_state=True)
