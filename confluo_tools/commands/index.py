"""confluo-index: keep indexes, filters, aggregates and states of a MultiLog.  Manual: confluo-index(1)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from confluo_tools import cli
from confluo_tools.cli.options import option
from confluo_tools.errors import ConfluoError, UsageError
from confluo_tools.inputs.logs import remote
from confluo_tools.inputs.topics import is_topic

if TYPE_CHECKING:
    from confluo_tools.multilog.views.view_request import ViewRequest
    from confluo_tools.multilog.views.view_work import ViewUpdate, ViewWork
    from confluo_tools.remote.view_client import RemoteViews
    from confluo_tools.schema import Schema

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

# the same index on three hosts
confluo-index gw1:/var/log/live.ml gw2:/var/log/live.ml gw3:/var/log/live.ml add src_ip
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
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="LOG... [add|drop|list|update|rebuild|check [VIEW]...]",
            help="MultiLogs, also of other hosts: HOST:PATH. Verb (list), and views (all; add and drop need them): "
            "FIELD[:BUCKET]..., filter NAME EXPR, aggregate NAME AGG, or state NAME.",
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
    *,
    out: cli.OutputOptions,
    common: cli.CommonOptions,
) -> int:
    """Add, drop, list, update, rebuild or check the indexes, filters, aggregates and states of each LOG.

    They make queries faster and never change a result: a query uses a view as far as it reaches and scans the rest.
    """
    if out.fields == "help":
        out.listed(listed_schema(True))
        return cli.OK
    if not words:
        return cli.usage(app)
    from confluo_tools.multilog.views.view_request import ViewRequest

    logs, rest = split_words(words)
    topic = next((log for log in logs if is_topic(log)), None)
    if topic is not None:
        hint = "write it to a MultiLog: confluo-convert TOPIC --follow -w LOG --index LIST"
        raise UsageError("is a topic, which has no views", where=topic, hint=hint)
    away = next((log for log in logs if remote(log) is not None), None)
    for option_name, given in (("--follow", follow), ("--define", define is not None)):
        if given and away is not None:
            raise UsageError(f"{option_name} is for logs of this host", where=away, hint="run it on that host")
    request = ViewRequest(rest, follow)
    request.options(filter, where, by, bucket, define)
    pause = cli.duration("--interval", interval, 0) / 1e9 if interval is not None else 0.2
    patience = cli.duration("--wait", wait, 0) / 1e9 if wait is not None else 5.0
    views = {"filter": filter, "where": where, "by": by, "bucket": bucket}
    listing = stat or request.verb == "list"
    if not listing:
        out.only_for("list and --stat")
        listed = None
    else:
        schema = listed_schema(len(logs) > 1)
        listed = schema, out.kind(answers=True), out.names(schema)
    run = IndexRun(logs, request, patience, common.stats)
    run.work(rest, views, listing)
    if follow:
        run.follow(pause)
    if listed is not None and (run.listed or listed[1] != "table"):
        out.write_rows(*listed, run.listed)
    return cli.NOTHING if request.verb == "list" and not run.listed else cli.OK


def listed_schema(several: bool) -> Schema:
    """The schema of the list: of ``several`` logs with the log."""
    from confluo_tools.multilog.views.listing import LISTED, view_schema

    schema = view_schema()
    return schema if several else schema.project(LISTED)


def split_words(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """The logs, and the verb with what follows it."""
    import os

    from confluo_tools.multilog.views.view_request import VERBS

    n = 1
    while n < len(words) and words[n] not in VERBS and (remote(words[n]) is not None or os.path.isdir(words[n])):
        n += 1
    return list(words[:n]), list(words[n:])


class IndexReports:
    """Reports of the work on logs of this host."""

    def __init__(self, stats: bool) -> None:
        self.stats = stats

    def warn(self, what: str, where: str, hint: str = "") -> None:
        cli.warn(what, where=where, hint=hint)

    def note(self, what: str, where: str = "") -> None:
        if not cli.state.quiet:
            cli.note(what, where=where)

    @contextmanager
    def progress(self, what: str, rows: int) -> Iterator[Callable[[int], Any]]:
        with cli.Progress(what, rows, "rows") as progress:
            yield progress.update

    def updated(self, done: ViewUpdate) -> None:
        tell_update(done, "")


def tell_update(done: ViewUpdate, where: str) -> None:
    """--stats, of one view."""
    seconds = max(done.seconds, 1e-9)
    cli.note(
        f"{done.what}: {done.blocks:,} blocks, {done.new:,} rows in {done.seconds:.2f} s "
        f"({cli.humane(done.new / seconds)} rows/s); "
        f"covers {done.covered:,} of {done.rows:,} rows, {cli.humane(done.size)}B",
        where=where,
    )


class IndexRun:
    """One run of the command.  A log that fails is reported, and does not stop the work on the others."""

    def __init__(self, logs: Sequence[str], request: ViewRequest, patience: float, stats: bool) -> None:
        self.logs, self.request, self.patience, self.stats = logs, request, patience, stats
        self._here: list[ViewWork] = []
        self._begin = time.monotonic()
        self.listed: list[dict[str, Any]] = []

    def work(self, words: Sequence[str], options: dict[str, str | None], listing: bool) -> None:
        """Do the verb in each log; all other hosts work at once."""
        with ExitStack() as peers, self.summary():
            asked = {log: self._sent(log, words, options, listing, peers) for log in self.logs if remote(log)}
            for log in self.logs:
                try:
                    found = self._answer(asked[log]) if log in asked else self._local(log, listing)
                except ConfluoError as e:
                    if len(self.logs) == 1:
                        raise
                    known = e.where in ("", log) or e.where == getattr(remote(log), "label", log)
                    cli.warn(e.what, where=log if known else f"{log}: {e.where}", hint=e.hint)
                    continue
                self.listed += [{"log": log, **row} for row in found]

    def _local(self, log: str, listing: bool) -> list[dict[str, Any]]:
        from confluo_tools.multilog.views.view_work import ViewWork

        work = ViewWork(log, self.request, self.patience, IndexReports(self.stats))
        self._here.append(work)
        work.run([cli.state.prog, *cli.state.argv])
        return work.listing() if listing else []

    def _sent(
        self, log: str, words: Sequence[str], options: dict[str, str | None], listing: bool, peers: ExitStack
    ) -> RemoteViews | ConfluoError:
        from confluo_tools.expr.list_file import inlined
        from confluo_tools.inputs.logs import shell
        from confluo_tools.remote.view_client import RemoteViews

        address = remote(log)
        assert address is not None
        expr = self.request.kind == "filter" and self.request.verb == "add"
        message: dict[str, Any] = {
            "words": [inlined(w) if expr and i > 2 else w for i, w in enumerate(words)],
            **{key: value if key != "where" else inlined(value) for key, value in options.items() if value is not None},
            "patience": int(self.patience * 1000),
            "stats": self.stats,
            "list": listing,
            "argv": [cli.state.prog, *cli.state.argv],
        }
        try:
            views = RemoteViews(address, shell(), message)
        except ConfluoError as e:
            return e
        peers.callback(views.close)
        return views

    def _answer(self, views: RemoteViews | ConfluoError) -> list[dict[str, Any]]:
        if isinstance(views, ConfluoError):
            raise views
        found, updates = views.answer(cli.warn, cli.tell)
        for update in updates:
            tell_update(update, views.name)
        return found

    def follow(self, pause: float) -> None:
        """Keep the views of logs of this host up to date."""
        from confluo_tools.multilog import views

        def warn(path: str, what: str) -> None:
            cli.warn(what, where=path)

        with self.summary():
            maintainers = []
            for work in self._here:
                names = self.request.names or [v.label for v in work.views()]
                maintainers.append((work, views.Maintainer(work.log, names if self.request.kind else None, warn)))
            while maintainers:
                added = 0
                for work, maintainer in maintainers:
                    done = maintainer.step()
                    work.added += done
                    added += done
                if not added:
                    time.sleep(pause)

    @contextmanager
    def summary(self) -> Iterator[None]:
        """Report what was done when a signal ends the command, also during the first update."""
        try:
            yield
        except BaseException as e:
            if not isinstance(e, Exception) and not cli.state.quiet:
                done = "blocks indexed" if self.request.kind == "index" else "blocks added to views"
                added, seconds = sum(work.added for work in self._here), time.monotonic() - self._begin
                cli.note(f"{added:,} {done} in {seconds:.0f} s", where=", ".join(self.logs))
            raise


def main(argv: list[str] | None = None) -> int:
    return cli.run(app, "confluo-index", argv)
