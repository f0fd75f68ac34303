"""Countries, cities and networks of addresses as fields of their records (--geo)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from confluo_tools.errors import UsageError
from confluo_tools.expr.leaves import TRUE, And, Or, Tree, columns
from confluo_tools.formats.reader import Reader, Wrapper
from confluo_tools.schema import Field, Schema

if TYPE_CHECKING:
    from confluo_tools.core.block.block import Block, Picks
    from confluo_tools.formats.address_database import AddressDatabase

SIDES = {"src": "source", "dst": "destination"}
TEXT = 64  # bytes of a name


class GeoValue(NamedTuple):
    """What a database says about an address: the type and meaning of a field, and the ``path`` in its records."""

    type: str
    description: str
    path: tuple[str, ...]


PLACES = {
    "country": GeoValue("text(2)", "country of the {} address, ISO 3166 code", ("country", "iso_code")),
    "city": GeoValue(f"text({TEXT})", "city of the {} address, in English", ("city", "names", "en")),
    "asn": GeoValue(
        "u32", "number of the autonomous system of the {} address; 0: unknown", ("autonomous_system_number",)
    ),
    "org": GeoValue(
        f"text({TEXT})", "who runs the autonomous system of the {} address", ("autonomous_system_organization",)
    ),
}
# What databases of these kinds have; others may have anything.
HAS = {"City": {"country", "city"}, "Country": {"country"}, "ASN": {"asn", "org"}}


def address_sides(schema: Schema) -> list[str]:
    """Of "src" and "dst", those that have an address in ``schema``."""
    return [side for side in SIDES if f"{side}_ip" in schema and schema[f"{side}_ip"].type.kind in ("ip", "ipv4")]


def geo_schema(schema: Schema, names: Sequence[str]) -> Schema:
    """``schema`` with those of the fields ``names`` at its end that it lacks and has addresses for.

    Raises UsageError if it has no addresses.
    """
    sides = address_sides(schema)
    if not sides:
        what = f"records of the kind '{schema.kind}' have no src_ip and dst_ip"
        raise UsageError(what, where="--geo", hint="--fields help lists what they have")
    more = []
    for name in names:
        side, what = name.split("_")
        if side in sides and name not in schema:
            more.append(Field(name, PLACES[what].type, "", PLACES[what].description.format(SIDES[side])))
    return schema.plus(more) if more else schema


class PlaceTables:
    """The values of the records of a database that were found, by their numbers: a table for each of ``wanted``."""

    def __init__(self, database: AddressDatabase, wanted: Sequence[str]) -> None:
        from confluo_tools.schema import Type

        self.database = database
        self.width = {what: Type(PLACES[what].type).size for what in wanted}
        self.table = {what: bytearray(width) for what, width in self.width.items()}
        self._done = 1  # records in the tables; number 0 is none

    def grow(self) -> None:
        """Take the values of the records that were found since the last call."""
        for number in range(self._done, len(self.database.tree.offsets)):
            record = self.database.record(number)
            for what, width in self.width.items():
                self.table[what] += _cell(record, PLACES[what], width)
            self._done += 1


def _cell(record: Any, place: GeoValue, width: int) -> bytes:
    for name in place.path:
        record = record.get(name) if isinstance(record, dict) else None
    if place.type == "u32":
        good = isinstance(record, int) and 0 <= record < 1 << 32
        return (record if good else 0).to_bytes(width, "little")
    if not isinstance(record, str):
        return bytes(width)
    text = record.encode()
    if len(text) > width:
        text = text[:width].decode(errors="ignore").encode()  # no half of a character
    return text.ljust(width, b"\0")


def without(tree: Tree, numbers: frozenset[int]) -> Tree:
    """A condition that holds wherever ``tree`` holds, and does not read the columns ``numbers``."""
    if isinstance(tree, (And, Or)):
        return type(tree)(tuple([without(item, numbers) for item in tree.items]))
    return tree if numbers.isdisjoint(columns(tree)) else TRUE


class GeoReader(Wrapper):
    """The rows of ``reader`` with the fields ``names`` (`GEO_FIELDS`) at the end, from ``databases``.

    The first database that has a value for an address gives it.  Conditions on other fields go to ``reader``, with its
    indexes.  Raises UsageError for rows without addresses, and if no database can have a field.
    """

    def __init__(
        self,
        reader: Reader,
        databases: Sequence[AddressDatabase],
        names: Sequence[str],
        *,
        warn: Callable[[str], None] | None = None,
    ) -> None:
        super().__init__(reader, warn)
        self.filters, self.by_time, self.given = reader.filters, reader.by_time, reader.given
        self.polled, self.aggregate = reader.polled, reader.aggregate  # type: ignore[method-assign]
        self.schema = geo_schema(reader.schema, names)
        self._own = len(reader.schema.columns)
        self._geo = frozenset(range(self._own, len(self.schema.columns)))
        self._what = {i: self.schema.columns[i].name.split("_") for i in sorted(self._geo)}  # (side, what)
        wanted = {what for _, what in self._what.values()}
        for what in sorted(wanted):
            if not any(may_have(database, what) for database in databases):
                have = ", ".join(f"{database.path} is {database.kind}" for database in databases)
                hint = f"add e.g. GeoLite2-{'ASN' if what in HAS['ASN'] else 'City'}.mmdb"
                raise UsageError(f"no database has a field '{what}': {have}", where="--geo", hint=hint)
        self._tables = [PlaceTables(database, [w for w in wanted if may_have(database, w)]) for database in databases]

    def blocks(self) -> Iterator[Block]:
        before = self.reader.rows
        for block in self.reader:
            self.rows, self.mark = self.reader.rows - before, self.reader.mark
            yield self._located(block, None, self._geo)
        self.rows, self.mark = self.reader.rows - before, self.reader.mark

    def __iter__(self) -> Iterator[Block]:
        return self.blocks()

    def select(
        self, expr: Any, columns: Sequence[int] | None = None, *, by_time: bool = True
    ) -> Iterator[tuple[Block, Picks | None]]:
        from confluo_tools.expr.leaves import columns as columns_of

        tested = columns_of(expr.tree) & self._geo
        wanted = self._geo if columns is None else frozenset(tested | (self._geo & set(columns)))
        needed = self._needed(columns, columns_of(expr.tree), wanted)
        before = self.reader.rows
        for block, picks in self.reader.select(self._pushed(expr), needed, by_time=by_time):
            self.rows, self.mark = self.reader.rows - before, self.reader.mark
            if not tested:
                yield self._located(block, picks, wanted), picks
                continue
            if picks is not None and len(picks) < block.rows:
                block = block.take_columns(picks, needed)
            block = self._located(block, None, wanted)
            found = expr.program.select(block)
            if len(found):
                yield block, found
        self.rows, self.mark = self.reader.rows - before, self.reader.mark

    def _pushed(self, expr: Any) -> Any:
        # The part of the condition that the input can test.
        from confluo_tools.expr import Expr
        from confluo_tools.expr.simplify import Simplifier

        tree = Simplifier(self.reader.schema).again(without(expr.tree, self._geo))
        return Expr(expr.text, self.reader.schema, expr.syntax, tree, expr.notes, expr.demands)

    def _needed(self, given: Sequence[int] | None, tested: set[int], wanted: frozenset[int]) -> list[int] | None:
        # Numbers of the columns to read.
        if given is None:
            return None
        out = {i for i in (*given, *tested) if i < self._own}
        for side in {self._what[i][0] for i in wanted}:
            out |= {i for i in self._addresses(side) if i >= 0}
        return sorted(out)

    def _addresses(self, side: str) -> tuple[int, int]:
        # Numbers of the columns of IPv4 and of IPv6 addresses; -1: none.
        layout = self.reader.schema.layout
        name = f"{side}_ip"
        wide = self.reader.schema[name].type.kind == "ip"
        return layout.index(name), layout.index(name + "6") if wide else -1

    def _located(self, block: Block, picks: Picks | None, wanted: frozenset[int]) -> Block:
        # The block with those of the new columns that are wanted, for the picked rows; the others are zero.
        from confluo_tools.core.block.block import Block as Make
        from confluo_tools.core.query.address_tree import fill

        if block.layout is not self.reader.schema.layout:
            block = block.project(self.reader.schema.layout)
        new: dict[int, bytearray] = {i: bytearray(block.rows * self.schema.columns[i].size) for i in wanted}
        for tables in self._tables:
            for side in SIDES:
                mine = [i for i in wanted if self._what[i][0] == side and self._what[i][1] in tables.width]
                if not mine:
                    continue
                numbers = tables.database.numbers(block, *self._addresses(side), picks)
                tables.grow()
                for i in mine:
                    what = self._what[i][1]
                    fill(new[i], numbers, tables.table[what], tables.width[what])
        buffers: list[Any] = [block.buffer(i) for i in range(self._own)]
        buffers += [new.get(i) for i in sorted(self._geo)]
        return Make.wrap(self.schema.layout, block.rows, buffers, lane=block.lane, base=block.base)


def may_have(database: AddressDatabase, name: str) -> bool:
    """Whether a database, by its kind, can have the values of a field."""
    what = name.rpartition("_")[2]
    return next((what in has for name, has in HAS.items() if database.kind.endswith(name)), True)
