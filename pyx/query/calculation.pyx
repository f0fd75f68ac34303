"""Calculations on the number columns of a row, as steps of a stack machine; see confluo_tools/expr/arithmetic.py."""

from libc.stdint cimport INT64_MAX, INT64_MIN, UINT64_MAX, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy
from c_block cimport BYTES, F32
from confluo_tools.core.block.block cimport Layout
from confluo_tools.core.block.result_table cimport Rows
cimport cython

OPS = {
    "column": CALC_COLUMN, "int": CALC_CONSTANT, "real": CALC_CONSTANT,
    "+": CALC_ADD, "-": CALC_SUB, "*": CALC_MUL,
    "+checked": CALC_ADD_CHECKED, "-checked": CALC_SUB_CHECKED, "*checked": CALC_MUL_CHECKED,
    "+real": CALC_ADD_REAL, "-real": CALC_SUB_REAL, "*real": CALC_MUL_REAL, "/real": CALC_DIV_REAL,
    "real of u64": CALC_REAL_U, "real of i64": CALC_REAL_I, "round": CALC_ROUND,
    "floor u64": CALC_FLOOR_U, "floor i64": CALC_FLOOR_I, "floor real": CALC_FLOOR_REAL,
    "power u64": CALC_POWER_U, "power i64": CALC_POWER_I, "power real": CALC_POWER_REAL,
}


@cython.final
cdef class Calculation:
    """``steps`` on the columns of ``layout``: tuples of a name of `OPS` and what it needs.

    ('column', number), ('int', value), ('real', value); ('+',) and others, which take one or two values from the
    stack; ('+checked', a, b, result): whether each of these is signed; ('floor u64', width), ('power u64', base).
    """

    def __cinit__(self, Layout layout not None, tuple steps not None):
        cdef calc_step* s
        cdef double real
        cdef int i, depth = 0, deepest = 0
        self.layout = layout
        self.calc.step = <calc_step*>calloc(max(len(steps), 1), sizeof(calc_step))
        if self.calc.step == NULL:
            raise MemoryError
        for step in steps:
            name = step[0]
            if name not in OPS:
                raise ValueError(f"unknown step {step!r}")
            s = &self.calc.step[self.calc.steps]
            self.calc.steps += 1
            s.op = OPS[name]
            if s.op <= CALC_CONSTANT:
                depth += 1
            elif s.op <= CALC_DIV_REAL:
                depth -= 1
            if depth < 1 or depth >= CALC_DEPTH - 1:
                raise ValueError(f"{depth} values at step {self.calc.steps}")
            deepest = max(deepest, depth)
            if s.op == CALC_COLUMN:
                s.col = step[1]
                if not 0 <= s.col < layout.n or layout.column[s.col].code == BYTES or layout.column[s.col].count != 1:
                    raise ValueError(f"column {step[1]} is not a number")
                s.code, s.width = layout.column[s.col].code, layout.column[s.col].width
            elif s.op == CALC_CONSTANT or s.op >= CALC_FLOOR_U:
                if name == "real" or s.op == CALC_FLOOR_REAL or s.op == CALC_POWER_REAL:
                    real = step[1]
                    memcpy(&s.value, &real, 8)
                elif not INT64_MIN <= step[1] <= UINT64_MAX or (s.op != CALC_CONSTANT and not 0 < step[1] <= INT64_MAX):
                    raise ValueError(f"{step!r} does not fit 64 bits")
                else:
                    s.value = step[1] & UINT64_MAX
            elif CALC_ADD_CHECKED <= s.op <= CALC_MUL_CHECKED:
                s.flags = (CALC_A_SIGNED * bool(step[1]) | CALC_B_SIGNED * bool(step[2]) | CALC_SIGNED * bool(step[3]))
                self.calc.checked = True
            elif s.op == CALC_ROUND:
                self.calc.checked = True
            if s.op == CALC_CONSTANT:
                s.constant = <uint64_t*>malloc(CALC_ROWS * 8)
                if s.constant == NULL:
                    raise MemoryError
                for i in range(CALC_ROWS):
                    s.constant[i] = s.value
        if depth != 1:
            raise ValueError(f"{depth} values at the end of {steps!r}")
        self.calc.slot = <uint64_t*>malloc(<size_t>deepest * CALC_ROWS * 8)
        if self.calc.slot == NULL:
            raise MemoryError

    def __dealloc__(self):
        cdef int i
        for i in range(self.calc.steps):
            free(self.calc.step[i].constant)
        free(self.calc.step)
        free(self.calc.slot)

    def fill(self, Rows rows not None, int column):
        """Compute a column of ``rows``, of 8 bytes; returns the number of rows that do not fit: 0 there."""
        cdef uint8_t bad[CALC_ROWS]
        cdef uint32_t start = 0, n, i
        cdef uint64_t missing = 0
        if rows.layout is not self.layout or not 0 <= column < rows.layout.n:
            raise ValueError("the rows have another layout")
        if rows.layout.column[column].width != 8 or rows.layout.column[column].code in (BYTES, F32):
            raise ValueError(f"column {column} does not hold 64-bit numbers")
        while start < rows.total:
            n = min(<uint32_t>CALC_ROWS, rows.total - start)
            calc_run(&self.calc, <const uint8_t**>rows.column, NULL, start, n,
                     <uint64_t*>rows.column[column] + start, bad)
            if self.calc.checked:
                for i in range(n):
                    missing += bad[i] & CALC_NO_FIT
            start += n
        return missing
