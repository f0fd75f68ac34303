"""Flow table of one epoch: losses from the records, paths from traceroutes, and `path` records of both."""

from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memcpy, memset
from c_block cimport BYTES, F32
from c_ipv6_hash cimport fold6
from c_hash_table cimport lru_find, lru_free, lru_hash, lru_init, lru_insert, lru_key, lru_value
from c_traceroute_packets cimport put32
from confluo_tools.core.block.block cimport Block, Layout, Staging, column_number
cimport cython
import os

cdef enum:
    TCP = 6
    NEW = 0                     # nothing lost yet
    WAITING = 1                 # to be traced
    TRACING = 2                   # being traced
    DONE = 3
    MAX_FLOWS = 1 << 24

cdef enum:                      # columns of the records
    N_TS
    N_VERSION
    N_PROTO
    N_SRC
    N_DST
    N_SPORT
    N_DPORT
    N_SRC6
    N_DST6
    N_SENT
    N_LOST
    N_RETRANS
    N_DSACK
    N_RTT
    N_KIND
    N_NOTES
    NEEDS

USED = ("ts", "ip_version", "proto", "src_ip", "dst_ip", "src_port", "dst_port", "src_ip6", "dst_ip6", "sent", "lost",
        "retrans", "dsack", "rtt", "kind", "notes")
NEEDED = USED[:7]
NOTES = {"partial": 1, "loop": 2, "unmapped": 4, "capped": 8, "unconnected": 32, "stalled": 64, "probe": 128}

cdef enum:
    FAILED = 32 | 64            # in records of kind retx and path
    PROBE = 128


@cython.final
cdef class NumberMap:
    """A dictionary of 32-bit numbers, not 0, for code without the interpreter."""

    def __cinit__(self, numbers=None):
        cdef uint32_t slots = 8, at, k
        while slots < 2 * len(numbers or ()):
            slots *= 2
        self.mask = slots - 1
        self.key = <uint32_t*>calloc(slots, 4)
        self.value = <uint32_t*>calloc(slots, 4)
        if self.key == NULL or self.value == NULL:
            raise MemoryError
        for key, value in (numbers or {}).items():
            k = key
            if not k:
                raise ValueError("0 is not a number of a node")
            at = (k * <uint32_t>0x9E3779B1) >> 7 & self.mask
            while self.key[at] and self.key[at] != k:
                at = (at + 1) & self.mask
            self.key[at], self.value[at] = k, value

    def __dealloc__(self):
        free(self.key)
        free(self.value)

    cdef uint32_t get(self, uint32_t key, uint32_t otherwise) noexcept nogil:
        cdef uint32_t at = (key * <uint32_t>0x9E3779B1) >> 7 & self.mask
        while self.key[at]:
            if self.key[at] == key:
                return self.value[at]
            at = (at + 1) & self.mask
        return otherwise

    def find(self, uint32_t key):
        """The value of ``key``, 0 when it has none."""
        return self.get(key, 0) if key else 0


@cython.final
cdef class FlowTable:
    """The TCP flows of one epoch, at most ``max_flows``; records of others are counted (`overflow`).

    ``layout`` is that of the records: a five-tuple with time, and of sent, lost, retrans, dsack, rtt what there is; a
    record without ``lost`` counts as one lost packet.  ``healthy``: also keep flows that lost nothing.
    ``before``: the book of the epoch before; a path that was found there later than ``fresh`` (ns, monotonic) is used
    again.  Raises KeyError: the name of a field that is missing, ValueError: of another type.
    """

    def __cinit__(self, Layout layout not None, *, uint32_t max_flows=1 << 18, bint healthy=False,
                  FlowTable before=None, int64_t fresh=0):
        cdef uint64_t seed[2]
        cdef int i, k, width
        if not 1 <= max_flows <= MAX_FLOWS:
            raise ValueError(f"{max_flows} flows")
        self.layout, self.healthy, self.before, self.fresh = layout, healthy, before, fresh
        if before is not None:
            before.before = None
        for i in range(NEEDS):
            k = layout.get(USED[i])
            if k < 0 and USED[i] in NEEDED:
                raise KeyError(USED[i])
            if k >= 0:
                width = layout.column[k].width
                if i == N_SRC6 or i == N_DST6:
                    if width != 16:
                        raise ValueError(USED[i])
                elif (layout.column[k].count != 1 or layout.column[k].code == BYTES or width > 8
                      or F32 <= layout.column[k].code < BYTES):
                    raise ValueError(USED[i])
            self.column[i] = k
        if layout.get("link_a") < 0:
            self.column[N_KIND] = -1  # only records of kind path have failed links
        if layout.get("hops") < 0 and layout.get("timeouts") < 0:
            self.column[N_NOTES] = -1  # other kinds have other notes
        self.counts = self.column[N_LOST] >= 0
        secret = os.urandom(16)
        seed[0] = int.from_bytes(secret[:8], "little")
        seed[1] = int.from_bytes(secret[8:], "little")
        if not lru_init(&self.flows, 5, sizeof(Flow), max_flows, seed):
            raise MemoryError

    def __dealloc__(self):
        lru_free(&self.flows)
        free(self.paths)
        free(self.queue)

    def __len__(self):
        return self.flows.index.count

    @property
    def waiting(self):
        """Flows that are not taken yet."""
        return self.queued - self.popped

    cdef int _enqueue(self, uint32_t number) noexcept nogil:
        cdef uint32_t* more
        if self.queued == self.queue_room:
            more = <uint32_t*>realloc(self.queue, (<size_t>self.queue_room * 2 + 1024) * 4)
            if more == NULL:
                return -1
            self.queue, self.queue_room = more, self.queue_room * 2 + 1024
        self.queue[self.queued] = number
        self.queued += 1
        return 0

    cdef Path* _new_path(self) noexcept nogil:
        cdef Path* more
        if self.path_count == self.path_room:
            more = <Path*>realloc(self.paths, (<size_t>self.path_room * 2 + 64) * sizeof(Path))
            if more == NULL:
                return NULL
            self.paths, self.path_room = more, self.path_room * 2 + 64
        self.path_count += 1
        memset(&self.paths[self.path_count - 1], 0, sizeof(Path))
        return &self.paths[self.path_count - 1]

    cdef int _row(self, const uint8_t** col, uint32_t row) noexcept nogil:
        cdef uint64_t key[5]
        cdef uint64_t version, lost, sent, hash
        cdef int64_t ts
        cdef Flow* f
        cdef Flow* old
        cdef Path* p
        cdef bint fresh
        self.records += 1
        version = _get(self, col, N_VERSION, row)
        if _get(self, col, N_PROTO, row) != TCP or (version != 4 and version != 6) or _get(self, col, N_KIND, row) == 2:
            self.skipped += 1
            return 0
        lost = _get(self, col, N_LOST, row) if self.counts else 1
        if col[N_NOTES] != NULL and _get(self, col, N_NOTES, row) & PROBE:
            return 0
        key[0] = (version | <uint64_t>TCP << 8 | (_get(self, col, N_SPORT, row) & 0xFFFF) << 16
                  | (_get(self, col, N_DPORT, row) & 0xFFFF) << 32)
        memset(key + 1, 0, 32)
        if version == 4:
            put32(<uint8_t*>(key + 1), <uint32_t>_get(self, col, N_SRC, row))
            put32(<uint8_t*>(key + 3), <uint32_t>_get(self, col, N_DST, row))
        else:
            if col[N_SRC6] == NULL or col[N_DST6] == NULL:
                self.skipped += 1
                return 0
            memcpy(key + 1, col[N_SRC6] + <size_t>row * 16, 16)
            memcpy(key + 3, col[N_DST6] + <size_t>row * 16, 16)
        hash = lru_hash(&self.flows, key)
        ts = <int64_t>_get(self, col, N_TS, row)
        if lost == 0 and not self.healthy:
            f = <Flow*>lru_find(&self.flows, key, hash)
            if f != NULL:
                self._fated(f, col, row, ts)
            return 0
        if self.flows.index.count == self.flows.max_count:
            f = <Flow*>lru_find(&self.flows, key, hash)
            if f == NULL:
                self.overflow += 1
                self.overflow_lost += lost
                return 0
            fresh = False
        else:
            f = <Flow*>lru_insert(&self.flows, key, hash, &fresh)
            if f == NULL:
                return -1
        self._fated(f, col, row, ts)
        if fresh or ts > f.ts:
            f.ts = ts
        sent = _get(self, col, N_SENT, row)
        f.sent = _add(f.sent, sent)
        f.lost = _add(f.lost, lost)
        f.retrans = _add(f.retrans, _get(self, col, N_RETRANS, row) if col[N_RETRANS] != NULL else lost)
        f.dsack = _add(f.dsack, _get(self, col, N_DSACK, row))
        if _get(self, col, N_RTT, row):
            f.rtt = <int64_t>_get(self, col, N_RTT, row)
        if f.lost and f.state == NEW:
            f.state = WAITING
            if self.before is not None:
                old = <Flow*>lru_find(&self.before.flows, key, lru_hash(&self.before.flows, key))
                if old != NULL and old.state == DONE and old.path and old.traced > self.fresh:
                    p = self._new_path()
                    if p == NULL:
                        return -1
                    memcpy(p, &self.before.paths[old.path - 1], sizeof(Path))
                    f.state, f.traced, f.path, f.notes = DONE, old.traced, self.path_count, old.notes
                    return 0
            # entries do not move among themselves: a number is for good
            return self._enqueue(<uint32_t>((<uint8_t*>f - self.flows.entries) // self.flows.stride))
        return 0

    cdef void _fated(self, Flow* f, const uint8_t** col, uint32_t row, int64_t ts) noexcept nogil:
        """Its latest record that sent something says how it fares."""
        if ts >= f.ts and (_get(self, col, N_SENT, row) or _get(self, col, N_RETRANS, row)):
            f.fate = <uint8_t>(_get(self, col, N_NOTES, row) & FAILED)

    def failed(self, uint32_t number):
        """Whether a flow failed: its handshake did not finish, or its retransmissions time out one after the other."""
        return (self._flow(number).fate & FAILED) != 0

    def add_probe(self, uint32_t number, uint32_t sport):
        """Add an entry like that of a flow with another source port, to be traced; None: there is one, or no room."""
        cdef uint64_t key[5]
        cdef Flow* like = self._flow(number)
        cdef Flow* f
        cdef bint fresh
        cdef int64_t ts = like.ts, rtt = like.rtt
        memcpy(key, lru_key(&self.flows, number), 40)
        key[0] = key[0] & ~(<uint64_t>0xFFFF << 16) | <uint64_t>(sport & 0xFFFF) << 16
        if self.flows.index.count == self.flows.max_count:
            return None
        f = <Flow*>lru_insert(&self.flows, key, lru_hash(&self.flows, key), &fresh)
        if f == NULL or not fresh:
            return None
        f.ts, f.rtt, f.state, f.fate = ts, rtt, TRACING, PROBE
        return <uint32_t>((<uint8_t*>f - self.flows.entries) // self.flows.stride)

    def take(self, Block block not None, uint32_t start=0, *, int64_t begin=-0x7FFFFFFFFFFFFFFF,
             int64_t until=0x7FFFFFFFFFFFFFFF, int64_t since=-0x7FFFFFFFFFFFFFFF):
        """Rows of ``block`` from ``start`` on, up to the first one with a time outside ``begin`` .. ``until``; its
        number.  Rows from before ``since`` are left out and counted.
        """
        cdef const uint8_t* col[NEEDS]
        cdef uint32_t row
        cdef int64_t ts
        cdef int i, code = 0
        if block.layout is not self.layout:
            raise ValueError("the block has another layout")
        for i in range(NEEDS):
            col[i] = NULL
            if self.column[i] >= 0:
                col[i] = block.col[self.column[i]]
        with nogil:
            row = start
            while row < block.rows:
                ts = (<const int64_t*>col[N_TS])[row]
                if ts >= since:
                    if not begin <= ts < until:
                        break
                    code = self._row(col, row)
                    if code:
                        break
                else:
                    self.before_since += 1
                row += 1
        if code:
            raise MemoryError("no memory for more flows")
        return row

    def pop(self):
        """The next flow to be traced: (number, version, source, destination, their ports, rtt); None: there is none.

        Addresses as 4 or 16 bytes, rtt in ns.
        """
        cdef uint32_t number
        cdef const uint8_t* key
        cdef uint64_t head
        if self.popped == self.queued:
            return None
        number = self.queue[self.popped]
        self.popped += 1
        (<Flow*>lru_value(&self.flows, number)).state = TRACING
        key = <const uint8_t*>lru_key(&self.flows, number)
        head = lru_key(&self.flows, number)[0]
        size = 4 if head & 255 == 4 else 16
        return (number, <int>(head & 255), key[8:8 + size], key[24:24 + size], <int>(head >> 16 & 0xFFFF),
                <int>(head >> 32 & 0xFFFF), (<Flow*>lru_value(&self.flows, number)).rtt)

    cdef Flow* _flow(self, uint32_t number) except NULL:
        if number >= self.flows.index.count:
            raise IndexError(number)
        return <Flow*>lru_value(&self.flows, number)

    def refuse(self, uint32_t number, uint32_t notes=0):
        """That flow is not traced, for these reasons."""
        cdef Flow* f = self._flow(number)
        f.state, f.notes = DONE, <uint8_t>(f.notes | notes)

    def store(self, uint32_t number, bytes dst not None, uint32_t dport, uint32_t notes, nodes,
              bytes addresses not None, int64_t now):
        """The path of a flow: numbers of its switches, and their 16-byte addresses when it is one of IPv6."""
        cdef Flow* f = self._flow(number)
        cdef Path* p = self._new_path()
        cdef uint32_t i
        if p == NULL:
            raise MemoryError
        if len(nodes) > 16 or len(addresses) > 256 or len(dst) not in (4, 16):
            raise ValueError("too long a path")
        p.hops, p.notes, p.dport = <uint8_t>len(nodes), <uint8_t>notes, <uint16_t>dport
        for i in range(p.hops):
            p.node[i] = nodes[i]
        memcpy(p.address, <const char*>addresses, len(addresses))
        memcpy(p.dst, <const char*>dst, len(dst))
        f.state, f.traced, f.path = DONE, now, self.path_count

    def add_notes(self, uint32_t number, uint32_t notes):
        """More about a flow that is traced already."""
        cdef Flow* f = self._flow(number)
        f.notes |= <uint8_t>notes

    def emit(self, Staging out not None, uint32_t start, uint32_t capped, NumberMap tors=None):
        """Write records of kind flow from entry ``start`` on, each once; the entry to go on with.

        Flows that were not taken get the notes ``capped``, those being traced are left for later.  ``out`` has
        a layout with the fields of schema `path`.
        """
        cdef int at[OUTS]
        cdef int i
        cdef uint32_t row = 0, number
        cdef Flow* f
        for i in range(OUTS):
            at[i] = column_number(out.layout, FIELDS[i], OUT_WIDTHS[i], False)
        out.clear()
        number = start
        with nogil:
            while number < self.flows.index.count and row < out.capacity:
                f = <Flow*>lru_value(&self.flows, number)
                number += 1
                if f.written or f.state == TRACING:
                    continue
                if f.state == WAITING:
                    f.notes |= <uint8_t>capped
                f.written = 1
                _write(self, number - 1, out.out, at, row, tors)
                row += 1
            out.set_rows(row)
        return number


cdef enum:                      # columns of a path
    O_TS
    O_KIND
    O_NOTES
    O_VERSION
    O_PROTO
    O_SRC
    O_DST
    O_SPORT
    O_DPORT
    O_SENT
    O_LOST
    O_RETRANS
    O_DSACK
    O_RTT
    O_HOPS
    O_PATH
    O_PATH6
    O_SRC_TOR
    O_DST_TOR
    O_SRC6
    O_DST6
    OUTS

FIELDS = ("ts", "kind", "notes", "ip_version", "proto", "src_ip", "dst_ip", "src_port", "dst_port", "sent", "lost",
          "retrans", "dsack", "rtt", "hops", "path", "path6", "src_tor", "dst_tor", "src_ip6", "dst_ip6")
OUT_WIDTHS = (8, 1, 1, 1, 1, 4, 4, 2, 2, 4, 4, 4, 4, 8, 1, 64, 256, 4, 4, 16, 16)


cdef inline uint64_t _get(FlowTable b, const uint8_t** col, int need, uint32_t row) noexcept nogil:
    # An unsigned number of any width, 0 without such a column.
    cdef uint64_t v = 0
    cdef uint32_t width
    if col[need] == NULL:
        return 0
    width = b.layout.column[b.column[need]].width
    memcpy(&v, col[need] + <size_t>row * width, width)
    return v


cdef inline uint64_t _add(uint64_t a, uint64_t b) noexcept nogil:
    return a + b if a + b >= a else <uint64_t>-1


cdef inline void _put(uint8_t** out, const int* at, int which, uint32_t row, const void* value,
                      uint32_t size) noexcept nogil:
    if at[which] >= 0:
        memcpy(out[at[which]] + <size_t>row * size, value, size)


cdef inline void _put_u32(uint8_t** out, const int* at, int which, uint32_t row, uint64_t value) noexcept nogil:
    cdef uint32_t v = <uint32_t>value if value <= 0xFFFFFFFFu else 0xFFFFFFFFu
    _put(out, at, which, row, &v, 4)


cdef inline uint32_t _number(const uint8_t* address, bint six) noexcept nogil:
    if six:
        return fold6(address)
    return <uint32_t>address[0] << 24 | <uint32_t>address[1] << 16 | <uint32_t>address[2] << 8 | address[3]


cdef void _write(FlowTable b, uint32_t number, uint8_t** out, const int* at, uint32_t row,
                 NumberMap tors) noexcept nogil:
    cdef uint64_t* key = lru_key(&b.flows, number)
    cdef Flow* f = <Flow*>lru_value(&b.flows, number)
    cdef const uint8_t* src = <const uint8_t*>(key + 1)
    cdef const uint8_t* dst = <const uint8_t*>(key + 3)
    cdef uint64_t head = key[0]
    cdef bint six = head & 255 == 6
    cdef uint8_t one = 1, version = <uint8_t>head, proto = TCP, notes = f.notes | f.fate
    cdef uint16_t sport = <uint16_t>(head >> 16), dport = <uint16_t>(head >> 32)
    cdef Path* p = &b.paths[f.path - 1] if f.path else NULL
    if p != NULL:
        dst, dport = p.dst, p.dport
        notes |= p.notes
        _put(out, at, O_HOPS, row, &p.hops, 1)
        _put(out, at, O_PATH, row, p.node, 64)
        if six:
            _put(out, at, O_PATH6, row, p.address, 256)
    _put(out, at, O_TS, row, &f.ts, 8)
    _put(out, at, O_KIND, row, &one, 1)
    _put(out, at, O_NOTES, row, &notes, 1)
    _put(out, at, O_VERSION, row, &version, 1)
    _put(out, at, O_PROTO, row, &proto, 1)
    _put_u32(out, at, O_SRC, row, _number(src, six))
    _put_u32(out, at, O_DST, row, _number(dst, six))
    if six:
        _put(out, at, O_SRC6, row, src, 16)
        _put(out, at, O_DST6, row, dst, 16)
    _put(out, at, O_SPORT, row, &sport, 2)
    _put(out, at, O_DPORT, row, &dport, 2)
    _put_u32(out, at, O_SENT, row, f.sent)
    _put_u32(out, at, O_LOST, row, f.lost)
    _put_u32(out, at, O_RETRANS, row, f.retrans)
    _put_u32(out, at, O_DSACK, row, f.dsack)
    _put(out, at, O_RTT, row, &f.rtt, 8)
    if tors is not None:
        _put_u32(out, at, O_SRC_TOR, row, tors.get(_number(src, six), 0))
        _put_u32(out, at, O_DST_TOR, row, tors.get(_number(dst, six), 0))
