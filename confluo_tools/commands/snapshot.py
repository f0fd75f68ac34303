"""confluo-snapshot: one atomic cut through logs on many hosts.  Manual: confluo-snapshot(1)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from confluo_tools import cli, config
from confluo_tools.cli.options import option

if TYPE_CHECKING:
    from confluo_tools.remote.cut import Timing
    from confluo_tools.store.snapshot import Snapshot

app = cli.command_app(
    """
# what three switches had seen at one instant
confluo-snapshot sw1:/data/live.ml sw2:/data/live.ml live.ml -w incident.yaml

# and what that was
confluo-query --at incident.yaml 'host 10.0.0.7' --agg count --by host

# without the hosts that cannot be reached
confluo-snapshot --partial sw1:/data/live.ml sw2:/data/live.ml -w incident.yaml
"""
)


@app.command()
def snapshot(
    logs: Annotated[
        list[str] | None, typer.Argument(metavar="[HOST:]LOG...", help="MultiLogs, here or on other hosts.")
    ] = None,
    output: cli.Output = None,
    force: cli.Force = False,
    partial: cli.Partial = False,
    deadline: Annotated[
        str, option("--deadline", metavar="TIME", help="A freeze ends by itself after TIME (500ms).")
    ] = "500ms",
    wait: Annotated[
        str, option("--wait", metavar="TIME", help="How long a host may take until it answers (30s).")
    ] = "30s",
    *,
    common: cli.CommonOptions,
) -> int:
    """Write down how far each LOG had come at one and the same instant, as YAML.

    No log is copied: the file says how many rows of each belong to the snapshot.
    """

    if not logs:
        return cli.usage(app)
    limit = cli.duration("--deadline", deadline, most=60_000_000_000)
    patience = cli.duration("--wait", wait) / 1e9
    from confluo_tools.remote.cut import Cutter
    from confluo_tools.sinks.file import open_sink

    named = [(name, cli.remote(name)) for name in logs]
    sink = open_sink(output, force=config.truth("clobber", force))
    try:
        with Cutter(named, cli.shell()._replace(wait=patience), cli.here(), partial=partial) as cutter:
            taken = cutter.take(limit, {"deadline": deadline, "command": cli.command_line()})
        sink.write(taken.text().encode())
        sink.close()
    except BaseException:
        sink.abort()
        raise
    for gone in taken.missing:
        cli.note(f"{gone.reason}; the snapshot is partial", where=gone.where)
    if common.stats:
        tell(taken, cutter.timing)
    return cli.OK


def tell(taken: Snapshot, timing: Timing) -> None:
    """--stats."""
    each = ", ".join(f"{name} {ns / 1000:.1f} us" for name, ns in sorted(timing.hosts.items(), key=lambda h: -h[1])[:8])
    more = "" if len(timing.hosts) <= 8 else f" and {len(timing.hosts) - 8} others less"
    tries = "" if timing.tries == 1 else f", {timing.tries} tries"
    cli.note(f"{len(taken.logs)} logs, {taken.rows} records{tries}")
    cli.note(f"all frozen after {timing.freeze / 1000:.1f} us, thawed after {timing.total / 1000:.1f} us")
    cli.note(f"from freeze to thaw: {each}{more}")


def main(argv: list[str] | None = None) -> int:
    return cli.run(app, "confluo-snapshot", argv)
