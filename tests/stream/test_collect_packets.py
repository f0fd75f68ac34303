"""confluo-stream publish with flows: from real interfaces and captures into a real broker."""

from __future__ import annotations

import json
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from kafka_lab import Broker, jars
from netns import Lab, Space
from nic_lab import Live, end_all, frame, send
from port_relay import relay
from running import BIN, environment, lines, popen, run

CAMPUS = Path(__file__).resolve().parents[2] / "examples" / "data" / "campus.pcap.gz"
PACKETS = 5735
STREAM = BIN / "confluo-stream"
PATIENCE = 60.0  # s
HEAD = ["stage", "name", "pipeline", "in", "filtered", "dropped", "queued", "out"]


@pytest.fixture
def nets() -> Iterator[tuple[Space, Space]]:
    with Lab() as lab:
        yield lab.pair()
        end_all()


def name() -> str:
    return f"t{uuid4().hex[:12]}"


def rows(topic: str, fields: str) -> list[str]:
    done = run("confluo-query", topic, "-T", "--no-header", "-f", fields)
    assert done.stderr == b""
    return lines(done)


def stages(said: bytes) -> dict[str, list[dict[str, int | str]]]:
    """{stage: its rows} of the table that --stats prints."""
    found: dict[str, list[dict[str, int | str]]] = {}
    table = said.decode().splitlines()
    start = next(i for i, line in enumerate(table) if line.split() == HEAD)
    for line in table[start + 1 :]:
        cells = line.split()
        if len(cells) != len(HEAD):
            break
        row = dict(zip(HEAD, [*cells[:2], *map(int, cells[2:])], strict=True))
        found.setdefault(str(row["stage"]), []).append(row)
    return found


def total(found: list[dict[str, int | str]], what: str, name: str = "") -> int:
    return sum(int(row[what]) for row in found if not name or str(row["name"]) == name)


def check_conservation(table: dict[str, list[dict[str, int | str]]]) -> None:
    """What goes into a stage comes out, or is counted; and what one gives, the next one gets."""
    for found in table.values():
        for row in found:
            assert row["in"] == sum(int(row[c]) for c in ("filtered", "dropped", "queued", "out")), row
    for one, other in (("receive", "classify"), ("send", "deliver")):
        assert total(table[one], "out") == total(table[other], "in")
    in_lanes = total(table.get("function", []), "filtered", "big/sample")
    assert total(table["classify"], "out") - in_lanes == total(table["queue"], "in")  # unless a flow has `continue`


def test_packets_of_an_interface_go_to_the_topics_of_their_flows(
    nets: tuple[Space, Space], broker: Broker, tmp_path: Path
) -> None:
    a, b = nets
    dns, rest = broker.topic(name()), broker.topic(name())
    flows = tmp_path / "flows.yaml"
    flows.write_text(
        f"flows:\n- name: dns\n  match: port 53\n  to: {dns}\n  fields: ts,src_port,ip_id,flow_hash\n  workers: 2\n"
        f"- name: big\n  match: len > 150\n  functions: [sample: 1/10]\n  fields: ts,src_port,ip_id,flow_hash\n"
    )
    with relay(b, broker.port):
        live = Live(
            b, STREAM, "publish", "-i", "v0", "--flows", flows, "--to", rest, "--create", "3", "--lanes", "2",
            "--stats", "--bpf", "udp", "--name", name(), ready=b"capturing from",
        )  # fmt: skip
        sent = [(1000 + i % 37, 53 if i % 3 else 99, 100 + i % 100, i % 65536) for i in range(6000)]
        send(a, [frame(sport=s, dport=d, size=n, ident=i) for s, d, n, i in sent])
        status, _, said = live.end()
    assert status == 130
    table = stages(said)
    check_conservation(table)
    assert total(table["receive"], "in") == 6000
    assert total(table["receive"], "dropped") == 0
    to_dns = [(s, i) for s, d, _, i in sent if d == 53]
    got = [tuple(map(int, line.split("\t"))) for line in rows(dns, "src_port,ip_id")]
    assert Counter(got) == Counter(to_dns)
    big = [1 for _, d, n, _ in sent if d != 53 and n > 150]
    assert total(table["function"], "in", "big/sample") == len(big)
    # Each lane takes the first of every 10 of its own.
    lanes = [int(row["in"]) for row in table["function"] if row["name"] == "big/sample"]
    assert len(lanes) == 2
    assert len(rows(rest, "src_port")) == sum(-(-n // 10) for n in lanes)
    assert_in_order(dns)


def assert_in_order(topic: str) -> None:
    """Each five-tuple is in one partition, in the order of its packets."""
    from confluent_kafka import Consumer, TopicPartition

    from confluo_tools.kafka.message import MessageReader

    brokers, _, which = topic.removeprefix("kafka://").partition("/")
    consumer = Consumer({"bootstrap.servers": brokers, "group.id": "t", "enable.partition.eof": True})
    consumer.assign([TopicPartition(which, p, 0) for p in range(3)])
    reader, ended = MessageReader(), 0
    seen: dict[tuple[int, int], list[int]] = {}
    used = set()
    while ended < 3:
        message = consumer.poll(PATIENCE)
        assert message is not None
        if message.error() is not None:
            ended += 1
            continue
        schema, block, envelope = reader.read(message.value())
        used.add(envelope.pipeline)
        port, ident = schema.layout.index("src_port"), schema.layout.index("ip_id")
        for i in range(block.rows):
            seen.setdefault((int(block.get(port, i)), message.partition()), []).append(int(block.get(ident, i)))
    consumer.close()
    assert len({port for port, _ in seen}) == len(seen) == 37
    assert all(idents == sorted(idents) for idents in seen.values())
    assert len(used) == 2  # both workers sent some


def trickle(space: Space, n: int) -> None:
    """Packets of two five-tuples, numbered, for some seconds: a few every few milliseconds."""
    for start in range(0, n, 10):
        send(space, [frame(sport=1000 + i % 2, ident=i) for i in range(start, start + 10)])
        time.sleep(0.005)


def test_flows_change_while_packets_come(nets: tuple[Space, Space], broker: Broker, tmp_path: Path) -> None:
    a, b = nets
    one, two = broker.topic(name()), broker.topic(name())
    flows, named = tmp_path / "flows.yaml", name()
    texts = [
        f"flows:\n- name: all\n  to: {one}\n",
        f"flows:\n- name: odd\n  match: src_port == 1001\n  to: {two}\n- name: all\n  to: {one}\n",
        f"flows:\n- name: all\n  workers: 2\n  functions: [filter: len > 0]\n  to: {two}\n",
    ]
    flows.write_text(texts[0])
    with relay(b, broker.port):
        live = Live(
            b, STREAM, "publish", "-i", "v0", "--flows", flows, "--create", "1", "--stats", "-f", "src_port,ip_id",
            "--bpf", "udp", "--name", named, "-Z", "nobody", ready=b"capturing from",
        )  # fmt: skip
        sender = threading.Thread(target=trickle, args=(a, 2000))
        sender.start()
        for number in (1, 2, 0, 1):
            flows.write_text(texts[number])
            done = run("confluo-stream", "set", flows, named)
            assert (done.returncode, b"flow '" in done.stderr) == (0, True)
        sender.join()
        flows.write_text(f"flows:\n- name: all\n  match: nonsense\n  to: {one}\n")
        done = run("confluo-stream", "set", flows, named)
        assert done.returncode == 2
        assert b"flow 'all': match: " in done.stderr
        send(a, [frame(sport=1000, ident=2000 + n) for n in range(100)])
        status, _, said = live.end()
    assert status == 130
    table = stages(said)
    assert total(table["receive"], "in") == total(table["classify"], "in") == total(table["queue"], "in") == 2100
    assert sum(total(found, "dropped") for found in table.values()) == 0
    assert total(table["deliver"], "out") == 2100
    got = sorted(int(line) for topic in (one, two) for line in rows(topic, "ip_id"))
    assert got == list(range(2100))


def test_a_broker_that_is_away_costs_records_but_no_memory(nets: tuple[Space, Space], tmp_path: Path) -> None:
    libs, why = jars()
    if libs is None:
        pytest.skip(why)
    a, b = nets
    broker = Broker(tmp_path, libs)  # its own: it is killed
    topic = broker.topic("away")
    try:
        with relay(b, broker.port):
            live = Live(
                b, STREAM, "publish", "-i", "v0", "--to", topic, "--create", "1", "--stats", "--bpf", "udp", "-X",
                "queue.buffering.max.messages=8", "--size", "6Ki", "-X", "batch.num.messages=1", "--name", name(),
                ready=b"capturing from",
            )  # fmt: skip
            broker.kill()
            send(a, [frame(sport=1000 + i % 5, ident=i) for i in range(3000)])
            live.hear(b"flow 'all': ")
            assert b"records were dropped" in live.said
            broker.start()
            send(a, [frame(sport=1000, ident=i) for i in range(10)])
            status, _, said = live.end()
        table = stages(live.said)
        check_conservation(table)
        assert status == 2
        assert b"records were not delivered" in said
        assert total(table["receive"], "in") == 3010
        dropped, delivered = total(table["send"], "dropped"), total(table["deliver"], "out")
        assert dropped > 2000
        assert delivered > 0
        assert dropped + delivered + total(table["deliver"], "dropped") == 3010
        assert len(rows(topic, "ip_id")) == delivered
    finally:
        broker.close()


def test_a_full_ring_is_counted_from_the_kernel_to_the_reader(nets: tuple[Space, Space], tmp_path: Path) -> None:
    """The run stands still while packets come: what the ring had no room for is in each place that counts."""
    a, b = nets
    named, out = name(), tmp_path / "all.messages"
    live = Live(
        b, STREAM, "publish", "-i", "v0", "--to", out, "--ring", "128KiB", "--stats", "--bpf", "udp",
        "--linger", "10ms", "--name", named, ready=b"capturing from",
    )  # fmt: skip
    live.child.send_signal(signal.SIGSTOP)
    send(a, [frame(sport=1000 + i % 5, ident=i) for i in range(8000)])
    live.child.send_signal(signal.SIGCONT)
    live.hear(b"dropped")
    done = run("confluo-stream", "status", named, "-J", "--every", "100ms")
    shown = [json.loads(line) for line in lines(done)]
    assert shown, (done.returncode, done.stderr)
    send(a, [frame(sport=1000, ident=i) for i in range(10)])
    status, _, _ = live.end()
    table = stages(live.said)
    check_conservation(table)
    lost = total(table["receive"], "dropped")
    assert lost > 1000
    assert total(table["receive"], "in") == 8010
    assert [row["dropped"] for row in shown if row["stage"] == "receive"] == [lost]
    read = run("confluo-query", out, "--count")
    assert int(read.stdout) == 8010 - lost
    assert f"records that their senders dropped: {lost}" in read.stderr.decode()
    assert status == 130


def test_a_capture_goes_through_flows(broker: Broker, tmp_path: Path) -> None:
    tcp, other, flows = broker.topic(name()), broker.topic(name()), tmp_path / "flows.yaml"
    flows.write_text(
        "flows:\n- name: tcp\n  match: tcp\n  functions: [filter: tcp_flags has syn]\n"
        f"- name: udp\n  match: udp\n  to: {other}\n  workers: 2\n"
    )
    words = ["publish", CAMPUS, "--flows", flows, "--to", tcp, "--create", "2", "--stats"]
    done = run("confluo-stream", *words)
    assert done.returncode == 0
    table = stages(done.stderr)
    check_conservation(table)
    assert total(table["receive"], "in") == PACKETS
    fields = "ts,src_ip,dst_ip,src_port,dst_port,tcp_seq,flow_hash"
    for topic, expr in ((tcp, "tcp and tcp_flags has syn"), (other, "udp")):
        expected = lines(run("confluo-query", CAMPUS, expr, "-T", "--no-header", "-f", fields))
        assert Counter(rows(topic, fields)) == Counter(expected)


def test_files_have_one_writer_each(tmp_path: Path) -> None:
    """Two workers, and places that are no topics."""
    tcp, rest = tmp_path / "tcp.messages", tmp_path / "rest.messages"
    (tmp_path / "flows.yaml").write_text(f"flows: [{{name: tcp, match: tcp, to: {tcp}}}, {{name: rest}}]")
    words = ("--flows", tmp_path / "flows.yaml", "--workers", "2", "--to", rest)
    done = run("confluo-stream", "publish", CAMPUS, *words)
    assert (done.returncode, done.stderr) == (0, b"")
    for path, expression in ((tcp, "tcp"), (rest, "not tcp")):
        assert (
            run("confluo-query", path, "--count").stdout == run("confluo-query", CAMPUS, expression, "--count").stdout
        )


def test_a_signal_ends_a_run_that_follows_a_log(broker: Broker, tmp_path: Path) -> None:
    log, topic, flows = tmp_path / "live.ml", broker.topic(name()), tmp_path / "flows.yaml"
    assert run("confluo-capture", "-q", "-r", CAMPUS, "-w", log).returncode == 0
    flows.write_text("flows: [{name: all, functions: [{sample: {share: 1/3, by: flow}}]}]")
    words = [STREAM, "publish", log, "--follow", "--flows", flows, "--to", topic, "--create", "1", "--name", name()]
    child = popen([str(w) for w in words], stderr=subprocess.PIPE, env=environment())
    expected = int(lines(run("confluo-query", log, "--sample", "1/3", "--count"))[0])
    end = time.monotonic() + PATIENCE
    while count(topic) != expected:
        assert time.monotonic() < end
        time.sleep(0.1)
    child.send_signal(signal.SIGTERM)
    said = child.communicate(timeout=PATIENCE)[1]
    assert child.returncode == 143
    assert f"{PACKETS} records received, 0 of no flow, {PACKETS - expected} filtered".encode() in said
    assert count(topic) == expected


def count(topic: str) -> int:
    done = run("confluo-query", topic, "--count")
    return int(done.stdout) if done.returncode in (0, 1) and done.stdout else -1


def test_wrong_flows_open_nothing(tmp_path: Path) -> None:
    flows = tmp_path / "flows.yaml"
    flows.write_text("flows: [{name: a, functions: [{sample: 1/2}]}, {name: a}]")
    done = run("confluo-stream", "publish", CAMPUS, "--flows", flows, "--to", "kafka://127.0.0.1:9/x")
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr.decode() == f"confluo-stream publish: {flows}: two flows are named 'a'; rename one\n"
    done = run("confluo-stream", "publish", CAMPUS, "--lanes", "2", "--to", "kafka://127.0.0.1:9/x")
    assert done.stderr == b"confluo-stream publish: --lanes is for live captures; -i names an interface\n"
