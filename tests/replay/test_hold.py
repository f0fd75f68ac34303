"""tcpdump and ss in the networks of a replay."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from confluo_tools.inputs.open import open_records
from confluo_tools.replay.engine.network import missing
from confluo_tools.replay.engine.replay_command import main
from confluo_tools.replay.recording import read_ends
from free_run import Traffic, record
from replay_lab import wait_for_all

pytestmark = [
    pytest.mark.root,
    pytest.mark.net,
    pytest.mark.skipif(missing() != "", reason=f"no network for a replay: {missing()}"),
]
PROGRAM = "import sys; from confluo_tools.replay.command import main; sys.exit(main())"


def test_tcpdump_sees_the_replay(tmp_path: Path) -> None:
    path, capture = record(tmp_path / "c.ml", Traffic(30_000)), tmp_path / "c.pcap"
    command = [sys.executable, "-c", PROGRAM, str(path), "--hold"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        assert child.stdin is not None
        assert child.stderr is not None
        line = child.stderr.readline()
        entries = re.findall(r"(client|server): (nsenter --net=/proc/\d+/fd/\d+), device (\S+)", line.replace(";", " "))
        assert [role for role, *_ in entries] == ["client", "server"]
        enter = entries[0][1].split()
        listing = subprocess.run([*enter, "ss", "-tan"], capture_output=True, text=True, check=True).stdout
        assert "ESTAB" not in listing
        assert (
            "LISTEN"
            in subprocess.run([*entries[1][1].split(), "ss", "-tln"], capture_output=True, text=True, check=True).stdout
        )
        # A buffer for all packets: the replay has real-time priority, so tcpdump may run after it.
        dumping = ("tcpdump", "-i", entries[0][2], "-s", "128", "-B", "8192", "-U", "--immediate-mode")
        words = [*enter, *dumping, "-w", str(capture), "tcp"]
        with subprocess.Popen(words, stderr=subprocess.PIPE) as dump:
            assert dump.stderr is not None
            while b"listening" not in dump.stderr.readline():
                assert dump.poll() is None
            child.stdin.write("\n")
            child.stdin.flush()
            child.communicate(timeout=60)
            wait_for_all(capture)
            dump.terminate()
    assert child.returncode in (0, 3)
    words = ["tcpdump", "-nr", str(capture)]
    seen = len(subprocess.run(words, capture_output=True, text=True, check=True).stdout.splitlines())
    client = next(end for end in read_ends(open_records([str(path)])) if end.client)
    if child.returncode == 0:
        assert seen == client.packets_sent + client.packets_received


def test_the_recording_must_be_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["-", "--hold"]) == 2
    assert "--hold: standard input has the recording; give the recording as a file" in capsys.readouterr().err
