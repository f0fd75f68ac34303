# Stack machine over 64-bit integers that runs the programs of a state definition on the state of one key.
# expr/machine.py compiles and checks the programs (stack depth, operands); it uses the same opcode numbers.

from libc.stdint cimport INT64_MIN, int8_t, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy

cdef enum:
    STACK = 64                  # deepest stack of a program
    MAX_STATES = 32
    MAX_INPUTS = 64
    MAX_OUTPUTS = 64

cdef enum Op:
    OP_END = 0
    OP_CONST = 1                # operand: number in the pool of constants
    OP_INPUT = 2                # operand: field of the record
    OP_STATE = 3                # operand: field of the state
    OP_OTHER = 4                # operand: field of the state that is merged in
    OP_FRESH = 5                # is this the first record of its key?
    OP_ADD = 6
    OP_SUB = 7
    OP_MUL = 8
    OP_DIV = 9                  # towards zero; by zero: zero
    OP_MIN = 10
    OP_MAX = 11
    OP_LT = 12
    OP_LE = 13
    OP_EQ = 14
    OP_NE = 15
    OP_AND = 16
    OP_OR = 17
    OP_NOT = 18
    OP_SERIAL_SUB = 19          # difference of two 32-bit serial numbers
    OP_WRAP = 20                # to 32 bits
    OP_SERIAL_LT = 21
    OP_SERIAL_LE = 22
    OP_SERIAL_MIN = 23
    OP_SERIAL_MAX = 24
    OP_BITS = 25                # a & b
    OP_SET = 26                 # operand: field of the state
    OP_OUT = 27                 # operand: output
    OP_UNLESS = 28              # operand: jump target if the top is zero

cdef struct Frame:              # of one step
    const int64_t* input
    const int64_t* other
    int64_t* state
    int64_t* output
    bint fresh


cdef inline int64_t fit(int code, int64_t v) noexcept nogil:
    """v truncated to a field of this physical type (c_block.Code)."""
    if code == 1:
        return <uint8_t>v
    if code == 2:
        return <uint16_t>v
    if code == 3:
        return <uint32_t>v
    if code == 5:
        return <int8_t>v
    if code == 6:
        return <int16_t>v
    if code == 7:
        return <int32_t>v
    return v


cdef inline void machine_run(const int32_t* p, const int64_t* pool, const uint8_t* code, Frame* f) noexcept nogil:
    """Run a program.  Arithmetic wraps around."""
    cdef int64_t stack[STACK]
    cdef int64_t* top = stack - 1
    cdef int64_t a, b
    cdef int32_t op
    cdef const int32_t* begin = p
    while True:
        op = p[0]
        if op == OP_END:
            return
        elif op == OP_CONST:
            top += 1
            top[0] = pool[p[1]]
            p += 2
            continue
        elif op == OP_INPUT:
            top += 1
            top[0] = f.input[p[1]]
            p += 2
            continue
        elif op == OP_STATE:
            top += 1
            top[0] = f.state[p[1]]
            p += 2
            continue
        elif op == OP_OTHER:
            top += 1
            top[0] = f.other[p[1]]
            p += 2
            continue
        elif op == OP_FRESH:
            top += 1
            top[0] = f.fresh
            p += 1
            continue
        elif op == OP_SET:
            f.state[p[1]] = fit(code[p[1]], top[0])
            top -= 1
            p += 2
            continue
        elif op == OP_OUT:
            f.output[p[1]] = top[0]
            top -= 1
            p += 2
            continue
        elif op == OP_UNLESS:
            p = begin + p[1] if top[0] == 0 else p + 2
            top -= 1
            continue
        elif op == OP_NOT:
            top[0] = top[0] == 0
            p += 1
            continue
        elif op == OP_WRAP:
            top[0] = <uint32_t>top[0]
            p += 1
            continue
        b = top[0]
        top -= 1
        a = top[0]
        p += 1
        if op == OP_ADD:
            a = <int64_t>(<uint64_t>a + <uint64_t>b)
        elif op == OP_SUB:
            a = <int64_t>(<uint64_t>a - <uint64_t>b)
        elif op == OP_MUL:
            a = <int64_t>(<uint64_t>a * <uint64_t>b)
        elif op == OP_DIV:
            if b == 0:
                a = 0
            elif b == -1:
                a = <int64_t>(0 - <uint64_t>a)
            else:
                a = a // b
        elif op == OP_MIN:
            a = a if a < b else b
        elif op == OP_MAX:
            a = a if a > b else b
        elif op == OP_LT:
            a = a < b
        elif op == OP_LE:
            a = a <= b
        elif op == OP_EQ:
            a = a == b
        elif op == OP_NE:
            a = a != b
        elif op == OP_AND:
            a = a != 0 and b != 0
        elif op == OP_OR:
            a = a != 0 or b != 0
        elif op == OP_SERIAL_SUB:
            a = <int32_t>(<uint32_t>a - <uint32_t>b)
        elif op == OP_SERIAL_LT:
            a = <int32_t>(<uint32_t>a - <uint32_t>b) < 0
        elif op == OP_SERIAL_LE:
            a = <int32_t>(<uint32_t>a - <uint32_t>b) <= 0
        elif op == OP_SERIAL_MIN:
            a = a if <int32_t>(<uint32_t>a - <uint32_t>b) < 0 else b
        elif op == OP_SERIAL_MAX:
            a = b if <int32_t>(<uint32_t>a - <uint32_t>b) < 0 else a
        else:                       # OP_BITS
            a = a & b
        top[0] = a


cdef inline int64_t load_integer(int code, const uint8_t* p) noexcept nogil:
    """An integer column's value; u64 as its bits."""
    cdef uint16_t u16
    cdef uint32_t u32
    cdef int64_t i64
    if code == 1:
        return p[0]
    if code == 5:
        return <int8_t>p[0]
    if code == 2 or code == 6:
        memcpy(&u16, p, 2)
        return fit(code, u16)
    if code == 3 or code == 7:
        memcpy(&u32, p, 4)
        return fit(code, u32)
    memcpy(&i64, p, 8)
    return i64


cdef inline void store_integer(uint32_t width, uint8_t* p, int64_t v) noexcept nogil:
    memcpy(p, &v, width)            # little endian, like the columns
