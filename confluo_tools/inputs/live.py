"""Open any input that can grow: logs, a topic, a file; others are read to their ends."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from confluo_tools.errors import FormatError, UsageError
from confluo_tools.inputs.growing import are_logs, open_growing
from confluo_tools.inputs.open import open_one, open_records, with_more_fields
from confluo_tools.inputs.topics import is_topic
from confluo_tools.objects.address import is_url

if TYPE_CHECKING:
    from confluo_tools.formats.growing import Place
    from confluo_tools.formats.reader import Reader
    from confluo_tools.remote.request import QueryRequest


def open_live(
    names: Sequence[str],
    request: QueryRequest | None = None,
    *,
    once: bool = False,
    until: int | None = None,
    last: int | None = None,
    places: Sequence[Place] | None = None,
    placed: bool = False,
    **more: Any,
) -> Reader:
    """The inputs as one reader, which goes on as they grow, or with ``once`` ends where they end now.

    ``until``: end when the clock has passed this time (ns).  ``last``: only the newest rows of this number are wanted
    of what is there.  ``places``: where to go on; ``placed``: a cursor needs places.  ``more``: see `open_records`.
    Raises ConfluoError.
    """
    if any(is_topic(name) for name in names):
        return open_records(names, request=request, follow=not once, place=places[0] if places else None, **more)
    if are_logs(names):
        return open_growing(names, request, once=once, until=until, last=last, places=places)
    if len(names) == 1 and _is_file(names[0]):
        return _growing_file(names[0], once, places[0] if places else None, **more)
    if len(names) > 1:
        raise UsageError(
            "one file is followed at a time", where=names[1], hint="follow logs together, files one by one"
        )
    if placed:
        what = "has no places that a cursor could keep"
        raise UsageError(what, where=names[0] if names else "standard input", hint="leave --cursor out")
    if names and is_url(names[0]):
        raise UsageError("an object in a store does not grow", where=names[0], hint="leave --follow out")
    return open_records(names, request=request, **more)


def _is_file(name: str) -> bool:
    try:
        return stat.S_ISREG(os.stat(name).st_mode)
    except OSError:
        return False


def _growing_file(
    path: str,
    once: bool,
    place: Place | None,
    *,
    input_format: str | None = None,
    schema: Any = None,
    types: Any = None,
    telemetry: bool = False,
    digest: bool = False,
    rename: Mapping[str, str] | None = None,
    group: str | None = None,
    **others: Any,
) -> Reader:
    from confluo_tools.formats.bytestream import GrowingStream
    from confluo_tools.formats.growing_file import GrowingFileReader

    try:
        stream = GrowingStream(path, once=once)
    except OSError as e:
        raise FormatError(e.strerror or str(e), where=path) from None
    try:
        reader = open_one(path, input_format, schema, types, rename, stream=stream)
        reader = with_more_fields(reader, telemetry=telemetry, digest=digest)
        return GrowingFileReader(reader, stream, place)
    except BaseException:
        stream.close()
        raise
