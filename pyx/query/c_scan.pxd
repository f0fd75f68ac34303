# The loops of scan_kernels.h: one column of a block -> a mask of 65,536 bits.

from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t, int64_t

cdef extern from "scan_kernels.h" nogil:
    enum:
        SCAN_SET
        SCAN_AND
        SCAN_OR
        PAIR_EQ
        PAIR_LT
        PAIR_LE
        SCAN_LEVELS

    ctypedef struct scan_range:
        uint64_t lo
        uint64_t span

    ctypedef struct scan_test:
        uint64_t mask
        uint64_t mask2
        uint64_t flip
        uint32_t size
        uint32_t count
        uint32_t k
        uint32_t shift
        const scan_range* range
        const uint64_t* table
        const uint32_t* directory
        uint64_t has_zero
        double lo
        double hi
        const uint8_t* blo
        const uint8_t* bhi
        const uint8_t* bmask
        uint32_t glen
        uint32_t same
        int op
        int code
        int code2
        int wide

    ctypedef void (*scan_fn)(const uint8_t* p, uint32_t n, const scan_test* t, uint64_t* out, int mode) noexcept nogil
    ctypedef void (*pair_fn)(const uint8_t* p, const uint8_t* q, uint32_t n, const scan_test* t, uint64_t* out,
                             int mode) noexcept nogil

    ctypedef struct scan_table:
        scan_fn range[4]
        scan_fn ranges[4]
        scan_fn bitmap[2]
        scan_fn hash[2]
        scan_fn search[2]
        scan_fn real[2]
        pair_fn pair
        uint32_t (*count)(const uint64_t* words, uint32_t n) noexcept nogil

    void scan_force(int level)
    int scan_best()
    int scan_level()
    const scan_table* scan_kernels()
    void scan_join(uint64_t* out, uint64_t word, int mode)
    void scan_list(scan_fn fn, const uint8_t* p, uint32_t n, const scan_test* t, uint64_t* out, int mode)
    void scan_bytes(const uint8_t* p, const uint16_t* rows, uint32_t n, const scan_test* t, int glob, uint64_t* out,
                    int mode)
    void scan_pair_bytes(const uint8_t* p, const uint8_t* q, const uint16_t* rows, uint32_t n, const scan_test* t,
                         uint64_t* out, int mode)
    void scan_gather(uint8_t* out, const uint8_t* column, const uint16_t* rows, uint32_t n, uint32_t width)
    uint32_t scan_mask_rows(const uint64_t* mask, uint32_t n, const uint16_t* source, uint16_t* out)
