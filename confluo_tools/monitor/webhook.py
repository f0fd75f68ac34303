"""Alerts to a web server: each is POSTed as JSON, in order, until the server has taken it.

The alerts log is the spool: a file in its folder says how far the server has come, and the next run goes on there.  So
an alert is delivered at least once, also when the monitor or the server dies.  The thread never makes the monitor wait.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit

from confluo_tools.errors import ConfluoError, StoreError, UsageError

if TYPE_CHECKING:
    import http.client

    from confluo_tools.core.block.block import Block
    from confluo_tools.monitor.notes import AlertLines
    from confluo_tools.multilog.log import Log

STATE = "webhook.json"
FORMAT = 1
ANSWER = 10.0  # s for each read from the server, and each write
WHOLE = 20.0  # s for the whole exchange
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0  # s before the first and before later tries
LOOK = 0.2  # s between two looks for alerts
MAX_WAITING = 10_000  # alerts that may wait; older ones are dropped
AGAIN = (408, 425, 429)  # answers after which the request may succeed later, as after 5xx
EXAMPLE = "write e.g. https://alerts.example.com/hook, or @FILE with the address in it"


class HookAddress(NamedTuple):
    """Where alerts go; ``shown``: for messages, without what may be secret."""

    tls: bool
    host: str
    port: int
    target: str
    login: str

    @property
    def shown(self) -> str:
        return f"http{'s' if self.tls else ''}://{self.host}"


def parse_address(text: str, where: str) -> HookAddress:
    """The address of an http(s) URL, or of one in a file, as @FILE.  Raises UsageError."""
    if text.startswith("@"):
        try:
            with open(text[1:], encoding="utf-8") as f:
                text = f.readline(4096).strip()
        except (OSError, UnicodeDecodeError) as e:
            raise UsageError(f"cannot be read: {getattr(e, 'strerror', e)}", where=text[1:]) from None
    try:
        parts = urlsplit(text)
        port = parts.port or (443 if parts.scheme == "https" else 80)
    except ValueError:
        parts, port = urlsplit(""), 0
    if parts.scheme not in ("http", "https") or not parts.hostname or not text.isascii() or not text.isprintable():
        raise UsageError("is not the address of a web server", where=where, hint=EXAMPLE)
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    login = ""
    if parts.username is not None:
        from base64 import b64encode
        from urllib.parse import unquote

        login = b64encode(f"{unquote(parts.username)}:{unquote(parts.password or '')}".encode()).decode()
    if " " in target:
        raise UsageError("is not the address of a web server", where=where, hint=EXAMPLE)
    return HookAddress(parts.scheme == "https", parts.hostname, port, target, login)


class RefusedError(Exception):
    """The server does not want this alert, and would not later."""


class WebhookSender:
    """Thread that sends the alerts of ``log`` to ``address``; those that were there before the first run are left out.

    ``say`` gets remarks.  Counts: ``sent``, ``refused`` by the server, ``dropped`` because too many waited or they were
    removed from the log.
    """

    def __init__(self, address: HookAddress, log: Log, lines: AlertLines, say: Callable[[str], None]) -> None:
        from confluo_tools.multilog.tails import Tails

        self._address, self._log, self._lines, self._say = address, log, lines, say
        self.sent = self.refused = self.dropped = 0
        self._path = os.path.join(log.path, STATE)
        self._rows = self._begin()
        self._tails = Tails(log.path, rows=self._rows, warn=say)
        self._connection: http.client.HTTPConnection | None = None
        self._stop, self._wake = threading.Event(), threading.Event()
        self._problem = ""
        self._saved = list(self._rows)
        self._thread = threading.Thread(target=self._work, name="webhook", daemon=True)
        self._thread.start()

    def _begin(self) -> list[int]:
        from confluo_tools.core.base.log_file import open_log_file

        try:
            with open(self._path, encoding="utf-8", opener=open_log_file) as f:
                data = json.load(f)
            if data["format"] == FORMAT and data["alerts"] == self._log.uuid.hex():
                tails = self._log.version()
                return [min(int(n), tails[lane]) for lane, n in enumerate(data["rows"])]
        except FileNotFoundError:
            pass
        except (OSError, ValueError, KeyError, TypeError):
            self._say(f"{self._path} is damaged: alerts from now on are sent")
        rows = list(self._log.version().tails)
        self._save(rows)
        return rows

    def _save(self, rows: list[int]) -> None:
        from confluo_tools.multilog.atomic_file import replace

        data = {"format": FORMAT, "alerts": self._log.uuid.hex(), "rows": rows}
        try:
            replace(self._path, json.dumps(data).encode() + b"\n", sync=True, point="webhook-state")
        except OSError as e:
            raise StoreError(f"cannot be written: {e.strerror}", where=self._path) from None
        self._saved = list(rows)

    @property
    def waiting(self) -> int:
        """Alerts that were not sent yet."""
        return max(sum(self._log.version().tails) - sum(self._rows), 0)

    def wake(self) -> None:
        """There are alerts."""
        self._wake.set()

    # -- the thread

    def _work(self) -> None:
        while not self._stop.is_set():
            try:
                for block, lane, first in self._blocks():
                    if not self._send_block(block, lane, first):
                        return
                if self._rows != self._saved:
                    self._save(self._rows)
            except Exception as e:  # it goes on: a full disk may pass
                from confluo_tools.console import describe

                self._trouble(describe(e))
                self._stop.wait(LONGEST_PAUSE)
            self._wake.wait(LOOK)
            self._wake.clear()

    def _blocks(self) -> Iterator[tuple[Block, int, int]]:
        # (alerts, lane, number of the first one) that are new.
        missed = self._tails.missed
        for stream in self._tails.streams():
            for block in stream:
                ends = self._tails.rows
                lane = next(i for i, end in enumerate(ends) if end != (self._rows[i] if i < len(self._rows) else 0))
                self._rows += [0] * (lane + 1 - len(self._rows))
                yield block, lane, ends[lane] - block.rows
                self._rows[lane] = ends[lane]
            self._rows = self._tails.rows  # with those that were removed from the log
        self.dropped += self._tails.missed - missed

    def _send_block(self, block: Block, lane: int, first: int) -> bool:
        saved = time.monotonic()
        for row, (line, name) in enumerate(self._lines.of(block)):
            if self.waiting > MAX_WAITING:
                self._drop()
            elif not self._deliver(line, name):
                return False
            self._rows[lane] = first + row + 1
            if time.monotonic() - saved >= 1.0:
                saved = time.monotonic()
                self._save(self._rows)
        return True

    def _deliver(self, line: bytes, name: str) -> bool:
        # Try until the server has taken the alert, or refuses it.  False: the run ends.
        pause = FIRST_PAUSE
        while True:
            try:
                self._post(line)
            except RefusedError as e:
                self.refused += 1
                self._say(f"{self._address.shown} refuses an alert of {name}: {e}")
                return True
            except Exception as e:
                self._hang_up()
                self._trouble(_reason(e))
            else:
                self.sent += 1
                if self._problem:
                    self._problem = ""
                    self._say(f"{self._address.shown} takes alerts again")
                return True
            if self.waiting > MAX_WAITING:
                self._drop()
                return True
            if self._stop.wait(pause):
                return False
            pause = min(2 * pause, LONGEST_PAUSE)

    def _drop(self) -> None:
        if not self.dropped:
            self._say(f"{self._address.shown}: more than {MAX_WAITING:,} alerts wait: the oldest are dropped")
        self.dropped += 1

    def _trouble(self, why: str) -> None:
        if not self._problem:
            self._say(f"{self._address.shown}: {why}; alerts wait, and it is tried again")
        self._problem = why

    def _post(self, line: bytes) -> None:
        import http.client

        at = self._address
        if self._connection is None:
            if at.tls:
                import ssl

                context = ssl.create_default_context()
                self._connection = http.client.HTTPSConnection(at.host, at.port, timeout=ANSWER, context=context)
            else:
                self._connection = http.client.HTTPConnection(at.host, at.port, timeout=ANSWER)
        headers = {"Content-Type": "application/json", "User-Agent": "confluo-monitor"}
        if at.login:
            headers["Authorization"] = f"Basic {at.login}"
        over = threading.Event()

        def give_up() -> None:
            over.set()
            self._hang_up()

        end = threading.Timer(WHOLE, give_up)  # a server that sends a byte now and then
        end.daemon = True
        end.start()
        try:
            self._connection.request("POST", at.target, line.rstrip(b"\n"), headers)
            answer = self._connection.getresponse()
            answer.read(1 << 16)
        finally:
            end.cancel()
        if over.is_set():  # the rest of an answer that was cut off looks like a short one
            raise TimeoutError
        if answer.will_close or not answer.isclosed():
            self._hang_up()
        if answer.status >= 500 or answer.status in AGAIN:
            raise ConfluoError(f"answers {answer.status} {answer.reason}"[:100])
        if not 200 <= answer.status < 300:
            raise RefusedError(f"{answer.status} {answer.reason}"[:100])

    def _hang_up(self) -> None:
        connection, self._connection = self._connection, None
        if connection is None:
            return
        link = connection.sock
        if link is not None:
            import socket
            from contextlib import suppress

            with suppress(OSError):
                link.shutdown(socket.SHUT_RDWR)
        connection.close()

    # -- the end

    def finish(self, seconds: float) -> int:
        """Send what waits, for at most ``seconds``; returns the number of alerts that are left to the next run."""
        end = time.monotonic() + seconds
        self._wake.set()
        while self.waiting and self._thread.is_alive() and time.monotonic() < end:
            time.sleep(0.02)
        self._stop.set()
        self._wake.set()
        self._thread.join(0.5)
        if self._thread.is_alive():
            self._hang_up()
            self._thread.join(1.0)
        self._hang_up()
        if not self._thread.is_alive():
            if self._rows != self._saved:
                self._save(self._rows)
            self._tails.close()
        return self.waiting


def _reason(e: Exception) -> str:
    if isinstance(e, TimeoutError):
        return "does not answer in time"
    if isinstance(e, OSError) and e.strerror:
        return e.strerror
    return str(e) or type(e).__name__
