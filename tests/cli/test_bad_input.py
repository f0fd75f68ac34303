"""What is wrong with an input is said in one line, with the right exit status, and nothing is lost."""

from __future__ import annotations

import contextlib
import os
import shutil
import struct
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from confluo_tools import multilog, schema
from confluo_tools.core.block.block import Block
from confluo_tools.core.multilog.control import crc
from confluo_tools.errors import StoreError
from running import completed

DISK = "3m"  # of small_disk
CLAIMED = 2048  # docs/format.md: the only mutable word of the control page
CHECK = 2044
LANES = 40


def run(
    bin_dir: Path, *words: str | bytes | Path, stdin: bytes = b"", timeout: float = 60
) -> subprocess.CompletedProcess[bytes]:
    """Run a command; it may print no traceback and must end by itself."""
    command = [os.fsencode(bin_dir / os.fsdecode(os.fsencode(words[0]))), *(os.fsencode(w) for w in words[1:])]
    done = completed(command, input=stdin, capture_output=True, timeout=timeout)
    assert b"Traceback" not in done.stderr, done.stderr.decode()
    assert done.returncode >= 0, f"killed by signal {-done.returncode}"
    return done


def one_line(done: subprocess.CompletedProcess[bytes], status: int, *words: str) -> str:
    """The only line on stderr, which has all the words; nothing went to stdout."""
    text = done.stderr.decode(errors="surrogateescape")
    assert done.returncode == status, (done.returncode, text)
    assert text.count("\n") == 1, text
    for word in words:
        assert word in text
    return text


def pcap(packets: Sequence[tuple[int, int, int, bytes]], magic: int = 0xA1B2C3D4, link: int = 101) -> bytes:
    """A little-endian capture of (seconds, fraction, wire length, bytes); raw IP by default."""
    records = [struct.pack("<IIII", seconds, part, len(data), wire) + data for seconds, part, wire, data in packets]
    return struct.pack("<IHHiIII", magic, 2, 4, 0, 0, 262144, link) + b"".join(records)


def udp(source: int = 1, port: int = 53, payload: int = 0) -> bytes:
    total = 28 + payload
    return (
        struct.pack(">BBHHHBBHII", 0x45, 0, total, 1, 0, 64, 17, 0, 0x0A000000 + source, 0x0A0000FE)
        + struct.pack(">HHHH", 1024 + source % 60000, port, 8 + payload, 0)
        + bytes(payload)
    )


@pytest.fixture
def capture(tmp_path: Path) -> Path:
    """A hundred UDP packets, one a second."""
    path = tmp_path / "in.pcap"
    path.write_bytes(pcap([(1_700_000_000 + i, i, 28, udp(i)) for i in range(100)]))
    return path


@pytest.fixture
def log(tmp_path: Path, bin_dir: Path, capture: Path) -> Path:
    path = tmp_path / "x.ml"
    done = run(bin_dir, "confluo-capture", "-r", capture, "-w", path)
    assert done.returncode == 0, done.stderr
    return path


def count(bin_dir: Path, path: Path, *more: str) -> int:
    done = run(bin_dir, "confluo-query", path, *more, "--count")
    assert done.returncode in (0, 1), done.stderr
    return int(done.stdout)


# ---- not what it should be --------------------------------------------------------------------------------------


def test_not_a_multilog(tmp_path: Path, bin_dir: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "junk").write_bytes(bytes(range(256)) * 10)
    for name in ("folder", "junk", "absent"):
        one_line(run(bin_dir, "confluo-query", tmp_path / name, "tcp", "--count"), 2, "confluo-query: ", name)
        one_line(run(bin_dir, "confluo-info", tmp_path / name), 2, "confluo-info: ", name)
    for name in ("folder", "absent"):
        one_line(run(bin_dir, "confluo-index", tmp_path / name, "add", "dst_port"), 2, "confluo-index: ", name)


def test_a_missing_field_is_named_with_its_neighbour(bin_dir: Path, log: Path) -> None:
    for option, text in ((), "dst_prt == 80"), (("--agg",), "sum(dst_prt)"):
        done = run(bin_dir, "confluo-query", log, *option, text)
        first, shown, caret = done.stderr.decode().splitlines()
        assert (done.returncode, "dst_prt" in first, "dst_port" in first) == (2, True, True)
        assert shown.strip() == text
        assert caret.index("^") - shown.index(text) == text.index("dst_prt")
    one_line(run(bin_dir, "confluo-query", log, "-f", "ts,dst_prt"), 2, "dst_prt", "dst_port")
    one_line(run(bin_dir, "confluo-index", log, "add", "dst_prt"), 2, "dst_prt", "dst_port")


def test_appending_packets_to_a_log_of_another_schema(tmp_path: Path, bin_dir: Path, capture: Path) -> None:
    probes = schema.Schema("probe", [schema.Field("at", "time"), schema.Field("rtt", "duration")])
    packets = schema.Schema("packet", [schema.Field("ts", "time"), schema.Field("src_port", "mac")])
    for name, kind in (("probe.ml", probes), ("odd.ml", packets)):
        with multilog.create(tmp_path / name, kind):
            pass
        one_line(run(bin_dir, "confluo-capture", "-r", capture, "-w", tmp_path / name, "--append"), 2, name, "field")
        assert multilog.open(tmp_path / name).version().rows == 0


def test_an_existing_log_is_not_overwritten(bin_dir: Path, log: Path, capture: Path) -> None:
    one_line(run(bin_dir, "confluo-capture", "-r", capture, "-w", log), 2, "x.ml", "--append")
    assert count(bin_dir, log) == 100


def test_a_block_of_another_schema_is_refused(log: Path) -> None:
    with multilog.open(log) as opened, opened.writer() as writer, pytest.raises((StoreError, ValueError)):
        writer.append(Block.wrap(schema.builtin("header64").layout, 0, [None] * 22))


# ---- damaged logs ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, 7, 8, 100, 2047, 2048, 4095, 4096, 4097, 8000])
def test_a_truncated_control_page(bin_dir: Path, log: Path, size: int) -> None:
    os.truncate(log / "control", size)
    one_line(run(bin_dir, "confluo-query", log, "--count"), 2, "x.ml")
    one_line(run(bin_dir, "confluo-info", log), 2, "x.ml")


def rewrite(control: Path, offset: int, value: int, size: int = 4) -> None:
    """Change a number of the control page and make its checksum right again."""
    data = bytearray(control.read_bytes())
    data[offset : offset + size] = value.to_bytes(size, "little")
    data[CHECK : CHECK + 4] = crc(bytes(data[:CHECK])).to_bytes(4, "little")
    control.write_bytes(data)


@pytest.mark.parametrize("offset", range(0, 100, 4))
@pytest.mark.parametrize("value", [1_000_000, 0xFFFFFFFF, 0])
def test_a_hostile_control_page(bin_dir: Path, log: Path, offset: int, value: int) -> None:
    """Any number of the header may be a lie with a right checksum: an error or a right answer, never a crash."""
    rewrite(log / "control", offset, value)
    with contextlib.suppress(StoreError), multilog.open(log, readonly=True) as opened:
        assert opened.version().rows <= 100
        assert sum(block.rows for block in opened.blocks()) <= 100
    if offset == LANES and value:
        one_line(run(bin_dir, "confluo-query", log, "--count"), 2, "x.ml")


@pytest.mark.parametrize("claimed", [1_000_000, 257, 0xFFFFFFFF])
def test_lanes_that_nobody_made(bin_dir: Path, log: Path, claimed: int) -> None:
    data = bytearray((log / "control").read_bytes())
    data[CLAIMED : CLAIMED + 4] = claimed.to_bytes(4, "little")
    (log / "control").write_bytes(data)
    done = run(bin_dir, "confluo-query", log, "--count", timeout=10)
    assert done.returncode in (0, 2)
    if done.returncode == 0:
        assert int(done.stdout) == 100


def test_a_flipped_byte_of_the_header_is_noticed(log: Path) -> None:
    data = (log / "control").read_bytes()
    for at in (0, 8, 16, 40, 60, 100, 1000):
        (log / "control").write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        with pytest.raises(StoreError, match=r"x\.ml"):
            multilog.open(log)


def three_segments(path: Path, segments: int = 3) -> Path:
    """A log of three (or more) segments of 65,536 rows; `len` is the row number."""
    layout = schema.builtin("header64").layout
    with multilog.create(path, schema.builtin("header64"), segment_blocks=1) as made, made.writer() as writer:
        for k in range(segments):
            numbers = struct.pack("<65536I", *range(k * 65536, (k + 1) * 65536))
            writer.append(Block.wrap(layout, 65536, [numbers if n == "len" else None for n in layout.names]))
    return path


def segments(path: Path) -> list[Path]:
    return sorted((path / "lane-000").glob("seg-*.arrow"))


def test_a_missing_segment_is_said_and_the_rest_is_read(tmp_path: Path, bin_dir: Path) -> None:
    path = three_segments(tmp_path / "x.ml")
    segments(path)[1].unlink()
    done = run(bin_dir, "confluo-query", path, "len >= 0", "--count")
    assert done.returncode == 2
    assert int(done.stdout) == 2 * 65536
    assert b"65536" in done.stderr
    assert run(bin_dir, "confluo-info", path, "--verify").returncode == 2


def test_a_segment_of_another_log_is_not_read(tmp_path: Path, bin_dir: Path) -> None:
    path, other = three_segments(tmp_path / "x.ml"), three_segments(tmp_path / "other.ml")
    shutil.copy(segments(other)[1], segments(path)[1])
    done = run(bin_dir, "confluo-query", path, "len >= 0", "--count")
    assert done.returncode == 2
    assert int(done.stdout) == 2 * 65536
    assert segments(path)[1].name.encode() in done.stderr


@pytest.mark.parametrize("keep", [0.0, 0.3, 0.999])
def test_a_truncated_segment_is_not_read(tmp_path: Path, bin_dir: Path, keep: float) -> None:
    path = three_segments(tmp_path / "x.ml")
    last = segments(path)[2]
    os.truncate(last, int(last.stat().st_size * keep))
    done = run(bin_dir, "confluo-query", path, "len >= 0", "--count")
    assert done.returncode == 2
    assert 2 * 65536 <= int(done.stdout) <= 3 * 65536
    assert last.name.encode() in done.stderr
    assert run(bin_dir, "confluo-info", path, "--verify").returncode == 2


def test_a_flipped_bit_is_never_silently_wrong(tmp_path: Path, bin_dir: Path) -> None:
    path = three_segments(tmp_path / "x.ml")
    victim = segments(path)[1]
    data = bytearray(victim.read_bytes())
    at = data.find(struct.pack("<4I", 65536 + 5000, 65536 + 5001, 65536 + 5002, 65536 + 5003))
    assert at > 0
    data[at] ^= 4
    victim.write_bytes(data)
    done = run(bin_dir, "confluo-query", path, "len >= 70000", "--count")
    assert done.returncode == 2
    assert int(done.stdout) == 65536
    assert victim.name.encode() in done.stderr
    verify = run(bin_dir, "confluo-info", path, "--verify")
    assert verify.returncode == 2
    assert victim.name.encode() in verify.stdout + verify.stderr
    assert b"len" in verify.stdout + verify.stderr


# ---- no room, no right -------------------------------------------------------------------------------------------


@pytest.mark.root
def test_a_full_disk_keeps_the_rows_before_it(tmp_path: Path, bin_dir: Path, small_disk: Path) -> None:
    capture, whole = tmp_path / "big.pcap", 200_000
    capture.write_bytes(pcap([(1_700_000_000, i % 1_000_000, 28, udp(i)) for i in range(whole)]))
    one_line(run(bin_dir, "confluo-capture", "-q", "-r", capture, "-w", small_disk / "x.ml"), 2, "x.ml", "disk is full")
    kept = count(bin_dir, small_disk / "x.ml")
    assert 0 <= kept < whole
    rows = run(bin_dir, "confluo-query", small_disk / "x.ml", "-f", "src_port", "-o", "tsv").stdout.splitlines()
    assert [int(r) for r in rows if not r.startswith(b"#")] == [1024 + i % 60000 for i in range(kept)]


@pytest.mark.root
def test_a_read_only_folder(tmp_path: Path, bin_dir: Path, log: Path, capture: Path, small_disk: Path) -> None:
    """Reading needs no right to write; writing says what it lacks."""
    shutil.copytree(log, small_disk / "x.ml")
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    assert count(bin_dir, small_disk / "x.ml") == 100
    assert run(bin_dir, "confluo-info", small_disk / "x.ml").returncode == 0
    one_line(run(bin_dir, "confluo-capture", "-q", "-r", capture, "-w", small_disk / "x.ml", "--append"), 2, "x.ml")
    one_line(run(bin_dir, "confluo-capture", "-q", "-r", capture, "-w", small_disk / "new.ml"), 2, "new.ml")
    one_line(run(bin_dir, "confluo-index", small_disk / "x.ml", "add", "dst_port"), 2, "x.ml")


# ---- names, times, lengths ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [b"with space.ml", b"caf\xe9.ml", b"-x.ml", b"a'b\"c.ml", "snow\u2603.ml".encode()])
def test_odd_names(tmp_path: Path, bin_dir: Path, capture: Path, name: bytes) -> None:
    path = os.fsencode(tmp_path) + b"/" + name
    done = run(bin_dir, "confluo-capture", "-r", capture, "-w", path, "--index", "dst_port")
    assert done.returncode == 0, done.stderr
    assert run(bin_dir, "confluo-query", path, "dst_port == 53", "--count").stdout.strip() == b"100"
    assert run(bin_dir, "confluo-info", path).returncode == 0
    missing = run(bin_dir, "confluo-query", path + b"x", "--count")
    one_line(missing, 2)
    assert name.decode("utf-8", "backslashreplace").encode() in missing.stderr


def test_times_beyond_32_bits_of_seconds(tmp_path: Path, bin_dir: Path) -> None:
    """pcapng counts in 64 bits: the year 2242 is a time like any other."""
    section = struct.pack("<IIIHHqI", 0x0A0D0D0A, 28, 0x1A2B3C4D, 1, 0, -1, 28)
    interface = struct.pack("<IIHHII", 1, 20, 101, 0, 0, 20)
    us = (1 << 33) * 1_000_000 + 7
    data = udp()
    body = struct.pack("<IIIII", 0, us >> 32, us & 0xFFFFFFFF, len(data), len(data)) + data
    packet = struct.pack("<II", 6, len(body) + 12) + body + struct.pack("<I", len(body) + 12)
    path = tmp_path / "far.pcapng"
    path.write_bytes(section + interface + packet)
    done = run(bin_dir, "confluo-query", path, "-f", "ts", "-o", "tsv")
    assert done.stdout.splitlines()[-1] == b"2242-03-16T12:56:32.000007000Z"
    assert count(bin_dir, path, "ts > 2200-01-01") == 1


def test_more_captured_than_was_on_the_wire(tmp_path: Path, bin_dir: Path) -> None:
    path = tmp_path / "long.pcap"
    path.write_bytes(pcap([(1, 0, 20, udp()), (2, 0, 28, udp())]))
    done = run(bin_dir, "confluo-query", path, "-f", "len,cap_len", "-o", "tsv")
    assert done.stdout.splitlines()[-2:] == [b"20\t28", b"28\t28"]
    assert b"1 packet" in done.stderr


def test_a_clock_that_goes_backwards(tmp_path: Path, bin_dir: Path) -> None:
    path = tmp_path / "back.pcap"
    path.write_bytes(pcap([(t, 0, 28, udp()) for t in (100, 50, 75, 200)]))
    assert run(bin_dir, "confluo-capture", "-q", "-r", path, "-w", tmp_path / "b.ml").returncode == 0
    rows = run(bin_dir, "confluo-query", tmp_path / "b.ml", "-f", "ts", "-o", "tsv").stdout.splitlines()
    assert [r for r in rows if not r.startswith(b"#")] == [
        b"1970-01-01T00:00:50.000000000Z",
        b"1970-01-01T00:01:15.000000000Z",
        b"1970-01-01T00:01:40.000000000Z",
        b"1970-01-01T00:03:20.000000000Z",
    ]
    assert count(bin_dir, tmp_path / "b.ml", "--since", "@60", "--until", "@150") == 2


def test_no_packets_at_all(tmp_path: Path, bin_dir: Path) -> None:
    path, made = tmp_path / "none.pcap", tmp_path / "n.ml"
    path.write_bytes(pcap([]))
    assert run(bin_dir, "confluo-capture", "-q", "-r", path, "-w", made, "--index", "dst_port").returncode in (0, 1)
    done = run(bin_dir, "confluo-query", made, "--count")
    assert (done.returncode, done.stdout.strip()) == (1, b"0")
    assert run(bin_dir, "confluo-query", made, "tcp", "--agg", "count, avg(len)", "-o", "ndjson").returncode in (0, 1)
    assert run(bin_dir, "confluo-info", made, "--verify").returncode == 0
    used = sum(p.stat().st_blocks * 512 for p in made.rglob("*"))
    assert used <= 200_000


@pytest.mark.parametrize("cut", [1, 10, 23, 24, 30, 39, 41, 60, -1])
def test_a_capture_cut_short_gives_what_is_whole(tmp_path: Path, bin_dir: Path, capture: Path, cut: int) -> None:
    path = tmp_path / "cut.pcap"
    path.write_bytes(capture.read_bytes()[:cut])
    whole = max(0, len(path.read_bytes()) - 24) // (16 + 28)
    done = run(bin_dir, "confluo-query", path, "--count")
    if cut in (24,):
        assert (done.returncode, int(done.stdout)) == (1, 0)
    elif 0 < cut < 24:
        one_line(done, 2, "cut.pcap")
    else:
        assert done.returncode == 2
        assert int(done.stdout) == whole
        assert b"cut.pcap" in done.stderr


def test_an_absurd_record_length_needs_no_memory(tmp_path: Path, bin_dir: Path) -> None:
    path = tmp_path / "absurd.pcap"
    path.write_bytes(pcap([(1, 0, 28, udp())]) + struct.pack("<IIII", 2, 0, 0xFFFFFFF0, 0xFFFFFFF0) + bytes(64))
    done = run(bin_dir, "confluo-query", path, "--count")
    assert done.returncode == 2
    assert int(done.stdout) == 1


def test_a_damaged_index_changes_neither_answer_nor_status(bin_dir: Path, log: Path) -> None:
    """Views are derived data: a damaged one is reported, and its rows are scanned."""
    assert run(bin_dir, "confluo-index", log, "add", "src_port").returncode == 0
    (file,) = log.glob("views/index-src_port/**/*.idx")
    data = bytearray(file.read_bytes())
    data[len(data) // 2 :] = bytes(b ^ 0xFF for b in data[len(data) // 2 :])
    file.write_bytes(data)
    done = run(bin_dir, "confluo-query", log, "src_port == 1030", "--count")
    assert (done.returncode, done.stdout.strip()) == (0, b"1")
    assert b"rebuild src_port" in done.stderr


def test_many_damaged_indexes_are_told_in_few_lines(tmp_path: Path, bin_dir: Path) -> None:
    path = three_segments(tmp_path / "x.ml", segments=7)
    assert run(bin_dir, "confluo-index", path, "add", "len").returncode == 0
    files = list(path.glob("views/index-len/**/*.idx"))
    assert len(files) == 7
    for file in files:
        file.write_bytes(bytes(file.stat().st_size))
    done = run(bin_dir, "confluo-query", path, "len in {5, 70000}", "--count")
    assert (done.returncode, done.stdout.strip()) == (0, b"2")
    *named, rest = done.stderr.decode().splitlines()
    assert len(named) == 5
    assert all("index-len" in line for line in named)
    assert "7 damaged parts of indexes are not used; confluo-index check" in rest
