# The TCP events in pages of the kernel's trace buffers.  Every read stays inside the event.

from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t, int32_t
from libc.string cimport memcpy
from c_sock_diag cimport INET, INET6, diag_key, diag_u64

cdef struct TraceFormat:        # where an event has what: of events/tcp/NAME/format
    uint32_t id
    uint32_t size               # bytes that must be there
    uint32_t sport
    uint32_t dport
    uint32_t family
    uint32_t saddr
    uint32_t daddr
    uint32_t saddr6
    uint32_t daddr6
    uint32_t err                # 0: there is none
    uint32_t sk                 # kernel address of the socket; 0: unknown

cdef enum:
    EAGAIN = 11
    ENOMEM = 12
    EBUSY = 16
    EINVAL = 22


cdef inline bint trace_event(const TraceFormat* f, const uint8_t* event, size_t size, uint64_t* key,
                             uint64_t* sk) noexcept nogil:
    """Whether it is a retransmission; sets its flow and the address of its socket, unique while the socket exists.

    What failed before TCP counted it is none: its own queue still had the packet, or there was no memory.
    """
    cdef uint16_t id, sport, dport, family
    cdef int32_t err
    if size < 2 or size < f.size:
        return False
    memcpy(&id, event, 2)
    if id != f.id:
        return False
    if f.err:
        memcpy(&err, event + f.err, 4)
        if err == -EBUSY or err == -EAGAIN or err == -EINVAL or err == -ENOMEM:
            return False
    sk[0] = diag_u64(event + f.sk) if f.sk else 0
    memcpy(&sport, event + f.sport, 2)
    memcpy(&dport, event + f.dport, 2)
    memcpy(&family, event + f.family, 2)
    if family == INET6 and (diag_u64(event + f.saddr6) or diag_u64(event + f.saddr6 + 8)):
        diag_key(key, INET6, event + f.saddr6, event + f.daddr6, sport, dport)
    elif family == INET or family == INET6:     # an IPv6 listener with an IPv4 client
        diag_key(key, INET, event + f.saddr, event + f.daddr, sport, dport)
    else:
        return False
    return True
