"""What shells of tests find in place of a command: has it forked, or starts it if a fork would not be the same.

It ends as the command ends, and passes signals on.  It starts sooner than a command: it loads what is built in only.
"""

import _signal
import _socket
import os
import sys

KEPT = ("Umask", "Uid", "Gid", "Groups", "SigBlk", "SigIgn", "Cap", "NoNewPrivs")
STANDARD = (1 << 31) - 1  # signals 1 to 31; posix_spawn ignores those that libc uses
NAMESPACES = ("cgroup", "ipc", "pid", "user", "uts")
ENTERED = ("net", "mnt")  # a fork enters these
PASSED_ON = (_signal.SIGHUP, _signal.SIGINT, _signal.SIGQUIT, _signal.SIGTERM, _signal.SIGUSR1, _signal.SIGUSR2)


def state() -> bytes:
    """What a process takes from its parent, but for its arguments, environment, directory and streams."""
    with open("/proc/self/status") as status, open("/proc/self/limits") as limits:
        found = [line for line in status if line.startswith(KEPT)] + limits.readlines()
    ignored = next(int(line[7:], 16) for line in found if line.startswith("SigIgn:"))
    found[:] = [line for line in found if not line.startswith("SigIgn:")] + [hex(ignored & STANDARD)]
    found += [os.readlink(f"/proc/self/ns/{name}") for name in NAMESPACES]
    return "\n".join([*found, str(os.nice(0))]).encode()


def packed(
    directory: bytes, words: list[bytes], environment: "dict[bytes, bytes]", space: bytes = b"", state: bytes = b""
) -> bytes:
    """A request, after its length: `command_forks.Request` reads it."""
    parts = [directory, space, state, b"%d" % len(words), *words, *(k + b"=" + v for k, v in environment.items())]
    text = b"\0".join(parts)
    return len(text).to_bytes(4, "little") + text


def number(fd: int) -> int:
    return int.from_bytes(os.read(fd, 4), "little", signed=True)


def main() -> None:
    folder, name = os.path.split(sys.argv[0])
    program = os.path.join(os.readlink(folder + "/bin"), name)
    words = [program, *sys.argv[1:]]
    plain = os.listdir("/proc/self/fd") == ["0", "1", "2", "3"] and not any(map(os.isatty, range(3)))  # 3: this folder
    if not plain:
        os.execv(program, words)
    answers, theirs = os.pipe()
    request = packed(os.getcwdb(), [os.fsencode(w) for w in words], dict(os.environb), b"", state())
    forks = _socket.socket(_socket.AF_UNIX)
    forks.connect(folder + "/forks")
    forks.sendall(request)
    spaces = [os.open(f"/proc/self/ns/{name}", os.O_RDONLY) for name in ENTERED]
    rights = b"".join(fd.to_bytes(4, sys.byteorder) for fd in (0, 1, 2, theirs, *spaces))
    forks.sendmsg([b"x"], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, rights)])
    forks.close()
    os.close(theirs)
    pid = number(answers)
    if pid < 0:
        os.execv(program, words)
    for signal in PASSED_ON:
        _signal.signal(signal, lambda signal, _: os.kill(pid, signal))
    for fd in range(3):
        os.close(fd)
    status = number(answers)
    if status >= 0:
        os._exit(status)
    _signal.signal(-status, _signal.SIG_DFL)
    os.kill(os.getpid(), -status)


if __name__ == "__main__":
    main()
