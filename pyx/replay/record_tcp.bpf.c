// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
//
// The light recorder: what each end of a TCP connection did, followed in the kernel where it happens.
//
// A connection is an entry of `ends`.  Its packets and its events (calls, timers, ...) are counted here, because at a
// tracepoint their order is known exactly, and they become runs here: equal events at even distances, with times
// after Algorithm 1 of DETER.  A run that ends is a record in the ring `records`.  Open runs stay in `ends` until user
// space takes the entry away.  Structures of the kernel have only the members that are used: their places are set
// when the program is loaded (CO-RE).

#include "record_tcp_packet.h"

// The first program is attached last: it makes the ends, and all of what they do after that must be seen.

// ---------------------------------------------------------------- packets

SEC("tp_btf/net_dev_queue")
int sent_packet(u64 *ctx)
{
    struct sk_buff *skb = (void *)ctx[0];
    struct sock *sk = skb->sk;
    struct packet p;
    struct end *e;
    u64 ts, *began;
    int first;

    if (skb->dev->nd_net.net->ns.inum != settings.netns)
        return 0;
    if (!read_packet(&p, skb, skb->head + skb->network_header, 1))
        return 0;
    e = map_lookup(&ends, &p.key);
    if (!e && !(p.flags & SYN))
        return 0;
    ts = ktime();
    first = (p.flags & (SYN | ACK)) == (SYN | ACK);
    if (p.flags & SYN && sk && (!e || (e->has_isn && e->isn != p.seq))) {
        u8 state = sk->__sk_common.skc_state;
        if (!wanted(p.address.ports))
            return 0;
        if (!first && state == SYN_SENT) {
            u64 which = (u64)sk;
            began = map_lookup(&connects, &which);
            e = make(&p.key, &p.address, began ? *began : ts, CLIENT, 0, began ? *began : 0);
            if (!e)
                return 0;
            struct place at = now(e, began ? *began : ts);
            add_event(e, &at, K_CALL, CONNECT, 0, 0, 0, 0, 0);
            map_delete(&connects, &which);
        } else if (first && state == NEW_SYN_RECV) {
            struct syn *syn = map_lookup(&syns, &p.key);
            if (!syn)
                return 0;
            e = make(&p.key, &p.address, syn->ts, SERVER, 0, 0);
            if (!e)
                return 0;
            e->in_interface = syn->interface;
            e->segments_in = 1;
            emit_syn(e, syn->header, syn->ts, 0);
            processed(e, syn->ts, syn->ip_id, p.address.version == 4, syn->ce ? N_CE : 0, 0);
            map_delete(&syns, &p.key);
        }
    }
    if (!e)
        return 0;
    if (e->out_interface < 0)
        e->out_interface = skb->dev->ifindex;
    if (e->out_interface != skb->dev->ifindex)
        return 0;
    if (p.flags & SYN) {
        u8 header[HEADER];
        probe_read(header, HEADER, p.tcp);
        emit_syn(e, header, ts, 1);
    }
    if (sk && whole(sk) && copied_since(e, sk))
        copied_at(e, ts);
    add_digest(e, &p, ts);
    add_packet(e, &e->sent, K_TX, ts, p.ip_id, p.address.version == 4 ? segments_of(skb) : 0, 0, first);
    e->tx++;
    e->last = ts;
    return 0;
}

SEC("tp_btf/netif_receive_skb")
int received_packet(u64 *ctx)
{
    struct sk_buff *skb = (void *)ctx[0];
    struct packet p;
    struct end *e;
    u16 segments;

    if (skb->dev->nd_net.net->ns.inum != settings.netns)
        return 0;
    if (!read_packet(&p, skb, skb->data, 0))
        return 0;
    e = map_lookup(&ends, &p.key);
    if (p.flags & SYN && (!e || (e->has_peer_isn && e->peer_isn != p.seq))) {
        // A server's end begins with its SYN-ACK: only then the SYN is known to be for this host.
        struct syn syn = {};
        if (p.flags & ACK || !wanted(p.address.ports))
            return 0;
        syn.ts = ktime();
        syn.interface = skb->dev->ifindex;
        syn.ip_id = p.ip_id;
        syn.ce = p.ce;
        probe_read(syn.header, HEADER, p.tcp);
        map_update(&syns, &p.key, &syn, 0);
        return 0;
    }
    if (!e)
        return 0;
    if (e->in_interface < 0)
        e->in_interface = skb->dev->ifindex;
    if (e->in_interface != skb->dev->ifindex)
        return 0;
    segments = segments_of(skb);
    e->segments_in += segments;
    if (e->probed && !(p.flags & (SYN | RST))) {
        u32 next = e->next;
        struct pending *to = &e->pending[next % PENDING];
        if (next - e->first >= PENDING) {
            e->overflows++;
            return 0;
        }
        to->ip_id = p.ip_id;
        to->segments = segments | (p.ce ? CE_BIT : 0);
        e->next = next + 1;
        return 0;
    }
    u64 ts = ktime();
    if (p.flags & SYN && !e->has_peer_isn) {
        u8 header[HEADER];
        probe_read(header, HEADER, p.tcp);
        emit_syn(e, header, ts, 0);
    }
    processed(e, ts, p.ip_id, p.address.version == 4 ? segments : 0, p.ce ? N_CE : 0,
              (p.flags & (SYN | ACK)) == (SYN | ACK));
    return 0;
}

static inline void take(struct end *e, const struct pending *p, u64 ts, u16 notes, int v4)
{
    u16 segments = p->segments & ~CE_BIT;
    processed(e, ts, p->ip_id, v4 ? segments : 0, notes | (p->segments & CE_BIT ? N_CE : 0), 0);
}

// Another packet like the one before, at its time: its entries in the lists of gaps and of tx are 0.  Numbers are kept
// in memory, so the verifier need not follow each of their values.
static inline int add_like(struct packet_run *run, u16 step)
{
    volatile u32 *count = &run->count;
    volatile u8 *used = run->used;
    u32 at = *count, gaps = used[L_GAPS], places = used[L_TX];
    if (at - 1 >= LIST - 1 || gaps >= LIST || places >= LIST)
        return 0;
    run->lists[L_SIZES][at & (LIST - 1)] = run->lists[L_SIZES][(at - 1) & (LIST - 1)];
    run->lists[L_MARKS][at & (LIST - 1)] = run->lists[L_MARKS][(at - 1) & (LIST - 1)];
    used[L_GAPS] = gaps + 1;
    used[L_TX] = places + 1;
    *count = at + 1;
    run->next = run->after = run->after + step;
    if (!((run->next - run->expected) & 0x8000))
        run->expected = run->next;
    return 1;
}

// Takes waiting packets of so many segments, at one time.  Only the first one of those with consecutive
// identifications can begin a run.
static inline u32 take_more(struct end *e, u32 first, s32 segments, u64 ts, u16 notes, int v4)
{
    struct packet_run *run = &e->received;
    for (int g = 0; g < GROUPS; g++) {
        struct pending *p = &e->pending[first % PENDING], *q;
        u16 same = p->segments, each = same & ~CE_BIT, step = v4 ? each : 0, id = p->ip_id;
        if (segments <= 0 || first == e->next)
            return first;
        take(e, p, ts, notes, v4);
        first++;
        segments -= each;
        for (int i = 0; i < GROUP; i++) {
            q = &e->pending[first % PENDING];
            id += step;
            if (segments <= 0 || first == e->next || q->segments != same || q->ip_id != id || !add_like(run, step))
                break;
            *(volatile u32 *)&e->rx += 1;
            first++;
            segments -= each;
        }
    }
    if (segments > 0 && first != e->next)
        e->overflows++;
    return first;
}

SEC("tp_btf/tcp_probe")
int processed_packet(u64 *ctx)
{
    struct sock *sk = (void *)ctx[0];
    struct sk_buff *skb = (void *)ctx[1];
    struct address a = {};
    struct key k;
    struct end *e;
    u64 ts;
    u32 first, waiting;
    s32 segments = 1;
    u16 id = 0;

    if (!ours(sk))
        return 0;
    socket_address(&a, sk);
    address_key(&k, &a);
    e = map_lookup(&ends, &k);
    ts = ktime();
    if (!e) {
        if (wanted(a.ports))
            make(&k, &a, ts, 0, 1, 0);
        return 0;
    }
    if (copied_since(e, sk))
        copied_at(e, ts);
    if (!e->sending && sk->sk_socket) {
        // A poll of a full socket lets TCP enlarge its buffer when packets are acknowledged: an input.
        u8 full = (sk->sk_socket->flags & NOSPACE) != 0;
        if (full && !e->nospace) {
            struct place at = now(e, ts);
            add_event(e, &at, K_POLL, 0, 0, 0, READ_OR_WRITE, 0, 0);
        }
        e->nospace = full;
    }
    first = e->first;
    waiting = e->next - first;
    if (!waiting)
        return 0;
    if (waiting > 1) {
        segments = segments_of(skb);
        if (a.version == 4) {
            // Packets before this one were dropped on their way to TCP.
            probe_read(&id, 2, skb->head + skb->network_header + 4);
            id = __builtin_bswap16(id);
            for (int i = 0; i < PENDING; i++) {
                if (first == e->next || e->pending[first % PENDING].ip_id == id)
                    break;
                first++;
            }
            if (first == e->next)
                first = e->first;
        }
    }
    struct pending *p = &e->pending[first % PENDING];
    take(e, p, ts, 0, a.version == 4);
    segments -= p->segments & ~CE_BIT;
    first++;
    // Those that TCP has merged with it because a call held the socket.
    if (segments > 0)
        first = take_more(e, first, segments, ts, N_MERGED, a.version == 4);
    e->first = first;
    return 0;
}

// ---------------------------------------------------------------- calls

static inline void end_piece(struct end *e, s64 bytes, u32 flags)
{
    if (e->send_notes & N_YIELDS)
        flags |= MSG_MORE;
    add_event(e, &e->send_place, K_CALL, SEND, bytes, e->send_asked, flags, e->send_notes, 0);
    if (bytes > 0)
        e->send_done += bytes;
}

static inline void begin_piece(struct end *e, u64 ts, u64 left, u16 notes)
{
    e->send_place = now(e, ts);
    e->send_asked = left;
    e->send_notes = notes;
}

SEC("tp_btf/tcp_sendmsg_locked")
int send_chunk(u64 *ctx)
{
    const struct msghdr *msg = (void *)ctx[1];
    const struct sk_buff *skb = (void *)ctx[2];
    struct task_struct *task = current_task();
    struct sock *sk = (void *)ctx[0];
    s32 goal = ctx[3];
    struct end *e = end_of(sk);
    u64 left, slept, ts;
    u8 opens;

    if (!e)
        return 0;
    left = msg->msg_iter.count;
    slept = task->nvcsw;
    opens = !skb || (s32)skb->len >= goal;
    if (!e->sending || left > e->send_left) {
        e->sending = 1;
        e->send_opened = 0;
        e->send_done = 0;
        ts = ktime();
        if (copied_since(e, sk))
            copied_at(e, ts);
        begin_piece(e, ts, left, 0);
    } else if (left != e->send_left) {
        if (e->send_opens)
            e->send_opened = e->send_opened == LOOKS ? 1 : e->send_opened + 1;
    } else {
        u64 bytes = e->send_asked - left;
        if (e->send_opened == LOOKS && slept == e->send_slept) {
            e->send_notes |= N_YIELDS;
            e->send_asked = bytes;
            e->send_opened = 0;
        } else {
            e->send_notes |= N_WAITS;
        }
        end_piece(e, bytes, 0);
        begin_piece(e, ktime(), left, N_CONTINUED);
    }
    e->send_left = left;
    e->send_opens = opens;
    e->send_slept = slept;
    return 0;
}

SEC("tp_btf/sock_send_length")
int send_end(u64 *ctx)
{
    struct sock *sk = (void *)ctx[0];
    s32 result = ctx[1];
    u32 flags = ctx[2];
    struct end *e;

    if (sk->sk_protocol != TCP)
        return 0;
    e = end_of(sk);
    if (!e)
        return 0;
    if (!e->sending) {
        struct place at = now(e, ktime());
        add_event(e, &at, K_CALL, SEND, result, 0, flags, 0, 0);
    } else {
        u64 done = e->send_done;
        end_piece(e, result > 0 ? result - (s64)done : done ? 0 : result, flags);
        e->sending = 0;
    }
    if (sk->sk_socket)
        e->nospace = (sk->sk_socket->flags & NOSPACE) != 0;
    return 0;
}

// A receive call, at the place where it copied last: TCP may process and send packets after that, before it returns.
SEC("tp_btf/sock_recv_length")
int recv_end(u64 *ctx)
{
    struct sock *sk = (void *)ctx[0];
    s32 result = ctx[1];
    u32 flags = ctx[2];
    struct end *e;

    if (sk->sk_protocol != TCP)
        return 0;
    e = end_of(sk);
    if (!e)
        return 0;
    if (copied_since(e, sk) || !e->receiving)
        copied_at(e, ktime());
    add_event(e, &e->recv_place, K_CALL, RECV, result, 0, flags, 0, 0);
    e->receiving = 0;
    return 0;
}

// ---------------------------------------------------------------- what TCP does, and the end

SEC("tp_btf/tcp_retransmit_skb")
int retransmitted(u64 *ctx)
{
    struct end *e = end_of((void *)ctx[0]);
    if (e) {
        struct place at = now(e, ktime());
        add_event(e, &at, K_RETRANSMIT, 0, 0, 0, 0, 0, 0);
    }
    return 0;
}

SEC("tp_btf/tcp_cong_state_set")
int congestion(u64 *ctx)
{
    struct end *e = end_of((void *)ctx[0]);
    if (e) {
        struct place at = now(e, ktime());
        add_event(e, &at, K_STATE, 0, 0, 0, 0, 0, (u8)ctx[1]);
    }
    return 0;
}

SEC("tp_btf/tcp_receive_reset")
int reset(u64 *ctx)
{
    struct end *e = end_of((void *)ctx[0]);
    if (e)
        e->reset = 1;
    return 0;
}

SEC("tp_btf/timer_expire_entry")
int timer(u64 *ctx)
{
    u64 timer = ctx[0], function = (u64)((struct timer_list *)timer)->function;
    struct address a = {};
    struct sock *sk;
    struct net *net = NULL;
    struct key k;
    struct end *e;
    u32 inum = 0;
    u16 own = 0, other = 0, family = 0;
    int which = -1;

#pragma unroll
    for (int i = 0; i < TIMERS; i++)
        if (settings.functions[i] && settings.functions[i] == function)
            which = i;
    if (which < 0 || which >= TIMERS)
        return 0;
    sk = (void *)(timer - settings.offsets[which]);
    probe_read(&net, sizeof(net), &sk->__sk_common.skc_net.net);
    probe_read(&inum, sizeof(inum), &net->ns.inum);
    if (inum != settings.netns)
        return 0;
    probe_read(&own, 2, &sk->__sk_common.skc_num);
    probe_read(&other, 2, &sk->__sk_common.skc_dport);
    probe_read(&family, 2, &sk->__sk_common.skc_family);
    a.ports = both_ports(own, other);
    a.version = 4;
    if (family == AF_INET6) {
        probe_read(a.source, 16, &sk->__sk_common.skc_v6_rcv_saddr);
        probe_read(a.destination, 16, &sk->__sk_common.skc_v6_daddr);
        if (!mapped(a.destination))
            a.version = 6;
    }
    if (a.version == 4) {
        probe_read(a.source, 4, &sk->__sk_common.skc_rcv_saddr);
        probe_read(a.destination, 4, &sk->__sk_common.skc_daddr);
    }
    address_key(&k, &a);
    e = map_lookup(&ends, &k);
    if (e) {
        struct place at = now(e, ktime());
        add_event(e, &at, K_TIMER, which + 1, 0, 0, 0, 0, 0);
    }
    return 0;
}


static inline void closes(struct end *e, u64 ts)
{
    struct pt_regs *registers = task_registers(current_task());
    struct place at = now(e, ts);
    // A shutdown and a close differ in what may be received after them.
    if (SYSCALL(registers) == SYS_shutdown)
        add_event(e, &at, K_CALL, SHUTDOWN, 0, 0, (u32)ARGUMENT(registers), 0, 0);
    else
        add_event(e, &at, K_CALL, CLOSED, 0, 0, 0, 0, 0);
}

SEC("tp_btf/inet_sock_set_state")
int state(u64 *ctx)
{
    const struct sock *sk = (void *)ctx[0];
    u64 ts, which = (u64)sk;
    s32 old = ctx[1], new = ctx[2];
    struct address a = {};
    struct key k;
    struct end *e;

    if (sk->sk_protocol != TCP || !ours(sk))
        return 0;
    ts = ktime();
    if (new == SYN_SENT) {
        map_update(&connects, &which, &ts, 0);
        return 0;
    }
    socket_address(&a, sk);
    if (!(a.ports & 0xFFFF)) {  // it has given back its port
        u16 own = 0;
        probe_read(&own, 2, &((struct inet_sock *)sk)->inet_sport);
        a.ports |= own;
    }
    address_key(&k, &a);
    e = map_lookup(&ends, &k);
    if (!e || new == SYN_RECV)
        return 0;
    if (new == ESTABLISHED) {
        e->probed = 1;
        return 0;
    }
    if (new == FIN_WAIT1 || new == LAST_ACK || (new == CLOSE && old == ESTABLISHED && !e->reset))
        closes(e, ts);
    // From now on TCP does not report packets: those that wait are processed next.
    if (e->probed) {
        e->probed = 0;
        e->first = take_more(e, e->first, PENDING << 8, ts, 0, a.version == 4);
    }
    if (new == CLOSE) {
        u32 counted = e->segments_in;
        probe_read(&counted, 4, &((struct tcp_sock *)sk)->segs_in);
        e->missed = counted - e->segments_in;
        struct close_record *r = reserve(e, sizeof(*r));
        if (r) {
            r->type = R_CLOSE;
            r->unused = 0;
            r->id = e->id;
            r->ts = ts;
            r->key = k;
            ring_submit(r, NO_WAKEUP);
        }
    }
    return 0;
}

// For their BTF, with which user space reads them.
union {
    struct record record;
    struct begin_record begin;
    struct syn_record syn;
    struct digest_record digest;
    struct close_record close;
    struct end end;
} shape SEC("shapes");

char terms[] SEC("license") = "GPL";
