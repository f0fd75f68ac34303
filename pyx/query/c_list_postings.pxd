# Postings of one block of a list: the rows that contain each element.  The chunk is that of c_postings.pxd.
#
# A row is once in the list of a value, however often it contains it.  Zero elements are absent and have no entry.

from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memset
from c_block cimport I8
from c_postings cimport (MAX_POSTS, ChunkHeader, bits_of, bucketed, chunk_close, chunk_head, order_keys, put_key,
                         rows_at, starts_at)

cdef enum:
    BATCH = 4096                    # elements that are read at once
    DIGIT_BITS = 11

cdef struct ListSorter:             # working memory for one block, kept between blocks
    uint64_t read[BATCH]
    uint64_t key[2][MAX_POSTS]
    uint16_t row[2][MAX_POSTS]
    uint32_t count[1 << DIGIT_BITS]

cdef inline uint32_t read_elements(ListSorter* s, const uint8_t* column, uint32_t n, uint8_t code, uint32_t size,
                                   uint32_t count) noexcept nogil:
    """The keys of the elements and their rows, row by row; returns their number, above MAX_POSTS: too many."""
    cdef uint64_t absent = <uint64_t>1 << 63 if code >= I8 else 0, k
    cdef uint32_t at = 0, rows, i, j, total = 0
    while at < n:
        rows = BATCH // count if BATCH // count < n - at else n - at
        if total + rows * count > MAX_POSTS and total + few(s, column, rows, code, size, count) > MAX_POSTS:
            return MAX_POSTS + 1
        order_keys(s.read, column, rows * count, code, size)
        for i in range(rows):
            for j in range(count):
                k = s.read[i * count + j]
                if k != absent:
                    s.key[0][total], s.row[0][total] = k, <uint16_t>(at + i)
                    total += 1
        column += <size_t>rows * count * size
        at += rows
    return total

cdef inline uint32_t few(ListSorter* s, const uint8_t* column, uint32_t rows, uint8_t code, uint32_t size,
                         uint32_t count) noexcept nogil:
    # How many elements of a batch are not absent.
    cdef uint64_t absent = <uint64_t>1 << 63 if code >= I8 else 0
    cdef uint32_t i, n = 0
    order_keys(s.read, column, rows * count, code, size)
    for i in range(rows * count):
        n += s.read[i] != absent
    return n

cdef inline int sort_elements(ListSorter* s, uint32_t n, uint64_t first, uint32_t bits) noexcept nogil:
    """Sort by key, stable; returns the half of the memory that has the result."""
    cdef uint32_t passes = (bits + DIGIT_BITS - 1) // DIGIT_BITS, shift = 0, i, k, total, _p
    cdef uint32_t digit = (bits + passes - 1) // passes if passes else 0
    cdef uint32_t size = <uint32_t>1 << digit
    cdef int half = 0
    for _p in range(passes):
        memset(s.count, 0, size * 4)
        for i in range(n):
            s.count[(s.key[half][i] - first) >> shift & (size - 1)] += 1
        total = 0
        for i in range(size):
            k = s.count[i]
            s.count[i] = total
            total += k
        for i in range(n):
            k = (s.key[half][i] - first) >> shift & (size - 1)
            s.key[1 - half][s.count[k]] = s.key[half][i]
            s.row[1 - half][s.count[k]] = s.row[half][i]
            s.count[k] += 1
        half = 1 - half
        shift += digit
    return half

cdef inline uint32_t build_list_chunk(ListSorter* s, const uint8_t* column, uint32_t n, uint8_t code, uint32_t size,
                                      uint32_t count, uint64_t bucket, uint64_t base, uint8_t* out) noexcept nogil:
    """The chunk of a column of n >= 1 lists, into `out` (LIST_CHUNK_MAX bytes); returns its length, 0: too many."""
    cdef ChunkHeader* h = <ChunkHeader*>out
    cdef uint32_t total = read_elements(s, column, n, code, size, count)
    cdef uint64_t first = ~<uint64_t>0, last = 0, k
    cdef uint32_t i, posts = 0, keys = 0, bits
    cdef uint64_t* key
    cdef uint16_t* row
    cdef uint8_t* body
    cdef uint32_t* start
    if total > MAX_POSTS:
        return 0
    if bucket > 1:
        bucketed(s.key[0], total, code, bucket)
    for i in range(total):
        k = s.key[0][i]
        first = k if k < first else first
        last = k if k > last else last
    if total == 0:
        first = 0
    bits = bits_of(last - first)
    i = sort_elements(s, total, first, bits)
    key, row = s.key[i], s.row[i]
    for i in range(total):              # a value that a row contains several times has one entry
        if posts and key[posts - 1] == key[i]:
            if row[posts - 1] == row[i]:
                continue
        else:
            keys += 1
        key[posts], row[posts] = key[i], row[i]
        posts += 1
    body = chunk_head(h, n, keys, 4 if bits <= 32 else 8, first, last, base, True, posts)
    start = <uint32_t*>(body + starts_at(keys, h.key_bytes))
    keys = 0
    for i in range(posts):
        if i == 0 or key[i] != key[i - 1]:
            put_key(body, keys, key[i] - first, bits)
            start[keys] = i
            keys += 1
        (<uint16_t*>(body + rows_at(h.keys, h.key_bytes, True)))[i] = row[i]
    chunk_close(h, body, rows_at(keys, h.key_bytes, True) + posts * 2)
    return h.bytes
