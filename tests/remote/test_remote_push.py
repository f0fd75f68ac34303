"""What a question to another host costs: round trips, bytes, and shells that start before the command has loaded."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from confluo_tools.commands import serve
from confluo_tools.errors import UsageError
from confluo_tools.remote import frame_codec, ssh_process
from confluo_tools.remote.request import MAX_FLOWS, QueryRequest
from frames_lab import HELLO, query
from remote_lab import env, shell
from running import BIN, CAMPUS, DATA, lines, run

# Starts the server only when a whole question has come, so that whatever the client waits for first never comes.
RELAY = """
import os, subprocess, sys, threading
name = f"{sys.argv[1]}/{os.getpid()}"
words = sys.argv[3:]
def whole(data):
    line, _, rest = data.partition(b"\\n")
    return len(rest) >= 8 and len(rest) >= 8 + int.from_bytes(rest[:4], "little")
data = b""
while not whole(data):
    piece = os.read(0, 65536)
    if not piece:
        sys.exit(0)
    data += piece
child = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
child.stdin.write(data)
heard, said = open(name + ".heard", "wb", buffering=0), open(name + ".said", "wb", buffering=0)
heard.write(data)
def up():
    while piece := os.read(0, 65536):
        heard.write(piece)
        child.stdin.write(piece)
    child.stdin.close()
threading.Thread(target=up, daemon=True).start()
try:
    while piece := child.stdout.read(65536):
        said.write(piece)
        os.write(1, piece)
except OSError:
    pass
"""


class Relay:
    """A remote shell that writes down what both ends say."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "relay.py").write_text(RELAY)
        self.env = {**env(folder), "CONFLUO_RSH": f"{sys.executable} {folder}/relay.py {folder}"}

    def clear(self) -> None:
        for path in [*self.folder.glob("*.heard"), *self.folder.glob("*.said")]:
            path.unlink()

    @property
    def questions(self) -> list[list[str]]:
        """For each connection the frames that the client has sent."""
        out = []
        for path in sorted(self.folder.glob("*.heard")):
            line, _, rest = path.read_bytes().partition(b"\n")
            assert frame_codec.parse_hello(line + b"\n")[0] == frame_codec.PROTOCOL
            kinds = []
            while rest:
                kind, size = frame_codec.parse_head(rest[:8])
                kinds.append(frame_codec.KINDS[kind])
                rest = rest[8 + size :]
            out.append(kinds)
        return out

    @property
    def answered(self) -> int:
        """Bytes that came from the other ends."""
        return sum(path.stat().st_size for path in self.folder.glob("*.said"))


@pytest.fixture
def relay(tmp_path: Path) -> Relay:
    folder = tmp_path / "relay"
    folder.mkdir()
    return Relay(folder)


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pushed")
    for name, trace in (("campus.ml", CAMPUS), ("loss.ml", DATA / "loss.pcap.gz"), ("again.ml", CAMPUS)):
        assert run("confluo-capture", "-q", "-r", trace, "-w", folder / name).returncode == 0
    return folder


# ---------------------------------------------------------------- round trips


@pytest.mark.parametrize(
    "words",
    [
        ["dst_port == 443", "-T"],
        ["--count"],
        ["--by", "proto"],
        ["tcp", "-c", "3", "-f", "ts,len", "-T"],
        ["--analyze", "tcp", "retransmission", "--count"],
        ["dst_port == 443", "--explain"],
    ],
    ids=" ".join,
)
def test_one_round_trip(logs: Path, relay: Relay, words: list[str]) -> None:
    """Greeting and question go out together, and nothing is said after them."""
    here = run("confluo-query", logs / "campus.ml", *words)
    there = run("confluo-query", f"sw1:{logs}/campus.ml", *words, env=relay.env)
    assert there.returncode == here.returncode
    assert there.stderr == b""
    assert there.stdout == here.stdout or "--explain" in words
    assert relay.questions == [["query"]]


def test_one_round_trip_for_each_log_of_a_snapshot(logs: Path, relay: Relay, tmp_path: Path) -> None:
    names = [f"sw1:{logs}/campus.ml", f"sw2:{logs}/loss.ml", f"{logs}/again.ml"]
    assert run("confluo-snapshot", *names, "-w", tmp_path / "cut.yaml", env=env(tmp_path)).returncode == 0
    done = run("confluo-query", "--at", tmp_path / "cut.yaml", "tcp", "--by", "host", "-J", env=relay.env)
    assert done.stderr == b""
    found = {row["host"]: row["count"] for row in map(json.loads, lines(done))}
    counts = [int(run("confluo-query", logs / name, "tcp", "--count").stdout) for name in ("campus.ml", "loss.ml")]
    assert found == {"sw1": counts[0], "sw2": counts[1], os.uname().nodename: counts[0]}
    assert relay.questions == [["query"], ["query"]]


# ---------------------------------------------------------------- shells that start early


def hosts(*words: str) -> list[str]:
    return list(ssh_process._hosts(words))


def test_only_inputs_are_taken_for_hosts(tmp_path: Path) -> None:
    assert hosts("sw1:/a.ml", "tcp", "--since", "10:30") == ["sw1"]
    found = hosts("-r", "sw1:/a.ml", "-r", "sw1:/b.ml", "--read=ops@sw2:/a", "-rsw3:/a")
    assert found == ["sw1", "sw1", "ops@sw2", "sw3"]
    assert hosts("-r", "[::1]:/a") == ["::1"]
    for words in (
        ["a.ml", "eth:1"],
        ["eth:1", "-r", "a.ml"],
        ["eth:1", "-ra.ml"],
        ["--since", "10:30", "a.ml"],
        ["./a:b"],
        ["sw1:/a", "--help"],
        ["--config", "x", "sw1:/a"],
        ["sw1:/a", "--config=x"],
        [],
        ["-r"],
        ["--at", str(tmp_path)],
    ):
        assert hosts(*words) == [], words
    with pytest.raises(UsageError):
        hosts("-r", "-oProxyCommand=id:/a")


def test_the_hosts_of_a_snapshot(tmp_path: Path) -> None:
    from confluo_tools.multilog.snapshot import LogCut, Snapshot

    cuts = [LogCut(n, h, "/a.ml", "0" * 32, "packet", (1,)) for n, h in (("here", ""), ("sw1", "sw1"), ("b", "x@::1"))]
    path = tmp_path / "cut.yaml"
    path.write_text(Snapshot(cuts, 0).text())
    assert hosts("--at", str(path)) == hosts(f"--at={path}", "eth:1") == ["sw1", "x@::1"]
    path.write_text(path.read_text().replace('"sw1"', '"-oProxyCommand=id"'))
    with pytest.raises(UsageError):
        hosts("--at", str(path))
    path.write_text(path.read_text().replace("confluo_snapshot: 1", "confluo_snapshot: 2"))
    assert hosts("--at", str(path)) == []
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    assert hosts("--at", str(fifo)) == []


@pytest.mark.parametrize(
    "words", [["sw1:/a.ml", "--nonsense"], ["sw1:/a.ml", "--since", "never"], ["sw1:/a.ml", "-r", "x.ml"]]
)
def test_a_shell_that_nobody_takes_is_ended(tmp_path: Path, words: list[str]) -> None:
    rsh = tmp_path / "rsh"
    rsh.write_text(f"#!/bin/sh\necho $$ >> {tmp_path}/pids\nexec sleep 600\n")
    rsh.chmod(0o755)
    done = run("confluo-query", *words, env={**env(tmp_path), "CONFLUO_RSH": str(rsh)})
    assert done.returncode == 2
    for pid in (tmp_path / "pids").read_text().split() if (tmp_path / "pids").exists() else []:
        assert not os.path.exists(f"/proc/{pid}") or words[1] == "-r"


def test_one_shell_for_each_log(logs: Path, tmp_path: Path) -> None:
    rsh = tmp_path / "counting"
    rsh.write_text(f'#!/bin/sh\necho $1 >> {tmp_path}/hosts\nexec {shell(tmp_path)} "$@"\n')
    rsh.chmod(0o755)
    names = [f"sw1:{logs}/campus.ml", f"sw1:{logs}/again.ml", f"sw2:{logs}/again.ml"]
    words = [w for name in names for w in ("-r", name)]
    for how in (str(rsh), f"'{rsh}'"):  # the second is not plain: no early start
        done = run("confluo-query", *words, "--count", env={**env(tmp_path), "CONFLUO_RSH": how})
        assert (done.returncode, done.stdout, done.stderr) == (0, b"17205\n", b"")
        assert sorted((tmp_path / "hosts").read_text().split()) == ["sw1", "sw1", "sw2"]
        (tmp_path / "hosts").unlink()


def test_a_child_is_as_subprocess_has_it(tmp_path: Path) -> None:
    child = ssh_process.SshProcess(["sh", "-c", "cat; echo no >&2; exit 3"])
    os.write(child.stdin, b"yes")
    child.hang_up()
    assert os.read(child.stdout, 100) == b"yes"
    assert child.wait() == 3
    assert os.read(child.stderr, 100) == b"no\n"
    child.close()
    assert (child.stdin, child.stdout, child.stderr) == (-1, -1, -1)
    stubborn = ssh_process.SshProcess(["sleep", "600"])
    assert stubborn.poll() is None
    stubborn.close()
    assert stubborn.returncode == -15
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(OSError, match="No such file"):
        ssh_process.SshProcess(["/nowhere/ssh"])
    assert len(os.listdir("/proc/self/fd")) == before
    child = ssh_process.SshProcess(["grep", "SigIgn", "/proc/self/status"])
    assert child.wait() == 0
    ignored = int(os.read(child.stdout, 100).split()[1], 16)
    assert not ignored & (1 << (signal.SIGPIPE - 1) | 1 << (signal.SIGXFSZ - 1))
    assert signal.getsignal(signal.SIGXFSZ) == signal.SIG_IGN
    child.close()


@pytest.mark.parametrize(
    ("words", "out"),
    [
        (["--stdio"], {"root": []}),
        (["--stdio", "--root", "/a", "--root=/b", "--read-only"], {"root": ["/a", "/b"], "read_only": True}),
        (["--stdio", "--max-freeze", "1s", "--idle=5s"], {"root": [], "max_freeze": "1s", "idle": "5s"}),
        ([], None),
        (["--root", "/a"], None),
        (["--stdio", "--root"], None),
        (["--stdio", "--root", "--read-only"], None),
        (["--stdio", "-q"], None),
        (["--stdio", "--help"], None),
        (["--stdio", "x"], None),
        (["--stdio=1"], None),
    ],
)
def test_plain_words_of_serve(words: list[str], out: dict[str, Any] | None) -> None:
    assert serve.plain(words) == out


def test_a_server_does_without_what_it_does_not_need(logs: Path) -> None:
    """typer, yaml and the like take longer to load than an answer."""
    code = """
import sys
sys.argv = ["confluo", "serve", "--stdio"]
from confluo_tools.__main__ import main
status = main()
slow = {"typer", "yaml", "pathlib", "threading", "subprocess", "rich", "pyarrow", "numpy", "inspect", "urllib.parse"}
print(sorted(slow & set(sys.modules)), file=sys.stderr)
sys.exit(status)
"""
    asked = HELLO + query(logs / "campus.ml", expr="dst_port == 443", limit=3)
    with subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=BIN.parent,
    ) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        assert server.stderr is not None
        server.stdin.write(asked)
        server.stdin.flush()
        said, end = b"", frame_codec.frame(frame_codec.END, {"rows": 5735, "found": 3})
        while end not in said and (piece := os.read(server.stdout.fileno(), 65536)):
            said += piece
        assert said.endswith(end)
        server.stdin.close()
        assert server.stderr.read() == b"[]\n"


# ---------------------------------------------------------------- analysis where the log is


@pytest.mark.parametrize(
    "words",
    [
        ["retransmission", "-T"],
        ["retransmission || out_of_order", "-f", "ts,src_ip,tcp_analysis,tcp_rto", "-J"],
        ["tcp_analysis has duplicate_ack", "-c", "4", "-T"],
        ["--agg", "count, avg(tcp_rto), p99(tcp_ack_rtt)", "--by", "flow", "--top", "3", "-J"],
        ["retransmission", "--count"],
        ["tcp_bytes_in_flight > 5000", "--count", "-c", "7"],
        ["", "--sample", "1/2", "--count"],
        ["port 443 && retransmission", "-T"],
        ["--analyze-flows", "1", "retransmission", "--count"],
        ["-f", "help"],
        ["nothing == 3"],
    ],
    ids=" ".join,
)
def test_analysed_there_as_here(logs: Path, tmp_path: Path, words: list[str]) -> None:
    here = run("confluo-query", logs / "loss.ml", "--analyze", "tcp", *words)
    there = run("confluo-query", f"sw1:{logs}/loss.ml", "--analyze", "tcp", *words, env=env(tmp_path))
    assert (there.returncode, there.stdout) == (here.returncode, here.stdout)
    assert there.stderr.replace(b": sw1: ", b": ") == here.stderr or "nothing" in words[0]
    cut = tmp_path / "cut.yaml"
    assert run("confluo-snapshot", f"sw1:{logs}/loss.ml", "-w", cut, env=env(tmp_path)).returncode == 0
    then = run("confluo-query", "--at", cut, "--analyze", "tcp", *words, env=env(tmp_path))
    assert then.returncode == here.returncode
    if "-T" not in words and "help" not in words and "-J" not in words:
        assert then.stdout == here.stdout


def test_only_rows_that_match_travel(logs: Path, relay: Relay) -> None:
    name = f"sw1:{logs}/loss.ml"
    everything = run("confluo-query", name, "-o", "stream", env=relay.env)
    assert everything.returncode == 0
    all_bytes = relay.answered
    relay.clear()
    done = run("confluo-query", name, "--analyze", "tcp", "retransmission", "-f", "ts,tcp_rto", "-T", env=relay.env)
    assert done.returncode == 0
    assert 0 < relay.answered < all_bytes / 5
    relay.clear()
    groups = ["--analyze", "tcp", "--agg", "count, avg(tcp_rto)", "--by", "src_ip"]
    assert run("confluo-query", name, *groups, env=relay.env).returncode == 0
    assert 0 < relay.answered < all_bytes / 5


def test_several_logs_are_analysed_here(logs: Path, tmp_path: Path) -> None:
    """Conversations may be in several logs: what is sent again is seen only by who sees all of them."""
    words = ["--analyze", "tcp", "retransmission", "-f", "ts,src_ip,tcp_seq", "-T"]
    here = run("confluo-query", "-r", logs / "loss.ml", "-r", logs / "campus.ml", *words)
    there = run("confluo-query", "-r", f"sw1:{logs}/loss.ml", "-r", f"sw2:{logs}/campus.ml", *words, env=env(tmp_path))
    assert (there.returncode, there.stdout, there.stderr) == (here.returncode, here.stdout, here.stderr)


def test_states_are_made_here(logs: Path, tmp_path: Path) -> None:
    for words in (
        ["--analyze", "maxseq", "-c", "20", "-T"],
        ["--state", "maxseq", "-T"],
        ["--analyze", "tcp", "--analyze", "maxseq", "retransmission", "-T"],
        ["--analyze", "tcp", "--analyze-flows", str(MAX_FLOWS + 1), "retransmission", "--count"],
    ):
        here = run("confluo-query", logs / "loss.ml", *words)
        there = run("confluo-query", f"sw1:{logs}/loss.ml", *words, env=env(tmp_path))
        assert here.returncode == 0, here.stderr
        assert (there.returncode, there.stdout) == (here.returncode, here.stdout)


def test_an_old_far_side_is_told_clearly(logs: Path, tmp_path: Path) -> None:
    """A server without analyses ignores the request for one: its answer must not be used."""
    rsh = tmp_path / "old"
    rsh.write_text("#!/bin/bash\nshift\n\"$@\" | (read -r line; echo 'confluo-serve 1 0.0.9'; exec cat)\n")
    rsh.chmod(0o755)
    old = {**env(tmp_path), "CONFLUO_RSH": str(rsh)}
    name = f"sw1:{logs}/loss.ml"
    done = run("confluo-query", name, "--analyze", "tcp", "retransmission", "--count", env=old)
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr == (
        b"confluo-query: sw1: runs confluo-tools 0.0.9, which does not analyze for others; "
        b"install the same version at both ends\n"
    )
    assert run("confluo-query", name, "--count", env=old).returncode == 0


def test_an_old_far_side_computes_only_what_is_printed(logs: Path, tmp_path: Path) -> None:
    """It does not know the keys `having` and `sort`, and ignores them."""
    rsh = tmp_path / "old"
    rsh.write_text(f"""#!{sys.executable}
import os, subprocess, sys, threading
with subprocess.Popen(sys.argv[2:], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as server:
    def ask():
        while data := os.read(0, 65536):
            server.stdin.write(data.replace(b'"having"', b'"hav_ng"').replace(b'"sort"', b'"s_rt"'))
        server.stdin.close()
    threading.Thread(target=ask, daemon=True).start()
    server.stdout.readline()
    os.write(1, b"confluo-serve 1 0.0.9\\n")
    while data := server.stdout.read(65536):
        os.write(1, data)
""")
    rsh.chmod(0o755)
    old = {**env(tmp_path), "CONFLUO_RSH": str(rsh)}
    words = ["--by", "proto", "--agg", "sum(len)", "-T"]
    for more in (["--having", "count > 5"], ["--sort", "-count"]):
        done = run("confluo-query", f"sw1:{logs}/loss.ml", *words, *more, env=old)
        assert (done.returncode, done.stdout) == (2, b"")
        assert done.stderr == (
            b"confluo-query: sw1: runs confluo-tools 0.0.9, which computes only aggregates that are printed; "
            b"install the same version at both ends\n"
        )
    for more in (["--having", "sum_len > 5"], ["--sort", "-sum_len"]):
        done = run("confluo-query", f"sw1:{logs}/loss.ml", *words, *more, env=old)
        here = run("confluo-query", logs / "loss.ml", *words, *more)
        assert (done.returncode, done.stdout, done.stderr) == (here.returncode, here.stdout, here.stderr)


@pytest.mark.parametrize(
    "more",
    [
        {"analyze": "tcp"},
        {"analyze": ["maxseq"]},
        {"analyze": ["os:system"]},
        {"analyze": ["tcp", "tcp"]},
        {"analyze": ["tcp"] * 5000},
        {"analyze": [1]},
        {"analyze": ["tcp"], "flows": MAX_FLOWS + 1},
        {"flows": 0},
        {"flows": "1"},
        {"flows": True},
        {"flows": -1},
        {"analyze": ["tcp"], "schema": {"schema": "x", "fields": []}},
        {"names": 3},
    ],
)
def test_invalid_requests_are_refused(logs: Path, more: dict[str, Any]) -> None:
    done = run("confluo-serve", "--stdio", stdin=HELLO + query(logs / "loss.ml", **more))
    assert done.returncode == 2
    assert b"protocol error: " in done.stderr
    assert done.stderr.count(b"\n") == 1
    assert bytes((frame_codec.META, 0, 0, 0)) not in done.stdout


def test_what_cannot_be_analysed(logs: Path, tmp_path: Path) -> None:
    run("confluo-query", logs / "loss.ml", "-f", "ts,len", "-w", tmp_path / "x.arrows", "-o", "stream")
    run("confluo-convert", tmp_path / "x.arrows", "-w", tmp_path / "x.ml")
    done = run("confluo-query", f"sw1:{tmp_path}/x.ml", "--analyze", "tcp", env=env(tmp_path))
    assert (done.returncode, done.stderr.count(b"\n")) == (2, 1)
    assert b"--analyze tcp: no field" in done.stderr


def test_zero_is_not_nothing() -> None:
    """A limit of no rows and the beginning of 1970 are limits."""
    assert QueryRequest(limit=0, since=0, until=0).message() == {"limit": 0, "since": 0, "until": 0}
    request = QueryRequest("tcp", analyze=("tcp",), flows=7, names="x").replace(by="proto")
    assert vars(QueryRequest.of(json.loads(json.dumps(request.message())))) == vars(request)
    assert QueryRequest().message() == {}


# ---------------------------------------------------------------- names, and rows that are in two places


def named(logs: Path, folder: Path, name: str, text: str, agg: str = "") -> Path:
    log = folder / f"{name}.ml"
    assert run("confluo-convert", logs / "campus.ml", "-w", log).returncode == 0
    if text:
        assert run("confluo-index", log, "add", "filter", "web", text).returncode == 0
    if agg:
        assert run("confluo-index", log, "add", "aggregate", "load", agg).returncode == 0
    return log


def test_a_name_means_the_same_in_all_logs(logs: Path, tmp_path: Path) -> None:
    a = named(logs, tmp_path, "a", "dst_port == 443", "sum(len)")
    b = named(logs, tmp_path, "b", "dst_port == 80", "count")
    c = named(logs, tmp_path, "c", "dst_port ==   443", "sum(len)")
    d = named(logs, tmp_path, "d", "")
    there = env(tmp_path)
    for names in ((a, b), (f"sw1:{a}", b), (a, f"sw2:{b}"), (f"sw1:{a}", f"sw2:{b}")):
        for words in (["filter web", "--count"], ["!(filter web) || len > 9", "--count"], ["filter web", "-T"]):
            done = run("confluo-query", "-e", words[0], *names, *words[1:], env=there)
            assert (done.returncode, done.stdout) == (2, b"")
            said = f"confluo-query: {names[1]}: defines filter 'web' differently from {names[0]}; "
            assert done.stderr.decode().startswith(said), done.stderr
        done = run("confluo-query", "-e", "", *names, "--agg", "load", env=there)
        assert f"{names[1]}: defines aggregate 'load' differently from {names[0]}" in done.stderr.decode()
        assert (done.returncode, done.stderr.count(b"\n")) == (2, 1)
    alone = int(run("confluo-query", a, "filter web", "--count").stdout)
    assert alone == 1354
    for names in ((a, c), (f"sw1:{a}", c), (f"sw1:{a}", f"sw2:{c}")):
        both = run("confluo-query", "-e", "filter web", *names, "--count", env=there)
        assert (both.stdout, both.stderr) == (b"%d\n" % (2 * alone), b"")
        loads = run("confluo-query", "-e", "", *names, "--agg", "load", "-T", env=there)
        assert loads.returncode == 0
        analysed = run("confluo-query", "-e", "filter web", *names, "--analyze", "tcp", "--count", env=there)
        assert (analysed.stdout, analysed.stderr) == (both.stdout, b"")
    for names in ((a, d), (d, a)):
        done = run("confluo-query", "-e", "filter web", *names, "--count")
        assert done.stderr.decode().startswith(f"confluo-query: {d}: has no filter 'web' as {a} has; ")
    for names in ((f"sw1:{a}", d), (d, f"sw1:{a}"), (a, f"sw1:{d}")):
        done = run("confluo-query", "-e", "filter web", *names, "--count", env=there)
        assert (done.returncode, done.stdout) == (2, b"")
        assert b"web" in done.stderr
    unknown = run("confluo-query", "-e", "filter wob", a, c, "--count")
    assert b"did you mean 'web'?" in unknown.stderr


def test_rows_of_a_log_elsewhere_with_an_archive_of_its_own(logs: Path, tmp_path: Path) -> None:
    """The archive that the log has there is an input here, too."""
    log, other, archive = tmp_path / "a.ml", logs / "loss.ml", tmp_path / "archive"
    assert run("confluo-convert", logs / "campus.ml", "-w", log).returncode == 0
    assert run("confluo-archive", log, "--to", archive).returncode == 0
    there = env(tmp_path)
    for words in (["--count"], ["--by", "proto"], ["-T"]):
        for names in ((f"sw1:{log}", archive), (archive, f"sw1:{log}")):
            done = run("confluo-query", "-e", "", *names, *words, env=there)
            assert (done.returncode, done.stdout) == (2, b"")
            assert f"{archive}: has rows of sw1:{log}, which would come twice; " in done.stderr.decode()
    assert run("confluo-query", f"sw1:{log}", "--count", env=there).stdout == b"5735\n"
    alone = run("confluo-query", "-e", "", f"sw1:{log}", archive, "--count", "--no-archive", env=there)
    assert (alone.stdout, alone.stderr) == (b"5735\n", b"")
    assert run("confluo-query", "-e", "", log, archive, "--count").stdout == b"5735\n"
    both = run("confluo-query", "-e", "", f"sw1:{other}", archive, "--count", env=there)
    rows = int(run("confluo-query", other, "--count").stdout)
    assert (both.stdout, both.stderr) == (b"%d\n" % (5735 + rows), b"")
