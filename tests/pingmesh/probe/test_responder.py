"""The answering side of probes, against ordinary sockets and http.client: what it answers."""

from __future__ import annotations

import http.client
import re
import select
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from confluo_tools.errors import ConfluoError, UsageError
from confluo_tools.pingmesh.probe.responder import PAYLOAD, ListenAddress, Responder
from netns import Space

TOKEN = 0x1122334455667788
HEADER = struct.Struct(">IIQIIQQQ")
MAGIC = 0x43504D31
METHODS = ("GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE", "CONNECT")


@pytest.fixture(scope="module")
def responder() -> Iterator[Responder]:
    with Responder([ListenAddress("127.0.0.1", 0), ListenAddress("::1", 0)], tokens=[TOKEN, 5]) as it:
        yield it


def connect(responder: Responder) -> socket.socket:
    return socket.create_connection(("127.0.0.1", responder.port), timeout=10)


def everything(s: socket.socket) -> bytes:
    """Until the other side ends."""
    found = b""
    while data := s.recv(1 << 20):
        found += data
    return found


def wait_for(what: Callable[[], bool]) -> None:
    for _ in range(1000):
        if what():
            return
        time.sleep(0.01)
    raise AssertionError("never happened")


def probe(
    seq: int = 0, token: int = TOKEN, magic: int = MAGIC, t2: int = 0, t3: int = 0, padding: bytes = b""
) -> bytes:
    return HEADER.pack(magic, 3, token, seq, 9, 6, t2, t3) + padding


def datagrams(responder: Responder, *sent: bytes) -> list[bytes]:
    """The answers to these datagrams; the answer to a last probe marks the end."""
    address = ("127.0.0.1", responder.port)
    found: list[bytes] = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.settimeout(10)
        for data in (*sent, probe(0xFFFFFFFF)):
            s.sendto(data, address)
        while True:
            data = s.recv(70000)
            if data[16:20] == b"\xff\xff\xff\xff":
                return found
            found.append(data)


# ---------------------------------------------------------------- payload


def may_be_request(data: bytes) -> bool:
    """Whether these first bytes are, or begin, a method and a space: an independent implementation."""
    return any(f"{m} ".encode().startswith(data) or data.startswith(f"{m} ".encode()) for m in METHODS)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.binary(min_size=1, max_size=3000), min_size=1, max_size=5))
@example([b"G", b"x"])
@example([b"GE", b"T\0"])
@example([b"HEAD", b"S "])
@example([b"\x16\x03\x01\x02\x00", b"\x01\x00\x01\xfc"])
def test_whatever_is_no_request_comes_back(responder: Responder, parts: list[bytes]) -> None:
    if may_be_request(b"".join(parts)):
        parts[0] = b"\0" + parts[0]
    with connect(responder) as s:
        for part in parts:
            s.sendall(part)
        s.shutdown(socket.SHUT_WR)
        assert everything(s) == b"".join(parts)


@pytest.mark.parametrize("size", [1, 1460, 16384, 16385, 40000, PAYLOAD])
def test_as_much_as_a_probe_may_have(responder: Responder, size: int) -> None:
    data = bytes(i * 7 & 0xFF for i in range(size))
    with connect(responder) as s:
        s.sendall(data)
        s.shutdown(socket.SHUT_WR)
        assert everything(s) == data


def test_more_than_a_probe_may_have_ends_it(responder: Responder) -> None:
    before = responder.counts["overlong"]
    back = 0
    with connect(responder) as s, suppress(ConnectionResetError, BrokenPipeError):
        s.settimeout(60)
        for _ in range(1000):
            s.sendall(bytes(1000))
            while select.select([s], [], [], 0)[0] and (data := s.recv(1 << 20)):
                back += len(data)
        back += len(everything(s))
    assert back <= PAYLOAD
    wait_for(lambda: responder.counts["overlong"] == before + 1)


def test_a_reader_who_does_not_read_holds_up_nobody(responder: Responder) -> None:
    """It gets its bytes when it reads at last: none is lost, though they did not fit into the socket."""
    data = bytes(i * 11 & 0xFF for i in range(PAYLOAD))
    with socket.socket() as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        slow.settimeout(10)
        slow.connect(("127.0.0.1", responder.port))
        sender = threading.Thread(target=slow.sendall, args=(data,))
        sender.start()
        time.sleep(0.2)
        with connect(responder) as other:
            other.sendall(b"\0quick")
            assert other.recv(100) == b"\0quick"
        back = b""
        while len(back) < len(data):
            back += slow.recv(1000)
        sender.join()
    assert back == data


# ---------------------------------------------------------------- HTTP


@pytest.mark.parametrize(
    ("method", "path", "status", "size"),
    [
        ("GET", "/ping", 204, 0),
        ("HEAD", "/ping", 204, 0),
        ("GET", "/ping?size=0", 204, 0),
        ("GET", "/ping?size=1", 200, 1),
        ("GET", "/ping?size=1000", 200, 1000),
        ("GET", "/ping?size=65536", 200, 65536),
        ("HEAD", "/ping?size=65536", 200, 0),
        ("GET", "/ping?size=65537", 413, 0),
        ("GET", "/ping?size=9999999", 413, 0),
        ("GET", "/ping?size=99999999", 400, 0),  # not even a number that is looked at
        ("GET", "/ping?size=", 400, 0),
        ("GET", "/ping?size=-1", 400, 0),
        ("GET", "/ping?size=1x", 400, 0),
        ("GET", "/ping?big", 400, 0),
        ("GET", "/", 404, 0),
        ("GET", "/pingx", 404, 0),
        ("GET", "http://elsewhere.example/", 404, 0),  # never a proxy
        ("POST", "/ping", 405, 0),
        ("OPTIONS", "*", 405, 0),
    ],
)
def test_requests(responder: Responder, method: str, path: str, status: int, size: int) -> None:
    c = http.client.HTTPConnection("127.0.0.1", responder.port, timeout=10)
    try:
        c.request(method, path)
        answer = c.getresponse()
        assert (answer.status, answer.read()) == (status, bytes(size))
        if method == "HEAD" and status == 200:
            assert answer.getheader("Content-Length") == path.partition("=")[2]
        assert answer.getheader("Connection") == "close"
    finally:
        c.close()


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.integers(1, 60), max_size=6))
def test_requests_in_pieces(responder: Responder, cuts: list[int]) -> None:
    request = b"GET /ping?size=3 HTTP/1.1\r\nHost: a\r\nX: y\r\n\r\n"
    with connect(responder) as s:
        for a, b in zip([0, *sorted(cuts)], [*sorted(cuts), len(request)], strict=True):
            s.sendall(request[a:b])
        answer = everything(s)
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
    assert answer.endswith(b"\r\n\r\n\0\0\0")


def status_of(path: str) -> int:
    """The response to GET of this path: an independent implementation."""
    if path == "/counters" or path.startswith("/counters?"):
        return 200
    if path.partition("?")[0] != "/ping":
        return 404
    if path == "/ping":
        return 204
    if not re.fullmatch(r"/ping\?size=[0-9]{1,7}", path):
        return 400
    size = int(path.partition("=")[2])
    return 413 if size > PAYLOAD else 200 if size else 204


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.one_of(
        st.lists(
            st.sampled_from(["/", "ping", "counters", "?", "size=", "0", "7", "65536", "65537", "x", "&", "%"]),
            max_size=6,
        ).map("".join),
        st.integers(0, 10**9).map("/ping?size={}".format),
        st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=30),
    )
)
@example("/counters?x")
@example("/ping?")
@example("?")
def test_paths(responder: Responder, path: str) -> None:
    with connect(responder) as s:
        s.sendall(f"GET {path} HTTP/1.1\r\n\r\n".encode())
        assert everything(s).startswith(f"HTTP/1.1 {status_of(path)} ".encode())


@pytest.mark.parametrize(
    "request_",
    [
        b"GET /ping\r\n\r\n",
        b"GET  /ping HTTP/1.1\r\n\r\n",
        b"GET /ping HTTP/2.0\r\n\r\n",
        b"GET /ping HTTP/1.1 x\r\n\r\n",
        b"GET \r\n\r\n",
        b"GET /ping HTTP/1.\r\n\r\n",
        b"HEAD /ping?size HTTP/1.1\n\n",
        b"GET \x00\xff\n\n",
    ],
)
def test_bad_requests(responder: Responder, request_: bytes) -> None:
    with connect(responder) as s:
        s.sendall(request_)
        assert everything(s).startswith((b"HTTP/1.1 400 ", b"HTTP/1.1 404 "))


def test_a_head_without_end_ends_it(responder: Responder) -> None:
    before = responder.counts["overlong"]
    with connect(responder) as s, suppress(ConnectionResetError, BrokenPipeError):
        s.sendall(b"GET /ping HTTP/1.1\r\n")
        for _ in range(1000):
            s.sendall(b"X: " + b"y" * 100 + b"\r\n")
            time.sleep(0.0005)
    assert responder.counts["overlong"] == before + 1


def test_counters_are_made_for_few_of_many_questions(monkeypatch: pytest.MonkeyPatch) -> None:
    made = 0

    def document(self: Responder) -> bytes:
        nonlocal made
        made += 1
        return b'{"some": 1}'

    monkeypatch.setattr(Responder, "document", document)
    start = time.monotonic()
    with Responder([ListenAddress("127.0.0.1", 0)]) as it:
        for _ in range(100):
            with connect(it) as s:
                s.sendall(b"GET /counters HTTP/1.1\r\n\r\n")
                assert everything(s).endswith(b'\r\n\r\n{"some": 1}')
    assert 1 < made <= (time.monotonic() - start) / 0.01 + 2  # once when it listens, then each 10 ms at most


def test_counters_that_cannot_be_made(monkeypatch: pytest.MonkeyPatch) -> None:
    said = [b"{}"]  # for the first time, when it listens
    monkeypatch.setattr(Responder, "document", lambda self: said.pop())
    with Responder([ListenAddress("127.0.0.1", 0)]) as it:
        for answer in (None, b"x" * 5000):
            said[:] = [answer] if answer else []
            with connect(it) as s:
                s.sendall(b"GET /counters HTTP/1.1\r\n\r\n")
                assert everything(s).startswith(b"HTTP/1.1 503 ")


# ---------------------------------------------------------------- datagrams


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 2**32 - 2), st.sampled_from([TOKEN, 5]), st.binary(max_size=2000))
def test_datagrams_come_back_as_they_were(responder: Responder, seq: int, token: int, padding: bytes) -> None:
    sent = probe(seq, token, padding=padding)
    before = time.time_ns()
    (answer,) = datagrams(responder, sent)
    t2, t3 = struct.unpack_from(">QQ", answer, 32)
    assert before <= t2 <= t3 <= time.time_ns()
    assert answer[:32] + bytes(16) + answer[48:] == sent


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "short"),
        (probe()[:47], "short"),
        (probe(magic=MAGIC + 1), "magic"),
        (b"\0" * 48, "magic"),
        (probe(token=TOKEN + 1), "token"),
        (probe(token=0), "token"),
        (probe(t2=1), "looped"),
        (probe(t3=1), "looped"),
    ],
)
def test_datagrams_that_get_no_answer(responder: Responder, data: bytes, why: str) -> None:
    before = responder.counts
    assert datagrams(responder, data) == []
    wait_for(lambda: responder.counts["datagrams"] == before["datagrams"] + 1)  # that of the last probe
    names = ("short", "magic", "token", "looped", "foreign", "unsent")
    assert {name: n for name in names if (n := responder.counts[name] - before[name])} == {why: 1}


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=3000))
def test_garbage_gets_no_answer(responder: Responder, data: bytes) -> None:
    assert datagrams(responder, data, b"CPM1" + data) == []


def test_the_largest_datagram(responder: Responder) -> None:
    sent = probe(padding=bytes(65507 - 48))
    (answer,) = datagrams(responder, sent)
    assert len(answer) == 65507


def test_two_responders_do_not_talk_to_each_other(responder: Responder) -> None:
    """A forged probe in the name of another responder: one answer, and no more."""
    with Responder([ListenAddress("127.0.0.1", 0)], tokens=[TOKEN]) as other:
        (answer,) = datagrams(responder, probe(1))
        assert datagrams(other, answer) == []
        assert other.counts["looped"] == 1


def test_tokens_change_while_it_runs(responder: Responder) -> None:
    with Responder([ListenAddress("127.0.0.1", 0)], tokens=[TOKEN]) as it:
        it.tokens = [1, TOKEN]
        assert len(datagrams(it, probe(token=1))) == 1
        it.tokens = [TOKEN]
        assert datagrams(it, probe(token=1)) == []
        for bad in ([0], [1 << 64], [-1], range(1, 10)):
            with pytest.raises(UsageError):
                it.tokens = bad
        assert it.tokens == [TOKEN]


def test_ipv6(responder: Responder) -> None:
    address = ("::1", responder.bound[1].port)
    with socket.create_connection(address, timeout=10) as s:
        s.sendall(b"\0six")
        assert s.recv(10) == b"\0six"
    with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as u:
        u.settimeout(10)
        u.sendto(probe(4), address)
        data, sender = u.recvfrom(100)
        assert (len(data), sender[:2]) == (48, address)


@pytest.mark.net
@pytest.mark.root
def test_answers_come_from_where_they_were_asked(pair: tuple[Space, Space]) -> None:
    """A host with several addresses, one socket for all: also of IPv6, link-local too.  Never to a broadcast."""
    a, b = pair
    b.ip("addr", "add", "10.99.0.1/32", "dev", "lo")
    a.ip("route", "add", "10.99.0.1/32", "via", b.address)
    for space, n in ((a, 1), (b, 2)):
        space.run("sh", "-c", "echo 0 >/proc/sys/net/ipv6/conf/v0/disable_ipv6")
        space.ip("addr", "add", f"fd77::{n}/64", "dev", "v0", "nodad")
        space.ip("addr", "add", f"fe80::{n}/64", "dev", "v0", "nodad")
    b.ip("addr", "add", "fd77::9/64", "dev", "v0", "nodad")
    with b.inside():
        it = Responder([ListenAddress("0.0.0.0", 8765), ListenAddress("::", 8765)], tokens=[TOKEN])
    with it, a.inside():
        v0 = socket.if_nametoindex("v0")
        for address in (b.address, "10.99.0.1", "fd77::2", "fd77::9", "fe80::2"):
            six = ":" in address
            with socket.socket(socket.AF_INET6 if six else socket.AF_INET, socket.SOCK_DGRAM) as s:
                s.settimeout(10)
                s.sendto(
                    probe(1), (address, 8765, 0, v0 if address.startswith("fe80") else 0) if six else (address, 8765)
                )
                data, sender = s.recvfrom(100)
                assert (len(data), sender[0].partition("%")[0]) == (48, address)
        for address in (b.address.rpartition(".")[0] + ".255", "255.255.255.255", "ff02::1"):
            six = ":" in address
            with socket.socket(socket.AF_INET6 if six else socket.AF_INET, socket.SOCK_DGRAM) as s:
                s.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
                s.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"v0")
                s.settimeout(0.2)
                s.sendto(probe(1), (address, 8765, 0, v0) if six else (address, 8765))
                with pytest.raises(TimeoutError):
                    s.recv(100)
        assert it.counts["foreign"] == 3


# ---------------------------------------------------------------- itself


def test_it_stops_and_starts_again(responder: Responder) -> None:
    it = Responder([ListenAddress("127.0.0.1", 0)], tokens=[TOKEN])
    try:
        it.start()
        it.stop()
        with connect(it) as s:  # the kernel's queue takes it
            s.sendall(b"\0later")
            s.settimeout(0.1)
            with pytest.raises(TimeoutError):
                s.recv(10)
            it.run(50)  # in this thread
            s.settimeout(10)
            assert s.recv(10) == b"\0later"
            it.start()
            s.sendall(b"more")
            assert s.recv(10) == b"more"
    finally:
        it.close()
    with pytest.raises(ConnectionRefusedError):
        connect(it)


def test_a_signal_is_heard_while_it_runs_in_the_first_thread() -> None:
    it = Responder([ListenAddress("127.0.0.1", 0)])

    def heard(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, heard)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        with pytest.raises(KeyboardInterrupt):
            it.run(20_000)
        it.wake()
        it.run()  # and it can go on
    finally:
        signal.signal(signal.SIGALRM, before)
        it.close()


def test_what_is_closed_leaves_no_descriptor() -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    it = Responder([ListenAddress("127.0.0.1", 0), ListenAddress("::1", 0)], tokens=[TOKEN])
    with it:
        clients = [connect(it) for _ in range(20)]
        wait_for(lambda: it.counts["open"] == 20)
    for s in clients:
        s.close()
    assert len(list(Path("/proc/self/fd").iterdir())) == before


@pytest.mark.parametrize(
    ("place", "complaint"),
    [
        (ListenAddress("10.0.0.999"), "10.0.0.999: not an address; write numbers, not names"),
        (ListenAddress("::g"), "::g: not an address"),
        (ListenAddress("fe80::1%nosuch"), "fe80::1%nosuch: not an address"),
        (ListenAddress("192.0.2.1"), "192.0.2.1:8765: this host has no such address"),
        (ListenAddress("127.0.0.1", 70000), "70000, 0: invalid port"),
        (ListenAddress("127.0.0.1", 0, 64), "0, 64: invalid port or class of service"),
    ],
)
def test_places_that_cannot_be_had(place: ListenAddress, complaint: str) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(ConfluoError, match=complaint.replace("[", r"\[")):
        Responder([place])
    assert len(list(Path("/proc/self/fd").iterdir())) == before
