"""Folder of pinglists: a file per server, its signature in NAME.sig, and plan.json, which names the files of the plan.

A list is replaced atomically, kept if its content is unchanged, and removed with its server: an agent without a list
stops probing.
"""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Iterable
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any

from confluo_tools.errors import BusyError, FormatError, UsageError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

PLAN = "plan.json"
TEMPORARY = (".plan.new", ".plan.sig.new")  # fixed names: a killed plan leaves at most these
MAX_PLAN_FILE = 256 << 20
SUFFIXES = {"yaml": ".yaml", "arrow": ".arrow"}
_FILE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,31}\.(yaml|arrow|sig)")


class PinglistFolder:
    """Context that writes the lists of a plan.  ``key``: signs lists.  ``force``: accept a folder with other files.

    ``written``, ``kept``, ``removed`` count lists; ``before`` is the previous plan.json.
    Raises UsageError for a folder with other files, BusyError while another plan is written into it.
    """

    def __init__(self, path: str, form: str, *, key: Ed25519PrivateKey | None = None, force: bool = False) -> None:
        self.path, self.suffix, self.key = path, SUFFIXES[form], key
        self.written = self.kept = self.removed = 0
        self._files: list[str] = []
        self._new = [os.path.join(path, name) for name in TEMPORARY]
        os.makedirs(path, exist_ok=True)
        self._lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise BusyError("another plan is being written into it", where=path) from None
            self.before = self._read()
            if not self.before and os.listdir(path) and not force:
                hint = "name an empty folder, or give --force"
                raise UsageError("contains files that are not of a plan", where=path, hint=hint)
        except BaseException:
            os.close(self._lock)
            raise
        self._old = {f for f in self.before.get("files", ()) if isinstance(f, str) and _FILE.fullmatch(f)}

    def _read(self) -> dict[str, Any]:
        import json

        path = os.path.join(self.path, PLAN)
        try:
            with open(path, "rb") as f:
                data = f.read(MAX_PLAN_FILE + 1)
        except FileNotFoundError:
            return {}
        try:
            found = json.loads(data) if len(data) <= MAX_PLAN_FILE else None
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict) or not isinstance(found.get("files"), list):
            raise FormatError("not a plan file", where=path, hint="remove it together with the lists")
        return found

    def begin(self, servers: Iterable[str], about: dict[str, Any]) -> None:
        """Remove the lists of removed servers, and record the files to come: after a kill, the next plan knows them."""
        known = set(servers)
        self._files = sorted(name + end for name in known for end in [self.suffix, *([".sig"] if self.key else [])])
        self._remove(
            f for f in self._old if f.rpartition(".")[0] not in known
        )  # first: a server name may now be a file suffix of another
        self._write({"complete": False, **about, "files": sorted(self._old.union(self._files))})

    def _remove(self, files: Iterable[str]) -> None:
        for file in sorted(files):
            with suppress(FileNotFoundError):
                os.unlink(os.path.join(self.path, file))
                self.removed += not file.endswith(".sig")
            self._old.discard(file)

    def add(self, name: str, data: bytes) -> None:
        """Write the list of a server, unless unchanged."""
        pieces = [(name + self.suffix, data)]
        if self.key is not None:
            pieces.insert(0, (name + ".sig", self.key.sign(data)))
        new = [piece for piece in pieces if self._existing(piece[0]) != piece[1]]
        for (file, content), temporary in zip(new, self._new, strict=False):  # write all before replacing any
            self._save(temporary, content, file)
        for (file, _), temporary in zip(new, self._new, strict=False):
            os.replace(temporary, os.path.join(self.path, file))
        if new:
            self.written += 1
        else:
            self.kept += 1

    def _existing(self, file: str) -> bytes | None:
        try:
            with open(os.path.join(self.path, file), "rb") as f:
                return f.read()
        except FileNotFoundError:
            return None

    def finish(self, about: dict[str, Any]) -> None:
        """Remove files that the plan no longer has (other format, signatures), and write plan.json."""
        self._remove(self._old.difference(self._files))
        self._write({"complete": True, **about, "files": self._files})

    def _write(self, what: dict[str, Any]) -> None:
        import json

        self._save(self._new[0], f"{json.dumps(what, indent=1)}\n".encode(), PLAN, sync=True)
        os.replace(self._new[0], os.path.join(self.path, PLAN))

    def _save(self, temporary: str, data: bytes, file: str, *, sync: bool = False) -> None:
        # ``file``: named if the disk is full.
        try:
            with open(temporary, "wb", buffering=0) as f:
                view = memoryview(data)
                while view:
                    view = view[f.write(view) :]
                if sync:
                    os.fsync(f.fileno())
        except OSError as e:
            e.filename = os.path.join(self.path, file)
            raise

    def __enter__(self) -> PinglistFolder:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        for temporary in self._new:
            with suppress(OSError):
                os.unlink(temporary)
        os.close(self._lock)


def read_key(path: str) -> Ed25519PrivateKey:
    """The Ed25519 private key in a PEM file.  Raises FormatError, UsageError."""
    try:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
        from cryptography.hazmat.primitives.serialization import load_pem_private_key
    except ImportError:
        hint = "pip install 'confluo-tools[pingmesh]'"
        raise UsageError("needs the package cryptography", where="--sign", hint=hint) from None
    try:
        with open(path, "rb") as f:
            data = f.read(1 << 16)
    except OSError as e:
        raise FormatError(e.strerror or str(e), where=path) from None
    key: Any
    try:
        key = load_pem_private_key(data, None)
    except (ValueError, TypeError):  # TypeError: a pass phrase is required
        key = None
    except Exception as e:  # exceptions of cryptography have no common base
        raise FormatError(f"not a private key: {str(e)[:60]}", where=path) from None
    if not isinstance(key, Ed25519PrivateKey):
        hint = "make one with openssl genpkey -algorithm ed25519 -out KEY"
        raise FormatError("not an Ed25519 private key without a pass phrase", where=path, hint=hint)
    return key
