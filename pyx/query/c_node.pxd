# Nodes of a compiled tree of tests: decision by zone maps, and scanning.  c_program.pxd adds postings.

from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memset
from posix.time cimport CLOCK_MONOTONIC, clock_gettime, timespec
from c_block cimport F32, I8, I16, I32, MASK_WORDS, U8, U16, U32, Zone
from c_list_test cimport ListTest, scan_lists
from c_postings cimport Chunk
from c_scan cimport (SCAN_AND, SCAN_OR, SCAN_SET, scan_bytes, scan_fn, scan_gather, scan_list, scan_pair_bytes,
                     scan_table, scan_test)

cdef enum:                          # Node.kind
    N_STORED = -1                   # a named filter: its stored rows of the block if any, else its child
    N_CONST = 0
    N_AND = 1
    N_OR = 2
    N_SCAN = 3                      # a test: node.fn over one column
    N_BYTES = 4
    N_GLOB = 5
    N_LIST = 6                      # an element, the length or a sequence of a list: node.list
    N_PAIR = 7
    N_PAIR_BYTES = 8

cdef enum:                          # result of zone maps for a node in this block; kinds of Found
    NONE = 0
    ALL = 1
    SOME = 2                        # not decided
    MASK = 3
    LIST = 4

cdef enum:
    SLOT_WORDS = 1024 + 16384       # scratch of one tree level: a mask, then a list of 65,536 rows
    GATHER_ROWS = 2048              # candidates per gather
    NOT_INDEXED = 0xFFFFFFFF
    PEEK = 0xFFFFFFFF               # see look_fn

cdef struct Key:                    # order keys lo .. hi, both included
    uint64_t lo, hi

cdef struct Picked:                 # rows of a block that a filter view stored
    int kind                        # NONE MASK LIST
    uint32_t n
    uint32_t rows                   # of the block when it was stored
    const uint64_t* words
    const uint16_t* list

cdef struct Node:
    int kind
    int state                       # NONE, ALL or SOME; constant for N_CONST, else for the current block
    int col, col2
    int n                           # children, cheapest first
    Node** item
    Node** order                    # scratch: the remaining children
    scan_test test
    ListTest list
    scan_fn fn
    double cost                     # scan cost in ns per row
    # Values that can match are in these ranges of order keys; exact: all values in them match.
    Key* key
    uint32_t keys
    bint exact, indexable
    uint64_t key_mask               # not 0: postings are tested key by key, x & key_mask in the ranges of `test`
    bint pair_zones                 # 1: the zones of a pair are comparable; 2: only to prove that none matches
    # Positions of the matching lists in the postings of the current block.
    uint32_t* span                  # pairs of key numbers
    uint32_t spans, span_room
    uint32_t found                  # rows in them, or NOT_INDEXED
    bint sure                       # the rows match; otherwise they are candidates
    Picked stored                   # N_STORED: of the current block
    bint have                       # N_STORED: whether `stored` is set
    # Counters.
    uint64_t zone_none, zone_all, by_index, by_scan, by_list, rows_in, posted, posted_of, ns

# Called before a column is read: are the checksums of its rows (NULL: all) right?
# With n = PEEK: has the whole column been verified already?
ctypedef bint (*look_fn)(void* who, int column, const uint16_t* rows, uint32_t n) noexcept nogil

cdef struct Context:
    const uint8_t** col
    const Zone* zone                # or NULL
    Chunk** chunk                   # postings by column, or NULL
    const scan_table* kernel
    uint64_t* arena                 # slots 1, 2, ...
    uint8_t* gather
    uint8_t* gather2
    uint32_t rows
    bint timed
    look_fn look                    # or NULL: no verification
    void* who
    bint damaged                    # a look failed: the result is invalid

cdef struct Found:                  # rows of a block
    int kind                        # NONE ALL MASK LIST
    uint32_t n
    uint64_t* words                 # MASK: of the slot
    const uint16_t* list            # LIST: of the slot, or of the postings

cdef inline uint64_t now_ns() noexcept nogil:
    cdef timespec t
    clock_gettime(CLOCK_MONOTONIC, &t)
    return <uint64_t>t.tv_sec * 1000000000 + <uint64_t>t.tv_nsec

cdef inline uint64_t* slot_words(Context* c, uint64_t* first, int slot) noexcept nogil:
    return first if slot == 0 else c.arena + <size_t>(slot - 1) * SLOT_WORDS

cdef inline uint16_t* slot_list(Context* c, uint64_t* first, int slot) noexcept nogil:
    return <uint16_t*>(slot_words(c, first, slot) + MASK_WORDS)

# --- zone maps --------------------------------------------------------------------------------------

cdef inline int decide_keys(const Node* node, uint64_t low, uint64_t high) noexcept nogil:
    """Decide a test for a block with keys in low .. high."""
    cdef uint32_t a = 0, b = node.keys, mid
    if low > high:                          # the zone is empty
        return SOME
    while a < b:                            # the first range that does not end before `low`
        mid = (a + b) // 2
        if node.key[mid].hi < low:
            a = mid + 1
        else:
            b = mid
    if a == node.keys or node.key[a].lo > high:
        return NONE
    if node.exact and node.key[a].lo <= low and node.key[a].hi >= high:
        return ALL
    return SOME

cdef inline int decide_pair(const Node* node, const Zone* a, const Zone* b) noexcept nogil:
    cdef uint64_t a0 = ~a.not_min, a1 = a.max, b0 = ~b.not_min, b1 = b.max
    cdef bint strict = node.kind == N_PAIR_BYTES    # zones hold only the first bytes
    cdef int state = SOME
    if a0 > a1 or b0 > b1:
        return SOME
    if node.test.op == 0:
        if a1 < b0 or b1 < a0:
            state = NONE
        elif a0 == a1 and b0 == b1 and a0 == b0 and not strict:
            state = ALL
    elif node.test.op == 1:
        if a1 < b0:
            state = ALL
        elif a0 > b1 or (a0 == b1 and not strict):
            state = NONE
    elif a0 > b1:
        state = NONE
    elif a1 < b0 or (a1 == b0 and not strict):
        state = ALL
    if state == ALL and node.pair_zones == 2:
        return SOME
    return state if state == SOME or not node.test.flip else ALL - state

cdef inline int decide(Context* c, Node* node) noexcept nogil:
    """Decide as many nodes as possible by zone maps; NONE, ALL or SOME for the whole tree."""
    cdef int i, state, all = 1
    if node.kind == N_CONST:
        return node.state
    if node.kind == N_STORED:
        node.state = decide(c, node.item[0])
        return node.state
    if node.kind == N_AND or node.kind == N_OR:
        for i in range(node.n):
            state = decide(c, node.item[i])
            if node.kind == N_AND and state == NONE or node.kind == N_OR and state == ALL:
                node.state = state
                return state
            if state == SOME:
                all = 0
        node.state = SOME if not all else ALL if node.kind == N_AND else NONE
        return node.state
    state = SOME
    if c.zone != NULL:
        if node.kind == N_PAIR or node.kind == N_PAIR_BYTES:
            if node.pair_zones:
                state = decide_pair(node, &c.zone[node.col], &c.zone[node.col2])
        elif node.keys or node.exact:
            state = decide_keys(node, ~c.zone[node.col].not_min, c.zone[node.col].max)
    if state == NONE:
        node.zone_none += 1
    elif state == ALL:
        node.zone_all += 1
    node.state = state
    return state

# --- scanning ---------------------------------------------------------------------------------------

cdef inline void look(Context* c, Node* node, const uint16_t* rows, uint32_t n) noexcept nogil:
    if c.look != NULL:
        if n * 8 > c.rows:                      # many rows: verify the whole column
            rows = NULL
        if not c.look(c.who, node.col, rows, n):
            c.damaged = True
        if node.kind >= N_PAIR and not c.look(c.who, node.col2, rows, n):
            c.damaged = True

cdef inline void scan(Context* c, Node* node, uint64_t* out, int mode) noexcept nogil:
    """A test over all rows of the block."""
    cdef const uint8_t* p = c.col[node.col]
    cdef uint64_t began = now_ns() if c.timed else 0
    look(c, node, NULL, 0)
    node.by_scan += 1
    node.rows_in += c.rows
    if node.kind == N_SCAN:
        if node.test.count == 1:
            node.fn(p, c.rows, &node.test, out, mode)
        else:
            scan_list(node.fn, p, c.rows, &node.test, out, mode)
    elif node.kind == N_LIST:
        scan_lists(node.fn, &node.list, p, c.rows, &node.test, out, mode)
    elif node.kind == N_PAIR:
        c.kernel.pair(p, c.col[node.col2], c.rows, &node.test, out, mode)
    elif node.kind == N_PAIR_BYTES:
        scan_pair_bytes(p, c.col[node.col2], NULL, c.rows, &node.test, out, mode)
    else:
        scan_bytes(p, NULL, c.rows, &node.test, node.kind == N_GLOB, out, mode)
    if c.timed:
        node.ns += now_ns() - began

cdef inline void scan_rows(Context* c, Node* node, const uint16_t* rows, uint32_t n, uint64_t* out,
                           int mode) noexcept nogil:
    """A test over n listed rows: bit i of `out` is that of rows[i]."""
    cdef const uint8_t* p = c.col[node.col]
    cdef uint32_t width = node.test.size * node.test.count, at = 0, m
    cdef uint64_t began = now_ns() if c.timed else 0
    look(c, node, rows, n)
    node.by_list += 1
    node.rows_in += n
    if node.kind == N_BYTES or node.kind == N_GLOB:
        scan_bytes(p, rows, n, &node.test, node.kind == N_GLOB, out, mode)
    elif node.kind == N_PAIR_BYTES:
        scan_pair_bytes(p, c.col[node.col2], rows, n, &node.test, out, mode)
    else:
        while at < n:
            m = n - at if n - at < GATHER_ROWS else GATHER_ROWS
            if width > 8:
                m = m if m < 64 else 64
            scan_gather(c.gather, p, rows + at, m, width)
            if node.kind == N_PAIR:
                scan_gather(c.gather2, c.col[node.col2], rows + at, m, pair_size(node.test.code2))
                c.kernel.pair(c.gather, c.gather2, m, &node.test, out + at // 64, mode)
            elif node.kind == N_LIST:
                scan_lists(node.fn, &node.list, c.gather, m, &node.test, out + at // 64, mode)
            elif node.test.count == 1:
                node.fn(c.gather, m, &node.test, out + at // 64, mode)
            else:
                scan_list(node.fn, c.gather, m, &node.test, out + at // 64, mode)
            at += m
    if c.timed:
        node.ns += now_ns() - began

cdef inline uint32_t pair_size(int code) noexcept nogil:
    if code == U8 or code == I8:
        return 1
    if code == U16 or code == I16:
        return 2
    return 4 if code == U32 or code == I32 or code == F32 else 8

cdef inline void fill(uint64_t* out, uint32_t n, int mode) noexcept nogil:
    """Combine with n ones."""
    if mode != SCAN_AND:
        memset(out, 255, (n >> 6) * 8)
        if n & 63:
            out[n >> 6] = (<uint64_t>1 << (n & 63)) - 1

cdef inline void wipe(uint64_t* out, uint32_t n, int mode) noexcept nogil:
    """Combine with n zeros."""
    if mode != SCAN_OR:
        memset(out, 0, ((n + 63) >> 6) * 8)

cdef inline void stored_bits(const Picked* p, const uint16_t* rows, uint32_t n, uint64_t* out, int mode) noexcept nogil:
    """Test n ascending candidates against the rows of a filter view; combined with the bits in `out`."""
    cdef uint32_t i, k = 0, w
    cdef uint64_t word = 0
    for i in range(n):
        if p.kind == MASK:
            word |= (p.words[rows[i] >> 6] >> (rows[i] & 63) & 1) << (i & 63)
        elif p.kind == LIST:
            while k < p.n and p.list[k] < rows[i]:
                k += 1
            word |= <uint64_t>(k < p.n and p.list[k] == rows[i]) << (i & 63)
        if i & 63 == 63 or i == n - 1:
            w = i >> 6
            out[w] = word if mode == SCAN_SET else out[w] & word if mode == SCAN_AND else out[w] | word
            word = 0

cdef inline void narrow(Context* c, Node* node, const uint16_t* rows, uint32_t n, uint64_t* out, int mode,
                        uint64_t* first, int slot) noexcept nogil:
    """Test n candidates; combined with the bits in `out`.  Slots from `slot` on are free."""
    cdef uint64_t* temp
    cdef int i, m
    cdef uint32_t w, words = (n + 63) >> 6
    if node.state == NONE:
        wipe(out, n, mode)
    elif node.state == ALL:
        fill(out, n, mode)
    elif node.kind >= N_SCAN:
        scan_rows(c, node, rows, n, out, mode)
    elif node.kind == N_STORED:
        if node.have:
            stored_bits(&node.stored, rows, n, out, mode)
        else:
            narrow(c, node.item[0], rows, n, out, mode, first, slot)
    elif mode != SCAN_SET and (mode == SCAN_AND) != (node.kind == N_AND):
        temp = slot_words(c, first, slot)
        narrow(c, node, rows, n, temp, SCAN_SET, first, slot + 1)
        for w in range(words):
            out[w] = out[w] & temp[w] if mode == SCAN_AND else out[w] | temp[w]
    else:
        m = SCAN_AND if node.kind == N_AND else SCAN_OR
        for i in range(node.n):
            narrow(c, node.item[i], rows, n, out, mode if i == 0 else m, first, slot)
