"""A part of the terminal that is drawn again and again, until `q` or a signal."""

from __future__ import annotations

import os
import sys
import time
from types import TracebackType
from typing import Any

from confluo_tools.console import is_terminal


class LiveScreen:
    """Context manager: `show` replaces what is on the screen; what is shown last stays there."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.live import Live

        console = Console(file=sys.stdout, highlight=False, markup=False, emoji=False)
        self._live = Live(console=console, auto_refresh=False, redirect_stdout=False, redirect_stderr=False)
        self._keys: Any = None  # settings of the terminal, when keys are read

    def __enter__(self) -> LiveScreen:
        import termios
        import tty

        if is_terminal(0) and os.tcgetpgrp(0) == os.getpgrp():  # in the background, reading keys would stop it
            self._keys = termios.tcgetattr(0)
            tty.setcbreak(0, termios.TCSANOW)
        self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        import termios

        self._live.stop()
        if self._keys is not None:
            termios.tcsetattr(0, termios.TCSANOW, self._keys)

    def show(self, text: str) -> None:
        """Replace the text; it may have colours (ANSI)."""
        from rich.text import Text

        self._live.update(Text.from_ansi(text, no_wrap=True, overflow="crop"), refresh=True)

    def wait(self, seconds: float) -> bool:
        """Wait; False as soon as `q` is pressed."""
        import select

        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            if self._keys is None:
                time.sleep(left)
            elif select.select([0], [], [], left)[0]:
                key = os.read(0, 64)
                if key in (b"", b"\x04") or b"q" in key.lower():
                    return False
        return True
