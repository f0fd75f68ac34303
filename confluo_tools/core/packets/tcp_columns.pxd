# Blocks of TCP packets: where each column is, and the next rows with a TCP header.

from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t
from c_conversation cimport KeyColumns, KeyedRow, conversation_key
from c_hash_table cimport LruTable, lru_hash, lru_prefetch_slot
from confluo_tools.core.block.block cimport Layout

cdef enum TcpColumn:                    # in the order of USED; those below NEEDS must be there
    N_TS
    N_PROTO
    N_SRC
    N_DST
    N_SPORT
    N_DPORT
    N_SEQ
    N_ACK
    N_FLAGS
    N_WINDOW
    N_SIZE
    NEEDS
    N_VERSION = 11
    N_SRC6
    N_DST6
    N_FRAG
    N_NOTES
    N_OPTS
    N_SCALE
    N_MSS
    N_ID
    N_TSVAL
    N_TSECR
    N_SACK
    N_EVIDENCE
    N_SENT_BY
    N_QUEUED
    N_UNSENT
    N_HELD
    N_CWND
    USES

cdef enum:
    TCP = 6
    OPT_WSCALE = 2
    OPT_SACK_OK = 4
    DAMAGED = 3                         # notes: truncated, malformed

cdef class TcpColumns:
    cdef readonly Layout layout
    cdef int[USES] at                   # of the layout; -1: it lacks the column
    cdef KeyColumns ends
    cdef bint narrow                    # sizes of payloads have 16 bits


cdef inline const uint8_t* optional(TcpColumns c, const uint8_t** col, int use) noexcept nogil:
    return col[c.at[use]] if c.at[use] >= 0 else NULL


cdef inline uint32_t payload(TcpColumns c, const uint8_t** col, uint32_t r) noexcept nogil:
    cdef const uint8_t* sizes = col[c.at[<int>N_SIZE]]
    return (<const uint16_t*>sizes)[r] if c.narrow else (<const uint32_t*>sizes)[r]


cdef inline uint32_t gather(TcpColumns c, const uint8_t** col, uint32_t rows, uint32_t* row, int64_t until,
                            const LruTable* flows, KeyedRow* batch, uint32_t most) noexcept nogil:
    """Keys of the next rows with a TCP header, up to the time ``until``, their slots prefetched; returns how many.

    ``row``: where to go on; then the first row not looked at.
    """
    cdef uint32_t r = row[0], n = 0
    cdef const int64_t* ts = <const int64_t*>col[c.at[<int>N_TS]]
    cdef const uint8_t* proto = col[c.at[<int>N_PROTO]]
    cdef const uint16_t* frag = <const uint16_t*>optional(c, col, N_FRAG)
    cdef const uint8_t* notes = optional(c, col, N_NOTES)
    cdef const uint16_t* flags = <const uint16_t*>col[c.at[<int>N_FLAGS]]
    while r < rows and n < most and ts[r] <= until:
        if proto[r] == TCP and (frag == NULL or not frag[r]) and not (
                notes != NULL and notes[r] & DAMAGED and not flags[r]):
            batch[n].row = r
            conversation_key(col, &c.ends, &batch[n])
            batch[n].hash = lru_hash(flows, batch[n].key)
            lru_prefetch_slot(flows, batch[n].hash)
            n += 1
        r += 1
    row[0] = r
    return n
