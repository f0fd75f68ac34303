"""Where replays go: records in any format, a capture, or nowhere."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from confluo_tools import cli
from confluo_tools.errors import UsageError

if TYPE_CHECKING:
    from confluo_tools.replay.engine.attempt import Attempt


class ReplayWriter(Protocol):
    """Takes replays."""

    def write(self, done: Attempt, traced: Sequence[Sequence[dict[str, Any]]] = ((), ())) -> None: ...


class ReplayOutput(cli.LogOptions):
    """The output options; without -w and -o, replays are compared and not written."""

    formats = (*cli.RECORD_FORMATS, "pcap", "multilog")
    default_format = "nothing; of -w, the format of its suffix"

    def _compares(self) -> bool:
        return self.output is None and self.format is None and not self.tsv and not self.ndjson

    def check(self) -> None:
        """Raises UsageError for options of an output that -w and -o do not name."""
        from confluo_tools.cli.output import only_for_logs

        if self._compares():
            only_for_logs({"--append": self.append, "--add-columns": self.add_columns})
        else:
            self.kind()

    def write_script(self, lines: Iterable[str]) -> None:
        """Write a script, line by line, to -w FILE or standard output.  Raises UsageError for other output options."""
        given = {"-o": self.format, "-T": self.tsv, "-J": self.ndjson, "-f": self.fields, "--append": self.append}
        for name, value in given.items():
            if value:
                raise UsageError("--as-packetdrill writes a script", where=name, hint=f"leave {name} out")
        with self.sink() as sink:
            for line in lines:
                sink.write(f"{line}\n".encode())

    @contextmanager
    def opened(self) -> Iterator[ReplayWriter]:
        """The writer of replays."""
        if self._compares():
            yield NoWriter()
            return
        kind = self.kind()
        if kind == "pcap":
            with self.sink() as sink:
                yield CaptureWriter(sink)
            return
        from confluo_tools.schema import builtin

        schema = builtin("recording")
        with self.open(schema, kind, self.names(schema, kind, USUAL), lanes=1) as into:
            yield RowWriter(into, schema)


USUAL = ("ts", "kind", "role", "tx", "rx", "call", "bytes", "seq", "ack", "len", "tcp_flags", "window")  # in a table


class NoWriter:
    """Writes nothing."""

    def write(self, done: Attempt, traced: Sequence[Sequence[dict[str, Any]]] = ((), ())) -> None:
        """Write nothing."""


class CaptureWriter:
    """Writes the packets of replays to a sink."""

    def __init__(self, sink: Any) -> None:
        from confluo_tools.replay.engine.pcap import HEAD

        self._sink = sink
        sink.write(HEAD)

    def write(self, done: Attempt, traced: Sequence[Sequence[dict[str, Any]]] = ((), ())) -> None:
        """Write the packets of a replay."""
        from confluo_tools.replay.engine.pcap import capture_of

        for record in capture_of(done):
            self._sink.write(record)


class RowWriter:
    """Writes replays as records of ``schema``."""

    def __init__(self, into: Any, schema: Any) -> None:
        self._into, self._schema = into, schema

    def write(self, done: Attempt, traced: Sequence[Sequence[dict[str, Any]]] = ((), ())) -> None:
        """Write the rows of a replay."""
        from confluo_tools.formats.block_builder import blocks_of_rows
        from confluo_tools.replay.engine.rows import rows_of

        for block in blocks_of_rows(self._schema, rows_of(done, traced)):
            self._into.write(block, None)
