# Fault points: CONFLUO_FAULT=name:N kills the process (SIGKILL) at the N-th passing of the point `name`.
# Unarmed, a point is one predictable branch.  Tests kill writers with it between the steps of publish, seal,
# rotate and claim.  Each module counts for itself; a name is used in one place only.

cdef extern from *:
    """
    #include <signal.h>
    #include <stdlib.h>
    #include <string.h>
    #include <unistd.h>
    static char cfl_fault_name[64];
    static long cfl_fault_left;
    static int cfl_fault_armed;
    __attribute__((constructor)) static void cfl_fault_init(void) {
        const char *text = getenv("CONFLUO_FAULT"), *colon = text ? strrchr(text, ':') : NULL;
        if (!colon || (size_t)(colon - text) >= sizeof cfl_fault_name)
            return;
        memcpy(cfl_fault_name, text, colon - text);
        cfl_fault_left = atol(colon + 1);
        cfl_fault_armed = 1;
    }
    static inline void cfl_fault(const char *name) {
        if (__builtin_expect(cfl_fault_armed, 0) && !strcmp(name, cfl_fault_name)
            && __atomic_sub_fetch(&cfl_fault_left, 1, __ATOMIC_SEQ_CST) == 0)
            kill(getpid(), SIGKILL);
    }
    """
    void fault_point "cfl_fault"(const char* name) noexcept nogil
