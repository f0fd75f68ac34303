# pcap and pcapng, record by record, over bytes that may arrive in pieces.
# Formats: draft-ietf-opsawg-pcap, draft-ietf-opsawg-pcapng.  No allocation: the caller owns the interface table.

from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t, int64_t, INT64_MAX, INT64_MIN
from c_bits cimport expect
from c_wire cimport get16, get32, get64

cdef extern from * nogil:
    """
    typedef unsigned __int128 confluo_u128;
    """
    ctypedef unsigned long long u128 "confluo_u128"

cdef enum:
    MAX_CAPTURE = 1 << 24       # more captured bytes mean a damaged record (libpcap: 2^18)
    MAX_INTERFACES = 65535
    NOTE_TIME_FIXED = 64        # bits of the field `notes`, see c_packet.pxd
    NS = 1000000000

# Results of capture_next.
cdef enum Next:
    FRAME = 1                   # a frame is in *f
    MORE = 2                    # feed `need` bytes from `at` on, or declare the end
    GROW = 3                    # the interface table is full: enlarge it and call again
    END = 4                     # nothing more can be read

cdef enum Kind:
    KIND_NONE = 0               # nothing read yet
    KIND_PCAP = 1
    KIND_PCAPNG = 2

# Why reading ended; the caller turns them into messages.
cdef enum Fault:
    FAULT_NONE = 0
    FAULT_MAGIC = 1             # neither pcap nor pcapng
    FAULT_CUT = 2               # the last record is not complete
    FAULT_HUGE = 3              # captured length beyond MAX_CAPTURE
    FAULT_BLOCK = 4             # a pcapng block with contradictory lengths
    FAULT_SECTION = 5           # a pcapng section without a byte-order magic
    FAULT_VERSION = 6           # a version of the format that is not known
    FAULT_RESERVED = 7          # reserved bits of the link type are set

# Order of the two lengths in a record of a pcap file.
cdef enum Lengths:
    CAPTURED_FIRST = 0
    WIRE_FIRST = 1              # versions 2.0 to 2.2 and 543.0 (AIX)
    EITHER_FIRST = 2            # version 2.3: the smaller one is the captured length

cdef struct Interface:
    uint16_t link
    uint8_t power_of_two        # ticks are 2^-shift s, else 1 tick = mul/div ns
    uint8_t shift
    uint32_t snap               # 0: no limit
    uint64_t mul
    uint64_t div                # 0: too fine to represent, all times are 0
    int64_t offset              # seconds

cdef struct Frame:
    const uint8_t* data
    uint32_t cap                # bytes at data
    uint32_t len                # bytes on the wire
    int64_t ts                  # ns since 1970; 0 when the record has no time
    uint64_t offset             # of its record in the capture
    uint32_t iface
    uint32_t number             # of the capture
    uint16_t link
    uint8_t notes

cdef struct Reader:
    const uint8_t* data
    size_t size
    size_t at                   # next byte to read
    size_t need                 # MORE: bytes wanted from `at` on
    uint64_t base               # offset in the capture of data[0]
    uint32_t number             # of the capture
    uint64_t skip               # bytes of an ignored block left to skip
    bint final                  # no bytes after these
    bint stopped                # the bytes from `at` on are unreadable
    int kind
    int fault
    bint swap
    uint32_t head               # pcap: bytes of a record header
    uint32_t tick               # pcap: ns of one unit of the fraction
    uint16_t link               # pcap
    int lengths                 # pcap: Lengths
    Interface* iface            # pcapng: `room` of them, `interfaces` used, of the section from `first` on
    uint32_t room
    uint32_t interfaces
    uint32_t first              # number of the section's (pcap: the only) interface 0
    uint64_t long_caps          # records with more captured bytes than were on the wire
    uint64_t bad                # records and blocks skipped
    uint64_t fixed              # times that were normalized


cdef inline int _more(Reader* c, size_t need) noexcept nogil:
    if c.final:
        if c.at < c.size:
            return _stop(c, FAULT_CUT)
        return END
    c.need = need
    return MORE


cdef inline int _stop(Reader* c, int fault) noexcept nogil:
    c.fault = fault
    c.stopped = True
    return END


cdef inline int64_t capture_time(const Interface* i, uint64_t ticks, uint8_t* notes) noexcept nogil:
    """Convert ticks of an interface to ns, limited to 64 bits."""
    cdef u128 ns
    cdef int64_t offset
    if i.power_of_two:
        # 1e9 < 2^30, so that the product fits 94 bits
        ns = (<u128>ticks * <u128>NS) >> i.shift if i.shift < 128 else 0
    elif i.div == 0:
        return 0
    else:
        ns = <u128>ticks * i.mul
        if i.div != 1:
            ns = ns / i.div
    if ns > <u128>INT64_MAX:
        notes[0] |= NOTE_TIME_FIXED
        return INT64_MAX
    if i.offset == 0:
        return <int64_t>ns
    if i.offset > INT64_MAX // NS or i.offset < INT64_MIN // NS:
        notes[0] |= NOTE_TIME_FIXED
        return INT64_MAX if i.offset > 0 else INT64_MIN
    offset = i.offset * NS
    if offset > 0 and <int64_t>ns > INT64_MAX - offset:
        notes[0] |= NOTE_TIME_FIXED
        return INT64_MAX
    return <int64_t>ns + offset


cdef inline void resolution(Interface* i, uint8_t code) noexcept nogil:
    """if_tsresol: a power of two if the high bit is set, else a power of ten."""
    cdef uint32_t power = code & 0x7F
    cdef uint32_t _k
    i.power_of_two = code >> 7
    i.shift = power
    i.mul, i.div = 1, 1
    if not i.power_of_two:
        if power <= 9:
            for _k in range(9 - power):
                i.mul *= 10
        elif power <= 28:
            for _k in range(power - 9):
                i.div *= 10
        else:
            i.div = 0


cdef inline int _begin(Reader* c) noexcept nogil:
    cdef uint32_t magic, swapped, major, minor, link
    if c.size - c.at < 4:
        return _more(c, 24)
    magic = get32(c.data + c.at, False)
    if magic == 0x0A0D0D0A:
        c.kind = KIND_PCAPNG
        return FRAME
    swapped = get32(c.data + c.at, True)
    c.swap = swapped == 0xA1B2C3D4u or swapped == 0xA1B23C4Du or swapped == 0xA1B2CD34u
    if c.swap:
        magic = swapped
    if magic != 0xA1B2C3D4u and magic != 0xA1B23C4Du and magic != 0xA1B2CD34u:
        return _stop(c, FAULT_MAGIC)
    if c.size - c.at < 24:
        return _more(c, 24)
    c.head = 24 if magic == 0xA1B2CD34u else 16     # "modified": more fields in each record header
    c.tick = 1 if magic == 0xA1B23C4Du else 1000
    major, minor = get16(c.data + c.at + 4, c.swap), get16(c.data + c.at + 6, c.swap)
    if not (major == 2 and minor <= 4 or major == 543 and minor == 0):
        return _stop(c, FAULT_VERSION)
    c.lengths = WIRE_FIRST if major == 543 or minor < 3 else EITHER_FIRST if minor == 3 else CAPTURED_FIRST
    link = get32(c.data + c.at + 20, c.swap)
    if link & 0x03FF0000:                           # above: length of the frame check sequence
        return _stop(c, FAULT_RESERVED)
    c.link = link & 0xFFFF
    c.at += 24
    c.kind = KIND_PCAP
    return FRAME


cdef inline int _pcap(Reader* c, Frame* f) noexcept nogil:
    cdef size_t left = c.size - c.at
    cdef const uint8_t* p = c.data + c.at
    cdef uint32_t cap, length, fraction
    if left < c.head:
        return _more(c, c.head)
    cap, length = get32(p + 8, c.swap), get32(p + 12, c.swap)
    if expect(c.lengths != CAPTURED_FIRST, False) and (c.lengths == WIRE_FIRST or cap > length):
        cap, length = length, cap
    if expect(cap > MAX_CAPTURE, False):
        return _stop(c, FAULT_HUGE)
    if left - c.head < cap:
        return _more(c, <size_t>c.head + cap)
    fraction = get32(p + 4, c.swap)
    f.ts = <int64_t>get32(p, c.swap) * NS + <int64_t>fraction * c.tick
    f.notes = 0
    if expect(<uint64_t>fraction * c.tick >= NS, False):
        f.notes = NOTE_TIME_FIXED
        c.fixed += 1
    f.len = length
    f.cap = cap
    if expect(cap > f.len, False):
        c.long_caps += 1
    f.data = p + c.head
    f.offset = c.base + c.at
    f.number = c.number
    f.iface = c.first
    f.link = c.link
    c.at += c.head + cap
    return FRAME


cdef inline int _section(Reader* c, const uint8_t* p) noexcept nogil:
    cdef uint32_t magic = get32(p + 8, False)
    if magic == 0x1A2B3C4Du:
        c.swap = False
    elif magic == 0x4D3C2B1Au:
        c.swap = True
    else:
        return _stop(c, FAULT_SECTION)
    c.first = c.interfaces
    return FRAME


cdef inline void _interface(Reader* c, const uint8_t* p, uint32_t total) noexcept nogil:
    cdef Interface* i = &c.iface[c.interfaces]
    cdef uint32_t at = 16, code, size
    i.link = get16(p + 8, c.swap)
    i.snap = get32(p + 12, c.swap)
    i.offset = 0
    resolution(i, 6)
    while at + 8 <= total:                  # an option header, and the trailing length after it
        code, size = get16(p + at, c.swap), get16(p + at + 2, c.swap)
        at += 4
        if code == 0 or size > total - 4 - at:
            break
        if code == 9 and size == 1:
            resolution(i, p[at])
        elif code == 14 and size == 8:
            i.offset = <int64_t>get64(p + at, c.swap)
        at += (size + 3) & ~<uint32_t>3
    c.interfaces += 1


cdef inline int _packet(Reader* c, Frame* f, const uint8_t* p, uint32_t kind, uint32_t total) noexcept nogil:
    """A packet block of `total` bytes at p: FRAME, or MORE when it must be skipped."""
    cdef uint32_t number = 0, head, cap
    cdef Interface* i
    if kind == 3:
        head = 12
    else:
        head = 28
        if total < 32:
            return MORE
        number = get32(p + 8, c.swap) if kind == 6 else get16(p + 8, c.swap)
    if total < head + 4 or number >= c.interfaces - c.first:
        return MORE
    i = &c.iface[c.first + number]
    f.notes = 0
    f.ts = 0
    if kind == 3:                           # no time; the captured length is implied
        f.len = get32(p + 8, c.swap)
        cap = f.len
        if i.snap and cap > i.snap:
            cap = i.snap
        if cap > total - 16:
            cap = total - 16
    else:
        cap = get32(p + 20, c.swap)
        f.len = get32(p + 24, c.swap)
        if cap > total - 32:
            return MORE
        f.ts = capture_time(i, <uint64_t>get32(p + 12, c.swap) << 32 | get32(p + 16, c.swap), &f.notes)
        if f.notes:
            c.fixed += 1
        if cap > f.len:
            c.long_caps += 1
    f.cap = cap
    f.data = p + head
    f.link = i.link
    f.iface = c.first + number
    return FRAME


cdef inline int _pcapng(Reader* c, Frame* f) noexcept nogil:
    cdef const uint8_t* p
    cdef size_t left
    cdef uint32_t kind, total
    cdef int status
    while True:
        left = c.size - c.at
        if c.skip:
            if c.skip > left:
                c.skip -= left
                c.at = c.size
                if c.final:
                    return _stop(c, FAULT_CUT)
                c.need = 1
                return MORE
            c.at += c.skip
            c.skip = 0
            continue
        if left < 12:
            return _more(c, 12)
        p = c.data + c.at
        kind = get32(p, c.swap)
        if kind == 0x0A0D0D0A:              # equal in both byte orders
            status = _section(c, p)
            if status != FRAME:
                return status
            if left < 16:
                return _more(c, 16)
            if get16(p + 12, c.swap) != 1 or get16(p + 14, c.swap) not in (0, 2):
                return _stop(c, FAULT_VERSION)
        total = get32(p + 4, c.swap)
        if total < 12 or total & 3:
            return _stop(c, FAULT_BLOCK)
        if kind != 6 and kind != 3 and kind != 2 and kind != 1:
            c.skip = total
            continue
        if total > MAX_CAPTURE:
            return _stop(c, FAULT_HUGE)
        if left < total:
            return _more(c, total)
        if get32(p + total - 4, c.swap) != total:
            return _stop(c, FAULT_BLOCK)
        if kind == 1:
            if total < 20 or c.interfaces >= MAX_INTERFACES:
                c.bad += 1
            elif c.interfaces >= c.room:
                return GROW
            else:
                _interface(c, p, total)
            c.at += total
            continue
        f.offset = c.base + c.at
        f.number = c.number
        status = _packet(c, f, p, kind, total)
        c.at += total
        if status == FRAME:
            return FRAME
        c.bad += 1


cdef inline int capture_next(Reader* c, Frame* f) noexcept nogil:
    """Read the next frame.  Its data stay valid until the bytes of the capture change."""
    cdef int status
    if expect(c.stopped, False):
        return END
    if expect(c.kind == KIND_NONE, False):
        status = _begin(c)
        if status != FRAME:
            return status
    if c.kind == KIND_PCAP:
        return _pcap(c, f)
    return _pcapng(c, f)
