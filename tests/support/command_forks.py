"""Commands as forks of a process that has loaded what they all load: loading it was a third of the time of all tests.

A fork is a process of its own, with its own arguments, environment, directory, streams, signals and status, and it
ends as a command ends.  What starting does is tested by the other ways to run a command: `shell`, `on_terminal`,
Popen, and the narrated examples.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import io
import os
import select
import selectors
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import IO, Any, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
LOADED = (
    "json",
    "queue",
    "rich.table",
    "typer",
    "yaml",
    "confluo_tools.__main__",
    "confluo_tools.cli",
    "confluo_tools.commands.convert",
    "confluo_tools.commands.index",
    "confluo_tools.commands.info",
    "confluo_tools.commands.query",
    "confluo_tools.config",
    "confluo_tools.core.query.predicate",
    "confluo_tools.core.query.rollup",
    "confluo_tools.core.text.text_writer",
    "confluo_tools.expr",
    "confluo_tools.expr.aggregates",
    "confluo_tools.formats.bytestream",
    "confluo_tools.formats.detect",
    "confluo_tools.formats.output_file",
    "confluo_tools.formats.pcap.reader",
    "confluo_tools.formats.text",
    "confluo_tools.formats.writers",
    "confluo_tools.guarded_yaml",
    "confluo_tools.inputs.open",
    "confluo_tools.multilog",
    "confluo_tools.multilog.query.aggregation",
    "confluo_tools.remote.request",
    "confluo_tools.schema.choose",
)
# A command with any other variable starts as usual: some are read when Python or a module starts.
PLAIN = frozenset(["PATH", "HOME", "LANG", "CONFLUO_PYTHON", "XDG_CONFIG_HOME", "XDG_CONFIG_DIRS", "XDG_RUNTIME_DIR"])
NUMBER = struct.Struct("<i")


class Request(NamedTuple):
    """What to run: text as bytes, because names may be any bytes."""

    directory: bytes
    words: list[bytes]
    environment: dict[bytes, bytes]

    def packed(self) -> bytes:
        parts = [self.directory, b"%d" % len(self.words), *self.words]
        parts += [k + b"=" + v for k, v in self.environment.items()]
        text = b"\0".join(parts)
        return NUMBER.pack(len(text)) + text

    @classmethod
    def unpacked(cls, text: bytes) -> Request:
        directory, count, *rest = text.split(b"\0")
        words, variables = rest[: int(count)], rest[int(count) :]
        return cls(directory, words, dict(v.split(b"=", 1) for v in variables))  # type: ignore[misc]


def spaces() -> tuple[int, ...]:
    """The namespaces of this thread."""
    return tuple(os.stat(f"/proc/thread-self/ns/{name}").st_ino for name in ("net", "mnt", "user", "pid"))


# ---------------------------------------------------------------- the side of the tests


class ForkedCommands:
    """Runs commands of bin/ as forks of one process, which ends with this one.  Any thread may use it."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._fixed = {k: environment.get(k) for k in ("LANG", "CONFLUO_PYTHON")}
        self._spaces = spaces()
        self._lock = threading.Lock()
        self._socket, theirs = socket.socketpair()
        python = environment.get("CONFLUO_PYTHON") or str(ROOT / ".venv" / "bin" / "python")
        text = "import sys; sys.path[:0] = sys.argv[1:3]; from command_forks import serve; sys.exit(serve())"
        with theirs:
            self._process = subprocess.Popen(
                [python, "-P", "-c", text, ROOT, Path(__file__).parent, str(theirs.fileno())],
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )

    def close(self) -> None:
        self._socket.close()
        self._process.wait()

    def takes(self, environment: Mapping[str, str]) -> bool:
        """Whether a command with this environment, started here, would be the same as a fork."""
        if not PLAIN.issuperset(environment) or any(environment.get(k) != v for k, v in self._fixed.items()):
            return False
        return self._spaces == spaces() and self._process.poll() is None

    def run(
        self,
        words: Sequence[str | bytes | os.PathLike[str]],
        stdin: bytes | IO[bytes] | int | None,
        environment: Mapping[str, str],
        cwd: str | os.PathLike[str] | None,
        timeout: float,
    ) -> subprocess.CompletedProcess[bytes]:
        """As subprocess.run with `capture_output`."""
        request = Request(
            os.fsencode(os.path.abspath(cwd or os.getcwd())),
            [os.fsencode(w) for w in words],
            {os.fsencode(k): os.fsencode(v) for k, v in environment.items()},
        )
        with contextlib.ExitStack() as stack:
            answers, theirs = socket.socketpair()
            stack.enter_context(answers)
            pipes = [os.pipe() for _ in range(3)]
            ours = [open(pipes[0][1], "wb", buffering=0), *(open(p[0], "rb", buffering=0) for p in pipes[1:])]
            for file in ours:
                stack.enter_context(file)
            given = [pipes[0][0], pipes[1][1], pipes[2][1]]
            if not isinstance(stdin, bytes):
                ours[0].close()
                number = stdin if isinstance(stdin, int) else 0 if stdin is None else stdin.fileno()
                with open(os.devnull, "rb") as nothing:
                    os.dup2(nothing.fileno() if number == subprocess.DEVNULL else number, given[0])
            try:
                with self._lock:
                    self._socket.sendall(request.packed())
                    socket.send_fds(self._socket, [b"x"], [*given, theirs.fileno()])
            finally:
                theirs.close()
                for fd in given:
                    os.close(fd)
            (pid,) = NUMBER.unpack(answers.recv(NUMBER.size, socket.MSG_WAITALL))
            out, err = self._exchange(ours, stdin if isinstance(stdin, bytes) else b"", pid, words, timeout)
            (status,) = NUMBER.unpack(answers.recv(NUMBER.size, socket.MSG_WAITALL))
        return subprocess.CompletedProcess(list(words), status, out, err)

    @staticmethod
    def _exchange(ours: list[Any], data: bytes, pid: int, words: Any, timeout: float) -> tuple[bytes, bytes]:
        end = time.monotonic() + timeout
        found = {ours[1].fileno(): bytearray(), ours[2].fileno(): bytearray()}
        out, err = found.values()
        left = memoryview(data)
        with selectors.DefaultSelector() as ready:
            for file in ours[1:]:
                ready.register(file, selectors.EVENT_READ)
            if left:
                os.set_blocking(ours[0].fileno(), False)
                ready.register(ours[0], selectors.EVENT_WRITE)
            else:
                ours[0].close()
            while ready.get_map():
                some = ready.select(max(0.0, end - time.monotonic()))
                if not some:
                    os.kill(pid, signal.SIGKILL)
                    raise subprocess.TimeoutExpired(words, timeout, bytes(out), bytes(err))
                for key, _ in some:
                    file: Any = key.fileobj
                    if file is ours[0]:
                        try:
                            left = left[os.write(file.fileno(), left[: 1 << 16]) :]
                        except BrokenPipeError:
                            left = left[:0]
                        if left:
                            continue
                    else:
                        piece = os.read(file.fileno(), 1 << 16)
                        found[file.fileno()] += piece
                        if piece:
                            continue
                    ready.unregister(file)
                    file.close()
        return bytes(out), bytes(err)


# ---------------------------------------------------------------- the process that forks


def serve() -> int:
    """Fork a command for each request until the other side has gone.  In a fork, return the status of the command."""
    for name in LOADED:
        import_module(name)
    gc.collect()
    gc.freeze()
    number = int(sys.argv[3])
    control = socket.socket(fileno=number)
    ready = select.poll()
    ready.register(control, select.POLLIN)
    answers: dict[int, tuple[int, int]] = {}  # descriptor of a process: its number, and where its status goes
    while True:
        for fd, _ in ready.poll():
            if fd != number:
                ready.unregister(fd)
                pid, answer = answers.pop(fd)
                status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                with contextlib.suppress(OSError):
                    os.write(answer, NUMBER.pack(status))
                os.close(answer)
                os.close(fd)
                continue
            size = control.recv(NUMBER.size, socket.MSG_WAITALL)
            if len(size) < NUMBER.size:
                return 0
            request = Request.unpacked(control.recv(NUMBER.unpack(size)[0], socket.MSG_WAITALL))
            fds = socket.recv_fds(control, 1, 4)[1]
            pid = os.fork()
            if pid == 0:
                return command(request, fds, [number, *(a for _, a in answers.values()), *answers])
            process = os.pidfd_open(pid)
            answers[process] = pid, fds[3]
            ready.register(process, select.POLLIN)
            os.write(fds[3], NUMBER.pack(pid))
            for fd in fds[:3]:
                os.close(fd)


def command(request: Request, fds: list[int], closed: list[int]) -> int:
    """Become a command: the same state as after the start of Python."""
    for place, fd in enumerate(fds[:3]):
        os.dup2(fd, place)
    for fd in {*closed, *fds}:
        os.close(fd)
    sys.stdin, sys.stdout, sys.stderr = (stream(place) for place in range(3))
    sys.__stdin__, sys.__stdout__, sys.__stderr__ = sys.stdin, sys.stdout, sys.stderr  # type: ignore[misc]
    os.chdir(request.directory)
    os.environb.clear()
    os.environb.update(request.environment)
    time.tzset()
    sys.argv = [os.fsdecode(word) for word in request.words]
    sys.path[:2] = [str(ROOT)]
    from confluo_tools.__main__ import launch

    return ended(launch())


def ended(status: int) -> int:
    """End as Python does, but clear no modules: their pages are shared with the process that forked."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    try:
        for file in (sys.stdout, sys.stderr):
            file.flush()
    except (OSError, ValueError):
        return status  # Python tries again, reports it and changes the status
    os._exit(status)


def stream(place: int) -> io.TextIOWrapper:
    """A standard stream as Python makes it at its start."""
    before = (sys.__stdin__, sys.__stdout__, sys.__stderr__)[place]
    mode = "w" if place else "r"
    made = open(
        place, mode, encoding=before.encoding, errors=before.errors, newline="\n" if place else None, closefd=False
    )
    if place == 2:
        made.reconfigure(line_buffering=True)
    made.mode = mode  # type: ignore[misc]
    return made
