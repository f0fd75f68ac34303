"""confluo-stream unpack: the records in messages.  Manual: confluo-stream-unpack(1)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from confluo_tools import cli
from confluo_tools.cli.options import option
from confluo_tools.errors import FormatError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from confluo_tools.core.block.block import Block
    from confluo_tools.kafka.message import Envelope
    from confluo_tools.schema import Schema

app = cli.command_app(
    """
# what is in this message?
kcat -C -b broker -t telemetry -c 1 -e -D '' | confluo-stream unpack | jq .

# only its place in its sequence
confluo-stream unpack --envelope < message.bin
"""
)


@app.command(panels={"Options": "--envelope"})
def unpack(
    inputs: cli.Inputs = None,
    envelope: Annotated[bool, option("--envelope", help="Print the envelope of each message instead.")] = False,
    *,
    out: cli.OutputOptions,
    common: cli.CommonOptions,
) -> int:
    """Print the records in messages of confluo-stream, one message after the other."""
    from confluo_tools.inputs.open import no_input

    if no_input(inputs or []):
        return cli.usage(app)
    kind = out.kind(answers=True) if out.format or out.tsv or out.output else "ndjson"
    into: cli.RecordOutput | None = None
    first: Schema | None = None
    try:
        for schema, block, place, size in messages(inputs or ["-"]):
            if envelope:
                schema, block = envelopes(schema, place, size)
            if first is None or into is None:
                if out.listed(schema):
                    return cli.OK
                first, into = schema, out.records(schema, kind, out.names(schema, kind))
                into.__enter__()
            elif schema.kind != first.kind:
                raise FormatError(f"has messages of kind {first.kind} and {schema.kind}", hint="unpack them one by one")
            into.write(block)
    finally:
        if into is not None:
            into.__exit__(None, None, None)
    return cli.OK if into is not None else cli.NOTHING


def messages(inputs: list[str]) -> Iterator[tuple[Schema, Block, Envelope, int]]:
    """(schema, rows, envelope, bytes) of each message of the files.  Raises FormatError."""
    from confluo_tools.formats.bytestream import open_bytes
    from confluo_tools.kafka.message import MessageReader, split

    reader = MessageReader()
    for path in inputs:
        try:
            stream = open_bytes(path)
        except OSError as e:
            raise FormatError(e.strerror or str(e), where=path) from None
        number = 0
        try:
            for value in split(stream.read):
                schema, block, place = reader.read(value)
                yield schema, block, place, len(value)
                number += 1
        except FormatError as e:
            raise FormatError(f"message {number} {e.what}", where=stream.name) from None
        finally:
            stream.close()


def envelopes(schema: Schema, place: Envelope, size: int) -> tuple[Schema, Block]:
    """A row of the schema `envelope`."""
    from dataclasses import asdict

    from confluo_tools.formats.block_builder import blocks_of_rows
    from confluo_tools.schema import builtin

    kind = builtin("envelope")
    row: dict[str, Any] = {**asdict(place), "ts": place.first, "kind": schema.kind, "bytes": size}
    del row["first"]
    return kind, next(iter(blocks_of_rows(kind, [row])))


def main(argv: list[str] | None = None) -> int:
    return cli.run(app, "confluo-stream unpack", argv)
