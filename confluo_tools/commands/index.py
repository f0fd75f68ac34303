"""confluo-index: keep indexes, filters, aggregates and states of a MultiLog.  Manual: confluo-index(1)."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Annotated, Any

import typer

from confluo_tools import cli
from confluo_tools.cli.options import option
from confluo_tools.errors import UsageError
from confluo_tools.inputs.topics import is_topic

if TYPE_CHECKING:
    from confluo_tools.multilog.log import Log
    from confluo_tools.multilog.views import View
    from confluo_tools.multilog.views.view_request import ViewRequest

app = cli.command_app(
    """
# index two fields, including rows that exist already
confluo-index trace.ml add src_ip dst_port

# index times by the millisecond, lengths by the hundred
confluo-index trace.ml add ts:1ms len:100

# name an expression; keep sums of its rows by address and millisecond
confluo-index trace.ml add filter web 'dst_port in {80, 443}'
confluo-index trace.ml add aggregate web_bytes 'sum(len)' --filter web --by dst_ip

# list the views and how many rows they cover
confluo-index trace.ml

# keep all views up to date while others write
confluo-index trace.ml --follow
"""
)


@app.command(
    panels={
        "Options": "--follow --stat",
        "Views": "--filter --where --by --bucket --define",
        "Time": "--interval --wait",
    }
)
def index(
    log: Annotated[str | None, typer.Argument(metavar="LOG", help="MultiLog.", show_default=False)] = None,
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[add|drop|list|update|rebuild|check [VIEW]...]",
            help="Verb (list), and views (all; add and drop need them): FIELD[:BUCKET]..., "
            "filter NAME EXPR, aggregate NAME AGG, or state NAME.",
            show_default=False,
        ),
    ] = None,
    filter: Annotated[
        str | None, option("--filter", metavar="NAME", help="add aggregate: aggregate the rows of this filter.")
    ] = None,
    where: Annotated[
        str | None, option("--where", metavar="EXPR", help="add aggregate: aggregate the rows for which EXPR holds.")
    ] = None,
    by: Annotated[
        str | None, option("--by", metavar="LIST", help="add aggregate: group by these keys, as confluo-query --by.")
    ] = None,
    bucket: Annotated[
        str | None, option("--bucket", metavar="TIME", help="add aggregate: aggregate per TIME (1ms).")
    ] = None,
    define: Annotated[
        str | None,
        option("--define", metavar="STATE", help="add state: take this definition, as confluo-query --state."),
    ] = None,
    follow: Annotated[bool, option("--follow", help="Update the views as the log grows, until interrupted.")] = False,
    interval: Annotated[
        str | None, option("--interval", metavar="TIME", help="--follow: check for new rows every TIME (200ms).")
    ] = None,
    wait: Annotated[
        str | None, option("--wait", metavar="TIME", help="Wait up to TIME for another maintainer (5s).")
    ] = None,
    stat: Annotated[bool, option("--stat", help="List the views at the end.")] = False,
    tsv: cli.Tsv = False,
    ndjson: cli.Ndjson = False,
    *,
    common: cli.CommonOptions,
) -> int:
    """Add, drop, list, update, rebuild or check the indexes, filters, aggregates and states of LOG.

    They make queries faster and never change a result: a query uses a view as far as it reaches and scans the rest.
    """
    if log is None:
        return cli.usage(app)

    if is_topic(log):
        hint = "write it to a MultiLog: confluo-convert TOPIC --follow -w LOG --index LIST"
        raise UsageError("is a topic, which has no views", where=log, hint=hint)

    from confluo_tools.multilog.views.view_request import ViewRequest

    request = ViewRequest(words or [], follow)
    request.options(filter, where, by, bucket, define)
    pause = cli.duration("--interval", interval, 0) / 1e9 if interval is not None else 0.2
    patience = cli.duration("--wait", wait, 0) / 1e9 if wait is not None else 5.0
    return IndexRun(log, request, patience, common.stats).run(follow, pause, stat, tsv, ndjson)


class IndexRun:
    """One run of the command on one log: a method for each verb."""

    def __init__(self, path: str, request: ViewRequest, patience: float, stats: bool) -> None:
        from confluo_tools import multilog

        self.log = multilog.open(path, readonly=request.verb in ("list", "check"))
        self.request, self.patience, self.stats = request, patience, stats
        self.status = cli.OK
        self.added = 0  # blocks
        for name in request.names if request.kind == "index" else ():
            if name not in self.log.schema:
                near = self.log.schema.suggest(name)
                hint = near if near.startswith("did you") else "confluo-info --fields LOG lists the names"
                raise UsageError(f"no field '{name}'", where=path, hint=hint)

    def run(self, follow: bool, pause: float, stat: bool, tsv: bool, ndjson: bool) -> int:
        with self.summary() if follow else nullcontext():
            before = self.defined()
            getattr(self, self.request.verb)()
            if self.defined() != before:
                self.log.remember([cli.state.prog, *cli.state.argv])
            if follow:
                self.follow(pause)
        if stat or self.request.verb == "list":
            wanted = [v for v in self.existing() if self.request.selects(v)]
            show(self.log, wanted, tsv, ndjson)
            if self.request.verb == "list" and not wanted:
                self.status = cli.NOTHING
        return self.status

    def defined(self) -> list[str]:
        from confluo_tools.multilog import views

        return [view.id for view in views.views(self.log)]

    def existing(self) -> Sequence[View]:
        from confluo_tools.multilog import views

        return views.views(self.log, lambda path, what: cli.warn(what, where=path))

    def views(self) -> list[View]:
        """The views that the request names; without names all views of its kind, if it has one."""
        existing = self.existing()
        for name in self.request.names:
            if not any(self.request.selects(v) and v.label == name for v in existing):
                if self.request.kind == "index":
                    hint = f"confluo-index LOG add {name} creates it"
                    raise UsageError(f"no index of '{name}'", where=self.log.path, hint=hint)
                from difflib import get_close_matches

                near = get_close_matches(name, [v.label for v in existing if v.kind == self.request.kind], n=1)
                hint = f"did you mean '{near[0]}'?" if near else "confluo-index LOG lists them"
                raise UsageError(f"no {self.request.kind} '{name}'", where=self.log.path, hint=hint)
        return [view for view in existing if self.request.selects(view)]

    # -- verbs

    def add(self) -> None:
        for view in self.request.add(self.log):
            self.update_view(view)

    def drop(self) -> None:
        from confluo_tools.multilog import views

        kind = self.request.kind or "index"
        for name in self.request.names:
            if not views.drop_view(self.log, name, kind) and not cli.state.quiet:
                what = f"index of '{name}'" if kind == "index" else f"{kind} '{name}'"
                cli.note(f"no {what}", where=self.log.path)

    def list(self) -> None:
        """`run` prints the list."""

    def update(self) -> None:
        for view in self.views():
            self.update_view(view)

    def rebuild(self) -> None:
        for view in self.views():
            self.update_view(view, rebuild=True)

    def update_view(self, view: View, rebuild: bool = False) -> None:
        """Add complete blocks that a view does not cover yet."""
        from confluo_tools.multilog import views

        version = self.log.version()
        before = views.coverage(self.log, view, version).covered if self.stats and not rebuild else 0
        begin = time.perf_counter()
        what = f"index of {view.label}" if view.kind == "index" else view.spec
        with cli.Progress(what, version.rows, "rows") as progress, views.maintaining(view, self.patience):
            blocks = views.update(self.log, view, rebuild=rebuild, progress=progress.update)
        self.added += blocks
        if self.stats:
            seconds = time.perf_counter() - begin
            covered, rows, size = views.coverage(self.log, view, self.log.version())
            cli.note(
                f"{what}: {blocks:,} blocks, {covered - before:,} rows in {seconds:.2f} s "
                f"({cli.humane((covered - before) / seconds)} rows/s); "
                f"covers {covered:,} of {rows:,} rows, {cli.humane(size)}B"
            )

    def check(self) -> None:
        """Check every file of the views."""
        from confluo_tools.multilog import views

        for view in self.views():
            for path, reason in views.check(self.log, view):
                cli.warn(reason, where=path, hint=f"confluo-index LOG rebuild {view.spec} repairs it")

    def follow(self, pause: float) -> None:
        from confluo_tools.multilog import views

        labels = None if self.request.kind is None else self.request.names or [v.label for v in self.views()]
        maintainer = views.Maintainer(self.log, labels, lambda path, what: cli.warn(what, where=path))
        while True:
            added = maintainer.step()
            self.added += added
            if not added:
                time.sleep(pause)

    @contextmanager
    def summary(self) -> Iterator[None]:
        """Report what was done when a signal ends --follow, also during the first update."""
        begin = time.monotonic()
        try:
            yield
        except BaseException as e:
            if not isinstance(e, Exception) and not cli.state.quiet:
                done = "blocks indexed" if self.request.kind == "index" else "blocks added to views"
                cli.note(f"{self.added:,} {done} in {time.monotonic() - begin:.0f} s", where=self.log.path)
            raise


def show(log: Log, found: Sequence[View], tsv: bool, ndjson: bool) -> None:
    """Print views: as a table on a terminal, otherwise as TSV or NDJSON."""
    from confluo_tools import units
    from confluo_tools.multilog import views

    version = log.version()
    rows: list[dict[str, Any]] = []
    for view in found:
        covered, total, size = views.coverage(log, view, version)
        rows.append(
            {
                "kind": view.kind,
                "name": view.label,
                "bucket": getattr(view, "bucket", 0),
                "covered": covered,
                "rows": total,
                "bytes": size,
                "definition": view.definition,
            }
        )
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
            cells.append(
                (
                    row["kind"],
                    row["name"],
                    bucket if row["bucket"] else "-",
                    f"{row['covered']:,}",
                    f"{row['rows']:,}",
                    f"{row['bytes']:,}",
                    each,
                    " ".join(row["definition"].split()),
                )
            )
        widths = [max(len(line[i]) for line in cells) for i in range(len(cells[0]))]
        for line in cells:
            first = [c.ljust(w) for c, w in zip(line[:2], widths[:2], strict=True)]
            rest = [c.rjust(w) for c, w in zip(line[2:-1], widths[2:-1], strict=True)]
            print("  ".join([*first, *rest, line[-1]]).rstrip())


COLUMNS = ("kind", "name", "bucket", "covered", "rows", "bytes", "definition")


def main(argv: list[str] | None = None) -> int:
    return cli.run(app, "confluo-index", argv)
