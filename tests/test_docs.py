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
from sessions import FENCE, ROOT, Shell, agrees, blocks, commands

from confluo_tools.__main__ import COMMANDS, GROUPS
from confluo_tools.commands.pingmesh import VERBS as PINGMESH

NAMES = [name for name, _, _ in COMMANDS]
# words that make another command of one: confluo-vote simulate
VERBS = ["vote-simulate", "vote-bound", *(f"pingmesh-{verb}" for verb, _ in PINGMESH)]
PAGES = sorted((ROOT / "man").glob("man*/*.[1-8]"))
README = ROOT / "README.md"
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md"),
                    *(ROOT / "bench").rglob("*.md")])
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
    """Where a command is written: a module, or a package of several."""
    path = ROOT / "confluo_tools" / "commands" / name.replace("-", "_")
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


@pytest.mark.parametrize("name", NAMES)
def test_a_command_is_five_things(name: str) -> None:
    module = name.replace("-", "_")
    tests = [p.name for p in (ROOT / "tests").glob("test_*.py") if p.name != Path(__file__).name
             and re.search(rf"confluo-{name}\b|commands[./]{module}\b|\"{name}\"", p.read_text())]
    missing = [what for what, there in {
        "code": code(name).exists(),
        "link in bin": os.access(ROOT / "bin" / f"confluo-{name}", os.X_OK),
        "test": bool(tests),
        "man page": (ROOT / "man" / "man1" / f"confluo-{name}.1").exists(),
        "narrated example": (ROOT / "examples" / f"{module}_example.md").exists(),
        "README row": bool(re.search(rf"^\| \[`confluo-{name}`\]", README.read_text(), re.M)),
    }.items() if not there]
    assert missing == []


def test_the_lists_of_commands_agree() -> None:
    here = (ROOT / "confluo_tools" / "commands").iterdir()
    modules = {p.stem.replace("_", "-") for p in here} - {"--init--", "--pycache--"}
    links = {p.name.removeprefix("confluo-") for p in (ROOT / "bin").glob("confluo-*")}
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    rows = set(re.findall(r"^\| \[`confluo-([\w-]+)`\]", README.read_text(), re.M))
    pages = {p.stem.removeprefix("confluo-") for p in PAGES if p.stem.startswith("confluo-") and p.suffix == ".1"}
    assert modules == links == rows == pages - set(VERBS) == set(NAMES)
    assert pages.issuperset(VERBS)
    assert scripts == {"confluo": "confluo_tools.__main__:main"} | {
        f"confluo-{name}": f"confluo_tools.commands.{name.replace('-', '_')}:main" for name in NAMES
    } | {"confluo-query": "confluo_tools.__main__:launch"}
    assert {group for _, group, _ in COMMANDS} == {group for group, _ in GROUPS}


def test_every_package_is_installed() -> None:
    """The list of packages in pyproject.toml is written by hand."""
    listed = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"])
    there = {".".join(p.parent.relative_to(ROOT).parts) for p in (ROOT / "confluo_tools").rglob("__init__.py")}
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
    words = name.replace("-", " ") if name in VERBS else name
    status, printed = Shell(tmp_path).run(f"confluo-{words} --help")
    assert status == 0
    listed = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]+")
    offered = {option for line in printed if line.lstrip().startswith("-") for option in listed.findall(line)}
    assert "--help" in offered
    text = page_text(ROOT / "man" / "man1" / f"confluo-{name}.1")
    assert sorted(option for option in offered if option not in text) == []
    section = re.search(r'^\.SH "?OPTIONS"?\n(.*?)(?=^\.SH)', text, re.M | re.S)
    assert section
    defined = {option for line in section.group(1).splitlines() if re.match(r"\.(B|BR|BI|IP|OP)\b.*--", line)
               for option in listed.findall(line)}
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
    pattern = {name: re.sub(r"(?<![A-Za-z])(X|NAME)(?![A-Za-z])", "*", name) for name in named}  # X: any command
    assert [name for name in sorted(named) if not any(ROOT.glob(pattern[name]))] == []


def test_every_defect_of_the_original_has_its_test() -> None:
    rows = re.findall(r"^\| (\d+) \|.*\| `(test_\w+)` \|$", (ROOT / "docs" / "papers.md").read_text(), re.M)
    tests = re.findall(r"^def (test_(\d+)_\w+)", (ROOT / "tests" / "test_original_defects.py").read_text(), re.M)
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
    """In a copy of the checkout whose .venv still points to where it came from; twice; no terminal, no input."""
    if not (ROOT / ".venv" / "pyvenv.cfg").exists():
        pytest.skip("this is not a checkout with its .venv")
    copy = tmp_path / "a copy"
    shutil.copytree(ROOT, copy, symlinks=True, ignore=shutil.ignore_patterns(
        ".git", ".venv", "demo-log", "dist", "*.egg-info", "__pycache__", ".hypothesis", ".*_cache"))
    for made in (*copy.glob("build/cython/**/*.c"), *copy.glob("build/lib*/**/*.so")):
        os.utime(made, (time.time() + 3600,) * 2)  # newer than the new .venv: compiling again would take minutes
    (copy / ".venv").mkdir()
    shutil.copy(ROOT / ".venv" / "pyvenv.cfg", copy / ".venv")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    env = {"PATH": path, "HOME": str(tmp_path), "CI": "true", "CONFLUO_FORMAT": "ndjson"}
    env |= {k: v for k, v in os.environ.items() if k.lower().startswith(("pip_", "ssl_", "http", "no_proxy"))}
    shown = blocks(README.read_text(), "text")[0].splitlines()
    for _ in range(2):
        done = subprocess.run([copy / "bin" / "demo"], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                              env=env, cwd=tmp_path, check=False, timeout=900)
        assert (done.returncode, done.stderr) == (0, ""), done.stdout
        printed = done.stdout.splitlines()
        assert agrees(shown, printed[printed.index(shown[0]):]), done.stdout
