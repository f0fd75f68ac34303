/* Sockets of the responder: batches of UDP probes and their answers, epoll, accept. */
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

enum { DATAGRAMS = 32, DATAGRAM = 65536, EVENTS = 256, ANCILLARY = 128, REPLY_CONTROL = 64 };

typedef struct {
    struct mmsghdr in[DATAGRAMS], out[DATAGRAMS];
    struct iovec vec[DATAGRAMS], back[DATAGRAMS];
    struct sockaddr_in6 name[DATAGRAMS];        /* of either family */
    _Alignas(16) char ancillary[DATAGRAMS][ANCILLARY];
    _Alignas(16) char reply_control[DATAGRAMS][REPLY_CONTROL];  /* the source address of the answer */
    int64_t stamp[DATAGRAMS];                   /* of answers: receive time of the probe in the kernel, 0: unknown */
    uint8_t unicast[DATAGRAMS];                 /* sent to one address of this host: no broadcast or multicast */
    uint8_t *bytes;                             /* DATAGRAMS times DATAGRAM */
    unsigned n_out;
} ReplyBatch;

static inline int64_t clock_ns(int which) {
    struct timespec t;
    clock_gettime(which ? CLOCK_REALTIME : CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* Read the destination address and the receive time of datagram i. */
static inline void batch_read(ReplyBatch *b, int i) {
    struct msghdr *m = &b->in[i].msg_hdr, *o = &b->out[b->n_out].msg_hdr;
    struct cmsghdr *c;
    b->stamp[b->n_out] = 0;
    b->unicast[i] = 0;
    memset(o, 0, sizeof *o);
    for (c = CMSG_FIRSTHDR(m); c; c = CMSG_NXTHDR(m, c)) {
        if (c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_TIMESTAMPNS
                && c->cmsg_len >= CMSG_LEN(sizeof(struct timespec))) {
            struct timespec t;
            memcpy(&t, CMSG_DATA(c), sizeof t);
            b->stamp[b->n_out] = (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
            continue;
        }
        struct cmsghdr *to = (struct cmsghdr *)b->reply_control[b->n_out];
        if (c->cmsg_level == IPPROTO_IP && c->cmsg_type == IP_PKTINFO
                && c->cmsg_len >= CMSG_LEN(sizeof(struct in_pktinfo))) {
            struct in_pktinfo info;
            memcpy(&info, CMSG_DATA(c), sizeof info);
            b->unicast[i] = info.ipi_addr.s_addr == info.ipi_spec_dst.s_addr;
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
            b->unicast[i] = info.ipi6_addr.s6_addr[0] != 0xff;
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
static inline int batch_receive(ReplyBatch *b, int fd) {
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

static inline uint32_t batch_length(const ReplyBatch *b, int i) {
    return b->in[i].msg_hdr.msg_flags & MSG_TRUNC ? 0 : b->in[i].msg_len;
}

/* Queue datagram i as its own answer: same bytes, same length, never longer. */
static inline void batch_reply(ReplyBatch *b, int i) {
    struct msghdr *o = &b->out[b->n_out].msg_hdr;
    b->back[b->n_out].iov_base = b->bytes + (size_t)i * DATAGRAM;
    b->back[b->n_out].iov_len = b->in[i].msg_len;
    o->msg_iov = &b->back[b->n_out];
    o->msg_iovlen = 1;
    o->msg_name = &b->name[i];
    o->msg_namelen = b->in[i].msg_hdr.msg_namelen;
    b->n_out++;
}

static inline uint8_t *batch_out(const ReplyBatch *b, unsigned i) { return b->back[i].iov_base; }

static inline uint64_t batch_stamp(const ReplyBatch *b, unsigned i) { return (uint64_t)b->stamp[i]; }

/* Number of answers sent; answers that the kernel refuses (unreachable peers) are skipped. */
static inline unsigned batch_send(ReplyBatch *b, int fd) {
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

static inline int accept_connection(int fd) {
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

/* Close with a reset: the kernel keeps no state of the connection. */
static inline void reset_connection(int fd) {
    struct linger now = {.l_onoff = 1, .l_linger = 0};
    setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof now);
    close(fd);
}

static inline void shutdown_write(int fd) { shutdown(fd, SHUT_WR); }
#endif
