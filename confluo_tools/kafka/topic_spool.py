"""A topic as a MultiLog below $TMPDIR, for commands that look back at what they have read."""

from __future__ import annotations

import hashlib
import threading
import time
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from confluo_tools.errors import ConfluoError

if TYPE_CHECKING:
    from confluo_tools.kafka.topic_reader import TopicReader
    from confluo_tools.multilog import Log, LogWriter

STEP = 1.0  # s between two removals of old rows
PAUSE = 0.05  # s between two looks at the thread


class TopicSpool:
    """The rows of ``reader``, in a log that a thread fills; a context manager that removes it.

    ``number``: of the topic; all spools of a topic have the same UUID.
    """

    def __init__(self, reader: TopicReader, number: str) -> None:
        from confluo_tools import multilog

        self.reader = reader
        self._folder = TemporaryDirectory(prefix="confluo-topic-")
        uuid = hashlib.sha256(f"{reader.name} {number}".encode()).digest()[:16]
        path = f"{self._folder.name}/topic.ml"
        self._own: Log = multilog.create(path, reader.schema, lanes=1, segment_blocks=1, uuid=uuid)  # of the thread
        self.log: Log = multilog.open(path, readonly=True)
        self._error: BaseException | None = None
        self._caught_up = threading.Event()
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        reader.stop_when(self._over.is_set)

    def fill(self, since: int, keep: int | None) -> None:
        """Read from the time ``since`` (ns) to the end, or to the end of now when the topic is followed.

        Rows that are older than ``keep`` ns by the clock are removed.  Raises what the reader raises.
        """
        self.reader.skip_before(since)
        self._thread = threading.Thread(target=self._work, args=(keep,), name="topic", daemon=True)
        self._thread.start()
        while self._thread.is_alive() and not self._caught_up.is_set():
            time.sleep(PAUSE)
        self.check()

    def check(self) -> None:
        """Raise the error that ended the thread, if any."""
        if self._error is not None:
            raise self._error

    def _work(self, keep: int | None) -> None:
        from confluo_tools.multilog.retain import Keeper

        keeper = Keeper(self._own, keep) if keep is not None else None
        try:
            with self._own.writer(ahead=-1) as writer:
                self.reader.on_idle(lambda: self._idle(writer))
                stepped = time.monotonic()
                for block in self.reader:
                    writer.append(block)
                    if keeper is not None and time.monotonic() - stepped > STEP:
                        stepped = time.monotonic()
                        keeper.step()
        except (ConfluoError, OSError) as e:
            self._error = e

    def _idle(self, writer: LogWriter) -> None:
        writer.poll()
        if self.reader.consumer.at_end:
            self._caught_up.set()

    def __enter__(self) -> TopicSpool:
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join()
        self.log.close()
        self._own.close()
        self.reader.close()
        self._folder.cleanup()
