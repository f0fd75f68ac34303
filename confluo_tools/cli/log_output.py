"""The MultiLog that a capture writes: lanes, and whoever keeps views up to date and old rows out beside them."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING

from confluo_tools.cli.state import state, warn
from confluo_tools.errors import ConfluoError, UsageError

if TYPE_CHECKING:
    from confluo_tools.core.block import Block, Picks
    from confluo_tools.schema import Field, Schema
    from confluo_tools.store import Log, Writer

HELD = 16384  # rows after which a small output lets go of its pages
UPKEEP = 1.0  # s between two looks at what is to be done beside
NICE = 5  # of the thread that does it: where cores are short, packets come first


class LogOutput:
    """A context: rows into a MultiLog, which is made unless it is there.

    ``asked``: fields that an older log gains when it lacks them.  ``index``: fields to index it by.
    ``keep``: how old rows may become and how large the log, see `store.retain.parse_keep`.
    ``views``: keep all its views up to date, not only those indexes.
    ``small``: little memory rather than speed: nothing is prepared ahead, and what was written is let go of.
    ``any_kind``: a log of other records will do, too, if it has fields that can be filled.
    """

    def __init__(
        self, path: str, schema: Schema, *, append: bool = False, asked: Sequence[str] = (), index: str | None = None,
        sync: str = "none", lanes: int = 256, keep: str | None = None, views: bool = False, small: bool = False,
        any_kind: bool = False,
    ) -> None:  # fmt: skip
        from confluo_tools import store

        self.path, self.schema, self.lanes, self.sync = path, schema, lanes, sync
        self.rows = 0
        self.exists = os.path.lexists(path) and not (os.path.isdir(path) and not os.listdir(path))
        self._new: list[Field] = []
        if self.exists:
            if not (append and store.is_log(path)):
                hint = "--append adds to it" if store.is_log(path) else "choose another name"
                raise UsageError("exists", where=path, hint=hint)
            with store.open(path, readonly=True) as log:
                if log.schema.kind != schema.kind and not any_kind:
                    raise UsageError(f"is a log of '{log.schema.kind}'", where=path, hint="choose another name")
                self._new = [schema[n] for n in asked if n in schema and n not in log.schema]
                self.schema = log.schema.plus(self._new)
        self.index = [name.strip() for name in index.split(",") if name.strip()] if index else []
        for name in self.index:
            if self.schema[name].type.is_list:
                hint = "fields with one value a record can be indexed"
                raise UsageError(f"'{name}' is a list", where="--index", hint=hint)
        self._limits: tuple[int | None, int | None] | None = None
        if keep is not None:
            from confluo_tools.store.retain import parse_keep

            try:
                self._limits = parse_keep(keep)
            except UsageError as e:
                e.where = "--keep"
                raise
        self._all_views = views
        self._small = small
        self._held = 0
        self._writers: list[Writer] = []

    def rehearse(self) -> None:
        """Do once in a scratch folder what will be done later: every module is loaded then.

        Who gives up his privileges may not be able to read them any more.
        """
        from tempfile import TemporaryDirectory

        from confluo_tools.core.block import Block
        from confluo_tools.store.captures import Record

        with TemporaryDirectory() as scratch:
            fake = LogOutput(os.path.join(scratch, "log"), self.schema, lanes=1, views=True)
            fake.index, fake._limits = self.index, self._limits
            with fake:
                columns = [bytes(c.size * c.count) for c in self.schema.columns]
                fake.write(Block.wrap(self.schema.layout, 1, columns), None)
                Record(fake.path, {}).update({})

    def __enter__(self) -> LogOutput:
        from confluo_tools import store

        argv = [state.prog, *state.argv]
        if self.exists:
            if self._new:
                from confluo_tools.store.columns import add_columns

                add_columns(self.path, self._new)
            self.log = store.open(self.path)
            self.log.remember(argv)
        else:
            self.log = store.create(self.path, self.schema, sync=self.sync, lanes=self.lanes, argv=argv)
        self._layout = self.log.schema.layout
        self._upkeep: Upkeep | None = None
        try:
            if self.index or self._limits or self._all_views:
                self._upkeep = Upkeep(self.log, self.index, self._limits, all_views=self._all_views)
        except BaseException:
            self.log.close()
            raise
        return self

    def writers(self, n: int) -> list[Writer]:
        """The writers of so many lanes, closed when we are."""
        while len(self._writers) < n:
            self._writers.append(self.log.writer(sync=self.sync, ahead=-1 if self._small else 1))
        return self._writers

    def write(self, block: Block, picks: Picks | None) -> None:
        if block.layout is not self._layout:
            block = block.project(self._layout)
        if picks is not None:
            block = block.take(picks)
        self.writers(1)[0].append(block)
        self.rows += block.rows
        self._held += block.rows
        if self._small and self._held >= HELD:
            self._held = 0
            let_go(os.path.abspath(self.path))

    def flush(self) -> None:
        """Rows are published as they are written."""

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        try:
            self._close_writers(kind, error, tb)
        finally:
            if self._upkeep is not None:
                self._upkeep.finish(complete=kind is None)
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


def let_go(folder: str) -> None:
    """Take the pages of files in ``folder`` out of our memory: the kernel has them, and they come back when used."""
    import ctypes

    libc = ctypes.CDLL(None)
    with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as maps:
        ours = [line.split(" ", 2)[0] for line in maps if f" {folder}/" in line and line.split(" ", 2)[1][3] == "s"]
    for place in ours:
        start, end = (int(n, 16) for n in place.split("-"))
        libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), 4)  # MADV_DONTNEED


class Upkeep:
    """Brings views up to date and removes old segments in a thread of its own; views to the very end when the capture
    is over.
    """

    def __init__(
        self, log: Log, fields: Sequence[str], limits: tuple[int | None, int | None] | None, *, all_views: bool
    ) -> None:
        from confluo_tools import store
        from confluo_tools.store import views

        for name in fields:
            views.add_index(log, name)
        self._log = store.open(log.path)
        names = None if all_views else fields
        self._maintainer = views.Maintainer(self._log, names, lambda path, what: warn(what, where=path))
        self._keeper = None
        if limits is not None:
            from confluo_tools.store.retain import Keeper

            self._keeper = Keeper(self._log, *limits)
        self._stop = threading.Event()
        self._said: set[str] = set()
        self._thread = threading.Thread(target=self._work, name="upkeep", daemon=True)
        self._thread.start()

    def _work(self) -> None:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)
        while True:
            done = self._do(lambda: self._maintainer.step(self._stop))
            if self._keeper is not None:
                done += self._do(self._keeper.step)
            if self._stop.wait(0.0 if done else UPKEEP):
                return

    def _do(self, job: Callable[[], int]) -> int:
        """Trouble is told, once; the other job goes on, and this one is tried again: a disk may get room."""
        try:
            return job()
        except ConfluoError as e:
            if str(e) not in self._said:
                self._said.add(str(e))
                warn(str(e))
            return 0

    def finish(self, *, complete: bool) -> None:
        """``complete``: do what is left.  Answers do not need it."""
        self._stop.set()
        self._thread.join()
        if complete:
            self._do(lambda: self._maintainer.step(wait=5.0))
        self._log.close()
