"""Records as work for a command: each is one line on the stdin of a process of its own, a few at a time.

Nobody waits for the command: threads start it, and when too many records wait, further ones are counted and left out.
"""

from __future__ import annotations

import queue
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence

WAITING = 1000


class Runner:
    """``words``: the command and its arguments; no shell is involved.  ``most``: processes at once.

    ``note`` is told of exit statuses other than 0.  Counts: ``done``, ``failed``, ``dropped``.
    """

    def __init__(self, words: Sequence[str], most: int, note: Callable[[str], None]) -> None:
        self.words, self.most, self.note = list(words), most, note
        self.done = self.failed = self.dropped = 0
        self._queue: queue.Queue[tuple[bytes, str]] = queue.Queue(WAITING)
        self._threads: list[threading.Thread] = []
        self._busy = 0
        self._lock = threading.Lock()

    def put(self, line: bytes, name: str) -> None:
        """Run the command with ``line`` on its stdin, some time.  ``name`` is for people."""
        try:
            self._queue.put_nowait((line, name))
        except queue.Full:
            if not self.dropped:
                self.note(f"--exec: more than {WAITING} alerts wait for {self.words[0]}: further ones are left out")
            self.dropped += 1
            return
        if len(self._threads) < self.most and self._queue.qsize() + self._busy > len(self._threads):
            thread = threading.Thread(target=self._work, name="exec", daemon=True)
            self._threads.append(thread)
            thread.start()

    def _work(self) -> None:
        while True:
            line, name = self._queue.get()
            with self._lock:
                self._busy += 1
            try:
                what = self._run(line)
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
            child = subprocess.Popen(self.words, stdin=subprocess.PIPE, stdout=2)  # our stdout has the alerts
        except OSError as e:
            return e.strerror or str(e)
        try:
            child.communicate(line)
        except (BrokenPipeError, OSError):
            child.wait()  # it did not want to know
        if child.returncode < 0:
            try:
                return f"killed by {signal.Signals(-child.returncode).name}"
            except ValueError:
                return f"killed by signal {-child.returncode}"
        return f"exit status {child.returncode}" if child.returncode else ""

    def wait(self, seconds: float) -> bool:
        """Give what was put so much time to end; False when it has not."""
        end = time.monotonic() + seconds
        while self._queue.unfinished_tasks:
            if time.monotonic() >= end:
                return False
            time.sleep(0.01)
        return True
