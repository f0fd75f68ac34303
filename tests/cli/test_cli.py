"""run(): exit statuses, one-line errors, signals, options; settings and where they come from."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Annotated

import pytest
import typer

from confluo_tools import FORMAT_VERSION, __version__, cli, config
from confluo_tools.cli.progress import Progress, humane
from confluo_tools.errors import BusyError, FormatError, UsageError
from running import ROOT, environment, on_terminal, run, shell


def made(body: object, *argv: str, **options: bool) -> int:
    """run() of a command with an option, an operand and this body."""
    app = cli.command_app("# an example\nconfluo-toy 1")

    @app.command()
    def toy(
        words: Annotated[list[str] | None, typer.Argument(metavar="[WORD]...")] = None,
        number: Annotated[int, typer.Option("-n", "--number", help="How many.")] = 1,
        quiet: cli.Quiet = False,
    ) -> int:
        """Do nothing much."""
        return body(words or [], number)  # type: ignore[operator, no-any-return]

    return cli.run(app, "confluo-toy", argv, **options)


def raising(error: BaseException) -> object:
    def body(words: list[str], number: int) -> int:
        raise error

    return body


@pytest.mark.parametrize(
    ("error", "status", "says"),
    [
        (FormatError("is odd", where="a b", hint="mend it"), 2, "confluo-toy: a b: is odd; mend it\n"),
        (BusyError("busy", where="x"), 75, "confluo-toy: x: busy\n"),
        (
            FileNotFoundError(2, "No such file or directory", "nope"),
            2,
            "confluo-toy: nope: No such file or directory\n",
        ),
        (OSError(28, "No space left on device"), 2, "confluo-toy: standard output: No space left on device\n"),
        (KeyboardInterrupt(), 130, ""),
        (cli.Stopped(signal.SIGTERM), 143, ""),
        (BrokenPipeError(32, "x"), 141, ""),
        (MemoryError(), 2, "confluo-toy: out of memory\n"),
        (ZeroDivisionError("x"), 2, "confluo-toy: internal error: ZeroDivisionError: x; CONFLUO_DEBUG=1 shows where\n"),
        (UsageError("bad \x1b[31m\udcff"), 2, "confluo-toy: bad \\x1b[31m\\xff\n"),
    ],
)
def test_each_error_has_its_status_and_one_line(
    error: BaseException, status: int, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert made(raising(error)) == status
    assert capsys.readouterr().err == says


def test_a_traceback_only_when_asked(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONFLUO_DEBUG", "1")
    assert made(raising(FormatError("is odd"))) == 2
    err = capsys.readouterr().err
    assert "Traceback" in err
    assert err.endswith("confluo-toy: is odd\n")


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["--nope"], "no such option: --nope"),
        (["--num", "3"], "no such option: --num"),
        (["-n"], "-n"),
        (["-n", "x"], "'x'"),
        (["--number=x"], "'x'"),
        (["--quiet=1"], "--quiet"),
    ],
)
def test_usage_errors_are_status_2_and_one_line(argv: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert made(lambda words, number: 0, *argv) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert err.startswith("confluo-toy: ")
    assert says in err


def test_statuses_and_operands() -> None:
    seen: list[object] = []

    def body(words: list[str], number: int) -> int:
        seen.append((words, number))
        return cli.NOTHING

    assert made(body, "a", "-n", "3", "b", "--", "-n", "--help") == 1
    assert seen == [(["a", "b", "-n", "--help"], 3)]
    assert made(lambda words, number: None) == 0


def test_a_warning_makes_the_status_2(capsys: pytest.CaptureFixture[str]) -> None:
    def body(words: list[str], number: int) -> int:
        cli.warn("is cut", where="file", hint="look")
        cli.note("by the way")
        return number

    assert made(body, "-n", "0") == 2
    assert capsys.readouterr().err == "confluo-toy: file: is cut; look\nconfluo-toy: by the way\n"
    assert made(body, "-n", "75") == 75
    assert made(lambda words, number: 0) == 0  # forgotten by the next run


def test_help_is_short_or_long_and_ends_with_examples(capsys: pytest.CaptureFixture[str]) -> None:
    assert made(lambda words, number: 0, "-h") == 0
    short = capsys.readouterr().out
    assert made(lambda words, number: 0, "--help") == 0
    full = capsys.readouterr().out
    assert "--number" in full
    assert "--number" in short
    assert "--version" in full
    assert "--version" not in short
    for text in (short, full):
        assert "Usage: confluo-toy [OPTIONS] [WORD]..." in text
        assert text.endswith("Examples:\n  # an example\n  confluo-toy 1\n\nManual: confluo-toy(1)\n")
    assert made(lambda words, number: 0, "--version") == 0
    assert capsys.readouterr().out == f"confluo-toy {__version__} (format {FORMAT_VERSION})\n"


def test_signals_are_put_back() -> None:
    before = [signal.getsignal(n) for n in (signal.SIGPIPE, signal.SIGTERM, signal.SIGHUP)]
    during: list[object] = []

    def body(words: list[str], number: int) -> int:
        during.append([signal.getsignal(n) for n in (signal.SIGPIPE, signal.SIGTERM, signal.SIGHUP)])
        return 0

    made(body)
    made(body, owns_state=True)
    assert [signal.getsignal(n) for n in (signal.SIGPIPE, signal.SIGTERM, signal.SIGHUP)] == before
    assert during[0] != before
    assert during[0][0] is signal.SIG_DFL  # type: ignore[index]
    assert during[1] == before


SLEEPER = """
import sys, time
sys.path.insert(0, {root!r})
from confluo_tools import cli
app = cli.command_app()
@app.command()
def toy() -> int:
    try:
        print("ready", flush=True)
        for _ in range(600):  # a signal that comes just before a sleep is handled after it
            time.sleep(0.1)
    finally:
        print("cleaned", file=sys.stderr)
    return 0
sys.exit(cli.run(app, "toy"))
"""


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_unwinds_first(number: int, status: int) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", SLEEPER.format(root=str(ROOT))], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert child.stdout is not None
    assert child.stdout.readline() == b"ready\n"
    child.send_signal(number)
    _, err = child.communicate(timeout=30)
    assert (child.returncode, err) == (status, b"cleaned\n")


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_sent_twice_does_not_cut_off_the_end(number: int, status: int) -> None:
    program = SLEEPER.format(root=str(ROOT)).replace("finally:", "finally:\n        time.sleep(0.2)")
    child = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert child.stdout is not None
    assert child.stdout.readline() == b"ready\n"
    for _ in range(3):
        child.send_signal(number)
        time.sleep(0.03)
    _, err = child.communicate(timeout=30)
    assert (child.returncode, err) == (status, b"cleaned\n")


def test_an_early_interrupt_is_silent() -> None:
    for delay in (0.02, 0.03, 0.04, 0.05, 0.06, 0.08, 0.1):
        child = subprocess.Popen(
            [ROOT / "bin" / "confluo-query", "-"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        time.sleep(delay)
        child.send_signal(signal.SIGINT)
        _, err = child.communicate(timeout=30)
        own = b"Fatal Python error: init_" in err  # Python had not begun with us, and said so in its own way
        assert own or child.returncode in (130, -signal.SIGINT), err
        assert b"typer" not in err  # the first milliseconds are Python's own, and may show a traceback of its
        assert b"commands" not in err


def test_nohup_is_respected() -> None:
    child = subprocess.Popen(
        ["nohup", sys.executable, "-c", SLEEPER.format(root=str(ROOT)).replace("60", "1")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
    )
    assert child.stdout is not None
    assert child.stdout.readline() == b"ready\n"
    child.send_signal(signal.SIGHUP)
    child.communicate(timeout=30)
    assert child.returncode == 0


# -- progress --------------------------------------------------------------------------------------------------


def test_progress_is_for_terminals_and_rare(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    silent = Progress("x", 10)
    assert not silent.on  # pytest's stderr is not a terminal
    with silent:
        silent.update(5)
    assert capsys.readouterr().err == ""
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    drawn = Progress("reading", 1_000_000, "rows")
    drawn.on = True
    with drawn:
        for done in range(0, 1_000_000, 1000):
            now[0] += 0.01
            drawn.update(done)
        cli.say("a line")
    err = capsys.readouterr().err
    assert err.count("\rreading: ") == 20  # ten seconds, two a second
    assert "49 % of 1 M rows" in err
    assert err.endswith("\r\x1b[Ka line\n")


def test_humane_numbers() -> None:
    shown = [humane(n) for n in (0, 7, 999, 1000, 1234567, 2.5e9, 0.25)]
    assert shown == ["0", "7", "999", "1 k", "1.23 M", "2.5 G", "0.25"]


# -- settings --------------------------------------------------------------------------------------------------


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Empty places for every settings file, and none in force."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CONFIG_DIRS", str(tmp_path / "etc"))
    for name in config.KEYS:
        monkeypatch.delenv("CONFLUO_" + name.upper(), raising=False)
    for name in ("home", "etc"):
        (tmp_path / name / "confluo").mkdir(parents=True)
    config.use_file(None)
    return tmp_path


def test_the_strongest_setting_wins(folders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert config.setting("sync") == ("seal", "default")
    for path, value in [(folders / "etc/confluo/config.yaml", "none"), (folders / "home/confluo/config.yaml", "batch")]:
        path.write_text(f"sync: {value}\n")
        config.use_file(None)
        assert config.setting("sync") == (value, str(path))
    monkeypatch.setenv("CONFLUO_SYNC", "none")
    assert config.setting("sync") == ("none", "CONFLUO_SYNC")
    assert config.text("sync", "batch") == "batch"
    other = folders / "other.yaml"
    other.write_text("{local: yes, color: never}")
    config.use_file(str(other))
    assert config.setting("local") == ("true", str(other))
    assert config.truth("local")
    config.use_file(None)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("sinc: none", "unknown setting 'sinc'; did you mean 'sync'"),
        ("sync: now", "'now' is not possible for sync; use none, seal"),
        ("[1]", "is not a list of settings"),
        ("a: [", "is not YAML"),
        ("local: maybe", "use true, false"),
        ("rsh: [ssh, -v]", "the value of rsh is not a text; write e.g. 'rsh: ssh'"),
        ("format: {a: b}", "the value of format is not a text; write e.g. 'format: tsv'"),
    ],
)
def test_bad_settings_are_named_with_their_file(text: str, says: str, folders: Path) -> None:
    file = folders / "home/confluo/config.yaml"
    file.write_text(text)
    with pytest.raises(UsageError) as e:
        config.setting("sync")
    assert str(e.value).startswith(f"{file}: ")
    assert says in str(e.value)


def test_nothing_comes_from_the_current_directory(folders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Its owner may be another user, and rsh is a command.
    monkeypatch.setenv("XDG_CONFIG_HOME", "home")  # relative: to the current directory
    monkeypatch.setenv("XDG_CONFIG_DIRS", "etc:.")
    for name in ("confluo.yaml", "home/confluo/config.yaml", "etc/confluo/config.yaml", ".config/confluo/config.yaml"):
        (folders / name).parent.mkdir(parents=True, exist_ok=True)
        (folders / name).write_text("rsh: sh -c 'id > pwned'\nclobber: true\n")
    config.use_file(None)
    assert config.paths() == []
    assert {config.setting(key).origin for key in config.KEYS} == {"default"}
    env = environment(XDG_CONFIG_HOME="home", XDG_CONFIG_DIRS="etc", CONFLUO_REMOTE="true")
    (folders / "bin").mkdir()
    (folders / "bin/ssh").symlink_to("/bin/false")
    env["PATH"] = f"{folders / 'bin'}:{env['PATH']}"
    done = run("confluo-query", "host:/x.ml", "--count", cwd=folders, env=env)
    assert done.returncode == 2
    assert not (folders / "pwned").exists()


def test_settings_without_files_import_no_yaml(folders: Path) -> None:
    code = "import sys; from confluo_tools import config; config.setting('sync'); print('yaml' in sys.modules)"
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, cwd=folders, env=env)
    assert done.stdout == b"False\n"


def test_config_command_shows_origins(folders: Path) -> None:
    file = folders / "home/confluo/config.yaml"
    file.write_text("format: csv\n")
    env = environment(CONFLUO_COLOR="never", XDG_CONFIG_HOME=str(folders / "home"))
    done = run("confluo-config", "--show-origin", cwd=folders, env=env)
    lines = done.stdout.decode().splitlines()
    assert f"{file}\tformat=csv" in lines
    assert "CONFLUO_COLOR\tcolor=never" in lines
    assert "default\tsync=seal" in lines
    assert run("confluo-config", "format", cwd=folders, env=env).stdout == b"csv\n"
    done = run("confluo-config", "fromat", cwd=folders, env=env)
    assert (done.returncode, done.stderr) == (2, b"confluo-config: unknown setting 'fromat'; did you mean 'format'?\n")
    done = run("confluo-config", "--config", "nope.yaml", cwd=folders, env=env)
    assert (done.returncode, done.stderr) == (2, b"confluo-config: nope.yaml: No such file or directory\n")


# -- confluo --------------------------------------------------------------------------------------------------


def test_confluo_lists_its_commands() -> None:
    from confluo_tools.__main__ import COMMANDS, module_of

    text = run("confluo", "--help").stdout.decode()
    package = ROOT / "confluo_tools"
    here = {p.stem for p in (package / "commands").glob("*.py")} - {"__init__"}
    here |= {p.parent.name for p in package.glob("*/command.py")}
    here.add("replay-record")  # the second command of that system
    assert {name for name, _, _ in COMMANDS} == here
    assert {p.name for p in (ROOT / "bin").iterdir() if p.is_symlink()} == {f"confluo-{name}" for name in here}
    scripts = (ROOT / "pyproject.toml").read_text()
    width = max(len(name) for name in here)
    for name, _, line in COMMANDS:
        row = f"  {name:<{width}}  {line}"
        assert f"\n{row}\n" in text
        assert len(row) < 80
        main = "confluo_tools.__main__:launch" if name == "query" else f"{module_of(name)}:main"
        assert f'confluo-{name} = "{main}"' in scripts
    assert run("confluo").returncode == 2
    assert run("confluo").stderr.decode() == text


def test_confluo_dispatches(tmp_path: Path) -> None:
    tool = tmp_path / "confluo-hello"
    tool.write_text('#!/bin/sh\necho "hello $*"\nexit 7\n')
    tool.chmod(0o755)
    env = environment()
    env["PATH"] = f"{tmp_path}:{env['PATH']}"
    done = run("confluo", "hello", "a b", env=env)
    assert (done.returncode, done.stdout) == (7, b"hello a b\n")
    assert run("confluo", "config", "sync").stdout == b"seal\n"
    done = run("confluo", "confg")
    assert (done.returncode, done.stderr) == (2, b"confluo: no command 'confg'; did you mean 'config'?\n")
    assert run("confluo", "--nope").returncode == 2
    assert run("confluo", "../x").returncode == 2


def test_help_of_a_topic_opens_its_page(tmp_path: Path) -> None:
    man = tmp_path / "man"
    man.write_text('#!/bin/sh\necho "$@"\n')
    man.chmod(0o755)
    env = environment(PATH=f"{tmp_path}:/usr/bin:/bin")
    for topic, page in [("query", "man1/confluo-query.1"), ("pipelines", "man7/confluo-pipelines.7")]:
        assert run("confluo", "help", topic, env=env).stdout.decode() == f"-l {ROOT}/man/{page}\n"
    assert run("confluo", "help", "nothing", env=env).stdout == b"confluo-nothing\n"


def test_the_launcher_works_from_odd_places(tmp_path: Path) -> None:
    odd = os.fsencode(tmp_path) + b'/it\'s a "copy" $HOME \xff'
    os.mkdir(odd)
    os.symlink(ROOT / "confluo_tools", odd + b"/confluo_tools")
    os.mkdir(odd + b"/bin")
    (ROOT / "bin" / "confluo").read_bytes()
    with open(odd + b"/bin/confluo", "wb") as f:
        f.write((ROOT / "bin" / "confluo").read_bytes())
    os.chmod(odd + b"/bin/confluo", 0o755)
    os.symlink("confluo", odd + b"/bin/confluo-config")
    done = subprocess.run([odd + b"/bin/confluo-config", "sync"], capture_output=True, env=environment())
    assert done.returncode == 2
    assert b"run bin/demo or bin/check once" in done.stderr
    env = environment(CONFLUO_PYTHON=sys.executable)
    done = subprocess.run([odd + b"/bin/confluo-config", "sync"], capture_output=True, env=env, cwd="/")
    assert (done.returncode, done.stdout, done.stderr) == (0, b"seal\n", b"")
    os.symlink(odd + b"/bin/confluo-config", os.fsencode(tmp_path) + b"/linked")
    done = subprocess.run([os.fsencode(tmp_path) + b"/linked", "sync"], capture_output=True, env=env)
    assert done.returncode == 2  # a link of another name is another command
    assert b"no command 'linked'" in done.stderr


def test_completion_is_there_for_the_asking() -> None:
    env = environment(_CONFLUO_CONFIG_COMPLETE="complete_bash", COMP_WORDS="confluo-config --sh", COMP_CWORD="1")
    assert run("confluo-config", env=env).stdout.split() == [b"--show-origin"]


def test_python_dash_m() -> None:
    done = subprocess.run([sys.executable, "-m", "confluo_tools", "--version"], capture_output=True, cwd=ROOT)
    assert done.stdout.decode() == f"confluo {__version__} (format {FORMAT_VERSION})\n"


def test_colour_follows_the_terminal(monkeypatch: pytest.MonkeyPatch, folders: Path) -> None:
    import pty

    master, slave = pty.openpty()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert cli.colour(slave)
    assert cli.colour(slave, "never") is False
    assert cli.colour(0, "always")
    r, w = os.pipe()
    assert not cli.colour(w)
    monkeypatch.setenv("NO_COLOR", "1")
    assert not cli.colour(slave)
    monkeypatch.setenv("NO_COLOR", "")
    monkeypatch.setenv("TERM", "dumb")
    assert not cli.colour(slave)
    for fd in (master, slave, r, w):
        os.close(fd)


def test_a_command_started_bare_on_a_terminal_shows_its_use() -> None:
    for command in ("confluo-query", "confluo-convert", "confluo-info"):
        status, text = on_terminal(command)
        assert status == 2
        assert f"Usage: {command}" in text
        assert "Examples:" in text


def test_shell_script_helper_fails_on_a_failing_stage() -> None:
    assert shell("false | true").returncode == 1
    assert textwrap.dedent(shell("echo $1", "a b").stdout.decode()) == "a b\n"
