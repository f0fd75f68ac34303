# The field packet_digest: 64 bits of the bytes of a packet that stay the same from one place in a network to the next.
#
# Of IP, the captured bytes from the IP header to the end of the packet, without TTL or hop limit and without the
# header checksum, which every router changes.  Of other frames, the MAC addresses and the bytes after the link header.
# The constants are part of stored records: digests of logs of several hosts are compared.

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy
from c_hash_table cimport mum
from c_inet cimport Ip, Shell, find_shell
from c_link cimport Link, open_link
from c_packet cimport MAX_WIRE, _inner, read_ip
from c_pcap cimport Frame

cdef extern from *:
    """
    #define CFL_DIGEST_0 0xA0761D6478BD642Full
    #define CFL_DIGEST_1 0xE7037ED1A0B428DBull
    #define CFL_DIGEST_2 0x8EBC6AF09C88C6E3ull
    """
    const uint64_t DIGEST_0 "CFL_DIGEST_0"
    const uint64_t DIGEST_1 "CFL_DIGEST_1"
    const uint64_t DIGEST_2 "CFL_DIGEST_2"


cdef inline uint64_t _word(const uint8_t* p) noexcept nogil:
    cdef uint64_t word
    memcpy(&word, p, 8)
    return word


cdef inline uint64_t digest_bytes(uint64_t h, const uint8_t* p, uint32_t n) noexcept nogil:
    """`h` continued with n bytes; two chains, so that their multiplications overlap."""
    cdef uint64_t other = h ^ DIGEST_2
    cdef uint8_t[32] rest
    cdef uint32_t left = n, i
    while left >= 32:
        h = mum(_word(p) ^ DIGEST_1, _word(p + 8) ^ h)
        other = mum(_word(p + 16) ^ DIGEST_2, _word(p + 24) ^ other)
        p += 32
        left -= 32
    for i in range(32):
        rest[i] = 0
    memcpy(rest, p, left)
    h = mum(_word(rest) ^ DIGEST_1, _word(rest + 8) ^ h)
    other = mum(_word(rest + 16) ^ DIGEST_2, _word(rest + 24) ^ other)
    return mum(h ^ DIGEST_0 ^ n, other ^ DIGEST_1)


cdef inline uint64_t _ip_digest(const Ip* ip, const uint8_t* data, uint32_t end) noexcept nogil:
    """Of the packet that starts with the complete header ``ip.head``; ``end``: of the captured bytes."""
    cdef uint8_t[40] head
    cdef uint32_t size = 20 if ip.version == 4 else 40, at = <uint32_t>(ip.head - data)
    memcpy(head, ip.head, size)
    if ip.version == 4:
        head[8] = head[10] = head[11] = 0
    else:
        head[7] = 0
    if ip.stop < end:                               # what comes later is padding of the link
        end = ip.stop
    return digest_bytes(digest_bytes(DIGEST_0 ^ (ip.stop - at), head, size), data + at + size,
                        end - at - size if end > at + size else 0)


cdef inline uint64_t packet_digest(const Frame* f, bint inner) noexcept nogil:
    """Never 0, which means that there is no digest.  ``inner``: of the innermost packet of a tunnel."""
    cdef Link k
    cdef Ip ip
    cdef Shell s
    cdef uint32_t wire = f.len if f.len < MAX_WIRE else MAX_WIRE, at
    cdef uint64_t h
    if wire < f.cap:
        wire = f.cap
    open_link(&k, f.data, f.cap, wire, f.link)
    at = k.at
    if read_ip(&ip, &k):
        if inner and find_shell(&s, &ip, k.data, k.end):
            _inner(&k, &ip, &s)
        if ip.head != NULL and ip.head != ip.copy:
            h = _ip_digest(&ip, k.data, k.end)
            return h if h else 1
    if at > k.end:
        at = k.end
    h = mum(k.src ^ DIGEST_1, k.dst ^ DIGEST_2) ^ (wire - at) if k.has_mac else DIGEST_0 ^ (wire - at)
    h = digest_bytes(h, f.data + at, k.end - at)
    return h if h else 1
