"""Messages that cannot be read: reported, counted, and left out."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from confluo_tools.errors import FormatError
    from confluo_tools.formats.reader import Warn

REPORTED = 5  # messages with a line each; the others are only counted


class UnreadableMessages:
    """Counts the messages of an input that cannot be read; ``warn`` prints a line for each of the first ones."""

    def __init__(self, warn: Warn) -> None:
        self._warn = warn
        self.count = 0

    def add(self, which: str, error: FormatError) -> None:
        """``which``: the place of the message in the input."""
        self.count += 1
        if self.count <= REPORTED:
            self._warn(f"message {which} {error.what}")

    def report(self) -> None:
        """At the end of the input: say how many there were, unless each had a line."""
        if self.count > REPORTED:
            self._warn(f"messages that could not be read: {self.count}")
