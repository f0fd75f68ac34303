"""Console of a command: its messages on stderr, and the state of the run."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

from confluo_tools.errors import ConfluoError

OK = 0  # done, found
NOTHING = 1  # nothing found
TROUBLE = 2  # usage or error
TEMPFAIL = 75  # another process holds a lock (EX_TEMPFAIL)


class ConsoleState:
    """The state of one run of a command; `cli.run` resets it."""

    prog = "confluo"
    argv: tuple[str, ...] = ()
    quiet = False
    verbose = False
    archives = True  # logs are read together with their archives
    trouble = False  # a non-fatal error was reported: the exit status becomes 2
    over = False  # the run has ended: signals are ignored
    progress = None  # the Progress on screen, erased before other output
    listener: Callable[[str], None] | None = None  # takes messages instead of stderr: of a program that imported us


state = ConsoleState()


def reset(prog: str, argv: tuple[str, ...]) -> None:
    state.prog, state.argv = prog, argv
    state.quiet = state.verbose = state.trouble = state.over = False
    state.archives = True
    state.progress = state.listener = None


def say(line: str) -> None:
    """Print one line on stderr; errors are ignored."""
    if state.progress is not None:
        state.progress.erase()  # type: ignore[unreachable]
    try:
        sys.stderr.write(line + "\n")
        sys.stderr.flush()
    except (OSError, ValueError, AttributeError):
        pass  # stderr is closed


def warn(what: str, *, where: object = "", hint: str = "") -> None:
    """Report a non-fatal error; the exit status becomes 2."""
    state.trouble = True
    note(what, where=where, hint=hint)


def note(what: str, *, where: object = "", hint: str = "") -> None:
    """Print a message on stderr; the exit status does not change."""
    line = f"{where}: {what}" if where != "" else what
    line = printable(f"{line}; {hint}" if hint else line)
    if state.listener is not None:
        state.listener(line)
    else:
        say(f"{state.prog}: {line}")


def tell(what: str) -> None:
    """`note`, unless --quiet."""
    if not state.quiet:
        note(what)


def describe(error: BaseException) -> str:
    """The message of an error, on one line."""
    if isinstance(error, ConfluoError):
        return str(error)
    if isinstance(error, OSError) and error.strerror:
        where = os.fsdecode(error.filename) if isinstance(error.filename, bytes) else error.filename
        return error.strerror if where is None or where == "" else f"{where}: {error.strerror}"
    if isinstance(error, MemoryError):
        return "out of memory"
    if isinstance(error, RuntimeError) and str(error) == "can't start new thread":
        return "cannot start a thread; raise the limit of processes (ulimit -u)"
    return f"internal error: {type(error).__name__}: {error}; CONFLUO_DEBUG=1 shows where"


class ThreadErrors:
    """Reports the errors after which a thread goes on: each message once, on one line; the exit status becomes 2.

    ``doing``: what the thread does, for messages.
    """

    def __init__(self, doing: str) -> None:
        self._doing = doing
        self._said: set[str] = set()

    def report(self, error: BaseException) -> None:
        """Report ``error``, unless an equal message was reported before."""
        text = describe(error)
        if text in self._said:
            return
        self._said.add(text)
        if os.environ.get("CONFLUO_DEBUG"):
            import traceback

            traceback.print_exception(error)
        warn(text if isinstance(error, ConfluoError) else f"{self._doing}: {text}")


def printable(text: str) -> str:
    """One line that is safe for a terminal: unprintable characters, such as escape sequences in names, are escaped."""
    return "".join(c if c.isprintable() or c == "\t" else _escape(c) for c in text)


def _escape(c: str) -> str:
    raw = bytes([ord(c) & 0xFF]) if "\udc80" <= c <= "\udcff" else c.encode("utf-8", "surrogatepass")
    return "".join(f"\\x{b:02x}" for b in raw)


def is_terminal(fd: int) -> bool:
    try:
        return os.isatty(fd)
    except OSError:
        return False


def colour(fd: int, when: str | None = None) -> bool:
    """Whether to write colour or a progress line to ``fd``.  ``when``: never, always, auto or None (the setting)."""
    if when is None:
        from confluo_tools import config

        when = config.text("color")
    if when in ("always", "never"):
        return when == "always"
    return is_terminal(fd) and not os.environ.get("NO_COLOR") and os.environ.get("TERM", "dumb") != "dumb"
