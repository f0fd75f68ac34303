"""confluo-replay queues as users run it."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from test_collect import Role, end_rows, packet

from confluo_tools.formats.block_builder import block_of_rows
from confluo_tools.network.topology_file import parse_network
from confluo_tools.replay.recording.kinds import Kind
from confluo_tools.schema import builtin
from running import run
from sessions import Shell

FAT = "topology: 1\nfat_tree: 4\nbuffer: {size: 100kB}\n"


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    (tmp_path / "fat.yaml").write_text(FAT)
    return Shell(tmp_path)


def write_log(path: Path, kind: str, rows: list[dict[str, object]]) -> None:
    """A MultiLog of these rows."""
    from confluo_tools.cli.log_output import LogOutput

    with LogOutput(str(path), builtin(kind), append=False, add_columns=False) as log:
        log.write(block_of_rows(builtin(kind), rows), None)


def test_a_packet_that_was_lost_is_dropped_at_the_queue_that_was_full(shell: Shell, tmp_path: Path) -> None:
    """Captures of three hosts: two send to one at once, and its last packets did not arrive."""
    target, senders = "10.0.0.2", ("10.1.0.2", "10.2.0.2")
    sent = {a: [packet(a, target, 10**18 + 1300 * n, n + 1, 1500) for n in range(100)] for a in senders}
    arrived = [row | {"ts": row["ts"] + 10**5} for a in senders for row in sent[a] if row["ip_id"] not in (97, 98)]
    for i, a in enumerate(senders):
        write_log(tmp_path / f"{i}.ml", "packet", [*sent[a], packet(a, "10.3.0.3", 10**18, 1)])
    write_log(tmp_path / "t.ml", "packet", [*arrived, packet("10.3.0.3", target, 10**18, 1)])
    words = "confluo-replay queues 0.ml 1.ml t.ml --topology fat.yaml"
    assert shell.run(f"{words} -w queues.ml")[0] == 0
    status, lines = shell.run("confluo-query queues.ml 'event == dropped' -f switch,to,notes,src_ip,packet,queue -T")
    assert status == 0
    rows = [line.split("\t") for line in lines[2:]]
    assert [row[:3] for row in rows] == [["tor-1-1", "host-1-1-1", "lost"]] * 4
    assert {row[3] for row in rows} == set(senders)
    assert shell.run(f"{words} -w again.ml")[0] == 0
    assert shell.run("confluo-query again.ml -T") == shell.run("confluo-query queues.ml -T")
    status, lines = shell.run(f"{words} --drops buffer -o tsv | grep -c dropped")
    assert int(lines[0]) > 4  # what the buffer cannot hold: the model knows nothing of other traffic


def test_recordings_and_captures_together(shell: Shell, tmp_path: Path) -> None:
    a, b = "10.0.0.2", "10.3.1.3"
    runs = [
        {"kind": Kind.BEGIN, "ts": 10**18},
        {"kind": Kind.TX, "ts": 10**18, "step": 2000, "count": 5, "ip_id": 7, "segments": 1},
        {"kind": Kind.END, "ts": 10**18 + 10**6, "tx": 5},
    ]
    write_log(tmp_path / "r.ml", "recording", end_rows(a, b, Role.CLIENT, runs))
    write_log(tmp_path / "c.ml", "packet", [packet(b, a, 10**18 + n, n) for n in range(3)])
    status, lines = shell.run("confluo-replay queues r.ml c.ml --topology fat.yaml -T -f src_ip,hop,switch")
    assert status == 0
    assert lines[0].startswith("confluo-replay queues: the sizes of 5 packets are not recorded")
    assert len([line for line in lines if line.startswith(a)]) == 5 * 5
    assert len([line for line in lines if line.startswith(b)]) == 3 * 5


def test_the_network_of_vote_simulate(shell: Shell, tmp_path: Path) -> None:
    """Its topology file, its hosts by their numbers, and its paths of flows."""
    words = "confluo-vote simulate --pods 2 --tors 2 --t1s 2 --t2s 2 --hosts 2 --seed 3"
    assert shell.run(f"{words} --connections 3 --healthy path --write-topology clos.yaml -w flows.ml")[0] == 0
    fields = "src_ip,dst_ip,src_port,dst_port,proto"
    status, lines = shell.run(f"confluo-query flows.ml 'hops == 3' -f {fields},path -T --no-header -c 1")
    src, dst, sport, dport, _, path = lines[0].split("\t")
    row = packet(src, dst, 10**18, 1) | {"src_port": int(sport), "dst_port": int(dport)}
    write_log(tmp_path / "c.ml", "packet", [row])
    queues = "confluo-replay queues c.ml --topology clos.yaml -f switch,to,src_ip -T --no-header"
    status, lines = shell.run(f"{queues} --paths flows.ml")
    assert status == 0
    passed = [line.split("\t") for line in lines]
    names = parse_network((tmp_path / "clos.yaml").read_text(), "clos.yaml").topology().name
    assert [its[0] for its in passed] == [names(int(n)) for n in path.split(",")]
    assert all(a[1] == b[0] for a, b in itertools.pairwise(passed))
    assert len(shell.run(queues)[1]) == 3


def test_one_seed_gives_the_same_records_and_scores(shell: Shell) -> None:
    words = "confluo-replay queues --simulate 300us --topology fat.yaml"
    first = shell.run(f"{words} -T")
    assert first == shell.run(f"{words} -T")
    assert first != shell.run(f"{words} -T --seed 2")
    status, lines = shell.run(f"{words} --load 60% --score")
    assert status == 0
    assert lines[0].startswith("drops\tdropped\tdrop_error")
    exact = lines[1].split("\t")
    assert exact[0] == "buffer"
    assert exact[2:] == ["0.0000", "0", "0", "0", "0", "0"]


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        ("x.ml", 2, "--topology: the network is not known; confluo-topology(5) describes the file"),
        ("--simulate 1ms x.ml --topology fat.yaml", 2, "--simulate makes the packets up; leave the inputs out"),
        ("--simulate 1ms --topology fat.yaml --score --drops buffer", 2, "--score tries both ways to drop"),
        ("--simulate 1ms --topology fat.yaml --score -w x.csv", 2, "-w: --score prints lines of text; leave -w out"),
        ("--simulate 1ms --topology fat.yaml --score -J", 2, "-J: --score prints lines of text; leave -J out"),
        ("--simulate 1ms --topology fat.yaml --score -f drops", 2, "-f: --score prints lines of text; leave -f out"),
        ("empty.ml --topology fat.yaml --load 5%", 2, "--load: is of made-up traffic; give --simulate TIME, or leave"),
        ("empty.ml --topology fat.yaml --incasts 5", 2, "--incasts: is of made-up traffic; give --simulate TIME"),
        ("--simulate 1ms --topology fat.yaml --picture q.svg", 2, "--picture q.svg: cannot write .svg; use .html"),
        ("--simulate 1ms --topology fat.yaml --drops some", 2, "--drops: not 'some'; there are recorded, buffer"),
        ("--simulate 1ms --topology fat.yaml --load 0 --incasts 0", 1, "no packets"),
        ("--simulate 1h --topology fat.yaml", 2, "--simulate would make more than 134,217,728 packets; take less time"),
        ("--simulate 1ms --topology fat.yaml --incasts nan", 2, "--simulate would make more than 134,217,728 packets"),
        ("--simulate 1ms --topology fat.yaml --load 150%", 2, "--load"),
        ("--simulate 2h --topology fat.yaml", 2, "--simulate"),
        ("--simulate 1ms --topology none.yaml", 2, "none.yaml: No such file or directory"),
        ("--simulate 1ms --topology grid.yaml", 2, "grid.yaml: has no links; confluo-replay queues needs switches"),
        ("empty.ml --topology fat.yaml", 1, "no packets"),
        ("wrong.ml --topology fat.yaml", 2, "wrong.ml: holds records of kind 'probe'"),
        ("far.ml --topology fat.yaml", 2, "the times are more than 26 days apart"),
        ("other.ml --topology fat.yaml", 1, "1 flows have a host that is not in the topology, and are left out"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(tmp_path: Path, words: str, status: int, said: str) -> None:
    (tmp_path / "fat.yaml").write_text(FAT)
    (tmp_path / "grid.yaml").write_text("topology: 1\ngrid: {dcs: 1, podsets: 1, pods: 2, servers: 2}\n")
    a, b = "10.0.0.2", "10.3.1.3"
    rows = {
        "empty": ("packet", []),
        "wrong": ("probe", []),
        "far": ("packet", [packet(a, b, 0, 1), packet(a, b, 10**17, 2)]),
        "other": ("packet", [packet(a, "192.0.2.1", 0, 1)]),
    }
    for name, (kind, its) in rows.items():
        if f"{name}.ml" in words:
            write_log(tmp_path / f"{name}.ml", kind, its)
    done = run("confluo-replay", "queues", *words.split(), "-o", "tsv", cwd=tmp_path)
    first = done.stderr.decode().splitlines()[0]
    assert (done.returncode, said in first) == (status, True), first
    assert "Traceback" not in done.stderr.decode()
