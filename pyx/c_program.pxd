# A tree of tests over one block: zone maps decide what they can, postings answer where they are cheaper, kernels
# scan the rest.  `evaluate` gives the rows of a whole block, `narrow` the members of a list of candidates.

from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t, int64_t
from libc.string cimport memcpy, memset
from c_block cimport Zone, BLOCK_ROWS, MASK_WORDS
from c_postings cimport Chunk, bucket_key, chunk_key, chunk_lower, chunk_rows, chunk_start
from c_scan cimport (SCAN_AND, SCAN_OR, SCAN_SET, pair_fn, scan_bytes, scan_fn, scan_gather, scan_list,
                     scan_mask_rows, scan_pair_bytes, scan_table, scan_test)

cdef extern from "time.h" nogil:
    struct timespec:
        long tv_sec
        long tv_nsec
    int clock_gettime(int clock, timespec* out)
    int CLOCK_MONOTONIC

cdef extern from "stdlib.h" nogil:
    int ctz "__builtin_ctzll"(uint64_t)

cdef enum:                          # Node.kind
    N_CONST = 0
    N_AND = 1
    N_OR = 2
    N_SCAN = 3                      # a test: node.fn over one column
    N_BYTES = 4
    N_GLOB = 5
    N_PAIR = 6
    N_PAIR_BYTES = 7

cdef enum:                          # what zone maps say of a node in this block; kinds of Found
    NONE = 0
    ALL = 1
    SOME = 2                        # not decided
    MASK = 3
    LIST = 4

cdef enum:
    SLOT_WORDS = 1024 + 16384       # scratch for one level of the tree: a mask, then a list of 65,536 rows
    GATHER_ROWS = 2048              # candidates gathered at a time
    NOT_INDEXED = 0xFFFFFFFF

cdef struct Key:                    # order keys lo .. hi, both included
    uint64_t lo, hi

cdef struct Node:
    int kind
    int state                       # NONE, ALL or SOME; of N_CONST for good, of others for the present block
    int col, col2
    int n                           # children, cheapest first
    Node** item
    Node** order                    # scratch: the children still to do
    scan_test test
    scan_fn fn
    double cost                     # ns a row to scan
    # Values that can match lie in these ranges of order keys; exact: and all values in them do.
    Key* key
    uint32_t keys
    bint exact, indexable
    uint64_t key_mask               # not 0: postings are tested key by key, x & key_mask in the ranges of `test`
    bint pair_zones                 # 1 when the zones of a pair compare; 2 when only to say "never"
    # Where the matching lists stand in the postings of the present block.
    uint32_t* span                  # pairs of key numbers
    uint32_t spans, span_room
    uint32_t found                  # rows in them, or NOT_INDEXED
    bint sure                       # these rows match; else they are candidates
    # Counters.
    uint64_t zone_none, zone_all, by_index, by_scan, by_list, rows_in, posted, posted_of, ns

# Asked before the first look at a column: its rows (NULL: all of them) are what was stored?
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
    look_fn look                    # or NULL: everything is believed
    void* who
    bint damaged                    # some look said no: the answer is void

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
    """A block whose keys lie in low .. high."""
    cdef uint32_t a = 0, b = node.keys, mid
    if low > high:                          # no rows seen by whoever kept the zones
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
    """Let the zone maps decide every node they can; NONE, ALL or SOME for the whole."""
    cdef int i, state, all = 1
    if node.kind == N_CONST:
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
        if n * 8 > c.rows:                      # so many that it comes to the whole column
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
    elif node.kind == N_PAIR:
        c.kernel.pair(p, c.col[node.col2], c.rows, &node.test, out, mode)
    elif node.kind == N_PAIR_BYTES:
        scan_pair_bytes(p, c.col[node.col2], NULL, c.rows, &node.test, out, mode)
    else:
        scan_bytes(p, NULL, c.rows, &node.test, node.kind == N_GLOB, out, mode)
    if c.timed:
        node.ns += now_ns() - began

cdef inline void scan_rows(Context* c, Node* node, const uint16_t* rows, uint32_t n, uint64_t* out, int mode) noexcept nogil:
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
            elif node.test.count == 1:
                node.fn(c.gather, m, &node.test, out + at // 64, mode)
            else:
                scan_list(node.fn, c.gather, m, &node.test, out + at // 64, mode)
            at += m
    if c.timed:
        node.ns += now_ns() - began

cdef inline uint32_t pair_size(int code) noexcept nogil:
    return 1 if code == 1 or code == 5 else 2 if code == 2 or code == 6 else 8 if code == 4 or code == 8 or code == 10 else 4

cdef inline void fill(uint64_t* out, uint32_t n, int mode) noexcept nogil:
    """Join n ones with what is there."""
    if mode != SCAN_AND:
        memset(out, 255, (n >> 6) * 8)
        if n & 63:
            out[n >> 6] = (<uint64_t>1 << (n & 63)) - 1

cdef inline void wipe(uint64_t* out, uint32_t n, int mode) noexcept nogil:
    """Join n zeros with what is there."""
    if mode != SCAN_OR:
        memset(out, 0, ((n + 63) >> 6) * 8)

cdef inline void narrow(Context* c, Node* node, const uint16_t* rows, uint32_t n, uint64_t* out, int mode,
                        uint64_t* first, int slot) noexcept nogil:
    """The node over n candidates, joined with the bits in `out`.  Slots from `slot` on are free."""
    cdef uint64_t* temp
    cdef int i, m
    cdef uint32_t w, words = (n + 63) >> 6
    if node.state == NONE:
        wipe(out, n, mode)
    elif node.state == ALL:
        fill(out, n, mode)
    elif node.kind >= N_SCAN:
        scan_rows(c, node, rows, n, out, mode)
    elif mode != SCAN_SET and (mode == SCAN_AND) != (node.kind == N_AND):
        temp = slot_words(c, first, slot)
        narrow(c, node, rows, n, temp, SCAN_SET, first, slot + 1)
        for w in range(words):
            out[w] = out[w] & temp[w] if mode == SCAN_AND else out[w] | temp[w]
    else:
        m = SCAN_AND if node.kind == N_AND else SCAN_OR
        for i in range(node.n):
            narrow(c, node.item[i], rows, n, out, mode if i == 0 else m, first, slot)

# --- postings ---------------------------------------------------------------------------------------

cdef inline void add_span(Node* node, Chunk* h, uint32_t a, uint32_t b) noexcept nogil:
    if a >= b:
        return
    if node.spans and node.span[2 * node.spans - 1] == a:
        node.span[2 * node.spans - 1] = b
    elif node.spans < node.span_room:
        node.span[2 * node.spans] = a
        node.span[2 * node.spans + 1] = b
        node.spans += 1
    else:
        node.found = NOT_INDEXED
        return
    node.found += chunk_start(h, b) - chunk_start(h, a)

cdef inline bint key_holds(const Node* node, uint64_t x) noexcept nogil:
    cdef uint32_t a = 0, b = node.keys, mid
    while a < b:
        mid = (a + b) // 2
        if node.key[mid].hi < x:
            a = mid + 1
        else:
            b = mid
    return a < node.keys and node.key[a].lo <= x

cdef inline bint mask_holds(const Node* node, uint64_t x) noexcept nogil:
    cdef uint64_t hit = 0
    cdef uint64_t top = ~<uint64_t>0 if node.test.size == 8 else (<uint64_t>1 << node.test.size * 8) - 1
    cdef uint32_t i
    x &= node.key_mask
    for i in range(node.test.k):
        hit |= (x - node.test.range[i].lo & top) <= node.test.range[i].span
    return hit ^ (node.test.flip & 1)

cdef inline void locate(Context* c, Node* node) noexcept nogil:
    """Find the lists of a test in the postings: node.span, node.found, node.sure."""
    cdef Chunk* h = c.chunk[node.col] if c.chunk != NULL and node.indexable else NULL
    cdef uint64_t began = now_ns() if c.timed else 0
    cdef uint64_t lo, hi, low, high, next = 0
    cdef uint32_t i, a, b, first, mid
    cdef bint wrapped = False
    node.found, node.spans, node.sure = NOT_INDEXED, 0, node.exact
    if h == NULL or h.state != 1 or h.rows < c.rows:
        return
    if node.key_mask:
        if h.bucket > 1 or h.keys > 2048:
            return
        node.found, node.sure = 0, True
        for i in range(h.keys):
            if mask_holds(node, chunk_key(h, i)):
                add_span(node, h, i, i + 1)
                if node.found == NOT_INDEXED:
                    break
    else:
        first, b = 0, node.keys                 # ranges that end before the first value here cannot match
        while first < b and h.bucket <= 1:
            mid = (first + b) // 2
            if node.key[mid].hi < h.first:
                first = mid + 1
            else:
                b = mid
        if node.keys - first > 8 and node.keys - first > h.keys and h.bucket <= 1:
            if h.keys * 30.0 > c.rows * node.cost:
                return
            node.found = 0
            for i in range(h.keys):
                if key_holds(node, chunk_key(h, i)):
                    add_span(node, h, i, i + 1)
                    if node.found == NOT_INDEXED:
                        break
        else:
            node.found = 0
            for i in range(first, node.keys):
                lo, hi = node.key[i].lo, node.key[i].hi
                low, high = bucket_key(h.code, lo, h.bucket), bucket_key(h.code, hi, h.bucket)
                if low > h.last:
                    break
                if i - first > 64 and (i - first) * 60.0 > c.rows * node.cost:
                    node.found = NOT_INDEXED
                    break
                if h.bucket > 1:
                    # Values of a bucket that is not wholly inside the range are candidates only.
                    if lo and bucket_key(h.code, lo - 1, h.bucket) == low:
                        node.sure = False
                    if hi + 1 and bucket_key(h.code, hi + 1, h.bucket) == high:
                        node.sure = False
                    if wrapped and low <= next:
                        low = next + 1
                        node.sure = False
                    if low > high:
                        continue
                    next, wrapped = high, True
                a = chunk_lower(h, low)
                add_span(node, h, a, h.keys if high >= h.last else chunk_lower(h, high + 1))
                if node.found == NOT_INDEXED:
                    break
    if h.state != 1:
        node.found = NOT_INDEXED
    if c.timed:
        node.ns += now_ns() - began

cdef inline bint by_index(Context* c, Node* node, uint64_t* first, int slot, Found* out) noexcept nogil:
    """The rows that `locate` found, sure or not, none beyond the rows of the block.  False: the postings are damaged."""
    cdef Chunk* h = c.chunk[node.col]
    cdef uint64_t* words = slot_words(c, first, slot)
    cdef const uint16_t* row
    cdef uint64_t began = now_ns() if c.timed else 0
    cdef uint32_t i, k, a, b, n, top = 0
    node.by_index += 1
    node.posted += node.found
    node.posted_of += h.rows
    if node.found == 0:
        out.kind, out.n = NONE, 0
        return True
    if node.found == h.rows and node.sure:
        out.kind, out.n = ALL, c.rows
        return True
    if node.spans == 1 and node.span[1] - node.span[0] == 1:        # one key: its list is ready
        a, b = chunk_start(h, node.span[0]), chunk_start(h, node.span[1])
        row = chunk_rows(h, a, b)
        if h.state != 1 or row == NULL:
            return False
        n = b - a
        for i in range(n):
            top = row[i] if row[i] > top else top
        if top >= h.rows:
            h.state = -1
            return False
        while n and row[n - 1] >= c.rows:                           # an older version sees fewer rows
            n -= 1
        out.kind, out.list, out.n = (LIST if n else NONE), row, n
    else:
        memset(words, 0, MASK_WORDS * 8)
        for k in range(node.spans):
            a, b = chunk_start(h, node.span[2 * k]), chunk_start(h, node.span[2 * k + 1])
            row = chunk_rows(h, a, b)
            if h.state != 1 or row == NULL:
                return False
            for i in range(b - a):
                words[row[i] >> 6] |= <uint64_t>1 << (row[i] & 63)
        n = node.found
        if h.rows != c.rows:
            clear_tail(words, c.rows)
            n = c.kernel.count(words, MASK_WORDS)
        out.kind, out.words, out.n = MASK, words, n
    if c.timed:
        node.ns += now_ns() - began
    return True

cdef inline void clear_tail(uint64_t* words, uint32_t rows) noexcept nogil:
    cdef uint32_t full = rows >> 6
    if rows & 63:
        words[full] &= (<uint64_t>1 << (rows & 63)) - 1
        full += 1
    if full < MASK_WORDS:
        memset(words + full, 0, (MASK_WORDS - full) * 8)

cdef inline uint32_t estimate(Context* c, Node* node) noexcept nogil:
    """Rows that postings would give for a node, NOT_INDEXED when they cannot answer it."""
    cdef uint64_t total = 0
    cdef uint32_t least = NOT_INDEXED, n
    cdef int i
    if node.state != SOME:
        return NOT_INDEXED
    if node.kind >= N_SCAN:
        locate(c, node)
        return node.found
    for i in range(node.n):
        if node.item[i].state != SOME:          # what zone maps decided costs nothing
            continue
        n = estimate(c, node.item[i])           # of every child: evaluate relies on their `found`
        least = n if n < least else least
        total += n
    if node.kind == N_AND:
        node.found = least
    else:
        node.found = <uint32_t>total if total < NOT_INDEXED else NOT_INDEXED    # one that is not indexed spoils it
    return node.found

# --- sets of rows -----------------------------------------------------------------------------------

cdef inline void set_bits(uint64_t* words, const uint16_t* list, uint32_t n) noexcept nogil:
    cdef uint32_t i
    for i in range(n):
        words[list[i] >> 6] |= <uint64_t>1 << (list[i] & 63)

cdef inline void to_mask(Context* c, Found* f, uint64_t* words) noexcept nogil:
    """`f` as a mask in `words`, whose bits beyond the block are zero."""
    if f.kind == MASK and f.words == words:
        return
    if f.kind == MASK:
        memcpy(words, f.words, MASK_WORDS * 8)
    elif f.kind == ALL:
        memset(words, 255, MASK_WORDS * 8)
        clear_tail(words, c.rows)
    else:
        memset(words, 0, MASK_WORDS * 8)
        if f.kind == LIST:
            set_bits(words, f.list, f.n)
    f.kind, f.words = MASK, words

cdef inline void to_list(Context* c, Found* f, uint16_t* list) noexcept nogil:
    """`f` (a MASK or LIST) as a list that we may write to."""
    if f.kind == MASK:
        f.n = scan_mask_rows(f.words, c.rows, NULL, list)
    elif f.list != list:
        memcpy(list, f.list, f.n * 2)
    f.kind, f.list = LIST, list

cdef inline uint32_t filter_list(const uint16_t* list, uint32_t n, const uint64_t* words, uint16_t* out) noexcept nogil:
    cdef uint32_t i, k = 0
    cdef uint16_t row
    for i in range(n):
        row = list[i]
        out[k] = row
        k += words[row >> 6] >> (row & 63) & 1
    return k

cdef inline uint32_t gallop(const uint16_t* few, uint32_t n, const uint16_t* many, uint32_t m, uint16_t* out) noexcept nogil:
    """Members of both ascending lists; `out` may be either of them."""
    cdef uint32_t i, k = 0, at = 0, step, low, high, mid
    cdef uint16_t row
    for i in range(n):
        row = few[i]
        step = 1
        low = at
        while at + step < m and many[at + step] < row:
            low = at + step
            step <<= 1
        high = at + step + 1 if at + step < m else m
        while low < high:
            mid = (low + high) // 2
            if many[mid] < row:
                low = mid + 1
            else:
                high = mid
        at = low
        if at == m:
            break
        if many[at] == row:
            out[k] = row
            k += 1
    return k

cdef inline void intersect(Context* c, Found* f, Found* g, uint64_t* words, uint16_t* list) noexcept nogil:
    """f and g -> f, in `words` or `list` (the slot of f)."""
    cdef uint32_t i
    if g.kind == ALL or f.kind == NONE:
        return
    if f.kind == ALL or g.kind == NONE:
        f[0] = g[0]
        if f.kind == MASK:
            memcpy(words, g.words, MASK_WORDS * 8)
            f.words = words
        elif f.kind == LIST:
            memcpy(list, g.list, g.n * 2)
            f.list = list
        return
    if f.kind == MASK and g.kind == MASK:
        for i in range(MASK_WORDS):
            words[i] = f.words[i] & g.words[i]
        f.words, f.n = words, c.kernel.count(words, MASK_WORDS)
    elif f.kind == MASK:
        f.n = filter_list(g.list, g.n, f.words, list)
        f.kind, f.list = LIST, list
    elif g.kind == MASK:
        f.n = filter_list(f.list, f.n, g.words, list)
        f.list = list
    else:
        if f.n <= g.n >> 6:
            f.n = gallop(f.list, f.n, g.list, g.n, list)
        elif g.n <= f.n >> 6:
            f.n = gallop(g.list, g.n, f.list, f.n, list)
        elif f.n < g.n:
            memset(words, 0, MASK_WORDS * 8)
            set_bits(words, f.list, f.n)
            f.n = filter_list(g.list, g.n, words, list)
        else:
            memset(words, 0, MASK_WORDS * 8)
            set_bits(words, g.list, g.n)
            f.n = filter_list(f.list, f.n, words, list)
        f.list = list
    if f.n == 0:
        f.kind = NONE

# --- the whole tree over the whole block --------------------------------------------------------------

cdef inline double index_ns(uint32_t found) noexcept nogil:
    return 300.0 + found * 1.0

cdef inline void evaluate_test(Context* c, Node* node, uint64_t* first, int slot, Found* out) noexcept nogil:
    """A test, by postings when `locate` found them cheaper."""
    cdef uint64_t* words = slot_words(c, first, slot)
    cdef uint64_t* temp
    if node.found != NOT_INDEXED and index_ns(node.found) < c.rows * node.cost:
        if by_index(c, node, first, slot, out):
            if not node.sure and out.kind != NONE:
                if out.kind == ALL:
                    to_mask(c, out, words)
                verify(c, node, first, slot, out)
            return
    scan(c, node, words, SCAN_SET)
    finish_mask(c, words, out)

cdef inline void finish_mask(Context* c, uint64_t* words, Found* out) noexcept nogil:
    """A mask whose words cover the rows of the block only: zero the rest, count."""
    cdef uint32_t used = (c.rows + 63) >> 6
    if used < MASK_WORDS:
        memset(words + used, 0, (MASK_WORDS - used) * 8)
    out.n = c.kernel.count(words, used)
    out.words = words
    out.kind = NONE if out.n == 0 else ALL if out.n == c.rows else MASK

cdef inline void verify(Context* c, Node* node, uint64_t* first, int slot, Found* out) noexcept nogil:
    """Keep the candidates in `out` (MASK or LIST) for which the node holds."""
    cdef uint16_t* list = slot_list(c, first, slot)
    cdef uint64_t* bits = slot_words(c, first, slot)
    to_list(c, out, list)
    narrow(c, node, list, out.n, bits, SCAN_SET, first, slot + 1)
    out.n = scan_mask_rows(bits, out.n, list, list)
    if out.n == 0:
        out.kind = NONE

cdef inline void evaluate(Context* c, Node* node, uint64_t* first, int slot, Found* out) noexcept nogil:
    """The rows for which a node holds; uses the slots from `slot` on.  `decide` and `estimate` have run."""
    if node.state == NONE or node.state == ALL:
        out.kind = node.state
        out.n = c.rows if node.state == ALL else 0
    elif node.kind >= N_SCAN:
        evaluate_test(c, node, first, slot, out)
    elif node.kind == N_AND:
        evaluate_and(c, node, first, slot, out)
    else:
        evaluate_or(c, node, first, slot, out)

cdef inline void evaluate_or(Context* c, Node* node, uint64_t* first, int slot, Found* out) noexcept nogil:
    cdef uint64_t* words = slot_words(c, first, slot)
    cdef Node* item
    cdef Found part
    cdef uint32_t w
    cdef int i
    memset(words, 0, MASK_WORDS * 8)
    for i in range(node.n):
        item = node.item[i]
        if item.state == NONE:
            continue
        if item.kind >= N_SCAN and (item.found == NOT_INDEXED or index_ns(item.found) >= c.rows * item.cost):
            scan(c, item, words, SCAN_OR)
            continue
        evaluate(c, item, first, slot + 1, &part)
        if part.kind == ALL:
            out.kind, out.n = ALL, c.rows
            return
        if part.kind == LIST:
            set_bits(words, part.list, part.n)
        elif part.kind == MASK:
            for w in range(MASK_WORDS):
                words[w] |= part.words[w]
    finish_mask(c, words, out)

cdef inline void evaluate_and(Context* c, Node* node, uint64_t* first, int slot, Found* out) noexcept nogil:
    cdef uint64_t* words = slot_words(c, first, slot)
    cdef uint16_t* list = slot_list(c, first, slot)
    cdef Node** todo = node.order
    cdef Node* item
    cdef Found part
    cdef int i, j, m = 0, best = -1
    cdef double cost
    for i in range(node.n):                     # cheapest to scan first
        if node.item[i].state == SOME:
            todo[m] = node.item[i]
            m += 1
    # Those with postings come before the others, the most selective first (insertion: both orders are stable).
    for i in range(1, m):
        item = todo[i]
        j = i
        while j > 0 and todo[j - 1].found > item.found:
            todo[j] = todo[j - 1]
            j -= 1
        todo[j] = item
    if m and todo[0].found != NOT_INDEXED:
        # One selective list is the start; a poor one is worth less than scanning the cheapest column.
        cost = todo[0].cost
        for i in range(m):
            cost = todo[i].cost if todo[i].cost < cost else cost
        if index_ns(todo[0].found) >= c.rows * cost:
            for i in range(m):
                if best < 0 or todo[i].cost < todo[best].cost:
                    best = i
            item = todo[best]
            for j in range(best, 0, -1):
                todo[j] = todo[j - 1]
            todo[0] = item
    out.kind, out.n = ALL, c.rows
    for i in range(m):
        item = todo[i]
        if out.kind == NONE:
            break
        if out.kind != ALL and out.n * 4.0 < c.rows * item.cost and (
                item.found == NOT_INDEXED or item.found > (<uint64_t>out.n << 6)):
            # Few candidates are left: look at their values only.
            verify(c, item, first, slot, out)
            continue
        if item.kind >= N_SCAN and (item.found == NOT_INDEXED or index_ns(item.found) >= c.rows * item.cost):
            if out.kind == ALL:
                scan(c, item, words, SCAN_SET)
            else:
                to_mask(c, out, words)
                scan(c, item, words, SCAN_AND)
            finish_mask(c, words, out)
            continue
        evaluate(c, item, first, slot + 1, &part)
        intersect(c, out, &part, words, list)
