"""Fetching a list from controllers that answer slowly, with garbage, without end, or with what is forged."""

from __future__ import annotations

import json
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

import agent_lab as lab
from confluo_tools.errors import UsageError
from confluo_tools.pingmesh.agent.controller_client import Controller, _connect, check_place, fetch, send
from confluo_tools.pingmesh.plan.pinglist_file import read_pinglist
from running import run

pytest.importorskip("cryptography")
DEADLINE = 2.0


@contextmanager
def hostile(answer: Callable[[socket.socket], None], tls: ssl.SSLContext | None = None) -> Iterator[Controller]:
    """A controller that does what it likes with each connection."""
    ended = threading.Event()
    server = socket.create_server(("127.0.0.1", 0))
    server.settimeout(0.1)

    def work() -> None:
        while not ended.is_set():
            with suppress(OSError):
                one, _ = server.accept()
                one.settimeout(0.2)
                with suppress(OSError), one:
                    talk = tls.wrap_socket(one, server_side=True) if tls is not None else one
                    with talk:
                        answer(talk)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield Controller((f"http{'s' if tls else ''}://127.0.0.1:{server.getsockname()[1]}",))
    finally:
        ended.set()
        thread.join()
        server.close()


def plain(*pieces: bytes, pause: float = 0.0) -> Callable[[socket.socket], None]:
    def answer(s: socket.socket) -> None:
        s.recv(4096)
        for piece in pieces:
            s.sendall(piece)
            time.sleep(pause)

    return answer


def silent(s: socket.socket) -> None:
    time.sleep(DEADLINE + 1.5)


def drips(s: socket.socket) -> None:
    """A byte of a header now and then: each read is in time, all of them are not."""
    s.sendall(b"HTTP/1.1 200 OK\r\nX-A: ")
    for _ in range(40):
        s.sendall(b"a")
        time.sleep(0.1)


def drips_body(s: socket.socket) -> None:
    s.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
    for _ in range(40):
        s.sendall(b"a")
        time.sleep(0.1)


def endless(s: socket.socket) -> None:
    """10 GB, as they say."""
    s.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 10737418240\r\n\r\n")
    while True:
        s.sendall(bytes(1 << 20))


def endless_header(s: socket.socket) -> None:
    s.sendall(b"HTTP/1.1 200 OK\r\n")
    while True:
        s.sendall(b"X-A: " + b"a" * 60000 + b"\r\n")


def ok(body: bytes, *more: bytes) -> Callable[[socket.socket], None]:
    head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n" % len(body)
    return plain(b"".join([head, *more, b"\r\n", body]))


@pytest.mark.parametrize(
    ("answer", "kind", "words"),
    [
        (silent, "lost", "no answer within "),
        (drips, "lost", "no answer within "),
        (drips_body, "lost", "no answer within "),
        (endless, "bad", "exceeds 16 MiB"),
        (endless_header, "lost", ""),
        (plain(), "lost", ""),
        (plain(b"SSH-2.0-OpenSSH_9.2\r\n"), "lost", ""),
        (
            plain(b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\nabc"),
            "lost",
            "closed the connection before the end of its response",
        ),
        (
            plain(b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n"),
            "lost",
            "returned 302",
        ),
        (plain(b"HTTP/1.1 401 No\r\nContent-Length: 0\r\n\r\n"), "lost", "returned 401"),
        (plain(b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n"), "lost", "returned 503"),
        (plain(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"), "missing", "has no list for a1"),
        (plain(b"HTTP/1.1 410 Gone\r\nContent-Length: 0\r\n\r\n"), "missing", "has no list for a1"),
        (ok(b""), "empty", "has an empty list"),
        (ok(b" \n"), "empty", "has an empty list"),
        (ok(b"<html>log in, please</html>"), "bad", ""),
        (ok(b"- " * 100_000), "bad", ""),
        (ok(b"&a [" * 20_000), "bad", ""),  # deep enough for a parser in C to die of it
        (ok(bytes(5000)), "bad", ""),
        (ok(b"\x28\xb5\x2f\xfd" + bytes(50)), "bad", ""),
    ],
)
def test_what_controllers_may_do(answer: Callable[[socket.socket], None], kind: str, words: str) -> None:
    deadline = 10 * DEADLINE if answer is endless else DEADLINE  # 16 MiB take their time on a busy machine
    with hostile(answer) as at:
        before = time.monotonic()
        reply = fetch(at, "a1", deadline=deadline)
        took = time.monotonic() - before
    assert (reply.kind, words in reply.detail, reply.pinglist) == (kind, True, None), reply
    if words == "no answer within ":  # its share of the deadline
        assert 0 < float(reply.detail.partition(words)[2].removesuffix(" s")) <= DEADLINE
    assert "\n" not in reply.detail
    assert took < deadline + 5  # 1 s of grace, and a busy machine


def deaf() -> tuple[socket.socket, socket.socket]:
    """A place where SYNs are dropped, as at a host that is down: its queue is full."""
    server = socket.socket()
    server.bind(("127.0.0.1", 0))
    server.listen(0)
    return server, socket.create_connection(server.getsockname())


def test_a_controller_that_is_down_leaves_the_next_one_its_time(folder: Path) -> None:
    server, only = deaf()
    with server, only, lab.controller(folder) as (_, url):
        dead = f"http://127.0.0.1:{server.getsockname()[1]}"
        reply = fetch(Controller((dead, dead, url)), "a1", deadline=9)
        assert (reply.kind, len(reply.pinglist.peers if reply.pinglist else ())) == ("list", 3), reply
        assert send(Controller((dead, url)), b"x", "", deadline=6).detail.startswith(f"{url} returned 404")
        reply = fetch(Controller((url, dead)), "nobody", deadline=3)
        assert reply.kind == "missing"


def test_a_name_with_many_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some addresses are of hosts that are down, or of a family that this host lacks."""
    server, only = deaf()
    with server, only, socket.create_server(("127.0.0.1", 0)) as good:
        dead, at = server.getsockname(), good.getsockname()
        inet = (socket.AF_INET, socket.SOCK_STREAM, 0, "")
        asked = monkeypatch.setattr
        asked(socket, "getaddrinfo", lambda *a: [(77, 1, 0, "", ("x", 1)), (*inet, dead), (*inet, dead), (*inet, at)])
        with _connect("controllers", 1, time.monotonic() + 4) as s:
            assert s.getpeername() == at
        asked(socket, "getaddrinfo", lambda *a: [(*inet, dead)] * 3)
        with pytest.raises(TimeoutError):
            _connect("controllers", 1, time.monotonic() + 0.3)
        asked(socket, "getaddrinfo", lambda *a: time.sleep(3))
        with pytest.raises(OSError, match="cannot resolve controllers"):
            _connect("controllers", 1, time.monotonic() + 0.3)


def test_children_stay_small() -> None:
    """The largest one of a process that is sent 10 GB, in KiB."""
    script = """
import resource, sys
from confluo_tools.pingmesh.agent.controller_client import Controller, fetch
print(fetch(Controller((sys.argv[1],)), "a1").kind, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""
    with hostile(endless) as at:
        done = subprocess.run([sys.executable, "-c", script, at.places[0]], capture_output=True, check=True, timeout=60)
    kind, most = done.stdout.split()
    assert kind == b"bad"
    assert 10_000 < int(most) < 150_000


def test_a_child_ends_without_its_parent() -> None:
    """Its parent is gone, and its controller sends a byte now and then for ever."""

    def for_ever(s: socket.socket) -> None:
        s.sendall(b"HTTP/1.1 200 OK\r\nX-A: ")
        while True:
            s.sendall(b"a")
            time.sleep(0.1)

    with hostile(for_ever) as at:
        told = {"do": "fetch", "name": "a1", "etag": "", "deadline": 0.5, **at._asdict()}
        child = subprocess.Popen(
            [sys.executable, "-m", "confluo_tools.pingmesh.agent.controller_client"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert child.communicate(json.dumps(told).encode() + b"\n", timeout=15)[0] == b""
        assert child.returncode == -signal.SIGALRM


def test_no_process_is_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*words: object, **more: object) -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(subprocess, "Popen", none)
    reply = fetch(Controller(("http://127.0.0.1:1",)), "a1")
    assert (reply.kind, reply.detail) == ("lost", "cannot start a process: Resource temporarily unavailable")


def test_a_closed_port() -> None:
    with socket.create_server(("127.0.0.1", 0)) as s:
        port = s.getsockname()[1]
    reply = fetch(Controller((f"http://127.0.0.1:{port}",)), "a1")
    assert (reply.kind, reply.detail) == ("lost", f"127.0.0.1:{port}: Connection refused")
    assert fetch(Controller(("https://no.such.host.invalid:1",)), "a1").kind == "lost"
    assert send(Controller((f"http://127.0.0.1:{port}",)), b"x", "u").kind == "lost"


# ---------------------------------------------------------------- lists


@pytest.fixture
def folder(tmp_path: Path, pki: lab.Pki) -> Path:
    pki.sign(lab.write_list(tmp_path / "lists", "a1", lab.peers_at(1, 2, 3, interval=10**10)))
    return tmp_path / "lists"


def trusting(folder: Path | str, pki: lab.Pki, **more: object) -> Controller:
    return Controller((str(folder),), trust=Path(pki("plan.pub")).read_text(), **more)  # type: ignore[arg-type]


def test_a_list_comes_as_it_was_written(folder: Path, pki: lab.Pki) -> None:
    reply = fetch(trusting(folder, pki), "a1")
    assert reply.kind == "list"
    assert reply.pinglist == read_pinglist(str(folder / "a1.yaml"))
    assert fetch(trusting(folder, pki), "a1", reply.etag).kind == "same"
    with lab.controller(folder) as (_, url):
        again = fetch(trusting(url, pki), "a1")
        assert (again.kind, again.pinglist) == ("list", reply.pinglist)
        assert fetch(trusting(url, pki), "a1", again.etag).kind == "same"
        assert fetch(trusting(url, pki), "b1").kind == "missing"
        lost = Controller(("http://127.0.0.1:1", url))  # the next controller is tried
        assert fetch(lost, "a1").kind == "list"


def test_a_list_in_arrow_is_the_same(folder: Path, tmp_path: Path) -> None:

    for form in ("yaml", "arrow"):
        done = run(
            "confluo-pingmesh",
            "plan",
            Path(__file__).resolve().parents[3] / "examples/pingmesh/topology.yaml",
            "-o",
            form,
            "-w",
            tmp_path / form,
        )
        assert done.returncode == 0, done.stderr
    found = [fetch(Controller((str(tmp_path / form),)), "disk01").pinglist for form in ("yaml", "arrow")]
    assert found[0] is not None
    assert found[0].peers
    assert found[0].version == found[1].version  # type: ignore[union-attr]
    assert set(found[0].peers) == set(found[1].peers)  # type: ignore[union-attr]
    with lab.controller(tmp_path / "arrow") as (_, url):
        assert fetch(Controller((url,)), "disk01").pinglist == found[1]


def test_what_is_not_signed_by_the_key_is_refused(folder: Path, pki: lab.Pki) -> None:
    at, path, signature = trusting(folder, pki), folder / "a1.yaml", folder / "a1.sig"
    lab.write_list(folder, "a1", lab.peers_at(4, interval=10**10))  # a sound list, with another's signature
    assert fetch(at, "a1").detail == "the signature of the list is not by the trusted key"
    pki.sign(path, "forger")
    assert fetch(at, "a1").kind == "bad"
    pki.sign(path)
    assert fetch(at, "a1").kind == "list"
    signature.write_bytes(signature.read_bytes()[:63])
    assert fetch(at, "a1").kind == "bad"
    signature.unlink()
    reply = fetch(at, "a1")
    assert (reply.kind, reply.detail) == ("bad", "the list is not signed")
    assert fetch(Controller((str(folder),)), "a1").kind == "list"  # without --trust any list is accepted
    with lab.controller(folder) as (_, url):
        assert fetch(trusting(url, pki), "a1").detail == "the list is not signed"
        pki.sign(path)
        assert fetch(trusting(url, pki), "a1").kind == "list"


def test_a_good_list_of_another_server_is_refused(folder: Path, pki: lab.Pki) -> None:
    """Signed, whole, and given to the wrong one."""
    for suffix in (".yaml", ".sig"):
        (folder / f"b1{suffix}").write_bytes((folder / f"a1{suffix}").read_bytes())
    reply = fetch(trusting(folder, pki), "b1")
    assert (reply.kind, reply.detail) == ("bad", f"{folder} sent the list of a1")


@pytest.mark.parametrize("cut", [1, 10, 100, 200, -2, -5, -50])
def test_a_list_that_was_cut_is_refused(folder: Path, cut: int) -> None:
    path = folder / "a1.yaml"
    path.write_bytes(path.read_bytes()[:cut].rstrip())
    whole = fetch(Controller((str(folder),)), "a1")
    assert whole.kind == "bad", cut


def test_limits_are_refused_not_rounded(folder: Path) -> None:
    lab.write_list(folder, "a1", lab.peers_at(1, interval=10**10 - 1))
    reply = fetch(Controller((str(folder),)), "a1")
    assert (reply.kind, "the minimum is 10 s" in reply.detail) == ("bad", True)
    assert fetch(Controller((str(folder),), lab=True), "a1").kind == "list"
    lab.write_list(folder, "a1", lab.peers_at(1, interval=10**10, payload=(64 << 10) + 1))
    reply = fetch(Controller((str(folder),)), "a1")
    assert (reply.kind, "0 to 65536 B are valid" in reply.detail) == ("bad", True)


def test_a_list_without_peers_is_empty(folder: Path) -> None:
    lab.write_list(folder, "a1", ())
    assert fetch(Controller((str(folder),)), "a1").kind == "empty"


def test_a_list_with_too_many_peers_is_refused(folder: Path) -> None:
    peers = [p for port in range(1, 20_002) for p in lab.peers_at(port, interval=10**10)]
    lab.write_list(folder, "a1", peers)
    reply = fetch(Controller((str(folder),)), "a1", deadline=30)
    assert (reply.kind, "20001 peers; the maximum is 20000" in reply.detail) == ("bad", True)


# ---------------------------------------------------------------- trust


def test_certificates(folder: Path, pki: lab.Pki) -> None:
    words = ("--client-ca", pki("ca.pem"), "--any-name")
    ours = {"ca": pki("ca.pem"), "cert": pki("a1.pem"), "key": pki("a1.key")}
    with lab.controller(folder, "--cert", pki("controller.pem"), "--key", pki("controller.key"), *words) as (_, url):
        assert fetch(Controller((url,), **ours), "a1").kind == "list"
        reply = fetch(Controller((url,), ca=pki("ca.pem")), "a1")  # it wants to see who asks
        assert (reply.kind, "it may require a certificate (--cert)" in reply.detail) == ("lost", True), reply
        reply = fetch(Controller((url,), **ours | {"cert": pki("stranger.pem"), "key": pki("stranger.key")}), "a1")
        assert (reply.kind, "it may reject our certificate" in reply.detail) == ("lost", True), reply
        reply = fetch(Controller((url,), **ours | {"ca": pki("other.pem")}), "a1")
        assert (reply.kind, "certificate verification failed" in reply.detail) == ("lost", True)
        assert fetch(Controller((url,)), "a1").kind == "lost"  # the system does not know it
    shown = ("--cert", pki("controller.pem"), "--key", pki("controller.key"))
    with lab.controller(folder, *shown, *words[:2]) as (_, url):
        reply = fetch(Controller((url,), **ours), "b1")
        assert reply.detail == f"{url} returned 403 the certificate is for another agent"
    with lab.controller(folder, "--cert", pki("elsewhere.pem"), "--key", pki("elsewhere.key")) as (_, url):
        reply = fetch(Controller((url,), ca=pki("ca.pem")), "a1")
        assert (reply.kind, "certificate verification failed" in reply.detail) == ("lost", True)


@pytest.mark.parametrize(
    ("text", "signed", "good"),
    [
        ("https://pingmesh:8443", False, True),
        ("https://[::1]:8443/", False, True),
        ("http://127.0.0.1:1", False, True),
        ("http://localhost", False, True),
        ("http://[::1]:1", False, True),
        ("http://10.0.0.1:1", False, False),
        ("http://pingmesh:1", False, False),
        ("http://pingmesh:1", True, True),
        ("ftp://x", True, False),
        ("https://", True, False),
        ("https://x:99999", True, False),
        ("https://u:p@x", True, False),
        ("https://x/?a", True, False),
        ("http://127.0.0.1.example.com", False, False),
        ("lists", False, True),
    ],
)
def test_places_to_ask(text: str, signed: bool, good: bool) -> None:
    if good:
        assert check_place(text, signed=signed)
    else:
        with pytest.raises(UsageError, match="--controller"):
            check_place(text, signed=signed)


@pytest.mark.parametrize("form", ["yaml", "arrow"])
@pytest.mark.parametrize("algo", ["mesh", "ring:2"])
def test_a_list_says_where_its_server_is(tmp_path: Path, form: str, algo: str) -> None:
    """Also that of a server alone in its pod."""
    (tmp_path / "t.yaml").write_text("dcs: {d: {s: {p1: {a: 10.0.0.1}, p2: {b: 10.0.0.2, c: 10.0.0.3}}}}\n")
    done = run("confluo-pingmesh", "plan", tmp_path / "t.yaml", "--algo", algo, "-o", form, "-w", tmp_path / "l")
    assert done.returncode == 0, done.stderr
    for name, pod in (("a", "p1"), ("b", "p2"), ("c", "p2")):
        found = fetch(Controller((str(tmp_path / "l"),)), name).pinglist
        assert found is not None
        assert found.place == (pod, "s", "d")
        assert found == read_pinglist(str(tmp_path / "l" / f"{name}.{form}"))
