# Tests on elements, lengths and sequences of list columns.  A zero element is absent; a list ends with its last nonzero
# element.

from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset
from c_block cimport I8
from c_scan cimport SCAN_SET, scan_fn, scan_join, scan_test
from c_sort_key cimport order_key

cdef enum ListWhat:
    ELEMENT = 1                     # fn tests the element at `index`, below 0 counted from the end
    LENGTH = 2                      # fn tests the length, a u8
    EXACT = 3                       # the list is these items
    STARTS = 4                      # it starts with them
    RUN = 5                         # it has them one right after the other
    BEFORE = 6                      # it has them in this order

cdef struct ListTest:
    int what
    int index
    uint32_t items
    const uint64_t* bound           # lowest and highest order key of each item

cdef inline bint is_absent(const scan_test* t, const uint8_t* p) noexcept nogil:
    return order_key(t.code, p, t.size) == (<uint64_t>1 << 63 if t.code >= I8 else 0)

cdef inline uint32_t list_length(const scan_test* t, const uint8_t* p) noexcept nogil:
    cdef uint32_t n = t.count
    while n and is_absent(t, p + <size_t>(n - 1) * t.size):
        n -= 1
    return n

cdef inline bint item_holds(const scan_test* t, const ListTest* l, const uint8_t* p, uint32_t at,
                            uint32_t item) noexcept nogil:
    cdef uint64_t key = order_key(t.code, p + <size_t>at * t.size, t.size)
    return l.bound[2 * item] <= key <= l.bound[2 * item + 1]

cdef inline bint run_holds(const scan_test* t, const ListTest* l, const uint8_t* p, uint32_t at) noexcept nogil:
    cdef uint32_t i
    for i in range(l.items):
        if not item_holds(t, l, p, at + i, i):
            return False
    return True

cdef inline bint sequence_holds(const scan_test* t, const ListTest* l, const uint8_t* p) noexcept nogil:
    """Does the list at p pass?  l.items is from 1 to t.count."""
    cdef uint32_t at, item = 0
    if l.what == STARTS:
        return run_holds(t, l, p, 0)
    if l.what == EXACT:
        return run_holds(t, l, p, 0) and list_length(t, p) == l.items
    if l.what == RUN:
        for at in range(t.count - l.items + 1):
            if run_holds(t, l, p, at):
                return True
        return False
    for at in range(t.count):
        if item_holds(t, l, p, at, item):
            item += 1
            if item == l.items:
                return True
    return False

cdef inline void pick_element(const scan_test* t, int index, const uint8_t* p, uint8_t* out) noexcept nogil:
    """The element at `index` of the list at p; zero if the list has none there."""
    cdef int at = index
    if index < 0:
        at += <int>list_length(t, p)
    if at < 0:
        memset(out, 0, t.size)
    elif t.size == 2:
        memcpy(out, p + at * 2, 2)
    elif t.size == 4:
        memcpy(out, p + at * 4, 4)
    else:
        memcpy(out, p + <size_t>at * t.size, t.size)

cdef inline void scan_lists(scan_fn fn, const ListTest* l, const uint8_t* p, uint32_t n, const scan_test* t,
                            uint64_t* out, int mode) noexcept nogil:
    """A test over n lists."""
    cdef uint8_t value[64 * 8]
    cdef scan_test one = t[0]
    cdef uint64_t word
    cdef uint32_t at = 0, i, rows, width = t.size * t.count
    one.count, one.flip = 1, 0
    one.size = 1 if l.what == LENGTH else t.size
    while at < n:
        rows = n - at if n - at < 64 else 64
        word = 0
        if l.what == ELEMENT:
            for i in range(rows):
                pick_element(t, l.index, p + <size_t>i * width, value + i * t.size)
            fn(value, rows, &one, &word, SCAN_SET)
        elif l.what == LENGTH:
            for i in range(rows):
                value[i] = <uint8_t>list_length(t, p + <size_t>i * width)
            fn(value, rows, &one, &word, SCAN_SET)
        else:
            for i in range(rows):
                word |= <uint64_t>sequence_holds(t, l, p + <size_t>i * width) << i
        word ^= t.flip
        if rows < 64:
            word &= (<uint64_t>1 << rows) - 1
        scan_join(out + at // 64, word, mode)
        p += <size_t>rows * width
        at += rows
