"""Indexes: which rows of a block hold which value of a field (core/postings)."""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING

from confluo_tools.core.postings import Builder, Postings, blank, file_key
from confluo_tools.errors import StoreError, UsageError
from confluo_tools.store.views import base

if TYPE_CHECKING:
    from confluo_tools.core.block import Picks
    from confluo_tools.core.segment import Part, SegmentBlock
    from confluo_tools.store.log import Log

MS = 1_000_000
MOST_BUCKET = 1 << 62


class IndexView(base.View):
    """One index: of ``field`` (physical column ``column``), ``bucket`` values to a key (1: exact)."""

    kind = "index"
    suffix = ".idx"

    def __init__(self, log: Log, field: str, bucket: int, path: str) -> None:
        super().__init__(field, path)
        found = log.schema[field]
        self.field, self.bucket = field, bucket
        self.column = log.schema.index(field)
        self.columns = (self.column,)
        self.code, self.size = found.type.code, found.type.size

    @property
    def name(self) -> str:
        return self.id

    @property
    def words(self) -> str:
        return self.field

    def __repr__(self) -> str:
        return f"IndexView({self.field!r}, bucket={self.bucket})"

    def key(self, part: Part) -> bytes:
        room = part.segment.shape.segment_blocks
        return file_key(part.uuid, part.lane, part.base, self.field, self.code, self.size, self.bucket, room)

    def open(self, part: Part, mapped: bool = False) -> Postings:
        return Postings(self.file(part), self.key(part), mapped)

    def blank(self, part: Part) -> bytes:
        return blank(self.key(part), part.segment.shape.segment_blocks)

    def sound(self, part: Part, whole: bool = False) -> int | None:
        try:
            postings = self.open(part)
        except (OSError, ValueError):
            return None
        return postings.blocks if postings.sound(part.segment.capacity, whole=whole) else None

    def append(
        self, to: base.Appending, number: int, block: SegmentBlock | None, picks: Picks | None, builder: Builder
    ) -> None:
        builder.append(to.fd, number, block, self.column, self.bucket)


def default_bucket(log: Log, field: str) -> int:
    """Values to a key unless said otherwise: 1 ms for times (a query tests the exact time anyway), else 1."""
    return MS if log.schema[field].type.kind == "time" else 1


def load(log: Log, label: str, path: str, about: dict[str, str]) -> IndexView:
    """The index behind a definition.  ValueError: it makes no sense for this log."""
    if about.get("field") != label or label not in log.schema:
        raise ValueError("it is of a field that the MultiLog does not have")
    bucket = about.get("bucket", "")
    if not bucket.isdigit() or not 1 <= int(bucket) <= MOST_BUCKET:
        raise ValueError("its bucket is not a number")
    return IndexView(log, label, int(bucket), path)


def indexes(log: Log, warn: base.Warn | None = None) -> list[IndexView]:
    """The indexes of ``log`` that can be used, by name.

    Definitions that cannot be read, of another log or of fields it lacks, are told to ``warn(path, what)``.
    """
    found = base.load(log, "index", partial(load, log), warn)
    return [view for view in found if isinstance(view, IndexView)]


def find(log: Log, field: str) -> IndexView:
    """The index of ``field``.  StoreError when there is none."""
    for view in indexes(log):
        if view.field == field:
            return view
    raise StoreError(f"there is no index of '{field}'", where=log.path, hint="confluo-index LOG list shows them")


def add_index(log: Log, field: str, bucket: int | None = None) -> IndexView:
    """Make an index of ``field``, unless it is there; whoever maintains it brings it up to date (`built`).

    Raises UsageError (no such field, a list, an impossible bucket, or there is one with another bucket),
    StoreError, DiskFullError.
    """
    found = log.schema[field]
    wanted = default_bucket(log, field) if bucket is None else bucket
    if found.type.is_list:
        raise UsageError(f"'{field}' is a list", hint="fields with one value a record can be indexed")
    if not 1 <= wanted <= MOST_BUCKET or (wanted > 1 and (found.type.code > 8 or found.type.kind in ("ip", "ipv4"))):
        raise UsageError(f"'{field}' cannot have a bucket of {wanted}", hint="buckets are for numbers and times")
    try:
        view = next((v for v in indexes(log) if v.field == field), None)
        if view is None:
            base.remove(log, f"index-{field}")
            about = ["# An index of a MultiLog: derived data, which may be deleted at any time."]
            base.create(log, "index", field, [*about, "kind: index", f"field: {field}", f"bucket: {wanted}"])
            view = find(log, field)
    except OSError as e:
        raise base.trouble(log, e) from None
    if bucket is not None and view.bucket != bucket:
        raise UsageError(
            f"there is an index of '{field}' with a bucket of {view.bucket}", where=log.path, hint="drop it first"
        )
    return view


def drop_index(log: Log, field: str) -> bool:
    """Remove the index of ``field``; False when there was none.  Queries under way go on with it."""
    return base.remove(log, f"index-{os.path.basename(field)}")
