"""Generate declarations of the packet parser into build/generated, from the tables that Python uses.

c_packet_columns.pxd, from confluo_tools/schema/packet.yaml: of each column its number, its array in the rows of a
batch, its entry in the list of columns.  c_link_types.pxd, from confluo_tools/schema/link_types.py: numbers of link
types, and the entry of the parser for each.  setup.py calls `generate` before it compiles; a file is written only when
its text changes, so that unchanged tables compile nothing.
"""

from __future__ import annotations

from pathlib import Path

from confluo_tools.schema import Column, builtin
from confluo_tools.schema.link_types import COOKED, LINK_TYPES

MAX_COLUMNS = 64  # bits of the mask of columns written
HOPS = 8  # elements of a list, as in c_packet_rows.pxd

# code of c_block.pxd -> (its name there, type of C)
CODES = {
    1: ("U8", "uint8_t"),
    2: ("U16", "uint16_t"),
    3: ("U32", "uint32_t"),
    4: ("U64", "uint64_t"),
    5: ("I8", "int8_t"),
    6: ("I16", "int16_t"),
    7: ("I32", "int32_t"),
    8: ("I64", "int64_t"),
}
BYTES = 11


def declaration(column: Column) -> tuple[str, str, str]:
    """(declaration in Rows, code, bytes a row) of a column.  Raises ValueError for a type the parser cannot fill."""
    name, size = column.name, column.size
    if column.count > 1:
        # Lists are parsed as u32, wider than in the schema: values that are too large are detected at the end.
        if column.count == HOPS and column.code == 8:
            return f"int64_t {name}[ROWS8][HOPS]", "I64", "8 * HOPS"
        if column.count != HOPS or column.code not in (1, 2, 3):
            raise ValueError(f"packet.yaml: {name}: a list of a packet must be list(T, {HOPS}), T at most u32")
        return f"uint32_t {name}[ROWS4][HOPS]", "U32", "4 * HOPS"
    if column.code == BYTES and size == 16:
        return f"uint8_t {name}[ROWS16][16]", "BYTES", "16"
    if column.code not in CODES:
        raise ValueError(f"packet.yaml: {name}: {column.field.type} is not a type of a packet field")
    code, c_type = CODES[column.code]
    return f"{c_type} {name}[ROWS{size}]", code, str(size)


def packet_columns() -> str:
    """The text of c_packet_columns.pxd."""
    schema = builtin("packet")
    columns = schema.columns
    if len(columns) > MAX_COLUMNS:
        raise ValueError(f"packet.yaml: {len(columns)} columns; {MAX_COLUMNS} are possible")
    declared = [(column.name, *declaration(column)) for column in columns]
    notes = next(field for field in schema.fields if field.name == "notes").names
    lines = [
        "# Generated from confluo_tools/schema/packet.yaml by pyx/packets/generate.py; do not edit.",
        "",
        "from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t",
        "from c_block cimport U8, U16, U32, U64, I8, I16, I32, I64, BYTES",
        "from c_packet_rows cimport HOPS, ROWS1, ROWS2, ROWS4, ROWS8, ROWS16",
        "",
        "# Column numbers: bits of the mask of columns that were written.",
        "cdef enum Col:",
        *(f"    C_{name.upper()}" for name, *_ in declared),
        "    COLS",
        "",
        "cdef struct Rows:",
        *(f"    {array}" for _, array, _, _ in declared),
        "    uint64_t used               # bit per column: something was written since it was last zeroed",
        "    bint hop_ns                 # switches write nanoseconds after their seconds, not microseconds",
        "",
        "cdef inline list packet_columns(Rows* r):",
        '    """(name, code, bytes a row, offset in Rows) of each column."""',
        "    cdef size_t start = <size_t>r",
        "    return [",
        *(f'        ("{name}", {code}, {size}, <size_t>r.{name} - start),' for name, _, code, size in declared),
        "    ]",
        "",
        "cdef inline tuple note_names():",
        '    """Names of the bits of the field `notes`."""',
        f"    return ({', '.join(repr(notes[bit]) for bit in sorted(notes))},)",
    ]
    return "\n".join(lines) + "\n"


def link_types() -> str:
    """The text of c_link_types.pxd."""
    named = {link.name: number for number, link in reversed(LINK_TYPES.items())}  # the first of a name
    parsers = list(dict.fromkeys(link.parser for link in LINK_TYPES.values()))
    lines = [
        "# Generated from confluo_tools/schema/link_types.py by pyx/packets/generate.py; do not edit.",
        "",
        "from libc.stdint cimport uint16_t",
        "",
        "cdef enum:",
        *(f"    LINKTYPE_{name} = {number}" for name, number in sorted(named.items())),
        "",
        "cdef enum Parser:               # entries of open_link",
        "    PARSE_NOTHING",
        *(f"    PARSE_{name.upper()}" for name in parsers),
        "",
        "cdef inline Parser parser_of(uint16_t link) noexcept nogil:",
    ]
    for parser in parsers:
        test = " or ".join(f"link == {n}" for n, link in LINK_TYPES.items() if link.parser == parser)
        lines += [f"    if {test}:", f"        return PARSE_{parser.upper()}"]
    lines += [
        "    return PARSE_NOTHING",
        "",
        "cdef inline uint16_t link_of_hardware(uint16_t hardware) noexcept nogil:",
        '    """Link type of the frames of an interface; LINKTYPE_LINUX_SLL where the link header has no parser."""',
    ]
    for number, link in LINK_TYPES.items():
        if link.hardware:
            lines += [f"    if {' or '.join(f'hardware == {n}' for n in link.hardware)}:", f"        return {number}"]
    lines += [f"    return {COOKED}"]
    return "\n".join(lines) + "\n"


def generate(folder: Path) -> None:
    """Write each file into ``folder`` unless it is there with the same text."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in (("c_packet_columns.pxd", packet_columns()), ("c_link_types.pxd", link_types())):
        path = folder / name
        if not path.exists() or path.read_text() != text:
            path.write_text(text)
