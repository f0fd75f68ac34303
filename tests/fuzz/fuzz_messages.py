"""Fuzzes what reads messages of Kafka.

    python tests/fuzz/fuzz_messages.py [OPTION OF libFuzzer] CORPUS         under atheris, if it is installed
    python tests/fuzz/fuzz_messages.py --count N [--modules FOLDER]         N messages that are changed at random

A message that was changed gets its right checksum, so that what comes after it is reached, too.  Only FormatError may
be raised; what is read must be as its columns say.  FOLDER: compiled modules to test, see
`build_modules`.
"""

from __future__ import annotations

import argparse
import importlib.machinery
import importlib.util
import random
import sys
from contextlib import nullcontext
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support")]
MODULES = ("short_message", "message")
NUMBERS = (0, 1, 7, 8, 63, 64, 65, 4096, 1 << 16, 1 << 31, 1 << 32, 1 << 63, (1 << 64) - 8, (1 << 64) - 1)
CRC_AT, SIZE_AT = 12, 8  # of a short message


def load(folder: Path) -> None:
    """Use the compiled modules in ``folder`` instead of those of the package."""
    for name in MODULES:
        full = f"confluo_tools.core.kafka.{name}"
        loader = importlib.machinery.ExtensionFileLoader(full, str(folder / f"{name}.so"))
        spec = importlib.util.spec_from_file_location(full, loader.path, loader=loader)
        assert spec is not None
        sys.modules[full] = importlib.util.module_from_spec(spec)
        loader.exec_module(sys.modules[full])


if "--modules" in sys.argv:
    load(Path(sys.argv[sys.argv.index("--modules") + 1]))
if "--count" in sys.argv:
    watched = nullcontext()
else:
    import atheris

    watched = atheris.instrument_imports(
        include=["confluo_tools.kafka", "confluo_tools.formats", "confluo_tools.schema"]
    )

with watched:
    from confluo_tools.formats import arrow_meta  # noqa: F401
    from confluo_tools.kafka import message

from confluo_tools.core.kafka.message import MessagePacker
from confluo_tools.errors import FormatError
from confluo_tools.kafka.short_message import MAGIC, schema_hash, short_shape
from hostile_messages import crc32c, honest, numbers, sealed, with_envelope, with_schema

WANTED = honest()[0]
HONEST = honest()[2]


def narrow(short: bool = False) -> bytes:
    """Two fields of the honest rows: few bytes that do not matter."""
    schema, block = WANTED.project(["ts", "tcp_flags"]), honest()[1]
    packer = MessagePacker(message.shape_of(schema, "alpha", 0, 7), 100)
    if not short:
        return packer.pack(block.project(schema.layout), seq=3)
    shape = short_shape(schema.layout, schema_hash(message.schema_part(schema)), "alpha", 0, 7)
    return packer.pack_short(shape, block.project(schema.layout), seq=4)


def read(data: bytes) -> bool:
    """As a reader of a topic: one that knows the shape of honest messages, and one that knows nothing."""
    found = False
    for reader in (KNOWS, message.MessageReader()):
        try:
            schema, block, envelope = reader.read(data)
            rows = message.rows_as(schema, block, WANTED)
        except FormatError:
            continue
        found = True
        assert block.rows == envelope.records <= message.MAX_ROWS
        assert len(data) <= message.MAX_MESSAGE
        for i in range(rows.layout.n):
            bytes(rows.buffer(i))
            for row in (0, block.rows - 1):
                rows.get(i, row)
    return found


def right(data: bytes) -> bytes:
    """The message with its right checksum; a short one also with its length."""
    if not data.startswith(MAGIC) or len(data) < CRC_AT + 4:
        return sealed(data)
    data = data[:SIZE_AT] + len(data).to_bytes(4, "little") + bytes(4) + data[CRC_AT + 4 :]
    return data[:CRC_AT] + crc32c(data).to_bytes(4, "little") + data[CRC_AT + 4 :]


def one(data: bytes) -> bool:
    return read(data) | read(right(data))


def seeds() -> list[bytes]:
    """Messages that are right, and some that lie."""
    lies = [with_envelope(numbers(), rows=1 << 40), with_schema("{}")]
    return [narrow(), narrow(), narrow(), narrow(short=True), HONEST, with_envelope(numbers(seq=9)), *lies]


def changed(value: bytes, draw: random.Random) -> bytes:
    """A message with a few changes: bits, numbers, pieces that are missing, twice, or of another message."""
    data = bytearray(value)
    for _ in range(draw.choice((1, 1, 2, 4))):
        at = draw.randrange(len(data) or 1)
        kind = draw.randrange(10)
        if kind > 5:
            # The numbers of the batch say where the columns are.
            start = int.from_bytes(data[4:8], "little") + 8
            at = start + 8 * draw.randrange(30) if start < len(data) else at - at % 8
            number = int.from_bytes(data[at : at + 8], "little") + draw.choice((-64, -8, 8, 64, 1 << 14, 1 << 40))
            data[at : at + 8] = (number % (1 << 64)).to_bytes(8, "little")
        elif kind == 0:
            data[at : at + 1] = bytes([draw.randrange(256)])
        elif kind in (1, 2):
            size, number = draw.choice((2, 4, 8)), draw.choice((*NUMBERS, draw.randrange(1 << 12)))
            at -= at % size
            data[at : at + size] = (number % (1 << 8 * size)).to_bytes(size, "little")
        elif kind == 3:
            del data[at : at + draw.choice((1, 8, 64, len(data)))]
        elif kind == 4:
            data[at:at] = data[at : at + draw.choice((1, 8, 64))]
        else:
            other = draw.choice(SEEDS)
            data[at : at + 64] = other[at : at + 64]
    return bytes(data)


SEEDS = seeds()
KNOWS = message.MessageReader()
KNOWS.read(HONEST)
KNOWS.read(SEEDS[0])


def at_random(count: int, seed: int) -> None:
    """Reads ``count`` messages; says how many of them could be read."""
    draw, good = random.Random(seed), 0
    assert all(one(value) for value in SEEDS[:6])
    for number in range(count):
        value = changed(draw.choice(SEEDS), draw)
        try:
            good += one(value)
        except Exception:
            print(f"seed {seed}, message {number}: {value.hex()}", file=sys.stderr)
            raise
    print(f"{count} messages, {good} could be read")


def main() -> None:
    if "--count" in sys.argv:
        parser = argparse.ArgumentParser()
        parser.add_argument("--count", type=int)
        parser.add_argument("--modules")
        parser.add_argument("--seed", type=int, default=1)
        given = parser.parse_args()
        at_random(given.count, given.seed)
        return
    corpus = Path(sys.argv[-1])
    if not corpus.exists():
        corpus.mkdir(parents=True)
        for number, value in enumerate(SEEDS):
            (corpus / f"seed{number}").write_bytes(value)
    atheris.Setup(sys.argv, one)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
