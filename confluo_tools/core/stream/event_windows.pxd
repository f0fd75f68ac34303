# Tumbling windows of event time: a function over windows is a subclass of WindowStage.

from libc.stdint cimport int64_t, uint16_t, uint32_t, uint64_t
from confluo_tools.core.block.block cimport Block, Picks
from confluo_tools.core.stream.stage cimport StreamStage
from c_posix cimport pthread_mutex_t

cdef enum:
    MAX_WINDOWS = 64                    # open at a time

cdef struct EventWindow:
    bint open
    int64_t start                       # ns
    uint32_t n                          # rows of the block at hand that are in it
    uint16_t* rows                      # their numbers

cdef class WindowStage(StreamStage):
    cdef readonly int64_t every         # length of a window, ns
    cdef readonly int64_t late          # a window ends when a row is this much later than its end, ns
    cdef public int64_t silence         # windows end when no row has come for this time, ns; 0: they wait for rows
    cdef readonly uint64_t late_rows    # of `dropped`: their window had ended
    cdef readonly uint64_t steps        # times that the clock of the rows went back
    cdef int time                       # number of the column
    cdef bint begun                     # there is a `latest`
    cdef int64_t latest                 # time of the latest row, ns; of rows far from the others, believed from two on
    cdef int64_t due                    # when the next window ends: time of a row, ns
    cdef int doubt                      # the last row was far ahead (1) or behind (-1)
    cdef int64_t strange                # its time, ns
    cdef int slots
    cdef EventWindow* window
    cdef int current                    # slot of the last row, -1: none
    cdef int doubted                    # slot that only rows far from the others have, -1: none
    cdef int64_t idle                   # time without rows so far, ns
    cdef int64_t ticked                 # `now` of the last tick, ns
    cdef uint64_t seen                  # `taken` then
    cdef Picks part
    cdef pthread_mutex_t* gate          # to hold while rows are given, if other threads give there, too; or NULL
    # To override.  `slot`: number of a window, below `slots`.  Each returns 0, or 1 when it was stopped.
    cdef int begin(self, int slot, int64_t start) noexcept nogil
    cdef int add(self, int slot, Block block, Picks picks, int64_t now) noexcept nogil
    cdef int close(self, int slot, int64_t start, int64_t now) noexcept nogil
    cdef void absorb(self, int slot, WindowStage other) noexcept
    cdef int free_slot(self) noexcept nogil

    cdef int spread(self, Block block, Picks picks, int64_t now) noexcept nogil
    cdef int refuse(self) noexcept nogil
    cdef int place(self, int64_t t, Block block, int64_t now) noexcept nogil
    cdef int far(self, int64_t t, int side, Block block, int64_t now) noexcept nogil
    cdef int find(self, int64_t t) noexcept nogil
    cdef int open_at(self, int64_t t) noexcept nogil
    cdef int hand(self, int slot, Block block, int64_t now) noexcept nogil
    cdef int end_slot(self, int slot, Block block, int64_t now) noexcept nogil
    cdef int end_before(self, int64_t time, Block block, int64_t now) noexcept nogil
    cdef int end_all(self, int64_t now) noexcept nogil
    cdef void forget(self) noexcept nogil
