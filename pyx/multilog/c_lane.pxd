# The writer of one lane: fill blocks, publish rows, two helper threads.  Header only; lane.pyx is the Python wrapper.
#
# The append path takes no lock and makes no system call inside a block.  The feeder reserves disk space and
# touches pages one block ahead, and creates the next segment; the sealer seals full segments (c_seal.pxd).
# Disk space is reserved before a byte is stored, so that a full disk gives an error code, not SIGBUS.

from libc.errno cimport errno, EINVAL, ENOMEM, EOPNOTSUPP, ENOSYS
from libc.stdint cimport uint8_t, uint32_t, uint64_t, int64_t
from libc.stdio cimport snprintf
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memset
from posix.fcntl cimport O_CREAT, O_RDWR, O_TRUNC
from posix.mman cimport (
    MADV_RANDOM, MAP_FAILED, MAP_SHARED, MS_SYNC, PROT_READ, PROT_WRITE, madvise, mmap, msync, munmap)
from posix.time cimport clock_gettime, timespec, CLOCK_REALTIME
from posix.types cimport off_t
from posix.unistd cimport close, fchown, fdatasync, fsync, ftruncate
from c_append cimport Slot, store, store_row
from c_atomic cimport (boot_now, pause, touch, load_acquire, load_relaxed, store_release, store_relaxed, fetch_or,
                       tail_rows, tail_publish, tail_show)
from c_block cimport Column, Zone, BLOCK_ROWS
from c_fault cimport fault_point
from c_log_file cimport open_log_file_at
from c_layout cimport (Geometry, Line, BlockHead, BLOCK_MAGIC, PAGE, HEAD_BIT, SYNC_BATCH, SYNC_SEAL, data_end,
                       seal_bytes)
from c_posix cimport (
    MADV_POPULATE_WRITE, SIG_SETMASK, fallocate, posix_fallocate, pthread_cond_broadcast, pthread_cond_init,
    pthread_cond_t, pthread_cond_timedwait, pthread_cond_wait, pthread_create, pthread_join, pthread_mutex_init,
    pthread_mutex_lock, pthread_mutex_t, pthread_mutex_unlock, pthread_sigmask, pthread_t, pwrite, renameat, sigfillset,
    sigset_t, unlinkat)
from c_seal cimport seal_file, write_all

cdef enum:
    SHORT_FREEZE_NS = 20000             # maximum wait of an append for a thaw; then the feeder publishes
    FIRST_FEED = 1024                   # rows after which the first block of a writer is prepared
    BLANK = 1 << 18                     # bytes of zeros per write, aligned to their size

cdef struct Seg:
    # A segment that is or was being filled.
    int fd
    uint8_t* map
    uint64_t base
    uint64_t* opened                    # 4 words per block; bit i: disk space of column i is reserved
    int fed                             # number of blocks prepared by the feeder
    bint busy                           # the feeder is using it
    bint blanking                       # it writes zeros into block `fed`; the writer must wait
    Seg* next                           # in the list of retired segments

cdef struct Lane:
    # constants
    int n
    const Column* column
    Geometry g
    int blocks                          # of a segment
    uint64_t file_size
    const uint8_t* header
    const uint8_t* message
    const uint8_t* footer
    uint32_t footer_bytes
    uint8_t uuid[16]
    uint32_t number
    int dir                             # of the lane, O_PATH or readable
    uint32_t owner                      # of the log, if root writes to the log of another user; else 0
    uint32_t owner_group
    int sync
    int ahead                           # blocks to prepare ahead of the writer
    Line* line
    # the writer's
    uint64_t start                      # number of rows of the lane when it was claimed
    uint64_t filled                     # rows stored: published, or waiting for a thaw
    Seg* seg
    int block                           # of seg
    uint64_t block_base                 # row number of its row 0
    uint64_t block_end                  # row number after its last row; equal to filled: start the next block
    BlockHead* head
    Slot slot[250]
    const uint8_t* zeros[250]           # columns with this address are the shared zeros
    const uint8_t* blank                # BLANK zeros
    uint64_t mask[4]                    # columns used so far: what the feeder prepares
    bint plain                          # no fallocate in the file system: the writer does the work itself
    # shared with the helper threads, under the lock
    pthread_mutex_t lock
    pthread_cond_t wake
    pthread_cond_t done
    pthread_t feeder
    pthread_t sealer
    bint feeding
    bint sealing
    bint stop
    int target                          # number of blocks to prepare; above `blocks`: in the next segment
    bint making
    Seg* ready                          # the next segment
    Seg* retired                        # oldest first
    bint waiting                        # a freeze delays the publishing of filled rows
    int trouble                         # errno of a helper thread

# ---- segments ---------------------------------------------------------------------------------------------------

cdef inline Seg* _make(Lane* lane, uint64_t base, int* error) noexcept nogil:
    """Create a segment for the rows from `base` on: under a temporary name until it is complete."""
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
    seg.fd = open_log_file_at(lane.dir, temporary, O_RDWR | O_CREAT | O_TRUNC, 0o666) if seg.opened != NULL else -ENOMEM
    if seg.fd >= 0 and lane.owner and fchown(seg.fd, lane.owner, lane.owner_group):
        code = errno
        close(seg.fd)
        seg.fd = -code
    if seg.fd < 0:
        error[0] = -seg.fd
        free(seg.opened)
        free(seg)
        return NULL
    fault_point("segment-open")
    memory = MAP_FAILED
    code = write_all(seg.fd, lane.header, lane.g.header, 0)
    if not code and ftruncate(seg.fd, lane.file_size):
        code = errno
    if not code:                                    # reserve space for the seal
        code = _reserve(lane, seg.fd, end, lane.file_size - end)
    if not code:
        memory = mmap(NULL, end, PROT_READ | PROT_WRITE, MAP_SHARED, seg.fd, 0)
        if memory == MAP_FAILED:
            code = errno
        else:                                       # no fault-around into the next bytes, see _blank
            madvise(memory, end, MADV_RANDOM)
    fault_point("segment-filled")
    if not code and renameat(lane.dir, temporary, lane.dir, name):
        code = errno
    fault_point("segment-named")
    if not code and lane.sync == SYNC_BATCH and (fsync(seg.fd) or fsync(lane.dir)):
        code = errno
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


cdef inline void lane_drop(Lane* lane, Seg* seg) noexcept nogil:
    munmap(seg.map, lane.g.header + lane.blocks * lane.g.stride)
    close(seg.fd)
    free(seg.opened)
    free(seg)


cdef inline int _reserve(Lane* lane, int fd, uint64_t at, uint64_t n) noexcept nogil:
    """Reserve disk space for n bytes: 0 or errno.  Without fallocate libc writes zeros: only the writer may do that."""
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

cdef inline int _open_column(Lane* lane, int i) noexcept nogil:
    """Before the first nonzero byte of a column in this block: reserve its disk space and set its used bit."""
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


cdef inline int lane_rotate(Lane* lane) noexcept nogil:
    """Switch to the next segment; hand the old one to the sealer."""
    cdef Seg* seg = NULL
    cdef int error = 0
    cdef uint64_t base = lane.filled
    if lane.seg != NULL and lane.sync == SYNC_BATCH and fdatasync(lane.seg.fd):
        return errno                                # the batch may have started in the old segment
    pthread_mutex_lock(&lane.lock)
    while lane.making:
        pthread_cond_wait(&lane.done, &lane.lock)
    seg, lane.ready = lane.ready, NULL
    if seg == NULL:
        lane.making = True                          # the feeder must not create the same segment
        pthread_mutex_unlock(&lane.lock)
        seg = _make(lane, base, &error)
        pthread_mutex_lock(&lane.lock)
        lane.making = False
        if seg == NULL:
            pthread_mutex_unlock(&lane.lock)
            return error
    fault_point("rotate")
    if lane.seg != NULL:
        _retire(lane, lane.seg)
    lane.seg, lane.block, lane.target, lane.trouble = seg, -1, 0, 0
    pthread_mutex_unlock(&lane.lock)
    return 0


cdef inline void _retire(Lane* lane, Seg* seg) noexcept nogil:
    cdef Seg** last = &lane.retired
    while last[0] != NULL:
        last = &last[0].next
    last[0] = seg
    if not lane.sealing:
        lane.sealing = _start(&lane.sealer, _sealer, lane)
    pthread_cond_broadcast(&lane.wake)


cdef inline int _enter_block(Lane* lane) noexcept nogil:
    """Start the next block: write its record batch message and its head."""
    cdef uint64_t* opened
    cdef uint64_t bit = <uint64_t>1 << (HEAD_BIT & 63), start
    cdef uint8_t* at
    cdef Slot* slot
    cdef int i, code
    if lane.seg == NULL or lane.block + 1 == lane.blocks:
        code = lane_rotate(lane)
        if code:
            return code
    pthread_mutex_lock(&lane.lock)
    while lane.seg.blanking and lane.seg.fed == lane.block + 1:
        pthread_cond_wait(&lane.done, &lane.lock)
    lane.block += 1                                 # from now on the feeder does not write to it
    pthread_mutex_unlock(&lane.lock)
    start = lane.g.header + lane.block * lane.g.stride
    opened = lane.seg.opened + lane.block * 4 + (HEAD_BIT >> 6)
    if not load_acquire(opened) & bit:
        code = _reserve(lane, lane.seg.fd, start, lane.g.column[0])
        if code:
            pthread_mutex_lock(&lane.lock)
            lane.block -= 1
            pthread_mutex_unlock(&lane.lock)
            return code
        fetch_or(opened, bit)
    lane.block_base = lane.seg.base + <uint64_t>lane.block * BLOCK_ROWS
    lane.block_end = lane.block_base + BLOCK_ROWS
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
        _feed_to(lane, lane.block + 1 + lane.ahead)     # otherwise the used columns are not known yet
    return 0


cdef inline int _store(Lane* lane, const uint8_t** columns, uint64_t rows) noexcept nogil:
    cdef const uint8_t* at[250]
    cdef uint32_t used, n
    cdef int i, code
    for i in range(lane.n):
        at[i] = columns[i]
        if at[i] == lane.zeros[i]:
            at[i] = NULL
    while rows:
        if lane.filled == lane.block_end:
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


cdef inline bint lane_publish(Lane* lane) noexcept nogil:
    """Publish all filled rows; False during a freeze (the feeder tries again)."""
    return tail_show(&lane.line.tail, &lane.line.deadline, load_acquire(&lane.filled))


cdef inline int _publish(Lane* lane) noexcept nogil:
    cdef uint64_t until
    if lane.sync == SYNC_BATCH and lane.seg != NULL and fdatasync(lane.seg.fd):
        return errno
    fault_point("publish-before")
    if not lane_publish(lane):
        # A local freeze lasts a microsecond: wait for it.  The feeder waits for longer ones.
        until = boot_now() + SHORT_FREEZE_NS
        while not lane.waiting and not lane_publish(lane) and boot_now() < until:
            pause()
        if not lane_publish(lane):
            pthread_mutex_lock(&lane.lock)
            lane.waiting = True
            _wake_feeder(lane)
            pthread_mutex_unlock(&lane.lock)
    fault_point("publish-after")
    if lane.sync == SYNC_BATCH:
        lane_sync_line(lane)
    return 0


cdef inline void lane_sync_line(Lane* lane) noexcept nogil:
    """Sync the tail to disk."""
    msync(<void*>(<size_t>lane.line // PAGE * PAGE), PAGE, MS_SYNC)


cdef inline int lane_append(Lane* lane, const uint8_t** columns, uint64_t rows) noexcept nogil:
    """Store rows and publish them.  0 or errno; on an error the rows stored so far are published."""
    cdef int code = _store(lane, columns, rows), published
    published = _publish(lane)
    return code if code else published


cdef inline int lane_append_row(Lane* lane, const uint8_t* const* row) noexcept nogil:
    """Store one row, given by a pointer to each of its values, and publish it."""
    cdef uint32_t used
    cdef int i = 0, code
    if lane.filled == lane.block_end:
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

cdef inline bint _start(pthread_t* thread, void* (*run)(void*) noexcept nogil, Lane* lane) noexcept nogil:
    # Block all signals, so that the threads of the program get them.
    cdef sigset_t all, old
    cdef bint started
    sigfillset(&all)
    pthread_sigmask(SIG_SETMASK, &all, &old)
    started = pthread_create(thread, NULL, run, lane) == 0
    pthread_sigmask(SIG_SETMASK, &old, NULL)
    return started


cdef inline void _wake_feeder(Lane* lane) noexcept nogil:
    # Under the lock.
    if not lane.feeding:
        lane.feeding = _start(&lane.feeder, _feeder, lane)
    pthread_cond_broadcast(&lane.wake)


cdef inline void _feed_to(Lane* lane, int target) noexcept nogil:
    if lane.ahead < 0 or lane.plain:
        return
    pthread_mutex_lock(&lane.lock)
    lane.target = target
    _wake_feeder(lane)
    pthread_mutex_unlock(&lane.lock)


cdef inline void _populate(uint8_t* start, uint8_t* stop) noexcept nogil:
    # Whole pages only: pages at the edges are shared with neighbouring columns.
    cdef uint8_t* p = <uint8_t*>(<size_t>start // PAGE * PAGE)
    if madvise(p, stop - p, MADV_POPULATE_WRITE) == 0:
        return
    if errno != EINVAL:
        return
    while p < stop:
        touch(p)
        p += PAGE


cdef inline void _blank(Lane* lane, int fd, uint64_t at, uint64_t stop) noexcept nogil:
    """Write zeros to space without data: the kernel then allocates pages in large folios.

    A store into reserved space without pages allocates them one by one, at two to ten times the cost.  Pages from
    read-ahead cost as much when the host of a virtual machine must find 2 MiB of memory at once.
    """
    cdef uint64_t n
    while at < stop:
        n = min(stop - at, BLANK - at % BLANK)
        if pwrite(fd, lane.blank, n, at) != <int64_t>n:
            return                                  # touching the pages is sufficient
        at += n


cdef inline void lane_feed(Lane* lane, Seg* seg, int block, const uint64_t* mask, bint untouched) noexcept nogil:
    """Reserve and touch the pages of the columns in `mask`, adjacent ones together.  The writer repeats failed steps.

    `untouched`: the writer has not started the block, and waits until this is done.
    """
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
            if untouched:
                _blank(lane, seg.fd, at, stop)
            _populate(seg.map + at, seg.map + stop)
            memset(done, 0, sizeof(done))
            open_run = False


cdef inline void _mark(uint64_t* opened, const uint64_t* done) noexcept nogil:
    cdef int i
    for i in range(4):
        if done[i]:
            fetch_or(&opened[i], done[i])


cdef inline void _after(timespec* t, int64_t ns) noexcept nogil:
    clock_gettime(CLOCK_REALTIME, t)
    ns += t.tv_nsec
    t.tv_sec += ns // 1000000000
    t.tv_nsec = ns % 1000000000


cdef inline void* _feeder(void* arg) noexcept nogil:
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
            seg, limit = lane.ready, min(lane.target - lane.blocks, lane.blocks)
        if seg != NULL and seg.fed < limit:
            memcpy(mask, lane.mask, sizeof(mask))
            seg.busy = True
            seg.blanking = seg != lane.seg or seg.fed > lane.block
            pthread_mutex_unlock(&lane.lock)
            lane_feed(lane, seg, seg.fed, mask, seg.blanking)
            pthread_mutex_lock(&lane.lock)
            seg.busy = seg.blanking = False
            seg.fed += 1
            pthread_cond_broadcast(&lane.done)
        elif (lane.seg != NULL and lane.ready == NULL and not lane.making and lane.target + 2 > lane.blocks
              and not lane.trouble):
            lane.making = True
            base = lane.seg.base + <uint64_t>lane.blocks * BLOCK_ROWS
            pthread_mutex_unlock(&lane.lock)
            code = 0
            seg = _make(lane, base, &code)
            pthread_mutex_lock(&lane.lock)
            lane.making, lane.ready = False, seg
            if seg == NULL:
                lane.trouble = code                 # the writer tries again and reports the error
            pthread_cond_broadcast(&lane.done)
        elif lane.waiting:
            _after(&until, 1000000)
            pthread_cond_timedwait(&lane.wake, &lane.lock, &until)
        else:
            pthread_cond_wait(&lane.wake, &lane.lock)
    pthread_mutex_unlock(&lane.lock)
    return NULL


cdef inline void* _sealer(void* arg) noexcept nogil:
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
                if not code and lane.sync >= SYNC_SEAL and (fsync(seg.fd) or fsync(lane.dir)):
                    code = errno
                failed = code != 0                  # left to the next owner of the lane
                if not failed:
                    fault_point("sealed-before")
                    lane.line.seals += 1
                    store_release(&lane.line.sealed, seg.base + rows)
                    fault_point("sealed-after")
                    if lane.sync >= SYNC_SEAL:
                        lane_sync_line(lane)
            else:
                failed = True
            lane_drop(lane, seg)
            pthread_mutex_lock(&lane.lock)
    pthread_mutex_unlock(&lane.lock)
    return NULL
