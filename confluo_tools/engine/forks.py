"""All cores of this host: forks of the process, which share its open files and the question.

Threads would wait for the interpreter lock between blocks.  What a process that died had to do is done again here.
"""

from __future__ import annotations

import mmap
import os
import signal
import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from confluo_tools.engine import result
from confluo_tools.engine.result import Result
from confluo_tools.engine.runner import Here, Runner
from confluo_tools.engine.task import Task
from confluo_tools.engine.unit import ArchiveBatch, LogBlocks, Unit, runs
from confluo_tools.engine.unit_plan import PER_SLOT
from confluo_tools.objects.address import is_url
from confluo_tools.objects.threads import WaitingThreads

FEW_ROWS = 3 << 19  # for fewer rows a fork costs more time than it saves
_NUMBER = struct.Struct("<I")
_SIZE = struct.Struct("<Q")
_MOST_PIECES = os.sysconf("SC_IOV_MAX")


class Forks(Runner):
    """Local processes, ``slots`` with this one (None: one for each core, but no more than the rows are worth)."""

    def __init__(self, slots: int | None = None) -> None:
        self.slots = slots or len(os.sched_getaffinity(0))
        self._by_size = slots is None
        self._done: list[int] = []

    def map(self, task: Task, units: Sequence[Unit], here: Here) -> Iterator[Result]:
        """The results of this process and of forks of it: of a share each, in order.

        If states may be merged in any order, a process that is done early takes a part of the share of another one.
        """
        if any(isinstance(unit, ArchiveBatch) and is_url(unit.archive) for unit in units):
            yield from _in_threads(runs(units, self.slots), here)
            return
        self.close()  # processes of the task before
        number = self._processes(units)
        if number > 1 and task.partial.any_order and all(isinstance(unit, LogBlocks) for unit in units):
            yield from self._helping(runs(units, number), here)
            return
        shares = runs(units, number)
        with _Processes(self._done) as processes:
            for share in shares[1:]:
                processes.start(_Given(share), here)
            for number, share in enumerate(shares):
                found = processes.result(number - 1) if number else None
                yield here(share) if found is None else found[1]

    def _helping(self, shares: Sequence[Sequence[Unit]], here: Here) -> Iterator[Result]:
        with _SharedPieces([runs(share, PER_SLOT) for share in shares]) as pieces, _Processes(self._done) as processes:
            for number in range(1, len(shares)):
                processes.start(pieces.of(number), here)
            own = pieces.of(0)
            yield here(own)
            done = set(own.taken)
            for number in range(1, len(shares)):
                found = processes.result(number - 1)
                if found is not None:
                    done.update(found[0])
                    yield found[1]
            missing = [unit for i, piece in enumerate(pieces.all) if i not in done for unit in piece]
            if missing:
                yield here(missing)

    def _processes(self, units: Sequence[Unit]) -> int:
        rows = sum(unit.size for unit in units)
        return min(self.slots, max(rows // FEW_ROWS, 1)) if self._by_size else self.slots

    def close(self) -> None:
        while self._done:
            os.waitpid(self._done.pop(), 0)


def _in_threads(shares: Sequence[Sequence[Unit]], here: Here) -> Iterator[Result]:
    # Parts in object stores: a fork could not go on with the connections, and threads wait for the store, not for
    # one another.
    yield from WaitingThreads(len(shares), "shares").map(here, shares)


class _Given:
    """The units of one share.  ``taken``: the numbers of the pieces that were taken, if the shares have some."""

    def __init__(self, share: Iterable[Unit], taken: list[int] | None = None) -> None:
        self._share = share
        self.taken = [] if taken is None else taken

    def __iter__(self) -> Iterator[Unit]:
        return iter(self._share)


class _SharedPieces:
    """Pieces of shares.  The numbers of those of a share are in a pipe: the process that reads one has to do it."""

    def __init__(self, shares: Sequence[Sequence[Sequence[Unit]]]) -> None:
        self.all = [piece for share in shares for piece in share]
        self._pipes: list[int] = []
        first = 0
        for share in shares:
            read, write = os.pipe()
            self._pipes.append(read)
            os.write(write, b"".join(_NUMBER.pack(first + i) for i in range(len(share))))
            os.close(write)
            first += len(share)

    def __enter__(self) -> _SharedPieces:
        return self

    def __exit__(self, *error: object) -> None:
        for pipe in self._pipes:
            os.close(pipe)

    def of(self, number: int) -> _Given:
        """The units of share ``number``, and then those that are left of the others."""
        taken: list[int] = []
        return _Given(self._take(number, taken), taken)

    def _take(self, number: int, taken: list[int]) -> Iterator[Unit]:
        for pipe in self._pipes[number:] + self._pipes[:number]:
            while data := os.read(pipe, _NUMBER.size):
                taken.append(_NUMBER.unpack(data)[0])
                yield from self.all[taken[-1]]


class _Process(NamedTuple):
    number: int
    pipe: int  # the size of its result is written to it when all of that is in memory
    memory: int  # a file without a name, which this process maps


class _Processes:
    """Processes that each do a part of the work; those that are left at the end are killed.

    ``done``: numbers of processes that gave their results, and are to be waited for: to give back their memory takes
    them longer than to send a small result.
    """

    def __init__(self, done: list[int]) -> None:
        self._running: list[_Process] = []
        self._done = done

    def __enter__(self) -> _Processes:
        return self

    def __exit__(self, *error: object) -> None:
        for process in self._running:
            os.close(process.pipe)
            os.close(process.memory)
            if process.number not in self._done:
                os.kill(process.number, signal.SIGKILL)
                os.waitpid(process.number, 0)

    def start(self, units: _Given, here: Here) -> None:
        memory = os.memfd_create("confluo-result")
        read, write = os.pipe()
        number = os.fork()
        if number:
            os.close(write)
            self._running.append(_Process(number, read, memory))
            return
        try:
            for ending in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                signal.signal(ending, signal.SIG_DFL)
            found = here(units)
            numbers = b"".join(map(_NUMBER.pack, (len(units.taken), *units.taken)))
            os.write(write, _SIZE.pack(_written(memory, [numbers, *found.pieces()])))
        finally:
            os._exit(0)  # whatever happened: this process has nothing of its own to end

    def result(self, number: int) -> tuple[list[int], Result] | None:
        """The pieces that process ``number`` took, and its result; None if it failed: they are to be done."""
        process = self._running[number]
        size = os.read(process.pipe, _SIZE.size)
        if not size:
            return None
        self._done.append(process.number)
        data = memoryview(mmap.mmap(process.memory, _SIZE.unpack(size)[0], prot=mmap.PROT_READ))
        after = _NUMBER.size * (1 + _NUMBER.unpack_from(data)[0])
        return [n for (n,) in _NUMBER.iter_unpack(data[_NUMBER.size : after])], result.of_pieces(data[after:])


def _written(file: int, pieces: Sequence[bytes]) -> int:
    # The number of bytes.
    left = [memoryview(piece) for piece in pieces if piece]
    total = 0
    while left:
        done = os.writev(file, left[:_MOST_PIECES])
        total += done
        while left and done >= len(left[0]):
            done -= len(left.pop(0))
        if done:
            left[0] = left[0][done:]
    return total
