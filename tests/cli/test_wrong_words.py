"""Names of outputs that mean nothing, files in wrong places, and names that would break a line."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from confluo_tools.cli.output import PACKET_FORMATS, choose_format, is_log_output
from confluo_tools.console import printable
from confluo_tools.errors import UsageError
from running import CAMPUS, DATA, on_terminal, run


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("o.gz", "as in x.tsv.gz"),
        ("o.ml.zst", "as in x.tsv.zst"),
        ("o.tsv.bz2", "use .tsv, .txt,"),
        ("o.foo", "use .tsv, .txt,"),
    ],
)
def test_a_suffix_without_meaning_is_refused(name: str, says: str, tmp_path: Path) -> None:
    for call in (lambda: choose_format(None, path=name), lambda: is_log_output(name, None, tsv=False, ndjson=False)):
        with pytest.raises(UsageError, match="does not name an output format") as e:
            call()
        assert says in e.value.hint
    assert choose_format("tsv", path=name) == "tsv"
    assert not is_log_output(name, "tsv", tsv=False, ndjson=False)
    assert is_log_output(name, "multilog", tsv=False, ndjson=False)


def test_names_that_mean_something(tmp_path: Path) -> None:
    assert is_log_output("x.ml", None, tsv=False, ndjson=False)
    assert is_log_output(str(tmp_path / "log"), None, tsv=False, ndjson=False)
    (tmp_path / "old.log").mkdir()
    assert is_log_output(str(tmp_path / "old.log"), None, tsv=False, ndjson=False)  # it exists
    assert choose_format(None, path="/dev/null") == "stream"
    for name, kind in (("x.json", "json"), ("x.TSV.gz", "tsv"), ("x.csv.zst", "csv"), ("x.ndjson.xz", "ndjson")):
        assert choose_format(None, path=name) == kind
        assert not is_log_output(name, None, tsv=False, ndjson=False)
    assert choose_format(None, path="x.pcapng.gz", formats=PACKET_FORMATS) == "pcapng"
    with pytest.raises(UsageError) as e:
        choose_format(None, path="x.ml")
    assert e.value.hint == "confluo-convert writes a MultiLog"


def test_no_binary_on_a_terminal() -> None:
    for kind in ("pcap", "stream", "parquet"):
        status, printed = on_terminal("confluo-query", CAMPUS, "-o", kind)
        assert status == 2
        assert "is not for a terminal" in printed


def test_a_capture_is_its_own_source(tmp_path: Path) -> None:
    capture = DATA / "vlan.pcap.gz"
    for command, words in (("confluo-query", ["vlan"]), ("confluo-convert", [])):
        done = run(command, capture, *words, "-o", "pcap")
        assert (done.returncode, done.stderr) == (0, b"")
        count = run("confluo-query", "-", "--count", stdin=done.stdout).stdout
        assert count == run("confluo-query", capture, *words, "--count").stdout


def test_a_file_as_an_expression_of_capture(tmp_path: Path) -> None:
    done = run("confluo-capture", CAMPUS, "-w", tmp_path / "x.ml", stdin=b"")
    assert done.returncode == 2
    assert f"{CAMPUS}: is a file, not an expression; -r {CAMPUS} reads it".encode() in done.stderr
    assert not (tmp_path / "x.ml").exists()


def test_an_archive_is_not_a_log(tmp_path: Path) -> None:
    (tmp_path / "host=a").mkdir()
    done = run("confluo-archive", tmp_path, "--keep", "30d", "--delete")
    assert (done.returncode, b"is an archive, not a MultiLog; name the log" in done.stderr) == (2, True)


def test_help_of_a_topic_that_does_not_exist() -> None:
    done = run("confluo", "help", "nosuch")
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr == b"confluo: no manual page for 'nosuch'; confluo --help lists the commands\n"


def test_a_name_cannot_break_a_line(tmp_path: Path) -> None:
    assert printable("a\nb\x1b\udcff\ud800") == "a\\x0ab\\x1b\\xff\\xed\\xa0\\x80"
    path = tmp_path / "a\nb.ml"
    assert run("confluo-convert", CAMPUS, "-w", path, "-c", "5").returncode == 0
    for words in (["confluo-info", "--verify", path], ["confluo-query", tmp_path / "c\nd", "--count"]):
        done = run(*words)
        assert (done.stdout + done.stderr).count(b"\n") == 1


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("kafka://h/x", "is a topic, not a folder; confluo-stream publish --to writes to topics"),
        ("clickhouse://h/x", "unknown kind of address; write HOST:/PATH"),
        ("h:/tmp/x.ml", "is on another host; a MultiLog is written on its own host; ./h:/tmp/x.ml is a folder here"),
        ("h:x.ml", "is on another host; a MultiLog is written on its own host; ./h:x.ml is a folder here"),
    ],
)
def test_a_log_is_not_written_elsewhere(name: str, says: str, tmp_path: Path) -> None:
    """Such a name was that of a new folder, which no other command could open by this name."""
    done = run("confluo-convert", CAMPUS, "-c", "5", "-w", name, cwd=tmp_path)
    assert (done.returncode, done.stderr.decode()) == (2, f"confluo-convert: {name}: {says}\n")
    assert os.listdir(tmp_path) == []
    assert run("confluo-convert", CAMPUS, "-c", "5", "-w", "./h:x.ml", cwd=tmp_path).returncode == 0
    assert run("confluo-query", "./h:x.ml", "--count", cwd=tmp_path).stdout == b"5\n"


def test_an_archive_is_not_a_topic(tmp_path: Path) -> None:
    done = run("confluo-archive", "x.ml", "--to", "kafka://h/x", cwd=tmp_path)
    says = "an archive is a folder of this host, or a URL; run the command on that host, or use a store"
    assert (done.returncode, done.stderr.decode()) == (2, f"confluo-archive: kafka://h/x: {says}\n")
