# Connections of a responder, in slots, and in the order in which they were last active.

from libc.stdint cimport int64_t, uint8_t, uint32_t

cdef enum:                      # what a connection is
    FREE
    FRESH                       # has said nothing yet
    ASKING                      # may become, or is, an HTTP request that is not all there
    ECHO
    ANSWERING                   # an HTTP answer is on its way out
    ENDING                      # it is; the other side closes


cdef struct Connection:
    int fd
    uint32_t turn               # how often this slot was used: events of the one before are not ours
    uint32_t before, after      # in order of activity, as slot + 1
    uint8_t kind
    bint watched                # epoll knows it
    bint writing                # and waits until it can be written
    uint32_t total              # bytes it sent
    uint32_t room, have, at     # bytes that can be held, are held, and those of them that are done with
    uint32_t zeros              # of a body, still to be sent
    int64_t born, active
    uint8_t* held


cdef inline void link(Connection* all, uint32_t* oldest, uint32_t* newest, uint32_t slot) noexcept nogil:
    # It is the most active.
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
