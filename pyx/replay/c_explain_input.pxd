# Packets of a batch, from the columns of a block.

from libc.stdint cimport int8_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from c_conversation cimport KeyedRow
from c_explain_batch cimport Batch
from c_explain_state cimport EDGES, Extra, Packet, clear_memory
from confluo_tools.core.packets.tcp_columns cimport (
    N_ACK, N_CWND, N_EVIDENCE, N_FLAGS, N_HELD, N_ID, N_MSS, N_OPTS, N_QUEUED, N_SACK, N_SCALE, N_SENT_BY, N_SEQ,
    N_SIZE, N_TS, N_TSECR, N_TSVAL, N_UNSENT, N_WINDOW, OPT_SACK_OK, OPT_WSCALE, TcpColumns, optional)

cdef struct PacketColumns:      # NULL: the block lacks it
    const int64_t* ts
    const uint32_t* seq
    const uint32_t* ack
    const uint16_t* flags
    const uint16_t* window
    const uint16_t* narrow      # sizes, of one of these widths
    const uint32_t* sizes
    const uint8_t* opts
    const uint8_t* scale
    const uint16_t* mss
    const uint16_t* ip_id
    const uint32_t* tsval
    const uint32_t* tsecr
    const uint32_t* sack
    const uint8_t* evidence     # the others need it
    const uint8_t* sent_by
    const uint8_t* held
    const int64_t* queued
    const uint32_t* unsent
    const uint32_t* cwnd


cdef inline void find_columns(TcpColumns c, const uint8_t** col, PacketColumns* k) noexcept nogil:
    k.ts, k.flags = <const int64_t*>optional(c, col, N_TS), <const uint16_t*>optional(c, col, N_FLAGS)
    k.seq, k.ack = <const uint32_t*>optional(c, col, N_SEQ), <const uint32_t*>optional(c, col, N_ACK)
    k.window = <const uint16_t*>optional(c, col, N_WINDOW)
    k.narrow = <const uint16_t*>optional(c, col, N_SIZE) if c.narrow else NULL
    k.sizes = <const uint32_t*>optional(c, col, N_SIZE) if not c.narrow else NULL
    k.opts, k.scale = optional(c, col, N_OPTS), optional(c, col, N_SCALE)
    k.mss, k.ip_id = <const uint16_t*>optional(c, col, N_MSS), <const uint16_t*>optional(c, col, N_ID)
    k.tsval, k.tsecr = <const uint32_t*>optional(c, col, N_TSVAL), <const uint32_t*>optional(c, col, N_TSECR)
    k.sack, k.evidence = <const uint32_t*>optional(c, col, N_SACK), optional(c, col, N_EVIDENCE)
    k.sent_by, k.held = optional(c, col, N_SENT_BY), optional(c, col, N_HELD)
    k.queued, k.unsent = <const int64_t*>optional(c, col, N_QUEUED), <const uint32_t*>optional(c, col, N_UNSENT)
    k.cwnd = <const uint32_t*>optional(c, col, N_CWND)


cdef inline void read_packet(const PacketColumns* k, const KeyedRow* b, uint64_t number, int tap, Batch* batch,
                             Packet* p) noexcept nogil:
    """Fill a packet of the batch; ``number``: of it in its capture."""
    cdef uint32_t r = b.row
    cdef uint8_t opts = k.opts[r] if k.opts != NULL else 0
    p.number = number
    p.ts, p.seq, p.ack, p.flags, p.window = k.ts[r], k.seq[r], k.ack[r], k.flags[r], k.window[r]
    p.size = k.narrow[r] if k.narrow != NULL else k.sizes[r]
    p.begins, p.side, p.tap, p.sack_ok = False, <uint8_t>b.side, <uint8_t>tap, opts & OPT_SACK_OK != 0
    p.scale = <int8_t>k.scale[r] if opts & OPT_WSCALE and k.scale != NULL else -1
    p.mss = k.mss[r] if k.mss != NULL else 0
    p.ip_id = k.ip_id[r] if k.ip_id != NULL else 0
    p.tsval = k.tsval[r] if k.tsval != NULL else 0
    p.tsecr = k.tsecr[r] if k.tsecr != NULL else 0
    p.extra = read_extra(k, r, batch)


cdef inline const Extra* read_extra(const PacketColumns* k, uint32_t r, Batch* batch) noexcept nogil:
    cdef const uint32_t* sack = k.sack + <size_t>r * EDGES if k.sack != NULL else NULL
    cdef Extra* extra
    if sack != NULL and not (sack[0] or sack[1]):
        sack = NULL
    if sack == NULL and k.evidence == NULL:
        return &batch.no_extra
    extra = batch.extras + batch.extra
    batch.extra += 1
    clear_memory(extra, sizeof(Extra))
    while sack != NULL and extra.edges < EDGES and (sack[extra.edges] or sack[extra.edges + 1]):
        extra.sack[extra.edges], extra.sack[extra.edges + 1] = sack[extra.edges], sack[extra.edges + 1]
        extra.edges += 2
    if k.evidence != NULL:
        extra.evidence, extra.sent_by, extra.held = k.evidence[r], k.sent_by[r], k.held[r]
        extra.queued, extra.unsent, extra.cwnd = k.queued[r], k.unsent[r], k.cwnd[r]
    return extra
