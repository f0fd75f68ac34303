"""Inputs with other names for the same numbers are not read as one: the name is the value."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import confluo_tools as ct
from running import lines, run, shell


def schema(*names: str, unit: str = "") -> ct.Schema:
    fields = [
        ct.Field("ts", "time"),
        ct.Field("c", "enum(u8)", names=dict(enumerate(names, 1))),
        ct.Field("n", "u32", unit),
    ]
    return ct.Schema("colour", fields)


def log(path: Path, *names: str, unit: str = "") -> Path:
    with ct.Writer(path, schema(*names, unit=unit)) as writer:
        writer.append([{"ts": i, "c": name, "n": i} for i, name in enumerate(names, 1)])
    return path


@pytest.fixture
def logs(tmp_path: Path) -> dict[str, Path]:
    return {
        "a": log(tmp_path / "a.ml", "red", "blue"),
        "b": log(tmp_path / "b.ml", "blue", "green"),
        "more": log(tmp_path / "more.ml", "red", "blue", "green"),
    }


def test_logs(logs: dict[str, Path]) -> None:
    refused = run("confluo-query", "-e", "c == red", logs["a"], logs["b"])
    assert (refused.returncode, refused.stdout) == (2, b"")
    what = f"names values otherwise than {logs['a']}: c 1 is 'red', not 'blue'; ask them one by one"
    assert refused.stderr == f"confluo-query: {logs['b']}: {what}\n".encode()
    with pytest.raises(ct.ConfluoError, match="names values otherwise"):
        ct.open([logs["a"], logs["b"]])
    done = run("confluo-query", "-e", "", logs["a"], logs["more"], "--agg", "count", "--by", "c", "-T", "--no-header")
    assert lines(done) == ["red\t2", "blue\t2", "green\t1"]


@pytest.mark.parametrize("form", ["parquet", "arrow", "stream"])
def test_files(logs: dict[str, Path], tmp_path: Path, form: str) -> None:
    files = {}
    for name, path in logs.items():
        files[name] = tmp_path / f"{name}.{form}"
        run("confluo-convert", path, "--stored", "-o", form, "-w", files[name], check=True)
    both = run("confluo-query", "-e", "", files["a"], files["b"], "--agg", "count", "--by", "c", "-T", "--no-header")
    assert (lines(both), both.stderr) == (["red\t1", "blue\t2", "green\t1"], b"")
    more = run("confluo-query", "-e", "c == green", files["a"], files["more"], "-T", "--no-header", "-f", "n,c")
    assert (more.stdout, more.stderr) == (b"3\tgreen\n", b"")


def test_a_pipe_shows_its_names_too_late(logs: dict[str, Path], tmp_path: Path) -> None:
    # What only the pipe names is a number where it is free, and not mixed with another name where it is not.
    for name in ("a", "b", "more"):
        run("confluo-convert", logs[name], "--stored", "-w", tmp_path / f"{name}.arrows", check=True)
    pipe = f"cat {tmp_path}/%s.arrows | confluo-query -e '' {tmp_path}/a.arrows - -T --no-header -f c"
    more = shell(pipe % "more")
    assert more.stdout.split() == [b"red", b"blue", b"red", b"blue", b"3"]
    assert b"-: names of values that %s does not have" % bytes(tmp_path / "a.arrows") in more.stderr
    refused = shell(pipe % "b")
    assert refused.returncode == 2
    assert b": c 1 is 'red', not 'blue'; ask them one by one\n" in refused.stderr


def test_categories_of_pandas(tmp_path: Path) -> None:
    for name, values in (("a", ["red", "blue"]), ("b", ["blue", "green"])):
        moments = pd.to_datetime(["2025-01-01T00:00:00Z"] * 2)
        frame = pd.DataFrame({"ts": moments, "c": pd.Categorical(values, categories=values)})
        frame.to_parquet(tmp_path / f"{name}.parquet")
    files = [tmp_path / "a.parquet", tmp_path / "b.parquet"]
    done = run("confluo-query", "-e", "", *files, "--agg", "count", "--by", "c", "-T", "--no-header")
    assert lines(done) == ["red\t1", "blue\t2", "green\t1"]
    with warnings.catch_warnings(action="ignore", category=ct.ConfluoWarning):  # types are guessed
        assert ct.open(files).count("c == blue") == 2


def test_more_names_than_numbers(tmp_path: Path) -> None:
    words = [f"w{i}" for i in range(300)]
    for name, values in (("a", words[:200]), ("b", words[100:])):
        frame = pd.DataFrame({"ts": pd.to_datetime(["2025-01-01T00:00:00Z"] * 200), "c": pd.Categorical(values)})
        frame.to_parquet(tmp_path / f"{name}.parquet")
    done = run("confluo-query", "-e", "", tmp_path / "a.parquet", tmp_path / "b.parquet", "--agg", "count", "--by", "c")
    assert (done.returncode, done.stdout) == (2, b"")
    assert b"ask them one by one" in done.stderr


def test_units_of_time(tmp_path: Path) -> None:
    paths = [log(tmp_path / "us.ml", "red", unit="us"), log(tmp_path / "ms.ml", "red", unit="ms")]
    done = run("confluo-query", "-e", "", *paths, "--agg", "sum(n)")
    assert done.returncode == 2
    assert done.stderr.endswith(b"ms.ml: stores 'n' in ms, %s in us; ask them one by one\n" % bytes(paths[0]))


def test_an_archive_takes_one_meaning(logs: dict[str, Path], tmp_path: Path) -> None:
    archive = tmp_path / "archive"
    assert run("confluo-archive", logs["a"], "--to", archive).returncode == 0
    refused = run("confluo-archive", logs["b"], "--to", archive)
    assert refused.returncode == 2
    assert refused.stderr.endswith(b": c 1 is 'red', not 'blue'; choose another folder\n")
    assert run("confluo-query", logs["b"], "--count").stdout == b"2\n"
    assert run("confluo-archive", logs["more"], "--to", archive).returncode == 0
    done = run("confluo-query", archive, "--agg", "count", "--by", "c", "-T", "--no-header")
    assert lines(done) == ["red\t2", "blue\t2", "green\t1"]


@pytest.mark.parametrize("form", ["answer", "batch", "arrow", "pandas"])
def test_a_writer(logs: dict[str, Path], form: str) -> None:
    def given(name: str) -> Any:
        answer = ct.open(logs[name]).query()
        made = {"answer": lambda: answer, "batch": lambda: next(iter(answer)), "arrow": answer.to_arrow}
        return made[form]() if form in made else answer.to_arrow().to_pandas()

    with ct.Writer(logs["a"]) as writer:
        if form != "pandas":  # its frames have no schema of ours
            with pytest.raises(ct.ConfluoError, match="c 1 is 'red', not 'blue'"):
                writer.append(given("b"))
            with pytest.raises(ct.ConfluoError, match="has no name 'green' in field c"):
                writer.append(given("more"))
        assert writer.append(given("a")) == 2
    assert [row["c"] for row in ct.open(logs["a"]).query().to_dicts()].count("red") == 2


def test_a_writer_takes_no_field_of_another_type(tmp_path: Path) -> None:
    times = ct.Schema("s", [ct.Field("x", "time")])
    numbers = ct.Schema("s", [ct.Field("x", "i64")])
    with ct.Writer(tmp_path / "n.ml", numbers) as writer:
        writer.append([{"x": 7}])
    with ct.Writer(tmp_path / "t.ml", times) as writer:
        for given in (ct.open(tmp_path / "n.ml").query(), next(iter(ct.open(tmp_path / "n.ml").query()))):
            with pytest.raises(ct.ConfluoError, match="has field x as time, not i64"):
                writer.append(given)
        assert writer.append(ct.open(tmp_path / "t.ml").query()) == 0
