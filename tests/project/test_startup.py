"""Modules that a command loads before its first byte: none that it does not use.  Timings are in bench/."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from confluo_tools.__main__ import module_of
from running import CAMPUS, COMMANDS, ROOT, environment, run

HEAVY = {
    "rich",
    "pygments",
    "dpkt",
    "yaml",
    "pydantic",
    "asyncio",
    "numpy",
    "pyarrow",
    "nanoarrow",
    "zstandard",
    "logging",
    "dataclasses",
    "email",
    "http",
    "ssl",
    "multiprocessing",
    "concurrent",
    "sqlite3",
}

# Runs a command's main() in a process of its own, then prints what was imported.
PROBE = """
import json, os, sys
sys.path.insert(0, sys.argv[1])
from importlib import import_module
main = import_module(sys.argv[2]).main
out = os.dup(1)
os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
status = main(sys.argv[3:])
os.write(out, json.dumps([status, sorted({m.split(".")[0] for m in sys.modules}), sorted(sys.modules)]).encode())
"""


def modules(command: str, *words: str, stdin: bytes = b"") -> tuple[int, set[str], set[str]]:
    """(status, top-level modules, all modules) after ``command words``."""
    done = subprocess.run(
        [
            sys.executable,
            "-S",
            "-c",
            PROBE.replace("import json", f"import sys; sys.path += {sys.path!r}; import json"),
            str(ROOT),
            module_of(command),
            *words,
        ],
        capture_output=True,
        input=stdin,
        env=environment(),
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    status, top, every = json.loads(done.stdout)
    return status, set(top), set(every)


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("startup") / "x.ml"
    assert run("confluo-capture", "-r", CAMPUS, "-w", path, "--index", "dst_port", "-q").returncode == 0
    return path


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("flag", ["--version", "--help", "-h"])
def test_help_and_version_load_nothing(command: str, flag: str) -> None:
    status, top, every = modules(command.removeprefix("confluo-"), flag)
    assert status == 0
    assert top & HEAVY == set()
    assert not any(m.startswith(("confluo_tools.core.", "confluo_tools.multilog", "confluo_tools.expr")) for m in every)


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("query", ["LOG", "dst_port == 443"]),
        ("query", ["LOG", "src_ip in 10.1.0.0/16", "-T", "-f", "ts,len"]),
        ("query", ["LOG", "tcp", "--count"]),
        ("query", ["LOG", "--agg", "count", "--by", "proto", "-J"]),
        ("query", ["STREAM", "tcp", "-o", "csv"]),
        ("convert", ["STREAM", "-J"]),
        ("convert", ["LOG", "-o", "stream"]),
        ("query", ["LOG", "tcp", "--since", "2026-11-20", "-o", "table"]),
        ("info", ["STREAM"]),
    ],
)
def test_plain_runs_load_nothing_heavy(command: str, words: list[str], log: Path, tmp_path: Path) -> None:
    stream = tmp_path / "s"
    stream.write_bytes(run("confluo-query", log).stdout)
    use = [{"LOG": str(log), "STREAM": str(stream)}.get(w, w) for w in words]
    status, top, _ = modules(command, *use)
    assert status == 0
    assert top & HEAVY == set()


def test_a_stream_through_a_filter_needs_no_store(log: Path) -> None:
    data = run("confluo-query", log).stdout
    _, _, every = modules("query", "-", "tcp", stdin=data)
    assert not any(m.startswith(("confluo_tools.multilog", "confluo_tools.formats.pcap")) for m in every)


def test_confluo_loads_next_to_nothing() -> None:
    code = """
import sys
sys.path.insert(0, sys.argv[1])
before = set(sys.modules)
import confluo_tools.__main__ as m
m.usage()
print(*sorted(set(sys.modules) - before))
"""
    done = subprocess.run([sys.executable, "-c", code, str(ROOT)], capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) <= {
        "confluo_tools",
        "confluo_tools.__main__",
        "confluo_tools.plain_print",
        "__future__",
    }


def test_the_probe_sees_what_is_loaded(log: Path) -> None:
    _, top, _ = modules("convert", str(log), "-o", "parquet")
    assert "pyarrow" in top
