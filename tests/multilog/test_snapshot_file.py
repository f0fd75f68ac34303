"""The snapshot file: it is read back as written, and other files are rejected."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from confluo_tools import multilog
from confluo_tools.errors import FormatError, StoreError
from confluo_tools.multilog.reader import LogReader
from confluo_tools.multilog.snapshot import FORMAT, LogCut, MissingLog, Snapshot, _plain, _yaml, check_log
from log_rows import SIGNED, signed_block
from running import run

UUID = "0123456789abcdef" * 2
CUT = LogCut("sw1", "ops@sw1", "/data/live.ml", UUID, "packet", (10, 0, 7), (4, 0, 0), 180_000)

names = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=16)


@st.composite
def cuts(draw: st.DrawFn) -> LogCut:
    tails = draw(st.lists(st.integers(0, (1 << 48) - 1), max_size=5))
    firsts = [draw(st.integers(0, t)) for t in tails] if draw(st.booleans()) and any(tails) else []
    return LogCut(
        draw(names),
        draw(names),
        draw(names) or "x",
        draw(st.from_regex("[0-9a-f]{32}", fullmatch=True)),
        draw(names),
        tuple(tails),
        tuple(firsts) if any(firsts) else (),
        draw(st.integers(0, 1 << 40)),
    )


@given(st.lists(cuts(), min_size=1, max_size=4), st.integers(0, 1 << 62), st.lists(st.tuples(names, names), max_size=2))
def test_round_trip(logs: list[LogCut], taken: int, gone: list[tuple[str, str]]) -> None:
    snapshot = Snapshot(logs, taken, missing=[MissingLog(*g) for g in gone], options={"deadline": "1s"})
    text = snapshot.text()
    back = Snapshot.parse(text.encode())
    assert (back.logs, back.taken, back.missing, back.options) == (logs, taken, snapshot.missing, {"deadline": "1s"})
    assert _plain(text.encode()) in (None, _yaml(text.encode()))
    plain = yaml.safe_load(text)  # other programs can read it, too
    assert plain["confluo_snapshot"] == FORMAT
    assert [tuple(log["tails"]) for log in plain["logs"]] == [log.tails for log in logs]


GOOD = Snapshot([CUT], 1_800_000_000_000_000_000).text()


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        ("confluo_snapshot: 1", "confluo_snapshot: 2", "it has format 2; this program reads format 1"),
        ("confluo_snapshot: 1", "confluo_snapshot: true", "format"),
        ("confluo_snapshot: 1", "snapshot: 1", "no line 'confluo_snapshot:'"),
        ("partial: false", "partial: true", "'partial' contradicts 'missing'"),
        ("partial: false", "extra: 1", "unknown key 'extra'"),
        ("tails: [10, 0, 7]", "tails: [10, 0, -7]", "log 1: 'tails' are not row counts"),
        ("tails: [10, 0, 7]", "tails: [10, 0, 281474976710656]", "log 1: 'tails' are not row counts"),
        ("tails: [10, 0, 7]", "tails: [10, 0, 7.0]", "log 1: 'tails' are not row counts"),
        ("tails: [10, 0, 7]", "tails: [10, 0, yes]", "log 1: 'tails' are not row counts"),
        ("tails: [10, 0, 7]", "tails: [10, 0, 8]", "log 1: 'rows', 'tails' and 'firsts' contradict each other"),
        ("tails: [10, 0, 7]", "tails: 17", "log 1: 'tails' is not a list"),
        ("firsts: [4, 0, 0]", "firsts: [4]", "contradict each other"),
        (UUID, UUID[1:], "log 1: 'uuid' is not 32 hexadecimal digits"),
        ('path: "/data/live.ml"', 'path: ""', "log 1: 'path' is empty"),
        ('path: "/data/live.ml"', "path: [1]", "log 1: 'path' is not a string"),
        ('path: "/data/live.ml"', 'path: "a\\0b"', "log 1: 'path' is not a string"),
        ('name: "sw1"', 'name: "' + "x" * 65 + '"', "log 1: 'name' is not a string"),
        ('name: "sw1"', 'nom: "sw1"', "log 1: it has unknown key 'nom'"),
        ('taken: "', 'taken: "x', "'taken' is not a time"),
        ("logs:", "logs: &a", "contains an anchor or alias"),
        ('kind: "packet"', "kind: !!python/object/apply:os.getpid []", "contains a tag"),
        ('kind: "packet"', "kind: *a", "alias"),
        ("logs:", "options: {a: [[[[[[[[1]]]]]]]]}\nlogs:", "nested too deep"),
        ("logs:", "logs: []\nmissing:", "it has no logs"),
        ("logs:", "logs: }", "did not find expected node content"),
    ],
)
def test_what_is_none_is_refused(tmp_path: Path, old: str, new: str, what: str) -> None:
    text = GOOD.replace(old, new, 1)
    assert text != GOOD
    file = tmp_path / "s.yaml"
    file.write_text(text)
    with pytest.raises(FormatError) as e:
        Snapshot.load(str(file))
    assert what in str(e.value)
    assert str(e.value).startswith(f"{file}: is not a snapshot: ")
    assert "\n" not in str(e.value)


def test_a_bomb_is_refused_at_once(tmp_path: Path) -> None:
    laughs = "a: &a [x, x]\n" + "".join(f"{b}: &{b} [*{a}, *{a}]\n" for a, b in itertools.pairwise("abcdefghijk"))
    for text in (laughs, "[" * 100_000, "confluo_snapshot: 1\n" + "#" * (17 << 20), "\0", ""):
        (tmp_path / "s.yaml").write_text(text)
        done = run("confluo-query", "--at", tmp_path / "s.yaml", "--count")
        assert (done.returncode, done.stdout, done.stderr.count(b"\n")) == (2, b"", 1)
        assert b"is not a snapshot" in done.stderr


LINES = st.sampled_from(
    [
        "a: 1",
        "a: 01",
        "a: -1",
        "a: true",
        "a: yes",
        "a: []",
        "a: [1, 2]",
        "a: [1,2]",
        "a: [01]",
        "a: [1, 2, ]",
        "a:",
        "no: 1",
        '- b: "x"',
        '  c: "y"',
        '  c: "\\u00e9\\n\\""',
        'a: "x" "y"',
        'a: "x',
        "- b:",
        "  c: x",
        'a: {k: "v"}',
        'a: {k: "v", l: "w"}',
        'a: {k: "v"',
        'a: {on: "v"}',
        "a: {}",
        "# x",
        "",
        "---",
        'a: "\\ud83d\\ude00"',
        'a: "\\/"',
        "a: 1 ",
        'a: "x"#',
        "   c: 1",
        "\ta: 1",
        'a: "\x85"',
    ]
)


@given(st.lists(LINES, max_size=6))
def test_what_is_read_without_yaml_is_what_yaml_reads(lines: list[str]) -> None:
    text = "\n".join(["# x", *lines, ""]).encode()
    plain = _plain(text)
    if plain:
        assert plain == _yaml(text)


def test_our_own_files_are_read_without_yaml() -> None:
    options = {"deadline": "500ms", "command": "confluo-snapshot \"a b\" 'c' -w \\x é"}
    text = Snapshot([CUT, CUT], 1, missing=[MissingLog("x", "y: [z]")], options=options).text().encode()
    assert _plain(text) == _yaml(text)
    assert Snapshot.parse(text).options == options


@given(st.binary(max_size=300))
def test_any_bytes(data: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        Snapshot.parse(data)


@given(st.data())
def test_a_damaged_file_is_a_snapshot_or_a_clear_error(data: st.DataObject) -> None:
    text = bytearray(GOOD.encode())
    for _ in range(data.draw(st.integers(1, 3))):
        text[data.draw(st.integers(0, len(text) - 1))] = data.draw(st.integers(0, 255))
    plain = _plain(bytes(text))
    if plain is not None:
        assert plain == _yaml(bytes(text))
    try:
        snapshot = Snapshot.parse(bytes(text))
    except ValueError as e:
        assert "\n" not in str(e)  # noqa: PT017
        return
    assert snapshot.logs[0].rows <= 17


@pytest.mark.parametrize(("path", "what"), [(".", "it is a folder"), ("nowhere.yaml", "No such file")])
def test_what_cannot_be_read(tmp_path: Path, path: str, what: str) -> None:
    done = run("confluo-query", "--at", path, "--count", cwd=tmp_path)
    assert (done.returncode, done.stderr.count(b"\n")) == (2, 1)
    assert what.encode() in done.stderr


def test_where_a_log_is() -> None:
    assert CUT.where == "ops@sw1:/data/live.ml"
    assert CUT._replace(host="").where == "/data/live.ml"
    assert CUT._replace(host="ops@2001:db8::1").where == "ops@[2001:db8::1]:/data/live.ml"
    assert (CUT.rows, CUT.version.tails, CUT.version.firsts) == (13, (10, 0, 7), (4, 0, 0))
    assert CUT._replace(firsts=()).version.firsts == (0, 0, 0)


def test_another_log_of_that_name(tmp_path: Path) -> None:
    path = str(tmp_path / "a.ml")
    with multilog.create(path, SIGNED) as log, log.writer() as writer:
        writer.append(signed_block(1, 0, 10))
    cut = LogCut("", "", path, log.uuid.hex(), "signed", (10,))
    with LogReader(path, at=cut._replace(tails=(4,))) as reader:
        assert [block.rows for block in reader] == [4]
    with pytest.raises(StoreError, match="is not the log of the snapshot"):
        LogReader(path, at=cut._replace(uuid=UUID))
    with pytest.raises(StoreError, match="fewer rows than the snapshot"):
        check_log(cut._replace(tails=(11,)), log.uuid, (10,), path)


def test_rows_that_retention_has_removed_are_missed_aloud(tmp_path: Path) -> None:
    from confluo_tools.multilog import retain

    path = str(tmp_path / "a.ml")
    with multilog.create(path, SIGNED, segment_blocks=1) as log, log.writer() as writer:
        for start in range(0, 200_000, 50_000):
            writer.append(signed_block(1, start, 50_000))
    done = run("confluo-snapshot", path, "-w", tmp_path / "s.yaml")
    assert done.returncode == 0
    retain.remove(multilog.open(path), {0: 65536})
    query = run("confluo-query", "--at", tmp_path / "s.yaml", "--count")
    assert (query.returncode, query.stdout) == (2, b"134464\n")
    assert b"65,536 rows of lane 0 were removed by retention" in query.stderr
    again = run("confluo-snapshot", path, "--force", "-w", tmp_path / "s.yaml")
    assert again.returncode == 0
    assert Snapshot.load(str(tmp_path / "s.yaml")).logs[0].firsts == (65536,)
    query = run("confluo-query", "--at", tmp_path / "s.yaml", "--count")
    assert (query.returncode, query.stdout, query.stderr) == (0, b"134464\n", b"")


def test_names_that_are_no_text(tmp_path: Path) -> None:
    """A folder name that is not UTF-8 gives an error, not an unreadable file."""
    path = os.fsencode(tmp_path) + b"/\xff.ml"
    multilog.create(os.fsdecode(path), SIGNED)
    done = run("confluo-snapshot", path)
    assert (done.returncode, done.stderr.count(b"\n")) == (2, 1)
    assert b"\\xff.ml: has a name that is not UTF-8" in done.stderr
