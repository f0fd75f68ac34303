"""The analysis of confluo-vote: paths in, ranked links out, epoch by epoch."""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, Any

import typer

from confluo_tools import cli, config
from confluo_tools.errors import SchemaError

app = cli.command_app(
    """
# which links dropped packets, every 30 seconds
confluo-vote paths.ml --epoch 30s
"""
)


def _option(*names: str, help: str, **more: Any) -> Any:
    return typer.Option(*names, help=help, show_default=False, **more)


@app.command()
def vote(
    inputs: cli.Inputs = None,
    epoch: Annotated[str | None, _option("--epoch", metavar="TIME", help="A ranking for each TIME (30s).")] = None,
    input_format: cli.InputFormat = None,
    fields: cli.Fields = None,
    format: cli.Format = None,
    tsv: cli.Tsv = False,
    ndjson: cli.Ndjson = False,
    output: cli.Output = None,
    force: cli.Force = False,
    numeric: cli.Numeric = False,
    no_header: cli.NoHeader = False,
    wide: cli.Wide = False,
    local: cli.Local = False,
    line_buffered: cli.LineBuffered = False,
    color: cli.Color = None,
    file: cli.Config = None,
    stats: cli.Stats = False,
    quiet: cli.Quiet = False,
    verbose: cli.Verbose = False,
) -> int:
    """Rank the links (or switches) that dropped packets, from the paths of flows and what they lost.

    INPUT holds path records: of confluo-trace, of confluo-vote simulate, or of other programs.
    Two words are commands of their own: confluo-vote simulate makes such records, confluo-vote bound computes what
    Theorems 1 to 3 promise.
    """
    from confluo_tools import units
    from confluo_tools.algo import voting
    from confluo_tools.formats.build import blocks_of
    from confluo_tools.schema import builtin

    if file is not None:
        config.use_file(file)
    if cli.no_input(inputs or []):
        return cli.usage(app)
    schema = builtin("vote")
    if fields == "help":
        print(cli.list_fields(schema))
        return cli.OK
    length = units.duration(epoch) if epoch else 0
    epochs: dict[int, list[voting.Flow]] = {}
    with cli.open_records(inputs or [], input_format=input_format, schema=builtin("path")) as reader:
        if reader.schema.kind != "path":
            raise SchemaError(f"holds records of kind '{reader.schema.kind}', not paths", where=reader.name,
                              hint="confluo-trace makes paths of flows")  # fmt: skip
        for block in reader:
            block = block.project(builtin("path").layout)
            names = block.layout.names
            for row in range(block.rows):
                r = {n: block.get(i, row) for i, n in enumerate(names)}
                if r["kind"] == 1:
                    nodes = [r["src_ip"], *r["path"][: r["hops"]], r["dst_ip"]]
                    path = tuple(pairwise(nodes))
                    flow = voting.Flow(path, r["lost"], r["sent"])
                    epochs.setdefault(r["ts"] // length if length else 0, []).append(flow)
    fmt = cli.choose_format(format, tsv=tsv, ndjson=ndjson, path=output, answers=True)
    found = 0
    with cli.output(
        schema, fmt, path=output, force=force, fields=cli.choose_fields(fields, schema), header=not no_header,
        numeric=numeric, wide=wide, local=local, line_buffered=line_buffered, color=color,
    ) as out:  # fmt: skip
        for number, flows in sorted(epochs.items()):
            blamed = voting.vote(flows)
            n = len(blamed)
            found += n
            links: list[Any] = [b.component for b in blamed]
            for block in blocks_of(schema, {
                "ts": [number * length] * n, "epoch": [length] * n, "rank": range(1, n + 1), "verdict": [1] * n,
                "link_a": [str(a) for a, _ in links], "link_b": [str(b) for _, b in links],
                "score": [b.score for b in blamed], "a": [a for a, _ in links], "b": [b for _, b in links],
            }, n):  # fmt: skip
                out.write(block)
    return cli.OK if found else cli.NOTHING


def main(argv: list[str] | None = None) -> int:
    return cli.run(app, "confluo-vote", argv)
