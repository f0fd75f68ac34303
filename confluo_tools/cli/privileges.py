"""Giving up what only opening the sockets needed: the user, the groups, the capabilities."""

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
    """The user of this name or number.  Raises UsageError."""
    import pwd

    try:
        found = pwd.getpwuid(int(text)) if text.isdigit() else pwd.getpwnam(text)
    except (KeyError, OverflowError):
        raise UsageError(f"there is no user '{text}'", where="-Z") from None
    return Account(found.pw_name, found.pw_uid, found.pw_gid)


def give_folder(path: str, to: Account) -> None:
    """Make the folder ``path``, or take an empty one, and let it be that user's.  Raises ConfluoError."""
    try:
        try:
            os.mkdir(path, 0o755)
        except FileExistsError:
            if os.listdir(path):
                return  # whoever may write there is settled
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            if os.fstat(fd).st_uid != to.uid:
                os.fchown(fd, to.uid, to.gid)
        finally:
            os.close(fd)
    except OSError as e:
        raise ConfluoError(f"cannot be made for {to.name}: {e.strerror}", where=path) from None


def hand_over(out: LogOutput | None, to: Account | None, keep: int | None = None) -> None:
    """Give up what only opening the sockets needed, and be ``to`` (None: who we are) from now on.

    A log that is still to be made becomes that user's; all modules that writing it needs are loaded.
    ``keep``: capabilities that root without -Z keeps; None: all.  Raises ConfluoError when ``to`` may not write there.
    """
    if to is None:
        if os.geteuid():
            give_up()
        elif keep is not None:
            give_up(keep)
        return
    if out is not None:
        out.rehearse()
        if not out.exists:
            give_folder(out.path, to)
    become(to)
    if out is not None and not os.access(out.path, os.W_OK | os.X_OK):
        hint = "give it to that user, and the way to it"
        raise ConfluoError(f"{to.name} may not write there", where=out.path, hint=hint)


def become(to: Account) -> None:
    """Be that user with nothing else: no other groups, no capabilities, no way back.  Raises ConfluoError.

    To be called before there are threads.
    """
    try:
        if os.geteuid() != to.uid or os.getegid() != to.gid or os.getuid() != to.uid:
            os.setgroups([])
            os.setresgid(to.gid, to.gid, to.gid)
            os.setresuid(to.uid, to.uid, to.uid)
        elif os.geteuid() == 0:
            raise ConfluoError("root is who runs this already", where="-Z", hint="name another user")
    except PermissionError:
        hint = "start it as root, or leave -Z out: what is not needed any more is given up anyway"
        raise ConfluoError(f"you may not become {to.name}", where="-Z", hint=hint) from None
    give_up()


def give_up(keep: int = 0) -> None:
    """Drop all capabilities but those of ``keep`` (bits), for good.  Of root only those of its threads to be: root
    stays root without -Z.
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
    # The lower 32 of the capabilities that we have.
    with open("/proc/thread-self/status", encoding="utf-8", errors="replace") as f:
        for line in f:
            if line.startswith("CapPrm:"):
                return int(line.split()[1], 16) & 0xFFFFFFFF
    return 0
