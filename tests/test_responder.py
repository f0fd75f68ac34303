"""The answering side of probes, against ordinary sockets and http.client."""

from __future__ import annotations

import http.client
import socket
import struct
from collections.abc import Iterator

import pytest

from confluo_tools.sources.responder import Listen, Responder

TOKEN = 0x1122334455667788
HEADER = struct.Struct(">IIQIIQQQ")
MAGIC = 0x43504D31


@pytest.fixture
def responder() -> Iterator[Responder]:
    with Responder([Listen("127.0.0.1", 0)], tokens=[TOKEN]) as it:
        yield it


def test_bytes_come_back(responder: Responder) -> None:
    with socket.create_connection(("127.0.0.1", responder.port), timeout=5) as s:
        s.sendall(b"\0some payload")
        assert s.recv(100) == b"\0some payload"


def test_a_ping_is_answered(responder: Responder) -> None:
    c = http.client.HTTPConnection("127.0.0.1", responder.port, timeout=5)
    c.request("GET", "/ping?size=1000")
    answer = c.getresponse()
    assert (answer.status, answer.read()) == (200, bytes(1000))
    c.close()


def test_a_datagram_comes_back_with_times(responder: Responder) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.settimeout(5)
        s.sendto(HEADER.pack(MAGIC, 3, TOKEN, 4, 5, 6, 0, 0) + b"padding", ("127.0.0.1", responder.port))
        answer = s.recv(1000)
    assert len(answer) == 55
    magic, flags, token, seq, spare, t1, t2, t3 = HEADER.unpack_from(answer)
    assert (magic, flags, token, seq, spare, t1, answer[48:]) == (MAGIC, 3, TOKEN, 4, 5, 6, b"padding")
    assert 0 < t2 <= t3
