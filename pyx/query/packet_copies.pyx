"""Which packets of a sequence are copies of a packet shortly before."""

import os
from libc.stdint cimport int64_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy
from c_block cimport BYTES, I64, U64, Column
from c_hash_table cimport (
    NOT_FOUND, HashTable, hash2, mum, slots_clear, table_free, table_insert2, table_memory, table_reserve)
from c_source cimport load_value
from confluo_tools.core.block.block cimport Block, Layout, Picks
cimport cython

cdef enum:
    MAX_COLUMNS = 40
    TCP = 6
    DONT_FRAGMENT = 2
    UNCLEAR_NOTES = 1 | 2 | 4 | 16      # truncated, malformed, fragment, options
    UNCLEAR_OPTIONS = 8 | 32 | 64 | 128     # of TCP, options with contents that no field has

cdef extern from *:
    """
    #define CFL_ODD_1 0xE7037ED1A0B428DBull
    #define CFL_ODD_2 0x8EBC6AF09C88C6E3ull
    """
    const uint64_t ODD_1 "CFL_ODD_1"
    const uint64_t ODD_2 "CFL_ODD_2"

# The fields that tell packets apart without a digest: of the IP header and above, without TTL.
COMPARED = (
    "payload_len", "ip_version", "proto", "src_ip", "dst_ip", "src_port", "dst_port", "ip_len", "dscp", "ecn", "ip_id",
    "ip_flags", "frag_offset", "tcp_seq", "tcp_ack", "tcp_flags", "tcp_window", "tcp_opts", "tcp_mss", "tcp_wscale",
    "tcp_tsval", "tcp_tsecr", "icmp_type", "icmp_code", "tunnel", "vni", "src_ip6", "dst_ip6")
TESTED = ("proto", "ip_version", "ip_id", "ip_flags", "tcp_opts", "notes")    # in the order of T_*

cdef enum:
    T_PROTO
    T_VERSION
    T_IP_ID
    T_IP_FLAGS
    T_TCP_OPTS
    T_NOTES
    TESTS

cdef struct Seen:                       # packets of one span of time, by a key of two words
    HashTable table
    int64_t* last                       # of each key: the time of the last packet with it
    uint32_t room                       # of `last`


@cython.final
cdef class PacketCopies:
    """Finds rows equal to a row at most ``window`` ns before; rows are added in the order of time.

    Rows of ``layout`` are compared by packet_digest.  Rows without a
    digest are compared by the columns COMPARED, if these are there and tell packets apart: of TCP, and of IPv4 with
    an IP ID.  Others are kept, and counted (``unclear``).  ``copies`` counts the rows that were left out.
    The keys of a window are remembered in two tables: of the last packets, and of those before.  When the first is
    older than the window, the second is dropped and they change places.  ``most``: bytes that both may use.
    Raises ValueError if the layout has no column ts, or neither a digest nor the columns COMPARED.
    """

    cdef readonly Layout layout
    cdef readonly int64_t window
    cdef readonly uint64_t copies, unclear, most
    cdef readonly tuple needs           # names of the columns that are read
    cdef int ts, digest
    cdef bint by_columns
    cdef int[MAX_COLUMNS] compared
    cdef int n_compared
    cdef int[TESTS] tested
    cdef Seen new, old
    cdef int64_t since                  # time of the first row in `new`
    cdef Picks kept

    def __cinit__(self, Layout layout not None, int64_t window, uint64_t most):
        if window < 0:
            raise ValueError(f"a window of {window} ns")
        self.layout, self.window, self.most = layout, window, most
        self.ts, self.digest = layout.get("ts"), layout.get("packet_digest")
        if self.digest >= 0 and (layout.column[self.digest].code != U64 or layout.column[self.digest].count != 1):
            self.digest = -1
        self.by_columns = all([self.is_value(layout.get(name)) for name in (*COMPARED, *TESTED)])
        if self.ts < 0 or layout.column[self.ts].code != I64 or self.digest < 0 and not self.by_columns:
            raise ValueError("no columns that tell packets apart")
        if self.by_columns:
            self.n_compared = len(COMPARED)
            for i, name in enumerate(COMPARED):
                self.compared[i] = layout.get(name)
            for i, name in enumerate(TESTED):
                self.tested[i] = layout.get(name)
        self.needs = ("ts", *(("packet_digest",) if self.digest >= 0 else ()),
                      *((*COMPARED, "notes") if self.by_columns else ()))
        seed = os.urandom(16)
        for i in range(2):
            self.new.table.seed[i] = self.old.table.seed[i] = int.from_bytes(seed[8 * i:8 * i + 8], "little") | 1
        self.new.table.words = self.old.table.words = 2
        self.since = -(<int64_t>1 << 62)
        self.kept = Picks()

    cdef bint is_value(self, int column):
        """Whether this is the number of a column of integers or of 16 bytes."""
        cdef Column* c
        if column < 0:
            return False
        c = &self.layout.column[column]
        return c.count == 1 and (c.code <= I64 or c.code == BYTES and c.width == 16)

    def __dealloc__(self):
        table_free(&self.new.table)
        table_free(&self.old.table)
        free(self.new.last)
        free(self.old.last)

    def kept_of(self, Block block not None, Picks picks=None):
        """The rows of these that are not copies; valid until the next call.

        Raises ValueError: the block has another layout.  MemoryError: no memory.  OverflowError: the packets of a
        window need more than ``most`` bytes.
        """
        cdef uint32_t n = 0
        cdef int status
        cdef const uint16_t* rows
        if block.layout is not self.layout:
            block = block.project(self.layout)
        if picks is None:
            self.kept.set_all(block.rows)
            picks = self.kept           # the rows that stay are written over those that were read
        elif picks.rows > block.rows:
            raise ValueError("the picks are of another block")
        rows = picks.as_list()
        with nogil:
            status = self.keep(block, rows, picks.n, &n)
        if status == 2:
            raise OverflowError(f"more than {self.most} bytes")
        if status:
            raise MemoryError
        self.kept.set_list(block.rows, n)
        return self.kept

    @property
    def memory(self):
        """Bytes of both tables."""
        return self.used()

    cdef uint64_t used(self) noexcept nogil:
        return (table_memory(&self.new.table) + table_memory(&self.old.table)
                + (<uint64_t>self.new.table.room + self.old.table.room) * 8)

    cdef int keep(self, Block block, const uint16_t* rows, uint32_t n, uint32_t* kept) noexcept nogil:
        """0; 2: too much memory is needed; -1: there is none."""
        cdef uint64_t[2] key
        cdef const int64_t* times = <const int64_t*>block.col[self.ts]
        cdef uint32_t i
        cdef uint16_t row
        cdef int status
        for i in range(n):
            row = rows[i]
            if not self.key_of(block, row, key):
                self.unclear += 1
            else:
                status = self.is_copy(key, times[row])
                if status < 0 or status == 2:
                    return status
                if status:
                    self.copies += 1
                    continue
            self.kept.list[kept[0]] = row
            kept[0] += 1
        return 0

    cdef bint key_of(self, Block block, uint32_t row, uint64_t* key) noexcept nogil:
        """What copies have in common; False: it is not known."""
        if self.digest >= 0:
            key[0] = (<const uint64_t*>block.col[self.digest])[row]
            key[1] = 0
            if key[0]:
                return True
        if not self.by_columns or not self.is_clear(block, row):
            return False
        self.add_columns(block, row, key)
        return True

    cdef uint64_t value(self, Block block, int column, uint32_t row) noexcept nogil:
        cdef Column* c = &self.layout.column[column]
        return load_value(c.code, block.col[column] + <size_t>row * c.width)

    cdef bint is_clear(self, Block block, uint32_t row) noexcept nogil:
        """Whether the columns of this packet are equal to those of another only if their bytes are.

        Of TCP, ports and sequence numbers say which payload it is; options must be among the columns.  The IP ID of
        IPv4 says it if it must be unique (RFC 6864): not if the packet must not be fragmented.
        """
        cdef uint64_t flags = self.value(block, self.tested[T_IP_FLAGS], row)
        if self.value(block, self.tested[T_VERSION], row) == 4 and self.value(block, self.tested[T_IP_ID], row):
            if not flags & DONT_FRAGMENT:
                return True
        return (self.value(block, self.tested[T_PROTO], row) == TCP
                and not self.value(block, self.tested[T_TCP_OPTS], row) & UNCLEAR_OPTIONS
                and not self.value(block, self.tested[T_NOTES], row) & UNCLEAR_NOTES)

    cdef void add_columns(self, Block block, uint32_t row, uint64_t* key) noexcept nogil:
        cdef uint64_t[2] word
        cdef uint64_t a = self.new.table.seed[0], b = self.new.table.seed[1]
        cdef Column* c
        cdef int i
        for i in range(self.n_compared):
            c = &self.layout.column[self.compared[i]]
            word[1] = 0
            if c.code == BYTES:
                memcpy(word, block.col[self.compared[i]] + <size_t>row * 16, 16)
            else:
                word[0] = self.value(block, self.compared[i], row)
            a = mum(a ^ word[0], ODD_1) ^ word[1]
            b = mum(b ^ word[0] ^ word[1] << 1, ODD_2) + word[1]
        key[0], key[1] = a, b | 1               # not 0, as it is of a digest

    cdef int is_copy(self, const uint64_t* key, int64_t time) noexcept nogil:
        """1: a packet with this key came at most a window before, or after; 0: no; -1: no memory; 2: too much of it.

        Remembers the packet.
        """
        cdef uint64_t h
        cdef uint32_t count, number
        cdef bint found = False
        if time - self.since > self.window:
            self.turn(time)
        if self.new.table.count + 1 > self.new.room:
            if not self.grow():
                return 2 if self.used() > self.most else -1
            if self.used() > self.most:
                return 2
        h = hash2(&self.new.table, key[0], key[1])
        number = find(&self.old.table, h, key)
        if number != NOT_FOUND:
            found = self.near(self.old.last[number], time)
        count = self.new.table.count
        number = table_insert2(&self.new.table, h, key[0], key[1])
        if number < count:
            found = found or self.near(self.new.last[number], time)
            if time < self.new.last[number]:
                time = self.new.last[number]
        self.new.last[number] = time
        return found

    cdef bint near(self, int64_t one, int64_t other) noexcept nogil:
        return -self.window <= other - one <= self.window

    cdef void turn(self, int64_t time) noexcept nogil:
        """Forget the packets in `old`, which are older than a window, and begin another span of time."""
        cdef Seen spare = self.old
        self.old, self.new = self.new, spare
        self.new.table.count = 0
        slots_clear(&self.new.table)
        self.since = time

    cdef bint grow(self) noexcept nogil:
        cdef int64_t* last
        if table_reserve(&self.new.table, 1):
            return False
        last = <int64_t*>realloc(self.new.last, <size_t>self.new.table.room * 8)
        if last == NULL:
            return False
        self.new.last, self.new.room = last, self.new.table.room
        return True


cdef uint32_t find(const HashTable* t, uint64_t h, const uint64_t* key) noexcept nogil:
    """The number of a key of two words with the hash `h`, or NOT_FOUND."""
    cdef uint64_t at, slot
    cdef const uint64_t* other
    if t.slots == NULL:
        return NOT_FOUND
    at = h >> t.shift
    while True:
        slot = t.slots[at]
        if slot == 0:
            return NOT_FOUND
        if slot >> 32 == h >> 32:
            other = t.keys + <size_t>(<uint32_t>slot - 1) * 2
            if other[0] == key[0] and other[1] == key[1]:
                return <uint32_t>slot - 1
        at = (at + 1) & t.mask
