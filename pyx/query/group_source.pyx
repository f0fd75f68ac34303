"""Columns of group keys and aggregates: what a roll-up reads of each row, made from column specifications."""

from libc.stdint cimport INT64_MAX, INT64_MIN, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy, memset
from c_block cimport BYTES, F32, F64, I16, I32, I64, I8, U16, U32, U64, U8
from c_hash_table cimport table_insert, table_reserve
from c_source cimport (
    BUCKET, EITHER, HOLDS, HOURS, IN_ORDER, IP, IP_HASH, KEY, MONTHS, NUMBER, V6, WIDE, WIDE_HASH, Source,
)
from c_time_steps cimport DAY, MAX_MONTH, MINUTE, MIN_MONTH, QUARTER, WEEK, step_number
from confluo_tools.core.block.block cimport Layout
from confluo_tools.core.query.calculation cimport Calculation

cdef enum:
    MAX_CHANGES = 10000     # of the offset of local time

_CODES = {"u8": U8, "u16": U16, "u32": U32, "u64": U64, "i8": I8, "i16": I16, "i32": I32, "i64": I64, "f32": F32,
          "f64": F64}
_SIZES = {"u8": 1, "u16": 2, "u32": 4, "u64": 8, "i8": 1, "i16": 2, "i32": 4, "i64": 8, "f32": 4, "f64": 8}


cdef int source_room(Source* s, uint32_t n) noexcept nogil:
    """Make room for n more values in the side table, if the source has one."""
    if s.kind == IP or s.kind == WIDE:
        return table_reserve(&s.intern, n)
    return 0


cdef uint32_t* intern_merge(Source* ours, const Source* theirs) noexcept nogil:
    """The number in `s` for each value in the side table of another roll-up; NULL without memory."""
    cdef uint32_t i, n = theirs.intern.count
    cdef uint32_t* out = <uint32_t*>malloc((<size_t>n + 1) * 4)
    if out == NULL:
        return NULL
    if n and table_reserve(&ours.intern, n) < 0:
        free(out)
        return NULL
    for i in range(n):
        out[i] = table_insert(&ours.intern, theirs.intern.keys + <size_t>i * theirs.intern.words)
    return out


cdef uint64_t renumber(const Source* s, const uint32_t* to, uint64_t v) noexcept nogil:
    """Translate a value of another roll-up: only side-table numbers differ."""
    if not interned(s, v):
        return v
    return to[v] if s.kind == WIDE else (<uint64_t>V6 << 32) + 2 + to[intern_number(s, v)]


cdef object in_span(str what, object value, object lowest, object highest):
    """The whole number, if it is in that span.  Raises ValueError."""
    if not isinstance(value, int) or not lowest <= value <= highest:
        raise ValueError(f"{what} {value!r} is not in {lowest}..{highest}")
    return value


cdef int _take_changes(Source* s, changes) except -1:
    cdef uint32_t i
    cdef int64_t quarter = QUARTER, minute = MINUTE, before
    s.changes = in_span("number of changes", len(changes), 1, MAX_CHANGES)
    s.change = <int64_t*>malloc(2 * 8 * s.changes)
    if s.change == NULL:
        raise MemoryError
    s.offset, s.quarters, s.minutes = s.change + s.changes, True, True
    before = INT64_MIN
    for i in range(s.changes):
        s.change[i], s.offset[i] = changes[i]
        if (s.change[i] <= before) != (i == 0) or (i == 0 and s.change[i] != INT64_MIN):
            raise ValueError("the changes of local time are not in order")
        before = s.change[i]
        s.quarters = s.quarters and s.offset[i] % quarter == 0 and (i == 0 or s.change[i] % quarter == 0)
        s.minutes = s.minutes and s.offset[i] % minute == 0 and (i == 0 or s.change[i] % minute == 0)
    return 0


cdef int _make_steps(Source* s, tuple spec) except -1:
    # Steps of time: ('bucket', col, ns), ('weeks', col, n), ('months', col, n), ('hours', col, ns), and the changes.
    s.kind = BUCKET
    if len(spec) > 3:
        _take_changes(s, spec[3])
    if spec[0] == "months":
        s.kinds, s.step = MONTHS, in_span("number of months", spec[2], 1, MAX_MONTH - MIN_MONTH)
    elif spec[0] == "weeks":
        s.step = in_span("number of weeks", spec[2], 1, INT64_MAX // WEEK) * WEEK
        s.origin = 4 * DAY                                            # a Monday, 1970-01-05
    elif spec[0] == "hours":
        s.kinds, s.step, s.clock = HOURS, MINUTE, in_span("step", spec[2], MINUTE, 4 * QUARTER)
        if not s.minutes or s.clock % MINUTE:
            raise ValueError("hours need minutes")
    else:
        s.step = in_span("bucket", spec[2], 1, INT64_MAX)
    s.bits = int(step_number(s, INT64_MAX)).bit_length()
    return 0


cdef int _make_calculated(Source* s, Layout layout, tuple spec, bint key, list kept) except -1:
    # Values of a calculation: ('calc', type, steps), ('missing', type, steps).
    cdef Calculation made = Calculation(layout, tuple(spec[2]))
    s.code = _CODES[spec[1]]
    s.size = s.width = _SIZES[spec[1]]
    if s.size < 8 and not key:
        raise ValueError(f"calculated values have 64 bits, not {spec[1]}")
    kept.append(made)
    s.calc, s.count, s.col, s.version = &made.calc, 1, -1, -1
    s.missing, s.drop = spec[0] == "missing", made.calc.checked or spec[0] == "missing"
    s.kind, s.bits = KEY if key else NUMBER, s.size * 8
    return 0


cdef int make_source(Source* s, Layout layout, tuple spec, bint key, bint hashed, bytes seed, list kept) except -1:
    """Fill s from a column specification, see `Rollup`; ``kept`` gets the objects that it needs."""
    cdef int i, least
    cdef uint32_t bits
    memset(s, 0, sizeof(Source))
    if not spec:
        raise ValueError("an empty column specification")
    if spec[0] in ("conn", "host") and key and spec[1][0] not in ("conn", "host"):
        make_source(s, layout, spec[1], True, False, seed, kept)
        s.ends = IN_ORDER if spec[0] == "conn" else EITHER
        return 0
    if spec[0] == "calc" or (spec[0] == "missing" and not key):
        return _make_calculated(s, layout, spec, key, kept)
    if spec[0] == "where" and not key:
        s.kind, s.col, s.version, s.drop, s.code, s.size, s.width, s.count = HOLDS, -1, -1, True, U64, 8, 8, 1
        return 0
    s.col = in_span("column", spec[1], 0, layout.n - 1)
    s.code, s.size = layout.column[s.col].code, layout.column[s.col].size
    s.count, s.width = layout.column[s.col].count, layout.column[s.col].width
    s.version = -1
    memcpy(s.intern.seed, <const char*>seed, 16)
    s.intern.seed[1] |= 1
    if spec[0] == "ip":
        _, _, col6, version, bits4, bits6, plain = spec
        s.kind = IP_HASH if hashed else IP
        s.col6, s.version = in_span("column", col6, 0, layout.n - 1), in_span("column", version, -1, layout.n - 1)
        if s.code != 3 or s.count != 1 or layout.column[s.col6].code != BYTES or layout.column[s.col6].width != 16:
            raise ValueError(f"columns {spec[1:3]} are not an address")
        if s.version >= 0:
            s.version_code, s.version_width = layout.column[s.version].code, layout.column[s.version].width
            if s.version_code > U64 or layout.column[s.version].count != 1:
                raise ValueError(f"column {version} cannot be an IP version")
        bits = in_span("prefix", bits4, 0, 32)
        s.mask4 = <uint32_t>(0xFFFFFFFFu << (32 - bits)) if bits else 0
        bits = in_span("prefix", bits6, 0, 128)
        for i in range(16):
            least = min(max(<int>bits - i * 8, 0), 8)
            s.mask6[i] = <uint8_t>(0xFF00 >> least)
        s.plain = bool(plain)
        s.bits, s.intern.words = 34, 2
        s.drop = not key
    elif spec[0] == "prefix":
        bits = in_span("width", spec[2], 1, 64)
        if s.code > 4 or s.count != 1 or bits > s.size * 8:
            raise ValueError(f"column {spec[1]} has no prefixes of {spec[2]} bits")
        s.kind = KEY
        s.bits = in_span("prefix", spec[3], 0, bits)
        s.shift = bits - s.bits
    elif spec[0] in ("bucket", "weeks", "months", "hours"):
        if s.code != I64 or s.count != 1:
            raise ValueError(f"column {spec[1]} is not a time")
        _make_steps(s, spec)
    elif spec[0] != "column" and (spec[0] != "nonzero" or key or s.code >= BYTES):
        raise ValueError(f"unknown kind of column {spec[0]!r}")
    elif s.code == BYTES or (key and s.count > 1):
        s.kind = WIDE_HASH if hashed else WIDE
        s.bits, s.intern.words = 32, (s.width + 7) // 8
    elif key:
        s.kind, s.bits = KEY, s.size * 8
    else:
        s.kind, s.drop = NUMBER, spec[0] == "nonzero"
    return 0
