"""confluo-stream unpack: the records in messages.  Manual: confluo-stream-unpack(1)."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated, Any

from confluo_tools import cli
from confluo_tools.cli.options import option
from confluo_tools.errors import FormatError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from confluo_tools.core.block.block import Block
    from confluo_tools.formats.bytestream import ByteStream
    from confluo_tools.kafka.message import Envelope
    from confluo_tools.schema import Schema

app = cli.command_app(
    """
# what is in this message?
kcat -C -b broker -t telemetry -c 1 -e | confluo-stream unpack | jq .

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
    from confluo_tools import config
    from confluo_tools.inputs.open import no_input

    if no_input(inputs or []):
        return cli.usage(app)
    chosen = out.format or out.tsv or out.output or config.text("format")
    kind = out.kind(answers=True) if chosen else "ndjson"
    files = MessageFiles(envelope)
    with ExitStack() as stack:
        into: cli.RecordOutput | None = None
        for block in files.blocks(inputs or ["-"]):
            if files.schema is not None and into is None:
                if out.listed(files.schema):
                    return cli.OK
                into = stack.enter_context(out.records(files.schema, kind, out.names(files.schema, kind)))
            if into is not None:
                into.write(block)
        if common.stats:
            cli.note(f"{files.count} messages, {files.unreadable} that could not be read")
    return cli.OK if into is not None else cli.NOTHING


class MessageFiles:
    """Rows of the messages in files, or (``envelope``) a row for each message.

    ``schema``: of the rows, that of the first message.  Messages that cannot be read, and those of another kind, are
    reported and left out.
    """

    def __init__(self, envelope: bool) -> None:
        self.schema: Schema | None = None
        self.count = self.unreadable = 0
        self._envelope = envelope

    def blocks(self, paths: list[str]) -> Iterator[Block]:
        """Rows of each message.  Raises FormatError where a file goes on with something else."""
        from confluo_tools.formats.bytestream import open_bytes, unzip

        for path in paths:
            try:
                stream = open_bytes(path)
            except OSError as e:
                raise FormatError(e.strerror or str(e), where=path) from None
            try:
                yield from self._of(unzip(stream))
            finally:
                stream.close()

    def _of(self, stream: ByteStream) -> Iterator[Block]:
        from confluo_tools.kafka.message_file import CheckedMessages

        messages = CheckedMessages(stream, lambda what: cli.warn(what, where=stream.name), again=True)
        try:
            for message in messages:
                schema, block = message.schema, message.block
                if self._envelope:
                    schema, block = envelopes(schema, message.envelope, message.bytes)
                if self.schema is None:
                    self.schema = schema
                rows = messages.rows_as(message, schema, block, self.schema)
                if rows is not None:
                    yield rows
        finally:
            self.count += messages.count
            self.unreadable += messages.unreadable.count


def envelopes(schema: Schema, place: Envelope, size: int) -> tuple[Schema, Block]:
    """A row of the schema `envelope`."""
    from confluo_tools.formats.block_builder import blocks_of_rows
    from confluo_tools.schema import builtin

    kind = builtin("envelope")
    row: dict[str, Any] = {**place._asdict(), "ts": place.first, "kind": schema.kind, "bytes": size}
    del row["first"]
    return kind, next(iter(blocks_of_rows(kind, [row])))


def main(argv: list[str] | None = None) -> int:
    return cli.run(app, "confluo-stream unpack", argv)
