/* Datagrams of UDP sockets in batches, with the time at which the kernel received each. */
#ifndef CONFLUO_EXPORT_SOCKETS_H
#define CONFLUO_EXPORT_SOCKETS_H
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <time.h>

enum {
    BATCH_DATAGRAMS = 64,
    DATAGRAM_BYTES = 65536,
    DATAGRAM_STEP = DATAGRAM_BYTES + 21 * 64, /* at a power of two, all datagrams would share a few sets of the caches */
    CONTROL_BYTES = 64,
    BATCH_BYTES = BATCH_DATAGRAMS * DATAGRAM_STEP
};

typedef struct {
    struct mmsghdr in[BATCH_DATAGRAMS];
    struct iovec vec[BATCH_DATAGRAMS];
    struct sockaddr_in6 name[BATCH_DATAGRAMS]; /* of either family */
    _Alignas(16) char control[BATCH_DATAGRAMS][CONTROL_BYTES];
    uint8_t *bytes;                            /* BATCH_BYTES */
} DatagramBatch;

/* Datagrams received without waiting, or minus errno. */
static inline int datagrams_receive(DatagramBatch *b, int fd) {
    for (int i = 0; i < BATCH_DATAGRAMS; i++) {
        struct msghdr *m = &b->in[i].msg_hdr;
        b->vec[i].iov_base = b->bytes + (size_t)i * DATAGRAM_STEP;
        b->vec[i].iov_len = DATAGRAM_BYTES;
        m->msg_iov = &b->vec[i];
        m->msg_iovlen = 1;
        m->msg_name = &b->name[i];
        m->msg_namelen = sizeof b->name[i];
        m->msg_control = b->control[i];
        m->msg_controllen = CONTROL_BYTES;
        m->msg_flags = 0;
    }
    int n = recvmmsg(fd, b->in, BATCH_DATAGRAMS, MSG_DONTWAIT, NULL);
    return n < 0 ? -errno : n;
}

static inline uint32_t datagram_size(const DatagramBatch *b, int i) { return b->in[i].msg_len; }

/* Its sender: 16 bytes of address (IPv4 as ::ffff:a.b.c.d); returns the port. */
static inline uint16_t datagram_sender(const DatagramBatch *b, int i, uint8_t *address) {
    const struct sockaddr_in6 *name = &b->name[i];
    if (name->sin6_family == AF_INET) {
        const struct sockaddr_in *four = (const struct sockaddr_in *)name;
        memset(address, 0, 10);
        memset(address + 10, 0xff, 2);
        memcpy(address + 12, &four->sin_addr, 4);
        return ntohs(four->sin_port);
    }
    memcpy(address, &name->sin6_addr, 16);
    return ntohs(name->sin6_port);
}

/* When the kernel received it, ns since 1970; else now. */
static inline int64_t datagram_time(DatagramBatch *b, int i) {
    struct msghdr *m = &b->in[i].msg_hdr;
    struct timespec t;
    for (struct cmsghdr *c = CMSG_FIRSTHDR(m); c; c = CMSG_NXTHDR(m, c)) {
        if (c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_TIMESTAMPNS && c->cmsg_len >= CMSG_LEN(sizeof t)) {
            memcpy(&t, CMSG_DATA(c), sizeof t);
            return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
        }
    }
    clock_gettime(CLOCK_REALTIME, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* Wait until a descriptor is readable or ms are over; -errno, or the number of those that are. */
static inline int wait_readable(struct pollfd *fds, int n, int ms) {
    int ready = poll(fds, n, ms);
    return ready < 0 ? -errno : ready;
}
#endif
