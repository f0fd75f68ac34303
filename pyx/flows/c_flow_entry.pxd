# One flow in memory: 192 bytes, three cache lines, without pointers.  All zero is a flow without packets.

from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t, int64_t

cdef enum:
    FIN = 1
    SYN = 2
    RST = 4
    ACK = 16
    ICMP = 1
    TCP = 6
    UDP = 17
    ICMP6 = 58

# FlowEntry.bits
cdef enum:
    HIGH_END = 1                # the originator is the higher end of the key
    SYN_TIMED = 2               # syn_rtt has the time of a SYN
    SYN_ANSWERED = 4            # syn_rtt is a round trip
    ANSWER_TIMED = 8            # ack_rtt has the time of a SYN-ACK
    ANSWER_ACKED = 16           # ack_rtt is a round trip
    OVER = 32                   # the connection has ended: the flow is in the list of those

# FlowSide.bits
cdef enum:
    STATE = 7                   # of TcpState
    DUPLICATES = 24             # 8 * repetitions of the last ACK, up to 3
    ONE_DUPLICATE = 8
    ACKED = 32                  # the letter a is in the history
    SENT = 64                   # the letter d is in the history
    WAS_CLOSED = 128            # RESET after CLOSED

cdef struct FlowSide:           # what one end sent
    uint64_t packets
    uint64_t bytes              # of IP
    uint64_t payload
    uint32_t base               # initial sequence number; 0: unknown
    uint32_t next               # the highest sequence number sent, plus one; 0: unknown
    uint32_t next_us            # time of the last change of `next`, in microseconds, modulo 2^32
    uint32_t ack                # of the last segment
    uint32_t again              # segments sent again
    uint32_t late               # segments out of order
    uint16_t window             # of the last segment, as sent
    uint16_t flags              # TCP flags of all segments
    uint16_t zero_windows
    uint8_t bits
    uint8_t resets

cdef struct FlowEntry:
    uint64_t key[4]             # this and the next four: see c_flow_key.pxd
    uint32_t ports
    uint8_t version
    uint8_t proto
    uint8_t ways
    uint8_t bits
    int64_t first
    int64_t last
    int64_t syn_rtt
    int64_t ack_rtt
    uint64_t history            # letters, see c_flow_state.pxd
    FlowSide side[2]            # originator, responder

cdef struct FlowOrigin:         # of the first packet
    uint32_t vni
    uint16_t vlan
    uint8_t tunnel

cdef struct FlowPacket:
    int64_t ts
    uint32_t bytes
    uint32_t size               # of the payload
    uint32_t seq
    uint32_t ack
    uint32_t flags
    uint16_t window
    uint8_t proto
    int side                    # of the sender: 0 if it is the lower end of the key
