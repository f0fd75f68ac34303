"""Input of confluo-trace, in a thread of its own: reading may block, tracing must not."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from confluo_tools.console import warn
from confluo_tools.errors import StoreError

if TYPE_CHECKING:
    from confluo_tools.formats.reader import Reader
    from confluo_tools.multilog.log import Log
    from confluo_tools.trace.engine import TraceEngine

LOOK = 0.05  # s between two looks at a log that is followed
APPEAR = 10.0  # s that a log may take to appear


def read(reader: Reader, engine: TraceEngine) -> threading.Thread:
    """Read an input to its end, or a topic that is followed until the engine stops."""
    reader.stop_when(lambda: bool(engine.stopped))

    def work() -> None:
        try:
            for block in reader:
                if engine.stopped:
                    return
                engine.put(block)
            engine.put(None)
        except Exception as e:  # the engine raises it in the main thread
            engine.put(e)

    return _start(work)


def follow(log: Log | None, engine: TraceEngine) -> threading.Thread:
    """Read the log as it grows, until the engine stops."""

    def work() -> None:
        assert log is not None
        from confluo_tools.multilog.tails import Tails

        try:
            with Tails(log.path, warn=warn) as tails:
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
    """Open the log; wait ``patience`` seconds for it to appear.  Raises StoreError."""
    from confluo_tools import multilog

    end = time.monotonic() + patience
    while True:
        try:
            return multilog.open(path, readonly=True)
        except (StoreError, OSError):
            if time.monotonic() > end:
                raise
            time.sleep(LOOK)


def _start(work: object) -> threading.Thread:
    thread = threading.Thread(target=work, name="input", daemon=True)  # type: ignore[arg-type]
    thread.start()
    return thread
