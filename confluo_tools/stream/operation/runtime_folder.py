"""Control sockets in the file system: the folder that they are in, and the names of runs."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Sequence
from typing import NamedTuple

from confluo_tools.errors import ConfluoError, UsageError

SYSTEM = "/run/confluo"  # of root and of services
SUFFIX = ".sock"
MAX_NAME = 64  # characters of the name of a run
_NAME = re.compile(rf"[A-Za-z0-9_][A-Za-z0-9._+-]{{0,{MAX_NAME - 1}}}")


class RunPlace(NamedTuple):
    """A run by its name and the path of its socket."""

    name: str
    path: str


def checked_name(text: str) -> str:
    """The name of a run as --name gives it.  Raises UsageError."""
    if not _NAME.fullmatch(text):
        hint = f"use letters, digits, '_', '.', '+' and '-', at most {MAX_NAME}"
        raise UsageError(f"'{text[:80]}' cannot be the name of a run", where="--name", hint=hint)
    return text


def default_name(inputs: Sequence[str]) -> str:
    """The name of a run without --name: its interfaces, or the names of its inputs without folder and suffix."""
    paths = [text.partition("?")[0] if text.startswith("kafka://") else text for text in inputs]
    words = [os.path.splitext(os.path.basename(os.path.normpath(path)))[0] for path in paths]
    name = re.sub(r"[^A-Za-z0-9._+-]", "-", "+".join(words)).lstrip(".-+")[:MAX_NAME]
    return name or "run"


def own_folder() -> str:
    """The folder of the sockets that this process makes.

    That of its systemd service, else that of the session ($XDG_RUNTIME_DIR), else /run/confluo of root and
    /tmp/confluo-UID of others.
    """
    service = os.environ.get("RUNTIME_DIRECTORY", "").partition(":")[0]
    if service:
        return service
    session = os.environ.get("XDG_RUNTIME_DIR", "")
    if session and _owner(session) == os.geteuid():  # after su(1) it is that of another user
        return os.path.join(session, "confluo")
    return SYSTEM if os.geteuid() == 0 else f"/tmp/confluo-{os.geteuid()}"


def make_folder() -> str:
    """`own_folder`, made if it is missing.  Raises ConfluoError when other users could put files there."""
    folder = own_folder()
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        found = os.lstat(folder)
    except OSError as e:
        raise ConfluoError(f"no folder for control sockets: {e.strerror}", where=folder) from None
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
        hint = f"remove it, or chmod 700 {folder}"
        raise ConfluoError("is not a folder that only this user can write", where=folder, hint=hint)
    return folder


def runs() -> list[RunPlace]:
    """The sockets that this user may find, also those that a killed run has left, by name."""
    found: dict[str, RunPlace] = {}
    for folder in dict.fromkeys([own_folder(), SYSTEM]):
        if _owner(folder) not in (os.geteuid(), 0) and os.geteuid() != 0:
            continue  # that of another user: its sockets could be anything
        try:
            names = sorted(os.listdir(folder))
        except OSError:
            continue
        for file in names:
            name = file.removesuffix(SUFFIX)
            if name != file and _NAME.fullmatch(name):
                found.setdefault(name, RunPlace(name, os.path.join(folder, file)))
    return sorted(found.values())


def _owner(path: str) -> int:
    """The user that owns the folder; -1 when there is no such folder."""
    try:
        found = os.lstat(path)
    except OSError:
        return -1
    return found.st_uid if stat.S_ISDIR(found.st_mode) else -1
