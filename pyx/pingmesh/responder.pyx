"""Responder loop of Pingmesh: echoes TCP payload and UDP probes, answers HTTP requests, without the interpreter.

Memory is bounded: at the limit of connections, the least recently active one is closed.
"""

from libc.errno cimport EAGAIN, ECONNABORTED, EINTR, EMFILE, ENFILE, ENOBUFS, ENOMEM
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy, memset
from c_atomic cimport load_relaxed, store_relaxed
from c_connection cimport RESPONDING, READING_REQUEST, ECHO, CLOSING, FREE, NEW, Connection, link, unlink
from c_datagram cimport IS_PROBE, TOKENS, check_datagram, stamp_datagram
from c_http_request cimport (
    REQUEST_COUNTERS, REQUEST_PING, MAYBE_REQUEST, NO_REQUEST, Request, read_request, request_begins, request_ends,
    write_head)
cimport cython
from cpython.exc cimport PyErr_CheckSignals

cdef extern from "responder_sockets.h" nogil:
    enum: DATAGRAMS
    enum: DATAGRAM
    enum: EVENTS
    enum: EPOLLIN
    enum: EPOLLOUT
    enum: EPOLL_CTL_ADD
    enum: EPOLL_CTL_DEL
    enum: EPOLL_CTL_MOD
    enum: EPOLL_CLOEXEC
    enum: EFD_CLOEXEC
    enum: EFD_NONBLOCK
    ctypedef struct ReplyBatch:
        uint8_t* unicast
        uint8_t* bytes
        unsigned n_out
    ctypedef union epoll_data_t:
        uint64_t u64
    struct epoll_event:
        uint32_t events
        epoll_data_t data
    int epoll_create1(int flags)
    int epoll_wait(int fd, epoll_event* events, int n, int milliseconds)
    int eventfd(unsigned start, int flags)
    ssize_t read(int fd, void* into, size_t n)
    ssize_t write(int fd, const void* data, size_t n)
    int close(int fd)
    int errno
    int64_t clock_ns(int which)
    int batch_receive(ReplyBatch* b, int fd)
    void batch_read(ReplyBatch* b, int i)
    uint32_t batch_length(const ReplyBatch* b, int i)
    void batch_reply(ReplyBatch* b, int i)
    uint8_t* batch_out(const ReplyBatch* b, unsigned i)
    uint64_t batch_stamp(const ReplyBatch* b, unsigned i)
    unsigned batch_send(ReplyBatch* b, int fd)
    int watch_fd(int poll, int how, int fd, uint32_t events, uint64_t tag)
    int accept_connection(int fd)
    int64_t receive_some(int fd, void* into, size_t n)
    int64_t send_some(int fd, const void* data, size_t n)
    void reset_connection(int fd)
    void shutdown_write(int fd)

cdef enum:
    PAYLOAD = 65536             # max bytes echoed on a connection
    CHUNK = 16384               # bytes per read
    HEAD = 4096                 # max bytes of a request
    MEMORY = 16 << 20           # max bytes of unsent data and incomplete requests, of all connections
    DOCUMENT = 4096
    LISTENERS = 64
    ACCEPTS = 64                # connections accepted per event, and batches of datagrams
    BATCHES = 4
    SWEEP = 100                 # ms between two searches for idle connections
    TICK = 2                    # ms that a listener above the rate limit is paused
    BURST = 100                 # ms of unused rate that can be saved up
    PAUSE = 20                  # ms without new connections when descriptors run out

cdef int64_t MS = 1_000_000

cdef enum:                      # tags of epoll
    T_WAKE
    T_TCP
    T_UDP
    T_CONNECTION

COUNTS = ("connections", "echoed", "echo_bytes", "requests", "datagrams", "short", "magic", "token", "looped",
          "foreign", "unsent", "evicted", "idle", "overlong", "no_room", "open")
cdef enum:
    C_CONNECTIONS
    C_ECHOED
    C_ECHO_BYTES
    C_REQUESTS
    C_DATAGRAMS
    C_SHORT
    C_MAGIC
    C_TOKEN
    C_LOOPED
    C_FOREIGN
    C_UNSENT
    C_EVICTED
    C_IDLE
    C_OVERLONG
    C_NO_ROOM
    C_OPEN
    N_COUNTS


@cython.final
cdef class ResponderEngine:
    """Answers on listening sockets, which it does not own.

    ``capacity``: connections at once.  ``idle``, ``life``: a connection is closed after this time (ns) without a byte,
    and in total.  ``rate``: connections accepted per second, and datagrams read per second (0: no limit).
    ``document()``: returns the body of /counters, at most 4,096 bytes; called at most 100 times a second.

    Call `run` from one thread; `wake`, `counts` and `tokens` from any.
    """

    cdef int poll, waker
    cdef uint32_t capacity, oldest, newest, n_free, n_listeners
    cdef int64_t memory         # bytes held for connections
    cdef int64_t idle, life, price, swept, document_at
    cdef int64_t[2] credit, credit_at, paused       # ns: of connections, of datagrams
    cdef Connection* connection
    cdef uint32_t* free_slot
    cdef int listener[LISTENERS]
    cdef uint8_t udp[LISTENERS]
    cdef uint64_t token[TOKENS]
    cdef uint64_t count[N_COUNTS]
    cdef ReplyBatch* batch
    cdef epoll_event* events
    cdef uint8_t* scratch
    cdef uint8_t* zero
    cdef uint8_t document[DOCUMENT]
    cdef uint32_t document_size
    cdef bint running
    cdef object _document

    def __cinit__(self, *, uint32_t capacity=4096, int64_t idle=5_000_000_000, int64_t life=20_000_000_000,
                  int64_t rate=0, document=None):
        cdef uint32_t i
        self.poll = self.waker = -1
        if not 1 <= capacity <= 1 << 20 or idle < MS or life < MS or not 0 <= rate <= 100_000_000:
            raise ValueError("out of range")
        self.capacity, self.idle, self.life = capacity, idle, life
        self.price = 1_000_000_000 / rate if rate else 0
        self._document = document
        self.connection = <Connection*>calloc(capacity, sizeof(Connection))
        self.free_slot = <uint32_t*>calloc(capacity, 4)
        self.batch = <ReplyBatch*>calloc(1, sizeof(ReplyBatch))
        self.events = <epoll_event*>calloc(EVENTS, sizeof(epoll_event))
        self.scratch = <uint8_t*>malloc(CHUNK)
        self.zero = <uint8_t*>calloc(1, CHUNK)
        if (self.connection == NULL or self.free_slot == NULL or self.batch == NULL or self.events == NULL
                or self.scratch == NULL or self.zero == NULL):
            raise MemoryError
        self.batch.bytes = <uint8_t*>calloc(DATAGRAMS, DATAGRAM)
        if self.batch.bytes == NULL:
            raise MemoryError
        for i in range(capacity):
            self.connection[i].fd = -1
            self.free_slot[i] = capacity - 1 - i
        self.n_free = capacity
        self.poll = epoll_create1(EPOLL_CLOEXEC)
        self.waker = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)
        if self.poll < 0 or self.waker < 0:
            raise OSError(errno, "cannot create epoll")
        if watch_fd(self.poll, EPOLL_CTL_ADD, self.waker, EPOLLIN, <uint64_t>T_WAKE << 56):
            raise OSError("cannot watch the wake-up descriptor")

    def __dealloc__(self):
        self._close()
        if self.batch != NULL:
            free(self.batch.bytes)
        free(self.connection)
        free(self.free_slot)
        free(self.batch)
        free(self.events)
        free(self.scratch)
        free(self.zero)

    cdef void _close(self) noexcept:
        while self.oldest:
            self._end(self.oldest - 1, True)
        if self.poll >= 0:
            close(self.poll)
        if self.waker >= 0:
            close(self.waker)
        self.poll = self.waker = -1

    def close(self):
        """Close all connections; no other call may follow.  Raises RuntimeError during `run`."""
        if self.running:
            raise RuntimeError("the responder is running")
        self._close()
        self._document = None

    def add(self, int fd, bint udp):
        """Answer on this socket as well.  Raises OSError, ValueError."""
        cdef int trouble
        if self.n_listeners == LISTENERS:
            raise ValueError("too many sockets")
        trouble = watch_fd(self.poll, EPOLL_CTL_ADD, fd, EPOLLIN,
                           <uint64_t>(T_UDP if udp else T_TCP) << 56 | self.n_listeners)
        if trouble:
            raise OSError(-trouble, "cannot watch the socket")
        self.listener[self.n_listeners] = fd
        self.udp[self.n_listeners] = udp
        self.n_listeners += 1

    @property
    def tokens(self):
        """Tokens of the datagrams to answer: up to eight numbers, none 0."""
        return [t for t in (load_relaxed(&self.token[i]) for i in range(TOKENS)) if t]

    @tokens.setter
    def tokens(self, tokens):
        cdef uint64_t wanted[TOKENS]
        cdef int i
        memset(wanted, 0, sizeof(wanted))
        tokens = list(tokens)
        if len(tokens) > TOKENS or 0 in tokens:
            raise ValueError("up to eight tokens, none of them 0")
        for i in range(<int>len(tokens)):
            wanted[i] = tokens[i]
        for i in range(TOKENS):
            store_relaxed(&self.token[i], wanted[i])

    @property
    def counts(self):
        """Counters by name since the start; `open`: connections open now."""
        return {name: load_relaxed(&self.count[i]) for i, name in enumerate(COUNTS)}

    def wake(self):
        """End `run` soon; without one, the next `run` returns at once."""
        cdef uint64_t one = 1
        if self.waker >= 0:
            write(self.waker, &one, 8)

    def run(self, int milliseconds=-1):
        """Answer for this many milliseconds (-1: until `wake`)."""
        cdef int64_t until = -1
        cdef bint interrupted = True
        if milliseconds >= 0:
            until = clock_ns(0) + milliseconds * MS
        if self.running or self.poll < 0:
            raise RuntimeError("the responder is running or closed")
        self.running = True
        try:
            while interrupted:
                with nogil:
                    interrupted = self._run(until)
                PyErr_CheckSignals()
        finally:
            self.running = False

    cdef bint _run(self, int64_t until) noexcept nogil:
        # Returns whether a signal interrupted it; the caller then calls it again.
        cdef int n, i, wait
        cdef int64_t now = clock_ns(0)
        cdef uint64_t tag, word
        cdef bint over = False
        while not over:
            wait = -1
            if until >= 0:
                wait = <int>((until - now + MS - 1) / MS) if until > now else 0
            if self.n_free < self.capacity and (wait < 0 or wait > SWEEP):
                wait = SWEEP
            if (self.paused[0] or self.paused[1]) and (wait < 0 or wait > TICK):
                wait = TICK
            n = epoll_wait(self.poll, self.events, EVENTS, wait)
            if n < 0 and errno == EINTR:
                return True
            now = clock_ns(0)
            for i in range(n if n > 0 else 0):
                tag = self.events[i].data.u64
                if tag >> 56 == T_WAKE:
                    read(self.waker, &word, 8)
                    over = True
                elif tag >> 56 == T_TCP:
                    self._accept(self.listener[tag & 0xff], now)
                elif tag >> 56 == T_UDP:
                    self._datagrams(self.listener[tag & 0xff])
                elif self._is_current(tag):
                    self._continue(<uint32_t>tag, now)
            if now - self.swept >= SWEEP * MS:
                self.swept = now
                self._sweep(now)
            for i in range(2):
                if self.paused[i] and now >= self.paused[i]:
                    self._listen(i, 0)
            if until >= 0 and now >= until:
                break
        return False

    # -- new connections

    cdef void _listen(self, bint udp, int64_t until) noexcept nogil:
        # Pause the listeners until this time (0: resume): the kernel queues new arrivals meanwhile, at little cost.
        cdef uint32_t i
        self.paused[udp] = until
        for i in range(self.n_listeners):
            if self.udp[i] == udp:
                watch_fd(self.poll, EPOLL_CTL_MOD, self.listener[i], 0 if until else EPOLLIN,
                         <uint64_t>(T_UDP if udp else T_TCP) << 56 | i)

    cdef bint _allowed(self, bint udp, int64_t now) noexcept nogil:
        # Token bucket in ns: time adds credit, at most 0.1 s; each connection or datagram costs ``price``.
        if not self.price:
            return True
        self.credit[udp] += now - self.credit_at[udp]
        self.credit_at[udp] = now
        if self.credit[udp] > BURST * MS:
            self.credit[udp] = BURST * MS
        if self.credit[udp] < self.price:
            self._listen(udp, now + TICK * MS)
            return False
        self.credit[udp] -= self.price
        return True

    cdef void _accept(self, int listener, int64_t now) noexcept nogil:
        cdef int _round, fd
        cdef uint32_t slot
        cdef Connection* c
        for _round in range(ACCEPTS):
            if not self._allowed(False, now):
                return
            fd = accept_connection(listener)
            if fd < 0:
                if fd == -EMFILE or fd == -ENFILE or fd == -ENOBUFS or fd == -ENOMEM:
                    self.count[C_NO_ROOM] += 1
                    if self.oldest:
                        self._end(self.oldest - 1, True)
                        self.count[C_EVICTED] += 1
                    else:
                        self._listen(False, now + PAUSE * MS)
                        return
                elif fd != -EINTR and fd != -ECONNABORTED:
                    return
                continue
            if not self.n_free:
                self._end(self.oldest - 1, True)
                self.count[C_EVICTED] += 1
            self.n_free -= 1
            slot = self.free_slot[self.n_free]
            c = &self.connection[slot]
            c.fd, c.kind, c.watched, c.writing = fd, NEW, False, False
            c.generation = (c.generation + 1) & 0xFFFFFF
            c.total = c.have = c.at = c.zeros = 0
            c.born = c.active = now
            link(self.connection, &self.oldest, &self.newest, slot)
            self.count[C_CONNECTIONS] += 1
            self.count[C_OPEN] += 1
            self._read(slot, now)   # most are probes that are over already
            if c.kind != FREE and not c.watched:
                self._watch(slot, c.writing)

    cdef bint _is_current(self, uint64_t tag) noexcept nogil:
        cdef uint32_t slot = <uint32_t>tag
        return (slot < self.capacity and self.connection[slot].kind != FREE
                and self.connection[slot].generation == (tag >> 32 & 0xFFFFFF))

    cdef void _watch(self, uint32_t slot, bint writing) noexcept nogil:
        cdef Connection* c = &self.connection[slot]
        cdef uint64_t tag = <uint64_t>T_CONNECTION << 56 | <uint64_t>c.generation << 32 | slot
        if c.watched and c.writing == writing:
            return
        c.writing = writing
        if watch_fd(self.poll, EPOLL_CTL_MOD if c.watched else EPOLL_CTL_ADD, c.fd,
                    EPOLLOUT if writing else EPOLLIN, tag):
            self._end(slot, True)
            self.count[C_NO_ROOM] += 1
        else:
            c.watched = True

    cdef void _end(self, uint32_t slot, bint hard) noexcept nogil:
        cdef Connection* c = &self.connection[slot]
        if hard:
            reset_connection(c.fd)
        else:
            close(c.fd)
        if c.kind == ECHO:
            self.count[C_ECHOED] += 1
            self.count[C_ECHO_BYTES] += c.total
        self._release(c)
        unlink(self.connection, &self.oldest, &self.newest, slot)
        c.kind = FREE
        c.fd = -1
        self.free_slot[self.n_free] = slot
        self.n_free += 1
        self.count[C_OPEN] -= 1

    cdef void _release(self, Connection* c) noexcept nogil:
        if c.held != NULL:
            free(c.held)
            c.held = NULL
            self.memory -= c.room
        c.room = c.have = c.at = 0

    cdef bint _buffer(self, Connection* c, const uint8_t* data, uint32_t n) noexcept nogil:
        # Append to the connection's buffer.  False: buffer or memory limit reached.
        cdef uint32_t room = HEAD if c.kind == READING_REQUEST else CHUNK
        if c.held == NULL:
            if n > room or self.memory + room > MEMORY:
                return False
            c.held = <uint8_t*>malloc(room)
            if c.held == NULL:
                return False
            c.room = room
            self.memory += room
        if n > c.room - c.have:
            return False
        memcpy(c.held + c.have, data, n)
        c.have += n
        return True

    cdef void _sweep(self, int64_t now) noexcept nogil:
        while self.oldest and now - self.connection[self.oldest - 1].active >= self.idle:
            self._end(self.oldest - 1, True)
            self.count[C_IDLE] += 1

    # -- connections

    cdef void _continue(self, uint32_t slot, int64_t now) noexcept nogil:
        cdef Connection* c = &self.connection[slot]
        if now - c.born >= self.life:
            self._end(slot, True)
            self.count[C_IDLE] += 1
            return
        if c.active != now:
            c.active = now
            unlink(self.connection, &self.oldest, &self.newest, slot)
            link(self.connection, &self.oldest, &self.newest, slot)
        if c.writing:
            self._write(slot)
        else:
            self._read(slot, now)

    cdef void _read(self, uint32_t slot, int64_t now) noexcept nogil:
        cdef Connection* c = &self.connection[slot]
        cdef int64_t got
        cdef int _round
        for _round in range(4):
            # at most as much as the buffer can take if none of it can be echoed now
            got = receive_some(c.fd, self.scratch, CHUNK)
            if got == -EAGAIN or got == -EINTR:
                return
            if got <= 0:
                self._end(slot, False)
                return
            c.total += <uint32_t>got
            if c.total > PAYLOAD:
                self._end(slot, True)
                self.count[C_OVERLONG] += 1
                return
            if c.kind == NEW or c.kind == READING_REQUEST:
                self._parse(slot, <uint32_t>got, now)
            elif c.kind == ECHO:
                self._echo(slot, self.scratch, <uint32_t>got)
            if c.kind == FREE or c.writing:
                return

    cdef void _parse(self, uint32_t slot, uint32_t n, int64_t now) noexcept nogil:
        # The first bytes of a connection: an HTTP request or payload.
        cdef Connection* c = &self.connection[slot]
        cdef const uint8_t* data = self.scratch
        cdef uint32_t seen = 0
        cdef int begins
        cdef Request r
        if c.kind == READING_REQUEST:
            seen = c.have
            if not self._buffer(c, self.scratch, n):
                self._end(slot, True)
                self.count[C_OVERLONG] += 1
                return
            data = c.held
            n = c.have
        begins = request_begins(data, n)
        if begins == NO_REQUEST:
            c.kind = ECHO
            if data == c.held:
                memcpy(self.scratch, c.held, n)
                self._release(c)
            self._echo(slot, self.scratch, n)
        elif begins == MAYBE_REQUEST or not request_ends(data, n, seen):
            c.kind = READING_REQUEST
            if data != c.held and not self._buffer(c, self.scratch, n):
                self._end(slot, True)
                self.count[C_OVERLONG if n > HEAD else C_NO_ROOM] += 1
        else:
            self.count[C_REQUESTS] += 1
            read_request(data, n, PAYLOAD, &r)
            self._release(c)
            self._respond(slot, &r, now)

    cdef void _echo(self, uint32_t slot, const uint8_t* data, uint32_t n) noexcept nogil:
        # Send these bytes now or later; reading pauses until they are sent.
        cdef Connection* c = &self.connection[slot]
        cdef int64_t sent = send_some(c.fd, data, n)
        if sent < 0 and sent != -EAGAIN and sent != -EINTR:
            self._end(slot, True)
            return
        if sent < 0:
            sent = 0
        if sent < n:
            if not self._buffer(c, data + sent, n - <uint32_t>sent):
                self._end(slot, True)
                self.count[C_NO_ROOM] += 1
                return
            self._watch(slot, True)

    cdef void _respond(self, uint32_t slot, const Request* r, int64_t now) noexcept nogil:
        cdef Connection* c = &self.connection[slot]
        cdef uint32_t body = 0, n
        if r.kind == REQUEST_COUNTERS:
            if now - self.document_at >= 10 * MS or not self.document_size:
                with gil:
                    self._make_document()
                self.document_at = now
            body = self.document_size
        elif r.kind == REQUEST_PING:
            body = r.size
        n = write_head(<char*>self.scratch, 1024, r, body)
        c.kind = RESPONDING
        if not r.head and r.kind == REQUEST_COUNTERS:
            memcpy(self.scratch + n, self.document, body)
            n += body
        elif not r.head and r.kind == REQUEST_PING:
            c.zeros = body
        self._echo(slot, self.scratch, n)
        if c.kind == RESPONDING and not c.have:
            self._write(slot)

    cdef void _make_document(self) noexcept:
        self.document_size = 0
        try:
            data = bytes(self._document()) if self._document is not None else b"{}\n"
            if len(data) <= DOCUMENT - 1024:
                memcpy(self.document, <const uint8_t*><const char*>data, len(data))
                self.document_size = <uint32_t>len(data)
        except Exception:
            pass                # the response is 503

    cdef void _write(self, uint32_t slot) noexcept nogil:
        # Send the buffer, then zeros; then read again, or end the response.
        cdef Connection* c = &self.connection[slot]
        cdef int64_t sent
        while c.have or c.zeros:
            if c.have:
                sent = send_some(c.fd, c.held + c.at, c.have - c.at)
            else:
                sent = send_some(c.fd, self.zero, c.zeros if c.zeros < CHUNK else CHUNK)
            if sent == -EAGAIN or sent == -EINTR:
                self._watch(slot, True)
                return
            if sent < 0:
                self._end(slot, True)
                return
            if not c.have:
                c.zeros -= <uint32_t>sent
            else:
                c.at += <uint32_t>sent
                if c.at == c.have:
                    self._release(c)
        if c.kind == RESPONDING:
            c.kind = CLOSING
            shutdown_write(c.fd)
        self._watch(slot, False)

    # -- datagrams

    cdef void _datagrams(self, int fd) noexcept nogil:
        cdef int _round, i, n, verdict
        cdef unsigned k, size
        cdef uint64_t now
        cdef uint8_t* p
        for _round in range(BATCHES):
            if not self._allowed(True, clock_ns(0)):
                return
            n = batch_receive(self.batch, fd)
            if n <= 0:
                return
            self.credit[1] -= (n - 1) * self.price
            for i in range(n):
                p = self.batch.bytes + <size_t>i * DATAGRAM
                verdict = check_datagram(p, batch_length(self.batch, i), self.token)
                if verdict != IS_PROBE:
                    self.count[C_SHORT + verdict - 1] += 1
                    continue
                batch_read(self.batch, i)
                if self.batch.unicast[i]:
                    batch_reply(self.batch, i)
                else:
                    self.count[C_FOREIGN] += 1
            if not self.batch.n_out:
                continue
            now = <uint64_t>clock_ns(1)
            for k in range(self.batch.n_out):
                stamp_datagram(batch_out(self.batch, k), batch_stamp(self.batch, k), now)
            size = self.batch.n_out
            k = batch_send(self.batch, fd)
            self.count[C_DATAGRAMS] += k
            self.count[C_UNSENT] += size - k
            if n < DATAGRAMS:
                return
