"""A cursor: a small file that says how far inputs were read, so that the next run goes on there.

The file is replaced atomically (a new file, fsync, rename), after what was read has left the process.  So a process
that is killed at any point prints a record again, at worst, and leaves out none.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from confluo_tools.errors import BusyError, StoreError, UsageError

if TYPE_CHECKING:
    from confluo_tools.formats.growing import Place

FORMAT = 1
MAX_BYTES = 16 << 20
LOCK = ".lock"  # after the name of the cursor


class Cursor:
    """The cursor in the file ``path``, which is made when it is saved first; one process has it at a time.

    ``places``: of the inputs, None at the beginning.
    ``done``: the end of the last window that was printed, ns; ``again``: rows after the places that were read for it.
    Raises BusyError, StoreError for a file that is not a cursor, or cannot be written.
    """

    def __init__(self, path: str) -> None:
        from confluo_tools.multilog.locks import lock, open_lock

        self.path = os.path.abspath(path)
        self._name = path
        self.places: list[Place] | None = None
        self.done: int | None = None
        self.again = 0
        folder, base = os.path.split(self.path)
        if not os.path.isdir(folder):
            what = f"cannot be written: there is no folder {os.path.dirname(path) or folder}"
            raise StoreError(what, where=path, hint="make it first")
        self._lock = open_lock(folder, base + LOCK)
        try:
            lock(self._lock, 0.0, BusyError("another process has this cursor", where=path))
            self._load()
        except BaseException:
            self.close()
            raise
        self._saved: tuple[list[Place] | None, int | None, int] = (self.places, self.done, self.again)

    def _load(self) -> None:
        from confluo_tools.formats.growing import Place

        try:
            with open(self.path, "rb") as f:
                data = json.loads(f.read(MAX_BYTES))
        except FileNotFoundError:
            return
        except OSError as e:
            raise StoreError(f"cannot be read: {e.strerror}", where=self._name) from None
        except ValueError:
            data = None
        try:
            if data["cursor"] != FORMAT:
                raise ValueError
            self.places = [Place(str(p["name"]), str(p["identity"]), _checked(p["position"])) for p in data["inputs"]]
            self.done = None if data["done"] is None else int(data["done"])
            self.again = _number(data["again"])
        except (KeyError, TypeError, ValueError):
            hint = "name another file; without a cursor reading begins at the first record"
            raise StoreError("is not a cursor", where=self._name, hint=hint) from None

    def check(self, names: Sequence[str]) -> None:
        """Raise UsageError if there is a place for another number of inputs than ``names``."""
        if self.places is not None and len(self.places) != len(names):
            what = f"is the cursor of {_inputs(len(self.places))}, not of {_inputs(len(names))}"
            raise UsageError(what, where=self._name, hint="name another cursor")

    def save(self, places: Sequence[Place], done: int | None = None, again: int = 0) -> None:
        """Write the places, if they are new.  All rows before them must have been written.  Raises StoreError."""
        from confluo_tools.multilog.atomic_file import replace

        now = (list(places), done, again)
        if now == self._saved:
            return
        inputs = [{"name": p.name, "identity": p.identity, "position": p.position} for p in places]
        text = json.dumps({"cursor": FORMAT, "inputs": inputs, "done": done, "again": again})
        try:
            replace(self.path, text.encode() + b"\n", sync=True, point="cursor")
        except OSError as e:
            raise StoreError(f"cannot be written: {e.strerror}", where=self._name) from None
        self._saved = now

    def close(self) -> None:
        os.close(self._lock)


def _checked(position: Any) -> Any:
    """Rows of each lane, or offsets by partition.  Raises ValueError, TypeError."""
    if isinstance(position, dict):
        return {int(p): _number(n) for p, n in position.items()}
    return [_number(n) for n in position]


def _number(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 62:
        raise ValueError
    return value


def _inputs(n: int) -> str:
    return f"{n} input" if n == 1 else f"{n} inputs"
