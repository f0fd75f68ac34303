"""Signals that end a command: one sent to it and again to its group, as timeout(1) does, is one; later ones end it."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from running import ROOT

SCRIPT = """
import os, sys, time
from confluo_tools import cli
stopped = []
with cli.signals(stopped.append, counts=lambda: "17 of 4", flush=lambda: os.write(1, b"flushed\\n")):
    os.write(1, b"ready\\n")
    while len(sys.argv) > 1 or not stopped:
        time.sleep(0.02)
    time.sleep(0.3)
os.write(1, f"stopped {stopped}\\n".encode())
"""


def child(*argv: str) -> subprocess.Popen[bytes]:
    made = subprocess.Popen([sys.executable, "-c", SCRIPT, *argv], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert made.stdout is not None
    assert made.stdout.readline() == b"ready\n"
    return made


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_the_same_signal_twice_at_once_is_one(number: signal.Signals) -> None:
    with child() as made:
        made.send_signal(number)
        time.sleep(0.05)
        made.send_signal(number)
        assert made.communicate(timeout=30)[0] == f"stopped [{int(number)}]\n".encode()
    assert made.returncode == 0


def test_a_later_one_ends_it_at_once() -> None:
    with child("goes on") as made:
        made.send_signal(signal.SIGTERM)
        time.sleep(1.2)
        assert made.poll() is None
        made.send_signal(signal.SIGTERM)
        assert made.wait(30) == -signal.SIGTERM


def test_counts_and_flush() -> None:
    with child() as made:
        made.send_signal(signal.SIGUSR1)
        assert made.stderr is not None
        assert made.stderr.readline().endswith(b": 17 of 4\n")
        made.send_signal(signal.SIGUSR2)
        assert made.stdout is not None
        assert made.stdout.readline() == b"flushed\n"
        made.send_signal(signal.SIGINT)
        assert made.wait(30) == 0


def test_what_nohup_ignores_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        made = child()
    finally:
        signal.signal(signal.SIGHUP, before)
    with made:
        os.kill(made.pid, signal.SIGHUP)
        time.sleep(0.3)
        assert made.poll() is None
        made.send_signal(signal.SIGINT)
        assert made.wait(30) == 0


LATE = """
import os, signal, sys
from confluo_tools import cli
from confluo_tools.cli import runner
app = cli.command_app("")
@app.command()
def nothing() -> int:
    restore = signal.signal
    def late(number, handler):
        os.kill(os.getpid(), signal.SIGINT)  # while the handlers of before are put back
        return restore(number, handler)
    runner.signal.signal = late
    return 0
signal.signal(signal.SIGINT, signal.SIG_DFL)
sys.exit(cli.run(app, "confluo-nothing", []))
"""


def test_a_signal_at_the_very_end_is_no_traceback() -> None:
    """It ends the process as any program, once its handler is gone; or comes too late."""
    done = subprocess.run([sys.executable, "-c", LATE], capture_output=True, timeout=30, check=False)
    assert done.stderr == b""
    assert done.returncode in (0, -signal.SIGINT)


DISCARDS = """
import os, signal, sys, time, weakref
from confluo_tools import cli, stop_signals
from confluo_tools.errors import ConfluoError
from confluo_tools.formats.output_file import FileSink
stop_signals.AGAIN = 0.02
if sys.argv[1] in ("end", "file"):
    stop_signals.SOON = 60  # the command ends first
app = cli.command_app("")
sent = []

def send(*_):
    if not sent:
        sent.append(1)
        os.kill(os.getpid(), int(sys.argv[2]))
        for _ in range(1000):
            len(sent)  # the handler has run now

class Ends:
    __del__ = send

class Plain:
    pass

@app.command()
def endless() -> int:
    if sys.argv[1] == "import":
        import sends  # as a compiled module does: what its initialization raises is discarded
    elif sys.argv[1] == "__del__":
        Ends()
    elif sys.argv[1] == "callback":
        one = Plain()
        watch = weakref.ref(one, send)
        del one
    elif sys.argv[1] == "except":
        try:
            send()
        except BaseException:
            pass
    if sys.argv[1] == "end":
        Ends()
        return 0
    if sys.argv[1] == "file":
        with FileSink(sys.argv[3]):
            Ends()
        print("written")
    while sent and sys.argv[1] != "error":
        time.sleep(0.01)
    if sys.argv[1] == "error":  # an input ends, because its sender had the signal as well
        Ends()
        raise ConfluoError("is empty")
    return 0
sys.exit(cli.run(app, "confluo-endless", []))
"""
SENDS = """
import __main__
try:
    __main__.send()
except BaseException:
    pass
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("where", ["import", "__del__", "callback", "except", "error", "end", "file"])
def test_a_signal_is_not_lost_where_python_discards_exceptions(
    where: str, number: signal.Signals, tmp_path: Path
) -> None:
    (tmp_path / "sends.py").write_text(SENDS)
    output = tmp_path / "output"
    argv = [sys.executable, "-c", DISCARDS, where, str(int(number)), str(output)]
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        argv, capture_output=True, timeout=60, check=False, cwd=ROOT, env={**os.environ, "PYTHONPATH": path}
    )
    assert done.returncode == 128 + number
    assert done.stdout + done.stderr == b""
    assert not output.exists()


CLEANS_UP = """
import os, signal, sys, time
from confluo_tools import cli, stop_signals
stop_signals.AGAIN = 0.01
looks = []
class Counted(stop_signals.StopRaiser):
    def _look_again(self, number, frame):
        looks.append(number)
        super()._look_again(number, frame)
cli.runner.StopRaiser = Counted
app = cli.command_app("")

def rows():
    try:
        yield 1
        yield 2
    finally:
        wait("generator")

def wait(what):
    seen = len(looks)
    while len(looks) < seen + 3:
        time.sleep(0.005)
    os.write(1, what.encode() + b" ")

@app.command()
def cleans() -> int:
    source = rows()
    try:
        for _ in source:
            os.kill(os.getpid(), signal.SIGTERM)
    finally:
        source.close()
        try:
            raise ValueError
        except ValueError:
            wait("handler")
        wait("finally")
    return 0
sys.exit(cli.run(app, "confluo-cleans", []))
"""


def test_clean_up_is_not_interrupted_by_looking_again() -> None:
    done = subprocess.run([sys.executable, "-c", CLEANS_UP], capture_output=True, timeout=60, check=False, cwd=ROOT)
    assert (done.stdout, done.stderr) == (b"generator handler finally ", b"")
    assert done.returncode == 128 + signal.SIGTERM
