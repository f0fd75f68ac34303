# Growable arrays.

from libc.stdint cimport uint8_t, uint64_t
from libc.stdlib cimport realloc
from libc.string cimport memset


cdef inline int grow(void** p, uint64_t* room, uint64_t need, uint64_t min_room, size_t size) noexcept nogil:
    """Room for ``need`` elements of ``size`` bytes, at least ``min_room`` at first; new elements are zero.
    -1: no memory.
    """
    cdef uint64_t more
    cdef void* fresh
    if need <= room[0]:
        return 0
    more = max(need, room[0] + room[0] // 2, min_room)
    fresh = realloc(p[0], more * size)
    if fresh == NULL:
        return -1
    memset(<uint8_t*>fresh + room[0] * size, 0, (more - room[0]) * size)
    p[0], room[0] = fresh, more
    return 0
