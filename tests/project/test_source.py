"""The linters and type checkers as tests, and the few rules of this tree that no linter knows."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from cython_lint.cython_lint import PYCODESTYLE_CODES

MAX_LINES = 700  # a file holds one idea; one that is longer than this holds two
ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = [
    "bin/confluo",
    "bin/demo",
    "bin/check",
    ".ci/run",
    ".ci/setup.sh",
    "examples/diagnose-losses",
    "examples/diagnose-outcast",
]
# What Cython adds to every module; __init__, because a __cinit__ hides its arguments; a name for a long type.
STUB_ALLOWED = r"""confluo_tools\.core\.\w+\.\w+\.(\w+\.)?(__pyx_capi__|__test__|__pyx_vtable__|__reduce_cython__)
confluo_tools\.core\.\w+\.\w+\.(\w+\.)?__init__
confluo_tools\.core\.cython_shared
confluo_tools\.core\.text\.text_writer\.Item
confluo_tools\.core\.clickhouse\.native_batch\.Column
"""


def python(*args: str | Path) -> str:
    """Output of ``python -m ...``; fails the test with it when the status is not 0."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        [sys.executable, "-m", *args],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PATH": path},
    )
    if done.returncode:
        pytest.fail(f"{' '.join(map(str, args))}:\n{done.stdout}{done.stderr}", pytrace=False)
    return done.stdout


def tracked() -> list[str]:
    done = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip("not a git checkout")
    return [name for name in done.stdout.split("\0") if name and (ROOT / name).exists()]


def test_ruff() -> None:
    python("ruff", "check", ".", "examples/record-data", "examples/make-paths")


@pytest.mark.slow
def test_mypy_strict(monkeypatch: pytest.MonkeyPatch) -> None:
    python("mypy")
    for script in ("record-data", "make-paths"):
        python("mypy", "--scripts-are-modules", f"examples/{script}")
    monkeypatch.setenv("MYPYPATH", "examples/lab")  # the other one uses its modules too
    for lab in ("lab", "clos"):
        python("mypy", *sorted((ROOT / "examples" / lab).glob("*.py")))


@pytest.mark.slow
def test_stubs_tell_the_truth(tmp_path: Path) -> None:
    allow = tmp_path / "allow"
    allow.write_text(STUB_ALLOWED)
    python(
        "mypy.stubtest",
        "confluo_tools.core",
        "--allowlist",
        allow,
        "--ignore-unused-allowlist",
        "--ignore-disjoint-bases",
        "--mypy-config-file",
        ROOT / "pyproject.toml",
    )


def test_every_extension_has_a_stub() -> None:
    sources = {f"{p.parent.name}.{p.stem}" for p in (ROOT / "pyx").glob("*/*.pyx")}
    stubs = {f"{p.parent.name}.{p.stem}" for p in (ROOT / "confluo_tools" / "core").glob("*/*.pyi")}
    assert sources == stubs


def test_cython_lint() -> None:
    """cython-lint starts pycodestyle for each file; here it is started once, as cython-lint would start it."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["cython-lint"]
    python("cython_lint.cython_lint", "--no-pycodestyle", "pyx", "confluo_tools/core")
    python(
        "pycodestyle",
        f"--ignore={','.join(PYCODESTYLE_CODES | set(settings['ignore']))}",
        f"--max-line-length={settings['max-line-length']}",
        "--filename=*.pyx,*.pxd",
        "pyx",
        "confluo_tools/core",
    )


def test_completions_have_the_options_of_the_commands() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "completions" / "update", "--check"], capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.stderr) == ("", ""), "run completions/update"


@pytest.mark.parametrize("script", SCRIPTS)
def test_shell_scripts_parse(script: str) -> None:
    done = subprocess.run(["sh", "-n", ROOT / script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_no_file_outgrows_its_reader() -> None:
    code = (".py", ".pyx", ".pxd", ".h", ".c", ".pyi", "record-data")
    lines = {name: (ROOT / name).read_text().count("\n") for name in tracked() if name.endswith(code)}
    assert lines
    assert {name: n for name, n in lines.items() if n > MAX_LINES} == {}


def test_nothing_of_one_machine() -> None:
    """Paths and hosts that only one developer has; captures of other people."""
    wrong = re.compile(r"(?<![\w.])/(work|root|home/\w+)/|\bfile:///")
    found = []
    for name in tracked():
        if name.endswith((".gz", ".pcap", ".pcapng")):
            assert name.startswith(("examples/data/", "tests/")), name
            continue
        text = (ROOT / name).read_text(errors="replace")
        found += [
            f"{name}:{n}: {line.strip()[:100]}"
            for n, line in enumerate(text.splitlines(), 1)
            if wrong.search(line) and name != "tests/project/test_source.py"
        ]
    assert found == []


def test_kernels_are_built_for_every_machine() -> None:
    """-march=native would make wheels that die on other processors."""
    assert "-march" not in re.sub(r"#.*", "", (ROOT / "setup.py").read_text())


def test_commands_are_links_to_one_launcher() -> None:
    links = [p for p in (ROOT / "bin").iterdir() if p.name.startswith("confluo-")]
    assert links
    assert {p.name: os.readlink(p) for p in links if p.is_symlink()} == {p.name: "confluo" for p in links}
