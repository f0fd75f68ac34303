"""Servers of ClickHouse for tests: real ones on loopback, each in a folder of its own; and ones that misbehave."""

from __future__ import annotations

import http.client
import json
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from kafka_lab import free_ports

START = 60.0  # s that a server may take on a busy machine
PASSWORD = "swordfish"  # of the user `collector`
CONFIGURATION = """<yandex>
<logger><level>warning</level><log>{folder}/log</log><errorlog>{folder}/errors</errorlog></logger>
<listen_host>127.0.0.1</listen_host><http_port>{port}</http_port><tcp_port>{native}</tcp_port>
{tls}
<path>{data}/</path><tmp_path>{data}/tmp/</tmp_path><users_config>{folder}/users.xml</users_config>
<default_profile>default</default_profile><default_database>default</default_database>
<mark_cache_size>67108864</mark_cache_size><keep_alive_timeout>3</keep_alive_timeout>
</yandex>
"""
TLS = """<https_port>{port}</https_port><openSSL><server><certificateFile>{pem}</certificateFile>
<privateKeyFile>{pem}</privateKeyFile><verificationMode>none</verificationMode></server></openSSL>"""
USERS = """<yandex><profiles><default/></profiles><quotas><default/></quotas><users>
<default><password></password><networks><ip>127.0.0.1</ip></networks>
<profile>default</profile><quota>default</quota></default>
<collector><password>{password}</password><networks><ip>127.0.0.1</ip></networks>
<profile>default</profile><quota>default</quota></collector></users></yandex>
"""


def missing() -> str:
    """Why there can be no server, or ""."""
    return "" if _program() else "clickhouse-server is not installed"


def _program() -> str | None:
    return shutil.which("clickhouse-server", path="/usr/sbin:/usr/bin:/usr/local/bin")


class ClickHouse:
    """A server that runs.  ``pem``: with TLS at `tls_port`.  ``disk``: its data are on one of this size; needs root."""

    def __init__(self, folder: Path, *, pem: Path | None = None, disk: str = "") -> None:
        self.folder, self._disk = folder, disk
        self.port, self.native, self.tls_port = free_ports(3)
        self.data = folder / "data"
        self.data.mkdir()
        tls = TLS.format(port=self.tls_port, pem=pem) if pem is not None else ""
        text = CONFIGURATION.format(folder=folder, port=self.port, native=self.native, tls=tls, data=self.data)
        (folder / "config.xml").write_text(text)
        (folder / "users.xml").write_text(USERS.format(password=PASSWORD))
        self.process: subprocess.Popen[bytes] | None = None
        self.start()

    @property
    def address(self) -> str:
        return f"clickhouse://127.0.0.1:{self.port}"

    def start(self, *, wait: bool = True) -> None:
        mount = ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs -o size="$0" none "$1" && shift && exec "$@"']
        command = [*mount, self._disk, self.data] if self._disk else []
        with open(self.folder / "output", "ab") as output:
            words = [*map(str, command), str(_program()), f"--config-file={self.folder}/config.xml"]
            self.process = subprocess.Popen(words, stdout=output, stderr=output, stdin=subprocess.DEVNULL)
        if wait:
            self.wait()

    def wait(self) -> None:
        """Until it answers."""
        assert self.process is not None
        end = time.monotonic() + START
        while True:
            try:
                self.query("SELECT 1")
                return
            except OSError:
                pass
            if self.process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"the server does not start: {(self.folder / 'output').read_text()[-2000:]}")
            time.sleep(0.02)

    def query(self, sql: str, **settings: object) -> str:
        """What the server answers.  Raises AssertionError for an error."""
        link = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        try:
            link.request("POST", f"/?{urlencode(settings)}", sql.rstrip(";\n ").encode())
            response = link.getresponse()
            answer = response.read().decode(errors="replace")
        finally:
            link.close()
        assert response.status == 200, answer
        return answer

    def rows(self, sql: str) -> list[list[Any]]:
        """The rows of an answer; integers of 64 bits as numbers."""
        found = json.loads(self.query(f"{sql} FORMAT JSONCompact", output_format_json_quote_64bit_integers=0))["data"]
        assert isinstance(found, list)
        return found

    def number(self, sql: str) -> int:
        [[n]] = self.rows(sql)
        return int(n)

    def kill(self) -> None:
        """End it at once, as a crash does."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.kill()


class HttpScript:
    """A server of HTTP that answers as ``answer`` says: it gets (statement or query, size of the body).

    It returns the bytes of the whole answer, or None: hang up.  ``requests``: statements that came, in order.
    """

    def __init__(self, answer: Callable[[str, int], bytes | None]) -> None:
        self._answer = answer
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        self.requests: list[str] = []
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def address(self) -> str:
        return f"clickhouse://127.0.0.1:{self.port}"

    def _run(self) -> None:
        while True:
            try:
                link, _ = self._socket.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(link,), daemon=True).start()

    def _serve(self, link: socket.socket) -> None:
        with link, link.makefile("rb") as f:
            while True:
                try:
                    head = [f.readline()]
                    while head[-1].strip():
                        head.append(f.readline())
                    if not head[0]:
                        return
                    size = sum(int(line.split(b":")[1]) for line in head if line.lower().startswith(b"content-length"))
                    body = f.read(size)
                    asked = head[0].decode() if b"query=" in head[0] else body.decode()
                    self.requests.append(asked)
                    answer = self._answer(asked, size)
                    if answer is None:
                        return
                    link.sendall(answer)
                    if b"Connection: close" in answer:
                        return
                except OSError:
                    return

    def close(self) -> None:
        self._socket.close()


def http_answer(body: str, status: str = "200 OK", type: str = "text/plain") -> bytes:
    head = f"HTTP/1.1 {status}\r\nContent-Type: {type}\r\nContent-Length: {len(body.encode())}\r\n\r\n"
    return head.encode() + body.encode()


def json_rows(*rows: list[Any]) -> bytes:
    return http_answer(json.dumps({"data": rows}))


def as_server(columns: dict[str, str], insert: Callable[[int], bytes | None]) -> Callable[[str, int], bytes | None]:
    """An answer function of a server that has a table with ``columns``; ``insert`` answers inserts."""

    def answer(asked: str, size: int) -> bytes | None:
        if "INSERT" in asked:
            return insert(size)
        if asked.startswith("DESCRIBE"):
            return json_rows(*([name, type, "", ""] for name, type in columns.items()))
        if "system.settings" in asked:
            return json_rows(["insert_deduplication_token"])
        if "data_type_families" in asked:
            return json_rows([1])
        return json_rows()

    return answer
