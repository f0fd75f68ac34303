"""Arrow streams of other libraries, through the Arrow C data interface, as buffers of fixed width for blocks."""

from cpython.buffer cimport PyBuffer_FillInfo
from cpython.pycapsule cimport PyCapsule_GetPointer
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t
from libc.string cimport memcpy, memset
from c_arrow cimport ArrowArray, ArrowArrayStream, ArrowSchema
from c_block cimport BLOCK_ROWS
cimport cython

# Bytes of one value, by format.
_WIDTHS = {b"c": 1, b"C": 1, b"s": 2, b"S": 2, b"i": 4, b"I": 4, b"l": 8, b"L": 8, b"f": 4, b"g": 8}
_TEXTS = (b"u", b"z")


cdef class _Batch:
    # A record batch that came; released with the last view of it.
    cdef ArrowArray array

    def __dealloc__(self):
        if self.array.release != NULL:
            self.array.release(&self.array)


cdef class _Values:
    # The bytes of a column of a batch.
    cdef object batch
    cdef const uint8_t* data
    cdef Py_ssize_t size

    def __getbuffer__(self, Py_buffer* view, int flags):
        PyBuffer_FillInfo(view, self, <void*>self.data, self.size, 1, flags)


@cython.final
cdef class ArrowBatches:
    """The batches of an Arrow stream: a capsule ``arrow_array_stream``, which is used up.

    ``formats``: of the columns, as the Arrow C data interface names them.
    Raises ValueError for columns that are neither numbers nor texts with 32-bit offsets, OSError for what the stream
    reports.
    """

    cdef ArrowArrayStream stream
    cdef readonly list formats

    def __init__(self, capsule):
        cdef ArrowArrayStream* given = <ArrowArrayStream*>PyCapsule_GetPointer(capsule, "arrow_array_stream")
        cdef ArrowSchema schema
        cdef int64_t i
        self.stream = given[0]
        given.release = NULL
        memset(&schema, 0, sizeof(schema))
        if self.stream.get_schema(&self.stream, &schema):
            self._fail()
        try:
            self.formats = [schema.children[i].format.decode() for i in range(schema.n_children)]
        finally:
            if schema.release != NULL:
                schema.release(&schema)
        for format in self.formats:
            if format.encode() not in _WIDTHS and format.encode() not in _TEXTS:
                raise ValueError(f"a column has the Arrow format '{format}'")

    def __dealloc__(self):
        self.close()

    def close(self):
        """Release the stream.  Buffers that were read stay valid."""
        if self.stream.release != NULL:
            self.stream.release(&self.stream)

    cdef int _fail(self) except -1:
        cdef const char* said = self.stream.get_last_error(&self.stream)
        raise OSError("the stream failed" if said == NULL else said.decode("utf-8", "replace"))

    def read(self, widths):
        """(rows, buffers, valid) of each piece of at most 65,536 rows.

        ``valid``: the validity bits of the columns that have nulls, by number.
        A buffer has ``widths[i]`` bytes for each row: numbers as they are, texts cut to the width and padded with
        zeros; null is zero.
        """
        cdef _Batch batch
        cdef int error
        cdef int64_t start, rows
        if len(widths) != len(self.formats):
            raise ValueError(f"{len(widths)} widths for {len(self.formats)} columns")
        for format, width in zip(self.formats, widths):
            if _WIDTHS.get(format.encode(), width) != width:
                raise ValueError(f"a column of format '{format}' has not {width} bytes")
        while True:
            batch = _Batch()
            with nogil:
                error = self.stream.get_next(&self.stream, &batch.array)
            if error:
                self._fail()
            if batch.array.release == NULL:
                return
            if batch.array.n_children != len(widths):
                raise ValueError("a batch has another number of columns than its schema")
            for start in range(0, batch.array.length, BLOCK_ROWS):
                rows = min(<int64_t>BLOCK_ROWS, batch.array.length - start)
                buffers = [
                    _column(batch, i, self.formats[i].encode(), width, start, rows) for i, width in enumerate(widths)
                ]
                bits = [_valid(batch, i, start, rows) for i in range(len(widths))]
                yield rows, buffers, {i: one for i, one in enumerate(bits) if one is not None}


cdef object _valid(_Batch batch, int number, int64_t start, int64_t rows):
    # The validity bits of some rows of a column, from bit 0 on; None: all are valid.
    cdef ArrowArray* array = batch.array.children[number]
    cdef const uint8_t* valid = <const uint8_t*>array.buffers[0] if array.null_count else NULL
    cdef int64_t first = array.offset + batch.array.offset + start, row, at, found = 0
    cdef bytearray out
    cdef uint8_t* p
    if valid == NULL:
        return None
    out = bytearray((rows + 7) // 8)
    p = out
    for row in range(rows):
        at = first + row
        if valid[at >> 3] >> (at & 7) & 1:
            p[row >> 3] |= 1 << (row & 7)
            found += 1
    return None if found == rows else bytes(out)


cdef object _column(_Batch batch, int number, bytes format, uint32_t width, int64_t start, int64_t rows):
    cdef ArrowArray* array = batch.array.children[number]
    cdef const uint8_t* valid = <const uint8_t*>array.buffers[0] if array.null_count else NULL
    cdef int64_t first = array.offset + batch.array.offset + start, row, at, n
    cdef const int32_t* offsets
    cdef const uint8_t* data
    cdef uint8_t* p
    cdef _Values values
    cdef bytearray out
    cdef bint texts = format in _TEXTS
    if not texts and valid == NULL:
        values = _Values()
        values.batch, values.size = batch, rows * width
        values.data = <const uint8_t*>array.buffers[1] + first * width
        return memoryview(values)
    out = bytearray(rows * width)
    p = out
    if texts:
        offsets, data = <const int32_t*>array.buffers[1], <const uint8_t*>array.buffers[2]
        for row in range(rows):
            at = first + row
            if valid != NULL and not valid[at >> 3] >> (at & 7) & 1:
                continue
            n = min(<int64_t>width, <int64_t>(offsets[at + 1] - offsets[at]))
            memcpy(p + row * width, data + offsets[at], n)
        return out
    data = <const uint8_t*>array.buffers[1] + first * width
    for row in range(rows):
        at = first + row
        if valid[at >> 3] >> (at & 7) & 1:
            memcpy(p + row * width, data + row * width, width)
    return out
