"""Commands do without numpy, and print the same without it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from running import BIN, CAMPUS, environment, run

# argv: "with" or "without", the module of a command, its arguments
SCRIPT = """
import sys
from importlib import import_module
if sys.argv[1] == "with":
    import numpy
status = import_module(sys.argv[2]).main(sys.argv[3:])
loaded = sys.argv[1] == "with" or "in_net" in sys.argv[3]  # DuckDB needs it for functions
assert ("numpy" in sys.modules) == loaded
import numpy
assert numpy.arange(3).sum() == 3
sys.exit(status)
"""
QUERY, SQL = "confluo_tools.commands.query", "confluo_tools.sql.command"


def printed(how: str, module: str, *words: Any, cwd: Path) -> bytes:
    argv = [sys.executable, "-c", SCRIPT, how, module, *words]
    done = subprocess.run(
        argv, capture_output=True, env=environment(PYTHONPATH=str(BIN.parent)), cwd=cwd, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, b"")
    return done.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("numpy")
    for words in (("a.ml",), ("a.parquet",), ("a.arrow",)):
        assert run("confluo-convert", CAMPUS, "-w", *words, cwd=made).returncode == 0
    assert run("confluo-archive", "a.ml", "--to", "archive", "--host", "gw1", "--keep-log", cwd=made).returncode == 0
    return made


@pytest.mark.parametrize(
    "words",
    [
        (QUERY, "a.parquet", "udp", "-J"),
        (QUERY, "a.arrow", "tcp", "--agg", "count, p99(len)", "--by", "src_ip", "-o", "parquet"),
        (QUERY, "a.ml", "-o", "arrow", "-f", "ts,src_ip,proto,tcp_flags"),
        (QUERY, "archive", "--agg", "count, avg(len)", "--by", "proto", "-o", "arrow", "--readable"),
        (SQL, "select src_ip, count(*) n, avg(len) from 'a.ml' group by 1 order by 2 desc, 1"),
        (SQL, "select * from 'a.parquet' where in_net(src_ip, '192.0.2.0/24') order by ts", "-o", "arrow"),
    ],
)
def test_the_output_is_the_same(folder: Path, words: tuple[str, ...]) -> None:
    without = printed("without", *words, cwd=folder)
    assert len(without) > 100
    assert without == printed("with", *words, cwd=folder)
