"""Predicate engine: compile a tree of tests (expr/leaves.py) once, run it over blocks."""

from cpython.bytearray cimport PyByteArray_AS_STRING
from libc.math cimport nextafter, nextafterf
from libc.stdint cimport uint8_t, uint32_t, uint64_t, int64_t
from libc.stdlib cimport free
from libc.string cimport memcpy
from posix.stdlib cimport posix_memalign
from c_block cimport BYTES, F32, F64, I64, MASK_WORDS, U8, U64, Column
from c_sort_key cimport order_bytes, order_f64
from c_postings cimport Chunk
from c_node cimport (ALL, GATHER_ROWS, MASK, N_AND, N_BYTES, N_CONST, N_GLOB, N_LIST, N_OR, N_PAIR, N_PAIR_BYTES,
                     N_SCAN, N_STORED, NONE, NOT_INDEXED, SLOT_WORDS, SOME, Context, Found, Key, Node, decide, now_ns)
from c_node cimport narrow as narrow_list
from c_program cimport estimate, evaluate, known_count
from c_list_test cimport BEFORE, ELEMENT, EXACT, LENGTH, RUN, STARTS
from c_scan cimport (PAIR_EQ, PAIR_LE, PAIR_LT, SCAN_SET, scan_best, scan_force, scan_kernels, scan_level,
                     scan_mask_rows, scan_range)
from confluo_tools.core.block.block cimport PICK_ALL, PICK_MASK, Block, Layout, Picks
cimport cython

cdef enum:
    MAX_DEPTH = 110                 # nesting of And and Or; each level takes 139 KiB of scratch memory
    FEW_RANGES = 8                  # sets of at most this many ranges are compared, larger ones are looked up
    MAX_SPANS = 65536

INSTRUCTION_SETS = ("portable", "avx2", "avx512")
_TOP = {1: 0xFF, 2: 0xFFFF, 4: 0xFFFFFFFF, 8: 0xFFFFFFFFFFFFFFFF}     # bytes -> largest unsigned value
_SIGN = 0x8000000000000000


def instruction_set():
    """Name of the instruction set that the kernels use."""
    return INSTRUCTION_SETS[scan_level()]


def use_instruction_set(name=None):
    """For tests: set the instruction set of programs compiled from now on: 'portable', 'avx2', 'avx512' (None: best).

    Raises ValueError if the machine does not support it.
    """
    level = -1 if name is None else INSTRUCTION_SETS.index(name)
    if level > scan_best():
        raise ValueError(f"this machine does not support {name}")
    scan_force(level)


@cython.final
cdef class Program:
    """``tree`` compiled for blocks of ``layout``.

    A program has its own working memory: only one thread at a time may run it.
    Raises ValueError when the tree does not match the layout or is nested more than 110 levels deep.
    ``timed`` = True: measure each step.
    """

    def __cinit__(self, tree, Layout layout not None):
        cdef int i, depth
        cdef size_t widest = 8
        cdef void* memory
        self.layout = layout
        self.memory, self.notes, self.stored = [], {}, {}
        depth = _depth(tree)
        if depth > MAX_DEPTH:
            raise ValueError("the expression is nested too deeply")
        self.root = self.build(tree, 0)
        for i in range(layout.n):
            widest = max(widest, layout.column[i].width if layout.column[i].code != BYTES else 0)
        if posix_memalign(&memory, 64, <size_t>(depth + 3) * SLOT_WORDS * 8):
            raise MemoryError
        self.arena = <uint64_t*>memory
        self.gather = <uint8_t*>self.take(max(<size_t>GATHER_ROWS * 8, 64 * widest))
        self.gather2 = <uint8_t*>self.take(GATHER_ROWS * 8)

    def __dealloc__(self):
        free(self.arena)

    cdef void* take(self, size_t size) except NULL:
        memory = bytearray(max(size, 1))
        self.memory.append(memory)
        return PyByteArray_AS_STRING(memory)

    # --- compiling ----------------------------------------------------------------------------------

    cdef Node* build(self, object tree, int depth) except NULL:
        name = type(tree).__name__
        if name == "Const":
            return self.constant(tree.value)
        if name == "And" or name == "Or":
            return self.group(N_AND if name == "And" else N_OR, tree.items, depth)
        if name == "Not":
            return self.test(tree.item, True)
        if name == "Stored":
            return self.named(tree, depth)
        return self.test(tree, False)

    cdef Node* named(self, object tree, int depth) except NULL:
        # A filter that a view may have stored; a name may occur several times.
        cdef Node* node = <Node*>self.take(sizeof(Node))
        cdef Node* item = self.build(tree.tree, depth + 1)
        if item.kind == N_CONST:
            return item
        node.kind, node.state, node.found, node.n, node.cost = N_STORED, SOME, NOT_INDEXED, 1, item.cost
        node.item = <Node**>self.take(sizeof(Node*))
        node.item[0] = item
        self.stored.setdefault(tree.name, []).append(<size_t>node)
        self.notes[<size_t>node] = (tree, False)
        return node

    cdef Node* constant(self, bint value) except NULL:
        cdef Node* node = <Node*>self.take(sizeof(Node))
        node.kind, node.state, node.found = N_CONST, ALL if value else NONE, NOT_INDEXED
        return node

    cdef Node* group(self, int kind, object items, int depth) except NULL:
        # Fold constants; replace a group of one by its member; sort children by cost.
        cdef Node* node = <Node*>self.take(sizeof(Node))
        cdef Node* item
        cdef int stops = NONE if kind == N_AND else ALL, i, j
        items = tuple(items)
        node.kind, node.state, node.found = kind, SOME, NOT_INDEXED
        node.item = <Node**>self.take((len(items) + 1) * sizeof(Node*))
        node.order = <Node**>self.take((len(items) + 1) * sizeof(Node*))
        for tree in items:
            item = self.build(tree, depth + 1)
            if item.kind == N_CONST:
                if item.state == stops:
                    return item
                continue
            node.item[node.n] = item
            node.n += 1
        if node.n == 0:
            return self.constant(kind == N_AND)
        if node.n == 1:
            return node.item[0]
        for i in range(1, node.n):
            item, j = node.item[i], i
            while j > 0 and node.item[j - 1].cost > item.cost:
                node.item[j] = node.item[j - 1]
                j -= 1
            node.item[j] = item
        for i in range(node.n):
            node.cost += node.item[i].cost
        return node

    cdef Node* test(self, object leaf, bint negated) except NULL:
        cdef Node* node = <Node*>self.take(sizeof(Node))
        cdef Column* column
        kind = type(leaf).__name__
        if not 0 <= leaf.col < self.layout.n:
            raise ValueError(f"{leaf!r}: there is no column {leaf.col}")
        column = &self.layout.column[leaf.col]
        node.col, node.state, node.found, node.kind = leaf.col, SOME, NOT_INDEXED, N_SCAN
        node.test.mask = ~<uint64_t>0
        node.test.flip = ~<uint64_t>0 if negated else 0
        node.test.size, node.test.count, node.test.code = column.size, column.count, column.code
        if kind == "Range" or kind == "InSet" or kind == "InRanges":
            if not U8 <= column.code <= I64:
                raise ValueError(f"{leaf!r}: column {self.layout.names[leaf.col]} is not of an integer type")
            node = self.make_integer(node, leaf, kind)
        elif kind == "FRange":
            if column.code != F32 and column.code != F64:
                raise ValueError(f"{leaf!r}: column {self.layout.names[leaf.col]} is not of a float type")
            node = self.make_real(node, leaf)
        elif kind == "Bytes" or kind == "Glob" or kind == "InByteRanges":
            if column.code != BYTES:
                raise ValueError(f"{leaf!r}: column {self.layout.names[leaf.col]} is not of a bytes type")
            node = self.make_bytes(node, leaf, kind) if kind != "InByteRanges" else self.make_byte_ranges(node, leaf)
        elif kind == "Pair":
            node = self.make_pair(node, leaf)
        elif kind == "ListElement" or kind == "ListLength" or kind == "ListSequence":
            node = self.make_list(node, leaf, kind)
        else:
            raise ValueError(f"unknown test {leaf!r}")
        if node.kind == N_CONST:
            node.state = node.state if not negated else ALL - node.state
            return node
        if node.test.count > 1:
            # Postings have the rows with an element that passes: not those with none.
            node.indexable = node.indexable and not negated
            node.cost += 0.6 + 0.1 * node.test.count
        if node.indexable:
            node.span_room = min(max(node.keys, <uint32_t>2048), <uint32_t>MAX_SPANS)
            node.span = <uint32_t*>self.take(node.span_room * 8)
        self.notes[<size_t>node] = (leaf, negated)
        return node

    cdef int set_keys(self, Node* node, list ranges, object low, object high, bint exact) except -1:
        # Ranges of order keys that can match, from sorted disjoint ranges; negated: the complement in low .. high.
        cdef uint32_t i
        if node.test.flip:
            if not exact:
                return 0
            holes, at = [], low
            for lo, hi in ranges:
                if at < lo:
                    holes.append((at, lo - 1))
                at = hi + 1
            if at <= high:
                holes.append((at, high))
            ranges = holes
        node.keys, node.exact, node.indexable = len(ranges), exact, True
        node.key = <Key*>self.take(len(ranges) * sizeof(Key))
        for i, (lo, hi) in enumerate(ranges):
            node.key[i].lo, node.key[i].hi = lo, hi
        return 0

    cdef int set_range(self, Node* node, list ranges) except -1:
        cdef scan_range* r = <scan_range*>self.take(len(ranges) * sizeof(scan_range))
        cdef uint32_t i
        cdef uint32_t power = {1: 0, 2: 1, 4: 2, 8: 3}[node.test.size]
        top = _TOP[node.test.size]
        for i, (lo, hi) in enumerate(ranges):
            r[i].lo, r[i].span = lo & top, hi - lo
        node.test.range, node.test.k = r, len(ranges)
        node.fn = scan_kernels().range[power] if len(ranges) == 1 else scan_kernels().ranges[power]
        node.cost = 0.02 + 0.07 * node.test.size * node.test.count + 0.01 * len(ranges)
        return 0

    cdef Node* make_integer(self, Node* node, object leaf, str kind) except NULL:
        cdef bint signed = node.test.code > U64
        cdef uint32_t size = node.test.size, bits = 3, slots
        cdef uint64_t x
        cdef uint64_t* table
        top = _TOP[size]
        low, high = (-(top >> 1) - 1, top >> 1) if signed else (0, top)
        bias = _SIGN if signed else 0
        mask = top if leaf.mask is None else leaf.mask & top
        if kind == "Range":
            ranges = [(max(leaf.lo, low), min(leaf.hi, high))]
            ranges = ranges if ranges[0][0] <= ranges[0][1] else []
        elif kind == "InRanges":
            ranges = [(max(lo, low), min(hi, high)) for lo, hi in leaf.pairs if lo <= high and hi >= low]
        else:
            ranges = _runs_of([(v, v) for v in leaf.values if low <= v <= high])
        if mask != top and not signed and ranges and ((mask ^ top) + 1) & (mask ^ top) == 0:
            # Only low bits are masked out (a prefix): equivalent to plain ranges.
            rest = mask ^ top
            ranges = _runs_of([((lo + rest) & mask, hi | rest) for lo, hi in ranges if (lo + rest) & mask <= hi | rest
                               and lo + rest <= top])
            mask = top
        if not ranges or mask == top and ranges == [(low, high)]:
            node.kind, node.state = N_CONST, ALL if ranges else NONE
            return node
        node.test.mask = mask
        if mask == top:
            self.set_keys(node, [(lo + bias, hi + bias) for lo, hi in ranges], low + bias, high + bias, True)
        if len(ranges) <= FEW_RANGES:
            self.set_range(node, ranges)
            if mask != top and not signed:
                # x & mask never exceeds x, so x is at least the lowest bound; postings are tested key by key.
                self.set_keys(node, [(ranges[0][0], high)], low, high, False)
                if node.test.count == 1:
                    node.key_mask, node.indexable = mask, True
            return node
        if size <= 2:
            table = <uint64_t*>self.take(1 << (size * 8 - 3))
            for lo, hi in ranges:
                for v in range(lo, hi + 1):
                    x = v & top
                    table[x >> 6] |= <uint64_t>1 << (x & 63)
            node.fn, node.cost = scan_kernels().bitmap[size - 1], 0.8 * node.test.count
        elif kind == "InRanges":
            return self.make_search(node, ranges)
        else:
            values = [v & top for v in leaf.values if low <= v <= high]
            while <uint64_t>1 << bits < <uint64_t>len(values) * 2:
                bits += 1
            slots = 1 << bits
            table = <uint64_t*>self.take(<size_t>slots * 8)
            for v in values:
                x = v
                if x == 0:
                    node.test.has_zero = 1
                    continue
                x = x * <uint64_t>0x9E3779B97F4A7C15u >> (64 - bits)
                while table[x] and table[x] != <uint64_t>v:
                    x = (x + 1) & (slots - 1)
                table[x] = v
            node.test.shift = 64 - bits
            node.fn, node.cost = scan_kernels().hash[0 if size == 4 else 1], 1.5 * node.test.count
        node.test.table = table
        return node

    cdef Node* make_list(self, Node* node, object leaf, str kind) except NULL:
        # No test holds for a zero element.
        cdef uint64_t* bits
        cdef uint32_t count = node.test.count
        if node.test.code == BYTES:
            raise ValueError(f"{leaf!r}: column {self.layout.names[leaf.col]} is not a list")
        if kind == "ListElement":
            if not -<int>count <= leaf.index < <int>count:
                raise ValueError(f"{leaf!r}: the list has {count} elements at most")
            test = type(leaf.test).__name__
            if (test == "FRange") != (node.test.code > I64):
                raise ValueError(f"{leaf!r}: a test of another type")
            node = self.make_real(node, leaf.test) if test == "FRange" else self.make_integer(node, leaf.test, test)
            if node.kind == N_CONST:
                return node
            node.list.what, node.list.index = ELEMENT, leaf.index
            node.cost += 1.5 if leaf.index >= 0 else 1.5 + 0.5 * count
        elif kind == "ListLength":
            bits = <uint64_t*>self.take(32)
            for lo, hi in leaf.pairs:
                for n in range(max(lo, 0), min(hi, 255) + 1):
                    bits[<int>n >> 6] |= <uint64_t>1 << (<int>n & 63)
            node.list.what, node.test.table, node.fn = LENGTH, bits, scan_kernels().bitmap[0]
            node.cost = 1.5 + 0.5 * count
        else:
            self.set_items(node, leaf)
            node.cost = 3.0
        node.kind = N_LIST
        return node

    cdef int set_items(self, Node* node, object leaf) except -1:
        # The items of a sequence as ranges of order keys; zone maps see the narrowest of them.
        cdef uint64_t* bound
        cdef int i
        cdef bint real = node.test.code > I64
        if not 1 <= len(leaf.items) <= node.test.count:
            raise ValueError(f"{leaf!r}: the list has {node.test.count} elements at most")
        bias = _SIGN if node.test.code > U64 else 0
        pairs = [(order_f64(lo), order_f64(hi)) if real else (lo + bias, hi + bias) for lo, hi in leaf.items]
        bound = <uint64_t*>self.take(len(pairs) * 16)
        for i, (lo, hi) in enumerate(pairs):
            bound[2 * i], bound[2 * i + 1] = lo, hi
        node.list.what = {"exact": EXACT, "starts": STARTS, "run": RUN, "before": BEFORE}[leaf.how]
        node.list.items, node.list.bound = len(pairs), bound
        self.set_keys(node, [min([(hi - lo, lo, hi) for lo, hi in pairs])[1:]], 0, ~<uint64_t>0, False)
        return 0

    cdef Node* make_search(self, Node* node, list ranges) except NULL:
        # Many ranges of wide integers: a directory by the upper bits, then a search among the few of a place.
        cdef uint32_t size = node.test.size, bits = 4, i, at = 0
        cdef uint64_t place
        cdef scan_range* r
        cdef uint32_t* directory
        top = _TOP[size]
        parts = []
        for lo, hi in ranges:                       # of negative values: by their unsigned bits, cut at zero
            parts += [(lo & top, top), (0, hi)] if lo < 0 <= hi else [(lo & top, hi & top)]
        parts.sort()
        while bits < 16 and <uint64_t>1 << bits < <uint64_t>len(parts):
            bits += 1
        r = <scan_range*>self.take(len(parts) * sizeof(scan_range))
        for i, (lo, hi) in enumerate(parts):
            r[i].lo, r[i].span = lo, hi - lo
        directory = <uint32_t*>self.take(((<size_t>1 << bits) + 1) * sizeof(uint32_t))
        node.test.range, node.test.k, node.test.directory = r, len(parts), directory
        node.test.shift = size * 8 - bits
        for place in range(<uint64_t>1 << bits):
            while at < node.test.k and r[at].lo + r[at].span < place << node.test.shift:
                at += 1
            directory[place] = at
        directory[<uint64_t>1 << bits] = node.test.k
        node.fn, node.cost = scan_kernels().search[0 if size == 4 else 1], 3.0 * node.test.count
        return node

    cdef Node* make_byte_ranges(self, Node* node, object leaf) except NULL:
        cdef uint32_t size = node.test.size, i
        cdef uint8_t* bounds = <uint8_t*>self.take(2 * <size_t>size * len(leaf.pairs))
        for lo, hi in leaf.pairs:
            if len(lo) != size or len(hi) != size:
                raise ValueError(f"{type(leaf).__name__}: the column has {size} bytes")
        node.kind, node.test.k, node.test.blo = N_BYTES, len(leaf.pairs), bounds
        node.test.bhi = bounds + <size_t>size * node.test.k
        if node.test.k == 0:
            node.kind, node.state = N_CONST, NONE
            return node
        for i, (lo, hi) in enumerate(leaf.pairs):
            memcpy(bounds + <size_t>size * i, <const uint8_t*>lo, size)
            memcpy(<uint8_t*>node.test.bhi + <size_t>size * i, <const uint8_t*>hi, size)
        keys = [(int.from_bytes(lo[:8].ljust(8, b"\0"), "big"), int.from_bytes(hi[:8].ljust(8, b"\0"), "big"))
                for lo, hi in leaf.pairs]
        self.set_keys(node, _runs_of(keys), 0, ~<uint64_t>0, size <= 8)
        node.cost = 5.0 + 0.07 * size
        return node

    cdef Node* make_real(self, Node* node, object leaf) except NULL:
        # Convert open bounds and double bounds to closed bounds in the type of the column.
        cdef double lo = leaf.lo, hi = leaf.hi, infinity = float("inf")
        cdef float below = <float>lo, above = <float>hi
        cdef bint single = node.test.code == F32, lo_open = leaf.lo_open, hi_open = leaf.hi_open
        if lo_open and lo == infinity or hi_open and hi == -infinity:
            node.kind, node.state = N_CONST, NONE
            return node
        if single:
            if below <= lo if lo_open else below < lo:
                below = nextafterf(below, <float>infinity)
            if above >= hi if hi_open else above > hi:
                above = nextafterf(above, -<float>infinity)
            lo, hi = below, above
        else:
            lo = nextafter(lo, infinity) if lo_open else lo
            hi = nextafter(hi, -infinity) if hi_open else hi
        if not lo <= hi:
            node.kind, node.state = N_CONST, NONE
            return node
        node.test.lo, node.test.hi = lo, hi
        self.set_keys(node, [(order_f64(lo), order_f64(hi))], 0, ~<uint64_t>0, True)
        node.fn = scan_kernels().real[0 if single else 1]
        node.cost = 0.02 + 0.07 * node.test.size * node.test.count
        return node

    cdef Node* make_bytes(self, Node* node, object leaf, str kind) except NULL:
        cdef uint32_t size = node.test.size
        cdef uint8_t* p
        lo = hi = mask = None
        if kind == "Glob":
            pattern = leaf.pattern
            fixed = pattern.split(b"*")[0].split(b"?")[0]
            if fixed == pattern and len(pattern) <= size and not pattern.endswith(b"\0"):
                lo = hi = pattern.ljust(size, b"\0")
            elif fixed + b"*" == pattern and 0 < len(fixed) <= size and not fixed.endswith(b"\0"):
                lo, hi = fixed.ljust(size, b"\0"), fixed.ljust(size, b"\xff")
        else:
            lo, hi, mask = bytes(leaf.lo), bytes(leaf.hi), leaf.mask
            if len(lo) != size or len(hi) != size or mask is not None and len(mask) != size:
                raise ValueError(f"{leaf!r}: the column has {size} bytes")
            if mask is not None and mask == b"\xff" * size:
                mask = None
        if lo is None:
            node.kind, node.cost = N_GLOB, 15.0
            node.test.glen = len(pattern)
            p = <uint8_t*>self.take(len(pattern) + 1)
            memcpy(p, <const uint8_t*>pattern, len(pattern))
            node.test.blo = p
            fixed = fixed[:8]
            first, last = fixed.ljust(8, b"\0"), fixed.ljust(8, b"\xff")
            self.set_keys(node, [(int.from_bytes(first, "big"), int.from_bytes(last, "big"))], 0, ~<uint64_t>0, False)
            return node
        if lo > hi or mask is None and lo == b"\0" * size and hi == b"\xff" * size:
            node.kind, node.state = N_CONST, NONE if lo > hi else ALL
            return node
        node.kind = N_BYTES
        p = <uint8_t*>self.take(3 * <size_t>size)
        memcpy(p, <const uint8_t*>lo, size)
        memcpy(p + size, <const uint8_t*>hi, size)
        node.test.blo, node.test.bhi, node.test.same = p, p + size, lo == hi
        if mask is not None:
            mask = bytes(mask)
            memcpy(p + 2 * size, <const uint8_t*>mask, size)
            node.test.bmask = p + 2 * size
        else:
            self.set_keys(node, [(order_bytes(node.test.blo, size), order_bytes(node.test.bhi, size))],
                          0, ~<uint64_t>0, size <= 8)
        node.cost = 0.4 + 0.07 * size + (0 if node.test.same else 3.0)
        return node

    cdef Node* make_pair(self, Node* node, object leaf) except NULL:
        cdef Column* a = &self.layout.column[leaf.col]
        cdef Column* b
        cdef int op, col2 = leaf.col2, first, second
        if not 0 <= col2 < self.layout.n:
            raise ValueError(f"{leaf!r}: there is no column {col2}")
        b = &self.layout.column[col2]
        if a.count > 1 or b.count > 1:
            raise ValueError(f"{leaf!r}: lists cannot be compared with each other")
        if leaf.op not in ("==", "!=", "<", "<=", ">", ">="):
            raise ValueError(f"{leaf!r}: unknown operator")
        if (a.code == BYTES) != (b.code == BYTES) or a.code == BYTES and a.size != b.size:
            raise ValueError(f"{leaf!r}: columns of different kinds")
        if leaf.mask is not None and (a.code == BYTES or a.code > I64):
            raise ValueError(f"{leaf!r}: only integers have a mask")
        # != is == negated; x > y is y < x.
        op = {"==": PAIR_EQ, "!=": PAIR_EQ, "<": PAIR_LT, ">": PAIR_LT, "<=": PAIR_LE, ">=": PAIR_LE}[leaf.op]
        if leaf.op == "!=":
            node.test.flip = ~node.test.flip
        node.kind, node.test.op = N_PAIR, op
        node.col2 = col2
        node.test.mask2 = ~<uint64_t>0
        if leaf.mask is not None:
            node.test.mask = leaf.mask & _TOP[a.size]
        if leaf.op.startswith(">"):
            node.col, node.col2 = node.col2, node.col
            node.test.mask, node.test.mask2 = node.test.mask2, node.test.mask
            a, b = b, a
        node.test.size, node.test.code, node.test.code2 = a.size, a.code, b.code
        if a.code == BYTES:
            node.kind, node.pair_zones, node.cost = N_PAIR_BYTES, 1, 2 + 0.15 * a.size
            return node
        node.cost = 0.2 + 0.07 * (a.size + b.size)
        if a.code == b.code and leaf.mask is None:
            node.test.wide = a.code
            node.pair_zones = 2 if a.code > I64 else 1
            return node
        first, second = a.code, b.code
        node.cost += 0.3
        if first <= I64 and second <= I64:
            if first != U64 and second != U64:
                node.test.wide = -I64
            elif first <= U64 and second <= U64:
                node.test.wide = -U64
            if leaf.mask is None and (first <= U64) == (second <= U64):
                node.pair_zones = 1
        elif first not in (U64, I64) and second not in (U64, I64):
            node.test.wide = -F64
        if node.test.wide == 0:
            node.cost = 8
        return node

    # --- running --------------------------------------------------------------------------------------

    cdef void prepare(self, Context* c, Block block, Chunk** chunk) noexcept nogil:
        c.col, c.zone, c.rows, c.chunk = block.col, block.zone, block.rows, chunk
        c.kernel = scan_kernels()
        c.arena, c.gather, c.gather2, c.timed = self.arena, self.gather, self.gather2, self.timed
        c.look, c.who, c.damaged = self.look, <void*>block, False

    cdef int run(self, Block block, Picks out) noexcept nogil:
        return self.run_indexed(block, NULL, out)

    cdef int run_indexed(self, Block block, Chunk** chunk, Picks out) noexcept nogil:
        cdef Context c
        cdef uint64_t began = now_ns() if self.timed else 0
        self.prepare(&c, block, chunk)
        if block.rows == 0:
            out.set_none(0)
            return 0
        decide(&c, self.root)
        self.decided(&c, out)
        if self.timed:
            self.ns += now_ns() - began
        return -1 if c.damaged else <int>out.n

    cdef void decided(self, Context* c, Picks out) noexcept nogil:
        # The part of the tree that the zone maps have not decided.
        cdef Found f
        estimate(c, self.root)
        evaluate(c, self.root, out.words, 0, &f)
        if f.kind == NONE or f.n == 0:
            out.set_none(c.rows)
        elif f.kind == ALL or f.n == c.rows:
            out.set_all(c.rows)
        elif f.kind == MASK:
            out.kind, out.rows, out.n = PICK_MASK, c.rows, f.n
            if f.words != out.words:
                memcpy(out.words, f.words, MASK_WORDS * 8)
        else:
            if f.list != out.list:
                memcpy(out.list, f.list, f.n * 2)
            out.set_list(c.rows, f.n)
        self.blocks += 1
        self.rows += c.rows
        self.chosen += out.n

    cdef int64_t count_indexed(self, Block block, Chunk** chunk, Picks scratch) noexcept nogil:
        cdef Context c
        cdef int64_t n
        cdef uint64_t began = now_ns() if self.timed else 0
        self.prepare(&c, block, chunk)
        if block.rows == 0:
            return 0
        decide(&c, self.root)
        n = known_count(&c, self.root)
        if n < 0:
            self.decided(&c, scratch)
            n = -1 if c.damaged else scratch.n
        else:
            self.blocks += 1
            self.rows += block.rows
            self.chosen += n
        if self.timed:
            self.ns += now_ns() - began
        return n

    cdef int narrow(self, Block block, Picks picks) noexcept nogil:
        cdef Context c
        cdef uint64_t* bits
        cdef uint32_t n = picks.n
        if n == 0:
            return 0
        if picks.kind == PICK_ALL and n == block.rows:
            return self.run_indexed(block, NULL, picks)
        self.prepare(&c, block, NULL)
        decide(&c, self.root)
        picks.as_list()
        bits = self.arena
        narrow_list(&c, self.root, picks.list, n, bits, SCAN_SET, self.arena, 2)
        picks.set_list(picks.rows, scan_mask_rows(bits, n, picks.list, picks.list))
        return -1 if c.damaged else <int>picks.n

    def select(self, Block block not None):
        """The matching rows of ``block`` as new Picks.  Raises ValueError for another layout."""
        cdef Picks out = Picks()
        self.select_into(block, out)
        return out

    def select_into(self, Block block not None, Picks out not None):
        """Store the matching rows of ``block`` in ``out``, reusing its memory; returns their number."""
        cdef int n
        self._fits(block)
        with nogil:
            n = self.run_indexed(block, NULL, out)
        return n

    def refine(self, Block block not None, Picks picks not None):
        """Remove the rows of ``picks`` that do not match; returns the number left."""
        cdef int n
        self._fits(block)
        if picks.rows > block.rows:
            raise ValueError("the picks are of another block")
        with nogil:
            n = self.narrow(block, picks)
        return n

    def count(self, Block block not None):
        """Number of matching rows of ``block``."""
        self._fits(block)
        return self.count_indexed(block, NULL, Picks())

    def possible(self, Block block not None):
        """Whether rows of ``block`` may match, by its zone maps alone: nothing of the rows is read."""
        cdef Context c
        self._fits(block)
        self.prepare(&c, block, NULL)
        return block.rows > 0 and decide(&c, self.root) != NONE

    def _fits(self, Block block):
        if block.layout is not self.layout and not _same(block.layout, self.layout):
            raise ValueError("the block has other columns than the program")

    @property
    def columns(self):
        """Numbers of the columns that the compiled tree reads, ascending."""
        used = set()
        for leaf, _ in self.notes.values():
            if type(leaf).__name__ == "Stored":
                continue
            used.add(leaf.col)
            if type(leaf).__name__ == "Pair":
                used.add(leaf.col2)
        return sorted(used)

    @property
    def indexable(self):
        """Numbers of the columns with postings that the tree could use, ascending."""
        return sorted({(<Node*><size_t>node).col for node in self.notes if (<Node*><size_t>node).indexable})

    def describe(self):
        """The compiled tree with its counters, for --explain: nested dicts.

        Groups: op 'and' or 'or', items. Filters that a view may have stored: op 'filter', name, items (one), by_view
        (blocks), posted, posted_of (rows). Constants: op 'const', value. Tests: op 'test', leaf, negated, col,
        indexable, and counts of blocks: zone_none and zone_all (decided by zone maps), by_index, by_scan, by_list
        (only candidate rows), rows_in (rows read), posted (rows from postings, of posted_of rows), ns (if timed).
        """
        return _describe(self, self.root)


cdef object _describe(Program program, Node* node):
    cdef int i
    if node.kind == N_CONST:
        return {"op": "const", "value": node.state == ALL}
    if node.kind == N_AND or node.kind == N_OR:
        return {"op": "and" if node.kind == N_AND else "or",
                "items": [_describe(program, node.item[i]) for i in range(node.n)]}
    leaf, negated = program.notes[<size_t>node]
    if node.kind == N_STORED:
        return {"op": "filter", "name": leaf.name, "items": [_describe(program, node.item[0])],
                "by_view": node.by_index, "posted": node.posted, "posted_of": node.posted_of}
    return {
        "op": "test", "leaf": leaf, "negated": negated, "col": leaf.col, "indexable": bool(node.indexable),
        "zone_none": node.zone_none, "zone_all": node.zone_all, "by_index": node.by_index, "by_scan": node.by_scan,
        "by_list": node.by_list, "rows_in": node.rows_in, "posted": node.posted, "posted_of": node.posted_of,
        "ns": node.ns,
    }


def _depth(tree):
    # Without recursion: the tree may exceed the recursion limit of the interpreter.
    deepest, todo = 0, [(tree, 0)]
    while todo:
        node, depth = todo.pop()
        deepest = max(deepest, depth)
        for item in getattr(node, "items", ()):
            todo.append((item, depth + 1))
        todo += [(node.tree, depth + 1)] if type(node).__name__ == "Stored" else []
    return deepest


def _runs_of(ranges):
    """Sort ranges (first, last) of integers; merge those that overlap or are adjacent."""
    out, last = [], None
    for lo, hi in sorted(ranges):
        if last is not None and lo <= last[1] + 1:
            last[1] = max(hi, last[1])
        else:
            last = [lo, hi]
            out.append(last)
    return [(lo, hi) for lo, hi in out]


cdef bint _same(Layout a, Layout b) noexcept:
    cdef int i
    for i in range(min(a.n, b.n)):
        if (a.column[i].code != b.column[i].code or a.column[i].size != b.column[i].size
                or a.column[i].count != b.column[i].count):
            return False
    return a.n == b.n
