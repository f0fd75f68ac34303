"""Network namespaces: enter one for a while, or go into a new one.  network_namespaces(7)."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager

from confluo_tools.errors import ConfluoError, UsageError

_CLONE_NEWNET = 0x40000000
_NS = "/proc/thread-self/ns/net"


@contextmanager
def inside(netns: str | None) -> Iterator[None]:
    """Enter a network namespace, a name of ip-netns(8) or a path, in this thread.  Raises UsageError."""
    if netns is None:
        yield
        return
    libc = ctypes.CDLL(None, use_errno=True)
    path = netns if "/" in netns else f"/run/netns/{netns}"
    try:
        here = os.open(_NS, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as e:
        raise ConfluoError(f"cannot be opened: {e.strerror}", where=_NS) from None
    try:
        try:
            there = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as e:
            hint = "ip netns lists them"
            raise UsageError(f"is not a network namespace: {e.strerror}", where=netns, hint=hint) from None
        try:
            if libc.setns(there, _CLONE_NEWNET):
                why = os.strerror(ctypes.get_errno())
                raise UsageError(f"cannot be entered: {why}", where=netns, hint="CAP_SYS_ADMIN is needed")
        finally:
            os.close(there)
        try:
            yield
        finally:
            if libc.setns(here, _CLONE_NEWNET):
                raise ConfluoError("cannot return to the previous network namespace", where=netns)
    finally:
        os.close(here)


def unshare_network() -> None:
    """Move this thread into a new network namespace without a name: it ends with its last process.

    Raises ConfluoError.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNET):
        why = os.strerror(ctypes.get_errno())
        raise ConfluoError(f"no new network namespace: {why}", hint="CAP_SYS_ADMIN is needed: run it with sudo")
