"""Atomic cuts through several logs at once, here (Cut) and on other hosts (Round).  Paper: Algorithm 1.

Between freeze and thaw no Python runs: `Cut.snap` is one call, so is the far side's `Cut.serve`, and `Round.snap`
does both round trips to all peers.  Frames are those of docs/protocol.md.
"""

from cpython.exc cimport PyErr_CheckSignals
from libc.errno cimport errno, EAGAIN, EINTR
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcpy, memmove, memset
from posix.unistd cimport read as c_read, write as c_write, close as c_close
from c_atomic cimport MAX_FREEZE_NS, boot_now, touch
from c_freeze cimport Held, Taken, freeze_all, held_claimed, held_thaw
from c_layout cimport CONTROL_CLAIMED, MAX_LANES
from confluo_tools.core.control cimport Control
import os

cdef extern from "<poll.h>" nogil:
    cdef struct pollfd:
        int fd
        short events
        short revents
    int poll(pollfd* fds, unsigned long n, int timeout)
    enum:
        POLLIN, POLLOUT

cdef extern from "<sys/epoll.h>" nogil:
    ctypedef union epoll_data_t:
        uint32_t u32
    cdef struct epoll_event:
        uint32_t events
        epoll_data_t data
    int epoll_create1(int flags)
    int epoll_ctl(int fd, int op, int on, epoll_event* event)
    int epoll_wait(int fd, epoll_event* events, int most, int timeout)
    enum:
        EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLLIN, EPOLL_CLOEXEC

# Kinds of frames that are made and read here; the others are Python's.
FREEZE, THAW, FROZEN, THAWED = 2, 3, 66, 67
cdef enum:
    C_FREEZE = 2
    C_THAW = 3
    C_FROZEN = 66
    C_THAWED = 67
    HEAD = 8                            # u32 bytes of the body, u8 kind, 3 zero bytes
    STALL_MS = 10000                    # a frame that was begun is there by then
HEAD_BYTES = HEAD
MAX_FRAME = 1 << 20                     # bytes of the body of any frame
cdef uint32_t _MAX_FRAME = 1 << 20
MAX_LOGS = 64                           # in one cut of one host

cdef inline uint32_t _u32(const uint8_t* p) noexcept nogil:
    cdef uint32_t v
    memcpy(&v, p, 4)
    return v

cdef inline uint64_t _u64(const uint8_t* p) noexcept nogil:
    cdef uint64_t v
    memcpy(&v, p, 8)
    return v

cdef inline void _head(uint8_t* p, uint32_t size, uint8_t kind) noexcept nogil:
    memset(p, 0, HEAD)
    memcpy(p, &size, 4)
    p[4] = kind

cdef bint _send(int fd, const uint8_t* p, size_t n) noexcept nogil:
    # All of it, to a descriptor that may be non-blocking.  False: errno tells.
    cdef ssize_t done
    cdef pollfd one
    while n:
        done = c_write(fd, p, n)
        if done >= 0:
            p += done
            n -= <size_t>done
        elif errno == EAGAIN:
            one.fd, one.events = fd, POLLOUT
            if poll(&one, 1, STALL_MS) == 0:
                return False
        elif errno != EINTR:
            return False
    return True


cdef class Cut:
    """The lanes of several logs, frozen together.  ``controls`` must be writable.

    `freeze`, look at `tails`, `thaw`; or all of it by `snap`.  ``ns`` is the time from the last freeze to its thaw.
    Raises PermissionError naming the control page that may only be read, OverflowError (255 freezes are in force).
    """
    cdef readonly tuple controls
    cdef readonly uint64_t ns
    cdef readonly bint frozen
    cdef Held* held
    cdef int n
    cdef uint64_t began, deadline

    def __cinit__(self, controls):
        cdef Control control
        cdef int i, k
        self.controls = tuple(controls)
        self.n = len(self.controls)
        if self.n > MAX_LOGS:
            raise ValueError(f"{self.n} logs; at most {MAX_LOGS} on one host")
        self.held = <Held*>calloc(max(self.n, 1), sizeof(Held))
        if self.held == NULL:
            raise MemoryError
        for i, control in enumerate(self.controls):
            if not control.writable:
                raise PermissionError(13, os.strerror(13), control.path)
            self.held[i].line = control.line
            self.held[i].claimed = <const uint32_t*>(control.map + CONTROL_CLAIMED)
            self.held[i].lanes = control.lanes
            self.held[i].taken = <Taken*>calloc(control.lanes, sizeof(Taken))
            if self.held[i].taken == NULL:
                raise MemoryError
            for k in range(held_claimed(&self.held[i])):    # no page fault while others wait
                touch(<uint8_t*>&self.held[i].line[k])

    def __dealloc__(self):
        cdef int i
        if self.held != NULL:
            if self.frozen:
                self.c_thaw()
            for i in range(self.n):
                free(self.held[i].taken)
            free(self.held)

    cdef bint c_freeze(self, uint64_t timeout_ns) noexcept nogil:
        self.began = boot_now()
        self.deadline = self.began + (timeout_ns if timeout_ns < MAX_FREEZE_NS else MAX_FREEZE_NS)
        self.frozen = freeze_all(self.held, self.n, self.deadline)
        return self.frozen

    cdef bint c_thaw(self) noexcept nogil:
        # False: the cut is void.  The number of lanes stays, for `tails`: see c_tails.
        cdef bint kept = True
        cdef int i, n
        cdef uint64_t now
        for i in range(self.n):
            n = self.held[i].n
            if not held_thaw(&self.held[i], self.deadline):
                kept = False
            self.held[i].n = -n
        now = boot_now()
        self.ns = now - self.began
        self.frozen = False
        return kept and now < self.deadline

    cdef void c_ready(self) noexcept nogil:
        cdef int i
        for i in range(self.n):
            self.held[i].n = 0

    def freeze(self, uint64_t timeout_ns=1_000_000_000):
        """Stop publishing in all lanes of all logs, for at most ``timeout_ns`` (and never above 60 s)."""
        cdef bint done
        if self.frozen:
            raise ValueError("already frozen")
        with nogil:
            self.c_ready()
            done = self.c_freeze(timeout_ns)
        if not done:
            raise OverflowError("255 freezes are in force")

    def tails(self):
        """For each log, rows of each claimed lane when it was last frozen."""
        cdef int i, k
        return [tuple([self.held[i].taken[k].rows for k in range(abs(self.held[i].n))]) for i in range(self.n)]

    def firsts(self):
        """For each log, the first row that each lane kept then."""
        cdef int i, k
        return [tuple([self.held[i].taken[k].first for k in range(abs(self.held[i].n))]) for i in range(self.n)]

    def thaw(self):
        """Let go.  False: the freeze was broken before (its time was up), so the cut is not atomic."""
        cdef bint kept
        if not self.frozen:
            return False
        with nogil:
            kept = self.c_thaw()
        return kept

    def snap(self, uint64_t timeout_ns=1_000_000_000):
        """Freeze, read the tails, thaw.  False: not atomic, try again with more time."""
        cdef bint done, kept = False
        if self.frozen:
            raise ValueError("already frozen")
        with nogil:
            self.c_ready()
            done = self.c_freeze(timeout_ns)
            if done:
                kept = self.c_thaw()
        if not done:
            raise OverflowError("255 freezes are in force")
        return kept

    # -- the far side

    def serve(self, int fd_in, int fd_out, uint64_t most_ns, bytes have=b"", int idle_ms=-1):
        """Answer FREEZE and THAW frames; the bytes of any other frame that has begun to come, None at the end.

        ``most_ns``: no freeze is longer.  ``have``: bytes that were read already.  Nothing is frozen on return.
        Raises OSError, TimeoutError (nothing came for ``idle_ms``, or a frame does not go on), ValueError (a freeze
        within a freeze), OverflowError.
        """
        cdef uint8_t buffer[256]
        cdef uint8_t* out
        cdef size_t room = 0
        cdef int i, code
        cdef size_t got = len(have)
        if got > 200:
            return have
        memcpy(buffer, <const char*>have, got)
        for i in range(self.n):
            room += 8 + <size_t>self.held[i].lanes * 16
        out = <uint8_t*>malloc(64 + room)
        if out == NULL:
            raise MemoryError
        try:
            while True:
                with nogil:
                    code = self.c_serve(fd_in, fd_out, most_ns, buffer, &got, out, idle_ms)
                if code == EINTR:
                    PyErr_CheckSignals()        # a handler may raise
                    continue
                if code == -1:
                    return None
                if code == -2:
                    return <bytes>buffer[:got]
                if code == -3:
                    raise TimeoutError("nothing came")
                if code == -4:
                    raise ValueError("a freeze within a freeze")
                if code == -5:
                    raise OverflowError("255 freezes are in force")
                raise OSError(code, os.strerror(code))
        finally:
            if self.frozen:
                self.c_thaw()
            free(out)

    cdef int c_serve(self, int fd_in, int fd_out, uint64_t most, uint8_t* buffer, size_t* got, uint8_t* out,
                     int idle_ms) noexcept nogil:
        cdef pollfd one
        cdef ssize_t n
        cdef int wait, ready
        cdef uint64_t now, mark, kept, size
        cdef uint32_t need
        while True:
            if got[0] >= HEAD:
                need = 0
                if buffer[4] == C_FREEZE and _u32(buffer) == 16:
                    need = HEAD + 16
                elif buffer[4] == C_THAW and _u32(buffer) == 8:
                    need = HEAD + 8
                if need == 0:
                    return -2
                if got[0] >= need:
                    mark = _u64(buffer + HEAD)
                    if buffer[4] == C_FREEZE:
                        if self.frozen:
                            return -4
                        size = _u64(buffer + HEAD + 8)
                        self.c_ready()
                        if not self.c_freeze(size if size < most else most):
                            return -5
                        size = self.c_tails(out, mark)
                    else:
                        kept = self.frozen and self.c_thaw()
                        _head(out, 24, C_THAWED)
                        memcpy(out + HEAD, &mark, 8)
                        memcpy(out + HEAD + 8, &kept, 8)
                        memcpy(out + HEAD + 16, &self.ns, 8)
                        size = HEAD + 24
                    got[0] -= need
                    memmove(buffer, buffer + need, got[0])
                    if not _send(fd_out, out, size):
                        return errno
                    continue
            wait = STALL_MS if got[0] else idle_ms
            if self.frozen:
                now = boot_now()
                if now >= self.deadline:        # thaw by ourselves; a THAW that comes later hears that it is void
                    self.c_thaw()
                    continue
                wait = <int>((self.deadline - now) // 1000000 + 1)
            if wait >= 0 or idle_ms >= 0 or self.frozen:
                one.fd, one.events = fd_in, POLLIN
                ready = poll(&one, 1, wait)
                if ready < 0:
                    return errno
                if ready == 0:
                    if self.frozen:
                        continue
                    return -3
            n = c_read(fd_in, buffer + got[0], 224 - got[0])
            if n == 0:
                return -1
            if n < 0:
                if errno == EAGAIN:
                    one.fd, one.events = fd_in, POLLIN
                    if poll(&one, 1, wait) < 0:
                        return errno
                    continue
                return errno
            got[0] += <size_t>n

    cdef uint64_t c_tails(self, uint8_t* out, uint64_t mark) noexcept nogil:
        cdef uint8_t* p = out + HEAD
        cdef uint32_t n = self.n, zero = 0
        cdef int i, k
        memcpy(p, &mark, 8)
        memcpy(p + 8, &n, 4)
        memcpy(p + 12, &zero, 4)
        p += 16
        for i in range(self.n):
            n = self.held[i].n
            memcpy(p, &n, 4)
            memcpy(p + 4, &zero, 4)
            p += 8
            for k in range(self.held[i].n):
                memcpy(p, &self.held[i].taken[k].rows, 8)
                memcpy(p + 8, &self.held[i].taken[k].first, 8)
                p += 16
        _head(out, <uint32_t>(p - out) - HEAD, C_FROZEN)
        return <uint64_t>(p - out)


# ---- the coordinator ----------------------------------------------------------------------------------------------

cdef enum State:
    WAITING = 0
    FROZE = 1
    DONE = 2
    LATE = 3                            # did not answer in time
    ENDED = 4                           # closed the connection
    STRANGE = 5                         # sent something else: the frame is `frozen`
    UNSENT = 6                          # could not be written to

cdef struct Peer:
    int out
    int inp
    int state
    int error
    bint held
    uint8_t* buffer
    size_t have
    size_t room
    uint8_t* frozen                     # the answer's body, malloc'ed
    uint32_t frozen_bytes
    uint64_t ns                         # freeze to thaw, as the peer measured it
    uint64_t first, last                # ns from our start to its FROZEN and its THAWED


class Answer:
    """What one peer said: ``tails`` and ``firsts`` of each of its logs; ``held``: its freeze stood until the thaw.

    ``problem`` is '' or 'late', 'ended', 'strange' (``frame`` is what came: kind, body), 'unsent'.
    ``ns``: freeze to thaw; ``frozen_at``, ``thawed_at``: ns from the start until its answers were here.
    """
    __slots__ = ("firsts", "frame", "frozen_at", "held", "ns", "problem", "tails", "thawed_at")

    def __init__(self, tails, firsts, held, ns, frozen_at, thawed_at, problem, frame):
        self.tails, self.firsts = tails, firsts
        self.held, self.ns, self.frozen_at, self.thawed_at = held, ns, frozen_at, thawed_at
        self.problem, self.frame = problem, frame


cdef class Round:
    """Algorithm 1 over peers, each a pair of descriptors (to write, to read), and the local logs of ``cut``."""
    cdef readonly Cut cut
    cdef readonly uint64_t freeze_ns    # of the last `snap`: until all had frozen
    cdef readonly uint64_t total_ns     # until all had thawed
    cdef Peer* peer
    cdef int n, epoll
    cdef uint64_t began, mark

    def __cinit__(self, Cut cut, peers):
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
        """Freeze everywhere, then thaw everywhere: the answers of the peers, and whether the cut held here.

        All are frozen for at most ``timeout_ns``; who has not said so by then is late.  ``wait_ns``: for the thaws.
        A peer that has failed is asked no more.
        """
        cdef int i, code = 0
        cdef bint kept = True
        for i in range(self.n):
            free(self.peer[i].frozen)
            self.peer[i].frozen, self.peer[i].frozen_bytes = NULL, 0
            self.peer[i].held, self.peer[i].first, self.peer[i].last = False, 0, 0
            if self.peer[i].state in (FROZE, DONE, LATE):
                self.peer[i].state = WAITING
        self.mark += 1
        if self.n == 0 and self.cut is not None:        # no Python between freeze and thaw
            kept = self.cut.snap(timeout_ns)
            self.freeze_ns = self.total_ns = self.cut.ns
            return [], kept
        with nogil:
            self.began = boot_now()
            self.c_ask(C_FREEZE, 16, timeout_ns)
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
                self.c_ask(C_THAW, 8, 0)
                if self.cut is not None and self.cut.frozen:
                    kept = self.cut.c_thaw()
        self._until(DONE, boot_now() + wait_ns)
        self.total_ns = boot_now() - self.began
        if code:
            raise OverflowError("255 freezes are in force")
        return [self._answer(i) for i in range(self.n)], kept

    def _until(self, int state, uint64_t end):
        # All peers that still take part are as far as `state`, or late.
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
        _head(frame, size, kind)
        memcpy(frame + HEAD, &self.mark, 8)
        memcpy(frame + HEAD + 8, &value, 8)
        for i in range(self.n):
            if self.peer[i].state in (ENDED, STRANGE, UNSENT):
                continue
            if not _send(self.peer[i].out, frame, HEAD + size):
                self.peer[i].state, self.peer[i].error = UNSENT, errno

    cdef int c_until(self, int state, uint64_t end) noexcept nogil:
        cdef epoll_event event[64]
        cdef int i, k, n, open_ = 0
        cdef uint64_t now
        for i in range(self.n):
            open_ += self.peer[i].state < state or (state == DONE and self.peer[i].state == LATE)
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
        # What has come from a peer: whole frames are dealt with, the rest stays.
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
            size = _u32(p.buffer + at)
            if size > _MAX_FRAME:
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
        if p.state not in (STRANGE, UNSENT):
            p.state = state
        epoll_ctl(self.epoll, EPOLL_CTL_DEL, p.inp, &event)

    cdef void c_frame(self, Peer* p, const uint8_t* frame, uint32_t size) noexcept nogil:
        cdef uint8_t kind = frame[4]
        if kind == C_FROZEN and size >= 16 or kind == C_THAWED and size == 24:
            if _u64(frame + HEAD) != self.mark:
                return                          # of an earlier try
            if kind == C_FROZEN:
                if p.state == WAITING and p.frozen == NULL:
                    p.first = boot_now() - self.began
                    self.c_keep(p, frame + HEAD, size)
                    p.state = FROZE
                return
            p.held = _u64(frame + HEAD + 8) == 1 and p.state == FROZE
            p.ns = _u64(frame + HEAD + 16)
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
        return Answer(tails, firsts, p.held and not problem, p.ns, p.first, p.last, problem, frame)


def _parse_tails(bytes body not None):
    # Tails and firsts of the logs of a FROZEN frame; None when it is malformed.
    cdef const uint8_t* p = <const uint8_t*><const char*>body
    cdef const uint8_t* end = p + len(body)
    cdef uint32_t logs = _u32(p + 8), n, i, k
    if logs > MAX_LOGS:
        return None
    tails, firsts = [], []
    p += 16
    for i in range(logs):
        if end - p < 8:
            return None
        n = _u32(p)
        p += 8
        if n > MAX_LANES or <uint64_t>(end - p) < <uint64_t>n * 16:
            return None
        tails.append(tuple([_u64(p + 16 * k) for k in range(n)]))
        firsts.append(tuple([_u64(p + 16 * k + 8) for k in range(n)]))
        if any([t >> 48 for t in tails[i]]) or any([f >> 48 for f in firsts[i]]):
            return None
        p += 16 * n
    return (tails, firsts) if p == end else None
