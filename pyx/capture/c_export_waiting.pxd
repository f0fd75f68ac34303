# Sets of data that came before their template: kept, in order, until it comes or newer ones need the room.

from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy
from c_export_record cimport ExportHeader
from c_export_sources cimport Exporter, Sources

cdef enum:
    MAX_WAITING = 4096          # sets; a power of two
    MAX_OWN_WAITING = 256       # of an exporter
    MAX_WAITING_BYTES = 1 << 21

cdef struct WaitingSet:
    uint8_t* data               # NULL: it waits no more
    uint32_t size
    uint32_t exporter
    uint32_t generation
    uint16_t id
    ExportHeader header

cdef struct WaitingSets:
    WaitingSet item[MAX_WAITING]
    uint64_t first              # numbers of the first one, and of the one after the last
    uint64_t end
    size_t bytes
    uint32_t count
    uint64_t dropped            # without their template


cdef inline void end_waiting(WaitingSets* w, Sources* s, WaitingSet* item) noexcept nogil:
    cdef Exporter* e = &s.exporter[item.exporter]
    free(item.data)
    item.data = NULL
    w.bytes -= item.size
    w.count -= 1
    if e.generation == item.generation:
        e.waiting -= 1


cdef inline void _drop_first(WaitingSets* w, Sources* s) noexcept nogil:
    cdef WaitingSet* item = &w.item[w.first & (MAX_WAITING - 1)]
    if item.data != NULL:
        end_waiting(w, s, item)
        w.dropped += 1
    w.first += 1


cdef inline void drop_waiting(WaitingSets* w, Sources* s) noexcept nogil:
    while w.first < w.end:
        _drop_first(w, s)


cdef inline void drop_waiting_of(WaitingSets* w, Sources* s, uint32_t exporter) noexcept nogil:
    """The exporter started again: what it sent before has other templates."""
    cdef uint64_t i
    cdef WaitingSet* item
    if s.exporter[exporter].waiting == 0:
        return
    for i in range(w.first, w.end):
        item = &w.item[i & (MAX_WAITING - 1)]
        if item.data != NULL and item.exporter == exporter:
            end_waiting(w, s, item)
            w.dropped += 1


cdef inline void wait_for_template(WaitingSets* w, Sources* s, uint32_t exporter, uint16_t id, const ExportHeader* h,
                                   const uint8_t* p, uint32_t size) noexcept nogil:
    """Keep a set of data; the oldest ones make room for it."""
    cdef Exporter* e = &s.exporter[exporter]
    cdef WaitingSet* item
    cdef uint8_t* data
    if e.waiting >= MAX_OWN_WAITING or size > MAX_WAITING_BYTES:
        w.dropped += 1
        return
    while w.end - w.first == MAX_WAITING or (w.first < w.end and w.bytes + size > MAX_WAITING_BYTES):
        _drop_first(w, s)
    data = <uint8_t*>malloc(size)
    if data == NULL:
        w.dropped += 1
        return
    memcpy(data, p, size)
    item = &w.item[w.end & (MAX_WAITING - 1)]
    item.data, item.size, item.exporter, item.generation, item.id = data, size, exporter, e.generation, id
    item.header = h[0]
    w.end += 1
    w.bytes += size
    w.count += 1
    e.waiting += 1
