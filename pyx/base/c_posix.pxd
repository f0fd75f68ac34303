# Declarations of the C library and of Linux that Cython's libc.* and posix.* lack, each declared once.
# Structures that only one subject uses (rings of packet sockets, netlink) are declared there.

from libc.stdint cimport uint16_t, uint32_t
from posix.time cimport timespec
from posix.types cimport mode_t, off_t

cdef extern from "<arpa/inet.h>" nogil:
    uint16_t ntohs(uint16_t v)
    uint32_t ntohl(uint32_t v)

cdef extern from "<fcntl.h>" nogil:
    int openat(int dir, const char* name, int flags, mode_t mode)
    int fallocate(int fd, int mode, off_t offset, off_t n)
    int posix_fallocate(int fd, off_t offset, off_t n)
    enum: FALLOC_FL_KEEP_SIZE
    enum: FALLOC_FL_PUNCH_HOLE

cdef extern from "<poll.h>" nogil:
    cdef struct pollfd:
        int fd
        short events
        short revents
    int poll(pollfd* fds, unsigned long n, int timeout)
    enum: POLLIN
    enum: POLLOUT
    enum: POLLERR
    enum: POLLHUP
    enum: POLLNVAL

cdef extern from "<pthread.h>" nogil:
    ctypedef struct pthread_t:
        pass
    ctypedef struct pthread_mutex_t:
        pass
    ctypedef struct pthread_cond_t:
        pass
    int pthread_create(pthread_t* thread, void* attributes, void* (*run)(void*) noexcept nogil, void* arg)
    int pthread_join(pthread_t thread, void** result)
    int pthread_mutex_init(pthread_mutex_t* m, void* attributes)
    int pthread_mutex_lock(pthread_mutex_t* m)
    int pthread_mutex_trylock(pthread_mutex_t* m)
    int pthread_mutex_unlock(pthread_mutex_t* m)
    ctypedef struct pthread_condattr_t:
        pass
    int pthread_condattr_init(pthread_condattr_t* a)
    int pthread_condattr_setclock(pthread_condattr_t* a, int clock)
    int pthread_cond_init(pthread_cond_t* c, void* attributes)
    int pthread_cond_broadcast(pthread_cond_t* c)
    int pthread_cond_wait(pthread_cond_t* c, pthread_mutex_t* m)
    int pthread_cond_timedwait(pthread_cond_t* c, pthread_mutex_t* m, const timespec* until)

cdef extern from "<signal.h>" nogil:
    ctypedef struct sigset_t:
        pass
    int sigfillset(sigset_t* set)
    int pthread_sigmask(int how, const sigset_t* set, sigset_t* old)
    enum: SIG_SETMASK

cdef extern from "<stdio.h>" nogil:
    int renameat(int from_dir, const char* from_name, int to_dir, const char* to_name)

cdef extern from "<sys/epoll.h>" nogil:
    ctypedef union epoll_data_t:
        uint32_t u32
    cdef struct epoll_event:
        uint32_t events
        epoll_data_t data
    int epoll_create1(int flags)
    int epoll_ctl(int fd, int op, int on, epoll_event* event)
    int epoll_wait(int fd, epoll_event* events, int n, int timeout)
    enum: EPOLL_CTL_ADD
    enum: EPOLL_CTL_DEL
    enum: EPOLLIN
    enum: EPOLL_CLOEXEC

cdef extern from "<sys/eventfd.h>" nogil:
    int eventfd(unsigned start, int flags)
    enum: EFD_CLOEXEC
    enum: EFD_NONBLOCK

cdef extern from *:
    """
    #include <sys/mman.h>
    #ifndef MADV_POPULATE_WRITE
    #define MADV_POPULATE_WRITE 23 /* Linux 5.14 */
    #endif
    """
    enum: MADV_POPULATE_WRITE

cdef extern from "<sys/socket.h>" nogil:
    cdef struct iovec:
        void* iov_base
        size_t iov_len
    cdef struct msghdr:
        void* msg_name
        unsigned int msg_namelen
        iovec* msg_iov
        size_t msg_iovlen
        int msg_flags
    cdef struct mmsghdr:
        msghdr msg_hdr
        unsigned int msg_len
    int socket(int family, int type, int protocol)
    int connect(int fd, const void* address, unsigned int size)
    ssize_t send(int fd, const void* data, size_t n, int flags)
    ssize_t recv(int fd, void* data, size_t n, int flags)
    int recvmmsg(int fd, mmsghdr* m, unsigned int n, int flags, timespec* timeout)
    enum: MSG_DONTWAIT
    enum: MSG_NOSIGNAL
    enum: MSG_TRUNC
    enum: AF_UNIX
    enum: SOCK_STREAM
    enum: SOCK_CLOEXEC

cdef extern from "<sys/un.h>" nogil:
    enum: SUN_PATH "sizeof(((struct sockaddr_un*)0)->sun_path)"
    cdef struct sockaddr_un:
        unsigned short sun_family
        char sun_path[108]

cdef extern from "<time.h>" nogil:
    enum: CLOCK_BOOTTIME

cdef extern from "<unistd.h>" nogil:
    ssize_t pread(int fd, void* data, size_t n, off_t offset)
    ssize_t pwrite(int fd, const void* data, size_t n, off_t offset)
    int unlinkat(int dir, const char* name, int flags)
    enum: SEEK_DATA
    enum: SEEK_HOLE
