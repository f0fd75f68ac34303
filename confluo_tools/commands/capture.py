"""confluo-capture: packets of captures into a MultiLog, or on as records.  Manual: confluo-capture(1)."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from confluo_tools import cli, config
from confluo_tools.errors import ConfluoError, UsageError

if TYPE_CHECKING:
    from confluo_tools.core.block import Block, Picks
    from confluo_tools.schema import Field, Schema
    from confluo_tools.sources import Captures
    from confluo_tools.store import Log

SAME_SIGNAL = 1.0  # s: timeout(1) and terminals send one to the process and again to its group

app = cli.command_app(
    """
# a capture becomes a MultiLog that is indexed by four fields
confluo-capture -r trace.pcap.gz -w trace.ml --index src_ip,dst_ip,src_port,dst_port

# only web traffic, to the next command
zcat trace.pcap.gz | confluo-capture -r - 'tcp and port 443' -o stream | confluo-query - 'tcp_flags has syn' --count

# what tcpdump is writing just now
confluo-capture -r live.pcap --follow -w live.ml

# one flow in a hundred, with the first 96 bytes of each packet
confluo-capture -r trace.pcap -w small.ml --sample 1/100 -s 96
"""
)


def _option(*names: str, help: str, **more: Any) -> Any:
    return typer.Option(*names, help=help, show_default=False, **more)


@app.command()
def capture(
    expr: cli.Expr = None,
    read: Annotated[
        list[str] | None,
        _option("-r", "--read", metavar="FILE", help="Capture to read (repeatable); - or none: stdin."),
    ] = None,
    output: Annotated[
        str | None, _option("-w", "--output", metavar="LOG", help="MultiLog to write (with -o FORMAT: a file).")
    ] = None,
    append: Annotated[bool, _option("--append", help="LOG may exist; the packets are added to it.")] = False,
    index: Annotated[
        str | None, _option("--index", metavar="LIST", help="Index LOG by these fields while it is written.")
    ] = None,
    decap: Annotated[
        str, _option("--decap", metavar="WHICH", help="IP and transport fields of the outer or inner packet.")
    ] = "outer",
    sample: Annotated[
        str | None, _option("--sample", metavar="1/N", help="Keep every Nth flow, the same ones each time.")
    ] = None,
    sample_packets: Annotated[
        str | None, _option("--sample-packets", metavar="1/N", help="Keep every Nth packet.")
    ] = None,
    limit: cli.Limit = None,
    snap: Annotated[
        int, _option("-s", "--snap", metavar="N", min=0, max=65535, help="Keep the first N bytes of each packet.")
    ] = 0,
    offset: Annotated[
        bool | None,
        _option("--offset/--no-offset", help="Keep where each packet stands in its file (default: of files)."),
    ] = None,
    schema: Annotated[
        str | None, _option("--schema", metavar="FILE", help="Other fields than those of 'packet': a schema.")
    ] = None,
    fields: cli.Fields = None,
    follow: Annotated[bool, _option("--follow", help="Wait for the last file to grow.")] = False,
    lanes: Annotated[
        int, _option("--lanes", metavar="N", min=1, max=65535, help="How many may write to a new LOG at once.")
    ] = 256,
    sync: Annotated[
        str | None, _option("--sync", metavar="WHEN", help="When rows reach the disk: none, seal or batch.")
    ] = None,
    format: cli.Format = None,
    tsv: cli.Tsv = False,
    ndjson: cli.Ndjson = False,
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
    """Read packets and write them as records."""
    if file is not None:
        config.use_file(file)
    inputs = read or []
    if cli.no_input(inputs):
        return cli.usage(app)
    from confluo_tools.sources import open_captures

    to_log = is_log_output(output, format, tsv=tsv, ndjson=ndjson)
    if not to_log and (index is not None or append):
        raise UsageError("only a MultiLog is appended to or indexed", hint="write one with -w LOG")
    of_files = bool(inputs) and "-" not in inputs
    wanted = fields_wanted(schema, offset=of_files if offset is None else offset, snap=snap)
    if fields == "help":
        print(cli.list_fields(wanted))
        return cli.OK
    names = cli.choose_fields(fields, wanted)
    out: LogOutput | cli.RecordOutput
    if to_log:
        asked = [name for name, on in (("raw", snap), ("file_offset", offset)) if on]
        out = LogOutput(str(output), wanted.project(names) if names else wanted, append=append, asked=asked,
                        index=index, sync=sync_when(sync, again=of_files and not follow), lanes=lanes)  # fmt: skip
        wanted = with_fields(wanted, out, without="file_offset" if offset is False else "")
    chosen = Chosen(" ".join(expr or []), wanted, sample, sample_packets, limit)
    with open_captures(inputs, wanted, decap=decap, follow=follow) as captures, chosen.signals(captures):
        captures.begin()
        if not to_log:
            out = cli.output(
                wanted, cli.choose_format(format, tsv=tsv, ndjson=ndjson, path=output), path=output, force=force,
                fields=names, header=not no_header, numeric=numeric, wide=wide, local=local,
                line_buffered=line_buffered, color=color, sources=inputs if of_files and not snap else (),
            )  # fmt: skip
        try:
            with cli.Progress("reading", captures.total_bytes, "B") as progress, out:
                for block, picks in chosen.rows(captures):
                    out.write(block, picks)
                    progress.update(captures.bytes_read)
                    if chosen.flush_due(captures.live):
                        out.flush()
        finally:
            for line in captures.warnings:
                (cli.warn if captures.damaged else cli.note)(line)
            if stats or chosen.stopped:
                cli.note(chosen.counts(captures))
    return 128 + chosen.stopped if chosen.stopped else cli.OK


def is_log_output(output: str | None, format: str | None, *, tsv: bool, ndjson: bool) -> bool:
    """Whether -w names a MultiLog: anything but -, unless -o or the suffix says that it is a file."""
    if format == "multilog":
        if output in (None, "-"):
            raise UsageError("a MultiLog is a folder", where="-o multilog", hint="name it with -w LOG")
        return True
    if output in (None, "-") or format is not None or tsv or ndjson:
        return False
    from confluo_tools.cli.output import SUFFIXES

    return os.path.splitext(str(output))[1].lower() not in SUFFIXES


def fields_wanted(schema: str | None, *, offset: bool, snap: int) -> Schema:
    """The fields to fill: those of the packet schema, or of a schema file or a built-in schema."""
    from confluo_tools.sources import packet_schema

    if schema is None:
        return packet_schema(offset=offset, snap=snap)
    from confluo_tools.schema import builtin, builtin_names, load

    found = builtin(schema) if schema in builtin_names() and not os.path.exists(schema) else load(schema)
    of_packets(found, schema)
    if snap and "raw" not in found:
        found = found.plus([packet_schema(snap=snap)["raw"]])
    return found


def of_packets(schema: Schema, where: str) -> None:
    """Raises UsageError unless packets have fields of this schema."""
    from confluo_tools.core.packet import column_names

    if not {c.name for c in schema.columns} & {*column_names(), "raw"}:
        raise UsageError("has no field that a packet could fill", where=where, hint="confluo-capture -f help")


def with_fields(wanted: Schema, out: LogOutput, without: str) -> Schema:
    """What to parse: all that an expression may ask for, and all that the log keeps."""
    log = out.schema
    if log.kind != wanted.kind:  # it was made with --schema
        of_packets(log, out.path)
        return log
    types = {c.name: (c.code, c.size, c.count) for c in wanted.columns}
    for column in log.columns:
        if types.get(column.name, (column.code, column.size, column.count)) != (column.code, column.size, column.count):
            hint = f"-s {column.size} does" if column.name == "raw" else "use the schema of the log"
            what = f"field '{column.name}' does not fit the one that the log has ({column.field.type.text})"
            raise UsageError(what, where=out.path, hint=hint)
    return wanted.plus([f for f in log.fields if f.name not in wanted and f.name != without])


def sync_when(flag: str | None, *, again: bool) -> str:
    """What must reach the disk: as asked or configured; else nothing if the input could be read ``again``."""
    if flag is None and config.setting("sync").origin == "default":
        return "none" if again else "seal"
    return config.text("sync", flag)


class Chosen:
    """The packets to keep: those for which the expression holds, of them the samples, of them the first N.

    Counts what happens, and lets signals ask about it or end it.
    """

    def __init__(
        self, text: str, schema: Schema, sample: str | None, sample_packets: str | None, limit: int | None
    ) -> None:
        self.flows, self.every = share("--sample", sample), share("--sample-packets", sample_packets)
        self.limit, self.program = limit, None
        self.received = self.matched = self.kept = 0
        self.stopped = 0  # the signal that ended us
        self._flush = False
        self._start = time.monotonic()
        if self.flows > 1 and "flow_hash" not in schema:
            raise UsageError("the records have no field flow_hash", where="--sample", hint="use a schema that has it")
        if text:
            from confluo_tools.expr import compile

            expr = compile(text, schema)
            for note in expr.notes:
                if not cli.state.quiet:
                    cli.note(note)
            self.program = expr.program

    def rows(self, captures: Captures) -> Iterator[tuple[Block, Picks | None]]:
        """Blocks and which of their rows to keep (None: all)."""
        from confluo_tools.core.block import Picks
        from confluo_tools.core.packet import sample_flows, sample_packets

        if self.limit == 0:
            return
        seen = 0
        for block in captures:
            self.received += block.rows
            picks = self.program.select(block) if self.program is not None else None
            matched = block.rows if picks is None else len(picks)
            self.matched += matched
            if self.flows > 1 or self.every > 1:
                picks = Picks.of(block.rows) if picks is None else picks
                if self.flows > 1:
                    sample_flows(block, picks, self.flows)
                if self.every > 1:
                    seen = sample_packets(picks, seen, self.every)
            kept = block.rows if picks is None else len(picks)
            last = self.limit is not None and self.kept + kept >= self.limit
            if last and self.limit is not None:
                kept = self.limit - self.kept
                picks = Picks.of(block.rows, range(kept) if picks is None else picks.tolist()[:kept])
            self.kept += kept
            if kept:
                yield block, None if kept == block.rows else picks
            if last:
                return

    def counts(self, captures: Captures) -> str:
        """What happened so far, on one line."""
        seen, seconds = captures.counts, time.monotonic() - self._start
        parts = {
            "packets received": self.received, "kept": self.kept, "filtered": self.received - self.matched,
            "sampled out": self.matched - self.kept, "truncated": seen["truncated"],
            "malformed": seen["malformed"], "unreadable": seen["bad"], "bytes": seen["wire_bytes"],
        }  # fmt: skip
        return ", ".join([*(f"{n} {what}" for what, n in parts.items()), f"{seconds:.2f} s"])

    def flush_due(self, live: bool) -> bool:
        due, self._flush = self._flush or live, False
        return due

    @contextmanager
    def signals(self, captures: Captures) -> Iterator[None]:
        """SIGINT, SIGTERM, SIGHUP: finish (a second one: at once).  SIGUSR1: print the counts.  SIGUSR2: flush."""
        first = 0.0

        def stop(number: int, frame: FrameType | None) -> None:
            nonlocal first
            now = time.monotonic()
            if not self.stopped:
                self.stopped, first = number, now
                captures.stop()
            elif now - first > SAME_SIGNAL:
                signal.signal(number, signal.SIG_DFL)
                signal.raise_signal(number)

        def tell(number: int, frame: FrameType | None) -> None:
            line = f"{cli.state.prog}: {self.counts(captures)}\n"
            os.write(2, line.encode())  # not print: it may be the print that was interrupted

        def flush(number: int, frame: FrameType | None) -> None:
            self._flush = True

        before: dict[int, Any] = {}
        try:
            for ending in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                if signal.getsignal(ending) is not signal.SIG_IGN:  # nohup's stays
                    before[ending] = signal.signal(ending, stop)
            before[signal.SIGUSR1] = signal.signal(signal.SIGUSR1, tell)
            before[signal.SIGUSR2] = signal.signal(signal.SIGUSR2, flush)
        except ValueError:
            pass  # not in the main thread: somebody embeds us
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def share(option: str, text: str | None) -> int:
    """N of 1/N, 1 when the option was not given."""
    if text is None:
        return 1
    from confluo_tools.expr.sample import share as parse

    try:
        return parse(text)
    except UsageError as e:
        e.where = option
        raise


class LogOutput:
    """A context: rows into one lane of a MultiLog, which is made unless it is there; its indexes are kept up beside.

    ``asked``: fields that an older log gains when it lacks them.
    """

    def __init__(
        self, path: str, schema: Schema, *, append: bool, asked: list[str], index: str | None, sync: str,
        lanes: int,
    ) -> None:  # fmt: skip
        from confluo_tools import store

        self.path, self.schema, self.lanes, self.sync = path, schema, lanes, sync
        self.rows = 0
        self._exists = os.path.lexists(path) and not (os.path.isdir(path) and not os.listdir(path))
        self._new: list[Field] = []
        if self._exists:
            if not (append and store.is_log(path)):
                hint = "--append adds to it" if store.is_log(path) else "choose another name"
                raise UsageError("exists", where=path, hint=hint)
            with store.open(path, readonly=True) as log:
                self._new = [schema[n] for n in asked if n in schema and n not in log.schema]
                self.schema = log.schema.plus(self._new)
        self.index = [name.strip() for name in index.split(",") if name.strip()] if index else []
        for name in self.index:
            if self.schema[name].type.is_list:
                hint = "fields with one value a record can be indexed"
                raise UsageError(f"'{name}' is a list", where="--index", hint=hint)

    def __enter__(self) -> LogOutput:
        from confluo_tools import store

        argv = [cli.state.prog, *cli.state.argv]
        if self._exists:
            if self._new:
                from confluo_tools.store.create import add_columns

                add_columns(self.path, self._new)
            self._log = store.open(self.path)
            self._log.remember(argv)
        else:
            self._log = store.create(self.path, self.schema, sync=self.sync, lanes=self.lanes, argv=argv)
        self._writer = self._log.writer(sync=self.sync)
        self._layout = self._log.schema.layout
        self._keeper = IndexKeeper(self._log, self.index) if self.index else None
        return self

    def write(self, block: Block, picks: Picks | None) -> None:
        if block.layout is not self._layout:
            block = block.project(self._layout)
        if picks is not None:
            block = block.take(picks)
        self._writer.append(block)
        self.rows += block.rows

    def flush(self) -> None:
        """Rows are published as they are written."""

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        try:
            self._writer.__exit__(kind, error, tb)
        finally:
            if self._keeper is not None:
                self._keeper.finish(complete=kind is None)
            self._log.close()


class IndexKeeper:
    """Brings indexes up to date in a thread of its own, and to the very end when the capture is over."""

    def __init__(self, log: Log, fields: list[str]) -> None:
        from confluo_tools import store
        from confluo_tools.store import views

        for name in fields:
            views.add_index(log, name, update_now=False)
        self._log = store.open(log.path)
        self._maintainer = views.Maintainer(self._log, fields)
        self._stop = threading.Event()
        self._problem: ConfluoError | None = None
        self._thread = threading.Thread(target=self._work, name="indexes", daemon=True)
        self._thread.start()

    def _work(self) -> None:
        try:
            while not self._stop.wait(0.0 if self._maintainer.step(self._stop) else 0.2):
                pass
        except ConfluoError as e:
            self._problem = e

    def finish(self, *, complete: bool) -> None:
        """``complete``: index what is left.  Trouble with an index is only reported: answers do not need it."""
        self._stop.set()
        self._thread.join()
        if complete and self._problem is None:
            try:
                self._maintainer.step(wait=5.0)
            except ConfluoError as e:
                self._problem = e
        self._log.close()
        if self._problem is not None:
            cli.warn(str(self._problem))


def main(argv: Sequence[str] | None = None) -> int:
    return cli.run(app, "confluo-capture", argv, owns_state=True)
