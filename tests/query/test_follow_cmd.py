"""confluo-query --follow and --last: logs, several logs, other hosts, growing files; windows of aggregates."""

from __future__ import annotations

import json
import os
import random
import signal
import struct
import time
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace

import pytest

import remote_lab
from confluo_tools import console, multilog
from confluo_tools.formats.newest import newest
from confluo_tools.inputs import follow
from confluo_tools.multilog.tails import Tails
from follow_lab import HEAD, PLAIN, ROWS, SECOND, ended, following, frame, growing, numbers, rows
from running import next_line, run


def test_the_newest_rows_are_those_of_a_sort() -> None:
    """By time, in whatever order and pieces they come; rows of equal time in the order in which they came."""
    rng = random.Random(3)
    for _ in range(60):
        pieces, count = [], 0
        for _ in range(rng.randrange(1, 30)):
            times = [rng.randrange(50) for _ in range(rng.choice([0, 1, 3, 40]))]
            if times:
                pieces.append(rows(times, count))
                count += len(times)
        wanted = sorted(((p.get(0, i), p.get(1, i)) for p in pieces for i in range(p.rows)), key=lambda row: row[0])
        most = rng.randrange(1, 60)
        found = [
            (b.get(0, i), b.get(1, i))
            for b, _ in newest([(p, None) for p in pieces], ROWS, most, False)
            for i in range(b.rows)
        ]
        assert found == wanted[-most:]


def test_the_newest_records_of_all_inputs(tmp_path: Path) -> None:
    """The last lines of what is printed without --last."""
    names = [tmp_path / "a.ml", tmp_path / "b.ml"]
    rng = random.Random(7)
    for i, name in enumerate(names):
        with growing(name) as append:
            append(*[rng.randrange(10**6) * 10**7 + i for _ in range(3000)])
    run("confluo-convert", names[0], "-w", tmp_path / "a.arrows")
    for inputs in ([names[0]], names, [tmp_path / "a.arrows"]):
        for expr in ("", "(n & 7) == 3"):
            words = ["-e", expr, *inputs, "-T", "--no-header"]
            whole = run("confluo-query", *words, "--sort-input").stdout.splitlines()
            assert run("confluo-query", *words, "--last", "20").stdout.splitlines() == whole[-20:]
    env = remote_lab.env(tmp_path)
    whole = run("confluo-query", f"sw1:{names[0]}", *PLAIN, env=env).stdout.splitlines()
    assert run("confluo-query", f"sw1:{names[0]}", "--last", "5", *PLAIN, env=env).stdout.splitlines() == whole[-5:]


def test_a_log_is_followed_from_its_newest_rows_on(tmp_path: Path) -> None:
    log = tmp_path / "a.ml"
    with growing(log) as append:
        append(5, 1, 4, 2, 3)
        with following(log, "n != 7", "--last", "2", "--follow", *PLAIN) as process:
            assert numbers(process, 2) == [2, 0]
            append(6, 7, 8)
            assert numbers(process, 2) == [5, 6]
            assert ended(process) == ""


def test_several_logs_and_other_hosts_are_followed_by_time(tmp_path: Path) -> None:
    env = remote_lab.env(tmp_path)
    names = ["a", "b", "c"]
    with ExitStack() as stack:
        append = {n: stack.enter_context(growing(tmp_path / f"{n}.ml")) for n in names}
        for i, n in enumerate(names):
            append[n](*range(i, 30, 3))
        inputs = [tmp_path / "a.ml", f"sw1:{tmp_path}/b.ml", f"sw2:{tmp_path}/c.ml"]
        words = ["-e", "n != 11", *inputs, "--follow", "-T", "--no-header", "-f", "ts,host"]
        with following(*words, env=env) as process:
            found = [next_line(process.stdout).split() for _ in range(30)]
            assert [int(t[20:29]) for t, _ in found] == list(range(30))
            assert [h for _, h in found[:3]] == [os.uname().nodename.encode(), b"sw1", b"sw2"]
            append["c"](100)
            assert next_line(process.stdout)[20:] == b"000000100Z\tsw2\n"
            append["a"](101, 102)  # its number 11 is left out
            assert next_line(process.stdout)[20:29] == b"000000101"
            append["b"](103)
            assert next_line(process.stdout)[20:] == b"000000103Z\tsw1\n"
            ended(process)


def test_a_host_that_is_lost_is_asked_again(tmp_path: Path) -> None:
    """The shell is killed while rows come: each row is printed once, in order."""
    lab = remote_lab.shell(tmp_path)
    pids = tmp_path / "pids"
    wrapper = tmp_path / "counted"
    wrapper.write_text(f'#!/bin/sh\necho $$ >>{pids}\nexec {lab} "$@"\n')
    wrapper.chmod(0o755)
    env = remote_lab.env(tmp_path) | {"CONFLUO_RSH": str(wrapper)}
    with growing(tmp_path / "a.ml") as append:
        append(1, 2, 3)
        with following(f"sw1:{tmp_path}/a.ml", "--follow", *PLAIN, env=env) as process:
            assert numbers(process, 3) == [0, 1, 2]
            os.kill(int(pids.read_text().split()[-1]), signal.SIGKILL)
            append(4, 5)
            assert numbers(process, 2) == [3, 4]
            assert "it is tried again" in ended(process)


def test_a_capture_and_text_are_followed_as_they_grow(tmp_path: Path) -> None:
    """Also when what is written ends in the middle of a packet or of a line."""
    capture, text = tmp_path / "a.pcap", tmp_path / "a.tsv"
    capture.write_bytes(HEAD + frame(0) + frame(1) + frame(2)[:20])
    with following(capture, "--last", "1", "--follow", "-T", "--no-header", "-f", "src_port") as process:
        assert numbers(process, 1) == [1001]
        with open(capture, "ab") as f:
            f.write(frame(2)[20:] + frame(3))
        assert numbers(process, 2) == [1002, 1003]
        assert ended(process) == ""
    text.write_bytes(b"#fields\tn\n#types\tu64\n1\n2\n3")
    with following(text, "--follow", *PLAIN) as process:
        assert numbers(process, 2) == [1, 2]
        with open(text, "ab") as f:
            f.write(b"0\n4\n")
        assert numbers(process, 2) == [30, 4]
        assert ended(process) == ""


def test_windows_end_with_the_records_and_by_the_clock(tmp_path: Path) -> None:
    now = time.time_ns() // SECOND * SECOND
    start = now - 100 * SECOND
    with growing(tmp_path / "a.ml") as append:
        append(start + 2, start + 1, start + SECOND, start + SECOND + 5)
        words = ["--agg", "count,max(n)", "--by", "1s", "-T", "--no-header", "-f", "count,max_n", "--follow"]
        with following(tmp_path / "a.ml", *words) as process:
            assert next_line(process.stdout) == b"2\t1\n"
            assert next_line(process.stdout) == b"2\t3\n"  # the clock is past it
            append(start + 7, start + 3 * SECOND, start + 3 * SECOND)
            assert next_line(process.stdout) == b"2\t6\n"
            said = ended(process)
    assert "1 record came late" in said
    assert "they are not counted; " in said


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["a.ml", "--last", "3", "--agg", "count"], "--last and --agg exclude each other"),
        (["a.ml", "--last", "3", "-c", "2"], "--last and --limit exclude each other"),
        (["a.ml", "--cursor", "c", "-c", "2"], "--cursor and --limit exclude each other"),
        (["a.ml", "--cursor", "c", "--analyze", "tcp"], "--cursor and --analyze exclude each other"),
        (["a.ml", "--follow", "--agg", "count", "--by", "1s,n", "--top", "3"], "ranks all groups"),
        (["a.ml", "--lag", "1s"], "is for windows"),
        (["a.parquet", "--follow"], "is a Parquet file, which does not grow"),
        (["-e", "", "a.ml", "a.parquet", "--follow"], "only logs are followed together"),
        (["-", "--cursor", "c"], "has no places that a cursor could keep"),
        (["a.ml", "--cursor", "none/c"], "there is no folder none"),
        (["a.ml", "--cursor", "a.parquet"], "is not a cursor"),
    ],
)
def test_what_is_not_clear_is_one_line(words: list[str], what: str, small: Path) -> None:
    done = run("confluo-query", *words, cwd=small)
    assert (done.returncode, done.stdout, done.stderr.count(b"\n")) == (2, b"", 1), done.stderr
    assert what in done.stderr.decode()


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("small")
    with growing(folder / "a.ml") as append:
        append(1, 2, 3)
    (folder / "a.parquet").write_bytes(b"PAR1" + bytes(40))
    return folder


@pytest.mark.parametrize(("row", "what"), [(0, "the head of the block"), (1500, "column n")])
def test_damaged_rows_are_left_out_and_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, row: int, what: str
) -> None:
    """Of three segments the second has a wrong byte.  A follower prints the others, here and from another host."""
    log = tmp_path / "a.ml"
    with multilog.create(str(log), ROWS) as made:
        for part in range(3):
            with made.writer(ahead=-1) as writer:
                writer.append(rows([part * SECOND + i for i in range(2000)], 2000 * part))
    broken = sorted((log / "lane-000").glob("*.arrow"))[1]
    data = bytearray(broken.read_bytes())
    values = data.index(struct.pack("<3Q", 2000, 2001, 2002))
    data[4096 + 64 if row == 0 else values + 8 * row + 1] ^= 0xFF
    broken.write_bytes(data)
    wanted = b"0\n1000\n4000\n5000\n"
    here = f"{broken}: block 0: {what} is damaged"
    words = ["-e", "n in {0, 1000, 2000, 3000, 4000, 5000}", *PLAIN]
    done = run("confluo-query", log, "--follow", *words, "-c", "4")
    assert (done.returncode, done.stdout, done.stderr.decode()) == (2, wanted, f"confluo-query: {here}\n")
    done = run("confluo-query", log, "--cursor", tmp_path / "cursor", *words)
    assert (done.returncode, done.stdout, done.stderr.decode()) == (2, wanted, f"confluo-query: {here}\n")
    assert json.loads((tmp_path / "cursor").read_text())["inputs"][0]["position"] == [6000]
    done = run("confluo-query", f"sw1:{log}", "--follow", *words, "-c", "4", env=remote_lab.env(tmp_path))
    assert (done.returncode, done.stdout) == (2, wanted)
    assert f"block 0: {what} is damaged" in done.stderr.decode()
    said: list[str] = []
    with Tails(str(log), warn=said.append) as tails:
        assert [(block.rows, block.get(1, 0)) for block, _ in tails.take()] == [(2000, 0), (2000, 4000)]
    assert said == [here]
    monkeypatch.setattr(console.state, "trouble", False)
    parts = follow.tail(str(log), SimpleNamespace(lateness=0), Looks(3))  # type: ignore[arg-type]
    assert [block.get(1, 0) for block in parts] == [0, 4000]
    assert capsys.readouterr().err.endswith(f"{here}\n")
    assert console.state.trouble


class Looks:
    """An ending that comes after some looks at it."""

    def __init__(self, many: int) -> None:
        self.left = many

    def came(self) -> bool:
        self.left -= 1
        return self.left < 0
