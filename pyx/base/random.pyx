"""Random integers of a seed and a stream, the same on every machine (xoshiro256**)."""

from libc.stdint cimport uint64_t
from c_random cimport Stream, below, seed_stream
cimport cython


@cython.final
cdef class Random:
    """Random integers of a seed and a stream, the same on every machine (xoshiro256**)."""

    cdef Stream r

    def __cinit__(self, uint64_t seed, uint64_t stream):
        seed_stream(&self.r, seed, stream)

    def below(self, uint64_t n):
        """An integer from 0 to n - 1.  Raises ValueError unless n is positive."""
        if n == 0:
            raise ValueError("none is below 0")
        return below(&self.r, n)
