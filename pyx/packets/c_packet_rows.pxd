# Sizes of the rows that the parser fills: one array per column of the packet schema, small enough for the cache.
# c_packet_columns.pxd, generated from schema/packet.yaml, declares them: enum Col, struct Rows, packet_columns().
# The arrays are 64 bytes longer than ROWS: columns that start at equal offsets modulo 4 KiB would compete for the
# same cache sets.

from libc.stdint cimport uint64_t

cdef enum:
    ROWS = 1024
    HOPS = 8                    # of switch_path and queue_depth; a power of two
    ROWS1 = 1088                # elements of 1, 2, 4, 8 and 16 bytes
    ROWS2 = 1056
    ROWS4 = 1040
    ROWS8 = 1032
    ROWS16 = 1028

cdef inline uint64_t bit(int column) noexcept nogil:
    return <uint64_t>1 << column
