"""State machines by key: a few integers for each flow, updated record by record (confluo-state(5))."""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset
from c_block cimport BLOCK_ROWS, F32, F64, BYTES
from c_ipv6_hash cimport fold6
from c_hash_table cimport lru_free, lru_hash, lru_init, lru_insert, lru_key, lru_prefetch_entry, lru_value
from c_state_machine cimport (
    MAX_INPUTS, MAX_OUTPUTS, MAX_STATES, Frame, load_integer, machine_run, store_integer)
from confluo_tools.core.block.block cimport Block, Layout, Picks, Staging
cimport cython
import os

cdef enum:
    MAX_PARTS = 16
    MAX_WORDS = 32
    BATCH = 16                  # rows per prefetch of states


@cython.final
cdef class StateMachine:
    """The states of all keys, at most ``max_keys``; beyond that, a key not seen for long is evicted (LruTable).

    ``key``: ("field", column) or ("ip", column, column of the 16 bytes, column of the version or -1), in order;
    ``half``: number of key fields of one end of a conversation, if both directions share a state, else 0.
    ``inputs``: columns of the record that programs read.  ``zero``: the values of a new state.
    ``derive``, ``update``, ``merge``: programs of expr/machine.py; ``pool``: their constants.
    ``result``: columns of the input and one for each output; ``states``: columns of the key, then of the state.
    """

    def __cinit__(self, Layout layout not None, Layout result not None, Layout states not None, *, key, int half,
                  inputs, zero, bytes derive not None, bytes update not None, bytes merge not None,
                  bytes pool not None, uint32_t max_keys=1 << 18):
        cdef int i, at = 0
        cdef uint64_t seed[2]
        cdef StateKeyPart* p
        self.layout, self.result, self.states = layout, result, states
        self.memory = [derive, update, merge, pool]
        self.derive = <const int32_t*><const char*>derive
        self.update_ = <const int32_t*><const char*>update
        self.merge_ = <const int32_t*><const char*>merge
        self.pool = <const int64_t*><const char*>pool
        self.outputs = result.n - layout.n
        if not 1 <= len(key) <= MAX_PARTS or len(inputs) > MAX_INPUTS or not 0 <= self.outputs <= MAX_OUTPUTS:
            raise ValueError("too many fields")
        if not 1 <= max_keys <= 1 << 26:
            raise ValueError(f"{max_keys} states")
        for i, spec in enumerate(key):
            p = &self.part[i]
            p.col, p.col6, p.version, p.out_version = spec[1], -1, -1, -1
            p.width = layout.column[p.col].width
            p.words = (p.width + 7) // 8
            p.out = at
            at += 1
            if spec[0] == "ip":
                p.col6, p.version, p.words = spec[2], spec[3], 3
                p.out6 = at
                at += 1
                if p.version >= 0:
                    p.out_version = states.get(layout.names[p.version])
            self.words += p.words
            if i < half:
                self.half += p.words
        self.parts = len(key)
        if self.words > MAX_WORDS:
            raise ValueError(f"a key of {8 * self.words} bytes")
        if half and self.half * 2 > self.words:
            raise ValueError("the ends of a conversation differ")
        for i, column in enumerate(inputs):
            if layout.column[column].code in (F32, F64, BYTES) or layout.column[column].count != 1:
                raise ValueError(f"{layout.names[column]} is not an integer")
            self.input_col[i] = column
        self.inputs = len(inputs)
        self.state_count = len(zero)
        if self.state_count > MAX_STATES or states.n < self.state_count + at:
            raise ValueError("the columns of the states do not match")
        for i in range(self.state_count):
            self.state_col[i] = states.n - self.state_count + i
            self.state_code[i] = states.column[self.state_col[i]].code
            self.zero[i] = zero[i]
        secret = os.urandom(16)
        seed[0] = int.from_bytes(secret[:8], "little")
        seed[1] = int.from_bytes(secret[8:], "little")
        if not lru_init(&self.table, self.words, 8 * self.state_count, max_keys, seed):
            raise MemoryError

    def __dealloc__(self):
        lru_free(&self.table)

    @property
    def count(self):
        """Number of keys in memory."""
        return self.table.index.count

    @property
    def evicted(self):
        """Number of evicted keys."""
        return self.table.evicted

    def apply(self, Block block not None, Picks picks=None):
        """The block with outputs added for ``picks`` (None: all rows); outputs of other rows are zero.

        Outputs show the state before the record.  Blocks must be given in order.
        """
        if block.layout is not self.layout:
            raise ValueError("the block has another layout")
        cdef Staging fresh = Staging(self.result, max(block.rows, <uint32_t>1))
        cdef Block out = Block(self.result)
        cdef int i
        for i in range(self.layout.n):
            out.col[i] = block.col[i]
        for i in range(self.layout.n, self.result.n):
            out.col[i] = fresh.col[i]
        out.owner, out.rows, out.lane, out.base = (block, fresh), block.rows, block.lane, block.base
        self._go(block, picks, fresh.out + self.layout.n)
        return out

    def update(self, Block block not None, Picks picks=None):
        """Update the states without outputs."""
        if block.layout is not self.layout:
            raise ValueError("the block has another layout")
        self._go(block, picks, NULL)

    cdef int _go(self, Block block, Picks picks, uint8_t** out) except -1:
        cdef const uint8_t* chosen = NULL
        cdef int failed
        if picks is not None:
            if picks.rows != block.rows:
                raise ValueError("the picks are of another block")
            chosen = <const uint8_t*>picks.as_mask()
        with nogil:
            failed = self._run(block, chosen, out)
        if failed:
            raise MemoryError(f"{self.table.index.count} states")
        return 0

    def blocks(self):
        """All keys and their states, as blocks of ``states``, in no particular order."""
        cdef uint32_t i = 0, n, k
        cdef Staging block
        while i < self.table.index.count:
            n = min(<uint32_t>BLOCK_ROWS, self.table.index.count - i)
            block = Staging(self.states, n)
            for k in range(n):
                self._unpack(i + k, k, block.out)
            block.set_rows(n)
            i += n
            yield block

    def load(self, Block block not None):
        """Load states from `blocks`; existing keys are replaced."""
        self._take(block, False)

    def merge(self, Block block not None):
        """Merge states from `blocks` of another machine, by the merge rules of the definition."""
        self._take(block, True)

    cdef int _take(self, Block block, bint merging) except -1:
        cdef int failed
        if block.layout.n != self.states.n:
            raise ValueError("the block has another layout")
        with nogil:
            failed = self._restore(block, merging)
        if failed:
            raise MemoryError(f"{self.table.index.count} states")
        return 0

    cdef int _restore(self, Block block, bint merging) noexcept nogil:
        cdef uint64_t key[MAX_WORDS]
        cdef int64_t other[MAX_STATES]
        cdef bint fresh
        cdef uint32_t row
        cdef int i
        cdef int64_t* state
        cdef StateKeyPart* p
        cdef uint64_t* word
        cdef Frame f
        memset(&f, 0, sizeof(f))
        for row in range(block.rows):
            word = key
            for i in range(self.parts):
                p = &self.part[i]
                memset(word, 0, 8 * p.words)
                if p.col6 >= 0:
                    _address(word, (<const uint32_t*>block.col[p.out])[row], block.col[p.out6] + <size_t>row * 16,
                             block.col[p.out_version][row] if p.out_version >= 0 else 0)
                else:
                    memcpy(word, block.col[p.out] + <size_t>row * p.width, p.width)
                word += p.words
            state = <int64_t*>lru_insert(&self.table, key, lru_hash(&self.table, key), &fresh)
            if state == NULL:
                return 1
            for i in range(self.state_count):
                other[i] = load_integer(self.state_code[i], block.col[self.state_col[i]]
                                        + <size_t>row * self.states.column[self.state_col[i]].width)
            if merging and not fresh:
                f.state, f.other = state, other
                machine_run(self.merge_, self.pool, self.state_code, &f)
            else:
                memcpy(state, other, 8 * self.state_count)
        return 0

    cdef void _key(self, Block block, uint32_t row, uint64_t* key) noexcept nogil:
        cdef uint64_t* word = key
        cdef uint64_t spare[MAX_WORDS]
        cdef uint32_t h = self.half, k
        cdef StateKeyPart* p
        cdef int i
        for i in range(self.parts):
            p = &self.part[i]
            if p.col6 >= 0:
                _address(word, (<const uint32_t*>block.col[p.col])[row], block.col[p.col6] + <size_t>row * 16,
                         block.col[p.version][row] if p.version >= 0 else 0)
            else:
                word[p.words - 1] = 0
                memcpy(word, block.col[p.col] + <size_t>row * p.width, p.width)
            word += p.words
        for k in range(h):              # the lower end comes first
            if key[k] != key[h + k]:
                if key[k] > key[h + k]:
                    memcpy(spare, key, 8 * h)
                    memcpy(key, key + h, 8 * h)
                    memcpy(key + h, spare, 8 * h)
                break

    cdef int _run(self, Block block, const uint8_t* chosen, uint8_t** out) noexcept nogil:
        cdef uint64_t key[BATCH][MAX_WORDS]
        cdef uint64_t hash[BATCH]
        cdef uint32_t rows[BATCH]
        cdef int64_t input[MAX_INPUTS]
        cdef int64_t output[MAX_OUTPUTS]
        cdef uint32_t row = 0, n, i
        cdef int k, c
        cdef Frame f
        cdef bint fresh = False
        memset(&f, 0, sizeof(f))
        f.input, f.output = input, output
        while row < block.rows:
            n = 0
            while row < block.rows and n < BATCH:
                if chosen == NULL or chosen[row >> 3] >> (row & 7) & 1:
                    rows[n] = row
                    self._key(block, row, key[n])
                    hash[n] = lru_hash(&self.table, key[n])
                    n += 1
                row += 1
            for i in range(n):
                lru_prefetch_entry(&self.table, hash[i])
            for i in range(n):
                f.state = <int64_t*>lru_insert(&self.table, key[i], hash[i], &fresh)
                if f.state == NULL:
                    return 1
                f.fresh = fresh
                if fresh:
                    memcpy(f.state, self.zero, 8 * self.state_count)
                for k in range(self.inputs):
                    c = self.input_col[k]
                    input[k] = load_integer(self.layout.column[c].code,
                                            block.col[c] + <size_t>rows[i] * self.layout.column[c].width)
                if out != NULL:
                    machine_run(self.derive, self.pool, self.state_code, &f)
                    for k in range(self.outputs):
                        c = self.layout.n + k
                        store_integer(self.result.column[c].width,
                                      out[k] + <size_t>rows[i] * self.result.column[c].width, output[k])
                machine_run(self.update_, self.pool, self.state_code, &f)
        return 0

    cdef void _unpack(self, uint32_t i, uint32_t row, uint8_t** out) noexcept nogil:
        cdef const uint64_t* word = lru_key(&self.table, i)
        cdef const int64_t* state = <const int64_t*>lru_value(&self.table, i)
        cdef StateKeyPart* p
        cdef int k
        for k in range(self.parts):
            p = &self.part[k]
            if p.col6 >= 0:
                if word[0] == 6:
                    (<uint32_t*>out[p.out])[row] = fold6(<const uint8_t*>(word + 1))
                    memcpy(out[p.out6] + <size_t>row * 16, word + 1, 16)
                else:
                    (<uint32_t*>out[p.out])[row] = <uint32_t>word[1]
                if p.out_version >= 0:
                    out[p.out_version][row] = <uint8_t>word[0]
            else:
                memcpy(out[p.out] + <size_t>row * p.width, word, p.width)
            word += p.words
        for k in range(self.state_count):
            store_integer(self.states.column[self.state_col[k]].width,
                          out[self.state_col[k]] + <size_t>row * self.states.column[self.state_col[k]].width, state[k])


cdef inline void _address(uint64_t* word, uint32_t four, const uint8_t* six, uint8_t version) noexcept nogil:
    # Version and address; without a version column, nonzero bytes mean IPv6.
    cdef uint64_t half[2]
    memcpy(half, six, 16)
    if version == 0 and (half[0] | half[1]):
        version = 6
    word[0] = version
    if version == 6:
        word[1], word[2] = half[0], half[1]
    else:
        word[1], word[2] = four, 0
