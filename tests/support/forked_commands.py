"""Many runs of commands in one child process: no start-up for each, and a deadline for each."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterable, Sequence
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

from confluo_tools.__main__ import module_of

DEADLINE = 30  # s for one run


class Ran(NamedTuple):
    """``status``: 'endless' when the run did not end in time."""

    argv: tuple[str, ...]
    status: int | str
    out: str
    err: str


class _Endless(BaseException):
    pass


def run_forked(commands: Iterable[Sequence[str]], folder: Path) -> list[Ran]:
    """Run each argv ("query", "x.pcap", ...) in one forked child, in ``folder``; standard input is empty."""
    every = [tuple(map(str, argv)) for argv in commands]
    for name in {argv[0] for argv in every}:
        import_module(module_of(name))  # once, not in each child
    report = folder / "forked.json"
    child = os.fork()
    if child == 0:
        try:
            os.chdir(folder)
            report.write_text(json.dumps([_one(argv) for argv in every]))
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    return [Ran(argv, *said) for argv, said in zip(every, json.loads(report.read_text()), strict=True)]


def _one(argv: tuple[str, ...]) -> tuple[int | str, str, str]:
    def late(number: int, frame: object) -> None:
        raise _Endless

    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for number, name in ((1, "out"), (2, "err")):
        file = os.open(name, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(file, number)
        os.close(file)
    sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)
    signal.signal(signal.SIGALRM, late)
    signal.alarm(DEADLINE)
    status: int | str
    try:
        status = import_module(module_of(argv[0])).main(list(argv[1:]))
    except _Endless:
        status = "endless"
    except BaseException as e:
        status = repr(e)
    finally:
        signal.alarm(0)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    return status, *(Path(name).read_text(errors="replace") for name in ("out", "err"))
