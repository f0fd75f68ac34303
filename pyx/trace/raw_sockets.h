/* Batches of raw packets in and out: what sendmmsg(2) and recvmmsg(2) need around the bytes. */
#ifndef CONFLUO_PROBER_H
#define CONFLUO_PROBER_H
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdint.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <time.h>

enum { BATCH = 64, PROBE_ROOM = 64, ERROR_ROOM = 1280 };

typedef struct {
    struct mmsghdr head[BATCH];
    struct iovec vec[BATCH];
    struct sockaddr_in6 name[BATCH];    /* of either family */
    unsigned n;
} Mail;

typedef struct {
    Mail mail;
    uint8_t bytes[BATCH][PROBE_ROOM];
    uint32_t slot[BATCH];               /* flow of each probe */
} Outbox;

typedef struct {
    Mail mail;
    uint8_t bytes[BATCH][ERROR_ROOM];
} Inbox;

static inline int64_t prober_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* Room for the next probe; its address is set here, its bytes and length by the caller. */
static inline uint8_t *outbox_next(Outbox *o, int version, const uint8_t *dst, uint32_t slot) {
    unsigned i = o->mail.n++;
    struct sockaddr_in6 *name = &o->mail.name[i];
    struct msghdr *m = &o->mail.head[i].msg_hdr;
    memset(name, 0, sizeof *name);
    memset(m, 0, sizeof *m);
    if (version == 4) {
        struct sockaddr_in *in = (struct sockaddr_in *)name;
        in->sin_family = AF_INET;
        memcpy(&in->sin_addr, dst, 4);
        m->msg_namelen = sizeof *in;
    } else {
        name->sin6_family = AF_INET6;
        memcpy(&name->sin6_addr, dst, 16);
        m->msg_namelen = sizeof *name;
    }
    m->msg_name = name;
    o->mail.vec[i].iov_base = o->bytes[i];
    o->mail.vec[i].iov_len = version == 4 ? 40 : 60;
    m->msg_iov = &o->mail.vec[i];
    m->msg_iovlen = 1;
    o->slot[i] = slot;
    return o->bytes[i];
}

/* Packets sent of those from `from` on, or minus errno. */
static inline int outbox_send(Outbox *o, int fd, unsigned from) {
    int n = sendmmsg(fd, o->mail.head + from, o->mail.n - from, MSG_DONTWAIT);
    return n < 0 ? -errno : n;
}

/* Packets received, or minus errno. */
static inline int inbox_receive(Inbox *b, int fd) {
    for (int i = 0; i < BATCH; i++) {
        struct msghdr *m = &b->mail.head[i].msg_hdr;
        memset(m, 0, sizeof *m);
        b->mail.vec[i].iov_base = b->bytes[i];
        b->mail.vec[i].iov_len = ERROR_ROOM;
        m->msg_iov = &b->mail.vec[i];
        m->msg_iovlen = 1;
        m->msg_name = &b->mail.name[i];
        m->msg_namelen = sizeof b->mail.name[i];
    }
    int n = recvmmsg(fd, b->mail.head, BATCH, MSG_DONTWAIT, NULL);
    return n < 0 ? -errno : n;
}

static inline uint32_t inbox_length(const Inbox *b, int i) { return b->mail.head[i].msg_len; }
static inline const uint8_t *inbox_sender6(const Inbox *b, int i) { return (const uint8_t *)&b->mail.name[i].sin6_addr; }

/* Wait until a descriptor is ready (-1: none); bit i of the answer is that of fd[i]. */
static inline unsigned wait_for(const int *fd, const short *events, int n, int milliseconds) {
    struct pollfd p[8];
    unsigned ready = 0;
    for (int i = 0; i < n; i++)
        p[i] = (struct pollfd){.fd = fd[i], .events = events[i]};
    if (poll(p, n, milliseconds) > 0)
        for (int i = 0; i < n; i++)
            ready |= p[i].revents ? 1u << i : 0;
    return ready;
}

static inline int secret_bytes(void *out, size_t n) { return getrandom(out, n, 0) == (ssize_t)n ? 0 : -1; }
#endif
