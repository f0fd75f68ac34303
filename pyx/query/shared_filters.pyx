"""Shared filters: evaluate many filters over the same rows, each distinct test once.

The unit is 64 rows: a test computes one word of bits; a filter combines words and stops when no row is left, so a
filter without matches costs little more than its most selective test.  The tests of many filters on one integer
column are evaluated together: one lookup of the value gives the tests that hold.  Paper: section 4.
"""

from cpython.bytearray cimport PyByteArray_AS_STRING
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy, memset
from c_shared_filters cimport Group, Hand, Join, word_of
from c_bits cimport popcount64
from c_block cimport I64, MASK_WORDS, U8, U64
from c_node cimport ALL, N_CONST, N_PAIR, N_SCAN, NONE, SOME, Node, decide_keys, decide_pair
from c_scan cimport scan_kernels, scan_mask_rows
from confluo_tools.core.block.block cimport Block, Layout, Picks
from confluo_tools.core.query.predicate cimport Program
cimport cython

cdef enum:
    MAX_DEPTH = 110                 # as for one filter
    ZONE_ROWS = 256                 # minimum number of rows for which zone maps are checked first
    GROUP_LISTS = 8                 # maximum number of group entries per test


_EVERYTHING = type("And", (), {"items": ()})()     # the tree of the program that compiles the tests


@cython.final
cdef class SharedFilters:
    """Filters ``trees`` (expr/leaves.py) compiled for blocks of ``layout``; call `run`, then `counts` or `picks`.

    Only one thread at a time may run it.  Raises ValueError when a tree does not match the layout or is nested more
    than 110 levels deep.
    """

    def __cinit__(self, trees, Layout layout not None):
        cdef int i
        trees = list(trees)
        self.layout, self.n = layout, len(trees)
        self.host = Program(_EVERYTHING, layout)
        self.memory, self.known, self.leaf = [], {}, []
        self.root = <int*>self.take(max(self.n, 1) * sizeof(int))
        self.count = <uint32_t*>self.take(max(self.n, 1) * sizeof(uint32_t))
        for i, tree in enumerate(trees):
            self.root[i] = self.add(tree, 0)
        self.finish()
        self.out = <uint64_t*>malloc(max(<size_t>self.n, 1) * MASK_WORDS * 8)
        if self.out == NULL:
            raise MemoryError

    def __dealloc__(self):
        free(self.out)
        free(self.join)

    cdef void* take(self, size_t size) except NULL:
        memory = bytearray(max(size, 1))
        self.memory.append(memory)
        return PyByteArray_AS_STRING(memory)

    # --- compiling ----------------------------------------------------------------------------------

    cdef int next_join(self) except -1:
        cdef Join* wider
        if self.joins == self.room:
            wider = <Join*>malloc(<size_t>(self.room * 2 + 16) * sizeof(Join))
            if wider == NULL:
                raise MemoryError
            if self.joins:
                memcpy(wider, self.join, <size_t>self.joins * sizeof(Join))
            free(self.join)
            self.join, self.room = wider, self.room * 2 + 16
        memset(&self.join[self.joins], 0, sizeof(Join))
        self.join[self.joins].state, self.join[self.joins].group = SOME, -1
        self.joins += 1
        self.leaf.append(None)
        return self.joins - 1

    cdef int add(self, object tree, int depth) except -1:
        # Reference to a tree.  Known trees are reused, also negated.
        name = type(tree).__name__
        if depth > MAX_DEPTH:
            raise ValueError("the expression is nested too deeply")
        if name == "And" or name == "Or":
            flip = 1 if name == "Or" else 0
            refs = {self.add(item, depth + 1) ^ flip for item in tree.items}
            return self.add_join(sorted(refs)) ^ flip
        if name == "Not":
            return self.add_leaf(tree.item) ^ 1
        if name == "Const":
            return self.add_join([]) ^ (0 if tree.value else 1)
        return self.add_leaf(tree)

    cdef int add_leaf(self, object leaf) except -1:
        cdef Node* node
        cdef int number
        found = self.known.get(leaf)
        if found is not None:
            return found
        node = self.host.test(leaf, False)
        if node.kind == N_CONST:
            number = self.add_join([]) ^ (0 if node.state == ALL else 1)
            self.known[leaf] = number
            return number
        number = self.next_join()
        if node.kind < N_PAIR:
            node.col2 = -1
        self.join[number].test, self.join[number].cost = node, node.cost * 64 + 6
        self.leaf[number] = leaf
        self.known[leaf] = number * 2
        return number * 2

    cdef int add_join(self, list refs) except -1:
        # The conjunction of `refs`; empty: always true.  Constants and contradictions are folded.
        cdef int number, i
        cdef Join* x
        kept = []
        for ref in refs:
            if self.join[ref >> 1].state == SOME:
                kept.append(ref)
            elif (self.join[ref >> 1].state == ALL) == bool(ref & 1):
                return self.add_join([]) ^ 1
        if any(ref ^ 1 in kept for ref in kept if ref & 1):
            return self.add_join([]) ^ 1
        if len(kept) == 1:
            return kept[0]
        key = tuple(kept)
        found = self.known.get(key)
        if found is not None:
            return found
        number = self.next_join()
        x = &self.join[number]
        if not kept:
            x.state = ALL
        x.n, x.ref = len(kept), <int*>self.take(max(len(kept), 1) * sizeof(int))
        for i, ref in enumerate(kept):
            x.ref[i] = ref
            self.join[ref >> 1].uses += 1
        self.known[key] = number * 2
        return number * 2

    cdef int finish(self) except -1:
        # Group the tests of a column where that is cheaper, then sort the members of each join by cost.
        cdef Join* x
        cdef Node* node
        cdef int i, j, k, ref
        cdef dict columns = {}
        cdef uint32_t n = max(self.layout.n, 1)
        for i in range(self.joins):
            x = &self.join[i]
            if x.n or x.state != SOME:
                continue
            node = x.test
            if (node.kind == N_SCAN and U8 <= node.test.code <= I64 and node.exact and node.keys
                    and node.key_mask == 0):
                columns.setdefault(node.col, []).append(i)
        self.group = <Group*>self.take(max(len(columns), 1) * sizeof(Group))
        for col, members in columns.items():
            self.make_group(col, members)
        for i in range(self.joins):
            x = &self.join[i]
            for j in range(1, x.n):
                ref, k = x.ref[j], j
                while k > 0 and self.cost_of(x.ref[k - 1]) > self.cost_of(ref):
                    x.ref[k] = x.ref[k - 1]
                    k -= 1
                x.ref[k] = ref
            for j in range(x.n):
                x.cost += self.cost_of(x.ref[j])
        self.cursor = <const uint8_t**>self.take(n * sizeof(void*))
        self.touched = <uint64_t*>self.take(n * 8)
        self.pad = <uint8_t**>self.take(n * sizeof(void*))
        for col in self.columns:
            self.pad[<int>col] = <uint8_t*>self.take(<size_t>self.layout.column[<int>col].width * 64)
        self.host.prepare(&self.context, Block(self.layout), NULL)
        self.context.col, self.context.rows, self.context.zone = self.cursor, 64, NULL
        self.context.who = NULL
        return 0

    cdef double cost_of(self, int ref):
        cdef Join* x = &self.join[ref >> 1]
        return x.cost / max(x.uses, <uint32_t>1)

    cdef int make_group(self, int col, list members) except -1:
        cdef Group* g
        cdef Node* node
        cdef uint32_t i, k, size = self.layout.column[col].size, count = self.layout.column[col].count
        cdef int code = self.layout.column[col].code
        cdef uint16_t* table
        cdef uint64_t* bound
        cdef uint32_t* first
        cdef uint32_t* member
        cdef double alone = 0, each
        bounds = set()
        for i in members:
            node = self.join[i].test
            alone += self.join[i].cost
            for k in range(node.keys):
                bounds.add(node.key[k].lo)
                if node.key[k].hi < <uint64_t>0xFFFFFFFFFFFFFFFFu:
                    bounds.add(node.key[k].hi + 1)
        bounds = sorted(bounds)
        if len(bounds) > 65000:
            return 0
        each = 1.5 if size <= 2 else 3.0 + 1.5 * len(bounds).bit_length()
        if each * 64 * count * 2 > alone:              # factor 2: often a filter stops before this test
            return 0
        place = {b: k + 1 for k, b in enumerate(bounds)}
        lists = [[] for _ in range(len(bounds) + 1)]
        total = 0
        for slot, i in enumerate(members):
            node = self.join[i].test
            for k in range(node.keys):
                low = place[node.key[k].lo]
                high = place.get(node.key[k].hi + 1, len(bounds) + 1) if node.key[k].hi + 1 else len(bounds) + 1
                total += high - low
                if total > GROUP_LISTS * len(members) + 64:
                    return 0
                for c in range(low, high):
                    lists[c].append(slot)
        g = &self.group[self.groups]
        g.col, g.code, g.count, g.size, g.slots = col, code, count, size, len(members)
        g.word = <uint64_t*>self.take(<size_t>g.slots * 8)
        first = <uint32_t*>self.take((len(lists) + 1) * 4)
        member = <uint32_t*>self.take(total * 4)
        k = 0
        for c, slots in enumerate(lists):
            first[<uint32_t>c] = k
            for slot in slots:
                member[k] = slot
                k += 1
        first[<uint32_t>len(lists)] = k
        g.first, g.member = first, member
        if size <= 2:
            table = <uint16_t*>self.take(<size_t>2 << (size * 8))
            bias = 0x8000000000000000 if code > U64 else 0
            half = 1 << (size * 8 - 1)
            at, c = 0, 0
            for value in range(1 << (size * 8)):       # in key order
                real = value - half if bias else value
                while at < len(bounds) and bounds[at] <= real + bias:
                    at += 1
                    c = at
                table[<uint32_t>(real & ((1 << (size * 8)) - 1))] = c
            g.table = table
        else:
            bound = <uint64_t*>self.take(len(bounds) * 8)
            for k, b in enumerate(bounds):
                bound[k] = b
            g.bound, g.bounds = bound, len(bounds)
            g.top = 1 << (len(bounds).bit_length() - 1)
        for slot, i in enumerate(members):
            self.join[i].group, self.join[i].slot = self.groups, slot
            self.join[i].cost = each * 64 * count / g.slots + 3
        self.groups += 1
        return 0

    # --- running --------------------------------------------------------------------------------------

    cdef void decide(self, Block block) noexcept nogil:
        # Check the zone maps of the block for each test, then for each join: children are before their joins.
        cdef Join* x
        cdef Node* node
        cdef int i, j, state, all
        for i in range(self.joins):
            x = &self.join[i]
            if x.n:
                all = ALL
                for j in range(x.n):
                    state = self.join[x.ref[j] >> 1].state
                    state = state if state == SOME or not x.ref[j] & 1 else ALL - state
                    if state == NONE:
                        all = NONE
                        break
                    all = SOME if state == SOME else all
                x.state = all
            elif x.test != NULL:
                node = x.test
                if block.zone == NULL:
                    x.state = SOME
                elif node.kind >= N_PAIR:
                    x.state = SOME if not node.pair_zones else decide_pair(
                        node, &block.zone[node.col], &block.zone[node.col2])
                elif node.keys or node.exact:
                    x.state = decide_keys(node, ~block.zone[node.col].not_min, block.zone[node.col].max)

    cdef int run_rows(self, Block block, uint32_t start, uint32_t stop) noexcept nogil:
        cdef Hand h
        cdef uint64_t live, word
        cdef uint32_t w = 0, words
        cdef int i, found = 0
        stop = stop if stop < block.rows else block.rows
        start = start if start < stop else stop
        self.start, self.span = start, stop - start
        self.words = words = (self.span + 63) >> 6
        memset(self.count, 0, <size_t>self.n * sizeof(uint32_t))
        if block.zone != NULL and self.span >= ZONE_ROWS:
            self.decide(block)
            self.zoned = True
        elif self.zoned:
            for i in range(self.joins):
                if self.join[i].n or self.join[i].test != NULL:
                    self.join[i].state = SOME
            self.zoned = False
        h.context, h.join, h.group, h.col = &self.context, self.join, self.group, block.col
        h.cursor, h.touched, h.pad, h.column = self.cursor, self.touched, self.pad, self.layout.column
        self.context.kernel = scan_kernels()
        while w < words:
            self.stamp += 1
            h.stamp, h.row = self.stamp, start + w * 64
            h.rows = stop - h.row if stop - h.row < 64 else 64
            live = ~<uint64_t>0 if h.rows == 64 else (<uint64_t>1 << h.rows) - 1
            for i in range(self.n):
                word = word_of(&h, self.root[i]) & live
                self.out[<size_t>i * words + w] = word
                if word:
                    found += self.count[i] == 0
                    self.count[i] += popcount64(word)
            w += 1
        return found

    cdef const uint64_t* mask(self, int i) noexcept nogil:
        return self.out + <size_t>i * self.words

    # --- from Python ----------------------------------------------------------------------------------

    def run(self, Block block not None, uint32_t start=0, stop=None):
        """Run all filters over rows start .. stop (None: the end) of ``block``; returns the number with a match.

        Raises ValueError for another layout.  ``stop`` may exceed the rows of the block.
        """
        cdef uint32_t end = block.rows if stop is None else stop
        cdef int found
        self.host._fits(block)
        with nogil:
            found = self.run_rows(block, start, end)
        return found

    def __len__(self):
        return self.n

    def counts(self):
        """Number of matching rows of each filter in the last run."""
        cdef int i
        return [self.count[i] for i in range(self.n)]

    def rows(self, int i):
        """Matching row numbers of filter ``i`` in the last run."""
        return self.picks(i, Picks()).tolist()

    def picks(self, int i, Picks out not None):
        """Store the matching rows of filter ``i`` in ``out``, as Picks of rows 0 .. stop; returns ``out``."""
        cdef uint32_t k, n
        if not 0 <= i < self.n:
            raise IndexError(i)
        if self.start == 0:
            memcpy(out.words, self.mask(i), <size_t>self.words * 8)
            out.count_mask(self.span)
        else:
            n = scan_mask_rows(self.mask(i), self.span, NULL, out.list)
            for k in range(n):
                out.list[k] += <uint16_t>self.start
            out.set_list(self.start + self.span, n)
        return out

    @property
    def columns(self):
        """Numbers of the columns that the filters read, ascending."""
        used = set()
        for leaf in self.leaf:
            if leaf is not None:
                used.add(leaf.col)
                if type(leaf).__name__ == "Pair":
                    used.add(leaf.col2)
        return sorted(used)

    def describe(self):
        """{filters, tests: number of distinct tests, grouped: tests evaluated together, joins}."""
        cdef int i
        grouped = sum(self.join[i].group >= 0 for i in range(self.joins))
        tests = sum(leaf is not None for leaf in self.leaf)
        return {"filters": self.n, "tests": tests, "grouped": grouped, "joins": self.joins - tests}
