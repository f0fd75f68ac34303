"""Records from messages one after the other: in a file, a pipe, or from a neighbour."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from confluo_tools.errors import FormatError
from confluo_tools.formats.reader import Reader, Warn
from confluo_tools.kafka.message import CutError, MessageReader, is_schema, rows_as, split
from confluo_tools.kafka.sequences import SequenceCheck
from confluo_tools.kafka.unreadable import UnreadableMessages

if TYPE_CHECKING:
    from confluo_tools.core.block.block import Block
    from confluo_tools.formats.bytestream import ByteStream
    from confluo_tools.kafka.message import Envelope
    from confluo_tools.schema import Schema


class FileMessage(NamedTuple):
    """A message of a file: its number from 0, its rows and their schema, its envelope, its size."""

    number: int
    schema: Schema
    block: Block
    envelope: Envelope
    bytes: int


class CheckedMessages:
    """The messages of a stream that can be read; others, and those that are missing, are reported.

    ``again``: give messages that came before once more.  ``count``: of all messages so far.
    """

    def __init__(self, stream: ByteStream, warn: Warn, *, again: bool = False) -> None:
        self.stream, self._warn, self._again = stream, warn, again
        self.sequences, self.unreadable = SequenceCheck(), UnreadableMessages(warn)
        self.count = 0

    def __iter__(self) -> Iterator[FileMessage]:
        """Raises FormatError where the stream goes on with something else."""
        reader = MessageReader()
        try:
            for value in split(self.stream.read):
                number, self.count = self.count, self.count + 1
                try:
                    if is_schema(value):
                        reader.learn(value)
                        continue
                    schema, block, envelope = reader.read(value)
                except FormatError as e:
                    self.unreadable.add(str(number), e)
                    continue
                if self.sequences.is_new(envelope) or self._again:
                    yield FileMessage(number, schema, block, envelope, len(value))
        except CutError as e:
            if not self.stream.growing:
                self._warn(f"message {self.count} {e.what}: its writer was interrupted")
        except FormatError as e:
            raise FormatError(f"message {self.count} {e.what}", where=self.stream.name) from None
        finally:
            self._report()

    def rows_as(self, message: FileMessage, schema: Schema, block: Block, wanted: Schema) -> Block | None:
        """Rows of a message as rows of ``wanted``; None, and a report, if they cannot be."""
        try:
            return rows_as(schema, block, wanted)
        except FormatError as e:
            self.unreadable.add(str(message.number), e)
            return None

    def _report(self) -> None:
        self.unreadable.report()
        if self.sequences.missing:
            self._warn(f"messages that are missing: {self.sequences.missing}")
        if self.sequences.dropped:
            self._warn(f"records that their senders dropped: {self.sequences.dropped}")
        if self.sequences.repeated:
            self._warn(
                f"messages that came twice{'' if self._again else ', and were skipped'}: {self.sequences.repeated}"
            )


class MessageFileReader(Reader):
    """The rows of messages, one after the other.  Raises FormatError for what is not a message."""

    format = "messages"

    def __init__(self, stream: ByteStream, warn: Warn | None = None) -> None:
        super().__init__(stream.name, warn)
        self.stream = stream
        self._messages = CheckedMessages(stream, self.warn)
        self._rest = iter(self._messages)
        first = next(self._rest, None)
        if first is None:
            raise FormatError("has no message that can be read", where=self.name)
        self.schema, self._first = first.schema, [first.block]
        self.metadata = {"confluo:kind": first.schema.kind, "confluo:host": first.envelope.host}

    def blocks(self) -> Iterator[Block]:
        yield from self._first
        self._first.clear()
        for message in self._rest:
            rows = self._messages.rows_as(message, message.schema, message.block, self.schema)
            if rows is not None:
                yield rows

    def on_idle(self, call: Callable[[], None]) -> None:
        self.stream.idle = call

    def close(self) -> None:
        self.stream.close()
