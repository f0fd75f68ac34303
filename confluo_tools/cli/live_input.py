"""Options --follow, --last, --cursor and --group: an input that grows, and how far it was read."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from confluo_tools.cli.clickhouse_output import ClickHouseOutput
from confluo_tools.cli.groups import InputOptions, LogOptions, OptionGroup
from confluo_tools.cli.log_output import LogOutput
from confluo_tools.cli.option_values import duration
from confluo_tools.cli.options import CursorFile, Follow, Group, Last, WindowLag
from confluo_tools.cli.output import RecordOutput
from confluo_tools.cli.signals import signals
from confluo_tools.console import state, tell
from confluo_tools.errors import UsageError
from confluo_tools.inputs.follow import StopSignal
from confluo_tools.inputs.topics import is_topic, offsets_of

if TYPE_CHECKING:
    from confluo_tools.core.block.block import Block, Picks
    from confluo_tools.formats.growing import Place
    from confluo_tools.formats.newest import NewestRows
    from confluo_tools.formats.reader import Reader
    from confluo_tools.inputs.cursor import Cursor
    from confluo_tools.inputs.grouped_rows import GroupedRows
    from confluo_tools.inputs.windows import GroupWindows
    from confluo_tools.kafka.log_offsets import LogOffsets
    from confluo_tools.kafka.topic_reader import TopicReader


SAVE = 1.0  # s between two writes of a cursor
LAG = "200ms"  # as that of confluo-monitor: bench/lag.tsv


class LiveOptions(OptionGroup):
    """How an input is read that grows."""

    follow: Follow = False
    group: Group = None


class TailOptions(LiveOptions):
    """`LiveOptions`, and where to begin."""

    last: Last = None
    cursor: CursorFile = None
    lag: WindowLag = None

    def check(self, agg: str | None, limit: int | None, **others: object) -> None:
        """Raise UsageError for options that do not go together.  ``others``: {name of an option: value}."""
        if self.last is not None:
            for name, value in {"agg": agg, "limit": limit, **others}.items():
                if value:
                    hint = "it prints records; --since limits what others are about"
                    raise UsageError(f"--last and --{name} exclude each other", hint=hint)
        if self.cursor is not None:
            why = {"limit": "a cursor passes all records", "group": "both keep offsets"}
            for name, value in {**others, "limit": limit, "group": self.group}.items():
                if value and name != "count":
                    hint = why.get(name, "it needs the records before the cursor, too")
                    raise UsageError(f"--cursor and --{name} exclude each other", hint=hint)
        if self.lag is not None and not (self.follow or self.cursor):
            raise UsageError("is for windows", where="--lag", hint="add --follow or --cursor, and --agg --by TIME")


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
        self.last: int | None = getattr(chosen, "last", None)
        self._lag_text = getattr(chosen, "lag", None) or LAG
        self._cursor: Cursor | None = None
        self._reader: Reader | None = None
        self._newest: NewestRows | None = None
        self._windows: GroupWindows | None = None
        self._saved = time.monotonic()
        self._open_cursor(getattr(chosen, "cursor", None))
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
        more |= {"group": self._group, "offsets": self._offsets}
        cursor = self._cursor
        if self.follow or cursor is not None:
            from confluo_tools.inputs.live import open_live

            more |= {"input_format": self._ins.input_format, "once": not self.follow, "until": self._until}
            more |= {"last": self.last, "placed": cursor is not None, "places": cursor.places if cursor else None}
            reader = open_live(self._inputs, **more)
        else:
            if self.last is not None and more.get("request") is not None and more["request"].names is None:
                more["request"] = more["request"].replace(last=self.last)
            reader = self._ins.open(self._inputs, **more)
        self._topic = reader if reader.format == "kafka" and hasattr(reader, "consumer") else None  # type: ignore[assignment]
        self._polled = (self.follow or cursor is not None) and reader.polled
        self._reader = reader
        reader.stop_when(self._ending.came)
        return reader

    def _open_cursor(self, path: str | None) -> None:
        if path is None:
            return
        from confluo_tools.inputs.cursor import Cursor

        cursor = Cursor(path)
        try:
            cursor.check(self._inputs)
        except BaseException:
            cursor.close()
            raise
        self._cursor = cursor
        if cursor.places is not None:
            self.last = None  # of the records there were at the beginning

    @property
    def windowed(self) -> bool:
        """Whether groups with a step of time are given by windows."""
        return self.follow or self._cursor is not None

    # -- what is written, and what a cursor may say

    def rows_into(self, into: RecordOutput | LogOutput, reader: Reader) -> Callable[[Block, Picks | None], None]:
        """What takes the rows: ``into`` itself, or, with --last, what keeps the newest until all have been read."""
        if self.last is None:
            return into.write
        from confluo_tools.formats.newest import NewestRows

        kept = self._newest = NewestRows(reader.schema, self.last, reader.by_time)

        def write(block: Block, picks: Picks | None) -> None:
            if self._newest is None:
                into.write(block, picks)
            else:
                kept.add(block, picks)

        return write

    def release(self, into: RecordOutput | LogOutput) -> None:
        """All that was there has been read: write what --last has kept."""
        kept, self._newest = self._newest, None
        for block, picks in kept.take() if kept is not None else ():
            into.write(block, picks)

    def windows(self, groups: GroupedRows, into: RecordOutput | LogOutput) -> GroupWindows:
        """The windows of ``groups``, which go into ``into`` when they end."""
        from confluo_tools.inputs.late_records import LateRecords
        from confluo_tools.inputs.windows import GroupWindows

        late = LateRecords(tell, "they are not counted")
        lag, cursor = duration("--lag", self._lag_text, 0), self._cursor
        more: dict[str, Any] = {}
        if cursor is not None:
            more = {"done": cursor.done, "again": cursor.again, "places": self._places()}
        self._windows = GroupWindows(groups, lag, into.write, late, **more)
        return self._windows

    def end_windows(self, windows: GroupWindows) -> None:
        """Give the last windows; those that have not ended are left to the next run, if there is a cursor."""
        if self._cursor is not None:
            windows.look(self._places())
        windows.finish(keep_open=self._cursor is not None)
        if windows.late:
            state.trouble = True

    def _places(self) -> Sequence[Place]:
        reader = self._reader
        if self._topic is not None:
            from confluo_tools.formats.growing import Place

            return [Place(self._inputs[0], self._topic.identity, self._topic.offsets())]
        return reader.places() if reader is not None else []  # type: ignore[attr-defined]

    def _save(self, into: RecordOutput | LogOutput | None, *, final: bool = False) -> None:
        # Everything that was read has been written to `into`.
        cursor, windows = self._cursor, self._windows
        if cursor is None or not (final or time.monotonic() - self._saved >= SAVE):
            return
        if into is not None:
            into.flush()
            writer = into.opened_writer if isinstance(into, LogOutput) else None
            if writer is not None and not writer.closed and not writer.poll():
                return  # a freeze delays rows
        self._saved = time.monotonic()
        places = self._places() if windows is None else windows.settled
        if places is not None:
            cursor.save(places, *(() if windows is None else (windows.done, windows.again)))

    def _settled(self, into: RecordOutput | LogOutput) -> None:
        """There are more records, and those before them were written."""
        if self._newest is None and self._windows is None and (not isinstance(into, RecordOutput) or into.to_stdout):
            self._save(into)

    def _look(self, into: RecordOutput | LogOutput) -> None:
        """No record is waiting."""
        if self.follow and (self._topic is None or self._topic.consumer.at_end):  # brokers let readers wait, too
            self.release(into)
        if self._windows is not None:
            self._windows.look(self._places() if self._cursor is not None else None)
        into.flush()
        if not isinstance(into, RecordOutput) or into.to_stdout:
            self._save(into)

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
        from confluo_tools.multilog.topic_places import ROW

        return ROW

    @contextmanager
    def writing(self, into: RecordOutput | LogOutput | ClickHouseOutput | None) -> Iterator[None]:
        """While rows go into ``into``, which is open; None: they are computed with, and are out at the end only."""
        if self._topic is not None and isinstance(into, LogOutput) and self._offsets is not None:
            self._offsets.attach(into.log, lambda: into.opened_writer)
            self._topic.delivered(self._offsets.published)
        elif self._topic is not None and isinstance(into, RecordOutput) and into.to_stdout:
            self._topic.delivered(lambda: self._passed(into))
        elif isinstance(into, ClickHouseOutput):
            self._on_stop = into.writer.stop
            if self._topic is not None:
                self._topic.delivered(into.arrived)
        if isinstance(into, RecordOutput | LogOutput) and self._reader is not None:
            self._reader.on_idle(lambda: self._look(into))
            if self._cursor is not None and self._topic is None:
                self._reader.settled = lambda: self._settled(into)  # type: ignore[attr-defined]
        with self.until_signal():
            yield
            if isinstance(into, RecordOutput | LogOutput):
                self.release(into)

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
        self._save(None, final=True)

    def _passed(self, into: RecordOutput) -> bool:
        # Rows of a topic are out: their offsets may be committed.
        into.flush()
        if self._newest is None and self._windows is None:
            self._save(into)
        return True

    def status(self, status: int) -> int:
        """The exit status: 128 + the signal that ended it, or ``status``."""
        return 128 + self._ending.number if self._ending.number else status

    def __enter__(self) -> LiveInput:
        return self

    def __exit__(self, *error: object) -> None:
        self._ending.__exit__()
        if self._cursor is not None:
            self._cursor.close()
        if self._offsets is not None:
            self._offsets.close()
