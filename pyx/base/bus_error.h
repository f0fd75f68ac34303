/* One line for a page of a mapped file that cannot be read, in place of the kernel's "Bus error".
 *
 * The file became shorter, its disk has an error, or it is a hole and its file system (tmpfs) is full.  Only calls
 * that may be made in a handler of a signal; the path is that of the mapping in /proc/self/maps.
 */
#pragma once
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char cfl_bus_program[64];
static int cfl_bus_status;
static pid_t cfl_bus_process;
static struct sigaction cfl_bus_before;

static inline int cfl_bus_digit(char c) {
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* Whether `line` of /proc/self/maps (LOW-HIGH RIGHTS OFFSET DEVICE INODE PATH) has the address; then its path. */
static const char *cfl_bus_path(const char *line, uintptr_t address) {
    uintptr_t ends[2] = {0, 0};
    const char *p = line;
    int digit;
    for (int i = 0; i < 2; i++, p++)
        for (; (digit = cfl_bus_digit(*p)) >= 0; p++)
            ends[i] = ends[i] << 4 | (uintptr_t)digit;
    if (address < ends[0] || address >= ends[1])
        return NULL;
    return strchr(p, '/');
}

static void cfl_bus_say(const char *text) {
    ssize_t done = write(2, text, strlen(text));
    (void)done;
}

static void cfl_bus_caught(int number, siginfo_t *about, void *context) {
    static char line[8192];
    const char *path = NULL;
    size_t length = 0;
    char c;
    int fd = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
    (void)number, (void)context;
    while (path == NULL && fd >= 0 && read(fd, &c, 1) == 1) { /* slowly: it is the end of this process */
        if (c != '\n' && length < sizeof line - 1) {
            line[length++] = c < ' ' || c == 127 ? '?' : c;
            continue;
        }
        line[length] = 0;
        path = cfl_bus_path(line, (uintptr_t)about->si_addr);
        length = 0;
    }
    if (getpid() == cfl_bus_process) { /* of a fork, the parent does the work again */
        cfl_bus_say(cfl_bus_program);
        cfl_bus_say(": ");
        cfl_bus_say(path != NULL ? path : "a mapped file");
        cfl_bus_say(": a part of it cannot be read: it became shorter, or its disk has an error or is full\n");
    }
    _exit(cfl_bus_status);
}

/* Explain the errors of this process, which is `program`, and end it with `status`. */
static int cfl_bus_explain(const char *program, int status) {
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_sigaction = cfl_bus_caught;
    action.sa_flags = SA_SIGINFO;
    strncpy(cfl_bus_program, program, sizeof cfl_bus_program - 1);
    cfl_bus_status = status;
    cfl_bus_process = getpid();
    return sigaction(SIGBUS, &action, &cfl_bus_before);
}

static int cfl_bus_leave(void) {
    return sigaction(SIGBUS, &cfl_bus_before, NULL);
}
