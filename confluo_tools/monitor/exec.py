"""Commands that run for alerts: each gets one record on its stdin, and a few run at a time.

The monitor does not wait for them: threads start them, and when too many records wait, further ones are counted and
dropped.
"""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence

from confluo_tools.console import describe

MAX_WAITING = 1000


class CommandRunner:
    """Runs a command for each line.  ``words``: the command and its arguments, without a shell.

    ``max_running``: processes at a time.  ``note`` reports exit statuses other than 0.
    Counts: ``done``, ``failed``, ``dropped``.
    """

    def __init__(self, words: Sequence[str], max_running: int, note: Callable[[str], None]) -> None:
        self.words, self.max_running, self.note = list(words), max_running, note
        self.done = self.failed = self.dropped = 0
        self._queue: queue.Queue[tuple[bytes, str]] = queue.Queue(MAX_WAITING)
        self._threads: list[threading.Thread] = []
        self._busy = 0
        self._lock = threading.Lock()

    def put(self, line: bytes, name: str) -> None:
        """Queue a run of the command with ``line`` on its stdin.  ``name``: of the trigger, for messages."""
        try:
            self._queue.put_nowait((line, name))
        except queue.Full:
            if not self.dropped:
                self.note(f"--exec: more than {MAX_WAITING} alerts wait for {self.words[0]}: further ones are dropped")
            self.dropped += 1
            return
        if len(self._threads) < self.max_running and self._queue.qsize() + self._busy > len(self._threads):
            thread = threading.Thread(target=self._work, name="exec", daemon=True)
            try:
                thread.start()
            except RuntimeError as e:  # out of memory or threads
                self._refused(describe(e), name)
                return
            self._threads.append(thread)

    def _refused(self, why: str, name: str) -> None:
        # Without any thread, nothing would take the record from the queue; else it waits for its turn.
        if not self._threads:
            self._queue.get_nowait()
            self._queue.task_done()
            self.failed += 1
            self.note(f"--exec: {self.words[0]}: {why}, for {name}")

    def _work(self) -> None:
        while True:
            line, name = self._queue.get()
            with self._lock:
                self._busy += 1
            try:
                what = self._run(line)
            except Exception as e:  # the next record is run all the same
                what = describe(e)
            finally:
                with self._lock:
                    self._busy -= 1
            with self._lock:
                self.done += 1
                self.failed += bool(what)
            if what:
                self.note(f"--exec: {self.words[0]}: {what}, for {name}")
            self._queue.task_done()

    def _run(self, line: bytes) -> str:
        try:
            child = subprocess.Popen(
                self.words,
                stdin=subprocess.PIPE,
                stdout=2,  # our stdout is for the alerts
                env=os.environ,  # without the zone of --tz
            )
        except OSError as e:
            return e.strerror or str(e)
        try:
            child.communicate(line)
        except (BrokenPipeError, OSError):
            child.wait()  # it did not read its stdin
        if child.returncode < 0:
            try:
                return f"killed by {signal.Signals(-child.returncode).name}"
            except ValueError:
                return f"killed by signal {-child.returncode}"
        return f"exit status {child.returncode}" if child.returncode else ""

    def wait(self, seconds: float) -> bool:
        """Wait until all runs have ended, at most ``seconds``; returns whether they have."""
        end = time.monotonic() + seconds
        while self._queue.unfinished_tasks:
            if time.monotonic() >= end:
                return False
            time.sleep(0.01)
        return True
