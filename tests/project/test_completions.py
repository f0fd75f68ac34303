"""Completion in the real shells: what TAB offers.  That the files are up to date is a test of test_source.py."""

from __future__ import annotations

import ast
import os
import pty
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

from running import ROOT

sys.path.insert(0, str(ROOT / "completions"))
import programs

# A line, and what the shell offers for its last word.
LINES = {
    "confluo vo": {"vote"},
    "confluo help ex": {"expr"},
    "confluo-pingmesh pl": {"plan"},
    "confluo pingmesh heatmap --metric ": {"p50", "p99", "drop"},
    "confluo-stream service tcp": {"tcp-rate"},
    "confluo-stream service top --rank ": {"bytes", "packets"},
    "confluo-vote --by ": {"link", "switch"},
    "confluo-vote simulate --healthy ": {"bare", "none", "path"},
    "confluo-query --cou": {"--count"},
    "confluo query --cou": {"--count"},
    "confluo-query -o t": {"table", "tsv"},
    "confluo-query -c 5 --format pc": {"pcap", "pcapng"},
    "confluo-query --format=pcapn": {"pcapng"},
    "confluo-query -f ts,src_": {"ts,src_ip", "ts,src_port"},
    "confluo-flows --fields last_": {"last_ts"},
    "confluo-query --schema pack": {"packet"},
    "confluo-query --schema tab": {"table.yaml"},
    "confluo-query --at tr": {"trace.ml"},
    "confluo-query --count tr": {"trace.ml"},
    "confluo query trace.ml tab": {"table.yaml"},
    "confluo-pingmesh serve pin": {"pinglists"},
    "confluo-capture -i l": {"lo"},
    "confluo-capture --sync ": {"none", "seal", "batch"},
    "confluo-capture -Z roo": {"root"},
    "confluo-index trace.ml re": {"rebuild"},
    "confluo-index trace.ml tr": {"trace.ml"},
    "confluo-config col": {"color"},
    "confluo-serve --max": {"--max-freeze"},
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "trace.ml").touch()
    (tmp_path / "table.yaml").touch()
    (tmp_path / "pinglists").mkdir()
    return tmp_path


class Terminal:
    """An interactive shell in which ^O inserts everything that TAB would list, and ^T prints the line and clears it."""

    def __init__(self, command: list[str], setup: str, folder: Path) -> None:
        self.child, self.fd = pty.fork()
        if self.child == 0:
            os.chdir(folder)
            os.environ.update(TERM="xterm", LC_ALL="C.UTF-8", ZDOTDIR=str(folder), HOME=str(folder))
            os.execvp(command[0], command)
        os.write(self.fd, b"stty -echo cols 2000\n" + setup.encode() + b"\necho rea''dy\n")
        self.read(rb"\nready")

    def read(self, pattern: bytes) -> re.Match[bytes]:
        seen, end = b"", time.monotonic() + 60
        while time.monotonic() < end:
            if select.select([self.fd], [], [], 1)[0]:
                seen += os.read(self.fd, 1 << 16)
                if found := re.search(pattern, seen):
                    return found
        pytest.fail(f"no {pattern!r} in {seen[-2000:]!r}")

    def offered(self, line: str) -> set[str]:
        """The words that the shell offers for the end of the line."""
        os.write(self.fd, line.encode() + b"\x0f\x14")
        full = self.read(rb"<<(.*?)>>")[1].decode()
        kept = line[: line.rindex(" ") + 1]
        assert full.startswith(kept), full
        return set(full[len(kept) :].split())

    def close(self) -> None:
        os.kill(self.child, signal.SIGKILL)
        os.waitpid(self.child, 0)
        os.close(self.fd)


def bash(folder: Path) -> Terminal:
    setup = rf"""
. {ROOT}/completions/confluo.bash
show() {{ printf '\n<<%s>>\n' "$READLINE_LINE"; READLINE_LINE=''; READLINE_POINT=0; }}
bind -x '"\C-t": show'; bind '"\C-o": insert-completions'
"""
    return Terminal(["bash", "--norc", "--noprofile", "-i"], setup, folder)


def zsh(folder: Path) -> Terminal:
    setup = rf"""
fpath=({ROOT}/completions $fpath); autoload -U compinit; compinit -D -u
zle -C all-matches complete-word _generic
zstyle ':completion:all-matches:*' completer _all_matches _complete; zstyle ':completion:all-matches:*' insert true
show() {{ printf '\n<<%s>>\n' "$BUFFER"; BUFFER='' }}
zle -N show; bindkey '^o' all-matches; bindkey '^t' show
"""
    return Terminal(["zsh", "-f", "-i"], setup, folder)


@pytest.fixture(params=[bash, zsh], ids=["bash", "zsh"])
def terminal(request: pytest.FixtureRequest, folder: Path) -> Iterator[Terminal]:
    if shutil.which(request.param.__name__) is None:
        pytest.skip(f"no {request.param.__name__}")
    shell = request.param(folder)
    yield shell
    shell.close()


def plain(word: str) -> str:
    """Without what shells add: the option before `=`, the `=`, `,` or `/` after a word."""
    return re.sub(r"^--[a-z-]+=(?=.)", "", word).rstrip("=,/")


def test_bash_and_zsh_offer_what_fits(terminal: Terminal) -> None:
    offered = {line: {plain(word) for word in terminal.offered(line)} for line in LINES}
    assert offered == LINES


def test_fish_offers_what_fits(folder: Path) -> None:
    if shutil.which("fish") is None:
        pytest.skip("no fish")
    script = f"source {ROOT}/completions/confluo.fish\nwhile read -l line; echo '>'; complete -C $line; end\n"
    done = subprocess.run(
        ["fish", "--no-config", "-c", script],
        input="".join(f"{line}\n" for line in LINES),
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    answers = done.stdout.split(">\n")[1:]
    offered = {
        line: {plain(one.split("\t")[0]) for one in its.splitlines()} for line, its in zip(LINES, answers, strict=True)
    }
    assert offered == LINES


def test_words_are_those_that_the_commands_accept() -> None:
    """Each `one_of("--option", value, words)` of the commands has its words in a completion of this option."""
    known: dict[str, list[set[str]]] = {}
    for one in programs.programs():
        for option in one.options:
            if option.values and option.values.kind in ("word", "list"):
                known.setdefault(max(option.names, key=len), []).append(set(option.values.words))
    checked = 0
    for path in sorted((ROOT / "confluo_tools").rglob("*.py")):
        tree = ast.parse(path.read_text())
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "cli.one_of":
                name, accepted = ast.literal_eval(node.args[0]), set(_value(tree, path, node.args[2]))
                if name != "--probe":  # KIND,KEY=N
                    assert any(accepted <= one <= accepted | {"help"} for one in known.get(name, [])), (path, name)
                    checked += 1
    assert checked > 20


def _value(tree: ast.Module, path: Path, expression: ast.expr) -> tuple[str, ...]:
    """A tuple, or a constant that the module has or that one of its functions imports."""
    module = import_module(str(path.relative_to(ROOT))[:-3].replace("/", "."))
    names = dict(vars(module))
    wanted = {node.id for node in ast.walk(expression) if isinstance(node, ast.Name)}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and {a.name for a in node.names} & wanted:
            exec(ast.unparse(node), names)
    value: tuple[str, ...] = eval(ast.unparse(expression), names)
    return value
