"""Servers that are away, slow, full or something else: rows are delivered, or counted as lost; a run always ends."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from clickhouse_lab import HttpScript, as_server, http_answer
from confluo_tools.clickhouse import batch_sender, server
from confluo_tools.clickhouse.address import parse
from confluo_tools.clickhouse.clickhouse_writer import ClickHouseWriter
from confluo_tools.clickhouse.settings import ServerSettings
from confluo_tools.errors import ConfluoError
from confluo_tools.kafka import row_writer
from confluo_tools.stream.destination import Destination
from log_rows import SIGNED, signed_block
from running import CAMPUS, run

COLUMNS = {"writer": "UInt32", "seq": "UInt64", "check": "UInt64"}
BATCH = 100  # rows
SIZE = BATCH * 20  # bytes
DEADLINE = 60.0  # s
TOO_MANY = "Code: 252. DB::Exception: Too many parts (600) in all partitions in total. (TOO_MANY_PARTS) (version 26.9)"


@contextmanager
def scripted(insert: Callable[[int], bytes | None]) -> Iterator[HttpScript]:
    made = HttpScript(as_server(COLUMNS, insert))
    yield made
    made.close()


def writer_to(place: HttpScript, **more: object) -> ClickHouseWriter:
    options = {"size": SIZE, "linger": 10**9, **more}
    return ClickHouseWriter(parse(f"{place.address}/t"), SIGNED, ServerSettings(), **options)  # type: ignore[arg-type]


def until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + DEADLINE
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.005)


def tokens(place: HttpScript) -> list[str]:
    return [m[1] for r in place.requests if (m := re.search(r"insert_deduplication_token=([^&\s]+)", r))]


def test_what_passes_is_tried_again_with_the_same_token(capsys: pytest.CaptureFixture[str]) -> None:
    answers = [http_answer(TOO_MANY, "500 Internal Server Error"), None, http_answer("<html>", "502 Bad Gateway")]
    with scripted(lambda size: answers.pop(0) if answers else http_answer("")) as place:
        writer = writer_to(place)
        writer.write(signed_block(1, 0, 3 * BATCH))
        writer.close()
        assert writer.counts[:4] == (3 * BATCH, 3 * BATCH, 3, 0)
        first, *rest = tokens(place)
    assert rest[:3] == [first] * 3
    assert len({first, *rest}) == 3
    said = capsys.readouterr().err
    assert "t: waits: Too many parts (600) in all partitions in total. (TOO_MANY_PARTS)\n" in said
    assert f"t: {BATCH} records are sent again, and may be there twice: closed the connection without an answer" in said
    assert said.endswith("t: takes records again\n")


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (
            http_answer(
                "Code: 60, e.displayText() = DB::Exception: Table default.t doesn't exist., e.what() = x", "404 N"
            ),
            "Table default.t doesn't exist",
        ),
        (
            http_answer("<html>\n<h1>It works!</h1>"),
            "does not answer as ClickHouse does: '<html> <h1>It works!</h1>'; check the address: the port of",
        ),
        (
            http_answer("<html>no</html>", "403 Forbidden"),
            "does not answer as ClickHouse does: HTTP 403 Forbidden '<html>no</html>'; check the address: the",
        ),
        (
            http_answer(
                "Code: 252. DB::Exception: Too many partitions for single INSERT block (more than 100).", "500 I"
            ),
            "Too many partitions for single INSERT block (more than 100); the times are far apart: leave those",
        ),
        (
            http_answer("Code: 241. DB::Exception: Memory limit (for query) exceeded: would use 2 GiB", "500 I"),
            "Memory limit (for query) exceeded: would use 2 GiB; lower --size, or raise max_memory_usage of the user",
        ),
    ],
)
def test_what_does_not_pass_ends_the_run(answer: bytes, said: str) -> None:
    with scripted(lambda size: answer) as place:
        writer = writer_to(place)
        with pytest.raises(ConfluoError) as caught:
            _write_much(writer)
        assert str(caught.value).startswith(f"{place.address}/t: {said}")
        with pytest.raises(ConfluoError, match="records were not delivered: "):
            writer.close()
        assert writer.counts.delivered == 0
        assert writer.counts.lost == writer.counts.rows > 0


def _write_much(writer: ClickHouseWriter) -> None:
    for n in range(10_000):
        writer.write(signed_block(1, n * BATCH, BATCH))


def test_no_live_record_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow server costs records, and each is counted."""
    go_on = threading.Event()

    def slow(size: int) -> bytes:
        assert go_on.wait(DEADLINE)
        return http_answer("")

    with scripted(slow) as place:
        writer = writer_to(place, wait=False)
        for n in range(20):
            writer.write(signed_block(1, n * BATCH, BATCH))
        dropped = writer.sink.dropped
        assert dropped == 20 * BATCH - 3 * BATCH  # one is filled, or all wait
        go_on.set()
        until(lambda: writer.counts.queued == 0)
        writer.write(signed_block(1, 0, BATCH))
        with pytest.raises(ConfluoError, match=f"{dropped} of {21 * BATCH} records were not delivered: the server was"):
            writer.close()
        assert writer.counts[:4] == (21 * BATCH, 4 * BATCH, 4, dropped)


def test_a_record_waits_for_others_only_for_a_while() -> None:
    with scripted(lambda size: http_answer("")) as place:
        writer = writer_to(place)
        writer.write(signed_block(1, 0, 1))
        assert writer.counts.queued == 0
        writer.idle(time.monotonic_ns() + 2 * 10**9)
        until(lambda: writer.counts.delivered == 1)
        writer.close()
        writer = writer_to(place, linger=10_000_000)
        writer.write(signed_block(1, 0, 1))
        until(lambda: writer.counts.delivered == 1)  # without another call
        writer.close()


def test_a_stop_does_not_wait_for_a_server_that_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_writer, "PATIENCE", 0.05)
    asked = threading.Event()

    def silent(size: int) -> bytes | None:
        asked.set()
        threading.Event().wait(DEADLINE)
        return None

    with scripted(silent) as place:
        writer = writer_to(place)
        writer.write(signed_block(1, 0, 2 * BATCH))
        assert asked.wait(DEADLINE)
        writer.stop()
        with pytest.raises(ConfluoError, match=f"{2 * BATCH} of {2 * BATCH} records were not delivered: "):
            writer.close()


def test_a_service_gives_up_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("confluo_tools.stream.destination.PATIENCE", 0.05)
    with scripted(lambda size: http_answer(TOO_MANY, "500 I")) as place:
        writer = Destination(f"{place.address}/t", best_effort=True).open(SIGNED, wait=False)
        writer.write(signed_block(1, 0, BATCH))
        with pytest.raises(ConfluoError, match=r"100 of 100 records were not delivered: Too many parts \(600\)"):
            writer.close()


def test_an_answer_that_does_not_come(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The run says so, and sends again: with the same token."""
    monkeypatch.setattr(server, "INSERT", 0.1)
    monkeypatch.setattr(batch_sender, "FIRST_PAUSE", 0.01)
    first = threading.Event()

    def once_silent(size: int) -> bytes | None:
        if first.is_set():
            return http_answer("")
        first.set()
        threading.Event().wait(1)
        return None

    with scripted(once_silent) as place:
        writer = writer_to(place)
        writer.write(signed_block(1, 0, BATCH))
        writer.close()
        assert writer.counts.delivered == BATCH
        assert len(tokens(place)) == 2
        assert len(set(tokens(place))) == 1
    assert "waits: no answer within 0.1 s" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (
            http_answer("<html><h1>It works!</h1>", type="text/html"),
            "does not answer as ClickHouse does: '<html><h1>It",
        ),
        (http_answer("gone", "404 Not Found"), "does not answer as ClickHouse does: HTTP 404 Not Found 'gone'; check"),
        (http_answer('{"data": 7}'), "does not answer as ClickHouse does: '{\"data\": 7}'; check the address"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "does not answer in HTTP; the port of HTTP is usually 8123; clickhouses://"),
        (
            b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 100\r\n\r\nhalf",
            "closed the connection without an answer",
        ),
        (None, "closed the connection without an answer; check the address; clickhouses:// is with TLS"),
    ],
)
def test_what_is_no_server_of_clickhouse(answer: bytes | None, said: str) -> None:
    place = HttpScript(lambda asked, size: answer)
    done = run("confluo-convert", CAMPUS, "--to", f"{place.address}/t")
    place.close()
    assert done.stderr.decode().startswith(f"confluo-convert: {place.address}/t: {said}")
    assert (done.returncode, done.stderr.count(b"\n")) == (2, 1)
