# Stages that pass some of their rows on.

from libc.stdint cimport uint32_t, uint64_t
from confluo_tools.core.block.block cimport Block
from confluo_tools.core.query.predicate cimport Program
from confluo_tools.core.stream.stage cimport StreamStage

cdef class FilterStage(StreamStage):
    cdef Program program

cdef class SampleStage(StreamStage):
    cdef uint64_t x
    cdef uint64_t seen

cdef class FlowSampleStage(StreamStage):
    cdef uint32_t x
    cdef int hash_column

cdef class FieldStage(StreamStage):
    cdef Block view
    cdef int* source                    # the column of a block for each column that it gives
