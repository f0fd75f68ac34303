"""Rows of the schema `recording` from any input, collected by end."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from confluo_tools import units
from confluo_tools.core.replay.recording_rows import RowSorter
from confluo_tools.errors import FormatError, SchemaError
from confluo_tools.replay.recording.connection import (
    EVENT_FIELDS,
    HEADER_FIELDS,
    PACKET_FIELDS,
    PROBE_FIELDS,
    ConnectionEnd,
    FiveTuple,
)
from confluo_tools.replay.recording.kinds import DIGESTS, ORDERED, RECORDING_SHIFT, Kind
from confluo_tools.replay.recording.listed_runs import LISTS
from confluo_tools.replay.recording.relative_events import EventRuns
from confluo_tools.replay.recording.relative_headers import HeaderRuns
from confluo_tools.replay.recording.relative_runs import PacketRuns
from confluo_tools.replay.recording.runs import MAX_EVENTS, Runs
from confluo_tools.schema.types import ARRAY_CODES

if TYPE_CHECKING:
    from confluo_tools.core.block.block import Block, Picks
    from confluo_tools.formats.reader import Reader

_KEY = ("ip_version", "src_ip", "src_ip6", "src_port", "dst_ip", "dst_ip6", "dst_port", "cookie")
_NEEDED = ("ts", "kind", "count", "tx", "rx", "number")
_SACK = "sack"
Host = dict[str, "int | str"]  # settings of a host, which belong to all ends of its recording
EDGES = 8  # of a row
# (kinds, fields, whether a row is a run), in the order of the tables of the sorter
_TABLES: tuple[tuple[tuple[int, ...], tuple[str, ...], bool], ...] = (
    (tuple(ORDERED), (*EVENT_FIELDS, *PROBE_FIELDS, *LISTS), True),
    ((Kind.RX,), (*PACKET_FIELDS, *LISTS), True),
    ((Kind.TX,), (*PACKET_FIELDS, *LISTS), True),
    ((Kind.SENT,), (*HEADER_FIELDS, "notes", _SACK), False),
    ((Kind.RECEIVED,), (*HEADER_FIELDS, "notes", _SACK), False),
)
_EVENTS, _RX, _TX, _SENT, _RECEIVED = range(5)
# How rows that are relative are read, and the number of a packet itself.
_RELATIVE = {_RX: (PacketRuns, "rx"), _TX: (PacketRuns, "tx"), _SENT: (HeaderRuns, "tx"), _RECEIVED: (HeaderRuns, "rx")}


class RecordingReader:
    """Collects rows by end; `settled` returns them.  ``flow``: only those of its two ends.

    Rows are kept as columns, not as objects; those of an end become arrays when something reads them.
    Raises SchemaError for records of another kind, FormatError for rows that cannot be.
    """

    def __init__(self, flow: FiveTuple | None = None) -> None:
        self._ends: list[ConnectionEnd | Host] = []  # by their numbers
        self._hosts: dict[int, Host] = {}  # by recording
        columns = _physical()
        self._sorter = RowSorter(
            [
                (kinds, names, [columns[name][1] for name in names], names.index("count") if runs else -1)
                for kinds, names, runs in _TABLES
            ],
            MAX_EVENTS,
        )
        self._codes = [tuple([columns[name][0] for name in names]) for _, names, _ in _TABLES]
        if flow is not None:
            self._sorter.choose(flow.version, _address(flow.src), flow.src_port, _address(flow.dst), flow.dst_port)

    def settled(self) -> list[ConnectionEnd]:
        """The ends so far, with the settings of their host, and why one cannot be replayed."""
        found = []
        for number, end in enumerate(self._ends):
            if isinstance(end, ConnectionEnd):
                end.settings = self._hosts.get(end.cookie >> RECORDING_SHIFT, {}) | end.settings
                self._give_rows(end, number)
                end.settled()
                found.append(end)
        return found

    def _give_rows(self, end: ConnectionEnd, number: int) -> None:
        tables = [self._table(table, number) for table in range(len(_TABLES))]
        end.events, end.received, end.sent, end.headers_sent, end.headers_received = tables
        for sacks, headers in ((end.sack_sent, tables[_SENT]), (end.sack_received, tables[_RECEIVED])):
            if len(headers):
                sacks[:] = _edges(headers[_SACK])

    def _table(self, table: int, number: int) -> Runs:
        names, codes = _TABLES[table][1], self._codes[table]
        if table not in _RELATIVE:
            return EventRuns(names, codes, self._sorter, table, number)
        kind, counter = _RELATIVE[table]
        return kind(names, codes, (self._sorter, table, number), counter)

    def add(self, block: Block, picks: Picks | None = None) -> None:
        """Add the rows of a block, or the chosen ones."""
        if picks is not None:
            block = block.take(picks)
        columns = _Columns(block)
        try:
            found = self._sorter.add(block)
        except OverflowError as e:
            raise FormatError(f"{e}: the recording is damaged") from None
        except ValueError as e:
            raise SchemaError(f"no recording: {e}") from None
        for row, number in found:
            if number == len(self._ends):
                self._ends.append(self._new_end(columns.key(row)))
            self._add(self._ends[number], columns, row)

    def _new_end(self, key: tuple[Any, ...]) -> ConnectionEnd | Host:
        if key[:-1] == _HOST:
            return self._hosts.setdefault(key[-1] >> RECORDING_SHIFT, {})
        return ConnectionEnd(_flow(key), key[-1])

    def _add(self, end: ConnectionEnd | Host, columns: _Columns, row: int) -> None:
        if isinstance(end, dict):
            end |= columns.setting(row)
            return
        kind = columns.number("kind", row)
        end.role = columns.number("role", row) or end.role
        end.notes |= columns.number("notes", row) if kind in (Kind.BEGIN, Kind.END, Kind.LOST) else 0
        if kind == Kind.DIGEST:
            end.digests.extend(columns.digests(row))
        elif kind == Kind.SETTING:
            end.settings |= columns.setting(row)
        elif kind == Kind.BEGIN:
            end.began = columns.number("ts", row)
        elif kind == Kind.END:
            end.ended = columns.number("ts", row)
            end.packets_sent, end.packets_received = columns.number("tx", row), columns.number("rx", row)
            if columns.text("text", row):
                end.problems.append(columns.text("text", row))
        elif kind == Kind.LOST:
            end.lost += columns.number("count", row)


_HOST = (0, 0, bytes(16), 0, 0, bytes(16), 0)


def _physical() -> dict[str, tuple[str, int]]:
    """{column: (code of its array, bytes of a value)} of the schema."""
    from confluo_tools.schema import builtin

    columns = builtin("recording").columns
    return {c.name: (ARRAY_CODES[c.code - 1] if c.code <= len(ARRAY_CODES) else "B", c.size * c.count) for c in columns}


def _address(text: str) -> bytes:
    """An address as `RowSorter.choose` takes it."""
    from confluo_tools.formats.block_builder import packed_address

    number, packed = packed_address(text)
    return packed or number.to_bytes(4, "little")


def _edges(flat: Sequence[int]) -> list[tuple[int, ...]]:
    """SACK edges of each row; what is zero at its end is none."""
    none: tuple[int, ...] = ()
    found = []
    for start in range(0, len(flat), EDGES):
        used = EDGES
        while used and not flat[start + used - 1]:
            used -= 1
        found.append(tuple(flat[start : start + used]) if used else none)
    return found


class _Columns:
    """Values of single rows of a block."""

    def __init__(self, block: Block) -> None:
        layout = block.layout
        self._at = {name: i for i, name in enumerate(layout.names)}
        self._block = block
        missing = [name for name in (*_NEEDED, *_KEY) if name not in self._at]
        if missing:
            raise SchemaError(f"no recording: it lacks {', '.join(missing)}")

    def key(self, row: int) -> tuple[Any, ...]:
        return tuple([self._block.get(self._at[name], row) for name in _KEY])

    def number(self, name: str, row: int) -> int:
        at = self._at.get(name)
        return 0 if at is None else int(self._block.get(at, row))

    def text(self, name: str, row: int) -> str:
        at = self._at.get(name)
        return "" if at is None else bytes(self._block.get(at, row)).rstrip(b"\0").decode(errors="replace")

    def setting(self, row: int) -> dict[str, int | str]:
        return {self.text("name", row): self.text("text", row) or self.number("value", row)}

    def digests(self, row: int) -> array[int]:
        count = min(self.number("count", row), DIGESTS)
        return array("I", self._block.get(self._at["digest"], row))[:count] if "digest" in self._at else array("I")


def _flow(key: tuple[Any, ...]) -> FiveTuple:
    version, src, src6, src_port, dst, dst6, dst_port, _ = key
    if version == 6:
        return FiveTuple(6, units.format_ip6(bytes(src6)), src_port, units.format_ip6(bytes(dst6)), dst_port)
    return FiveTuple(4, units.format_ip4(src), src_port, units.format_ip4(dst), dst_port)


def read_ends(reader: Reader | Iterable[Block], flow: FiveTuple | None = None) -> list[ConnectionEnd]:
    """All ends of the records of ``reader``, or the two of ``flow``.

    They are settled: `ConnectionEnd.problems` says why one cannot be replayed.
    """
    schema = getattr(reader, "schema", None)
    if schema is not None and schema.kind != "recording":
        raise SchemaError(f"holds records of kind '{schema.kind}', not 'recording'", where=reader.name)  # type: ignore[union-attr]
    collected = RecordingReader(flow)
    for block in reader:
        collected.add(block)
    return collected.settled()
