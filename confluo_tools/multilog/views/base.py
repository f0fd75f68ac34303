"""Base of all kinds of views: a folder with a definition and a lock, and one file per segment.

A definition is a YAML file with only `name: value` lines, so that it can be read without a YAML library.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from confluo_tools.core.base.log_file import open_log_file
from confluo_tools.core.multilog.view_file import ViewFile, blank, file_key
from confluo_tools.errors import BusyError, DiskFullError, StoreError
from confluo_tools.multilog.locks import lock
from confluo_tools.multilog.ownership import as_owner

if TYPE_CHECKING:
    from confluo_tools.core.block.block import Picks
    from confluo_tools.core.multilog.postings import PostingsBuilder
    from confluo_tools.core.multilog.segment import SegmentBlock, SegmentPart
    from confluo_tools.expr.leaves import Tree
    from confluo_tools.multilog.log import Log

    Load = Callable[["Log", str, str, dict[str, str]], "View"]  # (log, label, path, definition); ValueError: invalid

FOLDER = "views"
LOCK = "lock"
MAX_DEFINITION = 1 << 17  # maximum size of a definition in bytes
Warn = Callable[[str, str], None]
KINDS = ("index", "filter", "aggregate", "state")  # `registry` has the function that loads each


class StopEvent(Protocol):
    """Signal for `maintain` to end: a threading.Event, or an object with the same two methods."""

    def is_set(self) -> bool: ...
    def wait(self, timeout: float) -> bool: ...


class ViewAppender(Protocol):
    """The view file of a segment, open for appending blocks."""

    fd: int

    def hold(self, rows: int, base: int, chunk: bytes | None) -> None:
        """Buffer the chunk of the next block."""


class Coverage(NamedTuple):
    """How much of a version a view contains: ``covered`` of ``rows`` rows; ``bytes``: its disk space."""

    covered: int
    rows: int
    bytes: int


class View:
    """One view of a log, in the folder ``path``: ``label`` is its name for users, ``id`` the name of its folder.

    A kind overrides `chunk`, which returns the bytes to store for a block.  It gets the rows for which ``tree`` holds
    (None: no rows are selected), and reads ``columns``.  ``digest`` is stored in the files of the view: files with
    another digest, of an earlier definition, are not used.
    """

    kind = ""
    whole_log = False  # True: one file for the whole log, updated by `advance` (see state)
    suffix = ".view"
    digest = bytes(32)
    tree: Tree | None = None
    columns: tuple[int, ...] = ()

    def __init__(self, label: str, path: str) -> None:
        self.label, self.path = label, path
        self.inode = os.stat(path).st_ino

    @property
    def log_path(self) -> str:
        return os.path.dirname(os.path.dirname(self.path))

    @property
    def id(self) -> str:
        return f"{self.kind}-{self.label}"

    @property
    def spec(self) -> str:
        """The view as an argument of confluo-index `rebuild` and `drop`: KIND NAME."""
        return f"{self.kind} {self.label}"

    @property
    def definition(self) -> str:
        """The definition, as printed for users."""
        return self.label

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.label!r})"

    def file(self, part: SegmentPart) -> str:
        """Path of the view file of a segment."""
        return os.path.join(self.path, f"lane-{part.lane:03d}", f"seg-{part.base:016d}{self.suffix}")

    def key(self, part: SegmentPart) -> bytes:
        """The key that the header of that file must contain: log, segment, digest."""
        return file_key(part.uuid, part.lane, part.base, self.digest, part.segment.shape.segment_blocks)

    def open(self, part: SegmentPart, mapped: bool = False) -> Any:
        """Open the view file of a segment.  Raises OSError if it is missing, ValueError if it is invalid."""
        return ViewFile(self.file(part), self.key(part))

    def blank(self, part: SegmentPart) -> bytes:
        """The content of a new view file without blocks."""
        return blank(self.key(part), part.segment.shape.segment_blocks)

    def valid_blocks(self, part: SegmentPart, every_byte: bool = False) -> int | None:
        """Number of blocks in the view file; None if it must be rebuilt.  ``every_byte``: verify all checksums."""
        try:
            file = self.open(part)
        except (OSError, ValueError):
            return None
        blocks: int = file.blocks
        return blocks if not every_byte or file.sound(part.segment.capacity) else None

    def append(
        self, to: ViewAppender, number: int, block: SegmentBlock | None, picks: Picks | None, builder: PostingsBuilder
    ) -> None:
        """Append a block to the view file; None: the block is damaged."""
        if block is None or picks is None:
            to.hold(0, 0, None)
        else:
            to.hold(len(block), block.base, self.chunk(block, picks))

    def chunk(self, block: SegmentBlock, picks: Picks) -> bytes:
        """The bytes to store for a block; ``picks``: the selected rows."""
        raise NotImplementedError


def complete_blocks(part: SegmentPart) -> int:
    """Number of blocks of a segment that will not change: the full blocks, and the last block if it is sealed."""
    full: int = part.rows // part.segment.capacity
    rest: int = part.rows % part.segment.capacity
    return full + (1 if rest and part.segment.sealed == part.rows else 0)


# --- definitions ------------------------------------------------------------------------------------------


def names(log: Log, prefix: str) -> list[str]:
    """Sorted names of the folders in views/ that start with ``prefix``."""
    try:
        return sorted(n for n in os.listdir(os.path.join(log.path, FOLDER)) if n.startswith(prefix))
    except OSError:
        return []


def load(
    log: Log,
    kind: str,
    make: Callable[[str, str, dict[str, str]], View],
    warn: Warn | None = None,
    only: str | None = None,
) -> list[View]:
    """The views of a kind, by name, each created by ``make(label, path, definition)`` (ValueError: invalid).

    Invalid views are reported to ``warn(path, what)``.
    """
    found = []
    prefix = f"{kind}-"
    for name in names(log, prefix):
        label, path = name[len(prefix) :], os.path.join(log.path, FOLDER, name)
        if only is not None and label != only:
            continue
        try:
            try:
                about = read_about(os.path.join(path, f"{kind}.yaml"))
            except FileNotFoundError:  # dropped, and perhaps added again, in the meantime
                about = read_about(os.path.join(path, f"{kind}.yaml"))
            if about.get("log") != log.uuid.hex():
                raise ValueError("it belongs to another MultiLog")
            found.append(make(label, path, about))
        except (OSError, ValueError) as e:
            gone = isinstance(e, FileNotFoundError) and not os.path.lexists(path)
            if warn is not None and not gone:
                reason = e.strerror if isinstance(e, OSError) else str(e)
                what = label if kind == "index" else f"{kind} {label}"
                warn(path, f"is not used: {reason}; confluo-index drop {what} removes it")
    return found


def read_about(path: str) -> dict[str, str]:
    """{name: value} of the lines of a definition.  Raises OSError, ValueError (not UTF-8)."""
    with open(path, encoding="utf-8", opener=open_log_file) as f:
        lines = f.read(MAX_DEFINITION).split("\n")
    pairs = (line.partition(":") for line in lines if not line.startswith("#"))
    return {name.strip(): _plain(value.strip()) for name, _, value in pairs if value}


def _plain(value: str) -> str:
    if not value.startswith('"') or not value.endswith('"') or len(value) < 2:
        return value
    out, escape = [], False
    for c in value[1:-1]:
        if not escape and c == "\\":
            escape = True
            continue
        out.append({"n": "\n", "t": "\t", "r": "\r"}.get(c, c) if escape else c)
        escape = False
    return "".join(out)


def quoted(text: str) -> str:
    """A string as a YAML string on one line."""
    table = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t", "\r": "\\r"}
    return '"' + "".join([table.get(c, c) for c in text]) + '"'


def create(log: Log, kind: str, label: str, about: list[str]) -> None:
    """Create the folder of a view unless it exists; remove an invalid one before.  Raises OSError."""
    import shutil  # slow to load

    with as_owner(log.path):
        _create(log, kind, label, about, shutil.rmtree)


def _create(log: Log, kind: str, label: str, about: list[str], remove_tree: Callable[..., None]) -> None:
    folder = os.path.join(log.path, FOLDER)
    os.makedirs(folder, exist_ok=True)
    temporary = os.path.join(folder, f".{kind}-{label}.{os.getpid()}.{time.monotonic_ns()}")
    os.mkdir(temporary)
    try:
        text = "\n".join([*about, f"log: {log.uuid.hex()}", ""])
        with open(os.path.join(temporary, f"{kind}.yaml"), "wb", opener=open_log_file) as f:
            f.write(text.encode())
        os.close(open_log_file(os.path.join(temporary, LOCK), os.O_CREAT | os.O_RDWR))
        lanes = [n for n in os.listdir(log.path) if n.startswith("lane-")]  # now, so that a capture need not
        for lane in lanes:
            os.mkdir(os.path.join(temporary, lane))
        os.rename(temporary, os.path.join(folder, f"{kind}-{label}"))
    except OSError as e:
        if e.errno not in (errno.EEXIST, errno.ENOTEMPTY):
            raise
        # another process has created it in the meantime
    finally:
        remove_tree(temporary, ignore_errors=True)


def remove(log: Log, name: str) -> bool:
    """Remove the folder of a view, valid or not; False if it does not exist.  Running queries keep using it."""
    import shutil  # slow to load

    path = os.path.join(log.path, FOLDER, name)
    if not os.path.lexists(path):
        return False
    folder = os.path.dirname(path)
    try:
        with as_owner(log.path):
            os.rename(path, os.path.join(folder, f".dropped.{os.getpid()}.{time.monotonic_ns()}"))
            for other in os.listdir(folder):
                if other.startswith(".dropped."):  # also folders left by a killed process
                    _remove_dropped(os.path.join(folder, other), shutil.rmtree)
    except FileNotFoundError:
        return False
    except OSError as e:
        raise write_error(log, e) from None
    return True


def _remove_dropped(path: str, remove_tree: Callable[..., None]) -> None:
    if stat.S_ISDIR(os.lstat(path).st_mode):
        remove_tree(path, ignore_errors=True)
    else:
        os.unlink(path)  # shutil.rmtree would open a FIFO


def write_error(log: Log, e: OSError) -> StoreError:
    """The StoreError to raise for a failed write."""
    where = e.filename or log.path
    if e.errno in (errno.ENOSPC, errno.EDQUOT):
        return DiskFullError("the disk is full", where=where, hint="make room; queries work without views")
    return StoreError(f"cannot be written: {e.strerror}", where=where)


@contextmanager
def maintaining(view: View, wait: float = 5.0) -> Iterator[None]:
    """Hold the lock for maintaining ``view``.  BusyError when it is still taken after ``wait`` seconds."""
    with as_owner(view.log_path):
        fd = open_log_file(os.path.join(view.path, LOCK), os.O_CREAT | os.O_RDWR)
    try:
        busy = BusyError(f"another process is maintaining this {view.kind}", where=view.path, hint="try again later")
        lock(fd, wait, busy)
        yield
    finally:
        os.close(fd)
