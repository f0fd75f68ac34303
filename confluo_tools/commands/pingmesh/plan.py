"""confluo-pingmesh plan: who is to probe whom.  Manual: confluo-pingmesh-plan(1)."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated, Any

import typer

from confluo_tools import cli
from confluo_tools.cli.options import option
from confluo_tools.errors import UsageError

if TYPE_CHECKING:
    from confluo_tools.algo.fleet import Fleet
    from confluo_tools.algo.pinglists import Plan, Probe, Rules

app = cli.command_app(
    """
# a list for each server, in a folder that confluo-pingmesh serve gives to agents
confluo-pingmesh plan topology.yaml -w pinglists/

# signed, so that agents need not trust those who serve them
confluo-pingmesh plan topology.yaml --sign key.pem -w pinglists/

# SYNs, and payloads in another class of service; at most 200 probes a second from a server
confluo-pingmesh plan topology.yaml --probe tcp --probe echo,payload=1000,dscp=8,port=8766 --max-rate 200 -w pinglists/

# who probes web1?
confluo-pingmesh plan topology.yaml | confluo-query - 'dst == web1'
"""
)

SHOWN = ("src", "src_pod", "dst", "dst_pod", "dst_ip", "dst_port", "kind", "level", "interval")  # in a table
MOST_YAML = 1_000_000  # pairs in lists of YAML, unless asked for


@app.command()
def plan(
    topology: Annotated[
        str, typer.Argument(metavar="TOPOLOGY", help="The servers: YAML; - for stdin.", show_default=False)
    ],
    algo: Annotated[
        str, option("--algo", metavar="GRAPH", help="mesh, ring:N (the next N of a ring) or full (mesh).")
    ] = "mesh",
    unequal: Annotated[
        str, option("--unequal", metavar="HOW", help="Pods of different sizes: wrap or skip (wrap).")
    ] = "wrap",
    per_podset: Annotated[
        int, option("--per-podset", metavar="N", min=0, help="Servers of a podset that probe other DCs and VIPs (2).")
    ] = 2,
    probe: Annotated[
        list[str] | None,
        option("--probe", metavar="KIND[,KEY=N]", help="tcp, echo, ...; payload, dscp, port (tcp; repeatable)."),
    ] = None,
    interval: Annotated[str, option("--interval", metavar="TIME", help="Between two probes of a pair (10s).")] = "10s",
    timeout: Annotated[str, option("--timeout", metavar="TIME", help="After which a probe has failed (9s).")] = "9s",
    max_peers: Annotated[
        int, option("--max-peers", metavar="N", min=1, help="Refuse longer lists than this (5000).")
    ] = 5000,
    max_rate: Annotated[
        float, option("--max-rate", metavar="N", min=0, help="Probes/s of a server; its interval grows (no limit).")
    ] = 0.0,
    lab: Annotated[bool, option("--lab", help="Allow intervals below 10s; agents need the same option.")] = False,
    token: Annotated[
        str | None, option("--token", metavar="N", help="What UDP probes carry: hexadecimal, or 'random' (as before).")
    ] = None,
    sign: Annotated[str | None, option("--sign", metavar="KEY", help="Sign lists: a PEM of Ed25519.")] = None,
    server: Annotated[
        list[str] | None, option("--server", metavar="NAME", help="Only pairs of this prober (repeatable).")
    ] = None,
    *,
    out: cli.OutputOptions,
    common: cli.CommonOptions,
) -> int:
    """Make the pinglists of a fleet: all servers of a pod probe each other, server i of a pod server i of all other
    pods of its data centre, chosen servers those of other data centres.
    """
    from confluo_tools.algo.pinglists import Plan
    from confluo_tools.formats.fleet import read_fleet
    from confluo_tools.formats.pingparts import pairs_schema

    if out.listed(pairs_schema()):
        return cli.OK
    rules = rules_of(algo, unequal, per_podset, probe or ["tcp"], interval, timeout, max_peers, max_rate, lab)
    fleet = read_fleet(topology)
    its = Plan(fleet, rules)
    try:
        pairs = its.check()
    except ValueError as e:
        said, hint = str(e), ""
        if said.endswith(f" {max_peers}"):
            hint = "raise --max-peers, or " + ("--unequal skip" if rules.graph == "mesh" else "--algo mesh")
        elif "would send" in said:
            hint = "--max-rate makes it less"
        raise UsageError(said, where=topology, hint=hint) from None
    text = out.tsv or out.ndjson
    if not is_folder(out.output, out.format, text):
        if sign is not None:
            raise UsageError("pairs are not signed", where="--sign", hint="lists are: -w DIR/")
        its.token = token_of(token, {})
        chosen = [named(fleet, name) for name in server or ()] or None
        kind = out.kind()
        with out.records(pairs_schema(), kind, out.names(pairs_schema(), kind, SHOWN)) as into:
            from confluo_tools.formats.pingparts import Lists

            lists = Lists(its, "rows")
            for s in chosen or fleet.servers:
                block = lists.block(s)
                if block is not None:
                    into.write(block)
        if common.stats:
            cli.note(summary(its, pairs))
        return cli.OK if into.rows else cli.NOTHING
    if out.output in (None, "-") or text or out.fields is not None or server:
        raise UsageError("lists are whole files in a folder", where="-w", hint="-w DIR/; pairs go to a file or stdout")
    if out.format not in (None, "yaml", "arrow"):
        raise UsageError(f"no format '{out.format}' for lists", where="-o", hint="there are yaml, arrow")
    form = out.format or ("yaml" if pairs <= MOST_YAML else "arrow")
    return write_lists(its, str(out.output), form, pairs, token, sign, out.force, common.stats)


def is_folder(output: str | None, format: str | None, text: bool) -> bool:
    """Whether -w names a folder for lists: one that is there, or anything that is no file of records."""
    from confluo_tools.cli.output import SUFFIXES

    if output in (None, "-"):
        return format == "yaml"
    path = str(output)
    if path.endswith("/") or os.path.isdir(path) or format == "yaml":
        return True
    return format in (None, "arrow") and not text and os.path.splitext(path)[1].lower() not in SUFFIXES


def write_lists(
    its: Plan, path: str, form: str, pairs: int, token: str | None, sign: str | None, force: bool, stats: bool
) -> int:
    """All lists into a folder."""
    from hashlib import blake2b

    from confluo_tools.formats.pingparts import Lists
    from confluo_tools.sinks.pinglists import ListFolder, read_key

    key = read_key(sign) if sign is not None else None
    with ListFolder(path, form, key=key, force=force) as folder:
        its.token = token_of(token, folder.before)
        if not its.token and any(p.kind == "udp" for p in its.rules.probes):
            hint = "--token random makes one"
            raise UsageError("udp probes without a token get no answers", where="--token", hint=hint)
        lists = Lists(its, form)
        servers = [s for s in lists.servers() if s.active]
        folder.begin([s.name for s in servers], {"token": f"{its.token:016x}"})
        whole = blake2b(digest_size=8)
        with cli.Progress("lists", len(servers)) as progress:
            for done, s in enumerate(servers):
                data, version = lists.document(s)
                whole.update(f"{s.name} {version:016x}\n".encode())
                folder.add(s.name, data)
                progress.update(done)
        folder.finish({
            "version": whole.hexdigest(), "graph": its.rules.graph, "servers": len(servers), "pairs": pairs,
            "token": f"{its.token:016x}", "signed": key is not None, "format": form,
        })  # fmt: skip
    if not pairs:
        cli.note("nobody has anybody to probe: all lists are empty", where=path)
    if stats:
        cli.note(f"{folder.written} lists written, {folder.kept} as they were, {folder.removed} removed", where=path)
        cli.note(summary(its, pairs))
    return cli.OK if pairs else cli.NOTHING


def summary(its: Plan, pairs: int) -> str:
    """Sizes and rates of a plan."""
    counts = [its.count(s) for s in its.fleet.servers if s.active] or [0]
    rates = [n / (its.interval(n) / 1e9) for n in counts]
    return (f"{len(counts)} servers, {len(its.fleet.pods)} pods, {pairs} pairs; peers of a server {min(counts)} to "
            f"{max(counts)}, probes/s {min(rates):.1f} to {max(rates):.1f}, of all {sum(rates):.0f}")  # fmt: skip


def rules_of(
    algo: str, unequal: str, per_podset: int, probes: list[str], interval: str, timeout: str, max_peers: int,
    max_rate: float, lab: bool,
) -> Rules:  # fmt: skip
    """What the options ask for."""
    from confluo_tools import units
    from confluo_tools.algo.pinglists import LEAST_INTERVAL, MOST_TIMEOUT, Rules

    graph, _, n = algo.partition(":")
    ring = n if graph == "ring" and n else "10"
    if graph not in ("mesh", "ring", "full") or (n and graph != "ring") or not 1 <= decimal(ring) < 1 << 20:
        raise UsageError(f"no graph '{algo[:60]}'", where="--algo", hint="there are mesh, ring:N, full")
    cli.one_of("--unequal", unequal, ("wrap", "skip"))
    every = cli.duration("--interval", interval, 1_000_000, 86400 * units.SECOND)
    late = cli.duration("--timeout", timeout, 1_000_000, MOST_TIMEOUT)
    if every < LEAST_INTERVAL and not lab:
        raise UsageError(f"{interval} is below 10s, the least", where="--interval", hint="--lab lifts that in a lab")
    kinds = tuple(probe_of(text) for text in probes)
    if len({(p.kind, p.dscp, p.port) for p in kinds}) < len(kinds):
        raise UsageError("the same probe twice", where="--probe", hint="give the second another dscp or port")
    return Rules(graph, int(ring), per_podset, unequal, kinds, every, late, max_peers, max_rate, lab)


def decimal(text: str) -> int:
    """A number of digits; -1 for anything else."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 9 else -1


def probe_of(text: str) -> Probe:
    """``echo,payload=1000,dscp=8,port=8766``."""
    from confluo_tools.algo.pinglists import KINDS, Probe, least_payload, most_payload

    kind, *words = text.split(",")
    cli.one_of("--probe", kind, KINDS)
    most = {"payload": most_payload(kind), "dscp": 63, "port": 65535}
    values = {"payload": 1000 if kind == "echo" else 0}
    for word in words:
        key, _, value = word.partition("=")
        if key not in most or decimal(value) < 0:
            raise UsageError(f"'{word[:60]}' is not understood", where="--probe", hint="write echo,payload=1000,dscp=8")
        if int(value) > most[key]:
            raise UsageError(f"{key} {value} is above {most[key]}", where="--probe")
        values[key] = int(value)
    if values["payload"] < least_payload(kind) or (kind == "udp" and 0 < values["payload"] < 48):
        raise UsageError(f"{kind} with {values['payload']} B", where="--probe", hint="echo needs 1 or more, udp 48")
    return Probe(kind, **values)


def token_of(text: str | None, before: dict[str, Any]) -> int:
    """The token that is asked for, else the one of the plan that was there."""
    if text == "random":
        from secrets import randbits

        return randbits(64) or 1
    if text is not None:
        return cli.token("--token", text)
    word = before.get("token", "0")
    return 0 if not isinstance(word, str) or word.strip("0") == "" else cli.token("token of the plan before", word)


def named(fleet: Fleet, name: str) -> Any:
    """The server of that name."""
    if name not in fleet:
        raise UsageError(f"no server '{name[:60]}'", where="--server")
    return fleet.server(name)


def main(argv: list[str] | None = None) -> int:
    return cli.run(app, "confluo-pingmesh plan", argv)
