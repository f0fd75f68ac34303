"""The Arrow C data interface: blocks as record batches that any Arrow library takes without a copy.

Every array that goes out keeps the block with its memory alive until the other side releases it, in whatever thread.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.object cimport PyObject
from cpython.pycapsule cimport PyCapsule_GetPointer, PyCapsule_New
from cpython.ref cimport Py_INCREF, Py_XDECREF
from libc.errno cimport EIO, ENOMEM
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memchr, memcpy, memset
from c_arrow cimport ArrowArray, ArrowArrayStream, ArrowSchema, ARROW_FLAG_NULLABLE
from confluo_tools.core.block.block cimport Block
cimport cython


# --- columns of text

@cython.final
cdef class TextColumn:
    """A column of UTF-8 texts, made from a column of a block.  ``nulls``: rows that are absent."""

    cdef readonly uint32_t rows
    cdef readonly uint32_t nulls
    cdef uint8_t* valid
    cdef int32_t* offsets
    cdef uint8_t* data

    def __dealloc__(self):
        free(self.valid)
        free(self.offsets)
        free(self.data)

    cdef int _reserve(self, uint32_t rows, size_t size) except -1:
        self.rows = rows
        self.valid = <uint8_t*>calloc((rows + 63) // 64 * 8 + 8, 1)
        self.offsets = <int32_t*>calloc(rows + 1, sizeof(int32_t))
        self.data = <uint8_t*>malloc(size + 1)
        if self.valid == NULL or self.offsets == NULL or self.data == NULL:
            raise MemoryError
        return 0

    @staticmethod
    def of_lines(bytes lines not None, uint32_t rows):
        """The texts of ``lines``, one for each row; a line ``-`` is absent.  Raises ValueError for another number."""
        cdef TextColumn out = TextColumn()
        cdef const uint8_t* at = <const uint8_t*>PyBytes_AS_STRING(lines)
        cdef const uint8_t* end = at + PyBytes_GET_SIZE(lines)
        cdef const uint8_t* stop
        cdef uint32_t row
        cdef int32_t size = 0
        cdef size_t n
        out._reserve(rows, end - at)
        for row in range(rows):
            stop = <const uint8_t*>memchr(at, 10, end - at)
            if stop == NULL:
                raise ValueError(f"{row} lines for {rows} rows")
            n = stop - at
            if n == 1 and at[0] == 45:
                out.nulls += 1
            else:
                memcpy(out.data + size, at, n)
                size += <int32_t>n
                out.valid[row >> 3] |= 1 << (row & 7)
            out.offsets[row + 1] = size
            at = stop + 1
        if at != end:
            raise ValueError(f"more lines than {rows} rows")
        return out

    @staticmethod
    def of_texts(Block block not None, int column):
        """A column of type ``text``: zeros at the end cut; empty is absent; bytes that are not UTF-8 as ``\\xNN``."""
        if not 0 <= column < block.layout.n:
            raise IndexError(column)
        cdef uint32_t width = block.layout.column[column].width, row, n, i
        cdef const uint8_t* p = block.col[column]
        cdef TextColumn out = TextColumn()
        cdef int32_t size = 0
        cdef bint ascii
        # A byte that is not UTF-8 takes four.
        out._reserve(block.rows, <size_t>4 * width * block.rows)
        for row in range(block.rows):
            n = width
            while n and p[n - 1] == 0:
                n -= 1
            ascii = True
            for i in range(n):
                ascii = ascii and p[i] < 128
            if n == 0:
                out.nulls += 1
            elif ascii:
                memcpy(out.data + size, p, n)
                size += n
            else:
                text = (<const char*>p)[:n].decode("utf-8", "backslashreplace").encode()
                memcpy(out.data + size, PyBytes_AS_STRING(text), PyBytes_GET_SIZE(text))
                size += <int32_t>PyBytes_GET_SIZE(text)
            if n:
                out.valid[row >> 3] |= 1 << (row & 7)
            out.offsets[row + 1] = size
            p += width
        return out


# --- arrays

cdef struct Held:
    # What an exported column needs until it is released.
    PyObject* owner
    const void* buffers[3]
    ArrowArray* children[1]
    ArrowArray item
    const void* item_buffers[2]


cdef void _release_nothing(ArrowArray* array) noexcept nogil:
    array.release = NULL


cdef void _release_column(ArrowArray* array) noexcept nogil:
    cdef Held* held = <Held*>array.private_data
    cdef ArrowArray* item
    if array.n_children:
        item = array.children[0]
        if item.release != NULL:
            item.release(item)
    with gil:
        Py_XDECREF(held.owner)
    free(held)
    array.release = NULL


cdef void _release_batch(ArrowArray* array) noexcept nogil:
    cdef int64_t i
    for i in range(array.n_children):
        if array.children[i].release != NULL:
            array.children[i].release(array.children[i])
    free(array.private_data)
    array.release = NULL


cdef int _column(ArrowArray* out, Block block, int column, int count) except -1:
    cdef Held* held = <Held*>calloc(1, sizeof(Held))
    if held == NULL:
        raise MemoryError
    Py_INCREF(block)
    held.owner = <PyObject*>block
    out.length = block.rows
    out.private_data = held
    out.release = &_release_column
    out.buffers = held.buffers
    if count == 1:
        out.n_buffers = 2
        held.buffers[1] = block.col[column]
        return 0
    # The item is released with its list, or moved out of it: then it holds the block itself.
    out.n_buffers, out.n_children = 1, 1
    out.children = held.children
    held.children[0] = &held.item
    _column(&held.item, block, column, 1)
    held.item.length = <int64_t>block.rows * count
    return 0


cdef int _text(ArrowArray* out, TextColumn text) except -1:
    cdef Held* held = <Held*>calloc(1, sizeof(Held))
    if held == NULL:
        raise MemoryError
    Py_INCREF(text)
    held.owner = <PyObject*>text
    held.buffers[0] = text.valid if text.nulls else NULL
    held.buffers[1] = text.offsets
    held.buffers[2] = text.data
    out.length, out.null_count, out.n_buffers = text.rows, text.nulls, 3
    out.buffers = held.buffers
    out.private_data = held
    out.release = &_release_column
    return 0


# --- schemas

cdef void _release_schema(ArrowSchema* schema) noexcept nogil:
    cdef int64_t i
    for i in range(schema.n_children):
        if schema.children[i].release != NULL:
            schema.children[i].release(schema.children[i])
        free(schema.children[i])
    free(schema.children)
    free(schema.private_data)
    schema.release = NULL


cdef int _fill_schema(ArrowSchema* out, bytes format, bytes name, bytes metadata, bint nullable,
                      int children) except -1:
    # One piece of memory holds the three texts.
    cdef Py_ssize_t f = len(format) + 1, n = len(name) + 1, m = len(metadata)
    cdef char* texts = <char*>calloc(f + n + m, 1)
    cdef int i
    if texts == NULL:
        raise MemoryError
    memset(out, 0, sizeof(ArrowSchema))
    memcpy(texts, PyBytes_AS_STRING(format), f - 1)
    memcpy(texts + f, PyBytes_AS_STRING(name), n - 1)
    out.private_data, out.release = texts, &_release_schema
    out.format, out.name = texts, texts + f
    if m:
        memcpy(texts + f + n, PyBytes_AS_STRING(metadata), m)
        out.metadata = texts + f + n
    out.flags = ARROW_FLAG_NULLABLE if nullable else 0
    if children:
        out.children = <ArrowSchema**>calloc(children, sizeof(ArrowSchema*))
        if out.children == NULL:
            raise MemoryError
        for i in range(children):
            out.children[i] = <ArrowSchema*>calloc(1, sizeof(ArrowSchema))
            if out.children[i] == NULL:
                raise MemoryError
            out.n_children = i + 1
    return 0


cdef bytes _pairs(metadata):
    out = len(metadata).to_bytes(4, "little")
    for pair in metadata.items():
        for text in pair:
            data = text.encode()
            out += len(data).to_bytes(4, "little") + data
    return out


cdef void _drop_schema(capsule) noexcept:
    cdef ArrowSchema* schema = <ArrowSchema*>PyCapsule_GetPointer(capsule, "arrow_schema")
    if schema.release != NULL:
        schema.release(schema)
    free(schema)


cdef void _drop_array(capsule) noexcept:
    cdef ArrowArray* array = <ArrowArray*>PyCapsule_GetPointer(capsule, "arrow_array")
    if array.release != NULL:
        array.release(array)
    free(array)


cdef void _drop_stream(capsule) noexcept:
    cdef ArrowArrayStream* stream = <ArrowArrayStream*>PyCapsule_GetPointer(capsule, "arrow_array_stream")
    if stream.release != NULL:
        stream.release(stream)
    free(stream)


@cython.final
cdef class ArrowShape:
    """The Arrow schema of exported blocks.

    ``columns``: (name, format of one element, elements per row, column of the block) of each; a column with the
    format ``u`` is a `TextColumn`.  ``metadata``: of the schema.
    """

    cdef list _columns
    cdef bytes _metadata

    def __init__(self, columns, metadata):
        self._columns = [(name.encode(), format.encode(), count, column) for name, format, count, column in columns]
        self._metadata = _pairs(metadata)

    cdef int fill(self, ArrowSchema* out) except -1:
        cdef ArrowSchema* child
        cdef int i
        _fill_schema(out, b"+s", b"", self._metadata, False, len(self._columns))
        for i, (name, format, count, _) in enumerate(self._columns):
            child = out.children[i]
            if count == 1:
                _fill_schema(child, format, name, b"", format == b"u", 0)
            else:
                _fill_schema(child, b"+w:%d" % count, name, b"", False, 1)
                _fill_schema(child.children[0], format, b"item", b"", False, 0)
        return 0

    cdef int batch(self, ArrowArray* out, Block block, texts) except -1:
        cdef int n = len(self._columns), i
        # The pointers to the children, the children, and the pointer to "no validity", in one piece.
        cdef size_t size = n * (sizeof(ArrowArray*) + sizeof(ArrowArray)) + sizeof(void*)
        cdef uint8_t* memory = <uint8_t*>calloc(size, 1)
        cdef ArrowArray* children
        if memory == NULL:
            raise MemoryError
        memset(out, 0, sizeof(ArrowArray))
        out.private_data, out.release = memory, &_release_batch
        out.buffers = <const void**>memory
        out.children = <ArrowArray**>(memory + sizeof(void*))
        children = <ArrowArray*>(memory + sizeof(void*) + n * sizeof(ArrowArray*))
        out.length, out.n_buffers = block.rows, 1
        for i in range(n):
            children[i].release = &_release_nothing
            out.children[i] = &children[i]
        out.n_children = n
        try:
            for i, (_, format, count, column) in enumerate(self._columns):
                if format == b"u":
                    _text(&children[i], texts[column])
                else:
                    _column(&children[i], block, column, count)
        except BaseException:
            out.release(out)
            raise
        return 0

    def schema(self):
        """A capsule ``arrow_schema``."""
        cdef ArrowSchema* out = <ArrowSchema*>calloc(1, sizeof(ArrowSchema))
        if out == NULL:
            raise MemoryError
        capsule = PyCapsule_New(out, "arrow_schema", &_drop_schema)
        self.fill(out)
        return capsule

    def array(self, Block block not None, texts):
        """A capsule ``arrow_array`` with the rows of ``block``; ``texts``: its text columns by number."""
        cdef ArrowArray* out = <ArrowArray*>calloc(1, sizeof(ArrowArray))
        if out == NULL:
            raise MemoryError
        capsule = PyCapsule_New(out, "arrow_array", &_drop_array)
        self.batch(out, block, texts)
        return capsule


# --- streams

@cython.final
cdef class ArrowStream:
    """Batches as an Arrow stream.  ``batches``: an iterator of (block, its text columns by number).

    ``error``: what ended the stream early, None if nothing did.
    """

    cdef ArrowShape _shape
    cdef object _batches
    cdef readonly object error
    cdef bytes _said

    def __init__(self, ArrowShape shape not None, batches):
        self._shape, self._batches = shape, batches

    def capsule(self):
        """A capsule ``arrow_array_stream``, once: the batches go out through it."""
        cdef ArrowArrayStream* out = <ArrowArrayStream*>calloc(1, sizeof(ArrowArrayStream))
        if out == NULL:
            raise MemoryError
        Py_INCREF(self)
        out.private_data = <PyObject*>self
        out.get_schema, out.get_next = &_get_schema, &_get_next
        out.get_last_error, out.release = &_get_last_error, &_release_stream
        return PyCapsule_New(out, "arrow_array_stream", &_drop_stream)

    cdef int fail(self, error) noexcept:
        try:
            self.error = error
            self._said = (str(error) or type(error).__name__).encode("utf-8", "replace")
        except BaseException:
            self._said = b"failed"
        return ENOMEM if isinstance(error, MemoryError) else EIO

    cdef int next(self, ArrowArray* out) noexcept:
        try:
            block, texts = next(self._batches)
        except StopIteration:
            return 0
        except BaseException as e:
            return self.fail(e)
        try:
            self._shape.batch(out, block, texts)
        except BaseException as e:
            return self.fail(e)
        return 0

    cdef int describe(self, ArrowSchema* out) noexcept:
        try:
            self._shape.fill(out)
        except BaseException as e:
            return self.fail(e)
        return 0


cdef int _get_schema(ArrowArrayStream* stream, ArrowSchema* out) noexcept nogil:
    with gil:
        return (<ArrowStream>stream.private_data).describe(out)


cdef int _get_next(ArrowArrayStream* stream, ArrowArray* out) noexcept nogil:
    memset(out, 0, sizeof(ArrowArray))
    with gil:
        return (<ArrowStream>stream.private_data).next(out)


cdef const char* _get_last_error(ArrowArrayStream* stream) noexcept nogil:
    with gil:
        said = (<ArrowStream>stream.private_data)._said
        return NULL if said is None else PyBytes_AS_STRING(said)


cdef void _release_stream(ArrowArrayStream* stream) noexcept nogil:
    with gil:
        Py_XDECREF(<PyObject*>stream.private_data)
    stream.release = NULL
