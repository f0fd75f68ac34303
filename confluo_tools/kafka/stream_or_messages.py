"""Which reader an Arrow stream has: messages of Kafka in a file are Arrow streams, too."""

from __future__ import annotations

from typing import TYPE_CHECKING

from confluo_tools.errors import FormatError
from confluo_tools.formats import arrow_meta as meta

if TYPE_CHECKING:
    from collections.abc import Mapping

    from confluo_tools.formats.bytestream import ByteStream
    from confluo_tools.formats.reader import Reader, Warn
    from confluo_tools.schema import Schema

SHORT = b"CFLM"  # begins a short message


def open_stream(
    stream: ByteStream,
    *,
    types: Schema | None = None,
    warn: Warn | None = None,
    tell: Warn | None = None,
    rename: Mapping[str, str] | None = None,
) -> Reader:
    """The reader of an Arrow stream: of messages, if its schema says that it is one."""
    if is_message(stream):
        from confluo_tools.kafka.message_file import MessageFileReader

        return MessageFileReader(stream, warn)
    from confluo_tools.formats.arrow import StreamReader

    return StreamReader(stream, types=types, warn=warn, tell=tell, rename=rename)


def is_message(stream: ByteStream) -> bool:
    """Whether the stream begins with a message; nothing is consumed."""
    if stream.peek(4) == SHORT:
        return True
    size = int.from_bytes(stream.peek(8)[4:], "little")
    if size > meta.MAX_METADATA:
        return False
    try:
        return meta.MESSAGE in meta.parse_message(stream.peek(8 + size), fields=False).metadata
    except FormatError:
        return False
