"""TCP retransmissions from a private instance of tracefs, read from its raw buffers.

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
from contextlib import suppress
from typing import Any

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


class Tracing:
    """An instance that traces TCP retransmissions from `begin` on.  Raises ConfluoError if it cannot be created."""

    def __init__(self, root: int) -> None:
        self.name = f"confluo-retx-{os.getpid()}-{time.monotonic_ns() % 10**9}"
        self._fds: list[int] = []
        self._stats: list[int] = []
        self._traces: list[int] = []
        self._keeper: subprocess.Popen[bytes] | None = None
        self._lost = 0
        self._next = 0.0
        self._root = root
        path = f"/proc/self/fd/{root}/instances/{self.name}"
        try:
            os.mkdir(path, 0o700)
        except OSError as e:
            os.close(root)
            raise ConfluoError(f"tracefs allows no instance: {e.strerror}") from None
        try:
            self._keep(path)
            self._write(f"{path}/trace_clock", "mono")
            self._write(f"{path}/tracing_on", "0")
            self._write(f"{path}/buffer_size_kb", str(BUFFER))
            with suppress(OSError):  # a full buffer drops events: cheaper for the sender
                self._write(f"{path}/options/overwrite", "0")
            header, page = page_header(_read(f"/proc/self/fd/{root}/events/header_page"))
            formats = []
            for number, name in enumerate(EVENTS):
                try:
                    formats.append(event_format(_read(f"{path}/events/tcp/{name}/format")))
                    self._write(f"{path}/events/tcp/{name}/enable", "1")
                except OSError:
                    if number == 0:
                        raise
            cpus = sorted(n for n in os.listdir(f"{path}/per_cpu") if n.startswith("cpu"))
            for cpu in cpus:
                self._traces.append(self._open(f"{path}/per_cpu/{cpu}/trace_pipe_raw", os.O_RDONLY | os.O_NONBLOCK))
                self._stats.append(self._open(f"{path}/per_cpu/{cpu}/stats", os.O_RDONLY))
            self._on = self._open(f"{path}/tracing_on", os.O_WRONLY)
            self.arguments: dict[str, Any] = {
                "traces": self._traces,
                "header": header,
                "page": page,
                "formats": formats,
            }
        except (OSError, ValueError, KeyError, AttributeError) as e:
            self.close()
            why = e.strerror if isinstance(e, OSError) else "its formats are not understood"
            raise ConfluoError(f"retransmissions cannot be traced: {why}") from None
        except BaseException:
            self.close()
            raise

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


def open_tracing() -> Tracing:
    """A new instance.  Raises ConfluoError: no tracefs, or no permission."""
    return Tracing(_root())


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
