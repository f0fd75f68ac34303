"""Arrow values that are made without `pa.array` are those that it makes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from confluo_tools.formats import arrow_values
from running import CAMPUS, ROOT, run


@given(st.lists(st.none() | st.text(max_size=20), max_size=40))
def test_texts(values: list[str | None]) -> None:
    found = arrow_values.texts([None if value is None else value.encode() for value in values])
    found.validate(full=True)
    assert found.equals(pa.array(values, pa.utf8()))
    for value in values:
        assert arrow_values.text(None if value is None else value.encode()).as_py() == value


@pytest.mark.parametrize(("kind", "least"), [(pa.int64(), -(1 << 63)), (pa.uint64(), 0)])
@given(st.data())
def test_numbers(kind: pa.DataType, least: int, data: st.DataObject) -> None:
    some = data.draw(st.lists(st.integers(least, least + (1 << 64) - 1), max_size=40))
    found = arrow_values.numbers(some, kind)
    found.validate(full=True)
    assert found.equals(pa.array(some, kind))


def test_to_write_parquet_and_archives_loads_no_pandas(tmp_path: Path) -> None:
    """It is installed for these tests."""
    pytest.importorskip("pandas")
    log = tmp_path / "t.ml"
    assert run("confluo-capture", "-r", CAMPUS, "-w", log).returncode == 0
    program = """
import sys
from confluo_tools.__main__ import main
assert main(sys.argv[1:]) == 0
assert "pyarrow" in sys.modules and "pandas" not in sys.modules
"""
    command = [sys.executable, "-c", program]
    for words in (f"convert {log} -w {tmp_path}/t.parquet", f"archive {log} --to {tmp_path}/archive"):
        done = subprocess.run([*command, *words.split()], capture_output=True, text=True, cwd=ROOT, check=False)
        assert done.returncode == 0, done.stderr
