"""Capture files: pcap and pcapng of either byte order, whole in memory or in pieces as they arrive."""

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport realloc, free
from libc.string cimport memcpy, memmove, memset
from c_pcap cimport (Reader, Frame, Interface, capture_next, FRAME, MORE, GROW, END, MAX_INTERFACES,
                     KIND_NONE, KIND_PCAP, KIND_PCAPNG,
                     FAULT_NONE, FAULT_MAGIC, FAULT_CUT, FAULT_HUGE, FAULT_BLOCK, FAULT_SECTION)
cimport cython

KINDS = {KIND_NONE: "", KIND_PCAP: "pcap", KIND_PCAPNG: "pcapng"}
FAULTS = {
    FAULT_NONE: "",
    FAULT_MAGIC: "not a pcap or pcapng capture",
    FAULT_CUT: "the last record is cut off",
    FAULT_HUGE: "a record claims an impossible length",
    FAULT_BLOCK: "a block contradicts its own length",
    FAULT_SECTION: "a section has no byte-order mark",
}


@cython.final
cdef class Capture:
    """Reads one capture.

    Give it all bytes at once (``Capture(data)``, which may be an mmap) or piece by piece: ``Capture()``, then `feed`.
    Frames come out through `frames_of`, or in rows through `packet.Packets`.
    A damaged capture yields what can be read; `fault` says why it ended.
    """

    def __cinit__(self, data=None, *, uint32_t first_iface=0, uint64_t base=0):
        memset(&self.c, 0, sizeof(Reader))
        if first_iface > MAX_INTERFACES:
            raise ValueError(f"interface {first_iface}")
        self.c.interfaces = self.c.first = first_iface
        self.c.base = base
        if first_iface and self._grow() != FRAME:
            raise MemoryError
        if data is not None:
            self.feed(data, True)

    def __dealloc__(self):
        free(self.c.iface)
        free(self.carry)

    def feed(self, const uint8_t[::1] data not None, bint last=False):
        """The next bytes of the capture, to be left unchanged until they are read.  ``last``: there are no more.

        Ignored behind something that cannot be read.
        Only when the reader asked for more; ValueError otherwise.
        """
        cdef size_t left = self.c.size - self.c.at
        cdef const uint8_t* bytes = &data[0] if data.shape[0] else NULL
        if self.c.stopped:
            return
        if self.pending or self.last:
            raise ValueError("feed: the bytes before these are not all read")
        if left:                            # a record that goes on in the new bytes
            if self._reserve_carry(left) < 0:
                raise MemoryError
            memmove(self.carry, self.c.data + self.c.at, left)
            self.c.base += self.c.at
            self.c.data, self.c.size, self.c.at = self.carry, left, 0
            self.chunk, self.chunk_size, self.chunk_at = bytes, data.shape[0], 0
            self.pending = True
        else:
            self.c.base += self.c.size
            self.c.data, self.c.size, self.c.at = bytes, data.shape[0], 0
            self.c.final = last
        self.buffer, self.last = data, last

    cdef int _reserve_carry(self, size_t size) noexcept nogil:
        cdef uint8_t* p
        cdef size_t room = self.carry_room or 4096
        if size <= self.carry_room:
            return 0
        while room < size:
            room *= 2
        p = <uint8_t*>realloc(self.carry, room)
        if p == NULL:
            return -1
        if self.c.data == self.carry:
            self.c.data = p
        self.carry, self.carry_room = p, room
        return 0

    cdef int _more(self) noexcept nogil:
        """The reader wants bytes: FRAME when it got some, MORE when the caller must bring them, END without memory."""
        cdef size_t want, left
        if not self.pending:
            return MORE
        if self.c.at == self.c.size:        # the carried record is done: go on in the chunk
            self.c.base += self.c.size
            self.c.data, self.c.size, self.c.at = self.chunk + self.chunk_at, self.chunk_size - self.chunk_at, 0
            self.c.final, self.pending = self.last, False
            return FRAME
        want = self.c.at + self.c.need - self.c.size
        left = self.chunk_size - self.chunk_at
        if left == 0:
            self.c.final, self.pending = self.last, False
            return FRAME if self.last else MORE
        if want > left:
            want = left
        if self._reserve_carry(self.c.size + want) < 0:
            return END
        memcpy(self.carry + self.c.size, self.chunk + self.chunk_at, want)
        self.c.size += want
        self.chunk_at += want
        return FRAME

    cdef int _grow(self) noexcept nogil:
        cdef uint32_t room = self.c.room * 2 if self.c.room else 16
        cdef Interface* p
        while room <= self.c.interfaces:
            room *= 2
        p = <Interface*>realloc(self.c.iface, room * sizeof(Interface))
        if p == NULL:
            return END
        memset(p + self.c.room, 0, (room - self.c.room) * sizeof(Interface))
        self.c.iface, self.c.room = p, room
        return FRAME

    cdef int next(self, Frame* f) noexcept nogil:
        """FRAME, MORE (feed it) or END."""
        cdef int status
        while True:
            status = capture_next(&self.c, f)
            if status == FRAME:
                self.frames += 1
                return FRAME
            if status == GROW:
                status = self._grow()
            elif status == MORE:
                status = self._more()
            if status != FRAME:
                return status

    def frames_of(self):
        """Iterate (ts, interface, link type, length on the wire, offset, bytes) until more must be fed or the end."""
        cdef Frame f
        cdef int status
        while True:
            with nogil:
                status = self.next(&f)
            if status != FRAME:
                self.release()
                return
            yield f.ts, f.iface, f.link, f.len, f.offset, f.data[:f.cap]

    cpdef release(self):
        """Let go of the bytes, once all are read that can be."""
        if self.c.stopped or (self.last and not self.pending and self.c.at == self.c.size):
            self.c.base += self.c.at
            self.pending = False
            self.c.data, self.c.size, self.c.at = NULL, 0, 0
            self.buffer = None

    @property
    def kind(self):
        """'pcap', 'pcapng', or '' before the first bytes."""
        return KINDS[self.c.kind]

    @property
    def at(self):
        """Offset in the capture of the next record."""
        return self.c.base + self.c.at

    @property
    def fault(self):
        """Why reading ended early, '' when nothing is wrong."""
        return FAULTS[self.c.fault]

    @property
    def interfaces(self):
        """Interfaces described so far, those before `first_iface` included."""
        return self.c.interfaces if self.c.kind == KIND_PCAPNG else self.c.interfaces + (self.c.kind == KIND_PCAP)

    @property
    def counts(self):
        """Records with more captured bytes than wire bytes; left out as impossible; with a time that was mended."""
        return self.c.long_caps, self.c.bad, self.c.fixed
