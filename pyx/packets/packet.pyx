"""Packet parser of all sources: frames to rows."""

from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t, int64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memset
from posix.stdlib cimport posix_memalign
from cpython.ref cimport Py_REFCNT
from c_block cimport BLOCK_ROWS, Zone, U8, U32, U64, I8, BYTES
from c_pcap cimport Frame, FRAME, MORE
from c_packet_columns cimport *
from c_packet_rows cimport HOPS, ROWS, bit
from c_link cimport NOTE_UNKNOWN_LINK
from c_packet cimport parse_frame
from c_packet_digest cimport packet_digest
from c_inet cimport flow_hash as _flow_hash
from confluo_tools.core.block.block cimport Block, Layout, Picks, zero_bytes
from confluo_tools.core.packets.pcap cimport Capture
cimport cython

cdef enum:
    POOL = 4
    STRANGE = 8                         # link types without a parser that are named
    FULL = 16                           # status of _fill, next to those of c_pcap: the batch is full

NOTES = note_names()

cdef Rows _rows
cdef list _columns = packet_columns(&_rows)
COLUMNS = tuple([(name, code, size) for name, code, size, _ in _columns])


cdef class PacketBlock(Block):
    """The rows of one batch.  Its memory is reused when it has no other owner."""

    def __dealloc__(self):
        free(self.r)
        free(self.extra)
        free(self.zones)

    cdef int _make(self, size_t extra) except -1:
        cdef void* memory
        if posix_memalign(&memory, 64, sizeof(Rows)):
            raise MemoryError
        memset(memory, 0, sizeof(Rows))
        self.r = <Rows*>memory
        self.zones = <Zone*>calloc(self.layout.n, sizeof(Zone))
        if self.zones == NULL:
            raise MemoryError
        self.zone = self.zones
        if extra:
            self.extra = <uint8_t*>calloc(extra, 1)
            if self.extra == NULL:
                raise MemoryError
        return 0

    cdef void _show(self, int i, const uint8_t* data, bint used) noexcept nogil:
        """Set column i of the block to `data`, which is all zero unless `used`."""
        cdef uint8_t code = self.layout.column[i].code
        cdef uint64_t zero = <uint64_t>1 << 63 if I8 <= code < BYTES else 0
        self.col[i] = data
        self.zones[i].not_min = ~<uint64_t>0 if used else ~zero
        self.zones[i].max = ~<uint64_t>0 if used else zero


@cython.final
cdef class Packets:
    """Parses frames into batches of rows with the columns of ``layout``.

    Columns are filled by name (those of the packet schema, ``packet_digest``, and ``raw``: the first bytes of
    the frame); others stay zero.  Integer columns may be of another unsigned type; larger values become its maximum.
    ``hop_ns``: switches write the nanoseconds of their times, not microseconds.
    ``inner``: take IP and transport fields from the innermost packet of a tunnel.
    Raises ValueError for a column with a type too small for its field.
    """

    def __cinit__(self, Layout layout not None, *, bint inner=False, uint32_t rows=ROWS, bint hop_ns=False):
        cdef int i, k, count
        cdef Convert* c
        if not 1 <= rows <= ROWS:
            raise ValueError(f"{rows} rows in a batch: 1 to {ROWS} are possible")
        self.pool = []
        self.none = zero_bytes(<size_t>8 * BLOCK_ROWS)
        self.layout, self.inner, self.capacity, self.raw, self.hop_ns = layout, inner, rows, -1, hop_ns
        self.digest = -1
        for k in range(COLS):
            self.place[k] = -1
            name, code, size, offset = _columns[k]
            i = layout.get(name)
            if i < 0:
                continue
            if layout.column[i].code == code and layout.column[i].width == size:
                self.place[k] = i
                self.zero[k] = zero_bytes(<size_t>size * BLOCK_ROWS)
                continue
            count = HOPS if k == C_SWITCH_PATH or k == C_QUEUE_DEPTH else 1
            if (not U8 <= code <= U64 or not U8 <= layout.column[i].code <= U64 or layout.column[i].count != count):
                raise ValueError(f"column {name} has a type that cannot hold this field of a packet")
            c = &self.convert[self.converts]
            c.column, c.source, c.source_size, c.size = i, offset, size // count, layout.column[i].size
            c.count = count
            c.max_value = <uint64_t>-1 >> (64 - 8 * c.size)
            c.bit = bit(k)
            c.out = self.extra_size
            self.extra_size += (<size_t>c.size * count * rows + 63) & ~<size_t>63
            self.converts += 1
        i = layout.get("raw")
        if i >= 0:
            if layout.column[i].code != BYTES:
                raise ValueError("column raw has a type that cannot hold this field of a packet")
            self.raw, self.snap, self.raw_at = i, layout.column[i].width, self.extra_size
            self.extra_size += <size_t>self.snap * rows
        i = layout.get("packet_digest")
        if i >= 0:
            if layout.column[i].code != U64 or layout.column[i].count != 1:
                raise ValueError("column packet_digest has a type that cannot hold this field of a packet")
            self.extra_size = (self.extra_size + 63) & ~<size_t>63
            self.digest, self.digest_at = i, self.extra_size
            self.extra_size += <size_t>8 * rows
        self._fresh()

    cdef int _fresh(self) except -1:
        """A block to fill: an earlier one with no other owner, else a new one."""
        cdef PacketBlock block
        cdef int i
        for block in self.pool:
            if Py_REFCNT(block) == 2:       # the pool and this function
                _clear(block.r, block.rows)
                break
        else:
            block = PacketBlock(self.layout)
            block._make(self.extra_size)
            for i in range(self.layout.n):
                block._show(i, block.col[i], False)
            self.pool.append(block)
            if len(self.pool) > POOL:
                del self.pool[0]            # its other owner keeps it alive
        block.rows = 0
        block.r.hop_ns = self.hop_ns
        self.block = block
        self.waiting = 0
        return 0

    cdef void put(self, const Frame* f) noexcept nogil:
        """Parse one frame into the batch, which has room (see ready)."""
        cdef uint32_t i = self.waiting, n
        cdef uint8_t* raw
        cdef uint32_t notes = parse_frame(self.block.r, i, f, self.inner)
        self.wire_bytes += f.len
        if notes:
            for n in range(9):
                self.note_counts[n] += notes >> n & 1
            if notes & NOTE_UNKNOWN_LINK:
                self._strange(f.link)
        if self.raw >= 0:
            raw = self.block.extra + self.raw_at + <size_t>i * self.snap
            n = f.cap if f.cap < self.snap else self.snap
            memcpy(raw, f.data, n)
            memset(raw + n, 0, self.snap - n)
        if self.digest >= 0:
            (<uint64_t*>(self.block.extra + self.digest_at))[i] = packet_digest(f, self.inner)
        self.waiting = i + 1

    cdef void _strange(self, uint16_t link) noexcept nogil:
        """Keep the link type of a frame that was not parsed."""
        cdef uint32_t n
        for n in range(self.strange_links):
            if self.strange_link[n] == link:
                return
        if self.strange_links < STRANGE:
            self.strange_link[self.strange_links] = link
            self.strange_links += 1

    cdef int _fill(self, Capture capture) noexcept nogil:
        cdef Frame f
        cdef int status
        while self.waiting < self.capacity:
            status = capture.next(&f)
            if status != FRAME:
                return status
            self.put(&f)
        return FULL

    def fill(self, Capture capture not None):
        """Parse frames until the batch is full ('full'), the capture wants more bytes ('more') or ends ('end')."""
        cdef int status
        with nogil:
            status = self._fill(capture)
        if status == FULL:
            return "full"
        if status == MORE:
            return "more"
        capture.release()
        return "end"

    def add(self, const uint8_t[::1] frame not None, *, int64_t ts=0, uint16_t link_type=1, length=None,
            uint32_t iface=0, uint64_t offset=0, uint32_t number=0):
        """Parse one frame.  ``length`` on the wire: by default that of the bytes.  Raises ValueError when full."""
        cdef Frame f
        if not self.ready():
            raise ValueError("the batch is full; take it first")
        f.data = &frame[0] if frame.shape[0] else <const uint8_t*>b""
        if frame.shape[0] > 1 << 24:
            raise ValueError(f"a frame of {frame.shape[0]} bytes")
        f.cap = frame.shape[0]
        f.len = f.cap if length is None else length
        f.ts, f.link, f.iface, f.offset, f.number, f.notes = ts, link_type, iface, offset, number, 0
        self.put(&f)

    cpdef bint ready(self) except -1:
        """Whether the batch has room for a frame."""
        return self.waiting < self.capacity

    cdef void present(self) noexcept nogil:
        """Make the rows parsed so far readable in `block`."""
        cdef const uint8_t* r = <const uint8_t*>self.block.r
        cdef int k
        cdef bint used
        cdef Convert* c
        self.block.rows = self.waiting
        for k in range(COLS):
            if self.place[k] >= 0:
                used = self.block.r.used >> k & 1
                self.block._show(self.place[k], r + _offset[k] if used else self.zero[k], used)
        for k in range(self.converts):
            c = &self.convert[k]
            used = self.block.r.used & c.bit != 0
            if used:
                _convert(c, r + c.source, self.block.extra + c.out, self.block.rows * c.count)
            self.block._show(c.column, self.block.extra + c.out if used else self.none, used)
        if self.raw >= 0:
            self.block._show(self.raw, self.block.extra + self.raw_at, True)
        if self.digest >= 0:
            self.block._show(self.digest, self.block.extra + self.digest_at, True)

    cdef void again(self) noexcept nogil:
        """Drop the rows in `block`, which must have no other owner, and start it again."""
        _clear(self.block.r, self.waiting)
        self.block.rows = self.waiting = 0

    cpdef Block take(self):
        """The rows parsed since the last call, as a block."""
        cdef PacketBlock block = self.block
        self.present()
        self._fresh()
        return block

    @property
    def counts(self):
        """Number of packets so far with each of NOTES, and of those with a tunnel that was not followed."""
        return {name: self.note_counts[i] for i, name in enumerate((*NOTES, "not_followed"))}

    def unknown_links(self):
        """Link types (LINKTYPE_ numbers, the first 8) of frames since the last call that were not parsed."""
        found = [self.strange_link[i] for i in range(self.strange_links)]
        self.strange_links = 0
        return found


cdef size_t[64] _offset
cdef uint32_t[64] _width
cdef int _k
for _k in range(COLS):
    _offset[_k] = _columns[_k][3]
    _width[_k] = _columns[_k][2]


cdef void _clear(Rows* r, uint32_t rows) noexcept nogil:
    """Zero the columns that were written."""
    cdef int k
    for k in range(COLS):
        if r.used >> k & 1:
            memset(<uint8_t*>r + _offset[k], 0, <size_t>rows * _width[k])
    r.used = 0


def sample_flows(Block block not None, Picks picks not None, uint32_t n):
    """Keep the picked rows of one flow in ``n``: those with a flow_hash below 2^32 / n.

    It always selects the same flows; the flows of 1/1000 are a subset of those of 1/100.
    """
    cdef int column = block.layout.get("flow_hash")
    if column < 0 or block.layout.column[column].code != U32:
        raise ValueError("no column flow_hash")
    if n == 0 or picks.rows != block.rows:
        raise ValueError("n must be positive, and picks must be row numbers of this block")
    with nogil:
        keep_flows(<const uint32_t*>block.col[column], picks, n)


cdef void keep_flows(const uint32_t* hashes, Picks picks, uint32_t n) noexcept nogil:
    cdef const uint16_t* rows = picks.as_list()
    cdef uint32_t i, kept = 0, max_hash = <uint32_t>(((<uint64_t>1 << 32) // n) - 1)
    for i in range(picks.n):
        if hashes[rows[i]] <= max_hash:
            picks.list[kept] = rows[i]
            kept += 1
    picks.set_list(picks.rows, kept)


def sample_packets(Picks picks not None, uint64_t seen, uint64_t n):
    """Keep every ``n``th picked row; ``seen``: rows counted before.  Returns the new count."""
    if n == 0:
        raise ValueError("n must be positive")
    with nogil:
        seen = keep_every(picks, seen, n)
    return seen


cdef uint64_t keep_every(Picks picks, uint64_t seen, uint64_t n) noexcept nogil:
    cdef const uint16_t* rows = picks.as_list()
    cdef uint32_t i, total = picks.n, kept = 0
    cdef uint64_t phase = seen % n
    for i in range(total):
        if phase == 0:
            picks.list[kept] = rows[i]
            kept += 1
        phase += 1
        if phase == n:
            phase = 0
    picks.set_list(picks.rows, kept)
    return seen + total


cdef void _convert(const Convert* c, const uint8_t* source, uint8_t* out, uint32_t n) noexcept nogil:
    """n: elements, all of them."""
    cdef uint32_t i
    cdef uint64_t v
    if c.source_size == 4 and c.size == 2:  # the usual case, vectorized by the compiler
        for i in range(n):
            (<uint16_t*>out)[i] = min((<const uint32_t*>source)[i], 65535u)
        return
    for i in range(n):
        v = 0
        memcpy(&v, source + <size_t>i * c.source_size, c.source_size)
        if v > c.max_value:
            v = c.max_value
        memcpy(out + <size_t>i * c.size, &v, c.size)


def column_names():
    """The columns that a packet can fill, except `raw` and `packet_digest`."""
    return [c[0] for c in _columns]


def flow_hash(uint32_t src_ip, uint32_t dst_ip, uint16_t src_port, uint16_t dst_port, uint8_t proto):
    """The field flow_hash of a five-tuple; addresses as their 32-bit columns hold them."""
    return _flow_hash(src_ip, dst_ip, src_port, dst_port, proto)
