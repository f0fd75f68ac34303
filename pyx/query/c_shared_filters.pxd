# Tests shared by many filters: each is evaluated once per 64 rows, on first use.
# A filter is a graph of conjunctions with negated edges: a or b = not (not a and not b).

from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset
from c_block cimport I32, I64, U32, Column
from c_node cimport NONE, SOME, Context, Node, scan
from c_scan cimport SCAN_SET

cdef struct Join:
    int state                       # NONE or ALL: decided for all rows of this run; SOME: not
    int n                           # children; 0: a test
    int* ref                        # n of them: number * 2, + 1: negated; cheapest first
    Node* test
    int group, slot                 # >= 0: the test is evaluated by a group
    uint32_t uses
    double cost
    uint64_t stamp                  # number of the 64 rows that `word` is for
    uint64_t word

# Tests on one integer column with few classes of values: one lookup per value serves all of them.
cdef struct Group:
    int col, code
    uint32_t count                  # elements per row
    uint32_t size
    const uint16_t* table           # 1 and 2 byte elements: value -> class
    const uint64_t* bound           # others: class of x is the number of bounds <= its order key
    uint32_t bounds, top            # top: the largest power of two <= bounds
    const uint32_t* first           # class k: tests member[first[k]] .. member[first[k + 1]]
    const uint32_t* member          # slots
    uint32_t slots
    uint64_t* word                  # by slot
    uint64_t stamp

# State of a run.
cdef struct Hand:
    Context* context                # of 64 rows
    Join* join
    Group* group
    const uint8_t** col             # of the block
    const uint8_t** cursor
    uint64_t* touched
    uint8_t** pad
    const Column* column
    uint64_t stamp
    uint32_t row, rows              # the 64 rows (or fewer, at the end) from `row` on

cdef inline void touch(Hand* h, int col) noexcept nogil:
    """Set the cursor of a column to 64 readable rows; near the end to a copy."""
    cdef const uint8_t* p
    if h.touched[col] == h.stamp:
        return
    h.touched[col] = h.stamp
    p = h.col[col] + <size_t>h.row * h.column[col].width
    if h.rows < 64:
        memcpy(h.pad[col], p, <size_t>h.rows * h.column[col].width)
        p = h.pad[col]
    h.cursor[col] = p

cdef inline uint32_t class_of(const Group* g, uint64_t key) noexcept nogil:
    cdef uint32_t at = 0, step = g.top
    while step:
        if at + step <= g.bounds and g.bound[at + step - 1] <= key:
            at += step
        step >>= 1
    return at

cdef inline void mark(Group* g, uint32_t k, uint64_t bit) noexcept nogil:
    cdef uint32_t i
    for i in range(g.first[k], g.first[k + 1]):
        g.word[g.member[i]] |= bit

cdef inline uint64_t key_at(const Group* g, const uint8_t* p, uint32_t i) noexcept nogil:
    cdef uint64_t sign = <uint64_t>1 << 63
    if g.code == U32:
        return (<const uint32_t*>p)[i]
    if g.code == I32:
        return <uint64_t><int64_t>(<const int32_t*>p)[i] ^ sign
    return (<const uint64_t*>p)[i] ^ (sign if g.code == I64 else 0)

cdef inline void run_group(Hand* h, Group* g) noexcept nogil:
    cdef const uint8_t* p
    cdef uint32_t i, k, count = g.count, n = h.rows * g.count
    touch(h, g.col)
    p = h.cursor[g.col]
    memset(g.word, 0, g.slots * 8)
    g.stamp = h.stamp
    if g.table != NULL:
        for i in range(n):
            k = g.table[(<const uint16_t*>p)[i] if g.size == 2 else p[i]]
            if g.first[k] != g.first[k + 1]:
                mark(g, k, <uint64_t>1 << (i if count == 1 else i // count))
    else:
        for i in range(n):
            k = class_of(g, key_at(g, p, i))
            if g.first[k] != g.first[k + 1]:
                mark(g, k, <uint64_t>1 << (i if count == 1 else i // count))

cdef inline uint64_t word_of(Hand* h, int ref) noexcept nogil:
    """The bits of a join for the current rows; bits beyond them are undefined."""
    cdef Join* x = &h.join[ref >> 1]
    cdef Group* g
    cdef uint64_t acc, flip = 0 - <uint64_t>(ref & 1)
    cdef int i
    if x.state != SOME:
        return flip if x.state == NONE else ~flip
    if x.stamp == h.stamp:
        return x.word ^ flip
    if x.n:
        acc = ~<uint64_t>0 if h.rows == 64 else (<uint64_t>1 << h.rows) - 1
        for i in range(x.n):
            acc &= word_of(h, x.ref[i])
            if acc == 0:
                break
    elif x.group >= 0:
        g = &h.group[x.group]
        if g.stamp != h.stamp:
            run_group(h, g)
        acc = g.word[x.slot]
    else:
        touch(h, x.test.col)
        if x.test.col2 >= 0:
            touch(h, x.test.col2)
        scan(h.context, x.test, &acc, SCAN_SET)
    x.word, x.stamp = acc, h.stamp
    return acc ^ flip
