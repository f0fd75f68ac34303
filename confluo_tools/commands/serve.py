"""confluo-serve: answer questions and freezes from another host on stdin and stdout.  Manual: confluo-serve(1)."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from confluo_tools import cli
from confluo_tools.errors import UsageError

app = cli.command_app(
    """
# what confluo-query host:/path runs on that host, over ssh
confluo-serve --stdio

# in authorized_keys: this key may ask for the logs in /data, and nothing else
restrict,command="confluo serve --stdio --root /data" ssh-ed25519 AAAA...
"""
)


def _option(*names: str, help: str, **more: Any) -> Any:
    return typer.Option(*names, help=help, show_default=False, **more)


@app.command()
def serve(
    stdio: Annotated[bool, _option("--stdio", help="Speak on standard input and output.")] = False,
    root: Annotated[
        list[str] | None, _option("--root", metavar="DIR", help="Only logs inside DIR (repeatable).")
    ] = None,
    max_freeze: Annotated[
        str, _option("--max-freeze", metavar="TIME", help="No freeze is longer than TIME (10s).")
    ] = "10s",
    read_only: Annotated[bool, _option("--read-only", help="Answer questions; freeze nothing.")] = False,
    idle: Annotated[
        str | None, _option("--idle", metavar="TIME", help="End when nothing was asked for so long.")
    ] = None,
    quiet: cli.Quiet = False,
) -> int:
    """Answer a confluo-query or confluo-snapshot that runs on another host.

    It is started by ssh, not by people.  It ends when its standard input does, and thaws what it froze.
    """
    if not stdio:
        raise UsageError("--stdio is the only way it speaks", hint="ssh runs 'confluo serve --stdio'")
    import os

    from confluo_tools import units
    from confluo_tools.remote.server import Server

    if cli.is_terminal(0):
        raise UsageError("a terminal does not speak its protocol", hint="confluo-query HOST:/PATH runs it over ssh")
    for folder in root or []:
        if not os.path.isdir(folder):
            raise UsageError("is not a folder", where=f"--root {folder}")
    longest = units.duration(max_freeze)
    if not 0 < longest <= 60_000_000_000:
        raise UsageError("is not possible", where=f"--max-freeze {max_freeze}", hint="more than 0, at most 60s")
    pause = units.duration(idle) / 1e9 if idle is not None else None
    if pause is not None and pause <= 0:
        raise UsageError("is not possible", where=f"--idle {idle}", hint="more than 0")
    Server(0, 1, root or [], max_freeze=longest, read_only=read_only, idle=pause).run()
    return cli.OK


def main(argv: list[str] | None = None) -> int:
    return cli.run(app, "confluo-serve", argv)
