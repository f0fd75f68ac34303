"""confluo-index: keep indexes, filters, aggregates and states of a MultiLog.  Manual: confluo-index(1)."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from confluo_tools import cli
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

# name an expression, and keep sums of its rows by address and millisecond
confluo-index trace.ml add filter web 'dst_port in {80, 443}'
confluo-index trace.ml add aggregate web_bytes 'sum(len)' --filter web --by dst_ip

# which views there are, and how far they reach
confluo-index trace.ml

# keep all of them up to date while others write
confluo-index trace.ml --follow
"""
)
VERBS = ("add", "drop", "list", "update", "rebuild", "check")
ADD_HINTS = {
    "index": "for example: confluo-index LOG add src_ip",
    "filter": "for example: confluo-index LOG add filter web 'dst_port in {80, 443}'",
    "aggregate": "for example: confluo-index LOG add aggregate bytes 'sum(len)' --by dst_ip",
    "state": "for example: confluo-index LOG add state maxseq, or add state NAME --define FILE",
}


def _option(*names: str, metavar: str, help: str) -> Any:
    return typer.Option(*names, metavar=metavar, help=help, show_default=False)


@app.command()
def index(
    log: Annotated[str | None, typer.Argument(metavar="LOG", help="The MultiLog.", show_default=False)] = None,
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[add|drop|list|update|rebuild|check [VIEW]...]",
            help="What to do (list), with which views (all; add and drop need them): FIELD[:BUCKET]..., "
            "filter NAME EXPR, aggregate NAME AGG, or state NAME.",
            show_default=False,
        ),
    ] = None,
    filter: Annotated[
        str | None, _option("--filter", metavar="NAME", help="add aggregate: of the rows of this filter.")
    ] = None,
    where: Annotated[
        str | None, _option("--where", metavar="EXPR", help="add aggregate: of the rows for which EXPR holds.")
    ] = None,
    by: Annotated[
        str | None, _option("--by", metavar="LIST", help="add aggregate: by these keys, as confluo-query's --by.")
    ] = None,
    bucket: Annotated[
        str | None, _option("--bucket", metavar="TIME", help="add aggregate: by steps of so much time (1ms).")
    ] = None,
    define: Annotated[
        str | None, _option("--define", metavar="STATE", help="add state: a definition, as for confluo-query --state.")
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", help="Go on until interrupted, as the log grows.")] = False,
    interval: Annotated[
        str | None, _option("--interval", metavar="TIME", help="How often --follow looks (200ms).")
    ] = None,
    wait: Annotated[
        str | None, _option("--wait", metavar="TIME", help="Wait so long for another maintainer (5s).")
    ] = None,
    stat: Annotated[bool, typer.Option("--stat", help="Afterwards, list the views.")] = False,
    tsv: cli.Tsv = False,
    ndjson: cli.Ndjson = False,
    *,
    common: cli.CommonOptions,
) -> int:
    """Make queries of LOG faster: indexes tell which rows hold which value, filters and aggregates keep answers.

    Answers never depend on a view; a query uses it as far as it reaches and scans the rest.
    """
    if log is None:
        return cli.usage(app)

    ask = Ask(words or [], follow)
    ask.options(filter, where, by, bucket, define)
    pause = cli.duration("--interval", interval, 0) / 1e9 if interval is not None else 0.2
    patience = cli.duration("--wait", wait, 0) / 1e9 if wait is not None else 5.0
    return Work(log, ask, patience, common.stats).run(follow, pause, stat, tsv, ndjson)


class Ask:
    """What the words say: ``verb``; ``kind`` of view (None: all kinds); ``rest`` of the words, names first."""

    def __init__(self, words: list[str], follow: bool) -> None:
        from confluo_tools.store.views import KINDS

        self.verb, self.rest = (words[0], words[1:]) if words else ("update" if follow else "list", [])
        if self.verb not in VERBS:
            from difflib import get_close_matches

            near = get_close_matches(self.verb, VERBS, n=1)
            hint = f"did you mean '{near[0]}'?" if near else f"there are {', '.join(VERBS)}"
            raise UsageError(f"cannot '{self.verb}' an index", hint=hint)
        self.kind: str | None = None
        if self.rest and self.rest[0] in KINDS:
            self.kind, self.rest = self.rest[0], self.rest[1:]
        elif self.rest or self.verb == "add":
            self.kind = "index"
        if self.verb in ("add", "drop") and not self.rest:
            lacks = "a field" if self.kind in ("index", None) else "a name"
            raise UsageError(f"{self.verb} needs {lacks}", hint=ADD_HINTS.get(self.kind or "index", ""))
        if follow and self.verb in ("drop", "rebuild", "check"):
            raise UsageError(f"--follow and {self.verb} exclude each other")
        self.names, self.buckets = list(self.rest), [""] * len(self.rest)
        if self.kind == "index":
            pairs = [word.partition(":") for word in self.rest]
            self.names, self.buckets = [p[0] for p in pairs], [p[2] for p in pairs]
            if self.verb != "add" and any(self.buckets):
                raise UsageError("a bucket is given when an index is added", hint="drop the index, then add it again")
        elif self.verb == "add":
            self.names = self.rest[:1]

    def options(
        self, filter: str | None, where: str | None, by: str | None, bucket: str | None, define: str | None
    ) -> None:
        """Those of `add aggregate` and `add state`.  UsageError with anything else."""
        if define is not None and (self.verb, self.kind) != ("add", "state"):
            raise UsageError("--define goes with add state", hint=ADD_HINTS["state"])
        self.define = define
        given = {"--filter": filter, "--where": where, "--by": by, "--bucket": bucket}
        if (self.verb, self.kind) != ("add", "aggregate"):
            for name, value in given.items():
                if value is not None:
                    raise UsageError(f"{name} goes with add aggregate", hint=ADD_HINTS["aggregate"])
        self.filter, self.where, self.by, self.bucket = filter, where or "", by or "", bucket


class Work:
    """One run of the command on one log."""

    def __init__(self, path: str, ask: Ask, patience: float, stats: bool) -> None:
        from confluo_tools import store

        self.log = store.open(path, readonly=ask.verb in ("list", "check"))
        self.ask, self.patience, self.stats = ask, patience, stats
        self.status = cli.OK
        for name in ask.names if ask.kind == "index" else ():
            if name not in self.log.schema:
                near = self.log.schema.suggest(name)
                hint = near if near.startswith("did you") else "confluo-info --fields LOG lists the names"
                raise UsageError(f"no field '{name}'", where=path, hint=hint)

    def run(self, follow: bool, pause: float, stat: bool, tsv: bool, ndjson: bool) -> int:
        before = self.defined()
        getattr(self, self.ask.verb)()
        if self.defined() != before:
            self.log.remember([cli.state.prog, *cli.state.argv])
        if follow:
            self.follow(pause)
        if stat or self.ask.verb == "list":
            wanted = [v for v in self.there() if self.chosen(v)]
            show(self.log, wanted, tsv, ndjson)
            if self.ask.verb == "list" and not wanted:
                self.status = cli.NOTHING
        return self.status

    def defined(self) -> list[str]:
        from confluo_tools.store import views

        return [view.id for view in views.views(self.log)]

    def there(self) -> Sequence[View]:
        from confluo_tools.store import views

        return views.views(self.log, lambda path, what: cli.warn(what, where=path))

    def chosen(self, view: View) -> bool:
        ask = self.ask
        return (ask.kind is None or view.kind == ask.kind) and (not ask.names or view.label in ask.names)

    def views(self) -> list[View]:
        """The views that were named; all of them (of a kind) when none was."""
        there = self.there()
        for name in self.ask.names:
            if not any(self.chosen(v) and v.label == name for v in there):
                if self.ask.kind == "index":
                    hint = f"confluo-index LOG add {name} makes one"
                    raise UsageError(f"there is no index of '{name}'", where=self.log.path, hint=hint)
                from difflib import get_close_matches

                near = get_close_matches(name, [v.label for v in there if v.kind == self.ask.kind], n=1)
                hint = f"did you mean '{near[0]}'?" if near else "confluo-index LOG lists them"
                raise UsageError(f"there is no {self.ask.kind} '{name}'", where=self.log.path, hint=hint)
        return [view for view in there if self.chosen(view)]

    # -- what there is to do

    def add(self) -> None:
        from confluo_tools.store import views

        if self.ask.kind != "index":
            self.bring(self.make(self.ask))
            return
        for name, text in zip(self.ask.names, self.ask.buckets, strict=True):
            bucket = bucket_of(self.log, name, text) if text else None
            self.bring(views.add_index(self.log, name, bucket))

    def make(self, ask: Ask) -> View:
        """Define a filter, an aggregate or a state."""
        from confluo_tools import units
        from confluo_tools.store import views

        name, text = ask.rest[0], " ".join(ask.rest[1:])
        if ask.kind == "state":
            if text:
                raise UsageError(f"'{text}' after the name of a state", hint=ADD_HINTS["state"])
            return views.add_state(self.log, name, ask.define)
        if ask.kind == "filter":
            if len(ask.rest) < 2:
                raise UsageError(f"filter '{name}' needs an expression", hint=ADD_HINTS["filter"])
            return views.add_filter(self.log, name, text)
        if len(ask.rest) < 2:
            raise UsageError(f"aggregate '{name}' needs to be told what it computes", hint=ADD_HINTS["aggregate"])
        step = units.duration(ask.bucket) if ask.bucket is not None else 1_000_000
        return views.add_aggregate(
            self.log, name, text, filter=ask.filter, where=ask.where, by=ask.by, bucket=step
        )

    def drop(self) -> None:
        from confluo_tools.store import views

        kind = self.ask.kind or "index"
        for name in self.ask.names:
            if not views.drop_view(self.log, name, kind) and not cli.state.quiet:
                what = f"index of '{name}'" if kind == "index" else f"{kind} '{name}'"
                cli.note(f"there was no {what}", where=self.log.path)

    def list(self) -> None:
        """`show` does it."""

    def update(self) -> None:
        for view in self.views():
            self.bring(view)

    def rebuild(self) -> None:
        for view in self.views():
            self.bring(view, anew=True)

    def bring(self, view: View, anew: bool = False) -> None:
        """Add to a view what is complete and not yet in it."""
        from confluo_tools.store import views

        version = self.log.version()
        before = views.coverage(self.log, view, version)[0] if self.stats and not anew else 0
        begin = time.perf_counter()
        what = f"index of {view.label}" if view.kind == "index" else view.words
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
        """Read every file to its last byte."""
        from confluo_tools.store import views

        for view in self.views():
            for path, reason in views.check(self.log, view):
                cli.warn(reason, where=path, hint=f"confluo-index LOG rebuild {view.words} mends it")

    def follow(self, pause: float) -> None:
        from confluo_tools.store import views

        labels = None if self.ask.kind is None else self.ask.names or [v.label for v in self.views()]
        maintainer = views.Maintainer(self.log, labels, lambda path, what: cli.warn(what, where=path))
        added, begin = 0, time.monotonic()
        try:
            while True:
                step = maintainer.step()
                added += step
                if not step:
                    time.sleep(pause)
        finally:
            if not cli.state.quiet:
                done = "blocks indexed" if self.ask.kind == "index" else "blocks added to views"
                cli.note(f"{added:,} {done} in {time.monotonic() - begin:.0f} s", where=self.log.path)


def bucket_of(log: Log, field: str, text: str) -> int:
    """`1ms` of times and durations, a whole number of others."""
    from confluo_tools import units

    if log.schema[field].type.kind in ("time", "duration"):
        return units.duration(text)
    return units.integer(text)


def show(log: Log, found: Sequence[View], tsv: bool, ndjson: bool) -> None:
    """List views: as a table, for programs as TSV or NDJSON."""
    from confluo_tools import units
    from confluo_tools.store import views

    version = log.version()
    rows: list[dict[str, Any]] = []
    for view in found:
        covered, total, size = views.coverage(log, view, version)
        rows.append({
            "kind": view.kind, "name": view.label, "bucket": getattr(view, "bucket", 0), "covered": covered,
            "rows": total, "bytes": size, "definition": view.definition,
        })  # fmt: skip
    if ndjson:
        import json

        for row in rows:
            print(json.dumps(row))
    elif tsv or not cli.is_terminal(1):
        print("#fields\t" + "\t".join(rows[0] if rows else COLUMNS))
        for row in rows:
            print("\t".join([" ".join(str(v).split()) for v in row.values()]))
    elif rows:
        cells = [("KIND", "NAME", "BUCKET", "COVERED", "OF ROWS", "BYTES", "A ROW", "DEFINITION")]
        for view, row in zip(found, rows, strict=True):
            timed = view.kind != "index" or log.schema[view.label].type.kind in ("time", "duration")
            bucket = units.format_duration(row["bucket"]) if timed else f"{row['bucket']:,}"
            each = f"{row['bytes'] / row['covered']:.2f}" if row["covered"] else "-"
            cells.append((
                row["kind"], row["name"], bucket if row["bucket"] else "-", f"{row['covered']:,}", f"{row['rows']:,}",
                f"{row['bytes']:,}", each, " ".join(row["definition"].split()),
            ))  # fmt: skip
        widths = [max(len(line[i]) for line in cells) for i in range(len(cells[0]))]
        for line in cells:
            first = [c.ljust(w) for c, w in zip(line[:2], widths[:2], strict=True)]
            rest = [c.rjust(w) for c, w in zip(line[2:-1], widths[2:-1], strict=True)]
            print("  ".join([*first, *rest, line[-1]]).rstrip())


COLUMNS = ("kind", "name", "bucket", "covered", "rows", "bytes", "definition")


def main(argv: list[str] | None = None) -> int:
    return cli.run(app, "confluo-index", argv)
