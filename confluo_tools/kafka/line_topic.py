"""Topics of other programs: messages of one or several lines of text."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from confluo_tools.errors import UsageError
from confluo_tools.formats.text import STYLES, TextReader
from confluo_tools.kafka.message import MAX_MESSAGE
from confluo_tools.kafka.topic_consumer import TopicConsumer

if TYPE_CHECKING:
    from confluo_tools.formats.reader import Warn
    from confluo_tools.kafka.address import TopicAddress
    from confluo_tools.schema import Schema
    from confluo_tools.schema.likely_schema import LikelySchema

WAIT = 0.1  # s of one wait for messages
ENOUGH = 1 << 18  # bytes that are read before they are parsed


class TopicLines:
    """The lines of a topic's messages, as `TextReader` reads bytes.  A message that ends without a line end gets one.

    ``large``: messages that were left out.
    """

    damage = ""
    growing = False

    def __init__(self, consumer: TopicConsumer, name: str, follow: bool) -> None:
        self.name, self.waits = name, follow
        self.consumer, self.large = consumer, 0
        self.idle: Callable[[], None] | None = None
        self.stopped: Callable[[], bool] = lambda: False
        self._started = False

    def some(self) -> bytes:
        """Lines of the messages that are there, at least one; b'' at the end."""
        if not self._started:
            self._started = True
            self.consumer.start()
        pieces: list[bytes] = []
        size = 0
        while size < ENOUGH and not self.stopped():
            message = self.consumer.poll(0)
            if message is None and (pieces or (self.consumer.at_end and not self.waits)):
                break
            if message is None:
                if self.idle is not None:
                    self.idle()
                message = self.consumer.poll(WAIT)
            value = message.value() if message is not None else None
            if value and len(value) > MAX_MESSAGE:
                self.large += 1
            elif value:
                pieces += [value] if value.endswith(b"\n") else [value, b"\n"]
                size += len(value)
        return b"".join(pieces)


class LineTopicReader(TextReader):
    """The rows that the lines of a topic's messages are, in the ``format`` ndjson, csv or tsv.

    Header, types and bad lines: as in `TextReader`; with several partitions, the lines of csv and tsv need one header
    for all, in the first message.  The other arguments are those of `TopicConsumer`.  Raises ConfluoError.
    """

    polled = True

    def __init__(
        self,
        address: TopicAddress,
        settings: dict[str, str],
        format: str,
        *,
        schema: Schema | LikelySchema | None = None,
        types: Schema | None = None,
        since: int | None = None,
        follow: bool = False,
        warn: Warn | None = None,
        tell: Warn | None = None,
    ) -> None:
        name = str(address)
        if format not in STYLES:
            raise UsageError(f"{format} is not read from a topic", where="-i", hint=f"use {', '.join(STYLES)}")

        def say(what: str) -> None:
            if tell is not None:
                tell(f"{name}: {what}")

        self.consumer = TopicConsumer(address, settings, since=since, follow=follow, warn=self.warn, tell=say)
        self._lines = TopicLines(self.consumer, name, follow)
        self._warn = warn
        self.name = name
        try:
            super().__init__(self._lines, format, schema=schema, types=types, warn=warn, tell=tell)  # type: ignore[arg-type]
        except BaseException:
            self.close()
            raise

    def on_idle(self, call: Callable[[], None]) -> None:
        self._lines.idle = call

    def stop_when(self, stopped: Callable[[], bool]) -> None:
        """End when ``stopped()`` holds."""
        self._lines.stopped = stopped

    def close(self) -> None:
        if self._lines.large:
            self.warn(f"messages of more than {MAX_MESSAGE >> 20} MiB, left out: {self._lines.large}")
        self.consumer.close()
