"""confluo-capture as users run it: logs, streams, samples, signals, full disks, wrong input."""

from __future__ import annotations

import gzip
import io
import os
import re
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import dpkt
import pytest

import make_capture as make
from confluo_tools import multilog
from confluo_tools.formats.pcap import open_captures, packet_schema
from confluo_tools.multilog import views
from confluo_tools.schema import Field, Schema, builtin
from running import BIN, CAMPUS, environment, lines, on_terminal, popen, run, shell

CAPTURE = "confluo-capture"
DISK = "12m"  # of small_disk
SECOND = 10**9


def packets(n: int) -> list[make.Packet]:
    return [(k * SECOND, make.udp4(bytes(k % 40), sport=1 + k % 1000, dport=53 + k % 3)) for k in range(n)]


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """200,000 packets: more than three blocks."""
    path = tmp_path_factory.mktemp("trace") / "trace.pcap"
    path.write_bytes(make.pcap(packets(1000) * 200))
    return path


def table(path: Path, *names: str) -> list[tuple[Any, ...]]:
    """Columns of all rows of a MultiLog."""
    found = []
    with multilog.open(path, readonly=True) as log:
        columns = [log.schema.index(n) for n in names]
        for block in log.blocks():
            found += [tuple(block.get(c, i) for c in columns) for i in range(block.rows)]
        assert log.damage == []
    return found


def parsed(path: Path, *names: str, decap: str = "outer") -> list[tuple[Any, ...]]:
    found = []
    with open_captures([str(path)], decap=decap) as captures:
        columns = [captures.schema.index(n) for n in names]
        for block in captures:
            found += [tuple(block.get(c, i) for c in columns) for i in range(block.rows)]
    return found


def ok(done: subprocess.CompletedProcess[bytes], stderr: str = "") -> subprocess.CompletedProcess[bytes]:
    assert (done.returncode, done.stderr.decode()) == (0, stderr)
    return done


ALL = [c.name for c in packet_schema().columns]


def test_a_capture_becomes_a_log(tmp_path: Path) -> None:
    log = tmp_path / "trace.ml"
    ok(run(CAPTURE, "-r", CAMPUS, "-w", log))
    assert table(log, *ALL) == parsed(CAMPUS, *ALL)
    assert [h["argv"][0] for h in _history(log)] == [CAPTURE]


def _history(log: Path) -> list[dict[str, Any]]:
    from confluo_tools.multilog.create import history

    return history(log)


def test_packets_of_a_log_are_found_in_their_capture(tmp_path: Path) -> None:
    """Records, and back to the very packets, through the offsets that are kept by default."""
    log, back = tmp_path / "trace.ml", tmp_path / "back.pcap"
    ok(run(CAPTURE, "-r", CAMPUS, "-w", log))
    ok(run("confluo-query", log, "udp", "-o", "pcap", "--source", CAMPUS, "-w", back))
    mine = [bytes(data) for _, data in dpkt.pcap.Reader(io.BytesIO(back.read_bytes()))]
    every = [data for _, data in dpkt.pcap.Reader(io.BytesIO(gzip.decompress(CAMPUS.read_bytes())))]
    udp = [i for i, (proto,) in enumerate(parsed(CAMPUS, "proto")) if proto == 17]
    assert mine == [every[i] for i in udp]
    assert len(mine) > 10


def test_first_bytes_are_kept_on_demand(tmp_path: Path) -> None:
    log = tmp_path / "trace.ml"
    ok(run(CAPTURE, "-r", CAMPUS, "-w", log, "-s", "60", "--no-offset"))
    every = [data for _, data in dpkt.pcap.Reader(io.BytesIO(gzip.decompress(CAMPUS.read_bytes())))]
    rows = table(log, "raw", "cap_len")
    assert [raw[: min(60, cap)] for raw, cap in rows] == [data[:60] for data in every]
    with multilog.open(log) as opened:
        assert "file_offset" not in opened.schema


def test_stdin_has_no_offsets_unless_asked(tmp_path: Path) -> None:
    data = gzip.decompress(CAMPUS.read_bytes())
    for name, words, kept in (("a", (), False), ("b", ("--offset",), True)):
        ok(run(CAPTURE, "-r", "-", "-w", tmp_path / name, *words, stdin=data))
        with multilog.open(tmp_path / name) as log:
            assert ("file_offset" in log.schema) is kept
    ok(run(CAPTURE, "-w", tmp_path / "c", stdin=CAMPUS.read_bytes()))
    assert len(table(tmp_path / "c", "ts")) == len(parsed(CAMPUS, "ts"))


def test_expressions_choose_packets(tmp_path: Path, trace: Path) -> None:
    done = run(CAPTURE, "-r", trace, "-w", tmp_path / "log", "dst_port", "==", "54", "--stats")
    want = [row for row in parsed(trace, "ts", "dst_port") if row[1] == 54]
    assert table(tmp_path / "log", "ts", "dst_port") == want
    counts = f"200000 packets received, {len(want)} kept, {200000 - len(want)} filtered, 0 sampled out, 0 truncated, "
    assert done.stderr.decode().startswith(f"confluo-capture: {counts}0 malformed, 0 unreadable, ")
    # a field of the expression need not be among those that are stored
    ok(run(CAPTURE, "-r", trace, "-w", tmp_path / "few", "-f", "ts,src_port", "dst_port == 54"))
    assert table(tmp_path / "few", "ts") == [row[:1] for row in want]
    with multilog.open(tmp_path / "few") as log:
        assert [f.name for f in log.schema.fields] == ["ts", "src_port"]


def test_samples(tmp_path: Path, trace: Path) -> None:
    every = parsed(trace, "ts", "flow_hash")
    ok(run(CAPTURE, "-r", trace, "-w", tmp_path / "flows", "--sample", "1/10"))
    flows = table(tmp_path / "flows", "ts", "flow_hash")
    assert flows == [row for row in every if row[1] < 2**32 // 10]
    assert 0 < len({h for _, h in flows}) < 400
    ok(run(CAPTURE, "-r", trace, "-w", tmp_path / "packets", "--sample-packets", "1/7"))
    assert table(tmp_path / "packets", "ts", "flow_hash") == every[::7]
    done = run(
        CAPTURE,
        "-r",
        trace,
        "-w",
        tmp_path / "both",
        "dst_port == 53",
        "--sample",
        "1/3",
        "--sample-packets",
        "1/5",
        "--stats",
    )
    of_53 = [row for row in parsed(trace, "ts", "flow_hash", "dst_port") if row[2] == 53]
    chosen = [row[:2] for row in of_53 if row[1] < 2**32 // 3][::5]
    assert table(tmp_path / "both", "ts", "flow_hash") == chosen
    kept, filtered = len(chosen), 200_000 - len(of_53)
    assert f"{kept} kept, {filtered} filtered, {len(of_53) - kept} sampled out" in done.stderr.decode()


@pytest.mark.parametrize("n", [0, 1, 1023, 1024, 1025, 70_000, 10**9])
def test_limit(tmp_path: Path, trace: Path, n: int) -> None:
    ok(run(CAPTURE, "-r", trace, "-w", tmp_path / "log", "-c", str(n), "dst_port == 53"))
    want = [row for row in parsed(trace, "ts", "dst_port") if row[1] == 53]
    assert table(tmp_path / "log", "ts", "dst_port") == want[:n]


def test_decap(tmp_path: Path) -> None:
    tunnel = CAMPUS.parent / "tunnel.pcap.gz"
    names = ("src_ip", "dst_port", "tunnel", "vni", "notes")
    for which in ("outer", "inner"):
        ok(run(CAPTURE, "-r", tunnel, "-w", tmp_path / which, "--decap", which))
        assert table(tmp_path / which, *names) == parsed(tunnel, *names, decap=which)
    assert table(tmp_path / "outer", *names) != table(tmp_path / "inner", *names)


def test_append_and_lanes(tmp_path: Path) -> None:
    log = tmp_path / "log"
    ok(run(CAPTURE, "-r", CAMPUS, "-w", log, "--append", "--lanes", "3"))
    again = run(CAPTURE, "-r", CAMPUS, "-w", log)
    assert (again.returncode, again.stderr.decode()) == (2, f"confluo-capture: {log}: exists; --append adds to it\n")
    ok(run(CAPTURE, "-r", CAMPUS, "-w", log, "--append", "-s", "20"))
    rows = table(log, "ts", "raw")
    half = len(rows) // 2
    assert [ts for ts, _ in rows[:half]] == [ts for ts, _ in rows[half:]]
    assert {raw for _, raw in rows[:half]} == {bytes(20)}  # the column came later
    assert bytes(20) not in {raw for _, raw in rows[half:]}
    other = run(CAPTURE, "-r", CAMPUS, "-w", log, "--append", "-s", "30")
    assert other.returncode == 2
    assert b"use -s 20" in other.stderr
    with multilog.open(log) as opened:
        assert opened.control.lanes == 3
        assert len(_history(log)) == 2


def test_append_takes_the_fields_of_the_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    ok(run(CAPTURE, "-r", CAMPUS, "-w", log, "--schema", "header64"))
    ok(run(CAPTURE, "-r", CAMPUS, "-w", log, "--append", "tcp"))
    tcp = [row for row in parsed(CAMPUS, "ts", "proto") if row[1] == 6]
    assert table(log, "ts", "proto") == parsed(CAMPUS, "ts", "proto") + tcp
    multilog.create(tmp_path / "other", Schema("colours", [Field("colour", "u8")])).close()
    done = run(CAPTURE, "-r", CAMPUS, "-w", tmp_path / "other", "--append")
    assert done.returncode == 2
    assert b"other: has no field that a packet can fill" in done.stderr


def test_indexes_are_complete_when_the_capture_is(tmp_path: Path, trace: Path) -> None:
    ok(run(CAPTURE, "-r", trace, "-w", tmp_path / "log", "--index", "src_port,dst_port"))
    with multilog.open(tmp_path / "log") as log:
        found = views.indexes(log)
        assert sorted(v.field for v in found) == ["dst_port", "src_port"]
        for view in found:
            covered, rows, _ = views.coverage(log, view, log.version())
            assert covered == rows == 200_000
    counted = run("confluo-query", tmp_path / "log", "src_port == 7", "--count")
    assert counted.stdout == b"200\n"


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (("-r", "missing.pcap", "-w", "x"), "missing.pcap: No such file or directory"),
        (("-r", ".", "-w", "x"), ".: is a folder, not a capture"),
        (("-r", "text", "-w", "x"), "text: is not a pcap or pcapng capture"),
        (("-r", "good", "-r", "text", "-w", "x"), "text: is not a pcap or pcapng capture"),
        (("-r", "good", "-r", "-", "-r", "-", "-w", "x"), "standard input: can be read only once"),
        (("-r", "good", "-w", "x", "--index", "dst_prt"), "no field 'dst_prt'; did you mean 'dst_port'?"),
        (("-r", "good", "-w", "x", "--sample", "10"), "--sample: '10' is not a share; "),
        (("-r", "good", "-w", "x", "--sample-packets", "1/0"), "--sample-packets: '1/0' is not a share; "),
        (("-r", "good", "-w", "x", "--decap", "middle"), "decap 'middle' is not possible; write outer or inner"),
        (("-r", "good", "-w", "x", "-f", "tss"), "no field 'tss'; did you mean 'ts'?"),
        (("-r", "good", "-o", "tsv", "--index", "ts"), "--index is for a MultiLog; write one with -w LOG"),
        (("-r", "good", "-o", "multilog"), "-o multilog: a MultiLog is a folder; name it with -w LOG"),
        (("-r", "good", "-w", "full"), "full: exists; choose another name"),
        (("-r", "good", "-w", "text/x"), "text/x: "),
        (("-r", "good", "-w", "good"), "good: exists; choose another name"),
        (("-r", "good", "-w", "full", "--append"), "full: exists; choose another name"),
        (("-r", "good", "-w", "x", "--schema", "missing.yaml"), "missing.yaml: cannot be read as a schema"),
        (("-r", "good", "-w", "x", "--schema", "odd.yaml"), "odd.yaml: has no field that a packet can fill"),
        (("-r", "good", "-w", "x", "-s", "70000"), "70000 is not in the range"),
        (("-r", "good", "-w", "x", "prot == 6"), "prot"),
    ],
)
def test_mistakes_are_told_in_a_line_and_leave_nothing(tmp_path: Path, words: tuple[str, ...], what: str) -> None:
    (tmp_path / "text").write_text("hello\n")
    (tmp_path / "good").write_bytes(make.pcap(packets(3)))
    (tmp_path / "odd.yaml").write_text("schema: odd\nfields:\n- {name: colour, type: u8}\n")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    done = run(CAPTURE, *words, cwd=tmp_path)
    assert done.returncode == 2
    assert what in done.stderr.decode()
    assert done.stderr.startswith(b"confluo-capture: ")
    assert done.stdout == b""
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"", "standard input: is empty: it has not even the header of a capture"),
        (b"no capture", "standard input: is not a pcap or pcapng capture"),
    ],
)
def test_wrong_standard_input_leaves_no_log(tmp_path: Path, data: bytes, what: str) -> None:
    done = run(CAPTURE, "-w", tmp_path / "x", stdin=data)
    assert (done.returncode, done.stderr.decode()) == (2, f"confluo-capture: {what}\n")
    assert not (tmp_path / "x").exists()
    closed = shell('confluo-capture -w "$1" <&-', tmp_path / "x")
    assert (closed.returncode, closed.stderr) == (2, b"confluo-capture: standard input: is closed\n")


def test_a_capture_without_packets_is_an_empty_log(tmp_path: Path) -> None:
    (tmp_path / "empty").write_bytes(make.pcap([]))
    ok(run(CAPTURE, "-r", tmp_path / "empty", "-w", tmp_path / "log"))
    assert table(tmp_path / "log", "ts") == []


def test_damaged_captures_are_read_and_told(tmp_path: Path) -> None:
    data = make.pcap(packets(100))
    (tmp_path / "cut").write_bytes(data[:-7])
    done = run(CAPTURE, "-r", "cut", "-w", "log", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr == b"confluo-capture: cut: the last record is cut off; 99 packets before that were read\n"
    assert len(table(tmp_path / "log", "ts")) == 99
    (tmp_path / "odd").write_bytes(make.pcap(packets(3), lengths=[1]))
    ok(
        run(CAPTURE, "-r", "odd", "-w", "log2", cwd=tmp_path),
        "confluo-capture: odd: 1 packet claims more captured bytes than were on the wire\n",
    )


def test_names_with_blanks_and_odd_bytes(tmp_path: Path) -> None:
    name = os.fsencode(tmp_path) + b"/a capture \xff\n.pcap"
    with open(name, "wb") as f:
        f.write(make.pcap(packets(3)))
    ok(run(CAPTURE, "-r", name, "-w", os.fsencode(tmp_path) + b"/log \xfe"))
    gone = run(CAPTURE, "-r", name + b"x", "-w", tmp_path / "log")
    assert gone.returncode == 2
    assert gone.stderr.count(b"\n") <= 2
    assert b"\xff" not in gone.stderr


def test_other_schemas(tmp_path: Path) -> None:
    ok(run(CAPTURE, "-r", CAMPUS, "-w", tmp_path / "log", "--schema", "header64"))
    with multilog.open(tmp_path / "log") as log:
        assert log.schema == builtin("header64")
    names = ("ts", "src_port", "len", "tcp_seq", "flow_hash")
    assert table(tmp_path / "log", *names) == parsed(CAMPUS, *names)
    (tmp_path / "mine.yaml").write_text("schema: mine\nfields:\n- {name: len, type: u16}\n- {name: place, type: u32}\n")
    ok(run(CAPTURE, "-r", CAMPUS, "-w", tmp_path / "mine", "--schema", tmp_path / "mine.yaml", "-s", "4"))
    lengths = [row[:2] for row in table(tmp_path / "mine", "len", "place", "raw")]
    assert lengths == [(n, 0) for (n,) in parsed(CAMPUS, "len")]


def test_streams_and_files_of_any_format(tmp_path: Path) -> None:
    n = len(parsed(CAMPUS, "ts"))
    assert len(lines(run(CAPTURE, "-r", CAMPUS, "-o", "ndjson"))) == n
    assert lines(run(CAPTURE, "-r", CAMPUS, "-T", "-f", "ts,len", "--no-header"))[0].count("\t") == 1
    ok(run(CAPTURE, "-r", CAMPUS, "-w", tmp_path / "x.tsv"))
    assert len((tmp_path / "x.tsv").read_text().splitlines()) == n + 2
    piped = shell('confluo-capture -r "$1" -o stream tcp | confluo-query - --count', CAMPUS)
    assert int(piped.stdout) == sum(1 for (p,) in parsed(CAMPUS, "proto") if p == 6)
    assert b"switch_path" not in run(CAPTURE, "-r", CAMPUS, "-f", "help").stdout


def test_a_part_of_a_capture_is_a_capture(tmp_path: Path) -> None:
    every = [data for _, data in dpkt.pcap.Reader(io.BytesIO(gzip.decompress(CAMPUS.read_bytes())))]
    udp = [every[i] for i, (proto,) in enumerate(parsed(CAMPUS, "proto")) if proto == 17]
    ok(run(CAPTURE, "-r", CAMPUS, "-w", tmp_path / "whole.pcap", "udp"))
    ok(run(CAPTURE, "-r", CAMPUS, "-w", tmp_path / "cut.pcap", "udp", "-s", "50"))
    for name, size in (("whole", 65536), ("cut", 50)):
        packets = dpkt.pcap.Reader(io.BytesIO((tmp_path / f"{name}.pcap").read_bytes()))
        assert [data for _, data in packets] == [data[:size] for data in udp]


def test_a_closed_pipe_ends_it_in_silence(trace: Path) -> None:
    done = shell('confluo-capture -r "$1" -T | head -n 1 >/dev/null; echo ${PIPESTATUS[0]}', trace)
    assert (done.stdout, done.stderr) == (b"141\n", b"")


def test_a_full_device_is_told(trace: Path) -> None:
    done = shell('confluo-capture -r "$1" -T >/dev/full', trace)
    assert done.returncode == 2
    assert done.stderr == b"confluo-capture: standard output: No space left on device\n"


@pytest.mark.root
def test_a_full_disk_keeps_the_rows_before_it(small_disk: Path, trace: Path) -> None:
    log = small_disk / "log"
    done = run(CAPTURE, "-r", trace, "-w", log, "--index", "src_port")
    assert done.returncode == 2
    assert b"the disk is full; the rows before are kept" in done.stderr
    rows = table(log, "ts", "src_port")
    assert 0 < len(rows) < 200_000
    assert rows == parsed(trace, "ts", "src_port")[: len(rows)]
    again = run(CAPTURE, "-r", trace, "-w", log, "--append")
    assert again.returncode == 2
    assert table(log, "ts", "src_port")[: len(rows)] == rows


@pytest.mark.root
def test_a_disk_full_of_old_rows_has_room_for_new_ones(small_disk: Path, tmp_path: Path, trace: Path) -> None:
    """--keep removes them before anything is written, such as the command line in the history of the log."""
    log = small_disk / "log"
    assert run(CAPTURE, "-r", trace, "-w", log, "-f", "ts,len").returncode == 0
    history = log / "multilog.yaml"
    text = history.read_bytes()
    history.write_bytes(text + b"#".ljust(-len(text) % 4096, b"#")[:-1] + b"\n")  # no byte more fits into its blocks
    with suppress(OSError), open(small_disk / "rest", "wb", buffering=0) as rest:
        while True:
            rest.write(bytes(4096))
    (tmp_path / "new.pcap").write_bytes(make.pcap([(10**6 * SECOND, make.udp4(b"x"))] * 100))
    again = (CAPTURE, "-q", "-r", tmp_path / "new.pcap", "-w", log, "--append")
    assert run(*again).returncode == 2
    done = run(*again, "--keep", "1k")
    assert (done.returncode, done.stderr) == (0, b"")
    assert table(log, "ts") == [(10**6 * SECOND,)] * 100


class Live:
    """A capture that reads our pipe."""

    def __init__(self, *words: Any, data: bytes = b"", **more: Any) -> None:
        self.child = popen(
            [BIN / CAPTURE, *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment(),
            **more,
        )
        self.give(data)

    def give(self, data: bytes) -> None:
        assert self.child.stdin is not None
        self.child.stdin.write(data)
        self.child.stdin.flush()

    def end(self, *numbers: int) -> tuple[int, bytes, bytes]:
        for number in numbers:
            self.child.send_signal(number)
        out, err = self.child.communicate(timeout=60)
        return self.child.returncode, out, err


def wait_for(log: Path, rows: int) -> None:
    """Wait until another process can read this number of rows."""
    end = time.monotonic() + 30
    while time.monotonic() < end:
        if multilog.is_log(log):
            with multilog.open(log, readonly=True) as opened:
                if opened.version().rows >= rows:
                    return
        time.sleep(0.01)
    pytest.fail(f"{rows} rows did not appear")


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_signals_end_it_well(tmp_path: Path, number: int, status: int) -> None:
    log = tmp_path / "log"
    live = Live("-w", log, "--index", "dst_port", data=make.pcap(packets(77)))
    wait_for(log, 77)  # rows of a live input are there before it ends
    live.give(make.pcap(packets(3))[24:])
    wait_for(log, 80)
    code, _, err = live.end(number)
    assert code == status
    assert err.startswith(b"confluo-capture: 80 packets received, 80 kept, ")
    assert err.count(b"\n") == 1
    with multilog.open(log) as opened:
        assert all(part.segment.sealed for part in opened.segments())
        (view,) = views.indexes(opened)
        assert views.coverage(opened, view, opened.version())[:2] == (80, 80)


def test_a_signal_sent_twice_is_one(tmp_path: Path) -> None:
    """As timeout(1) does: to its child, then to the group that both are in."""
    log = tmp_path / "log"
    live = Live("-w", log, "--index", "dst_port", data=make.pcap(packets(77)))
    wait_for(log, 77)
    code, _, err = live.end(signal.SIGINT, signal.SIGINT)
    assert code == 130
    assert err.startswith(b"confluo-capture: 77 packets received, 77 kept, ")
    with multilog.open(log) as opened:
        assert all(part.segment.sealed for part in opened.segments())


def test_a_second_signal_ends_it_at_once(tmp_path: Path) -> None:
    """While the first is still being handled: the output is a pipe without a reader that empties it."""
    read, write = os.pipe()
    child = popen([BIN / CAPTURE, "-o", "tsv"], stdin=subprocess.PIPE, stdout=write, env=environment())
    os.close(write)
    assert child.stdin is not None
    child.stdin.write(make.pcap(packets(700)))
    child.stdin.flush()
    assert os.read(read, 100)
    time.sleep(0.3)  # it is now blocked in a write
    child.send_signal(signal.SIGTERM)
    time.sleep(0.2)
    assert child.poll() is None
    time.sleep(1.0)
    child.send_signal(signal.SIGTERM)
    child.stdin.close()
    assert child.wait(10) == -signal.SIGTERM
    os.close(read)


def test_signals_that_ask(tmp_path: Path) -> None:
    log = tmp_path / "log"
    live = Live("-w", log, data=make.pcap(packets(5)))
    wait_for(log, 5)
    live.child.send_signal(signal.SIGUSR2)
    live.child.send_signal(signal.SIGUSR1)
    assert live.child.stderr is not None
    assert live.child.stderr.readline().startswith(b"confluo-capture: 5 packets received, 5 kept, ")
    assert live.child.poll() is None
    assert live.end()[0] == 0  # a closed pipe does not count as a signal


def test_nohup_is_respected(tmp_path: Path) -> None:
    log = tmp_path / "log"
    live = Live("-w", log, data=make.pcap(packets(5)), preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
    wait_for(log, 5)
    live.child.send_signal(signal.SIGHUP)
    live.give(make.pcap(packets(2))[24:])
    wait_for(log, 7)
    assert live.end()[0] == 0


def test_killed_at_once_nothing_published_is_lost(tmp_path: Path) -> None:
    log = tmp_path / "log"
    live = Live("-w", log, data=make.pcap(packets(500)))
    wait_for(log, 500)
    assert live.end(signal.SIGKILL)[0] == -9
    ok(run(CAPTURE, "-w", log, "--append", stdin=make.pcap(packets(3))))
    assert len(table(log, "ts")) == 503


def test_the_first_record_of_a_live_input_does_not_wait(tmp_path: Path) -> None:
    live = Live("-o", "ndjson", data=make.pcap(packets(1)))
    assert live.child.stdout is not None
    assert b'"dst_port":53' in live.child.stdout.readline().replace(b" ", b"")
    assert live.end()[0] == 0


def test_follow_a_growing_file(tmp_path: Path) -> None:
    path, log = tmp_path / "growing.pcap", tmp_path / "log"
    data = make.pcap(packets(40))
    path.write_bytes(data[:1000])
    live = Live("-r", path, "--follow", "-w", log)
    wait_for(log, 10)
    with path.open("ab") as f:
        f.write(data[1000:])
    wait_for(log, 40)
    code, _, err = live.end(signal.SIGINT)
    assert code == 130
    assert b"40 packets received" in err
    assert table(log, "ts") == [(ts,) for ts, _ in packets(40)]


def test_what_can_be_read_again_is_not_forced_to_the_disk(tmp_path: Path) -> None:
    data = gzip.decompress(CAMPUS.read_bytes())
    ok(run(CAPTURE, "-r", CAMPUS, "-w", tmp_path / "a"))
    ok(run(CAPTURE, "-r", "-", "-w", tmp_path / "b", stdin=data))
    ok(run(CAPTURE, "-r", CAMPUS, "-w", tmp_path / "c", "--sync", "batch"))
    ok(run(CAPTURE, "-r", CAMPUS, "-w", tmp_path / "d", env=environment(CONFLUO_SYNC="seal")))
    assert [multilog.open(tmp_path / name).sync for name in "abcd"] == ["none", "seal", "batch", "seal"]


def test_several_writers_at_once(tmp_path: Path) -> None:
    log = tmp_path / "log"
    ok(run(CAPTURE, "-r", CAMPUS, "-w", log, "-c", "0"))
    writers = [popen([BIN / CAPTURE, "-r", CAMPUS, "-w", log, "--append"], env=environment()) for _ in "123"]
    assert [w.wait(60) for w in writers] == [0, 0, 0]
    rows = table(log, "ts", "len")
    assert sorted(rows) == sorted(parsed(CAMPUS, "ts", "len") * 3)


def test_progress_is_for_terminals_only(trace: Path, tmp_path: Path) -> None:
    """A pipe that pauses for longer than the progress line waits."""
    with subprocess.Popen(["sh", "-c", 'cat "$0"; sleep 0.8; tail -c +25 "$0"', trace], stdout=subprocess.PIPE) as slow:
        status, seen = on_terminal(CAPTURE, "-w", tmp_path / "a", stdin=slow.stdout)
    assert status == 0
    assert re.search(r"\rreading: [\d.]+ M B, .*B/s\x1b\[K", seen)
    assert "\r\x1b[K" in seen  # and erased
    with subprocess.Popen(["sh", "-c", 'cat "$0"; sleep 0.8', trace], stdout=subprocess.PIPE) as slow:
        assert slow.stdout is not None
        ok(run(CAPTURE, "-w", tmp_path / "b", stdin=slow.stdout.fileno()))


def test_a_terminal_gets_a_table() -> None:
    status, shown = on_terminal(CAPTURE, "-r", CAMPUS, "-c", "2", "-f", "ts,src_ip,dst_ip")
    assert status == 0
    assert max(len(re.sub(r"\x1b\[[\d;]*m", "", line)) for line in shown.splitlines()) < 80
    assert "src_ip" in shown


def test_bare_on_a_terminal_it_says_how() -> None:
    status, text = on_terminal(CAPTURE)
    assert status == 2
    assert "usage" in text.lower()


def test_keep_holds_when_a_capture_ends(tmp_path: Path) -> None:
    """A file is read in less time than passes between two looks at the log.  The newest segment stays in any case."""
    log = tmp_path / "t.ml"
    rows = []
    for day, keep in ((1, "1h"), (2, "1h"), (3, "1B"), (3, "1B")):
        given = [(day * 86400 * SECOND, make.udp4(b"x"))] * 100 * day
        (tmp_path / "x.pcap").write_bytes(make.pcap(given))
        done = run("confluo-capture", "-q", "-r", tmp_path / "x.pcap", "-w", log, "--append", "--keep", keep)
        assert (done.returncode, done.stderr) == (0, b"")
        rows.append(run("confluo-query", log, "--count").stdout)
    assert rows == [b"100\n", b"200\n", b"300\n", b"300\n"]
