"""Commands as forks of a process that has loaded what they all load: loading it was a third of the time of all tests.

Commands that use Arrow are forks of a second process, which has loaded that, too; it starts with the first of them.

A fork is a process of its own, with its own arguments, environment, directory, streams, signals and status, and it
ends as a command ends.  What starting does is tested where commands are started: by `on_terminal` and Popen.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import io
import os
import re
import select
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
from types import ModuleType
from typing import Any, NamedTuple

from command_client import ENTERED, packed, state

ROOT = Path(__file__).resolve().parents[2]
# What takes long and what many commands load; no library that starts threads.
LOADED = (
    "concurrent.futures",
    "confluent_kafka.admin",
    "csv",
    "hashlib",
    "http.client",
    "json",
    "queue",
    "rich.table",
    "secrets",
    "shlex",
    "ssl",
    "string",
    "tempfile",
    "typer",
    "yaml",
    "confluo_tools.__main__",
    "confluo_tools.capture.command",
    "confluo_tools.cli",
    "confluo_tools.cli.verbs",
    "confluo_tools.commands.archive",
    "confluo_tools.commands.config",
    "confluo_tools.commands.convert",
    "confluo_tools.commands.flows",
    "confluo_tools.commands.index",
    "confluo_tools.commands.info",
    "confluo_tools.commands.query",
    "confluo_tools.commands.serve",
    "confluo_tools.commands.snapshot",
    "confluo_tools.commands.topology",
    "confluo_tools.config",
    "confluo_tools.core.flows.conn_table",
    "confluo_tools.core.pingmesh.probe_simulator",
    "confluo_tools.core.pingmesh.probe_tally",
    "confluo_tools.core.query.predicate",
    "confluo_tools.core.query.rollup",
    "confluo_tools.core.text.text_writer",
    "confluo_tools.engine.rollup_partial",
    "confluo_tools.engine.rows_partial",
    "confluo_tools.engine.worker",
    "confluo_tools.expr",
    "confluo_tools.expr.aggregates",
    "confluo_tools.expr.group_keys",
    "confluo_tools.formats.arrow",
    "confluo_tools.formats.block_builder",
    "confluo_tools.formats.bytestream",
    "confluo_tools.formats.detect",
    "confluo_tools.formats.gather",
    "confluo_tools.formats.merge",
    "confluo_tools.formats.output_file",
    "confluo_tools.formats.parquet_columns",
    "confluo_tools.formats.pcap.reader",
    "confluo_tools.formats.table",
    "confluo_tools.formats.text",
    "confluo_tools.formats.writers",
    "confluo_tools.guarded_yaml",
    "confluo_tools.inputs.grouped_rows",
    "confluo_tools.inputs.named_fields",
    "confluo_tools.inputs.open",
    "confluo_tools.inputs.selection",
    "confluo_tools.kafka.client",
    "confluo_tools.kafka.topic_state",
    "confluo_tools.monitor.command",
    "confluo_tools.multilog",
    "confluo_tools.multilog.archive.parquet_parts",
    "confluo_tools.multilog.capture_statistics",
    "confluo_tools.multilog.open_log",
    "confluo_tools.multilog.query.aggregation",
    "confluo_tools.multilog.query.flow_records",
    "confluo_tools.multilog.query.group_spill",
    "confluo_tools.multilog.query.plan",
    "confluo_tools.multilog.query.time_order",
    "confluo_tools.multilog.retain",
    "confluo_tools.multilog.source_captures",
    "confluo_tools.multilog.summary",
    "confluo_tools.multilog.verify",
    "confluo_tools.multilog.views",
    "confluo_tools.network.fat_tree",
    "confluo_tools.network.fleet",
    "confluo_tools.network.topology_file",
    "confluo_tools.pingmesh.agent.controller_client",
    "confluo_tools.pingmesh.analysis.silent_tally",
    "confluo_tools.pingmesh.command",
    "confluo_tools.pingmesh.simulate.simulation",
    "confluo_tools.remote.connect",
    "confluo_tools.remote.reader",
    "confluo_tools.remote.request",
    "confluo_tools.remote.server",
    "confluo_tools.replay.command",
    "confluo_tools.replay.engine.replay_command",
    "confluo_tools.replay.record.attach_command",
    "confluo_tools.replay.record.command",
    "confluo_tools.replay.record.run_command",
    "confluo_tools.retx.command",
    "confluo_tools.schema.choose",
    "confluo_tools.stream.command",
    "confluo_tools.top.command",
    "confluo_tools.trace.command",
    "confluo_tools.verbs",
    "confluo_tools.vote.analyse_command",
    "confluo_tools.vote.command",
    "confluo_tools.vote.model_vote",
    "confluo_tools.vote.models",
    "confluo_tools.vote.result_rows",
)
# What commands load that read or write Arrow, Parquet, archives or SQL: they are forks of a second process.
ARROW = (
    "pyarrow.compute",
    "pyarrow.parquet",
    "duckdb",
    "confluo_tools.formats.arrow_enums",
    "confluo_tools.formats.parquet",
    "confluo_tools.sql.command",
    "confluo_tools.sql.database",
)
VERBS = ("pingmesh", "replay", "stream", "vote")  # commands with verbs: all of these, too
NEEDS_ARROW = re.compile(rb"arrow|parquet|feather|archive|sql")
SCRIPT = b"python"  # as the name of a command: its first argument is the text of a script; also of that process
# Variables that are read when Python or a module starts: all forks of a process have its values.
AT_START = re.compile("PYTHON|CONFLUO_PYTHON$|LD_|LC_|LANG|MALLOC_|_?TYPER_|FORCE_COLOR$|.*SAN_OPTIONS$")
NUMBER = struct.Struct("<i")
CLONE_NEWNET, CLONE_NEWNS, MS_REC, MS_SLAVE, MNT_DETACH = 0x40000000, 0x20000, 0x4000, 0x80000, 2


class Request(NamedTuple):
    """What to run: text as bytes, because names may be any bytes."""

    directory: bytes
    words: list[bytes]
    environment: dict[bytes, bytes]
    space: bytes  # network namespace; empty: that of the forks
    state: bytes  # of a process that may not be as the forks are; empty: it is

    @classmethod
    def unpacked(cls, text: bytes) -> Request:
        directory, space, state, count, *rest = text.split(b"\0")
        words, variables = rest[: int(count)], rest[int(count) :]
        return cls(directory, words, dict(v.split(b"=", 1) for v in variables), space, state)  # type: ignore[misc]


def spaces() -> tuple[int, ...]:
    """The namespaces of this thread."""
    return tuple(os.stat(f"/proc/thread-self/ns/{name}").st_ino for name in ("net", "mnt", "user", "pid"))


# ---------------------------------------------------------------- the side of the tests


def at_start(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if AT_START.match(name)}


class ForkedCommand(subprocess.Popen[Any]):
    """A command of bin/ that is a fork: all of Popen but how it starts and is waited for, in private methods."""

    def __init__(self, forks: ForkedCommands, words: Sequence[Any], space: str = "", **more: Any) -> None:
        self._forks = forks
        self._space = space
        self._answers = -1
        super().__init__(words, **more)

    def _execute_child(self, args: Any, *rest: Any) -> None:
        cwd, env = rest[4:6]
        pipes = rest[9:15]
        given = [fd if fd != -1 else standard for standard, fd in enumerate((pipes[0], pipes[3], pipes[5]))]
        request = packed(
            os.fsencode(os.path.abspath(cwd or os.getcwd())),
            [os.fsencode(word) for word in args],
            {os.fsencode(k): os.fsencode(v) for k, v in env.items()},
            os.fsencode(self._space),
        )
        self._answers, theirs = os.pipe()
        try:
            self._forks.send(request, [*given, theirs])
        finally:
            os.close(theirs)
        (self.pid,) = NUMBER.unpack(os.read(self._answers, NUMBER.size))
        self._child_created = True
        self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]

    def _internal_poll(self, **_: Any) -> int | None:
        self._ended(0)
        return self.returncode

    def _wait(self, timeout: float | None) -> int:
        if not self._ended(timeout):
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        return self.returncode

    def _ended(self, timeout: float | None) -> bool:
        """Wait for the status, which comes when it has ended."""
        lock = self._waitpid_lock  # type: ignore[attr-defined]
        if lock.acquire(timeout != 0):  # else another thread waits
            try:
                ready = select.poll()
                ready.register(self._answers, select.POLLIN)
                if self.returncode is None and ready.poll(None if timeout is None else timeout * 1000):
                    (self.returncode,) = NUMBER.unpack(os.read(self._answers, NUMBER.size))
                    os.close(self._answers)
            finally:
                lock.release()
        return self.returncode is not None


class ForkedCommands:
    """Runs commands of bin/ as forks of one process, which ends with this one.  Any thread may use it.

    ``folder``: a new one; shells with it as the first of PATH run commands as forks.
    """

    def __init__(self, environment: Mapping[str, str], folder: Path) -> None:
        self.folder = folder
        self._spaces = spaces()
        self._lock = threading.Lock()
        self._socket, theirs = socket.socketpair()
        listener = socket.socket(socket.AF_UNIX)
        python = environment.get("CONFLUO_PYTHON") or str(ROOT / ".venv" / "bin" / "python")
        text = "import sys; sys.path[:0] = sys.argv[1:3]; from command_forks import serve; sys.exit(serve())"
        folder.mkdir()
        with theirs, listener:
            listener.bind(str(folder / "forks"))
            listener.listen(64)
            given = [theirs.fileno(), listener.fileno()]
            self._process = subprocess.Popen(
                [python, "-P", "-c", text, ROOT, Path(__file__).parent, *map(str, given)],
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=given,
            )
        client = folder / "client"
        client.write_text(f"#!{python} -IS\n" + Path(__file__).with_name("command_client.py").read_text())
        client.chmod(0o755)
        for program in (ROOT / "bin").glob("confluo*"):
            (folder / program.name).symlink_to(client.name)
        (folder / "bin").symlink_to(ROOT / "bin")

    def close(self) -> None:
        self._socket.close()
        self._process.wait()

    def here(self) -> bool:
        """Whether a command that this thread starts would be in the namespaces of the forks."""
        return spaces() == self._spaces and self._process.poll() is None

    def send(self, request: bytes, descriptors: list[int]) -> None:
        with self._lock:
            self._socket.sendall(request)
            socket.send_fds(self._socket, [b"x"], descriptors)


# ---------------------------------------------------------------- the process that forks


def load(names: Sequence[str]) -> None:
    """Load modules, and make what each command of theirs would make first: its schemas, the parser of its options."""
    from confluo_tools.hidden_numpy import hidden

    with hidden():  # as it is while a command runs
        for name in names:
            with contextlib.suppress(ModuleNotFoundError):  # where an extra is not installed, the command says so
                import_module(name)
    from confluo_tools.cli.runner import App
    from confluo_tools.schema import builtin, builtin_names

    for name in builtin_names():
        builtin(name)
    for module in [*sys.modules.values()]:
        app = vars(module).get("app") if isinstance(module, ModuleType) else None
        if isinstance(app, App):
            assert app.parser
    gc.collect()
    gc.freeze()


def serve() -> int:
    """Fork a command for each request until the tests have ended.  In a fork, return the status of the command."""
    verbs = (f"confluo_tools.{name}" for name in VERBS)
    load([*LOADED, *(f"{p}.{v.module}" for p in verbs for v in import_module(f"{p}.command").VERBS)])
    control, listener = (socket.socket(fileno=int(word)) for word in sys.argv[3:5])
    return fork_commands(control, listener)


def fork_commands(control: socket.socket, listener: socket.socket | None) -> int:
    """As `serve`, for the requests of a socket, and of the clients of a listener.

    The process with a listener lets another one, which has loaded `ARROW`, fork the commands that need this.
    """
    connections = {control.fileno(): control}
    answers: dict[int, tuple[int, int]] = {}  # descriptor of a process: its number, and where its status goes
    clients: dict[int, int] = {}  # where the status goes: the process, as long as its client waits for it
    arrow: socket.socket | None = None
    ready = select.poll()
    for one in filter(None, (control, listener)):
        ready.register(one, select.POLLIN)
    kept = state(), at_start(os.environ)
    while True:
        for fd, _ in ready.poll():
            if fd in answers:
                pid, answer = answers.pop(fd)
                clients.pop(answer, None)
                for one in (fd, answer):
                    with contextlib.suppress(KeyError):
                        ready.unregister(one)
                report(fd, pid, answer)
            elif fd in clients:  # killed: the command would have been, too
                os.kill(clients.pop(fd), signal.SIGKILL)
                ready.unregister(fd)
            elif listener and fd == listener.fileno():
                client = listener.accept()[0]
                connections[client.fileno()] = client
                ready.register(client, select.POLLIN)
            elif fd not in connections:
                pass  # of a command that ended in this round
            elif (received := receive(connections[fd])) is None:
                if fd == control.fileno():
                    os._exit(0)
                ready.unregister(fd)
                connections.pop(fd).close()
            else:
                text, fds = received
                request = Request.unpacked(text)
                given = {os.fsdecode(k): os.fsdecode(v) for k, v in request.environment.items()}
                if request.state and (request.state, at_start(given)) != kept:
                    with contextlib.suppress(BrokenPipeError):
                        os.write(fds[3], NUMBER.pack(-1))
                    os.close(fds[3])
                elif listener and (request.words[0] == SCRIPT or any(map(NEEDS_ARROW.search, request.words))):
                    if arrow is None:
                        arrow, theirs = socket.socketpair()
                        if os.fork() == 0:
                            ours = [listener, arrow, *connections.values()]
                            for one in [*ours, *fds, *(a for _, a in answers.values()), *answers]:
                                os.close(one if isinstance(one, int) else one.detach())
                            load(ARROW)
                            return fork_commands(theirs, None)
                        theirs.close()
                    arrow.sendall(NUMBER.pack(len(text)) + text)
                    socket.send_fds(arrow, [b"x"], fds)
                    os.close(fds[3])
                elif (pid := os.fork()) == 0:
                    sockets = [one.fileno() for one in (listener, arrow) if one]
                    return command(request, fds, [*sockets, *connections, *(a for _, a in answers.values()), *answers])
                else:
                    process = os.pidfd_open(pid)
                    answers[process] = pid, fds[3]
                    ready.register(process, select.POLLIN)
                    with contextlib.suppress(BrokenPipeError):
                        os.write(fds[3], NUMBER.pack(pid))
                    clients[fds[3]] = pid
                    ready.register(fds[3], 0)  # an error: the other end is closed
                for given_fd in fds[:3] + fds[4:]:
                    os.close(given_fd)


def receive(connection: socket.socket) -> tuple[bytes, list[int]] | None:
    """The text of a request, with descriptors; None: the other side has gone.

    Descriptors: standard streams, where number and status go, and of `command_client` the namespaces to enter.
    """
    try:
        size = connection.recv(NUMBER.size, socket.MSG_WAITALL)
        if len(size) < NUMBER.size:
            return None
        text = connection.recv(NUMBER.unpack(size)[0], socket.MSG_WAITALL)
        fds = socket.recv_fds(connection, 1, 4 + len(ENTERED))[1]
    except ConnectionError:
        return None
    if len(fds) < 4:  # killed while it sent the request
        for fd in fds:
            os.close(fd)
        return None
    return text, fds


def report(process: int, pid: int, answer: int) -> None:
    """A command has ended."""
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    with contextlib.suppress(OSError):
        os.write(answer, NUMBER.pack(status))
    os.close(answer)
    os.close(process)


def command(request: Request, fds: list[int], closed: list[int]) -> int:
    """Become a command: the same state as after the start of Python."""
    for place, fd in enumerate(fds[:3]):
        os.dup2(fd, place)
    for name, fd in zip(ENTERED, fds[4:], strict=False):
        if os.fstat(fd).st_ino != os.stat(f"/proc/self/ns/{name}").st_ino:
            entered(ctypes.CDLL(None, use_errno=True).setns(fd, 0))
    for fd in {*closed, *fds}:
        os.close(fd)
    sys.stdin, sys.stdout, sys.stderr = (stream(place) for place in range(3))
    sys.__stdin__, sys.__stdout__, sys.__stderr__ = sys.stdin, sys.stdout, sys.stderr  # type: ignore[misc]
    if request.space:
        enter(request.space)
    os.chdir(request.directory)
    os.environb.clear()
    os.environb.update(request.environment)
    time.tzset()
    sys.argv = [os.fsdecode(word) for word in request.words]
    if request.words[0] == SCRIPT:
        return ended(script(sys.argv.pop(1)))
    sys.path[:2] = [str(ROOT)]
    from confluo_tools.__main__ import launch

    return ended(launch())


def script(text: str) -> int:
    """Run a script as Python does.  It can import what is here and in tests/support."""
    main = ModuleType("__main__")
    sys.modules["__main__"] = main
    exec(compile(text, "<script>", "exec"), vars(main))
    return 0


def enter(space: bytes) -> None:
    """Into a network namespace as ip-netns(8) does: with the /sys of its interfaces."""
    libc = ctypes.CDLL(None, use_errno=True)
    with open(b"/run/netns/" + space, "rb") as file:
        entered(libc.setns(file.fileno(), CLONE_NEWNET))
    entered(libc.unshare(CLONE_NEWNS))
    entered(libc.mount(b"", b"/", b"none", MS_SLAVE | MS_REC, None))
    entered(libc.umount2(b"/sys", MNT_DETACH))
    entered(libc.mount(space, b"/sys", b"sysfs", 0, None))


def entered(status: int) -> None:
    if status:
        raise OSError(ctypes.get_errno(), "cannot enter a namespace")


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
    binary = open(place, "wb" if place else "rb", buffering=0 if before.write_through else -1, closefd=False)
    made = io.TextIOWrapper(
        binary,
        encoding=before.encoding,
        errors=before.errors,
        newline="\n" if place else None,
        line_buffering=place == 2 or binary.isatty(),
        write_through=before.write_through,
    )
    made.mode = "w" if place else "r"  # type: ignore[attr-defined]
    return made
