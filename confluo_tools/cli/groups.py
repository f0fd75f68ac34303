"""Options that come together: a command takes the whole group as one parameter, and every command spells it alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, get_type_hints

from confluo_tools.cli.log_output import LogOutput
from confluo_tools.cli.options import (
    Append,
    At,
    Color,
    Config,
    Fields,
    Force,
    Format,
    Index,
    InputFormat,
    Keep,
    LineBuffered,
    Local,
    LogToWrite,
    Ndjson,
    NoArchive,
    NoHeader,
    Numeric,
    Output,
    Partial,
    Quiet,
    Since,
    Stats,
    Sync,
    Tsv,
    Until,
    Verbose,
    Wide,
)
from confluo_tools.cli.output import (
    RecordOutput,
    choose_fields,
    choose_format,
    is_log_output,
    list_fields,
    only_for_logs,
)
from confluo_tools.cli.records import no_input, open_records
from confluo_tools.errors import UsageError

if TYPE_CHECKING:
    from confluo_tools.formats.reader import Reader
    from confluo_tools.schema import Schema


class Group:
    """Options that come together: annotated attributes with defaults, in the order of --help, those of a base first."""

    @classmethod
    def options(cls) -> dict[str, Any]:
        """Name -> type, as typer wants it."""
        return get_type_hints(cls, include_extras=True)

    def __init__(self, values: Mapping[str, Any]) -> None:
        vars(self).update(values)


class TalkOptions(Group):
    """Which settings hold, and how much is said."""

    file: Config = None
    quiet: Quiet = False
    verbose: Verbose = False

    def __init__(self, values: Mapping[str, Any]) -> None:
        super().__init__(values)
        if self.file is not None:
            from confluo_tools import config

            config.use_file(self.file)


class CommonOptions(TalkOptions):
    """The same, and the sums at the end."""

    stats: Stats = False


class InputOptions(Group):
    """How inputs are read."""

    input_format: InputFormat = None
    at: At = None
    partial: Partial = False
    no_archive: NoArchive = False

    def missing(self, inputs: Sequence[str] | None, follow: bool = False) -> bool:
        """Whether there is nothing to read.  Raises UsageError for a snapshot and other inputs, or to ``follow`` it."""
        if self.at is None:
            return no_input(inputs or [])
        if follow:
            raise UsageError("a snapshot is one instant", where="--at", hint="leave --follow out")
        if inputs:
            raise UsageError("the snapshot names the logs", where="--at", hint="leave the other inputs out")
        return False

    def open(self, inputs: Sequence[str] | None, **more: Any) -> Reader:
        """The inputs as one.  ``more``: see `open_records`."""
        return open_records(inputs or [], input_format=self.input_format, at=self.at, partial=self.partial, **more)


class PeriodOptions(Group):
    """Of which time the records are."""

    since: Since = None
    until: Until = None

    def span(self, local: bool) -> tuple[int | None, int | None]:
        """In ns, half open.  Raises UsageError."""
        from confluo_tools import config, units

        local = config.truth("local", local)
        first = units.time(self.since, local=local) if self.since is not None else None
        after = units.until(self.until, local=local) if self.until is not None else None
        if first is not None and after is not None and first >= after:
            raise UsageError(f"--until {self.until} is not after --since {self.since}")
        return first, after


class OutputOptions(Group):
    """Which fields of the records are shown, how, and where they go."""

    fields: Fields = None
    format: Format = None
    tsv: Tsv = False
    ndjson: Ndjson = False
    output: Output = None
    force: Force = False
    numeric: Numeric = False
    no_header: NoHeader = False
    wide: Wide = False
    local: Local = False
    line_buffered: LineBuffered = False
    color: Color = None

    def listed(self, schema: Schema) -> bool:
        """``--fields help``: the fields are printed, and that is all."""
        if self.fields != "help":
            return False
        print(list_fields(schema))
        return True

    def kind(self, *, answers: bool = False) -> str:
        """The format, see `choose_format`.  ``answers``: of a question; they are to be read rather than piped."""
        return choose_format(
            self.format, tsv=self.tsv, ndjson=self.ndjson, path=self.output, answers=answers
        )

    def names(self, schema: Schema, kind: str = "", usual: Sequence[str] = ()) -> list[str] | None:
        """Which fields: those of --fields; else, of a table that is not --wide, the ``usual`` ones; else None: all."""
        chosen = choose_fields(self.fields, schema)
        if chosen is None and usual and kind == "table" and not self.wide:
            return list(usual)
        return chosen

    def records(self, schema: Schema, kind: str, names: Sequence[str] | None, **more: Any) -> RecordOutput:
        """Records as text or in a file.  ``more``: see `RecordOutput`."""
        return RecordOutput(
            schema, kind, path=self.output, force=self.force, fields=names, header=not self.no_header,
            numeric=self.numeric, wide=self.wide, local=self.local, line_buffered=self.line_buffered,
            color=self.color, **more,
        )  # fmt: skip


class LogOptions(OutputOptions):
    """The same; or records go to a MultiLog."""

    output: LogToWrite = None
    append: Append = False

    def kind(self, *, answers: bool = False) -> str:
        """As of `OutputOptions`; of a MultiLog 'multilog'."""
        if is_log_output(self.output, self.format, tsv=self.tsv, ndjson=self.ndjson):
            return "multilog"
        only_for_logs({"--append": self.append})
        return super().kind(answers=answers)

    def log(self, schema: Schema, names: Sequence[str] | None, **more: Any) -> LogOutput:
        """Records into the MultiLog.  ``more``: see `LogOutput`."""
        return LogOutput(str(self.output), schema.project(names) if names else schema, append=self.append, **more)

    def open(
        self, schema: Schema, kind: str, names: Sequence[str] | None, *, metadata: Mapping[str, str] | None = None,
        lanes: int = 4, small: bool = True, sync: str = "none",
    ) -> LogOutput | RecordOutput:  # fmt: skip
        """Records to wherever they go.  ``lanes``, ``small``, ``sync``: of a MultiLog, see `LogOutput`."""
        if kind == "multilog":
            return self.log(schema, names, lanes=lanes, small=small, sync=sync)
        return self.records(schema, kind, names, metadata=metadata)


class RecordingOptions(LogOptions):
    """The same for what records for a long time."""

    index: Index = None
    keep: Keep = None
    sync: Sync = None

    def kind(self, *, answers: bool = False) -> str:
        kind = super().kind(answers=answers)
        if kind != "multilog":
            only_for_logs({"--index": self.index, "--keep": self.keep, "--sync": self.sync})
        return kind

    def log(self, schema: Schema, names: Sequence[str] | None, **more: Any) -> LogOutput:
        from confluo_tools import config

        more.setdefault("sync", config.text("sync", self.sync))
        return super().log(schema, names, index=self.index, keep=self.keep, **more)


def spread(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function`` as typer wants it: each parameter that is a `Group` replaced by the options of that group."""
    from inspect import Parameter, Signature, signature

    hints = get_type_hints(function, include_extras=True)
    groups: dict[str, tuple[type[Group], dict[str, Any]]] = {}
    flat: list[Parameter] = []
    for name, parameter in signature(function).parameters.items():
        hint = hints[name]
        if isinstance(hint, type) and issubclass(hint, Group):
            groups[name] = hint, hint.options()
            flat += [Parameter(option, Parameter.KEYWORD_ONLY, default=getattr(hint, option), annotation=of)
                     for option, of in groups[name][1].items()]  # fmt: skip
        else:
            flat.append(parameter.replace(kind=Parameter.KEYWORD_ONLY, annotation=hint))

    def call(**values: Any) -> Any:
        made = {name: of({option: values.pop(option) for option in names}) for name, (of, names) in groups.items()}
        return function(**values, **made)

    call.__name__, call.__doc__, call.__module__ = function.__name__, function.__doc__, function.__module__
    call.__annotations__ = {parameter.name: parameter.annotation for parameter in flat}
    call.__signature__ = Signature(flat)  # type: ignore[attr-defined]
    return call
