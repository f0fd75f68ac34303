# Sliding windows over buckets of time, and the small programs of their conditions.  Header only.

from libc.math cimport INFINITY, NAN, isnan
from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memset

cdef enum OpCode:
    O_NUM = 0
    O_UNIT = 1
    O_ADD = 2
    O_SUB = 3
    O_MUL = 4
    O_DIV = 5
    O_NEG = 6
    O_EQ = 7
    O_NE = 8
    O_LT = 9
    O_LE = 10
    O_GT = 11
    O_GE = 12
    O_AND = 13
    O_OR = 14
    O_NOT = 15
    O_LAST = 15

cdef enum:
    STACK = 64              # values on the stack of a program; its maker has checked it

cdef struct Op:
    int code
    int unit
    double value

cdef struct Cond:           # `value[unit] OP limit` when simple, else the program
    int simple              # an OpCode, or -1
    int unit
    double limit
    int n
    Op* op


cdef inline bint compare(int code, double x, double y) noexcept nogil:
    # A comparison with a missing value (NaN) is false.
    if code == O_GT:
        return x > y
    if code == O_LT:
        return x < y
    if code == O_GE:
        return x >= y
    if code == O_LE:
        return x <= y
    if code == O_EQ:
        return x == y
    return x < y or x > y


cdef inline double run_ops(const Op* op, int n, const double* value) noexcept nogil:
    cdef double stack[STACK + 2]
    cdef double x, y
    cdef int i, top = -1, code
    for i in range(n):
        code = op[i].code
        if code == O_NUM:
            top += 1
            stack[top] = op[i].value
        elif code == O_UNIT:
            top += 1
            stack[top] = value[op[i].unit]
        elif code == O_NEG:
            stack[top] = -stack[top]
        elif code == O_NOT:
            stack[top] = stack[top] == 0
        else:
            y, x = stack[top], stack[top - 1]
            top -= 1
            if code == O_ADD:
                x += y
            elif code == O_SUB:
                x -= y
            elif code == O_MUL:
                x *= y
            elif code == O_DIV:
                x = x / y if y != 0 else NAN
            elif code == O_AND:
                x = x != 0 and y != 0
            elif code == O_OR:
                x = x != 0 or y != 0
            else:
                x = compare(code, x, y)
            stack[top] = x
    return stack[0]


cdef inline bint holds(const Cond* c, const double* value) noexcept nogil:
    if c.simple >= 0:
        return compare(c.simple, value[c.unit], c.limit)
    return c.n > 0 and run_ops(c.op, c.n, value) != 0


# --- segment trees: smallest, largest, or sum of doubles over any run of slots ------------------------------
# Node 1 is the root, slot s is node slots + s; `width` units side by side.  Sums are joined in one order, whatever
# came before: values that have left cause no rounding error, unlike in a running sum.

cdef enum Join:
    J_MIN = 0
    J_MAX = 1
    J_SUM = 2

cdef struct Tree:
    int join
    int width
    int64_t slots           # a power of two
    double* node
    double* out


cdef inline double nothing(int join) noexcept nogil:
    return INFINITY if join == J_MIN else -INFINITY if join == J_MAX else 0


cdef inline double joined(int join, double a, double b) noexcept nogil:
    if join == J_SUM:
        return a + b
    if join == J_MIN:
        return a if a < b else b
    return a if a > b else b


cdef inline int tree_make(Tree* t, int join, int width, int64_t slots) noexcept nogil:
    cdef int64_t i
    t.join, t.width, t.slots = join, width, slots
    if width == 0:
        return 0
    t.node = <double*>malloc(<size_t>slots * 2 * width * sizeof(double))
    t.out = <double*>calloc(width, sizeof(double))
    if t.node == NULL or t.out == NULL:
        return -1
    for i in range(slots * 2 * width):
        t.node[i] = nothing(join)
    return 0


cdef inline void tree_free(Tree* t) noexcept nogil:
    free(t.node)
    free(t.out)
    t.node = t.out = NULL


cdef inline void tree_put(Tree* t, int64_t slot, int unit, double v) noexcept nogil:
    cdef int64_t i = slot + t.slots
    cdef int w = t.width
    if isnan(v):
        return
    t.node[i * w + unit] = joined(t.join, t.node[i * w + unit], v)
    i >>= 1
    while i:
        t.node[i * w + unit] = joined(t.join, t.node[i * 2 * w + unit], t.node[(i * 2 + 1) * w + unit])
        i >>= 1


cdef inline void tree_clear(Tree* t, int64_t slot) noexcept nogil:
    # A slot of all units becomes empty.
    cdef int64_t i = slot + t.slots
    cdef int w = t.width, j
    cdef double* to
    cdef double* a
    for j in range(w):
        t.node[i * w + j] = nothing(t.join)
    i >>= 1
    while i:
        to, a = t.node + i * w, t.node + i * 2 * w
        for j in range(w):
            to[j] = joined(t.join, a[j], a[w + j])
        i >>= 1


cdef inline void _tree_add(Tree* t, int64_t node) noexcept nogil:
    cdef double* a = t.node + node * t.width
    cdef int j
    for j in range(t.width):
        t.out[j] = joined(t.join, t.out[j], a[j])


cdef inline void _tree_span(Tree* t, int64_t first, int64_t after) noexcept nogil:
    cdef int64_t a = first + t.slots, b = after + t.slots
    while a < b:
        if a & 1:
            _tree_add(t, a)
            a += 1
        if b & 1:
            b -= 1
            _tree_add(t, b)
        a >>= 1
        b >>= 1


cdef inline void tree_window(Tree* t, int64_t first, int64_t after) noexcept nogil:
    """`out`: all units over the buckets first .. after, at most `slots` of them; slot = bucket modulo slots."""
    cdef int64_t a = first & (t.slots - 1), b = a + after - first
    cdef int j
    for j in range(t.width):
        t.out[j] = nothing(t.join)
    _tree_span(t, a, b if b < t.slots else t.slots)
    if b > t.slots:
        _tree_span(t, 0, b - t.slots)


# --- windows of many units side by side -----------------------------------------------------------------------

cdef struct Gear:
    int64_t window
    int64_t period
    int64_t grain
    int64_t next            # ns: the next tick
    int64_t end             # bucket after the last one of the window, as of the last tick
    int64_t n               # buckets of a window
    int64_t step            # of a period
    int64_t slots           # of the ring: a power of two
    int units
    int tests
    int ints                # units that are sums of integers
    int64_t* ring           # slots x ints
    int64_t* sum
    Tree tree[3]
    int* kind               # of a unit: 0 a sum of integers, 1 + Join
    int* place              # of a unit among those of its kind
    double* value           # of each unit, as of the last tick
    Cond* cond
    Cond* clear
    uint8_t* state          # of each test: 1 the condition holds, 2 that for clearing
    int* changed
    int changes

cdef struct Put:            # where the rows of a filter go
    int filter
    int grid
    int unit
    int col                 # -1: rows are counted
    int code


cdef inline void gear_put(Gear* g, int unit, int64_t bucket, int64_t whole, double real) noexcept nogil:
    # The caller has seen that the bucket is neither too old nor beyond the ring.
    cdef int kind = g.kind[unit], place = g.place[unit]
    cdef int64_t slot = bucket & (g.slots - 1)
    if kind == 0:
        g.ring[slot * g.ints + place] += whole
        if bucket < g.end:
            g.sum[place] += whole
    else:
        tree_put(&g.tree[kind - 1], slot, place, real)


cdef inline void gear_empty(Gear* g, int64_t bucket) noexcept nogil:
    cdef int i
    memset(g.ring + (bucket & (g.slots - 1)) * g.ints, 0, <size_t>g.ints * 8)
    for i in range(3):
        if g.tree[i].width:
            tree_clear(&g.tree[i], bucket & (g.slots - 1))


cdef inline void gear_move(Gear* g) noexcept nogil:
    """The window moves on by a period."""
    cdef int64_t end = g.end + g.step, b, leaving = end - g.n if end - g.n < g.end else g.end
    cdef int64_t* row
    cdef int i
    cdef double v
    for b in range(g.end - g.n, leaving):
        row = g.ring + (b & (g.slots - 1)) * g.ints
        for i in range(g.ints):
            g.sum[i] -= row[i]
        gear_empty(g, b)
    for b in range(g.end, end):
        if b < end - g.n:                               # between two windows
            gear_empty(g, b)
            continue
        row = g.ring + (b & (g.slots - 1)) * g.ints
        for i in range(g.ints):
            g.sum[i] += row[i]
    g.end = end
    g.next += g.period
    for i in range(3):
        if g.tree[i].width:
            tree_window(&g.tree[i], end - g.n, end)
    for i in range(g.units):
        if g.kind[i] == 0:
            g.value[i] = <double>g.sum[g.place[i]]
        else:
            v = g.tree[g.kind[i] - 1].out[g.place[i]]
            g.value[i] = NAN if g.kind[i] != 3 and (v == INFINITY or v == -INFINITY) else v


cdef inline void gear_tick(Gear* g) noexcept nogil:
    cdef int i, k = 0
    cdef uint8_t state
    gear_move(g)
    for i in range(g.tests):
        state = holds(&g.cond[i], g.value)
        if g.clear[i].n and holds(&g.clear[i], g.value):
            state |= 2
        if state != g.state[i]:
            g.state[i] = state
            g.changed[k] = i
            k += 1
    g.changes = k
