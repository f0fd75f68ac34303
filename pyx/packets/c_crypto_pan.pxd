# Keyed one-to-one maps: of addresses with their prefixes kept (Crypto-PAn), of MAC addresses, of ports.
# J. Xu, J. Fan, M. H. Ammar, S. B. Moon: Prefix-Preserving IP Address Anonymization, ICNP 2002.

from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset
from c_bits cimport bswap64
from c_wire cimport be64

cdef extern from "aes128.h":
    ctypedef struct Aes128:
        int fast
    void aes_set_key(Aes128* a, const uint8_t* key) nogil
    void aes_encrypt(const Aes128* a, const uint8_t* data, uint8_t* out, uint32_t n) nogil

cdef enum:
    CACHE4 = 1 << 16                # addresses that are remembered; each has one place
    CACHE6 = 1 << 13
    CACHE_MAC = 1 << 12
    FEISTEL_ROUNDS = 8

cdef enum MacBits:
    MULTICAST = 0x10000000000        # the address is of a group; the next bit: given locally
    ALL_MACS = 0xFFFFFFFFFFFF

cdef struct Seen4:
    uint32_t address
    uint32_t hidden
    bint known

cdef struct Seen6:
    uint64_t address[2]
    uint64_t hidden[2]
    bint known

cdef struct SeenMac:
    uint64_t address
    uint64_t hidden
    bint known

cdef struct Pan:
    Aes128 addresses            # key of Crypto-PAn
    Aes128 others               # key of all else, made from it
    uint64_t pad[2]
    bint keep_mac
    bint keep_oui
    bint keep_payload
    bint ports
    Seen4 seen4[CACHE4]
    Seen6 seen6[CACHE6]
    SeenMac seen_mac[CACHE_MAC]
    uint16_t port[65536]


cdef inline void pan_set_key(Pan* pan, const uint8_t* key) noexcept nogil:
    """key: 16 bytes of the cipher, 16 bytes from which the pad is made, as in the reference implementation."""
    cdef uint8_t pad[16]
    cdef uint8_t other[16]
    cdef int i
    aes_set_key(&pan.addresses, key)
    aes_encrypt(&pan.addresses, key + 16, pad, 1)
    pan.pad[0], pan.pad[1] = be64(pad), be64(pad + 8)
    for i in range(16):
        other[i] = ~pad[i]
    aes_encrypt(&pan.addresses, other, other, 1)
    aes_set_key(&pan.others, other)
    _shuffle_ports(pan)


cdef inline void _shuffle_ports(Pan* pan) noexcept nogil:
    """A permutation of 1 to 65535 (Fisher and Yates); 0 stays, it means absent."""
    cdef uint64_t block[2]
    cdef uint32_t i, j
    for i in range(65536):
        pan.port[i] = i
    for i in range(65535, 1, -1):
        block[0], block[1] = i, 1
        aes_encrypt(&pan.others, <uint8_t*>block, <uint8_t*>block, 1)
        j = 1 + <uint32_t>(block[0] % i)
        pan.port[i], pan.port[j] = pan.port[j], pan.port[i]


cdef inline uint64_t _flips(Pan* pan, uint64_t high, uint64_t low, uint32_t start) noexcept nogil:
    """Which of the 32 bits from `start` on change: bit i by the first bit of the cipher of the i bits before it."""
    cdef uint8_t blocks[512]
    cdef uint64_t mask, word, flips = 0
    cdef uint32_t i, n
    for i in range(32):
        n = start + i
        if n < 64:
            mask = ~(~<uint64_t>0 >> n)
            word = bswap64((high & mask) | (pan.pad[0] & ~mask))
            memcpy(blocks + 16 * i, &word, 8)
            word = bswap64(pan.pad[1])
        else:
            mask = ~(~<uint64_t>0 >> (n - 64))
            word = bswap64(high)
            memcpy(blocks + 16 * i, &word, 8)
            word = bswap64((low & mask) | (pan.pad[1] & ~mask))
        memcpy(blocks + 16 * i + 8, &word, 8)
    aes_encrypt(&pan.addresses, blocks, blocks, 32)
    for i in range(32):
        flips = flips << 1 | blocks[16 * i] >> 7
    return flips


cdef inline uint32_t hide4(Pan* pan, uint32_t address) noexcept nogil:
    """An IPv4 address, in host order.  Two addresses share as many first bits as before."""
    cdef Seen4* seen = &pan.seen4[(address * <uint32_t>0x9E3779B1u) >> 16]
    if not seen.known or seen.address != address:
        seen.hidden = address ^ <uint32_t>_flips(pan, <uint64_t>address << 32, 0, 0)
        seen.address, seen.known = address, True
    return seen.hidden


cdef inline void hide6(Pan* pan, uint8_t* address) noexcept nogil:
    """An IPv6 address, in place."""
    cdef uint64_t high = be64(address), low = be64(address + 8), word
    cdef Seen6* seen = &pan.seen6[((high ^ low * 3) * <uint64_t>0x9E3779B97F4A7C15u) >> 51]
    if not seen.known or seen.address[0] != high or seen.address[1] != low:
        seen.hidden[0] = high ^ (_flips(pan, high, low, 0) << 32 | _flips(pan, high, low, 32))
        seen.hidden[1] = low ^ (_flips(pan, high, low, 64) << 32 | _flips(pan, high, low, 96))
        seen.address[0], seen.address[1], seen.known = high, low, True
    word = bswap64(seen.hidden[0])
    memcpy(address, &word, 8)
    word = bswap64(seen.hidden[1])
    memcpy(address + 8, &word, 8)


cdef inline uint64_t _feistel(Pan* pan, uint64_t value, uint32_t half, uint64_t tweak) noexcept nogil:
    """A permutation of the numbers of 2 * half bits, another one for each `tweak`."""
    cdef uint64_t mask = (<uint64_t>1 << half) - 1
    cdef uint64_t left = value >> half, right = value & mask, next
    cdef uint64_t block[2]
    cdef uint32_t i
    for i in range(FEISTEL_ROUNDS):
        block[0], block[1] = right | <uint64_t>i << 56, tweak << 16 | half << 8
        aes_encrypt(&pan.others, <uint8_t*>block, <uint8_t*>block, 1)
        next = left ^ (block[0] & mask)
        left, right = right, next
    return left << half | right


cdef inline uint64_t _other_mac(Pan* pan, uint64_t mac) noexcept nogil:
    cdef uint64_t bits
    if pan.keep_oui and not mac & MULTICAST:    # that of a group has a part of an IP address
        return mac & ~<uint64_t>0xFFFFFF | _feistel(pan, mac & 0xFFFFFF, 12, mac >> 24)
    bits = _feistel(pan, mac >> 42 << 40 | mac & (MULTICAST - 1), 23, 0)
    return bits >> 40 << 42 | mac & (MULTICAST * 3) | bits & (MULTICAST - 1)


cdef inline uint64_t hide_mac(Pan* pan, uint64_t mac) noexcept nogil:
    """A MAC address.  Broadcast and zero stay, and the bits for groups and for addresses given locally."""
    cdef SeenMac* seen
    if pan.keep_mac or mac == 0 or mac == ALL_MACS:
        return mac
    seen = &pan.seen_mac[(mac * <uint64_t>0x9E3779B97F4A7C15u) >> 52]
    if not seen.known or seen.address != mac:
        seen.hidden = _other_mac(pan, mac)
        while seen.hidden == 0 or seen.hidden == ALL_MACS:
            seen.hidden = _other_mac(pan, seen.hidden)
        seen.address, seen.known = mac, True
    return seen.hidden


cdef inline uint16_t hide_port(const Pan* pan, uint16_t port) noexcept nogil:
    return pan.port[port] if pan.ports else port
