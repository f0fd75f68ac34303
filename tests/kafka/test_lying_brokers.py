"""Brokers that lie about offsets: reading ends, with one line, and a log has no row twice."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from confluo_tools.errors import ConfluoError
from confluo_tools.kafka import client, topic_consumer
from confluo_tools.kafka.address import parse
from confluo_tools.kafka.topic_reader import TopicReader
from hostile_messages import ROWS, numbers, with_envelope
from lying_broker import OUT_OF_RANGE, Answer, LyingBroker, batch
from running import environment, lines, run

pytest.importorskip("confluent_kafka", reason="the package confluent-kafka is not installed")
COUNT = 6
ALL = COUNT * ROWS
VALUES = [with_envelope(numbers(seq=i)) for i in range(COUNT)]
ONCE_EACH = sorted(f"{offset}\t{row}" for offset in range(COUNT) for row in range(1, ROWS + 1))
Lie = Callable[[LyingBroker, int], Answer]


@pytest.fixture
def broker() -> Iterator[LyingBroker]:
    with LyingBroker(VALUES) as made:
        yield made


def fetches(broker: LyingBroker, lie: Lie) -> None:
    broker.answer = lambda offset: lie(broker, offset)


def refused(broker: LyingBroker) -> str:
    """What confluo-query says when it gives up: one line, with the topic."""
    done = run("confluo-query", broker.topic, "--count")
    (line,) = done.stderr.decode().splitlines()
    assert (done.returncode, done.stdout) == (2, b"")
    where = f"confluo-query: {broker.topic}: "
    assert line.startswith(where)
    assert len(broker.fetches) < 1000
    return line.removeprefix(where)


def test_an_honest_broker(broker: LyingBroker) -> None:
    """What the others compare with."""
    done = run("confluo-query", broker.topic, "--count")
    assert (done.returncode, done.stdout, done.stderr) == (0, b"%d\n" % ALL, b"")


@pytest.mark.parametrize("edges", [(-5, 6), (6, 2)])
def test_edges_that_cannot_be(broker: LyingBroker, edges: tuple[int, int]) -> None:
    broker.edges = lambda: edges
    what = f"partition 0: the broker says to have {edges[0]} up to {edges[1]}; check the broker"
    assert refused(broker) == what
    done = run("confluo-stream", "topics", broker.topic)
    assert (done.returncode, done.stderr.decode()) == (2, f"confluo-stream topics: {broker.topic}: {what}\n")


@pytest.mark.parametrize("edges", [(-1, -1), (-1001, 6), (0, -1001)])
def test_edges_that_are_not_known(broker: LyingBroker, edges: tuple[int, int]) -> None:
    """By a leader that is new; it is asked again for a while."""
    broker.edges = lambda: edges
    assert refused(broker) == (
        "no broker answers: partition 0: its leader does not say which messages it has; check the address and -X"
    )


def test_edges_that_are_known_a_moment_later(broker: LyingBroker) -> None:
    asked: list[int] = []

    def edges() -> tuple[int, int]:
        asked.append(1)
        return broker.honest_edges() if len(asked) > 6 else (0, -1001)

    broker.edges = edges
    done = run("confluo-query", broker.topic, "--count")
    assert (done.returncode, done.stdout, done.stderr) == (0, b"%d\n" % ALL, b"")
    assert len(asked) > 6


def test_a_follower_waits_for_a_leader_that_does_not_know_its_edges(broker: LyingBroker, tmp_path: Path) -> None:
    """When a message that it wants is refused."""
    begun: list[float] = []
    asked: list[int] = []

    def settles() -> bool:
        return bool(begun) and time.monotonic() < begun[0] + client.SETTLE + 1

    def answer(offset: int) -> Answer:
        if offset == 3 and not begun:
            begun.append(time.monotonic())
        if offset == 3 and settles():
            return OUT_OF_RANGE, broker.end, b""
        return (0, broker.end, batch(offset, VALUES[offset:3])) if offset < 3 else broker.honest_answer(offset)

    def edges() -> tuple[int, int]:
        asked.append(settles())
        return (0, -1001) if settles() else broker.honest_edges()

    broker.answer, broker.edges = answer, edges
    done = run("confluo-query", broker.topic, "--follow", "--limit", str(ALL), "-w", tmp_path / "t.ml")
    assert (done.returncode, done.stderr) == (0, b"")
    assert places(tmp_path / "t.ml") == ONCE_EACH
    assert any(asked)


def test_an_end_that_goes_back(broker: LyingBroker) -> None:
    """It says to have 20 messages, and sends 6."""
    broker.edges = lambda: (0, 20)
    done = run("confluo-query", broker.topic, "--count")
    assert (done.returncode, done.stdout) == (2, b"%d\n" % ALL)
    said = f"confluo-query: {broker.topic}: partition 0 ends at 6, not at 20 as the broker said: it lost messages\n"
    assert done.stderr.decode() == said


def test_an_end_that_does_not_come(broker: LyingBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    broker.edges = lambda: (0, 20)
    fetches(broker, lambda broker, offset: (0, 20, batch(offset, VALUES[offset:])))
    monkeypatch.setattr(topic_consumer, "SILENCE", 0.3)
    monkeypatch.setattr(topic_consumer, "PEEK", 0.3)
    reader = TopicReader(parse(broker.topic), {})
    found: list[int] = []
    with pytest.raises(ConfluoError, match="partition 0 ends at 20, but message 6 does not arrive"):
        found.extend(block.rows for block in reader.blocks())
    reader.close()
    assert sum(found) == ALL


def test_an_end_that_is_too_low(broker: LyingBroker) -> None:
    """Messages behind the end when reading began are not read; the end in a fetch changes nothing."""
    broker.edges = lambda: (0, 3)
    assert run("confluo-query", broker.topic, "--count").stdout == b"%d\n" % (3 * ROWS)
    broker.edges = broker.honest_edges
    fetches(broker, lambda broker, offset: (0, 2, broker.honest_answer(offset)[2]))
    done = run("confluo-query", broker.topic, "--count")
    assert (done.returncode, done.stdout) == (0, b"%d\n" % ALL)


def test_a_beginning_that_is_refused() -> None:
    with LyingBroker(VALUES, first=100) as broker:
        broker.edges = lambda: (0, 106)
        what = "partition 0: the broker says to have 0 up to 106, but refuses 0; check the broker"
        assert refused(broker) == what


@pytest.mark.parametrize(
    ("lie", "said"),
    [
        (lambda broker, offset: (0, 6, batch(-7, VALUES)), "its messages cannot be read: partition 0: "),
        (lambda broker, offset: (0, 6, batch(0, VALUES[:2])), "Message at offset 2 might be too large"),
        (lambda broker, offset: (0, 6, batch(offset, VALUES, last=-100)), "its messages cannot be read: partition 0"),
        (lambda broker, offset: (OUT_OF_RANGE, 6, b""), "its messages cannot be read: partition 0: fetch failed"),
        (lambda broker, offset: (2, 6, b""), "its messages cannot be read: partition 0: Fetch from broker 1 failed"),
        (
            lambda broker, offset: (0, 6, batch(1 << 62, VALUES)),
            "partition 0: message 4611686018427387904 came in place of 0, but the broker ends at 6; check the broker",
        ),
    ],
    ids=["negative", "always-the-first", "ends-before-it-begins", "refused", "damaged", "far"],
)
def test_messages_that_cannot_be(broker: LyingBroker, lie: Lie, said: str) -> None:
    fetches(broker, lie)
    assert refused(broker).startswith(said)


@pytest.mark.parametrize(
    "lie",
    [
        lambda broker, offset: (0, 6, batch(max(offset - 1, 0), VALUES[max(offset - 1, 0) :][:2])),
        *[
            lambda broker, offset, n=n: (0, 6, batch(offset, VALUES[offset:], count=n))
            for n in (-1, 2, 1000, 2**31 - 1)
        ],
        *[lambda broker, offset, n=n: (0, 6, batch(offset, VALUES[offset:], last=n)) for n in (1, 100)],
    ],
    ids=["one-back", "no-count", "few", "many", "most", "ends-early", "ends-late"],
)
def test_counts_that_are_wrong_change_nothing(broker: LyingBroker, lie: Lie, tmp_path: Path) -> None:
    fetches(broker, lie)
    done = run("confluo-query", broker.topic, "-w", tmp_path / "t.ml")
    assert (done.returncode, done.stderr) == (0, b"")
    assert places(tmp_path / "t.ml") == ONCE_EACH


@pytest.mark.parametrize(
    "lie",
    [
        lambda broker, offset: (0, 6, batch(offset, VALUES[offset:4]) + batch(1 << 62, VALUES[4:])),
        lambda broker, offset: (0, 6, batch(offset, VALUES[offset:4]) + batch(0, VALUES)),
        lambda broker, offset: (0, 6, batch(offset, VALUES[offset:4])) if offset < 4 else (OUT_OF_RANGE, 6, b""),
    ],
    ids=["far", "twice", "refused"],
)
def test_a_log_goes_on_after_lies(broker: LyingBroker, lie: Lie, tmp_path: Path) -> None:
    """With a broker that has come to its senses, it gets each row once."""
    fetches(broker, lie)
    log = tmp_path / "t.ml"
    done = run("confluo-query", broker.topic, "-w", log)
    assert done.returncode in (0, 2)
    assert len(done.stderr.splitlines()) == (done.returncode == 2)
    broker.answer = broker.honest_answer
    assert run("confluo-query", broker.topic, "-w", log).stderr == b""
    assert places(log) == ONCE_EACH


def places(log: Path) -> list[str]:
    """Where the rows of a log were."""
    return sorted(lines(run("confluo-query", log, "-f", "kafka_offset,kafka_row", "-T", "--no-header")))


def test_a_partition_that_shrinks_while_it_is_read(broker: LyingBroker) -> None:
    """It has 2 messages after it has sent 3 of 6."""

    def answer(offset: int) -> Answer:
        if offset < 3 or 0 not in broker.fetches:  # it looks at the last message first
            return 0, COUNT, batch(offset, VALUES[offset : max(3, offset + 1)])
        broker.edges = lambda: (0, 2)
        return OUT_OF_RANGE, 2, b""

    broker.answer = answer
    what = "partition 0 ends at 2, before the next message 3: it lost messages, or is a new one"
    assert refused(broker) == what


def test_a_new_topic_is_waited_for(broker: LyingBroker) -> None:
    """Kafka loses what is sent to a leader that does not know yet that it is one."""
    broker.unready = 5
    client.wait_for_leaders(parse(broker.topic), {}, 1)
    assert broker.unready < 0


def decompresses(broker: LyingBroker, value: bytes, codec: str) -> None:
    """The last message of the broker is ``value``, in a batch of its own that is compressed."""
    last = batch(COUNT, [value], codec=codec)
    broker.edges = lambda: (0, COUNT + 1)
    fetches(broker, lambda broker, offset: (0, COUNT + 1, batch(offset, VALUES[offset:]) + last))


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_a_message_too_large_after_decompression(broker: LyingBroker, codec: str) -> None:
    """It is left out, and counted."""
    decompresses(broker, bytes(17 << 20), codec)
    done = run("confluo-query", broker.topic, "--count")
    assert (done.returncode, done.stdout) == (2, b"%d\n" % ALL)
    said = f"confluo-query: {broker.topic}: message 0:{COUNT} has {17 << 20} bytes, more than {16 << 20}\n"
    assert done.stderr.decode() == said


def test_a_batch_that_grows_without_end(broker: LyingBroker) -> None:
    """librdkafka has no limit for gzip.  The reader does not wait for it, and does not take its memory."""
    decompresses(broker, bytes(128 << 20), "gzip")
    code = (
        "import sys\n"
        "from confluo_tools.kafka import fetch_memory\n"
        "from confluo_tools.commands.query import main\n"
        "fetch_memory.MAX_GROWTH = 32 << 20\n"
        "sys.exit(main([sys.argv[1], '--count']))\n"
    )
    done = subprocess.run([sys.executable, "-c", code, broker.topic], capture_output=True, env=environment())
    what = "messages grow to more than 32MiB when they are decompressed; --since begins after them"
    assert (done.returncode, done.stderr.decode()) == (2, f"confluo-query: {broker.topic}: {what}\n")
