"""The values of a column in a row group of Parquet, decoded into the bytes of a column of a block.

Only what archives of this program contain: a number or bytes of a fixed length in each row, no nulls and no lists,
encoded plainly, by a dictionary or as differences; pages of version 1 or 2.  Everything else, and everything that
is damaged, is refused: pyarrow then reads it, or says what is wrong.
"""

from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t
from libc.string cimport memset
from c_block cimport BLOCK_ROWS
from c_page_header cimport (
    DATA_PAGE,
    DATA_PAGE_V2,
    DICTIONARY_PAGE,
    ENCODING_DELTA,
    ENCODING_DICTIONARY,
    ENCODING_PLAIN,
    ENCODING_PLAIN_DICTIONARY,
    PageHeader,
    page_header,
)
from c_page_values cimport (
    FEW_VALUES,
    Dictionary,
    delta_values,
    dictionary_values,
    narrow_values,
    parquet_crc,
    parquet_crc_tables,
    parquet_use_wide,
    plain_values,
)
from confluo_tools.core.block.block cimport Picks

cdef enum:
    STRETCH_ROWS = 1024
    MAX_WIDTH = 64
    SPARE = 1 << 16  # bytes that a page may have in addition to its values

parquet_crc_tables()
parquet_use_wide(1)


def use_wide(bint wanted):
    """Use AVX2 and carry-less multiplication if the processor has them, or do not."""
    parquet_use_wide(wanted)


def crc32(const uint8_t[::1] data not None):
    """CRC-32 of IEEE 802.3, the checksum of a page."""
    cdef Py_ssize_t n = data.shape[0]
    return parquet_crc(&data[0] if n else NULL, n)


cdef class _Uncompressed:
    # An uncompressed page, and where its bytes begin and end.
    cdef object owner
    cdef const uint8_t[::1] view
    cdef const uint8_t* start
    cdef const uint8_t* end

    def __init__(self, owner):
        self.owner = owner
        self.view = memoryview(owner).cast("B")
        self.start = &self.view[0] if self.view.shape[0] else NULL
        self.end = self.start + self.view.shape[0]


cdef bint _is_wanted(const uint8_t[::1] wanted, int64_t first, int64_t end) noexcept:
    cdef int64_t i
    if wanted is None:
        return True
    for i in range(first // STRETCH_ROWS, min((end - 1) // STRETCH_ROWS + 1, <int64_t>wanted.shape[0])):
        if wanted[i]:
            return True
    return False


def wanted_stretches(list chosen not None):
    """A byte for each 1,024 rows of a row group, zero where no row is picked; None if all rows are.

    ``chosen``: `Picks` of its blocks of 65,536 rows.
    """
    cdef Picks picks
    cdef bytearray marks = bytearray((len(chosen) * BLOCK_ROWS) // STRETCH_ROWS)
    cdef uint8_t* to = <uint8_t*>marks
    cdef const uint16_t* rows
    cdef uint32_t i
    cdef bint every = True
    for picks in chosen:
        if picks.n == picks.rows:
            memset(to, 1, BLOCK_ROWS // STRETCH_ROWS)
        else:
            every = False
            rows = picks.as_list()
            for i in range(picks.n):
                to[rows[i] // STRETCH_ROWS] = 1
        to += BLOCK_ROWS // STRETCH_ROWS
    return None if every else marks


def decode(
    const uint8_t[::1] chunk not None,
    uncompress,
    uint32_t stored,
    uint32_t size,
    uint8_t[::1] out not None,
    const uint8_t[::1] wanted=None,
    bint verify=True,
):
    """Decode the pages of a column chunk into ``out``, ``size`` bytes a row; returns whether that was possible.

    ``chunk``: its bytes, from the first page on.  ``uncompress(bytes, size)``: of the codec; None: not compressed.
    ``stored``: bytes of a plain value; a number is cut to ``size`` bytes.  ``wanted``: a byte for each 1,024 rows,
    zero where no row is used; rows of pages without others are zeros.  ``verify``: test the checksums of pages.
    """
    cdef int64_t rows = out.shape[0] // size if size else 0, done = 0
    cdef const uint8_t* p
    cdef const uint8_t* end
    cdef const uint8_t* after
    cdef const uint8_t* values
    cdef PageHeader h
    cdef Dictionary dictionary
    cdef _Uncompressed page
    cdef uint8_t* to
    cdef int wrong
    if not 0 < size <= stored <= MAX_WIDTH or rows * size != out.shape[0] or chunk.shape[0] == 0:
        return rows == 0 and size > 0
    dictionary.values, dictionary.known = NULL, 0
    p, end = &chunk[0], &chunk[0] + chunk.shape[0]
    while done < rows:
        p = page_header(p, end, &h)
        if p == NULL or h.stored < 0 or h.stored > end - p or h.values < 0 or h.size < 0:
            return False
        after = p + h.stored
        if h.type == DICTIONARY_PAGE:
            if dictionary.values != NULL or h.values > rows or h.size < h.values * stored:
                return False
        elif h.type not in (DATA_PAGE, DATA_PAGE_V2) or h.values > rows - done or h.nulls or h.levels:
            return False
        elif not _is_wanted(wanted, done, done + h.values):
            memset(&out[done * size], 0, h.values * size)
            done += h.values
            p = after
            continue
        if h.size > h.values * (stored + 1) + SPARE:
            return False
        if verify and h.has_crc and parquet_crc(p, h.stored) != <uint32_t>h.crc:
            return False
        if uncompress is None or h.plain:
            if h.size != h.stored:
                return False
            page, values = None, p
        else:
            try:
                page = _Uncompressed(uncompress(chunk[p - &chunk[0] : after - &chunk[0]], h.size))
            except (OSError, ValueError):
                return False
            if page.end - page.start != h.size:
                return False
            values = page.start
        if h.type == DICTIONARY_PAGE:
            if h.encoding not in (ENCODING_PLAIN, ENCODING_PLAIN_DICTIONARY) or h.values == 0:
                return False
            keep = PyBytes_FromStringAndSize(NULL, max(h.values * size, <int64_t>FEW_VALUES))
            dictionary.values, dictionary.known = <const uint8_t*>keep, <uint32_t>h.values
            narrow_values(values, stored, h.values, size, <uint8_t*>dictionary.values)
        elif h.values:
            to = &out[done * size]
            with nogil:
                if h.encoding == ENCODING_PLAIN:
                    wrong = plain_values(values, values + h.size, stored, h.values, size, to)
                elif h.encoding == ENCODING_DELTA and (stored == 4 or stored == 8):
                    wrong = delta_values(values, values + h.size, stored, h.values, size, to)
                elif h.encoding in (ENCODING_DICTIONARY, ENCODING_PLAIN_DICTIONARY) and dictionary.values != NULL:
                    wrong = dictionary_values(values, values + h.size, &dictionary, h.values, size, to)
                else:
                    wrong = -1
            if wrong:
                return False
            done += h.values
        p = after
    return True
