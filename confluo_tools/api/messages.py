"""What a command would print on stderr, as Python warnings: damaged parts, hosts that are missing, late records."""

from __future__ import annotations

import sys
import warnings

from confluo_tools import console


class ConfluoWarning(UserWarning):
    """Something is wrong with an input, but there is an answer without it."""


def listen() -> None:
    """Turn the messages of the package into warnings, unless a command of the package is running."""
    if console.state.listener is None and not console.state.argv:
        console.state.listener = _warn


def _warn(line: str) -> None:
    # Name the line of the caller, not one of this package.
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).startswith("confluo_tools."):
        level, frame = level + 1, frame.f_back
    warnings.warn(line, ConfluoWarning, stacklevel=level)
