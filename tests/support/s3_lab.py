"""A server of S3 on loopback for tests (moto), and a relay before it that counts requests and breaks some."""

from __future__ import annotations

import http.client
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from html import unescape
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

SERVER = """
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
import sys
sys.stdin.read()  # until the tests end
"""


class Request(NamedTuple):
    method: str
    path: str  # with the query
    range: str
    sent: int  # bytes of the answer
    key: str  # the key id that signed it


Fault = Callable[[str, str, str], Any]


class Relay:
    """Passes requests on to ``port``.  ``log``: what it saw.

    ``fault(method, path, range)``: None, a (status, code) to answer instead, a number of bytes after which the answer
    ends, or a text: ``hang``.  ``delay``: seconds before each answer.  ``denied``: key ids that may read nothing.
    """

    def __init__(self, port: int) -> None:
        self.upstream, self.log, self.delay = port, list[Request](), 0.0
        self.fault: Fault | None = None
        self.denied: set[str] = set()
        self.ended = threading.Event()
        relay = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *args: Any) -> None:
                pass

            def do_GET(self) -> None:
                relay.serve(self)

            do_HEAD = do_PUT = do_POST = do_DELETE = do_GET

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()

    def serve(self, ask: BaseHTTPRequestHandler) -> None:
        body = ask.rfile.read(int(ask.headers.get("content-length", 0)))
        wanted = ask.headers.get("range", "")
        key = ask.headers.get("authorization", "").partition("Credential=")[2].partition("/")[0]
        fault = self.fault(ask.command, ask.path, wanted) if self.fault is not None else None
        if key in self.denied:
            fault = (403, "AccessDenied")
        if fault == "hang":
            self.ended.wait(60)
            ask.close_connection = True
            return
        if isinstance(fault, tuple):
            status, headers, data = fault[0], [], f"<Error><Code>{fault[1]}</Code></Error>".encode()
        else:
            upstream = http.client.HTTPConnection("127.0.0.1", self.upstream, timeout=30)
            upstream.request(ask.command, ask.path, body, dict(ask.headers.items()))
            answer = upstream.getresponse()
            status, headers, data = answer.status, answer.getheaders(), answer.read()
            upstream.close()
        if self.delay:
            time.sleep(self.delay)
        cut = data[:fault] if isinstance(fault, int) else data
        self.log.append(Request(ask.command, ask.path, wanted, len(cut), key))
        ask.send_response_only(status)
        for name, value in headers:
            if name.lower() not in ("content-length", "connection", "transfer-encoding"):
                ask.send_header(name, value)
        length = {n.lower(): v for n, v in headers}.get("content-length") if ask.command == "HEAD" else None
        ask.send_header("content-length", length or str(len(data)))
        ask.end_headers()
        if ask.command != "HEAD":
            ask.wfile.write(cut)
        if len(cut) < len(data):
            ask.close_connection = True

    def close(self) -> None:
        self.ended.set()
        self._server.shutdown()
        self._server.server_close()


class S3Server:
    """A server that runs, with a relay before it.  ``env``: the environment of commands that use it."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline())
        self.relay = Relay(self.port)
        self._made = 0
        self.env = {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.relay.port}",
            "AWS_ACCESS_KEY_ID": "testkey",
            "AWS_SECRET_ACCESS_KEY": "testsecret",
            "AWS_REGION": "us-east-1",
        }

    def _ask(self, method: str, path: str, body: bytes = b"", **headers: str) -> tuple[int, bytes]:
        upstream = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        auth = "AWS4-HMAC-SHA256 Credential=a/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=0"
        upstream.request(method, path, body, {"Authorization": auth, **headers})
        answer = upstream.getresponse()
        data = answer.read()
        upstream.close()
        return answer.status, data

    def bucket(self) -> str:
        """The name of a new bucket."""
        self._made += 1
        name = f"bucket-{self._made}"
        assert self._ask("PUT", f"/{name}")[0] == 200
        return name

    def put(self, bucket: str, key: str, data: bytes, **headers: str) -> None:
        assert self._ask("PUT", f"/{bucket}/{quote(key)}", data, **headers)[0] == 200

    def put_archive(self, bucket: str, name: str, folder: str) -> str:
        """An archive of this host as objects of a bucket: its URL."""
        for file in sorted(path for path in Path(folder).rglob("*") if path.is_file() and path.name != "lock"):
            self.put(bucket, f"{name}/{file.relative_to(folder)}", file.read_bytes())
        return f"s3://{bucket}/{name}/"

    def get(self, bucket: str, key: str) -> bytes:
        status, data = self._ask("GET", f"/{bucket}/{quote(key)}")
        assert status == 200, (status, key)
        return data

    def delete(self, bucket: str, key: str) -> None:
        assert self._ask("DELETE", f"/{bucket}/{quote(key)}")[0] == 204

    def keys(self, bucket: str) -> list[str]:
        """The keys of all objects."""
        status, data = self._ask("GET", f"/{bucket}?list-type=2")
        assert status == 200
        assert b"<IsTruncated>false" in data
        return [unescape(key) for key in re.findall("<Key>([^<]*)</Key>", data.decode())]

    def close(self) -> None:
        self.relay.close()
        self._process.communicate(timeout=30)
