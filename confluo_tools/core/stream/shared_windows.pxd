# Windows of one flow that several workers fold.

from libc.stdint cimport int64_t, uint32_t, uint64_t
from c_posix cimport pthread_mutex_t
from confluo_tools.core.block.block cimport Block, Picks
from confluo_tools.core.stream.batch_queue cimport Bell
from confluo_tools.core.stream.event_windows cimport WindowStage
from confluo_tools.core.stream.stage cimport StreamStage

cdef enum:
    SHARED_SLOTS = 256                  # windows that are open, or have ended and wait for rows in queues

cdef class WindowClock(WindowStage):
    cdef pthread_mutex_t lock           # of a lane while it decides and sends: workers never wait for it
    cdef pthread_mutex_t giving         # held while results are given
    cdef Bell emptied                   # a slot is free again
    cdef bint wait                      # for a free slot; only with one lane
    cdef uint32_t* ending               # of its classifier
    cdef void* route                    # StreamStage of the lane that holds `lock`
    cdef int at                         # slot of the rows that it sends now
    cdef uint32_t* pending              # rows of each slot on their way to workers
    cdef uint32_t* waits                # 1: the window of the slot has ended, but was not given
    cdef int* order                     # slots of these windows, by `ended`
    cdef uint64_t ended, answered       # number of windows
    cdef list parts                     # WindowStages of the workers
    cdef int oldest(self) noexcept nogil
    cdef int settle(self, WindowStage stage, int64_t now) noexcept nogil
    cdef void gather(self, int slot, WindowStage stage) noexcept

cdef class WindowLane(StreamStage):
    cdef WindowClock clock

cdef class WindowPart(StreamStage):
    cdef WindowClock clock
    cdef WindowStage stage
    cdef bint last
    cdef int take_window(self, int slot, Block block, Picks picks, int64_t now) noexcept nogil
    cdef int settle(self, int64_t now) noexcept nogil
