# A bounded table from keys of whole 64-bit words to entries of a fixed size; when it is full, an entry makes room:
# of the next KEYED_LOOK, round and round, the one that was not used for longest.  (A list in the order of use would
# cost two more cache misses a look-up.)  Chained, because entries come and go; entries move when the table grows.

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcmp, memcpy, memset
from c_huge cimport huge_pages

cdef extern from *:
    """
    static inline uint64_t keyed_mum(uint64_t a, uint64_t b) {  /* both halves of the product matter */
        unsigned __int128 r = (unsigned __int128)a * b;
        return (uint64_t)r ^ (uint64_t)(r >> 64);
    }
    """
    uint64_t keyed_mum(uint64_t a, uint64_t b) noexcept nogil
    void prefetch "__builtin_prefetch"(const void* p) noexcept nogil

cdef extern from "stdlib.h" nogil:
    int posix_memalign(void** out, size_t align, size_t size)

cdef enum:
    KEYED_FIRST = 1024          # entries there is room for at first
    KEYED_HEAD = 16             # bytes before the key
    KEYED_LOOK = 16             # entries that are looked at to find one that may go

cdef struct Entry:              # then the key, then the value
    uint64_t stamp              # when it was used last
    uint32_t chain              # the next entry at the same place + 1
    uint32_t spare

ctypedef void (*drop_fn)(void* context, void* value) noexcept nogil

cdef struct Keyed:
    uint8_t* entries
    uint32_t* bucket            # entry + 1 by hash
    uint64_t seed[2]            # secret, so that traffic cannot choose colliding keys
    uint64_t clock              # look-ups so far
    uint64_t evicted
    size_t stride
    uint32_t words              # of a key
    uint32_t size               # bytes of a value
    uint32_t mask
    uint32_t count
    uint32_t room
    uint32_t most
    uint32_t hand               # where the next search for room begins
    drop_fn drop                # of a value that must go, or NULL
    void* context


cdef inline Entry* keyed_entry(const Keyed* t, uint32_t i) noexcept nogil:
    return <Entry*>(t.entries + i * t.stride)


cdef inline uint64_t* keyed_key(Entry* e) noexcept nogil:
    return <uint64_t*>(<uint8_t*>e + KEYED_HEAD)


cdef inline void* keyed_value(const Keyed* t, Entry* e) noexcept nogil:
    return <uint8_t*>e + KEYED_HEAD + 8 * t.words


cdef inline uint8_t* _keyed_memory(size_t size) noexcept nogil:
    cdef void* memory
    if posix_memalign(&memory, 64, size):
        return NULL
    huge_pages(memory, size)
    return <uint8_t*>memory


cdef inline bint keyed_init(Keyed* t, uint32_t words, uint32_t size, uint32_t most,
                            const uint64_t* seed) noexcept nogil:
    """False without memory."""
    memset(t, 0, sizeof(Keyed))
    t.words, t.size, t.most = words, size, most
    t.stride = (KEYED_HEAD + 8 * words + size + 7) & ~<size_t>7
    t.seed[0], t.seed[1] = seed[0] | 1, seed[1] | 1
    t.room = most if most < KEYED_FIRST else KEYED_FIRST
    t.mask = KEYED_FIRST - 1
    t.entries = _keyed_memory(t.room * t.stride)
    t.bucket = <uint32_t*>calloc(KEYED_FIRST, sizeof(uint32_t))
    return t.entries != NULL and t.bucket != NULL


cdef inline void keyed_free(Keyed* t) noexcept nogil:
    cdef uint32_t i
    if t.drop != NULL and t.entries != NULL:
        for i in range(t.count):
            t.drop(t.context, keyed_value(t, keyed_entry(t, i)))
    free(t.entries)
    free(t.bucket)
    t.entries, t.bucket, t.count = NULL, NULL, 0


cdef inline uint64_t keyed_hash(const Keyed* t, const uint64_t* key) noexcept nogil:
    cdef uint64_t h = t.seed[0]
    cdef uint32_t i
    for i in range(t.words):
        h = keyed_mum(h ^ key[i], t.seed[1])
    return h


cdef inline bint _keyed_grow(Keyed* t) noexcept nogil:
    """Room for twice as many entries; places are computed anew."""
    cdef uint64_t room = <uint64_t>t.room * 2
    cdef uint8_t* entries
    cdef uint32_t* bucket
    cdef uint32_t i, place, mask = t.mask
    cdef Entry* e
    if room > t.most:
        room = t.most
    entries = _keyed_memory(room * t.stride)
    if entries == NULL:
        return False
    memcpy(entries, t.entries, t.count * t.stride)
    free(t.entries)
    t.entries, t.room = entries, <uint32_t>room
    while mask + 1 < room:
        mask = mask * 2 + 1
    if mask != t.mask:
        bucket = <uint32_t*>calloc(<size_t>mask + 1, sizeof(uint32_t))
        if bucket == NULL:
            return False
        huge_pages(bucket, (<size_t>mask + 1) * sizeof(uint32_t))
        free(t.bucket)
        t.bucket, t.mask = bucket, mask
        for i in range(t.count):
            e = keyed_entry(t, i)
            place = <uint32_t>(keyed_hash(t, keyed_key(e)) & mask)
            e.chain = bucket[place]
            bucket[place] = i + 1
    return True


cdef inline uint32_t _keyed_evict(Keyed* t) noexcept nogil:
    cdef uint32_t i, k, oldest = t.hand % t.count
    cdef uint32_t* p
    cdef Entry* e
    for k in range(1, <uint32_t>KEYED_LOOK):
        i = (t.hand + k) % t.count
        if keyed_entry(t, i).stamp < keyed_entry(t, oldest).stamp:
            oldest = i
    t.hand = (t.hand + KEYED_LOOK) % t.count
    e = keyed_entry(t, oldest)
    p = &t.bucket[keyed_hash(t, keyed_key(e)) & t.mask]
    while p[0] != oldest + 1:
        p = &keyed_entry(t, p[0] - 1).chain
    p[0] = e.chain
    if t.drop != NULL:
        t.drop(t.context, keyed_value(t, e))
    t.evicted += 1
    return oldest + 1


cdef inline void keyed_fetch(const Keyed* t, uint64_t hash) noexcept nogil:
    """Bring what `keyed_find` will look at into the cache; the place must be there already."""
    cdef uint32_t i = t.bucket[hash & t.mask], k
    cdef uint8_t* p
    if i:
        p = t.entries + (i - 1) * t.stride
        for k in range(0, <uint32_t>t.stride, 64):
            prefetch(p + k)


cdef inline void* keyed_find(Keyed* t, const uint64_t* key, uint64_t hash, bint* fresh) noexcept nogil:
    """The value of ``key``; ``fresh``: it was not there, and is all zero now.  NULL without memory."""
    cdef uint32_t i = t.bucket[hash & t.mask]
    cdef Entry* e
    t.clock += 1
    while i:
        e = keyed_entry(t, i - 1)
        if keyed_key(e)[0] == key[0] and memcmp(keyed_key(e), key, 8 * t.words) == 0:
            e.stamp = t.clock
            fresh[0] = False
            return keyed_value(t, e)
        i = e.chain
    if t.count == t.most:
        i = _keyed_evict(t)
    else:
        if t.count == t.room and not _keyed_grow(t):
            return NULL
        t.count += 1
        i = t.count
    e = keyed_entry(t, i - 1)
    memcpy(keyed_key(e), key, 8 * t.words)
    memset(keyed_value(t, e), 0, t.size)
    e.chain = t.bucket[hash & t.mask]
    t.bucket[hash & t.mask] = i
    e.stamp = t.clock
    fresh[0] = True
    return keyed_value(t, e)
