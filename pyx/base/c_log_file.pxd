# Opening a file in the folder of a log, which other users may be able to write: never through a link, never a FIFO or a
# device, never a file that was there when a new one is wanted.  The only place where files of a log are opened.

from libc.errno cimport EINVAL, ENOENT, ENXIO, errno
from posix.fcntl cimport O_CLOEXEC, O_CREAT, O_EXCL, O_NONBLOCK, O_TRUNC
from posix.stat cimport fstat, struct_stat, S_IFMT, S_IFREG
from posix.unistd cimport close
from c_posix cimport openat, unlinkat

cdef extern from "<fcntl.h>" nogil:
    enum: AT_FDCWD
    enum: O_NOFOLLOW


cdef inline int open_log_file_at(int folder, const char* name, int flags, int mode) noexcept nogil:
    """A descriptor, or -errno: ELOOP for a link, EINVAL for what is neither a regular file nor a folder.

    O_TRUNC: a new file; one with this name is removed before.
    """
    cdef struct_stat st
    cdef int fd, code = 0
    if flags & O_TRUNC:
        if unlinkat(folder, name, 0) and errno != ENOENT:
            return -errno
        flags = (flags & ~O_TRUNC) | O_CREAT | O_EXCL
    fd = openat(folder, name, flags | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, mode)
    if fd < 0:
        return -EINVAL if errno == ENXIO else -errno        # a FIFO without a reader, a socket
    if fstat(fd, &st):
        code = errno
    elif st.st_mode & S_IFMT != S_IFREG:
        code = EINVAL
    if code:
        close(fd)
        return -code
    return fd
