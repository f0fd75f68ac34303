"""confluo-serve: answer queries and freezes from another host on stdin and stdout.  Manual: confluo-serve(1).

A client waits at the other end of ssh, and loading typer takes longer than an answer: the command lines that clients
and authorized_keys use are parsed without it.
"""

import os
import sys

from confluo_tools.errors import UsageError
from confluo_tools.stop_signals import StopRaiser

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType
    from typing import Any

    from confluo_tools.cli.runner import App

EXAMPLES = """
# what confluo-query host:/path runs on that host, over ssh
confluo-serve --stdio

# in authorized_keys: this key may read the logs in /data, and nothing else
restrict,command="confluo serve --stdio --root /data" ssh-ed25519 AAAA...
"""
MAX_FREEZE = "10s"
SIGNALS = (1, 2, 15)  # SIGHUP, SIGINT, SIGTERM


class _Stopped(BaseException):
    """One of SIGNALS arrived."""


def start(root: list[str], max_freeze: str = MAX_FREEZE, read_only: bool = False, idle: str | None = None) -> int:
    """Serve until the client hangs up."""
    from confluo_tools.remote.server import QueryServer

    if os.isatty(0):
        raise UsageError("standard input is a terminal", hint="confluo-query HOST:/PATH runs it over ssh")
    for folder in root:
        if not os.path.isdir(folder):
            raise UsageError("is not a folder", where=f"--root {folder}")
    longest = 10_000_000_000
    if max_freeze != MAX_FREEZE:
        longest = _duration(max_freeze)
        if not 0 < longest <= 60_000_000_000:
            raise UsageError("is out of range", where=f"--max-freeze {max_freeze}", hint="more than 0, at most 60s")
    pause = _duration(idle) / 1e9 if idle is not None else None
    if pause is not None and pause <= 0:
        raise UsageError("is out of range", where=f"--idle {idle}", hint="more than 0")
    QueryServer(0, 1, root, max_freeze=longest, read_only=read_only, idle=pause).run()
    return 0


def _duration(text: str) -> int:
    from confluo_tools import units

    return units.duration(text)


def plain(words: list[str]) -> "dict[str, Any] | None":
    """The arguments of `start`; None: the words need the full parser."""
    out: dict[str, Any] = {"root": []}
    stdio, left = False, list(words)
    while left:
        option, equals, value = left.pop(0).partition("=")
        if option in ("--root", "--max-freeze", "--idle"):
            if not equals:
                if not left:
                    return None
                value = left.pop(0)
            if value.startswith("-"):
                return None
            if option == "--root":
                out["root"].append(value)
            else:
                out[option[2:].replace("-", "_")] = value
        elif equals or option not in ("--stdio", "--read-only"):
            return None
        elif option == "--stdio":
            stdio = True
        else:
            out["read_only"] = True
    return out if stdio else None


def _plainly(words: "dict[str, Any]") -> int:
    import _signal  # type: ignore[import-not-found]  # signal would load enum

    def stop(number: int, frame: "FrameType | None") -> None:
        for one in SIGNALS:
            _signal.signal(one, _signal.SIG_IGN)  # thaw frozen logs first
        raiser.stop(number, frame)

    raiser = StopRaiser(_Stopped)
    before = {}
    for number in SIGNALS:
        known = _signal.getsignal(number)
        if known in (_signal.SIG_DFL, _signal.default_int_handler):  # nohup's SIG_IGN stays
            before[number] = known
            _signal.signal(number, stop)
    try:
        return start(**words)
    except _Stopped as e:
        return 128 + int(e.args[0])
    except Exception as e:
        if os.environ.get("CONFLUO_DEBUG"):
            raise
        from confluo_tools import cli

        cli.say(f"confluo-serve: {cli.printable(cli.describe(e))}")
        return int(getattr(e, "exit_status", cli.TROUBLE))
    finally:
        raiser.end()
        for number, known in before.items():
            _signal.signal(number, known)


def typed_app() -> "App":
    """The command with all its options, as other commands have it from the start."""
    from typing import Annotated

    from confluo_tools import cli
    from confluo_tools.cli.options import option

    app = cli.command_app(EXAMPLES)

    @app.command()
    def serve(
        stdio: Annotated[bool, option("--stdio", help="Serve on standard input and output.")] = False,
        root: Annotated[
            list[str] | None, option("--root", metavar="DIR", help="Serve only logs inside DIR (repeatable).")
        ] = None,
        max_freeze: Annotated[
            str, option("--max-freeze", metavar="TIME", help="Limit freezes to TIME (10s).")
        ] = MAX_FREEZE,
        read_only: Annotated[
            bool, option("--read-only", help="Answer queries; refuse freezes, changes of views, removals.")
        ] = False,
        idle: Annotated[str | None, option("--idle", metavar="TIME", help="Exit after TIME without a request.")] = None,
        quiet: cli.Quiet = False,
    ) -> int:
        """Serve logs to commands on another host: confluo-query, -snapshot, -monitor, -index, -archive.

        ssh starts it.  It exits at the end of standard input, and thaws what it froze.
        """
        if not stdio:
            raise UsageError("--stdio is missing", hint="ssh runs 'confluo serve --stdio'")
        return start(root or [], max_freeze, read_only, idle)

    return app


def _typed(argv: list[str] | None) -> int:
    from confluo_tools import cli

    return cli.run(typed_app(), "confluo-serve", argv)


def main(argv: list[str] | None = None) -> int:
    words = plain(sys.argv[1:] if argv is None else argv)
    try:
        for fd in (0, 1, 2):
            os.fstat(fd)
    except OSError:
        words = None
    return _typed(argv) if words is None else _plainly(words)
