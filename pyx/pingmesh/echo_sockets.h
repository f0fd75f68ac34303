/* Sockets of echo probes: TCP handshakes, batches of datagrams, kernel time stamps. */
#ifndef CONFLUO_ECHO_SOCKETS_H
#define CONFLUO_ECHO_SOCKETS_H
#define _GNU_SOURCE 1
#include <errno.h>
#include <linux/errqueue.h>
#include <linux/net_tstamp.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdint.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#ifndef IP_LOCAL_PORT_RANGE
#define IP_LOCAL_PORT_RANGE 51
#endif
#ifndef IPV6_AUTOFLOWLABEL
#define IPV6_AUTOFLOWLABEL 70
#endif

enum { SYN_RETRIES = 2, EVENTS = 256 };
enum { WIRE_BATCH = 64, WIRE_HEAD = 56, WIRE_IDS = 2048, CONTROL = 192 };

typedef union {
    struct sockaddr any;
    struct sockaddr_in four;
    struct sockaddr_in6 six;
} Address;

static inline int64_t clock_ns(clockid_t id) {
    struct timespec t;
    clock_gettime(id, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}
static inline int64_t monotonic_ns(void) { return clock_ns(CLOCK_MONOTONIC); }
static inline int64_t wall_ns(void) { return clock_ns(CLOCK_REALTIME); }

static inline void address_set(Address *a, int version, const uint8_t *bytes, uint16_t port, uint32_t scope) {
    memset(a, 0, sizeof *a);
    if (version == 4) {
        a->four.sin_family = AF_INET;
        a->four.sin_port = htons(port);
        memcpy(&a->four.sin_addr, bytes, 4);
    } else {
        a->six.sin6_family = AF_INET6;
        a->six.sin6_port = htons(port);
        a->six.sin6_scope_id = scope;
        memcpy(&a->six.sin6_addr, bytes, 16);
    }
}
static inline socklen_t address_size(const Address *a) {
    return a->any.sa_family == AF_INET ? sizeof a->four : sizeof a->six;
}
static inline uint16_t address_port(const Address *a) { return ntohs(a->four.sin_port); } /* same place in both */
static inline const uint8_t *address_bytes(const Address *a) {
    return a->any.sa_family == AF_INET ? (const uint8_t *)&a->four.sin_addr : (const uint8_t *)&a->six.sin6_addr;
}
static inline int address_same(const Address *a, const Address *b) { /* ports are compared by the caller */
    return a->any.sa_family == b->any.sa_family &&
           memcmp(address_bytes(a), address_bytes(b), a->any.sa_family == AF_INET ? 4 : 16) == 0;
}
static inline int address_six(const Address *a) { return a->any.sa_family == AF_INET6; }

static inline int set_int(int fd, int level, int name, int value) {
    return setsockopt(fd, level, name, &value, sizeof value);
}
static inline void set_class(int fd, int six, int dscp) {
    if (dscp)
        set_int(fd, six ? IPPROTO_IPV6 : IPPROTO_IP, six ? IPV6_TCLASS : IP_TOS, dscp << 2);
}

/* The source address that this host uses towards `to`; -errno: no route. */
static inline int local_address(const Address *to, const Address *from, Address *self) {
    socklen_t size = sizeof *self;
    int fd = socket(to->any.sa_family, SOCK_DGRAM | SOCK_CLOEXEC, 0), bad = 0;
    Address there = *to;
    if (fd < 0)
        return -errno;
    if (there.four.sin_port == 0)
        there.four.sin_port = htons(9);
    memset(self, 0, sizeof *self);
    if ((from->any.sa_family && bind(fd, &from->any, address_size(from))) ||
        connect(fd, &there.any, address_size(to)) || getsockname(fd, &self->any, &size))
        bad = -errno;
    close(fd);
    return bad;
}

/* -- TCP */

/* Start to connect at time `begun`.  `port`: source port, 0: the kernel's choice.  Returns the socket or -errno. */
static inline int tcp_begin(const Address *to, const Address *from, uint16_t port, int dscp, int nodelay, Address *self,
                            int64_t *begun) {
    static const struct linger reset = {1, 0};
    socklen_t size = sizeof *self;
    int six = to->any.sa_family == AF_INET6, bad;
    int fd = socket(to->any.sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return -errno;
    setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
    set_int(fd, IPPROTO_TCP, TCP_SYNCNT, SYN_RETRIES);
    set_class(fd, six, dscp);
    if (six) /* flow label 0: Linux changes the label with each retry, and thereby the path */
        set_int(fd, IPPROTO_IPV6, IPV6_AUTOFLOWLABEL, 0);
    if (nodelay)
        set_int(fd, IPPROTO_TCP, TCP_NODELAY, 1);
    if (from->any.sa_family) {
        Address bound = *from;
        bound.four.sin_port = 0;
        set_int(fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, 1);
        if (bind(fd, &bound.any, address_size(&bound)))
            goto failed;
    }
    if (port && set_int(fd, IPPROTO_IP, IP_LOCAL_PORT_RANGE, (int)((uint32_t)port << 16 | port))) {
        Address bound; /* a kernel before 6.3 */
        if (from->any.sa_family)
            bound = *from;
        else {
            memset(&bound, 0, sizeof bound);
            bound.any.sa_family = to->any.sa_family;
        }
        bound.four.sin_port = htons(port);
        if (!from->any.sa_family) {
            set_int(fd, SOL_SOCKET, SO_REUSEADDR, 1);
            if (bind(fd, &bound.any, address_size(&bound)))
                goto failed;
        }
    }
    *begun = monotonic_ns();
    if (connect(fd, &to->any, address_size(to)) && errno != EINPROGRESS)
        goto failed;
    if (getsockname(fd, &self->any, &size))
        goto failed;
    return fd;
failed:
    bad = -errno;
    close(fd);
    return bad;
}

typedef struct {
    uint32_t rtt;     /* us */
    uint32_t retries; /* SYNs sent again */
    uint8_t stamped;  /* TCP time stamps are in use */
    uint8_t open;     /* the handshake completed */
    int error;
} Handshake;

static inline void tcp_state(int fd, Handshake *h) {
    uint8_t info[104];
    socklen_t size = sizeof info;
    memset(info, 0, sizeof info);
    memset(h, 0, sizeof *h);
    if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, info, &size)) {
        h->error = errno;
        return;
    }
    memcpy(&h->rtt, info + 68, 4);
    memcpy(&h->retries, info + 100, 4);
    h->stamped = info[5] & TCPI_OPT_TIMESTAMPS;
    h->open = info[0] != TCP_SYN_SENT && info[0] != TCP_CLOSE;
    if (!h->open) {
        size = sizeof h->error;
        if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &h->error, &size))
            h->error = errno;
        h->open = h->error == ECONNRESET || h->error == EPIPE; /* possible only after the SYN-ACK */
    }
}

static inline int watch_fd(int ep, int op, int fd, uint32_t events, uint64_t data) {
    struct epoll_event e = {.events = events, .data.u64 = data};
    return epoll_ctl(ep, op, fd, &e) ? -errno : 0;
}

/* Wait up to `ns`; number of events, or -errno. */
static inline int wait_events(int ep, struct epoll_event *e, int n, int64_t ns) {
    static int coarse;
    int got;
    if (ns <= 0)
        got = epoll_wait(ep, e, n, 0);
    else {
#ifdef SYS_epoll_pwait2
        if (!coarse) {
            struct timespec t = {.tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000};
            got = (int)syscall(SYS_epoll_pwait2, ep, e, n, &t, NULL, (size_t)8);
            if (got >= 0 || errno != ENOSYS)
                return got < 0 ? -errno : got;
            coarse = 1;
        }
#endif
        int64_t ms = (ns + 999999) / 1000000;
        got = epoll_wait(ep, e, n, ms > 60000 ? 60000 : (int)ms);
    }
    return got < 0 ? -errno : got;
}

/* -- datagrams */

typedef struct {
    int fd;
    uint8_t six, icmp, dscp, stamps;
    uint16_t port;              /* source port; of ICMP: the identifier */
    unsigned n;                 /* datagrams queued */
    uint32_t id;                /* the kernel's number of the next datagram (SOF_TIMESTAMPING_OPT_ID) */
    uint32_t slot[WIRE_BATCH];
    _Alignas(8) uint8_t head[WIRE_BATCH][WIRE_HEAD];
    struct iovec vec[WIRE_BATCH][2];
    struct mmsghdr out[WIRE_BATCH];
    uint32_t ids[WIRE_IDS];     /* slots of the last datagrams sent, by that number */
} Wire;

typedef struct {
    struct mmsghdr head[WIRE_BATCH];
    struct iovec vec[WIRE_BATCH][2];
    Address from[WIRE_BATCH];
    uint8_t bytes[WIRE_BATCH][WIRE_HEAD];
    _Alignas(16) uint8_t control[WIRE_BATCH][CONTROL];
} DatagramBatch;

typedef struct {
    uint32_t size;              /* of the datagram */
    uint32_t have;              /* bytes of it in `bytes` */
    const uint8_t *bytes;
    const Address *from;
    int64_t stamp;              /* wall time of the kernel, 0: unknown */
    int error, origin;          /* from the error queue */
    uint32_t id;
} ReceivedDatagram;

/* Open a socket for datagrams; 0 or -errno. */
static inline int wire_open(Wire *w, int six, int icmp, int dscp, int stamps, const Address *from) {
    Address self;
    socklen_t size = sizeof self;
    int bad, family = six ? AF_INET6 : AF_INET, flags;
    int proto = !icmp ? IPPROTO_UDP : six ? IPPROTO_ICMPV6 : IPPROTO_ICMP;
    memset(w, 0, sizeof *w);
    w->fd = socket(family, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, proto);
    if (w->fd < 0)
        return -errno;
    w->six = (uint8_t)six, w->icmp = (uint8_t)icmp, w->dscp = (uint8_t)dscp, w->stamps = (uint8_t)stamps;
    set_class(w->fd, six, dscp);
    if (six)
        set_int(w->fd, IPPROTO_IPV6, IPV6_V6ONLY, 1);
    set_int(w->fd, six ? IPPROTO_IPV6 : IPPROTO_IP, six ? IPV6_RECVERR : IP_RECVERR, 1);
    if (set_int(w->fd, SOL_SOCKET, SO_RCVBUFFORCE, 4 << 20))
        set_int(w->fd, SOL_SOCKET, SO_RCVBUF, 4 << 20);
    if (set_int(w->fd, SOL_SOCKET, SO_SNDBUFFORCE, 4 << 20))
        set_int(w->fd, SOL_SOCKET, SO_SNDBUF, 4 << 20);
    flags = SOF_TIMESTAMPING_RX_SOFTWARE | SOF_TIMESTAMPING_SOFTWARE;
    if (stamps)
        flags |= SOF_TIMESTAMPING_TX_SOFTWARE | SOF_TIMESTAMPING_OPT_ID | SOF_TIMESTAMPING_OPT_TSONLY;
    set_int(w->fd, SOL_SOCKET, SO_TIMESTAMPING, flags);
    if (from->any.sa_family) {
        self = *from;
        self.four.sin_port = 0;
    } else {
        memset(&self, 0, sizeof self);
        self.any.sa_family = (sa_family_t)family;
    }
    if (bind(w->fd, &self.any, address_size(&self)) || getsockname(w->fd, &self.any, &size)) {
        bad = -errno;
        close(w->fd);
        w->fd = -1;
        return bad;
    }
    w->port = address_port(&self);
    return 0;
}

/* Queue a datagram: `head` bytes, which the caller writes to the result, then `more` bytes of `padding`. */
static inline uint8_t *wire_next(Wire *w, const Address *to, uint32_t slot, uint32_t head, const uint8_t *padding,
                                 uint32_t more) {
    unsigned i = w->n++;
    struct msghdr *m = &w->out[i].msg_hdr;
    memset(m, 0, sizeof *m);
    m->msg_name = (void *)&to->any;
    m->msg_namelen = address_size(to);
    w->vec[i][0] = (struct iovec){w->head[i], head};
    w->vec[i][1] = (struct iovec){(void *)padding, more};
    m->msg_iov = w->vec[i];
    m->msg_iovlen = more ? 2 : 1;
    w->slot[i] = slot;
    return w->head[i];
}

static inline int wire_send(Wire *w, unsigned from) {
    int n = sendmmsg(w->fd, w->out + from, w->n - from, MSG_DONTWAIT);
    if (n < 0)
        return -errno;
    if (w->stamps)
        for (int i = 0; i < n; i++)
            w->ids[w->id++ % WIRE_IDS] = w->slot[from + i];
    return n;
}

/* Receive up to `limit` datagrams, or entries of the error queue; number or -errno.  `sink`: 64 KiB for the unused rest
 * of a datagram, because ping sockets do not report the length of a truncated one. */
static inline int wire_receive(Wire *w, DatagramBatch *l, unsigned limit, int errors, uint8_t *sink) {
    int n;
    if (limit > WIRE_BATCH)
        limit = WIRE_BATCH;
    for (unsigned i = 0; i < limit; i++) {
        struct msghdr *m = &l->head[i].msg_hdr;
        l->vec[i][0] = (struct iovec){l->bytes[i], WIRE_HEAD};
        l->vec[i][1] = (struct iovec){sink, 65536};
        m->msg_name = &l->from[i];
        m->msg_namelen = sizeof l->from[i];
        m->msg_iov = l->vec[i];
        m->msg_iovlen = w->icmp ? 2 : 1;
        m->msg_control = l->control[i];
        m->msg_controllen = CONTROL;
        m->msg_flags = 0;
    }
    n = recvmmsg(w->fd, l->head, limit, MSG_DONTWAIT | MSG_TRUNC | (errors ? MSG_ERRQUEUE : 0), NULL);
    return n < 0 ? -errno : n;
}

static inline void get_datagram(DatagramBatch *l, int i, ReceivedDatagram *out) {
    struct msghdr *m = &l->head[i].msg_hdr;
    memset(out, 0, sizeof *out);
    out->size = l->head[i].msg_len;
    out->have = out->size < WIRE_HEAD ? out->size : WIRE_HEAD;
    out->bytes = l->bytes[i];
    out->from = &l->from[i];
    for (struct cmsghdr *c = CMSG_FIRSTHDR(m); c; c = CMSG_NXTHDR(m, c)) {
        if (c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_TIMESTAMPING &&
            c->cmsg_len >= CMSG_LEN(sizeof(struct timespec))) {
            struct timespec t;
            memcpy(&t, CMSG_DATA(c), sizeof t);
            out->stamp = (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
        } else if (((c->cmsg_level == IPPROTO_IP && c->cmsg_type == IP_RECVERR) ||
                    (c->cmsg_level == IPPROTO_IPV6 && c->cmsg_type == IPV6_RECVERR)) &&
                   c->cmsg_len >= CMSG_LEN(sizeof(struct sock_extended_err))) {
            struct sock_extended_err e;
            memcpy(&e, CMSG_DATA(c), sizeof e);
            out->error = (int)e.ee_errno;
            out->origin = e.ee_origin;
            out->id = e.ee_data;
        }
    }
}

/* Wait until the socket is writable, up to `milliseconds`. */
static inline void wait_writable(int fd, int milliseconds) {
    struct pollfd p = {.fd = fd, .events = POLLOUT};
    poll(&p, 1, milliseconds);
}
#endif
