/* What the responder needs of sockets: batches of datagrams that go back where they came from, epoll, accept. */
#ifndef CONFLUO_RESPONDER_H
#define CONFLUO_RESPONDER_H
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <netinet/in.h>
#include <stdint.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum { DATAGRAMS = 32, DATAGRAM = 65536, EVENTS = 256, ANCILLARY = 128, TOLD = 64 };

typedef struct {
    struct mmsghdr in[DATAGRAMS], out[DATAGRAMS];
    struct iovec vec[DATAGRAMS], back[DATAGRAMS];
    struct sockaddr_in6 name[DATAGRAMS];        /* of either family */
    _Alignas(16) char ancillary[DATAGRAMS][ANCILLARY];
    _Alignas(16) char told[DATAGRAMS][TOLD];    /* the address to answer from */
    int64_t stamp[DATAGRAMS];                   /* of answers: when the kernel got the question, 0: it did not say */
    uint8_t own[DATAGRAMS];                     /* it was sent to an address of ours alone */
    uint8_t *bytes;                             /* DATAGRAMS times DATAGRAM */
    unsigned n_out;
} Mailbag;

static inline int64_t clock_ns(int which) {
    struct timespec t;
    clock_gettime(which ? CLOCK_REALTIME : CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* Which address a datagram was sent to, and when the kernel got it. */
static inline void mailbag_read(Mailbag *b, int i) {
    struct msghdr *m = &b->in[i].msg_hdr, *o = &b->out[b->n_out].msg_hdr;
    struct cmsghdr *c;
    b->stamp[b->n_out] = 0;
    b->own[i] = 0;
    memset(o, 0, sizeof *o);
    for (c = CMSG_FIRSTHDR(m); c; c = CMSG_NXTHDR(m, c)) {
        if (c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_TIMESTAMPNS
                && c->cmsg_len >= CMSG_LEN(sizeof(struct timespec))) {
            struct timespec t;
            memcpy(&t, CMSG_DATA(c), sizeof t);
            b->stamp[b->n_out] = (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
            continue;
        }
        struct cmsghdr *to = (struct cmsghdr *)b->told[b->n_out];
        if (c->cmsg_level == IPPROTO_IP && c->cmsg_type == IP_PKTINFO
                && c->cmsg_len >= CMSG_LEN(sizeof(struct in_pktinfo))) {
            struct in_pktinfo info;
            memcpy(&info, CMSG_DATA(c), sizeof info);
            b->own[i] = info.ipi_addr.s_addr == info.ipi_spec_dst.s_addr;   /* not broadcast, not multicast */
            info.ipi_ifindex = 0;
            to->cmsg_level = IPPROTO_IP;
            to->cmsg_type = IP_PKTINFO;
            to->cmsg_len = CMSG_LEN(sizeof info);
            memcpy(CMSG_DATA(to), &info, sizeof info);
            o->msg_control = to;
            o->msg_controllen = CMSG_SPACE(sizeof info);
        } else if (c->cmsg_level == IPPROTO_IPV6 && c->cmsg_type == IPV6_PKTINFO
                && c->cmsg_len >= CMSG_LEN(sizeof(struct in6_pktinfo))) {
            struct in6_pktinfo info;
            memcpy(&info, CMSG_DATA(c), sizeof info);
            b->own[i] = info.ipi6_addr.s6_addr[0] != 0xff;
            if (!IN6_IS_ADDR_LINKLOCAL(&info.ipi6_addr))
                info.ipi6_ifindex = 0;
            to->cmsg_level = IPPROTO_IPV6;
            to->cmsg_type = IPV6_PKTINFO;
            to->cmsg_len = CMSG_LEN(sizeof info);
            memcpy(CMSG_DATA(to), &info, sizeof info);
            o->msg_control = to;
            o->msg_controllen = CMSG_SPACE(sizeof info);
        }
    }
}

/* Datagrams received, or minus errno. */
static inline int mailbag_receive(Mailbag *b, int fd) {
    for (int i = 0; i < DATAGRAMS; i++) {
        struct msghdr *m = &b->in[i].msg_hdr;
        b->vec[i].iov_base = b->bytes + (size_t)i * DATAGRAM;
        b->vec[i].iov_len = DATAGRAM;
        m->msg_iov = &b->vec[i];
        m->msg_iovlen = 1;
        m->msg_name = &b->name[i];
        m->msg_namelen = sizeof b->name[i];
        m->msg_control = b->ancillary[i];
        m->msg_controllen = ANCILLARY;
        m->msg_flags = 0;
    }
    b->n_out = 0;
    int n = recvmmsg(fd, b->in, DATAGRAMS, MSG_DONTWAIT, NULL);
    return n < 0 ? -errno : n;
}

static inline uint32_t mailbag_length(const Mailbag *b, int i) {
    return b->in[i].msg_hdr.msg_flags & MSG_TRUNC ? 0 : b->in[i].msg_len;
}

/* Datagram i goes back as it stands, as long as it came: never longer. */
static inline void mailbag_answer(Mailbag *b, int i) {
    struct msghdr *o = &b->out[b->n_out].msg_hdr;
    b->back[b->n_out].iov_base = b->bytes + (size_t)i * DATAGRAM;
    b->back[b->n_out].iov_len = b->in[i].msg_len;
    o->msg_iov = &b->back[b->n_out];
    o->msg_iovlen = 1;
    o->msg_name = &b->name[i];
    o->msg_namelen = b->in[i].msg_hdr.msg_namelen;
    b->n_out++;
}

static inline uint8_t *mailbag_out(const Mailbag *b, unsigned i) { return b->back[i].iov_base; }

static inline uint64_t mailbag_stamp(const Mailbag *b, unsigned i) { return (uint64_t)b->stamp[i]; }

/* How many answers left; those that the kernel refuses are skipped: nobody waits for a peer that cannot be reached. */
static inline unsigned mailbag_send(Mailbag *b, int fd) {
    unsigned at = 0, sent = 0;
    while (at < b->n_out) {
        int n = sendmmsg(fd, b->out + at, b->n_out - at, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n > 0) {
            at += n;
            sent += n;
        } else if (n < 0 && errno == EAGAIN) {
            break;
        } else {
            at++;
        }
    }
    return sent;
}

static inline int watch_fd(int poll, int how, int fd, uint32_t events, uint64_t tag) {
    struct epoll_event e = {.events = events, .data = {.u64 = tag}};
    return epoll_ctl(poll, how, fd, &e) ? -errno : 0;
}

static inline int next_connection(int fd) {
    int n = accept4(fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    return n < 0 ? -errno : n;
}

/* Bytes, 0 at the end, or minus errno. */
static inline int64_t receive_some(int fd, void *into, size_t n) {
    ssize_t got = recv(fd, into, n, MSG_DONTWAIT);
    return got < 0 ? -errno : got;
}

static inline int64_t send_some(int fd, const void *from, size_t n) {
    ssize_t sent = send(fd, from, n, MSG_DONTWAIT | MSG_NOSIGNAL);
    return sent < 0 ? -errno : sent;
}

/* Close, and let the kernel forget it at once: nothing is sent any more but a reset. */
static inline void close_hard(int fd) {
    struct linger now = {.l_onoff = 1, .l_linger = 0};
    setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof now);
    close(fd);
}

static inline void end_sending(int fd) { shutdown(fd, SHUT_WR); }
#endif
