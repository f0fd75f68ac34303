"""Operands that are inputs and an expression."""

from __future__ import annotations

import os

from confluo_tools.errors import FormatError, UsageError
from confluo_tools.inputs.logs import remote
from confluo_tools.inputs.topics import is_topic
from confluo_tools.objects.address import is_url


def split_operands(
    operands: list[str], read: list[str], expression: str | None, at: str | None = None
) -> tuple[list[str], str]:
    """(inputs, expression).

    The first operand is the input and the others are the expression, as if joined by blanks (like tcpdump's);
    with -r or --at every operand belongs to the expression, with -e every operand is an input (like grep's).
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
    for word in operands[1:]:
        if os.path.exists(word):
            hint = "several inputs: -r A -r B, or -e EXPR A B"
            raise UsageError("is a file, not an expression", where=word, hint=hint)
    return operands[:1], " ".join(operands[1:])


def _elsewhere(name: str) -> bool:
    """Whether an input is neither a file nor a folder of this host."""
    return name == "-" or is_topic(name) or name.startswith("unix:") or is_url(name) or remote(name) is not None
