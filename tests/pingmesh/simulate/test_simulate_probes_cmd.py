"""confluo-pingmesh simulate: its records through other commands, topologies of one's own, its refusals."""

from __future__ import annotations

import signal
import subprocess
import time
from pathlib import Path

import pytest

from confluo_tools.network.topology_file import read_fleet
from confluo_tools.pingmesh.plan.graphs import PingmeshPlan, PlanRules
from running import BIN, popen, run
from sessions import Shell

TOPOLOGY = """
port: 9000
dcs:
  north:
    a: {r1: {n1: 10.0.1.1, n2: 10.0.1.2, n3: 10.0.1.3}, r2: {n4: 10.0.2.1}}
    b: {r3: {n5: 'fd00::5', n6: {address: 'fd00::6', port: 9001}}}
  south:
    c: {r4: {s1: 10.1.0.1, s2: {address: 10.1.0.2, active: false}}}
vips: {web: 10.9.0.1:443}
"""


def test_a_log_of_probes_answers_questions(tmp_path: Path) -> None:
    shell = Shell(tmp_path)
    words = "confluo-pingmesh simulate --podsets 3 --servers 4 --fault podset_down:ps02,from=2m,for=3m --seed 3"
    assert shell.run(f"{words} -w probes.ml") == (0, [])
    # 4 servers of p003 probe 4 pods of the podset for 3 minutes; the two others are spared
    assert shell.run("confluo-query probes.ml 'outcome == timeout and src_pod == p003' --count") == (0, ["288"])
    question = "confluo-query probes.ml 'outcome == timeout and src_pod == p003' -f dst_podset -T"
    assert set(shell.run(question)[1][2:]) == {"ps02"}
    rows = shell.run("confluo-query probes.ml 'kind == fault' -f fault,elapsed,src_podset -T")[1][2:]
    assert rows == ["podset_down\t180000000000\tps02"]
    stream = shell.run(f"{words} -o stream | confluo-query - -T")
    assert stream == shell.run(f"{words} -T")
    # The records of faults come first, with times of their own: a log gives them by time.
    assert shell.run(f"{words} -o stream | confluo-query - --sort-input -T") == shell.run("confluo-query probes.ml -T")
    assert len(stream[1]) > 36000
    assert shell.run(f"{words} --seed 4 -T") != stream


def test_a_topology_of_ones_own(tmp_path: Path) -> None:
    path = tmp_path / "fleet.yaml"
    path.write_text(TOPOLOGY)
    status, lines = Shell(tmp_path).run(
        "confluo-pingmesh simulate --topology fleet.yaml --span 10s --hosts 0 --noise 0,0,0 -T"
        " -f src,dst,src_ip,dst_ip,dst_port,level,outcome"
    )
    assert status == 0
    fleet = read_fleet(str(path))
    plan = PingmeshPlan(fleet, PlanRules())
    wanted = {
        (s.name, p.name, s.address, p.address, str(p.port), p.level, "ok")
        for s in fleet.servers
        for p in plan.peers(s)
        if p.level != "vip" and (":" in s.address) == (":" in p.address)
    }
    assert sorted(tuple(line.split("\t")) for line in lines[2:]) == sorted(wanted)
    assert {level for *_, level, _ in wanted} == {"pod", "dc", "wan"}
    assert not any("s2" in row[:2] for row in wanted)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--fault tor_down:p001", "--fault: unknown fault 'tor_down'; use podset_down, "),
        ("--fault tor_drops:p999", "--fault: invalid place 'p999' for tor_drops; give a pod of this fleet, e.g. p001"),
        (
            "--fault spine_drops,from=10m",
            "--fault: 'spine_drops' begins after the end of the simulation; from=TIME must be within --span",
        ),
        ("--fault spine_drops,for=0s", "--fault: 'spine_drops' has length 0"),
        ("--fault podset_failure:dc2/ps01", "--fault: invalid place 'dc2/ps01' for podset_failure; give a"),
        ("--fault spine_drops:dc1/9", "--fault: unknown switch 'dc1/9'; use 1 to 8, or all"),
        ("--fault spine_drops:dc1/" + "9" * 5000, "--fault: unknown switch 'dc1/999"),
        ("--fault spine_drops,rate=200%", "--fault: '200%' is not a chance"),
        ("--fault spine_drops,speed=1", "--fault: invalid 'speed=1'; use rate=1%"),
        ("--fault spine_drops,from=5", "--fault: '5' is not a duration"),
        ("--fault congestion,delay=2h", "--fault: 'congestion' has a rate above 1 or a delay above 1m"),
        ("--noise 1e-5", "--noise: '1e-5' is not three rates"),
        ("--span 0s", "--span: '0s' is too short"),
        ("--dcs 1000 --podsets 1000 --pods 1000", "--servers: a grid has from 1 to 1048576 servers"),
        ("--topology nowhere.yaml", "nowhere.yaml: No such file or directory"),
        ("-o multilog", "-o multilog: a MultiLog is a folder; name it with -w LOG"),
    ],
)
def test_what_cannot_be_is_one_line(words: str, said: str) -> None:
    done = run("confluo-pingmesh", "simulate", *words.split())
    lines = done.stderr.decode().splitlines()
    assert (done.returncode, done.stdout, len(lines)) == (2, b"", 1)
    assert lines[0].startswith("confluo-pingmesh simulate: ")
    assert said in lines[0]


def test_a_log_that_is_there_is_left_alone(tmp_path: Path) -> None:
    """Unless --append is given, as the error says."""
    words = ("confluo-pingmesh", "simulate", "--span", "10s", "-q", "-w", tmp_path / "p.ml")
    assert run(*words).returncode == 0
    done = run(*words)
    assert (done.returncode, done.stderr.decode()) == (
        2,
        f"confluo-pingmesh simulate: {tmp_path}/p.ml: exists; --append adds to it\n",
    )
    rows = int(run("confluo-query", tmp_path / "p.ml", "--count").stdout)
    assert run(*words, "--append").returncode == 0
    assert int(run("confluo-query", tmp_path / "p.ml", "--count").stdout) == 2 * rows > 0


def test_a_fleet_without_pairs_has_nothing_to_say() -> None:
    one = ["--podsets=1", "--pods=1", "--servers=1", "--hosts=0"]
    done = run("confluo-pingmesh", "simulate", *one, "-T", "--no-header")
    assert (done.returncode, done.stdout, done.stderr) == (1, b"", b"")


def test_years_of_probes_can_be_ended(tmp_path: Path) -> None:
    words = ["simulate", "--span=365d", "--podsets=1", "--pods=2", "--servers=1", "-f", "ts,outcome"]
    process = popen([BIN / "confluo-pingmesh", *words, "-w", tmp_path / "probes.ml"], stderr=subprocess.PIPE)
    try:
        while not any(tmp_path.glob("probes.ml/lane-*/seg-*")):  # it writes
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
    finally:
        process.kill()
        process.communicate()
    assert run("confluo-query", tmp_path / "probes.ml", "--count").returncode == 0
