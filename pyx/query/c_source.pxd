# Input of a roll-up: one chunk of selected rows of a block, and the values of one field in it.

from libc.stdint cimport INT64_MAX, INT64_MIN, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset
from c_block cimport Zone
from c_ipv6_hash cimport fold6
from c_hash_table cimport HashTable, hash2, table_insert, table_insert2

cdef extern from "load.h" nogil:
    void load_values(uint64_t* out, int code, const void* column, const uint16_t* rows, uint32_t n) noexcept
    uint64_t load_value(int code, const void* p) noexcept
    uint64_t fixed_hash(uint64_t v) noexcept
    void fixed_hashes(uint64_t* out, const uint64_t* v, uint32_t n) noexcept

cdef extern from *:
    """
    /* floor(v / step), step > 0 */
    static inline int64_t floor_div(int64_t v, int64_t step) {
        int64_t q = v / step;
        return q - (v % step < 0);
    }
    /* q * step, INT64_MIN where the true product is smaller */
    static inline int64_t bucket_start(int64_t q, int64_t step) {
        int64_t v;
        return __builtin_mul_overflow(q, step, &v) ? INT64_MIN : v;
    }
    """
    int64_t floor_div(int64_t v, int64_t step) noexcept nogil
    int64_t bucket_start(int64_t q, int64_t step) noexcept nogil

cdef enum:
    CHUNK = 2048            # rows per step: their groups and values fit the L1 and L2 caches
    MAX_WORDS = 32          # 64-bit words of a packed group key

cdef enum SourceKind:
    NUMBER = 1              # integers sign- or zero-extended, floats as the bits of a double; elements of a list
    KEY = 2                 # a number as its bits, shifted right: equal bits <=> equal values
    BUCKET = 3              # number of the step of time, of the local time if there are changes: c_time_steps.pxd
    IP = 4                  # family << 32 | IPv4 address, or number of the IPv6 address in `intern`
    WIDE = 5                # number of the bytes in `intern`
    IP_HASH = 6             # 64-bit hash of the address, the same in every process
    WIDE_HASH = 7
    HOLDS = 8               # rows for which a condition holds

cdef enum StepKind:
    NANOSECONDS = 0         # BUCKET: floor((time - origin) / step)
    MONTHS = 1              # `step` months
    HOURS = 2               # `clock` ns on local clocks; the numbers are those of minutes

cdef enum Family:
    ABSENT = 0              # address families, in sort order
    V4 = 1
    V6 = 2

cdef enum Ends:
    AS_THEY_ARE = 0
    IN_ORDER = 1            # the columns of a chunk with the ends of each row in one order
    EITHER = 2              # a row is in the group of its source and in that of its destination

cdef struct Source:
    int kind
    int code                # of an element of `col`, c_block.Code
    uint32_t size           # bytes of an element
    uint32_t count          # elements per row
    uint32_t width          # bytes per row
    int col
    int col6                # IP: the 16 bytes
    int version             # IP: column that holds 4 or 6, or -1
    int version_code
    uint32_t version_width
    bint plain              # IP: results have their version column, too
    bint drop               # IP: rows without an address have no value; NUMBER: zero elements are skipped
    uint32_t mask4
    uint8_t mask6[16]
    uint32_t shift          # KEY: low bits dropped
    uint32_t bits           # of a value, for packing
    int kinds               # BUCKET: StepKind
    int64_t step            # BUCKET: ns, or months
    int64_t origin          # BUCKET: a time at which a step begins
    int64_t clock           # HOURS: length of the steps, ns
    uint32_t changes        # BUCKET: of the offset of local time, with the first one at INT64_MIN; 0: UTC
    int64_t* change         # their times (UTC), ascending
    int64_t* offset         # from each on, local time is UTC + offset
    bint minutes            # all of them are multiples of a minute
    bint quarters           # of 15 minutes
    const void* calc        # NUMBER, KEY: the calculation of the values, instead of a column
    int ends                # key of a `conn` or `host`, see Ends
    bint missing            # NUMBER: the rows for which the calculation does not fit 64 bits, instead of the others
    const uint64_t* holds   # HOLDS: bits of the rows of the block
    HashTable intern

cdef struct Chunk:
    uint32_t n              # rows
    uint32_t first          # first row, if rows is NULL
    const uint16_t* rows    # the rows, or NULL: first, first + 1, ...
    const uint8_t** col     # columns of the block
    const Zone* zone        # or NULL
    const uint8_t* zeros    # ZEROS shared zero bytes, for columns that a block does not have
    const uint32_t* group   # group of each row, or NULL: all are of group 0
    int64_t single          # the group of all rows, or -1
    const int64_t* time     # of each row, or NULL
    int32_t lane
    uint64_t base           # row number of row 0 of the block in its lane
    uint64_t* scratch       # CHUNK values
    uint8_t* wide           # buffer for one WIDE value, padded to words

cdef enum:
    ZEROS = 1 << 20

cdef inline uint32_t row_of(const Chunk* c, uint32_t i) noexcept nogil:
    return c.rows[i] if c.rows != NULL else c.first + i

cdef inline void load_column(const Chunk* c, int col, int code, uint32_t width, uint64_t* out) noexcept nogil:
    if c.rows != NULL:
        load_values(out, code, c.col[col], c.rows, c.n)
    else:
        load_values(out, code, c.col[col] + <size_t>c.first * width, NULL, c.n)

cdef inline bint no_ipv6(const Source* s, const Chunk* c) noexcept nogil:
    """True if the field has no IPv6 address in the block, by its zone maps; its 16-byte column is then not read."""
    cdef const uint8_t* six = c.col[s.col6]
    if c.zeros <= six < c.zeros + ZEROS:
        return True
    # The zone of a bytes column covers the first 8 bytes of 16, so the version column must agree.
    return (c.zone != NULL and s.version >= 0 and c.zone[s.col6].max == 0
            and s.version_code <= 4 and c.zone[s.version].max < 6)

cdef inline int family(uint32_t v4, const uint8_t* six, int64_t version) noexcept nogil:
    """The family of an address; version is -1 without a version column, six NULL if no row is IPv6."""
    cdef uint64_t a, b
    if version == 6:
        return V6
    if six != NULL:
        memcpy(&a, six, 8)
        memcpy(&b, six + 8, 8)
        if a | b:
            return V6
    if v4 == 1 and version < 0:
        return V6               # the address ::
    if v4 or version == 4:
        return V4
    return ABSENT

cdef inline int ip_at(const Source* s, const Chunk* c, uint32_t row, bint no6, uint32_t* v4,
                      uint8_t* six) noexcept nogil:
    """The family of the address in a row; v4 and six get its (masked) bytes, zero where they do not apply."""
    cdef int64_t version = -1
    cdef int kind, i
    cdef const uint8_t* p = NULL
    if not no6:
        p = c.col[s.col6] + <size_t>row * 16
    v4[0] = <uint32_t>load_value(3, c.col[s.col] + <size_t>row * 4)
    if s.version >= 0:
        version = <int64_t>load_value(s.version_code, c.col[s.version] + <size_t>row * s.version_width)
        version = version if version == 4 or version == 6 else 0
    kind = family(v4[0], p, version)
    memset(six, 0, 16)
    if kind == V6:
        v4[0] = 0
        if p != NULL:
            for i in range(16):
                six[i] = p[i] & s.mask6[i]
    else:
        v4[0] &= s.mask4
    return kind

cdef inline void load_versions(const Source* s, const Chunk* c) noexcept nogil:
    # Into c.scratch; all ones: no version column.
    if s.version < 0:
        memset(c.scratch, 0xFF, c.n * 8)
    else:
        load_column(c, s.version, s.version_code, s.version_width, c.scratch)

cdef inline void ip_codes(Source* s, const Chunk* c, uint64_t* out) noexcept nogil:
    # s.intern has space for CHUNK more addresses.
    cdef uint32_t i
    cdef uint64_t word[2]
    cdef uint64_t mask[2]
    cdef const uint8_t* column
    cdef bint no6 = no_ipv6(s, c)
    cdef int kind
    memcpy(mask, s.mask6, 16)
    load_column(c, s.col, 3, 4, out)
    if no6 and s.version < 0:
        for i in range(c.n):
            out[i] = <uint64_t>V4 << 32 | (out[i] & s.mask4) if out[i] > 1 else (<uint64_t>V6 << 32 | 1) * out[i]
    elif no6:
        load_column(c, s.version, s.version_code, s.version_width, c.scratch)
        for i in range(c.n):
            if (out[i] != 0) | (c.scratch[i] == 4):
                out[i] = <uint64_t>V4 << 32 | (out[i] & s.mask4)
            if c.scratch[i] == 6:
                out[i] = <uint64_t>V6 << 32 | 1
    else:
        load_versions(s, c)
        column = c.col[s.col6]
        for i in range(c.n):
            memcpy(word, column + <size_t>row_of(c, i) * 16, 16)
            if word[0] | word[1]:
                word[0], word[1] = word[0] & mask[0], word[1] & mask[1]
                out[i] = (<uint64_t>V6 << 32) + 1
                if word[0] | word[1]:
                    out[i] += 1 + table_insert2(&s.intern, hash2(&s.intern, word[0], word[1]), word[0], word[1])
            else:
                kind = family(<uint32_t>out[i], NULL, <int64_t>c.scratch[i])
                out[i] = <uint64_t>kind << 32 | (1 if kind == V6 else out[i] & s.mask4)

cdef inline void ip_of_code(const Source* s, uint64_t code, uint32_t* v4, uint8_t* six) noexcept nogil:
    """The bytes of a value of ip_codes; code 1 of V6 is the address ::, interned ones follow."""
    cdef uint32_t low = <uint32_t>code
    memset(six, 0, 16)
    v4[0] = low
    if code >> 32 == V6:
        v4[0] = 0
        if low > 1:
            memcpy(six, s.intern.keys + <size_t>(low - 2) * 2, 16)

cdef inline void ip_result(const Source* s, int kind, uint32_t v4, const uint8_t* six, uint8_t* out,
                           uint8_t* out6) noexcept nogil:
    """Store an address as a field of a result: NAME and NAME6.

    Without a version column 0 means absent and 1 means ::, so 0.0.0.0 and 0.0.0.1 are written as IPv4-mapped IPv6.
    """
    memcpy(out6, six, 16)
    if kind == V4 and v4 <= 1 and not s.plain:
        out6[10] = out6[11] = 0xFF
        out6[15] = <uint8_t>v4
        kind = V6
    if kind == V6:
        v4 = fold6(out6)
    memcpy(out, &v4, 4)

cdef inline uint64_t fixed_hash_bytes(const uint8_t* p, uint32_t size) noexcept nogil:
    cdef uint64_t h = size, word
    cdef uint32_t i = 0
    while i < size:
        word = 0
        memcpy(&word, p + i, min(<uint32_t>8, size - i))
        h = fixed_hash(h) ^ word
        i += 8
    return fixed_hash(h)

cdef inline void ip_hashes(const Source* s, const Chunk* c, uint64_t* out, uint8_t* present) noexcept nogil:
    cdef uint32_t i
    cdef uint8_t none[16]
    cdef const uint8_t* six
    cdef bint no6 = no_ipv6(s, c)
    cdef int kind
    memset(none, 0, 16)
    load_column(c, s.col, 3, 4, out)
    load_versions(s, c)
    for i in range(c.n):
        six = none
        if not no6:
            six = c.col[s.col6] + <size_t>row_of(c, i) * 16
        kind = family(<uint32_t>out[i], six, <int64_t>c.scratch[i])
        present[i] = kind != ABSENT
        out[i] = fixed_hash_bytes(six, 16) if kind == V6 else fixed_hash(<uint64_t>kind << 32 | out[i])

cdef inline void wide_codes(Source* s, const Chunk* c, uint64_t* out) noexcept nogil:
    cdef uint32_t i
    memset(c.wide, 0, <size_t>s.intern.words * 8)
    for i in range(c.n):
        memcpy(c.wide, c.col[s.col] + <size_t>row_of(c, i) * s.width, s.width)
        out[i] = table_insert(&s.intern, <const uint64_t*>c.wide)

cdef inline void wide_hashes(const Source* s, const Chunk* c, uint64_t* out) noexcept nogil:
    cdef uint32_t i
    for i in range(c.n):
        out[i] = fixed_hash_bytes(c.col[s.col] + <size_t>row_of(c, i) * s.width, s.width)

cdef inline bint is_nan(uint64_t bits) noexcept nogil:
    return bits << 1 > <uint64_t>0xFFE0000000000000

cdef inline uint64_t plain_float(uint64_t bits) noexcept nogil:
    """One form for all NaN, and for 0.0 and -0.0."""
    cdef double v
    memcpy(&v, &bits, 8)
    if v != v:
        return 0x7FF8000000000000u
    v = v + 0.0
    memcpy(&bits, &v, 8)
    return bits

cdef inline void plain_floats(uint64_t* v, uint32_t n) noexcept nogil:
    cdef uint32_t i
    for i in range(n):
        v[i] = plain_float(v[i])
