"""Freeze the lanes of several logs of this host for an atomic cut; `snapshot_round` adds other hosts.

Paper: Algorithm 1.

Between freeze and thaw no Python runs: `LogFreeze.snap` is one call, and so is `LogFreeze.serve`, which answers another
host.
Frames are those of docs/protocol.md.
"""

from cpython.exc cimport PyErr_CheckSignals
from libc.errno cimport errno, EAGAIN, EINTR
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy, memmove
from posix.unistd cimport read as c_read
from c_atomic cimport MAX_FREEZE_NS, boot_now, touch
from c_frame cimport (FREEZE_FRAME, FROZEN_FRAME, HEAD, LONGEST, POLLIN, STALL_MS, THAW_FRAME, THAWED_FRAME, get32,
                      get64, poll, pollfd, put_head, send_all)
from c_freeze cimport Held, Taken, freeze_all, held_claimed, held_thaw
from c_layout cimport CONTROL_CLAIMED
from confluo_tools.core.multilog.control cimport Control
cimport cython
import os

FREEZE, THAW, FROZEN, THAWED = FREEZE_FRAME, THAW_FRAME, FROZEN_FRAME, THAWED_FRAME
HEAD_BYTES, MAX_FRAME = HEAD, LONGEST
MAX_LOGS = 64                           # in one cut of one host


@cython.no_gc_clear                     # the memory of the controls is there until they are thawed
cdef class LogFreeze:
    """The lanes of several logs, frozen together.  ``controls`` must be writable.

    Call `freeze`, read `tails`, `thaw`; or `snap` for all three.  ``ns`` is the time from the last freeze to its thaw.
    Raises PermissionError with the path of a read-only control page, OverflowError (255 freezes are in force).
    """

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
            for k in range(held_claimed(&self.held[i])):    # so that no page fault prolongs the freeze
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
        # False: the cut is not atomic.  The number of lanes is kept for `tails`: see c_tails.
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
        """For each log, the rows of each claimed lane at the last freeze."""
        cdef int i, k
        return [tuple([self.held[i].taken[k].rows for k in range(abs(self.held[i].n))]) for i in range(self.n)]

    def firsts(self):
        """For each log, the first kept row of each lane at the last freeze."""
        cdef int i, k
        return [tuple([self.held[i].taken[k].first for k in range(abs(self.held[i].n))]) for i in range(self.n)]

    def thaw(self):
        """End the freeze.  False: its deadline had passed, so the cut is not atomic."""
        cdef bint kept
        if not self.frozen:
            return False
        with nogil:
            kept = self.c_thaw()
        return kept

    def snap(self, uint64_t timeout_ns=1_000_000_000):
        """Freeze, read the tails, thaw.  False: not atomic; repeat with a longer timeout."""
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

    # -- serving another host

    def serve(self, int fd_in, int fd_out, uint64_t max_ns, bytes have=b"", int idle_ms=-1, int wake=-1):
        """Answer FREEZE and THAW frames until another frame or the end of the input.

        Returns the bytes read of the other frame, None at the end.

        ``max_ns``: longest freeze.  ``have``: bytes that were read already.  ``wake``: a descriptor that becomes
        readable on a signal (signal.set_wakeup_fd).  Nothing is frozen on return.
        Raises OSError, TimeoutError (no input for ``idle_ms``, or an incomplete frame), ValueError (FREEZE while
        frozen), OverflowError.
        """
        cdef uint8_t* buffer
        cdef uint8_t* out
        cdef size_t room = 0
        cdef uint8_t signals[64]
        cdef int i, code
        cdef size_t got = len(have)
        for i in range(self.n):
            room += 8 + <size_t>self.held[i].lanes * 16
        out = <uint8_t*>malloc(64 + room + got + 256)
        if out == NULL:
            raise MemoryError
        buffer = out + 64 + room
        memcpy(buffer, <const char*>have, got)
        try:
            while True:
                with nogil:
                    code = self.c_serve(fd_in, fd_out, max_ns, buffer, &got, out, idle_ms, wake)
                if code == EINTR:
                    PyErr_CheckSignals()        # a signal handler may raise
                    if wake >= 0:
                        c_read(wake, signals, sizeof(signals))
                    continue
                if code == -1:
                    return None
                if code == -2:
                    return <bytes>buffer[:got]
                if code == -3:
                    raise TimeoutError("no frame arrived")
                if code == -4:
                    raise ValueError("FREEZE while frozen")
                if code == -5:
                    raise OverflowError("255 freezes are in force")
                raise OSError(code, os.strerror(code))
        finally:
            if self.frozen:
                self.c_thaw()
            free(out)

    cdef int c_serve(self, int fd_in, int fd_out, uint64_t most, uint8_t* buffer, size_t* got, uint8_t* out,
                     int idle_ms, int wake) noexcept nogil:
        cdef pollfd ends[2]
        cdef ssize_t n
        cdef int wait, ready
        cdef uint64_t now, mark, kept, size, until = 0      # until: when the frame that has begun must be complete
        cdef uint32_t need
        while True:
            if got[0] >= HEAD:
                need = 0
                if buffer[4] == FREEZE_FRAME and get32(buffer) == 16:
                    need = HEAD + 16
                elif buffer[4] == THAW_FRAME and get32(buffer) == 8:
                    need = HEAD + 8
                if need == 0:
                    return -2
                if got[0] >= need:
                    mark = get64(buffer + HEAD)
                    if buffer[4] == FREEZE_FRAME:
                        if self.frozen:
                            return -4
                        size = get64(buffer + HEAD + 8)
                        self.c_ready()
                        if not self.c_freeze(size if size < most else most):
                            return -5
                        size = self.c_tails(out, mark)
                    else:
                        kept = self.frozen and self.c_thaw()
                        put_head(out, 24, THAWED_FRAME)
                        memcpy(out + HEAD, &mark, 8)
                        memcpy(out + HEAD + 8, &kept, 8)
                        memcpy(out + HEAD + 16, &self.ns, 8)
                        size = HEAD + 24
                    got[0] -= need
                    until = 0
                    memmove(buffer, buffer + need, got[0])
                    if not send_all(fd_out, out, size):
                        return errno
                    continue
            wait = idle_ms
            if got[0] == 0:
                until = 0
            else:
                now = boot_now()
                if until == 0:
                    until = now + <uint64_t>STALL_MS * 1000000
                if now >= until and not self.frozen:
                    return -3
                wait = <int>((until - now) // 1000000 + 1) if now < until else 0
            if self.frozen:
                now = boot_now()
                if now >= self.deadline:        # the deadline passed: thaw now; a later THAW is answered as not atomic
                    self.c_thaw()
                    continue
                wait = <int>((self.deadline - now) // 1000000 + 1)
            ends[0].fd, ends[0].events, ends[1].fd, ends[1].events = fd_in, POLLIN, wake, POLLIN
            ends[0].revents = ends[1].revents = 0
            ready = poll(ends, 2, wait)         # poll ignores a descriptor of -1
            if ready < 0:
                return errno
            if ready == 0:
                if self.frozen:
                    continue
                return -3
            if ends[1].revents:
                return EINTR
            n = c_read(fd_in, buffer + got[0], 224)
            if n == 0:
                return -1
            if n > 0:
                got[0] += <size_t>n
            elif errno != EAGAIN:
                return errno

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
        put_head(out, <uint32_t>(p - out) - HEAD, FROZEN_FRAME)
        return <uint64_t>(p - out)
