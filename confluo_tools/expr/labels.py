"""Names of result columns."""

from __future__ import annotations

import re
from collections.abc import Collection

_LABEL = re.compile(r"[a-z_][a-z0-9_]{0,62}\Z")
_OTHER = re.compile(r"[^a-z0-9]+")


def bad_label(label: str, taken: Collection[str]) -> tuple[str, str] | None:
    """What is wrong with the name of a column, and what to do; None: nothing.  ``taken``: names of other columns."""
    if not _LABEL.match(label):
        return f"'{label}' is too long for a name", "give one: ... as NAME"
    if label in taken:
        return f"two columns would be called '{label}'", "give one another name: ... as NAME"
    return None


def label_of(text: str) -> str:
    """A name for what is computed by ``text``: 'count_retransmission' for 'count(retransmission)'."""
    label = _OTHER.sub("_", text.lower()).strip("_")
    return f"_{label}" if label[:1].isdigit() else label
