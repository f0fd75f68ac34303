"""confluo-vote as a filter: what goes in, what comes out."""

from __future__ import annotations

from tests.running import run

HEAD = "#fields\tts\tkind\tsrc_ip\tdst_ip\tlost\thops\tpath\n"


def test_a_link_that_two_flows_share_is_blamed() -> None:
    text = HEAD + "0\tflow\t0.0.0.1\t0.0.0.2\t3\t3\t10,30,40\n" * 3 + "0\tflow\t0.0.0.1\t0.0.0.3\t0\t3\t10,30,40\n"
    done = run("confluo-vote", "-", "-T", "-f", "rank,link_a,link_b,score", "--no-header", stdin=text.encode())
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.splitlines()[0].split(b"\t")[3] == b"0.75"


def test_nothing_lost_is_nothing_blamed() -> None:
    text = HEAD + "0\tflow\t0.0.0.1\t0.0.0.2\t0\t3\t10,30,40\n"
    done = run("confluo-vote", "-", "-T", "--no-header", stdin=text.encode())
    assert (done.returncode, done.stdout, done.stderr) == (1, b"", b"")
