"""Indexes of a MultiLog: derived data in views/index-FIELD, never needed for an answer, only for its speed.

    views.add_index(log, "dst_port")            covers the past, while others write
    views.update(log, view)                     up to the newest full block
    views.maintain(log, stop)                   goes on doing so

A view that is lost, torn, damaged or of another log is not believed; what it would have told is scanned instead.
One process at a time maintains a view (it holds views/index-FIELD/lock); readers take no lock.
"""

from __future__ import annotations

import errno
import fcntl
import os
import resource
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Protocol

from confluo_tools.core.postings import Builder, Postings, blank, file_key
from confluo_tools.errors import BusyError, DiskFullError, StoreError, UsageError

if TYPE_CHECKING:
    from confluo_tools.core.segment import Part, SegmentBlock
    from confluo_tools.store.log import Log
    from confluo_tools.store.version import Version

FOLDER = "views"
PREFIX = "index-"
ABOUT = "index.yaml"
LOCK = "lock"
MS = 1_000_000
MOST_BUCKET = 1 << 62


class Stop(Protocol):
    """What tells `maintain` to end: a threading.Event, or anything with its two methods."""

    def is_set(self) -> bool: ...
    def wait(self, timeout: float) -> bool: ...


class View:
    """One index: of ``field`` (physical column ``column``), ``bucket`` values to a key (1: exact)."""

    kind = "index"
    __slots__ = ("bucket", "code", "column", "field", "inode", "path", "size")

    def __init__(self, log: Log, field: str, bucket: int, path: str) -> None:
        found = log.schema[field]
        self.field, self.bucket, self.path = field, bucket, path
        self.column = log.schema.index(field)
        self.code, self.size = found.type.code, found.type.size
        self.inode = os.stat(path).st_ino

    @property
    def name(self) -> str:
        return PREFIX + self.field

    def __repr__(self) -> str:
        return f"View({self.name!r}, bucket={self.bucket})"

    def file(self, part: Part) -> str:
        """Path of the posting file of a segment."""
        return os.path.join(self.path, f"lane-{part.lane:03d}", f"seg-{part.base:016d}.idx")

    def key(self, part: Part) -> bytes:
        """What that file must say that it was made for."""
        room = part.segment.shape.segment_blocks
        return file_key(part.uuid, part.lane, part.base, self.field, self.code, self.size, self.bucket, room)

    def open(self, part: Part, mapped: bool = False) -> Postings:
        """The postings of a segment.  OSError: there are none; ValueError: they cannot be believed."""
        return Postings(self.file(part), self.key(part), mapped)


def default_bucket(log: Log, field: str) -> int:
    """Values to a key unless said otherwise: 1 ms for times (a query tests the exact time anyway), else 1."""
    return MS if log.schema[field].type.kind == "time" else 1


def complete(part: Part) -> int:
    """How many blocks of a segment will not change any more: the full ones, and the last of a sealed segment."""
    full: int = part.rows // part.segment.capacity
    rest: int = part.rows % part.segment.capacity
    return full + (1 if rest and part.segment.sealed == part.rows else 0)


# --- which views there are ----------------------------------------------------------------------------


def indexes(log: Log, warn: Callable[[str, str], None] | None = None) -> list[View]:
    """The indexes of ``log`` that can be used, by name.

    Definitions that cannot be read, of another log or of fields it lacks, are told to ``warn(path, what)``.
    """
    folder = os.path.join(log.path, FOLDER)
    try:
        names = sorted(n for n in os.listdir(folder) if n.startswith(PREFIX))
    except OSError:
        return []
    found = []
    for name in names:
        path = os.path.join(folder, name)
        try:
            try:
                about = _read_about(os.path.join(path, ABOUT))
            except FileNotFoundError:  # dropped, and perhaps made again, while we looked
                about = _read_about(os.path.join(path, ABOUT))
            if about.get("log") != log.uuid.hex():
                raise ValueError("it belongs to another MultiLog")
            if about.get("field") != name[len(PREFIX) :] or about["field"] not in log.schema:
                raise ValueError("it is of a field that the MultiLog does not have")
            bucket = about.get("bucket", "")
            if not bucket.isdigit() or not 1 <= int(bucket) <= MOST_BUCKET:
                raise ValueError("its bucket is not a number")
            found.append(View(log, about["field"], int(bucket), path))
        except (OSError, ValueError) as e:
            gone = isinstance(e, FileNotFoundError) and not os.path.lexists(path)
            if warn is not None and not gone:
                reason = e.strerror if isinstance(e, OSError) else str(e)
                warn(path, f"is not used: {reason}; confluo-index drop {name[len(PREFIX):]} removes it")
    return found


def find(log: Log, field: str) -> View:
    """The index of ``field``.  StoreError when there is none."""
    for view in indexes(log):
        if view.field == field:
            return view
    raise StoreError(f"there is no index of '{field}'", where=log.path, hint="confluo-index LOG list shows them")


def _read_about(path: str) -> dict[str, str]:
    # Written as YAML for people, but only lines of `name: value`: reading needs no YAML.
    with open(path, encoding="utf-8") as f:
        lines = f.read(4096).splitlines()
    pairs = (line.partition(":") for line in lines if not line.startswith("#"))
    return {name.strip(): value.strip() for name, _, value in pairs if value}


def add_index(log: Log, field: str, bucket: int | None = None, *, update_now: bool = True) -> View:
    """Make an index of ``field`` and bring it up to date; one that is there already is only brought up to date.

    Raises UsageError (no such field, a list, an impossible bucket, or there is one with another bucket),
    StoreError, DiskFullError, BusyError.
    """
    found = log.schema[field]
    wanted = default_bucket(log, field) if bucket is None else bucket
    if found.type.is_list:
        raise UsageError(f"'{field}' is a list", hint="fields with one value a record can be indexed")
    if not 1 <= wanted <= MOST_BUCKET or (wanted > 1 and (found.type.code > 8 or found.type.kind in ("ip", "ipv4"))):
        raise UsageError(f"'{field}' cannot have a bucket of {wanted}", hint="buckets are for numbers and times")
    folder = os.path.join(log.path, FOLDER)
    path = os.path.join(folder, PREFIX + field)
    try:
        view = next((v for v in indexes(log) if v.field == field), None)
        if view is None:
            _remove_unusable(path)
            os.makedirs(folder, exist_ok=True)
            temporary = os.path.join(folder, f".{PREFIX}{field}.{os.getpid()}.{time.monotonic_ns()}")
            os.mkdir(temporary)
            try:
                with open(os.path.join(temporary, ABOUT), "w", encoding="utf-8") as f:
                    f.write(
                        "# An index of a MultiLog: derived data, which may be deleted at any time.\n"
                        f"kind: index\nfield: {field}\nbucket: {wanted}\nlog: {log.uuid.hex()}\n"
                    )
                os.close(os.open(os.path.join(temporary, LOCK), os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o666))
                os.rename(temporary, path)
            except OSError as e:
                _remove_tree(temporary)
                if e.errno not in (errno.EEXIST, errno.ENOTEMPTY):
                    raise
                # somebody else made it in the same moment
            view = find(log, field)
        if bucket is not None and view.bucket != bucket:
            raise UsageError(
                f"there is an index of '{field}' with a bucket of {view.bucket}", where=log.path, hint="drop it first"
            )
        if update_now:
            with maintaining(view):
                update(log, view)
    except OSError as e:
        raise _trouble(log, e) from None
    return view


def _remove_unusable(path: str) -> None:
    # A definition that `indexes` does not accept is in the way of a new one.
    if os.path.lexists(path):
        folder = os.path.dirname(path)
        os.rename(path, os.path.join(folder, f".dropped.{os.getpid()}.{time.monotonic_ns()}"))
        for name in os.listdir(folder):
            if name.startswith(".dropped."):  # also those whose remover was killed
                _remove_tree(os.path.join(folder, name))


def drop_index(log: Log, field: str) -> bool:
    """Remove the index of ``field``; False when there was none.  Queries under way go on with it."""
    path = os.path.join(log.path, FOLDER, PREFIX + field)
    if not os.path.lexists(path):
        return False
    try:
        _remove_unusable(path)
    except FileNotFoundError:
        return False
    except OSError as e:
        raise _trouble(log, e) from None
    return True


def rebuild(log: Log, view: View) -> None:
    """Make every posting file of ``view`` anew; readers go on with the old ones until then."""
    try:
        with maintaining(view):
            update(log, view, anew=True)
    except OSError as e:
        raise _trouble(log, e) from None


def _remove_tree(path: str) -> None:
    import shutil

    shutil.rmtree(path, ignore_errors=True)


def _trouble(log: Log, e: OSError) -> StoreError:
    where = e.filename or log.path
    if e.errno in (errno.ENOSPC, errno.EDQUOT):
        return DiskFullError("the disk is full", where=where, hint="make room; queries work without the index")
    return StoreError(f"cannot be written: {e.strerror}", where=where)


# --- keeping them up to date ----------------------------------------------------------------------------


@contextmanager
def maintaining(view: View, wait: float = 5.0) -> Iterator[None]:
    """Be the one who maintains ``view``.  BusyError when somebody else is, and still is after ``wait`` seconds."""
    fd = os.open(os.path.join(view.path, LOCK), os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o666)
    try:
        end = time.monotonic() + wait
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= end:
                    raise BusyError(
                        "somebody else is maintaining this index", where=view.path, hint="try again later"
                    ) from None
                time.sleep(0.02)
        yield
    finally:
        os.close(fd)


def update(
    log: Log,
    view: View,
    *,
    version: Version | None = None,
    anew: bool = False,
    stop: Stop | None = None,
    builder: Builder | None = None,
    done: dict[tuple[int, int], int] | None = None,
    tell: Callable[[int], None] | None = None,
) -> int:
    """Index what is complete at ``version`` (None: now) and not yet indexed; returns how many blocks.

    The caller is `maintaining` the view.  ``done``: what this caller knows to be complete already, kept by us.
    ``tell`` is called with the number of rows gone over so far.
    """
    builder = builder or Builder()
    parts = log.segments(version)
    added = rows = 0
    for part in parts:
        blocks = complete(part)
        rows += part.rows
        if tell is not None:
            tell(rows)
        if not blocks or (done is not None and done.get((part.lane, part.base)) == blocks):
            continue
        if stop is not None and stop.is_set():
            return added
        added += _update_part(view, part, blocks, builder, anew)
        if done is not None:
            done[part.lane, part.base] = blocks
    if version is None:
        _forget_removed(log, view, parts)
    return added


def _update_part(view: View, part: Part, blocks: int, builder: Builder, anew: bool) -> int:
    path, key = view.file(part), view.key(part)
    at = None if anew else _complete_blocks(path, key, part)
    if at is not None and at >= blocks:
        return 0
    if at is None:
        with suppress(FileExistsError):
            os.mkdir(os.path.dirname(path))  # not makedirs: a view that was dropped must not come back
        # New, or not to be believed: made beside, then renamed over, so that no reader sees bytes change.
        with open(f"{path}.tmp", "wb") as out:
            out.write(blank(key, part.segment.shape.segment_blocks))
        at, target = 0, f"{path}.tmp"
    else:
        target = path
    fd = os.open(target, os.O_RDWR | os.O_CLOEXEC)
    try:
        for number in range(at, blocks):
            block: SegmentBlock | None = part.block(number)
            if block is not None and not block.check([view.column]):
                block = None
            builder.append(fd, number, block, view.column, view.bucket)
    finally:
        os.close(fd)
        part.release()
    if target != path:
        os.rename(target, path)
    return blocks - at


def _complete_blocks(path: str, key: bytes, part: Part) -> int | None:
    # Blocks published in a posting file; None when it must be made anew.
    try:
        postings = Postings(path, key)
    except (OSError, ValueError):
        return None
    return postings.blocks if postings.sound(part.segment.capacity) else None


def _forget_removed(log: Log, view: View, parts: list[Part]) -> None:
    # Segments that retention removed leave posting files behind, killed makers half-made ones.
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


def check(log: Log, view: View) -> Iterator[tuple[str, str]]:
    """(path, what is wrong) of each posting file that is damaged, read to its last byte."""
    for part in log.segments():
        path = view.file(part)
        try:
            postings = view.open(part)
        except FileNotFoundError:
            continue
        except (OSError, ValueError) as e:
            yield path, (e.strerror or str(e)) if isinstance(e, OSError) else str(e)
            continue
        if not postings.sound(part.segment.capacity, whole=True):
            yield path, "its postings are damaged"


class Maintainer:
    """Brings indexes up to date again and again, remembering what is done.  ``fields`` None: every index."""

    def __init__(self, log: Log, fields: Iterable[str] | None = None) -> None:
        self.log = log
        self.fields = None if fields is None else set(fields)
        self.builder = Builder()
        self._done: dict[tuple[str, int], dict[tuple[int, int], int]] = {}

    def step(self, stop: Stop | None = None, wait: float = 0.0) -> int:
        """One round over all of them; blocks added.  An index that somebody else maintains is left to him."""
        added = 0
        present = set()
        for view in indexes(self.log):
            if self.fields is not None and view.field not in self.fields:
                continue
            name = (view.name, view.inode)
            present.add(name)
            done = self._done.setdefault(name, {})
            try:
                with maintaining(view, wait):
                    added += update(self.log, view, stop=stop, builder=self.builder, done=done)
            except BusyError:
                continue
            except FileNotFoundError:
                continue  # dropped while we worked
            except OSError as e:
                raise _trouble(self.log, e) from None
        for name in set(self._done) - present:
            del self._done[name]
        return added


def maintain(log: Log, stop: Stop, fields: Iterable[str] | None = None, interval: float = 0.2) -> None:
    """Keep indexes up to date until ``stop`` is set; for a thread beside a writer, or a process of its own."""
    maintainer = Maintainer(log, fields)
    while not stop.is_set():
        if not maintainer.step(stop):
            stop.wait(interval)


# --- reading them ------------------------------------------------------------------------------------------


class Reader:
    """The postings that queries of one open log use.  ``many``: files stay mapped from query to query."""

    def __init__(self, log: Log, many: bool = True) -> None:
        self.log, self.many = log, many
        self.warnings: list[tuple[str, str]] = []
        self._views: list[View] = []
        self._open: OrderedDict[tuple[str, int, int, int], Postings] = OrderedDict()
        self._most = max(16, min(1024, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 4))
        self._told: set[tuple[str, str]] = set()

    def warn(self, path: str, what: str) -> None:
        if (path, what) not in self._told:
            self._told.add((path, what))
            self.warnings.append((path, what))

    def refresh(self) -> list[View]:
        """Look again which indexes there are."""
        self._views = indexes(self.log, self.warn)
        return self._views

    def postings(self, part: Part, columns: Iterable[int]) -> dict[int, Postings]:
        """{column: postings} of a segment, for those of ``columns`` that are indexed there."""
        found = {}
        for view in self._views:
            if view.column in columns:
                postings = self._get(view, part)
                if postings is not None:
                    found[view.column] = postings
        return found

    def _get(self, view: View, part: Part) -> Postings | None:
        name = (view.name, view.inode, part.lane, part.base)
        postings = self._open.pop(name, None)
        if postings is not None and (postings.blocks >= part.blocks or not postings.grown):
            self._open[name] = postings  # the last used is the last to go
            return postings
        try:
            postings = view.open(part, self.many)
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as e:
            reason = e.strerror if isinstance(e, OSError) else str(e)
            self.warn(view.file(part), f"is not used: {reason}; confluo-index rebuild {view.field} mends it")
            return None
        while len(self._open) >= self._most:
            self._report(*self._open.popitem(last=False))
        self._open[name] = postings
        return postings

    def report(self) -> None:
        """Note the postings that were found damaged since the last time."""
        for name, postings in self._open.items():
            self._report(name, postings)

    def _report(self, name: tuple[str, int, int, int], postings: Postings) -> None:
        for number in sorted(postings.damaged):
            what = f"postings of block {number} are damaged and not used"
            self.warn(postings.path, f"{what}; confluo-index rebuild {name[0][len(PREFIX):]} mends them")


def coverage(log: Log, view: View, version: Version) -> tuple[int, int, int]:
    """(rows of ``version`` that the index covers, rows of ``version``, bytes on disk)."""
    covered = rows = size = 0
    for part in log.segments(version):
        rows += part.rows
        try:
            postings = view.open(part)
            size += os.stat(view.file(part)).st_blocks * 512
        except (OSError, ValueError):
            continue
        covered += min(postings.blocks * part.segment.capacity, part.rows)
    return covered, rows, size

