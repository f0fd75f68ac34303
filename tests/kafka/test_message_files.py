"""Messages in files, pipes and sockets: whole, checked, and nothing waits for ever."""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import stat
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path

import pyarrow as pa
import pytest

from confluo_tools.kafka.message import split
from running import BIN, CAMPUS, environment, lines, listens, popen, run

PACKETS = 5735
PATIENCE = 60.0  # s
FIELDS = "ts,src_ip,dst_ip,src_port,dst_port,tcp_seq,flow_hash"


def published(*words: object) -> subprocess.CompletedProcess[bytes]:
    return run("confluo-stream", "publish", *(str(word) for word in words))


@contextmanager
def started(*words: object, **more: int) -> Iterator[subprocess.Popen[bytes]]:
    with popen([BIN / str(words[0]), *map(str, words[1:])], env=environment(), **more) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    """The messages of all packets of a capture."""
    path = tmp_path_factory.mktemp("messages") / "all.messages"
    assert published(CAMPUS, "--to", path, "--size", "16Ki").returncode == 0
    return list(split(BytesIO(path.read_bytes()).read))


def test_a_file_of_messages_has_all_rows(parts: list[bytes], tmp_path: Path) -> None:
    path = tmp_path / "all.messages"
    path.write_bytes(b"".join(parts))
    assert lines(run("confluo-query", path, "-T", "-f", FIELDS)) == lines(
        run("confluo-query", CAMPUS, "-T", "-f", FIELDS)
    )
    assert sum(pa.ipc.open_stream(part).read_all().num_rows for part in parts) == PACKETS
    # with a line feed after each, as kcat writes them
    path.write_bytes(b"".join(part + b"\n" for part in parts))
    assert run("confluo-query", path, "--count").stdout == b"%d\n" % PACKETS
    # as standard input, and compressed
    packed = subprocess.run(["gzip", "-c", path], capture_output=True, check=True).stdout
    assert run("confluo-query", "-", "--count", stdin=packed).stdout == b"%d\n" % PACKETS
    assert len(lines(run("confluo-stream", "unpack", stdin=packed))) == PACKETS


INTERRUPTED = "ends in the middle of a message: its writer was interrupted"


@pytest.mark.parametrize(
    ("pick", "lost", "what"),
    [
        (lambda m: [*m[:3], *m[5:]], [3, 4], "messages that are missing: 2"),
        (lambda m: [*m, m[4]], [], "messages that came twice, and were skipped: 1"),
        (lambda m: [*m[:-1], m[-1][:-7]], [-1], INTERRUPTED),
        (lambda m: [*m[:-1], m[-1][:5]], [-1], INTERRUPTED),
        (
            lambda m: [*m[:2], m[2][:-20] + b"U" + m[2][-19:], *m[3:]],
            [2],
            "message 2 is damaged: its checksum is wrong",
        ),
    ],
    ids=["gap", "twice", "cut", "cut head", "damage"],
)
def test_what_is_wrong_with_a_file_is_reported(
    parts: list[bytes], pick: Callable[[list[bytes]], list[bytes]], lost: list[int], what: str, tmp_path: Path
) -> None:
    path = tmp_path / "x.messages"
    path.write_bytes(b"".join(pick(parts)))
    done = run("confluo-query", path, "--count")
    assert (done.returncode, what in done.stderr.decode()) == (2, True)
    sizes = [pa.ipc.open_stream(part).read_all().num_rows for part in parts]
    assert int(done.stdout) == PACKETS - sum(sizes[i] for i in lost)
    done = run("confluo-stream", "unpack", path)
    assert (done.returncode, what.replace(", and were skipped", "") in done.stderr.decode()) == (2, True)


def test_other_bytes_after_messages_are_an_error(parts: list[bytes], tmp_path: Path) -> None:
    path = tmp_path / "x.messages"
    path.write_bytes(b"".join([*parts[:2], b"hello, world"]))
    for done in (run("confluo-query", path, "--count"), run("confluo-stream", "unpack", path)):
        assert (done.returncode, b"message 2 is not an Arrow stream" in done.stderr) == (2, True)


def test_standard_output_and_devices(tmp_path: Path) -> None:
    done = published(CAMPUS, "--to", "-", "--stats")
    assert b"5735 records sent, 5735 delivered" in done.stderr
    assert run("confluo-query", "-", "--count", stdin=done.stdout).stdout == b"%d\n" % PACKETS
    full = published(CAMPUS, "--to", "/dev/full")
    assert (full.returncode, full.stderr) == (2, b"confluo-stream publish: /dev/full: No space left on device\n")


@pytest.mark.parametrize(
    ("to", "what"),
    [
        ("there.messages", b"exists; remove it, or write another one"),
        ("no/such.messages", b"No such file or directory"),
        ("trace.ml", b"is not a place for records; write kafka://"),
        ("unix:", b"is not the address of a Unix socket"),
        ("unix:" + "x" * 120, b"is not the address of a Unix socket"),
    ],
)
def test_a_place_that_cannot_be(to: str, what: bytes, tmp_path: Path) -> None:
    (tmp_path / "there.messages").write_bytes(b"")
    done = run("confluo-stream", "publish", CAMPUS, "--to", to, cwd=tmp_path)
    assert done.returncode == 2
    assert what in done.stderr
    assert done.stderr.count(b"\n") == 1


def test_options_of_kafka_are_for_kafka() -> None:
    for words in (["--codec", "lz4"], ["--create", "3"], ["-X", "acks=1"]):
        done = published(CAMPUS, "--to", "-", *words)
        assert (done.returncode, f"{words[0]} is for Kafka".encode() in done.stderr) == (2, True)


def test_a_full_disk_leaves_whole_messages(tmp_path: Path) -> None:
    """A limit on the size of files is a disk that fills up."""
    path = tmp_path / "x.messages"
    command = f"ulimit -f 200; trap '' XFSZ; exec {BIN}/confluo-stream publish {CAMPUS} --to {path} --size 16Ki"
    done = subprocess.run(
        ["bash", "-c", command], env=environment(), capture_output=True, timeout=PATIENCE, check=False
    )
    assert (done.returncode, b"File too large" in done.stderr) == (2, True)
    count = run("confluo-query", path, "--count")
    assert (count.stderr, 0 < int(count.stdout) < PACKETS) == (b"", True)


def test_a_signal_ends_a_writer_that_waits_for_a_pipe() -> None:
    """The pipe is full, and nobody reads it."""
    read, write = os.pipe()
    fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, 4096)
    with started(
        "confluo-stream", "publish", CAMPUS, "--to", "-", "--size", "16Ki", stdout=write, stderr=subprocess.PIPE
    ) as process:
        os.close(write)
        assert process.stderr is not None
        listens(process, signal.SIGTERM)
        end = time.monotonic() + PATIENCE
        while not _is_full(read):
            assert time.monotonic() < end
            time.sleep(0.01)
        process.send_signal(signal.SIGUSR1)
        assert b"records sent" in process.stderr.readline()
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGUSR1)
        assert b"records sent" in process.stderr.readline()
        with open(read, "rb") as pipe:
            assert 0 < len(pipe.read()) < 300_000
        process.stderr.read()
        assert process.wait(PATIENCE) in (128 + signal.SIGTERM, 2)  # 2: what waited was lost


def _is_full(fd: int) -> bool:
    import array
    import termios

    n = array.array("i", [0])
    fcntl.ioctl(fd, termios.FIONREAD, n)
    return n[0] >= 4096


def test_a_neighbour_may_come_later_and_again(tmp_path: Path) -> None:
    """A program that listens takes some bytes and leaves; the next one gets whole messages, from that one on."""
    path = tmp_path / "door"
    words = ["confluo-stream", "publish", CAMPUS, "--to", f"unix:{path}", "--size", "16Ki", "-v"]
    with started(*words, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        assert b"no program listens" in process.stderr.readline()
        with listener(path) as door:
            first, _ = door.accept()
            first.recv(1000, socket.MSG_WAITALL)
            first.close()
            with door.accept()[0] as second, second.makefile("rb") as stream:
                parts = list(split(stream.read))
        assert process.wait(PATIENCE) == 0
    numbers = [_seq(part) for part in parts]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    assert numbers[-1] == max(numbers) > 0


def listener(path: Path) -> socket.socket:
    door = socket.socket(socket.AF_UNIX)
    door.settimeout(PATIENCE)
    door.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    door.bind(str(path))
    door.listen()
    return door


def _seq(part: bytes) -> int:
    from confluo_tools.kafka.message import MessageReader

    return MessageReader().read(part)[2].seq


def test_an_input_that_listens_is_private_and_takes_any_format(tmp_path: Path) -> None:
    path = tmp_path / "door"
    ndjson = run("confluo-query", CAMPUS, "udp", "-J", "-f", FIELDS).stdout
    with started("confluo-query", f"unix:{path}", "--count", stdout=subprocess.PIPE) as process:
        with arrived(path) as neighbour:
            neighbour.sendall(ndjson)
        assert process.stdout is not None
        assert int(process.stdout.read()) == ndjson.count(b"\n")
    assert not path.exists()


def arrived(path: Path) -> socket.socket:
    """A connection to a program that starts to listen."""
    end = time.monotonic() + PATIENCE
    while True:
        neighbour = socket.socket(socket.AF_UNIX)
        try:
            neighbour.connect(str(path))
            return neighbour
        except OSError:
            neighbour.close()
            assert time.monotonic() < end
            time.sleep(0.01)


def test_two_programs_do_not_listen_at_one_place(tmp_path: Path) -> None:
    path = tmp_path / "door"
    listener(path).close()  # it left its socket behind: that is replaced
    with (
        open(tmp_path / "rows", "wb") as out,
        started("confluo-stream", "unpack", f"unix:{path}", stdout=out.fileno()) as process,
    ):
        end = time.monotonic() + PATIENCE
        while not path.exists() or stat.S_IMODE(path.stat().st_mode) != 0o600:
            assert time.monotonic() < end
            time.sleep(0.01)
        done = run("confluo-query", f"unix:{path}", "--count")
        assert b"a program listens there" in done.stderr
        assert published(CAMPUS, "--to", f"unix:{path}").returncode == 0
        assert process.wait(PATIENCE) == 0
    assert (tmp_path / "rows").read_bytes().count(b"\n") == PACKETS


@pytest.mark.parametrize(("match", "status"), [("len > 100000", 1), ("len > 100", 0)])
def test_the_status_says_whether_records_were_sent(tmp_path: Path, match: str, status: int) -> None:
    """With flows as without: what no flow takes is not sent."""
    (tmp_path / "flows.yaml").write_text(f'flows: [{{name: a, match: "{match}"}}]')
    for i, words in enumerate(([str(CAMPUS), match], [str(CAMPUS), "--flows", str(tmp_path / "flows.yaml")])):
        done = run("confluo-stream", "publish", *words, "--to", str(tmp_path / f"{i}.messages"))
        assert done.returncode == status, done.stderr


def test_unpack_follows_the_setting_of_the_format(tmp_path: Path) -> None:
    published(CAMPUS, "--to", tmp_path / "x.messages")
    words = "confluo-stream", "unpack", str(tmp_path / "x.messages")
    csv = run(*words, env=environment() | {"CONFLUO_FORMAT": "csv"})
    assert csv.stdout == run(*words, "-o", "csv").stdout
    assert csv.stdout != run(*words).stdout == run(*words, "-J").stdout
