"""Signal handling of commands that run until a signal: capture, monitor, the agents."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from confluo_tools.console import state

SAME_SIGNAL = 1.0  # s: a signal repeated within this time counts as one


@contextmanager
def signals(
    stop: Callable[[int], None], *, counts: Callable[[], str] | None = None, flush: Callable[[], None] | None = None
) -> Iterator[None]:
    """SIGINT, SIGTERM, SIGHUP: call ``stop(number)`` once; a second signal ends the process at once.

    timeout(1) signals its child and then the process group: a signal repeated within a second counts as one.

    SIGUSR1: print ``counts()`` on stderr.  SIGUSR2: call ``flush()``.
    """
    first = 0.0

    def ending(number: int, frame: FrameType | None) -> None:
        nonlocal first
        now = time.monotonic()
        if not first:
            first = now
            stop(number)
        elif now - first > SAME_SIGNAL:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)

    def tell(number: int, frame: FrameType | None) -> None:
        if counts is not None:
            line = f"{state.prog}: {counts()}\n"
            os.write(2, line.encode())  # not print: the signal may have interrupted a print

    def flushing(number: int, frame: FrameType | None) -> None:
        if flush is not None:
            flush()

    before: dict[int, Any] = {}
    try:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:  # keep that of nohup
                before[number] = signal.signal(number, ending)
        if counts is not None:
            before[signal.SIGUSR1] = signal.signal(signal.SIGUSR1, tell)
        if flush is not None:
            before[signal.SIGUSR2] = signal.signal(signal.SIGUSR2, flushing)
    except ValueError:
        pass  # not in the main thread: embedded in another program
    try:
        yield
    finally:
        for known, handler in before.items():
            signal.signal(known, handler)
