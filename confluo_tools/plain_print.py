"""Print help and lists of names: text that a command prints before it has loaded the rest."""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TextIO


def plain_print(prog: str, text: str, to: TextIO | None = None) -> int:
    """Print ``text`` to ``to``, by default to stdout; returns the exit status.

    That is 141 when the reader has gone away; when stdout cannot be written, a line on stderr, and 2.
    """
    try:
        out = to or sys.stdout
        out.write(text)
        out.flush()
        return 0
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 141
    except (OSError, AttributeError, ValueError) as e:
        if to is None:
            plain_print(prog, f"{prog}: standard output: {getattr(e, 'strerror', None) or 'closed'}\n", sys.stderr)
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 2
