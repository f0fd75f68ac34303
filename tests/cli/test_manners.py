"""The manners of a filter, for every command alike: statuses, pipes, full disks, terminals, odd names."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pyarrow as pa
import pytest

from confluo_tools import FORMAT_VERSION, __version__
from running import BIN, CAMPUS, COMMANDS, completed, environment, lines, on_terminal, popen, run, shell

RECORDS = ("confluo-capture", "confluo-convert", "confluo-query")  # commands that pass records on
READERS = (*RECORDS, "confluo-info")


def reading(command: str, path: os.PathLike[str] | str | bytes) -> list[str | bytes | os.PathLike[str]]:
    """The words that make a command read a capture and write what it does by default."""
    return [command, "-r", path] if command == "confluo-capture" else [command, path]


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A MultiLog of the campus capture."""
    path = tmp_path_factory.mktemp("manners") / "campus.ml"
    done = run("confluo-capture", "-r", CAMPUS, "-w", path, "-q")
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    return path


@pytest.fixture(scope="module")
def large(log: Path) -> Path:
    """An Arrow stream of some 20 MB, far more than a pipe holds: six streams, one after the other."""
    one = run("confluo-query", log).stdout
    path = log.parent / "large.arrows"
    path.write_bytes(one * 20)
    return path


# -- help and version ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", COMMANDS)
def test_version_is_one_line_with_the_format(command: str) -> None:
    done = run(command, "--version")
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.decode() == f"{command} {__version__} (format {FORMAT_VERSION})\n"


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_help_fits_the_screen_and_ends_with_examples(command: str, flag: str) -> None:
    done = run(command, flag)
    assert (done.returncode, done.stderr) == (0, b"")
    text = done.stdout.decode()
    assert text.startswith(f"Usage: {command} ")
    usage = text.split("Examples:")[0]
    assert max(map(len, usage.splitlines())) <= 80
    examples = [line.strip() for line in text.split("Examples:")[1].splitlines() if line.strip()]
    assert sum(command in line for line in examples) >= 2
    assert any(line.startswith("#") for line in examples)
    assert examples[-1] == f"Manual: {command}(1)"
    assert "\x1b" not in text


@pytest.mark.parametrize("command", COMMANDS)
def test_help_and_version_meet_a_full_disk(command: str) -> None:
    for flag in ("--help", "--version"):
        done = shell(f"{command} {flag} > /dev/full")
        assert (done.returncode, done.stderr.decode()) == (2, f"{command}: standard output: No space left on device\n")


@pytest.mark.parametrize("command", ["confluo", "confluo-pingmesh", "confluo-replay-record", "confluo-stream"])
def test_lists_of_verbs_meet_a_full_disk_and_a_reader_that_has_gone(command: str) -> None:
    done = shell(f"{command} --help > /dev/full")
    assert (done.returncode, done.stderr.decode()) == (2, f"{command}: standard output: No space left on device\n")
    read, write = os.pipe()
    os.close(read)
    done = completed(
        [BIN / command, "--help"], stdout=write, env=environment(), stderr=subprocess.PIPE, timeout=60, check=False
    )
    os.close(write)
    assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.parametrize("command", COMMANDS)
def test_an_unknown_option_is_one_line_and_status_2(command: str) -> None:
    done = run(command, "--xyzzy")
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr.decode() == f"{command}: no such option: --xyzzy; --help lists the options\n"
    done = run(command, "--hel")  # no abbreviations
    assert done.returncode == 2
    assert done.stderr.decode().startswith(f"{command}: no such option: --hel; did you mean --help")


# -- statuses --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", READERS)
def test_what_is_not_there_is_named(command: str) -> None:
    done = run(*reading(command, "no such file"))
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr.decode().startswith(f"{command}: no such file: No such file or directory")
    assert done.stderr.count(b"\n") == 1


@pytest.mark.parametrize("command", READERS)
def test_what_is_something_else_is_refused(command: str, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("hello world\n")
    for path in (tmp_path / "text", tmp_path):
        done = run(*reading(command, path))
        assert (done.returncode, done.stdout) == (2, b"")
        assert done.stderr.decode().startswith(f"{command}: {path}: ")
        assert done.stderr.count(b"\n") == 1


def test_found_and_nothing_found(log: Path) -> None:
    assert run("confluo-query", log, "tcp", "--count").returncode == 0
    done = run("confluo-query", log, "len > 60000", "--count")
    assert (done.returncode, done.stdout) == (1, b"0\n")
    done = run("confluo-query", log, "len > 60000", "-T", "-f", "ts")
    assert (done.returncode, done.stdout, done.stderr) == (1, b"#fields\tts\n#types\ttime\n", b"")
    done = run("confluo-query", log, "len > 60000", "--agg", "count")
    assert (done.returncode, lines(done)[-1]) == (1, "0")


@pytest.mark.parametrize("command", READERS)
def test_silent_when_all_is_well(command: str) -> None:
    for more in ([], ["-q"]):
        done = run(*reading(command, CAMPUS), *more)
        assert (done.returncode, done.stderr) == (0, b"")


# -- pipes -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["confluo-query", "confluo-convert"])
def test_a_reader_that_leaves_ends_a_filter_silently(command: str, large: Path) -> None:
    for fmt in ("tsv", "ndjson", "csv", "stream", "table"):
        done = shell(f'{command} "$1" -o {fmt} | head -c 10; echo "${{PIPESTATUS[0]}}" >&2', large)
        assert done.stderr == b"141\n", fmt


def test_a_reader_that_leaves_makes_a_capture_end() -> None:
    done = shell('confluo-capture -r "$1" -o ndjson | head -c 10; echo "${PIPESTATUS[0]}" >&2', CAMPUS)
    assert done.stderr.splitlines()[-1] in (b"0", b"141")
    assert b"Traceback" not in done.stderr


@pytest.mark.parametrize("command", RECORDS)
@pytest.mark.parametrize("fmt", ["tsv", "csv", "ndjson", "stream", "table", "parquet"])
def test_a_full_disk_does_not_look_like_success(command: str, fmt: str) -> None:
    words = '-r "$1"' if command == "confluo-capture" else '"$1"'
    done = shell(f"{command} {words} -o {fmt} > /dev/full", CAMPUS)
    assert (done.returncode, done.stderr.decode()) == (2, f"{command}: standard output: No space left on device\n")


def test_a_full_disk_and_a_count(log: Path) -> None:
    for words in ('query "$1" --count', 'info "$1"', 'info --fields "$1"', "config"):
        done = shell(f"confluo-{words} > /dev/full", log)
        command = "confluo-" + words.split()[0]
        assert (done.returncode, done.stderr.decode()) == (2, f"{command}: standard output: No space left on device\n")


@pytest.mark.parametrize("command", READERS)
def test_stdin_closed_empty_file_and_pipe(command: str) -> None:
    minus = "-r -" if command == "confluo-capture" else "-"
    closed = shell(f"{command} {minus} <&-")
    assert (closed.returncode, closed.stdout) == (2, b"")
    assert closed.stderr.decode().startswith(f"{command}: standard input: ")
    for empty in ("< /dev/null", "< <(true)"):
        done = shell(f"{command} {minus} {empty}")
        assert (done.returncode, done.stdout) == (2, b"")
        assert done.stderr.decode().startswith(f"{command}: standard input: is empty")
    from_file = shell(f'{command} {minus} < "$1" | tail -c 2000 | md5sum', CAMPUS)
    from_pipe = shell(f'cat "$1" | {command} {minus} | tail -c 2000 | md5sum', CAMPUS)
    slow = shell(f'(head -c 30; sleep 0.3; cat) < "$1" | {command} {minus} | tail -c 2000 | md5sum', CAMPUS)
    assert from_file.stderr == from_pipe.stderr == slow.stderr == b""
    if command != "confluo-info":
        assert from_pipe.stdout == slow.stdout
    assert from_pipe.returncode == 0


@pytest.mark.parametrize("command", RECORDS)
def test_stdout_closed(command: str) -> None:
    words = '-r "$1"' if command == "confluo-capture" else '"$1"'
    done = shell(f"{command} {words} -o tsv >&-", CAMPUS)
    assert (done.returncode, done.stderr.decode()) == (2, f"{command}: standard output: Bad file descriptor\n")
    done = shell(f"{command} {words} -o tsv >&- 2>&-", CAMPUS)
    assert (done.returncode, done.stderr) == (2, b"")


def test_streams_are_concatenated_with_cat(log: Path) -> None:
    done = shell('(confluo-query "$1" tcp; confluo-query "$1" udp) | confluo-query - --count', log)
    separate = [int(run("confluo-query", log, e, "--count").stdout) for e in ("tcp", "udp")]
    assert int(done.stdout) == sum(separate)


def test_a_cut_stream_gives_its_rows_and_status_2(log: Path) -> None:
    whole = run("confluo-query", log).stdout
    cut = whole[:-8]
    done = run("confluo-query", "-", "--count", stdin=cut)
    assert (done.returncode, done.stdout) == (2, b"5735\n")
    assert done.stderr == b"confluo-query: standard input: has no end mark: its writer was interrupted\n"
    done = run("confluo-query", "-", "--count", stdin=whole[: len(whole) // 2])
    assert (done.returncode, done.stdout) == (2, b"0\n")


def test_the_stream_tells_its_history(log: Path) -> None:
    done = shell('confluo-query "$1" "dst_port == 443" | confluo-query - "len > 100" | confluo-query - -c 1', log)
    found = pa.ipc.open_stream(done.stdout).schema.metadata[b"confluo:history"].decode()
    assert "'dst_port == 443'" in found
    assert "confluo-query - 'len > 100'" in found
    assert "confluo-query - -c 1" in found
    assert found.index("443") < found.index("len > 100") < found.index("-c 1")


def first_line_after(words: str, first: bytes, *rest: bytes) -> list[float]:
    """Seconds from writing each piece into the pipeline until a line comes out of it."""
    env = environment()
    env["PATH"] = f"{BIN}:{env['PATH']}"
    child = subprocess.Popen(["bash", "-c", words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env)
    assert child.stdin is not None
    assert child.stdout is not None
    waits = []
    for piece in (first, *rest):
        start = time.monotonic()
        child.stdin.write(piece)
        child.stdin.flush()
        assert child.stdout.readline()
        waits.append(time.monotonic() - start)
    assert child.poll() is None  # it did not wait for the end
    child.communicate(timeout=60)
    return waits


@pytest.mark.parametrize(
    "words",
    [
        "confluo-query - 'len > 1' -J",
        "confluo-query - | confluo-query - -l -J",
        "confluo-convert - -o csv --no-header",
        "confluo-query - | confluo-query - 'len > 1' | confluo-convert - -J",
    ],
)
def test_a_live_record_is_seen_at_once(words: str) -> None:
    rows = [b'{"len":%d}\n' % n for n in range(10, 14)]
    assert len(first_line_after(words, *rows)) == 4  # each line came while the input was still open


def test_limits_stop_reading(large: Path) -> None:
    """`-c 1` of an input that never ends, and of a file while stdin never ends."""
    with subprocess.Popen(["cat", large, "-"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as endless:
        assert endless.stdout is not None
        for words in (["-", "-c", "1", "-T", "--no-header"], [large, "-c", "1", "-T", "--no-header"]):
            done = run("confluo-query", *words, stdin=endless.stdout.fileno())  # or it times out
            assert (done.returncode, done.stdout.count(b"\n")) == (0, 1)
            assert endless.poll() is None
        endless.kill()


# -- signals ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_output_file_does_not_appear(number: int, status: int, tmp_path: Path) -> None:
    child = popen(
        [BIN / "confluo-convert", "-", "-w", tmp_path / "out.tsv"],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
    )
    assert child.stdin is not None
    child.stdin.write(b"#fields\ta\n#types\tu8\n1\n")
    child.stdin.flush()
    for _ in range(1000):
        if list(tmp_path.iterdir()):
            break
        time.sleep(0.01)
    assert [p.name.startswith(".out.tsv.") for p in tmp_path.iterdir()] == [True]
    child.send_signal(number)
    _, err = child.communicate(timeout=30)
    assert (child.returncode, err) == (status, b"")
    assert list(tmp_path.iterdir()) == []


# -- terminals -------------------------------------------------------------------------------------------------


def test_a_table_on_a_terminal_a_stream_in_a_pipe(log: Path) -> None:
    status, text = on_terminal("confluo-query", log, "-c", "3")
    assert status == 0
    assert "src_ip" in text
    assert "\x1b[1m" in text
    assert max(len(line) for line in strip(text).splitlines()) < 80
    assert run("confluo-query", log, "-c", "3").stdout[:4] == b"\xff\xff\xff\xff"
    assert lines(run("confluo-query", log, "--agg", "count"))[0] == "#fields\tcount"
    status, text = on_terminal("confluo-query", log, "--agg", "count", "--by", "proto")
    assert strip(text).split()[:2] == ["proto", "count"]


def strip(text: str) -> str:
    import re

    return re.sub(r"\x1b\[[0-9;]*[mK]", "", text)


def test_an_explicit_format_always_wins(log: Path) -> None:
    status, text = on_terminal("confluo-query", log, "-c", "1", "-o", "stream")
    assert (status, "stream is not for a terminal" in text) == (2, True)  # but binary stays off the screen
    _, text = on_terminal("confluo-query", log, "-c", "1", "-J", "-f", "len")
    assert text == '{"len":150}\n'
    assert run("confluo-query", log, "-c", "1", "-o", "table", "-f", "len").stdout == b"len\n---\n150\n"
    for words in (["-J", "-T"], ["-o", "csv", "-T"]):
        done = run("confluo-query", log, *words)
        assert (done.returncode, done.stdout) == (2, b"")
    done = run("confluo-query", log, "-o", "xml")
    assert done.stderr.decode().startswith("confluo-query: -o: unknown output format 'xml'; use table, tsv")


def test_the_setting_is_for_scripts(log: Path) -> None:
    env = environment(CONFLUO_FORMAT="csv", TERM="xterm")
    assert run("confluo-query", log, "-c", "1", "-f", "len", env=env).stdout == b"len\n150\n"
    assert on_terminal("confluo-query", log, "-c", "1", "-f", "len", env=env)[1] == "len\n150\n"
    assert run("confluo-query", log, "-c", "1", "-f", "len", "-J", env=env).stdout == b'{"len":150}\n'
    env = environment(CONFLUO_FORMAT="stream", TERM="xterm")
    assert "---" in strip(on_terminal("confluo-query", log, "-c", "1", "-f", "len", env=env)[1]).replace("─", "-")
    done = run("confluo-query", log, env=environment(CONFLUO_FORMAT="xml"))
    assert done.returncode == 2
    assert done.stderr.startswith(b"confluo-query: CONFLUO_FORMAT: 'xml' is not possible for format; use table")


@pytest.mark.parametrize(
    "env", [{"NO_COLOR": "1", "TERM": "xterm"}, {"TERM": "dumb"}, {"CONFLUO_COLOR": "never", "TERM": "xterm"}]
)
def test_no_colour_where_it_is_not_wanted(env: dict[str, str], log: Path) -> None:
    status, text = on_terminal("confluo-query", log, "-c", "3", env=environment(**env))
    assert status == 0
    assert "\x1b" not in text
    assert "src_ip" in text
    _, text = on_terminal("confluo-query", log, "-c", "3", "--color", "never")
    assert "\x1b" not in text


def test_a_narrow_terminal(log: Path) -> None:
    _, text = on_terminal("confluo-query", log, "-c", "3", columns=40)
    assert max(len(line) for line in strip(text).splitlines()) < 40
    assert "~" in text
    _, text = on_terminal("confluo-query", log, "-c", "3", "-f", "flow,ts,len,eth_src,eth_dst", columns=160)
    assert 80 < max(len(line) for line in strip(text).splitlines()) < 160
    _, text = on_terminal("confluo-query", log, "-c", "3", "-W", columns=40)
    assert max(len(line) for line in strip(text).splitlines()) > 80


def test_stdin_on_a_terminal_is_read_when_it_is_named() -> None:
    import pty

    master, slave = pty.openpty()
    os.write(master, b'{"len":7}\n\x04')
    done = run("confluo-query", "-", "-J", stdin=slave)
    os.close(slave)
    os.close(master)
    assert (done.returncode, done.stdout) == (0, b'{"len":7}\n')


# -- names -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [b"with blank", b'it\'s "quoted" $x', b"caf\xe9", b"-dash", b"new\nline", b"a;b&c"])
def test_names_with_any_bytes(name: bytes, tmp_path: Path) -> None:
    folder = os.fsencode(tmp_path) + b"/" + name
    os.mkdir(folder)
    log, stream, text = folder + b"/" + name + b".ml", folder + b"/s", folder + b"/t.tsv"
    done = run("confluo-capture", "-r", CAMPUS, "-w", log, "-q")
    assert (done.returncode, done.stderr) == (0, b"")
    assert run("confluo-query", "--count", "--", log, "tcp").stdout == b"5167\n"
    assert run("confluo-query", log, "tcp", "-o", "stream", "-w", stream).returncode == 0
    assert run("confluo-query", "--count", stream, "dst_port == 443").returncode == 0
    assert run("confluo-convert", stream, "-w", text, "-f", "len").returncode == 0
    with open(text, "rb") as f:
        assert f.readline() == b"#fields\tlen\n"
    assert run("confluo-info", log, "-J").returncode == 0
    done = run("confluo-query", folder + b"/none", "tcp")
    assert done.returncode == 2
    assert done.stderr.count(b"\n") == 1
    assert b"\xe9" not in done.stderr


def test_dash_names_and_options_after_operands(log: Path, tmp_path: Path) -> None:
    one = run("confluo-query", log, "tcp", "--count").stdout
    assert run("confluo-query", "--count", log, "tcp").stdout == one
    assert run("confluo-query", log, "--count", "tcp").stdout == one
    assert run("confluo-query", "--count", "--", log, "tcp").stdout == one
    (tmp_path / "-x").write_bytes(run("confluo-query", log, "tcp").stdout)
    assert run("confluo-query", "--count", "--", "-x", cwd=tmp_path).stdout == one
    assert run("confluo-query", "--count", "./-x", cwd=tmp_path).stdout == one


def test_overwriting_has_to_be_asked_for(log: Path, tmp_path: Path) -> None:
    out = tmp_path / "x.tsv"
    out.write_text("precious")
    done = run("confluo-query", log, "-w", out, "-c", "1")
    assert (done.returncode, out.read_text()) == (2, "precious")
    assert done.stderr.decode() == f"confluo-query: {out}: exists; --force or CONFLUO_CLOBBER=1 overwrites it\n"
    assert run("confluo-query", log, "-w", out, "-c", "1", "--force").returncode == 0
    assert out.read_text().startswith("#fields")
    assert run("confluo-query", log, "-w", out, "-c", "1", env=environment(CONFLUO_CLOBBER="1")).returncode == 0


def test_a_failed_query_leaves_no_file(log: Path, tmp_path: Path) -> None:
    cut = run("confluo-query", log).stdout[:-100] + b"rubbish" * 40
    (tmp_path / "cut").write_bytes(b"\xff\xff\xff\xff\x10\x00\x00\x00" + b"\xff" * 64)
    done = run("confluo-query", tmp_path / "cut", "-w", tmp_path / "out.tsv")
    assert done.returncode == 2
    assert sorted(p.name for p in tmp_path.iterdir()) == ["cut"]
    done = run("confluo-query", "-", "-w", tmp_path / "out.tsv", stdin=cut)
    assert done.returncode == 2


def test_process_substitution_and_named_pipes(log: Path, tmp_path: Path) -> None:
    ways = ['<(zcat "$1")', '<(cat "$1")', '/dev/stdin < "$1"', '<(confluo-query "$1")', '<(confluo-query "$1" -J)']
    for words in ways:
        done = shell(f"confluo-query --count {words}", CAMPUS)
        assert (done.returncode, done.stdout, done.stderr) == (0, b"5735\n", b""), words
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    done = shell('zcat "$1" > "$2" & confluo-query --count "$2"; wait', CAMPUS, fifo)
    assert (done.stdout, done.stderr) == (b"5735\n", b"")
