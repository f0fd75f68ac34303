"""Algorithm 1 of DETER over arrays of times.  confluo_tools/replay/sampling.py is the definition."""

from array import array
from libc.stdint cimport INT64_MAX, int64_t, uint32_t, uint64_t
from c_sampling cimport RateSampler, TimeRun, sampler_begin, sampler_flush, sampler_offer
cimport cython

cdef enum:
    AT_ONCE = 4096


@cython.final
cdef class RunList:
    """Runs: arrays ``times`` and ``steps`` (int64, ns) and ``counts`` (uint32) of the same length."""

    cdef readonly object times
    cdef readonly object steps
    cdef readonly object counts

    def __init__(self):
        self.times, self.steps, self.counts = array("q"), array("q"), array("I")

    def __len__(self):
        return len(self.times)

    cdef int add(self, const TimeRun* runs, size_t n) except -1:
        cdef int64_t[AT_ONCE] times, steps
        cdef uint32_t[AT_ONCE] counts
        cdef size_t i
        for i in range(n):
            times[i], steps[i], counts[i] = runs[i].time, runs[i].step, runs[i].count
        self.times.frombytes((<const char*>times)[:n * 8])
        self.steps.frombytes((<const char*>steps)[:n * 8])
        self.counts.frombytes((<const char*>counts)[:n * 4])
        return 0


@cython.final
cdef class RunSampler:
    """Algorithm 1 for one flow; its times come in pieces.  ``threshold`` in ns, from 0 up to 2^62 - 1."""

    cdef RateSampler state
    cdef readonly int64_t threshold

    def __init__(self, int64_t threshold):
        if not 0 <= threshold < <int64_t>1 << 62:
            raise ValueError("the threshold")
        self.threshold = threshold
        sampler_begin(&self.state)

    def offer(self, const int64_t[::1] times not None):
        """The runs that end within ``times`` (ns)."""
        cdef TimeRun[AT_ONCE] runs
        cdef Py_ssize_t i = 0, size = times.shape[0]
        cdef size_t n
        found = RunList()
        while i < size:
            n = 0
            with nogil:
                while i < size and n < AT_ONCE:
                    n += sampler_offer(&self.state, times[i], self.threshold, &runs[n])
                    i += 1
            found.add(runs, n)
        return found

    def flush(self):
        """The last run, or none."""
        cdef TimeRun run
        found = RunList()
        if sampler_flush(&self.state, &run):
            found.add(&run, 1)
        return found


def infer_times(const int64_t[::1] times not None, const int64_t[::1] steps not None,
                const uint32_t[::1] counts not None):
    """The time of each packet of runs (arrays as of `RunList`), as `inferred_times` of sampling.py gives them.

    MemoryError where they do not fit; ValueError for arrays of different lengths.
    """
    cdef Py_ssize_t i, n = times.shape[0], total = 0, at = 0
    cdef int64_t t, last
    cdef uint32_t _k
    cdef int64_t[::1] into
    if steps.shape[0] != n or counts.shape[0] != n:
        raise ValueError("arrays of different lengths")
    for i in range(n):
        total += counts[i]
    out = array("q", [0]) * total
    if not total:
        return out
    into = out
    with nogil:
        for i in range(n):
            last = INT64_MAX
            if i + 1 < n and times[i + 1] > times[i]:
                last = times[i + 1]
            t = times[i]
            for _k in range(counts[i]):
                into[at] = min(t, last)
                t = <int64_t>(<uint64_t>t + <uint64_t>steps[i])     # those of a damaged file may wrap
                at += 1
    return out
