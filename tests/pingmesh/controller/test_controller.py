"""The controller over real HTTP and TLS: curl and openssl are its clients; uploads are compared with what was sent."""

from __future__ import annotations

import http.client
import json
import os
import pwd
import re
import shutil
import signal
import socket
import ssl
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import agent_lab as lab
from running import run

for package in ("starlette", "uvicorn", "prometheus_client", "cryptography"):
    pytest.importorskip(package)


@pytest.fixture
def lists(tmp_path: Path, pki: lab.Pki) -> Path:
    folder = tmp_path / "lists"
    for name in ("a1", "b1"):
        pki.sign(lab.write_list(folder, name, lab.peers_at(1, 2, 3)))
    return folder


def ask(
    url: str, path: str, method: str = "GET", body: Any = None, tls: ssl.SSLContext | None = None, **headers: str
) -> tuple[int, dict[str, str], bytes]:
    place = url.partition("://")[2]
    connection: http.client.HTTPConnection = (
        http.client.HTTPSConnection(place, context=tls, timeout=20)
        if tls
        else http.client.HTTPConnection(place, timeout=20)
    )
    try:
        connection.request(method, path, body, {k.replace("_", "-"): v for k, v in headers.items()})
        answer = connection.getresponse()
        return answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read()
    finally:
        connection.close()


def test_a_list_with_its_etag_and_a_signature_that_openssl_takes(lists: Path, pki: lab.Pki, tmp_path: Path) -> None:
    from base64 import b64decode

    with lab.controller(lists) as (_, url):
        status, headers, body = ask(url, "/v1/pinglist/a1")
        assert (status, body) == (200, (lists / "a1.yaml").read_bytes())
        (tmp_path / "sig").write_bytes(b64decode(headers["x-confluo-signature"]))
        (tmp_path / "got").write_bytes(body)
        said = lab.openssl(
            "pkeyutl",
            "-verify",
            "-pubin",
            "-inkey",
            pki("plan.pub"),
            "-rawin",
            "-in",
            tmp_path / "got",
            "-sigfile",
            tmp_path / "sig",
        )
        assert b"Verified Successfully" in said
        assert ask(url, "/v1/pinglist/a1.sig")[2] == (tmp_path / "sig").read_bytes()
        again = ask(url, "/v1/pinglist/a1", If_None_Match=headers["etag"])
        assert (again[0], again[1]["etag"], again[2]) == (304, headers["etag"], b"")
        assert ask(url, "/v1/pinglist/a1", If_None_Match='"other"')[0] == 200
        lab.write_list(lists, "a1", lab.peers_at(1, 2))
        changed = ask(url, "/v1/pinglist/a1", If_None_Match=headers["etag"])
        assert (changed[0], changed[1]["etag"] != headers["etag"]) == (200, True)
        (lists / "a1.yaml").unlink()
        assert ask(url, "/v1/pinglist/a1", If_None_Match=headers["etag"])[0] == 404
        assert ask(url, "/v1/pinglist/a1.sig")[0] == 404


@pytest.mark.parametrize(
    "path",
    [
        "/v1/pinglist/../../secret",
        "/v1/pinglist/..%2fsecret",
        "/v1/pinglist/%2e%2e%2fsecret",
        "/v1/pinglist/.secret",
        "/v1/pinglist/",
        "/v1/pinglist/a1%00",
        "/v1/pinglist/a1/b1",
        "/v1/pinglist/" + "a" * 5000,
        "/v1/pinglist/a1%0a",
        "/v1/pinglist/%ff%fe",
        "/",
        "/v1",
    ],
)
def test_nothing_else_is_given_away(lists: Path, path: str) -> None:
    (lists.parent / "secret.yaml").write_text("secret")
    (lists / ".secret.yaml").write_text("secret")
    with lab.controller(lists) as (_, url):
        status, _, body = ask(url, path)
        assert (status, b"secret" in body) == (404, False)
        assert ask(url, "/v1/pinglist/a1", "DELETE")[0] == 405
        assert ask(url, "/v1/records", "POST", b"x")[0] == 404  # without --records


def test_two_controllers_over_copies_answer_alike(lists: Path, tmp_path: Path) -> None:
    shutil.copytree(lists, tmp_path / "copy")
    with lab.controller(lists) as (_, one), lab.controller(tmp_path / "copy") as (_, two):
        answers = [ask(url, "/v1/pinglist/b1") for url in (one, two)]
        for _, headers, _ in answers:
            headers.pop("date")
        assert answers[0] == answers[1]


def test_health_is_of_the_folder_not_of_how_many_lists(lists: Path) -> None:
    """Taking the lists away stops a fleet; it must not look like a controller that is down."""
    with lab.controller(lists) as (_, url):
        assert json.loads(ask(url, "/healthz")[2]) == {"lists": 2}
        for path in lists.iterdir():
            path.unlink()
        assert (ask(url, "/healthz")[0], ask(url, "/v1/pinglist/a1")[0]) == (200, 404)
        lists.rmdir()
        assert (ask(url, "/healthz")[0], ask(url, "/v1/pinglist/a1")[0]) == (503, 500)


def test_an_expired_certificate_is_used_with_a_note(pki: lab.Pki, lists: Path, tmp_path: Path) -> None:
    """openssl ca needs files of its own to set the dates of a certificate."""
    (tmp_path / "index").touch()
    (tmp_path / "serial").write_text("77")
    (tmp_path / "new").mkdir()
    (tmp_path / "conf").write_text(f"""[ca]\ndefault_ca=own\n[own]\ndatabase={tmp_path}/index\nserial={tmp_path}/serial
new_certs_dir={tmp_path}/new\ncertificate={pki("ca.pem")}\nprivate_key={pki("ca.key")}\ndefault_md=sha256
policy=any\n[any]\ncommonName=supplied\n""")
    from confluo_tools.pingmesh.controller.tls import validity_problem

    for name, begin, end, said in (
        ("old", "20200101000000Z", "20210101000000Z", "expired on 2021-01-01T00:00:00Z"),
        ("new", "20480101000000Z", "20490101000000Z", "not valid before 2048-01-01T00:00:00Z"),
    ):
        lab.openssl(
            "ca",
            "-batch",
            "-config",
            tmp_path / "conf",
            "-in",
            pki("controller.csr"),
            "-startdate",
            begin,
            "-enddate",
            end,
            "-out",
            tmp_path / f"{name}.pem",
        )
        assert validity_problem(str(tmp_path / f"{name}.pem")).startswith(said)
        (tmp_path / "index").write_text("")
    assert validity_problem(pki("controller.pem")) == validity_problem(str(tmp_path / "none")) == ""
    with lab.controller(lists, "--cert", tmp_path / "old.pem", "--key", pki("controller.key")) as (process, _):
        assert re.search(r"old\.pem: expired on 2021-01-01T00:00:00Z: agents reject it\n", process.said)


def test_counts_are_of_answers_and_quiet_is_quiet(lists: Path) -> None:
    with lab.controller(lists) as (process, url):
        etag = ask(url, "/v1/pinglist/a1")[1]["etag"]
        ask(url, "/v1/pinglist/b1")
        ask(url, "/v1/pinglist/a1", If_None_Match=etag)
        assert process.end() == 143
    assert process.said.endswith("serve: 2 lists served, 1 requests unmodified\n")
    with socket.create_server(("127.0.0.1", 0)) as s:
        port = s.getsockname()[1]
    quiet = lab.Running("serve", lists, "--listen", f"127.0.0.1:{port}", "-q", cwd=lists.parent)
    end = time.monotonic() + 20
    while time.monotonic() < end:
        with suppress(OSError):
            assert ask(f"http://127.0.0.1:{port}", "/healthz")[0] == 200
            break
        time.sleep(0.05)
    assert (quiet.end(), quiet.said) == (143, "")


def test_metrics_are_what_prometheus_parses(lists: Path) -> None:
    from prometheus_client.parser import text_string_to_metric_families as parse

    with lab.controller(lists) as (_, url):
        for path in ("a1", "b1", "c1"):
            ask(url, f"/v1/pinglist/{path}")
        text = ask(url, "/metrics")[2].decode()
        found = {(s.name, s.labels.get("status")): s.value for f in parse(text) for s in f.samples}
    assert found["pingmesh_controller_requests_total", "200"] == 2
    assert found["pingmesh_controller_requests_total", "404"] == 1
    assert found["pingmesh_controller_lists", None] == 2


# ---------------------------------------------------------------- who may ask


def context(pki: lab.Pki, cert: str = "") -> ssl.SSLContext:
    found = ssl.create_default_context(cafile=pki("ca.pem"))
    if cert:
        found.load_cert_chain(pki(f"{cert}.pem"), pki(f"{cert}.key"))
    return found


def test_who_has_no_certificate_gets_nothing_and_who_has_one_gets_its_own(lists: Path, pki: lab.Pki) -> None:
    tls = ("--cert", pki("controller.pem"), "--key", pki("controller.key"), "--client-ca", pki("ca.pem"))
    with lab.controller(lists, *tls, "--metrics", "127.0.0.1:0") as (process, url):
        assert url.startswith("https://")
        for cert in ("", "stranger"):
            with pytest.raises((ssl.SSLError, ConnectionError, http.client.RemoteDisconnected)):
                ask(url, "/healthz", tls=context(pki, cert))
        state = "http://" + process.says(r"metrics at (\S+:\d+)")[1]
        assert [ask(state, path)[0] for path in ("/healthz", "/metrics", "/v1/pinglist/a1", "/v1/records")] == [
            200,
            200,
            404,
            404,
        ]
        mine = context(pki, "a1")
        assert ask(url, "/v1/pinglist/a1", tls=mine)[0] == 200
        for other in ("b1", "b1.sig", "nobody"):
            assert ask(url, f"/v1/pinglist/{other}", tls=mine)[0] == 403
        assert ask(url, "/v1/pinglist/a1.sig", tls=mine)[0] == 200
    with lab.controller(lists, *tls, "--any-name") as (_, url):
        assert ask(url, "/v1/pinglist/b1", tls=context(pki, "a1"))[0] == 200


def test_a_certificate_is_renewed_without_an_end(lists: Path, pki: lab.Pki, tmp_path: Path) -> None:
    def use(name: str) -> None:
        for suffix in ("pem", "key"):
            shutil.copy(pki(f"{name}.{suffix}"), tmp_path / f"now.{suffix}")

    def shown(url: str) -> bytes:
        address, port = url.removeprefix("https://").split(":")
        return ssl.get_server_certificate((address, int(port))).encode()

    use("controller")
    with lab.controller(lists, "--cert", tmp_path / "now.pem", "--key", tmp_path / "now.key") as (process, url):
        first = shown(url)
        use("elsewhere")
        os.kill(process.pid, signal.SIGHUP)
        end = time.monotonic() + 10
        while shown(url) == first:
            assert time.monotonic() < end
        second = shown(url)
        (tmp_path / "now.key").write_bytes(Path(pki("a1.key")).read_bytes())  # another's
        os.kill(process.pid, signal.SIGHUP)
        process.says("cannot load the certificate and its key: .*; the previous certificate stays in use")
        assert shown(url) == second
    want = [
        ssl.DER_cert_to_PEM_cert(ssl.PEM_cert_to_DER_cert(Path(pki(f"{name}.pem")).read_text())).encode()
        for name in ("controller", "elsewhere")
    ]
    assert [first, second] == want


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--listen", "0.0.0.0:0"], "is not loopback and has no TLS"),
        (["--listen", "nowhere:1"], "is not an address and a port"),
        (["--listen", "127.0.0.1:70000"], "has no port"),
        (["--key", "k"], "--key needs --cert"),
        (["--client-ca", "k"], "--client-ca needs --cert"),
        (["--any-name"], "--any-name needs --client-ca"),
        (["--keep", "1h"], "--keep needs --records"),
        (["--cert", "/dev/null"], "/dev/null: cannot load the certificate and its key"),
        (["--cert", "/nonexistent"], "/nonexistent"),
        (["--listen", "192.0.2.1:1", "--plain"], "192.0.2.1:1: cannot listen"),
    ],
)
def test_what_is_wrong_is_one_line(tmp_path: Path, words: list[str], said: str) -> None:
    (tmp_path / "lists").mkdir()
    done = run("confluo-pingmesh", "serve", tmp_path / "lists", *words)
    assert (done.returncode, done.stdout, done.stderr.count(b"\n")) == (2, b"", 1)
    assert said in done.stderr.decode()


def test_a_folder_that_is_none(tmp_path: Path) -> None:
    done = run("confluo-pingmesh", "serve", tmp_path / "lists")
    assert done.returncode == 2
    assert b"lists: is not a folder; confluo-pingmesh plan TOPOLOGY -w LISTS makes one" in done.stderr


# ---------------------------------------------------------------- records


@pytest.fixture(scope="module")
def probes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Records of two agents, as an Arrow stream."""
    from confluo_tools.formats.block_builder import block_of
    from confluo_tools.pingmesh.agent.upload_batch import UploadBatch
    from confluo_tools.schema import builtin

    schema = builtin("probe")
    n = 1000
    columns = {
        "ts": list(range(10**18, 10**18 + n)),
        "kind": [1] * n,
        "outcome": [1] * n,
        "rtt": list(range(n)),
        "src": ["a1"] * n,
        "dst": [f"s{i % 7}" for i in range(n)],
    }
    folder = tmp_path_factory.mktemp("probes")
    for name, src in (("mine", ["a1"] * n), ("others", ["a1"] * (n - 1) + ["b1"])):
        bundle = UploadBatch(schema)
        bundle.add(block_of(schema, columns | {"src": src}, n))
        (folder / name).write_bytes(bundle.bytes())
    (folder / "plain").write_bytes(unzipped((folder / "mine").read_bytes()))
    return folder


def unzipped(data: bytes) -> bytes:
    from zstandard import ZstdDecompressor

    return ZstdDecompressor().decompressobj().decompress(data)


def post(url: str, data: Any, upload: str = "", tls: ssl.SSLContext | None = None) -> int:
    return ask(url, "/v1/records", "POST", data, tls, X_Confluo_Upload=upload)[0]


def test_records_arrive_once_and_whole(lists: Path, probes: Path, tmp_path: Path) -> None:
    log = tmp_path / "r.ml"
    with lab.controller(lists, "--records", log) as (_, url):
        assert post(url, (probes / "mine").read_bytes(), "one") == 204
        assert post(url, (probes / "mine").read_bytes(), "one") == 204  # its answer was lost, say
        assert post(url, (probes / "plain").read_bytes(), "two") == 204
        text = ask(url, "/metrics")[2]
        assert b"pingmesh_controller_records_total 2000.0" in text
    assert lab.rows(log, "--agg", "count, sum(rtt)", "--by", "dst") == [
        [f"s{k}", str(2 * len(range(k, 1000, 7))), str(2 * sum(range(k, 1000, 7)))] for k in range(7)
    ]
    with lab.controller(lists, "--records", log, "--append") as (_, url):  # and after a restart
        assert post(url, (probes / "plain").read_bytes(), "two") == 204  # names of uploads are not kept
    assert lab.rows(log, "--count") == [["3000"]]
    again = run("confluo-pingmesh", "serve", lists, "--records", log)
    assert (again.returncode, again.stderr.count(b"\n")) == (2, 1)
    assert b"--append adds to it" in again.stderr


def test_records_that_are_not_whole_leave_nothing(lists: Path, probes: Path, tmp_path: Path) -> None:
    good, zipped = (probes / "plain").read_bytes(), (probes / "mine").read_bytes()
    other = run(
        "confluo-capture",
        "-r",
        Path(__file__).resolve().parents[3] / "examples/data/campus.pcap.gz",
        "-c",
        "9",
        "-o",
        "stream",
    ).stdout
    assert other
    log = tmp_path / "r.ml"
    with lab.controller(lists, "--records", log) as (_, url):
        for data in (
            b"",
            b"garbage" * 99,
            good[: len(good) // 2],
            good[:-8],
            zipped[: len(zipped) // 2],
            other,
            good + b"more",
            good[:5000] + os.urandom(99) + good[5099:6000],
        ):
            assert post(url, data) == 400, data[:20]
        assert post(url, good) == 204
    assert lab.rows(log, "--count") == [["1000"]]


def test_an_invalid_upload_leaves_no_descriptor() -> None:
    from confluo_tools.errors import FormatError
    from confluo_tools.pingmesh.controller.asgi_app import RecordReceiver

    receiver = RecordReceiver(lambda blocks: None)
    before = len(os.listdir("/proc/self/fd"))
    for data in (b"", b"garbage" * 99, b"\xff\xff\xff\xff" + b"x" * 99):
        fd = os.memfd_create("upload", os.MFD_CLOEXEC)
        os.write(fd, data)
        os.lseek(fd, 0, os.SEEK_SET)
        with pytest.raises(FormatError):
            receiver.accept(fd, "", None)
    assert len(os.listdir("/proc/self/fd")) == before


def test_what_is_too_large_is_not_kept_in_memory(lists: Path, tmp_path: Path) -> None:
    """100 GB that were compressed to a few MB, and an upload that does not end."""
    from zstandard import ZstdCompressor

    bomb = ZstdCompressor(level=1).compressobj()
    zeros = bytes(1 << 20)
    data = b"".join([bomb.compress(zeros) for _ in range(2000)]) + bomb.flush()
    with lab.controller(lists, "--records", tmp_path / "r.ml") as (process, url):
        assert post(url, data) == 400

        def endless() -> Iterator[bytes]:
            while True:
                yield zeros

        with suppress(BrokenPipeError, ConnectionResetError):  # it may hang up while we are sending
            assert post(url, endless()) == 413
        status = Path(f"/proc/{process.pid}/status").read_text()
        assert int(status.partition("VmHWM:")[2].split()[0]) < 400_000
        assert ask(url, "/healthz")[0] == 200


def test_an_agent_sends_only_records_of_its_own(lists: Path, probes: Path, pki: lab.Pki, tmp_path: Path) -> None:
    tls = ("--cert", pki("controller.pem"), "--key", pki("controller.key"), "--client-ca", pki("ca.pem"))
    with lab.controller(lists, *tls, "--records", tmp_path / "r.ml") as (_, url):
        assert post(url, (probes / "mine").read_bytes(), tls=context(pki, "a1")) == 204
        assert post(url, (probes / "others").read_bytes(), tls=context(pki, "a1")) == 403
        assert post(url, (probes / "mine").read_bytes(), tls=context(pki, "elsewhere")) == 403
    assert lab.rows(tmp_path / "r.ml", "--count") == [["1000"]]


@pytest.mark.root
def test_as_nobody_it_does_all_the_same(probes: Path, pki: lab.Pki) -> None:
    """What it needs was loaded before: Python itself may be where only root can read."""
    if os.geteuid():
        pytest.skip("needs root")
    base = Path(tempfile.mkdtemp(prefix="confluo-serve-"))
    try:
        base.chmod(0o755)
        lab.write_list(base / "lists", "a1", lab.peers_at(1))
        tls = ("--cert", pki("controller.pem"), "--key", pki("controller.key"), "--client-ca", pki("ca.pem"))
        with lab.controller(base / "lists", *tls, "--records", base / "r.ml", "-Z", "nobody") as (process, url):
            status = Path(f"/proc/{process.pid}/status").read_text()
            assert "CapPrm:\t0000000000000000" in status
            assert f"Uid:\t{pwd.getpwnam('nobody').pw_uid}" in status
            mine = context(pki, "a1")
            got = ask(url, "/v1/pinglist/a1", tls=mine)
            assert got[0] == 200
            assert ask(url, "/v1/pinglist/a1", tls=mine, If_None_Match=got[1]["etag"])[0] == 304
            assert post(url, (probes / "mine").read_bytes(), "one", tls=mine) == 204
            assert post(url, (probes / "others").read_bytes(), "two", tls=mine) == 403
            assert post(url, b"garbage", tls=mine) == 400
            assert ask(url, "/metrics", tls=mine)[0] == 200
        assert lab.rows(base / "r.ml", "--count") == [["1000"]]
    finally:
        shutil.rmtree(base)


# ---------------------------------------------------------------- clients that do not behave


@pytest.fixture
def service(lists: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, int]]:
    from confluo_tools.endpoint import listen_address
    from confluo_tools.pingmesh.controller import asgi_app, http_server

    monkeypatch.setattr(http_server, "HEADER_TIME", 0.5)
    monkeypatch.setattr(asgi_app, "UPLOAD_TIME", 0.5)
    sock = listen_address.listen("127.0.0.1", 0)
    at = sock.getsockname()
    apps = asgi_app.make_apps(asgi_app.PinglistStore(str(lists)), asgi_app.RecordReceiver(lambda blocks: None))
    one = http_server.HttpService(apps.main, [sock], None)
    thread = threading.Thread(target=one.run)
    thread.start()
    try:
        yield at
    finally:
        one.stop()
        thread.join(20)
        sock.close()


@pytest.mark.parametrize(
    "said", [b"", b"GET /v1/pinglist/a1 HT", b"\x16\x03\x01" * 9, b"GET / HTTP/1.1\r\nX: " + b"x" * 99999]
)
def test_who_does_not_say_what_he_wants_is_hung_up_on(service: tuple[str, int], said: bytes) -> None:
    with socket.create_connection(service, timeout=10) as s:
        try:
            s.sendall(said)
            while s.recv(4096):
                pass
        except ConnectionError:
            pass
    assert ask(f"http://{service[0]}:{service[1]}", "/healthz")[0] == 200


def test_an_upload_that_takes_too_long_is_given_up(service: tuple[str, int]) -> None:
    with socket.create_connection(service, timeout=10) as s:
        s.sendall(b"POST /v1/records HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nabc")
        assert s.recv(4096).startswith(b"HTTP/1.1 408 ")
        assert s.recv(4096) in (b"", b"\n")


def test_uploads_beyond_eight_at_once_are_asked_to_come_again(service: tuple[str, int]) -> None:
    sockets = [socket.create_connection(service, timeout=10) for _ in range(9)]
    try:
        for s in sockets[:8]:
            s.sendall(b"POST /v1/records HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nabc")
        time.sleep(0.2)
        sockets[8].sendall(b"POST /v1/records HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n")
        assert sockets[8].recv(4096).startswith(b"HTTP/1.1 429 ")
    finally:
        for s in sockets:
            s.close()
