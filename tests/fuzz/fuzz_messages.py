"""Fuzzes what reads messages of Kafka, under atheris: python tests/fuzz/fuzz_messages.py [OPTION OF libFuzzer] CORPUS

A message that was changed gets its right checksum, so that what comes after it is reached, too.  Only FormatError may
be raised; what is read must be as its columns say.
"""

from __future__ import annotations

import sys
from pathlib import Path

import atheris

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support")]

with atheris.instrument_imports(include=["confluo_tools.kafka", "confluo_tools.formats", "confluo_tools.schema"]):
    from confluo_tools.formats import arrow_meta  # noqa: F401
    from confluo_tools.kafka import message

from confluo_tools.errors import FormatError
from hostile_messages import honest, numbers, sealed, with_envelope, with_schema

WANTED = honest()[0]
HONEST = honest()[2]


def read(data: bytes) -> None:
    """As a reader of a topic: one that knows the shape of honest messages, and one that knows nothing."""
    for known in ([HONEST], []):
        reader = message.MessageReader()
        for value in known:
            reader.read(value)
        try:
            schema, block, envelope = reader.read(data)
            rows = message.rows_as(schema, block, WANTED)
        except FormatError:
            continue
        assert block.rows == envelope.records <= message.MAX_ROWS
        assert len(data) <= message.MAX_MESSAGE
        for i in range(rows.layout.n):
            bytes(rows.buffer(i))
            for row in (0, block.rows - 1):
                rows.get(i, row)


def one(data: bytes) -> None:
    read(data)
    read(sealed(data))


def seeds(folder: Path) -> None:
    """Messages that are right, and some that lie."""
    folder.mkdir(parents=True, exist_ok=True)
    made = [HONEST, with_envelope(numbers(seq=9)), with_envelope(numbers(), rows=1 << 40), with_schema("{}")]
    for number, value in enumerate(made):
        (folder / f"seed{number}").write_bytes(value)


def main() -> None:
    corpus = Path(sys.argv[-1])
    if not corpus.exists():
        seeds(corpus)
    atheris.Setup(sys.argv, one)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
