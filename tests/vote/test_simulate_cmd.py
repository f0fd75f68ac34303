"""confluo-vote simulate: its records through other commands, its refusals, the figures that are made from it."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from running import popen
from sessions import Shell


def test_an_epoch_without_end_can_be_ended(tmp_path: Path) -> None:
    """Flows without loss are not written: the loop of the core must look up from time to time."""
    words = ["simulate", "--failures=0", "--noise=0", "--connections=16777216", "-T"]
    command = [Path(__file__).resolve().parents[2] / "bin" / "confluo-vote", *words]
    process = popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    try:
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(1.5)
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
    finally:
        process.kill()
        process.communicate()


def test_records_of_the_command(tmp_path: Path) -> None:
    shell = Shell(tmp_path)
    status, lines = shell.run("confluo-vote simulate --pods 2 --tors 20 --failures 5 --seed 7 -T")
    assert status == 0
    assert [line.split("\t")[1] for line in lines[2:8]] == ["failed"] * 5 + ["flow"]
    again = shell.run("confluo-vote simulate --failures 5 --seed 7 -o stream | confluo-query - -T")
    assert again == (0, lines)
    assert shell.run("confluo-vote simulate --seed 8 --failures 5 -T")[1] != lines
    assert shell.run("confluo-vote simulate --failures 5 --seed 7 -w paths.ml") == (0, [])
    assert shell.run("confluo-query paths.ml -T") == (0, lines)


def test_voting_finds_what_failed(tmp_path: Path) -> None:
    """The pipeline of the README: the truth travels in the records."""
    status, lines = Shell(tmp_path).run(
        "confluo-vote simulate --pods 2 --tors 20 --failures 5 --seed 7 -o stream | confluo-vote - --score"
        " -f failed,blamed,right,found,precision,recall,accuracy"
    )
    assert status == 0
    assert [line.split("\t") for line in lines[2:]] == [["5", "5", "5", "5", "1.0", "1.0", "1.0"]]


@pytest.mark.slow
def test_a_figure_of_the_paper(tmp_path: Path) -> None:
    """bench/vote_figures.py: tables that agree with section 3 of what we know of the paper, and drawings."""
    bench = Path(__file__).resolve().parents[2] / "bench" / "vote_figures.py"
    done = subprocess.run(
        [sys.executable, bench, "6.1", "--seeds", "3", "--models", "vote,cover", "--svg", tmp_path],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert (done.returncode, done.stderr) == (0, "")
    points = [line.split("\t") for line in done.stdout.splitlines() if not line.startswith("#")]
    votes = {float(p[2]): tuple(map(float, p[5::2])) for p in points if p[3] == "vote"}
    assert set(votes) == {1, 5, 10, 15, 30}
    for accuracy, precision, recall in votes.values():
        assert accuracy > 0.95
        assert precision > 0.95
        assert recall > 0.95
    assert all(float(p[7]) < 0.9 for p in points if p[3] == "cover")  # every lone drop costs it a link
    root = ElementTree.parse(tmp_path / "6.1.svg").getroot()
    assert len(root.findall(".//{http://www.w3.org/2000/svg}polyline")) == 3 * 2


def test_nodes_of_another_file_are_numbered_anew_and_that_is_said(tmp_path: Path) -> None:
    """confluo-vote would call the nodes by names of others."""
    (tmp_path / "net").write_text(
        "".join(f"{tor} {t1}\n" for tor in (7, 9) for t1 in (1, 2))
        + "".join(f"{t1} 5\n" for t1 in (1, 2))
        + "10000->7\n10001->9\n"
    )
    shell = Shell(tmp_path)
    said = "confluo-vote simulate: net: the simulated nodes have other numbers; --write-topology FILE writes them"
    assert said in shell.run("confluo-vote simulate --topology net -T")[1]
    assert said not in shell.run("confluo-vote simulate --topology net -T -q")[1]
    status, lines = shell.run("confluo-vote simulate --topology net --write-topology clos.yaml -T")
    assert (status, said in lines) == (0, False)
    assert shell.run("confluo-vote simulate --topology clos.yaml -T") == (0, lines)


def test_a_topology_is_written_and_read(tmp_path: Path) -> None:
    shell = Shell(tmp_path)
    options = "--pods 3 --tors 4 --t1s 2 --t2s 2 --hosts 5"
    status, lines = shell.run(f"confluo-vote simulate {options} --write-topology clos.yaml --healthy bare -T")
    assert status == 0
    assert shell.run("confluo-vote simulate --topology clos.yaml --healthy bare -T") == (0, lines)
    assert shell.run("cat clos.yaml") == (0, ["topology: 1", "clos: {podsets: 3, tors: 4, t1s: 2, t2s: 2, servers: 5}"])


def test_failures_by_name(tmp_path: Path) -> None:
    status, lines = Shell(tmp_path).run(
        "confluo-vote simulate --fail tor-1-2:t1-1-3=0.5% --fail t2-3:t2-3 --fail 1:41=1e-3 -T"
        " -f kind,link_a,link_b,rate"
    )
    assert status == 0
    failed = [line.split("\t") for line in lines if line.startswith("failed")]
    assert [words[1:3] for words in failed] == [["2", "43"], ["59", "59"], ["1", "41"]]
    assert (failed[0][3], failed[2][3]) == ("0.005", "0.001")


def test_flows_without_loss_and_failures_are_nothing(tmp_path: Path) -> None:
    assert Shell(tmp_path).run("confluo-vote simulate --failures 0 --noise 0 -T --no-header") == (1, [])


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ("--failures -1", "invalid value for '--failures'"),
        ("--failures 961", "--failures: 961 links cannot fail: there are 960"),
        ("--pods 1 --tors 1", "cannot be simulated: one ToR"),
        ("--hosts 100000000", "cannot be simulated: a network of"),
        ("--rate 2..3", "--rate: '2' is not a chance; write e.g. 0.05%"),
        ("--rate 1%..0.1%", "--rate: '1%..0.1%' starts above its end"),
        ("--noise nan", "--noise: 'nan' is not a chance"),
        ("--noise -1", "--noise: '-1' is not a chance"),
        ("--packets 0", "--packets: '0' is not a number of packets"),
        ("--packets 5..1", "--packets: '5..1' is not a number of packets"),
        ("--connections 1e12", "--connections: '1e12' is not a number of connections"),
        ("--traffic odd", "--traffic: not 'odd'; there are uniform, skewed, hot"),
        ("--skew 50%", "--hot-tors and --skew go together"),
        ("--hot-tors 41 --skew 50%", "--hot-tors: 41 hot ToRs of 40"),
        ("--where up", "--where: unknown kind of link 'up'; the kinds are host-tor"),
        ("--fail 1:2", "--fail: no link from 1 to 2"),
        ("--fail router:1", "--fail: 'router' is not a node of this network"),
        ("--fail 1", "--fail: '' is not a node"),
        ("--silence 101%", "--silence: '101%' is not a chance"),
        ("--quirks odd", "--quirks: unknown quirk 'odd'; the quirks are last-hop, two-draws, culprit, all"),
        ("--quirks all,odd", "--quirks: unknown quirk 'all'; the quirks are last-hop"),
        ("--healthy no", "--healthy: not 'no'; there are none, bare, path"),
        ("--sizes odd", "--sizes: not 'odd'"),
        ("--pods 1000000 --tors 1000000", "cannot be simulated: 1000000 pods of 1000000 ToRs"),
        ("--cap 99999999999", "invalid value for '--cap'"),
        ("--rate 1e999", "--rate: '1e999' is not a chance"),
        ("--start x", "--start: 'x' is not a time"),
        ("--start 2262-04-11T23:47:00Z --epochs 3", "--start: the last epoch is beyond the end of time"),
        ("--epoch x", "--epoch: 'x' is not a duration"),
        ("--epoch 2h", "--epoch: '2h' is too long; 1h at most"),
        ("--epochs 9999999", "--epochs: more than 1048576"),
        ("--seed 99999999999999999999", "--seed: must be below 2^64"),
        ("--topology none.yaml", "none.yaml: No such file"),
        ("--write-topology old", "old: exists"),
    ],
)
def test_nonsense_is_refused(tmp_path: Path, words: str, complaint: str) -> None:
    shell = Shell(tmp_path)
    shell.run("touch old")
    status, lines = shell.run(f"confluo-vote simulate {words}")
    assert (status, len(lines)) == (2, 1)
    assert lines[0].startswith(f"confluo-vote simulate: {complaint}")
