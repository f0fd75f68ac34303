"""One writer's lane of a MultiLog: rows are copied into the columns of a mapped segment, then published.

The append path takes no lock and makes no system call inside a block.  Two helper threads do the rest:
the feeder reserves disk space and touches pages a block ahead and prepares the next segment; the sealer seals
full segments.  Disk space is always reserved before a byte is stored, so that a full disk is an error code and
not a SIGBUS.  A writer belongs to one thread at a time, and does not survive a fork.
"""

from libc.errno cimport errno, ENOSPC, EINVAL, ENOMEM, EOPNOTSUPP, ENOSYS, ECHILD
from libc.stdint cimport uint8_t, uint32_t, uint64_t, int64_t
from libc.stdlib cimport calloc, free
from libc.stdio cimport snprintf
from libc.string cimport memcpy, memset
from posix.mman cimport mmap, munmap, madvise, msync, MAP_SHARED, MAP_FAILED, MS_SYNC, PROT_READ, PROT_WRITE
from posix.time cimport clock_gettime, timespec, CLOCK_MONOTONIC, CLOCK_REALTIME
from posix.types cimport off_t, mode_t
from posix.unistd cimport close, ftruncate, fdatasync
from c_append cimport Slot, store, store_row
from c_atomic cimport (load_acquire, load_relaxed, store_release, store_relaxed, fetch_or, tail_rows, tail_freezes,
                       tail_publish, tail_break)
from c_block cimport Column, Zone, BLOCK_ROWS
from c_fault cimport fault_point
from c_layout cimport (Geometry, Line, BlockHead, BLOCK_MAGIC, PAGE, HEAD_BIT, SYNC_BATCH, SYNC_SEAL, data_end,
                       seal_bytes)
from confluo_tools.core.block cimport Block, zero_bytes
from confluo_tools.core.control cimport Control, boot_now
from confluo_tools.core.segment cimport Shape, seal_file
cimport cython
import os
import weakref

cdef extern from "fcntl.h" nogil:
    int openat(int dir, const char* name, int flags, mode_t mode)
    int fallocate(int fd, int mode, off_t at, off_t n)
    int posix_fallocate(int fd, off_t at, off_t n)
    enum: O_RDWR
    enum: O_CREAT
    enum: O_TRUNC
    enum: O_CLOEXEC

cdef extern from "unistd.h" nogil:
    ssize_t pwrite(int fd, const void* data, size_t n, off_t at)
    int unlinkat(int dir, const char* name, int flags)

cdef extern from "stdio.h" nogil:
    int renameat(int from_dir, const char* from_name, int to_dir, const char* to_name)

cdef extern from "signal.h" nogil:
    ctypedef struct sigset_t:
        pass
    int sigfillset(sigset_t* set)
    int pthread_sigmask(int how, const sigset_t* set, sigset_t* old)
    enum: SIG_SETMASK

cdef extern from "pthread.h" nogil:
    int pthread_create(pthread_t* thread, void* attributes, void* (*run)(void*) noexcept nogil, void* arg)
    int pthread_join(pthread_t thread, void** result)
    int pthread_mutex_init(pthread_mutex_t* m, void* attributes)
    int pthread_mutex_lock(pthread_mutex_t* m)
    int pthread_mutex_unlock(pthread_mutex_t* m)
    int pthread_cond_init(pthread_cond_t* c, void* attributes)
    int pthread_cond_broadcast(pthread_cond_t* c)
    int pthread_cond_wait(pthread_cond_t* c, pthread_mutex_t* m)
    int pthread_cond_timedwait(pthread_cond_t* c, pthread_mutex_t* m, const timespec* until)

cdef extern from *:
    """
    #include <sys/mman.h>
    #ifndef MADV_POPULATE_WRITE
    #define MADV_POPULATE_WRITE 23
    #endif
    static inline void cfl_touch(uint8_t *p) { __atomic_fetch_or(p, 0, __ATOMIC_RELAXED); }
    """
    enum: MADV_POPULATE_WRITE
    void touch "cfl_touch"(uint8_t* p) nogil

cdef enum:
    MAX_FREEZE = 60                     # seconds; see control.pyx
    FIRST_FEED = 1024                   # rows after which the first block of a writer is worth preparing


# ---- segments ---------------------------------------------------------------------------------------------------

cdef Seg* _make(Lane* lane, uint64_t base, int* error) noexcept nogil:
    """A new segment for the rows from `base` on: under a temporary name until it is whole."""
    cdef char temporary[64]
    cdef char name[64]
    cdef uint64_t end = lane.g.header + lane.blocks * lane.g.stride
    cdef Seg* seg = <Seg*>calloc(1, sizeof(Seg))
    cdef void* memory
    cdef int code
    if seg == NULL:
        error[0] = ENOMEM
        return NULL
    seg.base = base
    seg.opened = <uint64_t*>calloc(lane.blocks * 4, 8)
    snprintf(temporary, 64, ".seg-%016llu.tmp", <unsigned long long>base)
    snprintf(name, 64, "seg-%016llu.arrow", <unsigned long long>base)
    seg.fd = openat(lane.dir, temporary, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0o666) if seg.opened != NULL else -1
    if seg.fd < 0:
        error[0] = errno if seg.opened != NULL else ENOMEM
        free(seg.opened)
        free(seg)
        return NULL
    fault_point("segment-open")
    memory = MAP_FAILED
    code = _write(seg.fd, lane.header, lane.g.header, 0)
    if not code and ftruncate(seg.fd, lane.file_size):
        code = errno
    if not code:                                    # room for the seal, so that a full segment can be sealed
        code = _reserve(lane, seg.fd, end, lane.file_size - end)
    if not code:
        memory = mmap(NULL, end, PROT_READ | PROT_WRITE, MAP_SHARED, seg.fd, 0)
        if memory == MAP_FAILED:
            code = errno
    fault_point("segment-filled")
    if not code and renameat(lane.dir, temporary, lane.dir, name):
        code = errno
    fault_point("segment-named")
    if code:
        unlinkat(lane.dir, temporary, 0)
        if memory != MAP_FAILED:
            munmap(memory, end)
        close(seg.fd)
        free(seg.opened)
        free(seg)
        error[0] = code
        return NULL
    seg.map = <uint8_t*>memory
    return seg


cdef void _drop(Lane* lane, Seg* seg) noexcept nogil:
    munmap(seg.map, lane.g.header + lane.blocks * lane.g.stride)
    close(seg.fd)
    free(seg.opened)
    free(seg)


cdef int _write(int fd, const uint8_t* data, size_t n, uint64_t at) noexcept nogil:
    cdef ssize_t done
    while n:
        done = pwrite(fd, data, n, at)
        if done < 0:
            return errno
        data += done
        at += done
        n -= done
    return 0


cdef int _reserve(Lane* lane, int fd, uint64_t at, uint64_t n) noexcept nogil:
    """Disk space for n bytes: 0 or errno.  Without fallocate the C library writes zeros: the writer's work only."""
    cdef int code = 0
    if not lane.plain:
        if fallocate(fd, 0, at, n) == 0:
            return 0
        code = errno
        if code != EOPNOTSUPP and code != ENOSYS:
            return code
        lane.plain = True
    return posix_fallocate(fd, at, n)


# ---- filling ----------------------------------------------------------------------------------------------------

cdef int _open_column(Lane* lane, int i) noexcept nogil:
    """Before the first byte that is not zero: disk space for the column in this block, and its used bit."""
    cdef uint64_t* opened = lane.seg.opened + lane.block * 4 + (i >> 6)
    cdef uint64_t bit = <uint64_t>1 << (i & 63)
    cdef int code
    if not load_acquire(opened) & bit:
        code = _reserve(lane, lane.seg.fd, lane.g.header + lane.block * lane.g.stride + lane.g.column[i],
                        <uint64_t>lane.column[i].width * BLOCK_ROWS)
        if code:
            return code
        fetch_or(opened, bit)
    fault_point("column-open")
    store_relaxed(&lane.head.used[i >> 6], load_relaxed(&lane.head.used[i >> 6]) | bit)
    lane.mask[i >> 6] |= bit
    lane.slot[i].open = 1
    return 0


cdef int _rotate(Lane* lane) noexcept nogil:
    """The next segment becomes the current one; the old one goes to the sealer."""
    cdef Seg* seg = NULL
    cdef int error = 0
    cdef uint64_t base = lane.filled
    pthread_mutex_lock(&lane.lock)
    while lane.making:
        pthread_cond_wait(&lane.done, &lane.lock)
    if lane.ready != NULL:
        seg, lane.ready = lane.ready, NULL
    pthread_mutex_unlock(&lane.lock)
    if seg == NULL:
        seg = _make(lane, base, &error)
        if seg == NULL:
            return error
    fault_point("rotate")
    pthread_mutex_lock(&lane.lock)
    if lane.seg != NULL:
        _retire(lane, lane.seg)
    lane.seg, lane.block, lane.target, lane.trouble = seg, -1, 0, 0
    pthread_mutex_unlock(&lane.lock)
    return 0


cdef void _retire(Lane* lane, Seg* seg) noexcept nogil:
    cdef Seg** last = &lane.retired
    while last[0] != NULL:
        last = &last[0].next
    last[0] = seg
    if not lane.sealing:
        lane.sealing = _start(&lane.sealer, _sealer, lane)
    pthread_cond_broadcast(&lane.wake)


cdef int _enter_block(Lane* lane) noexcept nogil:
    """Begin the next block: its record batch message and its head."""
    cdef uint64_t* opened
    cdef uint64_t bit = <uint64_t>1 << (HEAD_BIT & 63), start
    cdef uint8_t* at
    cdef Slot* slot
    cdef int i, code
    if lane.seg == NULL or lane.block + 1 == lane.blocks:
        code = _rotate(lane)
        if code:
            return code
    start = lane.g.header + (lane.block + 1) * lane.g.stride
    opened = lane.seg.opened + (lane.block + 1) * 4 + (HEAD_BIT >> 6)
    if not load_acquire(opened) & bit:
        code = _reserve(lane, lane.seg.fd, start, lane.g.column[0])
        if code:
            return code
        fetch_or(opened, bit)
    lane.block += 1
    lane.block_base = lane.seg.base + <uint64_t>lane.block * BLOCK_ROWS
    at = lane.seg.map + start
    memcpy(at, lane.message, lane.g.message)
    fault_point("block-message")
    lane.head = <BlockHead*>(at + lane.g.message)
    memcpy(lane.head.uuid, lane.uuid, 16)
    lane.head.base, lane.head.lane, lane.head.number = lane.block_base, lane.number, lane.block
    lane.head.capacity, lane.head.columns = BLOCK_ROWS, lane.n
    memcpy(lane.head.magic, BLOCK_MAGIC, 8)
    fault_point("block-head")
    for i in range(lane.n):
        slot = &lane.slot[i]
        slot.data = at + lane.g.column[i]
        slot.zone = <Zone*>(at + lane.g.zones) + i
        slot.code, slot.size, slot.count = lane.column[i].code, lane.column[i].size, lane.column[i].count
        slot.width, slot.touched, slot.open = lane.column[i].width, 0, 0
    if lane.mask[0] | lane.mask[1] | lane.mask[2] | lane.mask[3]:
        _feed_to(lane, lane.block + 1 + lane.ahead)     # else: nobody knows yet which columns are used
    return 0


cdef int _store(Lane* lane, const uint8_t** columns, uint64_t rows) noexcept nogil:
    cdef const uint8_t* at[250]
    cdef uint32_t used, n
    cdef int i, code
    for i in range(lane.n):
        at[i] = columns[i]
    while rows:
        if lane.seg == NULL or lane.filled - lane.block_base == BLOCK_ROWS:
            code = _enter_block(lane)
            if code:
                return code
        used = <uint32_t>(lane.filled - lane.block_base)
        n = <uint32_t>min(rows, <uint64_t>BLOCK_ROWS - used)
        for i in range(lane.n):
            if store(&lane.slot[i], used, at[i], n):
                code = _open_column(lane, i)
                if code:
                    return code
                store(&lane.slot[i], used, at[i], n)
            if at[i] != NULL:
                at[i] += <size_t>n * lane.column[i].width
        fault_point("append-stored")
        store_release(&lane.filled, lane.filled + n)
        if used < FIRST_FEED <= used + n and lane.filled - lane.start <= BLOCK_ROWS:
            _feed_to(lane, lane.block + 1 + lane.ahead)
        rows -= n
    return 0


cdef bint lane_publish(Lane* lane) noexcept nogil:
    """Show all filled rows to readers; False while a freeze stands against it (the feeder tries again)."""
    cdef uint64_t rows = load_acquire(&lane.filled), word, deadline, now
    cdef int tries
    for tries in range(2):
        if tail_publish(&lane.line.tail, rows):
            return True
        word = load_acquire(&lane.line.tail)
        deadline = load_acquire(&lane.line.deadline)
        now = boot_now()
        if tail_freezes(word) and now < deadline <= now + MAX_FREEZE * <uint64_t>1000000000:
            return False
        if tail_freezes(word):
            tail_break(&lane.line.tail, word)
    return False


cdef int _publish(Lane* lane) noexcept nogil:
    if lane.sync == SYNC_BATCH and lane.seg != NULL and fdatasync(lane.seg.fd):
        return errno
    fault_point("publish-before")
    if not lane_publish(lane):
        pthread_mutex_lock(&lane.lock)
        if not lane.waiting:
            lane.waiting = True
            _wake_feeder(lane)
        pthread_mutex_unlock(&lane.lock)
    fault_point("publish-after")
    if lane.sync == SYNC_BATCH:
        msync(<void*>(<size_t>lane.line // PAGE * PAGE), PAGE, MS_SYNC)
    return 0


cdef int lane_append(Lane* lane, const uint8_t** columns, uint64_t rows) noexcept nogil:
    """Store rows and publish them.  0 or errno; on an error the rows that were stored are published."""
    cdef int code = _store(lane, columns, rows), published
    published = _publish(lane)
    return code if code else published


cdef int lane_append_row(Lane* lane, const uint8_t* const* row) noexcept nogil:
    """Store one row, given by a pointer to each of its values, and publish it."""
    cdef uint32_t used
    cdef int i = 0, code
    if lane.seg == NULL or lane.filled - lane.block_base == BLOCK_ROWS:
        code = _enter_block(lane)
        if code:
            return code
    used = <uint32_t>(lane.filled - lane.block_base)
    while True:
        i = store_row(lane.slot, lane.n, i, used, row)
        if i == lane.n:
            break
        code = _open_column(lane, i)
        if code:
            return code
    store_release(&lane.filled, lane.filled + 1)
    if used + 1 == FIRST_FEED and lane.filled - lane.start <= BLOCK_ROWS:
        _feed_to(lane, lane.block + 1 + lane.ahead)
    if lane.sync != SYNC_BATCH and tail_publish(&lane.line.tail, lane.filled):
        return 0
    return _publish(lane)


# ---- helpers ----------------------------------------------------------------------------------------------------

cdef bint _start(pthread_t* thread, void* (*run)(void*) noexcept nogil, Lane* lane) noexcept nogil:
    # All signals stay with the threads of the program.
    cdef sigset_t all, old
    cdef bint started
    sigfillset(&all)
    pthread_sigmask(SIG_SETMASK, &all, &old)
    started = pthread_create(thread, NULL, run, lane) == 0
    pthread_sigmask(SIG_SETMASK, &old, NULL)
    return started


cdef void _wake_feeder(Lane* lane) noexcept nogil:
    # Under the lock.
    if not lane.feeding:
        lane.feeding = _start(&lane.feeder, _feeder, lane)
    pthread_cond_broadcast(&lane.wake)


cdef void _feed_to(Lane* lane, int target) noexcept nogil:
    if lane.ahead < 0 or lane.plain:
        return
    pthread_mutex_lock(&lane.lock)
    lane.target = target
    _wake_feeder(lane)
    pthread_mutex_unlock(&lane.lock)


cdef void _populate(uint8_t* start, uint8_t* stop) noexcept nogil:
    # Whole pages only: the pages at the edges belong to a neighbour, too.
    cdef uint8_t* p = <uint8_t*>(<size_t>start // PAGE * PAGE)
    if madvise(p, stop - p, MADV_POPULATE_WRITE) == 0:
        return
    if errno != EINVAL:
        return
    while p < stop:
        touch(p)
        p += PAGE


cdef void _feed(Lane* lane, Seg* seg, int block, const uint64_t* mask) noexcept nogil:
    """Reserve and touch the pages of the columns in `mask`, neighbours together.  What fails, the writer repeats."""
    cdef uint64_t start = lane.g.header + block * lane.g.stride, at = start, stop = start + lane.g.column[0]
    cdef uint64_t done[4]
    cdef int i
    cdef bint open_run = True
    memset(done, 0, sizeof(done))
    done[HEAD_BIT >> 6] = <uint64_t>1 << (HEAD_BIT & 63)
    for i in range(lane.n + 1):
        if i < lane.n and mask[i >> 6] >> (i & 63) & 1:
            if not open_run:
                at, open_run = start + lane.g.column[i], True
            stop = start + lane.g.column[i] + <uint64_t>lane.column[i].width * BLOCK_ROWS
            done[i >> 6] |= <uint64_t>1 << (i & 63)
            continue
        if open_run:
            if lane.plain or _reserve(lane, seg.fd, at, stop - at):
                return
            _mark(seg.opened + block * 4, done)
            _populate(seg.map + at, seg.map + stop)
            memset(done, 0, sizeof(done))
            open_run = False


cdef void _mark(uint64_t* opened, const uint64_t* done) noexcept nogil:
    cdef int i
    for i in range(4):
        if done[i]:
            fetch_or(&opened[i], done[i])


cdef void _after(timespec* t, int64_t ns) noexcept nogil:
    clock_gettime(CLOCK_REALTIME, t)
    ns += t.tv_nsec
    t.tv_sec += ns // 1000000000
    t.tv_nsec = ns % 1000000000


cdef void* _feeder(void* arg) noexcept nogil:
    cdef Lane* lane = <Lane*>arg
    cdef uint64_t mask[4]
    cdef timespec until
    cdef Seg* seg
    cdef uint64_t base
    cdef int code, limit
    pthread_mutex_lock(&lane.lock)
    while not lane.stop:
        if lane.waiting:
            lane.waiting = not lane_publish(lane)
        seg, limit = lane.seg, min(lane.target, lane.blocks)
        if seg != NULL and seg.fed >= limit and lane.ready != NULL:
            seg, limit = lane.ready, lane.target - lane.blocks
        if seg != NULL and seg.fed < limit:
            memcpy(mask, lane.mask, sizeof(mask))
            seg.busy = True
            pthread_mutex_unlock(&lane.lock)
            _feed(lane, seg, seg.fed, mask)
            pthread_mutex_lock(&lane.lock)
            seg.busy = False
            seg.fed += 1
            pthread_cond_broadcast(&lane.done)
        elif lane.seg != NULL and lane.ready == NULL and lane.target + 2 > lane.blocks and not lane.trouble:
            lane.making = True
            base = lane.seg.base + <uint64_t>lane.blocks * BLOCK_ROWS
            pthread_mutex_unlock(&lane.lock)
            code = 0
            seg = _make(lane, base, &code)
            pthread_mutex_lock(&lane.lock)
            lane.making, lane.ready = False, seg
            if seg == NULL:
                lane.trouble = code                 # the writer tries for itself, and tells
            pthread_cond_broadcast(&lane.done)
        elif lane.waiting:
            _after(&until, 1000000)
            pthread_cond_timedwait(&lane.wake, &lane.lock, &until)
        else:
            pthread_cond_wait(&lane.wake, &lane.lock)
    pthread_mutex_unlock(&lane.lock)
    return NULL


cdef void* _sealer(void* arg) noexcept nogil:
    cdef Lane* lane = <Lane*>arg
    cdef timespec until
    cdef uint64_t rows = <uint64_t>lane.blocks * BLOCK_ROWS
    cdef Seg* seg
    cdef int code
    cdef bint failed = False
    pthread_mutex_lock(&lane.lock)
    while not lane.stop or lane.retired != NULL:
        seg = lane.retired
        if seg == NULL:
            pthread_cond_wait(&lane.wake, &lane.lock)
        elif seg.busy:
            pthread_cond_wait(&lane.done, &lane.lock)
        elif tail_rows(load_acquire(&lane.line.tail)) < seg.base + rows and not lane.stop:
            _after(&until, 1000000)                 # frozen: not all of its rows are published
            pthread_cond_timedwait(&lane.wake, &lane.lock, &until)
        else:
            lane.retired = seg.next
            pthread_mutex_unlock(&lane.lock)
            if not failed and tail_rows(load_acquire(&lane.line.tail)) >= seg.base + rows:
                code = seal_file(seg.fd, seg.map, &lane.g, rows, seg.base, lane.number, lane.uuid,
                                 lane.footer, lane.footer_bytes)
                if not code and lane.sync >= SYNC_SEAL and fdatasync(seg.fd):
                    code = errno
                failed = code != 0                  # the next owner of the lane seals it
                if not failed:
                    fault_point("sealed-before")
                    lane.line.seals += 1
                    store_release(&lane.line.sealed, seg.base + rows)
                    fault_point("sealed-after")
            else:
                failed = True
            _drop(lane, seg)
            pthread_mutex_lock(&lane.lock)
    pthread_mutex_unlock(&lane.lock)
    return NULL


# ---- the door ---------------------------------------------------------------------------------------------------

cdef object _writers = weakref.WeakSet()

def _after_fork():
    # The child shares the lock's file description: it must neither write nor hold the lock.
    for writer in list(_writers):
        (<Writer>writer)._disown()

os.register_at_fork(after_in_child=_after_fork)


cdef void _stop(Writer self) noexcept:
    """Stop the helpers and close everything; once."""
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
            _drop(lane, seg)
        if lane.ready != NULL:
            _drop(lane, lane.ready)
        if lane.seg != NULL:
            _drop(lane, lane.seg)
        lane.ready = lane.seg = NULL
        close(lane.dir)
        lane.dir = -1
        close(self.lock_fd)
    self.lock_fd = -1


@cython.no_gc_clear
cdef class Writer:
    """The writer of lane ``number``.  The store makes it, after it has claimed and settled the lane.

    ``directory`` and ``lock``: descriptors of the lane's folder and of its held lock file, closed by `stop`.
    ``message``: record batch message of a full block; ``footer``: that of a full segment.
    ``sync``: 0 none, 1 seal, 2 batch.  ``ahead``: blocks prepared ahead of the writer, -1: none, no helper.
    """

    def __cinit__(self, Control control not None, Shape shape not None, int number, *, int directory, int lock,
                  bytes message not None, bytes footer not None, int sync=0, int ahead=1, **ignored):
        cdef Lane* lane
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
        lane.number, lane.dir, lane.sync, lane.ahead = number, directory, sync, ahead
        lane.line = &control.line[number]
        lane.start = lane.filled = tail_rows(load_acquire(&lane.line.tail))
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
        """Stop the helpers and let go of everything; the lane stays as after a death of the writer."""
        _stop(self)

    def join(self):
        """Publish everything, waiting for a freeze to end, then stop the helpers.  The lock stays held.

        Returns a descriptor of the lock, which the caller closes after settling the lane.
        """
        cdef Lane* lane = self.lane
        cdef timespec pause
        self._open()
        pause.tv_sec, pause.tv_nsec = 0, 200000
        while not lane_publish(lane):
            with nogil:
                nanosleep(&pause, NULL)
        lock = os.dup(self.lock_fd)
        os.set_inheritable(lock, False)
        _stop(self)
        return lock

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

        Raises ValueError when its columns are others, OSError(ENOSPC) when the disk is full: rows that were
        stored before are published, ``rows`` counts them.
        """
        cdef int code
        self._open()
        if block.layout is not self.shape.layout:
            self._same(block)
        with nogil:
            code = self.append_block(block)
        if code:
            raise OSError(code, os.strerror(code))

    def _same(self, Block block not None):
        cdef int i
        for i in range(max(block.layout.n, self.lane.n)):
            if (block.layout.n != self.lane.n or block.layout.names[i] != self.shape.layout.names[i]
                    or block.layout.column[i].code != self.lane.column[i].code
                    or block.layout.column[i].width != self.lane.column[i].width):
                raise ValueError("the block has other columns than the log")

    def poll(self):
        """Publish what a freeze has kept back; True when everything is published."""
        self._open()
        return lane_publish(self.lane)

    def flush(self):
        """Publish everything, waiting for a freeze to end (it has a deadline, 60 s at most)."""
        cdef timespec pause
        self._open()
        pause.tv_sec, pause.tv_nsec = 0, 200000
        while not lane_publish(self.lane):
            with nogil:
                nanosleep(&pause, NULL)

    def prefault(self, int blocks=0):
        """Reserve and touch all columns of the current segment now (of its first ``blocks`` blocks); for benchmarks."""
        cdef Lane* lane = self.lane
        cdef uint64_t all_columns[4]
        cdef int code = 0, k
        self._open()
        memset(all_columns, 255, sizeof(all_columns))
        with nogil:
            if lane.seg == NULL:
                code = _rotate(lane)
            if not code:
                for k in range(blocks if 0 < blocks < lane.blocks else lane.blocks):
                    _feed(lane, lane.seg, k, all_columns)
                    lane.seg.fed = max(lane.seg.fed, k + 1)
        if code:
            raise OSError(code, os.strerror(code))


cdef extern from "time.h" nogil:
    int nanosleep(const timespec* t, timespec* left)


def append_repeatedly(Writer writer not None, Block block not None, uint64_t times, uint32_t batch, bint timed=False):
    """Append ``times`` batches of ``batch`` rows, taken from ``block`` in turn, without the interpreter.

    A batch of 1 goes the way of single rows.  Returns (ns in all, {ns: how many appends took up to that}); the
    second is empty unless ``timed``.  For benchmarks.
    """
    cdef const uint8_t* columns[250]
    cdef uint64_t histogram[64 * 16]
    cdef uint64_t k, start, before, now, took
    cdef uint32_t at = 0
    cdef int i, code = 0, bucket
    if not 1 <= batch <= block.rows or block.layout.n != writer.lane.n:
        raise ValueError(f"batches of {batch} rows from a block of {block.rows}")
    writer._open()
    memset(histogram, 0, sizeof(histogram))
    with nogil:
        start = before = _clock()
        for k in range(times):
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
