"""Settings of the host that decide how TCP behaves: read for the recording, and set for the grade strict."""

from __future__ import annotations

import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from confluo_tools.errors import ConfluoError
from confluo_tools.kernel.network_namespace import unshare_network
from confluo_tools.kernel.tick import tick_length

_SYSCTLS = "/proc/sys/net/ipv4"
# backlog_ack_defer 0: each packet gets its acknowledgement, also those that wait while a call holds the socket.
STRICT = {"tcp_timestamps": "0", "tcp_moderate_rcvbuf": "0", "tcp_comp_sack_nr": "0", "tcp_backlog_ack_defer": "0"}
LIMITS = ("rmem_max", "wmem_max")  # of the options SO_RCVBUF and SO_SNDBUF, bytes
CONTROLS = ("reno", "cubic")  # congestion controls that can be replayed exactly
ALWAYS = (
    "tcp_congestion_control",
    "tcp_rmem",
    "tcp_wmem",
    "tcp_timestamps",
    "tcp_sack",
    "tcp_window_scaling",
    "tcp_moderate_rcvbuf",
    "tcp_comp_sack_nr",
    "tcp_recovery",
    "tcp_early_retrans",
    "tcp_frto",
    "tcp_ecn",
)


def _read(path: str) -> str:
    with suppress(OSError), open(path, encoding="ascii", errors="replace") as f:
        return " ".join(f.read().split())
    return ""


def _tcp_sysctls() -> dict[str, str]:
    """The values of net.ipv4.tcp_* of the network namespace of this thread."""
    names = sorted(name for name in os.listdir(_SYSCTLS) if name.startswith("tcp_"))
    return {name: _read(f"{_SYSCTLS}/{name}") for name in names if not name.endswith(("_key", "_cookie_secret"))}


def _fresh() -> dict[str, str]:
    unshare_network()
    return _tcp_sysctls()


def host_settings() -> dict[str, str]:
    """{name: value}: what a replay needs, and sysctls that differ from those of a new network namespace.

    ``kernel``: the release; ``tick``: ns of a jiffy.
    """
    ours = _tcp_sysctls()
    try:
        with ThreadPoolExecutor(1) as thread:
            fresh = thread.submit(_fresh).result()
    except ConfluoError:
        fresh = {}
    found = {"kernel": os.uname().release, "tick": str(tick_length())}
    found |= {name: value for name, value in ours.items() if name in ALWAYS or fresh.get(name, value) != value}
    found |= {name: value for name in LIMITS if (value := _read(f"/proc/sys/net/core/{name}"))}
    found["grade"] = "strict" if _is_strict(ours) else "default"
    return found


def _is_strict(sysctls: dict[str, str]) -> bool:
    return all(sysctls.get(name, value) == value for name, value in STRICT.items()) and (
        sysctls.get("tcp_congestion_control") in CONTROLS
    )


def _large_buffer(rmem: str) -> str:
    """The setting tcp_rmem with its largest value as the default.

    How much memory a packet takes depends on the device, and so do windows near the size of the buffer.
    """
    least, _, most = rmem.split()
    return f"{least} {most} {most}"


class StrictGrade:
    """Context manager: settings with which a replay can be exact, in the network namespace of this thread.

    On the way out they are as before.  Raises ConfluoError.
    """

    def __init__(self) -> None:
        self._before: dict[str, str] = {}
        self._devices: dict[str, str] = {}

    def __enter__(self) -> StrictGrade:
        try:
            for name, value in STRICT.items():
                self._set(name, value)
            self._set("tcp_rmem", _large_buffer(_read(f"{_SYSCTLS}/tcp_rmem")))
            if _read(f"{_SYSCTLS}/tcp_congestion_control") not in CONTROLS:
                self._set("tcp_congestion_control", CONTROLS[0])
            for device in sorted(os.listdir("/proc/sys/net/ipv4/conf")):
                if device not in ("all", "default"):
                    self._segments(device)
        except BaseException:
            self._restore()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self._restore()

    def _set(self, name: str, value: str) -> None:
        path = f"{_SYSCTLS}/{name}"
        before = _read(path)
        if before in (value, ""):  # a kernel without it does not do it
            return
        try:
            with open(path, "w", encoding="ascii") as f:
                f.write(value)
        except OSError as e:
            hint = "--grade default records without it"
            raise ConfluoError(f"cannot be set to {value}: {e.strerror}", where=f"net.ipv4.{name}", hint=hint) from None
        self._before[name] = before

    def _segments(self, device: str) -> None:
        before = device_segments(device)
        if before > 1:
            ip("link", "set", "dev", device, "gso_max_segs", "1")
            self._devices[device] = str(before)

    def _restore(self) -> None:
        for name, value in self._before.items():
            with suppress(OSError), open(f"{_SYSCTLS}/{name}", "w", encoding="ascii") as f:
                f.write(value)
        for device, value in self._devices.items():
            with suppress(ConfluoError):
                ip("link", "set", "dev", device, "gso_max_segs", value)
        self._before, self._devices = {}, {}


def device_segments(device: str) -> int:
    """Most segments of a packet that TCP gives to a device."""
    words = ip("-d", "link", "show", "dev", device).split()
    return int(words[words.index("gso_max_segs") + 1]) if "gso_max_segs" in words else 0


def ip(*words: str) -> str:
    """What ip(8) prints.  Raises ConfluoError."""
    try:
        done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    except OSError as e:
        raise ConfluoError(f"cannot be run: {e.strerror}", where="ip", hint="install iproute2") from None
    if done.returncode:
        raise ConfluoError(done.stderr.strip().removeprefix("Error: "), where=f"ip {' '.join(words)}")
    return done.stdout
