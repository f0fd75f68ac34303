"""Keeping views up to date: one pass over each new block serves all of them.

The filters of all views are evaluated together (core/bank), so that a test which several share is done once;
aggregates take their rows from the same masks.  One process at a time maintains a view; readers take no lock.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, TypeVar

from confluo_tools.core.bank import Bank
from confluo_tools.core.block import Picks
from confluo_tools.core.chunks import append
from confluo_tools.core.postings import Builder
from confluo_tools.errors import BusyError, ConfluoError
from confluo_tools.store.owner import give
from confluo_tools.store.views import base
from confluo_tools.store.views.base import complete, maintaining, trouble
from confluo_tools.store.views.kinds import views
from confluo_tools.store.views.state import StateView

if TYPE_CHECKING:
    from confluo_tools.core.segment import Part, SegmentBlock
    from confluo_tools.store.log import Log
    from confluo_tools.store.version import Version

V = TypeVar("V", bound=base.View)
Done = dict[tuple[int, int], int]  # (lane, base of a segment) -> blocks known to be in the files of a view
HELD, MOST_HELD = 16, 1 << 20  # blocks, bytes of chunks that are written at once
RACY = 100_000_000  # a folder changed so short ago (ns) may change again within the same tick of its clock


class Worker:
    """The memory that the pass needs, kept from one to the next."""

    def __init__(self) -> None:
        self.builder = Builder()
        self.picks = Picks()
        self._bank: tuple[tuple[base.View, ...], Bank, dict[base.View, int]] | None = None

    def bank(self, wanted: tuple[base.View, ...], block: SegmentBlock) -> tuple[Bank, dict[base.View, int]]:
        """The filters of these views, and which is whose."""
        if self._bank is None or self._bank[0] != wanted:
            numbers: dict[object, int] = {}
            whose = {view: numbers.setdefault(view.tree, len(numbers)) for view in wanted if view.tree is not None}
            self._bank = wanted, Bank(list(numbers), block.layout), whose
        return self._bank[1:]

    def add(self, targets: list[_Target], number: int, block: SegmentBlock | None) -> None:
        """Append a block to the files of all targets."""
        good = targets if block is not None else []
        if block is not None:
            columns = {c for t in targets for c in t.view.columns}
            if not block.check(columns):
                good = [t for t in targets if block.check(t.view.columns)]
        bank: Bank | None = None
        whose: dict[base.View, int] = {}
        if block is not None and any(t.view.tree is not None for t in good):
            bank, whose = self.bank(tuple([t.view for t in good]), block)
            bank.run(block)
        for target in targets:
            if target not in good:
                target.view.append(target, number, None, None, self.builder)
                continue
            at = whose.get(target.view)
            picks = bank.picks(at, self.picks) if bank is not None and at is not None else None
            target.view.append(target, number, block, picks, self.builder)


class _Target:
    # The file of a view of one segment that lacks blocks.
    __slots__ = ("_held", "_size", "at", "fd", "path", "temporary", "view", "written")

    def __init__(self, view: base.View, part: Part, at: int | None) -> None:
        self.view, self.path = view, view.file(part)
        self.temporary = at is None
        self.at = self.written = at or 0
        self._held: list[tuple[int, int, bytes | None]] = []
        self._size = 0
        if self.temporary:
            # New, or not to be believed: made beside, then renamed over, so that no reader sees bytes change.
            try:
                self._make(part)
            except FileNotFoundError:  # the first of its lane
                os.mkdir(os.path.dirname(self.path))  # not makedirs: a view that was dropped must not come back
                give(view.path, os.path.dirname(self.path))
                self._make(part)
        name = f"{self.path}.tmp" if self.temporary else self.path
        self.fd = os.open(name, os.O_RDWR | os.O_CLOEXEC)

    def _make(self, part: Part) -> None:
        with open(f"{self.path}.tmp", "wb") as out:
            out.write(self.view.blank(part))
        give(self.view.path, f"{self.path}.tmp")

    def hold(self, rows: int, base: int, chunk: bytes | None) -> None:
        self._held.append((rows, base, chunk))
        self._size += len(chunk or b"")
        if len(self._held) == HELD or self._size > MOST_HELD:
            self.flush()

    def flush(self) -> None:
        """Write what is held: many blocks take no more system calls than one."""
        if self._held:
            append(self.fd, self.written, self._held)
            self.written += len(self._held)
            self._held, self._size = [], 0

    def finish(self) -> None:
        self.flush()
        if self.temporary:
            os.rename(f"{self.path}.tmp", self.path)


def update(
    log: Log,
    view: base.View,
    *,
    version: Version | None = None,
    anew: bool = False,
    stop: base.Stop | None = None,
    tell: Callable[[int], None] | None = None,
) -> int:
    """Add to ``view`` what is complete at ``version`` (None: now) and not yet in it; returns how many blocks.

    The caller is `maintaining` the view.  ``tell`` is called with the number of rows gone over so far.
    OSError: also when the view was dropped meanwhile.
    """
    added, gone = update_all(log, [view], {}, Worker(), version=version, anew=anew, stop=stop, tell=tell)
    if gone:
        raise FileNotFoundError(2, "the view was dropped", view.path)
    return added


def update_all(
    log: Log,
    wanted: Sequence[base.View],
    done: dict[base.View, Done],
    worker: Worker,
    *,
    version: Version | None = None,
    anew: bool = False,
    stop: base.Stop | None = None,
    tell: Callable[[int], None] | None = None,
) -> tuple[int, set[base.View]]:
    """The same for several views in one pass; ``done`` is looked at and kept.  (blocks added, views that are gone)"""
    parts = log.segments(version)
    added = rows = 0
    gone: set[base.View] = set()
    for state in [v for v in wanted if isinstance(v, StateView)]:
        try:
            lazily = state in done
            added += state.advance(version or log.version(), anew=anew, lazily=lazily, stop=stop, tell=tell)
            done[state] = {(p.lane, p.base): complete(p) for p in parts}
        except FileNotFoundError:
            gone.add(state)
    wanted = [v for v in wanted if not v.whole]
    fresh = {v for v in wanted if v not in done}  # or with a new segment: a time to look for what is left over
    for part in parts:
        blocks = complete(part)
        rows += part.rows
        if tell is not None:
            tell(rows)
        name = part.lane, part.base
        behind = [v for v in wanted if blocks and v not in gone and done.get(v, {}).get(name) != blocks]
        if not behind:
            continue
        if stop is not None and stop.is_set():
            return added, gone
        added += _update_part(part, blocks, behind, worker, anew, gone)
        for view in behind:
            if name not in done.setdefault(view, {}):
                fresh.add(view)
            done[view][name] = blocks
    if version is None:
        for view in fresh - gone:
            _forget_removed(log, view, parts)
    return added, gone


def _update_part(
    part: Part, blocks: int, behind: list[base.View], worker: Worker, anew: bool, gone: set[base.View]
) -> int:
    targets: list[_Target] = []
    added = 0
    try:
        for view in behind:
            at = None if anew else view.sound(part)
            if at is None or at < blocks:
                try:
                    targets.append(_Target(view, part, at))
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


def _forget_removed(log: Log, view: base.View, parts: list[Part]) -> None:
    # Segments that retention removed leave files behind, killed makers half-made ones.
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
                os.unlink(path)


def bring(log: Log, view: base.View, *, anew: bool = False, wait: float = 5.0) -> int:
    """Bring one view up to date; BusyError when somebody else maintains it."""
    try:
        with maintaining(view, wait):
            return update(log, view, anew=anew)
    except OSError as e:
        raise trouble(log, e) from None


def built(log: Log, view: V, *, wait: float = 5.0) -> V:
    """``view``, brought up to date: `built(log, add_filter(...))`.  DiskFullError, StoreError, BusyError."""
    bring(log, view, wait=wait)
    return view


def rebuild(log: Log, view: base.View) -> None:
    """Make every file of ``view`` anew; readers go on with the old ones until then."""
    bring(log, view, anew=True)


class Maintainer:
    """Brings views of all kinds up to date again and again, remembering what is done.

    ``names`` None: every view; else those whose label (the field of an index, the name of others) is among them.
    ``warn(path, what)`` is told of views that cannot be used, once each.
    """

    def __init__(self, log: Log, names: Iterable[str] | None = None, warn: base.Warn | None = None) -> None:
        self.log = log
        self.names = None if names is None else set(names)
        self.worker = Worker()
        self._warn = warn
        self._told: set[tuple[str, str]] = set()
        self._done: dict[base.View, Done] = {}
        self._views: list[base.View] = []
        self._seen = -1  # when the folder of views had last changed as we looked

    def step(self, stop: base.Stop | None = None, wait: float = 0.0) -> int:
        """One round over all of them; blocks added.  A view that somebody else maintains is left to him."""
        version = self.log.version()
        now = {(p.lane, p.base): complete(p) for p in self.log.segments(version)}
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
                    continue  # another's, or dropped
                except PermissionError as e:
                    self._tell(view.path, f"is not kept up to date: {e.strerror}; it is another user's")
                except OSError as e:
                    raise trouble(self.log, e) from None
            try:
                added, gone = update_all(self.log, ours, self._done, self.worker, stop=stop)
            except OSError as e:
                raise trouble(self.log, e) from None
        for view in gone:
            self._done.pop(view, None)
        return added

    def _look(self) -> list[base.View]:
        # The views there are: their definitions are read again only when the folder has changed.
        try:
            changed = os.stat(os.path.join(self.log.path, base.FOLDER)).st_mtime_ns
        except OSError:
            changed = 0
        if changed != self._seen or changed > time.time_ns() - RACY:
            known = {(v.id, v.inode, v.digest): v for v in self._views}
            self._views = []
            for view in views(self.log, self._tell):
                try:
                    if self.names is None or view.label in self.names:
                        self._views.append(known.get((view.id, view.inode, view.digest), view))
                        _ = view.tree, view.columns
                except ConfluoError as e:
                    self._views.pop()
                    self._tell(view.path, f"is not used: {e}")
            self._done = {v: d for v, d in self._done.items() if v in self._views}
            self._seen = changed
        return self._views

    def _tell(self, path: str, what: str) -> None:
        if self._warn is not None and (path, what) not in self._told:
            self._told.add((path, what))
            self._warn(path, what)


def maintain(log: Log, stop: base.Stop, names: Iterable[str] | None = None, interval: float = 0.2) -> None:
    """Keep views up to date until ``stop`` is set; for a thread beside a writer, or a process of its own."""
    maintainer = Maintainer(log, names)
    while not stop.is_set():
        if not maintainer.step(stop):
            stop.wait(interval)


def check(log: Log, view: base.View) -> Iterator[tuple[str, str]]:
    """(path, what is wrong) of each file of a view that is damaged, read to its last byte."""
    if isinstance(view, StateView):
        yield from view.wrong()
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
        if view.sound(part, whole=True) is None:
            yield path, "its postings are damaged" if view.kind == "index" else "its chunks are damaged"


def coverage(log: Log, view: base.View, version: Version) -> tuple[int, int, int]:
    """(rows of ``version`` that the view covers, rows of ``version``, bytes on disk)."""
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
    return covered, rows, size
