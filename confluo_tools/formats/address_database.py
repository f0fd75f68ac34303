"""Databases of addresses: files of the MaxMind DB format 2.0 (.mmdb), such as GeoLite2-City and GeoLite2-ASN.

https://maxmind.github.io/MaxMind-DB/ is the specification.  A file is read whole, so that one that is changed in place
does no harm.  What a record may hold is limited: files come from elsewhere.
"""

from __future__ import annotations

import os
import stat
import struct
from typing import Any

from confluo_tools.errors import FormatError

MARKER = b"\xab\xcd\xefMaxMind.com"
METADATA_BYTES = 128 << 10  # the marker is that near to the end
AFTER_TREE = 16
DEPTH = 32  # of maps and arrays in each other
VALUES = 10_000  # of a record
TEXT_BYTES = 1 << 20  # of a record
REMEMBERED = 32 << 20  # bytes of what records point to, and at least 64 for each value
WHAT = "is not a MaxMind DB file"

POINTER, TEXT, DOUBLE, BYTES, U16, U32, MAP, I32, U64, U128, ARRAY = range(1, 12)
BOOLEAN, FLOAT = 14, 15


class DamagedDataError(ValueError):
    """A value of a database cannot be read."""


class DataSection:
    """Values in ``data`` from ``start`` to ``end``; their places are bytes after ``start``."""

    def __init__(self, data: bytes, start: int, end: int) -> None:
        self._data, self._start, self._end = data, start, end
        self._shared: dict[int, Any] = {}
        self._values = self._bytes = self._kept = 0

    def value(self, place: int) -> Any:
        """The value at a place.  Raises DamagedDataError."""
        self._values, self._bytes = VALUES, TEXT_BYTES
        if self._kept > REMEMBERED:
            self._shared.clear()
            self._kept = 0
        try:
            return self._read(self._start + place, DEPTH)[0]
        except (IndexError, struct.error, UnicodeDecodeError) as e:
            raise DamagedDataError(f"a value at byte {self._start + place} is damaged") from e
        finally:
            self._kept += TEXT_BYTES - self._bytes + 64 * (VALUES - self._values)

    def _read(self, at: int, depth: int) -> tuple[Any, int]:
        # The value and the place after it.
        self._values -= 1
        if not depth or self._values < 0:
            raise DamagedDataError(f"a value near byte {at} is too large, or contains itself")
        first = self._byte(at)
        kind, at = first >> 5, at + 1
        if kind == POINTER:
            return self._pointed(first, at, depth)
        if kind == 0:
            kind, at = 7 + self._byte(at), at + 1
        size, at = self._size(first & 31, at)
        if kind == MAP:
            return self._map(size, at, depth)
        if kind == ARRAY:
            items = []
            for _ in range(size):
                item, at = self._read(at, depth - 1)
                items.append(item)
            return items, at
        if kind == BOOLEAN:
            return size != 0, at
        raw = self._take(at, size)
        return _scalar(kind, raw, at), at + size

    def _map(self, size: int, at: int, depth: int) -> tuple[dict[str, Any], int]:
        out: dict[str, Any] = {}
        for _ in range(size):
            key, at = self._read(at, depth - 1)
            if not isinstance(key, str):
                raise DamagedDataError(f"a name near byte {at} is not text")
            out[key], at = self._read(at, depth - 1)
        return out, at

    def _pointed(self, first: int, at: int, depth: int) -> tuple[Any, int]:
        size = first >> 3 & 3
        more = int.from_bytes(self._take(at, size + 1), "big")
        place = more if size == 3 else ((first & 7) << 8 * (size + 1) | more) + (0, 2048, 526336)[size]
        if place not in self._shared:
            if self._byte(self._start + place) >> 5 == POINTER:
                raise DamagedDataError(f"a pointer at byte {at - 1} points to a pointer")
            self._shared[place] = self._read(self._start + place, depth - 1)[0]
        return self._shared[place], at + size + 1

    def _size(self, size: int, at: int) -> tuple[int, int]:
        if size < 29:
            return size, at
        more = size - 28
        return int.from_bytes(self._take(at, more), "big") + (29, 285, 65821)[more - 1], at + more

    def _byte(self, at: int) -> int:
        if not self._start <= at < self._end:
            raise IndexError
        return self._data[at]

    def _take(self, at: int, size: int) -> bytes:
        self._bytes -= size
        if at + size > self._end or self._bytes < 0:
            raise IndexError
        return self._data[at : at + size]


def _scalar(kind: int, raw: bytes, at: int) -> Any:
    if kind == TEXT:
        return raw.decode()
    if kind == BYTES:
        return raw
    if kind in (U16, U32, U64, U128):
        return int.from_bytes(raw, "big")
    if kind == I32:
        return int.from_bytes(raw, "big", signed=len(raw) == 4)
    if kind in (DOUBLE, FLOAT):
        return struct.unpack(">d" if kind == DOUBLE else ">f", raw)[0]
    raise DamagedDataError(f"a value at byte {at} is of an unknown type ({kind})")


class AddressDatabase:
    """The database in the file ``path``: its ``kind``, such as GeoLite2-City, its search tree and its records.

    Raises FormatError.
    """

    def __init__(self, path: str) -> None:
        from confluo_tools.core.query.address_tree import AddressTree

        self.path = path
        data = _read_file(path)
        found = data.rfind(MARKER, max(len(data) - METADATA_BYTES, 0))
        if found < 0:
            raise FormatError(WHAT, where=path, hint="it has no metadata at its end; is it complete and unpacked?")
        try:
            about = DataSection(data, found + len(MARKER), len(data)).value(0)
            about = about if isinstance(about, dict) else {}
            nodes, bits, version, major = (
                _number(about, name)
                for name in ("node_count", "record_size", "ip_version", "binary_format_major_version")
            )
            if major != 2 or version not in (4, 6):
                raise DamagedDataError(f"its metadata name format {major}, IP version {version}")
            start = nodes * bits // 4 + AFTER_TREE
            if start > found:
                raise DamagedDataError("is shorter than its search tree")
            self.tree = AddressTree(data, nodes, bits, version == 6, found - start)
        except (DamagedDataError, ValueError) as e:
            raise self._damaged(e) from None
        kind = about.get("database_type")
        self.kind = kind if isinstance(kind, str) else ""
        self._records = DataSection(data, start, found)

    def record(self, number: int) -> dict[str, Any]:
        """The record with a number of the tree, empty if it is not a map.  Raises FormatError."""
        try:
            found = self._records.value(self.tree.offsets[number])
        except DamagedDataError as e:
            raise self._damaged(e) from None
        return found if isinstance(found, dict) else {}

    def numbers(self, *rows: Any) -> bytearray:
        """As `AddressTree.numbers`.  Raises FormatError."""
        try:
            return self.tree.numbers(*rows)
        except ValueError as e:
            raise self._damaged(e) from None

    def _damaged(self, e: Exception) -> FormatError:
        return FormatError(f"is a damaged MaxMind DB file: {e}", where=self.path, hint="fetch it again")


def _number(about: dict[str, Any], name: str) -> int:
    value = about.get(name)
    if not isinstance(value, int) or not 0 <= value < 1 << 32:
        raise DamagedDataError(f"its metadata have no {name}")
    return value


def _read_file(path: str) -> bytes:
    try:
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise FormatError("is not a file", where=path, hint="--geo takes .mmdb files")
            return file.read()
    except OSError as e:
        raise FormatError(e.strerror or str(e), where=path, hint="--geo takes .mmdb files") from None
