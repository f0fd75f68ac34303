"""Running the commands as users do: real processes, real pipes."""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from command_forks import SCRIPT, ForkedCommand, ForkedCommands, at_start

ROOT = Path(__file__).resolve().parents[2]
SUPPORT = ROOT / "tests" / "support"
BIN = ROOT / "bin"
DATA = ROOT / "examples" / "data"
CAMPUS = DATA / "campus.pcap.gz"
COMMANDS = (
    "confluo-capture",
    "confluo-convert",
    "confluo-query",
    "confluo-index",
    "confluo-info",
    "confluo-config",
    "confluo-snapshot",
    "confluo-serve",
    "confluo-archive",
    "confluo-trace",
    "confluo-vote",
)


_RUNTIME = tempfile.TemporaryDirectory(prefix="confluo-runtime-")  # control sockets; other workers have theirs
NETNS = ["ip", "netns", "exec"]
PLAIN = frozenset({"stdin", "stdout", "stderr", "env", "cwd", "text", "bufsize"})  # of Popen, known to forks as well
SANITIZERS = {k: v for k, v in os.environ.items() if k in ("LD_PRELOAD", "ASAN_OPTIONS", "UBSAN_OPTIONS")}


def environment(**more: str) -> dict[str, str]:
    """What a cron job has, PATH, and what a build with sanitizers needs; nothing of the developer's own settings."""
    kept = {k: os.environ[k] for k in ("PATH", "HOME", "LANG", "CONFLUO_PYTHON") if k in os.environ} | SANITIZERS
    private = {"XDG_RUNTIME_DIR": _RUNTIME.name}
    return {**kept, "XDG_CONFIG_HOME": "/nonexistent", "XDG_CONFIG_DIRS": "/nonexistent", **private, **more}


def listens(process: subprocess.Popen[bytes], number: int, seconds: float = 60.0) -> None:
    """Wait until a process has a handler of its own for a signal: before, it would die of it without a word."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for line in Path(f"/proc/{process.pid}/status").read_text().splitlines():
            if line.startswith("SigCgt:") and int(line.split()[1], 16) >> (number - 1) & 1:
                return
        assert process.poll() is None, process.returncode
        time.sleep(0.01)
    raise AssertionError(f"no handler for signal {number}")


@functools.cache
def _forks(at_start: tuple[tuple[str, str], ...]) -> ForkedCommands:
    forks = ForkedCommands(environment(**dict(at_start)), Path(tempfile.mkdtemp(dir=_RUNTIME.name)) / "bin")
    atexit.register(forks.close)
    return forks


def forks_with(env: Mapping[str, str]) -> ForkedCommands:
    """What forks commands with this environment."""
    return _forks(tuple(sorted(at_start(env).items())))


def popen(words: Sequence[Any], **more: Any) -> subprocess.Popen[Any]:
    """As subprocess.Popen; a command of bin/, also in a namespace of `netns`, is a fork where that is the same.

    The environment of a command is `environment`, unless given.
    """
    space, command = (words[3], words[4:]) if list(words[:3]) == NETNS else ("", words)
    program = Path(os.fsdecode(command[0]))
    if program.parent == BIN:
        env = more["env"] = environment() if more.get("env") is None else more["env"]
        same = PLAIN.issuperset(more) and not any(name.startswith("PYTHON") for name in env)
        if same and program.exists() and forks_with(env).here():
            return ForkedCommand(forks_with(env), command, space, **more)
    return subprocess.Popen(words, **more)


def script(text: str, *words: Any, env: Mapping[str, str] | None = None, **more: Any) -> subprocess.Popen[Any]:
    """Start a process that runs a script in Python, with ``words`` in sys.argv[1:]; a fork, as those of `popen`.

    It can import what is in this checkout and in tests/support.
    """
    use = dict(env) if env is not None else environment()
    forks = forks_with(use)
    if PLAIN.issuperset(more) and forks.here():
        return ForkedCommand(forks, [os.fsdecode(SCRIPT), text, *words], env=use, **more)
    use["PYTHONPATH"] = f"{ROOT}{os.pathsep}{SUPPORT}"
    return subprocess.Popen([sys.executable, "-c", text, *words], env=use, **more)


def completed(
    words: Sequence[Any],
    *,
    input: Any = None,
    capture_output: bool = False,
    check: bool = False,
    timeout: float = 120,
    **more: Any,
) -> subprocess.CompletedProcess[Any]:
    """As subprocess.run, by `popen`."""
    if capture_output:
        more |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    if input is not None:
        more["stdin"] = subprocess.PIPE
    with popen(words, **more) as process:
        try:
            out, err = process.communicate(input, timeout)
        except BaseException:
            process.kill()
            raise
    done = subprocess.CompletedProcess(process.args, process.returncode, out, err)
    if check:
        done.check_returncode()
    return done


def run(
    *argv: str | bytes | os.PathLike[str],
    stdin: bytes | IO[bytes] | int | None = subprocess.DEVNULL,
    env: Mapping[str, str] | None = None,
    cwd: str | os.PathLike[str] | None = None,
    **more: Any,
) -> subprocess.CompletedProcess[bytes]:
    """Run a command of bin/; ``stdin`` bytes are piped in."""
    words: list[Any] = [BIN / os.fsdecode(argv[0]), *argv[1:]]
    given = {"input": stdin} if isinstance(stdin, bytes) else {"stdin": stdin}
    use = dict(env) if env is not None else environment()
    return completed(words, capture_output=True, env=use, cwd=cwd, **given, **more)


def shell(
    text: str,
    *words: str | os.PathLike[str],
    cwd: str | os.PathLike[str] | None = None,
    env: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[bytes]:
    """Run a bash script under pipefail with bin/ on PATH; ``words`` are $1, $2 ..."""
    use = dict(env) if env is not None else environment()
    use["PATH"] = f"{forks_with(use).folder}:{BIN}:{use['PATH']}"
    script: Sequence[Any] = ["bash", "-o", "pipefail", "-c", text, "bash", *words]
    return subprocess.run(script, capture_output=True, stdin=subprocess.DEVNULL, env=use, cwd=cwd, timeout=120)


def on_terminal(
    *argv: str | os.PathLike[str], env: Mapping[str, str] | None = None, columns: int = 80, stdin: Any = None
) -> tuple[int, str]:
    """(status, output) with stdout and stderr on a terminal of ``columns`` columns; stdin too unless given."""
    import fcntl
    import pty
    import struct
    import termios

    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    use = dict(env) if env is not None else environment(TERM="xterm")
    child = subprocess.Popen(
        [BIN / str(argv[0]), *argv[1:]],
        stdin=slave if stdin is None else stdin,
        stdout=slave,
        stderr=slave,
        env=use,
        start_new_session=True,
    )
    os.close(slave)
    out = b""
    while True:
        try:
            piece = os.read(master, 65536)
        except OSError:  # EIO: the other side is closed
            break
        if not piece:
            break
        out += piece
    os.close(master)
    return child.wait(timeout=60), out.decode("utf-8", "replace").replace("\r\n", "\n")


def lines(done: subprocess.CompletedProcess[bytes]) -> list[str]:
    return done.stdout.decode().splitlines()


def executable(path: Path, text: str) -> Path:
    """Make a script, unless it is there: a thread that starts a process while it is written would keep it busy."""
    if not path.exists() or path.read_text() != text:
        new = path.with_name(f".{path.name}.new")
        new.write_text(text)
        new.chmod(0o755)
        new.replace(path)
    return path


def resize(disk: Path, size: str) -> None:
    """Give a small disk another size: 400k, 3m."""
    subprocess.run(["mount", "-o", f"remount,size={size}", disk], check=True)


def fill_disk(disk: Path) -> None:
    """Leave no room at all on a small disk, by a file `ballast`."""
    with open(disk / "ballast", "ab", buffering=0) as f, contextlib.suppress(OSError):
        while True:
            f.write(bytes(4096))


def next_line(stream: Any, seconds: float = 60.0) -> bytes:
    """The next line of an unbuffered or otherwise empty pipe; AssertionError if none comes in time."""
    found = bytearray()
    end = time.monotonic() + seconds
    while not found.endswith(b"\n"):
        ready = select.select([stream], [], [], max(0.0, end - time.monotonic()))[0]
        assert ready, f"no line within {seconds:g} s, only {bytes(found)!r}"
        byte = os.read(stream.fileno(), 1)
        if not byte:
            break
        found += byte
    return bytes(found)
