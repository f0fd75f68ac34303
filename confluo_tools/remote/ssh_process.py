"""The remote shell as a child process, started before other modules are loaded.

Loading a command takes as long as a host takes to answer.  So `begin` guesses the hosts from the words of the command
line and starts their shells; `take_started` returns them later.  Shells that are not taken are ended; doubtful words
are left to the parser of the command.

It imports little, and only from the standard library, for the same reason.
"""

from __future__ import annotations

import os

from confluo_tools import __version__
from confluo_tools.errors import ConfluoError

TYPE_CHECKING = False  # importing typing costs more than all else here
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

PROTOCOL = 1
HELLO = b"confluo-serve "  # then: PROTOCOL VERSION ABILITIES...\n
# Added after the first version of the protocol.
ABILITIES = ("analyze", "alive", "follow", "unnest", "zone", "views", "archive", "having")
MAX_EARLY = 64  # hosts
MAX_SNAPSHOT = 1 << 20  # bytes of a snapshot file that is read here
SIGNALS = (13, 25)  # SIGPIPE, SIGXFSZ: Python ignores them, its children must not

_waiting: dict[tuple[str, ...], list[SshProcess]] = {}


def hello(version: str = __version__) -> bytes:
    return HELLO + " ".join((str(PROTOCOL), version, *ABILITIES)).encode() + b"\n"


class SshProcess:
    """A process with pipes to its ``stdin``, from its ``stdout`` and its ``stderr``: descriptors, -1 once closed.

    ``greeted``: our hello has been sent.  Raises OSError: it cannot be run.
    """

    def __init__(self, words: Sequence[str]) -> None:
        self.returncode: int | None = None
        self.greeted = False
        pipes: list[int] = []
        try:
            for _ in range(3):
                pipes += os.pipe2(os.O_CLOEXEC)
            theirs, ours = (pipes[0], pipes[3], pipes[5]), (pipes[1], pipes[2], pipes[4])
            actions = [(os.POSIX_SPAWN_DUP2, fd, to) for to, fd in enumerate(theirs)]
            self.pid = os.posix_spawnp(words[0], list(words), os.environ, file_actions=actions, setsigdef=SIGNALS)
        except BaseException:
            for fd in pipes:
                os.close(fd)
            raise
        for fd in theirs:
            os.close(fd)
        self.stdin, self.stdout, self.stderr = ours

    def greet(self) -> None:
        """Send the hello, which fits into any pipe."""
        if not self.greeted:
            self.greeted = True
            os.write(self.stdin, hello())

    def poll(self) -> int | None:
        """The exit status as in subprocess; None while it runs."""
        return self._reap(os.WNOHANG)

    def wait(self, seconds: float | None = None) -> int | None:
        """Wait until it exits, at most ``seconds``; then as `poll`."""
        if seconds is None:
            return self._reap(0)
        from time import monotonic, sleep

        limit, pause = monotonic() + seconds, 0.0005
        while self.poll() is None and monotonic() < limit:
            sleep(pause)
            pause = min(2 * pause, 0.05)
        return self.returncode

    def _reap(self, flags: int) -> int | None:
        if self.returncode is None:
            try:
                pid, status = os.waitpid(self.pid, flags)
            except ChildProcessError:  # another thread has waited for it
                pid, status = self.pid, 0
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def kill(self, number: int = 9) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def hang_up(self) -> None:
        """Close the pipe to it."""
        self.stdin = _closed(self.stdin)

    def close(self) -> None:
        """Hang up and wait: a second for it to exit, a second after SIGTERM, then kill it."""
        self.hang_up()
        self.stdout = _closed(self.stdout)
        if self.wait(1.0) is None:
            self.kill(15)
            if self.wait(1.0) is None:
                self.kill()
                self.wait()
        self.stderr = _closed(self.stderr)


def _closed(fd: int) -> int:
    if fd >= 0:
        os.close(fd)
    return -1


# ---------------------------------------------------------------- early start


def begin(words: Sequence[str], settings: Callable[[], tuple[str, str]]) -> None:
    """Start the shells to the hosts that the ``words`` of a query name, as far as they are certain.

    ``settings``: returns the texts of the settings rsh and remote.
    """
    try:
        hosts = list(_hosts(words))
        if not hosts or len(hosts) > MAX_EARLY:
            return
        for fd in (0, 1, 2):
            os.fstat(fd)  # a pipe must not get the number of a closed descriptor
        rsh, command = map(_split, settings())
        for host in hosts:
            child = SshProcess([*rsh, host, *command])
            _waiting.setdefault((*rsh, host, *command), []).append(child)
            child.greet()
    except (ConfluoError, OSError, ValueError):
        pass  # `Connection` reports the error later
    if _waiting:
        import atexit

        atexit.register(forget)


def take_started(words: Sequence[str]) -> SshProcess | None:
    """A shell that was started with these words, removed from the list; None: there is none."""
    kept = _waiting.get(tuple(words))
    return kept.pop(0) if kept else None


def forget() -> None:
    """End the shells that were not taken."""
    for children in _waiting.values():
        for child in children:
            child.kill(15)
            child.close()
    _waiting.clear()


def _hosts(words: Sequence[str]) -> Iterator[str]:
    # Only words that are certainly names of inputs: 10:30 is a time, a:b may be part of an expression.
    from confluo_tools.remote import address

    names, at, named = [], "", False
    for i, word in enumerate(words):
        option, equals, value = word.partition("=")
        if option in ("--config", "-h", "--help", "--version"):
            return
        if word.startswith("-r") and len(word) > 2:
            named = True
            names.append(word[2:])
        elif option in ("-r", "--read", "--at"):
            named = True
            value = value if equals else words[i + 1] if i + 1 < len(words) else ""
            if option == "--at":
                at = value
            else:
                names.append(value)
    if not named and words:
        names = [words[0]] if not words[0].startswith("-") else []
    for name in names:
        there = address.parse(name) if ":" in name else None
        if there is not None:
            yield there.host
    if at:
        for host in _of_snapshot(at):
            if address.parse(f"{host}:/" if ":" not in host else f"[{host}]:/") is not None:
                yield host


def _of_snapshot(path: str) -> Iterator[str]:
    # The hosts in a snapshot file as `Snapshot.text` writes it.
    from stat import S_ISREG

    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        if not S_ISREG(os.fstat(fd).st_mode) or os.fstat(fd).st_size > MAX_SNAPSHOT:
            return
        lines = os.read(fd, MAX_SNAPSHOT).decode().split("\n")
    finally:
        os.close(fd)
    if lines[1:2] != ["confluo_snapshot: 1"]:
        return
    for line in lines:
        if line.startswith('  host: "') and line.endswith('"') and "\\" not in line and line[9:-1]:
            yield line[9:-1]


def _split(text: str) -> list[str]:
    # Raises ValueError for text that needs the quoting rules of a shell.
    if not (text.isascii() and text.isprintable() and text.strip()) or any(c in text for c in "'\"\\"):
        raise ValueError(text)
    return text.split()
