# The rows a parser fills: every column of the packet schema at a fixed place, small enough for the cache.
# The arrays are 64 bytes longer than ROWS: columns that start at equal offsets modulo 4 KiB would fight for
# the same cache sets.

from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t, int64_t

cdef enum:
    ROWS = 1024
    HOPS = 8                    # of switch_path and queue_depth; a power of two
    ROWS1 = 1088                # elements of 1, 2, 4, 8 and 16 bytes
    ROWS2 = 1056
    ROWS4 = 1040
    ROWS8 = 1032
    ROWS16 = 1028

# Column numbers: bits of the mask of columns that were written.  packet.pyx has their names.
cdef enum Col:
    C_TS
    C_LEN
    C_CAP_LEN
    C_PAYLOAD_LEN
    C_IP_VERSION
    C_PROTO
    C_SRC_IP
    C_SRC_IP6
    C_DST_IP
    C_DST_IP6
    C_SRC_PORT
    C_DST_PORT
    C_IP_LEN
    C_TTL
    C_DSCP
    C_ECN
    C_IP_ID
    C_IP_FLAGS
    C_FRAG_OFFSET
    C_TCP_SEQ
    C_TCP_ACK
    C_TCP_FLAGS
    C_TCP_WINDOW
    C_TCP_OPTS
    C_TCP_MSS
    C_TCP_WSCALE
    C_TCP_TSVAL
    C_TCP_TSECR
    C_ICMP_TYPE
    C_ICMP_CODE
    C_ETH_SRC
    C_ETH_DST
    C_ETH_TYPE
    C_VLAN
    C_VLAN2
    C_VLAN_COUNT
    C_MPLS_LABEL
    C_MPLS_COUNT
    C_TUNNEL
    C_VNI
    C_LINK_TYPE
    C_IFACE
    C_NOTES
    C_FLOW_HASH
    C_SWITCH_PATH
    C_QUEUE_DEPTH
    C_FILE_OFFSET
    COLS

cdef struct Rows:
    int64_t ts[ROWS8]
    uint32_t len[ROWS4]
    uint32_t cap_len[ROWS4]
    uint32_t payload_len[ROWS4]
    uint8_t ip_version[ROWS1]
    uint8_t proto[ROWS1]
    uint32_t src_ip[ROWS4]
    uint8_t src_ip6[ROWS16][16]
    uint32_t dst_ip[ROWS4]
    uint8_t dst_ip6[ROWS16][16]
    uint16_t src_port[ROWS2]
    uint16_t dst_port[ROWS2]
    uint32_t ip_len[ROWS4]
    uint8_t ttl[ROWS1]
    uint8_t dscp[ROWS1]
    uint8_t ecn[ROWS1]
    uint16_t ip_id[ROWS2]
    uint8_t ip_flags[ROWS1]
    uint16_t frag_offset[ROWS2]
    uint32_t tcp_seq[ROWS4]
    uint32_t tcp_ack[ROWS4]
    uint16_t tcp_flags[ROWS2]
    uint16_t tcp_window[ROWS2]
    uint8_t tcp_opts[ROWS1]
    uint16_t tcp_mss[ROWS2]
    uint8_t tcp_wscale[ROWS1]
    uint32_t tcp_tsval[ROWS4]
    uint32_t tcp_tsecr[ROWS4]
    uint8_t icmp_type[ROWS1]
    uint8_t icmp_code[ROWS1]
    uint64_t eth_src[ROWS8]
    uint64_t eth_dst[ROWS8]
    uint16_t eth_type[ROWS2]
    uint16_t vlan[ROWS2]
    uint16_t vlan2[ROWS2]
    uint8_t vlan_count[ROWS1]
    uint32_t mpls_label[ROWS4]
    uint8_t mpls_count[ROWS1]
    uint8_t tunnel[ROWS1]
    uint32_t vni[ROWS4]
    uint16_t link_type[ROWS2]
    uint16_t iface[ROWS2]
    uint8_t notes[ROWS1]
    uint32_t flow_hash[ROWS4]
    uint32_t switch_path[ROWS4][HOPS]   # wider than the schema has them: what is too large is told at the end
    uint32_t queue_depth[ROWS4][HOPS]
    uint64_t file_offset[ROWS8]
    uint64_t used               # bit per column: something was written since it was last zeroed

cdef inline uint64_t bit(int column) noexcept nogil:
    return <uint64_t>1 << column
