"""Output of records to a MultiLog, with a thread that maintains its views and removes old rows."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING

from confluo_tools.console import ThreadErrors, state, warn
from confluo_tools.errors import ConfluoError, StoreError, UsageError

if TYPE_CHECKING:
    from confluo_tools.core.block.block import Block, Picks
    from confluo_tools.formats.anonymize import AnonymousRecords
    from confluo_tools.formats.reader import Reader
    from confluo_tools.multilog import Log, LogWriter
    from confluo_tools.schema import Field, Schema

HELD = 16384  # rows after which a small output releases its pages
PERIOD = 1.0  # s between two runs of the maintenance
MAKING = 5.0  # s that another process may take to make the log
NICE = 5  # of the maintenance thread: packets have priority for the CPU


class LogOutput:
    """Context manager that writes records to a MultiLog, which is created if it does not exist.

    ``extra_fields``: fields to add to an existing log that lacks them.  ``index``: fields to index, as a list in text.
    ``keep``: the limits of age and size, see `multilog.retain.parse_keep`.
    ``old``: the records may be of the past, so ``keep`` counts their age from the newest record of the log.
    ``views``: maintain all views, not only these indexes.
    ``small``: save memory rather than time: prepare nothing ahead, and release written pages.
    ``any_kind``: append also to a log of another kind of records, if it has the fields.
    ``shared``: another process may make the same log at this moment, with this field; both write to it.
    ``anonymous``: makes the records anonymous first; the log then has no history.
    ``needed``: the fields that an existing log must have; None: all.  ``add_columns``: add those that it lacks.
    """

    def __init__(
        self,
        path: str,
        schema: Schema,
        *,
        append: bool = False,
        extra_fields: Sequence[str] = (),
        index: str | None = None,
        sync: str = "none",
        lanes: int = 256,
        keep: str | None = None,
        old: bool = False,
        views: bool = False,
        small: bool = False,
        any_kind: bool = False,
        shared: str = "",
        needed: Sequence[str] | None = None,
        add_columns: bool = False,
        anonymous: AnonymousRecords | None = None,
    ) -> None:
        from confluo_tools import multilog
        from confluo_tools.multilog.create import is_free

        if add_columns and not append:
            raise UsageError("--add-columns is for an existing log", hint="add --append")
        check_place(path)
        self.path, self.schema, self.lanes, self.sync = path, schema, lanes, sync
        self._anonymous = anonymous
        self.rows = 0
        self.exists = not is_free(path)
        self._new: list[Field] = []
        self._names: dict[str, dict[int, str]] = {}
        if self.exists:
            if not (multilog.is_log(path) and (append or (shared and self._has(shared)))):
                hint = "--append adds to it" if multilog.is_log(path) else "choose another name"
                raise UsageError("exists", where=path, hint=hint)
            with multilog.open(path, readonly=True) as log:
                if log.schema.kind != schema.kind and not any_kind:
                    raise UsageError(f"is a log of '{log.schema.kind}'", where=path, hint="choose another name")
                self._fit(log.schema, schema, extra_fields, needed, add_columns)
        self.index = [name.strip() for name in index.split(",") if name.strip()] if index else []
        for name in self.index:
            _ = self.schema[name]  # SchemaError: unknown
        self._limits: tuple[int | None, int | None] | None = None
        if keep is not None:
            from confluo_tools.multilog.retain import parse_keep

            try:
                self._limits = parse_keep(keep)
            except UsageError as e:
                e.where = "--keep"
                raise
        self._all_views, self._old = views, old
        self._small, self._shared = small, shared
        self._held = 0
        self._writers: list[LogWriter] = []

    def _has(self, field: str) -> bool:
        from confluo_tools import multilog

        with multilog.open(self.path, readonly=True) as log:
            return field in log.schema

    def _fit(
        self, own: Schema, given: Schema, extra: Sequence[str], needed: Sequence[str] | None, add_columns: bool
    ) -> None:
        """Decide what the existing log has to gain.  Raises UsageError that names all that does not fit."""
        from confluo_tools.schema.schema_fit import Misfit, grown, misfit

        self._new = [given[n] for n in extra if n in given and n not in own]
        wanted = misfit(own.plus(self._new), given, needed)
        if wanted.clashes or ((wanted.fields or wanted.names) and not add_columns):
            out = ",".join(f"-{f.name}" for f in wanted.fields)
            hint = "--add-columns adds " + ("them" if len(wanted.fields) + len(wanted.names) > 1 else "it")
            hint += f", -f {out} leaves out the field{'s' if len(wanted.fields) > 1 else ''}" if out else ""
            raise UsageError(str(wanted), where=self.path, hint="choose another name" if wanted.clashes else hint)
        self._new += wanted.fields
        self._names = wanted.names
        self.schema = grown(own, Misfit(self._new, self._names, []))

    def preload(self) -> None:
        """Load all modules that writing needs, by writing a log in a temporary folder.

        After dropping privileges their files may not be readable.
        """
        from tempfile import TemporaryDirectory

        from confluo_tools.core.block.block import Block
        from confluo_tools.multilog.capture_statistics import CaptureRecord

        with TemporaryDirectory() as scratch:
            fake = LogOutput(os.path.join(scratch, "log"), self.schema, lanes=1, views=True)
            fake.index, fake._limits = self.index, self._limits
            with fake:
                columns = [bytes(c.size * c.count) for c in self.schema.columns]
                fake.write(Block.wrap(self.schema.layout, 1, columns), None)
                CaptureRecord(fake.path, {}).update({})

    def __enter__(self) -> LogOutput:
        from confluo_tools import multilog

        argv = None if self._anonymous is not None else [state.prog, *state.argv]
        if self.exists:
            if self._limits is not None:
                self._make_room(*self._limits)
            if self._new or self._names:
                from confluo_tools.multilog.add_columns import add_columns

                add_columns(self.path, self._new, self._names)
            self.log = multilog.open(self.path)
            if argv is not None:
                self.log.remember(argv)
        else:
            self.log = self._made(argv)
        self._layout = self.log.schema.layout
        self._maintenance: MaintenanceThread | None = None
        try:
            if self.index or self._limits or self._all_views:
                self._maintenance = MaintenanceThread(self.log, self.index, self._limits, self._all_views, self._old)
        except BaseException:
            self.log.close()
            raise
        return self

    def _make_room(self, age: int | None, size: int | None) -> None:
        """Remove what exceeds the limits already: on a disk that is full of it, nothing else could be written."""
        from confluo_tools import multilog
        from confluo_tools.multilog.retain import Keeper

        with multilog.open(self.path) as log:
            keeper = Keeper(log, age, size, from_newest=self._old)
            with suppress(StoreError):  # the maintenance reports it
                keeper.step()

    def _made(self, argv: list[str] | None) -> Log:
        from confluo_tools import multilog

        end = time.monotonic() + MAKING
        while True:
            try:
                return multilog.create(self.path, self.schema, sync=self.sync, lanes=self.lanes, argv=argv)
            except StoreError:
                if not self._shared or time.monotonic() > end:
                    raise
            if multilog.is_log(self.path):
                log = multilog.open(self.path)
                if log.schema.layout.names == self.schema.layout.names:
                    return log
                log.close()
                raise UsageError("exists, with other fields", where=self.path, hint="choose another name")
            time.sleep(0.01)

    @property
    def opened_writer(self) -> LogWriter | None:
        """The writer of `write`; None before the first row."""
        return self._writers[0] if self._writers else None

    def writers(self, n: int) -> list[LogWriter]:
        """The writers of ``n`` lanes; the context manager closes them."""
        while len(self._writers) < n:
            self._writers.append(self.log.writer(sync=self.sync, ahead=-1 if self._small else 1))
        return self._writers

    def write(self, block: Block, picks: Picks | None) -> None:
        if self._anonymous is not None:
            block, picks = self._anonymous.block(block, picks), None
        if block.layout is not self._layout:
            block = block.project(self._layout)
        if picks is not None:
            block = block.take(picks)
        self.writers(1)[0].append(block)
        self.rows += block.rows
        self._held += block.rows
        if self._small and self._held >= HELD:
            self._held = 0
            release_pages(os.path.abspath(self.path))

    def first_capture(self, names: Sequence[str]) -> int:
        """Add source captures to the list of the open log.  Returns the file_number of the first; 0 without numbers."""
        if "file_number" not in self.log.schema:
            return 0
        from confluo_tools.multilog.source_captures import register

        try:
            return register(self.path, names, sync=self.log.sync != "none", anonymous=self._anonymous is not None)
        except OSError as e:
            raise self.log.write_error(e) from None

    def flush(self) -> None:
        """Does nothing: rows are published as they are written."""

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        try:
            self._close_writers(kind, error, tb)
        finally:
            if self._maintenance is not None:
                self._maintenance.finish(complete=kind is None)
            self.log.close()

    def _close_writers(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        problem: ConfluoError | None = None
        for writer in self._writers:
            try:
                writer.__exit__(kind, error, tb)
            except ConfluoError as e:
                problem = problem or e
        if problem is not None:
            raise problem


def check_place(path: str) -> None:
    """Raises UsageError for a name that other commands take for a topic, or for a log of another host."""
    from confluo_tools.inputs.logs import remote
    from confluo_tools.inputs.topics import is_topic

    if is_topic(path):
        raise UsageError("is a topic, not a folder", where=path, hint="confluo-stream publish --to writes to topics")
    if remote(path) is not None:
        hint = f"a MultiLog is written on its own host; ./{path} is a folder here"
        raise UsageError("is on another host", where=path, hint=hint)


def number_captures(reader: Reader, into: object, inputs: Sequence[str]) -> None:
    """Before rows go ``into`` a log that is open: give the captures of ``reader`` the next free numbers of the log."""
    if isinstance(into, LogOutput) and reader.format in ("pcap", "pcapng") and "file_number" in reader.schema:
        reader.number_from(into.first_capture(list(inputs) or ["-"]))


def release_pages(folder: str) -> None:
    """Unmap the pages of files in ``folder`` from this process; they stay in the page cache."""
    import ctypes

    libc = ctypes.CDLL(None)
    with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as maps:
        ours = [line.split(" ", 2)[0] for line in maps if f" {folder}/" in line and line.split(" ", 2)[1][3] == "s"]
    for place in ours:
        start, end = (int(n, 16) for n in place.split("-"))
        libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), 4)  # MADV_DONTNEED


class MaintenanceThread:
    """A thread that updates views and removes old segments; `finish` does both for the last time."""

    def __init__(
        self, log: Log, fields: Sequence[str], limits: tuple[int | None, int | None] | None, all_views: bool, old: bool
    ) -> None:
        from confluo_tools import multilog
        from confluo_tools.multilog import views

        for name in fields:
            views.add_index(log, name)
        self._log = multilog.open(log.path)
        names = None if all_views else fields
        self._maintainer = views.Maintainer(self._log, names, lambda path, what: warn(what, where=path))
        self._keeper = None
        if limits is not None:
            from confluo_tools.multilog.retain import Keeper

            self._keeper = Keeper(self._log, *limits, from_newest=old)
        self._stop = threading.Event()
        self._errors = ThreadErrors("the maintenance of the log failed, and is tried again")
        self._thread = threading.Thread(target=self._work, name="maintenance", daemon=True)
        self._thread.start()

    def _work(self) -> None:
        _be_nice(NICE)
        while True:
            done = self._do(lambda: self._maintainer.step(self._stop))
            if self._keeper is not None:
                done += self._do(self._keeper.step)
            if self._stop.wait(0.0 if done else PERIOD):
                return

    def _do(self, job: Callable[[], int]) -> int:
        """Run ``job``; warn once of each error.  A failed job is retried: a full disk may get space."""
        try:
            return job()
        except Exception as e:
            self._errors.report(e)
            return 0

    def finish(self, *, complete: bool) -> None:
        """Stop the thread.

        ``complete``: first update the views to the end of the log, on which queries do not depend, and remove what the
        segments exceed that were sealed last: files may be read faster than the thread looks.
        """
        self._stop.set()
        self._thread.join()
        if complete:
            self._do(lambda: self._maintainer.step(wait=5.0))
            if self._keeper is not None:
                self._do(self._keeper.last_step)
        self._log.close()


def _be_nice(value: int) -> None:
    # Lower the priority of this thread.  A process that is nicer already may not become less nice, and has no need to.
    thread = threading.get_native_id()
    with suppress(OSError):  # a sandbox may refuse it: then the thread has the priority of the others
        if os.getpriority(os.PRIO_PROCESS, thread) < value:
            os.setpriority(os.PRIO_PROCESS, thread, value)
