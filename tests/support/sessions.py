"""Documents that are run: shell commands in Markdown, and whether what they print is what the document shows.

A ``console`` block is a session: lines that start with ``$ `` are commands (a trailing backslash goes on), the lines
after one are what it prints, standard error included.  ``...`` matches any text within a line, or alone on a line
for any lines; a last line ``[1]`` is an exit status other than 0.

``python tests/support/sessions.py FILE...`` puts what the commands print now into the files; read the difference before
committing it.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from running import forks_with

ROOT = Path(__file__).resolve().parents[2]
DEADLINE = 120  # s, of a command
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.M | re.S)


@dataclass
class Step:
    command: str
    shown: list[str] = field(default_factory=list)


def blocks(text: str, language: str) -> list[str]:
    """The contents of the fenced blocks of one language."""
    return [body for name, body in FENCE.findall(text) if name == language]


def commands(block: str) -> list[str]:
    """The commands of an ``sh`` block: one a line, comments left out, backslash-newline joined."""
    joined = block.replace("\\\n", " ")
    return [line for line in joined.splitlines() if line.strip() and not line.lstrip().startswith("#")]


def steps(block: str) -> list[Step]:
    """The commands of a ``console`` block with what each is shown to print."""
    found: list[Step] = []
    more = False
    for line in block.splitlines():
        if more and found:
            found[-1].command += "\n" + line
        elif line.startswith("$ "):
            found.append(Step(line[2:]))
        elif found:
            found[-1].shown.append(line)
        else:
            raise ValueError(f"output before the first command: {line}")
        more = (more or line.startswith("$ ")) and line.endswith("\\")
    return found


def agrees(shown: list[str], printed: list[str]) -> bool:
    """Whether the printed lines are what a document shows, ``...`` standing for anything."""
    pattern = []
    for line in shown:
        if line.strip() == "...":
            pattern.append(r"(?:.*\n)*?")
        else:
            pattern.append(".*?".join(re.escape(part) for part in line.rstrip().split("...")) + r"[ \t]*\n")
    return re.fullmatch("".join(pattern), "".join(line + "\n" for line in printed)) is not None


class Shell:
    """A folder with the example captures under ``examples/`` and the commands of this checkout on PATH."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        link = folder / "examples"
        if not link.exists():
            link.symlink_to(ROOT / "examples")
        (folder / ".runtime").mkdir(exist_ok=True)
        self.env = {k: v for k, v in os.environ.items() if not k.startswith(("CONFLUO_", "PYTHON", "XDG_"))}
        self.env |= {
            "PATH": f"{ROOT / 'bin'}{os.pathsep}{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "TZ": "UTC",
            "LC_ALL": "C.UTF-8",
            "COLUMNS": "80",
            "NO_COLOR": "1",
            "HOME": str(folder),
            "XDG_CONFIG_HOME": str(folder / ".config"),
            "XDG_RUNTIME_DIR": str(folder / ".runtime"),
            "PYTHONWARNINGS": "default",
        }
        self.installed = not (ROOT / ".venv").exists()  # an installed copy is under test: its commands are on PATH
        if self.installed:
            self.env["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"

    def forking(self) -> dict[str, str]:
        """Its environment, with commands that are forks where that is the same: `command_client`."""
        if self.installed:
            return self.env
        return self.env | {"PATH": f"{forks_with(self.env).folder}{os.pathsep}{self.env['PATH']}"}

    def run(self, command: str) -> tuple[int, list[str]]:
        """Exit status and lines printed.  Commands side by side are no forks: some would start sooner than others.

        What still runs at the deadline is ended: recorders and servers remove their networks.
        """
        side_by_side = "&" in command.replace("&&", "")
        process = subprocess.Popen(
            ["bash", "-e", "-o", "pipefail", "-c", command],
            cwd=self.folder,
            env=self.env if side_by_side else self.forking(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            printed, _ = process.communicate(timeout=DEADLINE)
        except BaseException:
            for number in (signal.SIGTERM, signal.SIGKILL):
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, number)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.communicate(timeout=10)
            raise
        return process.returncode, printed.decode(errors="backslashreplace").splitlines()

    def replay(self, step: Step) -> tuple[list[str], list[str]]:
        """What the document shows and what the command prints now, both with the exit status line."""
        status, printed = self.run(step.command)
        return step.shown, printed + ([f"[{status}]"] if status else [])


def disagreements(path: Path, folder: Path) -> list[str]:
    """Each command of a document that prints something else than the document shows."""
    shell = Shell(folder)
    found = []
    for block in blocks(path.read_text(), "console"):
        for step in steps(block):
            shown, printed = shell.replay(step)
            while shown and not shown[-1].strip():
                shown = shown[:-1]
            if not agrees(shown, printed):
                found.append("\n".join([f"$ {step.command}", *printed, "--- but the document shows ---", *shown]))
    return found


def update(path: Path, folder: Path) -> None:
    """Write what the commands print now into a document; shown lines that agree (with their ``...``) stay."""
    shell = Shell(folder)

    def session(match: re.Match[str]) -> str:
        if match.group(1) != "console":
            return match.group(0)
        lines = []
        for step in steps(match.group(2)):
            shown, printed = shell.replay(step)
            lines += [f"$ {step.command}", *(shown if agrees(shown, printed) else [line.rstrip() for line in printed])]
        return "```console\n" + "\n".join(lines) + "\n```"

    path.write_text(FENCE.sub(session, path.read_text()))


if __name__ == "__main__":
    for name in sys.argv[1:]:
        servers = re.findall(r"\$(BROKER|CLICKHOUSE|DASK|BUCKET|METRICS)\b", Path(name).read_text())
        if missing := sorted({one for one in servers if one not in os.environ}):
            sys.exit(f"{name} needs servers: set {', '.join(missing)}, as tests/project/test_examples.py does")
        scratch = Path(tempfile.mkdtemp())
        try:
            update(Path(name), scratch)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
