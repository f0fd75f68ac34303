"""A BPF object file of clang: its programs and maps, fitted to the kernel that runs.

The places of members of the kernel's structures are set from the kernel's BTF (CO-RE relocations: the kernel's
bpf/llvm_reloc.rst).  Programs are of the type tp_btf and call functions of the kernel only, also such without a fixed
number (kfuncs).  Maps are structures of five numbers (type, bytes of a key, bytes of a value, entries, flags) in the
section `maps`; .rodata and .bss are maps as well.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import NamedTuple

from confluo_tools.errors import ConfluoError
from confluo_tools.kernel.btf import ARRAY, FUNC, STRUCT, UNION, Btf

PROGRAM = "tp_btf/"
_BYTE_OFFSET, _EXISTS = 0, 2  # kinds of relocations
_LOAD_IMMEDIATE = 0x18
_MAP, _MAP_VALUE = 1, 2  # what an immediate value of 64 bits is
_KERNEL_CALL = 2  # what the immediate value of a call is
_ARRAY, _READ_ONLY, _MMAPABLE = 2, 1 << 7, 1 << 10  # type and flags of maps
_NOBITS = 8


class MapShape(NamedTuple):
    """As in struct bpf_attr of the kernel."""

    type: int
    key: int
    value: int
    entries: int
    flags: int


class _Section(NamedTuple):
    name: str
    type: int
    data: bytes
    size: int
    link: int
    info: int


@dataclass
class BpfProgram:
    """``code``: instructions; ``maps``: {instruction: (map, offset in its value or -1)} that need its descriptor."""

    event: str
    code: bytearray
    maps: dict[int, tuple[str, int]] = field(default_factory=dict)
    calls: dict[int, str] = field(default_factory=dict)  # {instruction: function of the kernel}


class BpfObject:
    """The programs and maps of an object file, for a kernel with the types ``kernel``.

    ``maps``: also .rodata and .bss.  Raises ConfluoError if the kernel lacks a member that they use, ValueError or
    struct.error if the file is damaged.
    """

    def __init__(self, data: bytes, kernel: Btf) -> None:
        self._sections = _sections(data)
        by_name = {s.name: number for number, s in enumerate(self._sections)}
        self._symbols = self._read_symbols()
        self.maps = {name: MapShape(*struct.unpack("5I", raw)) for name, raw in self._map_definitions(by_name["maps"])}
        self.initial: dict[str, bytes] = {}  # of the sections that are maps
        for name, flags in ((".rodata", _READ_ONLY), (".bss", _MMAPABLE)):
            if name in by_name:
                section = self._sections[by_name[name]]
                self.maps[name] = MapShape(_ARRAY, 4, section.size, 1, flags)
                self.initial[name] = section.data
        self.programs = {
            n: BpfProgram(s.name.removeprefix(PROGRAM), bytearray(s.data))
            for n, s in enumerate(self._sections)
            if s.name.startswith(PROGRAM)
        }
        self._use_maps()
        self.types = Btf(self._sections[by_name[".BTF"]].data)
        self._relocate(self._sections[by_name[".BTF.ext"]].data, kernel, by_name)
        self._call_functions(kernel)

    def _read_symbols(self) -> list[tuple[str, int, int, int]]:
        """(name, section, place, size) of each symbol."""
        table = next(s for s in self._sections if s.type == 2)
        names = self._sections[table.link].data
        out = []
        for name, _, _, section, value, size in struct.iter_unpack("<IBBHQQ", table.data):
            out.append((_text(names, name), section, value, size))
        return out

    def _map_definitions(self, maps: int) -> list[tuple[str, bytes]]:
        data = self._sections[maps].data
        return [(n, data[at : at + size]) for n, section, at, size in self._symbols if section == maps and size]

    def _use_maps(self) -> None:
        """Note which instructions need which map."""
        for section in self._sections:
            program = self.programs.get(section.info)
            if section.type != 9 or program is None:
                continue
            for place, info in struct.iter_unpack("<QQ", section.data):
                name, home, value, _ = self._symbols[info >> 32]
                at = self._sections[home].name
                if not home:
                    program.calls[place] = name
                elif at == "maps":
                    name = name or next(n for n, s, v, size in self._symbols if s == home and v == value and size)
                    program.maps[place] = (name, -1)
                else:
                    (addend,) = struct.unpack_from("<i", program.code, place + 4)
                    program.maps[place] = (at, value + addend)

    def _relocate(self, ext: bytes, kernel: Btf, by_name: dict[str, int]) -> None:
        """Apply the CO-RE relocations of .BTF.ext."""
        (header,) = struct.unpack_from("<I", ext, 4)
        start, size = struct.unpack_from("<II", ext, 24)
        at, end = header + start + 4, header + start + size
        while at < end:
            section, count = struct.unpack_from("<II", ext, at)
            program = self.programs[by_name[self.types.text(section)]]
            at += 8
            for place, type_id, access, kind in struct.iter_unpack("<IIII", ext[at : at + count * 16]):
                value = self._place(kernel, type_id, self.types.text(access), kind)
                _patch(program.code, place, value)
            at += count * 16

    def _place(self, kernel: Btf, type_id: int, access: str, kind: int) -> int:
        """The offset, in the kernel, of a member; or whether it exists."""
        if kind not in (_BYTE_OFFSET, _EXISTS):
            raise ValueError(f"a relocation of kind {kind}")
        ours, name = self.types.target(type_id), self.types.name(self.types.target(type_id))
        theirs = kernel.find(name, self.types.kind(ours)) if name else 0
        if not name:  # a typedef of an unnamed structure
            theirs = kernel.target(kernel.find(self.types.name(type_id), 8))
        offset = 0
        for step in [int(n) for n in access.split(":")][1:]:
            if self.types.kind(ours) == ARRAY:
                ours = self.types.target(self.types.element(ours))
                theirs = kernel.target(kernel.element(theirs))
                offset += step * kernel.size(theirs)
                continue
            member = self.types.members(ours)[step]
            ours = member.type
            if not member.name:
                continue
            found = kernel.member(theirs, member.name) if theirs and kernel.kind(theirs) in (STRUCT, UNION) else None
            if found is None:
                if kind == _EXISTS:
                    return 0
                raise ConfluoError(f"this kernel has no {name}.{member.name}")
            offset += found.offset
            theirs = found.type
        return 1 if kind == _EXISTS else offset

    def _call_functions(self, kernel: Btf) -> None:
        """Set the functions of the kernel (kfuncs) that the programs call."""
        for program in self.programs.values():
            for place, name in program.calls.items():
                number = kernel.find(name, FUNC)
                if not number:
                    raise ConfluoError(f"this kernel has no function {name}")
                program.code[place + 1] = program.code[place + 1] & 0x0F | _KERNEL_CALL << 4
                struct.pack_into("<hi", program.code, place + 2, 0, number)

    def program_with_maps(self, program: BpfProgram, descriptors: dict[str, int]) -> bytes:
        """The instructions with the descriptors of the maps."""
        code = bytearray(program.code)
        for place, (name, offset) in program.maps.items():
            code[place + 1] = code[place + 1] & 0x0F | (_MAP if offset < 0 else _MAP_VALUE) << 4
            struct.pack_into("<i", code, place + 4, descriptors[name])
            struct.pack_into("<i", code, place + 12, max(offset, 0))
        return bytes(code)


def _text(strings: bytes, at: int) -> str:
    return strings[at : strings.index(b"\0", at)].decode()


def _sections(data: bytes) -> list[_Section]:
    """The sections of an ELF file of 64 bits, little-endian."""
    if data[:6] != b"\x7fELF\2\1":
        raise ValueError("no ELF file")
    (table,) = struct.unpack_from("<Q", data, 40)
    size, count, names = struct.unpack_from("<HHH", data, 58)
    heads = [struct.unpack_from("<IIQQQQIIQQ", data, table + n * size) for n in range(count)]
    strings = data[heads[names][4] :]
    out = []
    for name, kind, _, _, at, length, link, info, _, _ in heads:
        content = bytes(length) if kind == _NOBITS else data[at : at + length]
        out.append(_Section(_text(strings, name), kind, content, length, link, info))
    return out


def _patch(code: bytearray, place: int, value: int) -> None:
    """Set the offset of a load or store, or the immediate value of an addition."""
    operation = code[place]
    if operation & 7 in (1, 2, 3):
        struct.pack_into("<h", code, place + 2, value)
    elif operation & 7 in (4, 7) or operation == _LOAD_IMMEDIATE:
        struct.pack_into("<i", code, place + 4, value)
    else:
        raise ValueError(f"a relocation of instruction {operation:#x}")
