# Templates of NetFlow v9 (RFC 3954) and IPFIX (RFC 7011): a list of fields becomes the list of those that are read.
#
# The information elements are those of RFC 7012 and IANA's list; NetFlow v9 has the same numbers up to 127.

from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from c_wire cimport be16, be32
from c_export_record cimport *

cdef enum:
    MAX_FIELDS = 1024           # of a template
    VARIES = 65535              # the length of a field with a length of its own in each record
    REVERSE = 29305             # the enterprise of the other direction (RFC 5103)
    WEAK = 1 << 16              # an element that counts only where the proper one is missing

# How a field is read.
cdef enum Kind:
    SKIP
    NUMBER
    ADDRESS4
    ADDRESS6
    SECONDS                     # since 1970
    MILLISECONDS
    NTP_MICRO
    NTP_NANO
    AGO                         # microseconds before the export
    SPAN_MS                     # a duration
    SPAN_US
    TEXT

# What became of a template.
cdef enum Fate:
    KEPT
    WITHDRAWN                   # without fields: forget the template
    IMPOSSIBLE                  # it contradicts itself
    CUT                         # it ends after the set that it is in
    NO_MEMORY

cdef struct Op:
    uint16_t at                 # in the record; of no meaning where lengths vary
    uint16_t size
    uint8_t kind
    uint8_t value               # Value or Place

cdef struct Template:
    uint16_t id
    bint options
    bint varies                 # some field has a length of its own: op has all fields
    bint flow                   # has an address: its records are flows
    uint32_t length             # of a record, the smallest one if it varies
    uint32_t ops
    uint64_t used               # when it was used last
    Op op[1]


cdef inline uint32_t _of(uint32_t kind, uint32_t value) noexcept nogil:
    return kind << 8 | value


cdef inline uint32_t element(uint32_t id) noexcept nogil:
    """How the information element is read: kind << 8 | value, WEAK or not; 0: it is skipped."""
    if id == 1: return _of(NUMBER, V_BYTES)
    elif id == 2: return _of(NUMBER, V_PACKETS)
    elif id == 4: return _of(NUMBER, V_PROTO)
    elif id == 5: return _of(NUMBER, V_TOS)
    elif id == 6: return _of(NUMBER, V_FLAGS)
    elif id == 7: return _of(NUMBER, V_SPORT)
    elif id == 8: return _of(ADDRESS4, A_SRC)
    elif id == 9: return _of(NUMBER, V_SRC_MASK)
    elif id == 10: return _of(NUMBER, V_IN)
    elif id == 11: return _of(NUMBER, V_DPORT)
    elif id == 12: return _of(ADDRESS4, A_DST)
    elif id == 13: return _of(NUMBER, V_DST_MASK)
    elif id == 14: return _of(NUMBER, V_OUT)
    elif id == 15: return _of(ADDRESS4, A_NEXT)
    elif id == 16: return _of(NUMBER, V_SRC_AS)
    elif id == 17: return _of(NUMBER, V_DST_AS)
    elif id == 18: return _of(ADDRESS4, A_BGP)
    elif id == 21: return _of(NUMBER, V_LAST_UP)
    elif id == 22: return _of(NUMBER, V_FIRST_UP)
    elif id == 23: return _of(NUMBER, V_BYTES) | WEAK           # after a middlebox
    elif id == 24: return _of(NUMBER, V_PACKETS) | WEAK
    elif id == 27: return _of(ADDRESS6, A_SRC)
    elif id == 28: return _of(ADDRESS6, A_DST)
    elif id == 29: return _of(NUMBER, V_SRC_MASK) | WEAK
    elif id == 30: return _of(NUMBER, V_DST_MASK) | WEAK
    elif id == 32: return _of(NUMBER, V_ICMP)
    elif id == 34: return _of(NUMBER, V_SAMPLING)
    elif id == 48: return _of(NUMBER, V_SAMPLER)
    elif id == 50: return _of(NUMBER, V_SAMPLING) | WEAK
    elif id == 52: return _of(NUMBER, V_TTL)
    elif id == 56: return _of(NUMBER, V_ETH_SRC)
    elif id == 57: return _of(NUMBER, V_ETH_DST) | WEAK         # after a middlebox
    elif id == 58: return _of(NUMBER, V_VLAN)
    elif id == 59: return _of(NUMBER, V_OUT_VLAN)
    elif id == 61: return _of(NUMBER, V_DIRECTION)
    elif id == 62: return _of(ADDRESS6, A_NEXT)
    elif id == 63: return _of(ADDRESS6, A_BGP)
    elif id == 70: return _of(NUMBER, V_LABEL)
    elif id == 80: return _of(NUMBER, V_ETH_DST)
    elif id == 81: return _of(NUMBER, V_ETH_SRC) | WEAK
    elif id == 82: return _of(TEXT, V_TEXT)
    elif id == 83: return _of(TEXT, V_TEXT) | WEAK
    elif id == 85: return _of(NUMBER, V_BYTES) | WEAK           # totals
    elif id == 86: return _of(NUMBER, V_PACKETS) | WEAK
    elif id == 136: return _of(NUMBER, V_REASON)
    elif id == 139: return _of(NUMBER, V_ICMP) | WEAK
    elif id == 150: return _of(SECONDS, V_TS) | WEAK
    elif id == 151: return _of(SECONDS, V_LAST) | WEAK
    elif id == 152: return _of(MILLISECONDS, V_TS)
    elif id == 153: return _of(MILLISECONDS, V_LAST)
    elif id == 154: return _of(NTP_MICRO, V_TS)
    elif id == 155: return _of(NTP_MICRO, V_LAST)
    elif id == 156: return _of(NTP_NANO, V_TS)
    elif id == 157: return _of(NTP_NANO, V_LAST)
    elif id == 158: return _of(AGO, V_TS)
    elif id == 159: return _of(AGO, V_LAST)
    elif id == 160: return _of(MILLISECONDS, V_BOOT)
    elif id == 161: return _of(SPAN_MS, V_DURATION)
    elif id == 162: return _of(SPAN_US, V_DURATION)
    elif id == 176: return _of(NUMBER, V_TYPE)
    elif id == 177: return _of(NUMBER, V_CODE)
    elif id == 178: return _of(NUMBER, V_TYPE) | WEAK
    elif id == 179: return _of(NUMBER, V_CODE) | WEAK
    elif id == 180: return _of(NUMBER, V_SPORT) | WEAK
    elif id == 181: return _of(NUMBER, V_DPORT) | WEAK
    elif id == 182: return _of(NUMBER, V_SPORT) | WEAK
    elif id == 183: return _of(NUMBER, V_DPORT) | WEAK
    elif id == 192: return _of(NUMBER, V_TTL) | WEAK
    elif id == 195: return _of(NUMBER, V_DSCP)
    elif id == 231: return _of(NUMBER, V_BYTES) | WEAK          # of the initiator
    elif id == 232: return _of(NUMBER, V_REVERSE_BYTES) | WEAK
    elif id == 243: return _of(NUMBER, V_VLAN) | WEAK
    elif id == 252: return _of(NUMBER, V_IN) | WEAK
    elif id == 253: return _of(NUMBER, V_OUT) | WEAK
    elif id == 254: return _of(NUMBER, V_OUT_VLAN) | WEAK
    elif id == 298: return _of(NUMBER, V_PACKETS) | WEAK
    elif id == 299: return _of(NUMBER, V_REVERSE_PACKETS) | WEAK
    elif id == 302: return _of(NUMBER, V_SAMPLER) | WEAK
    elif id == 305: return _of(NUMBER, V_INTERVAL)
    elif id == 306: return _of(NUMBER, V_SPACE)
    elif id == 309: return _of(NUMBER, V_SIZE)
    elif id == 310: return _of(NUMBER, V_POPULATION)
    elif id == 322: return _of(SECONDS, V_OBSERVED) | WEAK
    elif id == 323: return _of(MILLISECONDS, V_OBSERVED)
    elif id == 324: return _of(NTP_MICRO, V_OBSERVED)
    elif id == 325: return _of(NTP_NANO, V_OBSERVED)
    elif id == 351: return _of(NUMBER, V_VNI)
    elif id == 352: return _of(NUMBER, V_BYTES) | WEAK          # of layer 2
    return 0


cdef inline uint32_t reverse_element(uint32_t id) noexcept nogil:
    """The same for the other direction of a bidirectional flow (RFC 5103)."""
    if id == 1: return _of(NUMBER, V_REVERSE_BYTES)
    elif id == 2: return _of(NUMBER, V_REVERSE_PACKETS)
    elif id == 6: return _of(NUMBER, V_REVERSE_FLAGS)
    elif id == 85: return _of(NUMBER, V_REVERSE_BYTES) | WEAK
    elif id == 86: return _of(NUMBER, V_REVERSE_PACKETS) | WEAK
    return 0


cdef inline bint fits(uint32_t kind, uint32_t size) noexcept nogil:
    """Whether a field of this length can be read; others are skipped."""
    if kind == ADDRESS4:
        return size == 4
    if kind == ADDRESS6:
        return size == 16
    if kind == NTP_MICRO or kind == NTP_NANO:
        return size == 8
    if kind == TEXT:
        return size > 0
    return kind != SKIP and 1 <= size <= 8


cdef inline void take_field(ExportRecord* r, uint32_t kind, int value, const uint8_t* p, uint32_t size,
                            const ExportHeader* h) noexcept nogil:
    """Take a field that fits."""
    cdef uint64_t v
    if kind == ADDRESS4:
        put_address(r, value, p)
        return
    if kind == ADDRESS6:
        put_address(r, value + A_SIX, p)
        return
    if kind == TEXT:
        r.text, r.text_size = p, size
        return
    v = be_number(p, size)
    if kind == NUMBER:
        pass
    elif kind == SECONDS:
        v = <uint64_t>time_of(v, SECOND)
    elif kind == MILLISECONDS:
        v = <uint64_t>time_of(v, MS)
    elif kind == NTP_MICRO:
        v = <uint64_t>ntp_time(v, True)
    elif kind == NTP_NANO:
        v = <uint64_t>ntp_time(v, False)
    elif kind == AGO:
        v = <uint64_t>h.exported - <uint64_t>time_of(v, US)
    elif kind == SPAN_MS:
        v = <uint64_t>time_of(v, MS)
    else:
        v = <uint64_t>time_of(v, US)
    put(r, value, v)


cdef struct FieldList:
    # The fields of a template as they come in.
    const uint8_t* p
    const uint8_t* end
    uint32_t left               # fields
    uint32_t scopes             # of them, the first ones
    bint ipfix
    bint options


cdef inline bint _next_field(FieldList* f, uint32_t* what, uint32_t* size) noexcept nogil:
    """The next field: how it is read, and its length.  False: the list ends too early."""
    cdef uint32_t id, enterprise = 0
    if f.end - f.p < 4:
        return False
    id, size[0] = be16(f.p), be16(f.p + 2)
    f.p += 4
    if f.ipfix and id & 0x8000:
        if f.end - f.p < 4:
            return False
        enterprise = be32(f.p)
        f.p += 4
        what[0] = reverse_element(id & 0x7FFF) if enterprise == REVERSE else 0
    elif f.scopes and not f.ipfix:
        what[0] = _of(NUMBER, V_IN) if id == 2 else 0       # a scope of its own numbering: 2 is an interface
    else:
        what[0] = element(id)
    if f.scopes:
        f.scopes -= 1
    f.left -= 1
    return True


cdef inline Fate compile_template(FieldList* f, uint16_t id, Template** out) noexcept nogil:
    """The template of a list of fields; ``f.p`` ends after it unless it is CUT."""
    cdef FieldList again = f[0]
    cdef uint32_t what, size, kind, value, length = 0, n = f.left
    cdef uint64_t proper = 0, seen = 0
    cdef bint varies = False, odd = n > MAX_FIELDS, open_size
    cdef Template* t
    cdef Op* op
    while f.left:                               # first the lengths, and what has its proper element
        if not _next_field(f, &what, &size):
            return CUT
        open_size = f.ipfix and size == VARIES
        varies = varies or open_size
        length += 1 if open_size else size
        odd = odd or length > 65535
        kind = what >> 8 & 0xFF
        if kind >= SECONDS or kind == NUMBER:
            if not what & WEAK and (open_size or fits(kind, size)):
                proper |= <uint64_t>1 << (what & 0xFF)
    if odd or length == 0:
        return IMPOSSIBLE
    t = <Template*>malloc(sizeof(Template) + n * sizeof(Op))
    if t == NULL:
        return NO_MEMORY
    t.id, t.options, t.varies, t.flow, t.length, t.ops, t.used = id, f.options, varies, False, length, 0, 0
    length = 0
    while again.left:
        _next_field(&again, &what, &size)
        kind, value = what >> 8 & 0xFF, what & 0xFF
        if not (f.ipfix and size == VARIES) and not fits(kind, size):
            kind = SKIP
        if kind == ADDRESS4 or kind == ADDRESS6:
            t.flow = t.flow or value == A_SRC or value == A_DST
        elif kind != SKIP:
            if seen >> value & 1 or what & WEAK and proper >> value & 1:
                kind = SKIP
            else:
                seen |= <uint64_t>1 << value
        if kind != SKIP or varies:
            op = &t.op[t.ops]
            op.at, op.size, op.kind, op.value = length, size, kind, value
            t.ops += 1
        length += size
    t.flow = t.flow or seen >> V_ETH_SRC & 1 or seen >> V_ETH_DST & 1
    out[0] = t
    return KEPT


cdef inline const uint8_t* read_record(ExportRecord* r, const Template* t, const uint8_t* p, const uint8_t* end,
                                       const ExportHeader* h) noexcept nogil:
    """Take the record at p, which has at least `length` bytes; returns its end, NULL: it has not all its bytes."""
    cdef uint32_t i, size
    cdef const Op* op = t.op
    record_begin(r)
    if not t.varies:
        for i in range(t.ops):
            take_field(r, op[i].kind, op[i].value, p + op[i].at, op[i].size, h)
        return p + t.length
    for i in range(t.ops):
        size = op[i].size
        if size == VARIES:
            if end - p < 1:
                return NULL
            size = p[0]
            p += 1
            if size == 255:
                if end - p < 2:
                    return NULL
                size = be16(p)
                p += 2
        if <size_t>(end - p) < size:
            return NULL
        if fits(op[i].kind, size):
            take_field(r, op[i].kind, op[i].value, p, size, h)
        p += size
    return p
