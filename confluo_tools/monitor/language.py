"""The trigger language: text -> Trigger, checked against a schema.  Grammar: confluo-monitor(1).

    NAME: CONDITION over WINDOW [every PERIOD] [by KEYS] [where EXPR] [for TIME] [clear CONDITION] [rearm TIME]
                                [repeat TIME]

A condition compares aggregates of the rows in a sliding window with numbers and with each other; ``by`` makes it one
condition per key.  This module uses schemas and names of aggregates, but no logs.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from confluo_tools.errors import UsageError
from confluo_tools.expr import aggregates, group_keys
from confluo_tools.expr.aggregate_functions import FUNCTIONS, NUMERIC, written
from confluo_tools.expr.leaves import Leaf
from confluo_tools.expr.syntax import ExprError
from confluo_tools.schema import Schema
from confluo_tools.units import format_duration, format_number, try_duration, try_number

if TYPE_CHECKING:
    from confluo_tools.expr import Expr

MAX_TEXT = 8192
MAX_DEPTH = 40
MAX_NODES = 60  # of a condition: what the evaluator's stack takes
MAX_STEPS = 100_000  # a window's steps
MAX_MEASURES = 16
MS = 1_000_000
MIN_GRAIN = 100_000  # ns: the least greatest common divisor of window and period
MAX_TIME = 400 * 86400 * 10**9
SHAPE = "write NAME: CONDITION over WINDOW"

COMPARISONS = {"==": "==", "=": "==", "!=": "!=", "<": "<", "<=": "<=", ">": ">", ">=": ">="}
_CLAUSES = ("over", "every", "by", "where", "for", "clear", "rearm", "repeat")
_TIMES = {"over", "every", "for", "rearm", "repeat"}
_NAME = re.compile(r"\s*([A-Za-z_][A-Za-z0-9_.-]{0,62})\s*:(?!:)")
_TOKEN = re.compile(
    r"(?P<number>0[xX][0-9a-fA-F]+|(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+(?![A-Za-z]))?[A-Za-zµμ]*(?:\d+[a-zµμ]+)*)"
    r"|(?P<word>[A-Za-z_][A-Za-z0-9_.]*~?)"
    r"|(?P<op>&&|\|\||==|!=|<=|>=|[-+*/<>=!(),])"
)
_SCAN = re.compile(r"\"(?:[^\"\\]|\\.)*\"|'(?:[^'\\]|\\.)*'|[()\[\]{}]|[A-Za-z_][A-Za-z0-9_.]*", re.DOTALL)


class NamedAggregate(Leaf):
    """A named aggregate: its ``agg`` and ``by`` as in --agg and --by, ``where`` the filter as an expression."""

    __slots__ = __match_args__ = ("name", "agg", "where", "by")

    def __init__(self, name: str, agg: str, where: str = "", by: str = "") -> None:
        self.name, self.agg, self.where, self.by = name, agg, where, by


class Measure(Leaf):
    """One aggregate of a condition: ``func`` of ``field`` or ``value`` (None: rows) for rows where ``where`` holds.

    ``func``: a key of `aggregate_functions.FUNCTIONS`; ``q`` of a quantile; ``timed``: its value is in nanoseconds.
    """

    __slots__ = __match_args__ = ("func", "field", "q", "where", "timed", "value")

    def __init__(
        self,
        func: str,
        field: str | None,
        q: float | None,
        where: str,
        timed: bool = False,
        value: aggregates.Computed | None = None,
    ) -> None:
        self.func, self.field, self.q, self.where, self.timed, self.value = func, field, q, where, timed, value

    @property
    def text(self) -> str:
        """As it is written: ``sum(len)``."""
        return written(self.func, self.field if self.value is None else self.value.text, self.q)


class ConditionNode:
    """A node of a condition: ``op`` num (``value``), agg (``value``: number of the measure), + - * / neg,
    == != < <= > >=, and or not; ``kind`` is 'number', 'time' (ns) or 'truth'."""

    __slots__ = ("op", "args", "value", "kind", "pos")

    def __init__(self, op: str, args: tuple[ConditionNode, ...], kind: str, pos: int, value: Any = None) -> None:
        self.op, self.args, self.kind, self.pos, self.value = op, args, kind, pos, value

    def walk(self) -> list[ConditionNode]:
        """This node and all below it, children first."""
        out = [n for a in self.args for n in a.walk()]
        return [*out, self]

    def eval(self, values: list[float]) -> float:
        """The value, like the compiled evaluator but slower.  NaN means no value; comparisons with it are false."""
        if self.op == "num":
            return float(self.value)
        if self.op == "agg":
            return values[int(self.value)]
        a = [n.eval(values) for n in self.args]
        if self.op == "not":
            return float(not a[0])
        if self.op == "neg":
            return -a[0]
        x, y = float(a[0]), float(a[1])
        if self.op == "/":
            return x / y if y else math.nan
        if self.op in "+-*":
            return x + y if self.op == "+" else x - y if self.op == "-" else x * y
        if self.op in ("and", "or"):
            return float(bool(x) and bool(y)) if self.op == "and" else float(bool(x) or bool(y))
        if math.isnan(x) or math.isnan(y):
            return 0.0
        return float({"==": x == y, "!=": x != y, "<": x < y, "<=": x <= y, ">": x > y, ">=": x >= y}[self.op])

    def decisive(self, values: list[float]) -> tuple[float, float]:
        """(left, right) of the first comparison that holds; if none holds, of the first one."""
        first = None
        for node in self.walk():
            if node.op in COMPARISONS:
                pair = node.args[0].eval(values), node.args[1].eval(values)
                first = first or pair
                if node.eval(values):
                    return pair
        return first or (math.nan, math.nan)


class Trigger:
    """A trigger, checked.  Times in ns: ``window``, ``period``, ``hold`` (for), ``rearm``, ``repeat`` (0: none).

    ``condition`` and ``clear`` (None: it clears when the condition no longer holds) are `ConditionNode`; ``measures``:
    the aggregates in them; ``by``: the keys as text, ``keys``: parsed.  ``grain``: the longest step that divides
    window and period.
    """

    __slots__ = (
        "name",
        "text",
        "condition",
        "clear",
        "window",
        "period",
        "hold",
        "rearm",
        "repeat",
        "by",
        "keys",
        "where",
        "measures",
        "condition_text",
        "clear_text",
    )

    name: str
    text: str
    condition: ConditionNode
    clear: ConditionNode | None
    condition_text: str
    clear_text: str
    where: str
    by: str
    keys: tuple[group_keys.GroupKey, ...]
    measures: tuple[Measure, ...]
    window: int
    period: int
    hold: int
    rearm: int
    repeat: int

    @property
    def grain(self) -> int:
        return math.gcd(self.window, self.period)

    def __repr__(self) -> str:
        return f"Trigger({self.text!r})"


def parse_trigger(
    text: str,
    schema: Schema,
    views: Mapping[str, NamedAggregate] | None = None,
    filters: Mapping[str, str] | None = None,
    *,
    local: bool = False,
) -> Trigger:
    """A trigger from its text.  ``views``: named aggregates by name, ``filters``: named filters, as text.

    ``local``: times without a zone in its ``where`` are local times.

    Raises ExprError with the position.
    """
    return TriggerParser(text, schema, views or {}, filters, local).trigger()


def join_trigger(parts: Mapping[str, Any], where: str) -> str:
    """The text of a trigger given as a mapping (name, when, and the clauses by their words).  UsageError."""
    known = {"name", "when", *_CLAUSES}
    for key in parts:
        if key not in known:
            from difflib import get_close_matches

            near = get_close_matches(str(key), known, n=1)
            hint = f"did you mean '{near[0]}'?" if near else f"there are {', '.join(['name', 'when', *_CLAUSES])}"
            raise UsageError(f"a trigger has no '{key}'", where=where, hint=hint)
    for key in ("name", "when", "over"):
        if key not in parts:
            hint = "for example: name: heavy, when: count > 100, over: 1s"
            raise UsageError(f"a trigger needs '{key}'", where=where, hint=hint)
    clauses = [f"{key} {parts[key]}" for key in _CLAUSES if parts.get(key) not in (None, "")]
    return f"{parts['name']}: {parts['when']} {' '.join(clauses)}"


class TriggerParser:
    def __init__(
        self,
        text: str,
        schema: Schema,
        views: Mapping[str, NamedAggregate],
        filters: Mapping[str, str] | None,
        local: bool,
    ) -> None:
        self.text, self.schema, self.views, self.filters = text[:MAX_TEXT], schema, views, filters
        self.local = local
        if len(text) > MAX_TEXT:
            raise self.fail(f"longer than {MAX_TEXT} characters", 0)
        self.at = self.end = self.depth = 0
        self.kind = self.token = ""  # of the token that begins at `at`
        self.measures: list[Measure] = []
        self.used: list[tuple[NamedAggregate, int]] = []
        self.where = ""
        self.window = 0

    def fail(self, what: str, pos: int, hint: str = "") -> ExprError:
        return ExprError(what, self.text, pos, hint, "trigger")

    # -- clauses

    def trigger(self) -> Trigger:
        match = _NAME.match(self.text)
        if match is None:
            at = len(self.text) - len(self.text.lstrip())
            raise self.fail("a name expected", at, f"{SHAPE}, e.g. heavy: sum(len) > 1G over 1s")
        out = Trigger()
        out.text, out.name = self.text.strip(), match[1]
        spans = self._split(match.end())
        first = spans[""]
        if "over" not in spans:
            raise self.fail("'over WINDOW' is missing", len(self.text.rstrip()), "write e.g. count > 100 over 1s")
        times = {word: self._time(word, *spans[word]) for word in _TIMES if word in spans}
        out.window, out.hold = times["over"], times.get("for", 0)
        out.rearm, out.repeat = times.get("rearm", 0), times.get("repeat", 0)
        out.period = times.get("every") or max(MS, -(-out.window // 100))
        self._check_times(out, spans)
        self.window = out.window
        self.where = self._where(*spans["where"]) if "where" in spans else ""
        out.where = self.where
        out.condition = self._condition(*first)
        out.clear = self._condition(*spans["clear"]) if "clear" in spans else None
        out.condition_text = " ".join(self.text[first[0] : first[1]].split())
        out.clear_text = " ".join(self.text[slice(*spans["clear"])].split()) if "clear" in spans else ""
        out.measures = tuple(self.measures)
        if not self.measures:
            raise self.fail("no aggregate in this condition", first[0], "write e.g. count > 100, sum(len) > 1G")
        out.by = self._keys(spans.get("by"))
        out.keys = tuple(self._by(out.by, spans["by"][0] if "by" in spans else 0)) if out.by else ()
        return out

    def _split(self, start: int) -> dict[str, tuple[int, int]]:
        # {clause word: (start, end) of what follows it}; '' is the condition.  Brackets and quotes hide words.
        spans: dict[str, tuple[int, int]] = {}
        word, begin, deep = "", start, 0
        for match in _SCAN.finditer(self.text, start):
            token = match.group()
            if token in "([{":
                deep += 1
            elif token in ")]}":
                deep -= 1
            elif deep <= 0 and token.lower() == "unnest" and token not in self.schema:
                hint = "watch a log of them: confluo-query LOG --unnest LIST -w ELEMENTS.ml"
                raise self.fail("a trigger is about records, not about elements of lists", match.start(), hint)
            elif deep <= 0 and token.lower() in _CLAUSES:
                if not self.text[begin : match.start()].strip():
                    raise self._nothing(word, match.start())
                spans[word] = begin, match.start()
                word, begin, deep = token.lower(), match.end(), 0
                if word in spans:
                    raise self.fail(f"'{word}' occurs twice", match.start())
        if not self.text[begin:].strip():
            raise self._nothing(word, len(self.text.rstrip()))
        spans[word] = begin, len(self.text)
        return {w: (s + len(self.text[s:e]) - len(self.text[s:e].lstrip()), e) for w, (s, e) in spans.items()}

    def _nothing(self, word: str, at: int) -> ExprError:
        what = f"something expected after '{word}'" if word else "a condition expected"
        return self.fail(what, at, "" if word else SHAPE)

    def _time(self, word: str, start: int, end: int) -> int:
        text = self.text[start:end].strip()
        value = try_duration(text)
        if value is None:
            hint = f"a number needs its unit: {text}s, {text}ms" if text.isdigit() else "write e.g. 10ms, 1s, 5m"
            raise self.fail(f"'{text}' is not a duration", start, hint)
        if not 0 < value <= MAX_TIME:
            raise self.fail(f"'{word} {text}' is not possible", start, "from 1ms to 400 days" if word != "for" else "")
        return value

    def _check_times(self, t: Trigger, spans: Mapping[str, tuple[int, int]]) -> None:
        for what, time, word in (("period", t.period, "every"), ("window", t.window, "over")):
            if time < MS:
                at = spans[word][0]
                raise self.fail(f"a {what} of {format_duration(time)} is too short", at, "1ms is the shortest")
        if t.grain < MIN_GRAIN:
            what = f"window and period have only {format_duration(t.grain)} in common"
            raise self.fail(what, spans["over"][0], "multiples of 1ms are always possible")
        steps = t.window // t.grain
        if steps > MAX_STEPS:
            word = "every" if "every" in spans else "over"
            what = f"a window of {format_duration(t.window)} has {steps:,} steps of {format_duration(t.grain)}"
            least = format_duration(-(-t.window // MAX_STEPS))
            raise self.fail(what, spans[word][0], f"at most {MAX_STEPS:,} are possible: every {least} or more")

    def _where(self, start: int, end: int) -> str:
        from confluo_tools.expr import compile

        text = self.text[start:end].strip()
        try:
            compile(text, self.schema, filters=self.filters)
        except ExprError as e:
            raise self.fail(e.what, start + e.pos, e.hint) from None
        if not self.local:
            return text
        from confluo_tools.expr.local_times import without_local_times

        return without_local_times(text, self.schema)

    def _keys(self, span: tuple[int, int] | None) -> str:
        own = " ".join(self.text[span[0] : span[1]].split()) if span else None
        for view, pos in self.used:
            theirs = " ".join(view.by.split())
            if own is None:
                own = theirs
            if theirs and _plain(theirs) != _plain(own):
                what = f"'{view.name}' is kept by {theirs}, this trigger is by {own or 'nothing'}"
                raise self.fail(what, pos, "aggregates of one trigger have the same keys")
        if own and any(not view.by for view, _ in self.used) and span is None:
            pos = next(pos for view, pos in self.used if not view.by)
            raise self.fail("aggregates of one trigger have the same keys", pos, "say 'by ...' for all of them")
        return own or ""

    def _by(self, text: str, start: int) -> list[group_keys.GroupKey]:
        try:
            keys = group_keys.parse_by(text, self.schema)
        except ExprError as e:
            raise self.fail(e.what, start + e.pos, e.hint) from None
        for key in keys:
            if key.stepped:
                raise self.fail("steps of time are not keys of a trigger", start, "the window is given by 'over'")
        return keys

    # -- conditions

    def _condition(self, start: int, end: int) -> ConditionNode:
        self.at, self.end = start, end
        self._next(start)
        node = self._or()
        if self.kind != "end":
            raise self._unexpected()
        if node.kind != "truth":
            raise self.fail("this is a number, not a condition", node.pos, "compare it: ... > 100")
        if len(node.walk()) > MAX_NODES:
            raise self.fail(f"more than {MAX_NODES} parts in one condition", start)
        return node

    def _next(self, at: int | None = None) -> None:
        at = self.at + len(self.token) if at is None else at
        while at < self.end and self.text[at] in " \t\r\n":
            at += 1
        self.at = at
        if at >= self.end:
            self.kind, self.token = "end", ""
            return
        match = _TOKEN.match(self.text, at, self.end)
        if match is None:
            c = self.text[at]
            hint = "conditions on rows come after 'where'" if c in "\"'[{:" else ""
            raise self.fail(f"unexpected {c!r}", at, hint)
        self.kind, self.token = str(match.lastgroup), match.group()

    def _unexpected(self) -> ExprError:
        if self.kind == "word" and self.token.lower() in ("in", "like", "has", "contains"):
            return self.fail(f"'{self.token}' is not possible here", self.at, "conditions on rows come after 'where'")
        if self.token in COMPARISONS:
            return self.fail(f"'{self.token}' after a comparison", self.at, "write a < b and b < c")
        return self.fail(f"'{self.token}' after a condition", self.at, f"expected and, or, {', '.join(_CLAUSES)}")

    def _is(self, *tokens: str) -> bool:
        return self.kind in ("op", "word") and self.token.lower() in tokens

    def _truth(self, node: ConditionNode) -> ConditionNode:
        if node.kind != "truth":
            raise self.fail("a condition expected, this is a number", node.pos, "compare it: ... > 100")
        return node

    def _or(self) -> ConditionNode:
        node = self._and()
        while self._is("or", "||"):
            pos = self.at
            self._next()
            node = ConditionNode("or", (self._truth(node), self._truth(self._and())), "truth", pos)
        return node

    def _and(self) -> ConditionNode:
        node = self._not()
        while self._is("and", "&&"):
            pos = self.at
            self._next()
            node = ConditionNode("and", (self._truth(node), self._truth(self._not())), "truth", pos)
        return node

    def _not(self) -> ConditionNode:
        if self._is("not", "!"):
            pos = self.at
            self._enter(pos)
            self._next()
            node = ConditionNode("not", (self._truth(self._not()),), "truth", pos)
            self.depth -= 1
            return node
        return self._compare()

    def _compare(self) -> ConditionNode:
        left = self._sum()
        if self.kind != "op" or self.token not in COMPARISONS:
            return left
        op, pos = COMPARISONS[self.token], self.at
        self._next()
        right = self._sum()
        self._same(left, right, pos, op)
        return ConditionNode(op, (left, right), "truth", pos)

    def _same(self, left: ConditionNode, right: ConditionNode, pos: int, op: str) -> None:
        for node in (left, right):
            if node.kind == "truth":
                raise self.fail(f"'{op}' needs numbers, this is a condition", node.pos)
        if left.kind != right.kind and not any(n.op == "num" and not n.value for n in (left, right)):
            timed, plain = (left, right) if left.kind == "time" else (right, left)
            if plain.op == "num":
                text = format_number(plain.value)
                hint = f"it needs its unit: {text}ms, {text}s"
                raise self.fail("a duration is compared with a number", plain.pos, hint)
            raise self.fail("a number is compared with a duration", timed.pos)

    def _sum(self) -> ConditionNode:
        node = self._product()
        while self._is("+", "-"):
            op, pos = self.token, self.at
            self._next()
            right = self._product()
            self._same(node, right, pos, op)
            kind = node.kind if node.kind == "time" else right.kind
            node = ConditionNode(op, (node, right), kind, pos)
        return node

    def _product(self) -> ConditionNode:
        node = self._unary()
        while self._is("*", "/"):
            op, pos = self.token, self.at
            self._next()
            right = self._unary()
            for side in (node, right):
                if side.kind == "truth":
                    raise self.fail(f"'{op}' needs numbers, this is a condition", side.pos)
            if op == "*":
                if node.kind == right.kind == "time":
                    raise self.fail("a duration times a duration", pos)
                kind = "time" if "time" in (node.kind, right.kind) else "number"
            else:
                kind = "time" if node.kind == "time" and right.kind == "number" else "number"
                if node.kind == "number" and right.kind == "time":
                    right = self._per(right, pos)
            node = ConditionNode(op, (node, right), kind, pos)
        return node

    def _per(self, span: ConditionNode, pos: int) -> ConditionNode:
        """The divisor of a number that is divided by a span of time: the window in units of it."""
        if span.op != "num" or span.value <= 0:
            raise self.fail("a number is divided by a duration", pos, "divide by a time that is written out: / 1s")
        return ConditionNode("num", (), "number", span.pos, self.window / span.value)

    def _enter(self, pos: int) -> None:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise self.fail("too many brackets inside each other", pos)

    def _unary(self) -> ConditionNode:
        pos = self.at
        if self._is("-", "+"):
            negative = self.token == "-"
            self._enter(pos)
            self._next()
            node = self._unary()
            self.depth -= 1
            if node.kind == "truth":
                raise self.fail("'-' needs a number, this is a condition", node.pos)
            return ConditionNode("neg", (node,), node.kind, pos) if negative else node
        if self._is("("):
            self._enter(pos)
            self._next()
            node = self._or()
            if not self._is(")"):
                raise self._unexpected() if self.kind != "end" else self.fail("')' expected before the end", self.at)
            self._next()
            self.depth -= 1
            return node
        if self.kind == "number":
            return self._number()
        if self.kind == "word" and self.token.lower() not in ("and", "or", "not"):
            return self._aggregate()
        found = f"'{self.token}'" if self.token else "the end"
        raise self.fail(f"an aggregate or a number expected, found {found}", self.at, "write e.g. count > 100")

    def _number(self) -> ConditionNode:
        text, pos = self.token, self.at
        value: int | float | None = try_number(text)
        kind = "number"
        if value is None:
            duration = try_duration(text)
            if duration is not None:
                value, kind = duration, "time"
        if value is None:
            raise self.fail(f"'{text}' is not a number", pos, "write e.g. 1500, 1.5k, 1G, 64Ki, or 10ms of durations")
        self._next()
        return ConditionNode("num", (), kind, pos, value)

    def _aggregate(self) -> ConditionNode:
        word, pos = self.token, self.at
        self._next()
        view = self._view(word)
        if view is not None:
            agg = self._of_view(view, word, pos)
            parts = [self.where, view.where]
            self.used.append((view, pos))
        else:
            agg = self._called(word, pos)
            parts = [self.where]
        return self._measure(agg, parts, pos)

    def _called(self, word: str, pos: int) -> aggregates.Aggregate:
        """The function ``word``, with its argument in brackets if there is one."""
        end = pos + len(word)
        if self._is("("):
            end = aggregates.closing_bracket(self.text, self.at + 1) + 1
            if not 0 < end <= self.end:
                raise self.fail("')' expected", self.end, f"write {word}(FIELD)")
            self._next(end)
        try:
            return aggregates.plain_aggregates(self.text[pos:end], self.schema, self._compiled)[0]
        except ExprError as e:
            near = _near(word, sorted(self.views))
            hint = f"did you mean '{near}'?" if near and e.what.startswith("no aggregate") else e.hint
            what = f"no aggregate '{word}'" if e.what.startswith("no aggregate") else e.what
            raise self.fail(what, pos + min(e.pos, len(self.text) - pos), hint) from None

    def _compiled(self, text: str, now: int) -> Expr:
        from confluo_tools.expr import compile

        return compile(text, self.schema, now_ns=now, filters=self.filters)

    def _measure(self, agg: aggregates.Aggregate, parts: list[str], pos: int) -> ConditionNode:
        timed, value = False, agg.value
        result = FUNCTIONS[agg.func].result
        if value is not None and not value.type:  # count(COND): rows of a filter of its own
            parts, value = [*parts, value.text], None
        elif value is not None:
            if value.type == "time" and result != "count":
                raise self.fail(f"{agg.text} is a time, not a number", pos, "subtract another time")
            timed = value.type == "duration" and result not in ("count", "rate")
        elif agg.field is not None:
            type_ = self.schema[agg.field].type
            if result != "count" and type_.element not in NUMERIC:
                what = f"{agg.func} of {agg.field} ({type_.text}) is not a number"
                raise self.fail(what, pos, f"count, or distinct({agg.field})")
            if result == "field" and type_.is_list:
                raise self.fail(f"{agg.func} of a list is not a number", pos, f"max({agg.field}) is")
            timed = type_.element == "duration" and result not in ("count", "rate")
        parts = [p for p in parts if p.strip()]
        where = " and ".join(f"({p})" for p in parts) if len(parts) > 1 else "".join(parts)
        measure = Measure(agg.func, agg.field, agg.q, where, timed, value)
        if measure not in self.measures:
            if len(self.measures) == MAX_MEASURES:
                raise self.fail(f"more than {MAX_MEASURES} aggregates in one trigger", pos)
            self.measures.append(measure)
        return ConditionNode("agg", (), "time" if timed else "number", pos, self.measures.index(measure))

    def _view(self, word: str) -> NamedAggregate | None:
        name = word.partition(".")[0]
        return self.views.get(word) or self.views.get(name) or self.views.get(name.lower())

    def _of_view(self, view: NamedAggregate, word: str, pos: int) -> aggregates.Aggregate:
        try:
            aggs = aggregates.plain_aggregates(view.agg, self.schema, self._compiled)
        except ExprError as e:
            raise self.fail(f"the aggregate '{view.name}' does not fit this log: {e.what}", pos) from None
        label = word[len(view.name) + 1 :].lower() if len(word) > len(view.name) else ""
        if not label and len(aggs) == 1:
            return aggs[0]
        found = [a for a in aggs if a.label == label]
        if found:
            return found[0]
        names = ", ".join(f"{view.name}.{a.label}" for a in aggs)
        what = f"'{view.name}' is {len(aggs)} aggregates" if not label else f"'{view.name}' has no '{label}'"
        raise self.fail(what, pos, f"there are {names}")


def _near(word: str, known: list[str]) -> str:
    from difflib import get_close_matches

    near = get_close_matches(word, known, n=1, cutoff=0.6)
    return near[0] if near else ""


def _plain(keys: str) -> str:
    return "".join(keys.lower().split())
