"""What one run of one command knows about itself: its name, how talkative it is, whether something went wrong."""

from __future__ import annotations

import os
import sys

OK = 0  # done, found
NOTHING = 1  # nothing found
TROUBLE = 2  # usage or error
TEMPFAIL = 75  # somebody else holds a lock (EX_TEMPFAIL)


class State:
    """Reset by `run`; everything else reads it."""

    prog = "confluo"
    argv: tuple[str, ...] = ()
    quiet = False
    verbose = False
    archives = True  # a log is read together with the archives that it remembers
    trouble = False  # something non-fatal was reported: the exit status becomes 2
    over = False  # all is said and done: signals come too late
    progress = None  # the Progress on screen, erased before other lines are printed


state = State()


def reset(prog: str, argv: tuple[str, ...]) -> None:
    state.prog, state.argv = prog, argv
    state.quiet = state.verbose = state.trouble = state.over = False
    state.archives = True
    state.progress = None


def say(line: str) -> None:
    """One line on stderr, whatever else happens there."""
    if state.progress is not None:
        state.progress.erase()  # type: ignore[unreachable]
    try:
        sys.stderr.write(line + "\n")
        sys.stderr.flush()
    except (OSError, ValueError, AttributeError):
        pass  # nobody listens


def warn(what: str, *, where: object = "", hint: str = "") -> None:
    """Report something wrong and go on; the exit status will be 2."""
    state.trouble = True
    note(what, where=where, hint=hint)


def note(what: str, *, where: object = "", hint: str = "") -> None:
    """Tell the user something on stderr without changing the exit status."""
    line = f"{state.prog}: {where}: {what}" if where != "" else f"{state.prog}: {what}"
    say(printable(f"{line}; {hint}" if hint else line))


def tell(what: str) -> None:
    """`note`, unless --quiet."""
    if not state.quiet:
        note(what)


def printable(text: str) -> str:
    """Text safe for a terminal: names may hold any bytes, an escape sequence among them."""
    return "".join(c if c.isprintable() or c == "\n" or c == "\t" else _escape(c) for c in text)


def _escape(c: str) -> str:
    raw = c.encode("utf-8", "surrogateescape")
    return "".join(f"\\x{b:02x}" for b in raw)


def is_terminal(fd: int) -> bool:
    try:
        return os.isatty(fd)
    except OSError:
        return False


def colour(fd: int, when: str | None = None) -> bool:
    """May colour (or a progress line) be written to ``fd``?  ``when``: never, always, auto or None (configured)."""
    if when is None:
        from confluo_tools import config

        when = config.text("color")
    if when in ("always", "never"):
        return when == "always"
    return is_terminal(fd) and not os.environ.get("NO_COLOR") and os.environ.get("TERM", "dumb") != "dumb"
