"""Opening files in the folder of a log, acting there as the user who owns it, and errors of mapped files."""

from libc.errno cimport EINVAL, ELOOP
from posix.fcntl cimport O_RDONLY
from c_log_file cimport AT_FDCWD, open_log_file_at
cimport cython
import os

cdef extern from *:
    """
    #include <sys/fsuid.h>
    #include <sys/syscall.h>
    #include <unistd.h>
    /* The system call: that of libc changes the groups of all threads. */
    static int confluo_set_groups(long n, const gid_t *groups) { return syscall(SYS_setgroups, n, groups); }
    """
    int setfsuid(unsigned int uid) nogil
    int setfsgid(unsigned int gid) nogil
    int confluo_set_groups(long n, const unsigned int* groups) nogil

cdef extern from "bus_error.h" nogil:
    int cfl_bus_explain(const char* program, int status)
    int cfl_bus_leave()


def open_log_file(path, int flags=O_RDONLY, int mode=0o666, *, int folder=-1):
    """Open a file of a log: a descriptor, closed on exec.  It fits as ``opener`` of `open`.

    ``folder``: descriptor of the folder to which a relative ``path`` belongs.  With O_TRUNC the file is a new one.
    Raises OSError for a link, and for what is not a regular file; it never waits.
    """
    cdef int fd
    cdef bytes name = os.fsencode(path)
    fd = open_log_file_at(folder if folder >= 0 else AT_FDCWD, name, flags, mode)
    if fd == -ELOOP:
        raise OSError(ELOOP, "is a symbolic link, which a log must not contain", path)
    if fd == -EINVAL:
        raise OSError(EINVAL, "is not a regular file", path)
    if fd < 0:
        raise OSError(-fd, os.strerror(-fd), path)
    return fd


@cython.final
cdef class FileSystemUser:
    """A context in which this thread opens, creates, renames and removes files as another user, without his groups.

    Only for root; other threads are not affected, except those started in the context.
    """

    cdef unsigned int uid, gid, before_uid, before_gid
    cdef list groups

    def __cinit__(self, unsigned int uid, unsigned int gid):
        self.uid, self.gid = uid, gid

    def __enter__(self):
        self.groups = os.getgroups()
        confluo_set_groups(0, NULL)
        self.before_gid = setfsgid(self.gid)
        self.before_uid = setfsuid(self.uid)        # last: it takes the capabilities for files away
        if setfsuid(-1) != <int>self.uid:
            self._restore()
            raise OSError(1, f"cannot act as user {self.uid}, who owns the log")
        return self

    def __exit__(self, *error):
        self._restore()

    cdef void _restore(self):
        cdef unsigned int groups[65536]
        cdef int i, n = min(len(self.groups), 65536)
        for i in range(n):
            groups[i] = self.groups[i]
        setfsuid(self.before_uid)
        setfsgid(self.before_gid)
        confluo_set_groups(n, groups)


def explain_bus_errors(str program not None, int status):
    """Until `leave_bus_errors`, end this process with one line and ``status`` where a mapped file cannot be read."""
    cdef bytes name = program.encode()
    if cfl_bus_explain(name, status) < 0:
        raise OSError(EINVAL, os.strerror(EINVAL))


def leave_bus_errors():
    """What was before `explain_bus_errors`."""
    cfl_bus_leave()
