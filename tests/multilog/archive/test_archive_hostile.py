"""Archives that another user wrote or that the disk changed: names in records, statistics in footers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from archive_lab import rows_of, run_all
from confluo_tools import multilog
from confluo_tools.errors import StoreError
from confluo_tools.expr import compile
from confluo_tools.multilog.archive.part_check import own_path
from confluo_tools.multilog.archive.writer import check
from confluo_tools.multilog.open_log import open_log
from timed_rows import TIMED, fill


@pytest.fixture
def log(tmp_path: Path) -> multilog.Log:
    log = multilog.create(tmp_path / "t.ml", TIMED)
    fill(log, (100, 1000), (100, 5000))
    return log


def record_of(tmp_path: Path) -> Path:
    return sorted((tmp_path / "archive/.confluo").rglob("*.json"))[0]


def test_records_that_name_other_files_are_refused(log: multilog.Log, tmp_path: Path) -> None:
    run_all(log, tmp_path / "archive", remove=False)
    victim = tmp_path / "victim"
    victim.write_text("precious")
    record, uuid = record_of(tmp_path), log.uuid.hex()
    good = json.loads(record.read_text())
    own = good["files"][0]["path"]
    waiting = tmp_path / "archive/.confluo/tmp" / f"{Path(own).stem}@b@c@d"
    waiting.write_text("evil")
    names: list[Any] = [str(victim), "../victim", f"../{own}", f"./{own}", own.replace("-000-", "-001-"), 5, None]
    names += [own.replace("host=", "host=../../"), f"host=d/date=b/hour=c/../../{uuid}x.parquet", [own]]
    bad: list[Any] = [{**good, "files": [{**good["files"][0], "path": name}, *good["files"][1:]]} for name in names]
    wrong_times: tuple[Any, ...] = ([9, 3], [0], 7, ["0", "9"], [0, 1 << 63], [0.5, 1], {})
    bad += [{**good, "files": [{**good["files"][0], "times": x}, *good["files"][1:]]} for x in wrong_times]
    bad += [{**good, **change} for change in ({"files": []}, {"end": 150}, {"first": 1}, {"files": 7}, {"first": None})]
    for text in [*map(json.dumps, bad), "[" * 100_000, "", "[1]", "9" * 10_000]:
        record.write_text(text)
        with pytest.raises(StoreError, match="is damaged"):
            run_all(log, tmp_path / "archive")
        assert any("damaged" in what for _, what in check(str(tmp_path / "archive")))
    assert victim.read_text() == "precious"
    assert waiting.exists()
    assert open_log(log.path).count(compile("", TIMED)) == 200


def test_a_flipped_bit_in_a_footer_is_damage(log: multilog.Log, tmp_path: Path) -> None:
    run_all(log, tmp_path / "archive")
    part = sorted((tmp_path / "archive").rglob("*.parquet"))[0]
    good = part.read_bytes()
    size = int.from_bytes(good[-8:-4], "little") + 8
    expected = rows_of(open_log(log.path), "seq >= 0")
    for at in range(len(good) - size, len(good), size // 60):
        data = bytearray(good)
        data[at] ^= 0x20
        part.write_bytes(data)
        told: list[str] = []
        assert len(rows_of(open_log(log.path, warn=told.append), "seq >= 0")[0]) < len(expected[0])
        assert len(told) == 1
        assert str(part) in told[0]
    part.write_bytes(good)
    record = record_of(tmp_path)
    old = json.loads(record.read_text())
    for one in old["files"]:
        del one["footer"]  # as an earlier program wrote it
    record.write_text(json.dumps(old))
    assert rows_of(open_log(log.path), "seq >= 0") == expected


def test_the_path_of_a_part() -> None:
    uuid = "0123456789abcdef" * 2
    name = f"{uuid}-000-{0:016d}-{9:016d}.parquet"
    assert own_path(f"host=a%2Fb/date=2026-11-20/hour=13/{name}", uuid, 0, 0, 9)
    for folder in ("host=a/b/date=2026-11-20/hour=13/", "host=a/date=2026-11-20/hour=24/", "/host=a/", ""):
        assert not own_path(folder + name, uuid, 0, 0, 9)
