# Batches of rows on their way from a lane to a worker.

from libc.stdint cimport int64_t, uint32_t, uint64_t, uint8_t
from c_posix cimport pthread_cond_t, pthread_mutex_t

cdef enum:
    BATCH_HEAD = 64                     # bytes before the columns of a batch
    GAP = 0xffffffff                    # flow of an entry that only fills the end of the memory

# Followed by its columns, one after the other; each begins at a multiple of 64 bytes.
cdef struct Batch:
    uint64_t size                       # bytes up to the next batch
    int64_t now                         # ns, monotonic, when it was classified
    uint32_t flow                       # number of the flow
    uint32_t rows
    uint32_t window                     # slot of its window, see WindowClock

# What one thread writes is in one cache line.  Positions count bytes since the beginning.
cdef struct QueueEnds:
    uint64_t tail                       # of the producer
    uint64_t head_seen
    uint64_t batches_in
    uint64_t rows_in
    uint64_t[4] unused
    uint64_t head                       # of the consumer
    uint64_t tail_seen
    uint64_t batches_out
    uint64_t rows_out
    uint64_t[4] unused2

cdef class Bell:
    cdef pthread_mutex_t lock
    cdef pthread_cond_t rung
    cdef uint32_t sleeping
    cdef void ring(self) noexcept nogil
    cdef void prepare(self) noexcept nogil          # then look whether there is work: `cancel`, or `sleep`
    cdef void cancel(self) noexcept nogil
    cdef void sleep(self, int timeout) noexcept nogil

cdef class BatchQueue:
    cdef readonly size_t size
    cdef readonly Bell filled           # of the consumer: there is a batch
    cdef readonly Bell emptied          # of the producer: there is room
    cdef uint8_t* memory
    cdef QueueEnds* ends
    cdef uint64_t skipped               # bytes of the gap before the reserved batch
    cdef Batch* reserve(self, size_t size) noexcept nogil
    cdef void commit(self, Batch* batch) noexcept nogil
    cdef Batch* front(self) noexcept nogil
    cdef void pop(self, Batch* batch) noexcept nogil
