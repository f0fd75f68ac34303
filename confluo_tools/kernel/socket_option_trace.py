"""Reports each setsockopt(2) of TCP sockets with its value, and each new TCP socket: BPF programs at a control group.

The programs end with their descriptors, so with this process, however it ends.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import socket
import struct
from typing import NamedTuple

from confluo_tools.errors import ConfluoError
from confluo_tools.kernel.bpf_call import bpf

RING = 1 << 18  # bytes: some 4,000 calls
_MAP_CREATE, _MAP_LOOKUP, _PROG_LOAD, _LINK_CREATE = 0, 1, 5, 28
_ARRAY, _RINGBUF = 2, 27  # maps
_CGROUP_SOCK, _CGROUP_SOCKOPT = 9, 25  # programs
_SOCK_CREATE, _SETSOCKOPT = 2, 22  # where they are attached
_KTIME, _NETNS, _OUTPUT = 5, 122, 130  # bpf_ktime_get_ns, bpf_get_netns_cookie, bpf_ringbuf_output
_EVENT = struct.Struct("<QQiii4x16sQ")  # time, socket, level, name, bytes of the value, value, network namespace
_SO_NETNS_COOKIE = 71
_BUSY, _DISCARDED = 1 << 31, 1 << 30
_TCP, _PAGE = 6, 4096
MADE = -1  # in place of a level: the socket is new


class SocketOption(NamedTuple):
    """``ts``: CLOCK_MONOTONIC, ns; ``sk``: address of the socket in the kernel; ``value``: its first 16 bytes."""

    ts: int
    sk: int
    level: int
    name: int
    value: bytes


class SocketOptionTrace:
    """Traces the sockets of the network namespace of this thread, from now on.

    Raises ConfluoError where the kernel or the rights do not permit it.
    """

    def __init__(self) -> None:
        self._fds: list[int] = []
        try:
            with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as here:
                self._space = int.from_bytes(here.getsockopt(socket.SOL_SOCKET, _SO_NETNS_COOKIE, 8), "little")
            group = self._keep(os.open(control_group(), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
            self._ring = self._keep(bpf(_MAP_CREATE, struct.pack("<IIII", _RINGBUF, 0, 0, RING)))
            self._lost = self._keep(bpf(_MAP_CREATE, struct.pack("<IIII", _ARRAY, 4, 8, 1)))
            self._consumer = mmap.mmap(self._ring, _PAGE, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
            size = _PAGE + 2 * RING
            self._producer = mmap.mmap(self._ring, size, mmap.MAP_SHARED, mmap.PROT_READ, offset=_PAGE)
            for code, kind, place in (
                (_option_program(self._ring, self._lost), _CGROUP_SOCKOPT, _SETSOCKOPT),
                (_socket_program(self._ring, self._lost), _CGROUP_SOCK, _SOCK_CREATE),
            ):
                program = self._keep(_load(code, kind, place))
                self._keep(bpf(_LINK_CREATE, struct.pack("<IIII", program, group, place, 0)))
        except OSError as e:
            self.close()
            raise ConfluoError(f"socket options cannot be traced: {e.strerror}") from None
        except BaseException:
            self.close()
            raise
        self._at = 0

    def _keep(self, fd: int) -> int:
        self._fds.append(fd)
        return fd

    def read(self) -> list[SocketOption]:
        """The calls since the last reading, in their order."""
        found = []
        end = int.from_bytes(self._producer[:8], "little")
        while self._at < end:
            place = _PAGE + self._at % RING
            (length,) = struct.unpack_from("<I", self._producer, place)
            if length & _BUSY:
                break
            size = length & ~_DISCARDED
            if not length & _DISCARDED and size >= _EVENT.size:
                ts, sk, level, name, used, value, space = _EVENT.unpack_from(self._producer, place + 8)
                if space == self._space:
                    found.append(SocketOption(ts, sk, level, name, value[: max(min(used, 16), 0)]))
            self._at += (size + 8 + 7) & ~7
        self._consumer[:8] = self._at.to_bytes(8, "little")
        return found

    def lost(self) -> int:
        """Calls lost because the ring was full."""
        key, value = ctypes.create_string_buffer(4), ctypes.create_string_buffer(8)
        bpf(_MAP_LOOKUP, struct.pack("<IIQQ", self._lost, 0, ctypes.addressof(key), ctypes.addressof(value)))
        return int.from_bytes(value.raw, "little")

    def close(self) -> None:
        for fd in reversed(self._fds):
            os.close(fd)
        self._fds = []


def control_group() -> str:
    """Where the root of the control groups (version 2) that this process sees is.  Raises ConfluoError."""
    with open("/proc/self/mounts", encoding="utf-8", errors="replace") as f:
        for line in f:
            words = line.split()
            if len(words) > 2 and words[2] == "cgroup2":
                return words[1].encode().decode("unicode_escape")
    raise ConfluoError("socket options cannot be traced: control groups of version 2 are not mounted")


# ---------------------------------------------------------------- programs: instructions of the kernel's BPF

_R0, _R1, _R2, _R3, _R4, _R6, _R7, _R8, _FP = 0, 1, 2, 3, 4, 6, 7, 8, 10
_BASE = -_EVENT.size  # of the event, on the stack


def _instruction(op: int, dst: int = 0, src: int = 0, off: int = 0, imm: int = 0) -> bytes:
    return struct.pack("<BBhi", op, dst | src << 4, off, imm)


def _move(dst: int, src: int) -> bytes:
    return _instruction(0xBF, dst, src)


def _set(dst: int, value: int) -> bytes:
    return _instruction(0xB7, dst, imm=value)


def _load8(dst: int, src: int, off: int) -> bytes:
    return _instruction(0x79, dst, src, off)


def _load4(dst: int, src: int, off: int) -> bytes:
    return _instruction(0x61, dst, src, off)


def _store(size: int, src: int, off: int) -> bytes:
    """Into the event."""
    return _instruction({4: 0x63, 8: 0x7B}[size], _FP, src, _BASE + off)


def _address(dst: int, fd: int, kind: int) -> bytes:
    """``kind``: 1 the map, 2 its first value."""
    return _instruction(0x18, dst, kind, imm=fd) + _instruction(0)


def _skip(code: bytes, op: int, dst: int, imm: int, *, src: int = 0) -> bytes:
    """``code``, left out if the comparison holds."""
    return _instruction(op, dst, src, len(code) // 8, imm) + code


_JNE, _JEQ, _JLE, _JGT = 0x55, 0x15, 0xB5, 0x2D  # the last one compares registers


def _output(ring: int, lost: int) -> bytes:
    """Write the event, or count it as lost."""
    count = _address(_R1, lost, 2) + _set(_R2, 1) + _instruction(0xDB, _R1, _R2)  # atomic add
    return (
        _address(_R1, ring, 1)
        + _move(_R2, _FP)
        + _instruction(0x07, _R2, imm=_BASE)
        + _set(_R3, _EVENT.size)
        + _set(_R4, 0)
        + _instruction(0x85, imm=_OUTPUT)
        + _skip(count, _JEQ, _R0, 0)
    )


def _when_and_where() -> bytes:
    space = _move(_R1, _R6) + _instruction(0x85, imm=_NETNS) + _store(8, _R0, 48)
    return space + _instruction(0x85, imm=_KTIME) + _store(8, _R0, 0)


_ALLOW = _set(_R0, 1) + _instruction(0x95)


def _option_program(ring: int, lost: int) -> bytes:
    """At setsockopt: struct bpf_sockopt has sk, optval, optval_end, level, optname and optlen."""
    value = _load8(_R1, _R8, 0) + _store(8, _R1, 32) + _load8(_R1, _R8, 8) + _store(8, _R1, 40)
    report = (
        _when_and_where()
        + _store(8, _R7, 8)
        + b"".join([_load4(_R1, _R6, 24 + 4 * n) + _store(4, _R1, 16 + 4 * n) for n in range(3)])
        + _set(_R1, 0)
        + b"".join([_store(8, _R1, place) for place in (32, 40)])
        + _store(4, _R1, 28)
        + _load8(_R8, _R6, 8)
        + _load8(_R2, _R6, 16)
        + _move(_R1, _R8)
        + _instruction(0x07, _R1, imm=16)
        + _skip(value, _JGT, _R1, 0, src=_R2)
        + _output(ring, lost)
    )
    # A value beyond one page is not given to programs: zero says to the kernel that the caller's holds.
    large = _set(_R2, 0) + _instruction(0x63, _R6, _R2, 32)
    return (
        _move(_R6, _R1)
        + _load8(_R7, _R6, 0)
        + _load4(_R1, _R7, 12)
        + _skip(report, _JNE, _R1, _TCP)
        + _load4(_R1, _R6, 32)
        + _instruction(0x67, _R1, imm=32)  # optlen is signed
        + _instruction(0xC7, _R1, imm=32)
        + _skip(large, 0xD5, _R1, _PAGE)
        + _ALLOW
    )


def _socket_program(ring: int, lost: int) -> bytes:
    """At the creation of a socket; the context is the socket."""
    report = (
        _when_and_where()
        + _store(8, _R6, 8)
        + _set(_R1, MADE)
        + _store(4, _R1, 16)
        + _set(_R1, 0)
        + b"".join([_store(8, _R1, place) for place in (24, 32, 40)])
        + _store(4, _R1, 20)
        + _output(ring, lost)
    )
    return _move(_R6, _R1) + _load4(_R1, _R6, 12) + _skip(report, _JNE, _R1, _TCP) + _ALLOW


def _load(code: bytes, kind: int, place: int) -> int:
    memory, text = ctypes.create_string_buffer(code, len(code)), ctypes.create_string_buffer(b"GPL")
    words = [kind, len(code) // 8, ctypes.addressof(memory), ctypes.addressof(text)]
    attributes = struct.pack("<IIQQIIQII16sII", *words, 0, 0, 0, 0, 0, b"confluo_options", 0, place)
    return bpf(_PROG_LOAD, attributes)
