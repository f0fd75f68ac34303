"""Where records of a stream go: a topic, a file of messages, standard output, a neighbour, a table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from confluo_tools.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from confluo_tools.kafka.row_writer import PlaceWriter
    from confluo_tools.schema import Schema

FORMS = "kafka://HOST:PORT/NAME, clickhouse://HOST/DB.TABLE, unix:PATH, a new FILE.messages or -"
SUFFIX = ".messages"
PATIENCE = 60.0  # s after which a record that a service sends is lost, and counted
MIN_SIZE, MAX_MESSAGE = 1024, 900_000  # bytes: the default limit of brokers is 1 MB


def takes_many(to: str) -> bool:
    """Whether the place takes records from several workers at a time."""
    from confluo_tools.clickhouse.address import is_table
    from confluo_tools.kafka.address import SCHEME

    return to.startswith(SCHEME) or is_table(to)


def short_name(to: str) -> str:
    """The place without its host."""
    return to.partition("?")[0].rpartition("/")[2] if takes_many(to) else to


def print_tables(places: Iterable[tuple[str, Schema]]) -> None:
    """Print the statements that make the tables among ``places``, each of (place, records).  Raises UsageError."""
    from confluo_tools import cli
    from confluo_tools.clickhouse.address import EXAMPLE, is_table, parse

    tables = {parse(to): schema for to, schema in places if is_table(to)}
    if not tables:
        raise UsageError("no place is a table", where="--ddl", hint=f"add --to {EXAMPLE}")
    for number, (address, schema) in enumerate(tables.items()):
        if number:
            print()
        cli.print_statement(address, schema)


class Destination:
    """A place for records, as --to names it: checked, not yet opened.

    ``given``: the words of -X.  ``codec``, ``create``: for Kafka alone.
    ``best_effort``: what the place does not take for `PATIENCE` is lost.  Raises UsageError.
    """

    def __init__(
        self,
        to: str,
        given: Sequence[str] | None = None,
        *,
        codec: str = "none",
        create: int = 0,
        best_effort: bool = False,
    ) -> None:
        from confluo_tools.clickhouse import address as tables
        from confluo_tools.kafka import address as topics
        from confluo_tools.kafka.settings import settings

        self.to, self.create, self.best_effort = to, create, best_effort
        self.topic = topics.parse(to) if to.startswith(topics.SCHEME) else None
        self.table = tables.parse(to) if tables.is_table(to) else None
        if self.topic is not None:
            effort = {"message.timeout.ms": str(int(1000 * PATIENCE))} if best_effort else {}
            self.settings = {"compression.type": codec, **effort, **settings(given, self.topic)}
            return
        for option, is_given in (("-X", given), ("--codec", codec != "none"), ("--create", create)):
            if is_given:
                raise UsageError(f"{option} is for Kafka", where=f"--to {to}")
        if self.table is not None:
            return
        if to.startswith("unix:"):
            from confluo_tools.kafka.byte_writer import socket_path

            socket_path(to)
        elif to != "-" and not to.endswith(SUFFIX) and not to.startswith("/dev/"):
            raise UsageError("is not a place for records", where=f"--to {to}", hint=f"write {FORMS}")

    def open(
        self,
        schema: Schema,
        *,
        size: int | None = None,
        linger: int | None = None,
        wait: bool = True,
        pipeline: int = 0,
    ) -> PlaceWriter:
        """A writer of rows of ``schema``; the arguments are those of `TopicWriter` and `ClickHouseWriter`.

        ``size``, ``linger``: None: what suits the place.  Raises ConfluoError.
        """
        if self.table is not None:
            from confluo_tools.clickhouse import clickhouse_writer
            from confluo_tools.clickhouse.settings import settings

            return clickhouse_writer.ClickHouseWriter(
                self.table,
                schema,
                settings(),
                size=_checked(size, clickhouse_writer.SIZE, clickhouse_writer.MAX_SIZE),
                linger=clickhouse_writer.LINGER if linger is None else linger,
                wait=wait,
                patience=PATIENCE if self.best_effort else None,
                pipeline=pipeline,
            )
        from confluo_tools.kafka.row_writer import LINGER, SIZE

        size = _checked(size, SIZE, MAX_MESSAGE)
        linger = LINGER if linger is None else linger
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


def _checked(size: int | None, usual: int, most: int) -> int:
    if size is not None and not MIN_SIZE <= size <= most:
        raise UsageError(f"{size} is not from 1Ki to {most}", where="--size")
    return usual if size is None else size
