/* System calls of a replay: packets of packet sockets, and calls of sockets that never block. */
#ifndef CONFLUO_REPLAY_CALLS_H
#define CONFLUO_REPLAY_CALLS_H
#include <errno.h>
#include <linux/if_packet.h>
#include <linux/sock_diag.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum { ZEROS = 1 << 20, PACKET_ROOM = 1 << 17 };

static uint8_t replay_zeros[ZEROS];     /* never written */
static uint8_t replay_sink[ZEROS];      /* received payload, never read */

static inline int64_t replay_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* A clock that changes when the kernel counts a tick. */
static inline int64_t replay_tick(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC_COARSE, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* A transmit ring of a packet socket: one frame, always the same.  The kernel copies head bytes and refers to the pages
 * of the ring for the payload: such a packet takes as much of a receive buffer as one that TCP built (its truesize). */
enum { RING_FRAME = 1 << 17, HEADERS_AT = TPACKET_ALIGN(sizeof(struct tpacket2_hdr)) };

static inline void *replay_ring(int fd) {
    int version = TPACKET_V2;
    struct tpacket_req r = {RING_FRAME, 1, RING_FRAME, 1};
    void *ring;
    if (setsockopt(fd, SOL_PACKET, PACKET_VERSION, &version, sizeof version)
        || setsockopt(fd, SOL_PACKET, PACKET_TX_RING, &r, sizeof r))
        return NULL;
    ring = mmap(NULL, RING_FRAME, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    return ring == MAP_FAILED ? NULL : ring;
}

static inline void replay_unmap(void *ring) {
    munmap(ring, RING_FRAME);
}

/* Send a packet of head bytes and length - head zero bytes; the first bytes are a virtio_net_hdr.  0, or an error. */
static inline int replay_deliver(int fd, void *ring, const uint8_t *bytes, uint32_t head, uint32_t length) {
    struct tpacket2_hdr *h = ring;
    uint8_t *data = (uint8_t *)ring + HEADERS_AT;
    uint16_t linear = (uint16_t)(head - 10);
    if (length > RING_FRAME - HEADERS_AT || h->tp_status != TP_STATUS_AVAILABLE)
        return EBUSY;
    memcpy(data, bytes, head);
    memcpy(data + 2, &linear, 2);       /* hdr_len: what the kernel copies */
    h->tp_len = length;
    h->tp_status = TP_STATUS_SEND_REQUEST;
    return send(fd, NULL, 0, MSG_DONTWAIT) < 0 ? errno : 0;
}

/* Wait until a packet socket can be read, at most ns.  1: a signal came, else 0. */
static inline int replay_wait(const int *fd, int64_t ns) {
    struct pollfd p[2] = {{fd[0], POLLIN, 0}, {fd[1], POLLIN, 0}};
    struct timespec t = {ns / 1000000000, ns % 1000000000};
    return ppoll(p, 2, &t, NULL) < 0 && errno == EINTR;
}

/* n bytes as parts that are all the same memory: at most PARTS * ZEROS bytes, so a call stays one call. */
enum { PARTS = 1024 };                  /* IOV_MAX */

static inline size_t replay_parts(struct iovec *parts, void *memory, uint64_t n) {
    size_t used = 0;
    for (; n && used < PARTS; n -= parts[used++].iov_len) {
        parts[used].iov_base = memory;
        parts[used].iov_len = n < ZEROS ? n : ZEROS;
    }
    return used;
}

static inline int64_t replay_send(int fd, uint64_t n, int flags) {
    struct iovec parts[PARTS];
    struct msghdr m = {.msg_iov = parts, .msg_iovlen = replay_parts(parts, replay_zeros, n)};
    ssize_t done = sendmsg(fd, &m, flags | MSG_DONTWAIT | MSG_NOSIGNAL);
    return done < 0 ? -(int64_t)errno : done;
}

/* After a part of a send, where TCP of the recording may have waited for room: if there is none here, ask for some
 * as a send that waits does (it sets SOCK_NOSPACE, with which the buffer grows later). */
static inline void replay_ask_room(int fd, int flags) {
    uint32_t memory[SK_MEMINFO_VARS];
    socklen_t n = sizeof memory;
    if (getsockopt(fd, SOL_SOCKET, SO_MEMINFO, memory, &n) == 0
        && memory[SK_MEMINFO_WMEM_QUEUED] >= memory[SK_MEMINFO_SNDBUF])
        replay_send(fd, 1, flags);
}

static inline int64_t replay_receive(int fd, uint64_t n, int flags) {
    struct iovec parts[PARTS];
    struct msghdr m = {.msg_iov = parts, .msg_iovlen = replay_parts(parts, replay_sink, n)};
    ssize_t done = recvmsg(fd, &m, flags | MSG_DONTWAIT);
    return done < 0 ? -(int64_t)errno : done;
}

static inline int64_t replay_poll(int fd, short events) {
    struct pollfd p = {fd, events, 0};
    return poll(&p, 1, 0) < 0 ? -(int64_t)errno : p.revents;
}

/* ``value`` as in recordings: confluo_tools/replay/recording/socket_options.py. */
static inline int64_t replay_option(int fd, int level, int name, int64_t value) {
    int number = (int)value, done;
    char control[9] = {0};
    if (level == SOL_SOCKET && name == SO_LINGER) {
        struct linger l = {(int)value && !(value >> 32), 0}; /* a close that waits would wait here */
        done = setsockopt(fd, level, name, &l, sizeof l);
    } else if (level == IPPROTO_TCP && name == TCP_CONGESTION) {
        memcpy(control, &value, 8);
        done = setsockopt(fd, level, name, control, (socklen_t)strlen(control));
    } else {
        done = setsockopt(fd, level, name, &number, sizeof number);
    }
    return done < 0 ? -(int64_t)errno : 0;
}

static inline int64_t replay_connect(int fd, const void *address, unsigned n) {
    return connect(fd, address, n) < 0 && errno != EINPROGRESS ? -(int64_t)errno : 0;
}

/* Close with a reset, so that no closing connection keeps its namespace. */
static inline void replay_abort(int fd) {
    struct linger now = {1, 0};
    setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof now);
    close(fd);
}

static inline int64_t replay_accept(int fd) {
    int got = accept4(fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    return got < 0 ? -(int64_t)errno : got;
}
#endif
