"""The control page of a MultiLog: the owner and the published rows of each lane, and freezes.

Raises ValueError (not a control page, or damaged) and OSError; the package multilog turns them into messages.
"""

from libc.stdint cimport uint8_t, uint32_t, uint64_t, int64_t
from libc.stdlib cimport malloc, free
from libc.string cimport memcpy, memcmp, memset
from posix.fcntl cimport O_RDWR
from libc.errno cimport errno
from posix.mman cimport mmap, munmap, msync, MAP_SHARED, MAP_FAILED, MS_SYNC, PROT_READ, PROT_WRITE
from posix.stat cimport fstat, struct_stat
from posix.unistd cimport close
from c_atomic cimport (boot_now, pause, load_acquire, load_relaxed, store_release, store_relaxed, load_acquire32,
                       swap32, swap, fence, tail_rows, tail_freezes, tail_broken, tail_freeze, tail_show, tail_thaw,
                       MAX_FREEZE_NS)
from c_crc cimport crc32c
from c_fault cimport fault_point
from c_layout cimport (ControlPage, Line, CONTROL_MAGIC, CONTROL_CHECKED, CONTROL_CRC, CONTROL_CLAIMED, PAGE,
                       FORMAT_VERSION, PACKED_VERSION, ENDIAN_MARK, LINE_BYTES, MAX_LANES, MAX_SEGMENT_BLOCKS,
                       SYNC_BATCH)
from c_block cimport BLOCK_ROWS
from c_log_file cimport AT_FDCWD, open_log_file_at
from confluo_tools.core.base.log_file import open_log_file
import os
import time

MAX_SCHEMA_BYTES = 4 << 20
_FREEZE_FOR_CUT_NS = 1_000_000_000


def fault(str name not None):
    """A fault point in Python code; see c_fault.pxd."""
    cdef bytes text = name.encode()
    fault_point(text)


def crc(const uint8_t[::1] data not None):
    """CRC32C of ``data``."""
    return crc32c(&data[0], data.shape[0]) if data.shape[0] else 0


def page(bytes uuid not None, *, uint32_t segment_blocks, uint32_t lanes, uint32_t sync, uint32_t message_bytes,
         bytes schema not None, int64_t created, uint64_t schema_offset=0, uint32_t version=FORMAT_VERSION):
    """The bytes of a new control file: control page, empty lane lines, schema message.

    With ``schema_offset``: only the checksummed part of a page with its schema message at that offset.
    """
    cdef ControlPage p
    cdef bytearray out = bytearray(PAGE + lanes * LINE_BYTES)
    cdef uint8_t[::1] view = out
    cdef uint32_t check
    if len(uuid) != 16 or not 1 <= lanes <= MAX_LANES or not 1 <= segment_blocks <= MAX_SEGMENT_BLOCKS:
        raise ValueError(f"{lanes} lanes, segments of {segment_blocks} blocks")
    memset(&p, 0, sizeof(p))
    memcpy(p.magic, CONTROL_MAGIC, 8)
    memcpy(p.uuid, <const char*>uuid, 16)
    p.version, p.endian, p.block_rows, p.segment_blocks = version, ENDIAN_MARK, BLOCK_ROWS, segment_blocks
    p.lanes, p.line_bytes, p.lanes_offset = lanes, LINE_BYTES, PAGE
    p.schema_offset = schema_offset or <uint64_t>len(out)
    p.schema_bytes, p.schema_crc, p.sync = len(schema), crc(schema), sync
    p.message_bytes, p.created = message_bytes, created
    memcpy(&view[0], &p, sizeof(p))
    check = crc32c(&view[0], CONTROL_CRC)
    memcpy(&view[CONTROL_CRC], &check, 4)
    return bytes(out) + schema if schema_offset == 0 else bytes(out[:CONTROL_CHECKED])


cdef void _collect(const Line* line, uint64_t* seen, int n) noexcept nogil:
    cdef int i
    for i in range(n):
        seen[i] = tail_rows(load_acquire(&line[i].tail))


cdef bint _unmoved(const Line* line, const uint64_t* seen, int n) noexcept nogil:
    cdef int i
    for i in range(n):
        if tail_rows(load_acquire(&line[i].tail)) != seen[i]:
            return False
    return True


cdef class Control:
    """The mapped control page at ``path``; ``writable`` is False if it could only be opened for reading.

    Raises ValueError with the problem of the page, OSError when it cannot be opened.
    """

    def __cinit__(self, path, bint readonly=False):
        cdef struct_stat st
        cdef bytes name = os.fsencode(path)
        self.path, self.fd, self.map = path, -1, NULL
        self.writable = not readonly
        if self.writable:
            self.fd = open_log_file_at(AT_FDCWD, name, O_RDWR, 0)
        if self.fd < 0:
            self.writable = False
            self.fd = open_log_file(path)
        if fstat(self.fd, &st):
            raise OSError("fstat")
        if st.st_size < PAGE:
            raise ValueError(f"its control page has {st.st_size} bytes of {PAGE}")
        self.size = st.st_size
        cdef void* memory = mmap(NULL, self.size, PROT_READ | PROT_WRITE if self.writable else PROT_READ,
                                 MAP_SHARED, self.fd, 0)
        if memory == MAP_FAILED:
            raise OSError("mmap")
        self.map = <uint8_t*>memory
        for attempt in range(4):
            try:
                self._check()
                break
            except ValueError as e:                 # columns may be being added to the log right now
                if attempt == 3 or "(checksum)" not in str(e):
                    raise
                time.sleep(0.001)

    cdef int _check(self) except -1:
        cdef ControlPage p
        cdef uint32_t check
        memcpy(&p, self.map, sizeof(p))
        memcpy(&check, self.map + CONTROL_CRC, 4)
        if memcmp(p.magic, CONTROL_MAGIC, 8):
            raise ValueError("it has no control page of a MultiLog")
        if p.endian != ENDIAN_MARK:
            raise ValueError("it was written on a machine of the other byte order")
        if not FORMAT_VERSION <= p.version <= PACKED_VERSION:
            what = f"this program reads versions {FORMAT_VERSION} and {PACKED_VERSION}"
            raise ValueError(f"it has format version {p.version}; {what}")
        if check != crc32c(self.map, CONTROL_CRC):
            raise ValueError("its control page is damaged (checksum)")
        if (p.block_rows != BLOCK_ROWS or not 1 <= p.segment_blocks <= MAX_SEGMENT_BLOCKS
                or not 1 <= p.lanes <= MAX_LANES or p.line_bytes != LINE_BYTES or p.lanes_offset != PAGE
                or p.message_bytes % 64 or p.message_bytes > MAX_SCHEMA_BYTES or p.sync > SYNC_BATCH):
            raise ValueError(f"its control page is invalid ({p.lanes} lanes, {p.segment_blocks} blocks a segment)")
        if (p.schema_offset < PAGE + <uint64_t>p.lanes * LINE_BYTES or p.schema_bytes > MAX_SCHEMA_BYTES
                or p.schema_offset > self.size or p.schema_bytes > self.size - p.schema_offset):
            raise ValueError(f"its control page is cut short ({self.size} bytes for {p.lanes} lanes and the schema)")
        if crc32c(self.map + p.schema_offset, p.schema_bytes) != p.schema_crc:
            raise ValueError("the schema in its control page is damaged (checksum)")
        self.page = <const ControlPage*>self.map
        self.line = <Line*>(self.map + PAGE)
        self.lanes = p.lanes
        self.schema = self.map[p.schema_offset:p.schema_offset + p.schema_bytes]
        return 0

    def __dealloc__(self):
        if self.map != NULL:
            munmap(self.map, self.size)
        if self.fd >= 0:
            close(self.fd)

    @property
    def uuid(self):
        return <bytes>self.page.uuid[:16]

    @property
    def version(self):
        """1, or 2 for a log that may have compressed segments."""
        return self.page.version

    @property
    def schema_offset(self):
        """Where the schema message is in the file."""
        return self.page.schema_offset

    @property
    def segment_blocks(self):
        return self.page.segment_blocks

    @property
    def message_bytes(self):
        return self.page.message_bytes

    @property
    def sync(self):
        return self.page.sync

    @property
    def created(self):
        return self.page.created

    @property
    def claimed(self):
        """Lanes 0 .. claimed-1 have been claimed at some time; other lanes have no rows."""
        return self.claimed_lanes()

    cdef int claimed_lanes(self) noexcept nogil:
        cdef uint32_t n = load_acquire32(<const uint32_t*>(self.map + CONTROL_CLAIMED))
        return <int>n if n <= <uint32_t>self.lanes else self.lanes

    def _line(self, int lane):
        if not 0 <= lane < self.lanes:
            raise IndexError(lane)
        return lane

    def lane(self, int lane):
        """The line of ``lane`` as a dict: rows, freezes, broken, sealed, first, epoch, pid, ..."""
        cdef Line* line = &self.line[self._line(lane)]
        cdef uint64_t word = load_acquire(&line.tail)
        return {
            "rows": tail_rows(word), "freezes": tail_freezes(word), "broken": tail_broken(word),
            "deadline": line.deadline, "sealed": load_acquire(&line.sealed), "first": load_acquire(&line.first),
            "epoch": load_acquire(&line.epoch), "started": line.started, "boot": line.boot, "pid": line.pid,
            "seals": line.seals,
        }

    def rows(self, int lane):
        """Rows published in ``lane``."""
        return tail_rows(load_acquire(&self.line[self._line(lane)].tail))

    def epoch(self, int lane):
        """Number of claims of ``lane``.  While it does not change, only one writer adds segments to the folder."""
        return load_acquire(&self.line[self._line(lane)].epoch)

    def sealed(self, int lane):
        """Rows of ``lane`` below this are in sealed segments."""
        return load_acquire(&self.line[self._line(lane)].sealed)

    def set_sealed(self, int lane, uint64_t rows, uint32_t seals):
        """Called by the owner of the lane: rows below ``rows`` are sealed, in ``seals`` more segments."""
        cdef Line* line = &self.line[self._line(lane)]
        self._need_write()
        line.seals += seals
        store_release(&line.sealed, rows)

    def first(self, int lane):
        """Rows of ``lane`` below this are removed by retention; their files may still exist."""
        return load_acquire(&self.line[self._line(lane)].first)

    def set_first(self, int lane, uint64_t rows):
        """Called by retention: rows below ``rows`` are removed.  Never decreases, and never exceeds the sealed rows."""
        cdef Line* line = &self.line[self._line(lane)]
        cdef uint64_t old = load_acquire(&line.first)
        self._need_write()
        if rows > load_acquire(&line.sealed):
            raise ValueError(f"row {rows} of lane {lane} is not sealed")
        while old < rows and not swap(&line.first, &old, rows):
            pass

    def claim(self, int lane, uint32_t pid, uint64_t started, uint64_t boot):
        """Write the owner into the line of ``lane``.  The caller holds the lock of the lane."""
        cdef Line* line = &self.line[self._line(lane)]
        cdef uint32_t* claimed = <uint32_t*>(self.map + CONTROL_CLAIMED)
        cdef uint32_t seen
        self._need_write()
        line.pid = pid
        store_relaxed(&line.started, started)
        store_relaxed(&line.boot, boot)
        fault_point("claim-line")
        store_release(&line.epoch, load_relaxed(&line.epoch) + 1)
        seen = load_acquire32(claimed)
        while seen <= <uint32_t>lane:
            if swap32(claimed, &seen, lane + 1):
                break
        fault_point("claim-count")

    def raise_tail(self, int lane, uint64_t rows):
        """Publish ``rows`` rows that a valid seal proves: after a power failure the line may be older."""
        cdef Line* line = &self.line[self._line(lane)]
        self._need_write()
        return tail_show(&line.tail, &line.deadline, rows)

    def flush(self):
        """Sync the lines to disk."""
        cdef int failed
        with nogil:
            failed = msync(self.map, self.size, MS_SYNC)
        if failed:
            raise OSError(errno, os.strerror(errno), self.path)

    def release(self, int lane):
        """The owner of ``lane`` has closed it."""
        self._need_write()
        self.line[self._line(lane)].pid = 0

    def _need_write(self):
        if not self.writable:
            raise PermissionError(13, os.strerror(13), self.path)

    def firsts(self, int lanes):
        """`first` of lanes 0 to ``lanes`` - 1."""
        return tuple([load_acquire(&self.line[i].first) for i in range(min(lanes, self.lanes))])

    def tails(self):
        """Rows published in each claimed lane, read one after the other: not an atomic cut (see `cut`)."""
        cdef int i, n = self.claimed_lanes()
        return tuple([tail_rows(load_acquire(&self.line[i].tail)) for i in range(n)])

    def cut(self):
        """Rows published in each claimed lane at one instant, and whether a freeze was needed for it.

        Two equal collects of all tails prove such an instant.  If they differ, the lanes are frozen, which delays
        publishing (but not filling) by about a microsecond.  Without write permission, collects are repeated until
        two are equal.
        """
        cdef int n, again, i
        cdef uint64_t* seen
        cdef bint same = False
        cdef int tries = 0, limit = 4 if self.writable else 1 << 20
        seen = <uint64_t*>malloc(self.lanes * sizeof(uint64_t))
        if seen == NULL:
            raise MemoryError
        try:
            with nogil:
                n = self.claimed_lanes()
                _collect(self.line, seen, n)
                while tries < limit:
                    same = _unmoved(self.line, seen, n)
                    again = self.claimed_lanes()
                    if same and again == n:
                        break
                    same, n = False, again
                    _collect(self.line, seen, n)
                    tries += 1
                    pause()
            if same:
                return tuple([seen[i] for i in range(n)]), False
        finally:
            free(seen)
        if not self.writable:
            raise TimeoutError("the writers never paused; with write permission the log could be frozen")
        while True:
            token = self.freeze(_FREEZE_FOR_CUT_NS)
            tails = self.tails()[:len(token[0])]
            if self.thaw(token):
                return tails, True

    def freeze(self, uint64_t timeout_ns=1_000_000_000):
        """Stop publishing in all lanes until `thaw`, for at most ``timeout_ns`` (and never above 60 s).

        Returns a token for `thaw`.  Freezes of several coordinators overlap; writers continue to fill rows.
        Raises OverflowError when 255 freezes are in force.
        """
        cdef uint64_t deadline, before = 0, old
        cdef int i, n = 0
        cdef Line* line
        self._need_write()
        deadline = boot_now() + min(timeout_ns, MAX_FREEZE_NS)
        cdef list taken = []
        while n < self.claimed_lanes():         # also freeze lanes claimed in the meantime
            for i in range(n, self.claimed_lanes()):
                line = &self.line[i]
                old = load_acquire(&line.deadline)
                while (old < deadline or old > deadline + MAX_FREEZE_NS) and not swap(
                        &line.deadline, &old, deadline):
                    pass
                if not tail_freeze(&line.tail, &before):
                    self.thaw((taken, deadline))
                    raise OverflowError(f"255 freezes are in force in lane {i}")
                taken.append((tail_broken(before), old if tail_freezes(before) else 0))
                n = i + 1
        fence()
        return taken, deadline

    def thaw(self, token not None):
        """End the freeze of ``token``.  False if it was broken before: the cut is then not atomic."""
        cdef uint64_t mine
        cdef Line* line
        cdef bint held = True
        cdef int i
        taken, deadline = token
        for i, (broken, old) in enumerate(taken):
            line = &self.line[self._line(i)]
            held &= tail_thaw(&line.tail, broken)
            if old:                             # keep the deadline of a freeze left by a dead coordinator
                mine = deadline
                swap(&line.deadline, &mine, old)
        return held and boot_now() < <uint64_t>deadline
