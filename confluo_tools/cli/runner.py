"""Running a command: help, the only try/except, signals, exit statuses, one-line errors."""

from __future__ import annotations

import errno
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from time import monotonic
from types import FrameType
from typing import Any

import typer
from typer.core import TyperCommand, TyperOption

from confluo_tools import FORMAT_VERSION, __version__
from confluo_tools.cli.groups import spread
from confluo_tools.cli.options import PANELS
from confluo_tools.cli.signals import SAME_SIGNAL
from confluo_tools.console import NOTHING, OK, TROUBLE, ThreadErrors, printable, reset, say, state
from confluo_tools.console import describe as describe_error
from confluo_tools.errors import ConfluoError
from confluo_tools.hidden_numpy import hidden
from confluo_tools.stop_signals import StopRaiser

WRITE_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EBADF, errno.EIO)


class Stopped(BaseException):
    """SIGTERM or SIGHUP arrived: unwind, remove partial files, exit with 128 + signal."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class Command(TyperCommand):
    """A command with options in panels and examples: -h prints the most important options, --help all.

    ``panels``: {panel: names of options, separated by spaces}, in addition to the panels that options name themselves.
    """

    examples = ""
    panels: Mapping[str, str] = {}

    def get_params(self, ctx: Any) -> list[Any]:
        def flag(names: list[str], text: str, action: Callable[[], str]) -> TyperOption:
            def callback(ctx: Any, param: Any, value: bool) -> None:
                if value:
                    print(action())
                    raise typer.Exit(OK)

            return TyperOption(
                param_decls=names,
                is_flag=True,
                is_eager=True,
                expose_value=False,
                callback=callback,
                help=text,
                rich_help_panel="General",
            )

        return [
            *self.params,
            flag(["-h"], "Print usage, the main options and examples.", lambda: self.short_help_text(ctx)),
            flag(["--help"], "Print this help.", ctx.get_help),
            flag(["--version"], "Print the version of the program and of its format.", lambda: version(state.prog)),
        ]

    def get_help_option(self, ctx: Any) -> None:
        return None

    def options_by_panel(self, ctx: Any) -> dict[str, list[Any]]:
        """{panel: its options}, in the order of `PANELS`; panels without options are left out."""
        options = [p for p in self.get_params(ctx) if p.param_type_name == "option"]
        assigned = {name: panel for panel, names in self.panels.items() for name in names.split()}
        found: dict[str, list[Any]] = {panel: [] for panel in PANELS}
        for one in options:
            names = [*one.opts, *one.secondary_opts]
            panel = next((assigned[name] for name in names if name in assigned), one.rich_help_panel or PANELS[0])
            found[panel].append(one)
        order = self.panels.get(PANELS[0], "").split()
        found[PANELS[0]].sort(key=lambda one: min([order.index(n) for n in one.opts if n in order], default=len(order)))
        return {panel: members for panel, members in found.items() if members}

    def format_options(self, ctx: Any, formatter: Any) -> None:
        self._format_arguments(ctx, formatter)
        for panel, options in self.options_by_panel(ctx).items():
            _format_panel(panel, options, ctx, formatter)

    def _format_arguments(self, ctx: Any, formatter: Any) -> None:
        arguments = [p for p in self.get_params(ctx) if p.param_type_name == "argument"]
        if arguments:
            _format_panel("Arguments", arguments, ctx, formatter)

    def short_help_text(self, ctx: Any) -> str:
        """Usage, purpose, the most important options, examples."""
        formatter = ctx.make_formatter()
        self.format_usage(ctx, formatter)
        self.format_help_text(ctx, formatter)
        self._format_arguments(ctx, formatter)
        important = self.options_by_panel(ctx).get(PANELS[0])
        if important:
            _format_panel(PANELS[0], important, ctx, formatter)
        formatter.write("\n--help lists all options.\n")
        self.format_epilog(ctx, formatter)
        return str(formatter.getvalue()).rstrip("\n")

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        if self.examples:
            formatter.write("\nExamples:\n")
            for line in self.examples.strip("\n").splitlines():
                formatter.write(f"  {line}\n" if line else "\n")
        formatter.write(f"\nManual: {state.prog.replace(' ', '-')}(1)\n")


def _format_panel(title: str, params: Sequence[Any], ctx: Any, formatter: Any) -> None:
    records = [record for one in params if (record := one.get_help_record(ctx)) is not None]
    with formatter.section(title):
        formatter.write_dl(records)


class App(typer.Typer):
    """A Typer with `Command` as the class of its commands.  `command_app` creates it."""

    examples = ""

    @cached_property
    def parser(self) -> Any:
        """What parses and runs the arguments: made once, for a process that runs the command again and again."""
        return typer.main.get_command(self)

    def command(
        self, name: str | None = None, *, panels: Mapping[str, str] | None = None, **options: Any
    ) -> Callable[[Any], Any]:
        """Register a command.  ``panels``: see `Command`; the names of panels are in `cli.options.PANELS`."""
        content = {"examples": self.examples, "panels": panels or {}}
        options.setdefault("cls", type("Command", (Command,), content))
        register = super().command(name, **options)

        def keep(function: Any) -> Any:
            register(spread(function))
            return function

        return keep


def command_app(examples: str = "") -> App:
    """A typer app without the parts that cost start-up time.

    ``examples``: complete command lines, each below a ``# comment`` line; they are the end of the help.
    """
    app = App(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    app.examples = examples
    return app


def version(prog: str) -> str:
    return f"{prog} {__version__} (format {FORMAT_VERSION})"


def run(app: App, prog: str, argv: Sequence[str] | None = None, *, owns_state: bool = False) -> int:
    """Run the command and return its exit status.  Every command's main() is one call of this.

    owns_state=False: a pure filter, which a closed pipe or a signal may end at any time.
    owns_state=True: SIGPIPE stays ignored (writes raise BrokenPipeError, to be caught in the command's body as a
    request to finish) and SIGTERM and SIGHUP are left to the command.
    """
    args = tuple(sys.argv[1:] if argv is None else argv)
    reset(prog, args)
    _fill_closed_descriptors()
    raiser = StopRaiser(lambda number: KeyboardInterrupt() if number == signal.SIGINT else Stopped(number))
    before = _set_signals(owns_state, raiser)
    thread_hook, threading.excepthook = threading.excepthook, _thread_failed
    try:
        with hidden():
            status = _call(app, prog, args)
        _finish_stdout()
        raiser.raise_late()
        return TROUBLE if state.trouble and status in (OK, NOTHING) else status
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except Stopped as stop:
        return 128 + stop.number
    except BrokenPipeError:
        _discard_stdout()
        return 128 + signal.SIGPIPE
    except Exception as error:
        _discard_stdout()
        if raiser.number:  # the error came before the exception of the signal: the user wants the end, not a message
            return 128 + raiser.number
        if os.environ.get("CONFLUO_DEBUG"):
            import traceback

            traceback.print_exc()
        say(f"{prog}: {printable(describe(error))}")
        if hasattr(error, "caret"):  # an expression: show the column
            for line in error.caret().splitlines():
                say(f"  {printable(line)}")
        return int(getattr(error, "exit_status", TROUBLE))
    finally:
        state.over = True
        raiser.end()
        threading.excepthook = thread_hook
        for number, handler in before.items():
            signal.signal(number, handler)


def _call(app: App, prog: str, args: tuple[str, ...]) -> int:
    # Not app(...): typer turns EPIPE into exit status 1 and formats usage errors itself.
    command = app.parser
    if os.environ.get("_" + prog.replace("-", "_").upper() + "_COMPLETE"):
        from typer import completion

        completion.completion_init()  # type: ignore[attr-defined]
        command.main(args=list(args), prog_name=prog, standalone_mode=False)
        return OK
    try:
        # Help ends in the first context: it loads no compiled code.
        with command.make_context(prog, list(args)) as context, _bus_errors(prog):
            return command.invoke(context) or OK
    except typer.Exit as e:
        return e.exit_code
    except typer.Abort:
        raise KeyboardInterrupt from None


def describe(error: BaseException) -> str:
    """The message of an error, on one line (the caret of an expression adds lines)."""
    if isinstance(error, typer.TyperException):
        near = getattr(error, "possibilities", None)
        text = str(error.message if near else error.format_message()).rstrip(".")
        hint = f"did you mean {' or '.join(near)}?" if near else "--help lists the options"
        return f"{text[:1].lower()}{text[1:]}; {hint}"
    if isinstance(error, OSError) and not error.filename and error.errno in WRITE_ERRORS:
        return f"standard output: {error.strerror}"  # code that opens other files names them
    if isinstance(error, ImportError):
        return f"{error}; is everything built and installed? (bin/check)"
    return describe_error(error)


def _thread_failed(args: threading.ExceptHookArgs) -> None:
    # The last resort: threads report errors themselves and go on.
    if args.exc_value is not None and not isinstance(args.exc_value, SystemExit):
        name = args.thread.name if args.thread is not None else "unknown"
        ThreadErrors(f"the thread '{name}' has ended").report(args.exc_value)


def _set_signals(owns_state: bool, raiser: StopRaiser) -> dict[int, Any]:
    before: dict[int, Any] = {}

    def put(number: int, handler: Any) -> None:
        old = signal.signal(number, handler)
        before[number] = signal.SIG_DFL if old is None else old

    first: dict[int, float] = {}

    def stop(number: int, frame: FrameType | None) -> None:
        # timeout(1) signals its child and then the process group: the second signal must not cut off the final output.
        if state.over:
            return
        now = monotonic()
        again = now - first.setdefault(number, now)
        if not again or again > SAME_SIGNAL:
            raiser.stop(number, frame)

    try:
        # The launcher sets SIG_DFL, see confluo_tools.__main__.launch; other entry points have Python's handler.
        if signal.getsignal(signal.SIGINT) in (signal.SIG_DFL, signal.default_int_handler):
            put(signal.SIGINT, stop)
        if owns_state:
            return before
        put(signal.SIGPIPE, signal.SIG_DFL)  # exit silently, like cat(1)
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) == signal.SIG_DFL:  # keep SIG_IGN of nohup
                put(number, stop)
    except ValueError:
        pass  # not in the main thread: embedded in another program
    return before


@contextmanager
def _bus_errors(prog: str) -> Iterator[None]:
    # Pages of files that cannot be read are explained.
    try:
        from confluo_tools.core.base.log_file import explain_bus_errors, leave_bus_errors
    except ImportError:  # it is not built: the command says so
        yield
        return
    explain_bus_errors(prog, TROUBLE)
    try:
        yield
    finally:
        leave_bus_errors()


def _fill_closed_descriptors() -> None:
    # With `<&-` or `>&-` the next opened file would become stdin or stdout.  Open a descriptor there that
    # fails in the same way: reading from stdin and writing to stdout give EBADF.
    for fd, mode in ((0, os.O_WRONLY), (1, os.O_RDONLY), (2, os.O_RDWR)):
        try:
            os.fstat(fd)
        except OSError:
            opened = os.open(os.devnull, mode)
            if opened != fd:
                os.dup2(opened, fd)
                os.close(opened)
            os.set_inheritable(fd, True)
            if fd == 1 and sys.stdout is None:
                sys.stdout = os.fdopen(1, "w", closefd=False)


def _finish_stdout() -> None:
    """Flush stdout, so that a full disk is reported as an error."""
    if sys.stdout is None:
        return
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as e:
        raise ConfluoError(e.strerror or str(e), where="standard output") from None


def _discard_stdout() -> None:
    # Buffered data must not cause another error when the interpreter exits.
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except (OSError, ValueError) as e:
        if getattr(e, "errno", None) in (errno.EPIPE, *WRITE_ERRORS):
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, 1)
            os.close(null)
