"""Snapshot round, Algorithm 1 of the paper across hosts: freeze all hosts, read the tails, thaw all hosts.

`SnapshotRound.snap` does both round trips to all peers with one write to each and an epoll; no Python runs in between.
Frames are those of docs/protocol.md.
"""

from cpython.exc cimport PyErr_CheckSignals
from libc.errno cimport errno, EAGAIN, EINTR
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcpy, memmove
from posix.unistd cimport read as c_read, close as c_close
from c_atomic cimport boot_now
from c_frame cimport (FREEZE_FRAME, FROZEN_FRAME, HEAD, LONGEST, THAW_FRAME, THAWED_FRAME, get32, get64, put_head,
                      send_all)
from c_layout cimport MAX_LANES
from c_posix cimport (
    EPOLL_CLOEXEC, EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLLIN, epoll_create1, epoll_ctl, epoll_event, epoll_wait)
from confluo_tools.core.multilog.freeze cimport LogFreeze
import os
from confluo_tools.core.multilog.freeze import MAX_LOGS as _MAX_LOGS

cdef enum State:
    WAITING = 0
    FROZE = 1
    DONE = 2
    LATE = 3                            # no answer in time
    ENDED = 4                           # closed the connection
    STRANGE = 5                         # sent another frame, kept in `frozen`
    UNSENT = 6                          # write error

cdef struct Peer:
    int out
    int inp
    int state
    int error
    bint held
    bint gone                           # closed the connection
    uint8_t* buffer
    size_t have
    size_t room
    uint8_t* frozen                     # the answer's body, malloc'ed
    uint32_t frozen_bytes
    uint64_t ns                         # freeze to thaw, as the peer measured it
    uint64_t first, last                # ns from the start to its FROZEN and its THAWED


class HostReply:
    """The reply of one peer: ``tails`` and ``firsts`` of each of its logs; ``held``: its freeze lasted until the thaw.

    ``problem`` is '' or 'late', 'ended', 'strange' (``frame``: the unexpected frame, kind and body), 'unsent'.
    ``ns``: freeze to thaw; ``frozen_at``, ``thawed_at``: ns from the start to its answers.
    """
    __slots__ = ("firsts", "frame", "frozen_at", "held", "ns", "problem", "tails", "thawed_at")

    def __init__(self, tails, firsts, held, ns, frozen_at, thawed_at, problem, frame):
        self.tails, self.firsts = tails, firsts
        self.held, self.ns, self.frozen_at, self.thawed_at = held, ns, frozen_at, thawed_at
        self.problem, self.frame = problem, frame


cdef class SnapshotRound:
    """Algorithm 1 over peers, each a pair of descriptors (to write, to read), and the local logs of ``cut``."""
    cdef readonly LogFreeze cut
    cdef readonly uint64_t freeze_ns    # of the last `snap`: until all peers were frozen
    cdef readonly uint64_t total_ns     # until all peers were thawed
    cdef Peer* peer
    cdef int n, epoll
    cdef uint64_t began, mark

    def __cinit__(self, LogFreeze cut, peers):
        cdef int i
        cdef epoll_event event
        self.cut, self.n, self.epoll = cut, len(peers), -1
        self.peer = <Peer*>calloc(max(self.n, 1), sizeof(Peer))
        if self.peer == NULL:
            raise MemoryError
        self.epoll = epoll_create1(EPOLL_CLOEXEC)
        if self.epoll < 0:
            raise OSError(errno, os.strerror(errno))
        for i, (out, inp) in enumerate(peers):
            self.peer[i].out, self.peer[i].inp = out, inp
            event.events, event.data.u32 = EPOLLIN, <uint32_t>i
            if epoll_ctl(self.epoll, EPOLL_CTL_ADD, inp, &event):
                raise OSError(errno, os.strerror(errno))

    def __dealloc__(self):
        cdef int i
        if self.epoll >= 0:
            c_close(self.epoll)
        if self.peer != NULL:
            for i in range(self.n):
                free(self.peer[i].buffer)
                free(self.peer[i].frozen)
            free(self.peer)

    def snap(self, uint64_t timeout_ns, uint64_t wait_ns=5_000_000_000):
        """Freeze and thaw all hosts.  Returns (replies of the peers, whether the freeze of the local logs held).

        A freeze lasts at most ``timeout_ns``; a peer that has not answered by then is late.  ``wait_ns``: timeout of
        the thaws.  Peers that have failed are not contacted again.
        """
        cdef int i, code = 0
        cdef bint kept = True
        for i in range(self.n):
            free(self.peer[i].frozen)
            self.peer[i].frozen, self.peer[i].frozen_bytes = NULL, 0
            self.peer[i].held, self.peer[i].first, self.peer[i].last = False, 0, 0
            if self.peer[i].state in (FROZE, DONE, LATE):
                self.peer[i].state = ENDED if self.peer[i].gone else WAITING
        self.mark += 1
        if self.n == 0 and self.cut is not None:        # no Python between freeze and thaw
            kept = self.cut.snap(timeout_ns)
            self.freeze_ns = self.total_ns = self.cut.ns
            return [], kept
        with nogil:
            self.began = boot_now()
            self.c_ask(FREEZE_FRAME, 16, timeout_ns)
            if self.cut is not None:
                self.cut.c_ready()
                if not self.cut.c_freeze(timeout_ns):
                    code = -1
        try:
            if code == 0:
                self._until(FROZE, self.began + timeout_ns)
            self.freeze_ns = boot_now() - self.began
        finally:
            with nogil:
                self.c_ask(THAW_FRAME, 8, 0)
                if self.cut is not None and self.cut.frozen:
                    kept = self.cut.c_thaw()
        self._until(DONE, boot_now() + wait_ns)
        self.total_ns = boot_now() - self.began
        if code:
            raise OverflowError("255 freezes are in force")
        return [self._answer(i) for i in range(self.n)], kept

    def _until(self, int state, uint64_t end):
        # Wait until every remaining peer has reached `state` or is late.
        cdef int code
        while True:
            with nogil:
                code = self.c_until(state, end)
            if code != EINTR:
                break
            PyErr_CheckSignals()
        if code:
            raise OSError(code, os.strerror(code))

    cdef void c_ask(self, uint8_t kind, uint32_t size, uint64_t value) noexcept nogil:
        cdef uint8_t frame[HEAD + 16]
        cdef int i
        put_head(frame, size, kind)
        memcpy(frame + HEAD, &self.mark, 8)
        memcpy(frame + HEAD + 8, &value, 8)
        for i in range(self.n):
            if self.peer[i].state in (ENDED, STRANGE, UNSENT):
                continue
            if not send_all(self.peer[i].out, frame, HEAD + size):
                self.peer[i].state, self.peer[i].error = UNSENT, errno

    cdef int c_until(self, int state, uint64_t end) noexcept nogil:
        cdef epoll_event event[64]
        cdef int i, k, n, open_ = 0
        cdef uint64_t now
        for i in range(self.n):
            open_ += self.peer[i].state < state
        while open_ > 0:
            now = boot_now()
            if now >= end:
                for i in range(self.n):
                    if self.peer[i].state < state:
                        self.peer[i].state = LATE
                return 0
            n = epoll_wait(self.epoll, event, 64, <int>((end - now) // 1000000 + 1))
            if n < 0:
                return errno
            for k in range(n):
                i = event[k].data.u32
                self.c_take(&self.peer[i])
            open_ = 0
            for i in range(self.n):
                open_ += self.peer[i].state < state
        return 0

    cdef void c_take(self, Peer* p) noexcept nogil:
        # Read from a peer: complete frames are processed, the rest is kept.
        cdef uint8_t* more
        cdef ssize_t n
        cdef size_t at = 0
        cdef uint32_t size
        if p.have == p.room:
            p.room = p.room * 2 if p.room else 4096
            more = <uint8_t*>realloc(p.buffer, p.room)
            if more == NULL:
                self.c_fail(p, ENDED)
                return
            p.buffer = more
        n = c_read(p.inp, p.buffer + p.have, p.room - p.have)
        if n < 0 and errno in (EAGAIN, EINTR):
            return
        if n <= 0:
            self.c_fail(p, ENDED)
            return
        p.have += <size_t>n
        while p.have - at >= HEAD:
            size = get32(p.buffer + at)
            if size > LONGEST:
                self.c_fail(p, STRANGE)
                break
            if p.have - at < HEAD + size:
                break
            self.c_frame(p, p.buffer + at, size)
            at += HEAD + size
        if at:
            p.have -= at
            memmove(p.buffer, p.buffer + at, p.have)

    cdef void c_fail(self, Peer* p, int state) noexcept nogil:
        cdef epoll_event event
        p.gone = True
        if p.state not in (STRANGE, UNSENT, DONE):      # earlier answers count
            p.state = state
        epoll_ctl(self.epoll, EPOLL_CTL_DEL, p.inp, &event)

    cdef void c_frame(self, Peer* p, const uint8_t* frame, uint32_t size) noexcept nogil:
        cdef uint8_t kind = frame[4]
        if kind == FROZEN_FRAME and size >= 16 or kind == THAWED_FRAME and size == 24:
            if get64(frame + HEAD) != self.mark:
                return                          # answer to an earlier attempt
            if kind == FROZEN_FRAME:
                if p.state == WAITING and p.frozen == NULL:
                    p.first = boot_now() - self.began
                    self.c_keep(p, frame + HEAD, size)
                    p.state = FROZE
                return
            p.held = get64(frame + HEAD + 8) == 1 and p.state == FROZE
            p.ns = get64(frame + HEAD + 16)
            p.last = boot_now() - self.began
            if p.state == FROZE:
                p.state = DONE
            return
        if p.state != STRANGE:
            self.c_keep(p, frame, HEAD + size)
            p.state = STRANGE

    cdef void c_keep(self, Peer* p, const uint8_t* body, uint32_t size) noexcept nogil:
        free(p.frozen)
        p.frozen = <uint8_t*>malloc(size if size else 1)
        p.frozen_bytes = size if p.frozen != NULL else 0
        if p.frozen != NULL:
            memcpy(p.frozen, body, size)

    def _answer(self, int i):
        cdef Peer* p = &self.peer[i]
        cdef bytes body = p.frozen[:p.frozen_bytes] if p.frozen != NULL else b""
        cdef str problem = {STRANGE: "strange", ENDED: "ended", UNSENT: "unsent", DONE: ""}.get(p.state, "late")
        frame, parsed = None, None
        if p.state == STRANGE and len(body) >= HEAD:
            frame = (body[4], body[HEAD:])
        if p.state == DONE:
            parsed = _parse_tails(body)
            problem = "strange" if parsed is None else ""
        tails, firsts = parsed if parsed is not None else (None, None)
        return HostReply(tails, firsts, p.held and not problem, p.ns, p.first, p.last, problem, frame)


def _parse_tails(bytes body not None):
    # (tails, firsts) of the logs in a FROZEN frame; None if it is malformed.
    cdef const uint8_t* p = <const uint8_t*><const char*>body
    cdef const uint8_t* end = p + len(body)
    cdef uint32_t logs = get32(p + 8), n, i, k
    if logs > _MAX_LOGS:
        return None
    tails, firsts = [], []
    p += 16
    for i in range(logs):
        if end - p < 8:
            return None
        n = get32(p)
        p += 8
        if n > MAX_LANES or <uint64_t>(end - p) < <uint64_t>n * 16:
            return None
        tails.append(tuple([get64(p + 16 * k) for k in range(n)]))
        firsts.append(tuple([get64(p + 16 * k + 8) for k in range(n)]))
        if any([t >> 48 for t in tails[i]]) or any([f >> 48 for f in firsts[i]]):
            return None
        p += 16 * n
    return (tails, firsts) if p == end else None
