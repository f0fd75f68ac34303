"""Files of values (``src_ip in @FILE`` holds for the values in FILE, one a line) and of an expression (-F)."""

from __future__ import annotations

import os
import re

from confluo_tools.errors import ConfluoError, UsageError
from confluo_tools.expr.syntax import MAX_TEXT, ListFile, Value

MAX_VALUES = 1_000_000
MAX_BYTES = 64 << 20
_KEPT = 4  # files that are read once although an expression is compiled several times

_REMARK = re.compile(r"(?:^|\s)#.*")
_COMMENT = re.compile(r"(?:^|\s)[#;].*")
_known: dict[tuple[object, ...], list[Value]] = {}


def read_list(path: str) -> list[Value]:
    """The values of a file; ``pos`` of each is -LINE.

    Blank lines and comments (from # or ; at the beginning of a line or after a blank) are left out.
    Raises ConfluoError if the file cannot be read, UsageError if it has too many values or none.
    """
    try:
        with open(path, "rb") as file:
            now = os.fstat(file.fileno())
            key = path, now.st_dev, now.st_ino, now.st_mtime_ns, now.st_size  # a pipe can be read only once
            if key in _known:
                return _known[key]
            data = file.read(MAX_BYTES + 1)
    except OSError as e:
        raise ConfluoError(e.strerror or str(e), where=path) from None
    if len(data) > MAX_BYTES:
        raise UsageError(f"more than {MAX_BYTES >> 20} MiB", where=path, hint="put the list into several files")
    lines = data.decode("utf-8-sig", "surrogateescape").splitlines()
    values = []
    for number, line in enumerate(lines, 1):
        text = line.strip() if "#" not in line and ";" not in line else _COMMENT.sub("", line).strip()
        if text:
            values.append(Value(text, False, -number))
    if not values:
        raise UsageError("there is no value in it", where=path, hint="write one a line")
    if len(values) > MAX_VALUES:
        hint = "put the list into several files"
        raise UsageError(f"{len(values):,} values; {MAX_VALUES:,} are possible", where=path, hint=hint)
    while len(_known) >= _KEPT:
        del _known[next(iter(_known))]
    _known[key] = values
    return values


def read_expression(path: str) -> str:
    """The expression in a file, which may have several lines.

    # at the beginning of a line or after a blank begins a comment, except in lines with quotes.
    Raises ConfluoError if the file cannot be read, UsageError if it is too long.
    """
    try:
        with open(path, "rb") as file:
            data = file.read(4 * MAX_TEXT + 1)
    except OSError as e:
        raise ConfluoError(e.strerror or str(e), where=path) from None
    lines = data.decode("utf-8-sig", "surrogateescape").splitlines()
    text = "\n".join([line if "'" in line or '"' in line else _REMARK.sub("", line) for line in lines])
    if len(text) > MAX_TEXT:
        raise UsageError(f"longer than {MAX_TEXT:,} characters", where=path, hint="put long sets into lists: in @FILE")
    return text


def inlined(text: str) -> str:
    """The expression ``text`` with the values of its files in it, as another host needs it.

    Raises UsageError if that is too long for another host.
    """
    if "@" not in text:
        return text
    from confluo_tools.expr.parse import parse
    from confluo_tools.expr.syntax import Both, Compare, Either, Negation, Syntax, unparse

    found = False

    def filled(node: Syntax) -> Syntax:
        nonlocal found
        if isinstance(node, (Both, Either)):
            return type(node)(tuple([filled(item) for item in node.items]), node.pos)
        if isinstance(node, Negation):
            return Negation(filled(node.item), node.pos)
        if isinstance(node, Compare) and isinstance(node.values[0], ListFile):
            found = True
            return Compare(node.operand, node.op, tuple(read_list(node.values[0].text)), True, node.pos)
        return node

    out = unparse(filled(parse(text).tree))
    if not found:
        return text
    if len(out) > MAX_TEXT:
        what = f"with the values of its files, the expression is longer than {MAX_TEXT:,} characters"
        raise UsageError(what, hint="another host takes short lists only; filter here: ... -o stream | confluo-query -")
    return out
