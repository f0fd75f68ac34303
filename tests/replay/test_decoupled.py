"""Replays of ends that get the recorded packets of each other."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

import replay_lab
from confluo_tools import multilog
from confluo_tools.formats.block_builder import block_of_rows
from confluo_tools.inputs.open import open_records
from confluo_tools.replay.engine import script as inputs
from confluo_tools.replay.engine.network import missing
from confluo_tools.replay.engine.replay_command import main
from confluo_tools.replay.engine.rows import rows_of
from confluo_tools.replay.engine.segments import SentPacket
from confluo_tools.replay.engine.similarity import similarity
from confluo_tools.replay.recording import read_ends
from confluo_tools.replay.recording.kinds import Kind
from confluo_tools.schema import builtin
from free_run import CLIENT, SERVER, FreeRun, Traffic, record, write_recording
from netns import Lab

pytestmark = [
    pytest.mark.root,
    pytest.mark.net,
    pytest.mark.skipif(missing() != "", reason=f"no network for a replay: {missing()}"),
]
DROPS = frozenset((SERVER, n) for n in (4, 5, 20, 40))
TRIES = "5"  # on a machine with other work
SIMILAR = re.compile(r"(client|server) (\d\.\d{3})")


def one_half(path: Path, role: int, traffic: Traffic) -> Path:
    """The recording of one end."""
    rows = [row for row in rows_of(FreeRun(traffic).run()) if row["role"] == role]
    with multilog.create(path, builtin("recording"), lanes=1) as log, log.writer() as lane:
        lane.append(block_of_rows(builtin("recording"), rows))
    return path


@pytest.mark.parametrize("version", [4, 6])
@pytest.mark.parametrize("strict", [True, False], ids=["strict", "default"])
def test_it_is_the_same(version: int, strict: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = record(tmp_path / "c.ml", Traffic(100_000, DROPS, "cubic", strict, version))
    assert main([str(path), "--engine", "decoupled", "--tries", TRIES]) == 0
    assert "same (" in capsys.readouterr().err


@pytest.mark.parametrize("role", [1, 2], ids=["client", "server"])
@pytest.mark.parametrize("version", [4, 6])
def test_one_half_is_replayed(role: int, version: int, tmp_path: Path) -> None:
    path = one_half(tmp_path / "half.ml", role, Traffic(50_000, DROPS, version=version))
    again = tmp_path / "again.ml"
    assert main([str(path), "--engine", "decoupled", "--tries", TRIES, "-q", "-w", str(again)]) == 0
    (before,), (after,) = (read_ends(open_records([str(p)])) for p in (path, again))
    assert (after.role, after.digests, after.packets_received) == (role, before.digests, before.packets_received)
    assert main([str(again), "--engine", "decoupled", "--tries", TRIES, "-q"]) == 0


def test_a_real_path_that_splits_packets(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The queue of the router splits packets: serial cannot tell which packet is which."""
    with Lab() as lab:
        words = ("--level", "headers", "--grade", "default")
        client, server = replay_lab.record(replay_lab.routed(lab), tmp_path, replay_lab.BULK, 200_000, options=words)
    assert main([str(client), str(server), "--engine", "decoupled"]) in (0, 3)
    printed = capsys.readouterr().err
    assert "same (" in printed or len(SIMILAR.findall(printed)) == 2
    for log, name in ((client, "client"), (server, "server")):
        assert main([str(log), "--engine", "decoupled"]) in (0, 3)
        printed = capsys.readouterr().err
        found = SIMILAR.findall(printed)
        assert "same (" in printed or [end for end, _ in found] == [name]
        if name == "server" and found:
            assert float(found[0][1]) > 0.8


def test_a_difference_stays_at_its_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = FreeRun(Traffic(50_000)).run()
    place = next(n for n, s in enumerate(run.steps[CLIENT]) if s.kind == inputs.SEND)
    run.steps[CLIENT][place] = run.steps[CLIENT][place]._replace(size=50)
    path = str(write_recording(tmp_path / "c.ml", run))
    likeness = {}
    for engine in ("serial", "decoupled"):
        assert main([path, "--engine", engine]) == 3
        printed = capsys.readouterr().err
        assert "differs: packet 2 of the client" in printed
        likeness[engine] = {name: float(share) for name, share in SIMILAR.findall(printed)}
    # The server has its whole request from the recording; in a serial replay it waits for the rest.
    assert likeness["decoupled"]["server"] > 0.9 > likeness["serial"]["server"]


def test_time_stamps_and_checksums_of_what_is_fed(tmp_path: Path) -> None:
    path = one_half(tmp_path / "half.ml", 2, Traffic(50_000, DROPS, strict=False))
    capture = tmp_path / "c.pcap"
    assert main([str(path), "--engine", "decoupled", "--tries", TRIES, "-q", "-w", str(capture)]) == 0
    fields = ["ip.src", "tcp.options.timestamp.tsval", "tcp.options.timestamp.tsecr", "tcp.ack", "tcp.seq", "tcp.len"]
    checks = ["tcp.checksum.status", "ip.checksum.status"]
    options = ["-o", "tcp.check_checksum:TRUE", "-o", "ip.check_checksum:TRUE", "-T", "fields"]
    try:
        words = ["tshark", "-r", str(capture), *options, *(w for f in (*fields, *checks) for w in ("-e", f))]
        done = subprocess.run(words, capture_output=True, text=True, check=True)
    except FileNotFoundError:
        pytest.skip("tshark is not installed; bin/check installs it as root")
    rows = [line.split("\t") for line in done.stdout.splitlines()]
    assert {tuple(row[6:]) for row in rows} == {("1", "1")}
    sent: set[str] = set()
    highest = 0
    fed = 0
    for source, tsval, tsecr, ack, seq, length, *_ in rows:
        if source == "10.9.0.2":
            sent.add(tsval)
            highest = max(highest, int(seq) + int(length) + 1)
        elif sent:
            fed += 1
            assert int(ack) <= highest
            # The clock of a recording and of its replay may be at different places within a millisecond.
            assert {str(int(tsecr) + by) for by in (-1, 0, 1)} & sent
    assert fed > 5


def test_without_headers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = record(tmp_path / "c.ml", Traffic(10_000), headers=False)
    assert main([str(path), "--engine", "decoupled"]) == 2
    assert (
        "there are no headers of the packets that 10.9.0.1 got; record with --level headers" in capsys.readouterr().err
    )


def test_the_options_of_the_syn_are_needed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = FreeRun(Traffic(10_000)).run()
    for end in (run.script.connection.client, run.script.connection.server):
        end.settings = {name: value for name, value in end.settings.items() if not name.endswith("mss")}
    assert main([str(write_recording(tmp_path / "c.ml", run)), "--engine", "decoupled"]) == 2
    assert "no options of the SYN that 10.9.0.1 got" in capsys.readouterr().err


def test_similarity() -> None:
    one = [SentPacket(0, n, 0, 1, 16, 0) for n in range(10)]
    assert similarity(one, one) == 1
    assert similarity(one, []) == 0
    assert similarity([], []) == 1
    assert similarity(one, one[:5]) == pytest.approx(2 * 5 / 15)
    assert similarity(one, [*one[:3], SentPacket(0, 99, 0, 1, 16, 0), *one[4:]]) == pytest.approx(0.9)


@pytest.mark.parametrize(
    "change",
    [
        {"window": 1 << 20},
        {"len": 0xFFFFFFFF},
        {"len": 70_000},
        {"ack": 0xFFFFFFFF},
        {"seq": 0xFFFFFFF0},
        {"tcp_flags": 0},
        {"tcp_flags": 511},
        {"sack": (1, 5, 9, 2, 0xFFFFFFFF, 3, 7, 8)},
        {"ts": 1 << 61},
        {"ts": 1},
        {"tx": 0xFFFFFFFF},
    ],
    ids=lambda change: "-".join(map(str, *change.items())),
)
def test_hostile_headers_end_in_one_line(
    change: dict[str, object], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = rows_of(FreeRun(Traffic(10_000)).run())
    row = [row for row in rows if row["kind"] == Kind.RECEIVED][5]
    row.update(change)
    path = tmp_path / "c.ml"
    with multilog.create(path, builtin("recording"), lanes=1) as log, log.writer() as lane:
        lane.append(block_of_rows(builtin("recording"), rows))
    for words in (["--engine", "decoupled"], ["--as-packetdrill", "-w", str(tmp_path / "c.pkt")]):
        assert main([str(path), *words]) in (0, 2, 3)
        printed = capsys.readouterr().err
        assert len(printed.splitlines()) <= 1
        assert "internal error" not in printed


@pytest.mark.parametrize(
    "settings", [{"mss": 1}, {"mss": 0}, {"peer_mss": 1 << 20}, {"peer_mss": -5}, {"peer_wscale": 900}, {"mss": "x"}]
)
def test_hostile_settings_end_in_one_line(
    settings: dict[str, int | str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = FreeRun(Traffic(10_000))
    done = run.run()
    for end in run.ends:
        end.settings |= settings
    path = str(write_recording(tmp_path / "c.ml", done))
    for words in (["--engine", "decoupled"], ["--as-packetdrill", "-w", str(tmp_path / "c.pkt")]):
        assert main([path, *words]) in (0, 2, 3)
        printed = capsys.readouterr().err
        assert len(printed.splitlines()) <= 1
        assert "internal error" not in printed
