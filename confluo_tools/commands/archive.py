"""confluo-archive: move the older rows of MultiLogs to Parquet, or remove them.  Manual: confluo-archive(1)."""

from __future__ import annotations

import socket
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from confluo_tools import cli
from confluo_tools.cli.options import option
from confluo_tools.errors import BusyError, DiskFullError, StoreError, UsageError
from confluo_tools.inputs.logs import remote
from confluo_tools.inputs.topics import is_topic

if TYPE_CHECKING:
    from confluo_tools.multilog.archive.plan import Row
    from confluo_tools.multilog.archive.segment_source import SegmentSource
    from confluo_tools.multilog.archive.writer import ArchiveWriter, BatchResult
    from confluo_tools.multilog.retain import SealedSegment
    from confluo_tools.remote.address import Address
    from confluo_tools.schema import Schema

PAUSES = (0.5, 1.0, 2.0, 4.0)  # s before a lost host is tried again

app = cli.command_app(
    """
# rows older than an hour, to Parquet by host, date and hour; queries of live.ml read both as one
confluo-archive live.ml --older-than 1h --to archive/

# show what that would do
confluo-archive live.ml --older-than 1h --to archive/ --dry-run

# to an object store; AWS_ENDPOINT_URL and AWS_PROFILE, or the keys, name the server and who asks
confluo-archive live.ml --older-than 1d --to s3://bucket/archive/

# the logs of two hosts into one archive on this host, over ssh
confluo-archive gw1:/var/log/live.ml gw2:/var/log/live.ml --older-than 1h --to archive/

# several logs into one archive, as of another host; the logs keep their rows
confluo-archive a.ml b.ml --to archive/ --host gw1 --keep-log

# the archive keeps 90 days, and at most 500 GB
confluo-archive --keep 90d,500G archive/

# merge the small files of an archive, once an hour or a day
confluo-archive --compact archive/

# no archive: compress the segments of a log in place, those of the last hour excepted
confluo-archive --compress live.ml --older-than 1h

# no archive: keep an hour and at most 10 GB, delete the rest
confluo-archive live.ml --keep 1h,10G --delete
"""
)


@app.command(
    panels={
        "Options": "--to --older-than --keep --compact --compress --dry-run",
        "Output": "--host --keep-log --part-size --codec --delete",
    }
)
def archive(
    logs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="LOG...",
            help="MultiLogs, --to: also of other hosts (HOST:PATH); --keep: or archives.",
            show_default=False,
        ),
    ] = None,
    older_than: Annotated[
        str | None, option("--older-than", metavar="TIME", help="Archive only rows older than TIME: 1h, 7d (all).")
    ] = None,
    to: Annotated[
        str | None, option("--to", metavar="DIR", help="Archive: a folder, which is created, or s3://BUCKET/NAME/.")
    ] = None,
    host: Annotated[
        str | None, option("--host", metavar="NAME", help="Host that captured the rows (that of the log).")
    ] = None,
    keep_log: Annotated[bool, option("--keep-log", help="Archive; do not remove the rows from the logs.")] = False,
    keep: Annotated[
        str | None, option("--keep", metavar="TIME,SIZE", help="Keep this much of the archive: 90d,500G or either.")
    ] = None,
    delete: Annotated[bool, option("--delete", help="With --keep: delete the oldest rows of logs.")] = False,
    dry_run: Annotated[bool, option("--dry-run", help="Print what would be done; do not do it.")] = False,
    compact: Annotated[bool, option("--compact", help="Merge the small files of archives.")] = False,
    part_size: Annotated[
        str | None, option("--part-size", metavar="SIZE", help="--compact: make files of up to this size (64M).")
    ] = None,
    compress: Annotated[bool, option("--compress", help="Compress sealed segments of logs in place.")] = False,
    codec: Annotated[
        str | None, option("--codec", metavar="NAME", help="--compress: lz4 is faster, zstd is smaller (zstd).")
    ] = None,
    *,
    out: cli.OutputOptions,
    common: cli.CommonOptions,
) -> int:
    """Move the older rows of each LOG to an archive of Parquet files: write, read back, compare, then remove.

    Rows are moved in whole sealed segments, oldest first.  The next run completes one that was killed.
    """
    plan = None
    if dry_run or out.fields == "help":
        fields = planned_fields(to, compact=compact, compress=compress, delete=delete, keep=keep is not None)
        if out.listed(fields):
            return cli.OK
        plan = Plan(out, fields)
    if not logs:
        return cli.usage(app)
    from confluo_tools.formats.detect import is_archive
    from confluo_tools.multilog.retain import parse_keep

    if plan is None:
        out.only_for("--dry-run")
    check_places(logs, to, to is not None and not compact)
    if part_size is not None and not compact:
        raise UsageError("is for --compact", where="--part-size", hint="leave it out")
    if codec is not None and not compress:
        raise UsageError("is for --compress", where="--codec", hint="leave it out")
    if compress:
        given = {"--to": to, "--keep-log": keep_log, "--delete": delete, "--keep": keep, "--compact": compact}
        for name, value in given.items():
            if value:
                raise UsageError(f"--compress excludes {name}", hint="use a run of its own")
        return written(plan, pack(logs, codec, older_than, plan, common.stats))
    if compact:
        given = {"--to": to, "--older-than": older_than, "--keep-log": keep_log, "--delete": delete, "--keep": keep}
        for name, value in given.items():
            if value:
                raise UsageError(f"--compact excludes {name}", hint="use a run of its own")
        return written(plan, merge(logs, part_size, plan, common.stats))
    if delete and (to is not None or older_than is not None or keep_log):
        hint = "archive first, then delete in a run of its own"
        raise UsageError("--delete excludes --to, --older-than and --keep-log", hint=hint)
    if keep is not None and to is None and not delete and all(map(is_archive, logs)):
        if older_than is not None or keep_log:
            raise UsageError("is for logs", where="--keep-log" if keep_log else "--older-than", hint="leave it out")
        gone = sum([shorten(path, keep, plan, common.stats) for path in logs])
        return written(plan, cli.OK if gone else cli.NOTHING)
    if delete or (keep is not None and to is None):
        if keep is None or not delete:
            hint = "--to DIR archives them; --keep alone is for archives"
            raise UsageError("rows of logs are deleted with --keep TIME,SIZE and --delete", hint=hint)
        return written(plan, forget(logs, keep, plan, common.stats))
    if to is None:
        raise UsageError("--to is missing", hint="--to DIR archives, --keep TIME,SIZE --delete deletes")
    age = cli.duration("--older-than", older_than, 0) if older_than is not None else None
    named = None if host is None else check_host(host)
    before = None if age is None else time.time_ns() - age
    if keep is not None:
        parse_keep(keep)  # an error comes before anything is written
    status = ArchiveRun(to, named, before, keep_log, plan, common.stats).run(logs)
    if keep is not None and is_archive(to) and shorten(to, str(keep), plan, common.stats):
        status = cli.OK
    return written(plan, status)


def planned_fields(to: str | None, *, compact: bool, compress: bool, delete: bool, keep: bool) -> Schema:
    """The fields of a dry run with these options."""
    from confluo_tools.multilog.archive import plan

    if compress or delete:
        return plan.plan_schema(plan.SEGMENTS)
    if compact:
        return plan.plan_schema(plan.MERGES)
    if to is None and keep:
        return plan.plan_schema(plan.PARTS)
    return plan.plan_schema(plan.BATCHES, plan.PARTS if keep else ())


class Plan:
    """What a dry run found: records of ``schema``."""

    def __init__(self, out: cli.OutputOptions, schema: Schema) -> None:
        self._out, self._schema = out, schema
        self._kind = out.kind(answers=True)
        self._names = out.names(schema)
        self.rows: list[Row] = []

    def write(self) -> None:
        self._out.write_rows(self._schema, self._kind, self._names, self.rows)


def written(plan: Plan | None, status: int) -> int:
    """The exit status, after the plan of a dry run is written."""
    if plan is not None:
        plan.write()
    return status


def check_places(logs: Sequence[str], to: str | None, archives: bool) -> None:
    """Raises UsageError: an archive elsewhere, or a log of another host that is not archived (``archives``)."""
    if to is not None and (is_topic(to) or remote(to) is not None):
        hint = "run the command on that host, or use a store"
        raise UsageError("an archive is a folder of this host, or a URL", where=to, hint=hint)
    away = next((path for path in logs if remote(path) is not None), None)
    if away is not None and not archives:
        raise UsageError("logs of other hosts are only archived", where=away, hint="add --to, or run it on that host")


def check_host(name: str) -> str:
    """The name, if it can name a partition.  Raises UsageError."""
    if not name or len(name.encode("utf-8", "surrogateescape")) > 64 or not name.isprintable():
        raise UsageError("is not a host name", where="--host", hint="1 to 64 printable characters")
    return name


class LogTry(NamedTuple):
    """A log to archive, not before ``due`` (monotonic s); how often its host was lost without a batch in between."""

    path: str
    due: float = 0.0
    failed: int = 0


def place(path: str, where: str) -> str:
    """Where an error is, so that it names the log and its host."""
    address = remote(path)
    return path if where in ("", path) or address is None or where == address.label else where


class ArchiveRun:
    """One run of the command: archive logs in the folder ``to``."""

    def __init__(
        self, to: str, host: str | None, before: int | None, keep_log: bool, plan: Plan | None, stats: bool
    ) -> None:
        self.to, self.host, self.before = to, host, before
        self.keep_log, self.plan, self.stats = keep_log, plan, stats
        self.done: list[tuple[str, BatchResult]] = []

    @property
    def dry_run(self) -> bool:
        return self.plan is not None

    def run(self, logs: list[str]) -> int:
        from confluo_tools.multilog.archive.plan import batches
        from confluo_tools.remote.connect import HostLostError, RemoteError

        begin = time.perf_counter()
        left = [LogTry(path) for path in logs]
        while left:
            one = min(left, key=lambda each: each.due)  # the first of those that have not failed
            left.remove(one)
            time.sleep(max(one.due - time.monotonic(), 0))
            done = len(self.done)
            try:
                self.one(one.path)
            except DiskFullError:
                raise  # the next log would not fit either
            except (BusyError, StoreError, RemoteError) as e:
                lost = isinstance(e, HostLostError) or (one.failed > 0 and isinstance(e, BusyError | RemoteError))
                failed = 0 if len(self.done) > done else one.failed
                if lost and failed < len(PAUSES):
                    left.append(LogTry(one.path, time.monotonic() + PAUSES[failed], failed + 1))
                    if not one.failed:
                        cli.tell(f"{e}; it is tried again")
                    continue
                if len(logs) == 1:
                    raise
                cli.warn(e.what, where=place(one.path, e.where), hint=e.hint)
        if self.plan is not None:
            self.plan.rows += batches(self.done)
        elif self.stats:
            self.tell(time.perf_counter() - begin)
        return cli.OK if self.done else cli.NOTHING

    def one(self, path: str) -> None:
        from confluo_tools.multilog.archive.writer import SegmentRemovedError

        address = remote(path)
        for _ in range(100):
            try:
                if address is None:
                    self.local(path)
                else:
                    self.away(path, address)
                break
            except SegmentRemovedError:  # `capture --keep` removed them first: plan again
                continue

    def local(self, path: str) -> None:
        from confluo_tools import multilog
        from confluo_tools.multilog.archive.segment_source import LogSegments

        with multilog.open(path, readonly=self.dry_run or self.keep_log) as log:
            self.check_writable(path, log.control.writable)
            if log.control.writable:
                log.seal_orphans()  # rows of a dead writer can be archived, too
            self.move(path, LogSegments(log), socket.gethostname())

    def away(self, path: str, address: Address) -> None:
        from confluo_tools.inputs.logs import shell
        from confluo_tools.remote.archive_client import RemoteSegments

        change = not (self.dry_run or self.keep_log)
        with RemoteSegments(address, shell(), lock=not self.dry_run, change=change) as source:
            self.check_writable(path, source.writable)
            self.move(path, source, address.label)

    def check_writable(self, path: str, writable: bool) -> None:
        if not writable and not (self.dry_run or self.keep_log):
            hint = "--keep-log archives without removing"
            raise StoreError("nothing can be removed", where=path, hint=f"you may only read it; {hint}")

    def move(self, path: str, source: SegmentSource, host: str) -> None:
        from confluo_tools.multilog.archive.writer import ArchiveWriter

        name = check_host(host if self.host is None else self.host)
        with ArchiveWriter(source, self.to, name, dry_run=self.dry_run) as archive:
            if not self.dry_run:
                self.batches(path, archive)
                return
            for batch, record in archive.plan(self.before):
                if record is None or not self.keep_log:
                    self.done.append((path, archive.outline(batch, record, not self.keep_log)))

    def batches(self, path: str, archive: ArchiveWriter) -> None:
        from confluo_tools.multilog.archive.writer import DamagedSegmentError

        plan = [(b, r) for b, r in archive.plan(self.before) if r is None or not self.keep_log]
        broken: set[int] = set()
        with cli.Progress(f"archiving {path}", sum(b[-1].end - b[0].base for b, _ in plan), "rows") as progress:
            rows = 0
            for batch, record in plan:
                lane = batch[0].lane
                if lane in broken:
                    continue
                try:
                    self.add(path, archive.run(batch, record, remove=not self.keep_log, argv=cli.command_line()))
                except DamagedSegmentError as e:
                    broken.add(lane)
                    if e.at:
                        self.add(path, self.first(archive, batch[: e.at]))
                    cli.warn(e.what, where=e.where, hint=e.hint)
                rows += batch[-1].end - batch[0].base
                progress.update(rows)

    def first(self, archive: ArchiveWriter, batch: list[SealedSegment]) -> BatchResult:
        return archive.run(batch, None, remove=not self.keep_log, argv=cli.command_line())

    def add(self, path: str, done: BatchResult) -> None:
        self.done.append((path, done))
        if cli.state.verbose:
            cli.note(f"{path}: lane {done.lane}: rows {done.first:,} to {done.end - 1:,} in {done.files} files")

    def tell(self, seconds: float) -> None:
        batches = [d for _, d in self.done]
        rows = sum(d.end - d.first for d in batches)
        size = sum(d.bytes for d in batches)
        files = sum(d.files for d in batches)
        removed = sum(d.log_bytes for d in batches if d.removed)
        each = f", {size / rows:.1f} B a row" if rows else ""
        cli.note(
            f"{rows:,} rows archived in {files:,} files, {cli.humane(size)}B{each}, {seconds:.2f} s "
            f"({cli.humane(rows / seconds)} rows/s); {cli.humane(removed)}B removed from logs"
        )


def forget(logs: list[str], keep: str, plan: Plan | None, stats: bool) -> int:
    """--keep and --delete."""
    from confluo_tools import multilog
    from confluo_tools.multilog.archive.plan import segments
    from confluo_tools.multilog.retain import Keeper, parse_keep

    limits = parse_keep(keep)
    total = 0
    for path in logs:
        with multilog.open(path) as log:
            keeper = Keeper(log, *limits)
            if plan is not None:
                planned = segments(keeper.planned_removals())
                plan.rows += planned
                total += len(planned)
                continue
            log.seal_orphans()
            removed = keeper.step(wait=1.0)
            total += removed
            if stats:
                cli.note(f"{removed:,} segments removed, {cli.humane(keeper.bytes)}B", where=path)
    return cli.OK if total else cli.NOTHING


def pack(logs: list[str], codec: str | None, older_than: str | None, plan: Plan | None, stats: bool) -> int:
    """--compress."""
    from confluo_tools import multilog
    from confluo_tools.multilog.archive.plan import segments
    from confluo_tools.multilog.compress import CODEC, CODECS, Compressor, UnsoundSegmentError

    if codec is not None and codec not in CODECS:
        raise UsageError(f"unknown codec '{codec}'", where="--codec", hint=f"use {' or '.join(CODECS)}")
    before = None if older_than is None else time.time_ns() - cli.duration("--older-than", older_than, 0)
    total = 0
    for path in logs:
        with multilog.open(path, readonly=plan is not None) as log:
            if plan is None and log.control.writable:
                log.seal_orphans()
            compressor = Compressor(log, codec or CODEC, again=codec is not None, before=before)
            planned = compressor.planned()
            if plan is not None:
                plan.rows += segments(planned)
                total += len(planned)
                continue
            begin, done = time.perf_counter(), []
            with cli.Progress(f"compressing {path}", sum(s.end - s.base for s in planned), "rows") as progress:
                rows = 0
                for segment in planned:
                    try:
                        found = compressor.run(segment)
                    except UnsoundSegmentError as e:
                        cli.warn(e.what, where=e.where, hint=e.hint)
                    else:
                        done += [] if found is None else [found]
                    rows += segment.end - segment.base
                    progress.update(rows)
            if done:
                log.remember([cli.state.prog, *cli.state.argv])
            total += len(done)
            if stats:
                was, now = sum(d.before for d in done), sum(d.after for d in done)
                what = f"{len(done):,} segments compressed, {cli.humane(was)}B to {cli.humane(now)}B"
                cli.note(f"{what}, {time.perf_counter() - begin:.2f} s", where=path)
    return cli.OK if total else cli.NOTHING


def shorten(path: str, keep: str, plan: Plan | None, stats: bool) -> int:
    """--keep of an archive: remove its oldest parts, or plan it; returns their number."""
    from confluo_tools.multilog.archive.plan import parts
    from confluo_tools.multilog.archive.retention import ArchiveKeeper
    from confluo_tools.multilog.retain import parse_keep

    keeper = ArchiveKeeper(path, *parse_keep(keep))
    gone = keeper.run() if plan is None else keeper.planned_removals()
    if plan is not None:
        plan.rows += parts(gone)
    elif stats:
        cli.note(f"{len(gone):,} parts removed, {cli.humane(sum(part.bytes for part in gone))}B", where=path)
    return len(gone)


def merge(archives: list[str], part_size: str | None, plan: Plan | None, stats: bool) -> int:
    """--compact."""
    from confluo_tools import units
    from confluo_tools.formats.detect import is_archive
    from confluo_tools.multilog.archive.compaction import PART_SIZE, Compactor
    from confluo_tools.multilog.archive.folders import ArchiveFolder
    from confluo_tools.multilog.archive.plan import merges

    size = PART_SIZE if part_size is None else units.size(part_size)
    merged = 0
    for path in archives:
        if not is_archive(path):
            raise UsageError("is not an archive", where=path, hint="--compact merges the files of archives")
        if ArchiveFolder.of(path).names:
            raise UsageError("is a part of an archive", where=path, hint="name the folder above host=NAME")

        def warn(where: str, what: str) -> None:
            cli.warn(what, where=where)

        compactor = Compactor(path, size, warn=warn, argv=cli.command_line())
        begin = time.perf_counter()
        done = list(compactor.run()) if plan is None else compactor.planned()
        merged += len(done)
        if plan is not None:
            plan.rows += merges(path, done)
        elif stats:
            parts, into = sum(one.parts for one in done), sum(one.into for one in done)
            rows, written, seconds = sum(d.rows for d in done), sum(d.bytes for d in done), time.perf_counter() - begin
            what = f"{rows:,} rows in {parts:,} files merged into {into:,}, {cli.humane(written)}B, {seconds:.2f} s"
            cli.note(what, where=path)
    return cli.OK if merged else cli.NOTHING


def main(argv: list[str] | None = None) -> int:
    return cli.run(app, "confluo-archive", argv)
