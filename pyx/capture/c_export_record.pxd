# One record of an exporter: its values by number, and how they become a row of the schema `netflow`.
#
# A value is taken from the datagram into `number`, or points into it; bits of `used` say which are there.  So a record
# costs what its fields cost, not what the schema has.

from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t, INT64_MAX
from libc.string cimport memcpy
from c_bits cimport ctz64
from c_ipv6_hash cimport fold6
from c_wire cimport be16, be32, be64

cdef enum:
    NUMBERS = 39                # values that are columns; the others are what columns come from
    ADDRESSES = 5               # columns of addresses
    NAME_BYTES = 32             # of in_name and out_name
    US = 1000
    MS = 1000000
    SECOND = 1000000000

# Values; the first NUMBERS are in the order of NUMBER_COLUMNS in flow_exports.pyx.
cdef enum:                      # Value
    V_TS
    V_LAST
    V_DURATION
    V_VERSION
    V_PROTO
    V_SPORT
    V_DPORT
    V_PACKETS
    V_BYTES
    V_REVERSE_PACKETS
    V_REVERSE_BYTES
    V_FLAGS
    V_REVERSE_FLAGS
    V_TYPE
    V_CODE
    V_DSCP
    V_ECN
    V_TTL
    V_SAMPLING
    V_IN
    V_OUT
    V_SRC_AS
    V_DST_AS
    V_SRC_MASK
    V_DST_MASK
    V_ETH_SRC
    V_ETH_DST
    V_VLAN
    V_OUT_VLAN
    V_LABEL
    V_TUNNEL
    V_VNI
    V_DIRECTION
    V_REASON
    V_SOURCE_ID
    V_EXPORT
    V_EXPORTED
    V_RECEIVED
    V_NOTES
    V_TOS                       # not columns from here on
    V_ICMP                      # type * 256 + code
    V_FIRST_UP                  # ms since the exporter started
    V_LAST_UP
    V_BOOT                      # ns since 1970
    V_OBSERVED                  # time of an event
    V_SAMPLER                   # number of a sampler
    V_INTERVAL                  # packets counted, out of interval + space
    V_SPACE
    V_SIZE                      # packets counted, out of population
    V_POPULATION
    V_TEXT                      # `text`
    VALUES

# Places of addresses in `address`: those of IPv4 before those of IPv6, in the order of ADDRESS_COLUMNS.
cdef enum:                      # Place
    A_SRC
    A_DST
    A_NEXT
    A_BGP
    A_EXPORTER
    A_SIX = 5                   # the same for IPv6 from here on
    PLACES = 10

cdef enum RecordNote:           # of the field notes
    NOTE_SCALED = 1
    NOTE_NO_TIME = 2            # the record has no time: it is that of the export
    NOTE_WAITED = 4             # the record came before its template

cdef struct ExportRecord:
    uint64_t used               # bits of V_*
    uint32_t placed             # bits of A_*
    uint32_t text_size
    uint64_t number[VALUES]
    const uint8_t* address[PLACES]
    const uint8_t* text         # name of an interface
    const uint8_t* in_name      # NAME_BYTES, or NULL
    const uint8_t* out_name

cdef struct ExportHeader:
    # What a datagram says of all its records.
    int64_t exported            # ns since 1970, by the clock of the exporter
    int64_t received
    uint32_t uptime             # of the exporter, ms
    uint32_t sequence
    uint32_t source_id
    bint has_uptime
    uint8_t export              # of the field export
    const uint8_t* address      # of the exporter: 16 bytes, IPv4 as ::ffff:a.b.c.d

ctypedef bint (*full_fn)(void* owner) noexcept nogil

cdef struct RowWriter:
    # Where rows go: columns by number, -1 where the layout lacks one.
    uint8_t** out
    uint32_t rows
    uint32_t capacity
    int at[NUMBERS]
    uint8_t width[NUMBERS]
    int address_at[ADDRESSES]   # the column of 32 bits; that of 16 bytes follows
    int in_name_at
    int out_name_at
    bint scale                  # multiply packets and bytes by the sampling rate
    uint64_t written
    uint64_t touched            # bits of the numbers that some row has had
    uint32_t touched_addresses  # the same of addresses
    bint touched_names
    full_fn full                # gives new columns; False: there is no memory
    void* owner


cdef inline bint has(const ExportRecord* r, int value) noexcept nogil:
    return r.used >> value & 1

cdef inline void put(ExportRecord* r, int value, uint64_t number) noexcept nogil:
    r.number[value] = number
    r.used |= <uint64_t>1 << value

cdef inline void put_address(ExportRecord* r, int place, const uint8_t* p) noexcept nogil:
    r.address[place] = p
    r.placed |= <uint32_t>1 << place

cdef inline void record_begin(ExportRecord* r) noexcept nogil:
    r.used, r.placed, r.text_size = 0, 0, 0
    r.in_name = r.out_name = NULL

cdef inline uint64_t be_number(const uint8_t* p, uint32_t size) noexcept nogil:
    """An unsigned number of 1 to 8 bytes."""
    cdef uint64_t v = 0
    cdef uint32_t i
    if size == 4:
        return be32(p)
    if size == 2:
        return be16(p)
    if size == 8:
        return be64(p)
    for i in range(size):
        v = v << 8 | p[i]
    return v

cdef inline uint64_t times(uint64_t a, uint64_t b) noexcept nogil:
    """a * b, at most 2^64 - 1."""
    if b and a > ~<uint64_t>0 // b:
        return ~<uint64_t>0
    return a * b

cdef inline int64_t time_of(uint64_t units, uint64_t ns) noexcept nogil:
    """ns since 1970 of a number of units since 1970, limited to 63 bits."""
    cdef uint64_t v = times(units, ns)
    return <int64_t>v if v <= <uint64_t>INT64_MAX else INT64_MAX

cdef inline int64_t ntp_time(uint64_t stamp, bint micro) noexcept nogil:
    """ns since 1970 of a 64-bit time of NTP (RFC 7011, 6.1.9 and 6.1.10), rounded as its sender rounded it down.

    ``micro``: the lowest 11 bits have no meaning.  Times before 1970 are those after 2036.
    """
    cdef uint64_t seconds = stamp >> 32, part = stamp & 0xFFFFFFFFu
    seconds = seconds - 2208988800u if seconds >= 2208988800u else seconds + (<uint64_t>1 << 32) - 2208988800u
    if micro:
        part = ((part & 0xFFFFF800u) * 1000000 + (<uint64_t>1 << 31) >> 32) * US
    else:
        part = part * SECOND + (<uint64_t>1 << 31) >> 32
    return <int64_t>(seconds * SECOND + part)


cdef inline void add_note(ExportRecord* r, int note) noexcept nogil:
    put(r, V_NOTES, (r.number[V_NOTES] if has(r, V_NOTES) else 0) | note)


cdef inline uint64_t _up_time(const ExportRecord* r, const ExportHeader* h, int value) noexcept nogil:
    """ns since 1970 of a time in ms after the start of the exporter.

    Both clocks have 32 bits and wrap after 50 days: the time is the one that is closest to the export.
    """
    cdef uint32_t up = <uint32_t>r.number[value]
    cdef int64_t now
    if h.has_uptime:
        return <uint64_t>(h.exported - <int64_t><int32_t>(h.uptime - up) * MS)
    now = (h.exported - <int64_t>r.number[V_BOOT]) // MS
    return r.number[V_BOOT] + <uint64_t>(now - <int32_t>(<uint32_t>now - up)) * MS


cdef inline void _times(ExportRecord* r, const ExportHeader* h) noexcept nogil:
    """First and last time, and what is between them, from what the record has."""
    cdef int64_t first, last
    if h.has_uptime or has(r, V_BOOT):
        if has(r, V_FIRST_UP) and not has(r, V_TS):
            put(r, V_TS, _up_time(r, h, V_FIRST_UP))
        if has(r, V_LAST_UP) and not has(r, V_LAST):
            put(r, V_LAST, _up_time(r, h, V_LAST_UP))
    if not has(r, V_TS) and not has(r, V_LAST):
        if has(r, V_OBSERVED):
            put(r, V_LAST, r.number[V_OBSERVED])
        else:
            put(r, V_LAST, <uint64_t>h.exported)
            add_note(r, NOTE_NO_TIME)
    if not has(r, V_TS):
        put(r, V_TS, r.number[V_LAST] - (r.number[V_DURATION] if has(r, V_DURATION) else 0))
    elif not has(r, V_LAST):
        put(r, V_LAST, r.number[V_TS] + (r.number[V_DURATION] if has(r, V_DURATION) else 0))
    first, last = <int64_t>r.number[V_TS], <int64_t>r.number[V_LAST]
    put(r, V_DURATION, <uint64_t>last - <uint64_t>first if last > first else 0)


cdef inline void _derive(ExportRecord* r) noexcept nogil:
    """Columns that come from other values."""
    if has(r, V_TOS) and not has(r, V_DSCP):
        put(r, V_DSCP, r.number[V_TOS] >> 2)
        put(r, V_ECN, r.number[V_TOS] & 3)
    if has(r, V_ICMP) and not has(r, V_TYPE):
        put(r, V_TYPE, r.number[V_ICMP] >> 8)
        put(r, V_CODE, r.number[V_ICMP] & 0xFF)
    if has(r, V_FLAGS):
        r.number[V_FLAGS] &= 0xFFF      # RFC 7125: the rest is the length of the header
    if has(r, V_REVERSE_FLAGS):
        r.number[V_REVERSE_FLAGS] &= 0xFFF
    if has(r, V_DIRECTION):
        r.number[V_DIRECTION] = 1 if r.number[V_DIRECTION] == 0 else 2 if r.number[V_DIRECTION] == 1 else 0
    if has(r, V_LABEL):
        r.number[V_LABEL] >>= 4         # without class and bottom of stack


cdef inline void own_sampling(ExportRecord* r) noexcept nogil:
    """The rate that a record itself says, in any of its forms."""
    cdef uint64_t count, all
    if has(r, V_SAMPLING):
        return
    if has(r, V_INTERVAL):
        count, all = r.number[V_INTERVAL], r.number[V_INTERVAL]
        if has(r, V_SPACE):
            all += r.number[V_SPACE]
        else:
            count = 1                   # packets in one interval, in the form of older exporters
    elif has(r, V_SIZE) and has(r, V_POPULATION):
        count, all = r.number[V_SIZE], r.number[V_POPULATION]
    else:
        return
    if count:
        put(r, V_SAMPLING, (all + count // 2) // count)


cdef inline bint _any(const uint8_t* p, uint32_t size) noexcept nogil:
    cdef uint32_t i
    for i in range(size):
        if p[i]:
            return True
    return False


cdef inline bint _either(const ExportRecord* r, int base, uint32_t size) noexcept nogil:
    """Whether the source or the destination at ``base`` (0 or A_SIX) is not zero."""
    cdef int place
    for place in range(A_SRC, A_DST + 1):
        if r.placed >> (base + place) & 1 and _any(r.address[base + place], size):
            return True
    return False


cdef inline int _version(const ExportRecord* r) noexcept nogil:
    """4, 6, or 0 without addresses.  A record may have the addresses of both, those of one of them zero."""
    cdef uint32_t ends = 1 << A_SRC | 1 << A_DST
    if not r.placed >> A_SIX & ends:
        return 4 if r.placed & ends else 0
    if not r.placed & ends or _either(r, A_SIX, 16) and not _either(r, 0, 4):
        return 6
    return 4


cdef inline void _addresses(RowWriter* w, ExportRecord* r) noexcept nogil:
    cdef int place, column, version = _version(r)
    cdef uint32_t row = w.rows
    cdef bint six
    if version:
        put(r, V_VERSION, version)
    for place in range(ADDRESSES):
        column = w.address_at[place]
        six = r.placed >> (place + A_SIX) & 1
        if place < A_NEXT:
            six = version == 6 and six
        elif six:
            six = _any(r.address[place + A_SIX], 16)
        if column < 0 or not (six or r.placed >> place & 1 and (version == 4 or place >= A_NEXT)):
            continue
        w.touched_addresses |= <uint32_t>1 << place
        if six:
            (<uint32_t*>w.out[column])[row] = fold6(r.address[place + A_SIX])
            memcpy(w.out[column + 1] + 16 * <size_t>row, r.address[place + A_SIX], 16)
        else:
            (<uint32_t*>w.out[column])[row] = be32(r.address[place])


cdef inline void _number(RowWriter* w, int value, uint64_t v) noexcept nogil:
    """A number in its column, at most the largest of its type."""
    cdef uint8_t* column = w.out[w.at[value]]
    cdef uint32_t row = w.rows
    cdef int width = w.width[value]
    if width == 8:
        (<uint64_t*>column)[row] = v
    elif width == 4:
        (<uint32_t*>column)[row] = <uint32_t>v if v <= 0xFFFFFFFFu else 0xFFFFFFFFu
    elif width == 2:
        (<uint16_t*>column)[row] = <uint16_t>v if v <= 0xFFFF else 0xFFFF
    else:
        column[row] = <uint8_t>v if v <= 0xFF else 0xFF


cdef inline bint write_record(RowWriter* w, ExportRecord* r, const ExportHeader* h) noexcept nogil:
    """A row of the record; False: there is no memory for it."""
    cdef uint64_t left, rate
    cdef int value
    if w.rows == w.capacity and not w.full(w.owner):
        return False
    _times(r, h)
    _derive(r)
    _addresses(w, r)
    rate = r.number[V_SAMPLING] if has(r, V_SAMPLING) else 0
    if w.scale and rate > 1:
        for value in range(V_PACKETS, V_REVERSE_BYTES + 1):
            if has(r, value):
                r.number[value] = times(r.number[value], rate)
        add_note(r, NOTE_SCALED)
    left = r.used & ((<uint64_t>1 << NUMBERS) - 1)
    w.touched |= left
    while left:
        value = ctz64(left)
        left &= left - 1
        if w.at[value] >= 0:
            _number(w, value, r.number[value])
    w.touched_names |= r.in_name != NULL or r.out_name != NULL
    if r.in_name != NULL and w.in_name_at >= 0:
        memcpy(w.out[w.in_name_at] + NAME_BYTES * <size_t>w.rows, r.in_name, NAME_BYTES)
    if r.out_name != NULL and w.out_name_at >= 0:
        memcpy(w.out[w.out_name_at] + NAME_BYTES * <size_t>w.rows, r.out_name, NAME_BYTES)
    w.rows += 1
    w.written += 1
    return True
