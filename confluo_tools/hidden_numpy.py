"""Commands do without numpy: pyarrow loads it where it is installed, and needs it only for arrays of numpy.

That takes 70 ms, and a thread for each core, which first spins.  Numpy is hidden from imports as long as a command
runs; what needs it calls `show` first.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

NAME = "numpy"


@contextmanager
def hidden() -> Iterator[None]:
    """Let every import of numpy fail, unless it is loaded already."""
    if NAME in sys.modules:
        yield
        return
    sys.modules[NAME] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        show()


def show() -> None:
    """Allow imports of numpy from now on."""
    if NAME in sys.modules and sys.modules[NAME] is None:
        del sys.modules[NAME]
