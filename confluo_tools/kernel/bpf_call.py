"""The system call bpf(2)."""

from __future__ import annotations

import ctypes
import errno
import functools
import os
import platform

_NUMBER = {"x86_64": 321, "aarch64": 280, "riscv64": 280, "loongarch64": 280, "ppc64le": 361, "s390x": 351}
_SIZE = 128  # bytes of the attributes that we give: the kernel wants the others to be zero


@functools.cache
def _library() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def bpf(command: int, attributes: bytes) -> int:
    """What the call returns: a descriptor, or 0.  Raises OSError."""
    number = _NUMBER.get(platform.machine())
    if number is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    buffer = ctypes.create_string_buffer(attributes.ljust(_SIZE, b"\0"), _SIZE)
    done = _library().syscall(ctypes.c_long(number), command, ctypes.byref(buffer), _SIZE)
    if done < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return int(done)
