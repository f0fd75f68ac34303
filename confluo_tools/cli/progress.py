"""A progress line on stderr: on terminals only, at most twice a second, erased at the end."""

from __future__ import annotations

import os
import sys
import time
from types import TracebackType

from confluo_tools.console import is_terminal, state

PERIOD = 0.5  # seconds between two updates of the line


class Progress:
    """Context manager that shows progress.  ``total``: in the unit of `update`; None: unknown.

    Silent with --quiet, and if stderr is not a terminal that can erase a line.
    """

    def __init__(self, label: str, total: int | None = None, unit: str = "") -> None:
        self.label, self.total, self.unit = label, total, unit
        self.on = not state.quiet and is_terminal(2) and os.environ.get("TERM", "dumb") != "dumb"
        self._shown = False
        self._start = self._last = time.monotonic()

    def __enter__(self) -> Progress:
        state.progress = self  # type: ignore[assignment]
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.erase()
        state.progress = None

    def update(self, done: int) -> None:
        """Show that ``done`` units are done in all."""
        if not self.on:
            return
        now = time.monotonic()
        if now - self._last < PERIOD:
            return
        self._last = now
        from shutil import get_terminal_size

        line = self.line(done, now - self._start)[: get_terminal_size().columns - 1]
        self._write(f"\r{line}\x1b[K")
        self._shown = True

    def line(self, done: int, seconds: float) -> str:
        """The text of the line: label, share or amount, rate, seconds left."""
        rate = done / seconds if seconds > 0 else 0.0
        unit = f" {self.unit}" if self.unit else ""
        if not self.total:
            return f"{self.label}: {humane(done)}{unit}, {humane(rate)}{unit}/s"
        left = (self.total - done) / rate if rate else 0.0
        share = min(100, 100 * done // self.total)
        return f"{self.label}: {share} % of {humane(self.total)}{unit}, {humane(rate)}{unit}/s, {left:.0f} s left"

    def erase(self) -> None:
        """Erase the line, before other text is printed."""
        if self._shown:
            self._write("\r\x1b[K")
            self._shown = False

    def _write(self, text: str) -> None:
        try:
            sys.stderr.write(text)
            sys.stderr.flush()
        except (OSError, ValueError, AttributeError):
            self.on = False


def humane(number: float) -> str:
    """Three digits and a suffix: 1234567 -> 1.23 M."""
    for limit, suffix in ((1e12, " T"), (1e9, " G"), (1e6, " M"), (1e3, " k")):
        if number >= limit * 0.9995:
            return f"{number / limit:.3g}{suffix}"
    return f"{number:.3g}" if number != int(number) else str(int(number))
