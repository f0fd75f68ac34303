# Dates of the Gregorian calendar and days since 1970-01-01 (algorithms of H. Hinnant).

from libc.stdint cimport int64_t, uint32_t

cdef inline int64_t civil_floor(int64_t a, int64_t b) noexcept nogil:
    cdef int64_t q = a // b
    return q - 1 if a % b < 0 else q

cdef inline int64_t days_of(int64_t y, uint32_t m, uint32_t d) noexcept nogil:
    """The days since 1970-01-01 of a date."""
    cdef int64_t era
    cdef uint32_t yoe, doy
    if m <= 2:
        y -= 1
    era = civil_floor(y, 400)
    yoe = <uint32_t>(y - era * 400)
    doy = (153 * (m - 3 if m > 2 else m + 9) + 2) // 5 + d - 1
    return era * 146097 + <int64_t>(yoe * 365 + yoe // 4 - yoe // 100 + doy) - 719468

cdef inline int64_t date_of(int64_t days, uint32_t* month, uint32_t* day) noexcept nogil:
    """The year of a day, its month and its day of the month."""
    cdef int64_t z = days + 719468, era = civil_floor(z, 146097)
    cdef uint32_t doe = <uint32_t>(z - era * 146097)
    cdef uint32_t yoe = (doe - doe // 1460 + doe // 36524 - doe // 146096) // 365
    cdef uint32_t doy = doe - (365 * yoe + yoe // 4 - yoe // 100)
    cdef uint32_t mp = (5 * doy + 2) // 153
    day[0] = doy - (153 * mp + 2) // 5 + 1
    month[0] = mp + 3 if mp < 10 else mp - 9
    return era * 400 + yoe + (1 if month[0] <= 2 else 0)
