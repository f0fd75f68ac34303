"""Running a command: the only try/except around it, signals, exit statuses, one-line errors."""

from __future__ import annotations

import errno
import os
import signal
import sys
from collections.abc import Callable, Sequence
from time import monotonic
from types import FrameType
from typing import Any

import typer
from typer.core import TyperCommand, TyperOption

from confluo_tools import FORMAT_VERSION, __version__
from confluo_tools.cli.groups import spread
from confluo_tools.cli.signals import SAME_SIGNAL
from confluo_tools.cli.state import NOTHING, OK, TROUBLE, printable, reset, say, state
from confluo_tools.errors import ConfluoError

# typer keeps its own copy of click private; these two are the public ends of it.
ClickException = typer.BadParameter.__mro__[2]
UsageProblem = typer.BadParameter.__mro__[1]


WRITE_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EBADF, errno.EIO)


class Stopped(BaseException):
    """SIGTERM or SIGHUP arrived: unwind, so that half-written files go away, then exit 128 + signal."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class Command(TyperCommand):
    """A command whose help ends with examples: -h is usage and examples, --help is everything."""

    examples = ""
    manual = ""

    def get_params(self, ctx: Any) -> list[Any]:
        def flag(names: list[str], text: str, action: Callable[[], str]) -> TyperOption:
            def callback(ctx: Any, param: Any, value: bool) -> None:
                if value:
                    print(action())
                    raise typer.Exit(OK)

            return TyperOption(
                param_decls=names, is_flag=True, is_eager=True, expose_value=False, callback=callback, help=text
            )

        return [
            *self.params,
            flag(["-h"], "Show usage and examples.", lambda: self.short_help_text(ctx)),
            flag(["--help"], "Show this help.", ctx.get_help),
            flag(["--version"], "Show the version of the program and of its format.", lambda: version(state.prog)),
        ]

    def get_help_option(self, ctx: Any) -> None:
        return None

    def short_help_text(self, ctx: Any) -> str:
        """Usage, purpose and examples."""
        formatter = ctx.make_formatter()
        self.format_usage(ctx, formatter)
        self.format_help_text(ctx, formatter)
        self.format_epilog(ctx, formatter)
        return str(formatter.getvalue()).rstrip("\n")

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        if self.examples:
            formatter.write("\nExamples:\n")
            for line in self.examples.strip("\n").splitlines():
                formatter.write(f"  {line}\n" if line else "\n")
        formatter.write(f"\nManual: {state.prog.replace(' ', '-')}(1)\n")


class App(typer.Typer):
    """A Typer whose commands are `Command`s.  Made by `command_app`."""

    examples = ""

    def command(self, name: str | None = None, **options: Any) -> Callable[[Any], Any]:
        options.setdefault("cls", type("Command", (Command,), {"examples": self.examples}))
        register = super().command(name, **options)

        def keep(function: Any) -> Any:
            register(spread(function))
            return function

        return keep


def command_app(examples: str = "") -> App:
    """A typer app without the parts that cost start-up time.

    ``examples`` end its help: complete command lines, each with a ``# comment`` line above it.
    """
    app = App(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    app.examples = examples
    return app


def version(prog: str) -> str:
    return f"{prog} {__version__} (format {FORMAT_VERSION})"


def run(app: typer.Typer, prog: str, argv: Sequence[str] | None = None, *, owns_state: bool = False) -> int:
    """Run the command and return its exit status.  Every command's main() is one call of this.

    owns_state=False: a pure filter, which a closed pipe or a signal may end at any time.
    owns_state=True: SIGPIPE stays ignored (writes raise BrokenPipeError, to be caught in the command's body as a
    request to finish) and SIGTERM and SIGHUP are left to the command.
    """
    args = tuple(sys.argv[1:] if argv is None else argv)
    reset(prog, args)
    _fill_closed_descriptors()
    before = _set_signals(owns_state)
    try:
        status = _call(app, prog, args)
        _finish_stdout()
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
        if os.environ.get("CONFLUO_DEBUG"):
            import traceback

            traceback.print_exc()
        say(f"{prog}: {printable(describe(error))}")
        if hasattr(error, "caret"):  # an expression: show the place
            for line in error.caret().split("\n"):
                say(f"  {printable(line)}")
        return int(getattr(error, "exit_status", TROUBLE))
    finally:
        state.over = True
        for number, handler in before.items():
            signal.signal(number, handler)


def _call(app: typer.Typer, prog: str, args: tuple[str, ...]) -> int:
    # Not app(...): typer turns EPIPE into exit 1 and prints usage problems in its own way.
    command: Any = typer.main.get_command(app)
    if os.environ.get("_" + prog.replace("-", "_").upper() + "_COMPLETE"):
        from typer import completion

        completion.completion_init()  # type: ignore[attr-defined]
        command.main(args=list(args), prog_name=prog, standalone_mode=False)
        return OK
    try:
        with command.make_context(prog, list(args)) as context:
            return command.invoke(context) or OK
    except typer.Exit as e:
        return e.exit_code
    except typer.Abort:
        raise KeyboardInterrupt from None


def describe(error: BaseException) -> str:
    """An error in the words of a user, on one line (an expression's caret may add lines)."""
    if isinstance(error, ConfluoError):
        return str(error)
    if isinstance(error, UsageProblem | ClickException):
        near = getattr(error, "possibilities", None)
        text = str(error.message if near else error.format_message()).rstrip(".")  # type: ignore[attr-defined]
        hint = f"did you mean {' or '.join(near)}?" if near else "--help lists the options"
        return f"{text[:1].lower()}{text[1:]}; {hint}"
    if isinstance(error, OSError) and error.strerror:
        where = error.filename if error.filename is not None else ""
        where = os.fsdecode(where) if isinstance(where, bytes) else str(where)
        if not where and error.errno in WRITE_ERRORS:
            where = "standard output"  # whoever opens files of his own names them
        return f"{where}: {error.strerror}" if where else error.strerror
    if isinstance(error, MemoryError):
        return "out of memory"
    if isinstance(error, ImportError):
        return f"{error}; is everything built and installed? (bin/check)"
    return f"internal error: {type(error).__name__}: {error}; CONFLUO_DEBUG=1 shows where"


def _set_signals(owns_state: bool) -> dict[int, Any]:
    before: dict[int, Any] = {}

    def put(number: int, handler: Any) -> None:
        old = signal.signal(number, handler)
        before[number] = signal.SIG_DFL if old is None else old

    first: dict[int, float] = {}

    def stop(number: int, frame: FrameType | None) -> None:
        # timeout(1) signals its child and then the group of both: the second must not cut off our last words.
        if state.over:
            return
        now = monotonic()
        again = now - first.setdefault(number, now)
        if not again or again > SAME_SIGNAL:
            raise KeyboardInterrupt if number == signal.SIGINT else Stopped(number)

    try:
        # The launcher sets SIG_DFL, see confluo_tools.__main__.launch; other ways in have Python's handler.
        if signal.getsignal(signal.SIGINT) in (signal.SIG_DFL, signal.default_int_handler):
            put(signal.SIGINT, stop)
        if owns_state:
            return before
        put(signal.SIGPIPE, signal.SIG_DFL)  # die quietly, like cat(1)
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) == signal.SIG_DFL:  # nohup's SIG_IGN stays
                put(number, stop)
    except ValueError:
        pass  # not in the main thread: somebody embeds us
    return before


def _fill_closed_descriptors() -> None:
    # With `<&-` or `>&-` the next file we open would become stdin or stdout.  Put something there that
    # fails in the same way: reading from stdin, writing to stdout give EBADF.
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
    """A full disk must not look like success."""
    if sys.stdout is None:
        return
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as e:
        raise ConfluoError(e.strerror or str(e), where="standard output") from None


def _discard_stdout() -> None:
    # What is still buffered must not fail once more when the interpreter ends.
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except (OSError, ValueError) as e:
        if getattr(e, "errno", None) in (errno.EPIPE, *WRITE_ERRORS):
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, 1)
            os.close(null)
