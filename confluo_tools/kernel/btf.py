"""BTF, the types of a kernel or of a BPF object: names, members and their offsets.  The kernel's bpf/btf.rst."""

from __future__ import annotations

import struct
from array import array
from functools import cached_property
from typing import NamedTuple

from confluo_tools.errors import ConfluoError

VMLINUX = "/sys/kernel/btf/vmlinux"
MAGIC = 0xEB9F
INT, PTR, ARRAY, STRUCT, UNION, ENUM, FORWARD, TYPEDEF, VOLATILE, CONST, RESTRICT, FUNC, FUNC_PROTO = range(1, 14)
VAR, DATASEC, FLOAT, DECL_TAG, TYPE_TAG, ENUM64 = range(14, 20)
_FIXED = {INT: 1, ARRAY: 3, VAR: 1, DECL_TAG: 1}  # words after the head of a type
_EACH = {STRUCT: 3, UNION: 3, ENUM: 2, FUNC_PROTO: 2, DATASEC: 3, ENUM64: 3}  # words of each member
_THROUGH = (TYPEDEF, VOLATILE, CONST, RESTRICT, TYPE_TAG)


class Member(NamedTuple):
    """``offset``: in bytes; of a bit field, of the byte that it begins in."""

    name: str
    type: int
    offset: int


class Btf:
    """The types of BTF ``data``; ids as in the format, 0 is void.  Raises ValueError if it is damaged."""

    def __init__(self, data: bytes) -> None:
        magic, _, _, header, type_off, type_len, str_off, str_len = struct.unpack_from("<HBBIIIII", data)
        if magic != MAGIC:
            raise ValueError("no BTF")
        self._words = array("I")
        self._words.frombytes(data[header + type_off : header + type_off + type_len])
        self.strings = data[header + str_off : header + str_off + str_len]
        self._at = _places(self._words)

    def text(self, offset: int) -> str:
        return self.strings[offset : self.strings.index(b"\0", offset)].decode()

    def kind(self, type_id: int) -> int:
        return self._words[self._at[type_id] + 1] >> 24 & 31 if type_id else 0

    def name(self, type_id: int) -> str:
        return self.text(self._words[self._at[type_id]])

    @cached_property
    def _by_name(self) -> dict[int, list[int]]:
        """Ids of the types that have a name, by the place of the name."""
        found: dict[int, list[int]] = {}
        for type_id, at in enumerate(self._at):
            if type_id and self._words[at]:
                found.setdefault(self._words[at], []).append(type_id)
        return found

    def find(self, name: str, kind: int) -> int:
        """The id of a type; 0: there is none."""
        place = self.strings.find(b"\0" + name.encode() + b"\0") + 1
        found = self._by_name.get(place, []) if place else []
        return next((n for n in found if self.kind(n) == kind), 0)

    def target(self, type_id: int) -> int:
        """The type behind typedefs and qualifiers."""
        while self.kind(type_id) in _THROUGH:
            type_id = self._words[self._at[type_id] + 2]
        return type_id

    def element(self, type_id: int) -> int:
        """The type of the elements of an array."""
        return self._words[self._at[type_id] + 3]

    def size(self, type_id: int) -> int:
        """Bytes of a type."""
        type_id = self.target(type_id)
        kind, at = self.kind(type_id), self._at[type_id]
        if kind == PTR:
            return 8
        if kind == ARRAY:
            return self.size(self.element(type_id)) * self._words[at + 5]
        return self._words[at + 2]

    def members(self, type_id: int) -> list[Member]:
        """Of a structure or union."""
        at = self._at[type_id]
        words, info = self._words, self._words[at + 1]
        out = []
        for place in range(at + 3, at + 3 + (info & 0xFFFF) * 3, 3):
            bits = words[place + 2] & 0xFFFFFF if info >> 31 else words[place + 2]
            out.append(Member(self.text(words[place]), self.target(words[place + 1]), bits // 8))
        return out

    def member(self, type_id: int, name: str) -> Member | None:
        """A member by its name, also if it is within an unnamed one; its offset is from the start of ``type_id``."""
        for member in self.members(type_id):
            if member.name == name:
                return member
            if not member.name and self.kind(member.type) in (STRUCT, UNION):
                inner = self.member(member.type, name)
                if inner is not None:
                    return inner._replace(offset=inner.offset + member.offset)
        return None

    def shape(self, type_id: int) -> list[tuple[str, int, str]]:
        """(name, offset, code of struct) of each number in a type; names as in C, like a.b[2]."""
        type_id = self.target(type_id)
        at, kind = self._at[type_id], self.kind(type_id)
        if kind in (STRUCT, UNION):
            out = []
            for member in self.members(type_id):
                inner = self.shape(member.type)
                out += [(f".{member.name}{name}", member.offset + offset, code) for name, offset, code in inner]
            return out
        if kind == ARRAY:
            inner, size = self.shape(self.element(type_id)), self.size(self.element(type_id))
            count = self._words[at + 5]
            return [(f"[{n}]{name}", n * size + offset, code) for n in range(count) for name, offset, code in inner]
        code = "BHIQ"[self.size(type_id).bit_length() - 1]
        signed = kind == INT and self._words[at + 3] >> 24 & 1
        return [("", 0, code.lower() if signed else code)]


class StructReader:
    """Reads the numbers of the structure ``name`` of the types ``btf``, up to the member ``before`` if there is one."""

    def __init__(self, btf: Btf, name: str, before: str = "") -> None:
        shape = btf.shape(btf.find(name, STRUCT))
        if before:
            shape = shape[: next(n for n, (path, _, _) in enumerate(shape) if path.startswith(f".{before}"))]
        self._names = [path[1:] for path, _, _ in shape]
        text, end = "<", 0
        for _, offset, code in shape:
            text += f"{offset - end}x{code}"
            end = offset + struct.calcsize(code)
        self._format = struct.Struct(text)

    def read(self, data: bytes) -> dict[str, int]:
        """{path: value}, like 'sent.times.ts'."""
        return dict(zip(self._names, self._format.unpack_from(data), strict=True))


def _places(words: array[int]) -> array[int]:
    """Where each type begins."""
    out = array("I", (0,))
    place, end = 0, len(words)
    while place < end:
        out.append(place)
        info = words[place + 1]
        kind = info >> 24 & 31
        place += 3 + _FIXED.get(kind, 0) + (info & 0xFFFF) * _EACH.get(kind, 0)
    return out


def kernel_btf() -> Btf:
    """The types of the running kernel.  Raises ConfluoError."""
    try:
        with open(VMLINUX, "rb") as f:
            return Btf(f.read())
    except OSError as e:
        raise ConfluoError(f"cannot be read: {e.strerror}", where=VMLINUX) from None
    except (ValueError, struct.error, IndexError):
        raise ConfluoError("is not understood", where=VMLINUX) from None
