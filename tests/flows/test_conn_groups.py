"""`--by conn` and `--by host` against tshark, and the same groups from every input and by every way."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from remote_lab import env
from running import CAMPUS, run

# Without tunnels and quoted headers, of which tshark counts every IP header.
CAPTURES = ("tcpreplay_test.pcap", "libtrace_ns100.pcap", "zeek_icmp6.pcap", "zeek_mixed_vlan_mpls.pcap")
TITLES = {"IPv4": "ip", "IPv6": "ip", "TCP": "tcp", "UDP": "udp"}
_SIZE = r"\s*\S+ (?:bytes|kB|MB)"
_CONVERSATION = re.compile(rf"(\S+)\s+<-> (\S+)\s+(\d+) {_SIZE}\s+(\d+) {_SIZE}\s+(\d+) ")
_ENDPOINT = re.compile(r"(\S+)\s+(\d+)\s+\d")
Groups = dict[str, Counter[Any]]


def ask(path: Path | str, *words: str, **options: Any) -> list[dict[str, Any]]:
    done = run("confluo-query", path, *words, "-J", **options)
    assert (done.returncode, done.stderr) == (0, b"")
    return [json.loads(line) for line in done.stdout.splitlines()]


def ours(path: Path | str) -> Groups:
    """Packets each way of every conversation: (end, end): (packets of the first, packets of the second)."""
    found: Groups = {"ip": Counter(), "tcp": Counter(), "udp": Counter(), "endpoints": Counter()}
    agg = "count, count(src_port > dst_port) as up"
    for r in ask(path, "ip or ip6", "--by", "conn", "--agg", agg):
        a, b = r["src_ip"], r["dst_ip"]
        found["ip"][tuple(sorted((a, b)))] += r["count"]
        if r["proto"] in ("tcp", "udp"):
            assert r["src_port"] >= r["dst_port"]
            assert r["up"] == 0 or r["src_port"] > r["dst_port"]
            ends = f"{a}:{r['src_port']}", f"{b}:{r['dst_port']}"
            if r["src_port"] != r["dst_port"]:
                found[r["proto"]][ends] += r["up"]
                found[r["proto"]][ends[::-1]] += r["count"] - r["up"]
    for r in ask(path, "ip or ip6", "--by", "host", "--agg", "count"):
        found["endpoints"][r["host"]] += r["count"]
    return {name: +counts for name, counts in found.items()}


def tshark(path: Path) -> Groups:
    """The same of `tshark -z conv` and `-z endpoints`; connections that used the same ports again in one."""
    command = ["tshark", "-n", "-q", "-r", str(path), "-o", "ip.defragment:FALSE", "-o", "ipv6.defragment:FALSE"]
    for table in ("conv,ip", "conv,ipv6", "conv,tcp", "conv,udp", "endpoints,ip", "endpoints,ipv6"):
        command += ["-z", table]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found: Groups = {"ip": Counter(), "tcp": Counter(), "udp": Counter(), "endpoints": Counter()}
    for part in text.split("=" * 80):
        title, _, what = part.strip().partition("\n")[0].partition(" ")
        for line in part.splitlines():
            match = _CONVERSATION.match(line)
            if match is None:
                end = _ENDPOINT.match(line) if what == "Endpoints" else None
                found["endpoints"].update({end[1]: int(end[2])} if end else {})
                continue
            a, b, to_a, to_b, both = match.groups()
            if TITLES[title] == "ip":
                found["ip"][tuple(sorted((a, b)))] += int(both)
            elif a.rpartition(":")[2] != b.rpartition(":")[2]:
                found[TITLES[title]][a, b] += int(to_b)
                found[TITLES[title]][b, a] += int(to_a)
    return {name: +counts for name, counts in found.items()}


@pytest.mark.skipif(not shutil.which("tshark"), reason="no tshark here")
@pytest.mark.parametrize("name", CAPTURES)
def test_groups_equal_tshark(pcaps: Path, name: str) -> None:
    expected = tshark(pcaps / name)
    assert expected["ip"]
    assert expected["endpoints"]
    assert ours(pcaps / name) == expected


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("groups") / "campus.ml"
    assert run("confluo-capture", "-q", "-r", CAMPUS, "-w", path).returncode == 0
    return path


@pytest.mark.skipif(not shutil.which("tshark"), reason="no tshark here")
def test_campus_equals_tshark(log: Path) -> None:
    expected = tshark(CAMPUS)
    assert min(len(expected[table]) for table in expected) > 15
    assert ours(log) == expected


def test_a_host_has_the_records_of_its_condition(log: Path) -> None:
    for row in ask(
        log, "--by", "host", "--agg", "count, sum(len), distinct(dst_port)", "--sort", "-count", "--top", "4"
    ):
        [alone] = ask(log, f"host {row.pop('host')}", "--agg", "count, sum(len), distinct(dst_port)")
        assert alone == row


def test_host_is_a_field_of_archives_and_endpoint_is_not(log: Path) -> None:
    archive = log.with_name("named")
    assert run("confluo-archive", log, "--to", archive, "--keep-log", "--host", "gw", "-q").returncode == 0
    assert [r["host"] for r in ask(archive, "--by", "host", "--agg", "count")] == ["gw"]
    ends = ask(archive, "--by", "endpoint as host", "--agg", "count")
    assert ends == ask(log, "--by", "host", "--agg", "count")


QUESTIONS = (
    ("--by", "conn,1s", "--agg", "count, p50(len), first(tcp_seq)", "--having", "count > 2", "--sort", "-count"),
    (
        "tcp",
        "--by",
        "endpoint",
        "--agg",
        "count, count(tcp_flags has rst) / count as rate",
        "--sort",
        "-rate",
        "--top",
        "3",
    ),
    ("--by", "1s,endpoint/24", "--agg", "count", "--analyze", "tcp"),
)


@pytest.mark.parametrize("words", QUESTIONS, ids=lambda w: " ".join(w)[:24])
def test_every_input_has_the_same_groups(log: Path, tmp_path: Path, words: tuple[str, ...]) -> None:
    expected = ask(log, *words)
    assert expected
    archive = log.with_name("archive")
    if not archive.exists():
        assert run("confluo-archive", log, "--to", archive, "--keep-log", "-q").returncode == 0
    assert ask(archive, *words) == expected
    assert ask(CAMPUS, *words) == expected
    assert ask(f"sw1:{log}", *words, env=env(tmp_path)) == expected
    if "--analyze" not in words:
        assert ask(log, *words, "--engine", "local:3") == expected


def test_a_stored_aggregate_of_hosts_is_not_added_up(log: Path) -> None:
    """An aggregate by host answers questions by host; it has each record twice, so others read the records."""
    assert run("confluo-index", log, "add", "aggregate", "n", "count", "--by", "host, proto").returncode == 0
    for by in ("host, proto", "host", "host/24", "proto"):
        assert ask(log, "--agg", "n", "--by", by) == ask(log, "--agg", "count", "--by", by)
    assert ask(log, "--agg", "n") == ask(log, "--agg", "count", "--by", "host, proto")
