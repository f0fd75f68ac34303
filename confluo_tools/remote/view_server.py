"""The views of a log for a client on another host: what confluo-index HOST:/PATH requests."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from confluo_tools.errors import UsageError
from confluo_tools.multilog.views.view_request import ViewRequest
from confluo_tools.multilog.views.view_work import READING, ViewUpdate, ViewWork
from confluo_tools.remote import frame_codec

if TYPE_CHECKING:
    from confluo_tools.remote.server import QueryServer

MAX_WORDS = 1024
MAX_PATIENCE = 86400  # s
OPTIONS = ("filter", "where", "by", "bucket")


class SentReports:
    """Reports to the client of ``server``.  ``updates``: of the views, in order."""

    def __init__(self, server: QueryServer, stats: bool) -> None:
        self._server, self.stats = server, stats
        self.updates: list[list[Any]] = []

    def warn(self, what: str, where: str, hint: str = "") -> None:
        line = f"{where}: {what}" if where else what
        self._server.tell(frame_codec.WARN, f"{line}; {hint}" if hint else line)

    def note(self, what: str, where: str = "") -> None:
        self._server.tell(frame_codec.NOTE, f"{where}: {what}" if where else what)

    def progress(self, what: str, rows: int) -> AbstractContextManager[Callable[[int], Any] | None]:
        return nullcontext()

    def updated(self, done: ViewUpdate) -> None:
        self.updates.append(list(done))


def serve_views(server: QueryServer, message: dict[str, Any]) -> dict[str, Any]:
    """Do what a VIEWS frame requests; the body of its END frame.  Raises ConfluoError, ValueError."""
    path = frame_codec.get(message, "path", str)
    words = frame_codec.texts(message, "words", MAX_WORDS)
    filter, where, by, bucket = (frame_codec.get(message, key, str, None) for key in OPTIONS)
    patience = frame_codec.get(message, "patience", int, 0)
    if not 0 <= patience <= MAX_PATIENCE * 1000:
        raise ValueError("invalid 'patience' in message")
    request = ViewRequest(words, False)
    request.options(filter, where, by, bucket, None)
    if server.read_only and request.verb not in READING:
        raise UsageError("is served read-only, so its views cannot be changed", where=path)
    reports = SentReports(server, frame_codec.get(message, "stats", bool, False))
    work = ViewWork(server.inside(path), request, patience / 1000, reports)
    with work.log:
        work.run(frame_codec.texts(message, "argv", MAX_WORDS))
        listed = work.listing() if request.verb == "list" or frame_codec.get(message, "list", bool, False) else []
    return {"views": listed, "updates": reports.updates}
