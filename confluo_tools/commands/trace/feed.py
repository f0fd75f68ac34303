"""Where confluo-trace's records come from, in a thread of its own: reading waits, tracing must not."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from confluo_tools.errors import StoreError

if TYPE_CHECKING:
    from confluo_tools.commands.trace.engine import Engine
    from confluo_tools.formats.reader import Reader
    from confluo_tools.store.log import Log

LOOK = 0.05  # s between two looks at a log that is followed
APPEAR = 10.0  # s that a log may take to appear


def read(reader: Reader, engine: Engine) -> threading.Thread:
    """All of an input, to its end."""

    def work() -> None:
        try:
            for block in reader:
                if engine.stopped:
                    return
                engine.put(block)
            engine.put(None)
        except Exception as e:  # it is raised where it can be told
            engine.put(e)

    return _start(work)


def follow(log: Log | None, engine: Engine) -> threading.Thread:
    """What is in the log and what comes into it, until the engine stops."""

    def work() -> None:
        assert log is not None
        from confluo_tools.store.tails import Tails

        try:
            with Tails(log.path) as tails:
                while not engine.stopped:
                    grown = False
                    for part, _ in tails.take():
                        grown = True
                        engine.put(part)
                    if not grown and not tails.moved():
                        time.sleep(LOOK)
        except Exception as e:
            engine.put(e)

    return _start(work)


def open_log(path: str, patience: float = APPEAR) -> Log:
    """The log, which may still be made.  Raises StoreError."""
    from confluo_tools import store

    end = time.monotonic() + patience
    while True:
        try:
            return store.open(path, readonly=True)
        except (StoreError, OSError):
            if time.monotonic() > end:
                raise
            time.sleep(LOOK)


def _start(work: object) -> threading.Thread:
    thread = threading.Thread(target=work, name="input", daemon=True)  # type: ignore[arg-type]
    thread.start()
    return thread
