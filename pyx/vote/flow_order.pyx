"""The order of components and flows in a tally: one that depends on what they are, not on when they came."""

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc, qsort
from libc.string cimport memcmp, memcpy
from c_hash_table cimport hash1, hash2, slots_clear, table_insert1, table_insert2
from confluo_tools.core.block.block cimport Block, column_of
from confluo_tools.core.vote.flow_tally cimport FlowTally, Seen

cdef enum:
    MAX_ROWS = 65536                    # of a block

cdef struct Placed:                     # a flow and its components, to be sorted
    const Seen* s
    const uint32_t* part


cdef struct Row:                        # a record that is kept, to be sorted
    int64_t ts
    uint64_t at                         # its place so far
    uint32_t block
    uint32_t row


cdef inline int order_of(uint64_t a, uint64_t b) noexcept nogil:
    return (a > b) - (a < b)


cdef int by_word(const void* a, const void* b) noexcept nogil:
    return order_of((<const uint64_t*>a)[0], (<const uint64_t*>b)[0])


cdef int by_two_words(const void* a, const void* b) noexcept nogil:
    cdef const uint64_t* p = <const uint64_t*>a
    cdef const uint64_t* q = <const uint64_t*>b
    return order_of(p[0], q[0]) if p[0] != q[0] else order_of(p[1], q[1])


cdef int by_time(const void* a, const void* b) noexcept nogil:
    cdef const Row* p = <const Row*>a
    cdef const Row* q = <const Row*>b
    if p.ts != q.ts:
        return -1 if p.ts < q.ts else 1
    return order_of(p.at, q.at)


cdef int by_content(const void* a, const void* b) noexcept nogil:
    # The older flow; then any fixed order of all that is known of it.
    cdef const Seen* p = (<const Placed*>a).s
    cdef const Seen* q = (<const Placed*>b).s
    cdef Seen x, y
    cdef int k
    if p.first != q.first:
        return -1 if p.first < q.first else 1
    x, y = p[0], q[0]
    x.start = y.start = 0
    k = memcmp(&x, &y, sizeof(Seen))
    if k or p.n == 0:
        return k
    return memcmp((<const Placed*>a).part, (<const Placed*>b).part, p.n * sizeof(uint32_t))


def settle(FlowTally t not None):
    """Number components and flows in an order that depends on what they are, not on that of the records.

    Sums of floating point then have the same last digit for every order, and for every split into shares.
    """
    cdef int status
    if t.extended:
        raise ValueError("the paths are extended already")
    with nogil:
        status = _renumber(t)
    if status < 0:
        raise MemoryError(f"{t.flows} flows with loss")


cdef int _renumber(FlowTally t) noexcept nogil:
    cdef uint32_t n = t.table.count, i
    cdef uint64_t* order = <uint64_t*>malloc((<size_t>n + 1) * 16)
    cdef uint64_t* good = <uint64_t*>calloc(<size_t>n + 1, 8)
    cdef uint32_t* number = <uint32_t*>calloc(<size_t>n + 1, 8)
    cdef uint32_t* carried = number + n + 1 if number != NULL else NULL
    cdef uint8_t* tiers = <uint8_t*>calloc(<size_t>n + 1, 1)
    cdef int status = -1
    if order != NULL and good != NULL and number != NULL and tiers != NULL:
        for i in range(n):
            order[2 * i], order[2 * i + 1] = t.table.keys[i], i
        qsort(order, n, 16, by_word)
        slots_clear(&t.table)
        t.table.count = 0
        for i in range(n):
            number[order[2 * i + 1]] = i
            good[i], carried[i] = t.good[order[2 * i + 1]], t.carried[order[2 * i + 1]]
            tiers[i] = t.tiers[order[2 * i + 1]] if t.switches else 0
        for i in range(n):
            table_insert1(&t.table, hash1(&t.table, order[2 * i]), order[2 * i])
        if n:
            memcpy(t.good, good, <size_t>n * 8)
            memcpy(t.carried, carried, <size_t>n * 4)
        if n and t.switches:
            memcpy(t.tiers, tiers, n)
        status = -1 if _sort_flows(t, number) < 0 or _sort_pairs(t) < 0 else 0
    free(order)
    free(good)
    free(number)
    free(tiers)
    return status


cdef int _sort_flows(FlowTally t, const uint32_t* number) noexcept nogil:
    # `number`: of the components, by their numbers so far.
    cdef uint64_t i, j
    cdef Placed* order = <Placed*>malloc((<size_t>t.flows + 1) * sizeof(Placed))
    cdef Seen* seen = <Seen*>malloc((<size_t>t.flows + 1) * sizeof(Seen))
    cdef uint32_t* place = <uint32_t*>malloc((<size_t>t.flows + 1) * 4)
    if order == NULL or seen == NULL or place == NULL:
        free(order)
        free(seen)
        free(place)
        return -1
    for i in range(t.flows):
        order[i].s, order[i].part = &t.seen[i], t.part + t.seen[i].start
        for j in range(t.seen[i].n):
            t.part[t.seen[i].start + j] = number[t.part[t.seen[i].start + j]]
    qsort(order, t.flows, sizeof(Placed), by_content)
    for i in range(t.flows):
        seen[i] = order[i].s[0]
        place[order[i].s - t.seen] = <uint32_t>i
    if t.flows:
        memcpy(t.seen, seen, t.flows * sizeof(Seen))
    for i in range(t.known.count):
        t.same[i] = place[t.same[i]]
    for i in range(t.kept_rows):
        t.kept_flow[i] = place[t.kept_flow[i]]
    free(order)
    free(seen)
    free(place)
    return 0


cdef int _sort_pairs(FlowTally t) noexcept nogil:
    cdef uint32_t n = t.pairs.count, i
    cdef uint64_t* order = <uint64_t*>malloc((<size_t>n + 1) * 24)
    if order == NULL:
        return -1
    for i in range(n):
        order[3 * i], order[3 * i + 1], order[3 * i + 2] = (
            t.pairs.keys[2 * i], t.pairs.keys[2 * i + 1], t.times[i])
    qsort(order, n, 24, by_two_words)
    slots_clear(&t.pairs)
    t.pairs.count = 0
    for i in range(n):
        table_insert2(&t.pairs, hash2(&t.pairs, order[3 * i], order[3 * i + 1]), order[3 * i],
                      order[3 * i + 1])
        t.times[i] = order[3 * i + 2]
    free(order)
    return 0


def sort_kept(FlowTally t not None):
    """Put the records that are kept in the order of time; those of one time stay as they are."""
    cdef uint64_t n = t.kept_rows, i, at = 0, rows, width
    cdef uint64_t* order = <uint64_t*>malloc((<size_t>n + 1) * sizeof(Row))
    cdef uint32_t* flow = <uint32_t*>malloc((<size_t>n + 1) * 4)
    cdef Row* row = <Row*>order
    cdef const int64_t* ts
    cdef Block block
    cdef list blocks = t.kept
    cdef uint8_t* to
    cdef int col
    try:
        if order == NULL or flow == NULL:
            raise MemoryError(f"{n} records of flows with loss")
        for number, block in enumerate(blocks):
            ts = <const int64_t*>column_of(block, "ts", 8)
            for i in range(block.rows):
                row[at].ts, row[at].at, row[at].block, row[at].row = ts[i], at, number, <uint32_t>i
                at += 1
        qsort(row, n, sizeof(Row), by_time)
        sorted_blocks, at = [], 0
        while at < n:
            rows = min(n - at, <uint64_t>MAX_ROWS)
            layout, columns = (<Block>blocks[0]).layout, []
            for col in range((<Block>blocks[0]).layout.n):
                width = (<Block>blocks[0]).layout.column[col].width
                data = bytearray(rows * width)
                to = <uint8_t*>data
                for i in range(rows):
                    block = <Block>blocks[row[at + i].block]
                    memcpy(to + i * width, block.col[col] + row[at + i].row * width, width)
                columns.append(bytes(data))
            sorted_blocks.append(Block.wrap(layout, <uint32_t>rows, columns))
            at += rows
        for i in range(n):
            flow[i] = t.kept_flow[row[i].at]
        if n:
            memcpy(t.kept_flow, flow, n * 4)
        t.kept = sorted_blocks
    finally:
        free(order)
        free(flow)
