"""confluo-topology: check a topology file and write it in the current format.  Manual: confluo-topology(1)."""

from __future__ import annotations

from typing import Annotated

import typer

from confluo_tools import cli, config
from confluo_tools.cli.options import option

app = cli.command_app(
    """
# is this file correct, and how large is the network?
confluo-topology --stats -w /dev/null clos.yaml

# a file of an older format, or a list of links
confluo-topology links.txt -w topology.yaml

# switches and links from one file, servers from another
confluo-topology clos.yaml fleet.yaml -w topology.yaml
"""
)


@app.command()
def topology(
    network: Annotated[
        str | None, typer.Argument(metavar="FILE", help="Topology file of any format; - is stdin.", show_default=False)
    ] = None,
    servers: Annotated[
        str | None, typer.Argument(metavar="[SERVERS]", help="Take the servers from this file.", show_default=False)
    ] = None,
    output: Annotated[
        str | None, option("-w", "--output", metavar="PATH", help="Write to PATH; default: standard output.")
    ] = None,
    force: cli.Force = False,
    *,
    common: cli.CommonOptions,
) -> int:
    """Check a topology file, and write it in the format that confluo-vote, confluo-trace and confluo-pingmesh share.

    With SERVERS, the result has the switches and links of FILE and the servers of SERVERS, joined by address.
    """
    if network is None:
        return cli.usage(app)
    from confluo_tools.formats.output_file import open_yaml
    from confluo_tools.network.topology_file import read_network
    from confluo_tools.network.topology_writer import join, text_of

    found = read_network(network)
    if servers is not None:
        found, lost = join(found, read_network(servers))
        if lost:
            cli.tell(f"{lost:,} servers of {servers} have no ToR: {network} has no host with their address")
    graph = found.topology() if found.has_links else None
    fleet = found.fleet() if found.has_addresses else None
    sink = open_yaml(output, force=config.truth("clobber", force))
    sink.write(text_of(found).encode())
    sink.close()
    if common.stats:
        switches, links = (len(graph.neighbours), sum(map(len, graph.neighbours.values())) // 2) if graph else (0, 0)
        pods, count = (len(fleet.pods), len(fleet.servers)) if fleet else (0, 0)
        cli.note(f"{switches:,} switches, {links:,} links between them, {pods:,} pods, {count:,} servers")
    return cli.OK


def main(argv: list[str] | None = None) -> int:
    return cli.run(app, "confluo-topology", argv)
