# Evaluate a tree of tests over one block: zone maps first (c_node.pxd), then postings where they are cheaper, then
# scan kernels.

from libc.stdint cimport int64_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset
from c_block cimport BLOCK_ROWS, I8, MASK_WORDS
from c_list_test cimport EXACT
from c_node cimport (ALL, LIST, MASK, N_AND, N_LIST, N_OR, N_SCAN, N_STORED, NONE, NOT_INDEXED, PEEK, SOME, Context,
                     Found, Node, narrow, now_ns, scan, slot_list, slot_words)
from c_postings cimport Chunk, bucket_key, chunk_key, chunk_lower, chunk_open, chunk_rows, chunk_start
from c_scan cimport SCAN_AND, SCAN_OR, SCAN_SET, scan_mask_rows

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

cdef inline void locate_sequence(Node* node, Chunk* h) noexcept nogil:
    """The rows with an element for that item of a sequence which the fewest rows have: candidates."""
    cdef uint64_t low, high
    cdef uint32_t i, a, b, n
    for i in range(node.list.items):
        low = bucket_key(h.code, node.list.bound[2 * i], h.bucket)
        high = bucket_key(h.code, node.list.bound[2 * i + 1], h.bucket)
        a = chunk_lower(h, low)
        b = h.keys if high >= h.last else chunk_lower(h, high + 1)
        n = chunk_start(h, b) - chunk_start(h, a) if a < b else 0
        if n < node.found:
            node.found, node.spans = n, 1
            node.span[0], node.span[1] = a, b
        if n == 0:
            break

cdef inline bint absent_holds(const Node* node, const Chunk* h) noexcept nogil:
    """Whether the test may hold for a zero element, which has no entry in the postings of a list."""
    if node.key_mask:
        return mask_holds(node, 0)
    return key_holds(node, <uint64_t>1 << 63 if h.code >= I8 else 0)

cdef inline void locate(Context* c, Node* node) noexcept nogil:
    """Find the lists of a test in the postings: node.span, node.found, node.sure."""
    cdef Chunk* h = c.chunk[node.col] if c.chunk != NULL and node.indexable else NULL
    cdef uint64_t began = now_ns() if c.timed else 0
    cdef uint64_t lo, hi, low, high, next = 0
    cdef uint32_t i, a, b, first, mid
    cdef bint wrapped = False
    node.found, node.spans, node.sure = NOT_INDEXED, 0, node.exact and node.kind != N_LIST
    if h == NULL or chunk_open(h) != 1 or h.rows < c.rows:
        return
    if h.list and absent_holds(node, h):
        return
    if node.kind == N_LIST and node.list.what >= EXACT:
        locate_sequence(node, h)
    elif node.key_mask:
        if h.bucket > 1 or h.keys > 2048:
            return
        node.found, node.sure = 0, True
        for i in range(h.keys):
            if mask_holds(node, chunk_key(h, i)):
                add_span(node, h, i, i + 1)
                if node.found == NOT_INDEXED:
                    break
    else:
        first, b = 0, node.keys                 # ranges before the first value of the block cannot match
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
                    # Values of a bucket that is only partly inside the range are candidates.
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
    """The rows that `locate` found, limited to those of the block.  False: damaged postings."""
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
    if node.found == h.rows and node.sure and not h.list:
        out.kind, out.n = ALL, c.rows
        return True
    if node.spans == 1 and node.span[1] - node.span[0] == 1:        # one key: use its list directly
        a, b = chunk_start(h, node.span[0]), chunk_start(h, node.span[1])
        row = chunk_rows(h, a, b)
        if h.state != 1 or row == NULL:
            return False
        n = b - a
        if n > h.rows:                                              # a malicious file
            h.state = -1
            return False
        for i in range(n):
            top = row[i] if row[i] > top else top
        if top >= h.rows:
            h.state = -1
            return False
        while n and row[n - 1] >= c.rows:                           # an older version has fewer rows
            n -= 1
        memcpy(slot_list(c, first, slot), row, n * 2)               # copy: another test may use the same postings
        out.kind, out.list, out.n = (LIST if n else NONE), slot_list(c, first, slot), n
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
        # A row of a list may have several of these values.
        if c.rows < BLOCK_ROWS or h.list:                           # an older version, or a malicious file
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
    """Number of rows from postings for a node, NOT_INDEXED if postings cannot be used."""
    cdef uint64_t total = 0
    cdef uint32_t least = NOT_INDEXED, n
    cdef int i
    if node.state != SOME:
        return NOT_INDEXED
    if node.kind >= N_SCAN:
        locate(c, node)
        return node.found
    if node.kind == N_STORED and node.have:
        node.found, node.sure = node.stored.n, True
        return node.found
    for i in range(node.n):
        if node.item[i].state != SOME:          # nodes decided by zone maps cost nothing
            continue
        n = estimate(c, node.item[i])           # for every child: evaluate needs their `found`
        least = n if n < least else least
        total += n
    if node.kind != N_OR:
        node.found = least
    else:
        node.found = <uint32_t>total if total < NOT_INDEXED else NOT_INDEXED    # NOT_INDEXED if any child is
    return node.found

# --- sets of rows -----------------------------------------------------------------------------------

cdef inline void set_bits(uint64_t* words, const uint16_t* list, uint32_t n) noexcept nogil:
    cdef uint32_t i
    for i in range(n):
        words[list[i] >> 6] |= <uint64_t>1 << (list[i] & 63)

cdef inline void to_mask(Context* c, Found* f, uint64_t* words) noexcept nogil:
    """Convert `f` to a mask in `words`, with zero bits beyond the block."""
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
    """Convert `f` (a MASK or LIST) to a writable list."""
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

cdef inline uint32_t gallop(const uint16_t* few, uint32_t n, const uint16_t* many, uint32_t m,
                            uint16_t* out) noexcept nogil:
    """Intersect two ascending lists; `out` may be either of them."""
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
    if node.found != NOT_INDEXED and index_ns(node.found) < c.rows * node.cost:
        if by_index(c, node, first, slot, out):
            if not node.sure and out.kind != NONE:
                if out.kind == ALL:
                    to_mask(c, out, words)
                verify(c, node, first, slot, out)
            return
    scan(c, node, words, SCAN_SET)
    finish_mask(c, words, out)

cdef inline void by_view(Context* c, Node* node, uint64_t* first, int slot, Found* out) noexcept nogil:
    """The stored rows of a filter view, limited to those of the block: an older version has fewer."""
    cdef uint64_t* words = slot_words(c, first, slot)
    cdef uint32_t n = node.stored.n
    node.by_index += 1
    node.posted += n
    node.posted_of += node.stored.rows
    if node.stored.kind == MASK:
        memcpy(words, node.stored.words, <size_t>(c.rows + 63) // 64 * 8)
        clear_tail(words, c.rows)
        finish_mask(c, words, out)
        return
    while n and node.stored.list[n - 1] >= c.rows:
        n -= 1
    memcpy(slot_list(c, first, slot), node.stored.list, n * 2)
    out.kind, out.list, out.n = (LIST if n else NONE), slot_list(c, first, slot), n

cdef inline void finish_mask(Context* c, uint64_t* words, Found* out) noexcept nogil:
    """Zero the bits of a mask beyond the rows of the block, and count."""
    cdef uint32_t used = (c.rows + 63) >> 6
    if used < MASK_WORDS:
        memset(words + used, 0, (MASK_WORDS - used) * 8)
    out.n = c.kernel.count(words, used)
    out.words = words
    out.kind = NONE if out.n == 0 else ALL if out.n == c.rows else MASK

cdef inline void verify(Context* c, Node* node, uint64_t* first, int slot, Found* out) noexcept nogil:
    """Remove the candidates in `out` (MASK or LIST) that do not match."""
    cdef uint16_t* list = slot_list(c, first, slot)
    cdef uint64_t* bits = slot_words(c, first, slot)
    to_list(c, out, list)
    narrow(c, node, list, out.n, bits, SCAN_SET, first, slot + 1)
    out.n = scan_mask_rows(bits, out.n, list, list)
    if out.n == 0:
        out.kind = NONE

cdef inline void evaluate(Context* c, Node* node, uint64_t* first, int slot, Found* out) noexcept nogil:
    """The matching rows of a node; uses the slots from `slot` on.  `decide` and `estimate` have run."""
    if node.state == NONE or node.state == ALL:
        out.kind = node.state
        out.n = c.rows if node.state == ALL else 0
    elif node.kind >= N_SCAN:
        evaluate_test(c, node, first, slot, out)
    elif node.kind == N_STORED:
        if node.have:
            by_view(c, node, first, slot, out)
        else:
            evaluate(c, node.item[0], first, slot, out)
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

cdef inline bint at_hand(Context* c, Node* item) noexcept nogil:
    """Whether the column has been read and verified before, so that reading some values is cheap."""
    return c.look == NULL or item.kind >= N_SCAN and c.look(c.who, item.col, NULL, PEEK)

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
    # Children with postings first, the most selective before the others (stable insertion sort).
    for i in range(1, m):
        item = todo[i]
        j = i
        while j > 0 and todo[j - 1].found > item.found:
            todo[j] = todo[j - 1]
            j -= 1
        todo[j] = item
    if m and todo[0].found != NOT_INDEXED:
        # Start with a selective list; a long list costs more than scanning the cheapest column.
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
                item.found == NOT_INDEXED or item.found > (<uint64_t>out.n << (4 if at_hand(c, item) else 6))):
            # Few candidates are left: read only their values.
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

cdef inline int64_t known_count(Context* c, Node* node) noexcept nogil:
    """Number of matching rows of a node if known without reading rows, else -1.  `decide` has run."""
    cdef Node* one
    cdef Chunk* h
    cdef int i, undecided = 1
    while node.state == SOME and N_STORED < node.kind < N_SCAN and undecided == 1:
        one, undecided = NULL, 0                    # a group with one undecided member is that member
        for i in range(node.n):
            if node.item[i].state == SOME:
                one = node.item[i]
                undecided += 1
        node = one if undecided == 1 else node
    if node.state != SOME:
        return c.rows if node.state == ALL else 0
    if node.kind == N_STORED and node.have and node.stored.rows == c.rows:
        node.by_index += 1
        node.posted += node.stored.n
        node.posted_of += c.rows
        return node.stored.n
    h = c.chunk[node.col] if c.chunk != NULL and node.kind >= N_SCAN and node.indexable else NULL
    if h != NULL:
        estimate(c, node)
        # In the lists of several elements, a row may occur several times.
        if (node.found != NOT_INDEXED and node.sure and h.rows == c.rows
                and (not h.list or node.spans == 0 or node.spans == 1 and node.span[1] - node.span[0] == 1)):
            node.by_index += 1
            node.posted += node.found
            node.posted_of += c.rows
            return node.found
    return -1
