"""confluo-archive --dry-run: records in every output format, for each form of the command."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from archive_lab import HOUR, run_all
from confluo_tools import multilog
from running import lines, run
from timed_rows import TIMED, fill

ROWS = 100


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A log of three segments of an hour, t.ml, and their archive, a."""
    log = multilog.create(tmp_path / "t.ml", TIMED)
    for minute in range(3):
        fill(log, (ROWS, HOUR + 60 * minute + 60))
        run_all(log, tmp_path / "a", remove=False)
    return tmp_path


def forms(place: Path) -> dict[str, tuple[list[object], list[dict[str, Any]]]]:
    """The words of each form, and the records that it prints."""
    log = str(place / "t.ml")
    parts = sorted(map(str, (place / "a").glob("host=*/*/*/*.parquet")))
    segments = [{"path": str(path), "rows": ROWS} for path in sorted(Path(log).glob("lane-*/*.arrow"))]
    size = sum(path.stat().st_blocks * 512 for path in Path(log).glob("lane-*/*.arrow"))
    batch = {"log": log, "lane": 0, "first": 0, "rows": 3 * ROWS}
    batch |= {"newest": "1970-01-01T01:03:00.000000000Z", "bytes": size}
    files = [{"path": path, "bytes": Path(path).stat().st_size} for path in parts]
    return {
        "archive": ([log, "--to", place / "new"], [batch]),
        "delete": ([log, "--keep", "1h", "--delete"], segments),
        "shorten": (["--keep", "1h", place / "a"], files),
        "merge": (["--compact", place / "a"], [{"path": str(place / "a"), "parts": 3, "into": 1}]),
        "compress": (["--compress", log], segments),
    }


@pytest.mark.parametrize("form", ["archive", "delete", "shorten", "merge", "compress"])
def test_a_plan_is_records(place: Path, form: str) -> None:
    words, wanted = forms(place)[form]
    argv = ["confluo-archive", *words, "--dry-run"]
    assert [json.loads(line) for line in lines(run(*argv, "-J"))] == wanted
    found = csv.DictReader(io.StringIO(run(*argv, "-o", "csv").stdout.decode()))
    assert list(found) == [{name: str(value) for name, value in row.items()} for row in wanted]
    done = run(*argv, "-w", place / "plan.parquet")
    assert (done.returncode, done.stdout) == (0, b"")
    stored = pq.read_table(place / "plan.parquet").to_pylist()
    timeless = [name for name in wanted[0] if name != "newest"]
    assert [{name: row[name] for name in timeless} for row in stored] == [
        {name: row[name] for name in timeless} for row in wanted
    ]
    names, types, *text = lines(run(*argv))
    assert names == "\t".join(["#fields", *wanted[0]])
    assert types.startswith("#types\t")
    assert text == ["\t".join(map(str, row.values())) for row in wanted]
    assert lines(run(*argv, "-o", "table", "-W"))[0].split() == list(wanted[0])
    last = list(wanted[0])[-1]
    assert lines(run(*argv, "-f", last, "-T", "--no-header")) == [str(row[last]) for row in wanted]
    assert [line.split()[0] for line in lines(run(*argv, "-f", "help"))] == ["FIELD", *wanted[0]]


def test_both_steps_of_a_run_are_one_plan(place: Path) -> None:
    planned = forms(place)
    argv = ["confluo-archive", place / "t.ml", "--to", place / "a", "--keep", "1h", "--dry-run", "-J"]
    found = [json.loads(line) for line in lines(run(*argv))]
    assert [row["rows"] for row in found if row["path"] is None] == [ROWS] * 3
    files = [{"path": row["path"], "bytes": row["bytes"]} for row in found if row["path"] is not None]
    assert files == planned["shorten"][1]


@pytest.mark.parametrize("words", [["-J"], ["-T"], ["-o", "csv"], ["-w", "x.tsv"], ["-f", "path"]])
def test_output_options_need_a_dry_run(place: Path, words: list[str]) -> None:
    done = run("confluo-archive", place / "t.ml", "--to", place / "a", *words)
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr == f"confluo-archive: {words[0]}: is for --dry-run; leave it out\n".encode()
    assert len(list(place.glob("t.ml/lane-*/*.arrow"))) == 3
