"""What every filter shares: running, options, exit statuses, signals, progress, inputs and outputs.

Only commands import this.  `run` is the one try/except around a command, `warn` reports what is wrong but
not fatal; options that commands share come in groups, of which `InputOptions` reads any input and `OutputOptions`
writes any format.
"""

from __future__ import annotations

from confluo_tools.cli.explain import plan_lines
from confluo_tools.cli.groups import (
    CommonOptions,
    Group,
    InputOptions,
    LogOptions,
    OutputOptions,
    PeriodOptions,
    RecordingOptions,
    TalkOptions,
)
from confluo_tools.cli.logs import here, remote, shell
from confluo_tools.cli.options import (
    Analyze,
    AnalyzeFlows,
    Config,
    Count,
    Duration,
    Expr,
    Force,
    InputFormat,
    Inputs,
    Limit,
    Local,
    Ndjson,
    Operands,
    Output,
    Partial,
    Quiet,
    Read,
    Since,
    StateOf,
    Tsv,
    User,
)
from confluo_tools.cli.output import RecordOutput, command_line, list_fields
from confluo_tools.cli.progress import Progress, humane
from confluo_tools.cli.records import analyzed, no_input, open_one, open_records, usage
from confluo_tools.cli.runner import App, Stopped, command_app, describe, run
from confluo_tools.cli.signals import signals
from confluo_tools.cli.state import (
    NOTHING,
    OK,
    TROUBLE,
    colour,
    is_terminal,
    note,
    printable,
    say,
    state,
    tell,
    warn,
)
from confluo_tools.cli.values import core_share, duration, fraction, of_option, one_of, seconds, token, traffic_class

__all__ = [
    "NOTHING",
    "OK",
    "TROUBLE",
    "Analyze",
    "AnalyzeFlows",
    "App",
    "CommonOptions",
    "Config",
    "Count",
    "Duration",
    "Expr",
    "Force",
    "Group",
    "InputFormat",
    "InputOptions",
    "Inputs",
    "Limit",
    "Local",
    "LogOptions",
    "Ndjson",
    "Operands",
    "Output",
    "OutputOptions",
    "Partial",
    "PeriodOptions",
    "Progress",
    "Quiet",
    "Read",
    "RecordOutput",
    "RecordingOptions",
    "Since",
    "StateOf",
    "Stopped",
    "TalkOptions",
    "Tsv",
    "User",
    "analyzed",
    "colour",
    "command_app",
    "command_line",
    "core_share",
    "describe",
    "duration",
    "fraction",
    "here",
    "humane",
    "is_terminal",
    "list_fields",
    "no_input",
    "note",
    "of_option",
    "one_of",
    "open_one",
    "open_records",
    "plan_lines",
    "printable",
    "remote",
    "run",
    "say",
    "seconds",
    "shell",
    "signals",
    "state",
    "tell",
    "token",
    "traffic_class",
    "usage",
    "warn",
]
