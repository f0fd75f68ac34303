# Recorded packets for an end without a live peer, moved to the sequence numbers and time stamps of this end.

from libc.stdint cimport uint8_t, uint32_t
from libc.string cimport memcpy
from c_replay_packet cimport OFFLOADS, Packet
from c_bits cimport bswap32
from c_wire cimport be32

cdef enum:
    SYN = 2
    FIN = 1
    ACK = 16
    SACK = 5
    STAMPS = 8

# What an end has sent so far.
ctypedef struct Sender:
    bint begun
    uint32_t first          # sequence number of its SYN
    uint32_t stamp          # time stamp of its SYN; 0: none
    uint32_t reached        # highest sequence number, from the SYN


cdef inline const uint8_t* tcp_option(const uint8_t* tcp, int kind) noexcept nogil:
    """The option of this kind; NULL: there is none."""
    cdef uint32_t at = 20, head = (tcp[12] >> 4) << 2
    while at < head and tcp[at]:
        if tcp[at] == 1:
            at += 1
            continue
        if at + 1 >= head or tcp[at + 1] < 2 or at + tcp[at + 1] > head:
            return NULL
        if tcp[at] == kind:
            return tcp + at
        at += tcp[at + 1]
    return NULL


cdef inline const uint8_t* tcp_of(const uint8_t* ip) noexcept nogil:
    return ip + (40 if ip[0] >> 4 == 6 else (ip[0] & 15) << 2)


cdef inline void add_be32(uint8_t* p, uint32_t n) noexcept nogil:
    cdef uint32_t v = bswap32(be32(p) + n)
    memcpy(p, &v, 4)


cdef inline void note_sent(Sender* s, const Packet* p) noexcept nogil:
    """The end has sent a packet."""
    cdef const uint8_t* tcp = tcp_of(p.bytes + OFFLOADS)
    cdef const uint8_t* stamps
    cdef uint32_t after
    if tcp[13] & SYN and not s.begun:
        stamps = tcp_option(tcp, STAMPS)
        s.begun, s.first = True, be32(tcp + 4)
        s.stamp = be32(stamps + 2) if stamps != NULL else 0
    after = be32(tcp + 4) - s.first + p.length - p.head + <uint32_t>((tcp[13] & SYN) != 0) + (tcp[13] & FIN)
    if <int>(after - s.reached) > 0:
        s.reached = after


cdef inline void move_packet(Packet* p, const Sender* s) noexcept nogil:
    """Move what a packet says about the end that gets it: it counts from the SYN of this end.

    The checksum field has the sum of the pseudo header, which stays the same.
    """
    cdef uint8_t* tcp = <uint8_t*>tcp_of(p.bytes + OFFLOADS)
    cdef uint8_t* option
    cdef int edge
    if not tcp[13] & ACK:
        return
    add_be32(tcp + 8, s.first)
    option = <uint8_t*>tcp_option(tcp, STAMPS)
    if option != NULL:
        add_be32(option + 6, s.stamp)
    option = <uint8_t*>tcp_option(tcp, SACK)
    if option != NULL:
        for edge in range((option[1] - 2) // 4):
            add_be32(option + 2 + 4 * edge, s.first)
