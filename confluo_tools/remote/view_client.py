"""confluo-index for a log on another host: the client."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from confluo_tools.multilog.views.listing import LISTED
from confluo_tools.multilog.views.view_work import ViewUpdate
from confluo_tools.remote import frame_codec
from confluo_tools.remote.connect import Connection

if TYPE_CHECKING:
    from confluo_tools.remote.address import Address
    from confluo_tools.remote.connect import RemoteShell

TYPES = (str, str, int, int, int, int, str)
NUMBERS = (str, int, int, float, int, int, int)


class RemoteViews:
    """The views of the log at ``address``; the request ``message`` is sent at once.  Raises RemoteError."""

    def __init__(self, address: Address, shell: RemoteShell, message: dict[str, Any]) -> None:
        self._wait = shell.wait
        self._peer = Connection(address, shell)
        self._peer.send(frame_codec.frame(frame_codec.VIEWS, {"path": address.path, **message}))

    @property
    def name(self) -> str:
        """Of the host."""
        return self._peer.name

    def answer(
        self, warn: Callable[[str], None], note: Callable[[str], None]
    ) -> tuple[list[dict[str, Any]], list[ViewUpdate]]:
        """The list of views, and what was updated.  Raises RemoteError."""
        peer = self._peer
        peer.require("views", "does not change views for others")
        while True:
            kind, message = peer.receive(frame_codec.END, frame_codec.WARN, frame_codec.NOTE)
            try:
                if kind == frame_codec.END:
                    return _listed(message), [ViewUpdate(*_values(u, NUMBERS)) for u in _rows(message, "updates")]
                text = f"{peer.name}: {frame_codec.get(message, 'what', str)[: frame_codec.MAX_TEXT]}"
            except (ValueError, TypeError) as e:
                raise peer.protocol_error(str(e)) from None
            (warn if kind == frame_codec.WARN else note)(text)

    def close(self) -> None:
        self._peer.close()


def _rows(message: dict[str, Any], key: str) -> list[Any]:
    found = frame_codec.get(message, key, list)
    return list(found)


def _values(values: Any, types: tuple[type, ...]) -> list[Any]:
    if not isinstance(values, list) or len(values) != len(types):
        raise ValueError("invalid numbers in message")
    if not all(isinstance(v, kind) for v, kind in zip(values, types, strict=True)):
        raise ValueError("invalid numbers in message")
    return values


def _listed(message: dict[str, Any]) -> list[dict[str, Any]]:
    out = []
    for row in _rows(message, "views"):
        if not isinstance(row, dict):
            raise ValueError("invalid 'views' in message")
        out.append(dict(zip(LISTED, _values([row.get(name) for name in LISTED], TYPES), strict=True)))
    return out
