"""Rows of the schema `recording` from any input, collected by end."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from confluo_tools import units
from confluo_tools.errors import SchemaError
from confluo_tools.replay.recording.connection import ConnectionEnd, FiveTuple
from confluo_tools.replay.recording.kinds import ORDERED, RECORDING_SHIFT, Kind

if TYPE_CHECKING:
    from confluo_tools.core.block.block import Block, Picks
    from confluo_tools.formats.reader import Reader

_KEY = ("ip_version", "src_ip", "src_ip6", "src_port", "dst_ip", "dst_ip6", "dst_port", "cookie")
_CODES = "BHIQbhiqfd"  # of memoryview, by the physical types 1 to 10
_NEEDED = ("ts", "kind", "count", "tx", "rx", "number")


class RecordingReader:
    """Collects rows by end; `settled` returns them.

    Raises SchemaError for records of another kind, FormatError for rows that cannot be.
    """

    def __init__(self) -> None:
        self._ends: dict[tuple[Any, ...], ConnectionEnd] = {}
        self._hosts: dict[int, dict[str, int | str]] = {}  # settings of the host, by recording

    def settled(self) -> list[ConnectionEnd]:
        """The ends so far, with the settings of their host, and why one cannot be replayed."""
        for end in self._ends.values():
            end.settings = self._hosts.get(end.cookie >> RECORDING_SHIFT, {}) | end.settings
            end.settled()
        return list(self._ends.values())

    def add(self, block: Block, picks: Picks | None = None) -> None:
        """Add the rows of a block, or the chosen ones."""
        if picks is not None:
            block = block.take(picks)
        columns = _Columns(block)
        for row in range(block.rows):
            key = columns.key(row)
            if key[:-1] == _HOST:
                self._hosts.setdefault(key[-1] >> RECORDING_SHIFT, {}).update(columns.setting(row))
                continue
            end = self._ends.get(key)
            if end is None:
                end = self._ends[key] = ConnectionEnd(_flow(key), key[-1])
            self._add(end, columns, row)

    def _add(self, end: ConnectionEnd, columns: _Columns, row: int) -> None:
        kind = columns.number("kind", row)
        end.role = columns.number("role", row) or end.role
        end.notes |= columns.number("notes", row) if kind in (Kind.BEGIN, Kind.END, Kind.LOST) else 0
        if kind in ORDERED:
            end.events.append(columns.row(end.events.names, row))
        elif kind == Kind.RX:
            end.received.append(columns.row(end.received.names, row))
        elif kind == Kind.TX:
            end.sent.append(columns.row(end.sent.names, row))
        elif kind == Kind.SENT:
            end.headers_sent.append(columns.row(end.headers_sent.names, row) | {"count": 1})
            end.sack_sent.append(columns.sack(row))
        elif kind == Kind.RECEIVED:
            end.headers_received.append(columns.row(end.headers_received.names, row) | {"count": 1})
            end.sack_received.append(columns.sack(row))
        elif kind == Kind.DIGEST:
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


class _Columns:
    def __init__(self, block: Block) -> None:
        layout = block.layout
        self._views: dict[str, Any] = {}
        for i, name in enumerate(layout.names):
            _, code, _, count = layout.describe(i)
            if code <= len(_CODES) and count == 1:
                bytes_of: Any = block.buffer(i)
                self._views[name] = bytes_of.cast(_CODES[code - 1])
        self._at = {name: i for i, name in enumerate(layout.names)}
        self._block = block
        missing = [name for name in (*_NEEDED, *_KEY) if name not in self._at]
        if missing:
            raise SchemaError(f"no recording: it lacks {', '.join(missing)}")

    def key(self, row: int) -> tuple[Any, ...]:
        return tuple([self._block.get(self._at[name], row) for name in _KEY])

    def number(self, name: str, row: int) -> int:
        view = self._views.get(name)
        return int(view[row]) if view is not None else 0

    def row(self, names: tuple[str, ...], row: int) -> dict[str, int]:
        return {name: self.number(name, row) for name in names}

    def text(self, name: str, row: int) -> str:
        at = self._at.get(name)
        return "" if at is None else bytes(self._block.get(at, row)).rstrip(b"\0").decode(errors="replace")

    def setting(self, row: int) -> dict[str, int | str]:
        return {self.text("name", row): self.text("text", row) or self.number("value", row)}

    def digests(self, row: int) -> list[int]:
        count = min(self.number("count", row), 16)
        return list(self._block.get(self._at["digest"], row))[:count] if "digest" in self._at else []

    def sack(self, row: int) -> tuple[int, ...]:
        if "sack" not in self._at:
            return ()
        edges = list(self._block.get(self._at["sack"], row))
        while edges and not edges[-1]:
            edges.pop()
        return tuple(edges)


def _flow(key: tuple[Any, ...]) -> FiveTuple:
    version, src, src6, src_port, dst, dst6, dst_port, _ = key
    if version == 6:
        return FiveTuple(6, units.format_ip6(bytes(src6)), src_port, units.format_ip6(bytes(dst6)), dst_port)
    return FiveTuple(4, units.format_ip4(src), src_port, units.format_ip4(dst), dst_port)


def read_ends(reader: Reader | Iterable[Block]) -> list[ConnectionEnd]:
    """All ends of the records of ``reader``, settled: `ConnectionEnd.problems` says why one cannot be replayed."""
    schema = getattr(reader, "schema", None)
    if schema is not None and schema.kind != "recording":
        raise SchemaError(f"holds records of kind '{schema.kind}', not 'recording'", where=reader.name)  # type: ignore[union-attr]
    collected = RecordingReader()
    for block in _blocks(reader):
        collected.add(block)
    return collected.settled()


def _blocks(reader: Reader | Iterable[Block]) -> Iterator[Block]:
    yield from reader
