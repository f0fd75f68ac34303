"""Values of options: what is wrong with one names its option."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from confluo_tools.errors import UsageError

T = TypeVar("T")


def of_option(option: str, parse: Callable[[str], T], text: str) -> T:
    """What ``parse`` makes of the text behind an option; the UsageError that it raises gets the option's name."""
    try:
        return parse(text)
    except UsageError as e:
        e.where = option
        raise
