"""confluo-replay sample: times of records as runs at even steps, and back.  Manual: confluo-replay-sample(1)."""

from __future__ import annotations

from typing import Annotated

from confluo_tools import cli
from confluo_tools.cli.options import option
from confluo_tools.errors import SchemaError, UsageError

app = cli.command_app(
    """
# the times of all packets, flow by flow, each within 5 microseconds
confluo-replay sample trace.ml -w runs.ml

# and back: a record for each packet
confluo-replay sample --expand runs.ml -T

# any records: the calls of each user
confluo-replay sample calls.ndjson --schema call.yaml --by user --threshold 1ms

# gap-based sampling, to compare with: errors have no bound
confluo-replay sample trace.ml --gap 5us --stats -T >runs.tsv
"""
)


@app.command(panels={"Options": "-w --by --threshold --gap --expand"})
def sample(
    inputs: cli.Inputs = None,
    by: Annotated[
        str | None, option("--by", metavar="FIELDS", help="Records with equal FIELDS are a sequence (the flow).")
    ] = None,
    threshold: Annotated[
        str, option("--threshold", metavar="TIME", help="No time is further from its own than TIME (5us).")
    ] = "5us",
    gap: Annotated[
        str | None, option("--gap", metavar="TIME", help="End a run at gaps above TIME instead: errors have no bound.")
    ] = None,
    expand: Annotated[bool, option("--expand", help="Read runs, and write each of their records.")] = False,
    *,
    ins: cli.InputOptions,
    out: cli.LogOptions,
    common: cli.CommonOptions,
) -> int:
    """Write the times of records as runs: a time, a number of records, and the time from one to the next.

    The runs follow Algorithm 1 of DETER: rate-based sampling with a bound on the error.
    """
    from confluo_tools.replay.sample.run_records import FLOW, RecordSampler, expanded, runs_schema, times_schema

    if ins.missing(inputs):
        return cli.usage(app)
    if expand and (by is not None or gap is not None):
        raise UsageError("--expand takes runs as they are", hint="leave --by and --gap out")
    most = cli.duration("--threshold", threshold, 0, 10**12)
    apart = cli.duration("--gap", gap, 0, 10**12) if gap is not None else None
    with ins.open(inputs) as reader:
        try:
            if expand:
                schema = times_schema(reader.schema)
            else:
                names = by.split(",") if by is not None else [name for name in FLOW if name in reader.schema]
                schema = runs_schema(reader.schema, [name.strip() for name in names if name.strip()])
        except SchemaError as e:
            raise SchemaError(e.what, where=reader.name, hint=e.hint) from None
        if out.listed(schema):
            return cli.OK
        kind, chosen = out.kind(), out.names(schema)
        writer = RecordSampler(schema, most, apart)
        with out.open(schema, kind, chosen) as into:
            if expand:
                for block in expanded(reader, schema):
                    into.write(block, None)
            else:
                for read in reader:
                    for block in writer.blocks(read):
                        into.write(block, None)
                for block in writer.rest():
                    into.write(block, None)
    if common.stats and not expand:
        cli.note(f"{writer.events} records, {into.rows} runs")
    return cli.OK if into.rows else cli.NOTHING


def main(argv: list[str] | None = None) -> int:
    return cli.run(app, "confluo-replay sample", argv)
