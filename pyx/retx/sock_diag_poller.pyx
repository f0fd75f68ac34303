"""Poller of TCP losses: sock_diag(7) messages and trace buffers to rows, without the interpreter.

A round reads its sources in an order that makes the two ways of counting agree: first ended sockets, then queries
and who lives, then the trace buffers, which now hold every event that those counters have counted, then rows.
"""

from libc.errno cimport errno, EAGAIN, EINTR, ENOBUFS
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t, int64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy, memset
from posix.time cimport clock_gettime, timespec, CLOCK_MONOTONIC, CLOCK_REALTIME
from posix.unistd cimport read
from c_posix cimport MSG_DONTWAIT, recv, send
from c_sock_diag cimport (
    DIAG, DIAG_REQUEST, INET, INET6, NL_DONE, NL_ERROR, NL_HEADER, Sample, diag_parse, diag_request, diag_u32,
)
from c_socket_table cimport (
    EARLIER, ENDING, LATE, POLLED, Q_AWAY, Q_DUE, Q_FOREIGN, Q_LATE, Q_NONE, REPORTED, Flow, Flows, flows_add,
    flows_call,
    flows_called, flows_drop, flows_due, flows_find, flows_free, flows_init, flows_join, flows_leave, flows_traced,
)
from c_netlink cimport BATCH, MESSAGE, Netlink, netlink_length, netlink_receive
from c_retx cimport (END, GONE, POLL, RETRANSMIT, Counts, Delta, flow_forward, flow_restart, retx_delta, retx_row,
                     sample_lost)
from c_trace_pages cimport TracePage, page_begin, page_next
from c_tracefs cimport TraceFormat, trace_event
from confluo_tools.core.block.block cimport Layout, Staging
cimport cython
import os

cdef enum:
    SAMPLES = 2048              # sockets that a round asks about or hears the end of
    ROWS = 8192
    LOOKS = 512                 # sockets that one message of a dump may tell of, and more
    ASK = 32                    # sockets queried in one system call
    PAGES = 256                 # read from one trace buffer in a round
    DUMP = 32768                # bytes of a message of a dump
    PIECE = 48                  # such messages in one round: some 5,000 sockets, ten milliseconds

cdef enum:                      # what a dump is for
    L_BEGIN                     # how far the counters of everybody have got
    L_POLL                      # sockets with losses that no event reported
    L_ALL                       # what everybody has to tell, at once

NAMES = ("ts", "event", "notes", "state", "ip_version", "proto", "src_ip", "src_ip6", "dst_ip", "dst_ip6", "src_port",
         "dst_port", "sent", "lost", "retrans", "dsack", "events", "timeouts", "rtt", "rtt_var", "rtt_min", "cwnd",
         "bytes", "cookie", "uid")
WIDTHS = (8, 1, 1, 1, 1, 1, 4, 16, 4, 16, 2, 2, 4, 4, 4, 4, 4, 4, 8, 8, 8, 4, 8, 8, 4)
COUNTS = ("ended", "queried", "looked", "dumps", "events", "traced", "foreign", "rows", "retrans", "lost", "late_dsack",
          "unfollowed", "excess", "overflows", "malformed", "gone", "interrupted")


@cython.final
cdef class SockDiagPoller:
    """Rows of the retx schema out of three sock_diag sockets and trace buffers.

    ``layout``: that of the schema.  ``ends``: a socket that hears of TCP sockets that end, or -1; ``ask``, ``dump``:
    two to ask.  ``traces``: descriptors of trace_pipe_raw, their clock is mono; ``header``: bytes before a page's
    data, ``page``: bytes of a page; ``formats``: offsets of events, eleven numbers each, the second of SYN-ACKs.
    ``all``: tell also of sockets that lost nothing.  ``flows``: how many are remembered.
    ``settle``: ns that a retransmission is left alone, so that a DSACK may come.
    ``foreign``: ns for which a flow that is not ours is believed to stay so.
    """

    cdef readonly Layout layout
    cdef Flows flows
    cdef Counts n
    cdef int ends
    cdef int ask
    cdef int dump
    cdef int* trace
    cdef int traces
    cdef size_t header
    cdef size_t page
    cdef TraceFormat format[2]
    cdef int formats
    cdef bint all
    cdef int64_t settle
    cdef int64_t foreign
    cdef int64_t now                    # realtime
    cdef int64_t mono                   # monotonic
    cdef Sample* sample
    cdef uint32_t samples
    cdef uint32_t row
    cdef Staging block
    cdef uint8_t* buffer
    cdef Netlink* messages
    cdef int dumping                    # 0, INET, INET6
    cdef int look
    cdef uint32_t dump_seq
    cdef uint32_t seq
    cdef uint32_t round
    cdef bint drained                   # no end waits to be read
    cdef int doubt                      # dumps until ends that were lost are made good
    cdef bint full_at_begin
    cdef readonly bint more             # there is more to do at once

    def __cinit__(self, Layout layout not None, *, int ends, int ask, int dump, traces=(), size_t header=16,
                  size_t page=4096, formats=(), bint all=False, uint32_t flows=65536, int64_t settle=100_000_000,
                  int64_t foreign=10_000_000_000):
        cdef uint64_t seed[2]
        cdef const uint8_t[::1] secret = os.urandom(16)
        cdef int i
        if layout.names != NAMES or any(layout.column[i].width != WIDTHS[i] for i in range(layout.n)):
            raise ValueError("the layout is not that of the schema retx")
        if not 16 <= flows <= 1 << 24 or not 64 <= page <= 1 << 20 or header >= page or len(formats) > 2:
            raise ValueError("sizes")
        self.layout, self.ends, self.ask, self.dump, self.all = layout, ends, ask, dump, all
        self.header, self.page, self.settle, self.foreign = header, page, settle, foreign
        self.traces, self.formats, self.drained = len(traces), len(formats), True
        memcpy(seed, &secret[0], 16)
        self.trace = <int*>calloc(max(self.traces, 1), sizeof(int))
        self.sample = <Sample*>calloc(SAMPLES, sizeof(Sample))
        self.buffer = <uint8_t*>malloc(max(<size_t>BATCH * MESSAGE, page))
        self.messages = <Netlink*>calloc(1, sizeof(Netlink))
        if (self.trace == NULL or self.sample == NULL or self.buffer == NULL or self.messages == NULL
                or not flows_init(&self.flows, flows, seed)):
            raise MemoryError
        for i in range(self.traces):
            self.trace[i] = traces[i]
        for i in range(self.formats):
            _format(&self.format[i], formats[i])
        self.block = Staging(layout, ROWS)

    def __dealloc__(self):
        free(self.trace)
        free(self.sample)
        free(self.buffer)
        free(self.messages)
        flows_free(&self.flows)

    # -- rounds

    def begin(self):
        """Remember how far the counters of all sockets have got: rows tell what comes after.  Raises OSError."""
        self._start_dump(L_BEGIN)
        while self.dumping:
            with nogil:
                self._clock()
                self._dumped()

    def poll(self):
        """Have the next rounds look at all sockets; nothing when they do so already.  Raises OSError."""
        if not self.dumping:
            self._start_dump(L_POLL)

    def last(self):
        """Have the next rounds tell all that there is to tell, until there is no `more`.  Raises OSError."""
        while self.dumping:             # what it found is found again
            with nogil:
                self._clock()
                self.row = 0
                self._dumped()
        self._start_dump(L_ALL)

    def step(self):
        """One round; its rows as a block, valid until the next one, or None.  ``more``: there is more to do now."""
        with nogil:
            self._clock()
            self.row = self.samples = 0
            self.more = False
            if self.ends >= 0:
                self._ended()
            self._asked()
            self._dumped()
            self._traced()
            self._tell_samples()
            self.block.set_rows(self.row)
            self.n.rows += self.row
        return self.block if self.row else None

    @property
    def busy(self):
        """A dump is not over yet."""
        return self.dumping != 0

    @property
    def following(self):
        """Flows that are remembered now."""
        return self.flows.count

    @property
    def counts(self):
        """How often what happened, by the names of COUNTS."""
        cdef const uint64_t* p = <const uint64_t*>&self.n
        return {name: p[i] for i, name in enumerate(COUNTS)}

    cdef void _clock(self) noexcept nogil:
        cdef timespec wall, mono
        clock_gettime(CLOCK_MONOTONIC, &mono)
        clock_gettime(CLOCK_REALTIME, &wall)
        self.now = <int64_t>wall.tv_sec * 1000000000 + wall.tv_nsec
        self.mono = <int64_t>mono.tv_sec * 1000000000 + mono.tv_nsec

    # -- who has ended

    cdef void _ended(self) noexcept nogil:
        cdef int got, i
        cdef size_t length
        cdef uint8_t* p
        cdef uint16_t type
        cdef Flow* f
        self.drained = False
        while self.samples + BATCH + ASK <= SAMPLES:
            got = netlink_receive(self.messages, self.buffer, self.ends)
            if got == -ENOBUFS:
                self.n.overflows += 1
                self.doubt = 3
                continue
            if got == -EINTR:
                continue
            if got <= 0:
                self.drained = True
                return
            for i in range(got):
                length = netlink_length(self.messages, self.buffer, i)
                if not length:
                    self.n.malformed += 1
                    continue
                p = self.buffer + <size_t>i * MESSAGE
                memcpy(&type, p + 4, 2)
                if type == DIAG and diag_parse(&self.sample[self.samples], p + NL_HEADER, length - NL_HEADER):
                    f = self._find(&self.sample[self.samples])
                    if f == NULL and self.sample[self.samples].alone:
                        continue
                    if f != NULL:
                        self._ours(f)
                        flows_leave(&self.flows, f)    # no answer is possible
                        f.flags |= ENDING
                    self.sample[self.samples].kind = END
                    self.samples += 1
                    self.n.ended += 1
        self.more = True

    # -- queries

    cdef void _asked(self) noexcept nogil:
        cdef uint32_t queried[ASK]
        cdef uint8_t request[ASK * 72]
        cdef Flow* f
        cdef uint32_t i
        cdef uint32_t first
        cdef int n = ASK
        while n == ASK and self.samples + ASK <= SAMPLES:
            n = 0
            first = self.seq + 1
            while n < ASK:
                i = flows_due(&self.flows, Q_LATE, self.mono - self.settle)
                if not i:
                    i = flows_due(&self.flows, Q_DUE, self.mono - self.settle)
                if not i:
                    break
                f = &self.flows.flow[i - 1]
                self.seq += 1
                diag_request(request + n * DIAG_REQUEST, self.seq, INET6 if f.key[4] >> 32 == 6 else INET, f.key)
                queried[n] = i
                n += 1
                flows_leave(&self.flows, f)
            if not n:
                return
            self.n.queried += n
            if send(self.ask, request, n * DIAG_REQUEST, 0) < 0:
                for i in range(<uint32_t>n):
                    self._again(&self.flows.flow[queried[i] - 1])
                return
            self._answers(queried, n, first)
        self.more = self.more or n == ASK

    cdef void _answers(self, uint32_t* queried, int n, uint32_t first) noexcept nogil:
        """Answers stand in the socket when the question was taken, one for each."""
        cdef int got, i
        cdef uint32_t k
        cdef uint16_t type
        cdef size_t length
        cdef uint8_t* p
        cdef Flow* f
        cdef Sample* s
        while n > 0:
            got = netlink_receive(self.messages, self.buffer, self.ask)
            if got == -EINTR or got == -ENOBUFS:
                continue
            if got <= 0:
                break
            for i in range(got):
                length = netlink_length(self.messages, self.buffer, i)
                if not length:
                    self.n.malformed += 1
                    continue
                p = self.buffer + <size_t>i * MESSAGE
                memcpy(&type, p + 4, 2)
                k = diag_u32(p + 8) - first
                if k >= ASK or not queried[k]:
                    continue
                f = &self.flows.flow[queried[k] - 1]
                s = &self.sample[self.samples]
                if type == DIAG and diag_parse(s, p + NL_HEADER, length - NL_HEADER) and not s.alone:
                    s.kind = POLL if f.flags & POLLED else RETRANSMIT
                    s.flow = queried[k]
                    self.samples += 1
                else:
                    self._absent(f)
                queried[k] = 0
                n -= 1

    cdef void _again(self, Flow* f) noexcept nogil:
        f.first = self.mono
        flows_join(&self.flows, f, Q_DUE)

    cdef void _absent(self, Flow* f) noexcept nogil:
        """No such socket here: it is in another namespace, or has ended."""
        if f.cookie:
            return                      # its end is on its way
        f.first = self.mono
        self.n.foreign += f.events
        flows_join(&self.flows, f, Q_FOREIGN)

    # -- who lives

    cdef int _start_dump(self, int look) except -1:
        self.look = look
        self.round += 1
        self.n.dumps += 1
        if not self._ask_all(INET):
            raise OSError(errno, os.strerror(errno))
        return 0

    cdef bint _ask_all(self, int family) noexcept nogil:
        cdef uint8_t request[72]
        self.seq += 1
        self.dump_seq = self.seq
        diag_request(request, self.seq, family, NULL)
        if send(self.dump, request, DIAG_REQUEST, 0) < 0:
            return False
        self.dumping = family
        return True

    cdef void _dumped(self) noexcept nogil:
        """Read on in the dump as long as there is room for rows."""
        cdef Py_ssize_t got
        cdef size_t at, size, length
        cdef uint16_t type, flags
        cdef Sample s
        cdef uint8_t* p
        cdef int over, piece = 0
        while self.dumping and piece < PIECE:
            piece += 1
            if self.row + self.samples + LOOKS > ROWS:
                self.more = True
                return
            got = recv(self.dump, self.buffer, DUMP, MSG_DONTWAIT)
            if got < 0:
                if errno == EINTR or errno == ENOBUFS:
                    continue
                if errno != EAGAIN:
                    self._dump_over()
                return
            at, size, over = 0, <size_t>got, 0
            while at + NL_HEADER <= size:
                p = self.buffer + at
                length = diag_u32(p)
                if length < NL_HEADER or length > size - at:
                    self.n.malformed += 1
                    break
                memcpy(&type, p + 4, 2)
                memcpy(&flags, p + 6, 2)
                if diag_u32(p + 8) == self.dump_seq:
                    if flags & 0x10:    # NLM_F_DUMP_INTR
                        self.n.interrupted += 1
                    if type == NL_DONE or type == NL_ERROR:
                        over = 1
                    elif (type == DIAG and diag_parse(&s, p + NL_HEADER, length - NL_HEADER)
                            and not s.alone):
                        self._looked(&s)
                at += (length + 3) & ~<size_t>3
            if over:
                if self.dumping == INET and self._ask_all(INET6):
                    continue
                self._dump_over()

    cdef void _looked(self, Sample* s) noexcept nogil:
        cdef Flow* f = flows_find(&self.flows, s.key, s.cookie)
        self.n.looked += 1
        s.kind = POLL
        if f != NULL and not f.cookie:
            self._adopt(f, s)
        if self.look == L_BEGIN:
            if f == NULL:
                f = flows_add(&self.flows, s.key, s.cookie)
            if f == NULL:
                self.full_at_begin = True
                self.n.unfollowed += 1
                return
            flow_forward(f, s)
            f.told_events, f.round = s.retrans, self.round
            return
        if f != NULL:
            f.round, f.uid = self.round, s.uid
            if f.queue == Q_AWAY:
                flows_leave(&self.flows, f)
            if s.retrans < f.retrans:
                flow_restart(f)
        if self.look == L_ALL:
            if f != NULL:
                flows_leave(&self.flows, f)
            self._tell(s, f, s.key)
        elif s.retrans > (f.retrans if f != NULL else 0):
            if f == NULL:
                f = flows_add(&self.flows, s.key, s.cookie)
                if f == NULL:
                    self.n.unfollowed += 1
                    return
                f.round = self.round
            if f.queue != Q_DUE and f.queue != Q_LATE:
                self._ours(f)
                f.flags |= POLLED
                self._again(f)
        elif self.all and (f == NULL or s.sent > f.sent):
            if f == NULL:
                f = flows_add(&self.flows, s.key, s.cookie)
                if f == NULL:
                    self.n.unfollowed += 1
                    return
                f.round = self.round
            self._tell(s, f, s.key)

    cdef void _dump_over(self) noexcept nogil:
        """Who was there and is not in two dumps is closed; if its end may have been lost, that is all we hear of it."""
        cdef uint32_t i
        cdef Flow* f
        cdef Delta nothing
        self.dumping = 0
        if self.look == L_BEGIN or not self.drained:
            return
        memset(&nothing, 0, sizeof(Delta))
        for i in range(self.flows.used):
            f = &self.flows.flow[i]
            if not f.cookie or f.round + 2 > self.round or f.queue != Q_NONE or f.flags & ENDING:
                continue
            if f.flags & REPORTED and (self.doubt or self.ends < 0):
                if self.row + self.samples >= ROWS:
                    return              # the next dump reports the others
                self._write(GONE, f, NULL, &nothing)
                self.n.gone += 1
            flows_join(&self.flows, f, Q_AWAY)
        if self.doubt:
            self.doubt -= 1

    # -- what was traced

    cdef void _traced(self) noexcept nogil:
        cdef int i, _page
        cdef Py_ssize_t got
        cdef TracePage page
        cdef const uint8_t* event
        cdef size_t size
        cdef uint64_t key[5]
        cdef uint64_t sk
        for i in range(self.traces):
            for _page in range(PAGES):
                got = read(self.trace[i], self.buffer, self.page)
                if got <= 0 or not page_begin(&page, self.buffer, <size_t>got, self.header):
                    break
                while True:
                    event = page_next(&page, &size)
                    if event == NULL:
                        break
                    if (self.formats and trace_event(&self.format[0], event, size, key, &sk)
                            or self.formats > 1 and trace_event(&self.format[1], event, size, key, &sk)):
                        self._event(key, sk, <int64_t>page.time + self.now - self.mono)
            else:
                self.more = True

    cdef void _event(self, const uint64_t* key, uint64_t sk, int64_t time) noexcept nogil:
        cdef Flow* f = flows_traced(&self.flows, key, sk)
        self.n.events += 1
        if f == NULL:
            f = flows_add(&self.flows, key, 0)
            if f == NULL:
                self.n.excess += 1
                return
        f.events += 1
        f.last, f.sk = time, sk if sk else f.sk
        if f.queue == Q_FOREIGN:
            if self.mono - f.first < self.foreign:
                self.n.foreign += 1
                return
            self.n.foreign -= f.events - 1
        if f.queue != Q_DUE and f.queue != Q_LATE:
            f.flags &= ~(POLLED | LATE)
            self._again(f)

    # -- rows

    cdef void _ours(self, Flow* f) noexcept nogil:
        if f.queue == Q_FOREIGN:
            self.n.foreign -= f.events
            flows_leave(&self.flows, f)

    cdef Flow* _find(self, const Sample* s) noexcept nogil:
        return flows_called(&self.flows, s.cookie) if s.alone else flows_find(&self.flows, s.key, s.cookie)

    cdef void _adopt(self, Flow* f, Sample* s) noexcept nogil:
        self._ours(f)
        flows_call(&self.flows, f, s.cookie)
        f.uid = s.uid
        if self.full_at_begin:
            f.flags |= EARLIER

    cdef void _tell_samples(self) noexcept nogil:
        cdef uint32_t i
        cdef Sample* s
        cdef Flow* f
        for i in range(self.samples):
            s = &self.sample[i]
            f = self._find(s)
            if s.kind == END and s.alone:
                if f != NULL:
                    self._aborted(s, f)
                continue
            if s.kind != END:
                if f == NULL:           # another socket has taken its place
                    f = flows_add(&self.flows, s.key, s.cookie)
                    if f == NULL:
                        self.n.unfollowed += 1
                        continue
                if not f.cookie:
                    self._adopt(f, s)
                f.round = self.round
                # A DSACK takes a round trip: one more wait, when that is longer than ours was.
                if not f.flags & LATE and 2000 * <int64_t>s.rtt > self.settle:
                    f.flags |= LATE
                    f.first = self.mono + min(2000 * <int64_t>s.rtt, <int64_t>2000000000) - self.settle
                    flows_join(&self.flows, f, Q_LATE)
                    continue
            self._tell(s, f, s.key)

    cdef void _aborted(self, Sample* s, Flow* f) noexcept nogil:
        """It ended without counters: report what was traced."""
        cdef Delta d
        memset(&d, 0, sizeof(Delta))
        d.sent = d.lost = d.retrans = d.events = f.events
        if f.flags & REPORTED or f.events:
            self._write(END, f, NULL, &d)
        flows_drop(&self.flows, f)

    cdef void _tell(self, Sample* s, Flow* f, const uint64_t* key) noexcept nogil:
        """Write a row if something is new, or if the socket has ended and has records."""
        cdef Flow none
        cdef Delta d
        cdef uint32_t total, reported
        cdef bint due
        if f == NULL:
            memset(&none, 0, sizeof(Flow))
            memcpy(none.key, key, 40)
            none.cookie, none.uid = s.cookie, s.uid
            if self.full_at_begin:
                none.flags = EARLIER
            f = &none
        elif not f.cookie:
            self._adopt(f, s)
        if s.retrans < f.retrans or s.sent < f.sent:
            flow_restart(f)
        reported, total = f.lost, sample_lost(s)
        retx_delta(&d, f, s)
        due = f.flags & REPORTED and s.kind == END
        if self.all:
            due = due or s.kind == END or d.sent or f == &none
        if d.retrans or d.lost or due:
            self._write(s.kind, f, s, &d)
            flow_forward(f, s)
            f.events -= d.events
            f.told_events += d.events
            f.flags |= REPORTED
        if s.kind == END:
            if reported > total:
                self.n.late_dsack += reported - total
            if f != &none:
                flows_drop(&self.flows, f)

    cdef void _write(self, int kind, const Flow* f, const Sample* s, const Delta* d) noexcept nogil:
        if self.row < ROWS:
            retx_row(self.block.out, self.row, kind, self.now, f, s, d)
            self.row += 1
            self.n.traced += d.events
            self.n.retrans += d.retrans
            self.n.lost += d.lost


cdef int _format(TraceFormat* f, numbers) except -1:
    f.id, f.sport, f.dport, f.family, f.saddr, f.daddr, f.saddr6, f.daddr6, f.err, f.size, f.sk = numbers
    if (f.size > 4096 or f.sport + 2 > f.size or f.dport + 2 > f.size or f.family + 2 > f.size
            or f.saddr + 4 > f.size or f.daddr + 4 > f.size or f.saddr6 + 16 > f.size or f.daddr6 + 16 > f.size
            or f.err and f.err + 4 > f.size or f.sk and f.sk + 8 > f.size):
        raise ValueError("the format of the event")
    return 0
