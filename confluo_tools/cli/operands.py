"""Operands that are inputs and an expression."""

from __future__ import annotations

import os
import re

from confluo_tools.errors import FormatError, UsageError
from confluo_tools.inputs.logs import remote
from confluo_tools.inputs.topics import is_topic
from confluo_tools.objects.address import is_url

_REMOTE = re.compile(r"(\w[\w.-]*@)?[\w.-]+:/\S+")  # [USER@]HOST:/PATH; a MAC or IPv6 address has no slash there


def split_operands(
    operands: list[str], read: list[str], expression: str | None, at: str | None = None
) -> tuple[list[str], str]:
    """(inputs, expression).

    The first operand is the input, those behind it that are inputs too, and the others are the expression, as if
    joined by blanks (like tcpdump's): no expression begins with a word that is a path.  With -r or --at every
    operand belongs to the expression, with -e every operand is an input (like grep's).
    """
    if at is not None:
        if read or (expression is not None and operands):
            raise UsageError("the snapshot names the logs", where="--at", hint="leave the other inputs out")
        return [], " ".join(operands) if expression is None else expression
    if expression is not None:
        return [*read, *operands], expression
    if read:
        return read, " ".join(operands)
    if operands and not _elsewhere(operands[0]) and not os.path.lexists(operands[0]):
        hint = "the first operand is the input, - for standard input"
        raise FormatError("No such file or directory", where=operands[0], hint=hint)
    inputs = operands[:1]
    while len(inputs) < len(operands) and _is_input(operands[len(inputs)]):
        inputs.append(operands[len(inputs)])
    for word in operands[len(inputs) :]:
        if os.path.exists(word):
            hint = "several inputs: -r A -r B, or -e EXPR A B"
            raise UsageError("is a file, not an expression", where=word, hint=hint)
    return inputs, " ".join(operands[len(inputs) :])


def _is_input(word: str) -> bool:
    """Whether an operand behind the first is an input: a path that exists, a URL, a topic, or of another host."""
    if os.path.lexists(word):
        return "." in word or "/" in word  # no word of the language has one where an expression begins
    return is_topic(word) or is_url(word) or _REMOTE.fullmatch(word) is not None


def _elsewhere(name: str) -> bool:
    """Whether an input is neither a file nor a folder of this host."""
    return name == "-" or is_topic(name) or name.startswith("unix:") or is_url(name) or remote(name) is not None
