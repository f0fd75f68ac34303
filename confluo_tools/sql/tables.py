"""Inputs as tables of DuckDB: Arrow streams of the columns and rows that a statement needs."""

from __future__ import annotations

import os
from functools import cached_property
from typing import TYPE_CHECKING

from confluo_tools.api.source import Source

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from confluo_tools.api.answer import Answer
    from confluo_tools.core.block.arrow_export import ArrowStream
    from confluo_tools.formats.reader import Reader
    from confluo_tools.inputs.logs import LogPlace
    from confluo_tools.multilog.version import Version
    from confluo_tools.remote.request import QueryRequest
    from confluo_tools.sql.statement import InputTable


class SqlTable:
    """What DuckDB reads for one place in FROM: the schema when it binds the statement, rows when it runs it.

    ``columns``: names in lower case, None: all.
    """

    def __init__(self, source: Source, table: InputTable, columns: Collection[str] | None) -> None:
        self.source, self.table = source, table
        fields = [f.name for f in source.schema.fields]
        if columns is not None:
            # Counting needs no column, but a table has one.
            fields = [name for name in fields if name.lower() in columns] or fields[:1]
        self.fields = fields
        self.streams: list[ArrowStream] = []  # that DuckDB took; an error is in its stream

    @cached_property
    def _answer(self) -> Answer:
        return self.source.query(self.table.where, fields=self.fields, readable=True, zone=False)

    def open(self) -> None:
        """Open the input.  Raises ConfluoError: also for an expression that is wrong."""
        self._answer  # noqa: B018 - made here

    def __arrow_c_schema__(self) -> object:
        return self._answer.__arrow_c_schema__()

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        self.streams.append(self._answer.stream())
        return self.streams[-1].capsule()

    @property
    def error(self) -> BaseException | None:
        """What is wrong with the input, if DuckDB could not read it."""
        return next((stream.error for stream in self.streams if stream.error is not None), None)


class SnapshotLog(Source):
    """One log of a snapshot, at its version there."""

    def __init__(self, place: LogPlace) -> None:
        super().__init__([place.path], None, None, None, False)
        self._place = place

    def _open(
        self, request: QueryRequest | None, version: Version | None = None, path_fields: Sequence[str] = ()
    ) -> Reader:
        from confluo_tools.inputs.logs import open_logs

        return open_logs([self._place], request)


def logs_of(snapshot: str) -> dict[str, Source]:
    """The logs of a snapshot file by name: that of the host; of several logs of a host, that of the folder."""
    from collections import Counter

    from confluo_tools.inputs.logs import places_at
    from confluo_tools.multilog.snapshot import Snapshot

    places = places_at(Snapshot.load(snapshot), snapshot)
    hosts = Counter(place.host for place in places)
    names = [place.host if hosts[place.host] == 1 else _folder(place.path) for place in places]
    found = Counter(names)
    return {
        name if found[name] == 1 else f"{place.host}:{place.path}": SnapshotLog(place)
        for name, place in zip(names, places, strict=True)
    }


def _folder(path: str) -> str:
    return os.path.basename(path.rstrip("/")).removesuffix(".ml")
