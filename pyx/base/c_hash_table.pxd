# Hash table from keys of whole 64-bit words to dense numbers 0, 1, 2, ... in order of insertion.
#
# Open addressing, linear probing.  A slot is 8 bytes: 32 bits of hash, 32 bits of number + 1.  The home of a slot is
# the top bits of its hash, so a table grows, and a slot moves, without reading a key.
#
# HashTable    never drops a key.  Keys are stored in a dense array and can be read in order of their numbers.
#              `table_reserve` makes room; inserting then neither allocates nor fails.
# slots_*      a HashTable without keys: an index over entries that the caller stores and compares, and removes.
#              Several entries may have one hash; `slots_next` returns them in the order in which they were added.
# LruTable     the same slots over entries of key and value, at most `max_count`.  A full table evicts one entry for
#              each new key: of the next EVICT_FROM entries, in turn, the least recently used.  (An exact LRU list
#              would cost two more cache misses a lookup.)  The numbers of entries do not change.  At most 5/16 of the
#              slots are used: a walk over slots of other keys costs more than the memory.

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memcmp, memcpy, memset
from posix.stdlib cimport posix_memalign
from c_bits cimport prefetch
from c_huge_pages cimport huge_pages

cdef extern from *:
    """
    static inline uint64_t mum(uint64_t a, uint64_t b) {  /* both halves of the product matter */
        unsigned __int128 r = (unsigned __int128)a * b;
        return (uint64_t)r ^ (uint64_t)(r >> 64);
    }
    #define CFL_MAX_KEYS (5ull << 29)
    """
    uint64_t mum(uint64_t a, uint64_t b) noexcept nogil
    const uint64_t MAX_KEYS "CFL_MAX_KEYS"      # 2^32 slots, 5/8 full

cdef enum:
    MIN_BITS = 10               # of slots: 2^10
    PREFETCH_FROM = 1 << 15     # slots: larger tables (256 KiB) are prefetched
    AHEAD = 256                 # keys hashed and prefetched together
    FIRST_ENTRIES = 1024        # entries an LruTable has memory for at first
    ENTRY_HEAD = 8              # bytes of an entry before its key
    EVICT_FROM = 16             # entries compared to find one to evict
    CACHED = 64                 # entries that are in the cache without prefetching

cdef extern from *:
    const uint32_t NOT_FOUND "UINT32_MAX"

cdef struct HashTable:
    uint64_t* slots             # upper half of the hash << 32 | number + 1; 0 is free
    uint64_t* keys              # words of key 0, of key 1, ...; NULL if others store the keys
    uint64_t mask               # number of slots - 1
    int shift                   # home of a hash: hash >> shift; at least 32
    uint64_t seed[2]            # secret, so that traffic cannot choose colliding keys
    uint32_t words              # of a key
    uint32_t count              # keys inserted
    uint32_t room               # keys there is memory for; the slots are then at most 5/8 full

ctypedef void (*drop_fn)(void* context, void* value) noexcept nogil

cdef struct LruTable:
    HashTable index
    uint8_t* entries            # of `stride` bytes: time of last use, key, value
    size_t stride
    uint64_t clock              # lookups
    uint64_t evicted
    uint32_t size               # bytes of a value
    uint32_t room               # entries there is memory for
    uint32_t max_count
    uint32_t next               # where the next search for an entry to evict starts
    drop_fn drop                # called for each value dropped, or NULL
    void* context


# -- slots

cdef inline int slots_reserve(HashTable* t, uint64_t need) noexcept nogil:
    """Slots for ``need`` keys, at most 5/8 full; -1: no memory, the table is unchanged."""
    cdef uint64_t slots = <uint64_t>1 << MIN_BITS, at, i, start = 0
    cdef int shift = 64 - MIN_BITS
    cdef uint64_t* fresh
    if need > MAX_KEYS:
        return -1
    while slots // 8 * 5 < need:
        slots *= 2
        shift -= 1
    if t.slots != NULL and slots <= t.mask + 1:
        return 0
    fresh = <uint64_t*>calloc(slots, 8)
    if fresh == NULL:
        return -1
    huge_pages(fresh, slots * 8)
    if t.slots != NULL:
        while t.slots[start]:           # from a free slot on, slots of one home are met in the order of insertion
            start += 1
        for i in range(start + 1, start + 1 + t.mask):
            if t.slots[i & t.mask]:
                at = t.slots[i & t.mask] >> shift
                while fresh[at]:
                    at = (at + 1) & (slots - 1)
                fresh[at] = t.slots[i & t.mask]
    free(t.slots)
    t.slots, t.mask, t.shift = fresh, slots - 1, shift
    return 0

cdef inline void slots_add(HashTable* t, uint64_t hash, uint32_t number) noexcept nogil:
    """A slot for ``number``; slots are reserved."""
    cdef uint64_t at = hash >> t.shift
    while t.slots[at]:
        at = (at + 1) & t.mask
    t.slots[at] = hash >> 32 << 32 | (<uint64_t>number + 1)

cdef inline uint32_t slots_next(const HashTable* t, uint64_t hash, uint64_t* at) noexcept nogil:
    """The number in the next slot that may have this hash, or NOT_FOUND; ``at``: first `slots_home`, then not changed
    by the caller.  Only the upper half of the hash is compared."""
    cdef uint64_t slot
    while True:
        slot = t.slots[at[0]]
        if slot == 0:
            return NOT_FOUND
        at[0] = (at[0] + 1) & t.mask
        if slot >> 32 == hash >> 32:
            return <uint32_t>slot - 1

cdef inline uint64_t slots_home(const HashTable* t, uint64_t hash) noexcept nogil:
    return hash >> t.shift

cdef inline void slots_remove(HashTable* t, uint64_t hash, uint32_t number) noexcept nogil:
    """Free the slot of ``number``, which must have one."""
    cdef uint64_t* slots = t.slots
    cdef uint64_t mask = t.mask, hole = hash >> t.shift, at
    while <uint32_t>slots[hole] != number + 1:
        hole = (hole + 1) & mask
    # Slots after the hole move back, unless that would put them before their home.
    at = hole
    while True:
        at = (at + 1) & mask
        if slots[at] == 0:
            break
        if ((at - (slots[at] >> t.shift)) & mask) >= ((at - hole) & mask):
            slots[hole] = slots[at]
            hole = at
    slots[hole] = 0

cdef inline void slots_clear(HashTable* t) noexcept nogil:
    if t.slots != NULL:
        memset(t.slots, 0, (t.mask + 1) * 8)

cdef inline int table_reserve(HashTable* t, uint64_t extra) noexcept nogil:
    """Make room for ``extra`` more keys; -1: no memory, the table is unchanged."""
    cdef uint64_t need = t.count + extra, slots = <uint64_t>1 << MIN_BITS, room
    cdef uint64_t* keys
    if need <= t.room:
        return 0
    if need > MAX_KEYS:
        return -1
    while slots // 8 * 5 < need:
        slots *= 2
    room = slots // 8 * 5
    keys = <uint64_t*>realloc(t.keys, room * t.words * 8)
    if keys == NULL:
        return -1
    t.keys = keys
    huge_pages(keys, room * t.words * 8)
    if slots_reserve(t, need) < 0:
        return -1
    t.room = <uint32_t>room
    return 0

cdef inline uint64_t table_memory(const HashTable* t) noexcept nogil:
    """Bytes of its slots and keys."""
    if t.slots == NULL:
        return 0
    return (t.mask + 1) * 8 + (<uint64_t>t.room * t.words * 8 if t.keys != NULL else 0)

cdef inline void table_free(HashTable* t) noexcept nogil:
    free(t.slots)
    free(t.keys)
    t.slots = t.keys = NULL
    t.count = t.room = 0


# -- hash functions

cdef inline uint64_t hash1(const HashTable* t, uint64_t key) noexcept nogil:
    return mum(key ^ t.seed[0], t.seed[1])

cdef inline uint64_t hash2(const HashTable* t, uint64_t a, uint64_t b) noexcept nogil:
    return mum(mum(a ^ t.seed[0], t.seed[1]) ^ b, t.seed[1])

cdef inline uint64_t hash_words(const HashTable* t, const uint64_t* key) noexcept nogil:
    cdef uint64_t h = t.seed[0]
    cdef uint32_t i
    for i in range(t.words):
        h = mum(h ^ key[i], t.seed[1])
    return h


# -- lookup

cdef inline uint32_t table_find1(const HashTable* t, uint64_t key) noexcept nogil:
    """The number of a key of one word, or NOT_FOUND."""
    cdef uint64_t h, slot, at
    if t.slots == NULL:
        return NOT_FOUND
    h = hash1(t, key)
    at = h >> t.shift
    while True:
        slot = t.slots[at]
        if slot == 0:
            return NOT_FOUND
        if slot >> 32 == h >> 32 and t.keys[<uint32_t>slot - 1] == key:
            return <uint32_t>slot - 1
        at = (at + 1) & t.mask

cdef inline uint32_t table_find(const HashTable* t, const uint64_t* key) noexcept nogil:
    """The number of a key of any width, or NOT_FOUND."""
    cdef uint64_t h, slot, at
    cdef size_t size = <size_t>t.words * 8
    if t.slots == NULL:
        return NOT_FOUND
    h = hash_words(t, key)
    at = h >> t.shift
    while True:
        slot = t.slots[at]
        if slot == 0:
            return NOT_FOUND
        if slot >> 32 == h >> 32 and memcmp(t.keys + <size_t>(<uint32_t>slot - 1) * t.words, key, size) == 0:
            return <uint32_t>slot - 1
        at = (at + 1) & t.mask


# -- insertion: the number of a key; a new key gets the next number

cdef inline uint32_t table_insert1(HashTable* t, uint64_t h, uint64_t key) noexcept nogil:
    """The number of a key of one word; h: its hash."""
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

cdef inline uint32_t table_insert2(HashTable* t, uint64_t h, uint64_t a, uint64_t b) noexcept nogil:
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

cdef inline uint32_t table_insert(HashTable* t, const uint64_t* key) noexcept nogil:
    """The number of a key of any width."""
    cdef uint64_t h, tag, slot, at
    cdef size_t size = <size_t>t.words * 8
    if t.words == 1:
        return table_insert1(t, hash1(t, key[0]), key[0])
    if t.words == 2:
        return table_insert2(t, hash2(t, key[0], key[1]), key[0], key[1])
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

cdef inline void _fetch_slots(const HashTable* t, const uint64_t* h, uint32_t n) noexcept nogil:
    # In two rounds, so that the cache misses of the slots overlap, then those of the keys.
    cdef uint32_t i
    cdef uint64_t slot
    for i in range(n):
        prefetch(t.slots + (h[i] >> t.shift))
    for i in range(n):
        slot = t.slots[h[i] >> t.shift]
        if slot:
            prefetch(t.keys + <size_t>(<uint32_t>slot - 1) * t.words)

cdef inline void _insert_many1(HashTable* t, const uint64_t* h, const uint64_t* key, uint32_t n,
                               uint32_t* out) noexcept nogil:
    # table_insert1 n times, with the fields of the table in registers.
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

cdef inline void _insert_many2(HashTable* t, const uint64_t* h, const uint64_t* a, const uint64_t* b, uint32_t n,
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

cdef inline void table_insert_many(HashTable* t, const uint64_t** word, uint32_t n, uint32_t* out) noexcept nogil:
    """Numbers of n keys, given by columns: word[j][i] is word j of key i.  At most 32 words; room is reserved."""
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
            _insert_many1(t, h, a, m, out + start)
        elif t.words == 2:
            b = word[1] + start
            for i in range(m):
                h[i] = mum(mum(a[i] ^ s0, s1) ^ b[i], s1)
            if t.mask >= PREFETCH_FROM:
                _fetch_slots(t, h, m)
            _insert_many2(t, h, a, b, m, out + start)
        else:
            for i in range(m):
                for j in range(t.words):
                    key[j] = word[j][start + i]
                out[start + i] = table_insert(t, key)
        start += m


# -- with a limit: values in entries, evicted when the table is full

cdef inline uint8_t* lru_entry(const LruTable* t, uint32_t number) noexcept nogil:
    return t.entries + number * t.stride

cdef inline uint64_t* lru_key(const LruTable* t, uint32_t number) noexcept nogil:
    return <uint64_t*>(lru_entry(t, number) + ENTRY_HEAD)

cdef inline void* lru_value(const LruTable* t, uint32_t number) noexcept nogil:
    return lru_entry(t, number) + ENTRY_HEAD + 8 * t.index.words

cdef inline uint32_t lru_number(const LruTable* t, const void* value) noexcept nogil:
    """The number of the entry that has this value."""
    return <uint32_t>(<size_t>(<const uint8_t*>value - t.entries) / t.stride)

cdef inline uint8_t* _entry_memory(size_t size) noexcept nogil:
    cdef void* memory
    if posix_memalign(&memory, 64, size):
        return NULL
    huge_pages(memory, size)
    return <uint8_t*>memory

cdef inline bint lru_init(LruTable* t, uint32_t words, uint32_t size, uint32_t max_count,
                          const uint64_t* seed) noexcept nogil:
    """An empty table of at most ``max_count`` values of ``size`` bytes; False: no memory."""
    memset(t, 0, sizeof(LruTable))
    t.index.words, t.size, t.max_count = words, size, max_count
    t.stride = (ENTRY_HEAD + 8 * words + size + 7) & ~<size_t>7
    t.index.seed[0], t.index.seed[1] = seed[0] | 1, seed[1] | 1
    t.room = max_count if max_count < FIRST_ENTRIES else FIRST_ENTRIES
    t.entries = _entry_memory(t.room * t.stride)
    return t.entries != NULL and slots_reserve(&t.index, 2 * <uint64_t>t.room) == 0

cdef inline void lru_free(LruTable* t) noexcept nogil:
    cdef uint32_t i
    if t.drop != NULL and t.entries != NULL:
        for i in range(t.index.count):
            t.drop(t.context, lru_value(t, i))
    free(t.entries)
    t.entries = NULL
    table_free(&t.index)

cdef inline uint64_t lru_hash(const LruTable* t, const uint64_t* key) noexcept nogil:
    return hash_words(&t.index, key)

cdef inline void lru_prefetch_slot(const LruTable* t, uint64_t hash) noexcept nogil:
    if t.index.count > CACHED:
        prefetch(&t.index.slots[hash >> t.index.shift])

cdef inline uint32_t lru_guess(const LruTable* t, uint64_t hash) noexcept nogil:
    """The number of the entry that `lru_insert` will compare first, or NOT_FOUND."""
    cdef uint64_t slot, at = hash >> t.index.shift
    while True:
        slot = t.index.slots[at]
        if slot == 0:
            return NOT_FOUND
        if slot >> 32 == hash >> 32:
            return <uint32_t>slot - 1
        at = (at + 1) & t.index.mask

cdef inline void* lru_peek(const LruTable* t, uint64_t hash) noexcept nogil:
    """The value that `lru_insert` will compare first, to prefetch a part of it; NULL: none, or it is in the cache."""
    cdef uint32_t number = lru_guess(t, hash) if t.index.count > CACHED else NOT_FOUND
    return NULL if number == NOT_FOUND else lru_value(t, number)

cdef inline void* lru_hit2(LruTable* t, uint32_t guess, uint64_t a, uint64_t b) noexcept nogil:
    """As `lru_insert` for a key of two words, when it is that of the entry ``guess`` (`lru_guess`); NULL: it is not."""
    cdef uint64_t* entry
    if guess == NOT_FOUND:
        return NULL
    entry = <uint64_t*>lru_entry(t, guess)
    if entry[1] != a or entry[2] != b:
        return NULL
    t.clock += 1
    entry[0] = t.clock
    return entry + 3

cdef inline void lru_prefetch_entry(const LruTable* t, uint64_t hash) noexcept nogil:
    """Prefetch the entry that `lru_insert` will compare; its slot was prefetched before."""
    cdef uint8_t* entry = <uint8_t*>lru_peek(t, hash)
    cdef uint32_t k
    if entry == NULL:
        return
    entry -= ENTRY_HEAD + 8 * t.index.words
    for k in range(0, <uint32_t>t.stride, 64):
        prefetch(entry + k)

cdef inline bint _lru_grow(LruTable* t) noexcept nogil:
    """Memory for twice as many entries; their numbers stay."""
    cdef uint64_t room = <uint64_t>t.room * 2
    cdef uint8_t* entries
    if room > t.max_count:
        room = t.max_count
    entries = _entry_memory(room * t.stride)
    if entries == NULL:
        return False
    memcpy(entries, t.entries, t.index.count * t.stride)
    free(t.entries)
    t.entries, t.room = entries, <uint32_t>room
    return slots_reserve(&t.index, 2 * room) == 0

cdef inline uint32_t _lru_evict(LruTable* t) noexcept nogil:
    """The number of the entry that was evicted; its slot is free again."""
    cdef uint32_t i, k, oldest = t.next % t.index.count
    for k in range(1, <uint32_t>EVICT_FROM):
        i = (t.next + k) % t.index.count
        if (<uint64_t*>lru_entry(t, i))[0] < (<uint64_t*>lru_entry(t, oldest))[0]:
            oldest = i
    t.next = (t.next + EVICT_FROM) % t.index.count
    slots_remove(&t.index, hash_words(&t.index, lru_key(t, oldest)), oldest)
    if t.drop != NULL:
        t.drop(t.context, lru_value(t, oldest))
    t.evicted += 1
    return oldest

cdef inline uint32_t _lru_find(const LruTable* t, const uint64_t* key, uint64_t hash, uint64_t* at) noexcept nogil:
    """The number of a key, or NOT_FOUND; ``at``: its slot, or the first free one."""
    cdef uint64_t slot, tag = hash >> 32, mask = t.index.mask
    cdef uint64_t* slots = t.index.slots
    cdef uint64_t* other
    cdef uint32_t k
    at[0] = hash >> t.index.shift
    while True:
        slot = slots[at[0]]
        if slot == 0:
            return NOT_FOUND
        if slot >> 32 == tag:
            other = lru_key(t, <uint32_t>slot - 1)
            k = 0
            while k < t.index.words and other[k] == key[k]:
                k += 1
            if k == t.index.words:
                return <uint32_t>slot - 1
        at[0] = (at[0] + 1) & mask

cdef inline void* lru_find(const LruTable* t, const uint64_t* key, uint64_t hash) noexcept nogil:
    """The value of ``key``, or NULL; does not count as a use for LRU."""
    cdef uint64_t at
    cdef uint32_t number = _lru_find(t, key, hash, &at)
    return lru_value(t, number) if number != NOT_FOUND else NULL

cdef inline void* lru_insert(LruTable* t, const uint64_t* key, uint64_t hash, bint* fresh) noexcept nogil:
    """The value of ``key``; ``fresh``: the key is new, its value all zero.  NULL: no memory."""
    cdef uint64_t at
    cdef uint32_t number = _lru_find(t, key, hash, &at)
    t.clock += 1
    fresh[0] = number == NOT_FOUND
    if fresh[0]:
        if t.index.count == t.max_count:
            number = _lru_evict(t)
            _lru_find(t, key, hash, &at)
        else:
            if t.index.count == t.room:
                if not _lru_grow(t):
                    return NULL
                _lru_find(t, key, hash, &at)
            number = t.index.count
            t.index.count += 1
        t.index.slots[at] = hash >> 32 << 32 | (number + 1)
        memcpy(lru_key(t, number), key, 8 * t.index.words)
        memset(lru_value(t, number), 0, t.size)
    (<uint64_t*>lru_entry(t, number))[0] = t.clock
    return lru_value(t, number)
