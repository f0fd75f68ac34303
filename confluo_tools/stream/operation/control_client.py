"""A client of control sockets: finds runs, asks how they do, changes their flows."""

from __future__ import annotations

import errno
import os
import socket
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from confluo_tools.errors import ConfluoError, UsageError
from confluo_tools.stream.operation import control_messages
from confluo_tools.stream.operation.control_messages import MAX_ANSWER, Look, encode, short_path
from confluo_tools.stream.operation.control_server import answers
from confluo_tools.stream.operation.runtime_folder import RunPlace, runs

if TYPE_CHECKING:
    from types import TracebackType

Read = TypeVar("Read")
ANSWER = 10.0  # s that `status` waits
CHANGE = 60.0  # s that `set` waits: the queues of the run must drain


class RunConnection:
    """A connection to the control socket of a run.  Raises ConfluoError when there is none, or it does not answer."""

    def __init__(self, place: RunPlace) -> None:
        self.place = place
        self._have = b""
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            with short_path(place.path) as path:
                self._connect(path)
        except OSError as e:
            self._sock.close()
            if e.errno in (errno.ECONNREFUSED, errno.ENOENT):
                raise self._ended() from None
            hint = "run it as that user, or as root" if e.errno in (errno.EACCES, errno.EPERM) else ""
            raise ConfluoError(f"{place.path}: {e.strerror or e}", where=place.name, hint=hint) from None

    def _connect(self, path: str) -> None:
        self._sock.settimeout(ANSWER)
        end = time.monotonic() + ANSWER
        while True:
            try:
                self._sock.connect(path)
                return
            except BlockingIOError:  # too many clients wait; with a time-out, connect(2) does not
                if time.monotonic() > end:
                    raise
                time.sleep(0.01)

    def _ended(self) -> ConfluoError:
        return ConfluoError("the run has ended", where=self.place.name)

    def look(self) -> Look:
        """The stages of the run now."""
        return self._parsed(control_messages.look, {"do": "status"}, ANSWER)

    def change(self, text: str) -> list[str]:
        """Give the run the flows in ``text``; returns a line for each change.  Raises ConfluoError when refused."""
        return self._parsed(lambda m: control_messages.lines(m, "changed"), {"do": "set", "flows": text}, CHANGE)

    def _parsed(self, read: Callable[[dict[str, Any]], Read], request: dict[str, Any], seconds: float) -> Read:
        from confluo_tools.remote.frame_codec import parse

        try:
            message = parse(self._ask(encode(request), time.monotonic() + seconds))
            if "error" in message:
                raise control_messages.error(message)
            return read(message)
        except ValueError as e:
            hint = "use the same version of confluo-tools"
            raise ConfluoError(f"does not answer as a run does: {e}", where=self.place.name, hint=hint) from None

    def _ask(self, request: bytes, end: float) -> bytes:
        """The line that answers."""
        try:
            self._sock.settimeout(max(end - time.monotonic(), 0.001))
            self._sock.sendall(request, socket.MSG_NOSIGNAL)
            pieces = [self._have]
            size = len(self._have)
            while b"\n" not in pieces[-1]:
                if size > MAX_ANSWER:
                    raise ValueError("the answer is too long")
                self._sock.settimeout(max(end - time.monotonic(), 0.001))
                data = self._sock.recv(1 << 16)
                if not data:
                    raise self._ended()
                pieces.append(data)
                size += len(data)
        except TimeoutError:
            raise ConfluoError("the run does not answer", where=self.place.name, hint="is it stopped?") from None
        except OSError as e:
            if e.errno in (errno.EPIPE, errno.ECONNRESET):
                raise self._ended() from None
            raise ConfluoError(e.strerror or str(e), where=self.place.name) from None
        line, _, self._have = b"".join(pieces).partition(b"\n")
        return line

    def close(self) -> None:
        self._sock.close()

    def __enter__(self) -> RunConnection:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


def live_runs() -> list[RunPlace]:
    """The runs of this user that go on; of root also those of services."""
    return [place for place in runs() if _answers(place)]


def _answers(place: RunPlace) -> bool:
    with short_path(place.path) as path:
        return answers(path)


def chosen_runs(names: Sequence[str]) -> list[RunPlace]:
    """The runs with these names, or at these paths; without any, all that go on.  Raises UsageError for others."""
    live = live_runs()
    if not names:
        return live
    found = []
    for name in dict.fromkeys(names):
        if "/" in name:
            found.append(RunPlace(os.path.basename(name).removesuffix(".sock"), name))
            continue
        place = next((place for place in live if place.name == name), None)
        if place is None:
            raise UsageError("there is no such run", where=name[:80], hint=listed(live))
        found.append(place)
    return found


def listed(live: Sequence[RunPlace]) -> str:
    """A hint: the runs that go on."""
    if not live:
        return "confluo-stream publish -i or --follow begins one"
    return f"those that go on: {', '.join(place.name for place in live)}"
