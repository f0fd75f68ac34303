"""Index views: the rows of a block that contain each value of a field (pyx/multilog/postings.pyx)."""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING

from confluo_tools.core.multilog.postings import LIST_CODE, Postings, PostingsBuilder, blank, file_key
from confluo_tools.errors import StoreError, UsageError
from confluo_tools.multilog.views import base

if TYPE_CHECKING:
    from confluo_tools.core.block.block import Picks
    from confluo_tools.core.multilog.segment import SegmentBlock, SegmentPart
    from confluo_tools.multilog.log import Log

MS = 1_000_000
MAX_BUCKET = 1 << 62


class IndexView(base.View):
    """An index of ``field`` (physical column ``column``), with ``bucket`` values per key (1: exact)."""

    kind = "index"
    suffix = ".idx"

    def __init__(self, log: Log, field: str, bucket: int, path: str) -> None:
        super().__init__(field, path)
        found = log.schema[field]
        self.field, self.bucket = field, bucket
        self.column = log.schema.index(field)
        self.columns = (self.column,)
        self.code, self.size = found.type.code + (LIST_CODE if found.type.is_list else 0), found.type.size

    @property
    def name(self) -> str:
        return self.id

    @property
    def spec(self) -> str:
        return self.field

    def __repr__(self) -> str:
        return f"IndexView({self.field!r}, bucket={self.bucket})"

    def key(self, part: SegmentPart) -> bytes:
        room = part.segment.shape.segment_blocks
        return file_key(part.uuid, part.lane, part.base, self.field, self.code, self.size, self.bucket, room)

    def open(self, part: SegmentPart, mapped: bool = False) -> Postings:
        return Postings(self.file(part), self.key(part), mapped)

    def blank(self, part: SegmentPart) -> bytes:
        return blank(self.key(part), part.segment.shape.segment_blocks)

    def valid_blocks(self, part: SegmentPart, every_byte: bool = False) -> int | None:
        try:
            postings = self.open(part)
        except (OSError, ValueError):
            return None
        return postings.blocks if postings.sound(part.segment.capacity, whole=every_byte) else None

    def append(
        self,
        to: base.ViewAppender,
        number: int,
        block: SegmentBlock | None,
        picks: Picks | None,
        builder: PostingsBuilder,
    ) -> None:
        builder.append(to.fd, number, block, self.column, self.bucket)


def default_bucket(log: Log, field: str) -> int:
    """Default number of values per key: 1 ms for times (queries test the exact time anyway), else 1."""
    type_ = log.schema[field].type
    return MS if (type_.element if type_.is_list else type_.kind) == "time" else 1


def load(log: Log, label: str, path: str, about: dict[str, str]) -> IndexView:
    """Load an index from its definition.  Raises ValueError when it is invalid for this log."""
    if about.get("field") != label or label not in log.schema:
        raise ValueError("it uses a field that the MultiLog does not have")
    bucket = about.get("bucket", "")
    if not bucket.isdigit() or not 1 <= int(bucket) <= MAX_BUCKET:
        raise ValueError("its bucket is invalid")
    return IndexView(log, label, int(bucket), path)


def indexes(log: Log, warn: base.Warn | None = None) -> list[IndexView]:
    """The valid indexes of ``log``, by name.

    Definitions that are unreadable, of another log or of unknown fields are reported to ``warn(path, what)``.
    """
    found = base.load(log, "index", partial(load, log), warn)
    return [view for view in found if isinstance(view, IndexView)]


def find(log: Log, field: str) -> IndexView:
    """The index of ``field``.  Raises StoreError if it does not exist."""
    for view in indexes(log):
        if view.field == field:
            return view
    raise StoreError(f"there is no index of '{field}'", where=log.path, hint="confluo-index LOG list shows them")


def add_index(log: Log, field: str, bucket: int | None = None) -> IndexView:
    """Add an index of ``field`` unless it exists.  `build` or a `Maintainer` then fills it for the existing rows.

    Of a list, the index contains the rows with each element.
    Raises UsageError (unknown field, invalid bucket, index with another bucket), StoreError, DiskFullError.
    """
    found = log.schema[field]
    wanted = default_bucket(log, field) if bucket is None else bucket
    kind = found.type.element if found.type.is_list else found.type.kind
    if not 1 <= wanted <= MAX_BUCKET or (wanted > 1 and (found.type.code > 8 or kind in ("ip", "ipv4"))):
        raise UsageError(f"'{field}' cannot have a bucket of {wanted}", hint="only numbers and times can have buckets")
    try:
        view = next((v for v in indexes(log) if v.field == field), None)
        if view is None:
            base.remove(log, f"index-{field}")
            about = ["# An index of a MultiLog: derived data, which may be deleted at any time."]
            base.create(log, "index", field, [*about, "kind: index", f"field: {field}", f"bucket: {wanted}"])
            view = find(log, field)
    except OSError as e:
        raise base.write_error(log, e) from None
    if bucket is not None and view.bucket != bucket:
        raise UsageError(
            f"an index of '{field}' with a bucket of {view.bucket} exists", where=log.path, hint="drop it first"
        )
    return view


def drop_index(log: Log, field: str) -> bool:
    """Remove the index of ``field``; False if it does not exist.  Running queries keep using it."""
    return base.remove(log, f"index-{os.path.basename(field)}")
