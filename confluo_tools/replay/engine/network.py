"""Fresh networks for one replay: a network namespace with a TUN device for each end.

The namespaces have no name.  The kernel removes them, and the devices, when the last descriptor is closed, so nothing
remains however this process ends.
"""

from __future__ import annotations

import os
import socket
import struct
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from confluo_tools.errors import ConfluoError
from confluo_tools.kernel.network_namespace import inside, unshare_network

ETH_P_ALL, SOL_PACKET, PACKET_VNET_HDR, PACKET_IGNORE_OUTGOING = 3, 263, 15, 23
SO_RCVBUFFORCE = 33
MAC = "02:00:00:00:00:01"  # of both ends: a frame of one is for the other
BUFFER = 64 << 20  # bytes of packets that wait to be read


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
    """Why this process cannot make networks; '' if it can."""
    try:
        with ReplayEnd(EndSettings("192.0.2.1", 1), server=True):
            return ""
    except ConfluoError as e:
        return e.what


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


class ReplayEnd:
    """One end: a namespace with a veth device, a packet socket ``device`` at its peer, and a ``socket``.

    The socket listens if ``server``.  Raises ConfluoError if the settings cannot be made.
    """

    def __init__(self, settings: EndSettings, server: bool) -> None:
        self.settings = settings
        self.role = "server" if server else "client"
        self.name = f"confluo-{os.getpid()}{'sc'[not server]}"[:14]
        self.device = self.namespace = -1
        self.socket: socket.socket | None = None
        try:
            with new_namespace():
                self.namespace = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
                self._sysctls()
                self._links()
                self.device = self._wire().detach()
                self.socket = self._socket(server)
        except OSError as e:
            self.close()
            raise ConfluoError(f"a network for the replay cannot be made: {e.strerror or e}") from None
        except BaseException:
            self.close()
            raise

    def _sysctls(self) -> None:
        six = self.settings.family == socket.AF_INET6
        values = {f"ipv6/conf/{which}/disable_ipv6": str(int(not six)) for which in ("all", "default")}
        if six:  # few packets but those of the connection
            quiet = {"accept_ra": "0", "router_solicitations": "0", "addr_gen_mode": "1", "dad_transmits": "0"}
            values |= {f"ipv6/conf/default/{name}": value for name, value in quiet.items()}
        for name, value in (values | dict(self.settings.sysctls)).items():
            self._sysctl(name, value, quiet=name in values)

    def _sysctl(self, name: str, value: str, quiet: bool) -> None:
        try:
            with open(f"/proc/sys/net/{name}", "w", encoding="ascii") as f:
                f.write(value)
        except OSError as e:
            if quiet or isinstance(e, FileNotFoundError):  # a kernel without IPv6; not a setting of a namespace
                return
            dotted = name.replace("/", ".")
            raise ConfluoError(f"net.{dotted} cannot be set to '{value}' here: {e.strerror}") from None

    def _links(self) -> None:
        s = self.settings
        segments = f" gso_max_segs {s.gso_max_segs}" if s.gso_max_segs else ""
        bits = 128 if s.family == socket.AF_INET6 else 32
        name, wire = self.name, f"{self.name}w"
        lines = (
            "link set dev lo up",
            f"link add {name} address {MAC} mtu {s.mtu} type veth peer name {wire} address {MAC[:-1]}2 mtu {s.mtu}",
            f"link set dev {wire} arp off up",
            f"link set dev {name} arp off{segments} up",
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

    def _wire(self) -> socket.socket:
        """A packet socket that gets what this end sends, and sends to it."""
        made = socket.socket(socket.AF_PACKET, socket.SOCK_RAW | socket.SOCK_NONBLOCK, 0)
        try:
            made.setsockopt(SOL_PACKET, PACKET_VNET_HDR, 1)
            made.setsockopt(SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)
            made.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, BUFFER)
            made.bind((f"{self.name}w", ETH_P_ALL))
        except BaseException:
            made.close()
            raise
        return made

    def _socket(self, server: bool) -> socket.socket:
        s = self.settings
        made = socket.socket(s.family, socket.SOCK_STREAM)
        try:
            made.setblocking(False)
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if s.congestion:
                self._congestion(made, s.congestion)
            for level, name, value in s.options:
                self._option(made, level, name, value)
            made.bind((s.address, s.port))
            if server:
                made.listen(16)
        except BaseException:
            made.close()
            raise
        return made

    @staticmethod
    def _option(made: socket.socket, level: int, name: int, value: int) -> None:
        linger = (level, name) == (socket.SOL_SOCKET, socket.SO_LINGER)
        # A close that waits would wait here; one that resets is repeated.
        packed = struct.pack("ii", int(value == 1), 0) if linger else struct.pack("I", value & 0xFFFFFFFF)
        with suppress(OSError):  # the kernel refused it when it was recorded, too
            made.setsockopt(level, name, packed)

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
