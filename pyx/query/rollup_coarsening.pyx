"""Roll-up coarsening: merge a roll-up into one with fewer or coarser keys, such as 1 ms buckets into seconds.

The coarser key of a group is a function of its finer key, so the rows are not needed.
"""

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcmp, memcpy, memset
from c_hash_table cimport hash2, table_insert, table_insert2, table_reserve
from c_source cimport (
    BUCKET, EITHER, HOURS, IP, KEY, MAX_WORDS, NANOSECONDS, V4, V6, WIDE, Source, ip_of_code,
)
from c_time_steps cimport DAY, QUARTER, local_times, step_number, step_start
from confluo_tools.core.query.group_keys cimport GroupTable, KeyPart, part_of
from confluo_tools.core.query.group_source cimport intern_merge, renumber, source_room
from confluo_tools.core.query.rollup cimport Rollup
from confluo_tools.core.query.aggregate_states cimport DISTINCT, HISTOGRAM, HYPER, state_merge


cdef bint _steps_derive(const Source* to, const Source* s):
    # Whether each step of `to` begins where one of `s` does.  By local time, all are multiples of `grain` apart.
    cdef int64_t grain = to.step
    if s.kinds != NANOSECONDS or s.origin:
        return False
    if to.kinds != NANOSECONDS or to.origin:
        grain = QUARTER if to.kinds == HOURS else DAY
    if s.changes:
        return grain % s.step == 0 and to.kinds != HOURS and to.changes == s.changes and memcmp(
            to.change, s.change, <size_t>s.changes * 16) == 0
    # Each change and each local day begin where a finer step begins.
    return grain % s.step == 0 and (to.changes == 0 or (to.quarters and QUARTER % s.step == 0))


cdef bint _derives(const Source* to, const Source* s):
    # Whether the value of `to` is a function of that of `s`.
    cdef int i
    if to.kind != s.kind or to.col != s.col or to.calc != NULL or to.ends != s.ends or to.ends == EITHER:
        return False
    if to.kind == BUCKET:
        return _steps_derive(to, s)
    if to.kind == KEY:
        return to.shift >= s.shift
    if to.kind == IP:
        if to.mask4 & ~s.mask4 or to.col6 != s.col6 or to.version != s.version:
            return False
        for i in range(16):
            if to.mask6[i] & ~s.mask6[i]:
                return False
    return True


cdef uint64_t _derive(Source* to, const Source* s, const uint32_t* renumbered, uint64_t v) noexcept nogil:
    cdef int64_t start
    cdef uint64_t word[2]
    cdef uint64_t mask[2]
    cdef uint32_t v4
    if to.kind == KEY:
        return v >> (to.shift - s.shift) if to.bits else 0
    if to.kind == BUCKET:
        start = step_start(s, v)
        if to.changes and not s.changes:
            local_times(to, 1, <uint64_t*>&start)
        return step_number(to, start)
    if to.kind == IP:
        if v >> 32 == V4:
            return v & ~<uint64_t>0xFFFFFFFFu | <uint32_t>v & to.mask4
        if v >> 32 == V6 and <uint32_t>v > 1:
            ip_of_code(s, v, &v4, <uint8_t*>word)
            memcpy(mask, to.mask6, 16)
            word[0], word[1] = word[0] & mask[0], word[1] & mask[1]
            if not word[0] | word[1]:
                return <uint64_t>V6 << 32 | 1
            return (<uint64_t>V6 << 32) + 2 + table_insert2(
                &to.intern, hash2(&to.intern, word[0], word[1]), word[0], word[1])
        return v
    return renumber(s, renumbered, v)


cdef int _assign(GroupTable to, GroupTable other, int* source, uint32_t* out) noexcept nogil:
    # The group in `to` for each group of `other`.
    cdef uint32_t** renumbered
    cdef uint64_t key[MAX_WORDS]
    cdef const uint64_t* theirs
    cdef uint64_t v = 0
    cdef uint32_t g, n = other.count()
    cdef KeyPart* p
    cdef int i, status = 0
    if to.parts == 0:
        memset(out, 0, <size_t>n * 4)
        return 0
    renumbered = <uint32_t**>calloc(to.parts, sizeof(void*))
    if renumbered == NULL:
        return -1
    for i in range(to.parts):
        if to.part[i].source.kind == WIDE and status == 0:
            renumbered[i] = intern_merge(&to.part[i].source, &other.part[source[i]].source)
            status = -1 if renumbered[i] == NULL else 0
        elif status == 0:
            status = source_room(&to.part[i].source, n)
    if status == 0 and not to.narrow:
        status = table_reserve(&to.table, n)
    if status == 0:
        for g in range(n):
            theirs = other.table.keys + <size_t>g * other.table.words
            memset(key, 0, sizeof(key[0]) * to.table.words)
            for i in range(to.parts):
                p = &to.part[i]
                v = _derive(&p.source, &other.part[source[i]].source, renumbered[i],
                            part_of(&other.part[source[i]], theirs))
                key[p.word] |= v << p.shift
            out[g] = to.at(v) if to.narrow else table_insert(&to.table, key)
    for i in range(to.parts):
        free(renumbered[i])
    free(renumbered)
    return status


def absorb(Rollup to not None, Rollup other not None):
    """Merge ``other`` into ``to``, which has the same aggregates and fewer or coarser keys.

    Raises ValueError if a key of ``to`` is not a function of those of ``other``; MemoryError, after which ``to`` is
    unusable.
    """
    cdef int[MAX_WORDS * 8] source
    cdef uint32_t* group
    cdef uint32_t* renumbered
    cdef uint32_t theirs
    cdef int i, j, k, status
    if other.aggs != to.aggs or other.time != to.time or len(to.keys) > MAX_WORDS * 8:
        raise ValueError("the roll-ups have different aggregates")
    if other is to:
        raise ValueError("a roll-up cannot be merged with itself")
    for i in range(to.states):
        if to.state[i].kind in (DISTINCT, HYPER, HISTOGRAM) and to.state[i].keyless != other.state[i].keyless:
            raise ValueError("distinct values and quantiles of groups do not add up to those of all rows")
    if other.keys == to.keys:
        to.merge(other)
        return
    to._usable()
    other._usable()
    if any([key[0] == "host" and key not in to.keys for key in other.keys]):
        raise ValueError("groups of hosts have rows twice")
    for i in range(to.groups.parts):
        source[i] = -1
        for j in range(other.groups.parts):
            if to.keys[i] == other.keys[j] or _derives(&to.groups.part[i].source, &other.groups.part[j].source):
                source[i] = j
                break
        if source[i] < 0:
            raise ValueError(f"the key {to.keys[i]!r} does not follow from {other.keys!r}")
    if to._untally() < 0 or other._untally() < 0:
        raise MemoryError
    theirs = other.groups.count()
    group = <uint32_t*>malloc(max(theirs, <uint32_t>1) * 4)
    if group == NULL:
        raise MemoryError
    with nogil:
        status = _assign(to.groups, other.groups, source, group)
        if status == 0:
            status = to._room()
        for k in range(-1, to.values):
            renumbered = NULL
            if k >= 0 and to.value[k].source.kind in (IP, WIDE) and status == 0:
                renumbered = intern_merge(&to.value[k].source, &other.value[k].source)
                status = -1 if renumbered == NULL else 0
            for i in range(to.states):
                if to.state[i].value == k and status == 0:
                    status = state_merge(&to.state[i], &other.state[i], &to.value[max(k, 0)], group,
                                         min(theirs, other.state[i].groups), renumbered, to.loose)
            free(renumbered)
    free(group)
    if status < 0:
        to.broken = True
        raise MemoryError(f"{to.groups.count()} groups")
    to.rows += other.rows
    to.loose += other.loose
    to.low, to.high = min(to.low, other.low), max(to.high, other.high)
