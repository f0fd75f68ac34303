"""Aggregates in ``--having`` and ``--sort``: columns of the result that are computed, but not printed."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

from confluo_tools.expr.aggregates import AggregateParser, Conditions, Result
from confluo_tools.expr.arithmetic import Quantity
from confluo_tools.expr.syntax import WORD_CHARS, ExprError
from confluo_tools.schema import Schema

MAX_KEYS = 64

_COMPARE = re.compile(r"\s*(?:[<>]=?|[=!]=|=|(?:not\s+)?in\b)")
_CONNECT = re.compile(r"and\b|or\b|not\b|&&|\|\||!(?!=)|[<>]=?|[=!]=|=|\(", re.IGNORECASE)
_OTHER = re.compile(rf"\"(?:[^\"\\]|\\.)*\"|'(?:[^'\\]|\\.)*'|[{WORD_CHARS}]+|.", re.DOTALL)


class ResultColumns:
    """The columns that ``--having`` and ``--sort`` need and ``--agg`` and ``--by`` do not have.

    ``agg``: the text of --agg; ``names``: of all columns that are printed; ``hidden``: the columns found so far.
    """

    def __init__(self, schema: Schema, agg: str, names: Collection[str], conditions: Conditions) -> None:
        self.schema, self.agg, self.conditions = schema, agg, conditions
        self.names = set(names)
        self.hidden: list[Result] = []

    def _parser(self, text: str, at: int, title: str) -> AggregateParser:
        # It knows the columns of --agg by name.
        before = AggregateParser(self.agg, self.schema, self.conditions)
        before.results()
        return AggregateParser(text, self.schema, self.conditions, title, at, before)

    def _column(self, parser: AggregateParser, value: Quantity, start: int) -> str:
        # The name of the column with this value.
        label = next(name for i in range(1 << 30) if (name := f"_{i}") not in self.names)
        self.names.add(label)
        self.hidden.append(parser.result(value, parser.text[start : parser.at].strip(), label, start))
        return label

    def condition(self, text: str) -> str:
        """The condition ``text`` with a name for each aggregate and each arithmetic in it, of the same length.

        Raises ExprError.
        """
        out, at, term = text, 0, True
        while at < len(text):
            if text[at].isspace():
                at += 1
                continue
            if term:
                found = self._term(text, at)
                if found is not None:
                    end, label = found
                    out = f"{out[:at]}{label.ljust(end - at)}{out[end:]}"
                    at, term = end, False
                    continue
            match = _CONNECT.match(text, at)
            term = match is not None
            at = (match or _OTHER.match(text, at)).end()  # type: ignore[union-attr]
        return out

    def _term(self, text: str, at: int) -> tuple[int, str] | None:
        # (end, name) of arithmetic or an aggregate at `at`; None: it is neither.
        parser = self._parser(text, at, "expression")
        try:
            value = parser.sum()
        except ExprError:
            if parser.called and text[at] != "(":
                raise
            return None
        end = at + len(text[at : parser.at].rstrip())
        compared = _COMPARE.match(text, end) or re.search(r"[<>=]\s*\Z", text[:at])
        if not compared or text[at:end].lower() in self.names or not any(s[0] == "column" for s in value.steps):
            return None
        return end, self._column(parser, value, at)

    def order(self, text: str) -> Sequence[tuple[str, bool]]:
        """``text`` of --sort: columns to sort by, and whether the largest come first.  Raises ExprError."""
        out: list[tuple[str, bool]] = []
        parser = self._parser(text, 0, "order")
        while True:
            falling = parser.op("-")
            if parser.op("-", "+"):
                parser.next()
            start, word = parser.at, parser.token.lower()
            if parser.kind == "word" and word in self.names and not word.startswith("_"):
                parser.next()
                if parser.kind == "end" or parser.op(","):
                    out.append((word, falling))
                else:
                    parser.move(start)
                    word = ""
            else:
                word = ""
            if not word:
                self._known(parser)
                value = parser.sum()
                out.append((self._column(parser, value, start), falling))
            if parser.kind == "end":
                return out
            if not parser.op(",") or len(out) == MAX_KEYS:
                what = f"{parser.found()} after a column" if len(out) < MAX_KEYS else f"more than {MAX_KEYS} columns"
                raise parser.fail(what, parser.at, "write e.g. -count,src_ip")
            parser.next()

    def _known(self, parser: AggregateParser) -> None:
        # What begins with a name that is neither a column nor a function is an error here: it names the columns.
        from confluo_tools.expr.aggregate_functions import function_of

        if parser.kind == "end" or parser.op(","):
            raise parser.fail("a column expected", parser.at, "write e.g. -count,src_ip")
        if parser.kind != "word" or function_of(parser.token.lower()) or parser.token.lower() in parser.known:
            return
        from difflib import get_close_matches

        names = sorted(name for name in self.names if not name.startswith("_"))
        near = get_close_matches(parser.token.lower(), names, n=1, cutoff=0.6)
        hint = f"did you mean '{near[0]}'?" if near else f"there are {', '.join(names[:12])}"
        raise parser.fail(f"the result has no column '{parser.token}'", parser.at, hint)


def hidden_columns(
    schema: Schema, agg: str, names: Collection[str], having: str | None, sort: str | None
) -> Sequence[Result]:
    """The columns that ``having`` and ``sort`` need and ``agg`` does not have, as the client of a server has them."""
    from confluo_tools.expr import compile

    columns = ResultColumns(schema, agg, names, lambda text, now: compile(text, schema, now_ns=now))
    if having is not None:
        columns.condition(having)
    if sort is not None:
        columns.order(sort)
    return columns.hidden
