"""Clients of the controller that come in crowds, stay, or send little that becomes much."""

from __future__ import annotations

import os
import resource
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from test_controller import ask, post, unzipped

import agent_lab as lab
import netns
from confluo_tools.errors import ConfluoError

for package in ("starlette", "uvicorn", "prometheus_client", "cryptography"):
    pytest.importorskip(package)


@pytest.fixture
def lists(tmp_path: Path) -> Path:
    lab.write_list(tmp_path / "lists", "a1", lab.peers_at(1, 2, 3))
    return tmp_path / "lists"


@pytest.mark.parametrize("secret", [False, True])
def test_more_connections_than_descriptors(lists: Path, pki: lab.Pki, secret: bool) -> None:
    """The oldest of those who say nothing make room; nothing is written about any of them."""
    words = ("--cert", pki("controller.pem"), "--key", pki("controller.key"), "--client-ca", pki("ca.pem"))
    tls = ssl.create_default_context(cafile=pki("ca.pem"))
    tls.load_cert_chain(pki("a1.pem"), pki("a1.key"))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with lab.controller(lists, *(words if secret else ())) as (process, url), ExitStack() as stack:
        resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (200, 200))  # after it has counted on more
        host, port = url.partition("://")[2].split(":")
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(2048, hard)), hard))
        for _ in range(600):
            stack.enter_context(socket.create_connection((host, int(port)), timeout=10))
        assert ask(url, "/v1/pinglist/a1", tls=tls if secret else None)[0] == 200
        assert len(os.listdir(f"/proc/{process.pid}/fd")) <= 200
        assert process.said.count("\n") == 1, process.said[-2000:]


def test_little_that_becomes_much(lists: Path, tmp_path: Path) -> None:
    """Rows of one column, a byte each before they are compressed, would be whole records in the log."""
    import io

    import pyarrow as pa
    from zstandard import ZstdCompressor

    from confluo_tools.formats.block_builder import block_of
    from confluo_tools.pingmesh.agent.upload_batch import UploadBatch
    from confluo_tools.schema import builtin

    bundle = UploadBatch(builtin("probe"))
    bundle.add(block_of(builtin("probe"), {"ts": [1]}, 1))
    known = pa.ipc.open_stream(io.BytesIO(unzipped(bundle.bytes()))).schema
    narrow = pa.schema([known.field("kind")], metadata=known.metadata)

    def stream(batches: int) -> bytes:
        out = io.BytesIO()
        with pa.ipc.new_stream(out, narrow) as writer:
            batch = pa.record_batch([pa.array([1] * 100_000, pa.uint8())], schema=narrow)
            for _ in range(batches):
                writer.write_batch(batch)
        return ZstdCompressor().compress(out.getvalue())

    much = stream(500)
    assert len(much) < 1 << 20
    with lab.controller(lists, "--records", tmp_path / "r.ml") as (_, url):
        assert post(url, much) == 400
        assert post(url, stream(1)) == 204
    assert lab.rows(tmp_path / "r.ml", "--count") == [["100000"]]


@pytest.fixture
def impatient(lists: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, int]]:
    """A controller in this process with a short LIFE and lists of 8 MB."""
    from confluo_tools.endpoint import listen_address
    from confluo_tools.pingmesh.controller import asgi_app, http_server

    monkeypatch.setattr(http_server, "LIFE", 0.5)
    monkeypatch.setattr(http_server, "LAST", 1.0)
    (lists / "b1.yaml").write_bytes(b"x" * (8 << 20))
    sock = listen_address.listen("127.0.0.1", 0)
    at = sock.getsockname()
    one = http_server.HttpService(asgi_app.make_apps(asgi_app.PinglistStore(str(lists)), None).main, [sock], None)
    thread = threading.Thread(target=one.run)
    thread.start()
    try:
        yield at
    finally:
        one.stop()
        thread.join(20)
        sock.close()


def test_who_does_not_read_his_answer_is_hung_up_on(impatient: tuple[str, int]) -> None:
    with socket.socket() as s:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        s.settimeout(10)
        s.connect(impatient)
        s.sendall(b"GET /v1/pinglist/b1 HTTP/1.1\r\nHost: x\r\n\r\n")
        time.sleep(3)  # longer than it may live
        assert received(s) < 8 << 20


def test_a_connection_is_over_some_day(impatient: tuple[str, int]) -> None:
    """Requests that follow each other closely do not keep a connection open longer than LIFE."""
    with socket.create_connection(impatient, timeout=10) as s:
        answers = 0
        try:
            while answers < 100:
                s.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
                if not s.recv(4096):
                    break
                answers += 1
                time.sleep(0.1)
        except ConnectionError:
            pass
        assert 0 < answers < 100


def received(s: socket.socket) -> int:
    size = 0
    try:
        while piece := s.recv(1 << 16):
            size += len(piece)
    except ConnectionError:
        pass
    return size


def test_an_agent_has_no_more_than_two_uploads_at_once(lists: Path, pki: lab.Pki, tmp_path: Path) -> None:
    """One that sends a byte now and then takes no room from the others."""
    words: tuple[Any, ...] = (
        "--cert",
        pki("controller.pem"),
        "--key",
        pki("controller.key"),
        "--client-ca",
        pki("ca.pem"),
        "--records",
        tmp_path / "r.ml",
    )
    tls = ssl.create_default_context(cafile=pki("ca.pem"))
    tls.load_cert_chain(pki("a1.pem"), pki("a1.key"))
    with lab.controller(lists, *words) as (_, url), ExitStack() as stack:
        host, port = url.partition("://")[2].split(":")
        for _ in range(2):
            s = stack.enter_context(socket.create_connection((host, int(port)), timeout=10))
            slow = stack.enter_context(tls.wrap_socket(s, server_hostname=host))
            slow.sendall(b"POST /v1/records HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nabc")
        time.sleep(0.5)
        assert post(url, b"", tls=tls) == 429
        slow.close()
        end = time.monotonic() + 10
        while (status := post(url, b"", tls=tls)) == 429 and time.monotonic() < end:
            time.sleep(0.1)
        assert status == 400  # it was looked at


@pytest.mark.root
def test_an_address_of_a_link() -> None:
    """Its scope is part of it: without, the kernel refuses it."""
    from confluo_tools.endpoint import listen_address
    from confluo_tools.pingmesh.probe.responder import ListenAddress, Responder

    if netns.missing():
        pytest.skip(netns.missing())
    with netns.Lab() as laboratory:
        a, _ = laboratory.pair()
        a.run("sh", "-c", "echo 0 >/proc/sys/net/ipv6/conf/v0/disable_ipv6")
        a.ip("addr", "add", "fe80::7/64", "dev", "v0", "nodad")
        with a.inside():
            with listen_address.listen(*listen_address.parse("[fe80::7%v0]:0", "--listen")) as s:
                assert s.getsockname()[3] == socket.if_nametoindex("v0")
            with pytest.raises(ConfluoError, match="is a link-local address"):
                Responder([ListenAddress("fe80::7", 0)])
