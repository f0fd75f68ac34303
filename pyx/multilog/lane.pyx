"""The writer of one lane: rows are copied into the columns of a mapped segment, then published.

The append path is c_lane.pxd; this module is its Python wrapper.

A writer belongs to one thread at a time, and does not survive a fork.
"""

from libc.errno cimport EINVAL
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memset
from posix.time cimport clock_gettime, nanosleep, timespec, CLOCK_MONOTONIC
from posix.unistd cimport close
from c_atomic cimport load_acquire, tail_rows
from c_block cimport BLOCK_ROWS
from c_lane cimport (Lane, Seg, lane_append, lane_append_row, lane_publish, lane_rotate, lane_feed, lane_drop, BLANK,
                     pthread_mutex_init, pthread_mutex_lock, pthread_mutex_unlock, pthread_cond_init,
                     pthread_cond_broadcast, pthread_join)
from c_layout cimport data_end, seal_bytes
from confluo_tools.core.block.block cimport Block, zero_bytes
from confluo_tools.core.multilog.control cimport Control
from confluo_tools.core.multilog.segment cimport SegmentShape
from cpython.exc cimport PyErr_CheckSignals
from cpython.pythread cimport PyThread_get_thread_ident
cimport cython
import os
import weakref

cdef object _writers = weakref.WeakSet()


def _after_fork():
    # The child shares the open file of the lock: it must neither write nor keep the lock.
    for writer in list(_writers):
        (<LaneWriter>writer)._disown()


os.register_at_fork(after_in_child=_after_fork)


cdef void _stop(LaneWriter self) noexcept:
    """Stop the helper threads and close all files, once."""
    cdef Lane* lane = self.lane
    cdef Seg* seg
    if lane.dir < 0:
        return
    with nogil:
        pthread_mutex_lock(&lane.lock)
        lane.stop = True
        pthread_cond_broadcast(&lane.wake)
        pthread_cond_broadcast(&lane.done)
        pthread_mutex_unlock(&lane.lock)
        if lane.feeding:
            pthread_join(lane.feeder, NULL)
        if lane.sealing:
            pthread_join(lane.sealer, NULL)
        while lane.retired != NULL:
            seg, lane.retired = lane.retired, lane.retired.next
            lane_drop(lane, seg)
        if lane.ready != NULL:
            lane_drop(lane, lane.ready)
        if lane.seg != NULL:
            lane_drop(lane, lane.seg)
        lane.ready = lane.seg = NULL
        close(lane.dir)
        lane.dir = -1
        close(self.lock_fd)
    self.lock_fd = -1


cdef int _pause() except -1:
    cdef timespec pause
    pause.tv_sec, pause.tv_nsec = 0, 200000
    PyErr_CheckSignals()
    with nogil:
        nanosleep(&pause, NULL)
    return 0


@cython.no_gc_clear
cdef class LaneWriter:
    """The writer of lane ``number``.  Created by `Log.writer` after the lane is claimed and sealed.

    ``directory`` and ``lock``: descriptors of the lane's folder and of its held lock file, closed by `stop`.
    ``message``: record batch message of a full block; ``footer``: that of a full segment.
    ``sync``: 0 none, 1 seal, 2 batch.  ``ahead``: blocks prepared ahead of the writer, -1: no helper threads.
    ``owner``: (uid, gid) to whom new segments are given.
    """

    def __cinit__(self, Control control not None, SegmentShape shape not None, int number, *, int directory, int lock,
                  bytes message not None, bytes footer not None, int sync=0, int ahead=1, owner=None, **ignored):
        cdef Lane* lane
        cdef int i
        if not 0 <= number < control.lanes or not control.writable or len(message) != shape.message:
            raise ValueError(f"lane {number}")
        self.control, self.shape, self.number, self.lock_fd = control, shape, number, lock
        self._kept = (message, footer, shape.header)
        self.lane = lane = <Lane*>calloc(1, sizeof(Lane))
        if lane == NULL:
            raise MemoryError
        lane.n, lane.column, lane.blocks = shape.layout.n, shape.layout.column, shape.segment_blocks
        shape.fill(&lane.g, BLOCK_ROWS)
        lane.header, lane.message, lane.footer = shape.header, message, footer
        lane.footer_bytes = <uint32_t>len(footer)
        memcpy(lane.uuid, <const char*>shape.uuid, 16)
        lane.owner, lane.owner_group = owner or (0, 0)
        lane.blank = zero_bytes(BLANK)
        lane.number, lane.dir, lane.sync, lane.ahead = number, directory, sync, ahead
        for i in range(lane.n):
            lane.zeros[i] = zero_bytes(<size_t>lane.column[i].width * BLOCK_ROWS)
        lane.line = &control.line[number]
        lane.start = lane.filled = lane.block_end = tail_rows(load_acquire(&lane.line.tail))
        lane.file_size = data_end(&lane.g, <uint64_t>lane.blocks * BLOCK_ROWS)
        lane.file_size += seal_bytes(lane.file_size) + lane.footer_bytes
        pthread_mutex_init(&lane.lock, NULL)
        pthread_cond_init(&lane.wake, NULL)
        pthread_cond_init(&lane.done, NULL)
        _writers.add(self)

    def __dealloc__(self):
        if self.lane != NULL:
            _stop(self)
            free(self.lane)

    def _disown(self):
        if self.lane != NULL and self.lane.dir >= 0:
            os.close(self.lane.dir)
            os.close(self.lock_fd)
            self.lane.dir = -1
            self.lane.feeding = self.lane.sealing = False
            self.lane.retired = self.lane.ready = self.lane.seg = NULL

    def stop(self):
        """Stop the helper threads and close all files; the lane is left as if the writer had died."""
        self._wait_for_others()
        try:
            _stop(self)
        finally:
            self.closer = 0

    def join(self):
        """Publish everything, waiting for a freeze to end, then stop the helpers.  The lock stays held.

        Returns the descriptor of the lock, which the caller closes after sealing the lane.
        """
        cdef Lane* lane = self.lane
        self._wait_for_others()
        try:
            self._open()
            while not lane_publish(lane):
                _pause()
            lock = os.dup(self.lock_fd)
            os.set_inheritable(lock, False)
            _stop(self)
        finally:
            self.closer = 0
        return lock

    cdef int _wait_for_others(self) except -1:
        """Until no other thread appends or closes; they are refused, or wait, from now on."""
        cdef unsigned long me = PyThread_get_thread_ident()
        if self.closer == me:           # in a handler of a signal that came meanwhile
            raise ValueError("the writer is being closed")
        while self.closer:
            _pause()
        self.closer = me
        try:
            while self.busy:
                _pause()
        except BaseException:
            self.closer = 0
            raise
        return 0

    def _open(self):
        if self.lane.dir < 0:
            raise ValueError("the writer is closed")

    @property
    def rows(self):
        """Rows appended by this writer, published or not."""
        return self.lane.filled - self.lane.start

    @property
    def base(self):
        """Row number, in the lane, of the first row of this writer."""
        return self.lane.start

    @property
    def published(self):
        """Whether all rows appended are published."""
        return tail_rows(load_acquire(&self.lane.line.tail)) >= self.lane.filled

    @property
    def closed(self):
        return self.lane.dir < 0

    @property
    def sync(self):
        """0 none, 1 seal, 2 batch."""
        return self.lane.sync

    cdef int append_columns(self, const uint8_t** columns, uint32_t rows) noexcept nogil:
        return lane_append(self.lane, columns, rows) if self.lane.dir >= 0 else EINVAL

    cdef int append_row(self, const uint8_t* const* row) noexcept nogil:
        return lane_append_row(self.lane, row) if self.lane.dir >= 0 else EINVAL

    cdef int append_block(self, Block block) noexcept nogil:
        cdef const uint8_t* columns[250]
        cdef int i
        if self.lane.dir < 0 or block.layout.n != self.lane.n:
            return EINVAL
        for i in range(self.lane.n):
            columns[i] = block.col[i]
            if block._is_zero(i):
                columns[i] = NULL
        return lane_append(self.lane, columns, block.rows)

    def append(self, Block block not None):
        """Copy the rows of ``block`` to the end of the lane and publish them.

        Raises ValueError for other columns, OSError(ENOSPC) when the disk is full: the rows stored before are
        published, and ``rows`` is their number.
        """
        cdef int code
        self._open()
        if block.layout is not self.shape.layout:
            self._same(block)
        if self.busy or self.closer:
            raise ValueError("another thread uses the writer: each needs its own")
        self.busy = True
        with nogil:
            code = self.append_block(block)
        self.busy = False
        if code:
            raise OSError(code, os.strerror(code))

    def _same(self, Block block not None):
        cdef int i
        for i in range(max(block.layout.n, self.lane.n)):
            if (block.layout.n != self.lane.n or block.layout.names[i] != self.shape.layout.names[i]
                    or block.layout.column[i].code != self.lane.column[i].code
                    or block.layout.column[i].width != self.lane.column[i].width):
                raise ValueError("the columns of the block are not those of the log")

    def poll(self):
        """Publish rows that a freeze has delayed; True when everything is published."""
        self._open()
        return lane_publish(self.lane)

    def flush(self):
        """Publish everything, waiting for a freeze to end (it has a deadline, 60 s at most)."""
        cdef timespec pause
        self._open()
        pause.tv_sec, pause.tv_nsec = 0, 200000
        while not lane_publish(self.lane):
            PyErr_CheckSignals()
            with nogil:
                nanosleep(&pause, NULL)

    def prefault(self, int blocks=0):
        """Reserve and touch all columns of the next row's segment (its first ``blocks`` blocks); for benchmarks."""
        cdef Lane* lane = self.lane
        cdef uint64_t all_columns[4]
        cdef int code = 0, k
        self._open()
        memset(all_columns, 255, sizeof(all_columns))
        with nogil:
            if lane.seg == NULL or (lane.filled == lane.block_end and lane.block + 1 == lane.blocks):
                code = lane_rotate(lane)            # the next append starts in it
            if not code:
                for k in range(blocks if 0 < blocks < lane.blocks else lane.blocks):
                    lane_feed(lane, lane.seg, k, all_columns, k > lane.block)
                    lane.seg.fed = max(lane.seg.fed, k + 1)
        if code:
            raise OSError(code, os.strerror(code))


def append_repeatedly(LaneWriter writer not None, Block block not None, uint64_t times, uint32_t batch,
                      bint timed=False):
    """Append ``times`` batches of ``batch`` rows, taken from ``block`` in turn, without the interpreter.

    A batch of 1 uses the single-row path.  Returns (total ns, {ns: number of appends that took at most that}); the
    second is empty unless ``timed``.  For benchmarks.
    """
    cdef const uint8_t* columns[250]
    cdef uint64_t histogram[64 * 16]
    cdef uint64_t _k, start, before, now, took
    cdef uint32_t at = 0
    cdef int i, code = 0, bucket
    if not 1 <= batch <= block.rows or block.layout.n != writer.lane.n:
        raise ValueError(f"batches of {batch} rows from a block of {block.rows}")
    writer._open()
    memset(histogram, 0, sizeof(histogram))
    with nogil:
        start = before = _clock()
        for _k in range(times):
            if at + batch > block.rows:
                at = 0
            for i in range(writer.lane.n):
                columns[i] = block.col[i] + <size_t>at * block.layout.column[i].width
            at += batch
            if batch == 1:
                code = lane_append_row(writer.lane, columns)
            else:
                code = lane_append(writer.lane, columns, batch)
            if code:
                break
            if timed:
                now = _clock()
                took = now - before
                before = now
                bucket = 0
                while took >= 32:
                    took >>= 1
                    bucket += 16
                histogram[min(bucket + <int>took, 1023)] += 1
        now = _clock()
    if code:
        raise OSError(code, os.strerror(code))
    if not timed:
        return now - start, {}
    counts = {}
    for i in range(1024):
        if histogram[i]:
            counts[i if i < 32 else ((i % 16 + 17) << (i // 16 - 1)) - 1] = histogram[i]
    return now - start, counts


cdef uint64_t _clock() noexcept nogil:
    cdef timespec t
    clock_gettime(CLOCK_MONOTONIC, &t)
    return <uint64_t>t.tv_sec * 1000000000 + t.tv_nsec
