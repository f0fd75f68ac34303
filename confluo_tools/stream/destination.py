"""Where records of a stream go: a topic, a file of messages, standard output, a neighbour, a table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from confluo_tools.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from confluo_tools.kafka.row_writer import MessageWriter
    from confluo_tools.schema import Schema

FORMS = "kafka://HOST:PORT/NAME, unix:PATH, a new FILE.messages or -"
SUFFIX = ".messages"


class Destination:
    """A place for records, as --to names it: checked, not yet opened.

    ``given``: the words of -X.  ``codec``, ``create``: for Kafka alone.  Raises UsageError.
    """

    def __init__(self, to: str, given: Sequence[str] | None = None, *, codec: str = "none", create: int = 0) -> None:
        from confluo_tools.kafka.address import SCHEME, parse
        from confluo_tools.kafka.settings import settings

        self.to, self.create = to, create
        self.topic = parse(to) if to.startswith(SCHEME) else None
        if self.topic is not None:
            self.settings = {"compression.type": codec, **settings(given)}
            return
        for option, is_given in (("-X", given), ("--codec", codec != "none"), ("--create", create)):
            if is_given:
                raise UsageError(f"{option} is for Kafka", where=f"--to {to}")
        if to.startswith("unix:"):
            from confluo_tools.kafka.byte_writer import socket_path

            socket_path(to)
        elif to != "-" and not to.endswith(SUFFIX) and not to.startswith("/dev/"):
            raise UsageError("is not a place for records", where=f"--to {to}", hint=f"write {FORMS}")

    def open(self, schema: Schema, *, size: int, linger: int, wait: bool = True, pipeline: int = 0) -> MessageWriter:
        """A writer of rows of ``schema``; the arguments are those of `TopicWriter`.  Raises ConfluoError."""
        if self.topic is not None:
            from confluo_tools.kafka.topic_writer import TopicWriter

            return TopicWriter(
                self.topic,
                schema,
                self.settings,
                size=size,
                linger=linger,
                wait=wait,
                create=self.create,
                pipeline=pipeline,
            )
        from confluo_tools.kafka.byte_writer import ByteWriter

        return ByteWriter(self.to, schema, size=size, linger=linger, wait=wait, pipeline=pipeline)
