"""Brokers that fail: three nodes, of which some die, and one with a full disk.  Nothing is lost or comes twice."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Timer

import pytest

from kafka_lab import Broker, Cluster, jars
from running import BIN, CAMPUS, environment, lines, popen, run

FIELDS = "ts,src_ip,dst_ip,src_port,dst_port,tcp_seq,flow_hash"
PACKETS = 5735
DEADLINE = 90.0  # s


@pytest.fixture(scope="module")
def libs() -> Path:
    found, why = jars()
    if found is None:
        pytest.skip(why)
    return found


@pytest.fixture(scope="module")
def cluster(libs: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    made = Cluster(tmp_path_factory.mktemp("cluster"), libs)
    yield made
    made.close()


@pytest.fixture(scope="module")
def packets() -> bytes:
    """An Arrow stream of all packets, in small batches."""
    import pyarrow as pa

    table = pa.ipc.open_stream(run("confluo-convert", CAMPUS, "-o", "stream").stdout).read_all()
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=64)
    return bytes(sink.getvalue())


class Publisher:
    """A publisher that is fed from here."""

    def __init__(self, topic: str) -> None:
        words = [BIN / "confluo-stream", "publish", "-", "--to", topic, "--size", "8Ki", "--linger", "0s", "--stats"]
        self.process = popen(words, env=environment(), stdin=subprocess.PIPE, stderr=subprocess.PIPE)

    def feed(self, data: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(data)
        self.process.stdin.flush()

    def close(self) -> None:
        """The input ends."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.stdin = None

    def end(self) -> tuple[int, str]:
        """Its status, and what it said."""
        said = self.process.communicate(timeout=DEADLINE)[1].decode()
        return self.process.returncode, said

    def line(self, what: str) -> str:
        """The first line on stderr that has ``what``."""
        assert self.process.stderr is not None
        late = Timer(DEADLINE, self.process.kill)
        late.start()
        try:
            while line := self.process.stderr.readline().decode():
                if what in line:
                    return line
        finally:
            late.cancel()
        raise AssertionError(f"it did not say {what}")


def rows(*words: object) -> Counter[str]:
    done = run("confluo-query", *(str(word) for word in words), "-T", "--no-header", "-f", FIELDS)
    assert done.stderr == b""
    return Counter(lines(done))


def test_a_leader_dies_while_records_are_sent(cluster: Cluster, packets: bytes) -> None:
    topic = cluster.topic("leader", 2, min_insync_replicas="2")
    publisher = Publisher(topic)
    third = len(packets) // 3
    publisher.feed(packets[:third])
    leader = cluster.leader("leader")
    leader.kill()
    publisher.feed(packets[third : 2 * third])
    time.sleep(1)  # another one leads
    leader.start(wait=False)
    publisher.feed(packets[2 * third :])
    status, said = publisher.end()
    assert status == 0, said
    assert f"{PACKETS} records sent, {PACKETS} delivered" in said
    cluster.wait()
    assert rows(topic) == rows(CAMPUS)


def test_readers_go_on_when_leaders_die(cluster: Cluster, packets: bytes, tmp_path: Path) -> None:
    """One that writes a log, and one of a group: each record once."""
    topic = cluster.topic("followed", 3, min_insync_replicas="2")
    publisher = Publisher(topic)
    log, shown = tmp_path / "t.ml", tmp_path / "shown"
    follow = [BIN / "confluo-query", topic, "--follow", "-q"]
    parts = [packets[i * len(packets) // 5 : (i + 1) * len(packets) // 5] for i in range(5)]
    publisher.feed(parts[0])
    with (
        open(shown, "wb") as out,
        subprocess.Popen([*follow, "-w", log], env=environment()) as writer,
        subprocess.Popen(
            [*follow, "--group", "g", "-T", "--no-header", "-l", "-f", FIELDS], env=environment(), stdout=out
        ) as member,
    ):
        try:
            for part in parts[1:4]:
                before = shown.stat().st_size
                publisher.feed(part)
                until(lambda before=before: log.exists() and shown.stat().st_size > before)
                leader = cluster.leader("followed")
                leader.kill()
                leader.start()
                cluster.wait()
            publisher.feed(parts[4])
            status, said = publisher.end()
            assert status == 0, said
            until(lambda: len(shown.read_bytes().splitlines()) >= PACKETS)
            until(lambda: run("confluo-query", log, "--count").stdout == b"%d\n" % PACKETS)
        finally:
            writer.send_signal(signal.SIGTERM)
            member.send_signal(signal.SIGTERM)
        assert (writer.wait(DEADLINE), member.wait(DEADLINE)) == (143, 143)
    assert Counter(shown.read_text().splitlines()) == rows(log) == rows(CAMPUS)


def until(what: Callable[[], object]) -> None:
    """Wait until it is true."""
    end = time.monotonic() + DEADLINE
    while not what():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_too_few_replicas_are_waited_for(cluster: Cluster, packets: bytes) -> None:
    topic = cluster.topic("replicas", 1, min_insync_replicas="3")
    follower = next(node for node in cluster.nodes if node is not cluster.leader("replicas"))
    follower.kill()
    publisher = Publisher(topic)
    publisher.feed(packets)
    publisher.close()
    said = publisher.line("waits: ")
    assert "none delivered for 5 s: partition 0 has " in said
    assert "of 3 replicas in sync" in said
    assert run("confluo-query", topic, "--count").returncode == 2  # nothing is in it, and a node is missing
    follower.start(wait=False)
    status, said = publisher.end()
    assert status == 0, said
    assert "messages are delivered again" in said
    assert f"{PACKETS} records sent, {PACKETS} delivered" in said
    cluster.wait()
    assert rows(topic) == rows(CAMPUS)


def test_messages_that_are_too_large_for_the_topic(cluster: Cluster) -> None:
    """The limit is for what the client sends at once."""
    topic = cluster.topic("small", 1, max_message_bytes="100000")
    done = run("confluo-stream", "publish", CAMPUS, "--to", topic)
    said = done.stderr.decode()
    assert done.returncode == 2
    assert "records were not delivered: Broker: Message size too large; " in said
    assert said.count("\n") == 1, said
    small = ["--size", "16Ki", "-X", "batch.size=20000"]
    assert run("confluo-stream", "publish", CAMPUS, "--to", topic, *small).returncode == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="a small disk needs root")
def test_a_broker_with_a_full_disk_is_waited_for(libs: Path, tmp_path: Path) -> None:
    """Kafka ends when its only disk is full.  What was delivered before is counted."""
    broker = Broker(tmp_path, libs, disk="3m")
    try:
        topic = broker.topic("t")
        assert run("confluo-stream", "publish", CAMPUS, "-c", "1", "--to", topic, "--create", "1").returncode == 0
        many = run("confluo-convert", *[CAMPUS] * 6, "-o", "stream").stdout
        publisher = Publisher(topic)
        publisher.feed(many)
        publisher.close()
        assert "none delivered for 5 s: no broker answers" in publisher.line("waits: ")
        publisher.process.send_signal(signal.SIGTERM)
        status, said = publisher.end()
        assert status == 2
        assert f"of {6 * PACKETS} records were not delivered: " in said
    finally:
        broker.close()
