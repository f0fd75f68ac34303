# One writer's lane of a MultiLog: filling blocks, publishing rows.

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from c_append cimport Slot
from c_block cimport Column
from c_layout cimport Geometry, Line, BlockHead
from confluo_tools.core.block cimport Block
from confluo_tools.core.control cimport Control
from confluo_tools.core.segment cimport Shape

cdef extern from "pthread.h" nogil:
    ctypedef struct pthread_t:
        pass
    ctypedef struct pthread_mutex_t:
        pass
    ctypedef struct pthread_cond_t:
        pass

cdef struct Seg:
    # A segment that is being filled, or was.
    int fd
    uint8_t* map
    uint64_t base
    uint64_t* opened                    # 4 words a block: bit i: disk space for column i is there
    int fed                             # blocks below this were prepared by the feeder
    bint busy                           # the feeder is at it
    Seg* next                           # in the list of the retired

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
    int sync
    int ahead                           # blocks to prepare ahead of the writer
    Line* line
    # the writer's
    uint64_t start                      # rows of the lane when it was claimed
    uint64_t filled                     # rows stored; published or waiting for a thaw
    Seg* seg
    int block                           # of seg
    uint64_t block_base                 # row number of its row 0
    BlockHead* head
    Slot slot[250]
    uint64_t mask[4]                    # columns used so far: what the feeder prepares
    bint plain                          # the file system has no fallocate: the writer does the work itself
    # shared with the helpers, under the lock
    pthread_mutex_t lock
    pthread_cond_t wake
    pthread_cond_t done
    pthread_t feeder
    pthread_t sealer
    bint feeding
    bint sealing
    bint stop
    int target                          # blocks of seg to prepare; above `blocks`: of the next one
    bint making
    Seg* ready                          # the next segment
    Seg* retired                        # oldest first
    bint waiting                        # rows are filled that a freeze kept from being published
    int trouble                         # errno of a helper

cdef int lane_append(Lane* lane, const uint8_t** columns, uint64_t rows) noexcept nogil
cdef int lane_append_row(Lane* lane, const uint8_t* const* row) noexcept nogil
cdef bint lane_publish(Lane* lane) noexcept nogil

cdef class Writer:
    cdef readonly Control control
    cdef readonly Shape shape
    cdef readonly int number            # of the lane
    cdef object _kept
    cdef object __weakref__
    cdef int lock_fd
    cdef Lane* lane
    # Rows of `columns` (one pointer a column; NULL: zeros), stored and published.  0 or errno; ENOSPC: the rows
    # before the block that did not fit are published (see rows).
    cdef int append_columns(self, const uint8_t** columns, uint32_t rows) noexcept nogil
    cdef int append_row(self, const uint8_t* const* row) noexcept nogil
    cdef int append_block(self, Block block) noexcept nogil
