"""Signals that end a command by an exception, raised where the exception cannot be lost.

Python discards an exception in several places: while a compiled module is initialized (`abc.register` of Cython's
memory views), in `__del__`, and in callbacks of weak references, which the import system uses as well.  Without this
module a command that gets SIGTERM while it loads would go on for ever.

It is imported by `confluo-serve` before anything else, so it loads only built-in modules.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # signal would load enum
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType
    from typing import Any

SOON = 0.01  # s until a signal that arrived in such a place is looked at again
AGAIN = 0.5  # s until a raised exception that has not ended the command is raised again


class StopRaiser:
    """Raises the exception of a signal in the main thread, again and again until `end`.

    ``make``: creates the exception of a signal number.  It must not be a subclass of Exception.
    ``number``: of the signal that arrived last; 0 if none did.
    """

    def __init__(self, make: Callable[[int], BaseException]) -> None:
        self._make = make
        self.number = 0
        self._late = False  # the exception is still to be raised
        self._over = False
        self._before: Any = None  # the handler of SIGALRM before `_wait`
        self._hook: Any = None  # sys.unraisablehook before `_wait`

    def stop(self, number: int, frame: FrameType | None) -> None:
        """The body of a handler: raise the exception of signal ``number``; later, if it would be lost now."""
        global _current
        self.number = number
        if _discards_exceptions(frame):
            self._late, _current = True, self
            self._wait(SOON)
            return
        self._late = False
        self._wait(AGAIN)
        raise self._make(number)

    def raise_late(self) -> None:
        """Raise the exception of a signal that arrived where it would have been lost, and was not raised since."""
        if self._late and not self._over:
            self._late = False
            raise self._make(self.number)

    def end(self) -> None:
        """Raise nothing any more: the command has ended."""
        global _current
        self._over = True
        if _current is self:
            _current = None
        if self._hook is not None:
            _signal.setitimer(_signal.ITIMER_REAL, 0)
            _signal.signal(_signal.SIGALRM, self._before)
            sys.unraisablehook, self._hook = self._hook, None

    def _wait(self, seconds: float) -> None:
        if self._hook is None:
            before = _signal.signal(_signal.SIGALRM, self._look_again)
            self._before = _signal.SIG_DFL if before is None else before
            self._hook, sys.unraisablehook = sys.unraisablehook, self._discarded
        _signal.setitimer(_signal.ITIMER_REAL, seconds)

    def _look_again(self, number: int, frame: FrameType | None) -> None:
        if self._over:
            return
        if _unwinds(sys.exc_info()[1]):
            self._wait(AGAIN)
        else:
            self.stop(self.number, frame)

    def _discarded(self, what: Any) -> None:
        global _current
        # Python reports here what it discards; the user need not see the exception of a signal.
        if what.exc_value is None or isinstance(what.exc_value, Exception):
            self._hook(what)
        elif not self._over:
            self._late, _current = True, self
            self._wait(SOON)


_current: StopRaiser | None = None  # the one that may have an exception to raise


def raise_late() -> None:
    """Call this before a step that cannot be undone: a signal that arrived before it must prevent it."""
    if _current is not None:
        _current.raise_late()


def _discards_exceptions(frame: FrameType | None) -> bool:
    """Whether an exception raised in ``frame`` may not reach the outermost frame."""
    while frame is not None:
        if frame.f_code.co_name == "__del__" or frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False


def _unwinds(error: BaseException | None) -> bool:
    """Whether clean-up code runs for an exception that ends a command or closes a generator."""
    while error is not None:
        if not isinstance(error, Exception):
            return True
        error = error.__context__
    return False
