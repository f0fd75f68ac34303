"""Option groups: options that commands share as a whole, each taken as one parameter of the command."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

from confluo_tools.cli.log_output import LogOutput
from confluo_tools.cli.options import (
    AddColumns,
    Append,
    At,
    Color,
    Config,
    Fields,
    Force,
    Human,
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
    Readable,
    Since,
    Stats,
    Sync,
    Tsv,
    Until,
    Verbose,
    Wide,
    Zone,
    format_option,
)
from confluo_tools.cli.output import (
    NO_PICTURES,
    RECORD_FORMATS,
    RecordOutput,
    choose_fields,
    choose_format,
    is_log_output,
    list_fields,
    only_for_logs,
    picture_format,
)
from confluo_tools.errors import UsageError
from confluo_tools.inputs.open import no_input, open_records

if TYPE_CHECKING:
    from confluo_tools.formats.output_file import OutputSink
    from confluo_tools.formats.reader import Reader
    from confluo_tools.schema import Schema


class OptionGroup:
    """Annotated attributes with defaults, one for each option, in the order of --help; those of a base class first."""

    @classmethod
    def options(cls) -> dict[str, Any]:
        """{name: annotated type} of the options."""
        return get_type_hints(cls, include_extras=True)

    def __init__(self, values: Mapping[str, Any]) -> None:
        vars(self).update(values)


class TalkOptions(OptionGroup):
    """--config, --quiet and --verbose."""

    file: Config = None
    quiet: Quiet = False
    verbose: Verbose = False

    def __init__(self, values: Mapping[str, Any]) -> None:
        super().__init__(values)
        if self.file is not None:
            from confluo_tools import config

            config.use_file(self.file)


class CommonOptions(TalkOptions):
    """`TalkOptions` and --stats."""

    stats: Stats = False


class InputOptions(OptionGroup):
    """Format, snapshot and archives of the inputs."""

    input_format: InputFormat = None
    at: At = None
    partial: Partial = False
    no_archive: NoArchive = False

    def missing(self, inputs: Sequence[str] | None, follow: bool = False) -> bool:
        """Whether there is no input.  Raises UsageError for --at with other inputs or with ``follow``."""
        if self.at is None:
            return no_input(inputs or [])
        if follow:
            raise UsageError("a snapshot is one instant", where="--at", hint="leave --follow out")
        if inputs:
            raise UsageError("the snapshot names the logs", where="--at", hint="leave the other inputs out")
        return False

    def open(self, inputs: Sequence[str] | None, **more: Any) -> Reader:
        """Open the inputs as one reader.  ``more``: see `open_records`."""
        return open_records(inputs or [], input_format=self.input_format, at=self.at, partial=self.partial, **more)


class PeriodOptions(OptionGroup):
    """The time range of the records."""

    since: Since = None
    until: Until = None

    def span(self, local: bool) -> tuple[int | None, int | None]:
        """The half-open range (first, end) in ns; None: no limit.

        It is empty if the local clock skips its times.  Raises UsageError for any other empty range.
        """
        from confluo_tools import config, units

        local = config.truth("local", local)
        first = units.time(self.since, local=local) if self.since is not None else None
        after = units.until(self.until, local=local) if self.until is not None else None
        if self.since is None or self.until is None or first is None or after is None or first < after:
            return first, after
        # A script that reads hour by hour also reads the hour that the clock skips: it has no rows.
        if first > after or not any(units.is_skipped(text, local=local) for text in (self.since, self.until)):
            raise UsageError(f"--until {self.until} is not after --since {self.since}")
        return first, after


class OutputOptions(OptionGroup):
    """Fields, format and destination of the records."""

    formats = RECORD_FORMATS  # the formats of records that -o accepts; not annotated: not an option itself
    pictures = NO_PICTURES  # other formats that it accepts
    default_format = "table on a terminal, otherwise stream or, of computed results, tsv"

    fields: Fields = None
    format: Annotated[str | None, format_option(formats, default_format)] = None
    tsv: Tsv = False
    ndjson: Ndjson = False
    output: Output = None
    force: Force = False
    numeric: Numeric = False
    no_header: NoHeader = False
    wide: Wide = False
    local: Local = False
    tz: Zone = None
    human: Human = False
    readable: Readable = None
    line_buffered: LineBuffered = False
    color: Color = None

    def __init__(self, values: Mapping[str, Any]) -> None:
        super().__init__(values)
        if self.tz is not None:
            from confluo_tools.cli.local_zone import use_zone

            use_zone(self.tz)
            self.local = True

    @classmethod
    def options(cls) -> dict[str, Any]:
        found = super().options()
        found["format"] = Annotated[str | None, format_option(cls.all_formats(), cls.default_format)]
        return found

    @classmethod
    def all_formats(cls) -> tuple[str, ...]:
        """What -o accepts; ``pictures`` come first, except those that ``formats`` has in its own order."""
        return (*(name for name in cls.pictures if name not in cls.formats), *cls.formats)

    def listed(self, schema: Schema) -> bool:
        """Print the fields if --fields help was given; whether it was."""
        if self.fields != "help":
            return False
        print(list_fields(schema))
        return True

    def only_for(self, what: str) -> None:
        """Raises UsageError for options of a run that prints no records: they are for ``what``."""
        given = {"-f": self.fields, "-o": self.format, "-T": self.tsv, "-J": self.ndjson, "-w": self.output}
        for name, value in given.items():
            if value:
                raise UsageError(f"is for {what}", where=name, hint="leave it out")

    def kind(self, *, answers: bool = False) -> str:
        """The format: one of ``formats``, see `choose_format`, or of ``pictures``.

        ``answers``: records of a computed result.
        """
        return self.picture() or choose_format(
            self.format, tsv=self.tsv, ndjson=self.ndjson, path=self.output, answers=answers, formats=self.all_formats()
        )

    def picture(self) -> str | None:
        """The one of ``pictures`` that -o or the suffix of the output names; None: records."""
        if not self.pictures:
            return None
        return picture_format(self.output, self.pictures, flag=self.format, text=self.tsv or self.ndjson)

    def names(self, schema: Schema, kind: str = "", usual: Sequence[str] = ()) -> list[str] | None:
        """The fields to print: those of --fields; else, in a table without --wide, the ``usual`` ones; None: all."""
        chosen = choose_fields(self.fields, schema)
        if chosen is None and usual and kind == "table" and not self.wide:
            return list(usual)
        return chosen

    def records(self, schema: Schema, kind: str, names: Sequence[str] | None, **more: Any) -> RecordOutput:
        """The output of records as text or as a file.  ``more``: see `RecordOutput`."""
        return RecordOutput(
            schema,
            kind,
            path=self.output,
            force=self.force,
            fields=names,
            header=not self.no_header,
            numeric=self.numeric,
            wide=self.wide,
            local=self.local,
            line_buffered=self.line_buffered,
            color=self.color,
            human=self.human,
            readable=self.readable,
            **more,
        )

    def write_rows(
        self, schema: Schema, kind: str, names: Sequence[str] | None, rows: Sequence[Mapping[str, Any]]
    ) -> None:
        """Write rows {physical column: value} as records."""
        from confluo_tools.formats.block_builder import blocks_of_rows

        with self.records(schema, kind, names) as into:
            for block in blocks_of_rows(schema, rows):
                into.write(block)

    def sink(self) -> OutputSink:
        """The output of what is not records, such as a picture, compressed as its name says."""
        from confluo_tools import config
        from confluo_tools.cli.output import compression_of
        from confluo_tools.formats.output_file import open_sink

        force = config.truth("clobber", self.force)
        return open_sink(self.output, force=force, compression=compression_of(self.output, ""))


class LogOptions(OutputOptions):
    """`OutputOptions`, and -w LOG: records may be written to a MultiLog."""

    formats = (*RECORD_FORMATS, "multilog")

    output: LogToWrite = None
    append: Append = False
    add_columns: AddColumns = False

    def kind(self, *, answers: bool = False) -> str:
        """'multilog', or the format as in `OutputOptions.kind`."""
        if self.picture() is None and is_log_output(self.output, self.format, tsv=self.tsv, ndjson=self.ndjson):
            return "multilog"
        only_for_logs({"--append": self.append, "--add-columns": self.add_columns})
        return super().kind(answers=answers)

    def schema_of_log(self) -> Schema | None:
        """The schema of the log that --append adds to; None without one."""
        from confluo_tools import multilog

        if not self.append or self.kind() != "multilog" or not multilog.is_log(str(self.output)):
            return None
        with multilog.open(str(self.output), readonly=True) as log:
            return log.schema

    def log(self, schema: Schema, names: Sequence[str] | None, **more: Any) -> LogOutput:
        """The output of records to the MultiLog.  ``more``: see `LogOutput`."""
        schema = schema.project(names) if names else schema
        return LogOutput(str(self.output), schema, append=self.append, add_columns=self.add_columns, **more)

    def open(
        self,
        schema: Schema,
        kind: str,
        names: Sequence[str] | None,
        *,
        metadata: Mapping[str, str] | None = None,
        lanes: int = 4,
        small: bool = True,
        sync: str = "none",
    ) -> LogOutput | RecordOutput:
        """The output of records.  ``lanes``, ``small``, ``sync``: of a MultiLog, see `LogOutput`."""
        if kind == "multilog":
            return self.log(schema, names, lanes=lanes, small=small, sync=sync)
        return self.records(schema, kind, names, metadata=metadata)


class RecordingOptions(LogOptions):
    """`LogOptions`, and the options of a MultiLog that is written for a long time: --index, --keep, --sync."""

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
    """``function`` for typer: each parameter that is an `OptionGroup` replaced by the options of that group."""
    from inspect import Parameter, Signature, signature

    hints = get_type_hints(function, include_extras=True)
    groups: dict[str, tuple[type[OptionGroup], dict[str, Any]]] = {}
    flat: list[Parameter] = []
    for name, parameter in signature(function).parameters.items():
        hint = hints[name]
        if isinstance(hint, type) and issubclass(hint, OptionGroup):
            groups[name] = hint, hint.options()
            flat += [
                Parameter(option, Parameter.KEYWORD_ONLY, default=getattr(hint, option), annotation=of)
                for option, of in groups[name][1].items()
            ]
        else:
            flat.append(parameter.replace(kind=Parameter.KEYWORD_ONLY, annotation=hint))

    def call(**values: Any) -> Any:
        made = {name: of({option: values.pop(option) for option in names}) for name, (of, names) in groups.items()}
        return function(**values, **made)

    call.__name__, call.__doc__, call.__module__ = function.__name__, function.__doc__, function.__module__
    call.__annotations__ = {parameter.name: parameter.annotation for parameter in flat}
    call.__signature__ = Signature(flat)  # type: ignore[attr-defined]
    return call
