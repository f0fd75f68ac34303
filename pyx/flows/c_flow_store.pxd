# Flows by their keys: entries in chunks that never move, slots of c_hash_table.pxd, and two lists in the order of the
# last packet: flows that are open, and flows that are over.  Free entries are a third one.
#
# The links of the lists are 8 bytes a flow apart from the entries: they stay in the cache longer.  What only the first
# packet of a flow writes is apart as well, so an entry has whole cache lines.

from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memcpy, memset
from posix.stdlib cimport posix_memalign
from c_bits cimport prefetch
from c_flow_entry cimport OVER, FlowEntry, FlowOrigin
from c_flow_key cimport KEY_BITS
from c_hash_table cimport (
    HashTable, mum, slots_add, slots_home, slots_next, slots_remove, slots_reserve, table_free)
from c_huge_pages cimport huge_pages

cdef enum:
    CHUNK_BITS = 15             # entries of a chunk: 2^15, 6 MiB
    CHUNK = 1 << CHUNK_BITS
    OPEN = 0
    ENDED = 1
    FREE = 2
    FIRST_LINKS = 1024
    LINE = 64
    HUGE_PAGE = 1 << 21

cdef extern from *:
    const uint32_t NO_FLOW "UINT32_MAX"

cdef struct FlowLink:
    uint32_t before
    uint32_t after

cdef struct FlowList:
    uint32_t first              # the longest without a packet
    uint32_t last

cdef struct FlowStore:
    HashTable index
    FlowEntry** chunks
    FlowLink* links
    FlowOrigin* origins
    FlowList lists[3]
    uint32_t count              # flows
    uint32_t made               # entries that were ever used
    uint32_t room               # links and slots there is memory for
    uint32_t max_count


cdef inline uint64_t flow_hash(const FlowStore* s, const uint64_t* key) noexcept nogil:
    cdef uint64_t seed = s.index.seed[1]
    cdef uint64_t h = mum(mum(mum(key[0] ^ s.index.seed[0], seed) ^ key[2], seed) ^ key[4], seed)
    if key[1] | key[3]:         # IPv6
        h = mum(mum(h ^ key[1], seed) ^ key[3], seed)
    return h


cdef inline FlowEntry* flow_at(const FlowStore* s, uint32_t number) noexcept nogil:
    return &s.chunks[number >> CHUNK_BITS][number & (CHUNK - 1)]


cdef inline uint64_t last_word(const FlowEntry* e) noexcept nogil:
    """The last word of the key, without the bits above it."""
    cdef uint64_t word
    memcpy(&word, &e.ports, 8)
    return word << (64 - KEY_BITS) >> (64 - KEY_BITS)


cdef inline uint64_t entry_hash(const FlowStore* s, const FlowEntry* e) noexcept nogil:
    """The hash of the key of a flow."""
    cdef uint64_t key[5]
    memcpy(key, e.key, 32)
    key[4] = last_word(e)
    return flow_hash(s, key)


cdef inline bint is_of(const FlowEntry* e, const uint64_t* key) noexcept nogil:
    """Whether this is the flow of the key."""
    return (e.key[0] == key[0] and e.key[2] == key[2] and last_word(e) == key[4] and e.key[1] == key[1]
            and e.key[3] == key[3])


cdef inline FlowEntry* _new_chunk(uint32_t first, uint32_t entries) noexcept nogil:
    """Memory for the entries from number ``first`` on; a large table has whole huge pages.  NULL: no memory."""
    cdef void* memory
    if posix_memalign(&memory, HUGE_PAGE if first else LINE, entries * sizeof(FlowEntry)):
        return NULL
    if first:
        huge_pages(memory, entries * sizeof(FlowEntry))
    return <FlowEntry*>memory


cdef inline void store_free(FlowStore* s) noexcept nogil:
    cdef uint32_t i
    if s.chunks != NULL:
        for i in range((s.made + CHUNK - 1) >> CHUNK_BITS):
            free(s.chunks[i])
    free(s.chunks)
    free(s.links)
    free(s.origins)
    table_free(&s.index)
    s.chunks, s.links, s.origins, s.made = NULL, NULL, NULL, 0


cdef inline bint _store_reserve(FlowStore* s, uint32_t room) noexcept nogil:
    cdef FlowLink* links = <FlowLink*>realloc(s.links, room * sizeof(FlowLink))
    cdef FlowOrigin* origins
    if links == NULL:
        return False
    s.links = links
    huge_pages(links, room * sizeof(FlowLink))
    origins = <FlowOrigin*>realloc(s.origins, room * sizeof(FlowOrigin))
    if origins == NULL:
        return False
    s.origins = origins
    if slots_reserve(&s.index, room) < 0:
        return False
    s.room = room
    return True


cdef inline bint store_init(FlowStore* s, uint32_t max_count, const uint64_t* seed) noexcept nogil:
    """An empty store of at most ``max_count`` flows; False: no memory."""
    cdef int i
    memset(s, 0, sizeof(FlowStore))
    s.index.words, s.max_count = 5, max_count
    s.index.seed[0], s.index.seed[1] = seed[0] | 1, seed[1] | 1
    for i in range(3):
        s.lists[i].first = s.lists[i].last = NO_FLOW
    s.chunks = <FlowEntry**>calloc((max_count >> CHUNK_BITS) + 1, sizeof(void*))
    return s.chunks != NULL and _store_reserve(s, min(max_count, <uint32_t>FIRST_LINKS))


cdef inline void _unlink(FlowStore* s, int which, uint32_t number) noexcept nogil:
    cdef FlowLink* link = &s.links[number]
    if link.before == NO_FLOW:
        s.lists[which].first = link.after
    else:
        s.links[link.before].after = link.after
    if link.after == NO_FLOW:
        s.lists[which].last = link.before
    else:
        s.links[link.after].before = link.before


cdef inline void _append(FlowStore* s, int which, uint32_t number) noexcept nogil:
    cdef FlowList* l = &s.lists[which]
    s.links[number].before, s.links[number].after = l.last, NO_FLOW
    if l.last == NO_FLOW:
        l.first = number
    else:
        s.links[l.last].after = number
    l.last = number


cdef inline void store_touch(FlowStore* s, uint32_t number, bint over) noexcept nogil:
    """The flow had a packet; ``over``: it belongs to the flows that have ended."""
    cdef FlowEntry* e = flow_at(s, number)
    cdef int now = ENDED if e.bits & OVER else OPEN
    cdef int then = ENDED if over else OPEN
    if now == then and s.lists[now].last == number:
        return
    _unlink(s, now, number)
    _append(s, then, number)
    e.bits = e.bits | OVER if over else e.bits & ~OVER


cdef inline uint32_t store_find(const FlowStore* s, const uint64_t* key, uint64_t hash) noexcept nogil:
    """The number of the flow with this key, or NO_FLOW."""
    cdef uint64_t at = slots_home(&s.index, hash)
    cdef uint32_t number
    while True:
        number = slots_next(&s.index, hash, &at)
        if number == NO_FLOW or is_of(flow_at(s, number), key):
            return number


cdef inline void store_prefetch_slot(const FlowStore* s, uint64_t hash) noexcept nogil:
    prefetch(&s.index.slots[slots_home(&s.index, hash)])


cdef inline uint32_t store_prefetch_entry(const FlowStore* s, uint64_t hash) noexcept nogil:
    """Prefetch the entry and the links that `store_find` will reach first; the slot was prefetched before.

    Returns the number of the flow, or NO_FLOW.
    """
    cdef uint64_t at = slots_home(&s.index, hash)
    cdef uint32_t number = slots_next(&s.index, hash, &at)
    cdef const char* entry
    if number != NO_FLOW:
        entry = <const char*>flow_at(s, number)
        prefetch(entry)
        prefetch(entry + 64)
        prefetch(entry + 128)
        prefetch(&s.links[number])
    return number


cdef inline void store_prefetch_neighbours(const FlowStore* s, uint32_t number) noexcept nogil:
    """Prefetch the links that `store_touch` will change; those of the flow were prefetched before."""
    if number != NO_FLOW:
        if s.links[number].before != NO_FLOW:
            prefetch(&s.links[s.links[number].before])
        if s.links[number].after != NO_FLOW:
            prefetch(&s.links[s.links[number].after])


cdef inline uint32_t store_add(FlowStore* s, const uint64_t* key, uint64_t hash) noexcept nogil:
    """A new flow, all zero but its key; there is room for it.  NO_FLOW: no memory."""
    cdef uint32_t number = s.lists[FREE].first, room
    cdef FlowEntry* e
    if number != NO_FLOW:
        _unlink(s, FREE, number)
    else:
        number = s.made
        if number == s.room:
            room = s.max_count if s.room > s.max_count // 2 else s.room * 2
            if not _store_reserve(s, room):
                return NO_FLOW
        if s.chunks[number >> CHUNK_BITS] == NULL:
            e = _new_chunk(number, min(<uint32_t>CHUNK, s.max_count - number))
            if e == NULL:
                return NO_FLOW
            s.chunks[number >> CHUNK_BITS] = e
        s.made += 1
    e = flow_at(s, number)
    memset(e, 0, sizeof(FlowEntry))
    memcpy(e, key, 40)
    slots_add(&s.index, hash, number)
    _append(s, OPEN, number)
    s.count += 1
    return number


cdef inline void store_remove(FlowStore* s, uint32_t number) noexcept nogil:
    cdef FlowEntry* e = flow_at(s, number)
    slots_remove(&s.index, entry_hash(s, e), number)
    _unlink(s, ENDED if e.bits & OVER else OPEN, number)
    _append(s, FREE, number)
    s.count -= 1
