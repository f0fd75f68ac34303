# Connections of a responder: an array of slots, linked in the order of their last activity.

from libc.stdint cimport int64_t, uint8_t, uint32_t

cdef enum:                      # states of a connection
    FREE
    NEW                         # no byte received yet
    READING_REQUEST             # an incomplete HTTP request, or what may become one
    ECHO
    RESPONDING                  # sending an HTTP response
    CLOSING                     # response sent; the client closes


cdef struct Connection:
    int fd
    uint32_t generation         # uses of this slot: events of an earlier use are ignored
    uint32_t before, after      # neighbours in the order of activity, slot + 1
    uint8_t kind
    bint watched                # registered with epoll
    bint writing                # for EPOLLOUT, not EPOLLIN
    uint32_t total              # bytes received
    uint32_t room, have, at     # of the buffer: size, bytes used, bytes of these already sent
    uint32_t zeros              # bytes of a body still to send
    int64_t born, active
    uint8_t* held


cdef inline void link(Connection* all, uint32_t* oldest, uint32_t* newest, uint32_t slot) noexcept nogil:
    # Append as the most recently active.
    all[slot].after = 0
    all[slot].before = newest[0]
    if newest[0]:
        all[newest[0] - 1].after = slot + 1
    else:
        oldest[0] = slot + 1
    newest[0] = slot + 1


cdef inline void unlink(Connection* all, uint32_t* oldest, uint32_t* newest, uint32_t slot) noexcept nogil:
    cdef Connection* c = &all[slot]
    if c.before:
        all[c.before - 1].after = c.after
    else:
        oldest[0] = c.after
    if c.after:
        all[c.after - 1].before = c.before
    else:
        newest[0] = c.before
