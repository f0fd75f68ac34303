"""confluo-pingmesh plan: make the pinglists of a fleet.  Manual: confluo-pingmesh-plan(1)."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated, Any

import typer

from confluo_tools import cli
from confluo_tools.cli.options import option
from confluo_tools.errors import UsageError

if TYPE_CHECKING:
    from confluo_tools.network.fleet import Fleet
    from confluo_tools.pingmesh.plan.graphs import PingmeshPlan, PlanRules, ProbeSpec

app = cli.command_app(
    """
# write a list for each server into a folder for confluo-pingmesh serve
confluo-pingmesh plan topology.yaml -w pinglists/

# sign the lists, so that agents need not trust the controllers
confluo-pingmesh plan topology.yaml --sign key.pem -w pinglists/

# TCP probes, and payload in another class of service; at most 200 probes per second from a server
confluo-pingmesh plan topology.yaml --probe tcp --probe echo,payload=1000,dscp=8,port=8766 --max-rate 200 -w pinglists/

# which servers probe web1?
confluo-pingmesh plan topology.yaml | confluo-query - 'dst == web1'
"""
)

SHOWN = ("src", "src_pod", "dst", "dst_pod", "dst_ip", "dst_port", "kind", "level", "interval")  # in a table
MAX_YAML_PAIRS = 1_000_000  # pairs above which lists are Arrow by default


class PlanOutput(cli.OutputOptions):
    """The output options: pinglists as YAML or Arrow files in a folder, pairs as records."""

    formats = ("yaml", *cli.RECORD_FORMATS)
    default_format = "lists in -w DIR yaml, large ones arrow; pairs a table on a terminal, otherwise stream"


@app.command(
    panels={
        "Options": "-w --algo --probe --interval --sign --server",
        "Probes": "--unequal --per-podset --timeout --token",
        "Limits": "--max-peers --max-rate --lab",
    }
)
def plan(
    topology: Annotated[
        str,
        typer.Argument(
            metavar="TOPOLOGY", help="Topology file of the servers (YAML; - for stdin).", show_default=False
        ),
    ],
    algo: Annotated[
        str, option("--algo", metavar="GRAPH", help="Probe graph: mesh, ring:N (the next N of a ring) or full (mesh).")
    ] = "mesh",
    unequal: Annotated[
        str, option("--unequal", metavar="HOW", help="Match pods of different sizes: wrap or skip (wrap).")
    ] = "wrap",
    per_podset: Annotated[
        int, option("--per-podset", metavar="N", min=0, help="Let N servers of a podset probe other DCs and VIPs (2).")
    ] = 2,
    probe: Annotated[
        list[str] | None,
        option("--probe", metavar="KIND[,KEY=N]", help="Kind of probe with payload, dscp, port (tcp; repeatable)."),
    ] = None,
    interval: Annotated[
        str, option("--interval", metavar="TIME", help="Probe each pair at this interval (10s).")
    ] = "10s",
    timeout: Annotated[
        str, option("--timeout", metavar="TIME", help="Count a probe as failed after TIME (9s).")
    ] = "9s",
    max_peers: Annotated[
        int, option("--max-peers", metavar="N", min=1, help="Refuse plans with more peers per server (5000).")
    ] = 5000,
    max_rate: Annotated[
        float, option("--max-rate", metavar="N", min=0, help="Stretch intervals to N probes/s per server (no limit).")
    ] = 0.0,
    lab: Annotated[bool, option("--lab", help="Allow intervals below 10s; agents need --lab as well.")] = False,
    token: Annotated[
        str | None,
        option("--token", metavar="N", help="Token of UDP probes: hexadecimal or 'random' (default: unchanged)."),
    ] = None,
    sign: Annotated[
        str | None, option("--sign", metavar="KEY", help="Sign lists with this private key (Ed25519, PEM).")
    ] = None,
    server: Annotated[
        list[str] | None,
        option("--server", metavar="NAME", help="Print only pairs probed by this server (repeatable)."),
    ] = None,
    *,
    out: PlanOutput,
    common: cli.CommonOptions,
) -> int:
    """Make the pinglists of a fleet.

    All servers of a pod probe each other.  Server i of a pod probes server i of the other pods of its data centre.
    Some servers of each podset probe those of other data centres.
    """
    from confluo_tools.network.topology_file import read_fleet
    from confluo_tools.pingmesh.plan.graphs import PingmeshPlan
    from confluo_tools.pingmesh.plan.pinglist_parts import pairs_schema

    if out.listed(pairs_schema()):
        return cli.OK
    rules = rules_of(algo, unequal, per_podset, probe or ["tcp"], interval, timeout, max_peers, max_rate, lab)
    fleet = read_fleet(topology)
    the_plan = PingmeshPlan(fleet, rules)
    try:
        pairs = the_plan.check()
    except ValueError as e:
        problem, hint = str(e), ""
        if problem.endswith(f" {max_peers}"):
            hint = "raise --max-peers, or " + ("--unequal skip" if rules.graph == "mesh" else "--algo mesh")
        elif "would send" in problem:
            hint = "--max-rate limits it"
        elif "once a day" in problem:
            hint = "raise --max-rate"
        raise UsageError(problem, where=topology, hint=hint) from None
    text = out.tsv or out.ndjson
    if not is_folder(out.output, out.format, text):
        if sign is not None:
            raise UsageError("only lists can be signed", where="--sign", hint="write lists with -w DIR/")
        the_plan.token = token_of(token, {})
        chosen = [named(fleet, name) for name in server or ()] or None
        kind = out.kind()
        with out.records(pairs_schema(), kind, out.names(pairs_schema(), kind, SHOWN)) as into:
            from confluo_tools.pingmesh.plan.pinglist_parts import PinglistEncoder

            lists = PinglistEncoder(the_plan, "rows")
            for s in chosen or fleet.servers:
                block = lists.block(s)
                if block is not None:
                    into.write(block)
        if common.stats:
            cli.note(summary(the_plan, pairs))
        return cli.OK if into.rows else cli.NOTHING
    if out.output in (None, "-") or text or out.fields is not None or server:
        raise UsageError(
            "lists need a folder", where="-w", hint="write -w DIR/; without -o yaml, pairs go to a file or stdout"
        )
    if out.format not in (None, "yaml", "arrow"):
        raise UsageError(f"unknown format '{out.format}' of lists", where="-o", hint="use yaml or arrow")
    format = out.format or ("yaml" if pairs <= MAX_YAML_PAIRS else "arrow")
    return write_lists(the_plan, str(out.output), format, pairs, token, sign, out.force, common.stats)


def is_folder(output: str | None, format: str | None, text: bool) -> bool:
    """Whether -w names a folder for lists: an existing one, or a name without a suffix of records."""
    from confluo_tools.formats.registry import SUFFIXES

    if output in (None, "-"):
        return format == "yaml"
    path = str(output)
    if path.endswith("/") or os.path.isdir(path) or format == "yaml":
        return True
    return format in (None, "arrow") and not text and os.path.splitext(path)[1].lower() not in SUFFIXES


def write_lists(
    the_plan: PingmeshPlan,
    path: str,
    form: str,
    pairs: int,
    token: str | None,
    sign: str | None,
    force: bool,
    stats: bool,
) -> int:
    """Write all lists into a folder."""
    from hashlib import blake2b

    from confluo_tools.pingmesh.plan.pinglist_folder import PinglistFolder, read_key
    from confluo_tools.pingmesh.plan.pinglist_parts import PinglistEncoder

    key = read_key(sign) if sign is not None else None
    with PinglistFolder(path, form, key=key, force=force) as folder:
        the_plan.token = token_of(token, folder.before)
        if not the_plan.token and any(p.kind == "udp" for p in the_plan.rules.probes):
            hint = "make one with --token random"
            raise UsageError("responders do not answer udp probes without a token", where="--token", hint=hint)
        lists = PinglistEncoder(the_plan, form)
        servers = [s for s in lists.servers() if s.active]
        folder.begin([s.name for s in servers], {"token": f"{the_plan.token:016x}"})
        whole = blake2b(digest_size=8)
        with cli.Progress("lists", len(servers)) as progress:
            for done, s in enumerate(servers):
                data, version = lists.document(s)
                whole.update(f"{s.name} {version:016x}\n".encode())
                folder.add(s.name, data)
                progress.update(done)
        folder.finish(
            {
                "version": whole.hexdigest(),
                "graph": the_plan.rules.graph,
                "servers": len(servers),
                "pairs": pairs,
                "token": f"{the_plan.token:016x}",
                "signed": key is not None,
                "format": form,
            }
        )
    if not pairs:
        cli.note("plan is empty: no server has a peer", where=path)
    if stats:
        cli.note(f"{folder.written} lists written, {folder.kept} unchanged, {folder.removed} removed", where=path)
        cli.note(summary(the_plan, pairs))
    return cli.OK if pairs else cli.NOTHING


def summary(the_plan: PingmeshPlan, pairs: int) -> str:
    """Sizes and rates of a plan, on one line."""
    counts = [the_plan.count(s) for s in the_plan.fleet.servers if s.active] or [0]
    rates = [n / (the_plan.interval(n) / 1e9) for n in counts]
    return (
        f"{len(counts)} servers, {len(the_plan.fleet.pods)} pods, {pairs} pairs; peers of a server {min(counts)} to "
        f"{max(counts)}, probes/s {min(rates):.1f} to {max(rates):.1f}, of all {sum(rates):.0f}"
    )


def rules_of(
    algo: str,
    unequal: str,
    per_podset: int,
    probes: list[str],
    interval: str,
    timeout: str,
    max_peers: int,
    max_rate: float,
    lab: bool,
) -> PlanRules:
    """The rules of the options."""
    from confluo_tools.pingmesh.plan.graphs import MAX_INTERVAL, MAX_TIMEOUT, MIN_INTERVAL, PlanRules

    graph, _, n = algo.partition(":")
    ring = n if graph == "ring" and n else "10"
    if graph not in ("mesh", "ring", "full") or (n and graph != "ring") or not 1 <= decimal(ring) < 1 << 20:
        raise UsageError(f"unknown graph '{algo[:60]}'", where="--algo", hint="use mesh, ring:N or full")
    cli.one_of("--unequal", unequal, ("wrap", "skip"))
    every = cli.duration("--interval", interval, 1_000_000, MAX_INTERVAL)
    late = cli.duration("--timeout", timeout, 1_000_000, MAX_TIMEOUT)
    if every < MIN_INTERVAL and not lab:
        raise UsageError(f"{interval} is below the minimum of 10s", where="--interval", hint="in a lab, give --lab")
    if max_rate and not max_rate >= 1e-6:  # not a number either
        raise UsageError(f"{max_rate:g} is not a rate", where="--max-rate", hint="write probes per second, such as 200")
    kinds = tuple(probe_of(text) for text in probes)
    if len({(p.kind, p.dscp, p.port) for p in kinds}) < len(kinds):
        raise UsageError("duplicate probe", where="--probe", hint="give the second one another dscp or port")
    return PlanRules(graph, int(ring), per_podset, unequal, kinds, every, late, max_peers, max_rate, lab)


def decimal(text: str) -> int:
    """The number in a text of digits; -1 for anything else."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 9 else -1


def probe_of(text: str) -> ProbeSpec:
    """The probe in a text like ``echo,payload=1000,dscp=8,port=8766``."""
    from confluo_tools.pingmesh.plan.graphs import KINDS, ProbeSpec, max_payload, min_payload

    kind, *words = text.split(",")
    cli.one_of("--probe", kind, KINDS)
    max_values = {"payload": max_payload(kind), "dscp": 63, "port": 65535}
    values = {"payload": 1000 if kind == "echo" else 0}
    for word in words:
        key, _, value = word.partition("=")
        if key not in max_values or decimal(value) < 0:
            raise UsageError(f"invalid '{word[:60]}'", where="--probe", hint="write e.g. echo,payload=1000,dscp=8")
        if int(value) > max_values[key]:
            raise UsageError(f"{key} {value} exceeds {max_values[key]}", where="--probe")
        values[key] = int(value)
    if values["payload"] < min_payload(kind) or (kind == "udp" and 0 < values["payload"] < 48):
        raise UsageError(
            f"payload of {kind} is {values['payload']} B",
            where="--probe",
            hint="the minimum is 1 B of echo, 48 B of udp",
        )
    return ProbeSpec(kind, **values)


def token_of(text: str | None, before: dict[str, Any]) -> int:
    """The token of the option, otherwise the one of the previous plan."""
    if text == "random":
        from secrets import randbits

        return randbits(64) or 1
    if text is not None:
        return cli.token("--token", text)
    word = before.get("token", "0")
    return 0 if not isinstance(word, str) or word.strip("0") == "" else cli.token("token of the previous plan", word)


def named(fleet: Fleet, name: str) -> Any:
    """The server of this name.  Raises UsageError."""
    if name not in fleet:
        raise UsageError(f"unknown server '{name[:60]}'", where="--server")
    return fleet.server(name)


def main(argv: list[str] | None = None) -> int:
    return cli.run(app, "confluo-pingmesh plan", argv)
