"""What all kinds of views have in common: a folder with a definition and a lock, and a file for each segment.

A definition is written as YAML for people, but only as lines of `name: value`, so that reading it needs no YAML.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from confluo_tools.core.chunks import Chunks, blank, file_key
from confluo_tools.errors import BusyError, DiskFullError, StoreError
from confluo_tools.store.locks import lock
from confluo_tools.store.owner import give

if TYPE_CHECKING:
    from confluo_tools.core.block import Picks
    from confluo_tools.core.postings import Builder
    from confluo_tools.core.segment import Part, SegmentBlock
    from confluo_tools.expr.leaves import Tree
    from confluo_tools.store.log import Log

    Load = Callable[["Log", str, str, dict[str, str]], "View"]  # (log, label, path, definition); ValueError: no use

FOLDER = "views"
LOCK = "lock"
MOST_ABOUT = 1 << 17  # bytes of a definition
Warn = Callable[[str, str], None]
KINDS = ("index", "filter", "aggregate", "state")  # `kinds` says what makes each


class Stop(Protocol):
    """What tells `maintain` to end: a threading.Event, or anything with its two methods."""

    def is_set(self) -> bool: ...
    def wait(self, timeout: float) -> bool: ...


class Appending(Protocol):
    """The file of a segment, open for new blocks."""

    fd: int

    def hold(self, rows: int, base: int, chunk: bytes | None) -> None:
        """Keep the chunk of the next block, to be written with others."""


class View:
    """One view of a log, in the folder ``path``: ``label`` is what users call it, ``id`` the name of its folder.

    A kind says what it keeps of a block: `chunk`, of the rows for which ``tree`` holds (None: it picks none), looking
    at ``columns``.  ``digest`` stands in its files: those of another definition are not believed.
    """

    kind = ""
    whole = False  # one file for the whole log, kept up to date by `advance` (see state)
    suffix = ".view"
    digest = bytes(32)
    tree: Tree | None = None
    columns: tuple[int, ...] = ()

    def __init__(self, label: str, path: str) -> None:
        self.label, self.path = label, path
        self.inode = os.stat(path).st_ino

    @property
    def id(self) -> str:
        return f"{self.kind}-{self.label}"

    @property
    def words(self) -> str:
        """What confluo-index calls it: `rebuild` and `drop` take it so."""
        return f"{self.kind} {self.label}"

    @property
    def definition(self) -> str:
        """What it is, for people."""
        return self.label

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.label!r})"

    def file(self, part: Part) -> str:
        """Path of what it keeps of a segment."""
        return os.path.join(self.path, f"lane-{part.lane:03d}", f"seg-{part.base:016d}{self.suffix}")

    def key(self, part: Part) -> bytes:
        """What that file must say that it was made for."""
        return file_key(part.uuid, part.lane, part.base, self.digest, part.segment.shape.segment_blocks)

    def open(self, part: Part, mapped: bool = False) -> Any:
        """The file of a segment.  OSError: there is none; ValueError: it cannot be believed."""
        return Chunks(self.file(part), self.key(part))

    def blank(self, part: Part) -> bytes:
        """A new file for a segment, without blocks."""
        return blank(self.key(part), part.segment.shape.segment_blocks)

    def sound(self, part: Part, whole: bool = False) -> int | None:
        """How many blocks its file has published; None when it must be made anew.  ``whole``: look at every byte."""
        try:
            chunks = self.open(part)
        except (OSError, ValueError):
            return None
        blocks: int = chunks.blocks
        return blocks if not whole or chunks.sound(part.segment.capacity) else None

    def append(
        self, to: Appending, number: int, block: SegmentBlock | None, picks: Picks | None, builder: Builder
    ) -> None:
        """Add a block to its file; None: nothing is known of it, because it is damaged."""
        if block is None or picks is None:
            to.hold(0, 0, None)
        else:
            to.hold(len(block), block.base, self.chunk(block, picks))

    def chunk(self, block: SegmentBlock, picks: Picks) -> bytes:
        """What it keeps of a block, of which ``picks`` are its rows."""
        raise NotImplementedError


def complete(part: Part) -> int:
    """How many blocks of a segment will not change any more: the full ones, and the last of a sealed segment."""
    full: int = part.rows // part.segment.capacity
    rest: int = part.rows % part.segment.capacity
    return full + (1 if rest and part.segment.sealed == part.rows else 0)


# --- definitions ------------------------------------------------------------------------------------------


def names(log: Log, prefix: str) -> list[str]:
    """Names of the folders in views/ that begin so, sorted."""
    try:
        return sorted(n for n in os.listdir(os.path.join(log.path, FOLDER)) if n.startswith(prefix))
    except OSError:
        return []


def load(
    log: Log, kind: str, make: Callable[[str, str, dict[str, str]], View], warn: Warn | None = None,
    only: str | None = None,
) -> list[View]:  # fmt: skip
    """The views of a kind, by name, each as ``make(label, path, definition)`` gives it (ValueError: it is no use).

    Those that cannot be used are told to ``warn(path, what)``.
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
            except FileNotFoundError:  # dropped, and perhaps made again, while we looked
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
    """The lines of a definition.  OSError; ValueError: no text."""
    with open(path, encoding="utf-8") as f:
        lines = f.read(MOST_ABOUT).split("\n")
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
    """A text as YAML, on one line."""
    table = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t", "\r": "\\r"}
    return '"' + "".join([table.get(c, c) for c in text]) + '"'


def create(log: Log, kind: str, label: str, about: list[str]) -> None:
    """Make the folder of a view, unless it is there: an unusable one must be removed before.  OSError."""
    folder = os.path.join(log.path, FOLDER)
    os.makedirs(folder, exist_ok=True)
    give(log.path, folder)
    temporary = os.path.join(folder, f".{kind}-{label}.{os.getpid()}.{time.monotonic_ns()}")
    os.mkdir(temporary)
    try:
        with open(os.path.join(temporary, f"{kind}.yaml"), "w", encoding="utf-8", newline="\n") as f:
            f.write("\n".join([*about, f"log: {log.uuid.hex()}", ""]))
        os.close(os.open(os.path.join(temporary, LOCK), os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o666))
        lanes = [n for n in os.listdir(log.path) if n.startswith("lane-")]  # now, rather than beside a capture
        for lane in lanes:
            os.mkdir(os.path.join(temporary, lane))
        give(log.path, *[os.path.join(temporary, n) for n in (f"{kind}.yaml", LOCK, *lanes)], temporary)
        os.rename(temporary, os.path.join(folder, f"{kind}-{label}"))
    except OSError as e:
        remove_tree(temporary)
        if e.errno not in (errno.EEXIST, errno.ENOTEMPTY):
            raise
        # somebody else made it in the same moment


def remove(log: Log, name: str) -> bool:
    """Remove the folder of a view, usable or not; False when it was not there.  Queries under way go on with it."""
    path = os.path.join(log.path, FOLDER, name)
    if not os.path.lexists(path):
        return False
    folder = os.path.dirname(path)
    try:
        os.rename(path, os.path.join(folder, f".dropped.{os.getpid()}.{time.monotonic_ns()}"))
        for other in os.listdir(folder):
            if other.startswith(".dropped."):  # also those whose remover was killed
                remove_tree(os.path.join(folder, other))
    except FileNotFoundError:
        return False
    except OSError as e:
        raise trouble(log, e) from None
    return True


def remove_tree(path: str) -> None:
    import shutil

    shutil.rmtree(path, ignore_errors=True)


def trouble(log: Log, e: OSError) -> StoreError:
    """What is told of a failed write."""
    where = e.filename or log.path
    if e.errno in (errno.ENOSPC, errno.EDQUOT):
        return DiskFullError("the disk is full", where=where, hint="make room; queries work without views")
    return StoreError(f"cannot be written: {e.strerror}", where=where)


@contextmanager
def maintaining(view: View, wait: float = 5.0) -> Iterator[None]:
    """Be the one who maintains ``view``.  BusyError when somebody else is, and still is after ``wait`` seconds."""
    fd = os.open(os.path.join(view.path, LOCK), os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o666)
    try:
        busy = BusyError(f"somebody else is maintaining this {view.kind}", where=view.path, hint="try again later")
        lock(fd, wait, busy)
        yield
    finally:
        os.close(fd)
