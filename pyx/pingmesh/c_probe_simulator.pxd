# State of the probe simulator, and the layout of its records.

from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy

cdef enum:
    NAME = 32                       # bytes of a server's name
    PLACE = 16                      # of a pod's, podset's or data centre's
    OCTAVES = 26                    # entries of a latency table: entry i is the quantile 1 - 2 ** -i
    TABLES = 6
    MAX_SERVERS = 1 << 20
    MAX_PEERS = 1 << 28
    PARTS = 4                       # max parts of a list
    MAX_DEVICES = 1 << 20
    MAX_HOLES = 1 << 16
    MAX_TURNS = 1 << 20             # slots per call of `fill`, so that signals are handled
    MAX_TRIES = 6

cdef enum:                          # latency tables
    T_POD
    T_DC
    T_WAN
    T_HOST                          # delay of a host's scheduler
    T_FACTOR                        # factor of a fault's delay, in 1/65536
    T_BUSY                          # factor of a slow host's delay, in 1/65536

cdef enum:                          # levels, outcomes, hints, notes, kinds of schema/probe.yaml
    L_POD = 1
    L_DC = 2
    L_WAN = 3
    OK = 1
    TIMEOUT = 2
    FORWARD = 1
    REVERSE = 2
    RELABEL = 2
    TCP = 1
    ECHO = 2
    HOST = 16
    ETIMEDOUT = 110

cdef enum:                          # streams of random numbers
    ORDER = 1
    PROBES = 2

cdef enum:
    MILLISECOND = 1000000
    FIRST_PORT = 32768
    PORTS = 28232                   # Linux's default range
    RSS = 31 << 20

cdef enum:                          # columns written
    C_TS
    C_KIND
    C_LEVEL
    C_OUTCOME
    C_NOTES
    C_IP_VERSION
    C_PROTO
    C_SRC_IP
    C_DST_IP
    C_SRC_IP6
    C_DST_IP6
    C_SRC_PORT
    C_DST_PORT
    C_PAYLOAD
    C_RETRIES
    C_HINT
    C_RTT
    C_ELAPSED
    C_ECHO
    C_ERRNO
    C_LIST
    C_SRC
    C_DST
    C_SRC_POD
    C_DST_POD
    C_SRC_PODSET
    C_DST_PODSET
    C_SRC_DC
    C_DST_DC
    C_PEERS
    C_PROBES
    C_OVERFLOWS
    C_LISTEN_DROPS
    C_SYN_RETRANS
    C_RSS
    C_CPU
    COLS

cdef struct Server:
    uint32_t pod, ip
    uint32_t first[PARTS]           # parts of its list, in `peer`
    uint32_t size[PARTS]
    uint32_t entries, peers, turn, owed
    uint16_t port
    uint8_t down, holed, v6
    uint64_t busy                   # probability, of 2**63, that its listening socket overflows
    uint64_t slow                   # median ns that its programs wait
    uint32_t probes, syn_retrans, overflows
    char name[NAME]
    uint8_t ip6[16]

cdef struct Place:                  # a pod
    uint32_t podset, dc
    char pod_name[PLACE]
    char podset_name[PLACE]
    char dc_name[PLACE]

cdef struct Device:                 # a switch, all switches of a podset, or a link of two data centres
    uint64_t drop, hole1, hole2, delay
    uint8_t bad

cdef struct Hole:                   # packets from one server to another; share of the five-tuples dropped
    uint32_t src, dst
    uint64_t share

cdef struct PathDelay:              # of one packet
    uint64_t delay

cdef struct Probe:
    uint64_t rtt, elapsed, echo
    uint32_t dst
    uint16_t sport
    uint8_t level, outcome, retries, hint, notes

cdef inline uint32_t pick_switch(uint64_t h, int shift, uint32_t n) noexcept nogil:
    return <uint32_t>((h >> shift & 0xFFFF) * n >> 16)

cdef inline uint64_t mix(uint64_t a, uint64_t b) noexcept nogil:
    cdef uint64_t z = a * 0x9E3779B97F4A7C15u + b
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u
    z = (z ^ z >> 27) * 0x94D049BB133111EBu
    return z ^ z >> 31

cdef inline void write_source(
    void** col, uint32_t row, const Server* s, const Place* p, uint64_t version
) noexcept nogil:
    (<uint8_t*>col[C_IP_VERSION])[row] = 6 if s.v6 else 4
    (<uint32_t*>col[C_SRC_IP])[row] = s.ip
    memcpy(<char*>col[C_SRC_IP6] + <size_t>row * 16, s.ip6, 16)
    memcpy(<char*>col[C_SRC] + <size_t>row * NAME, s.name, NAME)
    memcpy(<char*>col[C_SRC_POD] + <size_t>row * PLACE, p.pod_name, PLACE)
    memcpy(<char*>col[C_SRC_PODSET] + <size_t>row * PLACE, p.podset_name, PLACE)
    memcpy(<char*>col[C_SRC_DC] + <size_t>row * PLACE, p.dc_name, PLACE)
    (<uint64_t*>col[C_LIST])[row] = version

cdef inline void write_probe(void** col, uint32_t row, const Probe* f, const Server* d, const Place* p, int64_t ts,
                             uint32_t payload) noexcept nogil:
    (<int64_t*>col[C_TS])[row] = ts
    (<uint8_t*>col[C_KIND])[row] = ECHO if payload else TCP
    (<uint8_t*>col[C_LEVEL])[row] = f.level
    (<uint8_t*>col[C_OUTCOME])[row] = f.outcome
    (<uint16_t*>col[C_NOTES])[row] = f.notes
    (<uint8_t*>col[C_PROTO])[row] = 6
    (<uint32_t*>col[C_DST_IP])[row] = d.ip
    memcpy(<char*>col[C_DST_IP6] + <size_t>row * 16, d.ip6, 16)
    (<uint16_t*>col[C_SRC_PORT])[row] = f.sport
    (<uint16_t*>col[C_DST_PORT])[row] = d.port
    (<uint32_t*>col[C_PAYLOAD])[row] = payload
    (<uint8_t*>col[C_RETRIES])[row] = f.retries
    (<uint8_t*>col[C_HINT])[row] = f.hint
    (<uint64_t*>col[C_RTT])[row] = f.rtt
    (<uint64_t*>col[C_ELAPSED])[row] = f.elapsed
    (<uint64_t*>col[C_ECHO])[row] = f.echo
    (<uint16_t*>col[C_ERRNO])[row] = ETIMEDOUT if f.outcome == TIMEOUT else 0
    memcpy(<char*>col[C_DST] + <size_t>row * NAME, d.name, NAME)
    memcpy(<char*>col[C_DST_POD] + <size_t>row * PLACE, p.pod_name, PLACE)
    memcpy(<char*>col[C_DST_PODSET] + <size_t>row * PLACE, p.podset_name, PLACE)
    memcpy(<char*>col[C_DST_DC] + <size_t>row * PLACE, p.dc_name, PLACE)

cdef inline void write_host(void** col, uint32_t row, const Server* s, int64_t ts, int64_t span) noexcept nogil:
    (<int64_t*>col[C_TS])[row] = ts
    (<uint8_t*>col[C_KIND])[row] = HOST
    (<uint64_t*>col[C_ELAPSED])[row] = span
    (<uint32_t*>col[C_PEERS])[row] = s.peers
    (<uint32_t*>col[C_PROBES])[row] = s.probes
    (<uint32_t*>col[C_OVERFLOWS])[row] = s.overflows
    (<uint32_t*>col[C_LISTEN_DROPS])[row] = s.overflows
    (<uint32_t*>col[C_SYN_RETRANS])[row] = s.syn_retrans
    (<uint64_t*>col[C_RSS])[row] = RSS
    (<float*>col[C_CPU])[row] = <float>s.probes * 32768 / <float>span      # 33 us a probe
