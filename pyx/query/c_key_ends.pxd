# Group keys that do not tell the two ends of a row apart: `conn` has them in one order, `host` takes both.
#
# Pairs are columns of the source and of the destination.

from libc.stdint cimport uint8_t, uint16_t, uint32_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memset
from c_block cimport Zone
from c_source cimport CHUNK, Chunk

cdef extern from "ends.h" nogil:
    void ends_order(uint8_t* order, const uint8_t* a, const uint8_t* b, const uint16_t* rows, uint32_t first,
                    uint32_t n, uint32_t width, bint higher_first) noexcept
    void ends_take(uint8_t* one, uint8_t* two, const uint8_t* order, const uint8_t* a, const uint8_t* b,
                   const uint16_t* rows, uint32_t first, uint32_t n, uint32_t width) noexcept

cdef enum:
    MAX_PAIRS = 8

cdef struct ColumnPair:
    int a
    int b                       # may be the same column
    uint32_t width
    uint8_t* one                # values of a chunk, in order
    uint8_t* two

cdef struct KeyEnds:
    int n                       # 0: no such key
    ColumnPair pair[MAX_PAIRS]
    Chunk chunk                 # what a key of these columns reads
    const uint8_t** col
    Zone* zone
    uint8_t* order              # of each row: see ends.h


cdef inline bint ends_init(KeyEnds* e, int columns, bint ordered) noexcept nogil:
    """Memory for the n pairs; False without."""
    cdef int i
    e.col = <const uint8_t**>calloc(columns, sizeof(void*))
    e.zone = <Zone*>calloc(columns, sizeof(Zone))
    e.order = <uint8_t*>malloc(CHUNK)
    if e.col == NULL or e.zone == NULL or e.order == NULL:
        return False
    for i in range(e.n if ordered else 0):
        e.pair[i].one = <uint8_t*>malloc(CHUNK * e.pair[i].width)
        e.pair[i].two = <uint8_t*>malloc(CHUNK * e.pair[i].width)
        if e.pair[i].one == NULL or e.pair[i].two == NULL:
            return False
    return True


cdef inline void ends_free(KeyEnds* e) noexcept nogil:
    cdef int i
    for i in range(e.n):
        free(e.pair[i].one)
        free(e.pair[i].two)
    free(e.col)
    free(e.zone)
    free(e.order)


cdef inline void ends_in_order(KeyEnds* e, const Chunk* c, bint no6) noexcept nogil:
    """Fill `chunk`: the end with the higher value of the first pair comes first, else that with the lower others.

    ``no6``: the pairs of 16 bytes are all zero.
    """
    cdef ColumnPair* p
    cdef int i
    memset(e.order, 0, c.n)
    for i in range(e.n):
        p = &e.pair[i]
        if not (no6 and p.width == 16):
            ends_order(e.order, c.col[p.a], c.col[p.b], c.rows, c.first, c.n, p.width, i == 0)
    for i in range(e.n):
        p = &e.pair[i]
        if no6 and p.width == 16:
            e.col[p.a] = e.col[p.b] = c.zeros
            continue
        ends_take(p.one, p.two, e.order, c.col[p.a], c.col[p.b], c.rows, c.first, c.n, p.width)
        e.col[p.a], e.col[p.b] = p.one, p.two
    e.chunk = c[0]
    e.chunk.col, e.chunk.zone, e.chunk.rows, e.chunk.first = e.col, NULL, NULL, 0


cdef inline void ends_exchanged(KeyEnds* e, const Chunk* c) noexcept nogil:
    """Fill `chunk`: the rows of ``c`` with source and destination exchanged."""
    cdef ColumnPair* p
    cdef int i
    e.chunk = c[0]
    e.chunk.col = e.col
    for i in range(e.n):
        p = &e.pair[i]
        e.col[p.a], e.col[p.b] = c.col[p.b], c.col[p.a]
        if c.zone != NULL:
            e.zone[p.a], e.zone[p.b] = c.zone[p.b], c.zone[p.a]
    if c.zone != NULL:
        e.chunk.zone = e.zone
