# One TCP connection as `confluo-replay explain` follows it: structures and constants.
# tests/support/twin_explain.py has all rules in plain Python.

from libc.stdint cimport int8_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from c_chunks cimport Chunks, chunk_item

cdef enum:
    FIN = 1
    SYN = 2
    RST = 4
    ACK = 16
    EDGES = 8                   # of SACK blocks
    MAX_AGAIN = 64              # retransmissions watched for a side
    DUP_THRESHOLD = 3
    INITIAL_WINDOW = 10         # segments
    DEFAULT_MSS = 1460
    FIRST_ROOM = 4              # items of the first lists of a side

cdef enum State:
    OPEN
    RECOVERY
    LOSS

# Numbers of labels.py; a test compares them.
cdef enum Event:
    E_NONE
    E_GAP
    E_RETRANSMISSION
    E_ACK
    E_PROBE
    E_ORDER

cdef enum Label:
    L_NONE
    L_RTO
    L_TLP
    L_FAST_RTX
    L_LATE_FR
    L_AFTER_RTO
    L_SPURIOUS
    L_DELAYED_ACK
    L_DELACK_WINDOW_SHRINK
    L_ZERO_WINDOW
    L_WINDOW_PROBE
    L_ACK_LOSS
    L_TAIL_LOSS
    L_NAGLE_WAIT
    L_CORK
    L_IDLE_RESTART
    L_APP_LIMITED
    L_SNDBUF_LIMITED
    L_RWND_LIMITED
    L_CWND_LIMITED
    L_KEEP_ALIVE
    L_FEW_DUPACKS
    L_LOST_RETRANSMISSION
    L_REORDERING
    L_LOSS
    L_SENDING                   # of times of messages: waits shorter than a gap
    L_ROUND_TRIP                # and the wait for the last acknowledgement
    LABELS

cdef enum Certainty:
    C_NONE
    C_POSSIBLE
    C_LIKELY
    C_KNOWN

cdef enum Trigger:
    T_NONE
    T_PACKET
    T_TIMER
    T_APPLICATION
    T_REPLY

cdef enum Missing:
    M_OTHER_END = 1
    M_HANDSHAKE = 2
    M_SACK = 4
    M_TIMERS = 8
    M_CALLS = 16
    M_PROBES = 32

cdef enum SentBy:               # numbers of evidence.py; 0: not known
    S_UNKNOWN
    S_PACKET
    S_CALL
    S_RTO
    S_LOSS_PROBE
    S_REORDERING
    S_DELACK
    S_KEEPALIVE
    S_PACE

cdef enum Held:
    HELD_FULL = 1               # the application waited for room in the send buffer
    HELD_MORE = 2               # it has said that more data follows

cdef extern from *:
    """
    #define CFL_MS 1000000LL
    #define CFL_NEVER (-(1LL << 62))
    """
    const int64_t MS "CFL_MS"
    const int64_t NEVER "CFL_NEVER"

cdef struct Extra:              # of a packet: what few of them have
    uint32_t sack[EDGES]
    int64_t queued              # ns that data had waited in the send buffer
    uint32_t cwnd               # packets
    uint32_t unsent             # bytes in the send buffer before the last call or packet
    uint8_t edges
    uint8_t evidence            # bits of Missing that are known; the other fields but sack and edges need them
    uint8_t sent_by
    uint8_t held

cdef struct Packet:             # a line of the cache
    uint64_t number             # in its capture, from 1; of a connection that begins, that of its FlowRow
    int64_t ts
    const Extra* extra
    uint32_t seq
    uint32_t ack
    uint32_t size
    uint32_t tsval
    uint32_t tsecr
    uint32_t place              # in its batch
    uint16_t window             # as sent
    uint16_t flags
    uint16_t mss                # of the option; 0: none
    uint16_t ip_id
    int8_t scale                # of the option; -1: none
    uint8_t sack_ok
    uint8_t side
    uint8_t tap
    uint8_t begins              # no packet: here a connection begins, and the one before it in its place ends

cdef struct Segment:            # sent and not yet acknowledged; in order of seq, without gaps
    uint32_t seq
    uint32_t end
    int64_t last                # when it was sent last
    int64_t arrived             # at the other end; NEVER: not known
    uint64_t last_number
    uint64_t delivered          # bytes delivered when it was sent
    uint32_t sent               # times; 0: the capture lacks it
    uint8_t sacked
    uint8_t answered              # the other end has acknowledged it

cdef struct Again:              # a retransmission that may still prove to be spurious
    uint64_t row
    int64_t ts
    uint32_t acks
    uint32_t seq
    uint32_t end
    uint32_t tsval
    uint16_t ip_id
    uint8_t label               # of the row
    uint8_t both                # both ends are known

cdef struct Message:            # what each packet changes comes first
    int64_t counted             # its waits are counted up to here
    int64_t sending             # ns in waits shorter than a gap
    uint64_t bytes
    uint64_t last
    uint32_t edge               # after its last byte
    uint32_t packets
    int64_t end
    int64_t start
    uint64_t first
    int64_t late                # ns that its last acknowledgement was delayed
    uint32_t again
    uint32_t rows               # its last row so far, plus 1; 0: it has none
    uint32_t number
    uint8_t late_label

# One end, as sender and as receiver, in six lines of the cache (64 bytes each).  Most packets need the first five.
cdef struct Side:
    # of what it sent last
    int64_t sent_ts
    uint64_t sent_number
    Segment* list
    uint32_t head
    uint32_t count
    uint32_t room
    uint32_t nxt
    uint32_t una
    uint32_t mss
    uint32_t last_size
    uint32_t most
    uint32_t small              # after the last segment smaller than a full one; valid if `smalls`
    uint16_t highest_id
    uint8_t known
    uint8_t speaks              # a message is open
    # of the acknowledgements that came
    int64_t in_ts
    uint64_t in_number
    int64_t in_late
    int32_t window              # -1: not known
    int32_t before_window
    uint32_t edge
    uint32_t before_flight
    uint32_t before_edge
    uint32_t since
    uint32_t acks
    uint32_t duplicates
    uint32_t backoff
    uint8_t in_plain
    uint8_t in_label
    uint8_t burst
    uint8_t state
    # as a receiver
    int64_t pending_ts
    uint64_t pending_number
    int64_t data_ts
    int64_t late
    int32_t own_window
    uint32_t expected
    uint32_t acked
    uint32_t pending
    uint32_t late_ack
    uint32_t doubted
    uint32_t offered
    uint8_t expects
    uint8_t doubt
    uint8_t here
    uint8_t late_label
    # of new data, and of acknowledgements of new data
    uint64_t delivered
    int64_t distance
    uint32_t probes
    uint8_t idle
    uint8_t probed
    uint8_t smalls
    uint8_t evidence            # what is known of what it sent
    Message message
    int64_t third_ts
    int64_t min_rtt
    int64_t srtt
    int64_t rttvar
    uint64_t rate
    uint64_t sacked
    uint32_t recover
    uint32_t probe_end
    # of few packets
    Again* again
    int64_t probe_ts
    uint32_t base
    uint8_t watched
    uint8_t room_again
    uint8_t sack_ok
    uint8_t reordering

cdef struct Flow:
    uint32_t number             # of its FlowRow
    uint32_t messages           # so far, of both directions
    int64_t syn
    int64_t syn_ack
    uint8_t open
    uint8_t both
    uint8_t handshake           # bit of each side with a SYN that was seen
    uint8_t timed               # the times of the handshake are known and not used yet
    uint8_t[2] near             # of each tap, the side at which it is, plus one; 0: not known
    int8_t[2] scale             # of the windows of each side; -1: no option
    uint32_t[2] dsacks          # that each side received
    uint32_t[2] zero_windows    # that each side sent
    uint8_t[16] unused          # the ends begin with a line of the cache
    Side[2] side

cdef enum Counts:               # what the time of its message has of the duration of a row
    NO_TIME
    ITS_DURATION
    OTHER_TIME                  # `counted` of what few rows have

cdef struct Row:                # written once for most packets: its size is a large part of their time
    int64_t ts
    int64_t duration
    int64_t rtt
    uint64_t packet
    uint64_t previous
    uint64_t ack
    uint32_t place              # of its message in the result, plus 1; 0: it belongs to none
    uint32_t next               # an earlier row of the same message, plus 1
    uint32_t rare               # its RareFields, plus 1; 0: they are zero
    uint32_t seq
    uint32_t size
    uint32_t flight
    uint32_t window
    uint32_t flow
    uint8_t side
    uint8_t event
    uint8_t label
    uint8_t why
    uint8_t certainty
    uint8_t trigger
    uint8_t missing
    uint8_t counts              # Counts

cdef struct RareFields:         # of a row: what few of them have
    int64_t counted
    int64_t age
    uint32_t n

cdef struct MessageRow:         # a message that has ended
    int64_t start
    int64_t end                 # 0: it was not acknowledged
    int64_t counted
    int64_t sending
    int64_t late
    uint64_t first
    uint64_t last
    uint64_t bytes
    uint32_t packets
    uint32_t again
    uint32_t rows
    uint32_t flow
    uint32_t message
    uint8_t side
    uint8_t main                # the label with most of the time above the ideal
    uint8_t late_label

cdef struct FlowRow:            # of a connection, by its number
    uint64_t key[5]             # lower end, higher end, ports and version
    uint64_t began              # packets before it
    int64_t min_rtt[2]          # from here on, what is known at its end
    uint64_t rate[2]
    uint64_t dsacks[2]
    uint64_t zero_windows[2]    # advertised by the side after another window
    uint8_t[2] near

cdef struct Found:              # rows of a kind: as they were made, and in order of the packets that they are about
    Chunks made
    uint32_t* order             # numbers of rows; behind `ordered`, the packets of the current batch that made them
    uint64_t ordered
    uint64_t room               # of `order`
    uint32_t* sorted            # of the rows of a batch; as large as it had to be so far
    uint64_t sorted_room

cdef struct Result:
    int64_t gap
    uint8_t missing             # evidence that the input lacks as a whole
    uint8_t lacking             # evidence that some row lacks
    uint32_t now                # place of the current packet in its batch
    uint64_t before             # packets of earlier batches
    uint32_t* first             # of each packet of a batch: its first row, plus 1; all zero between batches
    uint64_t first_room
    Found rows                  # Row
    Chunks rare                 # RareFields
    Found messages              # MessageRow
    Chunks flows                # FlowRow
    uint64_t again              # connections that began with the ports of another one
    uint64_t segments           # in memory, of all flows
    uint64_t max_segments
    bint failed                 # no memory

cdef extern from *:
    """
    #define CFL_SLACK 2000000LL
    #define CFL_DELACK 30000000LL
    #define CFL_DELACK_TIME 40000000LL
    #define CFL_RTO_MIN 200000000LL
    #define CFL_WATCH 1000000000LL

    #include <string.h>
    static inline void clear_memory(void *p, size_t size) { /* for a size that it knows, gcc uses the slow rep stos */
        __asm__("" : "+r"(size));
        memset(p, 0, size);
    }
    """
    void clear_memory(void* p, size_t size) noexcept nogil
    const int64_t SLACK "CFL_SLACK"         # a packet that follows an input within this was caused by it
    const int64_t DELACK "CFL_DELACK"       # later, the timer sent the acknowledgement (40 ms less a tick of 10 ms)
    const int64_t DELACK_TIME "CFL_DELACK_TIME"
    const int64_t RTO_MIN "CFL_RTO_MIN"
    const int64_t WATCH "CFL_WATCH"         # a report of a duplicate may come for this long


cdef inline bint before(uint32_t a, uint32_t b) noexcept nogil:
    """a < b of sequence numbers, which wrap."""
    return <int32_t>(a - b) < 0


cdef inline int64_t elapsed(int64_t start, int64_t now) noexcept nogil:
    """now - start, without overflow."""
    return <int64_t>(<uint64_t>now - <uint64_t>start)


cdef inline int64_t scaled(const Flow* f, int side, const Packet* p) noexcept nogil:
    """The window that this side offers, bytes."""
    if p.flags & SYN or f.scale[0] < 0 or f.scale[1] < 0:
        return p.window
    return <int64_t>p.window << min(f.scale[side], 14)


cdef inline void start_side(Side* s) noexcept nogil:
    clear_memory(s, sizeof(Side))
    s.sent_ts = s.in_ts = s.third_ts = s.probe_ts = s.pending_ts = s.data_ts = NEVER
    s.window = s.before_window = s.own_window = -1


cdef inline Row* row_at(const Result* x, uint64_t i) noexcept nogil:
    return <Row*>chunk_item(&x.rows.made, i, sizeof(Row))


cdef inline const RareFields* rare_at(const Result* x, const Row* row) noexcept nogil:
    """What few rows have; NULL: this one has not."""
    return <const RareFields*>chunk_item(&x.rare, row.rare - 1, sizeof(RareFields)) if row.rare else NULL


cdef inline MessageRow* message_at(const Result* x, uint64_t i) noexcept nogil:
    return <MessageRow*>chunk_item(&x.messages.made, i, sizeof(MessageRow))


cdef inline FlowRow* flow_at(const Result* x, uint64_t i) noexcept nogil:
    return <FlowRow*>chunk_item(&x.flows, i, sizeof(FlowRow))


cdef inline void set_why(Row* row, int why, int certainty) noexcept nogil:
    row.why, row.certainty = <uint8_t>why, <uint8_t>certainty
