"""The documents tell the truth: pages lint, links lead somewhere, commands exist, one-liners run, and the demo prints
what the README shows."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest
from setuptools import find_packages

from confluo_tools.__main__ import COMMANDS, GROUPS, module_of
from confluo_tools.pingmesh.command import VERBS as PINGMESH
from confluo_tools.replay.record.command import VERBS as RECORD
from confluo_tools.stream.command import VERBS as STREAM
from confluo_tools.stream.services.command import VERBS as SERVICES
from sessions import FENCE, ROOT, Shell, agrees, blocks, commands

NAMES = [name for name, _, _ in COMMANDS]
# words that make another command of one: confluo-vote simulate
VERBS = [
    "vote-simulate",
    "vote-bound",
    "replay-diff",
    "replay-explain",
    "replay-queues",
    "replay-sample",
    *(f"pingmesh-{verb.name}" for verb in PINGMESH),
]
VERBS += [f"replay-record-{verb.name}" for verb in RECORD]
VERBS += [f"stream-{verb.name}" for verb in STREAM]
VERBS += [f"stream-service-{verb.name}" for verb in SERVICES]
PAGES = sorted((ROOT / "man").glob("man*/*.[1-8]"))
README = ROOT / "README.md"
DOCUMENTS = sorted(
    [
        *ROOT.glob("*.md"),
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "examples").rglob("*.md"),
        *(ROOT / "bench").rglob("*.md"),
    ]
)
SECTIONS = {"NAME", "SYNOPSIS", "DESCRIPTION", "OPTIONS", "EXIT STATUS", "EXAMPLES", "SEE ALSO"}


def page_text(path: Path) -> str:
    """A manual page's source without its escapes and fonts."""
    text = re.sub(r"\\f[A-Z]|\\&", "", path.read_text())
    return text.replace("\\-", "-").replace("\\(aq", "'").replace("\\(dq", '"').replace("\\e", "\\")


def slug(title: str) -> str:
    """The anchor that a heading gets."""
    return re.sub(r"[^\w\- ]", "", title.replace("`", "").strip().lower()).replace(" ", "-")


# ---------------------------------------------------------------- a command is five things


def code(name: str) -> Path:
    """Where a command is written: in the package of its system, or in `commands`."""
    return (ROOT / module_of(name).replace(".", "/")).with_suffix(".py")


@pytest.mark.parametrize("name", NAMES)
def test_a_command_is_five_things(name: str) -> None:
    module = name.replace("-", "_")
    tests = [
        p.name
        for p in (ROOT / "tests").rglob("test_*.py")
        if p.name != Path(__file__).name
        and re.search(rf"confluo-{name}\b|commands[./]{module}\b|\"{name}\"", p.read_text())
    ]
    missing = [
        what
        for what, there in {
            "code": code(name).exists(),
            "link in bin": os.access(ROOT / "bin" / f"confluo-{name}", os.X_OK),
            "test": bool(tests),
            "man page": (ROOT / "man" / "man1" / f"confluo-{name}.1").exists(),
            "narrated example": (ROOT / "examples" / f"{module}_example.md").exists(),
            "README row": bool(re.search(rf"^\| \[`confluo-{name}`\]", README.read_text(), re.M)),
        }.items()
        if not there
    ]
    assert missing == []


def test_the_lists_of_commands_agree() -> None:
    package = ROOT / "confluo_tools"
    modules = {p.stem.replace("_", "-") for p in (package / "commands").iterdir()} - {"--init--", "--pycache--"}
    modules |= {p.parent.name for p in package.glob("*/command.py")}
    modules |= {"-".join(p.relative_to(package).parent.parts) for p in package.glob("replay/record/command.py")}
    links = {p.name.removeprefix("confluo-") for p in (ROOT / "bin").glob("confluo-*")}
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    rows = set(re.findall(r"^\| \[`confluo-([\w-]+)`\]", README.read_text(), re.M))
    pages = {p.stem.removeprefix("confluo-") for p in PAGES if p.stem.startswith("confluo-") and p.suffix == ".1"}
    assert modules == links == rows == pages - set(VERBS) == set(NAMES)
    assert pages.issuperset(VERBS)
    assert scripts == {"confluo": "confluo_tools.__main__:main"} | {
        f"confluo-{name}": f"{module_of(name)}:main" for name in NAMES
    } | {"confluo-query": "confluo_tools.__main__:launch"}
    assert {group for _, group, _ in COMMANDS} == {group for group, _ in GROUPS}


def test_every_package_is_installed() -> None:
    """`setuptools` finds only folders that have an __init__.py."""
    listed = set(find_packages(str(ROOT), include=["confluo_tools", "confluo_tools.*"]))
    code = [p for p in (ROOT / "confluo_tools").rglob("*.py*") if p.suffix in (".py", ".pyi")]
    there = {".".join(p.parent.relative_to(ROOT).parts) for p in code}
    assert listed == there


@pytest.mark.parametrize("name", NAMES)
def test_a_command_is_written_in_the_common_order(name: str) -> None:
    tree = ast.parse(code(name).read_text())
    doc = ast.get_docstring(tree) or ""
    assert doc.startswith(f"confluo-{name}: ")
    assert doc.splitlines()[0].endswith(f"Manual: confluo-{name}(1).")
    assert isinstance(tree.body[-1], ast.FunctionDef)
    assert tree.body[-1].name == "main"


# ---------------------------------------------------------------- manual pages


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_page_lints(page: Path) -> None:
    if not shutil.which("mandoc"):
        pytest.skip("mandoc is not installed; bin/check installs it as root")
    lint = ["mandoc", "-T", "lint"]
    done = subprocess.run([*lint, "-W", "warning", page], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")
    style = subprocess.run([*lint, page], capture_output=True, text=True, check=False).stdout
    assert [line for line in style.splitlines() if "new sentence, new line" in line] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_page_names_itself(page: Path) -> None:
    text = page.read_text()
    head = re.search(r'^\.TH\s+"?([\w-]+)"?\s+(\d)', text, re.M)
    assert head
    assert (head.group(1).lower(), head.group(2)) == (page.stem, page.suffix[1:])
    name = re.search(r'^\.SH "?NAME"?\n(.*)\n', text, re.M)
    assert name
    assert re.fullmatch(rf"{page.stem.replace('-', '.{1,2}')} \\- \S.*[^.]", name.group(1)), name.group(1)


@pytest.mark.parametrize("name", NAMES + VERBS)
def test_page_has_its_sections(name: str) -> None:
    text = (ROOT / "man" / "man1" / f"confluo-{name}.1").read_text()
    sections = {title.strip('"') for title in re.findall(r"^\.SH (.+)$", text, re.M)}
    assert sorted(SECTIONS - sections) == []


@pytest.mark.parametrize("name", NAMES + VERBS)
def test_page_and_help_name_the_same_options(name: str, tmp_path: Path) -> None:
    if name.startswith("stream-service-"):
        words = name.replace("stream-service-", "stream service ")
    else:
        words = " ".join(name.rsplit("-", 1)) if name in VERBS else name
    status, printed = Shell(tmp_path).run(f"confluo-{words} --help")
    assert status == 0
    listed = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]+")
    offered = {option for line in printed if line.lstrip().startswith("-") for option in listed.findall(line)}
    assert "--help" in offered
    text = page_text(ROOT / "man" / "man1" / f"confluo-{name}.1")
    assert sorted(option for option in offered if option not in text) == []
    section = re.search(r'^\.SH "?OPTIONS"?\n(.*?)(?=^\.SH)', text, re.M | re.S)
    assert section
    defined = {
        option
        for line in section.group(1).splitlines()
        if re.match(r"\.(B|BR|BI|IP|OP)\b.*--", line)
        for option in listed.findall(line)
    }
    whole_help = "\n".join(printed)
    assert sorted(option for option in defined if option not in whole_help) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_page_refers_to_pages_that_exist(page: Path) -> None:
    ours = {(p.stem, p.suffix[1:]) for p in PAGES}
    text = re.sub(r'[" ]+(?=\()', "", page_text(page))
    referred = set(re.findall(r"\b((?:confluo|multilog)[\w-]*)\((\d)\)", text))
    assert sorted(referred - ours) == []


# ---------------------------------------------------------------- links, shown commands


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_lead_somewhere(path: Path) -> None:
    text = FENCE.sub("", path.read_text())
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        to = path.parent / name if name else path
        if not to.exists():
            broken.append(target)
        elif anchor and anchor not in {slug(title) for title in re.findall(r"^#+ (.*)$", to.read_text(), re.M)}:
            broken.append(f"{target}: no such heading")
    assert broken == []


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda p: str(p.relative_to(ROOT)))
def test_files_that_a_document_names_exist(path: Path) -> None:
    places = r"`((?:bin|pyx|confluo_tools|man|examples|docs|tests|bench|\.ci)/[\w./*-]*)"
    named = {name.rstrip(".") for name in re.findall(places, FENCE.sub("", path.read_text()))}
    pattern = {name: re.sub(r"(?<![A-Za-z])(X|NAME|SUBJECT|SYSTEM|PART|KIND)(?![A-Za-z])", "*", name) for name in named}
    assert [name for name in sorted(named) if not any(ROOT.glob(pattern[name]))] == []


def test_every_defect_of_the_original_has_its_test() -> None:
    rows = re.findall(r"^\| (\d+) \|.*\| `(test_\w+)` \|$", (ROOT / "docs" / "papers.md").read_text(), re.M)
    tests = re.findall(
        r"^def (test_(\d+)_\w+)", (ROOT / "tests" / "project" / "test_original_defects.py").read_text(), re.M
    )
    assert [int(number) for number, _ in rows] == list(range(1, 18))
    assert [name for _, name in rows] == [name for name, _ in tests]


def test_one_liners_of_the_readme_run(tmp_path: Path) -> None:
    shell = Shell(tmp_path)
    run = [c for block in blocks(README.read_text(), "sh") for c in commands(block) if not c.startswith("bin/")]
    assert len(run) >= 7
    for command in run:
        status, printed = shell.run(command)
        assert status == 0, "\n".join([f"$ {command}", *printed])
        quiet = " -w " in command or command.startswith("confluo-index")
        assert printed or quiet, command


def test_commands_that_the_readme_names_exist() -> None:
    for path in re.findall(r"\bbin/[\w-]+", README.read_text()):
        assert os.access(ROOT / path, os.X_OK), path
    tree = blocks(README.read_text(), "text")[-1]
    for line in tree.splitlines():
        if found := re.match(r"(\S+)", line):
            for name in found.group(1).split(","):
                assert (ROOT / name).exists(), name


@pytest.mark.slow
def test_the_demo_prints_what_the_readme_shows(tmp_path: Path) -> None:
    """In a copy of the checkout with a .venv that still points to the original; twice; no terminal, no input."""
    if not (ROOT / ".venv" / "pyvenv.cfg").exists():
        pytest.skip("this is not a checkout with its .venv")
    copy = tmp_path / "a copy"
    shutil.copytree(
        ROOT,
        copy,
        symlinks=True,
        ignore=shutil.ignore_patterns(
            ".git", ".venv", "demo-log", "dist", "*.egg-info", "__pycache__", ".hypothesis", ".*_cache"
        ),
    )
    for made in (*copy.glob("build/cython/**/*.c"), *copy.glob("build/lib*/**/*.so")):
        os.utime(made, (time.time() + 3600,) * 2)  # newer than the new .venv: compiling again would take minutes
    (copy / ".venv").mkdir()
    shutil.copy(ROOT / ".venv" / "pyvenv.cfg", copy / ".venv")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    env = {"PATH": path, "HOME": str(tmp_path), "CI": "true", "CONFLUO_FORMAT": "ndjson"}
    env |= {k: v for k, v in os.environ.items() if k.lower().startswith(("pip_", "ssl_", "http", "no_proxy"))}
    env["PIP_NO_COMPILE"] = "no"  # that is how pip reads it: byte code only of what is imported
    shown = blocks(README.read_text(), "text")[0].splitlines()
    for _ in range(2):
        done = subprocess.run(
            [copy / "bin" / "demo"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            env=env,
            cwd=tmp_path,
            check=False,
            timeout=900,
        )
        assert (done.returncode, done.stderr) == (0, ""), done.stdout
        printed = done.stdout.splitlines()
        assert agrees(shown, printed[printed.index(shown[0]) :]), done.stdout


# ---------------------------------------------------------------- documents tell the truth


def test_libraries_that_the_design_names_are_used() -> None:
    """Section 8 of DESIGN.md lists what is not ours; each is imported somewhere, or run."""
    text = re.search(r"^Not ours: (.*)\n(Tests compare with .*)\n", (ROOT / "DESIGN.md").read_text(), re.M)
    assert text
    code = "\n".join(p.read_text() for p in (ROOT / "confluo_tools").rglob("*.py")) + (ROOT / "setup.py").read_text()
    named = re.findall(r"([A-Za-z_-]+)(?: with ([A-Za-z]+))?(?: and ([a-z_]+))? \(", text[1])
    names = [name for group in named for name in group if name]
    modules = {"PyYAML": "yaml", "Cython": "Cython", "HiGHS": "milp", "resvg-py": "resvg_py", "libpcap": "libpcap"}
    modules["OpenSSH"] = "ssh"
    assert len(names) >= 14
    unused = [n for n in names if not re.search(rf"\b{modules.get(n, n)}\b", code)]
    assert unused == []
    tests = "\n".join(p.read_text() for p in (ROOT / "tests").rglob("*.py") if p != Path(__file__))
    others = re.findall(r"[A-Za-z]+", text[2].partition(": ")[2])
    assert len(others) >= 6
    assert [name for name in others if not re.search(rf"\b{name.lower()}\b", tests)] == []


def test_the_dependencies_are_those_that_the_design_names() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    wanted = [*project["dependencies"], *extras["parquet"], *extras["milp"], *extras["pingmesh"], *extras["kafka"]]
    names = {re.split(r"[<>=\[ ]", item)[0].lower() for item in wanted}
    text = (ROOT / "DESIGN.md").read_text().lower()
    assert sorted(name for name in names if name not in text) == []


def test_the_drawing_of_the_imports_is_of_this_code(tmp_path: Path) -> None:
    """`python docs/imports.py` makes docs/imports.svg; boxes and arrows must be today's (lines of code may differ)."""

    def shape(text: str) -> str:
        return re.sub(r"[\d,]+ lines", "lines", text)

    code = "from imports import draw, imports; print(draw(*imports()), end='')"
    env = {**os.environ, "PYTHONPATH": str(ROOT / "docs")}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=env)
    assert shape(done.stdout) == shape((ROOT / "docs" / "imports.svg").read_text())
