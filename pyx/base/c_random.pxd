# Random numbers that are the same bytes on every machine: integers only, no libm, no floating point.

from libc.stdint cimport uint8_t, uint32_t, uint64_t

cdef extern from *:
    """
    static inline unsigned long long cfl_mulhi(unsigned long long a, unsigned long long b)
    { return (unsigned long long)((unsigned __int128)a * b >> 64); }
    static inline unsigned long long cfl_mul63(unsigned long long a, unsigned long long b)
    { return (unsigned long long)((unsigned __int128)a * b >> 63); }
    """
    uint64_t mulhi "cfl_mulhi"(uint64_t a, uint64_t b) noexcept nogil
    uint64_t mul63 "cfl_mul63"(uint64_t a, uint64_t b) noexcept nogil     # of probabilities; ONE63 is 1.0

cdef enum:
    POWERS = 32                     # packets of a flow are less than 2 ** POWERS

cdef extern from *:
    """
    #define CFL_ONE63 (1ULL << 63)
    """
    const uint64_t ONE63 "CFL_ONE63"

cdef struct Stream:                 # xoshiro256** (Blackman, Vigna)
    uint64_t s[4]

cdef inline uint64_t splitmix(uint64_t* state) noexcept nogil:
    cdef uint64_t z
    state[0] += 0x9E3779B97F4A7C15u
    z = state[0]
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u
    z = (z ^ z >> 27) * 0x94D049BB133111EBu
    return z ^ z >> 31

cdef inline void seed_stream(Stream* r, uint64_t seed, uint64_t stream) noexcept nogil:
    """Streams of one seed are independent: other failures leave the flows unchanged."""
    cdef uint64_t state = seed
    cdef int i
    state = splitmix(&state) ^ stream * 0xD1342543DE82EF95u
    for i in range(4):
        r.s[i] = splitmix(&state)

cdef inline uint64_t rotl(uint64_t x, int k) noexcept nogil:
    return x << k | x >> (64 - k)

cdef inline uint64_t draw(Stream* r) noexcept nogil:
    cdef uint64_t result = rotl(r.s[1] * 5, 7) * 9
    cdef uint64_t t = r.s[1] << 17
    r.s[2] ^= r.s[0]
    r.s[3] ^= r.s[1]
    r.s[1] ^= r.s[2]
    r.s[0] ^= r.s[3]
    r.s[2] ^= t
    r.s[3] = rotl(r.s[3], 45)
    return result

cdef inline uint64_t below(Stream* r, uint64_t n) noexcept nogil:
    """A number from 0 to n - 1, uniform except for a bias of n / 2**64."""
    return mulhi(draw(r), n)

cdef inline int squares(uint64_t* power, uint64_t keep, uint64_t n) noexcept nogil:
    """Set power[j] = keep ** (2 ** j) for each bit j of n; return the number of powers."""
    cdef int j = 0
    power[0] = keep
    while n >> (j + 1) and j + 1 < POWERS:
        power[j + 1] = mul63(power[j], power[j])
        j += 1
    return j + 1

cdef inline uint64_t survivors(const uint64_t* power, int bits, uint64_t n, uint64_t u) noexcept nogil:
    """Packets before the first lost one, at most n: the largest k with 1 - keep ** k <= u, u below ONE63."""
    cdef uint64_t k = 0, so_far = ONE63, limit = ONE63 - u, t
    cdef int j
    for j in range(bits - 1, -1, -1):
        if k + (<uint64_t>1 << j) <= n:
            t = mul63(so_far, power[j])
            if t >= limit:
                so_far = t
                k += <uint64_t>1 << j
    return k
