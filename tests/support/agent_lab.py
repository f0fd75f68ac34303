"""Controllers, certificates, lists and targets for tests of agents: real processes, openssl, plain sockets."""

from __future__ import annotations

import os
import re
import selectors
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from confluo_tools.pingmesh.plan.graphs import SECOND, Pinglist, PinglistPeer, version_of
from confluo_tools.pingmesh.plan.pinglist_file import to_yaml
from running import BIN, completed, environment, popen


def openssl(*words: object) -> bytes:
    done = subprocess.run(["openssl", *map(str, words)], capture_output=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


class Pki:
    """Certificates of two authorities in ``folder``, and a key for lists."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)
        for ca in ("ca", "other"):
            self._authority(ca)
        self.issue("controller", "ca", "subjectAltName=IP:127.0.0.1")
        self.issue("elsewhere", "ca", "subjectAltName=DNS:elsewhere.example")
        self.issue("a1", "ca", "")
        self.issue("stranger", "other", "subjectAltName=IP:127.0.0.1")
        for key in ("plan", "forger"):
            openssl("genpkey", "-algorithm", "ed25519", "-out", folder / f"{key}.key")
            openssl("pkey", "-in", folder / f"{key}.key", "-pubout", "-out", folder / f"{key}.pub")

    def _authority(self, name: str) -> None:
        openssl(
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:P-256",
            "-nodes",
            "-days",
            "30",
            "-subj",
            f"/CN={name}",
            "-keyout",
            self.folder / f"{name}.key",
            "-out",
            self.folder / f"{name}.pem",
            "-addext",
            "keyUsage=critical,keyCertSign,cRLSign",
        )

    def issue(self, name: str, ca: str, more: str) -> None:
        f = self.folder
        openssl(
            "req",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:P-256",
            "-nodes",
            "-subj",
            f"/CN={name}",
            "-keyout",
            f / f"{name}.key",
            "-out",
            f / f"{name}.csr",
        )
        (f / "ext").write_text(f"authorityKeyIdentifier=keyid\n{more}\n")
        openssl(
            "x509",
            "-req",
            "-in",
            f / f"{name}.csr",
            "-CA",
            f / f"{ca}.pem",
            "-CAkey",
            f / f"{ca}.key",
            "-days",
            "30",
            "-extfile",
            f / "ext",
            "-out",
            f / f"{name}.pem",
        )

    def __call__(self, name: str) -> str:
        return str(self.folder / name)

    def sign(self, path: Path, key: str = "plan") -> None:
        """Write the signature of a list into NAME.sig."""
        openssl(
            "pkeyutl", "-sign", "-inkey", self(f"{key}.key"), "-rawin", "-in", path, "-out", path.with_suffix(".sig")
        )


def peers_at(*ports: int, interval: int = SECOND // 2, **more: Any) -> tuple[PinglistPeer, ...]:
    return tuple(
        PinglistPeer(
            f"t{i}", "127.0.0.1", port, interval=interval, level="pod", pod="p1", podset="ps1", dc="dc1", **more
        )
        for i, port in enumerate(ports)
    )


def write_list(folder: Path, name: str, peers: Sequence[PinglistPeer], token: int = 7) -> Path:
    """A list, as plan would have written it."""
    folder.mkdir(exist_ok=True)
    found = Pinglist(name, version_of(name, token, tuple(peers)), token, tuple(peers))
    path = folder / f"{name}.yaml"
    temporary = folder / f".{name}"
    temporary.write_bytes(to_yaml(found))
    temporary.rename(path)
    return path


class Targets:
    """Listens on ports of loopback, and counts the connections that arrive."""

    def __init__(self, n: int) -> None:
        self._sockets = []
        self.seen: list[tuple[float, int]] = []  # when, port
        self._selector = selectors.DefaultSelector()
        for _ in range(n):
            s = socket.create_server(("127.0.0.1", 0))
            s.setblocking(False)
            self._selector.register(s, selectors.EVENT_READ)
            self._sockets.append(s)
        self.ports = [s.getsockname()[1] for s in self._sockets]
        self._ended = False
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def _work(self) -> None:
        while not self._ended:
            for key, _ in self._selector.select(0.05):
                with suppress(OSError):
                    one, _ = key.fileobj.accept()  # type: ignore[union-attr]
                    one.close()
                    self.seen.append((time.monotonic(), key.fileobj.getsockname()[1]))  # type: ignore[union-attr]

    @property
    def count(self) -> int:
        return len(self.seen)

    def quiet_for(self, seconds: float) -> bool:
        """Whether no connection arrives for this many seconds."""
        before = self.count
        time.sleep(seconds)
        return self.count == before

    def __enter__(self) -> Targets:
        return self

    def __exit__(self, *exc: object) -> None:
        self._ended = True
        self._thread.join()
        self._selector.close()
        for s in self._sockets:
            s.close()


class Running:
    """A verb of confluo-pingmesh as a process; its stderr as it comes."""

    def __init__(self, verb: str, *words: object, cwd: Path) -> None:
        self.process = popen(
            [str(BIN / "confluo-pingmesh"), verb, *map(str, words)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env=environment(),
            cwd=cwd,
        )
        self.pid = self.process.pid
        self._lines: list[str] = []
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self._lines.append(line.decode())

    @property
    def said(self) -> str:
        return "".join(self._lines)

    def says(self, pattern: str, seconds: float = 20.0) -> re.Match[str]:
        end = time.monotonic() + seconds
        while not (found := re.search(pattern, self.said)):
            assert time.monotonic() < end, f"not said: {pattern}\n{self.said}"
            time.sleep(0.02)
        return found

    def end(self, number: int = signal.SIGTERM) -> int:
        if self.process.poll() is None:
            self.process.send_signal(number)
        status = self.process.wait(30)
        self._thread.join()
        assert self.process.stderr is not None
        self.process.stderr.close()
        return status


@contextmanager
def controller(lists: Path, *words: object) -> Iterator[tuple[Running, str]]:
    """``serve`` on a free port: the process and its URL."""
    run = Running("serve", lists, "--listen", "127.0.0.1:0", *words, cwd=lists.parent)
    try:
        found = run.says(r"(https?) at 127\.0\.0\.1:(\d+)")
        yield run, f"{found[1]}://127.0.0.1:{found[2]}"
    finally:
        run.end()


@contextmanager
def agent(cwd: Path, url: str, *words: object, name: str = "a1") -> Iterator[Running]:
    """An agent that asks every second, answers on a free port and writes a1.ml."""
    run = Running(
        "agent",
        "--controller",
        url,
        "--name",
        name,
        "--every",
        "1s",
        "--lab",
        "--listen",
        "127.0.0.1:0",
        "-w",
        f"{name}.ml",
        *words,
        cwd=cwd,
    )
    try:
        yield run
    finally:
        run.end(signal.SIGKILL)


def rows(log: Path, *words: str) -> list[list[str]]:
    """What confluo-query prints of it, split into words."""
    done = completed(
        [str(BIN / "confluo-query"), str(log), *words, "-T", "--no-header"],
        capture_output=True,
        env=environment(),
        check=False,
        timeout=60,
    )
    assert done.returncode in (0, 1), done.stderr
    return [line.split("\t") for line in done.stdout.decode().splitlines()]


def events(log: Path) -> list[str]:
    return [" ".join(row) for row in rows(log, "kind == event", "-f", "event,reason")]


def listening(pid: int) -> list[int]:
    """TCP ports that a process listens on, as the kernel has them."""
    inodes = set()
    for name in os.listdir(f"/proc/{pid}/fd"):
        with suppress(OSError):
            inodes.add(os.readlink(f"/proc/{pid}/fd/{name}"))
    found = []
    for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]:
        words = line.split()
        if words[3] == "0A" and f"socket:[{words[9]}]" in inodes:
            found.append(int(words[1].rpartition(":")[2], 16))
    return found
