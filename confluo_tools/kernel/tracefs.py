"""A private instance of tracefs, and its raw buffers.

Other tracing is not affected.  The instance is removed however this process ends: a shell waits for its end and
removes it.
"""

from __future__ import annotations

import ctypes
import errno
import os
import re
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from confluo_tools.errors import ConfluoError

EVENTS = ("tcp_retransmit_skb", "tcp_retransmit_synack")
BUFFER = 256  # KiB of each CPU: some 3,000 events
LOOK = 1.0  # s between two reads of the loss counters
_FSOPEN, _FSCONFIG, _FSMOUNT = 430, 431, 432  # of every architecture
_CREATE = 6
_PLACES = ("/sys/kernel/tracing", "/sys/kernel/debug/tracing")
_KEEPER = (
    "trap '' HUP INT TERM; read -r _; n=0; "
    'until rmdir "$0" 2>/dev/null || [ ! -d "$0" ] || [ $n -ge 100 ]; do n=$((n+1)); sleep 0.05; done'
)


class WantedEvent(NamedTuple):
    """An event to trace: ``system``/``name``, if it fits ``filter`` (as in the kernel's documentation of events).

    ``needed``: without it, tracing fails.
    """

    system: str
    name: str
    filter: str = ""
    needed: bool = True


class TraceInstance:
    """An instance that traces events from `begin` on.

    ``formats``: the text of the format file of each event that is traced, by its name.  ``traces``: descriptors of the
    raw buffers, one of each CPU.  ``header``, ``page``: see `page_header`.  Times are of CLOCK_MONOTONIC.
    Raises ConfluoError if it cannot be created; ``what`` names what cannot be traced then.
    """

    def __init__(self, root: int, program: str, events: Sequence[WantedEvent], what: str, buffer: int) -> None:
        self.name = f"confluo-{program}-{os.getpid()}-{time.monotonic_ns() % 10**9}"
        self.formats: dict[str, str] = {}
        self.traces: list[int] = []
        self._fds: list[int] = []
        self._stats: list[int] = []
        self._keeper: subprocess.Popen[bytes] | None = None
        self._lost = 0
        self._next = 0.0
        self._root = root
        self.path = f"/proc/self/fd/{root}/instances/{self.name}"
        try:
            self._keep(self.path)  # first: this process may be killed in mkdir, which takes long
            os.mkdir(self.path, 0o700)
        except OSError as e:
            self.close()
            raise ConfluoError(f"tracefs allows no instance: {e.strerror}") from None
        try:
            self._write(f"{self.path}/trace_clock", "mono")
            self._write(f"{self.path}/tracing_on", "0")
            self._write(f"{self.path}/buffer_size_kb", str(buffer))
            with suppress(OSError):  # a full buffer drops events: cheaper for the sender
                self._write(f"{self.path}/options/overwrite", "0")
            self.header, self.page = page_header(_read(f"/proc/self/fd/{root}/events/header_page"))
            for event in events:
                self._enable(event)
            for cpu in sorted(n for n in os.listdir(f"{self.path}/per_cpu") if n.startswith("cpu")):
                folder = f"{self.path}/per_cpu/{cpu}"
                self.traces.append(self._open(f"{folder}/trace_pipe_raw", os.O_RDONLY | os.O_NONBLOCK))
                self._stats.append(self._open(f"{folder}/stats", os.O_RDONLY))
            self._on = self._open(f"{self.path}/tracing_on", os.O_WRONLY)
        except (OSError, ValueError, KeyError, AttributeError) as e:
            self.close()
            why = e.strerror if isinstance(e, OSError) else "its formats are not understood"
            raise ConfluoError(f"{what} cannot be traced: {why}") from None
        except BaseException:
            self.close()
            raise

    def _enable(self, event: WantedEvent) -> None:
        folder = f"{self.path}/events/{event.system}/{event.name}"
        try:
            text = _read(f"{folder}/format")
            if event.filter:
                self._write(f"{folder}/filter", event.filter)
            self._write(f"{folder}/enable", "1")
        except OSError:
            if event.needed:
                raise
        else:
            self.formats[event.name] = text

    def _keep(self, path: str) -> None:
        # Only this process has the write end of the pipe: the shell reads EOF when it ends.
        self._keeper = subprocess.Popen(
            ["/bin/sh", "-c", _KEEPER, path],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=[self._root],
            start_new_session=True,
            cwd="/",
            env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"},
        )

    def _open(self, path: str, flags: int) -> int:
        fd = os.open(path, flags | os.O_CLOEXEC)
        self._fds.append(fd)
        return fd

    def _write(self, path: str, text: str) -> None:
        fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(fd, text.encode())
        finally:
            os.close(fd)

    def follow(self, pid: int) -> None:
        """Trace only this process, those followed before, and those that they start."""
        with suppress(OSError):  # it may have ended
            self._write(f"{self.path}/options/event-fork", "1")
            fd = os.open(f"{self.path}/set_event_pid", os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
            try:
                os.write(fd, f"{pid}".encode())
            finally:
                os.close(fd)

    def begin(self) -> None:
        """Trace from now on."""
        os.write(self._on, b"1")

    def lost(self) -> int:
        """Events lost because a buffer was full."""
        now = time.monotonic()
        if now >= self._next:
            self._next = now + LOOK
            total = 0
            for fd in self._stats:
                with suppress(OSError):
                    text = os.pread(fd, 4096, 0)
                    total += sum(int(n) for n in re.findall(rb"(?:overrun|dropped events): (\d+)", text))
            self._lost = total
        return self._lost

    def close(self) -> None:
        """Stop tracing and remove the instance."""
        for fd in self._fds:
            os.close(fd)
        self._fds = []
        if self._keeper is not None:
            assert self._keeper.stdin is not None
            self._keeper.stdin.close()
            try:
                self._keeper.wait(timeout=10)
            except subprocess.TimeoutExpired:
                self._keeper.kill()
                self._keeper.wait()
            self._keeper = None
        if self._root >= 0:
            os.close(self._root)
            self._root = -1


class RetransmissionTrace(TraceInstance):
    """Traces TCP retransmissions; ``arguments`` are those of the reader of its events."""

    def __init__(self, root: int) -> None:
        wanted = [WantedEvent("tcp", name, needed=number == 0) for number, name in enumerate(EVENTS)]
        super().__init__(root, "retx", wanted, "retransmissions", BUFFER)
        try:
            formats = [event_format(text) for text in self.formats.values()]
        except (ValueError, KeyError, AttributeError):
            self.close()
            raise ConfluoError("retransmissions cannot be traced: its formats are not understood") from None
        self.arguments: dict[str, Any] = {
            "traces": self.traces,
            "header": self.header,
            "page": self.page,
            "formats": formats,
        }


def open_tracing() -> RetransmissionTrace:
    """A new instance for retransmissions.  Raises ConfluoError: no tracefs, or no permission."""
    return RetransmissionTrace(_root())


def open_instance(program: str, events: Sequence[WantedEvent], what: str, buffer: int) -> TraceInstance:
    """A new instance.  Raises ConfluoError: no tracefs, no permission, or a needed event is not there."""
    return TraceInstance(_root(), program, events, what, buffer)


def _root() -> int:
    """A descriptor of tracefs: where it is mounted, else of a private detached mount."""
    reason = errno.ENOENT
    for place in _PLACES:
        if os.path.exists(f"{place}/instances"):
            try:
                return os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            except OSError as e:
                reason = e.errno or reason
    libc = ctypes.CDLL(None, use_errno=True)
    call = libc.syscall
    call.restype = ctypes.c_long
    context = call(_FSOPEN, b"tracefs", 1)
    if context < 0:
        raise _refused(ctypes.get_errno() or reason)
    try:
        if call(_FSCONFIG, context, _CREATE, None, None, 0) < 0:
            raise _refused(ctypes.get_errno())
        root = call(_FSMOUNT, context, 1, 0)
        if root < 0:
            raise _refused(ctypes.get_errno())
        return int(root)
    finally:
        os.close(context)


def _refused(number: int) -> ConfluoError:
    return ConfluoError(f"tracefs cannot be used: {os.strerror(number)}")


def _read(path: str) -> str:
    with open(path, encoding="ascii", errors="replace") as f:
        return f.read()


def _fields(text: str) -> dict[str, tuple[int, int]]:
    """{field: (offset, size)} of a format file."""
    found: dict[str, tuple[int, int]] = {}
    for line in text.splitlines():
        field = re.match(r"\s*field:\s*(.*?)\s*;\s*offset:(\d+);\s*size:(\d+);", line)
        if field:
            name = re.sub(r"\[.*", "", field.group(1).split()[-1])
            found.setdefault(name, (int(field.group(2)), int(field.group(3))))
    return found


def event_shape(text: str, names: Sequence[str]) -> tuple[int, list[tuple[int, int, bool]]]:
    """Id of an event and (offset, size, signed) of the named fields, from its format file.  Raises ValueError."""
    fields = _fields(text)
    number = re.search(r"^ID: (\d+)$", text, re.M)
    missing = [name for name in names if name not in fields]
    if number is None or missing or fields["common_pid"] != (4, 4):
        raise ValueError(f"no fields {', '.join(missing)}")
    signed = set(re.findall(r"\s(\w+)(?:\[\d*\])?;\s*offset:\d+;\s*size:\d+;\s*signed:1;", text))
    return int(number.group(1)), [(*fields[name], name in signed) for name in names]


def page_header(text: str) -> tuple[int, int]:
    """(bytes before the data of a page, bytes of a page) from events/header_page."""
    fields = _fields(text)
    offset, size = fields["data"]
    if fields["timestamp"] != (0, 8) or fields["commit"][0] != 8:
        raise ValueError(text)
    return offset, offset + size


def event_format(text: str) -> tuple[int, ...]:
    """The description of an event from its format file: id, offsets of the fields, offset of err, size, socket."""
    fields = _fields(text)
    number = re.search(r"^ID: (\d+)$", text, re.M)
    sizes = {"sport": 2, "dport": 2, "family": 2, "saddr": 4, "daddr": 4, "saddr_v6": 16, "daddr_v6": 16}
    if number is None or fields["common_type"] != (0, 2) or any(fields[n][1] != size for n, size in sizes.items()):
        raise ValueError(text)
    places = [fields[name][0] for name in sizes]
    err = fields["err"][0] if fields.get("err", (0, 0))[1] == 4 else 0
    # Of a SYN-ACK, the socket is the listener.
    sk = fields["skaddr"][0] if fields.get("skaddr", (0, 0))[1] == 8 and "req" not in fields else 0
    need = max([fields[name][0] + size for name, size in sizes.items()] + [err + 4 if err else 0, sk + 8 if sk else 0])
    return int(number.group(1)), *places, err, need, sk
