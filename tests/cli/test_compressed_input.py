"""Compressed input that is short, empty, cut or damaged: every command ends and reports it, whatever the format."""

from __future__ import annotations

import gzip
import lzma
import random
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard

from confluo_tools.formats.registry import INPUTS
from forked_commands import Ran, run_forked
from make_capture import enhanced, interface, pcap, section
from make_telemetry import ethernet, ip4

PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": lambda data: gzip.compress(data, mtime=0),
    "xz": lzma.compress,
    "zstd": zstandard.compress,
}
COMMANDS = (
    ("query", "--count"),
    ("info",),
    ("convert", "-o", "tsv", "-w", "-"),
    ("vote", "-o", "tsv"),
    ("trace", "-w", "-", "-o", "tsv", "--from"),
    ("capture", "-w", "-", "-o", "tsv", "-r"),
)
FORMATS = [name for name in INPUTS if name != "multilog"]
FRAME = ethernet(ip4(b"", 17, b"\4\0\0\65\0\10\0\0"))
TEXT = {
    "tsv": b"#fields\ta\tb\n#types\tu32\tstring(8)\n1\tx\n2\ty\n",
    "csv": b"a,b\n1,x\n2,y\n",
    "ndjson": b'{"a":1,"b":"x"}\n{"a":2,"b":"y"}\n',
    "json": b'[{"a":1,"b":"x"},{"a":2,"b":"y"}]\n',
    "flock": b"Failing_link 1 2 0.1\nFP 1 3 0 1 0 2\nFID 1 3 10 1.5 10 1\n",
    "tshark": b"frame.time_epoch\tip.src\tip.dst\n1.0\t10.0.0.1\t10.0.0.2\n",
    "pcap": pcap([(10**18 + i, FRAME) for i in range(3)]),
    "pcapng": section() + interface() + b"".join(enhanced(i, FRAME) for i in range(3)),
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """A small input of each format."""
    folder = tmp_path_factory.mktemp("whole")
    (folder / "in.pcap").write_bytes(TEXT["pcap"])
    files = {"stream": "x.arrows", "arrow": "x.arrow", "parquet": "x.parquet"}
    for ran in run_forked([("convert", "in.pcap", "-w", name) for name in files.values()], folder):
        assert ran.status == 0, ran
    return {**TEXT, **{name: (folder / file).read_bytes() for name, file in files.items()}}


def damaged(packed: bytes, seed: str) -> list[bytes]:
    """Beginnings, flipped bits (most of them early), and bytes behind the end."""
    rng = random.Random(seed)
    cuts = [2, 3, 4, 5, 6, 8, 10, 11, 12, 17, 18, 19, 20, 24, 32, len(packed) // 2, len(packed) - 1]
    out = [packed[:n] for n in cuts if n < len(packed)]
    for limit in (8, 20, 64, len(packed)):
        for _ in range(4):
            broken = bytearray(packed)
            broken[rng.randrange(min(limit, len(packed)))] ^= 1 << rng.randrange(8)
            out.append(bytes(broken))
    return [*out, packed + b"x", packed + packed[:3]]


def run_all(inputs: list[bytes], folder: Path) -> list[Ran]:
    """Each input through query and one more command, in turn."""
    commands = []
    for i, data in enumerate(inputs):
        (folder / f"in{i}").write_bytes(data)
        for command in (COMMANDS[0], COMMANDS[1 + i % (len(COMMANDS) - 1)]):
            commands.append((*command, f"in{i}"))
    return run_forked(commands, folder)


def check(ran: Ran) -> None:
    """It ended with a status and, unless the input was whole, one line or more on stderr."""
    assert ran.status in (0, 1, 2), ran
    assert "Traceback" not in ran.err, ran
    assert "internal error" not in ran.err, ran
    if ran.status == 2:
        assert ran.err.startswith(f"confluo-{ran.argv[0]}: "), ran


@pytest.mark.parametrize("kind", PACKERS)
@pytest.mark.parametrize("size", range(9))
def test_few_bytes(kind: str, size: int, tmp_path: Path) -> None:
    """0 to 8 bytes that no format begins with: status 2 of every command."""
    (tmp_path / "x").write_bytes(PACKERS[kind](b"12345678"[:size]))
    for ran in run_forked([(*command, "x") for command in COMMANDS], tmp_path):
        check(ran)
        assert (ran.status, ran.out) == (2, ""), ran
        assert "is empty" in ran.err if size == 0 else "x: " in ran.err, ran


@pytest.mark.parametrize("kind", PACKERS)
@pytest.mark.parametrize("name", FORMATS)
def test_damage_of_every_format(name: str, kind: str, whole: dict[str, bytes], tmp_path: Path) -> None:
    for ran in run_all(damaged(PACKERS[kind](whole[name]), name + kind), tmp_path):
        check(ran)


@pytest.mark.parametrize("name", FORMATS)
def test_short_inputs_of_every_format(name: str, whole: dict[str, bytes], tmp_path: Path) -> None:
    """The first bytes of a format, compressed without damage, and not compressed."""
    starts = [whole[name][:n] for n in (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 24, 40)]
    packers = [*PACKERS.values(), bytes]
    for ran in run_all([packers[i % 4](start) for i, start in enumerate(starts)], tmp_path):
        check(ran)


@pytest.mark.parametrize("kind", PACKERS)
def test_early_damage_is_named(kind: str, tmp_path: Path) -> None:
    """Not 'is empty': the bytes are there, but cannot be read."""
    (tmp_path / "x").write_bytes(PACKERS[kind](TEXT["csv"])[:10])
    for ran in run_forked([(*command, "x") for command in COMMANDS], tmp_path):
        assert (ran.status, f"the {kind} data are cut off" in ran.err) == (2, True), ran
