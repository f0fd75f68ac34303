# Files with a chunk for each block of a segment: posting files and view files.

from libc.stdint cimport uint64_t

cdef struct BlockFileShape:             # offsets and sizes in bytes
    const char* magic                   # 8 bytes at the start of the header
    size_t key_bytes                    # of the header: identity of the file; its CRC32C follows
    size_t blocks_at                    # u32: entries of the table
    size_t published_at                 # u64: complete blocks
    size_t table_at
    size_t entry                        # of the table

cdef size_t header_bytes(const BlockFileShape* shape, uint64_t blocks) noexcept nogil
cdef bytes read_head(int fd, const BlockFileShape* shape, bytes key, str other, int* published)
cdef uint64_t read_published(int fd, const BlockFileShape* shape) except? 0
