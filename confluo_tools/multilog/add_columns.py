"""Add fields, and names of values, to an existing log."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Mapping, Sequence

from confluo_tools.core.base.log_file import open_log_file
from confluo_tools.core.multilog.control import page
from confluo_tools.errors import StoreError
from confluo_tools.multilog.create import CONTROL, PAGE, header, message_bytes
from confluo_tools.multilog.log import Log
from confluo_tools.schema import Field, Schema
from confluo_tools.schema.schema_fit import Misfit, grown


def add_columns(
    path: str | os.PathLike[str], fields: Sequence[Field], names: Mapping[str, Mapping[int, str]] | None = None
) -> Schema:
    """Append fields to the schema of the log; returns the new schema.  ``names``: of enums and flags, by field.

    Existing rows, and rows of writers that are open now, read as zero in the new fields.  Open readers and
    writers keep the old schema.  Raises StoreError, SchemaError.
    """
    file = os.path.join(path, CONTROL)
    try:
        with open(file, "r+b", opener=open_log_file) as f:
            fcntl.flock(f, fcntl.LOCK_EX)
            log = Log(path)
            schema = grown(
                log.schema, Misfit(list(fields), {field: dict(more) for field, more in (names or {}).items()}, [])
            )
            message = header(schema, log.uuid)[8:]
            control = log.control
            end = -(-os.fstat(f.fileno()).st_size // PAGE) * PAGE
            checked = page(
                log.uuid,
                segment_blocks=control.segment_blocks,
                lanes=control.lanes,
                sync=control.sync,
                created=control.created,
                message_bytes=message_bytes(schema),
                schema=message,
                schema_offset=end,
                version=control.version,
            )
            os.pwrite(f.fileno(), message, end)
            os.fsync(f.fileno())
            os.pwrite(f.fileno(), checked, 0)
            os.fsync(f.fileno())
    except OSError as e:
        raise StoreError(f"cannot be written: {e.strerror}", where=path) from None
    return schema
