"""Probes of web servers, against servers that we did not write and some that misbehave."""

from __future__ import annotations

import errno
import http.server
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from certificates import make_certificate
from confluo_tools.errors import UsageError
from confluo_tools.formats.block_builder import address_columns, block_of_rows
from confluo_tools.pingmesh.probe import http_prober
from confluo_tools.pingmesh.probe.http_prober import (
    GARBLED,
    LOCAL,
    OK,
    REFUSED,
    RESET,
    TIMEOUT,
    UNREACHABLE,
    HttpProber,
    HttpResult,
    HttpTarget,
    PhaseTimeouts,
    parse_url,
)
from confluo_tools.pingmesh.probe.responder import ListenAddress, Responder
from confluo_tools.schema import builtin, fold6
from netns import Space

SHORT = PhaseTimeouts(dns=0.3, connect=0.3, tls=0.3, first_byte=0.3)


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    seen: list[tuple[str, str]]

    def do_GET(self) -> None:
        self.server.seen.append((self.path, self.headers["Host"]))  # type: ignore[attr-defined]
        self.send_response(int(self.path[1:4]) if self.path[1:4].isdigit() else 200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"ok")

    def log_message(self, *words: Any) -> None:
        pass


@contextmanager
def web(context: ssl.SSLContext | None = None, address: str = "127.0.0.1") -> Iterator[http.server.HTTPServer]:
    """The standard library's web server, with TLS if there is a context."""

    class Server(http.server.ThreadingHTTPServer):
        address_family = socket.AF_INET6 if ":" in address else socket.AF_INET
        daemon_threads = True
        request_queue_size = 64

        def handle_error(self, request: Any, client_address: Any) -> None:
            pass  # probes end with a reset

    server = Server((address, 0), Handler)
    server.seen = []  # type: ignore[attr-defined]
    if context is not None:
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def speaks(what: Callable[[socket.socket], None]) -> Iterator[int]:
    """A port where ``what`` is done with each connection, one after the other."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.05)
        over = threading.Event()

        def serve() -> None:
            while not over.is_set():
                try:
                    s, _ = server.accept()
                except TimeoutError:
                    continue
                with s:
                    s.settimeout(5)
                    with suppress(OSError):
                        what(s)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield server.getsockname()[1]
        finally:
            over.set()
            thread.join()


def one(url: str, **how: Any) -> HttpResult:
    limits = how.pop("limits", PhaseTimeouts())
    with HttpProber(**how) as prober:
        return prober.probe(parse_url(url), limits)


def test_numbers_are_those_of_the_schema() -> None:
    schema = builtin("probe")

    def numbers(field: str) -> dict[str, int]:
        return {name: n for n, name in schema[field].names.items()}

    assert {name: getattr(http_prober, name.upper()) for name in ("http", "https")}.items() <= numbers("kind").items()
    names = ("ok", "timeout", "refused", "unreachable", "reset", "local", "garbled")
    assert {name: getattr(http_prober, name.upper()) for name in names} == numbers("outcome")
    assert {name: getattr(http_prober, name.upper()) for name in ("forward", "reverse")} == numbers("hint")
    assert numbers("notes")["relabel"] == http_prober.RELABEL
    row = one("http://127.0.0.1:1/").row()
    assert set(row) <= {c.name for c in schema.columns}


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("http://10.0.0.7", HttpTarget(False, "10.0.0.7", 80, "/", "10.0.0.7")),
        ("http://10.0.0.7:8765/ping?size=3", HttpTarget(False, "10.0.0.7", 8765, "/ping?size=3", "10.0.0.7")),
        ("https://[2001:db8::7]/x", HttpTarget(True, "2001:db8::7", 443, "/x", "2001:db8::7")),
        ("https://a.example:8443?x=1", HttpTarget(True, "a.example", 8443, "/?x=1", "")),
        ("http://bücher.example/", HttpTarget(False, "xn--bcher-kva.example", 80, "/", "")),
    ],
)
def test_urls(text: str, target: HttpTarget) -> None:
    assert parse_url(text) == target


@pytest.mark.parametrize(
    "text",
    [
        "",
        "10.0.0.7",
        "ftp://a/",
        "http://",
        "http:///x",
        "http://a:0/",
        "http://a:70000/",
        "http://a:x/",
        "http://a b/",
        "http://a/\r\nHost: b",
        "http://user@a/",
        "http://[::1/",
        "http://a/ü",
        "http://" + "a" * 3000,
        "http://..ü/",
    ],
)
def test_no_urls(text: str) -> None:
    with pytest.raises(UsageError):
        parse_url(text)


def test_phases_of_a_plain_probe() -> None:
    with web() as server:
        r = one(f"http://127.0.0.1:{server.server_port}/204")
    assert (r.outcome, r.status, r.problem, r.errno) == (OK, 204, "", 0)
    assert (r.retries, r.hint, r.dns, r.tls) == (0, 0, 0, 0)
    assert 0 < r.rtt <= r.elapsed  # the kernel's is within ours
    assert r.first_byte > 0
    assert (r.src, r.dst) == ("127.0.0.1", "127.0.0.1")
    assert r.sport > 0
    assert server.seen == [("/204", f"127.0.0.1:{server.server_port}")]  # type: ignore[attr-defined]


def test_a_bad_status_is_an_answer_all_the_same() -> None:
    with web() as server:
        r = one(f"http://127.0.0.1:{server.server_port}/503")
    assert (r.outcome, r.status) == (OK, 503)


def test_the_row_is_a_record() -> None:
    with web() as server:
        r = one(f"http://127.0.0.1:{server.server_port}/")
    schema = builtin("probe")
    made = block_of_rows(schema, [r.row(), {"ts": 5, "kind": 16}])
    assert made.rows == 2

    def column(name: str) -> list[int]:
        return [made.get(schema.layout.index(name), row) for row in range(2)]

    assert (column("rtt"), column("status"), column("kind")) == ([r.rtt, 0], [200, 0], [3, 16])
    assert (column("dst_ip"), column("src_port")) == ([0x7F000001, 0], [r.sport, 0])


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_certificate(tmp_path_factory.mktemp("tls"))


@pytest.fixture
def secure(certificate: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    return context


@pytest.mark.parametrize("version", ["TLSv1_2", "TLSv1_3"])
def test_phases_of_a_secure_probe(certificate: Path, secure: ssl.SSLContext, version: str) -> None:
    ours = ssl.create_default_context(cafile=certificate)
    ours.minimum_version = ours.maximum_version = ssl.TLSVersion[version]
    with web(secure) as server:
        r = one(f"https://localhost:{server.server_port}/", context=ours)
    assert (r.outcome, r.status, r.problem) == (OK, 200, "")
    assert min(r.dns, r.rtt, r.elapsed, r.tls, r.first_byte) > 0
    assert r.row()["kind"] == http_prober.HTTPS


def test_a_certificate_that_is_not_trusted(secure: ssl.SSLContext) -> None:
    with web(secure) as server:
        r = one(f"https://localhost:{server.server_port}/")
        anyway = one(f"https://localhost:{server.server_port}/", verify=False)
    assert (r.outcome, r.errno) == (GARBLED, errno.EPROTO)
    assert "self-signed" in r.problem.replace("self signed", "self-signed")
    assert (r.first_byte, r.status) == (0, 0)
    assert anyway.outcome == OK


def test_tls_where_none_is() -> None:
    with web() as server:
        r = one(f"https://127.0.0.1:{server.server_port}/", verify=False)
    assert (r.outcome, r.tls) == (GARBLED, 0)


def test_nobody_listens() -> None:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        r = one(f"http://127.0.0.1:{s.getsockname()[1]}/")
    assert (r.outcome, r.errno, r.rtt, r.first_byte) == (REFUSED, errno.ECONNREFUSED, 0, 0)


def test_a_source_of_another_kind() -> None:
    """IPv6 for IPv4: the error is of getaddrinfo, and its number is not an errno."""
    with HttpProber() as prober:
        r = prober.probe(parse_url("http://127.0.0.1:1/")._replace(source="::1"))
    assert (r.outcome, r.errno) == (LOCAL, errno.EIO)
    assert r.row()["errno"] == errno.EIO


def hang_up(s: socket.socket) -> None:
    s.recv(100)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


@pytest.mark.parametrize(
    ("what", "outcome"),
    [
        (lambda s: s.recv(4096), RESET),  # closed without a response
        (hang_up, RESET),
        (lambda s: s.sendall(b"SSH-2.0-OpenSSH_9.9\r\n" + s.recv(4096)), GARBLED),
        (lambda s: s.sendall(b"HTTP/1.1 2\r\n" * bool(s.recv(4096))), GARBLED),
        (lambda s: s.sendall(b"HTTP/1" * bool(s.recv(4096))), GARBLED),
        (lambda s: s.sendall(b"HTTP/1.1 200" * bool(s.recv(4096))), OK),
        (lambda s: s.sendall(b"\0" * 1_000_000), GARBLED),
        (lambda s: [s.sendall(bytes([b])) for b in b"HTTP/1.0 302 Found\r\n"], OK),
    ],
)
def test_odd_servers(what: Callable[[socket.socket], None], outcome: int) -> None:
    with speaks(what) as port:
        r = one(f"http://127.0.0.1:{port}/")
    assert (r.outcome, bool(r.rtt), bool(r.status)) == (outcome, outcome == OK, outcome == OK)


@pytest.mark.parametrize(("scheme", "phase"), [("http", "response"), ("https", "tls")])
def test_a_server_that_says_nothing(scheme: str, phase: str) -> None:
    def silent(s: socket.socket) -> None:
        while s.recv(4096):
            pass

    with speaks(silent) as port:
        r = one(f"{scheme}://127.0.0.1:{port}/", limits=SHORT)
    assert (r.outcome, r.problem) == (TIMEOUT, f"{phase}: time-out")
    assert r.elapsed >= min(SHORT) * 1e9  # of the whole probe, not of the connect
    assert (r.rtt, r.first_byte) == (0, 0)


def test_a_name_that_nobody_knows() -> None:
    def lookup(*words: Any) -> Any:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    r = one("http://nowhere.example/", lookup=lookup)
    assert (r.outcome, r.errno, r.problem) == (LOCAL, errno.ENOENT, "name: Name or service not known")
    assert r.row()["dst"] == "nowhere.example"


def test_a_lookup_that_hangs_holds_nothing_up() -> None:
    """More of them hang than there are threads; what needs no name goes on, and later names are found again."""
    release = threading.Event()
    hung: list[str] = []

    def lookup(host: str, *words: Any) -> Any:
        if host.startswith("hang"):
            hung.append(host)
            release.wait(30)
        return socket.getaddrinfo("127.0.0.1", *words)

    with web() as server, HttpProber(lookup=lookup, resolvers=2, limits=SHORT._replace(first_byte=5)) as prober:
        for n in range(5):
            assert prober.start(parse_url(f"http://hang{n}:{server.server_port}/"))
        fine = prober.probe(parse_url(f"http://127.0.0.1:{server.server_port}/"))
        assert fine.outcome == OK
        late: list[HttpResult] = []
        while len(late) < 5:
            late += prober.poll(5)
        assert {(r.outcome, r.errno, r.problem) for r in late} == {(LOCAL, errno.ETIMEDOUT, "name: time-out")}
        assert len(hung) == 2  # no more threads than were allowed
        release.set()
        assert prober.probe(parse_url(f"http://again:{server.server_port}/"), PhaseTimeouts()).outcome == OK
        assert len(hung) == 2  # a name whose probe has ended is not looked up


def test_many_at_once_and_no_more_than_allowed() -> None:
    with Responder([ListenAddress("127.0.0.1", 0)]) as responder, HttpProber(in_flight=50) as prober:
        target = parse_url(f"http://127.0.0.1:{responder.port}/ping?size=5")
        begun = sum(prober.start(target, n) for n in range(60))
        assert (begun, prober.in_flight) == (50, 50)
        done: list[HttpResult] = []
        while len(done) < 50:
            done += prober.poll(5)
        assert sorted(r.tag for r in done) == list(range(50))
        assert {(r.outcome, r.status) for r in done} == {(OK, 200)}
        assert len({r.sport for r in done}) == 50  # a port of its own each
        assert prober.in_flight == 0


def test_what_is_given_up_leaves_no_descriptor() -> None:
    before = descriptors()
    release = threading.Event()

    def lookup(*words: Any) -> Any:
        release.wait(30)
        return socket.getaddrinfo(*words)

    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with HttpProber(lookup=lookup) as prober:
            for n in range(20):
                prober.start(parse_url(f"http://{'127.0.0.1' if n % 2 else 'localhost'}:{port}/"))
    release.set()
    for _ in range(500):
        if descriptors() <= before:  # less, when what earlier tests left has gone
            return
        time.sleep(0.01)
    assert descriptors() <= before


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_ipv6() -> None:
    with web(address="::1") as server:
        r = one(f"http://[::1]:{server.server_port}/")
        assert server.seen == [("/", f"[::1]:{server.server_port}")]  # type: ignore[attr-defined]
    row = r.row()
    assert (r.outcome, row["ip_version"], row["dst_ip6"], row["src_ip6"]) == (OK, 6, *[bytes(15) + b"\1"] * 2)


@pytest.mark.net
@pytest.mark.root
def test_what_the_network_does(pair: tuple[Space, Space]) -> None:
    """Real drops and refusals between two namespaces: results agree with the kernel."""
    a, b = pair
    with b.inside():
        responder = Responder([ListenAddress("0.0.0.0", 8765)])
    b.run("nft", "add table ip t; add chain ip t i { type filter hook input priority 0; }")

    def probe(rule: str, limits: PhaseTimeouts = PhaseTimeouts(), **more: Any) -> HttpResult:
        b.run("nft", f"flush chain ip t i; {rule and 'add rule ip t i ' + rule}")
        with a.inside(), HttpProber() as prober:
            target = HttpTarget(False, b.address, 8765, "/ping", b.address)._replace(**more)
            return prober.probe(target, limits)

    with responder:
        fine = probe("")
        assert (fine.outcome, fine.status, fine.retries) == (OK, 204, 0)
        assert 0 < fine.rtt < 500_000_000
        lost = probe(
            "tcp flags & (syn | ack) == syn limit rate over 1/day burst 1 packets accept;"
            " add rule ip t i tcp flags & (syn | ack) == syn ct state new drop",
            PhaseTimeouts(connect=0.5),
        )
        assert (lost.outcome, lost.rtt, lost.hint) == (TIMEOUT, 0, 0)
        # the first SYN is lost, the second is not: recipe of a set that counts
        once = probe("tcp dport 8765 tcp flags & (syn | ack) == syn limit rate 1/day burst 1 packets drop")
        assert (once.outcome, once.status, once.retries, once.rtt, once.hint) == (OK, 204, 1, 0, http_prober.FORWARD)
        assert once.elapsed >= 950_000_000
        rejected = probe("tcp dport 8765 reject with icmp type host-unreachable")
        assert (rejected.outcome, rejected.errno) == (UNREACHABLE, errno.EHOSTUNREACH)
        assert probe("tcp dport 8765 reject with tcp reset").outcome == REFUSED
        no_way = probe("", address="192.0.2.1")
        assert (no_way.outcome, no_way.errno) == (LOCAL, errno.ENETUNREACH)
        not_ours = probe("", source="192.0.2.9")
        assert (not_ours.outcome, not_ours.errno) == (LOCAL, errno.EADDRNOTAVAIL)
        marked = probe("ip dscp 8 drop", PhaseTimeouts(connect=0.5), dscp=8)
        assert (marked.outcome, marked.row()["dscp"]) == (TIMEOUT, 8)


def test_addresses_of_ipv6_have_their_hash() -> None:
    """The column that scans look at first; without it, no question for the address would find the record."""
    packed = socket.inet_pton(socket.AF_INET6, "fe80::7")
    assert address_columns("src", "fe80::7%lo") == {"ip_version": 6, "src_ip": fold6(packed), "src_ip6": packed}
    assert address_columns("dst", "10.0.0.7") == {"ip_version": 4, "dst_ip": 0x0A000007}
    assert address_columns("dst", "") == {}
