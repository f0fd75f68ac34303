"""What answering costs: confluo-pingmesh respond against a plain asyncio server, with the same clients in the same run.

    python bench/respond.py [--seconds 2] [--quiet-rate 250] [--flood]

TSV: server, case, answers a second, answers per CPU-second of the server, its CPU in % of a core, its memory in MB.
Cases: probes by TCP connect, with 1,000 bytes of payload, by HTTP, by datagrams (two clients each, as fast as they
can), and 250 connects a second, which is what an agent with 2,500 peers sends.  --flood: datagrams of strangers as fast
as they come, with and without --rate 20000, and the share of connects that are still answered.
Bar: at 250 a second at most 1 % of a core and 45 MB; three times the connects of asyncio per CPU-second.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
import resource
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TOKEN = 0x1F2E3D4C5B6A7988
PROBE = struct.pack(">IIQIIQQQ", 0x43504D31, 0, TOKEN, 0, 0, 1, 0, 0).ljust(100, b"\0")
RESET = struct.pack("ii", 1, 0)
IN_FLIGHT = 32


async def plain(port: int) -> None:
    """What one would write in an afternoon."""

    async def one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(65536):
                if data.startswith(b"GET "):
                    data = b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n"
                writer.write(data)
        writer.close()

    class Mirror(asyncio.DatagramProtocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            self.transport = transport

        def datagram_received(self, data: bytes, sender: tuple[str, int]) -> None:
            self.transport.sendto(data, sender)  # type: ignore[attr-defined]

    server = await asyncio.start_server(one, "127.0.0.1", port, backlog=1024)
    await asyncio.get_running_loop().create_datagram_endpoint(Mirror, local_addr=("127.0.0.1", port))
    await server.serve_forever()


@contextmanager
def serving(which: str, port: int, *words: str) -> Iterator[int]:
    listen = ["--listen", f"127.0.0.1:{port}", "--token", f"{TOKEN:x}"]
    ours = [ROOT / "bin" / "confluo-pingmesh", "respond", "-q", *listen]
    argv = [*ours, *words] if which == "ours" else [sys.executable, __file__, "--serve", str(port)]
    it = subprocess.Popen(argv)
    try:
        for _ in range(1000):
            with socket.socket() as s:
                if s.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.01)
        yield it.pid
    finally:
        it.terminate()
        it.wait()


def cost(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident(pid: int) -> float:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE") / 1e6


def connects(port: int, until: float, say: bytes, hear: int) -> int:
    """Connections one after the other, so that each is a round trip."""
    done = 0
    while time.monotonic() < until:
        with socket.socket() as s:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            s.connect(("127.0.0.1", port))
            if say:
                s.sendall(say)
                got = 0
                while got < hear:
                    got += len(s.recv(65536)) or hear
            done += 1
    return done


def datagrams(port: int, until: float, *_: object) -> int:
    done = 0
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.connect(("127.0.0.1", port))
        s.settimeout(0.2)
        while time.monotonic() < until:
            for _ in range(IN_FLIGHT):
                s.send(PROBE)
            for _ in range(IN_FLIGHT):
                try:
                    s.recv(2048)
                except TimeoutError:
                    break
                done += 1
    return done


def measured(pid: int, client: Callable[..., int], clients: int, port: int, seconds: float, *more: object) -> str:
    before, start = cost(pid), time.monotonic()
    with multiprocessing.Pool(clients) as pool:
        done = sum(pool.starmap(client, [(port, time.monotonic() + seconds, *more)] * clients))
    took, used = time.monotonic() - start, cost(pid) - before
    return f"{done / took:.0f}\t{done / max(used, 0.01):.0f}\t{100 * used / took:.0f}\t{resident(pid):.1f}"


def slowly(pid: int, port: int, rate: int, seconds: float) -> str:
    before, start, done = cost(pid), time.monotonic(), 0
    while (now := time.monotonic()) < start + seconds:
        if done < (now - start) * rate:
            with socket.socket() as s:
                s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
                s.connect(("127.0.0.1", port))
            done += 1
        else:
            time.sleep(0.001)
    took, used = time.monotonic() - start, cost(pid) - before
    return f"{done / took:.0f}\t{done / max(used, 0.01):.0f}\t{100 * used / took:.2f}\t{resident(pid):.1f}"


def strangers(port: int, until: float) -> int:
    done = 0
    wrong = PROBE[:8] + bytes(8) + PROBE[16:]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.connect(("127.0.0.1", port))
        while time.monotonic() < until:
            for _ in range(64):
                s.send(wrong)
            done += 64
    return done


def flooded(pid: int, port: int, seconds: float) -> str:
    """Datagrams of strangers, and some honest connects among them: how many of those were answered within 0.1 s?"""
    before, start = cost(pid), time.monotonic()
    honest = tried = 0
    with multiprocessing.Pool(2) as pool:
        flood = pool.starmap_async(strangers, [(port, time.monotonic() + seconds)] * 2)
        while not flood.ready():
            tried += 1
            with socket.socket() as s, suppress(OSError):
                s.settimeout(0.1)
                s.connect(("127.0.0.1", port))
                s.sendall(b"\0")
                honest += s.recv(1) == b"\0"
            time.sleep(0.005)
        sent = sum(flood.get())
    took, used = time.monotonic() - start, cost(pid) - before
    return f"{sent / took:.0f}\t{100 * honest / tried:.1f}% honest\t{100 * used / took:.0f}\t{resident(pid):.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--quiet-rate", type=int, default=250)
    parser.add_argument("--flood", action="store_true")
    parser.add_argument("--serve", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 65536), hard))
    if args.serve:
        asyncio.run(plain(args.serve))
        return
    payload, request = b"\0" * 1000, b"GET /ping HTTP/1.1\r\nHost: a\r\n\r\n"
    print("server\tcase\tper_second\tper_cpu_second\tcpu_percent\trss_mb")
    port = 20000 + os.getpid() % 10000
    for which in ("ours", "asyncio"):
        port += 1
        with serving(which, port) as pid:
            cases: list[tuple[str, Callable[..., int], tuple[object, ...]]] = [
                ("connect", connects, (b"", 0)),
                ("echo 1000 B", connects, (payload, 1000)),
                ("http", connects, (request, 20)),
                ("udp", datagrams, ()),
            ]
            for name, client, more in cases:
                print(which, name, measured(pid, client, 2, port, args.seconds, *more), sep="\t", flush=True)
            told = slowly(pid, port, args.quiet_rate, 2 * args.seconds)
            print(which, f"{args.quiet_rate}/s", told, sep="\t", flush=True)
    if args.flood:
        for words in ((), ("--rate", "20000")):
            port += 1
            with serving("ours", port, *words) as pid:
                print("ours", " ".join(("flood", *words)), flooded(pid, port, args.seconds), sep="\t", flush=True)


if __name__ == "__main__":
    main()
