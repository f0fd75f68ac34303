"""A part of the terminal, or all of it, that is drawn again and again, until a key or a signal."""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from contextlib import suppress
from types import FrameType, TracebackType
from typing import Any

from confluo_tools.console import is_terminal

END = ("", "\x04")  # what is read instead of a key when the terminal has gone, or at Ctrl-D


class LiveScreen:
    """Context manager: `show` replaces what is on the screen.

    What is shown last stays there, unless ``whole``: then the whole terminal is used, and is as before at the end.
    The terminal is also as before while Ctrl-Z stops the process.
    """

    def __init__(self, *, whole: bool = False) -> None:
        from rich.console import Console

        self._console = Console(file=sys.stdout, highlight=False, markup=False, emoji=False)
        self._whole, self._text = whole, ""
        self._keys = -1  # descriptor of the terminal that keys are read from
        self._opened = False
        self._settings: Any = None
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._stop = False  # Ctrl-Z was pressed
        self._before: dict[int, Any] = {}

    def __enter__(self) -> LiveScreen:
        self._find_keys()
        for number in (signal.SIGWINCH, signal.SIGTSTP):
            self._before[number] = signal.signal(number, self._signalled)
        self._begin()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._end()
        for number, handler in self._before.items():
            signal.signal(number, handler)
        if self._opened:
            os.close(self._keys)
        os.close(self._wake)

    @property
    def size(self) -> tuple[int, int]:
        """Columns and lines."""
        found = self._console.size
        return found.width, found.height

    @property
    def has_keys(self) -> bool:
        """Whether keys are read: not in the background."""
        return self._keys >= 0

    def show(self, text: str) -> None:
        """Replace the text; it may have colours (ANSI)."""
        from rich.text import Text

        self._text = text
        self._live.update(Text.from_ansi(text, no_wrap=True, overflow="crop"), refresh=True)

    def wait(self, seconds: float) -> bool:
        """Wait; False as soon as `q` is pressed."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            key = self.key(left)
            if key is not None and (key in END or "q" in key.lower()):
                return False
        return True

    def key(self, seconds: float, wake: int = -1) -> str | None:
        """The keys that were pressed within this time; one of `END` when there will be none.

        None: the time is over, the terminal has another size, or the descriptor ``wake`` is readable.
        """
        waiting = [fd for fd in (self._keys, self._wake, wake) if fd >= 0]
        ready = select.select(waiting, [], [], max(seconds, 0.0))[0]
        if self._wake in ready:
            os.eventfd_read(self._wake)
            if self._stop:
                self._suspend()
        if self._keys not in ready:
            return None
        try:
            return os.read(self._keys, 64).decode("latin-1")
        except OSError:  # the terminal was closed
            return ""

    # -- the terminal

    def _find_keys(self) -> None:
        fd, opened = 0, False
        if not is_terminal(0):  # records come from there
            try:
                fd, opened = os.open("/dev/tty", os.O_RDONLY | os.O_CLOEXEC), True
            except OSError:
                return
        if os.tcgetpgrp(fd) == os.getpgrp():  # in the background, reading keys would stop it
            self._keys, self._opened = fd, opened
        elif opened:
            os.close(fd)

    def _begin(self) -> None:
        import termios
        import tty

        from rich.live import Live

        if self._keys >= 0:
            self._settings = termios.tcgetattr(self._keys)
            tty.setcbreak(self._keys, termios.TCSANOW)
        self._live = Live(
            console=self._console,
            auto_refresh=False,
            redirect_stdout=False,
            redirect_stderr=False,
            screen=self._whole,
            vertical_overflow="crop",
        )
        self._live.start()

    def _end(self) -> None:
        import termios

        try:
            self._live.stop()
        finally:
            if self._settings is not None:
                with suppress(termios.error):  # the terminal was closed
                    termios.tcsetattr(self._keys, termios.TCSANOW, self._settings)
                self._settings = None

    def _signalled(self, number: int, frame: FrameType | None) -> None:
        self._stop = self._stop or number == signal.SIGTSTP
        os.eventfd_write(self._wake, 1)

    def _suspend(self) -> None:
        # Give the terminal back, stop as Ctrl-Z does, and draw again when the process goes on.
        self._stop = False
        self._end()
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTSTP)
        signal.signal(signal.SIGTSTP, self._signalled)
        self._begin()
        self.show(self._text)
