"""What is shipped works: source archive -> wheel -> a fresh environment -> commands, manuals, a first question."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

from confluo_tools.__main__ import COMMANDS

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.slow


def run(*command: str | Path, cwd: Path | None = None, **more: str) -> str:
    env = {k: v for k, v in os.environ.items() if not k.startswith(("CONFLUO_", "PYTHON"))} | more
    done = subprocess.run(
        command, cwd=cwd, capture_output=True, text=True, check=False, env=env, stdin=subprocess.DEVNULL
    )
    if done.returncode:
        pytest.fail(f"{' '.join(map(str, command))}:\n{done.stdout[-4000:]}{done.stderr[-4000:]}", pytrace=False)
    return done.stdout


@pytest.fixture(scope="session")
def shipped(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The source archive, made from a copy of the tracked files, and the wheel, built from that archive alone.

    Made once also where several workers run tests: the first one does it, the others wait.
    """
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("not a git checkout")
    folder = tmp_path_factory.getbasetemp()
    folder = (folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder) / "shipped"
    folder.mkdir(exist_ok=True)
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not any(folder.glob("*.whl")):
            copy = folder / "copy"
            for name in filter(None, listed.stdout.split("\0")):
                (copy / name).parent.mkdir(parents=True, exist_ok=True)
                if (ROOT / name).exists():
                    shutil.copy2(ROOT / name, copy / name, follow_symlinks=False)
            cache = os.environ.get("CONFLUO_CYTHON_CACHE", "")
            run(sys.executable, "setup.py", "-q", "sdist", "-d", folder, cwd=copy, CONFLUO_CYTHON_CACHE=cache)
            (archive,) = folder.glob("*.tar.gz")
            # bin/check sets $CC to ccache and a cache for Cython: what the checkout compiled is not compiled again.
            # Without ccache a script compiles without optimization: the speed of the code does not matter here.
            compiler = os.environ.get("CC", "")
            if "ccache" not in compiler:
                script = folder / "cc"
                script.write_text(f'#!/bin/sh\nexec {sysconfig.get_config_var("CC") or "cc"} "$@" -O0\n')
                script.chmod(0o755)
                compiler = str(script)
            run(
                sys.executable,
                "-m",
                "pip",
                "wheel",
                "-q",
                "--no-deps",
                "--no-build-isolation",
                "--no-input",
                "-w",
                folder,
                archive,
                CC=compiler,
                CONFLUO_CYTHON_CACHE=cache,
            )
    (archive,), (wheel,) = folder.glob("*.tar.gz"), folder.glob("*.whl")
    return archive, wheel


@pytest.fixture
def sdist(shipped: tuple[Path, Path]) -> Path:
    return shipped[0]


@pytest.fixture
def wheel(shipped: tuple[Path, Path]) -> Path:
    return shipped[1]


def test_the_archive_holds_every_source(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    wanted = {
        str(p.relative_to(ROOT))
        for folder, pattern in (
            ("pyx", "*/*"),
            ("confluo_tools", "**/*.py"),
            ("confluo_tools", "**/*.pxd"),
            ("confluo_tools", "**/*.pyi"),
            ("confluo_tools", "**/*.yaml"),
            ("man", "*/*.[1-8]"),
            ("completions", "*"),
            ("packaging", "**/*"),
            ("docs", "*.md"),
            ("examples", "**/*.md"),
            ("confluo_tools/pingmesh/heatmap/page", "*"),
        )
        for p in (ROOT / folder).glob(pattern)
        if p.is_file()
    }
    wanted |= {"README.md", "DESIGN.md", "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "pyproject.toml", "setup.py"}
    assert sorted(wanted - names) == []
    assert [name for name in names if name.endswith((".so", ".pyc"))] == []


def test_the_wheel_holds_what_runs_and_no_more(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.startswith("confluo_tools")} == set()
    modules = {Path(name).name.split(".")[0] for name in names if name.endswith(".so")}
    assert modules == {"cython_shared", *(p.stem for p in (ROOT / "pyx").glob("*/*.pyx"))}
    if shutil.which("clang"):
        programs = {f"confluo_tools/core/{p.parent.name}/{p.stem}.o" for p in (ROOT / "pyx").glob("*/*.bpf.c")}
        assert programs == {name for name in names if name.endswith(".o")}
    for page in (ROOT / "man").glob("*/*.[1-8]"):
        assert any(name.endswith(f"share/man/{page.parent.name}/{page.name}") for name in names), page
    for schema in (ROOT / "confluo_tools").rglob("*.yaml"):
        assert str(schema.relative_to(ROOT)) in names
    for part in (ROOT / "confluo_tools" / "pingmesh" / "heatmap" / "page").iterdir():
        assert f"confluo_tools/pingmesh/heatmap/page/{part.name}" in names
    assert "confluo_tools/py.typed" in names
    shared = {name.partition("/data/share/")[2] for name in names}
    for command in ["confluo", *(f"confluo-{name}" for name, _, _ in COMMANDS)]:
        assert f"bash-completion/completions/{command}" in shared
        assert f"fish/vendor_completions.d/{command}.fish" in shared
    assert "zsh/site-functions/_confluo" in shared
    for unit in (ROOT / "examples").glob("*.service"):
        assert f"confluo-tools/systemd/{unit.name}" in shared
    assert {"confluo-tools/pingmesh/grafana.json", "confluo-tools/stream/grafana.json"} <= shared


def test_the_extra_all_is_every_extra_of_users() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    (everything,) = extras["all"]
    assert everything == f"confluo-tools[{','.join(name for name in extras if name not in ('all', 'test'))}]"


def test_installed_into_a_fresh_environment(wheel: Path, tmp_path: Path) -> None:
    run(sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv")
    tools = tmp_path / "venv" / "bin"
    pip = [sys.executable, "-m", "pip", "--python", tools / "python"]
    run(*pip, "install", "-qq", "--no-input", "--no-compile", "--disable-pip-version-check", wheel)
    assert (tmp_path / "venv" / "share" / "man" / "man1" / "confluo-query.1").exists()
    for name, _, _ in COMMANDS:
        assert run(tools / f"confluo-{name}", "--version", cwd=tmp_path).startswith(f"confluo-{name} ")
    assert "capture" in run(tools / "confluo", "--help", cwd=tmp_path)
    capture = ROOT / "examples" / "data" / "vlan.pcap.gz"
    run(tools / "confluo", "capture", "-q", "-r", capture, "-w", "vlan.ml", "--index", "src_ip", cwd=tmp_path)
    counted = run(tools / "confluo-query", "vlan.ml", "vlan == 10", "--count", cwd=tmp_path)
    assert int(counted) > 50


def test_the_debian_package_installs_and_runs(wheel: Path, tmp_path: Path) -> None:
    if shutil.which("dpkg-deb") is None or os.geteuid():
        pytest.skip("needs dpkg and root")
    run(sys.executable, ROOT / "packaging" / "debian", wheel, tmp_path)
    (package,) = tmp_path.glob("confluo-tools_*.deb")
    system = tmp_path / "system"
    (system / "var/lib/dpkg").mkdir(parents=True)
    (system / "var/lib/dpkg/status").touch()
    forced = ("--force-depends", "--force-script-chrootless", "--log=/dev/null")
    run("dpkg", f"--root={system}", *forced, "-i", package)
    assert "install ok installed" in run("dpkg-query", f"--admindir={system}/var/lib/dpkg", "-s", "confluo-tools")
    for name in ("man/man5/confluo-schema.5.gz", "bash-completion/completions/confluo-query"):
        assert (system / "usr/share" / name).exists()
    assert (system / "usr/share/zsh/vendor-completions/_confluo").exists()
    assert (system / "usr/lib/systemd/system/confluo-capture.service").exists()
    # No package of this environment helps: -S leaves only the standard library.
    tools = [sys.executable, "-I", "-S"]
    for name, _, _ in COMMANDS:
        assert os.path.islink(system / f"usr/bin/confluo-{name}")
    capture = ROOT / "examples" / "data" / "vlan.pcap.gz"
    run(*tools, system / "usr/bin/confluo-capture", "-q", "-r", capture, "-w", "vlan.ml", cwd=tmp_path)
    counted = run(*tools, system / "usr/bin/confluo", "query", "vlan.ml", "vlan == 10", "--count", cwd=tmp_path)
    assert int(counted) > 50
    assert "confluo-vote" in run(*tools, system / "usr/bin/confluo-vote", "--help", cwd=tmp_path)


def test_the_container_file_names_what_is_there() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    lines = (ROOT / "packaging" / "Containerfile").read_text().splitlines()
    copied = {name for line in lines if line.startswith("COPY ") for name in line.split()[1:-1]}
    assert [name for name in copied if not (ROOT / name).exists()] == []
    globs = [pattern for patterns in project["tool"]["setuptools"]["data-files"].values() for pattern in patterns]
    assert {pattern.split("/")[0] for pattern in globs} - {"build"} <= copied
    assert {"pyproject.toml", "setup.py", "pyx", "confluo_tools", project["project"]["readme"]} <= copied
    extras = {
        name for line in lines if "[" in line and "pip" in line for name in line.split("[")[1].split("]")[0].split(",")
    }
    assert extras
    assert extras <= set(project["project"]["optional-dependencies"])
