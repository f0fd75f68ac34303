"""Stages of a stream.  A function is one class: it reads rows, and writes rows to the next stage, or drops them."""

from libc.stdint cimport int64_t
from confluo_tools.core.block.block cimport Block, Layout, Picks
from confluo_tools.core.kafka.message_sink cimport RowSink
cimport cython


cdef class StreamStage:
    """Takes rows of ``layout`` and passes them on; functions override `take`, and `tick` and `finish` if need be.

    A chain is used by one thread at a time.  The block and the picks are valid during the call only; a stage may
    change the picks.  What a stage does not give, it has filtered on purpose; ``dropped`` counts what it has lost.
    """

    def __init__(self, Layout layout not None):
        self.layout = layout

    def then(self, StreamStage after not None):
        """Give rows to ``after``, which is returned."""
        self.after = after
        return after

    cdef int feed(self, Block block, Picks picks, int64_t now) noexcept nogil:
        """Count and take the picked rows of the block."""
        if picks.n == 0:
            return 0
        self.taken += picks.n
        return self.take(block, picks, now)

    cdef int give(self, Block block, Picks picks, int64_t now) noexcept nogil:
        """Write the picked rows of the block to the next stage."""
        self.given += picks.n
        if self.after is None:
            return 0
        return self.after.feed(block, picks, now)

    cdef int take(self, Block block, Picks picks, int64_t now) noexcept nogil:
        """Read the picked rows, at least one."""
        return self.give(block, picks, now)

    cdef int tick(self, int64_t now) noexcept nogil:
        """Time has passed: give what is due.  Called some times a second, also without rows."""
        return 0 if self.after is None else self.after.tick(now)

    cdef int finish(self) noexcept nogil:
        """The input has ended: give all that is left."""
        return 0 if self.after is None else self.after.finish()

    # The same from Python, for the first stage of a chain; False when it was stopped.

    def write(self, Block block not None, Picks picks=None, *, int64_t now=1):
        """Take the picked rows (None: all).  Raises ValueError for other columns."""
        cdef int stopped
        if block.layout is not self.layout:
            raise ValueError("the block has other columns")
        if picks is None:
            picks = Picks()
            picks.set_all(block.rows)
        with nogil:
            stopped = self.feed(block, picks, now)
        return not stopped

    def pass_time(self, int64_t now):
        """`tick` of the chain."""
        cdef int stopped
        with nogil:
            stopped = self.tick(now)
        return not stopped

    def end(self):
        """`finish` of the chain."""
        cdef int stopped
        with nogil:
            stopped = self.finish()
        return not stopped

    def end_alone(self):
        """`finish` of this stage only: those after it take what it gives, and go on."""
        cdef StreamStage after = self.after
        if after is not None:
            self.after = RelayStage(after)
        try:
            return self.end()
        finally:
            self.after = after


@cython.final
cdef class RelayStage(StreamStage):
    """Gives all rows to ``after``, but does not end it."""

    def __init__(self, StreamStage after not None):
        super().__init__(after.layout)
        self.after = after

    cdef int finish(self) noexcept nogil:
        return 0


@cython.final
cdef class SinkStage(StreamStage):
    """The end of a chain: rows go to ``sink``.  A row waits at most ``linger`` ns for others of its message.

    ``given`` counts rows that are on their way; what waits in the sink is taken, and neither given nor dropped.
    """

    def __init__(self, RowSink sink not None, int64_t linger):
        super().__init__(sink.layout)
        self.sink, self.linger = sink, linger

    cdef void count(self) noexcept nogil:
        self.given, self.dropped = self.sink.sent, self.sink.dropped + self.sink.refused

    cdef int take(self, Block block, Picks picks, int64_t now) noexcept nogil:
        cdef int stopped = self.sink.put(block, picks, now)
        self.count()
        return stopped

    cdef int tick(self, int64_t now) noexcept nogil:
        cdef int stopped = self.sink.late(now - self.linger)
        self.sink.serve(0)
        self.count()
        return stopped

    cdef int finish(self) noexcept nogil:
        cdef int stopped = self.sink.late(0x7fffffffffffffff)
        self.count()
        return stopped


@cython.final
cdef class WriterStage(StreamStage):
    """The end of a chain in Python: ``write`` is called with a block of the rows, which it may keep.

    An exception of ``write`` ends the chain; it is in ``problem``.
    """

    def __init__(self, Layout layout not None, write not None):
        super().__init__(layout)
        self.write = write

    cdef int take(self, Block block, Picks picks, int64_t now) noexcept nogil:
        picks.as_list()                 # so that `Block.take` copies
        with gil:
            if self.problem is not None:
                self.dropped += picks.n
                return 1
            try:
                self.write(block.take(picks))
            except Exception as e:
                self.problem = e
                self.dropped += picks.n
                return 1
        self.given += picks.n
        return 0
