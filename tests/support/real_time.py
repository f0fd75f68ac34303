"""Tests of real traffic, which a busy machine changes."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

TRIES = 3


def in_real_time(test: Callable[..., None]) -> Callable[..., None]:
    """A test whose packets and timers a processor that stands still moves: one of three tries must pass.

    Each try gets a new folder as ``tmp_path``.  What failed is printed.
    """

    @wraps(test)
    def tried(*, tmp_path: Path, **more: Any) -> None:
        for number in range(TRIES):
            folder = tmp_path / str(number)
            folder.mkdir()
            try:
                test(tmp_path=folder, **more)
                return
            except AssertionError as e:
                if number == TRIES - 1:
                    raise
                print(f"try {number + 1}: {e}")

    return tried
