"""Lowers tests on the fields of a schema to leaves.

confluo-expr(7) defines the meaning of each construct.
"""

from __future__ import annotations

from confluo_tools.expr.leaves import FALSE, TRUE, Bytes, FRange, Glob, InByteRanges, Pair, Tree
from confluo_tools.expr.simplify import FEW, Intervals, Simplifier, merge
from confluo_tools.expr.syntax import Compare, ExprError, FieldRef, Value
from confluo_tools.expr.values import NUMBERS, Typer, wildcard
from confluo_tools.schema import Field, Schema, fold6
from confluo_tools.schema.geo_fields import GEO_FIELDS
from confluo_tools.units import try_ip_range

ALL4 = (1 << 32) - 1
ALL6 = (1 << 128) - 1
ZERO6 = bytes(16)
MAPPED4 = [bytes(10) + b"\xff\xff\0\0\0" + bytes([n]) for n in (0, 1)]
INF = float("inf")
EXAMPLES = {
    "flow": "write flow == 10.0.0.1:34512-10.0.1.7:80/tcp",
    "conn": "write conn == 10.0.0.1:34512-10.0.1.7:80/tcp",
    "host": "write host 10.0.0.1",
    "net": "write net 10.0.0.0/8",
    "port": "write port 80",
}
ANALYSIS = "tcp_analysis"  # flags that can be written as words without a field
_ORDERS = frozenset({"<", "<=", ">", ">="})


class FieldTests:
    """Makes the leaves of one expression for the fields of one schema."""

    def __init__(self, text: str, schema: Schema, now_ns: int | None, local: bool = False) -> None:
        self.text, self.schema, self.now_ns = text, schema, now_ns
        self.typer = Typer(text, now_ns, local)
        self.fail = self.typer.fail
        self.simplify = Simplifier(schema)
        self.both, self.either, self.negate = self.simplify.both, self.simplify.either, self.simplify.negate
        self.within = self.simplify.within

    # -- names

    def pseudo(self, ref: FieldRef) -> bool:
        """Whether the word means several fields and is not itself a field of the schema."""
        return ref.name in EXAMPLES and ref.name not in self.schema

    def field(self, name: str, pos: int) -> Field:
        if name in self.schema:
            return self.schema[name]
        raise self.no_field(name, pos)

    def no_field(self, name: str, pos: int) -> ExprError:
        from difflib import get_close_matches

        from confluo_tools.expr.parse import KEYWORDS
        from confluo_tools.expr.words import HINTS, UNSUPPORTED

        if name in UNSUPPORTED:
            return self.fail(pos, f"'{name}' of pcap-filter is not possible here", UNSUPPORTED[name])
        if name in GEO_FIELDS:
            return self.fail(pos, f"no field '{name}' in schema '{self.schema.kind}'", self.schema.suggest(name))
        names = [f.name for f in self.schema.fields]
        near = get_close_matches(name, [*names, *KEYWORDS], n=1, cutoff=0.75)
        hint = f"did you mean '{near[0]}'?" if near else HINTS.get(name, "") or self.schema.suggest(name)
        return self.fail(pos, f"no field '{name}' in schema '{self.schema.kind}'", hint)

    def col(self, field: Field) -> int:
        return self.schema.index(field.name)

    def col6(self, field: Field) -> int:
        return self.schema.index(field.name + "6")

    def version_col(self, field: Field) -> int | None:
        return self.schema.index(field.version) if field.version else None

    # -- a field alone

    def nonzero(self, ref: FieldRef) -> Tree:
        if self.pseudo(ref):
            raise self.fail(ref.pos, f"'{ref.name}' needs a value", EXAMPLES[ref.name])
        bit = self.analysis_bit(ref)
        if bit is not None:
            return bit
        field = self.field(ref.name, ref.pos)
        col, kind = self.col(field), field.type.kind
        if ref.mask is not None:
            if kind == "ip":
                return self.masked_ip(field, ref.mask, None)
            mask = self.typer.mask(field, ref.mask)
            return self.within(col, [(1, mask)], mask)
        if kind == "ip":
            version = self.version_col(field)
            present = self.within(col, [(1, ALL4)])
            return present if version is None else self.either([present, self.within(version, [(4, 4)])])
        if field.type.is_bytes:
            zero = bytes(field.type.size)
            return self.negate(Bytes(col, zero, zero))
        if field.type.is_float:  # NaN is not a number, so it is not a number other than zero
            return self.either([FRange(col, -INF, 0.0, False, True), FRange(col, 0.0, INF, True, False)])
        return self.within(col, self.without_zero([(-(1 << 63), (1 << 64) - 1)]))

    def analysis_bit(self, ref: FieldRef) -> Tree | None:
        """``retransmission`` for ``tcp_analysis has retransmission``, when rows have been analysed."""
        if ref.mask is not None or ref.name in self.schema or ANALYSIS not in self.schema:
            return None
        field = self.schema[ANALYSIS]
        bits = [bit for bit, name in field.names.items() if name == ref.name]
        return self.within(self.col(field), [(bits[0], bits[0])], bits[0]) if bits else None

    @staticmethod
    def without_zero(intervals: Intervals) -> Intervals:
        out = []
        for lo, hi in intervals:
            if lo <= 0 <= hi:
                out += [(lo, -1), (1, hi)]
            else:
                out.append((lo, hi))
        return merge(out)

    # -- comparisons

    def compare(self, node: Compare, ref: FieldRef) -> Tree:
        field = self.field(ref.name, ref.pos)
        tree = self._compare(node, ref, field)
        other = self.field_of(field, node.values[0])
        marks = {f.present for f in (field, other) if f is not None and f.present}
        if not marks:
            return tree
        there = self.both([self.within(self.schema.index(mark), [(1, 1)]) for mark in marks])
        # An absent value is like NaN: it equals nothing, and is neither smaller nor larger.
        return self.either([tree, self.negate(there)]) if node.op == "!=" else self.both([tree, there])

    def _compare(self, node: Compare, ref: FieldRef, field: Field) -> Tree:
        op, first = node.op, node.values[0]
        if node.many and op in _ORDERS:
            raise self.fail(first.pos, f"'{op}' needs one value, not a set", f"write {field.name} in {{...}}")
        if not node.many and op not in ("in", "like", "has"):
            other = self.field_of(field, first)
            if other is not None:
                return self.pair(field, ref, op, other, first)
        if op == "!=":
            return self.negate(self.equals(field, ref, "==", node.values))
        if op in _ORDERS:
            return self.ordered(field, ref, op, first)
        return self.equals(field, ref, op, node.values)

    def field_of(self, field: Field, value: Value) -> Field | None:
        """The field that a bare word on the right names, or None."""
        name = value.text.lower()
        if value.quoted or name not in self.schema:
            return None
        return None if name in field.names.values() else self.schema[name]

    def equals(self, field: Field, ref: FieldRef, op: str, values: tuple[Value, ...]) -> Tree:
        """Whether the field is one of ``values``.  ``op``: == in like has."""
        kind, col = field.type.kind, self.col(field)
        if op == "has":
            return self.has(field, ref, values)
        if field.type.is_bytes:
            return self.bytes_equal(field, ref, op, values)
        if op == "like" and (kind not in ("ip", "ipv4", "mac") or not all("*" in v.text for v in values)):
            hint = "like is for bytes, and for addresses with *: src_ip like 192.*.*.1"
            raise self.fail(values[0].pos, f"'like' does not apply to {field.name} ({field.type.text})", hint)
        if kind == "ip":
            if ref.mask is not None:
                return self.either([self.masked_ip(field, ref.mask, v) for v in values])
            return self.ip_in(field, values)
        if field.type.is_float:
            return self.either([self.real_between(field, ref, v) for v in values])
        mask = self.typer.mask(field, ref.mask) if ref.mask is not None else None
        trees: list[Tree] = []
        intervals: Intervals = []
        for value in values:
            wild = wildcard(value.text) if kind in ("ipv4", "mac") and mask is None else None
            if wild is not None and kind == "ipv4":
                trees.append(self.wild4(field, *wild))
                continue
            if wild is not None:
                trees.append(self.within(col, [(wild[0], wild[0])], wild[1]) if wild[1] else TRUE)
                continue
            for lo, hi in self.typer.ranges(field, value):
                if field.type.is_list and lo == hi == 0:
                    hint = f"write not {field.name} for rows without any"
                    raise self.fail(value.pos, "a zero element of a list is absent", hint)
                if mask is None or lo != hi or not lo & ~mask:
                    intervals.append((lo, hi))
        trees.append(self.present_within(field, intervals, mask))
        return self.either(trees)

    def present_within(self, field: Field, intervals: Intervals, mask: int | None) -> Tree:
        """`within` without elements that are absent because they are zero."""
        if not field.type.zero_is_absent:
            return self.within(self.col(field), intervals, mask)
        if mask is None or field.type.is_list:
            return self.within(self.col(field), self.without_zero(intervals), mask)
        return self.both([self.within(self.col(field), intervals, mask), self.ip4(field, [(0, ALL4)])])

    def ordered(self, field: Field, ref: FieldRef, op: str, value: Value) -> Tree:
        """``field < value`` and other order comparisons, for types with an order."""
        kind = field.type.kind
        if field.type.is_bytes:
            return self.bytes_ordered(field, ref, op, value)
        if field.type.is_float:
            return self.real_ordered(field, ref, op, value)
        if kind == "ip":
            found = try_ip_range(value.text)
            if found is None:
                raise self.bad_ip(field, value)
            if ref.mask is not None:
                raise self.fail(ref.mask.pos, "a masked address has no order")
            version, lo, hi = found
            ranged = lo != hi
            most = ALL4 if version == 4 else ALL6
        else:
            lo, hi, ranged = self.typer.span(field, value, clipped=True)
            version, most = 0, (1 << 64) - 1
        if ranged:
            raise self.fail(value.pos, f"'{op}' needs one value, '{value.text}' is many", f"write {field.name} in ...")
        least = 0 if kind == "ip" else -(1 << 63)
        pair = {"<": (least, lo - 1), "<=": (least, hi), ">": (hi + 1, most), ">=": (lo, most)}[op]
        if kind == "ip":
            return self.ip4(field, [pair]) if version == 4 else self.ip6(field, [pair])
        mask = self.typer.mask(field, ref.mask) if ref.mask is not None else None
        return self.present_within(field, [pair], mask)

    def has(self, field: Field, ref: FieldRef, values: tuple[Value, ...]) -> Tree:
        kind, col = field.type.kind, self.col(field)
        if ref.mask is not None:
            raise self.fail(ref.mask.pos, "'has' does not apply to a mask")
        if kind == "flags":
            out = []
            for value in values:
                bits, _, ranged = self.typer.span(field, value)
                if ranged or not bits:
                    raise self.fail(value.pos, f"'{value.text}' is not a set of flags")
                out.append(self.within(col, [(bits, bits)], bits))
            return self.either(out)
        if kind == "list":
            return self.equals(field, ref, "==", values)
        if field.type.is_bytes:
            out = []
            for value in values:
                data = self.typer.raw(field, value, padded=False)
                if b"*" in data or b"?" in data:
                    raise self.fail(value.pos, "'has' does not take * or ?", "like takes them as wildcards")
                out.append(Glob(col, b"*" + data + b"*"))
            return self.either(out)
        hint = f"write {field.name} == ..."
        raise self.fail(ref.pos, f"'has' is for flags, lists and bytes, not {field.name} ({field.type.text})", hint)

    # -- floats and bytes

    def no_mask(self, field: Field, ref: FieldRef) -> None:
        if ref.mask is not None:
            raise self.fail(ref.mask.pos, f"{field.name} ({field.type.text}) cannot be masked")

    def real_between(self, field: Field, ref: FieldRef, value: Value) -> Tree:
        self.no_mask(field, ref)
        lo, hi, _ = self.typer.real(field, value)
        return self.real(field, lo, hi, False, False)

    def real_ordered(self, field: Field, ref: FieldRef, op: str, value: Value) -> Tree:
        self.no_mask(field, ref)
        lo, hi, ranged = self.typer.real(field, value)
        if ranged:
            raise self.fail(value.pos, f"'{op}' needs one value, '{value.text}' is many", f"write {field.name} in ...")
        if op[0] == "<":
            return self.real(field, -INF, lo, False, op == "<")
        return self.real(field, hi, INF, op == ">", False)

    def real(self, field: Field, lo: float, hi: float, lo_open: bool, hi_open: bool) -> Tree:
        col = self.col(field)
        if lo == hi and (lo_open or hi_open):
            return FALSE
        if field.type.is_list and lo <= 0.0 <= hi:  # zero elements are absent
            out = [FRange(col, lo, 0.0, lo_open, True)] if lo < 0 else []
            out += [FRange(col, 0.0, hi, True, hi_open)] if hi > 0 else []
            return self.either(out)
        return FRange(col, lo, hi, lo_open, hi_open)

    def bytes_equal(self, field: Field, ref: FieldRef, op: str, values: tuple[Value, ...]) -> Tree:
        self.no_mask(field, ref)
        col = self.col(field)
        if op == "like":
            return self.either([Glob(col, self.typer.raw(field, v, padded=False)) for v in values])
        data = [self.typer.raw(field, v) for v in values]
        return self.one_of_bytes(col, [(d, d) for d in data])

    def one_of_bytes(self, col: int, pairs: list[tuple[bytes, bytes]]) -> Tree:
        """One of ``pairs`` (lo, hi), which are disjoint or equal: a few tests, or one search."""
        if len(pairs) > FEW:
            return InByteRanges(col, tuple(sorted(set(pairs))))
        return self.either([Bytes(col, lo, hi) for lo, hi in pairs])

    def bytes_ordered(self, field: Field, ref: FieldRef, op: str, value: Value) -> Tree:
        self.no_mask(field, ref)
        col, size = self.col(field), field.type.size
        number = int.from_bytes(self.typer.raw(field, value), "big")
        most = (1 << 8 * size) - 1
        lo, hi = {"<": (0, number - 1), "<=": (0, number), ">": (number + 1, most), ">=": (number, most)}[op]
        if lo > hi:
            return FALSE
        return TRUE if (lo, hi) == (0, most) else Bytes(col, lo.to_bytes(size, "big"), hi.to_bytes(size, "big"))

    # -- addresses of either version

    def bad_ip(self, field: Field, value: Value) -> ExprError:
        hint = "write e.g. 10.1.2.3, 10.0.0.0/8, 10.*.*.1, 2001:db8::/32"
        if value.text[:1].isalpha() and ":" not in value.text:
            hint = "names are not looked up; " + hint
        return self.fail(value.pos, f"'{value.text}' is not an address for {field.name}", hint)

    def ip_in(self, field: Field, values: tuple[Value, ...]) -> Tree:
        four: Intervals = []
        six: Intervals = []
        trees: list[Tree] = []
        for value in values:
            wild = wildcard(value.text) if "." in value.text else None
            found = try_ip_range(value.text) if wild is None else None
            if wild is not None:
                trees.append(self.wild4(field, *wild))
            elif found is None:
                raise self.bad_ip(field, value)
            else:
                (four if found[0] == 4 else six).append(found[1:])
        if four:
            trees.insert(0, self.ip4(field, four))
        if six:
            trees.append(self.ip6(field, merge(six)))
        return self.either(trees)

    def ip4(self, field: Field, intervals: Intervals) -> Tree:
        """IPv4 addresses in ``intervals``: excludes rows without an address and IPv6 rows with an equal fold."""
        col = self.col(field)
        if field.type.kind == "ipv4":
            return self.within(col, self.without_zero(intervals))
        version = self.version_col(field)
        if version is None:
            # Without a version field, 1 means `::` and 0 means no address.
            found = self.both(
                [self.within(col, [(max(lo, 2), hi) for lo, hi in intervals]), Bytes(self.col6(field), ZERO6, ZERO6)]
            )
            # Results have 0.0.0.0 and 0.0.0.1 as IPv4-mapped.
            mapped = [MAPPED4[n] for n in (0, 1) if any(lo <= n <= hi for lo, hi in intervals)]
            return self.either([found, *(Bytes(self.col6(field), data, data) for data in mapped)])
        found = self.within(col, [(max(lo, 1), hi) for lo, hi in intervals])
        tree = self.both([found, self.within(version, [(0, 5)])])
        if any(lo <= 0 <= hi for lo, hi in intervals):
            zero = self.both([self.within(col, [(0, 0)]), self.within(version, [(4, 4)])])
            tree = self.either([tree, zero])
        return tree

    def wild4(self, field: Field, value: int, mask: int) -> Tree:
        """IPv4 addresses with ``address & mask == value``."""
        if value & ~mask:
            return FALSE
        tests = [self.within(self.col(field), [(value, value)], mask)] if mask else []
        if value == 0 or (field.type.kind == "ip" and field.version == ""):
            tests.append(self.ip4(field, [(0, ALL4)]))
        elif field.type.kind == "ip":
            tests.append(self.within(self.schema.index(field.version), [(0, 5)]))
        return self.both(tests)

    def ip6(self, field: Field, intervals: Intervals) -> Tree:
        """IPv6 addresses in ``intervals``: one address by its fold first, then all 16 bytes."""
        col, col6, version = self.col(field), self.col6(field), self.version_col(field)
        is6: list[Tree] = [] if version is None else [self.within(version, [(6, 6)])]
        if version is not None and intervals == [(0, ALL6)]:
            return is6[0]
        trees: list[Tree] = []
        folds: list[int] = []
        ones: list[tuple[bytes, bytes]] = []
        ranges: list[tuple[bytes, bytes]] = []
        for lo, hi in intervals:
            if lo > hi:
                continue
            if lo == 0:
                zero = [self.within(col, [(1, 1)]), Bytes(col6, ZERO6, ZERO6), *is6]
                trees.append(self.both(zero))
                lo = 1
            low, high = lo.to_bytes(16, "big"), hi.to_bytes(16, "big")
            if lo == hi:
                folds.append(fold6(low))
                ones.append((low, high))
            elif lo < hi:
                ranges.append((low, high))
        if ranges:
            trees.append(self.both([*is6, self.one_of_bytes(col6, ranges)]))
        if ones:
            trees.append(self.both([self.within(col, [(f, f) for f in folds]), self.one_of_bytes(col6, ones)]))
        return self.either(trees)

    def masked_ip(self, field: Field, mask: Value, value: Value | None) -> Tree:
        """(address & mask) == value; without a value: != 0."""
        wanted = value.text if value else "0.0.0.0" if "." in mask.text else "::"
        bits, found = try_ip_range(mask.text), try_ip_range(wanted)
        if bits is None or bits[1] != bits[2]:
            raise self.fail(mask.pos, f"'{mask.text}' is not a mask for {field.name}", "write e.g. 255.255.0.0")
        if found is None or found[1] != found[2] or found[0] != bits[0]:
            assert value is not None
            raise self.fail(value.pos, f"'{value.text}' is not an address for the mask {mask.text}")
        version, number, bit = found[0], found[1], bits[1]
        every = [(0, ALL4)] if version == 4 else [(0, ALL6)]
        if version == 4:
            tree = self.wild4(field, number, bit)
        else:
            data = number.to_bytes(16, "big")
            test = Bytes(self.col6(field), data, data, bit.to_bytes(16, "big"))
            tree = FALSE if number & ~bit else self.both([self.ip6(field, every), test])
        if value is not None:
            return tree
        return self.both([self.ip4(field, every) if version == 4 else self.ip6(field, every), self.negate(tree)])

    # -- field against field

    def pair(self, field: Field, ref: FieldRef, op: str, other: Field, value: Value) -> Tree:
        left, right = _family(field), _family(other)
        if left != right or left == "list":
            raise self.fail(
                value.pos,
                f"{field.name} ({field.type.text}) and {other.name} ({other.type.text}) cannot be compared",
                f"quote '{value.text}' if it is a text" if left == "bytes" else "",
            )
        mask = self.typer.mask(field, ref.mask) if ref.mask is not None and left not in ("ip", "bytes") else None
        if ref.mask is not None and mask is None:
            raise self.fail(ref.mask.pos, f"{field.name} ({field.type.text}) cannot be masked here")
        col, col2 = self.col(field), self.col(other)
        if left == "ip":
            return self.ip_pair(field, op, other, value)
        if left == "bytes" and field.type.size != other.type.size:
            raise self.fail(value.pos, f"{field.type.text} and {other.type.text} differ in length")
        if left == "ipv4" and op in ("==", "!="):
            equal = self.both([Pair("==", col, col2, mask), self.within(col, [(1, ALL4)])])  # zero is an absent address
            return equal if op == "==" else self.negate(equal)
        if col == col2 and mask is None and not field.type.is_float:
            return TRUE if op in ("==", "<=", ">=") else FALSE
        return self.negate(Pair("==", col, col2, mask)) if op == "!=" else Pair(op, col, col2, mask)

    def ip_pair(self, field: Field, op: str, other: Field, value: Value) -> Tree:
        if op not in ("==", "!="):
            raise self.fail(value.pos, "two addresses can only be equal or not", "write == or !=")
        fours, sixes = [self.ip4(field, [(0, ALL4)])], [self.ip6(field, [(0, ALL6)])]
        if self.version_col(field) != self.version_col(other):  # one may be absent, or 0.0.0.1 and the other ::
            fours.append(self.ip4(other, [(0, ALL4)]))
            sixes.append(self.ip6(other, [(0, ALL6)]))
        tree = self.both(
            [
                Pair("==", self.col(field), self.col(other)),
                Pair("==", self.col6(field), self.col6(other)),
                self.either([self.both(fours), self.both(sixes)]),  # absent equals nothing
            ]
        )
        return tree if op == "==" else self.negate(tree)


def _family(field: Field) -> str:
    """Fields of one family may be compared with each other."""
    kind = field.type.kind
    if kind in NUMBERS or kind in ("f32", "f64", "enum", "flags"):
        return "number"
    return "bytes" if field.type.is_bytes else kind
