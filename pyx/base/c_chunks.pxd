# Items of one size, numbered from 0: they are only added, and do not move, so a pointer to one stays valid.

from libc.stdint cimport uint8_t, uint64_t
from libc.stdlib cimport free, realloc
from posix.stdlib cimport posix_memalign
from c_huge_pages cimport huge_pages

cdef enum:
    CHUNK_BITS = 16             # items of a chunk: 2^16
    HUGE_PAGE = 1 << 21         # bytes

cdef struct Chunks:
    uint8_t** chunk
    uint64_t count              # items
    uint64_t chunks


cdef inline void* huge_memory(size_t size) noexcept nogil:
    """Memory that begins with a huge page; it is not touched before it is used.  NULL: there is none."""
    cdef void* memory
    size = (size + HUGE_PAGE - 1) & ~<size_t>(HUGE_PAGE - 1)
    if posix_memalign(&memory, HUGE_PAGE, size):
        return NULL
    huge_pages(memory, size)
    return memory


cdef inline void* chunk_item(const Chunks* c, uint64_t i, size_t size) noexcept nogil:
    return c.chunk[i >> CHUNK_BITS] + (i & ((1 << CHUNK_BITS) - 1)) * size


cdef inline void* chunk_append(Chunks* c, size_t size) noexcept nogil:
    """The next item, not initialised; NULL: no memory."""
    cdef uint8_t** chunk
    if c.count >> CHUNK_BITS == c.chunks:
        chunk = <uint8_t**>realloc(c.chunk, (c.chunks + 1) * sizeof(void*))
        if chunk == NULL:
            return NULL
        c.chunk = chunk
        chunk[c.chunks] = <uint8_t*>huge_memory(size << CHUNK_BITS)
        if chunk[c.chunks] == NULL:
            return NULL
        c.chunks += 1
    c.count += 1
    return chunk_item(c, c.count - 1, size)


cdef inline void chunks_free(Chunks* c) noexcept nogil:
    cdef uint64_t i
    for i in range(c.chunks):
        free(c.chunk[i])
    free(c.chunk)
    c.chunk = NULL
    c.count = c.chunks = 0
