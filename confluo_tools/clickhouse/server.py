"""A server of ClickHouse: its HTTP interface, by http.client of the standard library; and what its errors mean."""

from __future__ import annotations

import http.client
import json
import re
import signal
import socket
import ssl
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from confluo_tools.errors import ConfluoError

if TYPE_CHECKING:
    from confluo_tools.clickhouse.address import TableAddress
    from confluo_tools.clickhouse.settings import ServerSettings

QUESTION = 30.0  # s for the answer to a question
HANDSHAKE = 15.0  # s for an answer to the first message of TLS
INSERT = 300.0  # s for an insert: a server that has to merge first is slow
IDLE = 1.0  # s after which a connection is not used again: servers close idle ones after 3 s and more
PART = 1 << 20  # bytes that are given to a connection at once
MAX_ANSWER = 16 << 20  # bytes
# What passes: too many queries, no memory, too many parts, no space, read only, time-outs, ZooKeeper, a shutdown.
TEMPORARY = frozenset({3, 159, 160, 202, 203, 209, 210, 225, 236, 241, 242, 243, 252, 279, 285, 319, 394, 439, 999})
LOGIN = frozenset({192, 193, 194, 516})
UNKNOWN_TABLE, UNKNOWN_DATABASE, NO_MEMORY = 60, 81, 241
NO_SPACE = "No space left on device"
ALWAYS_HINT = {
    "partitions for single INSERT": "the times are far apart: leave those that are wrong out, or raise the limit",
    "(for query)": "lower --size, or raise max_memory_usage of the user",
}
ALWAYS = re.compile("|".join(map(re.escape, ALWAYS_HINT)))
WAITING = (502, 503, 504)  # of HTTP: a proxy that cannot reach its server
_CODE = re.compile(r"Code: (\d+)")
_TEXT = re.compile(r"DB::\w*Exception: (.*?)(?:, e\.what\(\) = .*| \(version .*)?$", re.DOTALL)


class NoAnswerError(ConfluoError):
    """The server did not answer.  ``taken``: it may have done the request."""

    taken = False


class RefusalError(ConfluoError):
    """The server answered with an error.  ``code``: its number, 0 for what is not of ClickHouse."""

    code = 0
    temporary = False


class _SilentError(TimeoutError):
    """No answer to TLS.  A server of HTTP may wait for the rest of a line: one in seven messages looks like one."""


class ClickHouseServer:
    """One connection to the server of ``address``; for one thread at a time, but for `abort`."""

    def __init__(self, address: TableAddress, settings: ServerSettings) -> None:
        self.address, self._settings = address, settings
        self._headers = {"User-Agent": b"confluo", "X-ClickHouse-User": (settings.user or "default").encode()}
        if settings.password:
            self._headers["X-ClickHouse-Key"] = settings.password.encode()
        self._context = settings.context() if address.tls else None
        self._connection: http.client.HTTPConnection | None = None
        self._used = 0.0
        self._aborted = False

    def ask(self, sql: str) -> list[list[Any]]:
        """The rows of an answer.  Raises NoAnswerError and RefusalError."""
        body = f"{sql} FORMAT JSONCompact".encode()
        answer = self._exchange({}, [body], QUESTION)
        try:
            rows = json.loads(answer)["data"]
        except (ValueError, TypeError, KeyError, RecursionError):
            rows = None
        if not isinstance(rows, list) or not all(isinstance(row, list) for row in rows):
            raise self._foreign(f"'{_shortened(answer.decode(errors='replace'))}'")
        return rows

    def insert(self, statement: str, pieces: Sequence[bytes | memoryview], settings: Mapping[str, str]) -> None:
        """Insert a block of rows.  Raises NoAnswerError and RefusalError."""
        answer = self._exchange({"query": statement, **settings}, pieces, INSERT)
        if answer.strip():
            raise self._foreign(f"'{_shortened(answer.decode(errors='replace'))}'")

    def abort(self) -> None:
        """End what another thread waits for; it fails.  Nothing can be sent any more."""
        self._aborted = True
        link = self._connection.sock if self._connection is not None else None
        if link is not None:
            with suppress(OSError):
                link.shutdown(socket.SHUT_RDWR)

    def __enter__(self) -> ClickHouseServer:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    # -- one request

    def _exchange(self, words: Mapping[str, str], pieces: Sequence[bytes | memoryview], patience: float) -> bytes:
        sent = False
        try:
            with _no_signal():
                link = self._open(patience)
                try:
                    self._send(link, words, pieces)
                    sent = True
                except (BrokenPipeError, ConnectionResetError):
                    pass  # it may have said why before it closed the connection
                response = link.getresponse()
                answer = response.read(MAX_ANSWER)
                if response.length and len(answer) < MAX_ANSWER:
                    raise ConnectionResetError
        except BaseException as e:
            self.close()
            if isinstance(e, OSError | http.client.HTTPException | ValueError):
                raise self._no_answer(e, sent, patience) from None
            raise
        self._used = time.monotonic()
        if response.will_close or not sent:
            self.close()
        if response.status != 200 or answer[:5] == b"Code:":
            raise self._refusal(response, answer.decode(errors="replace"))
        if not sent:
            raise self._no_answer(ConnectionResetError(), True, patience)
        return answer

    def _open(self, patience: float) -> http.client.HTTPConnection:
        if self._aborted:
            raise ConnectionAbortedError("the run was stopped")
        if self._connection is not None and time.monotonic() - self._used > IDLE:
            self.close()
        if self._connection is None:
            at = self.address
            made = http.client.HTTPConnection(at.host, at.port, timeout=QUESTION)
            made.connect()
            self._connection = made
            if self._context is not None:
                made.sock.settimeout(HANDSHAKE)
                try:
                    made.sock = self._context.wrap_socket(made.sock, server_hostname=at.host)
                except TimeoutError:
                    raise _SilentError from None
        self._connection.sock.settimeout(patience)
        return self._connection

    def _send(
        self, link: http.client.HTTPConnection, words: Mapping[str, str], pieces: Sequence[bytes | memoryview]
    ) -> None:
        link.putrequest("POST", "/?" + urlencode(words) if words else "/")
        for name, value in self._headers.items():
            link.putheader(name, value)
        link.putheader("Content-Length", str(sum(len(piece) for piece in pieces)))
        link.endheaders()
        for part in _parts(pieces):
            link.send(part)

    # -- errors

    def _no_answer(self, e: Exception, sent: bool, patience: float) -> NoAnswerError:
        hint = "check the address; is the server running?"
        if isinstance(e, ssl.SSLCertVerificationError):
            what = f"its certificate is wrong: {e.verify_message.rstrip('.')}"
            hint = "check the address, and ca= in the file that CONFLUO_CLICKHOUSE names"
        elif isinstance(e, ssl.SSLError):
            what, hint = f"does not speak TLS as we do: {e.reason or e}", "clickhouse:// is without TLS"
        elif isinstance(e, _SilentError):
            what, hint = f"no answer to TLS within {HANDSHAKE:g} s", "check the address; clickhouse:// is without TLS"
        elif isinstance(e, TimeoutError):
            what = f"no answer within {patience:g} s"
        elif isinstance(e, http.client.BadStatusLine) and not isinstance(e, http.client.RemoteDisconnected):
            what, hint = "does not answer in HTTP", "the port of HTTP is usually 8123; clickhouses:// is with TLS"
        elif isinstance(e, ConnectionError) and not isinstance(e, ConnectionRefusedError):
            what = "closed the connection without an answer"
            hint = "check the address; clickhouses:// is with TLS" if self._context is None else hint
        else:
            why = getattr(e, "strerror", None) or str(e) or type(e).__name__
            what = f"no answer: {' '.join(str(why).split())[:120]}"
        error = NoAnswerError(what, where=str(self.address), hint=hint)
        error.taken = sent
        return error

    def _refusal(self, response: http.client.HTTPResponse, text: str) -> RefusalError:
        code = response.getheader("X-ClickHouse-Exception-Code") or ""
        match = _CODE.match(text)
        if not code.isdigit() and match is None:
            error = self._foreign(f"HTTP {response.status} {response.reason} '{_shortened(text)}'")
            error.temporary = response.status in WAITING
            return error
        number = int(code) if code.isdigit() else int(match[1]) if match is not None else 0
        said = _TEXT.search(text.strip())
        what = _shortened((said[1] if said is not None else text).strip().rstrip("."))
        hint = ""
        if number in LOGIN:
            what = f"the server refuses the login: {what}"
            hint = "write user= and password= into the file that CONFLUO_CLICKHOUSE names"
        always = ALWAYS.search(what)
        if always is not None:
            hint = ALWAYS_HINT[always[0]]
        error = RefusalError(what, where=str(self.address), hint=hint)
        error.code = number
        # What is too much in one insert remains so.
        error.temporary = NO_SPACE in what or (number in TEMPORARY and always is None)
        return error

    def _foreign(self, what: str) -> RefusalError:
        hint = "check the address: the port of HTTP is usually 8123"
        return RefusalError(f"does not answer as ClickHouse does: {what}", where=str(self.address), hint=hint)


def _parts(pieces: Iterable[bytes | memoryview]) -> Iterator[bytes | memoryview]:
    """The same bytes: small pieces joined, large ones cut, so that none waits too long and none is too short."""
    small: list[bytes] = []
    size = 0
    for piece in pieces:
        if size + len(piece) <= PART:
            small.append(bytes(piece))
            size += len(piece)
            continue
        if small:
            yield b"".join(small)
            small, size = [], 0
        for at in range(0, len(piece), PART):
            yield piece[at : at + PART]
    if small:
        yield b"".join(small)


def _shortened(text: str) -> str:
    return " ".join(text.split())[:200]


@contextmanager
def _no_signal() -> Iterator[None]:
    """Writing to a closed connection is an error, and not a signal that ends a filter."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGPIPE})
    try:
        yield
    finally:
        if signal.SIGPIPE not in before:
            if signal.SIGPIPE in signal.sigpending():
                signal.sigwait({signal.SIGPIPE})
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
