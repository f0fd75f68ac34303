"""Replays of real connections: the same when they should be, different where a recording was changed."""

from __future__ import annotations

import os
import subprocess
from itertools import pairwise
from pathlib import Path

import pytest

import replay_lab
from confluo_tools import multilog
from confluo_tools.formats.block_builder import block_of_rows
from confluo_tools.inputs.open import open_records
from confluo_tools.replay.engine import script as inputs
from confluo_tools.replay.engine.attempt import attempt
from confluo_tools.replay.engine.diff_command import main as diff
from confluo_tools.replay.engine.flow import parse_flow
from confluo_tools.replay.engine.network import missing
from confluo_tools.replay.engine.replay_command import main
from confluo_tools.replay.engine.rows import rows_of
from confluo_tools.replay.engine.script import script_of
from confluo_tools.replay.engine.settings import connection_settings
from confluo_tools.replay.engine.tries import outcomes
from confluo_tools.replay.recording import RecordedConnection, pair_ends, read_ends
from confluo_tools.replay.recording.arrivals import arrived_segments
from confluo_tools.replay.recording.kinds import Kind
from confluo_tools.schema import builtin
from free_run import CLIENT, PORT, SERVER, FreeRun, Traffic, record, write_recording
from netns import Lab

pytestmark = [
    pytest.mark.root,
    pytest.mark.net,
    pytest.mark.skipif(missing() != "", reason=f"no network for a replay: {missing()}"),
]
BURST = frozenset((SERVER, n) for n in (12, 13, 20))
TRIES = 5  # on a machine with other work


def connection_of(path: Path) -> RecordedConnection:
    connections, alone = pair_ends(read_ends(open_records([str(path)])))
    assert not alone
    assert connections[0].problems == []
    return connections[0]


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return record(tmp_path_factory.mktemp("replay") / "c.ml", Traffic(60_000, BURST))


KINDS_OF_TRAFFIC = {
    "plain": Traffic(30_000),
    "cubic": Traffic(60_000, BURST, "cubic"),
    "handshake": Traffic(30_000, frozenset({(SERVER, 0), (CLIENT, 2)})),  # the SYN-ACK, and the request
    "ipv6": Traffic(30_000, frozenset({(SERVER, 21)}), version=6),
    "default": Traffic(60_000, BURST, "cubic", strict=False),
}


@pytest.mark.parametrize(
    ("traffic", "headers"),
    [
        pytest.param(traffic, headers, id=f"{name}-{'headers' if headers else 'digests'}")
        for name, traffic in KINDS_OF_TRAFFIC.items()
        for headers in (True, False)
        if headers or traffic.version == 4  # IPv6 packets have no number: only their headers tell them apart
    ],
)
def test_a_replay_is_the_same(traffic: Traffic, headers: bool, tmp_path: Path) -> None:
    connection = connection_of(record(tmp_path / "c.ml", traffic, headers))
    last = list(outcomes(script_of(connection), TRIES))[-1]
    assert last.verdict.same, last.verdict.differences
    assert last.verdict.proof == ("headers" if headers else "digests")


def test_a_call_of_megabytes_is_one_call(tmp_path: Path) -> None:
    run = FreeRun(Traffic(4_000_000, chunk=3_000_000, rate=1e9))
    for end in run.ends:
        end.settings |= {"tcp_wmem": "4096 8000000 8000000", "tcp_rmem": "4096 8000000 8000000"}
    connection = connection_of(write_recording(tmp_path / "c.ml", run.run()))
    last = list(outcomes(script_of(connection), TRIES))[-1]
    steps = zip(last.done.steps[SERVER], last.done.applied[SERVER], strict=True)
    assert [done.result for step, done in steps if step.kind == inputs.SEND] == [3_000_000, 1_000_000]
    assert last.verdict.same, last.verdict.differences


def test_a_replay_is_a_recording_that_can_be_replayed(recording: Path, tmp_path: Path) -> None:
    again, third = tmp_path / "again.ml", tmp_path / "third.ml"
    assert main([str(recording), "--tries", str(TRIES), "-q", "-w", str(again)]) == 0
    assert main([str(again), "--tries", str(TRIES), "-q", "-w", str(third)]) == 0
    one, two = connection_of(recording), connection_of(third)
    for before, after in ((one.client, two.client), (one.server, two.server)):
        assert before.digests == after.digests
        assert before.packets_received == after.packets_received


def test_a_relative_replay_keeps_the_time_after_the_cause(tmp_path: Path) -> None:
    traffic = Traffic(10_000, frozenset({(SERVER, 9)}))  # its FIN: a timer sends packet 10, the FIN again
    script = script_of(connection_of(record(tmp_path / "c.ml", traffic)))
    steps = script.steps[CLIENT]
    timed = next(n for n, s in enumerate(steps) if s.kind == inputs.PACKET and s.packet == 10)
    steps[timed] = steps[timed]._replace(result=steps[timed].result - 50_000_000)  # as if it were recorded earlier
    settings = connection_settings(script.connection)
    late = []
    for _ in range(TRIES):  # one is enough: a replay may end before, where other work delays it
        done = attempt(script, settings, 0, relative=True).applied[CLIENT]
        late += [done[timed].at - steps[timed].at] if len(done) > timed else []
        if late and late[-1] > 30_000_000:
            return
    pytest.fail(f"the input came {late} ns after its time")


def test_changed_inputs_are_found_at_or_after_their_place(tmp_path: Path, recording: Path) -> None:
    original = FreeRun(Traffic(60_000, BURST)).run()
    steps = original.steps[CLIENT]
    packets = [n for n, s in enumerate(steps) if s.kind == inputs.PACKET]
    lost = packets[10]
    number = steps[lost].packet

    def first_difference(name: str) -> tuple[int, int]:
        script = script_of(connection_of(write_recording(tmp_path / name, original)))
        verdict = list(outcomes(script, 2))[-1].verdict
        assert not verdict.same
        return verdict.differences[0].side, verdict.differences[0].packet

    sent_before = steps[lost].sent
    del steps[lost], original.applied[CLIENT][lost]
    side, packet = first_difference("dropped.ml")
    assert packet >= (sent_before if side == CLIENT else number)


def test_traced_retransmissions_are_those_in_the_packets(tmp_path: Path) -> None:
    path, deep = record(tmp_path / "c.ml", Traffic(60_000, BURST)), tmp_path / "deep.ml"
    words = ["--trace", "tcp_probe,cong_state,retransmit", "--tries", str(TRIES), "-q", "-w", str(deep)]
    assert main([str(path), *words]) == 0
    server = connection_of(deep).server
    assert not any(f"-replay-{os.getpid()}-" in name for name in os.listdir("/sys/kernel/tracing/instances"))
    data = [n for n in range(server.packets_sent) if server.headers_sent["len"][n]]
    seqs = [server.headers_sent["seq"][n] for n in data]
    kinds = list(server.events.expanded("kind"))
    assert kinds.count(Kind.RETRANSMIT) == len(seqs) - len(set(seqs)) >= 3
    una = [n for n, kind in zip(server.events.expanded("snd_una"), kinds, strict=True) if kind == Kind.PROBE]
    assert una == sorted(una)
    assert 0 < una[-1] <= 60_002


def test_a_recorded_path_with_a_real_queue_is_replayed(tmp_path: Path) -> None:
    """Of three recordings one at least: with other work on the machine, timers may fire between other inputs."""
    for name in "abc":
        folder = tmp_path / name
        folder.mkdir()
        with Lab() as lab:
            client, server = replay_lab.record(replay_lab.routed(lab, limit=60_000), folder, replay_lab.BULK, 100_000)
        status = main([str(client), str(server), "--tries", str(TRIES), "-q"])
        assert status in (0, 3)
        if status == 0:
            return
    pytest.fail("no recording can be replayed")


@pytest.mark.parametrize("merges", [False, True], ids=["split", "merged"])
def test_devices_that_split_and_merge_packets(merges: bool, tmp_path: Path) -> None:
    """A queue (tbf) splits packets of several segments; GRO of the receiver merges what comes together."""
    for name in "abc":
        folder = tmp_path / name
        folder.mkdir()
        with Lab() as lab:
            path = replay_lab.routed(lab, limit=400_000)
            if merges:
                replay_lab.merging(path)
            options = ("--grade", "default", "--level", "headers")
            logs = replay_lab.record(path, folder, replay_lab.BULK, 50_000, options=options)
        ((both,), _) = pair_ends(read_ends(open_records([str(log) for log in logs])))
        pieces = [a for a in arrived_segments(both.client, both.server) if a.segments]
        again = tmp_path / f"{name}.ml"
        status = main([*map(str, logs), "--tries", str(TRIES), "-q", "-w", str(again)])
        assert status in (0, 3)
        before, after = both.server.headers_received, connection_of(again).server.headers_received
        equal = [list(before[column]) == list(after[column]) for column in ("seq", "len", "tcp_flags", "ack")]
        # Merged packets take other memory than ours, so a window may differ by one unit.
        if all(equal) and any(a.segments > merges for a in pieces) and (merges or status == 0):
            return
    pytest.fail("no recording can be replayed")


def test_packets_that_were_processed_together_are_acknowledged_together(recording: Path) -> None:
    """As TCP does with packets that wait while a call holds the socket."""
    script = script_of(connection_of(recording))
    steps, headers = script.steps[CLIENT], script.connection.server.headers_sent
    data = [n for n, s in enumerate(steps) if s.kind == inputs.PACKET and headers["len"][s.packet]]
    first, second = next((a, b) for a, b in pairwise(data) if steps[a].sent < steps[b].sent)
    between = headers["seq"][steps[second].packet]
    steps.insert(first + 1, steps.pop(second)._replace(notes=inputs.MERGED, sent=steps[first].sent))
    (outcome,) = outcomes(script, 1)
    acks = {p.ack for p in outcome.done.segments[CLIENT]}
    assert between in script.connection.client.headers_sent["ack"]
    assert between not in acks
    assert between + headers["len"][steps[first + 1].packet] in acks


def test_half_a_recording(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = FreeRun(Traffic(10_000)).run()
    rows = [row for row in rows_of(run) if row["role"] == 1]
    path = tmp_path / "half.ml"
    with multilog.create(path, builtin("recording"), lanes=1) as log, log.writer() as lane:
        lane.append(block_of_rows(builtin("recording"), rows))
    assert main([str(path)]) == 2
    printed = capsys.readouterr().err
    assert "the recording of its other end is missing; --engine decoupled replays one end alone, confl" in printed


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [("at", 1 << 60, "it lasts"), ("packet", 1 << 31, "differs"), ("at", -(1 << 60), ""), ("size", 1 << 62, "")],
    ids=["late", "packet", "early", "size"],
)
def test_hostile_values_end_in_one_line(
    field: str, value: int, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = FreeRun(Traffic(10_000)).run()
    kind = inputs.PACKET if field == "packet" else inputs.SEND
    place = next(n for n, s in enumerate(run.steps[CLIENT]) if s.kind == kind)
    run.steps[CLIENT][place] = run.steps[CLIENT][place]._replace(**{field: value})
    if field == "at":
        run.applied[CLIENT][place] = run.applied[CLIENT][place]._replace(at=value)
    assert main([str(write_recording(tmp_path / "c.ml", run))]) in (0, 2, 3)
    printed = capsys.readouterr().err.splitlines()
    assert len(printed) == 1
    assert "internal error" not in printed[0]
    assert says in printed[0]


def test_connections_are_chosen_by_records(recording: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As confluo-retx writes them: from either end; others are not replayed."""
    flow = connection_of(recording).server.flow
    head = "#fields\tip_version\tproto\tsrc_ip\tdst_ip\tsrc_port\tdst_port\n#types\tu8\tu8\tip\tip\tu16\tu16\n"
    listed = tmp_path / "flows.tsv"
    listed.write_text(f"{head}4\t6\t{flow.src}\t{flow.dst}\t{flow.src_port}\t{flow.dst_port}\n")
    assert main([str(recording), "--flows", str(listed), "--tries", str(TRIES), "-q"]) == 0
    listed.write_text(f"{head}4\t6\t{flow.src}\t{flow.dst}\t{flow.src_port}\t9\n")
    assert main([str(recording), "--flows", str(listed)]) == 2
    assert "has none of these connections" in capsys.readouterr().err


def test_digests_name_a_range_of_packets(recording: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A difference is known to 64 packets; a try that is not the last is not an error."""
    run = FreeRun(Traffic(60_000)).run()
    packet = [n for n, step in enumerate(run.steps[CLIENT]) if step.kind == inputs.PACKET][10]
    del run.steps[CLIENT][packet], run.applied[CLIENT][packet]
    path = write_recording(tmp_path / "c.ml", run, headers=False)
    assert main([str(path), "--tries", "2", "-q"]) == 3
    printed = capsys.readouterr().err.splitlines()
    assert len(printed) == 1
    assert "try 2: differs: one of the packets 0 to " in printed[0]


def test_diff(recording: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    again, naive = tmp_path / "again.ml", tmp_path / "naive.ml"
    assert main([str(recording), "--tries", str(TRIES), "-q", "-w", str(again)]) == 0
    assert diff([str(recording), str(again)]) == 0
    assert capsys.readouterr().out.count(": same (") == 2
    assert main([str(recording), "--engine", "naive", "-q", "-w", str(naive)]) in (0, 3)
    other = write_recording(tmp_path / "other.ml", FreeRun(Traffic(60_000)).run())
    assert diff([str(recording), str(other)]) == 3
    printed = capsys.readouterr().out
    server = printed.splitlines()[1]
    # The recording lost packet 12 of the server, the other one lost none: all before it is equal.
    assert int(server.split("differs at packet ")[1].split(":")[0]) > max(n for _, n in BURST)
    assert 0.5 < float(server.split("similarity ")[1].split(";")[0]) < 1
    assert diff([str(recording), str(other), "--flow", "10.9.0.1:1-10.9.0.2:2/tcp"]) == 2


def test_a_naive_replay_differs(tmp_path: Path) -> None:
    traffic = Traffic(200_000, frozenset((SERVER, n) for n in (12, 13, 60, 100)))
    script = script_of(connection_of(record(tmp_path / "c.ml", traffic)))
    assert list(outcomes(script, TRIES))[-1].verdict.same
    tried = [outcome.verdict for outcome in outcomes(script, 3, naive=True)]
    assert not any(verdict.same for verdict in tried)


def test_the_capture_of_a_replay_is_whole(recording: Path, tmp_path: Path) -> None:
    capture = tmp_path / "c.pcap"
    assert main([str(recording), "--tries", str(TRIES), "-q", "-w", str(capture)]) == 0
    fields = ["ip.src", "tcp.srcport", "tcp.seq", "tcp.len", "tcp.checksum.status", "ip.checksum.status"]
    options = ["-o", "tcp.check_checksum:TRUE", "-o", "ip.check_checksum:TRUE", "-T", "fields"]
    try:
        done = subprocess.run(
            ["tshark", "-r", str(capture), *options, *(word for f in fields for word in ("-e", f))],
            capture_output=True,
            text=True,
            check=True,
        )
    except FileNotFoundError:
        pytest.skip("tshark is not installed; bin/check installs it as root")
    rows = [line.split("\t") for line in done.stdout.splitlines()]
    connection = connection_of(recording)
    assert len(rows) == connection.client.packets_sent + connection.server.packets_sent
    assert {tuple(row[4:]) for row in rows} == {("1", "1")}
    assert {tuple(row[:2]) for row in rows} == {("10.9.0.1", str(PORT)), ("10.9.0.2", "8080")}
    first = {(int(row[2]), int(row[3])) for row in rows if row[0] == "10.9.0.2" and int(row[3])}
    assert sum(length for _, length in first) == 60_000


def test_status_3_and_the_first_difference(recording: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = FreeRun(Traffic(30_000)).run()
    place = next(n for n, s in enumerate(run.steps[CLIENT]) if s.kind == inputs.SEND)
    run.steps[CLIENT][place] = run.steps[CLIENT][place]._replace(size=50)
    path = write_recording(tmp_path / "other.ml", run)
    assert main([str(path)]) == 3
    printed = capsys.readouterr().err
    assert "try 1: differs: packet 2 of the client" in printed
    assert "len 100" in printed
    assert "len 50" in printed


@pytest.mark.parametrize(
    "text", ["", "10.0.0.1:1-10.0.0.2", "10.0.0.1:1-[::1]:2", "10.0.0.1:1-10.0.0.2:65536/tcp", "x"]
)
def test_a_flow_that_is_none(text: str, recording: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(recording), "--flow", text]) == 2
    assert "is not a flow" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["--append"], ["--add-columns"], ["-T", "--append"], ["-o", "pcap", "--append"]])
def test_append_needs_a_log(words: list[str], recording: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(recording), *words]) == 2
    assert f"{words[-1]} is for a MultiLog" in capsys.readouterr().err


def test_flows_as_text() -> None:
    for text in ("10.0.0.1:4711-10.0.0.2:8080/tcp", "[fd00::1]:4711-[fd00::2]:80/tcp"):
        assert str(parse_flow(text)) == text
