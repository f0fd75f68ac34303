"""Flow records of exporters: datagrams of NetFlow v5 and v9, IPFIX and sFlow v5 as rows of the schema `netflow`."""

from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcmp, memcpy, memset
from c_block cimport U8, U16, U32, U64, I64, BYTES
from c_export_record cimport ADDRESSES, NAME_BYTES, NUMBERS, RowWriter
from c_export_sources cimport Exporter, UNUSED, sources_free, sources_init
from c_export_waiting cimport drop_waiting
from c_netflow cimport ExportCounts, decode_netflow
from c_packet_columns cimport COLS, Rows, packet_columns
from c_pcap cimport FRAME, MORE, Frame
from c_sflow cimport decode_sflow
from c_udp_payload cimport NO_DATAGRAM, PARTIAL, Datagram, udp_payload
from confluo_tools.core.block.block cimport Block, Layout, Staging
from confluo_tools.core.packets.pcap cimport Capture
cimport cython
import os

# Columns of numbers, in the order of Value in c_export_record.pxd.
NUMBER_COLUMNS = (
    "ts", "last_ts", "duration", "ip_version", "proto", "src_port", "dst_port", "packets", "bytes", "reverse_packets",
    "reverse_bytes", "tcp_flags", "reverse_flags", "icmp_type", "icmp_code", "dscp", "ecn", "ttl", "sampling", "in_if",
    "out_if", "src_as", "dst_as", "src_mask", "dst_mask", "eth_src", "eth_dst", "vlan", "out_vlan", "mpls_label",
    "tunnel", "vni", "direction", "reason", "source_id", "export", "exported", "received", "notes")
ADDRESS_COLUMNS = ("src_ip", "dst_ip", "next_hop", "bgp_next_hop", "exporter")
PROTOCOLS = {1: "sFlow", 5: "NetFlow v5", 9: "NetFlow v9", 10: "IPFIX"}

cdef enum:
    OUT_ROWS = 1024             # of a block
    MAX_SPARE = 8               # blocks that wait to be filled again

cdef Rows _rows
cdef size_t[COLS] _offset
cdef size_t[COLS] _width
cdef int _k
for _k, (_name, _code, _size, _at) in enumerate(packet_columns(&_rows)):
    _offset[_k], _width[_k] = _at, _size


cdef void _wipe(Rows* rows) noexcept nogil:
    """Zero row 0."""
    cdef int k
    for k in range(COLS):
        if rows.used >> k & 1:
            memset(<uint8_t*>rows + _offset[k], 0, _width[k])
    rows.used = 0


cdef bint _full(void* owner) noexcept nogil:
    with gil:
        try:
            return (<FlowExports>owner)._next()
        except MemoryError:
            return False


@cython.final
cdef class FlowExports:
    """Decodes datagrams into blocks with the columns of ``layout``, filled by name; others stay zero.

    ``scale``: multiply packets and bytes by the sampling rate.
    What exporters said before (templates, rates, names) is kept for a bounded number of them.
    Raises ValueError for a column with a type that cannot hold its values.
    """

    def __cinit__(self, Layout layout not None, *, bint scale=False):
        cdef uint64_t seed[2]
        cdef int i, k
        self.layout = layout
        self.d = <ExportDecoder*>calloc(1, sizeof(ExportDecoder))
        self.sampled.rows = <Rows*>calloc(1, sizeof(Rows))
        if self.d == NULL or self.sampled.rows == NULL:
            raise MemoryError
        self.sampled.wipe = _wipe
        secret = os.urandom(16)
        seed[0] = int.from_bytes(secret[:8], "little")
        seed[1] = int.from_bytes(secret[8:], "little")
        if not sources_init(&self.d.sources, seed):
            raise MemoryError
        for i in range(NUMBERS):
            k = self.d.rows.at[i] = layout.get(NUMBER_COLUMNS[i])
            if k >= 0:
                if layout.column[k].code not in (U8, U16, U32, U64, I64) or layout.column[k].count != 1:
                    raise ValueError(f"column {NUMBER_COLUMNS[i]} has another type")
                self.d.rows.width[i] = layout.column[k].width
        for i in range(ADDRESSES):
            k = self.d.rows.address_at[i] = layout.get(ADDRESS_COLUMNS[i])
            if k >= 0 and (layout.column[k].width != 4 or layout.get(ADDRESS_COLUMNS[i] + "6") != k + 1
                           or layout.column[k + 1].width != 16):
                raise ValueError(f"column {ADDRESS_COLUMNS[i]} has another type")
        self.d.rows.in_name_at = self._name_column("in_name")
        self.d.rows.out_name_at = self._name_column("out_name")
        self.d.rows.scale, self.d.rows.full, self.d.rows.owner = scale, _full, <void*>self
        self.d.rows.capacity = OUT_ROWS
        self.full, self.spare = [], []
        self._fresh()

    def __dealloc__(self):
        if self.d != NULL:
            if self.d.sources.exporter != NULL:
                drop_waiting(&self.d.waiting, &self.d.sources)
                sources_free(&self.d.sources)
            free(self.d)
        free(self.sampled.rows)

    def _name_column(self, str name):
        cdef int k = self.layout.get(name)
        if k >= 0 and (self.layout.column[k].code != BYTES or self.layout.column[k].width != NAME_BYTES):
            raise ValueError(f"column {name} has another type")
        return k

    def _fresh(self):
        self.out = self.spare.pop() if self.spare else Staging(self.layout, OUT_ROWS)
        self.d.rows.out, self.d.rows.rows = self.out.out, 0

    cdef bint _next(self) except -1:
        """Begin a new block."""
        cdef Staging block = self.out
        self._fresh()
        block.set_rows(OUT_ROWS)
        self.full.append(block)
        return True

    def select(self, targets):
        """Read the datagrams of captures that went to ``targets``: (address of 16 bytes or None, port, is sFlow).

        Port 0: to any port.  Raises ValueError for more than 64.
        """
        cdef Target* t
        cdef bytes place
        self.targets = 0
        for address, port, sflow in targets:
            if self.targets == MAX_TARGETS:
                raise ValueError(f"more than {MAX_TARGETS} targets")
            t = &self.target[self.targets]
            t.any_address, t.port, t.sflow = address is None, port, sflow
            if address is not None:
                place = address
                if len(place) != 16:
                    raise ValueError(f"an address of {len(place)} bytes")
                memcpy(t.address, <const uint8_t*>place, 16)
            self.targets += 1

    cdef void datagram(self, bint sflow, const uint8_t* p, uint32_t size, const uint8_t* address, uint16_t port,
                       int64_t received) noexcept nogil:
        if sflow:
            decode_sflow(self.d, &self.sampled, p, size, received)
        else:
            decode_netflow(self.d, p, size, address, port, received)

    def add(self, const uint8_t[::1] datagram not None, bytes address not None, uint16_t port, int64_t received, *,
            bint sflow=False):
        """Decode one datagram from ``address`` (16 bytes; IPv4 as ::ffff:a.b.c.d)."""
        cdef const uint8_t* source = address
        cdef const uint8_t* p = &datagram[0] if datagram.shape[0] else source
        if len(address) != 16 or datagram.shape[0] > 65535:
            raise ValueError(f"an address of {len(address)} bytes, a datagram of {datagram.shape[0]}")
        with nogil:
            self.datagram(sflow, p, <uint32_t>datagram.shape[0], source, port, received)

    cdef Target* wanted(self, const Datagram* g) noexcept nogil:
        cdef int i
        cdef Target* t
        for i in range(self.targets):
            t = &self.target[i]
            if (t.port == 0 or t.port == g.port) and (t.any_address or memcmp(t.address, g.destination, 16) == 0):
                return t
        return NULL

    def fill(self, Capture capture not None):
        """Decode datagrams of a capture until there is a block ('full'), it wants more bytes ('more') or ends ('end').

        A frame that is partial counts if it has the port, or is a later fragment to the address.
        """
        cdef Frame f
        cdef Datagram g
        cdef Target* t
        cdef int status = FRAME, found
        if self.full:
            return "full"
        with nogil:
            while True:
                status = capture.next(&f)
                if status != FRAME:
                    break
                self.frames += 1
                found = udp_payload(&f, &g)
                if found == NO_DATAGRAM:
                    continue
                t = self.wanted(&g)
                if t == NULL:
                    continue
                if found == PARTIAL:
                    self.partial += 1
                    continue
                self.datagram(t.sflow, g.data, g.size, g.source, g.source_port, f.ts)
                if self.d.rows.rows == OUT_ROWS or self.d.rows.written >= OUT_ROWS:
                    self.d.rows.written = 0
                    break
        if status == FRAME:
            return "full"
        if self.full:
            return "full"
        if status == MORE:
            return "more"
        capture.release()
        return "end"

    @property
    def waiting(self):
        """Rows for `take`."""
        return len(self.full) * OUT_ROWS + self.d.rows.rows

    @property
    def ready(self):
        """Whether a block is full."""
        return bool(self.full)

    cpdef Block take(self):
        """The next rows, as a block."""
        cdef Staging block = self.out
        if self.full:
            return self.full.pop(0)
        block.set_rows(self.d.rows.rows)
        self._fresh()
        return block

    def reuse(self, Block block not None):
        """Fill this block of `take` again: its caller has copied its rows, and no other object reads it."""
        cdef Staging old
        cdef RowWriter* w = &self.d.rows
        cdef int i
        if len(self.spare) == MAX_SPARE or not isinstance(block, Staging) or block.layout is not self.layout:
            return
        old = <Staging>block
        # Zeroing what rows have used is cheaper than new memory, which the kernel gives page by page.
        for i in range(NUMBERS):
            if w.touched >> i & 1:
                self._zero(old, w.at[i])
        for i in range(ADDRESSES):
            if w.touched_addresses >> i & 1:
                self._zero(old, w.address_at[i])
                self._zero(old, w.address_at[i] + 1)
        if w.touched_names:
            self._zero(old, w.in_name_at)
            self._zero(old, w.out_name_at)
        old.set_rows(0)
        self.spare.append(old)

    cdef void _zero(self, Staging block, int column) noexcept nogil:
        if column >= 0:
            memset(block.out[column], 0, <size_t>block.rows * self.layout.column[column].width)

    @property
    def wire_bytes(self):
        """Bytes of the datagrams."""
        return self.d.counts.bytes

    def unknown_links(self):
        """None: link layers that are not parsed have no datagrams."""
        return []

    @property
    def counts(self):
        """Counters by name."""
        cdef ExportCounts* c = &self.d.counts
        return {
            "datagrams": c.datagrams, "bytes": c.bytes, "unknown": c.unknown, "malformed": c.malformed,
            "partial": self.partial, "templates": c.templates, "bad_templates": c.bad_templates,
            "evicted_templates": self.d.sources.evicted_templates, "options": c.options,
            "other_records": c.other_records, "waited": c.waited, "waiting": self.d.waiting.count,
            "without_template": self.d.waiting.dropped, "counters": c.counters, "other_samples": c.other_samples,
            "exporters": self.d.sources.count, "evicted_exporters": self.d.sources.evicted,
            "no_memory": c.no_memory, "state_bytes": self.d.sources.bytes}

    def losses(self):
        """(lost, late, restarts), the sums over all exporters."""
        cdef uint32_t i
        cdef uint64_t lost = 0, late = 0, restarts = 0
        cdef Exporter* e
        for i in range(self.d.sources.made):
            e = &self.d.sources.exporter[i]
            lost, late, restarts = lost + e.lost, late + e.late, restarts + e.restarts
        return lost, late, restarts

    def exporters(self):
        """(address of 16 bytes, port, protocol, source id, datagrams, records, lost, late, restarts) of each."""
        cdef uint32_t i
        cdef Exporter* e
        out = []
        for i in range(self.d.sources.made):
            e = &self.d.sources.exporter[i]
            if e.list != UNUSED:
                out.append(((<const uint8_t*>e.key)[:16], e.key[2] >> 48, PROTOCOLS[e.key[2] >> 32 & 0xFF],
                            e.key[2] & 0xFFFFFFFFu, e.datagrams, e.records, e.lost, e.late, e.restarts))
        return out
