"""A bounded queue of batches between two threads: one adds, one takes, without locks."""

from libc.stdint cimport int64_t, uint64_t, uint8_t
from libc.stdlib cimport free
from libc.string cimport memset
from posix.stdlib cimport posix_memalign
from posix.time cimport CLOCK_MONOTONIC, clock_gettime, timespec
from c_atomic cimport fence, load_acquire, load_acquire32, load_relaxed, store_release, store_release32, store_relaxed
from c_posix cimport (
    pthread_cond_broadcast, pthread_cond_init, pthread_cond_timedwait, pthread_condattr_init,
    pthread_condattr_setclock, pthread_condattr_t, pthread_mutex_init, pthread_mutex_lock, pthread_mutex_unlock)
cimport cython

cdef enum:
    MIN_SIZE = 4096
    MAX_SIZE = 1 << 30


@cython.final
cdef class Bell:
    """Wakes a thread that waits for work.  To ring costs a lock only while a thread sleeps."""

    def __cinit__(self):
        cdef pthread_condattr_t attributes
        pthread_mutex_init(&self.lock, NULL)
        pthread_condattr_init(&attributes)
        pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC)     # a step of the clock does not delay a wake-up
        pthread_cond_init(&self.rung, &attributes)

    cdef void ring(self) noexcept nogil:
        """Call it after the work can be seen."""
        fence()                         # the sleeper says that it sleeps, then looks for work: one of us sees the other
        if load_acquire32(&self.sleeping):
            pthread_mutex_lock(&self.lock)
            pthread_cond_broadcast(&self.rung)
            pthread_mutex_unlock(&self.lock)

    cdef void prepare(self) noexcept nogil:
        pthread_mutex_lock(&self.lock)
        store_release32(&self.sleeping, 1)
        fence()

    cdef void cancel(self) noexcept nogil:
        store_release32(&self.sleeping, 0)
        pthread_mutex_unlock(&self.lock)

    cdef void sleep(self, int timeout) noexcept nogil:
        """Until it rings, at most ``timeout`` ms."""
        cdef timespec until
        clock_gettime(CLOCK_MONOTONIC, &until)
        until.tv_sec += timeout // 1000
        until.tv_nsec += timeout % 1000 * 1_000_000
        if until.tv_nsec >= 1_000_000_000:
            until.tv_sec += 1
            until.tv_nsec -= 1_000_000_000
        pthread_cond_timedwait(&self.rung, &self.lock, &until)
        self.cancel()


@cython.final
cdef class BatchQueue:
    """Batches in ``size`` bytes of memory, in their order.  ``filled``: of the worker that takes them.

    One thread reserves and commits, one thread reads the front and pops it.  A batch may have a quarter of the bytes.
    """

    def __cinit__(self, size_t size, Bell filled not None):
        cdef void* memory
        size = (size + 63) & ~<size_t>63
        if not MIN_SIZE <= size <= MAX_SIZE:
            raise ValueError(f"a queue of {size} bytes")
        self.size, self.filled, self.emptied = size, filled, Bell()
        if posix_memalign(&memory, 4096, size + sizeof(QueueEnds)):
            raise MemoryError(f"{size} bytes")
        memset(memory, 0, size + sizeof(QueueEnds))
        self.memory = <uint8_t*>memory
        self.ends = <QueueEnds*>(self.memory + size)

    def __dealloc__(self):
        free(self.memory)

    cdef Batch* reserve(self, size_t size) noexcept nogil:
        """Room for a batch of ``size`` bytes, a multiple of 64; NULL: there is none now."""
        cdef uint64_t tail = self.ends.tail
        cdef size_t at = tail % self.size, left = self.size - at
        cdef uint64_t end = tail + size if size <= left else tail + left + size
        cdef Batch* batch
        if end - self.ends.head_seen > self.size:
            self.ends.head_seen = load_acquire(&self.ends.head)
            if end - self.ends.head_seen > self.size:
                return NULL
        self.skipped = 0
        if size > left:
            batch = <Batch*>(self.memory + at)
            batch.size, batch.flow, batch.rows = left, GAP, 0
            self.skipped, at = left, 0
        batch = <Batch*>(self.memory + at)
        batch.size = size
        return batch

    cdef void commit(self, Batch* batch) noexcept nogil:
        """Show the reserved batch to the other thread."""
        store_relaxed(&self.ends.batches_in, self.ends.batches_in + 1)
        store_relaxed(&self.ends.rows_in, self.ends.rows_in + batch.rows)
        store_release(&self.ends.tail, self.ends.tail + self.skipped + batch.size)
        self.filled.ring()

    cdef Batch* front(self) noexcept nogil:
        """The oldest batch; NULL: there is none."""
        cdef Batch* batch
        while True:
            if self.ends.head == self.ends.tail_seen:
                self.ends.tail_seen = load_acquire(&self.ends.tail)
                if self.ends.head == self.ends.tail_seen:
                    return NULL
            batch = <Batch*>(self.memory + self.ends.head % self.size)
            if batch.flow != GAP:
                return batch
            store_release(&self.ends.head, self.ends.head + batch.size)

    cdef void pop(self, Batch* batch) noexcept nogil:
        """Give the memory of the front back."""
        store_relaxed(&self.ends.batches_out, self.ends.batches_out + 1)
        store_relaxed(&self.ends.rows_out, self.ends.rows_out + batch.rows)
        store_release(&self.ends.head, self.ends.head + batch.size)
        self.emptied.ring()

    @property
    def rows(self):
        """Rows in it."""
        cdef uint64_t out = load_relaxed(&self.ends.rows_out)
        return max(0, <int64_t>(load_relaxed(&self.ends.rows_in) - out))

    @property
    def batches(self):
        """Batches in it."""
        cdef uint64_t out = load_relaxed(&self.ends.batches_out)
        return max(0, <int64_t>(load_relaxed(&self.ends.batches_in) - out))

    @property
    def free(self):
        """Bytes of it that are free."""
        cdef uint64_t head = load_acquire(&self.ends.head)
        return max(0, <int64_t>(self.size - (load_acquire(&self.ends.tail) - head)))
