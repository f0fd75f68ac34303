"""BPF programs at the kernel's trace points, and their maps: bpf(2).

Nothing has a name in the kernel: all of it ends with the descriptors, so with the process.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import struct
from collections.abc import Iterator

from confluo_tools.errors import ConfluoError
from confluo_tools.kernel.bpf_call import bpf
from confluo_tools.kernel.bpf_object import BpfObject, MapShape
from confluo_tools.kernel.btf import TYPEDEF, Btf

_CREATE, _LOOKUP, _UPDATE, _DELETE, _NEXT, _LOAD, _OPEN, _LOOKUP_DELETE, _FREEZE = 0, 1, 2, 3, 4, 5, 17, 21, 22
_TRACING, _RAW_TRACE_POINT = 26, 23
_LICENSE = b"GPL\0"
_LOG = 1 << 20  # bytes of what the verifier says


class BpfMap:
    """A map by its descriptor.  Keys and values are bytes."""

    def __init__(self, fd: int, shape: MapShape) -> None:
        self.fd, self.shape = fd, shape

    def _element(self, command: int, key: bytes, value: ctypes.Array[ctypes.c_char] | None, flags: int = 0) -> bool:
        place = ctypes.create_string_buffer(key, len(key))
        target = ctypes.addressof(value) if value is not None else 0
        try:
            bpf(command, struct.pack("IxxxxQQQ", self.fd, ctypes.addressof(place), target, flags))
        except FileNotFoundError:
            return False
        return True

    def get(self, key: bytes) -> bytes | None:
        value = ctypes.create_string_buffer(self.shape.value)
        return value.raw if self._element(_LOOKUP, key, value) else None

    def pop(self, key: bytes) -> bytes | None:
        """The value, which leaves the map."""
        value = self.get(key)
        if value is not None:
            self._element(_DELETE, key, None)
        return value

    def set(self, key: bytes, value: bytes) -> None:
        self._element(_UPDATE, key, ctypes.create_string_buffer(value, len(value)))

    def keys(self) -> Iterator[bytes]:
        """All keys.  One that is taken away meanwhile starts them again."""
        key, following = None, ctypes.create_string_buffer(self.shape.key)
        while True:
            place = ctypes.create_string_buffer(key, len(key)) if key is not None else None
            at = ctypes.addressof(place) if place is not None else 0
            try:
                bpf(_NEXT, struct.pack("IxxxxQQQ", self.fd, at, ctypes.addressof(following), 0))
            except FileNotFoundError:
                return
            key = following.raw
            yield key


class BpfPrograms:
    """The maps and programs of an object in the kernel; `attach` starts them, `close` ends them.

    ``read_only``: what the section .rodata holds.  Raises ConfluoError if the kernel refuses them.
    """

    def __init__(self, content: BpfObject, kernel: Btf, read_only: bytes) -> None:
        self.maps: dict[str, BpfMap] = {}
        self._programs: list[tuple[str, int]] = []
        self._links: list[int] = []
        try:
            for name, shape in content.maps.items():
                self.maps[name] = BpfMap(_create(name, shape), shape)
            if ".rodata" in self.maps:
                constants = self.maps[".rodata"]
                constants.set(bytes(4), read_only.ljust(constants.shape.value, b"\0"))
                bpf(_FREEZE, struct.pack("I", constants.fd))
            fds = {name: m.fd for name, m in self.maps.items()}
            for program in content.programs.values():
                number = kernel.find(f"btf_trace_{program.event}", TYPEDEF)
                if not number:
                    raise ConfluoError(f"this kernel has no trace point {program.event}")
                code = content.program_with_maps(program, fds)
                self._programs.append((program.event, _load(program.event, code, number)))
        except OSError as e:
            self.close()
            raise ConfluoError(f"the kernel refuses BPF maps: {_why(e)}") from None
        except BaseException:
            self.close()
            raise

    def attach(self) -> None:
        """Run the programs from now on: the first one of the object last.  Raises ConfluoError."""
        for event, fd in reversed(self._programs):
            try:
                self._links.append(bpf(_OPEN, struct.pack("QI", 0, fd)))
            except OSError as e:
                raise ConfluoError(f"the kernel refuses a BPF program at {event}: {_why(e)}") from None

    def close(self) -> None:
        for fd in [*self._links, *(fd for _, fd in self._programs), *(m.fd for m in self.maps.values())]:
            os.close(fd)
        self._links, self._programs, self.maps = [], [], {}


def map_ring(ring: BpfMap) -> tuple[mmap.mmap, mmap.mmap]:
    """The pages of a ring buffer: that of the consumer, and those of the producer with the data twice."""
    page = mmap.PAGESIZE
    consumer = mmap.mmap(ring.fd, page, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
    producer = mmap.mmap(ring.fd, page + 2 * ring.shape.entries, mmap.MAP_SHARED, mmap.PROT_READ, offset=page)
    return consumer, producer


def _create(name: str, shape: MapShape) -> int:
    text = name.strip(".").encode()[:15]
    return bpf(_CREATE, struct.pack("IIIII", *shape) + struct.pack("II16s", 0, 0, text))


def _load(name: str, code: bytes, trace_point: int) -> int:
    instructions = ctypes.create_string_buffer(code, len(code))
    terms = ctypes.create_string_buffer(_LICENSE)
    said = ctypes.create_string_buffer(_LOG)

    def attributes(level: int) -> bytes:
        first = struct.pack(
            "IIQQIIQ",
            _TRACING,
            len(code) // 8,
            ctypes.addressof(instructions),
            ctypes.addressof(terms),
            level,
            _LOG if level else 0,
            ctypes.addressof(said) if level else 0,
        )
        second = struct.pack(
            "II16sIIIIQIIQII", 0, 0, name.encode()[:15], 0, _RAW_TRACE_POINT, 0, 0, 0, 0, 0, 0, 0, trace_point
        )
        return first + second

    try:
        return bpf(_LOAD, attributes(0))
    except PermissionError as e:
        why: OSError = e
    except OSError as e:
        why = e
    try:
        return bpf(_LOAD, attributes(1))
    except OSError:
        lines = said.value.decode(errors="replace").strip().splitlines()
        reason = next((line for line in reversed(lines) if line and not line.startswith("processed")), _why(why))
        raise ConfluoError(f"the kernel refuses a BPF program at {name}: {reason}") from None


def _why(e: OSError) -> str:
    if e.errno == errno.EPERM:
        return "the capabilities CAP_BPF and CAP_PERFMON are needed"
    return e.strerror or str(e)
