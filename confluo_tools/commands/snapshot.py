"""confluo-snapshot: record one atomic snapshot of logs on many hosts.  Manual: confluo-snapshot(1)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from confluo_tools import cli, config
from confluo_tools.cli.options import option

if TYPE_CHECKING:
    from confluo_tools.multilog.snapshot import Snapshot
    from confluo_tools.remote.snapshot_coordinator import Timing

app = cli.command_app(
    """
# record what three switches had seen at one instant
confluo-snapshot sw1:/data/live.ml sw2:/data/live.ml live.ml -w incident.yaml

# query that
confluo-query --at incident.yaml 'host 10.0.0.7' --agg count --by host

# skip hosts that cannot be reached
confluo-snapshot --partial sw1:/data/live.ml sw2:/data/live.ml -w incident.yaml
"""
)


@app.command(panels={"Options": "-w --partial --deadline --wait"})
def snapshot(
    logs: Annotated[
        list[str] | None, typer.Argument(metavar="[HOST:]LOG...", help="MultiLogs, here or on other hosts.")
    ] = None,
    output: cli.Output = None,
    force: cli.Force = False,
    partial: cli.Partial = False,
    deadline: Annotated[str, option("--deadline", metavar="TIME", help="Abort a freeze after TIME (500ms).")] = "500ms",
    wait: Annotated[
        str, option("--wait", metavar="TIME", help="Wait up to TIME for the answer of a host (30s).")
    ] = "30s",
    *,
    common: cli.CommonOptions,
) -> int:
    """Write a snapshot of all LOGs at one instant, as YAML.

    No rows are copied: the file records how many rows of each LOG belong to the snapshot.
    """
    if not logs:
        return cli.usage(app)
    limit = cli.duration("--deadline", deadline, most=60_000_000_000)
    patience = cli.duration("--wait", wait) / 1e9
    from confluo_tools.formats.output_file import open_yaml
    from confluo_tools.remote.snapshot_coordinator import SnapshotCoordinator

    named = [(name, cli.remote(name)) for name in logs]
    with open_yaml(output, force=config.truth("clobber", force)) as sink:
        with SnapshotCoordinator(
            named, cli.shell()._replace(wait=patience), cli.here(), partial=partial
        ) as coordinator:
            taken = coordinator.take(limit, {"deadline": deadline, "command": cli.command_line()})
        sink.write(taken.text().encode())
    for gone in taken.missing:
        cli.note(f"{gone.reason}; the snapshot is partial", where=gone.where)
    if common.stats:
        print_stats(taken, coordinator.timing)
    return cli.OK


def print_stats(taken: Snapshot, timing: Timing) -> None:
    """Print the timing of the snapshot (--stats)."""
    each = ", ".join(f"{name} {ns / 1000:.1f} us" for name, ns in sorted(timing.hosts.items(), key=lambda h: -h[1])[:8])
    more = "" if len(timing.hosts) <= 8 else f" and {len(timing.hosts) - 8} others less"
    tries = "" if timing.tries == 1 else f", {timing.tries} tries"
    cli.note(f"{len(taken.logs)} logs, {taken.rows} records{tries}")
    cli.note(f"all frozen after {timing.freeze / 1000:.1f} us, thawed after {timing.total / 1000:.1f} us")
    cli.note(f"from freeze to thaw: {each}{more}")


def main(argv: list[str] | None = None) -> int:
    return cli.run(app, "confluo-snapshot", argv)
