# Large memory that is read at random: with 2 MiB pages a cache miss does not cost a walk of the page table too,
# and first touches are 512 times fewer.

cdef extern from *:
    """
    #include <stdint.h>
    #include <sys/mman.h>
    static inline void huge_pages(void *p, size_t size) {
        uintptr_t start = ((uintptr_t)p + 4095) & ~(uintptr_t)4095, end = ((uintptr_t)p + size) & ~(uintptr_t)4095;
        if (p && size >= (size_t)4 << 20 && end > start)
            (void)madvise((void *)start, end - start, MADV_HUGEPAGE); /* a wish */
    }
    """
    void huge_pages(void* p, size_t size) noexcept nogil
