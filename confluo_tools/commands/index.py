"""confluo-index: add, drop, list and follow the indexes of a MultiLog.  Manual: confluo-index(1)."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from confluo_tools import cli, config
from confluo_tools.errors import UsageError

if TYPE_CHECKING:
    from confluo_tools.store.log import Log
    from confluo_tools.store.views import View

app = cli.command_app(
    """
# index two fields; rows that are there already are covered, too
confluo-index trace.ml add src_ip dst_port

# times by the millisecond, lengths by the hundred
confluo-index trace.ml add ts:1ms len:100

# which indexes there are, and how far they reach
confluo-index trace.ml

# keep all of them up to date while others write
confluo-index trace.ml --follow
"""
)
VERBS = ("add", "drop", "list", "update", "rebuild", "check")


@app.command()
def index(
    log: Annotated[str | None, typer.Argument(metavar="LOG", help="The MultiLog.", show_default=False)] = None,
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[add|drop|list|update|rebuild|check [FIELD[:BUCKET]...]]",
            help="What to do (list), with which fields (all; add and drop need them).",
            show_default=False,
        ),
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", help="Go on until interrupted, as the log grows.")] = False,
    interval: Annotated[
        str | None,
        typer.Option("--interval", metavar="TIME", help="How often --follow looks (200ms).", show_default=False),
    ] = None,
    wait: Annotated[
        str | None,
        typer.Option("--wait", metavar="TIME", help="Wait so long for another maintainer (5s).", show_default=False),
    ] = None,
    stat: Annotated[bool, typer.Option("--stat", help="Afterwards, list the indexes.")] = False,
    tsv: cli.Tsv = False,
    ndjson: cli.Ndjson = False,
    file: cli.Config = None,
    stats: cli.Stats = False,
    quiet: cli.Quiet = False,
    verbose: cli.Verbose = False,
) -> int:
    """Make queries of LOG faster: an index of FIELD tells which rows hold which value.

    Answers never depend on an index; a query reads it as far as it reaches and scans the rest.
    """
    if file is not None:
        config.use_file(file)
    if log is None:
        return cli.usage(app)
    from confluo_tools import units

    verb, fields = split_words(words or [], follow)
    pause = units.duration(interval) / 1e9 if interval is not None else 0.2
    patience = units.duration(wait) / 1e9 if wait is not None else 5.0
    return Work(log, verb, fields, patience, stats).run(follow, pause, stat, tsv, ndjson)


def split_words(words: list[str], follow: bool) -> tuple[str, list[tuple[str, str | None]]]:
    """(verb, [(field, bucket or None)]).  A word `index` after the verb is taken: other kinds of views have others."""
    verb, rest = (words[0], words[1:]) if words else ("update" if follow else "list", [])
    if verb not in VERBS:
        from difflib import get_close_matches

        near = get_close_matches(verb, VERBS, n=1)
        hint = f"did you mean '{near[0]}'?" if near else f"there are {', '.join(VERBS)}"
        raise UsageError(f"cannot '{verb}' an index", hint=hint)
    if verb in ("add", "drop") and rest[:1] == ["index"]:
        rest = rest[1:]
    fields = [(name, bucket or None) for name, _, bucket in (word.partition(":") for word in rest)]
    if verb in ("add", "drop") and not fields:
        raise UsageError(f"{verb} needs a field", hint="for example: confluo-index LOG add src_ip")
    if verb != "add" and any(bucket for _, bucket in fields):
        raise UsageError("a bucket is given when an index is added", hint="drop the index, then add it again")
    if follow and verb in ("drop", "rebuild", "check"):
        raise UsageError(f"--follow and {verb} exclude each other")
    return verb, fields


class Work:
    """One run of the command on one log."""

    def __init__(
        self, path: str, verb: str, fields: list[tuple[str, str | None]], patience: float, stats: bool
    ) -> None:
        from confluo_tools import store

        self.log = store.open(path, readonly=verb in ("list", "check"))
        self.verb, self.fields, self.patience, self.stats = verb, fields, patience, stats
        self.status = cli.OK
        for name, _ in fields:
            if name not in self.log.schema:
                near = self.log.schema.suggest(name)
                hint = near if near.startswith("did you") else "confluo-info --fields LOG lists the names"
                raise UsageError(f"no field '{name}'", where=path, hint=hint)

    def run(self, follow: bool, pause: float, stat: bool, tsv: bool, ndjson: bool) -> int:
        before = self.names()
        getattr(self, self.verb)()
        if self.names() != before:
            self.log.remember([cli.state.prog, *cli.state.argv])
        if follow:
            self.follow(pause)
        if stat or self.verb == "list":
            found = show(self.log, [name for name, _ in self.fields], tsv, ndjson)
            if self.verb == "list" and not found:
                self.status = cli.NOTHING
        return self.status

    def names(self) -> list[str]:
        from confluo_tools.store import views

        return [view.name for view in views.indexes(self.log)]

    def views(self) -> list[View]:
        """The indexes of the fields that were named; all of them when none was."""
        from confluo_tools.store import views

        there = views.indexes(self.log, lambda path, what: cli.warn(what, where=path))
        if not self.fields:
            return there
        wanted = [name for name, _ in self.fields]
        for name in wanted:
            if all(view.field != name for view in there):
                hint = f"confluo-index LOG add {name} makes one"
                raise UsageError(f"there is no index of '{name}'", where=self.log.path, hint=hint)
        return [view for view in there if view.field in wanted]

    # -- what there is to do

    def add(self) -> None:
        from confluo_tools.store import views

        for name, text in self.fields:
            bucket = None if text is None else bucket_of(self.log, name, text)
            self.bring(views.add_index(self.log, name, bucket, update_now=False))

    def drop(self) -> None:
        from confluo_tools.store import views

        for name, _ in self.fields:
            if not views.drop_index(self.log, name) and not cli.state.quiet:
                cli.note(f"there was no index of '{name}'", where=self.log.path)

    def list(self) -> None:
        """`show` does it."""

    def update(self) -> None:
        for view in self.views():
            self.bring(view)

    def rebuild(self) -> None:
        for view in self.views():
            self.bring(view, anew=True)

    def bring(self, view: View, anew: bool = False) -> None:
        """Index what is complete and not yet indexed."""
        from confluo_tools.store import views

        version = self.log.version()
        before = views.coverage(self.log, view, version)[0] if self.stats and not anew else 0
        begin = time.perf_counter()
        what = f"index of {view.field}"
        with cli.Progress(what, version.rows, "rows") as progress, views.maintaining(view, self.patience):
            blocks = views.update(self.log, view, anew=anew, tell=progress.update)
        if self.stats:
            seconds = time.perf_counter() - begin
            covered, rows, size = views.coverage(self.log, view, self.log.version())
            cli.note(
                f"{what}: {blocks:,} blocks, {covered - before:,} rows in {seconds:.2f} s "
                f"({cli.humane((covered - before) / seconds)} rows/s); "
                f"covers {covered:,} of {rows:,} rows, {cli.humane(size)}B"
            )

    def check(self) -> None:
        """Read every posting to its last byte."""
        from confluo_tools.store import views

        for view in self.views():
            for path, reason in views.check(self.log, view):
                cli.warn(reason, where=path, hint=f"confluo-index LOG rebuild {view.field} mends it")

    def follow(self, pause: float) -> None:
        from confluo_tools.store import views

        fields = [name for name, _ in self.fields] or None
        maintainer = views.Maintainer(self.log, fields)
        added, begin = 0, time.monotonic()
        try:
            while True:
                step = maintainer.step()
                added += step
                if not step:
                    time.sleep(pause)
        finally:
            if not cli.state.quiet:
                cli.note(f"{added:,} blocks indexed in {time.monotonic() - begin:.0f} s", where=self.log.path)


def bucket_of(log: Log, field: str, text: str) -> int:
    """`1ms` of times and durations, a whole number of others."""
    from confluo_tools import units

    if log.schema[field].type.kind in ("time", "duration"):
        return units.duration(text)
    return units.integer(text)


def show(log: Log, fields: list[str], tsv: bool, ndjson: bool) -> int:
    """List the indexes: as a table, for programs as TSV or NDJSON.  How many there are."""
    from confluo_tools import units
    from confluo_tools.store import views

    version = log.version()
    rows: list[dict[str, Any]] = []
    for view in views.indexes(log, lambda path, what: cli.warn(what, where=path)):
        if not fields or view.field in fields:
            covered, total, size = views.coverage(log, view, version)
            rows.append({"index": view.field, "bucket": view.bucket, "covered": covered, "rows": total, "bytes": size})
    if ndjson:
        import json

        for row in rows:
            print(json.dumps(row))
    elif tsv or not cli.is_terminal(1):
        print("#fields\tindex\tbucket\tcovered\trows\tbytes")
        for row in rows:
            print("\t".join(map(str, row.values())))
    elif rows:
        cells = [("INDEX", "BUCKET", "COVERED", "OF ROWS", "BYTES", "A ROW")]
        for row in rows:
            timed = log.schema[row["index"]].type.kind in ("time", "duration")
            bucket = units.format_duration(row["bucket"]) if timed else f"{row['bucket']:,}"
            each = f"{row['bytes'] / row['covered']:.2f}" if row["covered"] else "-"
            cells.append((row["index"], bucket, f"{row['covered']:,}", f"{row['rows']:,}", f"{row['bytes']:,}", each))
        widths = [max(len(line[i]) for line in cells) for i in range(len(cells[0]))]
        for line in cells:
            rest = [c.rjust(w) for c, w in zip(line[1:], widths[1:], strict=True)]
            print("  ".join([line[0].ljust(widths[0]), *rest]))
    return len(rows)


def main(argv: list[str] | None = None) -> int:
    return cli.run(app, "confluo-index", argv)
