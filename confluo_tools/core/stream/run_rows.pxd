# Rows that wait for the ends of their runs.

from libc.stdint cimport int64_t, uint16_t, uint32_t, uint8_t
from confluo_tools.core.block.block cimport Block, Layout, Picks

cdef struct RunPart:                    # a number of rows, one column after the other
    uint32_t filled
    uint32_t ended                      # number of first rows that are known to have ended
    bint given                          # some rows were given
    uint32_t next                       # the part filled after this one, or another spare one

cdef class RunRows:
    cdef Block view                     # of a part: with `picks`, rows to give
    cdef Picks picks
    cdef uint32_t nowhere               # number of a row that there is not: to end it changes nothing
    cdef uint32_t* packets              # of the run of each row; 0: it has not ended
    cdef int64_t* step                  # of the run of each row, ns
    cdef uint32_t* owner                # of each row, as its user set it
    cdef Layout layout                  # of the rows that come
    cdef uint8_t* memory
    cdef size_t part_bytes
    cdef RunPart* part
    cdef uint32_t parts
    cdef uint32_t spare, spares         # the first spare part, and how many there are
    cdef uint32_t oldest                # the parts in use
    cdef uint32_t newest
    cdef uint16_t* moving
    cdef uint32_t room(self) noexcept nogil
    cdef uint32_t next_row(self) noexcept nogil
    cdef void begin(self, const uint8_t** columns, const uint16_t* rows, uint32_t n) noexcept nogil
    cdef bint crowded(self, uint32_t waiting) noexcept nogil
    cdef void open_part(self) noexcept nogil
    cdef bint oldest_ended(self) noexcept nogil
    cdef bint look(self, uint32_t part) noexcept nogil
    cdef uint32_t move_open(self) noexcept nogil
    cdef void free_oldest(self) noexcept nogil
