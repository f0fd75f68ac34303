"""Leaves, the form that expressions are lowered to: simple tests on physical columns, in negation normal form.

    And(items)  Or(items)  Not(test)  Const(value)          Not only ever wraps a test
    Range(col, lo, hi, mask)        integers: lo <= (x & mask) <= hi; bounds inside the column's type
    FRange(col, lo, hi, lo_open, hi_open)   f32 and f64; NaN never matches
    InSet(col, values, mask)        integers: (x & mask) in values (sorted, unique)
    Bytes(col, lo, hi, mask)        bytes: lo <= (x & mask) <= hi, byte by byte
    Glob(col, pattern)              bytes without their trailing zeros, like a shell pattern: * and ?
    Pair(op, col, col2, mask)       (x & mask) op y, by value; or two bytes columns of equal width
    ListElement(col, index, test)   lists: the element at index passes; below 0: counted from the last element
    ListLength(col, pairs)          lists: the place of the last element that is not zero is in one of pairs
    ListSequence(col, how, items)   lists: elements in the ranges of items (lo, hi), in their order

``col`` is the number of a physical column of the schema the expression was compiled against.
A test on a column with several elements per row (a list) holds when any element passes;
``mask`` None: unmasked.  Objects are equal by value and must not be changed.
"""

from __future__ import annotations

from collections.abc import Iterator

PAIR_OPS = ("==", "!=", "<", "<=", ">", ">=")


class Leaf:
    """Equality, hash and repr by class and slots, like a dataclass but without its 15 ms of start-up."""

    __slots__: tuple[str, ...] = ()

    def _values(self) -> tuple[object, ...]:
        return tuple([getattr(self, name) for name in self.__slots__])

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self._values() == other._values()

    def __hash__(self) -> int:
        return hash((type(self).__name__, self._values()))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join([repr(v) for v in self._values()])})"


class And(Leaf):
    __slots__ = __match_args__ = ("items",)

    def __init__(self, items: tuple[Tree, ...]) -> None:
        self.items = items


class Or(Leaf):
    __slots__ = __match_args__ = ("items",)

    def __init__(self, items: tuple[Tree, ...]) -> None:
        self.items = items


class Not(Leaf):
    __slots__ = __match_args__ = ("item",)

    def __init__(self, item: Test) -> None:
        self.item = item


class Const(Leaf):
    __slots__ = __match_args__ = ("value",)

    def __init__(self, value: bool) -> None:
        self.value = value


class Range(Leaf):
    __slots__ = __match_args__ = ("col", "lo", "hi", "mask")

    def __init__(self, col: int, lo: int, hi: int, mask: int | None = None) -> None:
        self.col, self.lo, self.hi, self.mask = col, lo, hi, mask


class FRange(Leaf):
    __slots__ = __match_args__ = ("col", "lo", "hi", "lo_open", "hi_open")

    def __init__(self, col: int, lo: float, hi: float, lo_open: bool = False, hi_open: bool = False) -> None:
        self.col, self.lo, self.hi, self.lo_open, self.hi_open = col, lo, hi, lo_open, hi_open


class InSet(Leaf):
    __slots__ = __match_args__ = ("col", "values", "mask")

    def __init__(self, col: int, values: tuple[int, ...], mask: int | None = None) -> None:
        self.col, self.values, self.mask = col, values, mask


class InRanges(Leaf):
    """An integer column in one of ``pairs`` (lo, hi): sorted, disjoint, not adjacent."""

    __slots__ = __match_args__ = ("col", "pairs")
    mask = None

    def __init__(self, col: int, pairs: tuple[tuple[int, int], ...]) -> None:
        self.col, self.pairs = col, pairs


class InByteRanges(Leaf):
    """A column of bytes in one of ``pairs`` (lo, hi): sorted, disjoint, as wide as the column."""

    __slots__ = __match_args__ = ("col", "pairs")
    mask = None

    def __init__(self, col: int, pairs: tuple[tuple[bytes, bytes], ...]) -> None:
        self.col, self.pairs = col, pairs


class Bytes(Leaf):
    __slots__ = __match_args__ = ("col", "lo", "hi", "mask")

    def __init__(self, col: int, lo: bytes, hi: bytes, mask: bytes | None = None) -> None:
        self.col, self.lo, self.hi, self.mask = col, lo, hi, mask


class Glob(Leaf):
    __slots__ = __match_args__ = ("col", "pattern")

    def __init__(self, col: int, pattern: bytes) -> None:
        self.col, self.pattern = col, pattern


class Pair(Leaf):
    __slots__ = __match_args__ = ("op", "col", "col2", "mask")

    def __init__(self, op: str, col: int, col2: int, mask: int | None = None) -> None:
        self.op, self.col, self.col2, self.mask = op, col, col2, mask


class Stored(Leaf):
    """The ``tree`` of the filter view ``name``.  Only the planner makes it; expressions do not contain it."""

    __slots__ = __match_args__ = ("name", "tree")

    def __init__(self, name: str, tree: Tree) -> None:
        self.name, self.tree = name, tree


class ListElement(Leaf):
    """One element of a list.  ``test`` is of the same column; no test passes for a zero element, which is absent."""

    __slots__ = __match_args__ = ("col", "index", "test")
    mask = None

    def __init__(self, col: int, index: int, test: Range | FRange | InSet | InRanges) -> None:
        self.col, self.index, self.test = col, index, test


class ListLength(Leaf):
    """The length of a list in one of ``pairs`` (lo, hi): sorted, disjoint.  A list ends with its last nonzero one."""

    __slots__ = __match_args__ = ("col", "pairs")
    mask = None

    def __init__(self, col: int, pairs: tuple[tuple[int, int], ...]) -> None:
        self.col, self.pairs = col, pairs


EXACT, STARTS, RUN, BEFORE = "exact", "starts", "run", "before"


class ListSequence(Leaf):
    """Elements in the ranges of ``items`` (lo, hi); no range contains zero.

    ``how``: EXACT, they are the list; STARTS, the list starts with them; RUN, they come one right after the other
    somewhere in it; BEFORE, they come in this order, perhaps with others between them.
    """

    __slots__ = __match_args__ = ("col", "how", "items")
    mask = None

    def __init__(self, col: int, how: str, items: tuple[tuple[float, float], ...]) -> None:
        self.col, self.how, self.items = col, how, items


Test = Range | FRange | InSet | InRanges | InByteRanges | Bytes | Glob | Pair | ListElement | ListLength | ListSequence
Tree = And | Or | Not | Const | Test
TRUE, FALSE = Const(True), Const(False)


def negate(tree: Tree) -> Tree:
    """The opposite, in negation normal form."""
    if isinstance(tree, Const):
        return FALSE if tree.value else TRUE
    if isinstance(tree, Not):
        return tree.item
    if isinstance(tree, And):
        return Or(tuple([negate(item) for item in tree.items]))
    if isinstance(tree, Or):
        return And(tuple([negate(item) for item in tree.items]))
    return Not(tree)


def tests(tree: Tree) -> Iterator[Test]:
    """Every test in the tree, from left to right."""
    if isinstance(tree, (And, Or)):
        for item in tree.items:
            yield from tests(item)
    elif isinstance(tree, Not):
        yield tree.item
    elif not isinstance(tree, Const):
        yield tree


def depth(tree: Tree) -> int:
    """The nesting depth of And and Or."""
    if not isinstance(tree, (And, Or)):
        return 0
    return 1 + max([depth(item) for item in tree.items], default=0)


def columns(tree: Tree) -> set[int]:
    """Numbers of the physical columns in the tree."""
    used: set[int] = set()
    for test in tests(tree):
        used.add(test.col)
        if isinstance(test, Pair):
            used.add(test.col2)
    return used
