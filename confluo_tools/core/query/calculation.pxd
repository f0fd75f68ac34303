# Calculations on the number columns of a row.

from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from confluo_tools.core.block.block cimport Layout

cdef extern from "calc.h" nogil:
    enum: CALC_ROWS
    enum: CALC_DEPTH
    enum: CALC_COLUMN
    enum: CALC_CONSTANT
    enum: CALC_ADD
    enum: CALC_SUB
    enum: CALC_MUL
    enum: CALC_ADD_CHECKED
    enum: CALC_SUB_CHECKED
    enum: CALC_MUL_CHECKED
    enum: CALC_ADD_REAL
    enum: CALC_SUB_REAL
    enum: CALC_MUL_REAL
    enum: CALC_DIV_REAL
    enum: CALC_REAL_U
    enum: CALC_REAL_I
    enum: CALC_ROUND
    enum: CALC_FLOOR_U
    enum: CALC_FLOOR_I
    enum: CALC_FLOOR_REAL
    enum: CALC_POWER_U
    enum: CALC_POWER_I
    enum: CALC_POWER_REAL
    enum: CALC_NO_FIT
    enum: CALC_A_SIGNED
    enum: CALC_B_SIGNED
    enum: CALC_SIGNED
    ctypedef struct calc_step:
        int op
        int code
        int col
        uint32_t width
        int flags
        uint64_t value
        uint64_t* constant
    ctypedef struct calc:
        calc_step* step
        int steps
        uint64_t* slot
        int checked
    void calc_run(const calc* c, const uint8_t** col, const uint16_t* rows, uint32_t first, uint32_t n, uint64_t* out,
                  uint8_t* bad) noexcept

cdef class Calculation:
    cdef readonly Layout layout
    cdef calc calc
