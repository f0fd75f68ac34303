// An end of a connection in the kernel, its runs of packets and events, and the maps.
#pragma once

#include "record_tcp_kernel.h"

// ---------------------------------------------------------------- the schema

enum { CONNECT = 1, SEND = 3, RECV, SHUTDOWN, CLOSED };
enum { CLIENT = 1, SERVER };
enum { MSG_MORE = 0x8000, READ_OR_WRITE = 5 };

enum { LOOKS = 16 };  // new segments after which a send looks for packets that have come
enum { GROUPS = 3, GROUP = 32 };  // of packets that TCP processes together
enum { PENDING = 256, RUNS = 8, NEAR = 1024, SLOTS = 8192, PORTS = 64, TIMERS = 3 };

enum { WHOLE = 64 };  // every so many runs of packets one is absolute

enum { NO_WAKEUP = 1 };

// ---------------------------------------------------------------- an end of a connection

enum { GRAIN = 1024, SENT_GRAIN = 4096 };  // ns: times of runs are multiples of it; no input depends on those of tx
struct times { u64 ts, low, high, step; u32 count, unused; };  // the state of Algorithm 1; step: of the run before

struct packet_run {
    struct times times;
    u32 tx, rx;
    u16 ip_id, segments, notes, unused;
    s32 gap;
    s32 next;      // identification that continues the run; -1: none
    s32 expected;  // after the highest so far; -1: any
    u32 jumps;
    u32 emitted;  // since the last one that was lost
    u32 from_tx, from_rx, from_id;  // the next run is relative to these
};

struct steps { u32 tx, rx, number; };

struct event_run {
    struct times times;
    s64 bytes;
    u64 asked;
    u32 flags;
    s32 value;
    u16 notes, kind;
    u8 call, timer, stepped, unused;
    u32 tx, rx, number;
    u32 tx_step, rx_step, number_step;
    u32 last_tx, last_rx, last_number;
    u32 emitted;  // since the last one that was lost, or was another event
    struct steps from, usual;  // the next run is relative to the former; the latter: of the last run with steps
};

struct place { u64 ts; u32 tx, rx, number, unused; };

struct pending { u32 seq; u16 ip_id, segments; };  // segments: with CE_BIT
enum { CE_BIT = 0x8000 };

struct end {
    u16 type;  // R_END: an entry that is replaced goes into the ring as it is
    u8 probed, role;
    u32 id;
    u64 last;  // when the last packet or event was
    u32 tx, rx, number, lost;
    u32 isn, peer_isn;
    u32 overflows;  // packets that found no room in `pending`
    u32 segments_in;  // of the packets that came
    s32 missed;  // segments more than these that its socket has counted when it closed
    s32 out_interface, in_interface;
    u8 has_isn, has_peer_isn, reset, nospace;
    u16 digest_count, digests_count;
    u32 digest, digest_from;
    u32 digests[DIGESTS];
    struct packet_run sent, received;
    // a send call that is going on: its piece, and what is left to copy
    struct place send_place;
    u64 send_slept, send_left, send_asked, send_done;
    u32 send_opened;
    u16 send_notes;
    u8 sending, send_opens;
    // a receive call: where it copied last, and what the socket had given out then
    struct place recv_place;
    u32 copied;
    u8 receiving, unused_too[3];
    struct event_run runs[RUNS];
    u32 first, next;  // of `pending`
    struct pending pending[PENDING];
};

struct syn { u64 ts; s32 interface; u16 ip_id; u8 ce, unused; u8 header[HEADER]; };

struct map { u32 type, key, value, entries, flags; };
struct map ends SEC("maps") = {1, sizeof(struct key), sizeof(struct end), SLOTS, 1};
struct map blank SEC("maps") = {2, 4, sizeof(struct end), 1, 0};
struct map syns SEC("maps") = {9, sizeof(struct key), sizeof(struct syn), 1024, 0};  // least recently used
struct map connects SEC("maps") = {9, 8, 8, 1024, 0};  // socket: when it began to connect
struct map records SEC("maps") = {27, 0, 0, 8 << 20, 0};

struct settings {
    u64 threshold;  // ns
    u64 functions[TIMERS];  // of the timers of TCP, by the number of the schema less one; 0: not known
    u64 offsets[TIMERS];  // of the timer in its socket
    u32 netns, tcp_sock, iphdr, tcphdr, skb_shared_info;  // all but the first: numbers of their types
    u32 ports;  // how many ports there are; 0: all are recorded
    u16 port[PORTS];
};
const volatile struct settings settings SEC(".rodata") = {0};

struct counters { u64 lost, excess, made; };
struct counters counters SEC(".bss");

// Each CPU counts its own: one line of the cache that all write costs more than the rest of an event.
struct seen { u64 packets, events; };
struct map seen SEC("maps") = {6, 4, sizeof(struct seen), 1, 0};

static inline void count(u32 packets, u32 events)
{
    u32 zero = 0;
    struct seen *s = map_lookup(&seen, &zero);
    if (s) {
        s->packets += packets;
        s->events += events;
    }
}

// ---------------------------------------------------------------- runs

static inline int fits(struct times *t, u64 ts)
{
    u64 n = t->count, th = settings.threshold, low, high, ahead = ts + th - t->ts;
    if (ts + th < t->ts)
        return 0;
    // Most times do not narrow the range: no division.
    if (n > 1 && ahead >= t->high * n && ahead <= t->low * n + 2 * th) {
        t->count++;
        return 1;
    }
    low = ahead > 2 * th ? (ahead - 2 * th + n - 1) / n : 0;
    high = ahead / n;
    if (low < t->low)
        low = t->low;
    if (high > t->high)
        high = t->high;
    if (low > high)
        return 0;
    t->low = low;
    t->high = high;
    t->count++;
    return 1;
}

static inline void start(struct times *t, u64 ts, u64 grain)
{
    t->ts = (ts + grain / 2) & ~(grain - 1);
    t->low = 0;
    t->high = 1ULL << 62;
    t->count = 1;
}

// The step of the run before, if it fits: equal steps take few bytes.  Else the one that ends in the most zero bits
// (`roundest` of replay/sampling.py).
static inline u64 step_of(struct times *t)
{
    u64 free = (t->low - 1) ^ t->high;
    if (t->count == 1)
        return 0;
    if (t->step >= t->low && t->step <= t->high)
        return t->step;
    t->step = 0;
    if (!t->low)
        return 0;
    for (int shift = 1; shift < 64; shift *= 2)
        free |= free >> shift;
    t->step = t->high & ~(free >> 1);
    return t->step;
}

static inline void *reserve(struct end *e, u64 size)
{
    void *r = ring_reserve(&records, size, 0);
    if (!r) {
        e->lost++;
        __sync_fetch_and_add(&counters.lost, 1);
    }
    return r;
}

static inline void set_times(struct record *r, struct times *t)
{
    r->ts = t->ts;
    r->step = step_of(t);
    r->count = t->count;
}

static inline void emit_packets(struct end *e, struct packet_run *p, u16 kind)
{
    struct record *r = reserve(e, sizeof(*r));
    if (!r) {
        p->emitted = 0;
        return;
    }
    __builtin_memset(r, 0, sizeof(*r));
    r->type = R_RUN;
    r->kind = kind;
    r->id = e->id;
    set_times(r, &p->times);
    r->tx = p->tx;
    r->rx = p->rx;
    r->ip_id = p->ip_id;
    r->segments = p->segments;
    r->notes = p->notes;
    r->gap = p->gap;
    // As RelativeRuns of replay/recording/relative_runs.py.
    if (p->emitted % WHOLE) {
        r->tx -= p->from_tx;
        r->rx -= p->from_rx;
        r->ip_id -= p->from_id;
        r->notes |= N_RELATIVE;
    }
    ring_submit(r, NO_WAKEUP);
    p->emitted++;
    p->from_tx = p->tx + (kind == K_TX ? p->times.count : 0);
    p->from_rx = p->rx + (kind == K_RX ? p->times.count : 0);
    p->from_id = p->ip_id + p->times.count * p->segments;
}

// Whether the kernel sent it without its socket, in the state time-wait: with identification 0.
static inline int unnumbered(const struct packet_run *p, u16 ip_id)
{
    return ip_id == 0 && p->expected > NEAR && p->expected < 0x10000 - NEAR;
}

// As PacketRunWriter of replay/recording/packet_runs.py.
static inline void add_packet(struct end *e, struct packet_run *p, u16 kind, u64 ts, u16 ip_id, u16 segments, u16 notes,
                              int first)
{
    if (!p->times.count || ip_id != p->next || segments != p->segments || notes != p->notes || !fits(&p->times, ts)) {
        if (p->times.count)
            emit_packets(e, p, kind);
        else
            p->expected = -1;
        start(&p->times, ts, kind == K_TX ? SENT_GRAIN : GRAIN);
        p->tx = e->tx;
        p->rx = e->rx;
        p->ip_id = ip_id;
        p->segments = segments;
        p->notes = notes;
        p->gap = 0;
        if (p->expected >= 0 && !unnumbered(p, ip_id))
            p->gap = (s32)((ip_id - p->expected + 0x8000) & 0xFFFF) - 0x8000;
        if (p->gap)
            p->jumps++;
    }
    u16 after = ip_id + segments;
    p->next = after;
    if (p->expected < 0 || (!((after - p->expected) & 0x8000) && !unnumbered(p, ip_id)))
        p->expected = after;
    if (first)
        p->next = p->expected = -1;
}

static inline struct place now(struct end *e, u64 ts)
{
    struct place p = {ts, e->tx, e->rx, __sync_fetch_and_add(&e->number, 1), 0};
    return p;
}

// Where a receive call that goes on has copied last.
static inline void copied_at(struct end *e, u64 ts)
{
    if (e->receiving && e->number == e->recv_place.number + 1) {
        e->recv_place.ts = ts;
        e->recv_place.tx = e->tx;
        e->recv_place.rx = e->rx;
    } else {
        e->recv_place = now(e, ts);
    }
    e->receiving = 1;
}

// Whether the program took bytes from the socket since the last look.
static inline int copied_since(struct end *e, const struct sock *sk)
{
    const struct tcp_sock *tcp = bpf_rdonly_cast(sk, settings.tcp_sock);
    u32 before = e->copied, copied = tcp->copied_seq;
    if (copied == before)
        return 0;
    e->copied = copied;
    return before != 0;
}

static inline void emit_event(struct end *e, struct event_run *run)
{
    struct record *r = reserve(e, sizeof(*r));
    if (!r) {
        run->emitted = 0;
        return;
    }
    r->type = R_RUN;
    r->kind = run->kind;
    r->id = e->id;
    set_times(r, &run->times);
    r->tx = run->tx;
    r->rx = run->rx;
    r->number = run->number;
    r->tx_step = run->tx_step;
    r->rx_step = run->rx_step;
    r->number_step = run->number_step;
    r->flags = run->flags;
    r->bytes = run->bytes;
    r->asked = run->asked;
    r->notes = run->notes;
    r->call = run->call;
    r->timer = run->timer;
    r->ip_id = r->segments = 0;
    r->gap = 0;
    r->value = run->value;
    // As EventRuns of replay/recording/relative_events.py.
    if (run->emitted % WHOLE) {
        r->tx -= run->from.tx;
        r->rx -= run->from.rx;
        r->number -= run->from.number;
        r->notes |= N_RELATIVE;
    } else {
        struct steps none = {};
        run->usual = none;
    }
    ring_submit(r, NO_WAKEUP);
    run->emitted++;
    if (run->stepped) {
        run->usual.tx = run->tx_step;
        run->usual.rx = run->rx_step;
        run->usual.number = run->number_step;
    }
    run->from.tx = run->last_tx + run->usual.tx;
    run->from.rx = run->last_rx + run->usual.rx;
    run->from.number = run->last_number + run->usual.number;
}

static inline int continues(struct event_run *run, const struct place *at)
{
    u32 tx = at->tx - run->last_tx, rx = at->rx - run->last_rx, number = at->number - run->last_number;
    if ((s32)tx < 0 || (s32)rx < 0 || (s32)number < 0)
        return 0;
    if (run->stepped && (tx != run->tx_step || rx != run->rx_step || number != run->number_step))
        return 0;
    if (!fits(&run->times, at->ts))
        return 0;
    run->tx_step = tx;
    run->rx_step = rx;
    run->number_step = number;
    run->stepped = 1;
    return 1;
}

// As RunWriter of replay/recording/run_writer.py.
static inline void add_event(struct end *e, struct place *at, u16 kind, u8 what, s64 bytes, u64 asked, u32 flags,
                             u16 notes, s32 value)
{
    u8 call = kind == K_CALL ? what : 0, timer = kind == K_TIMER ? what : 0;
    int same = 0;
    u32 slot = (kind * 3 + what + notes / 32 + (u32)bytes * 0x9E3779B1u / 0x10000) % RUNS;
    struct event_run *run = &e->runs[slot];
    e->last = at->ts;
    count(0, 1);
    if (run->times.count) {
        same = run->kind == kind && run->call == call && run->timer == timer && run->bytes == bytes &&
               run->asked == asked && run->flags == flags && run->notes == notes && run->value == value;
        if (same && continues(run, at)) {
            run->last_tx = at->tx;
            run->last_rx = at->rx;
            run->last_number = at->number;
            return;
        }
        emit_event(e, run);
    }
    if (!same)
        run->emitted = 0;
    start(&run->times, at->ts, GRAIN);
    run->kind = kind;
    run->call = call;
    run->timer = timer;
    run->bytes = bytes;
    run->asked = asked;
    run->flags = flags;
    run->notes = notes;
    run->value = value;
    run->stepped = 0;
    run->tx = run->last_tx = at->tx;
    run->rx = run->last_rx = at->rx;
    run->number = run->last_number = at->number;
    run->tx_step = run->rx_step = run->number_step = 0;
}
