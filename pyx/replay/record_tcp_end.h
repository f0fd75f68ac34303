// An end of a connection in the kernel, its runs of packets and events, and the maps.
#pragma once

#include "record_tcp_kernel.h"

// ---------------------------------------------------------------- the schema

enum { CONNECT = 1, SEND = 3, RECV, SHUTDOWN, CLOSED };
enum { CLIENT = 1, SERVER };
enum { MSG_MORE = 0x8000, READ_OR_WRITE = 5 };

enum { LOOKS = 16 };  // new segments after which a send looks for packets that have come
enum { GROUPS = 4, GROUP = 32 };  // of packets that TCP processes together
enum { PENDING = 256, RUNS = 8, NEAR = 1024, SLOTS = 8192, PORTS = 64, TIMERS = 3 };

enum { WHOLE = 64 };  // every so many runs of packets one is absolute

enum { NO_WAKEUP = 1 };

// ---------------------------------------------------------------- an end of a connection

struct place { u64 ts; u32 tx, rx, number, unused; };

struct pending { u16 ip_id, segments; };  // segments: with CE_BIT
enum { CE_BIT = 0x8000 };

struct end {
    u16 type;  // R_END: an entry that is replaced goes into the ring as it is
    u8 probed, role;
    u32 id;
    u64 last;  // when the last packet or event was
    u32 tx, rx, number, lost;
    u32 first, next;  // of `pending`
    u32 segments_in;  // of the packets that came
    s32 in_interface, out_interface;
    u32 copied;  // what the socket had given out when it was looked at
    u8 has_isn, has_peer_isn, reset, nospace;
    u8 sending, send_opens, receiving, unused;
    u32 isn, peer_isn;
    u32 digest, digest_from;
    u16 digest_count, digests_count;
    u32 jumps;  // packets sent that do not have the next identification
    u32 overflows;  // packets that found no room in `pending`
    s32 missed;  // segments more than these that its socket has counted when it closed
    // a send call that is going on: its piece, and what is left to copy
    u64 send_slept, send_left, send_asked, send_done;
    struct place send_place;
    u32 send_opened;
    u16 send_notes, unused_too;
    struct place recv_place;  // where a receive call that goes on copied last
    u32 digests[DIGESTS];
    // Up to here user space reads numbers by their names.
    struct packet_run sent, received;
    struct pending pending[PENDING];
    struct event_run runs[RUNS];
};

struct syn { u64 ts; s32 interface; u16 ip_id; u8 ce, unused; u8 header[HEADER]; };

struct map { u32 type, key, value, entries, flags; };
struct map ends SEC("maps") = {1, sizeof(struct key), sizeof(struct end), SLOTS, 1};
struct map blank SEC("maps") = {2, 4, sizeof(struct end), 1, 0};
struct map syns SEC("maps") = {9, sizeof(struct key), sizeof(struct syn), 1024, 0};  // least recently used
struct map connects SEC("maps") = {9, 8, 8, 1024, 0};  // socket: when it began to connect
struct map records SEC("maps") = {27, 0, 0, 8 << 20, 0};

struct settings {
    u64 functions[TIMERS];  // of the timers of TCP, by the number of the schema less one; 0: not known
    u64 offsets[TIMERS];  // of the timer in its socket
    u32 netns, tcp_sock, iphdr, tcphdr, skb_shared_info;  // all but the first: numbers of their types
    u32 ports;  // how many ports there are; 0: all are recorded
    u16 port[PORTS];
};
const volatile struct settings settings SEC(".rodata") = {0};

struct counters { u64 lost, excess, made; };
struct counters counters SEC(".bss");

// ---------------------------------------------------------------- runs

static inline u64 slot_of(u64 ts, u32 bits)
{
    return (ts + (1 << (bits - 1))) >> bits;
}

// Whether a list has room for another number.
static inline int has_room(u8 used, u64 number)
{
    return used < LIST - 1 && number <= MOST;
}

static inline void put(u8 *list, u8 *used, u32 number)
{
    u8 at = *used;
    if (number < ESCAPE) {
        list[at & (LIST - 1)] = number;
        *used = at + 1;
    } else {
        list[at & (LIST - 1)] = ESCAPE + (number >> 8);
        list[(at + 1) & (LIST - 1)] = number;
        *used = at + 2;
    }
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

static inline void emit_packets(struct end *e, struct packet_run *p, u16 kind)
{
    struct record *r = reserve(e, sizeof(*r));
    if (!r) {
        p->emitted = 0;
        return;
    }
    r->type = R_RUN;
    r->kind = kind;
    r->id = e->id;
    r->slot = p->first;
    r->count = p->count;
    r->tx = p->tx;
    r->rx = p->rx;
    r->number = r->flags = 0;
    r->gap = p->gap;
    r->bytes = r->asked = r->value = 0;
    r->notes = p->notes | N_LISTED;
    r->ip_id = p->ip_id;
    r->segments = p->segments;
    r->call = r->timer = 0;
    // As RelativeRuns of replay/recording/relative_runs.py.
    if (p->emitted % WHOLE) {
        r->tx -= p->from_tx;
        r->rx -= p->from_rx;
        r->ip_id -= p->from_id;
        r->notes |= N_RELATIVE;
    }
    probe_read(r->lists, sizeof(r->lists), p->lists);
    ring_submit(r, NO_WAKEUP);
    p->emitted++;
    p->from_tx = kind == K_TX ? p->tx + p->count : p->other;
    p->from_rx = kind == K_RX ? p->rx + p->count : p->other;
    p->from_id = p->after;
}

// Whether the kernel sent it without its socket, in the state time-wait: with identification 0.
static inline int unnumbered(const struct packet_run *p, u16 ip_id)
{
    return ip_id == 0 && p->expected > NEAR && p->expected < 0x10000 - NEAR;
}

static inline u8 marks_of(u16 notes)
{
    return (notes & N_CE ? MARK_CE : 0) | (notes & N_MERGED ? MARK_MERGED : 0);
}

static inline void clear(u8 lists[LISTS][LIST])
{
    __builtin_memset(lists, 0, LISTS * LIST);
}

// A packet that no run goes on with.
static inline void start_packets(struct end *e, struct packet_run *p, u16 kind, u64 slot, u16 ip_id, u16 segments)
{
    if (p->count)
        emit_packets(e, p, kind);
    else
        p->expected = -1;
    p->first = slot;
    p->count = 0;
    p->tx = e->tx;
    p->rx = e->rx;
    p->ip_id = ip_id;
    p->segments = segments;
    p->notes = 0;
    p->gap = 0;
    if (p->expected >= 0 && !unnumbered(p, ip_id))
        p->gap = (s32)((ip_id - p->expected + 0x8000) & 0xFFFF) - 0x8000;
    if (p->gap && kind == K_TX)
        e->jumps++;
    p->used[L_GAPS] = p->used[L_TX] = 0;
    clear(p->lists);
}

// A run goes on with the next identification, as long as its lists have room.
static inline void add_packet(struct end *e, struct packet_run *p, u16 kind, u64 ts, u16 ip_id, u16 segments, u16 notes,
                              int first)
{
    u64 slot = slot_of(ts, kind == K_TX ? SENT_BITS : INPUT_BITS), gap = slot - p->slot;
    u32 other = kind == K_RX ? e->tx : e->rx, between = other - p->other;
    int same = segments == p->segments;
    u8 size = same ? 0 : segments;
    if (p->count - 1 < LIST - 1 && ip_id == p->next && has_room(p->used[L_GAPS], gap) &&
        (same || segments - 1u < 255) && (kind == K_TX || has_room(p->used[L_TX], between))) {
        put(p->lists[L_GAPS], &p->used[L_GAPS], gap);
        if (kind == K_RX)
            put(p->lists[L_TX], &p->used[L_TX], between);
    } else {
        start_packets(e, p, kind, slot, ip_id, segments);
        size = 0;
    }
    // Zeros are there already: most packets touch fewer lines of memory.
    if (size)
        p->lists[L_SIZES][p->count & (LIST - 1)] = size;
    if (kind == K_RX && notes) {
        p->lists[L_MARKS][p->count & (LIST - 1)] = marks_of(notes);
        p->notes |= notes;
    }
    p->count++;
    p->slot = slot;
    p->other = other;
    u16 after = ip_id + segments;
    p->next = p->after = after;
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
    r->slot = run->first;
    r->count = run->count;
    r->tx = run->tx;
    r->rx = run->rx;
    r->number = run->number;
    r->flags = run->flags;
    r->gap = 0;
    r->bytes = run->bytes;
    r->asked = run->asked;
    r->value = run->value;
    r->notes = run->notes | N_LISTED;
    r->ip_id = r->segments = 0;
    r->call = run->call;
    r->timer = run->timer;
    // As EventRuns of replay/recording/relative_events.py.
    if (run->emitted % WHOLE) {
        r->tx -= run->from_tx;
        r->rx -= run->from_rx;
        r->number -= run->from_number;
        r->notes |= N_RELATIVE;
    }
    probe_read(r->lists, sizeof(r->lists), run->lists);
    ring_submit(r, NO_WAKEUP);
    run->emitted++;
    run->from_tx = run->last_tx;
    run->from_rx = run->last_rx;
    run->from_number = run->last_number;
}

static inline void add_event(struct end *e, struct place *at, u16 kind, u8 what, s64 bytes, u64 asked, u32 flags,
                             u16 notes, s32 value)
{
    u8 call = kind == K_CALL ? what : 0, timer = kind == K_TIMER ? what : 0;
    u32 slot_number = (kind * 3 + what + notes / 32 + (u32)bytes * 0x9E3779B1u / 0x10000) % RUNS;
    struct event_run *run = &e->runs[slot_number];
    u64 slot = slot_of(at->ts, INPUT_BITS), gap = slot - run->slot;
    u32 tx = at->tx - run->last_tx, rx = at->rx - run->last_rx, number = at->number - run->last_number;
    int same = run->count && run->kind == kind && run->call == call && run->timer == timer && run->bytes == bytes &&
               run->asked == asked && run->flags == flags && run->notes == notes && run->value == value;
    e->last = at->ts;
    if (same && run->count < LIST && has_room(run->used[L_GAPS], gap) && has_room(run->used[L_TX], tx) &&
        has_room(run->used[L_RX], rx) && has_room(run->used[L_NUMBER], number)) {
        put(run->lists[L_GAPS], &run->used[L_GAPS], gap);
        put(run->lists[L_TX], &run->used[L_TX], tx);
        put(run->lists[L_RX], &run->used[L_RX], rx);
        put(run->lists[L_NUMBER], &run->used[L_NUMBER], number);
        run->count++;
    } else {
        if (run->count)
            emit_event(e, run);
        if (!same)
            run->emitted = 0;
        run->kind = kind;
        run->call = call;
        run->timer = timer;
        run->bytes = bytes;
        run->asked = asked;
        run->flags = flags;
        run->notes = notes;
        run->value = value;
        run->first = slot;
        run->tx = at->tx;
        run->rx = at->rx;
        run->number = at->number;
        run->count = 1;
        __builtin_memset(run->used, 0, sizeof(run->used));
        clear(run->lists);
    }
    run->slot = slot;
    run->last_tx = at->tx;
    run->last_rx = at->rx;
    run->last_number = at->number;
}
