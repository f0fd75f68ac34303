"""The numbers of the captures that were read into a log: several runs, several writers at once, damage, and back."""

from __future__ import annotations

import gzip
import io
import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import dpkt
import pytest

import make_capture as make
from confluo_tools.errors import StoreError
from confluo_tools.multilog.source_captures import register, source_captures
from running import BIN, popen, run

LIST = "captures/files.ndjson"
SECOND = 10**9


def written(path: Path, mark: int, packets: int = 5, *, packed: bool = False) -> Path:
    """A capture of UDP packets whose payload says which capture it is; times and lengths are the same in all."""
    data = make.pcap([((k + 1) * SECOND, make.udp4(payload=bytes([mark, k]) * 8)) for k in range(packets)])
    path.write_bytes(gzip.compress(data) if packed else data)
    return path


def ok(*words: object) -> bytes:
    done = run(*words)
    assert (done.returncode, done.stderr) == (0, b"")
    return done.stdout


def marks(data: bytes) -> list[int]:
    return [frame[-16] for _, frame in dpkt.pcap.Reader(io.BytesIO(data))]


def test_each_run_goes_on_with_the_numbers(tmp_path: Path) -> None:
    """Only the number tells the packets of these captures apart: offsets, times and lengths are the same."""
    log = tmp_path / "t.ml"
    paths = [written(tmp_path / f"{i}.pcap", i, packed=i == 2) for i in range(5)]
    ok("confluo-capture", "-r", paths[0], "-r", paths[1], "-w", log)
    ok("confluo-capture", "-r", paths[2], "-w", log, "--append")
    ok("confluo-convert", paths[3], "-w", log, "--append")
    ok("confluo-query", "-r", paths[4], "-o", "multilog", "-w", log, "--append")
    text = ok("confluo-query", log, "-o", "tsv", "-f", "file_number,file_offset").decode()
    rows = [row for row in text.splitlines() if row[0] != "#"]
    assert len(rows) == 25
    assert {row.split("\t")[1] for row in rows} == {str(24 + k * 74) for k in range(5)}
    sources = [word for path in paths for word in ("--source", path)]
    for i in range(5):
        assert marks(ok("confluo-query", log, f"file_number == {i}", "-o", "pcap", *sources)) == [i] * 5
    facts = json.loads(ok("confluo-info", log, "-J"))
    assert [(entry["number"], entry["file"]) for entry in facts["files"]] == [(i, str(p)) for i, p in enumerate(paths)]
    kept = ok("confluo-query", log, "-f", "-file_number", "-o", "stream")
    (tmp_path / "stream").write_bytes(kept)  # without numbers, the first capture that fits is taken
    assert set(marks(ok("confluo-query", tmp_path / "stream", "-o", "pcap", *sources))) == {0}


def test_inputs_are_numbered_without_a_log(tmp_path: Path) -> None:
    paths = [written(tmp_path / f"{i}.pcap", i, packets=i + 1) for i in range(3)]
    words = [word for path in paths for word in ("-r", path)]
    for command in ("confluo-query", "confluo-capture"):
        stream = ok(command, *words, "-o", "stream")
        (tmp_path / "s").write_bytes(stream)
        rows = ok("confluo-query", tmp_path / "s", "-o", "tsv", "-f", "file_number").decode().split()
        assert [row for row in rows if row.isdigit()] == ["0", "1", "1", "2", "2", "2"]
    assert marks(ok("confluo-query", *words, "-o", "pcap")) == [0, 1, 1, 2, 2, 2]


def test_a_part_of_the_sources_is_enough(tmp_path: Path) -> None:
    """A capture whose number is beyond the sources that are given is found by its times."""
    first, second = tmp_path / "a.pcap", tmp_path / "b.pcap"
    first.write_bytes(make.pcap([(k * SECOND, make.udp4(payload=bytes(k))) for k in range(9)]))
    second.write_bytes(make.pcapng([((100 + k) * SECOND, make.udp4(payload=bytes(k))) for k in range(9)]))
    log = tmp_path / "t.ml"
    ok("confluo-capture", "-r", first, "-r", second, "-w", log)
    for number, path in enumerate((first, second)):
        got = ok("confluo-query", log, f"file_number == {number}", "-o", "pcap", "--source", path)
        want = ok("confluo-query", path, "-o", "pcap")
        assert got == want
        turned = ok("confluo-query", log, "-o", "pcap", "--source", second, "--source", first)
        assert turned == ok("confluo-query", log, "-o", "pcap", "--source", first, "--source", second)


def test_a_log_without_the_field_goes_on_without_it(tmp_path: Path) -> None:
    paths = [written(tmp_path / f"{i}.pcap", i) for i in range(2)]
    log = tmp_path / "old.ml"
    ok("confluo-capture", "-r", paths[0], "-w", log, "-f", "ts,len,cap_len,link_type,file_offset")
    ok("confluo-capture", "-r", paths[1], "-w", log, "--append")
    assert not (log / LIST).exists()
    assert ok("confluo-query", log, "--count") == b"10\n"
    ok("confluo-capture", "-r", paths[1], "-w", log, "--append", "--offset")  # asked for: the log gains the field
    assert b"file_number" in ok("confluo-query", log, "-f", "help")
    assert [entry["file"] for entry in source_captures(log)] == [str(paths[1])]


REGISTER = """
import sys
from confluo_tools.multilog.source_captures import register
for k in range(50):
    names = [f"/{sys.argv[2]}-{k}-{i}" for i in range(k % 4 + 1)]
    print(register(sys.argv[1], names), *names)
"""


def test_writers_at_once_get_numbers_of_their_own(tmp_path: Path) -> None:
    words = [[sys.executable, "-c", REGISTER, str(tmp_path), name] for name in "abcdef"]
    workers = [subprocess.Popen(each, stdout=subprocess.PIPE, text=True) for each in words]
    given: dict[int, str] = {}
    for worker in workers:
        out, _ = worker.communicate()
        assert worker.returncode == 0
        for line in out.splitlines():
            first, *names = line.split()
            for i, name in enumerate(names, int(first)):
                assert given.setdefault(i, name) == name
    listed = {entry["number"]: entry["file"] for entry in source_captures(tmp_path)}
    assert listed == given
    assert sorted(given) == list(range(len(given)))


def test_any_name_takes_one_line(tmp_path: Path) -> None:
    names = ["/a\nb", '/quote"', "/\\", "/ä\u2028", os.fsdecode(b"/\xff\xfe"), "/" + "x" * 4095, "-"]
    assert register(tmp_path, names, sync=True) == 0
    assert register(tmp_path, ["next"]) == len(names)
    got = [entry["file"] for entry in source_captures(tmp_path)]
    assert got == [*names[:4], "/\\xff\\xfe", *names[5:], os.path.abspath("next")]


@pytest.mark.parametrize("line", ["[", "{}", "[" * 30000, "7", '{"time": 1}', "\udcff", "{" + "x" * 40000])
def test_a_damaged_list_is_one_clear_line(line: str, tmp_path: Path) -> None:
    log = tmp_path / "t.ml"
    ok("confluo-capture", "-r", written(tmp_path / "0.pcap", 0), "-w", log)
    with open(log / LIST, "ab") as file:
        file.write(line.encode("utf-8", "surrogateescape") + b"\n")
    with pytest.raises(StoreError, match="line 2 is damaged"):
        list(source_captures(log))
    done = run("confluo-info", log)
    assert (done.returncode, done.stderr) == (2, f"confluo-info: {log}/{LIST}: line 2 is damaged\n".encode())
    assert ok("confluo-query", log, "--count") == b"5\n"


def test_a_line_that_was_cut_off_takes_no_number_of_others(tmp_path: Path) -> None:
    """A full disk can cut a line off; its writer then stored no packets."""
    register(tmp_path, ["a", "b"])
    with open(tmp_path / LIST, "ab") as file:
        file.write(b'{"time": "20')
    assert register(tmp_path, ["c"]) == 2
    assert register(tmp_path, ["d"]) == 3


def test_a_log_finds_its_captures_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without --source: the captures that were read into it, as long as they are there."""
    paths = [written(tmp_path / f"{i}.pcap", i, packed=i == 1) for i in range(3)]
    log = tmp_path / "t.ml"
    monkeypatch.chdir(tmp_path)
    for path in paths:
        ok("confluo-capture", "-r", path.name, "-w", log, "--append")
    monkeypatch.chdir("/")
    for i in range(3):
        assert marks(ok("confluo-query", log, f"file_number == {i}", "-o", "pcap")) == [i] * 5
    whole = ok("confluo-convert", log, "-o", "pcap")
    assert sorted(marks(whole)) == [i for i in range(3) for _ in range(5)]
    paths[1].write_text("no capture any more")
    done = run("confluo-query", log, "-o", "pcap")
    gone = "5 packets were not found in the source; check that it is the right capture"
    assert (done.returncode, done.stderr) == (2, f"confluo-query: {gone}\n".encode())
    assert sorted(marks(done.stdout)) == [i for i in (0, 2) for _ in range(5)]
    for path in paths:
        path.unlink()
    done = run("confluo-query", log, "-o", "pcap")
    assert done.returncode == 2
    assert b"no field 'raw'; give the capture with --source" in done.stderr


def test_only_captures_need_their_sources(tmp_path: Path) -> None:
    """No other output reads the list of the sources, or the sources."""
    log = tmp_path / "t.ml"
    ok("confluo-capture", "-r", written(tmp_path / "a.pcap", 1), "-w", log)
    (log / LIST).write_text("no list\n")
    for kind in ("table", "tsv", "csv", "json", "stream", "arrow", "parquet"):
        assert ok("confluo-query", log, "-o", kind)
        assert ok("confluo-convert", log, "-o", kind)
    for kind in ("pcap", "pcapng"):
        done = run("confluo-query", log, "-o", kind)
        assert done.returncode == 2
        assert done.stderr.endswith(b"files.ndjson: line 1 is damaged\n")


def test_more_captures_than_are_open_at_once(tmp_path: Path) -> None:
    paths = [written(tmp_path / f"{i}.pcap", i, packets=2) for i in range(150)]
    log = tmp_path / "t.ml"
    ok("confluo-capture", *(word for path in paths for word in ("-r", path)), "-w", log)
    assert sorted(marks(ok("confluo-query", log, "-o", "pcap"))) == sorted([*range(150)] * 2)
    done = popen(
        [BIN / "confluo-query", log, "file_number in 100..120", "-o", "pcap"],
        stdout=subprocess.PIPE,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100)),
    )
    assert sorted(marks(done.communicate()[0])) == sorted([*range(100, 121)] * 2)


def test_an_anonymous_log_names_no_capture(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_bytes(bytes(range(32)))
    key.chmod(0o600)
    path = written(tmp_path / "secret-name.pcap", 0)
    log = tmp_path / "t.ml"
    ok("confluo-convert", path, "--anonymize", key, "-o", "multilog", "-w", log)
    assert [(e["number"], e["host"], e["file"]) for e in source_captures(log)] == [(0, "", "")]
    assert b"secret" not in b"".join(f.read_bytes() for f in log.rglob("*") if f.is_file())
