"""Bytes from a neighbour: a Unix socket that takes one connection."""

from __future__ import annotations

import errno
import os
import socket
import stat
from contextlib import suppress

from confluo_tools.errors import ConfluoError, UsageError

UNIX = "unix:"


def listen(name: str) -> int:
    """Listen at unix:PATH, and wait for the first program that connects; returns the descriptor of the connection.

    Only programs of the same user can connect.  The socket is removed once a program has, so the next one waits until
    a program listens again.  Raises UsageError, and ConfluoError when a program listens there.
    """
    path = name.removeprefix(UNIX)
    if not path:
        raise UsageError("is not the address of a Unix socket", where=name, hint="write unix:PATH")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as door:
        before = os.umask(0o177)
        try:
            _bind(door, path, name)
        finally:
            os.umask(before)
        try:
            door.listen(1)
            connection, _ = door.accept()
        finally:
            with suppress(OSError):
                os.unlink(path)
    return connection.detach()


def _bind(door: socket.socket, path: str, name: str) -> None:
    try:
        if _is_left_over(path):
            os.unlink(path)
        door.bind(path)
    except OSError as e:
        why = "a program listens there" if e.errno == errno.EADDRINUSE else e.strerror or str(e)
        raise ConfluoError(why, where=name) from None


def _is_left_over(path: str) -> bool:
    """Whether the path is a socket at which no program listens."""
    try:
        if not stat.S_ISSOCK(os.stat(path).st_mode):
            return False
    except OSError:
        return False
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as probe:  # of another type, so it takes no connection
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            return True
        except OSError:
            return False
    return False
