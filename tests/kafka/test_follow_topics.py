"""Topics that are read as they grow: each row once, whoever dies, and windows that close."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from confluo_tools import multilog
from confluo_tools.errors import ConfluoError
from kafka_lab import Broker
from running import BIN, environment, lines, listens, popen, run

CAMPUS = Path(__file__).resolve().parents[2] / "examples" / "data" / "campus.pcap.gz"
PACKETS, TCP = 5735, 5167
FIELDS = "ts,src_ip,dst_ip,src_port,dst_port,tcp_seq,flow_hash"
PATIENCE = 60.0  # s
SESSION = "session.timeout.ms=1000\nheartbeat.interval.ms=200\n"  # a member that was killed is missed soon


@pytest.fixture
def topic(broker: Broker) -> str:
    """The address of a topic of four partitions."""
    from confluo_tools.kafka.address import parse
    from confluo_tools.kafka.client import make_topic

    address = broker.topic(f"f{uuid4().hex[:12]}")
    make_topic(parse(address), {}, 4)
    return address


def until(what: Callable[[], object]) -> None:
    """Wait until it is true."""
    end = time.monotonic() + PATIENCE
    while not what():
        assert time.monotonic() < end
        time.sleep(0.01)


def rows(path: Path) -> int:
    if not multilog.is_log(str(path)):
        return 0
    with multilog.open(str(path), readonly=True) as log:
        return log.version().rows


def packets(*words: object) -> list[str]:
    return lines(run("confluo-query", *map(str, words), "-f", FIELDS, "-T", "--no-header"))


@contextmanager
def started(*words: object, **more: object) -> Iterator[subprocess.Popen[bytes]]:
    """A command that runs beside the test; killed at the end."""
    given = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "env": environment()} | more
    with popen([BIN / str(words[0]), *map(str, words[1:])], **given) as process:  # type: ignore[call-overload]
        try:
            yield process
        finally:
            process.kill()


@pytest.fixture(scope="module")
def batches() -> list[bytes]:
    """The capture as the bytes of an Arrow stream: its schema, then batches of 64 rows."""
    import pyarrow as pa

    table = pa.ipc.open_stream(run("confluo-convert", CAMPUS, "-o", "stream").stdout).read_all()
    sink = pa.BufferOutputStream()
    ends = [0]
    with pa.ipc.new_stream(sink, table.schema) as writer:
        for batch in table.to_batches(max_chunksize=64):
            writer.write_batch(batch)
            ends.append(sink.tell())
    whole = sink.getvalue().to_pybytes()
    return [whole[a:b] for a, b in zip(ends, [*ends[1:], len(whole)], strict=True)]


@contextmanager
def publisher(topic: str, batches: list[bytes]) -> Iterator[Callable[[float], None]]:
    """A publisher; call it to send this share of the capture."""
    at = 0
    words = ["confluo-stream", "publish", "-", "--to", topic, "--size", "4Ki", "--linger", "1ms"]
    with started(*words, stdin=subprocess.PIPE) as process:

        def send(share: float) -> None:
            nonlocal at
            assert process.stdin is not None
            end = round(len(batches) * share)
            process.stdin.write(b"".join(batches[at:end]))
            process.stdin.flush()
            at = end
            if share == 1:
                process.stdin.close()
                assert process.wait(PATIENCE) == 0

        yield send


def ended(process: subprocess.Popen[bytes], number: int = signal.SIGTERM) -> bytes:
    """Standard error of a follower after the signal."""
    process.send_signal(number)
    _, said = process.communicate(timeout=PATIENCE)
    assert process.returncode == 128 + number, said
    return said


def members(broker: Broker, group: str) -> int:
    """Processes that share the partitions."""
    from confluent_kafka.admin import AdminClient

    client = AdminClient({"bootstrap.servers": broker.address})
    found = client.describe_consumer_groups([group])[group].result()
    return sum(bool(member.assignment.topic_partitions) for member in found.members)


def once_each(log: Path, *expression: str) -> None:
    """The log has the packets of the capture, each once, and the rows of each flow in their order."""
    assert Counter(packets(log, *expression)) == Counter(packets(CAMPUS, *expression))
    names = "flow_hash,ts,kafka_partition,kafka_offset,kafka_row"
    places: dict[str, list[tuple[int, int, int, str]]] = {}
    for line in lines(run("confluo-query", log, "-f", names, "-T", "--no-header")):
        flow, ts, *place = line.split("\t")
        partition, offset, row = map(int, place)
        places.setdefault(flow, []).append((partition, offset, row, ts))
    for found in places.values():
        times = [ts for *_, ts in sorted(found)]
        assert times == sorted(times)


def test_a_reader_that_is_killed_again_and_again(topic: str, batches: list[bytes], tmp_path: Path) -> None:
    """At fault points of the log and of its record, and at random instants."""
    log, rng = tmp_path / "t.ml", random.Random(1)
    faults = ["", "publish-before:40", "topic-saved:1", "", "publish-after:60", "segment-named:1", "", ""]
    words = ["confluo-query", topic, "tcp", "--follow", "-w", log]
    with publisher(topic, batches) as send:
        send(0.1)
        for n, fault in enumerate(faults, 2):
            before = rows(log)
            with started(*words, env=environment(CONFLUO_FAULT=fault)) as reader:
                send(n / (len(faults) + 2))
                if fault.startswith("topic-saved"):
                    reader.wait(PATIENCE)
                else:
                    until(lambda before=before, reader=reader: rows(log) > before or reader.poll() is not None)
                    time.sleep(rng.random() / 50)
        send(1)
    done = run("confluo-query", topic, "tcp", "-w", log)
    assert done.stderr == b""
    assert rows(log) == TCP
    once_each(log, "tcp")
    assert run("confluo-query", topic, "tcp", "-w", log).returncode == 1  # nothing is left
    done = run("confluo-query", topic, "udp", "-w", log)
    assert b"it was written with the expression tcp; write into another log" in done.stderr
    assert done.returncode == 2


def test_a_group_writes_one_log_and_takes_over_from_the_dead(topic: str, batches: list[bytes], tmp_path: Path) -> None:
    (tmp_path / "kafka").write_text(SESSION)
    log, mine = tmp_path / "t.ml", {"env": environment(CONFLUO_KAFKA=str(tmp_path / "kafka"))}
    words = ["confluo-query", topic, "--follow", "--group", "g", "-w", log]
    with publisher(topic, batches) as send, started(*words, **mine) as a, started(*words, **mine) as b:
        send(0.4)
        until(lambda: rows(log))
        with started(*words, **mine) as c:
            send(0.6)
            c.kill()
        a.kill()
        send(1)
        until(lambda: rows(log) == PACKETS or b.poll() is not None)
        ended(b)
    once_each(log)
    lag = run("confluo-query", topic, "--group", "g", "-w", log, env=environment(**mine["env"]))
    assert (lag.returncode, lag.stderr) == (1, b"")


def test_a_log_that_another_process_is_making_is_waited_for(topic: str, batches: list[bytes], tmp_path: Path) -> None:
    log = tmp_path / "t.ml"
    log.mkdir()
    (log / ".control.1.tmp").touch()
    with publisher(topic, batches) as send:
        send(1)
    assert run("confluo-query", topic, "-w", log).stderr == b""
    once_each(log)


@pytest.mark.parametrize("error", ["_DESTROY_BROKER", "NOT_COORDINATOR"])
def test_a_group_that_changes_its_broker_is_asked_again(
    topic: str, monkeypatch: pytest.MonkeyPatch, error: str
) -> None:
    """librdkafka fails requests to a broker that it forgets, or that hands the group over."""
    from confluent_kafka import KafkaError, KafkaException

    from confluo_tools.kafka import topic_consumer
    from confluo_tools.kafka.address import parse

    told: list[str] = []
    failing = [KafkaException(KafkaError(getattr(KafkaError, error)))] * 2
    consumer = topic_consumer.TopicConsumer(parse(topic), {}, group="g", warn=told.append, tell=told.append)

    def ask(places: list[Any], timeout: float) -> list[Any]:
        if failing:
            raise failing.pop()
        return [type(p)(p.topic, p.partition, 7) for p in places]

    answered = consumer._answer(ask, [consumer._kafka.TopicPartition("t", 0)])
    assert ([p.offset for p in answered], failing) == ([7], [])
    failing = [KafkaException(KafkaError(KafkaError.GROUP_AUTHORIZATION_FAILED))]
    with pytest.raises(ConfluoError, match="authoriz"):
        consumer._answer(ask, [consumer._kafka.TopicPartition("t", 0)])
    consumer.close()
    assert told == []


def test_a_follower_asks_again_where_to_begin(topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that does not say where the group is does not end a follower; one that reads to an end is ended."""
    from confluo_tools.kafka import client, topic_consumer
    from confluo_tools.kafka.address import parse

    told: list[str] = []
    for follow in (True, False):
        consumer = topic_consumer.TopicConsumer(parse(topic), {}, follow=follow, warn=told.append, tell=told.append)
        real = consumer._begin
        silent = [True, True]

        def begin(partitions: list[int], real: Any = real, silent: list[bool] = silent) -> dict[int, tuple[int, int]]:
            if silent and silent.pop():
                raise client.UnreachableError("no broker answers: Timed out", where=topic)
            return dict(real(partitions))

        monkeypatch.setattr(consumer, "_begin", begin)
        if follow:
            consumer.start()
            assert (consumer.next, consumer.at_end) == ({}, False)
            until(lambda consumer=consumer: consumer.poll(0.01) is None and consumer.next)
            assert consumer.next == dict.fromkeys(range(4), 0)
        else:
            with pytest.raises(client.UnreachableError):
                consumer.start()
        consumer.close()
    waits = [t for t in told if "waiting" in t]
    assert waits[:1] == ["no broker answers: Timed out; waiting for a broker"]
    assert all("Not leader" in t for t in waits[1:]), waits  # the topic is new, and the broker busy


def test_a_group_shares_the_rows_and_goes_on_where_it_was(
    topic: str, batches: list[bytes], broker: Broker, tmp_path: Path
) -> None:
    """At least once to a pipe; each once when no member was killed."""
    words = ["confluo-query", topic, "--follow", "--group", "share", "-f", FIELDS, "-T", "--no-header"]
    files = [tmp_path / "a", tmp_path / "b"]
    with (
        publisher(topic, batches) as send,
        open(files[0], "wb") as a,
        open(files[1], "wb") as b,
        started(*words, stdout=a) as first,
    ):
        send(0.5)
        until(lambda: files[0].stat().st_size)
        with started(*words, stdout=b) as second:
            until(lambda: members(broker, "share") == 2)
            send(1)
            until(lambda: sum(len(f.read_bytes().splitlines()) for f in files) >= PACKETS)
            ended(second)
        ended(first)
    both = [line for f in files for line in f.read_text().splitlines()]
    assert all(f.stat().st_size for f in files)
    assert Counter(both) == Counter(packets(CAMPUS))
    assert run("confluo-query", topic, "--group", "share", "--count").stdout == b"0\n"
    shown = lines(run("confluo-stream", "topics", topic, "--group", "share", "-J"))
    assert [json.loads(line)["lag"] for line in shown] == [0] * 4


def test_a_time_range_ends_by_the_clock(topic: str) -> None:
    assert run("confluo-stream", "publish", CAMPUS, "--to", topic).returncode == 0
    assert run("confluo-query", topic, "--follow", "--until", "now", "--count").stdout == b"%d\n" % PACKETS


def test_a_cursor_goes_on_where_a_killed_reader_was(topic: str, batches: list[bytes], tmp_path: Path) -> None:
    """All runs together print each packet; the cursor of another topic is refused."""
    cursor = tmp_path / "cursor"
    words = ["confluo-query", topic, "--cursor", cursor, "-f", FIELDS, "-T", "--no-header"]
    found: Counter[str] = Counter()
    with publisher(topic, batches) as send:
        send(0.3)
        with open(tmp_path / "out", "wb") as out, started(*words, "--follow", "-l", stdout=out) as process:
            until(cursor.exists)
            send(0.7)
            until(lambda: (tmp_path / "out").stat().st_size > 100_000)
            process.kill()
        found |= Counter((tmp_path / "out").read_text().splitlines())
        send(1)
    for _ in range(2):
        again = run(*map(str, words))
        assert again.stderr == b""
        found += Counter(lines(again))
    assert again.returncode == 1
    whole = Counter(packets(CAMPUS))
    assert found.keys() == whole.keys()
    assert all(found[line] >= n for line, n in whole.items())
    known = json.loads(cursor.read_text())
    known["inputs"][0]["identity"] = "other"
    cursor.write_text(json.dumps(known))
    refused = run(*map(str, words))
    assert (refused.returncode, refused.stdout) == (2, b"")
    assert b"is not the topic that the cursor was made for" in refused.stderr


def test_a_log_keeps_its_range_of_times(topic: str, tmp_path: Path) -> None:
    log = tmp_path / "t.ml"
    for since in ("2026-11-20", "2030-01-01"):
        assert run("confluo-stream", "publish", CAMPUS, "--to", topic).returncode == 0
        assert run("confluo-query", topic, "--since", since, "-w", log).returncode == 0
    assert rows(log) == 2 * PACKETS
    done = run("confluo-query", topic, "--until", "2030-01-01", "-w", log)
    assert b"it was written without --until" in done.stderr


def test_what_was_removed_before_it_was_read_is_counted(topic: str, broker: Broker, tmp_path: Path) -> None:
    from confluent_kafka import TopicPartition
    from confluent_kafka.admin import AdminClient

    from confluo_tools.kafka.address import parse

    log = tmp_path / "t.ml"
    assert run("confluo-stream", "publish", CAMPUS, "--to", topic, "--size", "8Ki").returncode == 0
    assert run("confluo-query", topic, "-w", log).returncode == 0
    assert run("confluo-stream", "publish", CAMPUS, "--to", topic, "--size", "8Ki").returncode == 0
    parts = [json.loads(line) for line in lines(run("confluo-stream", "topics", topic, "-J"))]
    gone = [TopicPartition(parse(topic).topic, p["partition"], p["end"] - 1) for p in parts]
    client = AdminClient({"bootstrap.servers": broker.address})
    assert all(f.result() for f in client.delete_records(gone).values())
    done = run("confluo-query", topic, "-w", log)
    said = done.stderr.decode()
    for p in parts:
        removed = p["end"] - 1 - p["end"] // 2
        assert f"partition {p['partition']}: {removed} messages were removed before they were read" in said
    assert done.returncode == 2
    assert rows(log) == PACKETS + sum(p["records"] for p in parts)


def test_a_monitor_sees_in_a_topic_what_it_sees_in_a_log(topic: str, tmp_path: Path) -> None:
    log = tmp_path / "c.ml"
    assert run("confluo-capture", "-q", "-r", CAMPUS, "-w", log).returncode == 0
    assert run("confluo-stream", "publish", CAMPUS, "--to", topic, "--size", "8Ki").returncode == 0
    words = ["-t", "busy: count > 100 over 1s every 100ms by dst_ip", "-f", "ts,event,key,value", "-T"]
    wanted = lines(run("confluo-monitor", log, "--since", "2026-11-20", *words))
    assert len(wanted) > 20
    assert sorted(lines(run("confluo-monitor", topic, "--since", "2026-11-20", *words))) == sorted(wanted)


def test_a_monitor_follows_a_topic_and_goes_on_after_a_kill(topic: str, tmp_path: Path) -> None:
    def send() -> None:
        row = json.dumps({"ts": datetime.now(UTC).isoformat(), "len": 99})
        words = ["-i", "ndjson", "--schema", "packet", "-o", "stream"]
        made = run("confluo-convert", *words, stdin=f"{row}\n".encode() * 5).stdout
        assert run("confluo-stream", "publish", "-", "--to", topic, stdin=made).returncode == 0

    words = ["-t", "some: count > 3 over 1h every 100ms", "--alerts", tmp_path / "a.ml", "--lag", "0s", "-J"]
    mine = environment(TMPDIR=str(tmp_path))  # a monitor that is killed leaves its records there
    send()
    with started("confluo-monitor", topic, *words, env=mine) as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["event"] == "fire"
        until((tmp_path / "a.ml" / "monitor.json").exists)
    send()
    with started("confluo-monitor", topic, *words, env=mine) as process:
        listens(process, signal.SIGTERM)
        ended(process)
    assert lines(run("confluo-query", tmp_path / "a.ml", "-f", "event", "-T", "--no-header")) == ["fire"]


def test_windows_close_while_a_topic_is_followed(topic: str, tmp_path: Path) -> None:
    made = tmp_path / "paths.ml"
    words = ["--hosts", "4", "--tors", "4", "--epochs", "3", "--seed", "5", "--rate", "5%..9%", "-w", made]
    assert run("confluo-vote", "simulate", *words).returncode == 0
    assert run("confluo-stream", "publish", made, "--to", topic).returncode == 0
    wanted = lines(run("confluo-vote", made, "--epoch", "30s", "-J"))
    assert len(wanted) > 2
    with started("confluo-vote", topic, "--follow", "--epoch", "30s", "-J") as process:
        assert process.stdout is not None
        found = [process.stdout.readline().decode().rstrip() for _ in wanted]
        ended(process)
    assert found == wanted


def test_the_newest_records_of_a_topic(topic: str) -> None:
    """Also while the brokers let the reader wait, before the first message and between partitions."""
    run("confluo-stream", "publish", CAMPUS, "--to", topic)
    newest = sorted(packets(topic))[-3:]  # partitions come in any order
    assert packets(topic, "--last", "3") == newest
    words = ["confluo-query", topic, "--last", "3", "--follow", "-f", FIELDS, "-T", "--no-header"]
    with started(*words, stdout=subprocess.PIPE) as following:
        assert following.stdout is not None
        assert [following.stdout.readline().decode().rstrip("\n") for _ in newest] == newest
        following.terminate()


def test_top_shows_what_comes_into_a_topic(topic: str, tmp_path: Path) -> None:
    """The packets of the loopback interface, among them those that carry them to the broker."""
    publish = ["confluo-stream", "publish", "-i", "lo", "--to", topic]
    apart = environment(XDG_RUNTIME_DIR=str(tmp_path))  # not among the runs that other tests list
    with started(*publish, env=apart), started("confluo-top", topic, "--by", "src_ip", "-n", "2", "-J") as top:
        assert top.stdout is not None
        looks = [json.loads(line) for line in top.stdout]
        assert top.wait(PATIENCE) == 0
    assert {"127.0.0.1"} <= {look["src_ip"] for look in looks if look["rate_len"] > 0}
