"""The ring of the recorder's BPF program (record_tcp.bpf.c): runs become rows of the schema recording at once."""

from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t, int32_t, int64_t
from cpython.mem cimport PyMem_Free, PyMem_Realloc
from libc.stdlib cimport qsort
from libc.string cimport memcpy, memset
from c_atomic cimport load_acquire, load_acquire32, store_release
cimport cython
from confluo_tools.core.block.block cimport Layout, Staging

cdef extern from "record_tcp.h" nogil:
    enum:
        R_RUN
        K_RX
        K_TX
        N_RELATIVE
        LIST
        L_GAPS
        L_TX
        L_RX
        L_NUMBER
        L_SIZES
        L_MARKS
        LISTS
        INPUT_BITS
        SENT_BITS
        N_LISTED
    struct record:
        uint16_t type, kind
        uint32_t id
        uint64_t slot
        uint32_t count, tx, rx, number, flags
        int32_t gap
        int64_t bytes
        uint64_t asked
        int32_t value
        uint16_t notes, ip_id, segments
        uint8_t call, timer
        uint8_t[4][64] lists
    struct packet_run:
        uint32_t count, emitted, tx, rx, from_tx, from_rx, from_id
        uint16_t segments, notes, ip_id
        uint64_t first
        int32_t gap
        uint8_t[4][64] lists
    struct event_run:
        uint32_t count, emitted, tx, rx, number, from_tx, from_rx, from_number, flags
        int64_t bytes
        uint64_t asked, first
        int32_t value
        uint16_t notes, kind
        uint8_t call, timer
        uint8_t[4][64] lists

cdef enum:
    BUSY = 1 << 31
    DISCARD = 1 << 30
    HEAD = 8        # bytes before each record of a ring
    HELD = 4096     # runs that wait

cdef uint64_t MIX = 0x9E3779B97F4A7C15


cdef struct Order:
    uint64_t key, event
    uint32_t place


cdef int _compare(const void* a, const void* b) noexcept nogil:
    cdef const Order* x = <const Order*>a
    cdef const Order* y = <const Order*>b
    if x.key != y.key:
        return 1 if x.key > y.key else -1
    if x.event != y.event:
        return 1 if x.event > y.event else -1
    return (x.place > y.place) - (x.place < y.place)


cdef uint64_t _event(const record* r) noexcept nogil:
    """Equal for runs of equal events; all packets of a direction are."""
    cdef uint64_t found = <uint64_t>r.call << 8 | r.timer
    if r.kind == K_RX or r.kind == K_TX:
        return 0
    found = (found ^ <uint64_t>r.bytes) * MIX
    found = (found ^ r.asked) * MIX
    found = (found ^ <uint64_t>r.flags ^ <uint64_t>(r.notes & ~N_RELATIVE) << 32) * MIX
    return (found ^ <uint64_t><int64_t>r.value) * MIX


cdef struct Columns:
    int64_t* ts
    int64_t* bytes
    int64_t* value
    uint64_t* number
    uint64_t* asked
    uint64_t* cookie
    uint32_t* count
    uint32_t* tx
    uint32_t* rx
    uint32_t* flags
    uint32_t* src_ip
    uint32_t* dst_ip
    int32_t* gap
    uint16_t* notes
    uint16_t* src_port
    uint16_t* dst_port
    uint16_t* ip_id
    uint16_t* segments
    uint8_t* kind
    uint8_t* ip_version
    uint8_t* proto
    uint8_t* role
    uint8_t* call
    uint8_t* timer
    uint8_t* src_ip6
    uint8_t* dst_ip6
    uint8_t* gaps
    uint8_t* tx_gaps
    uint8_t* rx_gaps
    uint8_t* number_gaps
    uint8_t* sizes
    uint8_t* marks


@cython.final
cdef class EndPlace:
    """The columns that name an end of a connection.  ``base``: wall clock less monotonic clock, ns."""
    cdef uint64_t cookie
    cdef int64_t base
    cdef uint32_t src_ip, dst_ip
    cdef uint16_t src_port, dst_port
    cdef uint8_t version, role
    cdef uint8_t[16] src_ip6
    cdef uint8_t[16] dst_ip6

    def __cinit__(self, dict row not None, int64_t base):
        cdef bytes six
        self.base = base
        self.cookie = row["cookie"]
        self.src_ip, self.dst_ip = row["src_ip"], row["dst_ip"]
        self.src_port, self.dst_port = row["src_port"], row["dst_port"]
        self.version, self.role = row["ip_version"], row["role"]
        six = row.get("src_ip6", b"").ljust(16, b"\0")
        memcpy(self.src_ip6, <const char*>six, 16)
        six = row.get("dst_ip6", b"").ljust(16, b"\0")
        memcpy(self.dst_ip6, <const char*>six, 16)


@cython.final
cdef class RecordRing:
    """Reads a ring of ``size`` bytes; its pages are mapped at ``consumer`` and ``producer``.

    ``layout``: of the rows.  ``packets``, ``events``: how many the runs had so far.  ``strange``: runs of ends that are
    not known.
    """
    cdef object pages
    cdef uint64_t* consumed
    cdef const uint8_t* producer
    cdef uint64_t size, page
    cdef Layout layout
    cdef dict ends
    cdef list ended             # their runs may still be held
    cdef record* runs
    cdef Order* order
    cdef uint32_t room          # of these
    cdef readonly uint32_t held
    cdef readonly uint64_t packets, events
    cdef readonly uint64_t strange

    def __cinit__(self, consumer not None, producer not None, uint64_t size, Layout layout not None):
        # The page of the consumer, and that of the producer with the data twice.
        cdef uint8_t[::1] first = consumer
        cdef const uint8_t[::1] second = producer
        self.page = <uint64_t>first.shape[0]
        if size & (size - 1) or self.page < 4096 or <uint64_t>second.shape[0] < self.page + 2 * size:
            raise ValueError("the pages of a ring")
        self.pages = (first, second)        # they stay mapped
        self.consumed = <uint64_t*>&first[0]
        self.producer = &second[0]
        self.size = size
        self.layout = layout
        self.ends, self.ended = {}, []
        self._grow(HELD)

    def __dealloc__(self):
        PyMem_Free(self.runs)
        PyMem_Free(self.order)

    def know(self, uint32_t number, EndPlace place not None):
        """Runs with this number are of this end."""
        self.ends[number] = place

    def forget(self, uint32_t number):
        """No more runs of this end come."""
        self.ended.append(number)

    @property
    def full(self):
        """Whether `rows` must be called before the next `read`."""
        return self.held >= HELD

    @property
    def waiting(self):
        """Bytes of the ring that are not read."""
        return load_acquire(<const uint64_t*>self.producer) - self.consumed[0]

    def read(self):
        """The next record that is not a run; None: there is none, or the held runs must be taken first."""
        cdef uint64_t at = self.consumed[0], end = load_acquire(<const uint64_t*>self.producer)
        cdef const uint8_t* p
        cdef uint32_t length
        cdef object other = None
        while at < end and self.held < HELD and other is None:
            p = self.producer + self.page + (at & (self.size - 1))
            length = load_acquire32(<const uint32_t*>p)
            if length & BUSY:
                break
            if not length & DISCARD:
                if (<const record*>(p + HEAD)).type != R_RUN:
                    other = PyBytes_FromStringAndSize(<const char*>p + HEAD, length)
                else:
                    self._hold(<const record*>(p + HEAD))
            at += ((length & ~<uint32_t>(BUSY | DISCARD)) + HEAD + 7) & ~<uint64_t>7
        store_release(self.consumed, at)
        return other

    cdef int _grow(self, uint32_t room) except -1:
        cdef record* runs = <record*>PyMem_Realloc(self.runs, room * sizeof(record))
        if runs != NULL:
            self.runs = runs
        cdef Order* order = <Order*>PyMem_Realloc(self.order, room * sizeof(Order))
        if order != NULL:
            self.order = order
        if runs == NULL or order == NULL:
            raise MemoryError
        self.room = room
        return 0

    cdef int _hold(self, const record* r) except -1:
        if self.held == self.room:
            self._grow(2 * self.room)
        cdef Order* order = &self.order[self.held]
        self.runs[self.held] = r[0]
        order.key = <uint64_t>r.id << 8 | r.kind
        order.event = _event(r)
        order.place = self.held
        if r.kind == K_RX or r.kind == K_TX:
            self.packets += r.count
        else:
            self.events += r.count
        self.held += 1
        return 0

    def hold_packets(self, uint32_t number, int kind, const uint8_t[::1] run not None):
        """Hold packets of an end that were not in the ring: a struct packet_run.  ``kind``: as in the schema."""
        cdef record r
        if <size_t>run.shape[0] < sizeof(packet_run):
            raise ValueError("a run")
        cdef const packet_run* p = <const packet_run*>&run[0]
        if p.count == 0:
            return
        memset(&r, 0, sizeof(r))
        r.type, r.kind, r.id = R_RUN, <uint16_t>kind, number
        r.slot, r.count, r.gap = p.first, p.count, p.gap
        r.tx, r.rx, r.ip_id = p.tx, p.rx, p.ip_id
        r.segments, r.notes = p.segments, p.notes | N_LISTED
        memcpy(r.lists, p.lists, sizeof(r.lists))
        self._hold(&r)

    def hold_events(self, uint32_t number, const uint8_t[::1] run not None):
        """Hold equal events of an end that were not in the ring: a struct event_run."""
        cdef record r
        if <size_t>run.shape[0] < sizeof(event_run):
            raise ValueError("a run")
        cdef const event_run* p = <const event_run*>&run[0]
        if p.count == 0:
            return
        memset(&r, 0, sizeof(r))
        r.type, r.kind, r.id = R_RUN, p.kind, number
        r.slot, r.count, r.flags = p.first, p.count, p.flags
        r.tx, r.rx, r.number = p.tx, p.rx, p.number
        r.bytes, r.asked, r.value = p.bytes, p.asked, p.value
        r.call, r.timer, r.notes = p.call, p.timer, p.notes | N_LISTED
        memcpy(r.lists, p.lists, sizeof(r.lists))
        self._hold(&r)

    def rows(self):
        """The runs since the last call as a block, by end and event: a compressed log is smaller then."""
        cdef Columns c
        cdef uint32_t i, rows = 0
        cdef Staging out = Staging(self.layout, max(self.held, 1))
        self._columns(out, &c)
        qsort(self.order, self.held, sizeof(Order), &_compare)
        for i in range(self.held):
            rows += self._row(&c, rows, &self.runs[self.order[i].place])
        self.held = 0
        for number in self.ended:
            self.ends.pop(number, None)
        self.ended.clear()
        out.publish(rows)
        return out

    cdef int _row(self, Columns* c, uint32_t i, const record* r) except -1:
        found = self.ends.get(r.id)
        if found is None:
            self.strange += 1
            return 0
        cdef EndPlace place = <EndPlace>found
        c.ts[i] = <int64_t>(r.slot << (SENT_BITS if r.kind == K_TX else INPUT_BITS)) + place.base
        c.kind[i] = <uint8_t>r.kind
        c.notes[i] = r.notes
        c.ip_version[i] = place.version
        c.proto[i] = 6
        c.src_ip[i] = place.src_ip
        c.dst_ip[i] = place.dst_ip
        memcpy(c.src_ip6 + i * 16, place.src_ip6, 16)
        memcpy(c.dst_ip6 + i * 16, place.dst_ip6, 16)
        c.src_port[i] = place.src_port
        c.dst_port[i] = place.dst_port
        c.cookie[i] = place.cookie
        c.role[i] = place.role
        c.count[i] = r.count
        c.number[i] = r.number
        c.tx[i] = r.tx
        c.rx[i] = r.rx
        c.call[i] = r.call
        c.bytes[i] = r.bytes
        c.asked[i] = r.asked
        c.flags[i] = r.flags
        c.value[i] = r.value
        c.timer[i] = r.timer
        c.ip_id[i] = r.ip_id
        c.segments[i] = r.segments
        c.gap[i] = r.gap
        memcpy(c.gaps + i * LIST, r.lists[L_GAPS], LIST)
        if r.kind != K_TX:
            memcpy(c.tx_gaps + i * LIST, r.lists[L_TX], LIST)
        if r.kind == K_TX or r.kind == K_RX:
            memcpy(c.sizes + i * LIST, r.lists[L_SIZES], LIST)
            memcpy(c.marks + i * LIST, r.lists[L_MARKS], LIST)
        else:
            memcpy(c.rx_gaps + i * LIST, r.lists[L_RX], LIST)
            memcpy(c.number_gaps + i * LIST, r.lists[L_NUMBER], LIST)
        return 1

    cdef int _columns(self, Staging b, Columns* c) except -1:
        c.ts = <int64_t*>_column(b, "ts", 8)
        c.bytes = <int64_t*>_column(b, "bytes", 8)
        c.value = <int64_t*>_column(b, "value", 8)
        c.number = <uint64_t*>_column(b, "number", 8)
        c.asked = <uint64_t*>_column(b, 'asked', 8)
        c.cookie = <uint64_t*>_column(b, "cookie", 8)
        c.count = <uint32_t*>_column(b, "count", 4)
        c.tx = <uint32_t*>_column(b, "tx", 4)
        c.rx = <uint32_t*>_column(b, "rx", 4)
        c.flags = <uint32_t*>_column(b, "flags", 4)
        c.src_ip = <uint32_t*>_column(b, "src_ip", 4)
        c.dst_ip = <uint32_t*>_column(b, "dst_ip", 4)
        c.gap = <int32_t*>_column(b, "gap", 4)
        c.notes = <uint16_t*>_column(b, "notes", 2)
        c.src_port = <uint16_t*>_column(b, "src_port", 2)
        c.dst_port = <uint16_t*>_column(b, "dst_port", 2)
        c.ip_id = <uint16_t*>_column(b, "ip_id", 2)
        c.segments = <uint16_t*>_column(b, "segments", 2)
        c.kind = _column(b, "kind", 1)
        c.ip_version = _column(b, "ip_version", 1)
        c.proto = _column(b, "proto", 1)
        c.role = _column(b, "role", 1)
        c.call = _column(b, "call", 1)
        c.timer = _column(b, "timer", 1)
        c.src_ip6 = _column(b, "src_ip6", 16)
        c.dst_ip6 = _column(b, "dst_ip6", 16)
        c.gaps = _column(b, "gaps", LIST)
        c.tx_gaps = _column(b, "tx_gaps", LIST)
        c.rx_gaps = _column(b, "rx_gaps", LIST)
        c.number_gaps = _column(b, "number_gaps", LIST)
        c.sizes = _column(b, "sizes", LIST)
        c.marks = _column(b, "marks", LIST)
        return 0


cdef uint8_t* _column(Staging block, str name, size_t width) except NULL:
    cdef int i = block.layout.index(name)
    if block.layout.column[i].width != width:
        raise ValueError(f"{name} has {block.layout.column[i].width} bytes")
    return block.out[i]
