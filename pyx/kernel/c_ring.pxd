# A TPACKET_V3 ring of an AF_PACKET socket, block by block: the kernel fills a block with packets and hands it over
# when it is full or its timeout expires; ring_next reads it and hands it back.
# Documentation/networking/packet_mmap.rst of the kernel.  Header only; ring.pyx wraps it.

from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t, int64_t
from libc.string cimport memcpy, memmove, memset
from c_atomic cimport load_acquire32, store_release32
from c_bits cimport expect, prefetch
from c_link_types cimport LINKTYPE_EN10MB, LINKTYPE_LINUX_SLL, link_of_hardware
from c_pcap cimport Frame, FRAME, MORE

cdef extern from "linux/if_packet.h" nogil:
    cdef struct sockaddr_ll:
        unsigned short sll_protocol     # network byte order
        int sll_ifindex
        unsigned short sll_hatype
        unsigned char sll_pkttype
        unsigned char sll_halen
        unsigned char sll_addr[8]
    cdef struct tpacket_hdr_variant1:
        uint32_t tp_vlan_tci
        uint16_t tp_vlan_tpid
    cdef struct tpacket3_hdr:
        uint32_t tp_next_offset
        uint32_t tp_sec
        uint32_t tp_nsec
        uint32_t tp_snaplen
        uint32_t tp_len
        uint32_t tp_status
        uint16_t tp_mac
        uint16_t tp_net
        tpacket_hdr_variant1 hv1
    cdef struct tpacket_hdr_v1:
        uint32_t block_status
        uint32_t num_pkts
        uint32_t offset_to_first_pkt
    cdef union tpacket_bd_header_u:
        tpacket_hdr_v1 bh1
    cdef struct tpacket_block_desc:
        tpacket_bd_header_u hdr
    enum: TP_STATUS_USER
    enum: TP_STATUS_KERNEL
    enum: TP_STATUS_VLAN_VALID
    enum: TP_STATUS_VLAN_TPID_VALID
    enum: TP_STATUS_TS_RAW_HARDWARE
    enum: PACKET_OUTGOING

cdef extern from *:
    """
    #include <linux/if_packet.h>
    enum { CFL_SLL_AT = TPACKET_ALIGN(sizeof(struct tpacket3_hdr)) };
    """
    enum: SLL_AT "CFL_SLL_AT"

cdef enum:
    # Bytes that the kernel leaves free before each packet (PACKET_RESERVE): a VLAN tag that it removed goes back
    # in, and a cooked header fits.
    RESERVE = 16
    VLAN_TAG = 4
    COOKED = 16                 # bytes of a LINUX_SLL header
    HEADER = 68                 # bytes before a packet: tpacket3_hdr and sockaddr_ll
    HW_LOOPBACK = 772           # ARPHRD_LOOPBACK

cdef struct RingState:
    uint8_t* map
    uint32_t block_size
    uint32_t blocks
    uint32_t at                 # block to read or to wait for
    uint8_t* packet             # the next packet of that block
    uint32_t left               # packets left in the block; 0 and held: the block is finished
    bint held
    bint loop                   # lo shows each packet twice, sent and received: keep the received ones
    uint16_t hatype             # of the last packet
    uint16_t link               # link type of hatype
    uint64_t packets            # read
    uint64_t skipped            # sent by lo
    uint64_t bad                # packets with headers that contradict the block
    uint64_t filled             # blocks
    uint64_t hardware           # packets with the time of the NIC


cdef inline void ring_give_back(RingState* r) noexcept nogil:
    """Return the finished block to the kernel."""
    cdef tpacket_block_desc* block = <tpacket_block_desc*>(r.map + <size_t>r.at * r.block_size)
    r.held, r.left = False, 0
    store_release32(&block.hdr.bh1.block_status, TP_STATUS_KERNEL)
    r.at += 1
    if r.at == r.blocks:
        r.at = 0


cdef inline bint ring_ready(const RingState* r) noexcept nogil:
    cdef tpacket_block_desc* block = <tpacket_block_desc*>(r.map + <size_t>r.at * r.block_size)
    return r.held or load_acquire32(&block.hdr.bh1.block_status) & TP_STATUS_USER


cdef inline uint32_t ring_waiting(const RingState* r) noexcept nogil:
    """Blocks that the kernel has handed over, also the one that is being read."""
    cdef tpacket_block_desc* block
    cdef uint32_t i, n = 0
    for i in range(r.blocks):
        block = <tpacket_block_desc*>(r.map + <size_t>i * r.block_size)
        n += load_acquire32(&block.hdr.bh1.block_status) & TP_STATUS_USER
    return n


cdef inline bint _open(RingState* r) noexcept nogil:
    cdef tpacket_block_desc* block = <tpacket_block_desc*>(r.map + <size_t>r.at * r.block_size)
    if not load_acquire32(&block.hdr.bh1.block_status) & TP_STATUS_USER:
        return False
    r.held = True
    r.filled += 1
    r.left = block.hdr.bh1.num_pkts
    r.packet = <uint8_t*>block + block.hdr.bh1.offset_to_first_pkt
    if block.hdr.bh1.offset_to_first_pkt > r.block_size - HEADER:
        r.left = 0
    return True


cdef inline void _cooked(Frame* f, const sockaddr_ll* from_, uint8_t* net, uint32_t head) noexcept nogil:
    """Write a LINUX_SLL header in place of the `head` bytes of link header before `net`."""
    cdef uint8_t* p = net - COOKED
    cdef uint16_t word
    p[0], p[1] = 0, from_.sll_pkttype
    word = from_.sll_hatype
    p[2], p[3] = word >> 8, word & 255
    p[4], p[5] = 0, from_.sll_halen
    memcpy(p + 6, from_.sll_addr, 8)
    memcpy(p + 14, &from_.sll_protocol, 2)
    f.data, f.cap, f.len = p, f.cap - head + COOKED, f.len - head + COOKED


cdef inline void _vlan(Frame* f, const tpacket3_hdr* h) noexcept nogil:
    """Insert the VLAN tag that the kernel removed, after the addresses."""
    cdef uint8_t* p = <uint8_t*>f.data - VLAN_TAG
    cdef uint32_t tpid = h.hv1.tp_vlan_tpid if h.tp_status & TP_STATUS_VLAN_TPID_VALID else 0x8100
    memmove(p, f.data, 12)
    p[12], p[13] = tpid >> 8, tpid & 255
    p[14], p[15] = h.hv1.tp_vlan_tci >> 8 & 255, h.hv1.tp_vlan_tci & 255
    f.data = p
    f.cap += VLAN_TAG
    f.len += VLAN_TAG


cdef inline int ring_next(RingState* r, Frame* f) noexcept nogil:
    """Read the next packet: FRAME, valid until the next call; MORE: none now."""
    cdef tpacket3_hdr* h
    cdef const sockaddr_ll* from_
    cdef uint8_t* block
    cdef size_t room
    while True:
        if r.left == 0:
            if r.held:
                ring_give_back(r)
            if not _open(r):
                return MORE
            if r.left == 0:
                continue
        block = r.map + <size_t>r.at * r.block_size
        h = <tpacket3_hdr*>r.packet
        r.left -= 1
        r.packets += 1
        room = r.block_size - (r.packet - block)
        if expect(h.tp_mac < HEADER + RESERVE or h.tp_net < h.tp_mac
                  or h.tp_mac + <uint64_t>h.tp_snaplen > room
                  or (r.left and h.tp_next_offset > room - HEADER), False):
            r.bad += r.left + 1             # the kernel does not do this
            r.packets += r.left
            r.left = 0
            continue
        r.packet += h.tp_next_offset
        prefetch(r.packet + h.tp_next_offset)           # about the position of the packet after the next
        prefetch(r.packet + h.tp_next_offset + 64)
        prefetch(r.packet + h.tp_next_offset + 128)
        from_ = <const sockaddr_ll*>(<uint8_t*>h + SLL_AT)
        if r.loop and from_.sll_pkttype == PACKET_OUTGOING and from_.sll_hatype == HW_LOOPBACK:
            r.skipped += 1
            continue
        if expect(from_.sll_hatype != r.hatype, False):
            r.hatype = from_.sll_hatype
            r.link = link_of_hardware(r.hatype)
        f.data, f.cap, f.len = <uint8_t*>h + h.tp_mac, h.tp_snaplen, h.tp_len
        f.ts = <int64_t>h.tp_sec * 1000000000 + h.tp_nsec
        f.offset, f.number, f.notes, f.link = 0, 0, 0, r.link
        f.iface = <uint32_t>from_.sll_ifindex if 0 < from_.sll_ifindex < 65536 else 65535
        if h.tp_status & TP_STATUS_TS_RAW_HARDWARE:
            r.hardware += 1
        if h.tp_status & TP_STATUS_VLAN_VALID and r.link == LINKTYPE_EN10MB and f.cap >= 14:
            _vlan(f, h)
        elif r.link == LINKTYPE_LINUX_SLL and h.tp_snaplen >= <uint32_t>(h.tp_net - h.tp_mac) and (
                h.tp_net + <uint64_t>h.tp_snaplen <= room + (h.tp_net - h.tp_mac)):
            _cooked(f, from_, <uint8_t*>h + h.tp_net, h.tp_net - h.tp_mac)
        return FRAME
