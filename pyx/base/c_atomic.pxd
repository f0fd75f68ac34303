# Atomic operations: the only file that uses memory orders.
#
# A lane has one writer.  It fills columns, then publishes the rows with one compare-and-swap of the tail word:
#
#   tail word    bits 0-47   rows published
#                bits 48-55  freezes in force (coordinators may overlap)
#                bits 56-63  freezes that were broken because their deadline had passed, modulo 256
#
#   publish      release: the columns, the zones and the block head are visible to each reader of the new tail.
#                Refused while the freeze count is not zero; bits 48-63 never change in a publish.
#   load         acquire: reads after it see all that was stored before the tail that it returned.
#   freeze/thaw  sequentially consistent read-modify-write.  A coordinator raises the count in all lanes, then
#                reads all tails: any publish after that fails, so the vector of tails was true at one instant.
#   break        the writer removes an expired freeze: count to zero, broken + 1, in one compare-and-swap.
#                A coordinator that finds `broken` changed when it thaws knows that its cut was not atomic.
#
# Fields with one writer that need no ordering (zones, owner, counts) are plain 8-byte relaxed accesses.

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from posix.time cimport clock_gettime, timespec
from c_posix cimport CLOCK_BOOTTIME

cdef extern from *:
    """
    #include <stdint.h>
    static inline uint64_t cfl_load(const uint64_t *p) { return __atomic_load_n(p, __ATOMIC_ACQUIRE); }
    static inline void cfl_store(uint64_t *p, uint64_t v) { __atomic_store_n(p, v, __ATOMIC_RELEASE); }
    static inline uint64_t cfl_peek(const uint64_t *p) { return __atomic_load_n(p, __ATOMIC_RELAXED); }
    static inline void cfl_poke(uint64_t *p, uint64_t v) { __atomic_store_n(p, v, __ATOMIC_RELAXED); }
    static inline uint32_t cfl_load32(const uint32_t *p) { return __atomic_load_n(p, __ATOMIC_ACQUIRE); }
    static inline void cfl_store32(uint32_t *p, uint32_t v) { __atomic_store_n(p, v, __ATOMIC_RELEASE); }
    static inline uint64_t cfl_or(uint64_t *p, uint64_t v) { return __atomic_fetch_or(p, v, __ATOMIC_ACQ_REL); }
    static inline uint32_t cfl_less32(uint32_t *p, uint32_t v) { return __atomic_sub_fetch(p, v, __ATOMIC_ACQ_REL); }
    static inline void cfl_more32(uint32_t *p, uint32_t v) { __atomic_fetch_add(p, v, __ATOMIC_ACQ_REL); }
    static inline int cfl_swap_release(uint64_t *p, uint64_t *seen, uint64_t v) {
        return __atomic_compare_exchange_n(p, seen, v, 0, __ATOMIC_RELEASE, __ATOMIC_RELAXED);
    }
    static inline int cfl_swap(uint64_t *p, uint64_t *seen, uint64_t v) {
        return __atomic_compare_exchange_n(p, seen, v, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
    }
    static inline int cfl_swap32(uint32_t *p, uint32_t *seen, uint32_t v) {
        return __atomic_compare_exchange_n(p, seen, v, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
    }
    static inline void cfl_touch(uint8_t *p) { __atomic_fetch_or(p, 0, __ATOMIC_RELAXED); }
    #if defined(__x86_64__)
    #define cfl_pause() __builtin_ia32_pause()
    #else
    #include <sched.h>
    #define cfl_pause() sched_yield()
    #endif
    static inline void cfl_fence(void) { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
    """
    uint64_t load_acquire "cfl_load"(const uint64_t* p) noexcept nogil
    void store_release "cfl_store"(uint64_t* p, uint64_t v) noexcept nogil
    uint64_t load_relaxed "cfl_peek"(const uint64_t* p) noexcept nogil
    void store_relaxed "cfl_poke"(uint64_t* p, uint64_t v) noexcept nogil
    uint32_t load_acquire32 "cfl_load32"(const uint32_t* p) noexcept nogil
    void store_release32 "cfl_store32"(uint32_t* p, uint32_t v) noexcept nogil
    uint64_t fetch_or "cfl_or"(uint64_t* p, uint64_t v) noexcept nogil
    uint32_t subtract32 "cfl_less32"(uint32_t* p, uint32_t v) noexcept nogil        # returns what is left
    void add32 "cfl_more32"(uint32_t* p, uint32_t v) noexcept nogil
    bint swap_release "cfl_swap_release"(uint64_t* p, uint64_t* seen, uint64_t v) noexcept nogil
    bint swap "cfl_swap"(uint64_t* p, uint64_t* seen, uint64_t v) noexcept nogil
    bint swap32 "cfl_swap32"(uint32_t* p, uint32_t* seen, uint32_t v) noexcept nogil
    void touch "cfl_touch"(uint8_t* p) noexcept nogil           # makes a page writable without changing it
    void fence "cfl_fence"() noexcept nogil
    void pause "cfl_pause"() noexcept nogil         # between two reads of a word that another core will change

cdef extern from *:
    """
    #define CFL_MAX_FREEZE_NS 60000000000ull
    """
    const uint64_t MAX_FREEZE_NS "CFL_MAX_FREEZE_NS"    # no freeze lasts longer, even with a later deadline

cdef enum:
    FREEZE_SHIFT = 48
    BROKEN_SHIFT = 56
    FREEZE_LIMIT = 255

cdef inline uint64_t tail_rows(uint64_t word) noexcept nogil:
    return word & ((<uint64_t>1 << FREEZE_SHIFT) - 1)

cdef inline uint32_t tail_freezes(uint64_t word) noexcept nogil:
    return <uint32_t>(word >> FREEZE_SHIFT) & 255

cdef inline uint32_t tail_broken(uint64_t word) noexcept nogil:
    return <uint32_t>(word >> BROKEN_SHIFT)

cdef inline bint tail_publish(uint64_t* tail, uint64_t rows) noexcept nogil:
    """Publish `rows` rows; False while the lane is frozen.  Only the lane's writer calls this."""
    cdef uint64_t word = load_relaxed(tail)
    while tail_freezes(word) == 0:
        if tail_rows(word) >= rows:
            return True
        if swap_release(tail, &word, (word >> FREEZE_SHIFT << FREEZE_SHIFT) | rows):
            return True
    return False

cdef inline bint tail_freeze(uint64_t* tail, uint64_t* before) noexcept nogil:
    """Raise the freeze count; `before` receives the previous word.  False when 255 freezes are in force."""
    cdef uint64_t word = load_acquire(tail)
    while tail_freezes(word) < FREEZE_LIMIT:
        if swap(tail, &word, word + (<uint64_t>1 << FREEZE_SHIFT)):
            before[0] = word
            return True
    return False

cdef inline bint tail_thaw(uint64_t* tail, uint32_t broken) noexcept nogil:
    """Lower the freeze count again; False when this freeze was broken in between."""
    cdef uint64_t word = load_acquire(tail)
    while tail_broken(word) == broken and tail_freezes(word) > 0:
        if swap(tail, &word, word - (<uint64_t>1 << FREEZE_SHIFT)):
            return True
    return False

cdef inline void tail_break(uint64_t* tail, uint64_t seen) noexcept nogil:
    """Remove all freezes if the word still equals `seen`."""
    cdef uint64_t broken = (<uint64_t>tail_broken(seen) + 1) & 255
    swap(tail, &seen, tail_rows(seen) | broken << BROKEN_SHIFT)

cdef inline uint64_t boot_now() noexcept nogil:
    """CLOCK_BOOTTIME in ns: the clock of freeze deadlines (monotonic, the same in all processes of a boot)."""
    cdef timespec t
    clock_gettime(CLOCK_BOOTTIME, &t)
    return <uint64_t>t.tv_sec * 1000000000 + t.tv_nsec

cdef inline bint tail_show(uint64_t* tail, const uint64_t* deadline, uint64_t rows) noexcept nogil:
    """Publish `rows` rows, breaking freezes past their deadline; False while one holds."""
    cdef uint64_t word, until, now
    cdef int _try
    for _try in range(2):
        if tail_publish(tail, rows):
            return True
        word = load_acquire(tail)
        until = load_acquire(deadline)
        now = boot_now()
        if tail_freezes(word) and now < until <= now + MAX_FREEZE_NS:
            return False
        if tail_freezes(word):
            tail_break(tail, word)
    return False
