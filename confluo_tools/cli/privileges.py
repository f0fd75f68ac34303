"""Dropping privileges once all sockets are open: user, groups, capabilities."""

from __future__ import annotations

import ctypes
import os
from typing import TYPE_CHECKING, NamedTuple

from confluo_tools.errors import ConfluoError, UsageError

if TYPE_CHECKING:
    from confluo_tools.cli.log_output import LogOutput

_NO_NEW_PRIVS, _CAP_AMBIENT, _CLEAR_ALL = 38, 47, 4  # prctl(2)
_CAPSET, _VERSION_3 = 126, 0x20080522
FILES = 1 << 0 | 1 << 1 | 1 << 3  # CAP_CHOWN, CAP_DAC_OVERRIDE, CAP_FOWNER: what root does with files


class Account(NamedTuple):
    name: str
    uid: int
    gid: int


def account(text: str) -> Account:
    """The account of a user name or number.  Raises UsageError."""
    import pwd

    try:
        found = pwd.getpwuid(int(text)) if text.isdigit() else pwd.getpwnam(text)
    except (KeyError, OverflowError):
        raise UsageError(f"unknown user '{text}'", where="-Z") from None
    return Account(found.pw_name, found.pw_uid, found.pw_gid)


def make_folder_for(path: str, to: Account) -> None:
    """Create the folder ``path``, or take an empty one, and chown it to ``to``.  Raises ConfluoError."""
    try:
        try:
            os.mkdir(path, 0o755)
        except FileExistsError:
            if os.listdir(path):
                return  # not empty: its owner stays
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            if os.fstat(fd).st_uid != to.uid:
                os.fchown(fd, to.uid, to.gid)
        finally:
            os.close(fd)
    except OSError as e:
        raise ConfluoError(f"cannot be made for {to.name}: {e.strerror}", where=path) from None


def hand_over(out: LogOutput | None, to: Account | None, keep: int | None = None) -> None:
    """Drop the privileges that only opening the sockets needed, and become ``to`` (None: stay the same user).

    A log that does not exist yet is created for that user, and the modules that writing needs are loaded first.
    ``keep``: capabilities that root without -Z keeps; None: all.  Raises ConfluoError if ``to`` cannot write the log.
    """
    if to is None:
        if os.geteuid():
            drop_capabilities()
        elif keep is not None:
            drop_capabilities(keep)
        return
    if out is not None:
        out.preload()
        if not out.exists:
            make_folder_for(out.path, to)
    become(to)
    if out is not None and not os.access(out.path, os.W_OK | os.X_OK):
        hint = "chown it, and allow access to its parents"
        raise ConfluoError(f"{to.name} may not write there", where=out.path, hint=hint)


def become(to: Account) -> None:
    """Become that user for good, without supplementary groups and capabilities.  Raises ConfluoError.

    Call it before threads are started.
    """
    try:
        if os.geteuid() != to.uid or os.getegid() != to.gid or os.getuid() != to.uid:
            os.setgroups([])
            os.setresgid(to.gid, to.gid, to.gid)
            os.setresuid(to.uid, to.uid, to.uid)
        elif os.geteuid() == 0:
            raise ConfluoError("this runs as root already", where="-Z", hint="name another user")
    except PermissionError:
        hint = "start it as root, or omit -Z: privileges that are not needed are dropped anyway"
        raise ConfluoError(f"you may not become {to.name}", where="-Z", hint=hint) from None
    drop_capabilities()


def drop_capabilities(keep: int = 0) -> None:
    """Drop all capabilities but those of ``keep`` (bits), for good, of this thread and of threads that it starts.

    Without -Z the user stays root.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_CAP_AMBIENT, _CLEAR_ALL, 0, 0, 0)
    libc.prctl(_NO_NEW_PRIVS, 1, 0, 0, 0)
    header = (ctypes.c_uint32 * 2)(_VERSION_3, 0)
    keep &= _held()
    left = (ctypes.c_uint32 * 6)(keep, keep, 0, 0, 0, 0)  # effective, permitted, inheritable; again for the upper half
    if libc.capset(header, left):
        raise ConfluoError(f"capabilities cannot be dropped: {os.strerror(ctypes.get_errno())}", where="-Z")


def _held() -> int:
    # The lower 32 bits of the permitted capabilities.
    with open("/proc/thread-self/status", encoding="utf-8", errors="replace") as f:
        for line in f:
            if line.startswith("CapPrm:"):
                return int(line.split()[1], 16) & 0xFFFFFFFF
    return 0
