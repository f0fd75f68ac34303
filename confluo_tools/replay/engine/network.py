"""Fresh networks for one replay: a network namespace with a TUN device for each end.

The namespaces have no name.  The kernel removes them, and the devices, when the last descriptor is closed, so nothing
remains however this process ends.
"""

from __future__ import annotations

import fcntl
import os
import socket
import struct
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from confluo_tools.errors import ConfluoError
from confluo_tools.kernel.network_namespace import inside, unshare_network

TUNSETIFF, IFF_TUN, IFF_NO_PI, IFF_VNET_HDR = 0x400454CA, 0x0001, 0x1000, 0x4000
TUNSETOFFLOAD, TUN_OFFLOADS = 0x400454D0, 0x0F  # checksum, TSO of IPv4 and IPv6, TSO with ECN
IP_BIND_ADDRESS_NO_PORT, IPV6_V6ONLY = 24, 26
QUEUE = 20_000  # packets that a device holds until they are read


@dataclass(frozen=True)
class EndSettings:
    """What one end of the connection needs: its address, and all that differs from a fresh namespace.

    ``sysctls``: names below /proc/sys/net -> values.  ``options``: (level, name, value) of the socket before the
    connection.  ``route``: words of ip-route(8), e.g. ``rto_min 16ms``.
    """

    address: str
    port: int
    mtu: int = 1500
    sysctls: Mapping[str, str] = field(default_factory=dict)
    options: tuple[tuple[int, int, int], ...] = ()
    congestion: str = ""
    gso_max_segs: int = 0
    route: str = ""

    @property
    def family(self) -> int:
        return socket.AF_INET6 if ":" in self.address else socket.AF_INET


def missing() -> str:
    """Why this process cannot make namespaces and TUN devices; '' if it can."""
    if not os.path.exists("/dev/net/tun"):
        return "no /dev/net/tun"
    try:
        with new_namespace():
            os.close(_tun("confluo-try"))
    except ConfluoError as e:
        return e.what
    except OSError as e:
        return f"/dev/net/tun: {e.strerror}: CAP_NET_ADMIN is needed"
    return ""


@contextmanager
def new_namespace() -> Iterator[None]:
    """This thread is in a new network namespace.  Raises ConfluoError."""
    before = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        with inside(f"/proc/self/fd/{before}"):
            unshare_network()
            yield
    finally:
        os.close(before)


def _tun(name: str) -> int:
    fd = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        fcntl.ioctl(fd, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TUN | IFF_NO_PI | IFF_VNET_HDR))
        fcntl.ioctl(fd, TUNSETOFFLOAD, TUN_OFFLOADS)
    except BaseException:
        os.close(fd)
        raise
    return fd


class ReplayEnd:
    """One end: a namespace, its TUN ``device`` and a ``socket``, which listens if ``server``.

    Raises ConfluoError if the settings cannot be made.
    """

    def __init__(self, settings: EndSettings, server: bool) -> None:
        self.settings = settings
        self.name = f"confluo-{os.getpid()}{'sc'[not server]}"[:15]
        self.device = self.namespace = -1
        self.socket: socket.socket | None = None
        try:
            with new_namespace():
                self.namespace = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
                self.device = _tun(self.name)
                self._sysctls()
                self._links()
                self.socket = self._socket(server)
        except OSError as e:
            self.close()
            raise ConfluoError(f"a network for the replay cannot be made: {e.strerror or e}") from None
        except BaseException:
            self.close()
            raise

    def _sysctls(self) -> None:
        six = self.settings.family == socket.AF_INET6
        values = {"ipv6/conf/all/disable_ipv6": str(int(not six)), "ipv6/conf/default/disable_ipv6": str(int(not six))}
        if six:  # no packets but those of the connection
            values |= {"ipv6/conf/default/accept_ra": "0", f"ipv6/conf/{self.name}/router_solicitations": "0"}
            values |= {f"ipv6/conf/{self.name}/addr_gen_mode": "1", f"ipv6/conf/{self.name}/dad_transmits": "0"}
        for name, value in (values | dict(self.settings.sysctls)).items():
            self._sysctl(name, value, quiet=name in values)

    def _sysctl(self, name: str, value: str, quiet: bool) -> None:
        try:
            with open(f"/proc/sys/net/{name}", "w", encoding="ascii") as f:
                f.write(value)
        except OSError as e:
            if quiet:  # a kernel without IPv6
                return
            dotted = name.replace("/", ".")
            raise ConfluoError(f"net.{dotted} cannot be set to '{value}' here: {e.strerror}") from None

    def _links(self) -> None:
        s = self.settings
        segments = f" gso_max_segs {s.gso_max_segs}" if s.gso_max_segs else ""
        bits = 128 if s.family == socket.AF_INET6 else 32
        lines = (
            "link set dev lo up",
            f"link set dev {self.name} mtu {s.mtu} txqueuelen {QUEUE}{segments} up",
            f"addr add {s.address}/{bits} dev {self.name}" + " nodad" * (bits == 128),
            f"route add default dev {self.name} {s.route}",
        )
        family = ["-6"] if bits == 128 else []
        try:
            done = subprocess.run(
                ["ip", *family, "-batch", "-"],
                input="\n".join(lines) + "\n",
                capture_output=True,
                text=True,
                check=False,
            )
        except FileNotFoundError:
            raise ConfluoError("ip is not installed; install iproute2") from None
        if done.returncode:
            raise ConfluoError(f"a network for the replay cannot be made: {done.stderr.strip().splitlines()[0]}")

    def _socket(self, server: bool) -> socket.socket:
        s = self.settings
        made = socket.socket(s.family, socket.SOCK_STREAM)
        try:
            made.setblocking(False)
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if s.congestion:
                self._congestion(made, s.congestion)
            for level, name, value in s.options:
                made.setsockopt(level, name, value)
            made.bind((s.address, s.port))
            if server:
                made.listen(16)
        except BaseException:
            made.close()
            raise
        return made

    @staticmethod
    def _congestion(made: socket.socket, name: str) -> None:
        try:
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, name.encode())
        except OSError as e:
            with open("/proc/sys/net/ipv4/tcp_available_congestion_control", encoding="ascii") as f:
                here = ", ".join(f.read().split())
            raise ConfluoError(
                f"congestion control '{name}' is not available here ({e.strerror}); this kernel has {here}",
                hint=f"modprobe tcp_{name}",
            ) from None

    def fileno(self) -> int:
        """Descriptor of the socket."""
        assert self.socket is not None
        return self.socket.fileno()

    def detach(self) -> int:
        """Descriptor of the socket, which the caller closes."""
        assert self.socket is not None
        return self.socket.detach()

    def close(self) -> None:
        """Remove socket, device and namespace."""
        if self.socket is not None:
            self.socket.close()
        for fd in (self.device, self.namespace):
            if fd >= 0:
                os.close(fd)
        self.device = self.namespace = -1

    def __enter__(self) -> ReplayEnd:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def socket_address(settings: EndSettings) -> bytes:
    """The address as connect(2) takes it."""
    packed = socket.inet_pton(settings.family, settings.address)
    if settings.family == socket.AF_INET6:
        return struct.pack("=H", socket.AF_INET6) + struct.pack(">HI", settings.port, 0) + packed + bytes(4)
    return struct.pack("=H", socket.AF_INET) + struct.pack(">H", settings.port) + packed + bytes(8)
