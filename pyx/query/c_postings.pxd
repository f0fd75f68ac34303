# Postings of one block: the rows that contain each value of one column.
#
#   chunk      header, 64 bytes            ChunkHeader
#              u32 crc[granules]           CRC32C of each 1 KiB of what follows, padded to 64 bytes
#              key[keys]                   ascending, minus `first`; 4 or 8 bytes each
#              u16 start[keys]             start of the rows of each key; padded to 8 bytes before and after
#              u16 row[rows]               by key, ascending inside a key
#
# Lists (c_list_postings.pxd) have u32 start[keys] and u16 row[posts]: a row has an entry for each of its elements.
#
# A key is the order key of the value (c_sort_key.pxd), of time and integer buckets that of floor(value / bucket).
# A granule is read and verified on first use, so that damage is detected before a row of it is used.
# A single query uses pread, because copying the few pages of a lookup is cheaper than mapping them (0.5 us against
# 5 us, measured); repeated queries map the file.

from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t, int8_t, int16_t, int32_t, int64_t
from libc.string cimport memcmp, memcpy, memset
from posix.types cimport off_t
from c_block cimport BLOCK_ROWS, U8, U16, U32, U64, I8, I16, I32, I64, F32, F64, BYTES
from c_crc cimport crc32c
from c_posix cimport pread
from c_sort_key cimport order_f64, order_i64, order_key

cdef extern from *:
    """
    #define CFL_CHUNK_MAGIC "CFLPOST"
    """
    const char* CHUNK_MAGIC "CFL_CHUNK_MAGIC"

cdef enum:
    CHUNK_HEADER = 64
    CHUNK_START = 4096              # read at once: header, sums (never more) and the first granules
    SEEN_WORDS = 224                # 64 granules a word; the largest chunk has 14,336
    GRANULE = 1024
    CHUNK_CRC = 60                  # u32 in the header: CRC32C of the bytes before it, and of the granule sums
    # A chunk is largest when all rows differ: 8 bytes a key, 2 a start, 2 a row, and the sums of these.
    CHUNK_MAX = 64 + 65536 * 12 + 64 * 1024
    # Of lists: 8 bytes a key, 4 a start, 2 a row, and the sums.  Blocks with more entries are not indexed.
    MAX_POSTS = 1 << 20
    LIST_CHUNK_MAX = 64 + MAX_POSTS * 14 + 64 * 1024

cdef struct ChunkHeader:
    char magic[8]                   # CHUNK_MAGIC
    uint32_t rows                   # of the block
    uint32_t keys                   # distinct
    uint32_t key_bytes              # 4 or 8
    uint32_t bytes                  # of the whole chunk
    uint64_t first                  # smallest key
    uint64_t last                   # largest key
    uint64_t base                   # row number of row 0 in the lane
    uint32_t posts                  # of a list: entries of rows; else 0
    uint32_t reserved[2]
    uint32_t crc

cdef struct Chunk:
    int fd                          # -1: `buffer` is the map of the whole chunk
    uint64_t at                     # offset of the chunk in the file
    uint32_t room                   # its size in the table of the file
    uint64_t base                   # the row it must start with
    int state                       # 0 not opened, 1 good, -1 damaged
    uint8_t* buffer                 # chunk_max bytes: the parts read of the chunk, at their offsets; or the map
    uint32_t have                   # bytes read from its start
    uint32_t rows, keys, key_bytes
    uint32_t posts                  # entries of rows; `rows`, unless of a list
    uint64_t first, last
    uint64_t bucket                 # 1: none
    uint8_t code                    # of the column
    bint list                       # of a list: zero elements have no entry
    const uint32_t* crc
    uint8_t* key                    # start of the checked bytes
    const uint8_t* start
    const uint16_t* row
    uint64_t seen[SEEN_WORDS]       # granules read and checked

cdef inline uint32_t sums_bytes(uint32_t checked) noexcept nogil:
    return ((checked + GRANULE - 1) // GRANULE * 4 + 63) // 64 * 64

cdef inline uint32_t starts_at(uint32_t keys, uint32_t key_bytes) noexcept nogil:
    return (keys * key_bytes + 7) // 8 * 8

cdef inline uint32_t rows_at(uint32_t keys, uint32_t key_bytes, bint list) noexcept nogil:
    return starts_at(keys, key_bytes) + (keys * (4 if list else 2) + 7) // 8 * 8

cdef inline uint32_t chunk_max(bint list) noexcept nogil:
    """Maximum size of a chunk in bytes."""
    return LIST_CHUNK_MAX if list else CHUNK_MAX

cdef inline uint32_t checked_bytes(const Chunk* c) noexcept nogil:
    """Size of what the sums of an open chunk cover."""
    return rows_at(c.keys, c.key_bytes, c.list) + c.posts * 2

cdef inline int64_t floor_div(int64_t a, int64_t b) noexcept nogil:
    return a // b - (1 if a % b != 0 and a < 0 else 0)

cdef inline uint64_t bucket_key(uint8_t code, uint64_t key, uint64_t bucket) noexcept nogil:
    """The order key of a value -> the order key of its bucket."""
    if bucket <= 1:
        return key
    if code >= I8:
        return order_i64(floor_div(<int64_t>(key ^ <uint64_t>1 << 63), <int64_t>bucket))
    return key // bucket

cdef inline int chunk_open(Chunk* c) noexcept nogil:
    """Read the start of the chunk once: 1 valid, -1 damaged."""
    cdef const ChunkHeader* h = <const ChunkHeader*>c.buffer
    cdef uint32_t checked, sums, posts
    if c.state != 0:
        return c.state
    c.state = -1
    c.have = c.room if c.room < CHUNK_START or c.fd < 0 else CHUNK_START
    if c.room < CHUNK_HEADER or c.room > chunk_max(c.list):
        return -1
    if c.fd >= 0 and pread(c.fd, c.buffer, c.have, <off_t>c.at) != <ssize_t>c.have:
        return -1
    if memcmp(h.magic, CHUNK_MAGIC, 8) != 0 or h.base != c.base:
        return -1
    posts = h.posts if c.list else h.rows
    if not 1 <= h.rows <= BLOCK_ROWS or posts > MAX_POSTS or h.keys > posts or (h.key_bytes != 4 and h.key_bytes != 8):
        return -1
    if (h.keys == 0) != (posts == 0):
        return -1
    checked = rows_at(h.keys, h.key_bytes, c.list) + posts * 2
    sums = sums_bytes(checked)
    if CHUNK_HEADER + sums + checked > c.room or h.bytes != c.room or h.first > h.last:
        return -1
    if CHUNK_HEADER + sums > c.have:
        c.have = CHUNK_HEADER + sums
        if pread(c.fd, c.buffer, c.have, <off_t>c.at) != <ssize_t>c.have:
            return -1
    if crc32c(h, CHUNK_CRC) ^ crc32c(c.buffer + CHUNK_HEADER, sums) != h.crc:
        return -1
    c.rows, c.keys, c.key_bytes, c.first, c.last, c.posts = h.rows, h.keys, h.key_bytes, h.first, h.last, posts
    c.crc = <const uint32_t*>(c.buffer + CHUNK_HEADER)
    c.key = c.buffer + CHUNK_HEADER + sums
    c.start = c.key + starts_at(h.keys, h.key_bytes)
    c.row = <const uint16_t*>(c.key + rows_at(h.keys, h.key_bytes, c.list))
    memset(c.seen, 0, (checked // (64 * GRANULE) + 1) * 8)
    c.state = 1
    return 1

cdef inline bint chunk_check(Chunk* c, const void* p, uint32_t size) noexcept nogil:
    """Read and check the granules under these bytes of the buffer; True if they are valid."""
    cdef uint32_t at = <uint32_t>(<const uint8_t*>p - c.key)
    cdef uint32_t g = at // GRANULE, last = (at + (size if size else 1) - 1) // GRANULE
    while g <= last:
        if not c.seen[g >> 6] >> (g & 63) & 1 and not _chunk_load(c, g, last):
            c.state = -1
            return False
        g += 1
    return True

cdef inline bint _chunk_load(Chunk* c, uint32_t g, uint32_t last) noexcept nogil:
    # Read granule g and the following unseen ones up to `last`.
    cdef uint32_t total = checked_bytes(c)
    cdef uint32_t start, n, stop = g
    while stop <= last and not c.seen[stop >> 6] >> (stop & 63) & 1:
        stop += 1
    start = <uint32_t>(c.key - c.buffer) + g * GRANULE
    n = (stop - g) * GRANULE if stop * GRANULE <= total else total - g * GRANULE
    if start + n > c.have and pread(c.fd, c.buffer + start, n, <off_t>(c.at + start)) != <ssize_t>n:
        return False
    while g < stop:
        n = total - g * GRANULE
        if crc32c(c.key + g * GRANULE, n if n < GRANULE else GRANULE) != c.crc[g]:
            return False
        c.seen[g >> 6] |= <uint64_t>1 << (g & 63)
        g += 1
    return True

cdef inline uint64_t chunk_key(Chunk* c, uint32_t i) noexcept nogil:
    """Key number i; the caller checks c.state at the end."""
    cdef const uint8_t* p = c.key + <size_t>i * c.key_bytes
    if not chunk_check(c, p, c.key_bytes):
        return 0
    return c.first + ((<const uint32_t*>p)[0] if c.key_bytes == 4 else (<const uint64_t*>p)[0])

cdef inline uint32_t chunk_start(Chunk* c, uint32_t i) noexcept nogil:
    """Start of the rows of key i; for i = `keys` the end of all rows."""
    if i >= c.keys:
        return c.posts
    if c.list:
        return (<const uint32_t*>c.start)[i] if chunk_check(c, c.start + <size_t>i * 4, 4) else 0
    return (<const uint16_t*>c.start)[i] if chunk_check(c, c.start + <size_t>i * 2, 2) else 0

cdef inline uint32_t chunk_lower(Chunk* c, uint64_t key) noexcept nogil:
    """Number of the first key not smaller than `key`."""
    cdef uint32_t low = 0, high = c.keys, mid
    cdef uint64_t here
    if key <= c.first:
        return 0
    if key > c.last:
        return c.keys
    here = key - c.first
    if here < c.keys:                       # in a dense dictionary the position is known
        mid = <uint32_t>here
        if chunk_key(c, mid) == key:
            return mid
        high = mid                          # keys differ by at least one: key number i is at least first + i
    while low < high:
        mid = (low + high) // 2
        if chunk_key(c, mid) < key:
            low = mid + 1
        else:
            high = mid
    return low

cdef inline const uint16_t* chunk_rows(Chunk* c, uint32_t a, uint32_t b) noexcept nogil:
    """Rows a .. b of the lists, verified; NULL if damaged."""
    if a > b or b > c.posts or not chunk_check(c, c.row + a, (b - a) * 2):
        c.state = -1
        return NULL
    return c.row + a

# --- building -------------------------------------------------------------------------------------

cdef enum:
    MAX_APART = 4096               # maximum number of distinct keys that are counted by number
    APART_BITS = 13
    APART_SLOTS = 8192              # 2 ** APART_BITS, slots of their hash table: at most half full

cdef struct Sorter:                 # working memory for one block, kept between blocks
    uint64_t key[BLOCK_ROWS]
    uint64_t memory[2][BLOCK_ROWS]
    uint64_t* pair                  # the two halves of `memory`, exchanged by each sorting pass
    uint64_t* pair2
    uint32_t count[BLOCK_ROWS]
    uint16_t number[BLOCK_ROWS]     # number of the key of each row, in order of appearance
    uint64_t distinct[MAX_APART]   # key by number
    uint32_t tally[MAX_APART]      # rows by number
    uint64_t slot_key[APART_SLOTS]
    uint16_t slot[APART_SLOTS]      # number + 1, 0: free

cdef inline void bucketed(uint64_t* key, uint32_t n, uint8_t code, uint64_t bucket) noexcept nogil:
    # Adjacent values often share a bucket (times do): divide only if it changes.
    cdef uint64_t low = 1, high = 0, at = 0, k, above
    cdef uint32_t i
    for i in range(n):
        k = key[i]
        if k < low or k > high:
            at = bucket_key(code, k, bucket)
            if code >= I8:
                above = (k ^ <uint64_t>1 << 63) - (at ^ <uint64_t>1 << 63) * bucket     # modulo 2^64: it is small
            else:
                above = k - at * bucket
            low = k - above if above <= k else 0
            high = k + (bucket - 1 - above)
            if high < k:
                high = ~<uint64_t>0
        key[i] = at

cdef inline void order_keys(uint64_t* out, const uint8_t* p, uint32_t n, uint8_t code, uint32_t size) noexcept nogil:
    """The order keys of n values."""
    cdef uint32_t i
    if code == U8:
        for i in range(n):
            out[i] = p[i]
    elif code == U16:
        for i in range(n):
            out[i] = (<const uint16_t*>p)[i]
    elif code == U32:
        for i in range(n):
            out[i] = (<const uint32_t*>p)[i]
    elif code == U64:
        memcpy(out, p, <size_t>n * 8)
    elif code == I64:
        for i in range(n):
            out[i] = order_i64((<const int64_t*>p)[i])
    else:
        for i in range(n):
            out[i] = order_key(code, p + <size_t>i * size, size)

cdef inline bint rising(const uint64_t* key, uint32_t n) noexcept nogil:
    cdef uint64_t falls = 0
    cdef uint32_t i
    for i in range(1, n):
        falls |= key[i] < key[i - 1]
    return not falls

cdef inline uint32_t bits_of(uint64_t x) noexcept nogil:
    cdef uint32_t n = 0
    while x:
        x >>= 1
        n += 1
    return n

cdef inline void sort_pairs(Sorter* s, uint32_t n, uint32_t bits) noexcept nogil:
    """Sort key << 16 | row in s.pair by key: least significant digits first, so rows stay ascending."""
    cdef uint32_t passes = (bits + 10) // 11
    cdef uint32_t digit = (bits + passes - 1) // passes if passes else 0
    cdef uint32_t size = <uint32_t>1 << digit, i, k, total
    cdef uint32_t shift = 16
    cdef uint32_t _p
    cdef uint64_t* swap
    cdef uint64_t x
    for _p in range(passes):
        memset(s.count, 0, size * 4)
        for i in range(n):
            s.count[s.pair[i] >> shift & (size - 1)] += 1
        total = 0
        for i in range(size):
            k = s.count[i]
            s.count[i] = total
            total += k
        for i in range(n):
            x = s.pair[i]
            k = x >> shift & (size - 1)
            s.pair2[s.count[k]] = x
            s.count[k] += 1
        swap = s.pair
        s.pair = s.pair2
        s.pair2 = swap
        shift += digit

cdef inline void sort_rows(Sorter* s, uint32_t n, uint64_t first) noexcept nogil:
    """Keys of more than 48 bits: sort row numbers by them, 16 bits at a time, into s.pair."""
    cdef uint32_t i, k, total, shift = 0
    cdef uint64_t* swap
    for i in range(n):
        s.pair[i] = i
    while shift < 64:
        memset(s.count, 0, BLOCK_ROWS * 4)
        for i in range(n):
            s.count[(s.key[i] - first) >> shift & 0xFFFF] += 1
        total = 0
        for i in range(BLOCK_ROWS):
            k = s.count[i]
            s.count[i] = total
            total += k
        for i in range(n):
            k = (s.key[s.pair[i]] - first) >> shift & 0xFFFF
            s.pair2[s.count[k]] = s.pair[i]
            s.count[k] += 1
        swap = s.pair
        s.pair = s.pair2
        s.pair2 = swap
        shift += 16

cdef inline void sort_keys(Sorter* s, uint32_t n, uint64_t first, uint32_t bits) noexcept nogil:
    """Sort the numbers 0 .. n-1 by s.key into the low 16 bits of s.pair; stable."""
    cdef uint32_t i
    if bits <= 48:
        for i in range(n):
            s.pair[i] = (s.key[i] - first) << 16 | i
        sort_pairs(s, n, bits)
    else:
        sort_rows(s, n, first)

cdef inline void put_key(uint8_t* body, uint32_t i, uint64_t key, uint32_t bits) noexcept nogil:
    if bits <= 32:
        (<uint32_t*>body)[i] = <uint32_t>key
    else:
        (<uint64_t*>body)[i] = key

cdef inline uint32_t tell_apart(Sorter* s, uint32_t n) noexcept nogil:
    """Number the distinct keys and count the rows of each; returns their number, 0: more than MAX_APART."""
    cdef uint32_t i, at, number, found = 0
    cdef uint64_t k
    memset(s.slot, 0, sizeof(s.slot))
    for i in range(n):
        k = s.key[i]
        at = <uint32_t>(k * <uint64_t>0x9E3779B97F4A7C15u >> (64 - APART_BITS))
        while s.slot[at] and s.slot_key[at] != k:
            at = (at + 1) & (APART_SLOTS - 1)
        if not s.slot[at]:
            if found == MAX_APART:
                return 0
            s.slot_key[at] = s.distinct[found] = k
            s.tally[found] = 0
            found += 1
            s.slot[at] = <uint16_t>found
        number = s.slot[at] - 1
        s.number[i] = <uint16_t>number
        s.tally[number] += 1
    return found

cdef inline uint32_t build_chunk(Sorter* s, const uint8_t* column, uint32_t n, uint8_t code, uint32_t size,
                                 uint64_t bucket, uint64_t base, uint8_t* out) noexcept nogil:
    """The chunk of a column of n >= 1 rows, into `out` (CHUNK_MAX bytes); returns its length."""
    cdef ChunkHeader* h = <ChunkHeader*>out
    cdef uint64_t first, last, k, before
    cdef uint32_t i, j, keys, bits, at, m, total
    cdef uint8_t* body
    cdef uint16_t* start
    cdef uint16_t* row
    cdef bint in_order
    order_keys(s.key, column, n, code, size)
    if bucket > 1:
        bucketed(s.key, n, code, bucket)
    in_order = rising(s.key, n)
    keys = 0 if in_order else tell_apart(s, n)
    if keys:
        memcpy(s.key, s.distinct, keys * 8)
    first = last = s.key[0]
    for i in range(keys if keys else n):
        k = s.key[i]
        first = k if k < first else first
        last = k if k > last else last
    bits = bits_of(last - first)
    # Count the keys, compute the layout, then fill; the counts are in s.count or in s.pair.
    if keys:                                # few: sort the keys; each row has the number of its key
        sort_keys(s, keys, first, bits)
        body = chunk_layout(h, n, keys, 4 if bits <= 32 else 8, first, last, base, &start, &row)
        at = 0
        for i in range(keys):
            j = s.pair[i] & 0xFFFF
            put_key(body, i, s.key[j] - first, bits)
            start[i] = <uint16_t>at
            m = s.tally[j]
            s.tally[j] = at
            at += m
        for i in range(n):
            j = s.number[i]
            row[s.tally[j]] = <uint16_t>i
            s.tally[j] += 1
    elif bits <= 16 and not in_order:
        total = <uint32_t>(last - first) + 1
        memset(s.count, 0, total * 4)
        for i in range(n):
            s.count[s.key[i] - first] += 1
        for i in range(total):
            keys += s.count[i] != 0
        body = chunk_layout(h, n, keys, 4, first, last, base, &start, &row)
        at = j = 0
        for i in range(total):
            m = s.count[i]
            if m:
                put_key(body, j, i, bits)
                start[j] = <uint16_t>at
                j += 1
            s.count[i] = at
            at += m
        for i in range(n):
            j = <uint32_t>(s.key[i] - first)
            row[s.count[j]] = <uint16_t>i
            s.count[j] += 1
    else:
        if in_order:
            for i in range(n):
                s.pair[i] = i
        else:
            sort_keys(s, n, first, bits)
        before = ~s.key[s.pair[0] & 0xFFFF]
        for i in range(n):
            k = s.key[s.pair[i] & 0xFFFF]
            keys += k != before
            before = k
        body = chunk_layout(h, n, keys, 4 if bits <= 32 else 8, first, last, base, &start, &row)
        before = ~s.key[s.pair[0] & 0xFFFF]
        j = 0
        for i in range(n):
            row[i] = <uint16_t>s.pair[i]
            k = s.key[row[i]]
            if k != before:
                put_key(body, j, k - first, bits)
                start[j] = <uint16_t>i
                j += 1
                before = k
    chunk_close(h, body, <uint32_t>(<uint8_t*>(row + n) - body))
    return h.bytes

cdef inline void chunk_close(ChunkHeader* h, uint8_t* body, uint32_t checked) noexcept nogil:
    """The sums of the `checked` bytes of the body, and of the header."""
    cdef uint8_t* out = <uint8_t*>h
    cdef uint32_t sums = <uint32_t>(body - out) - CHUNK_HEADER, g, m
    memset(out + CHUNK_HEADER, 0, sums)
    for g in range((checked + GRANULE - 1) // GRANULE):
        m = checked - g * GRANULE
        (<uint32_t*>(out + CHUNK_HEADER))[g] = crc32c(body + g * GRANULE, m if m < GRANULE else GRANULE)
    memset(body + checked, 0, h.bytes - CHUNK_HEADER - sums - checked)
    h.crc = crc32c(out, CHUNK_CRC) ^ crc32c(out + CHUNK_HEADER, sums)

cdef inline uint8_t* chunk_layout(ChunkHeader* h, uint32_t n, uint32_t keys, uint32_t key_bytes, uint64_t first,
                                  uint64_t last, uint64_t base, uint16_t** start, uint16_t** row) noexcept nogil:
    # Write the header; returns the start of the keys.
    cdef uint8_t* body = chunk_head(h, n, keys, key_bytes, first, last, base, False, n)
    start[0] = <uint16_t*>(body + starts_at(keys, key_bytes))
    row[0] = <uint16_t*>(body + rows_at(keys, key_bytes, False))
    return body

cdef inline uint8_t* chunk_head(ChunkHeader* h, uint32_t n, uint32_t keys, uint32_t key_bytes, uint64_t first,
                                uint64_t last, uint64_t base, bint list, uint32_t posts) noexcept nogil:
    """Write the header of a chunk, of a `list` or not, and the gaps of its body; returns the body."""
    cdef uint32_t starts = starts_at(keys, key_bytes), rows = rows_at(keys, key_bytes, list)
    cdef uint32_t checked = rows + posts * 2, used = keys * (4 if list else 2)
    cdef uint8_t* body = <uint8_t*>h + CHUNK_HEADER + sums_bytes(checked)
    memset(h, 0, CHUNK_HEADER)
    memcpy(h.magic, CHUNK_MAGIC, 8)
    h.rows, h.keys, h.key_bytes, h.first, h.last, h.base = n, keys, key_bytes, first, last, base
    h.posts = posts if list else 0
    h.bytes = (CHUNK_HEADER + sums_bytes(checked) + checked + 63) // 64 * 64
    memset(body + keys * key_bytes, 0, starts - keys * key_bytes)
    memset(body + starts + used, 0, rows - starts - used)
    return body
