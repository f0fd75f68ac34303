# A hash table from keys of fixed width to dense numbers 0, 1, 2 ..., in the order they were first seen.
# Open addressing, linear probing.  Keys are whole 64-bit words and stand in a dense array of their own,
# so that the numbered keys can be walked in order and a slot stays 8 bytes: 32 bits of hash, 32 of number.
# The place of a slot is the top bits of its hash: a larger table is filled from a smaller one front to back.
# Room is made beforehand (tables.pyx); nothing here allocates or fails.

from libc.stdint cimport uint32_t, uint64_t
from libc.string cimport memcmp, memcpy

cdef extern from *:
    """
    static inline uint64_t mum(uint64_t a, uint64_t b) {  /* both halves of the product matter */
        unsigned __int128 r = (unsigned __int128)a * b;
        return (uint64_t)r ^ (uint64_t)(r >> 64);
    }
    """
    uint64_t mum(uint64_t a, uint64_t b) noexcept nogil
    void prefetch "__builtin_prefetch"(const void* p) noexcept nogil

cdef enum:
    PREFETCH_FROM = 1 << 15     # slots: tables above 256 KiB are fetched ahead
    AHEAD = 256                 # keys hashed and fetched together

cdef struct Table:
    uint64_t* slots             # upper half of the hash << 32 | number + 1; 0 is free
    uint64_t* keys              # words of key 0, of key 1, ...
    uint64_t mask               # number of slots - 1
    int shift                   # the place of a hash is hash >> shift; at least 32
    uint64_t seed[2]            # secret, so that traffic cannot choose colliding keys
    uint32_t words              # of a key
    uint32_t count              # keys so far
    uint32_t room               # keys there is memory for; the slots are then at most 5/8 full

cdef inline uint64_t hash1(const Table* t, uint64_t key) noexcept nogil:
    return mum(key ^ t.seed[0], t.seed[1])

cdef inline uint64_t hash2(const Table* t, uint64_t a, uint64_t b) noexcept nogil:
    return mum(mum(a ^ t.seed[0], t.seed[1]) ^ b, t.seed[1])

cdef inline uint64_t hash_words(const Table* t, const uint64_t* key) noexcept nogil:
    cdef uint64_t h = t.seed[0]
    cdef uint32_t i
    for i in range(t.words):
        h = mum(h ^ key[i], t.seed[1])
    return h

cdef inline uint32_t table_find1(Table* t, uint64_t h, uint64_t key) noexcept nogil:
    """The number of a key of one word whose hash is h."""
    cdef uint64_t slot, tag = h >> 32 << 32, at = h >> t.shift
    while True:
        slot = t.slots[at]
        if slot == 0:
            t.slots[at] = tag | (t.count + 1)
            t.keys[t.count] = key
            t.count += 1
            return t.count - 1
        if slot >> 32 << 32 == tag and t.keys[<uint32_t>slot - 1] == key:
            return <uint32_t>slot - 1
        at = (at + 1) & t.mask

cdef inline uint32_t table_find2(Table* t, uint64_t h, uint64_t a, uint64_t b) noexcept nogil:
    cdef uint64_t slot, tag = h >> 32 << 32, at = h >> t.shift
    cdef uint64_t* key
    while True:
        slot = t.slots[at]
        if slot == 0:
            t.slots[at] = tag | (t.count + 1)
            key = t.keys + <size_t>t.count * 2
            key[0], key[1] = a, b
            t.count += 1
            return t.count - 1
        if slot >> 32 << 32 == tag:
            key = t.keys + <size_t>(<uint32_t>slot - 1) * 2
            if key[0] == a and key[1] == b:
                return <uint32_t>slot - 1
        at = (at + 1) & t.mask

cdef inline uint32_t table_find(Table* t, const uint64_t* key) noexcept nogil:
    """The number of a key of any width; it gets the next number if it is new."""
    cdef uint64_t h, tag, slot, at
    cdef size_t size = <size_t>t.words * 8
    if t.words == 1:
        return table_find1(t, hash1(t, key[0]), key[0])
    if t.words == 2:
        return table_find2(t, hash2(t, key[0], key[1]), key[0], key[1])
    h = hash_words(t, key)
    tag, at = h >> 32 << 32, h >> t.shift
    while True:
        slot = t.slots[at]
        if slot == 0:
            t.slots[at] = tag | (t.count + 1)
            memcpy(t.keys + <size_t>t.count * t.words, key, size)
            t.count += 1
            return t.count - 1
        if slot >> 32 << 32 == tag and memcmp(t.keys + <size_t>(<uint32_t>slot - 1) * t.words, key, size) == 0:
            return <uint32_t>slot - 1
        at = (at + 1) & t.mask

cdef inline void _fetch_slots(const Table* t, const uint64_t* h, uint32_t n) noexcept nogil:
    # Two rounds, so that the misses of the slots overlap, and then those of the keys.
    cdef uint32_t i
    cdef uint64_t slot
    for i in range(n):
        prefetch(t.slots + (h[i] >> t.shift))
    for i in range(n):
        slot = t.slots[h[i] >> t.shift]
        if slot:
            prefetch(t.keys + <size_t>(<uint32_t>slot - 1) * t.words)

cdef inline void _find_many1(Table* t, const uint64_t* h, const uint64_t* key, uint32_t n,
                             uint32_t* out) noexcept nogil:
    # table_find1 n times, the table's fields in registers.
    cdef uint64_t* slots = t.slots
    cdef uint64_t* keys = t.keys
    cdef uint64_t mask = t.mask, slot, at, tag, k
    cdef int shift = t.shift
    cdef uint32_t count = t.count, i
    for i in range(n):
        k, at, tag = key[i], h[i] >> shift, h[i] >> 32
        while True:
            slot = slots[at]
            if slot >> 32 == tag and slot and keys[<uint32_t>slot - 1] == k:
                out[i] = <uint32_t>slot - 1
                break
            if slot == 0:
                slots[at] = tag << 32 | (count + 1)
                keys[count] = k
                out[i] = count
                count += 1
                break
            at = (at + 1) & mask
    t.count = count

cdef inline void _find_many2(Table* t, const uint64_t* h, const uint64_t* a, const uint64_t* b, uint32_t n,
                             uint32_t* out) noexcept nogil:
    cdef uint64_t* slots = t.slots
    cdef uint64_t* keys = t.keys
    cdef uint64_t mask = t.mask, slot, at, tag, j, k
    cdef int shift = t.shift
    cdef uint64_t* key
    cdef uint32_t count = t.count, i
    for i in range(n):
        j, k, at, tag = a[i], b[i], h[i] >> shift, h[i] >> 32
        while True:
            slot = slots[at]
            if slot >> 32 == tag and slot:
                key = keys + <size_t>(<uint32_t>slot - 1) * 2
                if key[0] == j and key[1] == k:
                    out[i] = <uint32_t>slot - 1
                    break
            if slot == 0:
                slots[at] = tag << 32 | (count + 1)
                key = keys + <size_t>count * 2
                key[0], key[1] = j, k
                out[i] = count
                count += 1
                break
            at = (at + 1) & mask
    t.count = count

cdef inline void table_find_many(Table* t, const uint64_t** word, uint32_t n, uint32_t* out) noexcept nogil:
    """Numbers of n keys given word by word (word[j][i] is word j of key i); there is room for n more keys.

    At most 32 words.
    """
    cdef uint64_t h[AHEAD]
    cdef uint64_t key[32]
    cdef uint64_t s0 = t.seed[0], s1 = t.seed[1]
    cdef uint32_t i, j, start = 0, m
    cdef const uint64_t* a
    cdef const uint64_t* b
    while start < n:
        m = min(<uint32_t>AHEAD, n - start)
        a = word[0] + start
        if t.words == 1:
            for i in range(m):
                h[i] = mum(a[i] ^ s0, s1)
            if t.mask >= PREFETCH_FROM:
                _fetch_slots(t, h, m)
            _find_many1(t, h, a, m, out + start)
        elif t.words == 2:
            b = word[1] + start
            for i in range(m):
                h[i] = mum(mum(a[i] ^ s0, s1) ^ b[i], s1)
            if t.mask >= PREFETCH_FROM:
                _fetch_slots(t, h, m)
            _find_many2(t, h, a, b, m, out + start)
        else:
            for i in range(m):
                for j in range(t.words):
                    key[j] = word[j][start + i]
                out[start + i] = table_find(t, key)
        start += m
