"""DuckDB for one statement: the tables of the statement, and nothing else that it could reach."""

from __future__ import annotations

import json
import re
import tempfile
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Self

from confluo_tools import hidden_numpy
from confluo_tools.errors import ConfluoError, UsageError
from confluo_tools.sql.statement import InputTable, Statement
from confluo_tools.sql.tables import SqlTable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from confluo_tools.api.source import Source
    from confluo_tools.schema import Schema

# What a statement may not do, unless it is trusted: read or write files, load extensions, change these settings.
LOCKED = {"enable_external_access": False, "lock_configuration": True}
_NO_COLUMN = re.compile(r'(?:Referenced column|does not have a column named) "([^"]+)"')


class Database:
    """A context manager: a database in memory that is gone at the end.

    ``unsafe``: the statement may read and write files.  ``memory``: bytes before data go to a folder below $TMPDIR;
    ``threads``: None for all cores.
    Raises ConfluoError if DuckDB is missing.
    """

    def __init__(self, *, unsafe: bool = False, memory: int | None = None, threads: int | None = None) -> None:
        try:
            import duckdb
        except ImportError:
            raise ConfluoError("needs DuckDB", where="SQL", hint="pip install 'confluo-tools[sql]'") from None
        self._duckdb: Any = duckdb
        self._unsafe, self._tables = unsafe, list[SqlTable]()
        self._spill = tempfile.TemporaryDirectory(prefix="confluo-sql-")
        settings: dict[str, Any] = {
            "python_enable_replacements": False,
            "autoinstall_known_extensions": False,
            "autoload_known_extensions": False,
            "temp_directory": self._spill.name,
        }
        if memory is not None:
            settings["memory_limit"] = f"{memory}B"
        if threads is not None:
            settings["threads"] = threads
        self.connection: Any = duckdb.connect(":memory:", config=settings)
        # In a program that is not a file (python -c, a notebook) DuckDB draws it on standard output, among the rows.
        self.connection.execute("set enable_progress_bar = false")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.connection.close()
        self._spill.cleanup()

    def parse(self, text: str) -> Statement | None:
        """The statement; None for an unsafe one that is not a SELECT.  Raises UsageError for one that is wrong."""
        try:
            found = json.loads(self._text("select json_serialize_sql(?)", text))
        except RecursionError:
            raise _too_deep() from None
        if found["error"]:
            if found["error_type"] == "not implemented":
                if self._unsafe:
                    return None
                raise UsageError("is not a SELECT statement", where="SQL", hint="only questions are possible")
            raise UsageError(found["error_message"].splitlines()[0], where="SQL", hint=_place(text, found))
        return Statement(found)

    def prepare(self, statement: Statement, sources: Mapping[str, Source]) -> str:
        """Make the tables of ``statement``, in the order of its inputs; returns the text to run.

        ``sources``: by path.
        """
        for table in statement.tables:
            table.schema = sources[table.path].schema
        columns = statement.named()
        statement.share_conditions()
        for table in statement.tables:
            table.conditions = [text for text in table.conditions if _valid(text, table.schema)]
        statement.rewrite()
        text = self._text("select json_deserialize_sql(?::json)", json.dumps(statement.tree))
        if statement.calls("in_net"):
            hidden_numpy.show()  # to make a function, DuckDB loads it
            self.connection.create_function("in_net", in_net, ["VARCHAR", "VARCHAR"], "BOOLEAN")
        for table in statement.tables:
            made = SqlTable(sources[table.path], table, columns)
            self._tables.append(made)
            made.open()
            self.connection.register(table.name, made)
        if not self._unsafe:
            for name, value in LOCKED.items():
                self.connection.execute(f"set {name}={str(value).lower()}")
        return text

    def _text(self, question: str, value: str) -> str:
        # The text that DuckDB answers.
        try:
            return str(self.connection.execute(question, [value]).fetchall()[0][0])
        except self._duckdb.SerializationException:
            raise _too_deep() from None

    def inputs(self, text: str) -> list[str]:
        """The tables that any statement names."""
        try:
            return sorted(self.connection.get_table_names(text))
        except self._duckdb.Error as e:
            raise self.error(e) from None

    def offer(self, sources: Mapping[str, Source]) -> None:
        """Make whole inputs tables, by path."""
        for path, source in sources.items():
            table = InputTable(path, path, path)
            table.schema = source.schema
            self._tables.append(SqlTable(source, table, None))
            self.connection.register(path, self._tables[-1])

    def run(self, text: str) -> Any:
        """Execute ``text``; the relation, or None for a statement without rows.  Raises ConfluoError."""
        try:
            return self.connection.sql(text)
        except self._duckdb.Error as e:
            raise self.error(e) from None

    def rows(self, text: str) -> list[tuple[Any, ...]]:
        """All rows of a question.  Raises ConfluoError."""
        try:
            return list(self.connection.sql(text).fetchall())
        except self._duckdb.Error as e:
            raise self.error(e) from None

    def batches(self, text: str, widths: Sequence[int]) -> Iterator[tuple[int, list[Any], dict[int, bytes]]]:
        """The rows of a question piece by piece, as `ArrowBatches.read` gives them.  Raises ConfluoError."""
        from confluo_tools.core.block.arrow_import import ArrowBatches

        try:
            found = ArrowBatches(self.connection.sql(text).__arrow_c_stream__())
            try:
                yield from found.read(widths)
            finally:
                found.close()
        except (self._duckdb.Error, OSError) as e:  # OSError: what the stream of Arrow data reports
            raise self.error(e) from None

    def error(self, e: BaseException) -> ConfluoError:
        """An error of DuckDB, on one line; that of an input, if it is the cause."""
        for table in self._tables:
            if isinstance(table.error, ConfluoError):
                return table.error
        lines = [line for line in str(e).splitlines() if line.strip()]
        what = lines[0].partition(" Error: ")[2] or lines[0] if lines else type(e).__name__
        hint = next((line.strip() for line in lines[1:] if line.startswith(("Candidate bindings", "Did you mean"))), "")
        if missing := _NO_COLUMN.search(what):
            what, hint = f"no column '{missing[1]}'", self._near(missing[1])
        if "disabled by configuration" in str(e) or "disabled through configuration" in str(e):
            what, hint = "reads or writes a file that is not an input", "--unsafe allows it"
        if "Timestamp to higher precision" in str(e):
            what, hint = "a time is before 1677 or after 2262", "cast it to a text: TIME::varchar"
        if isinstance(e, self._duckdb.OutOfMemoryException):
            what, hint = "needs more memory than it may use", "--memory-limit sets it"
        return UsageError(what, where="SQL", hint=hint)

    def _near(self, name: str) -> str:
        """A hint for a column that is missing: DuckDB knows only the columns that the statement names correctly."""
        tables = [made.table for made in self._tables]
        hints = [table.schema.suggest(name.lower()) for table in tables if table.schema is not None]
        listed = f"\"describe select * from '{tables[0].path}'\" lists the columns" if tables else ""
        return next((hint for hint in hints if hint.startswith(("did you mean", "--geo"))), listed)


def _valid(condition: str, schema: Schema | None) -> bool:
    """Whether a condition is one in our language: an address or a number may be out of range."""
    from confluo_tools.expr import compile

    try:
        return schema is not None and bool(compile(condition, schema))
    except ConfluoError:
        return False


def _place(text: str, found: dict[str, Any]) -> str:
    position = found.get("position")
    if position is None or not str(position).isdigit():
        return ""
    before = text[: int(position)]
    return f"line {before.count(chr(10)) + 1}, column {len(before) - (before.rfind(chr(10)) + 1) + 1}"


def _too_deep() -> UsageError:
    return UsageError("is nested too deeply", where="SQL", hint="name its parts with WITH")


def in_net(address: str, net: str) -> bool:
    """Whether an address is in a network; both as text.  Another text is in none."""
    low, high = _range(net)
    found = _number(address)
    return found is not None and low <= found <= high


@lru_cache(maxsize=1024)
def _range(net: str) -> tuple[tuple[int, int], tuple[int, int]]:
    from ipaddress import ip_network

    found = ip_network(net, strict=False)
    return (found.version, int(found.network_address)), (found.version, int(found.broadcast_address))


@lru_cache(maxsize=65536)
def _number(address: str) -> tuple[int, int] | None:
    from ipaddress import ip_address

    try:
        found = ip_address(address)
    except ValueError:
        return None
    return found.version, int(found)
