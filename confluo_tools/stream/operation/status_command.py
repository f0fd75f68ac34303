"""confluo-stream status: where the records of a run are.  Manual: confluo-stream-status(1)."""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated, Any

from confluo_tools import cli
from confluo_tools.cli.options import argument, option
from confluo_tools.errors import ConfluoError

if TYPE_CHECKING:
    from confluo_tools.schema import Schema
    from confluo_tools.stream.operation.control_client import RunConnection
    from confluo_tools.stream.operation.rates import RateMeter

app = cli.command_app(
    """
# where are my packets?
confluo-stream status

# what did the run 'eth0' lose, and where?
confluo-stream status eth0 -J | jq -c 'select(.dropped > 0) | {stage, name, dropped}'
"""
)

MIN_EVERY = 100_000_000  # ns
MAX_EVERY = 3600 * 10**9
SUM = "sum"
SUMMED = ("taken", "rate", "given", "filtered", "dropped", "queued", "space")
USUAL = ("stage", "name", "pipeline", "taken", "rate", "given", "filtered", "dropped", "queued", "space")


@app.command(panels={"Options": "--every"})
def status(
    names: Annotated[list[str] | None, argument("NAME", "Runs by name or socket (all of this user).")] = None,
    every: Annotated[
        str, option("--every", metavar="TIME", help="Time between two looks: rates are of it (1s).")
    ] = "1s",
    *,
    out: cli.OutputOptions,
    common: cli.TalkOptions,
) -> int:
    """Show the stages of runs that go on: what came in, went out, waits and was dropped."""
    from confluo_tools.schema import builtin
    from confluo_tools.stream.operation.control_client import RunConnection, chosen_runs, listed
    from confluo_tools.stream.operation.rates import RateMeter, blocks_of

    schema = builtin("stage")
    if out.listed(schema):
        return cli.OK
    seconds = cli.duration("--every", every, MIN_EVERY, MAX_EVERY) / 1e9
    kind = out.kind(answers=True)
    places = chosen_runs(names or [])
    if not places:
        cli.tell(f"no run goes on; {listed(places)}")
        return cli.NOTHING
    fields = out.names(schema, kind, ("run", *USUAL) if len(places) > 1 else USUAL)
    meter = RateMeter()
    with ExitStack() as stack:
        runs = [stack.enter_context(RunConnection(place)) for place in places]
        rows = looks(runs, meter)
        if kind == "table" and out.output is None and cli.is_terminal(1):
            return watch(runs, meter, seconds, LiveTable(schema, fields, out))
        time.sleep(seconds)
        rows = looks(runs, meter)
        with out.records(schema, kind, fields) as into:
            for block in blocks_of(rows if kind != "table" or out.wide else shortened(rows)):
                into.write(block)
    return cli.OK if rows else cli.NOTHING


def looks(runs: list[RunConnection], meter: RateMeter) -> list[dict[str, Any]]:
    """Rows of the schema `stage` of all runs; those that have ended leave the list."""
    from confluo_tools.stream.operation.rates import rows_of

    rows = []
    for run in list(runs):
        try:
            look = run.look()
        except ConfluoError as e:
            cli.warn(e.what, where=e.where, hint=e.hint)
            runs.remove(run)
            continue
        rows += rows_of(look, meter.rates(look))
    return rows


def shortened(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows with topics in place of their addresses, so that a table has room for all columns."""
    return [{**row, "name": topic_of(row["name"])} for row in rows]


def topic_of(name: str) -> str:
    return name.rpartition("/")[2] if name.startswith("kafka://") else name


def watch(runs: list[RunConnection], meter: RateMeter, seconds: float, table: LiveTable) -> int:
    """Draw the rows again and again, until `q` or the end of the runs."""
    from confluo_tools.cli.live_screen import LiveScreen

    with LiveScreen() as screen:
        while rows := looks(runs, meter):
            screen.show(table.drawn(rows))
            if not screen.wait(seconds):
                break
    return cli.OK


def with_sums(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows; after those of a stage of a run, if it has several, their sum, with the name `SUM`."""
    from itertools import groupby

    out: list[dict[str, Any]] = []
    for (run, stage), group in groupby(rows, key=lambda row: (row["run"], row["stage"])):
        part = list(group)
        out += part
        if len(part) > 1:
            out.append({"run": run, "stage": stage, "name": SUM, **{n: sum(row[n] for row in part) for n in SUMMED}})
    return out


class LiveTable:
    """Rows as a table for a terminal, with sums of stages in bold, and rows in red that lost records."""

    def __init__(self, schema: Schema, fields: list[str] | None, out: cli.OutputOptions) -> None:
        self.schema, self.fields, self.out = schema, fields, out

    def drawn(self, rows: list[dict[str, Any]]) -> str:
        from io import BytesIO
        from shutil import get_terminal_size

        from confluo_tools import config
        from confluo_tools.console import colour
        from confluo_tools.formats.table import TableWriter
        from confluo_tools.stream.operation.rates import blocks_of

        text = BytesIO()
        writer = TableWriter(
            self.schema,
            text,
            fields=self.fields,
            header=not self.out.no_header,
            numeric=self.out.numeric,
            width=None if self.out.wide else get_terminal_size().columns - 1,
            local=config.truth("local", self.out.local),
        )
        writer.start()
        shown = with_sums(rows if self.out.wide else shortened(rows))
        for block in blocks_of(shown):
            writer.write(block)
        writer.close()
        lines = text.getvalue().decode(errors="replace").rstrip("\n").split("\n")
        if colour(1, self.out.color):
            first = len(lines) - len(shown)
            lines[first:] = [_styled(line, row) for line, row in zip(lines[first:], shown, strict=True)]
        return "\n".join(lines)


def _styled(line: str, row: dict[str, Any]) -> str:
    codes = (["1"] if row["name"] == SUM else []) + (["31"] if row["dropped"] else [])
    return f"\x1b[{';'.join(codes)}m{line}\x1b[0m" if codes else line


def main(argv: list[str] | None = None) -> int:
    return cli.run(app, "confluo-stream status", argv)
