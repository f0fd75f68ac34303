"""Capture files: pcap and pcapng of either byte order, whole in memory or in pieces as they arrive."""

from libc.stdint cimport uint8_t, uint32_t
from c_pcap_pieces cimport feed_start, feed_end, feed_hungry, feed_give, feed_next
from c_pcap cimport (Frame, FRAME, MAX_INTERFACES, KIND_NONE, KIND_PCAP, KIND_PCAPNG,
                     FAULT_NONE, FAULT_MAGIC, FAULT_CUT, FAULT_HUGE, FAULT_BLOCK, FAULT_SECTION,
                     FAULT_VERSION, FAULT_RESERVED)
cimport cython

KINDS = {KIND_NONE: "", KIND_PCAP: "pcap", KIND_PCAPNG: "pcapng"}
FAULTS = {
    FAULT_NONE: "",
    FAULT_MAGIC: "not a pcap or pcapng capture",
    FAULT_CUT: "the last record is cut off",
    FAULT_HUGE: "a record claims an impossible length",
    FAULT_BLOCK: "a block contradicts its own length",
    FAULT_SECTION: "a section has no byte-order mark",
    FAULT_VERSION: "its version of the format is not known (pcap 2.0 to 2.4 and 543.0, pcapng 1.0 and 1.2 are)",
    FAULT_RESERVED: "reserved bits of its link type are set",
}


@cython.final
cdef class Capture:
    """Reads one capture.

    Give it all bytes at once (``Capture(data)``, which may be an mmap) or piece by piece: ``Capture()``, then `feed`.
    Read frames with `frames_of`, or rows with `packet.Packets`.
    ``first_iface``: number of its first interface.  ``number``: of the capture, for the field file_number.
    A damaged capture yields all readable frames; `fault` is the reason it ended.
    """

    def __cinit__(self, data=None, *, uint32_t first_iface=0, uint32_t number=0):
        if first_iface > MAX_INTERFACES:
            raise ValueError(f"interface {first_iface}")
        feed_start(&self.f, first_iface, number)
        if data is not None:
            self.feed(data, True)

    def __dealloc__(self):
        feed_end(&self.f)

    def feed(self, const uint8_t[::1] data not None, bint last=False):
        """Feed the next bytes of the capture; do not change them until they are read.  ``last``: end of the capture.

        Ignored after unreadable bytes.  Raises ValueError when earlier bytes are still unread.
        """
        if not feed_hungry(&self.f) and not self.f.c.stopped:
            raise ValueError("feed: the bytes before these are not all read")
        if feed_give(&self.f, &data[0] if data.shape[0] else NULL, data.shape[0], last) != FRAME:
            raise MemoryError
        self.piece = data

    cdef int next(self, Frame* frame) noexcept nogil:
        """FRAME, MORE (feed it) or END."""
        cdef int status = feed_next(&self.f, frame)
        self.frames += status == FRAME
        return status

    def frames_of(self):
        """Iterate (ts, interface, link type, length on the wire, offset, bytes) over the bytes fed so far."""
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
        """Release the bytes when all readable ones are read."""
        if self.f.c.stopped or (self.f.last and not self.f.pending and self.f.c.at == self.f.c.size):
            self.f.c.base += self.f.c.at
            self.f.c.data, self.f.c.size, self.f.c.at, self.f.pending = NULL, 0, 0, False
            self.piece = None

    @property
    def kind(self):
        """'pcap', 'pcapng', or '' before the first bytes."""
        return KINDS[self.f.c.kind]

    @property
    def at(self):
        """Offset in the capture of the next record."""
        return self.f.c.base + self.f.c.at

    @property
    def fault(self):
        """Why reading ended early; '' without a fault."""
        return FAULTS[self.f.c.fault]

    @property
    def interfaces(self):
        """Interfaces described so far, those before `first_iface` included."""
        return self.f.c.interfaces + (self.f.c.kind == KIND_PCAP)

    @property
    def counts(self):
        """(records with more captured than wire bytes, invalid records skipped, records with a corrected time)."""
        return self.f.c.long_caps, self.f.c.bad, self.f.c.fixed
