"""Records through a real broker: what goes in comes out, once, in the order of each flow."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections import Counter
from pathlib import Path
from uuid import uuid4

import pytest

from kafka_lab import Broker
from running import BIN, environment, lines, popen, run

CAMPUS = Path(__file__).resolve().parents[2] / "examples" / "data" / "campus.pcap.gz"
PACKETS = 5735
FIELDS = "ts,src_ip,dst_ip,src_port,dst_port,tcp_seq,flow_hash"
PATIENCE = 60.0  # s


@pytest.fixture
def topic(broker: Broker) -> str:
    """The address of a topic that does not exist yet."""
    return broker.topic(f"t{uuid4().hex[:12]}")


@pytest.fixture(scope="module")
def filled(broker: Broker) -> str:
    """A topic of four partitions with all packets of a capture."""
    address = broker.topic("filled")
    assert published(CAMPUS, "--to", address, "--create", "4", "--size", "8Ki").returncode == 0
    return address


def published(*words: object) -> subprocess.CompletedProcess[bytes]:
    return run("confluo-stream", "publish", *(str(word) for word in words))


def rows(*words: object) -> list[str]:
    """Rows of a query as text."""
    done = run("confluo-query", *(str(word) for word in words), "-T", "--no-header")
    assert done.stderr == b""
    return lines(done)


def test_a_topic_has_all_records_once(filled: str) -> None:
    assert Counter(rows(filled, "-f", FIELDS)) == Counter(rows(CAMPUS, "-f", FIELDS))
    assert rows(filled, "tcp", "--agg", "count, sum(len)", "--by", "src_ip") == rows(
        CAMPUS, "tcp", "--agg", "count, sum(len)", "--by", "src_ip"
    )


def test_without_a_group_nothing_is_committed(filled: str) -> None:
    for address in (filled, filled.rpartition("/")[0]):  # partitions, and whole topics
        done = run("confluo-stream", "topics", address, "-J", "-f", "topic,committed,lag", check=True)
        assert {(row["committed"], row["lag"]) for row in map(json.loads, lines(done))} == {(-1, 0)}


def test_a_flow_keeps_its_order_and_partition(filled: str, broker: Broker) -> None:
    from confluent_kafka import Consumer, TopicPartition

    from confluo_tools.kafka.message import MessageReader

    consumer = Consumer({"bootstrap.servers": broker.address, "group.id": "t", "enable.partition.eof": True})
    consumer.assign([TopicPartition("filled", p, 0) for p in range(4)])
    reader, ended = MessageReader(), 0
    times: dict[tuple[int, int], list[int]] = {}
    while ended < 4:
        message = consumer.poll(PATIENCE)
        assert message is not None
        if message.error() is not None:
            ended += 1
            continue
        schema, block, envelope = reader.read(message.value())
        assert envelope.partition == message.partition()
        key, ts = schema.layout.index("flow_hash"), schema.layout.index("ts")
        for row in range(block.rows):
            times.setdefault((block.get(key, row), message.partition()), []).append(int(block.get(ts, row)))
    consumer.close()
    assert len({flow for flow, _ in times}) == len(times) > 100
    assert len({partition for _, partition in times}) == 4
    assert sum(map(len, times.values())) == PACKETS
    assert all(seen == sorted(seen) for seen in times.values())


def test_what_is_in_the_topics(filled: str, broker: Broker) -> None:
    done = run("confluo-stream", "topics", f"kafka://{broker.address}", "-J")
    found = {row["topic"]: row for row in map(json.loads, lines(done))}["filled"]
    assert (found["partitions"], found["kind"]) == (4, "packet")
    parts = [json.loads(line) for line in lines(run("confluo-stream", "topics", filled, "-J"))]
    assert [part["partition"] for part in parts] == [0, 1, 2, 3]
    assert sum(part["messages"] for part in parts) == found["messages"]
    assert all(part["seq"] == part["messages"] - 1 for part in parts)


def test_unpack_prints_the_records_of_a_message(filled: str, broker: Broker, tmp_path: Path) -> None:
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": broker.address, "group.id": "t"})
    consumer.assign([TopicPartition("filled", 1, 0)])
    (tmp_path / "m").write_bytes(b"".join(consumer.poll(PATIENCE).value() for _ in range(3)))
    consumer.close()
    envelopes = [json.loads(line) for line in lines(run("confluo-stream", "unpack", "--envelope", tmp_path / "m"))]
    assert [(e["partition"], e["seq"]) for e in envelopes] == [(1, 0), (1, 1), (1, 2)]
    records = [json.loads(line) for line in lines(run("confluo-stream", "unpack", stdin=(tmp_path / "m").read_bytes()))]
    assert len(records) == sum(e["records"] for e in envelopes)
    assert records[0]["ts"] == envelopes[0]["ts"]


def test_since_begins_at_a_time_of_the_broker(topic: str) -> None:
    assert published(CAMPUS, "udp", "--to", topic, "--create", "2").returncode == 0
    time.sleep(0.01)
    after = time.time_ns()
    assert published(CAMPUS, "tcp", "--to", topic).returncode == 0
    # --since is about the times of records, too: those of the capture are older.
    assert rows(topic, "--agg", "count", "--by", "proto", "--since", f"@{after // 10**9 - 3600}") == []
    counts = {line.split("\t")[0] for line in rows(topic, "--agg", "count", "--by", "proto")}
    assert counts == {"tcp", "udp"}


@pytest.mark.parametrize("codec", ["none", "lz4", "zstd", "snappy"])
def test_each_codec(codec: str, topic: str) -> None:
    assert published(CAMPUS, "--to", topic, "--create", "1", "--codec", codec).returncode == 0
    assert rows(topic, "--agg", "count") == [str(PACKETS)]


def test_only_what_the_expression_says_up_to_a_limit(topic: str) -> None:
    assert published(CAMPUS, "udp", "-c", "7", "-f", "ts,len,proto", "--to", topic, "--create", "1").returncode == 0
    assert rows(topic, "-f", "ts,len,proto") == rows(CAMPUS, "udp", "-c", "7", "-f", "ts,len,proto")
    assert published(CAMPUS, "len == 1", "--to", topic).returncode == 1


def test_a_log_is_followed_until_a_signal(topic: str, tmp_path: Path) -> None:
    log = tmp_path / "live.ml"
    assert run("confluo-capture", "-q", "-r", CAMPUS, "-w", log).returncode == 0
    words = [BIN / "confluo-stream", "publish", log, "--follow", "--to", topic, "--create", "3", "--linger", "1ms"]
    with popen(words, env=environment(), stderr=subprocess.PIPE) as process:
        try:
            wait_for(topic, PACKETS)
            assert run("confluo-capture", "-q", "-r", CAMPUS, "-w", log, "--append").returncode == 0
            wait_for(topic, 2 * PACKETS)
        finally:
            process.send_signal(signal.SIGTERM)
        assert process.stderr is not None
        assert f"{2 * PACKETS} records sent, {2 * PACKETS} delivered".encode() in process.stderr.read()
        assert process.wait(PATIENCE) == 128 + signal.SIGTERM


def test_records_are_sent_while_a_pipe_is_silent(topic: str) -> None:
    packets = run("confluo-convert", CAMPUS, "-o", "stream").stdout
    words = [BIN / "confluo-stream", "publish", "-", "--to", topic, "--create", "1"]
    with popen(words, env=environment(), stdin=subprocess.PIPE) as process:
        assert process.stdin is not None
        process.stdin.write(packets)
        process.stdin.flush()
        wait_for(topic, PACKETS)
        process.stdin.close()
        assert process.wait(PATIENCE) == 0


def wait_for(topic: str, count: int) -> None:
    """Until the topic has this many records."""
    end = time.monotonic() + PATIENCE
    while (done := run("confluo-query", topic, "--count")).stdout != b"%d\n" % count:
        assert time.monotonic() < end, done


def test_a_broker_that_is_killed_has_all_records_once(tmp_path_factory: pytest.TempPathFactory, broker: Broker) -> None:
    """So has the log of a reader that follows."""
    folder = tmp_path_factory.mktemp("killed")
    own = Broker(folder, broker.libs)
    topic, log = own.topic("t"), folder / "t.ml"
    reader = None
    try:
        assert published(CAMPUS, "-c", "1", "--to", topic, "--create", "2").returncode == 0
        follow = [BIN / "confluo-query", topic, "--follow", "-w", log]
        reader = popen(follow, env=environment(), stderr=subprocess.PIPE)
        wait_for_rows(log, 1)
        words = [BIN / "confluo-stream", "publish", "-", "--to", topic, "--size", "2Ki", "--linger", "0s"]
        rest = run("confluo-convert", CAMPUS, "-o", "stream").stdout
        with popen(words, env=environment(), stdin=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            assert process.stdin is not None
            assert process.stderr is not None
            half = len(rest) // 2
            process.stdin.write(rest[:half])
            process.stdin.flush()
            own.kill()
            process.stdin.write(rest[half:])
            process.stdin.close()
            time.sleep(0.5)  # the producer meets a broker that is not there
            own.start()
            said = process.stderr.read()
            assert process.wait(PATIENCE) == 0, said
        wanted = Counter([*rows(CAMPUS, "-f", FIELDS), *rows(CAMPUS, "-c", "1", "-f", FIELDS)])
        assert Counter(rows(topic, "-f", FIELDS)) == wanted
        wait_for_rows(log, PACKETS + 1)
        assert Counter(rows(log, "-f", FIELDS)) == wanted
        own.kill()
        reader.send_signal(signal.SIGTERM)
        _, told = reader.communicate(timeout=PATIENCE)
        assert reader.returncode == 128 + signal.SIGTERM
        assert b"no broker answers; waiting for one" in told
    finally:
        own.close()
        if reader is not None:
            reader.kill()


def wait_for_rows(log: Path, count: int) -> None:
    """Until the log has this many rows."""
    from confluo_tools import multilog

    end = time.monotonic() + PATIENCE
    while not multilog.is_log(str(log)) or multilog.open(str(log), readonly=True).version().rows < count:
        assert time.monotonic() < end
        time.sleep(0.05)


def test_missing_repeated_and_foreign_messages_are_told(topic: str, broker: Broker) -> None:
    from confluent_kafka import Producer

    from confluo_tools.core.kafka.message import MessagePacker
    from confluo_tools.inputs.open import open_records
    from confluo_tools.kafka.address import parse
    from confluo_tools.kafka.client import make_topic
    from confluo_tools.kafka.message import shape_of

    make_topic(parse(topic), {}, 1)
    with open_records([str(CAMPUS)]) as reader:
        schema = reader.schema.project(["ts", "len"])
        block = next(iter(reader)).project(schema.layout)
    packer = MessagePacker(shape_of(schema, "a", 0, 1), 100)
    producer = Producer({"bootstrap.servers": broker.address})
    for seq in (0, 1, 1, 4, 3, 3, 5):  # 2 and 3 are missing at 4; 3 comes late, and again
        producer.produce(parse(topic).topic, packer.pack(block.slice(100 * seq, 100), seq=seq))
    producer.produce(parse(topic).topic, b'{"from": "somebody else"}')
    producer.flush(PATIENCE)
    done = run("confluo-query", topic, "--count")
    assert done.stdout == b"500\n"
    said = done.stderr.decode()
    assert "message 0:7 is not an Arrow stream" in said
    assert "messages that are missing: 1" in said
    assert done.returncode == 2


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["--to", "kafka://127.0.0.1:1/t"], "no broker answers: Connection refused"),
        (["--to", "{}/nothing"], "the topic does not exist"),
        (["--to", "{}"], "names no topic"),
        (["--to", "http://x/y"], "is not a place for records"),
        (["--to", "{}/a b"], "cannot be a topic"),
        (["--to", "{}/x", "-X", "linger.ms=never"], "-X: Invalid value"),
        (["--to", "{}/x", "-X", "no.such=1"], "-X: No such configuration property"),
        (["--to", "{}/x", "-X", "sasl.password=secret"], "other users see command lines"),
        (["--to", "{}/x", "-X", "sasl.password=@/nowhere"], "No such file"),
        (["--to", "{}/x", "-X", "sasl.password=env:CONFLUO_NOT_SET"], "is not set"),
        (["--to", "{}/x", "-X", "bootstrap.servers=y"], "cannot be set"),
        (["--to", "{}/x", "--size", "3M"], "is not from 1Ki"),
        (["--to", "{}/x", "--codec", "gzip"], "there are none, lz4"),
        ([], "no place for the records"),
    ],
)
def test_errors_are_one_line(words: list[str], what: str, broker: Broker) -> None:
    given = [word.replace("{}", f"kafka://{broker.address}") for word in words]
    done = published(CAMPUS, *given)
    assert done.returncode == 2
    assert done.stderr.count(b"\n") == 1, done.stderr
    assert what in done.stderr.decode()


def test_an_empty_topic_and_two_topics_are_told(topic: str, filled: str) -> None:
    assert published(CAMPUS, "len == 1", "--to", topic, "--create", "1").returncode == 1
    assert b"has no records" in run("confluo-query", topic).stderr
    assert b"a topic is read alone" in run("confluo-query", "-r", topic, "-r", filled).stderr
