# Places of the columns of a compressed segment.

from libc.stdint cimport uint64_t
from c_layout cimport Place, Places

# Read the places in a file of `size` bytes with data that end at `end`; None, or the problem.  `first`: where the first
# block must be; `low`: bytes of a block before its buffers; `start`, `place`: NULL or malloced, and replaced.
cdef object read_places(int fd, uint64_t size, uint64_t end, int columns, int most, uint64_t first, uint64_t low,
                        Places* head, uint64_t** start, Place** place)

# Where the data end, if the file is a compressed segment: what is before the footer says, and the first block.
# `header`: bytes before the blocks; `plain_head`: where a plain segment has its first block head.
cdef list packed_ends(int fd, uint64_t size, uint64_t header, uint64_t plain_head)
