"""Options --follow and --group: an input that grows, and the offsets of a topic."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from confluo_tools.cli.clickhouse_output import ClickHouseOutput
from confluo_tools.cli.groups import InputOptions, LogOptions, OptionGroup
from confluo_tools.cli.log_output import LogOutput
from confluo_tools.cli.options import Follow, Group
from confluo_tools.cli.output import RecordOutput
from confluo_tools.cli.signals import signals
from confluo_tools.console import warn
from confluo_tools.errors import UsageError
from confluo_tools.inputs.follow import StopSignal, one_log
from confluo_tools.inputs.topics import is_topic, offsets_of

if TYPE_CHECKING:
    from confluo_tools.formats.reader import Reader
    from confluo_tools.kafka.log_offsets import LogOffsets
    from confluo_tools.kafka.topic_reader import TopicReader


class LiveOptions(OptionGroup):
    """How an input is read that grows."""

    follow: Follow = False
    group: Group = None


class LiveInput:
    """The inputs of a command that passes rows on; a context manager.

    With --follow they are read until a signal or, by the clock, ``until`` (ns).  The offsets of a topic are committed
    to its group, or saved in the log, when rows are safely out.
    """

    def __init__(self, chosen: LiveOptions, ins: InputOptions, inputs: Sequence[str], until: int | None) -> None:
        self.follow, self._group = chosen.follow, chosen.group
        self._ins, self._inputs, self._until = ins, list(inputs), until
        self._ending, self._polled = StopSignal(), False
        self._topic: TopicReader | None = None
        self._offsets: LogOffsets | None = None
        self._on_stop: Callable[[int], None] = lambda number: None
        if self._group is not None and not any(is_topic(name) for name in inputs):
            raise UsageError("is for a topic of Kafka", where="--group", hint="read kafka://HOST:PORT/NAME")

    def into_log(self, out: LogOptions, options: Mapping[str, object], since: int | None) -> int | None:
        """If a topic is written to a log, each row once: go on where the log ends.

        ``options``: {option: value} that the rows depend on.  Returns the first time (ns) of the rows: that of the log,
        or ``since`` when it is new.
        """
        if len(self._inputs) != 1 or not is_topic(self._inputs[0]) or out.kind() != "multilog":
            return since
        given = {name: str(value) for name, value in options.items() if value}
        self._offsets = offsets_of(self._inputs, str(out.output), given, since)
        if self._offsets is None:
            return since
        out.append = out.append or self._offsets.exists
        return self._offsets.since

    def open(self, **more: Any) -> Reader:
        """The inputs as one reader.  ``more``: see `open_records`."""

        if self.follow and one_log(self._inputs):
            from confluo_tools.multilog.follower import LogFollower

            reader: Reader = LogFollower(self._inputs[0], until=self._until, warn=warn)
        else:
            more |= {"follow": self.follow, "group": self._group, "offsets": self._offsets}
            reader = self._ins.open(self._inputs, **more)
            self._topic = reader if reader.format == "kafka" else None  # type: ignore[assignment]
        self._polled = self.follow and reader.polled
        reader.stop_when(self._ending.came)
        return reader

    def names(self, shown: list[str] | None) -> list[str] | None:
        """The fields to write: those of the place in the topic are in every log."""
        if shown is None or self._offsets is None:
            return shown
        from confluo_tools.kafka.log_offsets import place_fields

        return [*shown, *(f.name for f in place_fields() if f.name not in shown)]

    @property
    def shared(self) -> str:
        """A field of the log that other processes may make at this moment, as `LogOutput` takes it."""
        if self._offsets is None:
            return ""
        from confluo_tools.kafka.log_offsets import ROW

        return ROW

    @contextmanager
    def writing(self, into: RecordOutput | LogOutput | ClickHouseOutput | None) -> Iterator[None]:
        """While rows go into ``into``, which is open; None: they are computed with, and are out at the end only."""
        if self._topic is not None and isinstance(into, LogOutput) and self._offsets is not None:
            self._offsets.attach(into.log, lambda: into.opened_writer)
            self._topic.delivered(self._offsets.published)
        elif self._topic is not None and isinstance(into, RecordOutput) and into.to_stdout:
            self._topic.delivered(lambda: _flushed(into))
        elif isinstance(into, ClickHouseOutput):
            self._on_stop = into.writer.stop
            if self._topic is not None:
                self._topic.delivered(into.arrived)
        with self.until_signal():
            yield

    @contextmanager
    def until_signal(self) -> Iterator[None]:
        """With --follow, a signal ends the input, and what was read is completed."""
        if not self._polled:  # a signal ends the wait for a pipe at once
            yield
            return
        counts: Callable[[], str] | None = self._lag if self._topic is not None else None

        def stop(number: int) -> None:
            self._ending(number)
            self._on_stop(number)

        with signals(stop, counts=counts):
            yield

    def _lag(self) -> str:
        assert self._topic is not None
        lag = self._topic.consumer.lag()
        behind = ", ".join(f"{n} in partition {p}" for p, n in sorted(lag.items()) if n)
        return f"{self._topic.rows} records read, {sum(lag.values())} messages behind{f': {behind}' if behind else ''}"

    def finish(self) -> None:
        """All rows are out, and the output is closed."""
        if self._topic is not None:
            self._topic.finish()

    def status(self, status: int) -> int:
        """The exit status: 128 + the signal that ended it, or ``status``."""
        return 128 + self._ending.number if self._ending.number else status

    def __enter__(self) -> LiveInput:
        return self

    def __exit__(self, *error: object) -> None:
        self._ending.__exit__()
        if self._offsets is not None:
            self._offsets.close()


def _flushed(into: RecordOutput) -> bool:
    into.flush()
    return True
