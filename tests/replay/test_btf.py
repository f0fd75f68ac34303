"""Types of the kernel, and of BPF objects: places of members as the C compiler has them."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import dpkt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from confluo_tools.errors import ConfluoError
from confluo_tools.kernel.bpf_object import BpfObject, _sections
from confluo_tools.kernel.btf import STRUCT, Btf, StructReader
from confluo_tools.replay.record.tcp_options import handshake_options

needs_clang = pytest.mark.skipif(shutil.which("clang") is None, reason="no clang")

TYPES = """
typedef struct { int z; long y[3]; } pair_t;
struct inner { char a; union { short b; int c; }; };
struct outer {
    char first;
    struct inner two[2];
    unsigned bits : 3, more : 7;
    union { struct { short deep; pair_t pair; }; long other; };
    const volatile struct inner *pointer;
    unsigned char last[5];
    signed char small;
};
"""
MEMBERS = ("first", "two", "deep", "pair", "other", "pointer", "last", "small")


def compiled(source: str, folder: Path) -> bytes:
    (folder / "t.c").write_text(source)
    words = ["clang", "-O2", "-g", "-target", "bpf", "-mcpu=v3", "-c", folder / "t.c", "-o", folder / "t.o"]
    subprocess.run(words, check=True)
    return (folder / "t.o").read_bytes()


def types_of(folder: Path, source: str) -> Btf:
    """As of a kernel: the section .BTF."""
    return Btf(next(s.data for s in _sections(compiled(source, folder)) if s.name == ".BTF"))


@needs_clang
def test_members_are_where_the_compiler_puts_them(tmp_path: Path) -> None:
    btf = types_of(tmp_path, f"{TYPES} struct outer global;")
    program = "#include <stdio.h>\n#include <stddef.h>\n" + TYPES + "int main(void) {"
    program += "".join([f'printf("%zu\\n", offsetof(struct outer, {name}));' for name in MEMBERS])
    program += 'printf("%zu\\n", offsetof(struct outer, pair.y[2])); printf("%zu\\n", sizeof(struct outer)); }'
    (tmp_path / "o.c").write_text(program)
    subprocess.run(["cc", tmp_path / "o.c", "-o", tmp_path / "o"], check=True)
    shown = subprocess.run([tmp_path / "o"], capture_output=True, text=True, check=True)
    offsets = [int(line) for line in shown.stdout.split()]
    outer = btf.find("outer", STRUCT)
    found = [btf.member(outer, name) for name in MEMBERS]
    assert [member.offset for member in found if member] == offsets[: len(MEMBERS)]
    shape = {path: (offset, code) for path, offset, code in btf.shape(outer)}
    assert shape[".two[1].a"][0] == offsets[1] + 8
    assert next(offset for path, (offset, _) in shape.items() if path.endswith("pair.y[2]")) == offsets[-2]
    assert (shape[".last[4]"][1], shape[".small"][1]) == ("B", "b")
    assert btf.size(outer) == offsets[-1]
    assert btf.member(outer, "none") is None
    assert btf.find("none", STRUCT) == 0


@needs_clang
def test_a_structure_is_read_as_the_compiler_wrote_it(tmp_path: Path) -> None:
    source = "struct t { char a; long b[2]; unsigned short c; short d; } one;"
    btf = types_of(tmp_path, source)
    text = f"#include <unistd.h>\n{source[:-5]}; struct t v = {{1, {{-2, 3}}, 65535, -4}};"
    (tmp_path / "w.c").write_text(text + "int main(void) { return write(1, &v, sizeof v) != sizeof v; }")
    subprocess.run(["cc", tmp_path / "w.c", "-o", tmp_path / "w"], check=True)
    data = subprocess.run([tmp_path / "w"], capture_output=True, check=True).stdout
    assert StructReader(btf, "t").read(data) == {"a": 1, "b[0]": -2, "b[1]": 3, "c": 65535, "d": -4}
    assert StructReader(btf, "t", before="c").read(data) == {"a": 1, "b[0]": -2, "b[1]": 3}


PROGRAM = """
#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)
struct inner { int value; };
struct outer { struct inner *next; int wanted; struct { int deep; }; };
#pragma clang attribute pop
struct map { unsigned type, key, value, entries, flags; };
struct map table __attribute__((section("maps"), used)) = {1, 4, 8, 16, 0};
__attribute__((section("tp_btf/point"), used)) int f(unsigned long long *ctx)
{
    struct outer *o = (void *)ctx[0];
    return o->wanted + o->deep + o->next->value;
}
"""


@needs_clang
def test_places_are_those_of_the_kernel(tmp_path: Path) -> None:
    """The same program for two kernels with other structures, and for one that lacks a member."""
    data = compiled(PROGRAM, tmp_path)
    other = "struct inner { long pad[4]; int value; };"
    other += "struct outer { int deep; int wanted; char x[90]; struct inner *next; } o;"
    nested = "struct inner { int value; };"
    nested += "struct outer { struct inner *next; struct { int wanted; union { int deep; long l; }; }; } o;"
    kernels = {other: {0, 4, 104, 32}, nested: {0, 8, 16}}
    for text, places in kernels.items():
        (tmp_path / "k").mkdir(exist_ok=True)
        content = BpfObject(data, types_of(tmp_path / "k", text + " struct inner i;"))
        (program,) = content.programs.values()
        loads = [program.code[at + 2] for at in range(0, len(program.code), 8) if program.code[at] & 7 == 1]
        assert set(loads) == places | {0}
        assert content.maps["table"] == (1, 4, 8, 16, 0)
    lacking = types_of(tmp_path / "k", "struct inner { int other; }; struct outer { int wanted; } o; struct inner i;")
    with pytest.raises(ConfluoError, match=r"this kernel has no outer\.(next|deep)"):
        BpfObject(data, lacking)


@given(st.integers(0, 0xFFFFFFFF), st.integers(0, 65535), st.integers(0, 14), st.booleans(), st.integers(0, 1 << 31))
def test_options_of_a_handshake(seq: int, mss: int, scale: int, sack: bool, stamp: int) -> None:
    options = b"\2\4" + mss.to_bytes(2, "big") + b"\1\3\3" + bytes([scale]) + (b"\4\2" if sack else b"\1\1")
    options += b"\x08\x0a" + stamp.to_bytes(4, "big") + bytes(4)
    options += b"\0" * (-len(options) % 4)
    header = bytes(dpkt.tcp.TCP(seq=seq, off=5 + len(options) // 4, opts=options))
    said = {kind: data for kind, data in dpkt.tcp.parse_opts(options) if data is not None}
    assert handshake_options(header.ljust(60, b"\0")) == {
        "isn": seq,
        "mss": int.from_bytes(said[2], "big"),
        "wscale": said[3][0],
        "sack": int(4 in said),
        "timestamps": int(stamp > 0),
    }


@given(st.binary(min_size=60, max_size=60))
def test_any_header_is_read(header: bytes) -> None:
    assert handshake_options(header)["isn"] == int.from_bytes(header[4:8], "big")
