# Fault points: CONFLUO_FAULT=name:N kills the process (SIGKILL) at the N-th passing of the point `name`.
# Unarmed, a point is one predictable branch.  Tests kill writers with it between the steps of publish, seal,
# rotate and claim.  Each module counts for itself; a name is used in one place only.  The first point reads the
# variable, so that it may be set after the module was loaded, as in processes that are forks.

cdef extern from *:
    """
    #include <pthread.h>
    #include <signal.h>
    #include <stdlib.h>
    #include <string.h>
    #include <unistd.h>
    static char cfl_fault_name[64];
    static long cfl_fault_left;
    static int cfl_fault_armed = 1;
    static pthread_once_t cfl_fault_once = PTHREAD_ONCE_INIT;
    static void cfl_fault_init(void) {
        const char *text = getenv("CONFLUO_FAULT"), *colon = text ? strrchr(text, ':') : NULL;
        if (colon && (size_t)(colon - text) < sizeof cfl_fault_name) {
            memcpy(cfl_fault_name, text, colon - text);
            cfl_fault_left = atol(colon + 1);
        } else
            __atomic_store_n(&cfl_fault_armed, 0, __ATOMIC_RELAXED);
    }
    static void __attribute__((noinline, cold)) cfl_fault_passed(const char *name) {
        pthread_once(&cfl_fault_once, cfl_fault_init);
        if (!strcmp(name, cfl_fault_name) && __atomic_sub_fetch(&cfl_fault_left, 1, __ATOMIC_SEQ_CST) == 0)
            kill(getpid(), SIGKILL);
    }
    static inline void cfl_fault(const char *name) {
        if (__builtin_expect(__atomic_load_n(&cfl_fault_armed, __ATOMIC_RELAXED), 0))
            cfl_fault_passed(name);
    }
    """
    void fault_point "cfl_fault"(const char* name) noexcept nogil
