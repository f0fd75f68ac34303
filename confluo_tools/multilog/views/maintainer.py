"""View maintenance: update all views in one pass over each new block.

The filters of all views are evaluated together (pyx/query/shared_filters.pyx), so that a shared test runs once;
aggregates use the same row masks.  One process at a time maintains a view; readers take no lock.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, TypeVar

from confluo_tools.core.base.log_file import open_log_file
from confluo_tools.core.block.block import Picks
from confluo_tools.core.multilog.postings import PostingsBuilder
from confluo_tools.core.multilog.view_file import append
from confluo_tools.core.query.shared_filters import SharedFilters
from confluo_tools.errors import BusyError, ConfluoError
from confluo_tools.multilog.ownership import as_owner
from confluo_tools.multilog.views import base
from confluo_tools.multilog.views.base import complete_blocks, maintaining, write_error
from confluo_tools.multilog.views.registry import views
from confluo_tools.multilog.views.state import StateView

if TYPE_CHECKING:
    from confluo_tools.core.multilog.segment import SegmentBlock, SegmentPart
    from confluo_tools.multilog.log import Log
    from confluo_tools.multilog.version import Version

V = TypeVar("V", bound=base.View)
BlocksDone = dict[tuple[int, int], int]  # (lane, base of a segment) -> number of its blocks that a view contains
MAX_HELD_BLOCKS, MAX_HELD_BYTES = 16, 1 << 20  # blocks, bytes of chunks per write
RACY = 100_000_000  # ns: a folder that changed so recently may change again with the same mtime


class ViewPass:
    """Buffers and compiled filters of a pass, reused by the next pass."""

    def __init__(self) -> None:
        self.builder = PostingsBuilder()
        self.picks = Picks()
        self._filters: tuple[tuple[base.View, ...], SharedFilters, dict[base.View, int]] | None = None

    def filters(self, wanted: tuple[base.View, ...], block: SegmentBlock) -> tuple[SharedFilters, dict[base.View, int]]:
        """The compiled filters of these views, and the number of the filter of each view."""
        if self._filters is None or self._filters[0] != wanted:
            numbers: dict[object, int] = {}
            number_of = {view: numbers.setdefault(view.tree, len(numbers)) for view in wanted if view.tree is not None}
            self._filters = wanted, SharedFilters(list(numbers), block.layout), number_of
        return self._filters[1:]

    def add(self, targets: list[_ViewAppendFile], number: int, block: SegmentBlock | None) -> None:
        """Append a block to the files of all targets."""
        good = targets if block is not None else []
        if block is not None:
            columns = {c for t in targets for c in t.view.columns}
            if not block.check(columns):
                good = [t for t in targets if block.check(t.view.columns)]
        shared: SharedFilters | None = None
        number_of: dict[base.View, int] = {}
        if block is not None and any(t.view.tree is not None for t in good):
            shared, number_of = self.filters(tuple([t.view for t in good]), block)
            shared.run(block)
        for target in targets:
            if target not in good:
                target.view.append(target, number, None, None, self.builder)
                continue
            at = number_of.get(target.view)
            picks = shared.picks(at, self.picks) if shared is not None and at is not None else None
            target.view.append(target, number, block, picks, self.builder)


class _ViewAppendFile:
    # The view file of one segment, open for appending the missing blocks.
    __slots__ = ("_held", "_size", "at", "fd", "path", "temporary", "view", "written")

    def __init__(self, view: base.View, part: SegmentPart, at: int | None) -> None:
        self.view, self.path = view, view.file(part)
        self.temporary = at is None
        self.at = self.written = at or 0
        self._held: list[tuple[int, int, bytes | None]] = []
        self._size = 0
        with as_owner(view.log_path):
            self.fd = self._make() if self.temporary else open_log_file(self.path, os.O_RDWR)
        if self.temporary:
            os.write(self.fd, view.blank(part))

    def _make(self) -> int:
        # New or invalid: written to a temporary file and renamed, so that no reader sees bytes change.
        temporary, flags = f"{self.path}.tmp", os.O_RDWR | os.O_CREAT | os.O_TRUNC
        try:
            return open_log_file(temporary, flags)
        except FileNotFoundError:  # the first file of its lane
            os.mkdir(os.path.dirname(self.path))  # not makedirs: a dropped view must not come back
            return open_log_file(temporary, flags)

    def hold(self, rows: int, base: int, chunk: bytes | None) -> None:
        self._held.append((rows, base, chunk))
        self._size += len(chunk or b"")
        if len(self._held) == MAX_HELD_BLOCKS or self._size > MAX_HELD_BYTES:
            self.flush()

    def flush(self) -> None:
        """Write the buffered chunks, with one set of system calls."""
        if self._held:
            append(self.fd, self.written, self._held)
            self.written += len(self._held)
            self._held, self._size = [], 0

    def finish(self) -> None:
        self.flush()
        if self.temporary:
            with as_owner(self.view.log_path):
                os.rename(f"{self.path}.tmp", self.path)


def update(
    log: Log,
    view: base.View,
    *,
    version: Version | None = None,
    rebuild: bool = False,
    stop: base.StopEvent | None = None,
    progress: Callable[[int], None] | None = None,
) -> int:
    """Append the missing complete blocks of ``version`` (None: now) to ``view``; returns their number.

    The caller holds `maintaining`.  ``progress`` is called with the number of rows processed so far.
    Raises OSError, also when the view was dropped in the meantime.
    """
    added, gone = update_all(
        log, [view], {}, ViewPass(), version=version, rebuild=rebuild, stop=stop, progress=progress
    )
    if gone:
        raise FileNotFoundError(2, "the view was dropped", view.path)
    return added


def update_all(
    log: Log,
    wanted: Sequence[base.View],
    done: dict[base.View, BlocksDone],
    worker: ViewPass,
    *,
    version: Version | None = None,
    rebuild: bool = False,
    stop: base.StopEvent | None = None,
    progress: Callable[[int], None] | None = None,
) -> tuple[int, set[base.View]]:
    """Update several views in one pass; ``done`` is used and updated.  Returns (blocks added, dropped views)."""
    parts = log.segments(version)
    added = rows = 0
    gone: set[base.View] = set()
    for state in [v for v in wanted if isinstance(v, StateView)]:
        try:
            lazily = state in done
            added += state.advance(
                version or log.version(), rebuild=rebuild, lazily=lazily, stop=stop, progress=progress
            )
            done[state] = {(p.lane, p.base): complete_blocks(p) for p in parts}
        except FileNotFoundError:
            gone.add(state)
    wanted = [v for v in wanted if not v.whole_log]
    fresh = {v for v in wanted if v not in done}  # also views with a new segment: then remove leftover files
    for part in parts:
        blocks = complete_blocks(part)
        rows += part.rows
        if progress is not None:
            progress(rows)
        name = part.lane, part.base
        behind = [v for v in wanted if blocks and v not in gone and done.get(v, {}).get(name) != blocks]
        if not behind:
            continue
        if stop is not None and stop.is_set():
            return added, gone
        added += _update_part(part, blocks, behind, worker, rebuild, gone)
        for view in behind:
            if name not in done.setdefault(view, {}):
                fresh.add(view)
            done[view][name] = blocks
    if version is None:
        for view in fresh - gone:
            _forget_removed(log, view, parts)
    return added, gone


def _update_part(
    part: SegmentPart, blocks: int, behind: list[base.View], worker: ViewPass, rebuild: bool, gone: set[base.View]
) -> int:
    targets: list[_ViewAppendFile] = []
    added = 0
    try:
        for view in behind:
            at = None if rebuild else view.valid_blocks(part)
            if at is None or at < blocks:
                try:
                    targets.append(_ViewAppendFile(view, part, at))
                except FileNotFoundError:
                    gone.add(view)
        for number in range(min([t.at for t in targets], default=blocks), blocks):
            block = part.block(number)
            now = [t for t in targets if t.at <= number]
            worker.add(now, number, block)
            added += len(now)
        for target in targets:
            try:
                target.finish()
            except FileNotFoundError:
                gone.add(target.view)
    finally:
        for target in targets:
            os.close(target.fd)
        part.release()
    return added


def _forget_removed(log: Log, view: base.View, parts: list[SegmentPart]) -> None:
    # Remove the files of removed segments, and temporary files of killed processes.
    kept = {view.file(p) for p in parts}
    try:
        lanes = [n for n in os.listdir(view.path) if n.startswith("lane-")]
    except FileNotFoundError:
        return
    for lane in lanes:
        folder = os.path.join(view.path, lane)
        for name in os.listdir(folder):
            path = os.path.join(folder, name)
            segment = os.path.join(log.path, lane, name.split(".")[0] + ".arrow")
            if name.endswith(".tmp") or (path not in kept and not os.path.exists(segment)):
                with as_owner(log.path):
                    os.unlink(path)


def bring_up_to_date(log: Log, view: base.View, *, rebuild: bool = False, wait: float = 5.0) -> int:
    """Update one view.  BusyError when another process maintains it."""
    try:
        with maintaining(view, wait):
            return update(log, view, rebuild=rebuild)
    except OSError as e:
        raise write_error(log, e) from None


def build(log: Log, view: V, *, wait: float = 5.0) -> V:
    """Update ``view`` and return it: `build(log, add_filter(...))`.  Raises DiskFullError, StoreError, BusyError."""
    bring_up_to_date(log, view, wait=wait)
    return view


def rebuild(log: Log, view: base.View) -> None:
    """Rebuild every file of ``view``; readers use the old files in the meantime."""
    bring_up_to_date(log, view, rebuild=True)


class Maintainer:
    """Updates views of all kinds repeatedly, and remembers which blocks are done.

    ``names``: labels of the views (field of an index, name of another view); None: all views.
    Each invalid view is reported once to ``warn(path, what)``.
    """

    def __init__(self, log: Log, names: Iterable[str] | None = None, warn: base.Warn | None = None) -> None:
        self.log = log
        self.names = None if names is None else set(names)
        self.worker = ViewPass()
        self._warn = warn
        self._warned: set[tuple[str, str]] = set()
        self._done: dict[base.View, BlocksDone] = {}
        self._views: list[base.View] = []
        self._seen = -1  # mtime of the folder of views when it was last read

    def step(self, stop: base.StopEvent | None = None, wait: float = 0.0) -> int:
        """Update all views once; returns the number of blocks added.  Skips views that another process maintains."""
        version = self.log.version()
        now = {(p.lane, p.base): complete_blocks(p) for p in self.log.segments(version)}
        behind = [v for v in self._look() if self._done.get(v) is None or not now.items() <= self._done[v].items()]
        if not behind or not any(now.values()):
            return 0
        with ExitStack() as locks:
            ours = []
            for view in behind:
                try:
                    locks.enter_context(maintaining(view, wait))
                    ours.append(view)
                except (BusyError, FileNotFoundError):
                    continue  # maintained by another process, or dropped
                except PermissionError as e:
                    self._warn_once(view.path, f"is not updated: {e.strerror}; it belongs to another user")
                except OSError as e:
                    raise write_error(self.log, e) from None
            try:
                added, gone = update_all(self.log, ours, self._done, self.worker, stop=stop)
            except OSError as e:
                raise write_error(self.log, e) from None
        for view in gone:
            self._done.pop(view, None)
        return added

    def _look(self) -> list[base.View]:
        # The current views; the definitions are read again only when the folder has changed.
        try:
            changed = os.stat(os.path.join(self.log.path, base.FOLDER)).st_mtime_ns
        except OSError:
            changed = 0
        if changed != self._seen or changed > time.time_ns() - RACY:
            known = {(v.id, v.inode, v.digest): v for v in self._views}
            self._views = []
            for view in views(self.log, self._warn_once):
                try:
                    if self.names is None or view.label in self.names:
                        self._views.append(known.get((view.id, view.inode, view.digest), view))
                        _ = view.tree, view.columns
                except ConfluoError as e:
                    self._views.pop()
                    self._warn_once(view.path, f"is not used: {e}")
            self._done = {v: d for v, d in self._done.items() if v in self._views}
            self._seen = changed
        return self._views

    def _warn_once(self, path: str, what: str) -> None:
        if self._warn is not None and (path, what) not in self._warned:
            self._warned.add((path, what))
            self._warn(path, what)


def maintain(log: Log, stop: base.StopEvent, names: Iterable[str] | None = None, interval: float = 0.2) -> None:
    """Update views until ``stop`` is set; runs in a thread of a writer, or in its own process."""
    maintainer = Maintainer(log, names)
    while not stop.is_set():
        if not maintainer.step(stop):
            stop.wait(interval)


def check(log: Log, view: base.View) -> Iterator[tuple[str, str]]:
    """Yield (path, problem) for each damaged file of a view; reads every byte."""
    if isinstance(view, StateView):
        yield from view.problems()
        return
    for part in log.segments():
        path = view.file(part)
        try:
            view.open(part)
        except FileNotFoundError:
            continue
        except (OSError, ValueError) as e:
            yield path, (e.strerror or str(e)) if isinstance(e, OSError) else str(e)
            continue
        if view.valid_blocks(part, every_byte=True) is None:
            yield path, "its postings are damaged" if view.kind == "index" else "its chunks are damaged"


def coverage(log: Log, view: base.View, version: Version) -> base.Coverage:
    """The part of ``version`` that the view covers."""
    if isinstance(view, StateView):
        return view.covered(version)
    covered = rows = size = 0
    for part in log.segments(version):
        rows += part.rows
        try:
            opened = view.open(part)
            size += os.stat(view.file(part)).st_blocks * 512
        except (OSError, ValueError):
            continue
        covered += min(opened.blocks * part.segment.capacity, part.rows)
    return base.Coverage(covered, rows, size)
