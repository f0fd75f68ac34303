"""confluo-pingmesh agent: probe the servers of a pinglist, answer probes.  Manual: confluo-pingmesh-agent(1)."""

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
    from confluo_tools.pingmesh.agent.controller_client import Controller
    from confluo_tools.pingmesh.agent.loop import PingmeshAgent
    from confluo_tools.pingmesh.probe.responder import ListenAddress

app = cli.command_app(
    """
# on each server of 10.0.0.0/8: follow the list of this host's name, keep the records of one day
confluo-pingmesh agent --controller https://pingmesh:8443 --ca ca.pem --allow 10.0.0.0/8 -w probes.ml --append --keep 1d

# require signed lists; send records to the controller
confluo-pingmesh agent --controller https://pingmesh:8443 --ca ca.pem --cert me.pem --key me.key \\
    --trust plan.pub --allow 10.0.0.0/8 --send 1m

# on one machine, with lists from a folder: print the probes as text
confluo-pingmesh agent --controller pinglists/ --name p001s01 --every 10s -o tsv
"""
)

LOOPBACK = ("127.0.0.0/8", "::1/128")
MAX_NAME = 32  # bytes of a server's name


Controllers = Annotated[
    list[str] | None,
    option(
        "--controller",
        metavar="URL",
        help="Fetch lists from https://HOST:PORT or a folder (repeatable: tried in order).",
    ),
]
Name = Annotated[str | None, option("--name", metavar="NAME", help="Pinglist to fetch (default: this host's name).")]
Allow = Annotated[
    list[str] | None,
    option("--allow", metavar="PREFIX", help="Permit targets in this network (repeatable; default: only this host)."),
]
Every = Annotated[str | None, option("--every", metavar="TIME", help="Fetch the list at this interval (5m).")]
Deadline = Annotated[str | None, option("--deadline", metavar="TIME", help="Give up a fetch after TIME (10s).")]
Trust = Annotated[
    str | None, option("--trust", metavar="FILE", help="Require lists signed by this public key (Ed25519, PEM).")
]
Ca = Annotated[
    str | None,
    option("--ca", metavar="FILE", help="CA bundle that verifies the controller (PEM; default: the system's)."),
]
Cert = Annotated[str | None, option("--cert", metavar="FILE", help="Client certificate for the controller (PEM).")]
Key = Annotated[str | None, option("--key", metavar="FILE", help="Private key, if not in the --cert file.")]
Listen_ = Annotated[
    list[str] | None,
    option(
        "--listen",
        metavar="ADDRESS:PORT[/DSCP]",
        help="Answer probes at this address (repeatable; :8765), with DSCP if given.",
    ),
]
NoRespond = Annotated[bool, option("--no-respond", help="Do not answer probes.")]
Bind = Annotated[
    list[str] | None, option("--bind", metavar="ADDRESS", help="Probe from this address (one of each IP version).")
]
Metrics = Annotated[
    str | None, option("--metrics", metavar="ADDRESS:PORT", help="Serve GET /metrics for Prometheus at this address.")
]
Send = Annotated[str | None, option("--send", metavar="TIME", help="Send records to the controller at this interval.")]
Memory = Annotated[str | None, option("--memory", metavar="SIZE", help="End above this resident memory (64MiB).")]
Cpu = Annotated[str | None, option("--cpu", metavar="SHARE", help="Limit probing to this share of one core (10%).")]
Place = Annotated[
    str | None, option("--place", metavar="POD/PODSET/DC", help="Location of this server, if its list has none.")
]
Lab = Annotated[bool, option("--lab", help="Lift the limits on intervals and rates; mark each record.")]


@app.command(
    panels={
        "Options": "--controller -w --name --allow --listen --metrics",
        "Pinglists": "--every --deadline --trust --ca --cert --key --send",
        "Probes": "--no-respond --bind --place",
        "Limits": "--memory --cpu --lab",
    }
)
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
    """Probe the servers on a pinglist, and answer the probes of other agents, until a signal."""
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
        raise UsageError("a folder does not accept records", where="--send", hint="write them with -w LOG")

    from confluo_tools.cli.privileges import account, hand_over
    from confluo_tools.endpoint import listen_address
    from confluo_tools.formats import block_builder  # noqa: F401 - unreadable after the change of user
    from confluo_tools.pingmesh.agent.background import RecordSender
    from confluo_tools.pingmesh.agent.loop import AgentSettings, PingmeshAgent

    sources = [address_of(text) for text in bind or []]
    if len({a.version for a in sources}) < len(sources):
        raise UsageError("more than one address of an IP version", where="--bind")
    settings = AgentSettings(
        name_of(name),
        at,
        allowed_networks(allow),
        every=seconds("--every", every, 300.0, 1.0),
        deadline=seconds("--deadline", deadline, 10.0, 0.1),
        source=tuple(a.packed for a in sources),
        http_source=tuple(map(str, sources)),
        lab=lab,
        memory=size("--memory", memory, 64 << 20),
        cpu=0.1 if cpu is None else cli.core_share("--cpu", cpu),
        place=place_of(place),
    )
    log = out.log(schema, names, small=True) if kind == "multilog" else None
    owner = account(user) if user is not None else None
    limit_memory(settings.memory)
    with ExitStack() as stack:
        responder = None
        if not no_respond:
            from confluo_tools.pingmesh.probe.responder import Responder

            responder = Responder(listen_addresses(listen))
            stack.callback(responder.close)
        elif listen:
            raise UsageError("--listen and --no-respond exclude each other")
        metrics_socket = None
        if metrics is not None:
            metrics_socket = stack.enter_context(
                listen_address.listen(*listen_address.parse(metrics, "--metrics"), backlog=16)
            )
        sender: RecordSender | None = None
        into: LogOutput | cli.RecordOutput | None = log
        if log is None and (out.output is not None or send is None):
            into = out.records(schema, kind, names)
        hand_over(log, owner)  # before threads start
        check_python(owner)
        if responder is not None:
            responder.start()
        if send is not None:
            sender = RecordSender(at, schema, seconds("--send", send, 60.0, 1.0), settings.name)

        def write(block: Any) -> None:
            if into is not None:
                into.write(block, None)
                into.flush()

        agent = PingmeshAgent(settings, responder, write, sender, cli.tell)
        if metrics_socket is not None:
            stack.callback(metrics_endpoint(agent, metrics_socket).close)
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


def check_python(owner: Account | None) -> None:
    """Check that the user can run Python, which the controller client needs.  Raises ConfluoError."""
    if owner is not None and not (os.access(sys.executable, os.X_OK) and os.access(os.__file__, os.R_OK)):
        hint = "make it readable for all users, or name another user"
        raise ConfluoError(f"user {owner.name} cannot run it", where=sys.executable, hint=hint)


def reload_on_hangup(agent: PingmeshAgent) -> None:
    """Let SIGHUP fetch the list at once, unless SIGHUP is ignored (nohup)."""
    try:
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
            signal.signal(signal.SIGHUP, lambda number, frame: agent.hurry())
    except ValueError:
        pass  # not in the main thread


def limit_memory(resident: int) -> None:
    """Limit thread stacks and mapped data: a last resort above the limit that the loop checks."""
    import resource
    import threading

    threading.stack_size(512 << 10)
    limit = resident + (512 << 20)
    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    if hard == resource.RLIM_INFINITY or limit <= hard:
        resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))


def metrics_endpoint(agent: PingmeshAgent, sock: Any) -> Any:
    """The Prometheus endpoint on this socket.  Raises ConfluoError without the package prometheus_client."""
    from confluo_tools.endpoint.metrics_endpoint import MetricsEndpoint
    from confluo_tools.pingmesh.agent.lease import BAD, EMPTY, LIST, LOST, MISSING, SAME
    from confluo_tools.pingmesh.agent.metrics import MetricsCollector

    def gauges() -> Mapping[str, tuple[str, float]]:
        return {
            "pingmesh_probing": ("1 while a list is followed", float(agent.lease.probing)),
            "pingmesh_peers": ("Targets of the list", agent.peers),
            "pingmesh_pace": ("Factor on the planned intervals", agent.throttle.pace),
            "pingmesh_agent_cpu_share": ("Share of one core over the last 10 s", agent.share),
            "pingmesh_questions_lost_in_a_row": ("Fetches without an answer since the last answer", agent.lease.lost),
        }

    def counters() -> Mapping[str, tuple[str, float]]:
        found: dict[str, tuple[str, float]] = {
            "pingmesh_discarded_records": (
                "Records neither written nor sent",
                agent.discarded + (agent.sender.discarded if agent.sender is not None else 0),
            ),
            "pingmesh_listen_overflows": ("Connections dropped by full queues of listening sockets", agent.overflows),
        }
        for kind in (LIST, SAME, MISSING, EMPTY, BAD, LOST):
            text = f"Fetches from the controller with result {kind}"
            found[f"pingmesh_controller_{kind}"] = text, agent.fetches.get(kind, 0)
        if agent.responder is not None:
            answered = agent.responder.counts
            for word in ("connections", "requests", "datagrams"):
                found[f"pingmesh_answered_{word}"] = f"{word.title()} answered", answered[word]
        return found

    def facts() -> Mapping[str, str]:
        return {"name": agent.settings.name, "list": f"{agent.version:016x}", "reason": agent.lease.reason}

    collector = MetricsCollector(agent.tally, gauges, counters, facts)
    return MetricsEndpoint(sock, collector, install="pip install 'confluo-tools[pingmesh]'")


def controller_of(
    places: list[str], *, trust: str | None, ca: str | None, cert: str | None, key: str | None, lab: bool
) -> Controller:
    """The controller of the options.  Raises UsageError; OSError for a file that cannot be read."""
    from confluo_tools.pingmesh.agent.controller_client import Controller, check_place, public_key

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
            raise ConfluoError(
                "--trust needs the package cryptography", hint="pip install 'confluo-tools[pingmesh]'"
            ) from None
    for path in (ca, cert, key):
        if path is not None:
            with open(path, "rb"):  # report an unreadable file now, not at the first fetch
                pass
    found = tuple(check_place(text, signed=pem is not None) for text in places)
    files = [os.path.abspath(path) if path is not None else None for path in (ca, cert, key)]
    return Controller(found, files[0], files[1], files[2], pem, lab)


def name_of(text: str | None) -> str:
    """The name of this server in the topology."""
    from confluo_tools.pingmesh.controller.asgi_app import NAME

    name = text if text is not None else os.uname().nodename
    if not NAME.match(name):
        hint = f"use up to {MAX_NAME} letters, digits, '.', '_' and '-'"
        raise UsageError(f"invalid server name '{name[:60]}'", where="--name", hint=hint)
    return name


def allowed_networks(words: list[str] | None) -> tuple[IPv4Network | IPv6Network, ...]:
    """Networks of permitted targets; by default this host."""
    found = []
    for word in words if words is not None else LOOPBACK:
        try:
            found.append(ip_network(word))
        except ValueError as e:
            raise UsageError(f"{str(e)[:80]}", where="--allow", hint="write e.g. 10.0.0.0/8, fd00::/8") from None
    return tuple(found)


def listen_addresses(words: list[str] | None) -> list[ListenAddress]:
    """Listen addresses of the responder."""
    from confluo_tools.endpoint import listen_address
    from confluo_tools.pingmesh.probe.responder import PORT, ListenAddress

    if words is None:
        return [ListenAddress("0.0.0.0", PORT), ListenAddress("::", PORT)]
    found = []
    for word in words:
        place, slash, dscp = word.partition("/")
        mark = cli.traffic_class("--listen", dscp) if slash else 0
        host, port = listen_address.parse(place, "--listen", PORT)
        hosts = ("0.0.0.0", "::") if host == "::" and not place.startswith("[") else (host,)
        found += [ListenAddress(h, port, mark) for h in hosts]
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
        raise UsageError(f"invalid place '{text[:60]}'", where="--place", hint="write POD/PODSET/DC, 16 bytes each")
    return words[0], words[1], words[2]


def seconds(option: str, text: str | None, default: float, min_seconds: float) -> float:
    if text is None:
        return default
    return cli.duration(option, text, round(min_seconds * 1e9), 86400 * 10**9) / 1e9


def size(option: str, text: str | None, default: int) -> int:
    if text is None:
        return default
    from confluo_tools import units

    found = cli.of_option(option, units.size, text)
    if found < 16 << 20:
        raise UsageError(f"{text} is too small", where=option, hint="the minimum is 16MiB")
    return found


def main(argv: list[str] | None = None) -> int:
    return cli.run(app, "confluo-pingmesh agent", argv, owns_state=True)
