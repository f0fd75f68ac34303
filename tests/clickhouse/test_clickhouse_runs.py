"""Records into tables of a real server: what goes in is there once; and what users do wrong is one clear line."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from clickhouse_lab import PASSWORD, ClickHouse, missing
from confluo_tools.clickhouse import server
from confluo_tools.clickhouse.address import parse as parse_address
from confluo_tools.clickhouse.settings import ServerSettings
from confluo_tools.formats.arrow import StreamWriter
from kafka_lab import Broker
from log_rows import SIGNED, signed_block
from running import BIN, CAMPUS, environment, lines, next_line, run

MILLION = 1_000_000
DEADLINE = 120.0  # s
UNFIT = "the types of columns do not fit: ts is Date, not Int64, len is UInt16, not UInt32; change the columns,"
UNFIT += " leave the fields out with --fields, or make a table with --ddl"
NO_LEN = "the table has no column len; leave the fields out with --fields, or add columns: "
NO_LEN += "ALTER TABLE `{name}` ADD COLUMN `len` UInt32"


@pytest.fixture
def table(clickhouse: ClickHouse) -> str:
    """The address of a table that does not exist yet."""
    return f"{clickhouse.address}/t{uuid4().hex[:12]}"


def name(table: str) -> str:
    return table.rpartition("/")[2]


def published(*words: object, **env: str) -> subprocess.CompletedProcess[bytes]:
    return run("confluo-stream", "publish", *(str(word) for word in words), env=environment(**env))


def made(clickhouse: ClickHouse, *words: object) -> None:
    """Make the tables of a command, by the statements that it prints."""
    command, *rest = (str(word) for word in words)
    done = run(f"confluo-{command}", *rest, "--ddl")
    assert (done.returncode, done.stderr) == (0, b"")
    for statement in done.stdout.decode().split(";\n"):
        if statement.strip():
            clickhouse.query(statement)


def test_packets_into_a_table(clickhouse: ClickHouse, table: str) -> None:
    command = "stream", "publish", CAMPUS, "tcp", "--to", table
    made(clickhouse, *command)
    done = published(*command[2:], "--stats")
    assert (done.returncode, done.stdout) == (0, b"")
    rows = int(lines(run("confluo-query", CAMPUS, "tcp", "--count"))[0])
    said = f"{rows} records sent, {rows} delivered in 1 inserts, 0 lost, 0 inserts queued"
    assert done.stderr.decode() == f"confluo-stream publish: {said}\n"
    answer = run(
        "confluo-query", CAMPUS, "tcp", "--agg", "count,sum(len)", "--by", "src_ip,src_port", "-T", "--no-header"
    )
    address = "replaceOne(IPv6NumToString(src_ip), '::ffff:', '')"
    ours = clickhouse.rows(
        f"SELECT {address}, src_port, count(), sum(len) FROM {name(table)} GROUP BY src_ip, src_port"
    )
    assert sorted("\t".join(map(str, row)) for row in ours) == sorted(lines(answer))
    assert clickhouse.rows(f"SELECT DISTINCT proto FROM {name(table)}") == [["tcp"]]


def test_flows_and_their_functions(clickhouse: ClickHouse, table: str, tmp_path: Path) -> None:
    flows = tmp_path / "flows.yaml"
    windows = "[{aggregate: {agg: count, by: src_ip, every: 1s}}]"
    flows.write_text(
        f"flows:\n- {{name: dns, match: port 53, fields: 'ts,src_ip', to: '{table}_dns'}}\n"
        f"- {{name: rest, functions: {windows}, workers: 1, to: '{table}'}}\n"
    )
    made(clickhouse, "stream", "publish", CAMPUS, "--flows", flows)
    done = published(CAMPUS, "--flows", flows, "--stats")
    assert done.returncode == 0, done.stderr
    dns, everything = (int(lines(run("confluo-query", CAMPUS, *e, "--count"))[0]) for e in (["port 53"], []))
    assert clickhouse.number(f"SELECT count() FROM {name(table)}_dns") == dns
    assert clickhouse.number(f"SELECT sum(count) FROM {name(table)}") == everything - dns
    deliveries = [line.split() for line in done.stderr.decode().splitlines() if line.startswith("deliver")]
    assert {row[1] for row in deliveries} == {name(table), f"{name(table)}_dns"}
    in_table = clickhouse.number(f"SELECT count() FROM {name(table)}")
    assert sum(int(row[-1]) for row in deliveries) == dns + in_table


def test_results_of_a_service(clickhouse: ClickHouse, table: str) -> None:
    command = "stream", "service", "top", str(CAMPUS), "--by", "dst_ip", "--to", table
    made(clickhouse, *command)
    done = run("confluo-stream", *command[1:], "-J")
    assert done.returncode == 0, done.stderr
    shown = [json.loads(line) for line in lines(done)]
    got = clickhouse.rows(f"SELECT rank, packets, bytes FROM {name(table)} ORDER BY ts, rank")
    assert got == [[row[key] for key in ("rank", "packets", "bytes")] for row in shown]


def test_convert(clickhouse: ClickHouse, table: str) -> None:
    command = "convert", CAMPUS, "-f", "ts,len,eth_src", "-c", "1000", "--to", table
    made(clickhouse, *command)
    done = run("confluo-convert", *map(str, command[1:]), "--stats")
    assert done.stderr.decode() == "confluo-convert: 5735 records read, 1000 written\n" or done.returncode == 0
    first = lines(run("confluo-query", CAMPUS, "-c", "3", "-f", "len,eth_src", "-T", "--no-header"))
    got = clickhouse.rows(f"SELECT len, lower(MACNumToString(eth_src)) FROM {name(table)} ORDER BY ts LIMIT 3")
    assert ["\t".join(map(str, row)) for row in got] == first
    assert clickhouse.number(f"SELECT count() FROM {name(table)}") == 1000


def test_a_pipe_with_pauses_makes_few_inserts(clickhouse: ClickHouse, table: str) -> None:
    clickhouse.query(f"CREATE TABLE {name(table)} (n Int64) ENGINE = MergeTree ORDER BY n")
    command = [BIN / "confluo-convert", "-i", "ndjson", "-", "--to", table]
    with subprocess.Popen(command, stdin=subprocess.PIPE, env=environment()) as process:
        assert process.stdin is not None
        for n in range(20):
            process.stdin.write(b'{"n": %d}\n' % n)
            process.stdin.flush()
            time.sleep(0.002)
        end = time.monotonic() + DEADLINE
        while clickhouse.number(f"SELECT count() FROM {name(table)}") < 20:  # also while the pipe is silent
            assert time.monotonic() < end
        process.stdin.close()
    assert process.returncode == 0
    assert clickhouse.number(f"SELECT max(max_block_number) FROM system.parts WHERE table = '{name(table)}'") < 15


def test_a_topic_into_a_table(clickhouse: ClickHouse, table: str, broker: Broker) -> None:
    """With a group, the next run goes on where this one ended: offsets are committed when the table has the rows."""
    topic = broker.topic(f"ch{uuid4().hex[:8]}")
    words = [topic, "--group", f"g{uuid4().hex[:8]}", "-f", "ts,len", "--to", table]
    assert published(CAMPUS, "--to", topic, "--create", "2").returncode == 0
    clickhouse.query(f"CREATE TABLE {name(table)} (ts Int64, len UInt32) ENGINE = Memory")
    for rows in (5735, 2 * 5735):
        with started([BIN / "confluo-convert", *words, "--follow"]) as process:
            end = time.monotonic() + DEADLINE
            while clickhouse.number(f"SELECT count() FROM {name(table)}") < rows:
                assert time.monotonic() < end
                assert process.poll() is None
            process.send_signal(signal.SIGINT)
            _, said = process.communicate(timeout=DEADLINE)
        assert (process.returncode, said) == (130, b"")
        assert clickhouse.number(f"SELECT count() FROM {name(table)}") == rows
        assert published(CAMPUS, "--to", topic).returncode == 0


def test_a_server_that_is_killed(tmp_path: Path) -> None:
    """A million rows are all there after it has come back; none is twice unless the run said so."""
    if missing():
        pytest.skip(missing())
    server = ClickHouse(tmp_path)
    rows = tmp_path / "rows.arrows"
    with open(rows, "wb", buffering=0) as f:
        writer = StreamWriter(SIGNED, Pieces(f.fileno()))
        for start in range(0, MILLION, 50_000):
            writer.write(signed_block(1, start, 50_000))
        writer.close()
    server.query("CREATE TABLE t (writer UInt32, seq UInt64, `check` UInt64) ENGINE = MergeTree ORDER BY seq")
    command = [BIN / "confluo-stream", "publish", rows, "--to", f"{server.address}/t", "--size", "512Ki"]
    try:
        with started(command) as sender:
            end = time.monotonic() + DEADLINE
            while server.number("SELECT count() FROM t") < MILLION // 10:
                assert time.monotonic() < end
            server.kill()
            first = next_line(sender.stderr, DEADLINE)
            server.start()
            _, more = sender.communicate(timeout=DEADLINE)
        assert sender.returncode == 0, first + more
        said = first + more
        again = sum(int(n) for n in re.findall(rb": (\d+) records are sent again, and may be there twice", said))
        assert server.number("SELECT uniqExact(seq) FROM t") == MILLION
        assert MILLION <= server.number("SELECT count() FROM t") <= MILLION + again
        assert server.number("SELECT sum(seq) FROM (SELECT DISTINCT seq FROM t)") == MILLION * (MILLION - 1) // 2
    finally:
        server.close()


@contextmanager
def started(command: list[Any]) -> Iterator[subprocess.Popen[bytes]]:
    """A command that is killed when the test fails."""
    with subprocess.Popen([str(word) for word in command], stderr=subprocess.PIPE, env=environment()) as process:
        try:
            yield process
        finally:
            process.kill()


class Pieces:
    """An output with writev."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def writev(self, pieces: list[bytes]) -> None:
        os.write(self._fd, b"".join(pieces))


@pytest.mark.root
def test_a_full_disk(tmp_path: Path) -> None:
    """The run waits, and goes on when there is room."""
    if missing() or os.geteuid() != 0:
        pytest.skip(missing() or "needs root to mount a tmpfs")
    server = ClickHouse(tmp_path, disk="24m")
    try:
        server.query("CREATE TABLE ballast (x UInt64) ENGINE = TinyLog")
        columns = "ts Int64, src_ip FixedString(16), flow_hash UInt32, tcp_seq UInt32, tcp_tsval UInt32"
        server.query(f"CREATE TABLE t ({columns}) ENGINE = MergeTree ORDER BY tuple()")
        with pytest.raises(AssertionError, match="No space left"):
            _fill(server)
        command = [BIN / "confluo-stream", "publish", *["-r", CAMPUS] * 60, "--size", "128Ki"]
        command += ["-f", "ts,src_ip,flow_hash,tcp_seq,tcp_tsval", "--to", f"{server.address}/t"]
        with started(command) as sender:
            first = next_line(sender.stderr, DEADLINE)
            assert b"waits: Cannot write to file" in first
            assert b"No space left on device" in first
            server.query("DROP TABLE ballast")
            _, said = sender.communicate(timeout=DEADLINE)
        assert sender.returncode == 0, said
        assert server.number("SELECT count() FROM t") == 60 * 5735
    finally:
        server.close()


def _fill(server: ClickHouse) -> None:
    for _ in range(1000):
        server.query("INSERT INTO ballast SELECT rand64(number) FROM numbers(100000)")


def test_login_and_tls(clickhouse: ClickHouse, table: str, tmp_path: Path) -> None:
    made(clickhouse, "stream", "publish", CAMPUS, "--to", table)
    tls = f"clickhouses://127.0.0.1:{clickhouse.tls_port}/{name(table)}"
    (tmp_path / "secret").write_text(f"{PASSWORD}\n")
    cases = {
        f"user=collector\npassword=@{tmp_path}/secret\nca={clickhouse.folder}/ca.pem": b"",
        f"# other\nuser = collector\npassword = x\nca = {clickhouse.folder}/ca.pem": b"refuses the login: Wrong pass",
        "user=collector\npassword=env:NOTHING": b"settings:2: the variable NOTHING is not set\n",
        "user=collector": b"its certificate is wrong: self-signed certificate in certificate chain; check the",
        "host=h": b"settings:1: is not a setting of ClickHouse; write user, password, ca, ",
        f"ca={tmp_path}/secret": b"CONFLUO_CLICKHOUSE: ca, certificate and key: ",
    }
    for text, said in cases.items():
        (tmp_path / "settings").write_text(text)
        done = published(CAMPUS, "--to", tls, CONFLUO_CLICKHOUSE=str(tmp_path / "settings"))
        assert done.stderr.count(b"\n") == (1 if said else 0), done.stderr
        assert said in done.stderr
        assert PASSWORD.encode() not in done.stderr
        assert done.returncode == (2 if said else 0)
    assert clickhouse.number(f"SELECT count() FROM {name(table)}") == 5735


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ("", "there is no table; make it with the statement that the same command prints with --ddl"),
        ("ts Int64", NO_LEN),
        ("ts Date, len UInt16", UNFIT),
        ("ts Int64, len UInt32 MATERIALIZED 5", NO_LEN),
    ],
)
def test_tables_that_do_not_fit(clickhouse: ClickHouse, table: str, columns: str, said: str) -> None:
    if columns:
        clickhouse.query(f"CREATE TABLE {name(table)} ({columns}) ENGINE = Memory")
    for command in ("confluo-stream publish", "confluo-convert"):
        program, *verb = command.split()
        done = run(program, *verb, CAMPUS, "-f", "ts,len", "--to", table)
        assert done.stderr.decode() == f"{command}: {table}: {said.format(name=name(table))}\n"
        assert (done.returncode, done.stdout) == (2, b"")


def test_other_places_that_are_wrong(clickhouse: ClickHouse) -> None:
    host = f"127.0.0.1:{clickhouse.port}"
    cases = {
        f"clickhouse://{host}/none.t": f"clickhouse://{host}/none.t: there is no database 'none'; make it,",
        f"clickhouse://127.0.0.1:{clickhouse.native}/t": "as ClickHouse does: HTTP 400 Bad Request 'Port ",
        f"clickhouses://{host}/t": "; clickhouse:// is without TLS",
        f"clickhouse://127.0.0.1:{clickhouse.tls_port}/t": "check the address; clickhouses:// is with TLS",
        f"clickhouse://user:secret@{host}/t": f"clickhouse://...@{host}: has a user or a password in it, and other",
        f"clickhouse://{host}/": f"clickhouse://{host}/: names no table; write it as clickhouse://host:8123/db.table",
        f"clickhouse://{host}/a.b.c": "'a.b.c' cannot be a table",
        "clickhouse://host:99999/t": "is not the address of a ClickHouse table",
        "clickhouse://name.invalid/t": "no answer: ",
    }
    for to, said in cases.items():
        done = run("confluo-convert", CAMPUS, "--to", to)
        assert done.returncode == 2
        message = done.stderr.decode()
        # The port of the other protocol answers, and closes so soon that the answer may be lost on the way.
        assert said in message or (
            str(clickhouse.native) in to and "closed the connection without an answer" in message
        )
        assert done.stderr.count(b"\n") == 1
        assert b"secret" not in done.stderr


@pytest.mark.parametrize(
    ("answer", "patience", "said"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", DEADLINE, "does not speak TLS as we do: WRONG_VERSION_NUMBER;"),
        (b"", 0.1, "no answer to TLS within 0.1 s; check the address;"),  # it waits for the rest of a line
    ],
)
def test_tls_to_a_server_without(answer: bytes, patience: float, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "HANDSHAKE", patience)
    with socket.create_server(("127.0.0.1", 0)) as plain:

        def serve() -> None:
            link = plain.accept()[0]
            with link, suppress(ConnectionResetError):
                link.sendall(answer)
                while link.recv(1 << 16):
                    pass

        thread = threading.Thread(target=serve)
        thread.start()
        address = parse_address(f"clickhouses://127.0.0.1:{plain.getsockname()[1]}/t")
        with pytest.raises(server.NoAnswerError) as error, server.ClickHouseServer(address, ServerSettings()) as link:
            link.ask("SELECT 1")
        thread.join()
    assert said in str(error.value)
    assert str(error.value).endswith("clickhouse:// is without TLS")


def test_options_that_do_not_go_together() -> None:
    to = ["--to", "clickhouse://h/t"]
    cases = {
        ("convert", "x", *to, "-J"): "--to and -J exclude each other",
        ("convert", "x", *to, "-w", "y.ml"): "--to and -w exclude each other",
        ("convert", "x", "--ddl"): "--ddl: needs the name of the table",
        ("convert", "x", "--to", "kafka://h/t"): "kafka://h/t: is not the address of a ClickHouse table",
        ("stream", "publish", str(CAMPUS), *to, "-X", "a=b"): "--to clickhouse://h/t: -X is for Kafka",
        ("stream", "publish", str(CAMPUS), *to, "--create", "2"): "--to clickhouse://h/t: --create is for Kafka",
        ("stream", "publish", str(CAMPUS), "--to", "x.messages", "--ddl"): "--ddl: no place is a table",
        ("stream", "publish", str(CAMPUS), *to, "--size", "1Gi"): "--size: 1073741824 is not from 1Ki to",
    }
    for words, said in cases.items():
        program, *rest = words
        done = run(f"confluo-{program}", *rest)
        assert said in done.stderr.decode()
        assert (done.returncode, done.stdout) == (2, b"")


def test_the_statement_without_a_server() -> None:
    done = run("confluo-convert", "--ddl", "--schema", "alert", "--to", "clickhouse://127.0.0.1:1/db.alerts")
    assert done.returncode == 0
    assert done.stderr.decode() == (
        "confluo-convert: clickhouse://127.0.0.1:1/db.alerts: no answer: Connection refused;"
        " the statement is for servers since 2020\n"
    )
    text = done.stdout.decode()
    assert text.startswith("CREATE TABLE `db`.`alerts`\n(\n    `ts` DateTime64(9, 'UTC') COMMENT ")
